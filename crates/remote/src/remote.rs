//! [`Remote`]: requests of any thread, which one thread of its own makes.
//!
//! A request is a future, which the thread's runtime completes ([`worker`](crate::worker)).

use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use object_store::MultipartUpload;
use tokio::sync::OnceCell;

use crate::location::{Location, is_plain};
use crate::objects::{self, Objects};
use crate::worker::{Gone, Worker};
use crate::{RemoteError, directory};

/// How long requests may take, and how often they may fail.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Connecting.
    pub connect: Duration,
    /// Between two pieces of an answer.
    pub silence: Duration,
    /// A request of few bytes, with all its repetitions. One of many bytes has a second more for each 64 KiB.
    pub request: Duration,
    /// How often a request is repeated that the store has not answered, or with an error of its own (5xx).
    pub retries: usize,
    /// How many requests in a row fail before no further ones are made for a while.
    pub failures: u32,
    /// How long that is.
    pub pause: Duration,
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            connect: Duration::from_secs(5),
            silence: Duration::from_secs(10),
            request: Duration::from_secs(20),
            retries: 3,
            failures: 3,
            pause: Duration::from_secs(30),
        }
    }
}

/// Identifies one state of an object, as far as a store tells it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Version {
    pub(crate) e_tag: Option<String>,
    pub(crate) version: Option<String>,
}

impl Version {
    /// Of a file: its bytes, which are few.
    pub(crate) fn of_bytes(bytes: &[u8]) -> Version {
        let hex = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        Version { e_tag: Some(hex), version: None }
    }
}

/// A whole object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// Its bytes.
    pub bytes: Vec<u8>,
    /// The state that it is in.
    pub version: Version,
}

/// A remote, and the thread that speaks with it. The thread ends with the last one that has this.
pub struct Remote {
    location: Location,
    limits: Limits,
    worker: Worker,
    store: Arc<OnceCell<Objects>>,
    /// Failures in a row.
    failures: AtomicU32,
    down_until: Mutex<Option<Instant>>,
}

impl std::fmt::Debug for Remote {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Remote({})", self.location)
    }
}

/// Bytes of one part of a large object; S3 wants 5 MiB at least.
const PART: usize = 8 << 20;

impl Remote {
    /// Starts the thread. It calls `enter` first, which may confine it; it makes no connection before the first request.
    ///
    /// # Errors
    /// No thread or no runtime can be started.
    pub fn start(
        location: Location,
        limits: Limits,
        enter: impl FnOnce() + Send + 'static,
    ) -> Result<Remote, RemoteError> {
        let worker = Worker::start(enter)?;
        Ok(Remote {
            location,
            limits,
            worker,
            store: Arc::default(),
            failures: AtomicU32::new(0),
            down_until: Mutex::new(None),
        })
    }

    /// Where it is.
    pub fn location(&self) -> &Location {
        &self.location
    }

    /// A whole object of at most `most` bytes.
    ///
    /// # Errors
    /// [`RemoteError::Missing`]: it is not there. Others: it cannot be fetched, or is longer.
    pub fn get(&self, key: &str, most: u64) -> Result<Found, RemoteError> {
        let key = checked(key)?;
        match self.location.root() {
            Some(root) => self.wait_for_file(most, move || directory::get(&root, &key, most)),
            None => {
                let (client, path) = (self.client(), objects::path(&self.location.prefix, &key));
                self.wait(most, async move { objects::get(&client.get().await?, &path, most).await })
            }
        }
    }

    /// A range of an object: all of it, or an error.
    ///
    /// # Errors
    /// It cannot be fetched, or is shorter or longer.
    pub fn get_range(&self, key: &str, range: Range<u64>) -> Result<Vec<u8>, RemoteError> {
        let key = checked(key)?;
        let count = range.end.saturating_sub(range.start);
        match self.location.root() {
            Some(root) => self.wait_for_file(count, move || directory::get_range(&root, &key, range)),
            None => {
                let (client, path) = (self.client(), objects::path(&self.location.prefix, &key));
                self.wait(count, async move { objects::get_range(&client.get().await?, &path, range).await })
            }
        }
    }

