//! Registries of container images: Debian's, as a process of its own; and servers that do what a registry should not.

use std::collections::HashMap;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Duration;

use super::{LONG, within};

/// Debian's registry, reached from this machine alone, as long as this is.
pub struct Registry {
    process: Child,
    /// `127.0.0.1:PORT`.
    pub host: String,
}

/// A user of a registry that asks for one, with the line of `htpasswd -nbB USER PASSWORD`.
pub const USER: &str = "user";
pub const PASSWORD: &str = "pass:word";
const HTPASSWD: &str = "user:$2y$05$MVNHTPNGR0UlYtS6nTTEnuzZAgkkfLFG6JTJjmvd8//xzWQ0Dnjbu\n";

impl Registry {
    /// Starts one that keeps its images in `place`.
    pub fn of(place: &Path) -> Registry {
        Registry::start(place, "")
    }

    /// The same, for [`USER`] alone.
    pub fn of_user(place: &Path) -> Registry {
        fs::create_dir_all(place).unwrap();
        let file = place.join("htpasswd");
        fs::write(&file, HTPASSWD).unwrap();
        Registry::start(place, &format!("auth: {{ htpasswd: {{ realm: tests, path: {} }} }}\n", file.display()))
    }

    /// The same with TLS, whose authority is `PLACE/ca.crt`.
    pub fn of_tls(place: &Path) -> Registry {
        fs::create_dir_all(place).unwrap();
        let make = "exec 2>&1; new='-newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes'
            openssl req -x509 $new -keyout ca.key -out ca.crt -days 3650 -subj /CN=ca
            openssl req $new -keyout key.pem -out request.pem -subj /CN=tests
            echo subjectAltName=IP:127.0.0.1,DNS:localhost > extensions
            openssl x509 -req -in request.pem -CA ca.crt -CAkey ca.key -CAcreateserial -days 3650 -extfile extensions -out cert.pem";
        super::host("sh", &["-ec", make], place);
        let (cert, key) = (place.join("cert.pem"), place.join("key.pem"));
        Registry::start_with(place, &format!("tls: {{ certificate: {}, key: {} }}", cert.display(), key.display()), "")
    }

    fn start(place: &Path, more: &str) -> Registry {
        Registry::start_with(place, "", more)
    }

    fn start_with(place: &Path, of_http: &str, more: &str) -> Registry {
        fs::create_dir_all(place).unwrap();
        // Another program may take the port in between; then the next one is tried.
        for _ in 0..10 {
            let free = TcpListener::bind("127.0.0.1:0").unwrap();
            let host = free.local_addr().unwrap().to_string();
            drop(free);
            let config = place.join("config.yml");
            let text = format!(
                "version: 0.1\nlog: {{ level: error }}\nstorage: {{ filesystem: {{ rootdirectory: {} }}, delete: {{ enabled: true }} }}\n\
                 http:\n  addr: '{host}'\n  {of_http}\n{more}",
                place.join("data").display()
            );
            fs::write(&config, text).unwrap();
            let log = fs::File::create(place.join("log")).unwrap();
            let mut process = Command::new("docker-registry")
                .args(["serve", config.to_str().unwrap()])
                .stdin(Stdio::null())
                .stdout(log.try_clone().unwrap())
                .stderr(log)
                .spawn()
                .expect("docker-registry starts");
            let mut has_ended = false;
            let listens = within(LONG, || {
                has_ended = process.try_wait().unwrap().is_some();
                has_ended || TcpStream::connect(&host).is_ok()
            });
            if listens && !has_ended {
                return Registry { process, host };
            }
            let _ = process.kill();
            process.wait().unwrap();
        }
        panic!("docker-registry does not start: {}", fs::read_to_string(place.join("log")).unwrap());
    }

    /// What `docker://` calls this image.
    pub fn name(&self, image: &str) -> String {
        format!("docker://{}/{image}", self.host)
    }

    /// Puts a document as a tag.
    pub fn put_manifest(&self, repository: &str, tag: &str, media_type: &str, text: &str) {
        let mut stream = TcpStream::connect(&self.host).unwrap();
        write!(
            stream,
            "PUT /v2/{repository}/manifests/{tag} HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Type: {media_type}\r\n\
             Content-Length: {}\r\n\r\n{text}",
            text.len()
        )
        .unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 201"), "{answer}");
    }
}

