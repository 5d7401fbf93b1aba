//! A server of S3's protocol over a directory, which checks signatures.

use std::path::Path;
use std::sync::mpsc;
use std::thread;

use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto::Builder;
use s3s::auth::SimpleAuth;
use s3s::service::S3ServiceBuilder;
use s3s_fs::FileSystem;

/// The server, as long as the test's process runs.
pub struct S3 {
    pub endpoint: String,
}

pub const KEY: &str = "a-key";
pub const SECRET: &str = "a-secret";

impl S3 {
    /// Each directory of `root` is a bucket.
    pub fn of(root: &Path) -> S3 {
        let files = FileSystem::new(root).unwrap();
        let mut builder = S3ServiceBuilder::new(files);
        builder.set_auth(SimpleAuth::from_single(KEY, SECRET));
        let service = builder.build();
        let (sender, receiver) = mpsc::channel();
        thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async move {
                let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
                sender.send(listener.local_addr().unwrap()).unwrap();
                loop {
                    let (socket, _) = listener.accept().await.unwrap();
                    let connection = Builder::new(TokioExecutor::new())
                        .serve_connection(TokioIo::new(socket), service.clone())
                        .into_owned();
                    // A client that goes away is no failure.
                    tokio::spawn(async move { connection.await.unwrap_or_default() });
                }
            });
        });
        S3 { endpoint: format!("http://{}", receiver.recv().unwrap()) }
    }

    /// The variables by which a client finds it.
    pub fn variables(&self) -> [(&'static str, String); 5] {
        [
            ("AWS_ENDPOINT", self.endpoint.clone()),
            ("AWS_ALLOW_HTTP", "true".to_owned()),
            ("AWS_REGION", "us-east-1".to_owned()),
            ("AWS_ACCESS_KEY_ID", KEY.to_owned()),
            ("AWS_SECRET_ACCESS_KEY", SECRET.to_owned()),
        ]
    }
}
