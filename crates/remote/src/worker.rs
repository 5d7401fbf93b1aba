//! [`Worker`]: a thread with a runtime for asynchronous work, which other threads wait for.
//!
//! The calling thread writes to an event descriptor that is open already, and waits on a futex: a thread that is confined to serving a disk may
//! do both.

use std::io;
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;

/// See the module's page. The thread ends when this is dropped.
#[derive(Debug)]
pub(crate) struct Worker {
    runtime: Handle,
    /// Ends the thread when it is dropped.
    _end: oneshot::Sender<()>,
}

/// Why there is no result.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Gone {
    /// It took too long.
    TimeOut,
    /// The thread has ended.
    Ended,
}

/// A result that will come.
pub(crate) struct Coming<T>(mpsc::Receiver<Result<T, Gone>>);

impl<T> Coming<T> {
    /// Waits for it.
    pub fn wait(self) -> Result<T, Gone> {
        self.0.recv().unwrap_or(Err(Gone::Ended))
    }
}

impl Worker {
    /// Starts the thread. It calls `enter` first, which may confine it.
    pub fn start(enter: impl FnOnce() + Send + 'static) -> io::Result<Worker> {
        let (sender, receiver) = mpsc::sync_channel(1);
        let (end, ended) = oneshot::channel::<()>();
        thread::Builder::new().name("remote".to_owned()).spawn(move || {
            let runtime = match Builder::new_current_thread().enable_all().build() {
                Ok(runtime) => runtime,
                Err(error) => {
                    let _ = sender.send(Err(error));
                    return;
                }
            };
            enter();
            // The starting thread waits for this.
            let _ = sender.send(Ok(runtime.handle().clone()));
            // It ends with an error when the last handle is dropped.
            let _ = runtime.block_on(ended);
            // A file's read may hang for ever, and so may the look-up of a name.
            runtime.shutdown_background();
        })?;
        let runtime = receiver.recv().map_err(|_| io::Error::from(io::ErrorKind::BrokenPipe))??;
        Ok(Worker { runtime, _end: end })
    }

    /// Has the thread do `work` within `limit`.
    pub fn begin<T: Send + 'static>(
        &self,
        limit: Duration,
        work: impl Future<Output = T> + Send + 'static,
    ) -> Coming<T> {
        let (sender, receiver) = mpsc::sync_channel(1);
        self.runtime.spawn(async move {
            let result = tokio::time::timeout(limit, work).await.map_err(|_| Gone::TimeOut);
            // Nobody waits any longer if the caller has given up.
            let _ = sender.send(result);
        });
        Coming(receiver)
    }

    /// The same, and waits for it.
    pub fn wait<T: Send + 'static>(
        &self,
        limit: Duration,
        work: impl Future<Output = T> + Send + 'static,
    ) -> Result<T, Gone> {
        self.begin(limit, work).wait()
    }
}
