//! Stores that the `object_store` crate speaks to. All here runs in the remote's own thread.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use object_store::aws::AmazonS3Builder;
use object_store::azure::MicrosoftAzureBuilder;
use object_store::client::ClientOptions;
use object_store::gcp::GoogleCloudStorageBuilder;
use object_store::http::HttpBuilder;
use object_store::path::Path;
use object_store::{
    BackoffConfig, GetOptions, GetRange, MultipartUpload, ObjectStore, ObjectStoreExt, PutMode, PutOptions,
    RetryConfig, UpdateVersion,
};

use crate::connector::{Connector, Redirects};
use crate::location::{Location, Store};
use crate::{Found, Limits, RemoteError, Version, WrongLength};

/// A connected store.
pub(crate) type Objects = Arc<dyn ObjectStore>;

/// Makes a client; connects to nothing. Credentials and regions come from the environment, by the names that each store's own tools use.
pub(crate) fn open(location: &Location, limits: &Limits) -> Result<Objects, RemoteError> {
    // A program that embeds this may have installed another one.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let connector = |redirects| Connector::new(limits, redirects);
    let options = ClientOptions::new()
        // Each request has a limit of its own.
        .with_timeout_disabled()
        .with_allow_http(matches!(&location.store, Store::Web { scheme: "http", .. }));
    let retry = RetryConfig {
        backoff: BackoffConfig {
            init_backoff: Duration::from_millis(100),
            max_backoff: Duration::from_secs(2),
            base: 2.0,
        },
        max_retries: limits.retries,
        retry_timeout: limits.request,
    };
    let store: Result<Objects, object_store::Error> = match &location.store {
        Store::S3(bucket) => {
            // A store of the user's own is often reached without TLS, which its variable AWS_ALLOW_HTTP says.
            let allows = std::env::var("AWS_ALLOW_HTTP")
                .is_ok_and(|value| ["1", "true"].contains(&&*value.to_ascii_lowercase()));
            let builder = AmazonS3Builder::from_env()
                .with_bucket_name(bucket)
                .with_client_options(options.with_allow_http(allows));
            builder
                .with_http_connector(connector(Redirects::Never))
                .with_retry(retry)
                .build()
                .map(|store| Arc::new(store) as Objects)
        }
        Store::Google(bucket) => GoogleCloudStorageBuilder::from_env()
            .with_bucket_name(bucket)
            .with_client_options(options)
            .with_http_connector(connector(Redirects::Never))
            .with_retry(retry)
            .build()
            .map(|store| Arc::new(store) as Objects),
        Store::Azure(container) => MicrosoftAzureBuilder::from_env()
            .with_container_name(container)
            .with_client_options(options)
            .with_http_connector(connector(Redirects::Never))
            .with_retry(retry)
            .build()
            .map(|store| Arc::new(store) as Objects),
        Store::Web { scheme, host } => HttpBuilder::new()
            .with_url(format!("{scheme}://{host}"))
            .with_client_options(options)
            .with_http_connector(connector(Redirects::Few))
            .with_retry(retry)
            .build()
            .map(|store| Arc::new(store) as Objects),
        Store::Directory(_) => return Err(RemoteError::ReadOnly),
    };
    store.map_err(|error| RemoteError::of_store(&error))
}

/// Where an object is: its name is plain, and so is the prefix.
pub(crate) fn path(prefix: &str, key: &str) -> Path {
    if prefix.is_empty() { Path::from(key) } else { Path::from(format!("{prefix}/{key}")) }
}

fn of_store(error: object_store::Error) -> RemoteError {
    RemoteError::of_store(&error)
}

/// Collects an answer of at most `most` bytes. What a store says of its length is not believed.
async fn collect(result: object_store::GetResult, most: u64) -> Result<Vec<u8>, RemoteError> {
    let mut bytes = Vec::new();
    let mut stream = result.into_stream();
    while let Some(piece) = stream.next().await {
        let piece = piece.map_err(of_store)?;
        if (bytes.len() + piece.len()) as u64 > most {
            return Err(WrongLength::TooLong { most }.into());
        }
        bytes.extend_from_slice(&piece);
    }
    Ok(bytes)
}

