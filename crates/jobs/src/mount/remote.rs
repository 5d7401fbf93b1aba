//! [`Remote`]: serves a mount by passing its requests on, without a file system of this process.

use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError};

/// Serves a mounted descriptor of `/dev/fuse` until the mount is gone, and says why if it fails.
type Serve = Box<dyn FnOnce(OwnedFd) -> Result<(), String> + Send>;

/// Serves a mount, once.
#[derive(Clone)]
pub struct Remote(Arc<Mutex<Option<Serve>>>);

impl Remote {
    /// A server.
    pub fn new(serve: impl FnOnce(OwnedFd) -> Result<(), String> + Send + 'static) -> Remote {
        Remote(Arc::new(Mutex::new(Some(Box::new(serve)))))
    }

    /// Serves until the mount is gone.
    pub(super) fn serve(&self, device: OwnedFd) -> Result<(), String> {
        let serve = self.0.lock().unwrap_or_else(PoisonError::into_inner).take();
        serve.map_or_else(|| Err("its server has ended".to_owned()), |serve| serve(device))
    }
}

impl fmt::Debug for Remote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Remote")
    }
}