    /// The number of an object's bytes; `None` if it is not there.
    ///
    /// # Errors
    /// The remote does not answer.
    pub fn size(&self, key: &str) -> Result<Option<u64>, RemoteError> {
        let key = checked(key)?;
        let size = match self.location.root() {
            Some(root) => self.wait_for_file(0, move || directory::size(&root, &key)),
            None => {
                let (client, path) = (self.client(), objects::path(&self.location.prefix, &key));
                self.wait(0, async move { objects::size(&client.get().await?, &path).await })
            }
        };
        match size {
            Ok(size) => Ok(Some(size)),
            Err(RemoteError::Missing) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Puts an object that `next` gives piece by piece, until it gives none. Readers see all of it or nothing.
    ///
    /// # Errors
    /// Those of `next`, and of the remote: then there is no such object, or the one before.
    pub fn put(
        &self,
        key: &str,
        mut next: impl FnMut() -> std::io::Result<Option<Vec<u8>>>,
    ) -> Result<(), RemoteError> {
        let key = self.writable(key)?;
        if let Some(root) = self.location.root() {
            let mut new = directory::NewObject::create(&root, &key)?;
            while let Some(piece) = next()? {
                new.write(&piece)?;
            }
            return new.finish();
        }
        let mut part = Vec::new();
        let mut upload: Option<Box<dyn MultipartUpload>> = None;
        let path = objects::path(&self.location.prefix, &key);
        while let Some(piece) = next()? {
            part.extend_from_slice(&piece);
            if part.len() < PART {
                continue;
            }
            let bytes = std::mem::take(&mut part);
            let (client, path, begun) = (self.client(), path.clone(), upload.take());
            upload = Some(self.wait(bytes.len() as u64, async move {
                let mut upload = match begun {
                    Some(upload) => upload,
                    None => objects::begin(&client.get().await?, &path).await?,
                };
                objects::put_part(&mut *upload, bytes).await?;
                Ok(upload)
            })?);
        }
        let client = self.client();
        self.wait(part.len() as u64, async move {
            match upload {
                None => objects::put(&client.get().await?, &path, part).await,
                Some(mut upload) => {
                    if !part.is_empty() {
                        objects::put_part(&mut *upload, part).await?;
                    }
                    objects::complete(&mut *upload).await
                }
            }
        })
    }

    /// Replaces a small object, of at most `most` bytes, if it is still in the state `expected`; `None`: if it is not there. Returns whether it was.
    ///
    /// # Errors
    /// The remote refuses, or does not answer: then it may have been replaced.
    pub fn put_if(
        &self,
        key: &str,
        bytes: Vec<u8>,
        expected: Option<&Version>,
        most: u64,
    ) -> Result<bool, RemoteError> {
        let key = self.writable(key)?;
        let (count, expected) = (bytes.len() as u64, expected.cloned());
        match self.location.root() {
            // The confined thread may only read, so the calling thread writes.
            Some(root) => directory::put_if(&root, &key, &bytes, expected.as_ref(), (most, self.limits.request)),
            None => {
                let (client, path) = (self.client(), objects::path(&self.location.prefix, &key));
                self.wait(
                    count,
                    async move { objects::put_if(&client.get().await?, &path, bytes, expected, most).await },
                )
            }
        }
    }

    fn writable(&self, key: &str) -> Result<String, RemoteError> {
        if self.location.is_read_only() { Err(RemoteError::ReadOnly) } else { checked(key) }
    }

    fn client(&self) -> Client {
        Client { store: Arc::clone(&self.store), location: self.location.clone(), limits: self.limits }
    }

    /// The same for work that blocks.
    fn wait_for_file<T: Send + 'static>(
        &self,
        bytes: u64,
        work: impl FnOnce() -> Result<T, RemoteError> + Send + 'static,
    ) -> Result<T, RemoteError> {
        self.wait(bytes, async move { tokio::task::spawn_blocking(work).await.map_err(|_| RemoteError::Ended)? })
    }

    /// Has the remote's thread do `request`, which moves `bytes`.
    fn wait<T: Send + 'static>(
        &self,
        bytes: u64,
        request: impl Future<Output = Result<T, RemoteError>> + Send + 'static,
    ) -> Result<T, RemoteError> {
        let locked = || self.down_until.lock().unwrap_or_else(PoisonError::into_inner);
        if locked().is_some_and(|until| Instant::now() < until) {
            return Err(RemoteError::Down);
        }
        let limit = self.limits.request + Duration::from_secs(bytes.min(1 << 40) >> 16);
        let result = self.worker.wait(limit, request).unwrap_or_else(|gone| {
            Err(match gone {
                Gone::TimeOut => RemoteError::TimeOut(limit),
                Gone::Ended => RemoteError::Ended,
            })
        });
        match &result {
            Err(error) if error.is_of_remote() => {
                if self.failures.fetch_add(1, Ordering::Relaxed) + 1 >= self.limits.failures {
                    self.failures.store(0, Ordering::Relaxed);
                    *locked() = Some(Instant::now() + self.limits.pause);
                }
            }
            _ => self.failures.store(0, Ordering::Relaxed),
        }
        result
    }
}

/// Makes the client at the first request, in the remote's thread.
struct Client {
    store: Arc<OnceCell<Objects>>,
    location: Location,
    limits: Limits,
}

impl Client {
    async fn get(&self) -> Result<Objects, RemoteError> {
        let open = async || objects::open(&self.location, &self.limits);
        self.store.get_or_try_init(open).await.cloned()
    }
}

/// The name of an object: plain names, joined by `/`.
fn checked(key: &str) -> Result<String, RemoteError> {
    if key.split('/').all(is_plain) {
        return Ok(key.to_owned());
    }
    Err(RemoteError::Store("it is no name of an object".to_owned()))
}
