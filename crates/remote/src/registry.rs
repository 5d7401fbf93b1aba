//! [`Registry`]: container images at a registry, by the protocol of the OCI distribution specification 1.1 (which is Docker's registry API 2).
//!
//! 1. [`ImageName`] is what `docker://NAME` means: a registry, a repository in it, and a tag or a digest.
//! 2. [`Credentials`] are found where docker and podman keep them ([`credentials`]), by the calling thread: a program may have to be run for them.
//! 3. [`Registry::start`] starts a thread as [`Remote`](crate::Remote) has one. It alone makes connections and reads what servers say of
//!    themselves (`session`, `challenge`).
//! 4. A blob goes piece by piece to the thread that asked for it, or comes from one that uploads it. The calling thread compares digests.
//!
//! A server is not trusted. Every answer has a limit of bytes and of time. Redirects are counted, and never lead from TLS to plain HTTP. Only the
//! registry and the token service that it names receive credentials.

mod authorities;
mod challenge;
pub mod credentials;
mod error;
mod name;
mod session;
mod upload;

use std::io::{self, Read};
use std::sync::Arc;
use std::time::Duration;

pub use credentials::{Credentials, Found as FoundCredentials};
pub use error::RegistryError;
pub use name::{ImageName, NameError, Pick};

use crate::Limits;
use crate::worker::{Gone, Worker};
use session::Session;

/// The most bytes of a manifest or an index: the least that a registry must take, and the most that those in use do.
pub const MOST_DOCUMENT: u64 = 4 << 20;

/// How many pieces of a blob wait for the thread that takes them.
const PIECES: usize = 16;

/// The bytes of a piece that is sent.
const PIECE: usize = 64 << 10;

/// A manifest or an index, as it came.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// Its bytes.
    pub bytes: Vec<u8>,
    /// The type that the registry says it has; empty if it says none.
    pub media_type: String,
}

/// One repository of a registry, and the thread that speaks with it. The thread ends with this.
pub struct Registry {
    session: Arc<Session>,
    worker: Worker,
    limits: Limits,
}

impl std::fmt::Debug for Registry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Registry").field(&self.session).finish()
    }
}

impl Registry {
    /// Starts the thread. It calls `enter` first, which may confine it. It makes no connection before the first request. `puts`: something will be put
    /// there, and tokens must permit that.
    ///
    /// # Errors
    /// No thread can be started.
    pub fn start(
        name: &ImageName,
        credentials: FoundCredentials,
        puts: bool,
        limits: Limits,
        enter: impl FnOnce() + Send + 'static,
    ) -> Result<Registry, RegistryError> {
        let session = Arc::new(Session::new(name, credentials, puts, limits));
        Ok(Registry { session, worker: Worker::start(enter)?, limits })
    }

    /// The digest of the manifest or index that `reference` (a tag or a digest) names, as the registry says; `None` if it does not say.
    ///
    /// # Errors
    /// The registry does not have it, or does not answer.
    pub fn digest(&self, reference: &str, accept: &[&str]) -> Result<Option<String>, RegistryError> {
        let (session, reference, accept) = (Arc::clone(&self.session), reference.to_owned(), accept.join(", "));
        self.wait(0, async move { session.digest(&reference, &accept).await })
    }

    /// The manifest or index that `reference` (a tag or a digest) names. `accept` lists the types that are asked for.
    ///
    /// # Errors
    /// The registry does not have it, does not answer, or answers more than [`MOST_DOCUMENT`].
    pub fn document(&self, reference: &str, accept: &[&str]) -> Result<Answer, RegistryError> {
        let (session, reference, accept) = (Arc::clone(&self.session), reference.to_owned(), accept.join(", "));
        self.wait(MOST_DOCUMENT, async move { session.document(&reference, &accept).await })
    }

