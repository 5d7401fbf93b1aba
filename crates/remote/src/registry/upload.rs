//! Uploads blobs and manifests to a repository of a registry.
//!
//! A blob takes two requests: a POST that begins the upload, and one PUT with all of the blob's bytes, as containerd does it.

use std::io;

use futures_util::stream;
use reqwest::header::{CONTENT_LENGTH, CONTENT_TYPE, LOCATION};
use reqwest::{Body, Client, StatusCode};
use tokio::sync::mpsc;

use super::RegistryError;
use super::session::Session;

impl Session {
    pub async fn has_blob(&self, digest: &str) -> Result<bool, RegistryError> {
        match self.send(&format!("blobs/{digest}"), |client: &Client, address: &str| client.head(address)).await {
            Ok(_) => Ok(true),
            Err(RegistryError::Missing(_)) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Uploads a blob, whose bytes come as `pieces`. The registry compares the digest.
    pub async fn put_blob(
        &self,
        digest: &str,
        size: u64,
        pieces: mpsc::Receiver<io::Result<Vec<u8>>>,
    ) -> Result<(), RegistryError> {
        let begin = |client: &Client, address: &str| client.post(address).header(CONTENT_LENGTH, 0);
        let begun = self.send("blobs/uploads/", begin).await?;
        let location = begun.headers().get(LOCATION).and_then(|value| value.to_str().ok());
        let nowhere = || RegistryError::Nonsense("it does not say where a blob is put".to_owned());
        let mut url = self.named(&begun, location.ok_or_else(nowhere)?)?;
        url.query_pairs_mut().append_pair("digest", digest);
        let base = self.base().await?;
        let next = |mut pieces: mpsc::Receiver<io::Result<Vec<u8>>>| async { Some((pieces.recv().await?, pieces)) };
        let request = base
            .client
            .put(url.clone())
            .header(CONTENT_TYPE, "application/octet-stream")
            .header(CONTENT_LENGTH, size)
            .body(Body::wrap_stream(stream::unfold(pieces, next)));
        // A store that the registry sends its clients to gets no permit of the registry.
        let request = if base.has(&url) { self.permitted(request).await } else { request };
        let answer = request.send().await.map_err(|error| RegistryError::of_http(&error))?;
        if answer.status().is_success() { Ok(()) } else { Err(self.refused(answer).await) }
    }

    pub async fn put_manifest(&self, reference: &str, media_type: &str, bytes: Vec<u8>) -> Result<(), RegistryError> {
        let make =
            |client: &Client, address: &str| client.put(address).header(CONTENT_TYPE, media_type).body(bytes.clone());
        let answer = self.send(&format!("manifests/{reference}"), make).await?;
        match answer.status() {
            StatusCode::CREATED | StatusCode::OK | StatusCode::ACCEPTED | StatusCode::NO_CONTENT => Ok(()),
            _ => Err(self.refused(answer).await),
        }
    }
}