impl Drop for Registry {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// A request that a [`Server`] got.
#[derive(Clone, Debug, Default)]
pub struct Request {
    pub method: String,
    /// With what follows a question mark.
    pub path: String,
    /// By name, in lower case.
    pub headers: HashMap<String, String>,
    pub body: Vec<u8>,
}

/// What a [`Server`] answers.
#[derive(Clone, Debug)]
pub struct Answer {
    pub status: u16,
    pub headers: Vec<(&'static str, String)>,
    pub body: Vec<u8>,
    /// What it says of the body's length; what is right if `None`.
    pub length: Option<u64>,
    pub end: End,
}

/// What a [`Server`] does behind an answer's body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// Closes the connection.
    Close,
    /// Sends zeros until the client closes the connection.
    Endless,
    /// Says nothing more, and keeps the connection.
    Silent,
}

impl Answer {
    pub fn of(status: u16, body: impl Into<Vec<u8>>) -> Answer {
        Answer { status, headers: Vec::new(), body: body.into(), length: None, end: End::Close }
    }

    pub fn with(mut self, name: &'static str, value: impl Into<String>) -> Answer {
        self.headers.push((name, value.into()));
        self
    }
}

/// A server of HTTP without TLS, one request a connection.
pub struct Server {
    /// `127.0.0.1:PORT`.
    pub host: String,
    requests: Arc<Mutex<Vec<Request>>>,
}

impl Server {
    /// Answers each request by `answer`, which gets the server's host, too.
    pub fn of(answer: impl Fn(&str, &Request) -> Answer + Send + Sync + 'static) -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let host = listener.local_addr().unwrap().to_string();
        let requests = Arc::new(Mutex::new(Vec::new()));
        let (answer, own, noted) = (Arc::new(answer), host.clone(), Arc::clone(&requests));
        thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (answer, own, noted) = (Arc::clone(&answer), own.clone(), Arc::clone(&noted));
                thread::spawn(move || {
                    // A client that goes away is no failure.
                    let _ = serve(stream, |request| {
                        noted.lock().unwrap().push(request.clone());
                        answer(&own, request)
                    });
                });
            }
        });
        Server { host, requests }
    }

    /// What `docker://` calls this image.
    pub fn name(&self, image: &str) -> String {
        format!("docker://{}/{image}", self.host)
    }

    /// The requests so far, as `METHOD PATH`.
    pub fn requests(&self) -> Vec<String> {
        self.requests.lock().unwrap().iter().map(|request| format!("{} {}", request.method, request.path)).collect()
    }

    /// The bodies of the requests so far that have few bytes.
    pub fn bodies(&self) -> Vec<String> {
        let requests = self.requests.lock().unwrap();
        let small = requests.iter().filter(|request| request.body.len() < 4096);
        small.map(|request| String::from_utf8_lossy(&request.body).into_owned()).collect()
    }

    /// Whether any request had this header.
    pub fn any_has(&self, header: &str) -> bool {
        self.requests.lock().unwrap().iter().any(|request| request.headers.contains_key(header))
    }
}

fn serve(mut stream: TcpStream, answer: impl FnOnce(&Request) -> Answer) -> std::io::Result<()> {
    let mut reader = BufReader::new(stream.try_clone()?);
    // A client tries TLS first, whose first byte is this.
    if reader.fill_buf()?.first() == Some(&22) {
        return stream.write_all(b"HTTP/1.0 400 Bad Request\r\n\r\n");
    }
    let mut line = String::new();
    reader.by_ref().take(16384).read_line(&mut line)?;
    let mut words = line.split_whitespace();
    let (Some(method), Some(path)) = (words.next(), words.next()) else { return Ok(()) };
    let mut request = Request { method: method.to_owned(), path: path.to_owned(), ..Request::default() };
    loop {
        let mut header = String::new();
        reader.by_ref().take(16384).read_line(&mut header)?;
        let Some((name, value)) = header.trim().split_once(':') else { break };
        request.headers.insert(name.to_ascii_lowercase(), value.trim().to_owned());
    }
    let length = request.headers.get("content-length").and_then(|text| text.parse().ok()).unwrap_or(0);
    reader.take(length).read_to_end(&mut request.body)?;
    let Answer { status, headers, body, length, end } = answer(&request);
    let length = length.unwrap_or(body.len() as u64);
    write!(stream, "HTTP/1.1 {status} Answer\r\nContent-Length: {length}\r\nConnection: close\r\n")?;
    for (name, value) in headers {
        write!(stream, "{name}: {value}\r\n")?;
    }
    stream.write_all(b"\r\n")?;
    if request.method == "HEAD" {
        return Ok(());
    }
    stream.write_all(&body)?;
    match end {
        End::Close => stream.shutdown(Shutdown::Write),
        End::Endless => loop {
            stream.write_all(&[0; 65536])?;
        },
        End::Silent => {
            thread::sleep(Duration::from_secs(600));
            Ok(())
        }
    }
}