pub(crate) async fn get(store: &Objects, path: &Path, most: u64) -> Result<Found, RemoteError> {
    let result = store.get(path).await.map_err(of_store)?;
    let version = Version { e_tag: result.meta.e_tag.clone(), version: result.meta.version.clone() };
    let bytes = collect(result, most).await?;
    tracing::debug!(%path, bytes = bytes.len(), "an object is read");
    Ok(Found { bytes, version })
}

pub(crate) async fn get_range(store: &Objects, path: &Path, range: Range<u64>) -> Result<Vec<u8>, RemoteError> {
    tracing::debug!(%path, ?range, "a part of an object is read");
    let wanted = range.end.saturating_sub(range.start);
    let options = GetOptions { range: Some(GetRange::Bounded(range)), ..GetOptions::default() };
    let result = store.get_opts(path, options).await.map_err(of_store)?;
    let bytes = collect(result, wanted).await?;
    if (bytes.len() as u64) < wanted {
        return Err(WrongLength::TooShort { got: bytes.len() as u64, wanted }.into());
    }
    Ok(bytes)
}

pub(crate) async fn size(store: &Objects, path: &Path) -> Result<u64, RemoteError> {
    Ok(store.head(path).await.map_err(of_store)?.size)
}

pub(crate) async fn put(store: &Objects, path: &Path, bytes: Vec<u8>) -> Result<(), RemoteError> {
    tracing::debug!(%path, bytes = bytes.len(), "an object is put");
    store.put(path, bytes.into()).await.map(drop).map_err(of_store)
}

/// Puts an object if it still has the version that is expected. Where the store cannot tell (`NotImplemented`), it is read again, put, and read once
/// more: another machine that puts in between is seen, but for the moment between the first two.
pub(crate) async fn put_if(
    store: &Objects,
    path: &Path,
    bytes: Vec<u8>,
    expected: Option<Version>,
    most: u64,
) -> Result<bool, RemoteError> {
    let mode = match &expected {
        None => PutMode::Create,
        Some(Version { e_tag, version }) => {
            PutMode::Update(UpdateVersion { e_tag: e_tag.clone(), version: version.clone() })
        }
    };
    let options = PutOptions { mode, ..PutOptions::default() };
    tracing::debug!(%path, bytes = bytes.len(), ?expected, "an object is put if it has the version expected");
    match store.put_opts(path, bytes.clone().into(), options).await {
        Ok(_) => return Ok(true),
        Err(object_store::Error::AlreadyExists { .. } | object_store::Error::Precondition { .. }) => return Ok(false),
        Err(object_store::Error::NotImplemented { .. } | object_store::Error::NotSupported { .. }) => {}
        Err(error) => return Err(of_store(error)),
    }
    let now = match get(store, path, most).await {
        Ok(found) => Some(found.version),
        Err(RemoteError::Missing) => None,
        Err(error) => return Err(error),
    };
    if now != expected {
        return Ok(false);
    }
    put(store, path, bytes.clone()).await?;
    Ok(get(store, path, most).await?.bytes == bytes)
}

/// Begins an object that comes in parts.
pub(crate) async fn begin(store: &Objects, path: &Path) -> Result<Box<dyn MultipartUpload>, RemoteError> {
    store.put_multipart(path).await.map_err(of_store)
}

pub(crate) async fn put_part(upload: &mut dyn MultipartUpload, bytes: Vec<u8>) -> Result<(), RemoteError> {
    upload.put_part(bytes.into()).await.map_err(of_store)
}

pub(crate) async fn complete(upload: &mut dyn MultipartUpload) -> Result<(), RemoteError> {
    upload.complete().await.map(drop).map_err(of_store)
}