    /// Gives the blob with this digest, of `size` bytes, to `take` piece by piece. Called by several threads at once, it fetches several.
    ///
    /// # Errors
    /// Those of `take`, or the blob cannot be fetched, or is shorter or longer. `take` may have got some of it.
    pub fn blob(
        &self,
        digest: &str,
        size: u64,
        mut take: impl FnMut(&[u8]) -> io::Result<()>,
    ) -> Result<(), RegistryError> {
        let (pieces, mut coming) = tokio::sync::mpsc::channel(PIECES);
        let (session, digest) = (Arc::clone(&self.session), digest.to_owned());
        let limit = self.limit(size);
        let done = self.worker.begin(limit, async move { session.blob(&digest, size, &pieces).await });
        while let Some(piece) = coming.blocking_recv() {
            take(&piece).map_err(RegistryError::Write)?;
        }
        done.wait().unwrap_or_else(|gone| Err(RegistryError::of(gone, limit)))
    }

    /// Whether the repository has a blob.
    ///
    /// # Errors
    /// The registry does not answer.
    pub fn has_blob(&self, digest: &str) -> Result<bool, RegistryError> {
        let (session, digest) = (Arc::clone(&self.session), digest.to_owned());
        self.wait(0, async move { session.has_blob(&digest).await })
    }

    /// Uploads a blob. `input` has all of its `size` bytes.
    ///
    /// # Errors
    /// Those of `input`, or the registry does not take it.
    pub fn put_blob(&self, digest: &str, size: u64, mut input: impl Read) -> Result<(), RegistryError> {
        let (pieces, coming) = tokio::sync::mpsc::channel(PIECES);
        let (session, digest) = (Arc::clone(&self.session), digest.to_owned());
        let limit = self.limit(size);
        let done = self.worker.begin(limit, async move { session.put_blob(&digest, size, coming).await });
        let mut left = size;
        while left > 0 {
            let mut piece = vec![0; left.min(PIECE as u64) as usize];
            if let Err(error) = input.read_exact(&mut piece) {
                // The registry sees that it does not end, and takes nothing.
                let _ = pieces.blocking_send(Err(error.kind().into()));
                return Err(RegistryError::Read(error));
            }
            left -= piece.len() as u64;
            if pieces.blocking_send(Ok(piece)).is_err() {
                // It has refused, and says why.
                break;
            }
        }
        drop(pieces);
        done.wait().unwrap_or_else(|gone| Err(RegistryError::of(gone, limit)))
    }

    /// Puts a manifest as `reference`: a tag or its digest.
    ///
    /// # Errors
    /// The registry does not take it.
    pub fn put_manifest(&self, reference: &str, media_type: &str, bytes: Vec<u8>) -> Result<(), RegistryError> {
        let (session, reference, media_type) = (Arc::clone(&self.session), reference.to_owned(), media_type.to_owned());
        self.wait(bytes.len() as u64, async move { session.put_manifest(&reference, &media_type, bytes).await })
    }

    /// The time limit of a request that transfers this many bytes.
    fn limit(&self, bytes: u64) -> Duration {
        self.limits.request + Duration::from_secs(bytes.min(1 << 40) >> 16)
    }

    fn wait<T: Send + 'static>(
        &self,
        bytes: u64,
        request: impl Future<Output = Result<T, RegistryError>> + Send + 'static,
    ) -> Result<T, RegistryError> {
        let limit = self.limit(bytes);
        self.worker.wait(limit, request).unwrap_or_else(|gone| Err(RegistryError::of(gone, limit)))
    }
}

impl RegistryError {
    fn of(gone: Gone, limit: Duration) -> RegistryError {
        match gone {
            Gone::TimeOut => RegistryError::TimeOut(limit),
            Gone::Ended => RegistryError::Ended,
        }
    }
}

/// Reads what a registry answers beside documents: the header that asks for credentials, a token, a message. For fuzz targets: any bytes are safe.
pub fn read_answer(header: &str, body: &[u8]) -> (bool, Result<String, String>, String) {
    (challenge::challenge(header).is_some(), challenge::token_of(body), error::plain(&challenge::message(body)))
}
