//! Serves a mount by an appliance: passes the kernel's FUSE messages to the guest, and its answers back. We inspect neither: the kernel
//! does not trust a FUSE server, and the dispatcher in the guest parses messages.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread;

use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::io::{Errno, read, write};

use super::wire::{self, Answer, Ask, Kind};
use super::{Appliance, ApplianceError, ApplianceEvent, error};
use crate::mount::Remote;

/// The longest message: a header, a body, and 1 MiB of data.
const MESSAGE: usize = wire::DATA_MOST;

impl Appliance {
    /// A server for a mount of the volumes. `owner` says whose all files are shown as; new ones are root's then. When
    /// the mount is gone, the appliance is closed.
    pub fn into_server(self, owner: Option<(u32, u32)>) -> Remote {
        let read_only = self.read_only;
        Remote::new(move |device| self.serve(device, read_only, owner).map_err(|error| error.to_string()))
    }

    fn serve(mut self, device: OwnedFd, read_only: bool, owner: Option<(u32, u32)>) -> Result<(), ApplianceError> {
        self.running.tell(&Ask::Serve { read_only, owner })?;
        let device = Arc::new(device);
        let over = Arc::new(eventfd(0, EventfdFlags::CLOEXEC).map_err(|errno| ApplianceError::Stream(errno.into()))?);
        let mut to = self.running.requests().map_err(ApplianceError::Stream)?;
        let reader = {
            let (device, over) = (Arc::clone(&device), Arc::clone(&over));
            let pass = move || {
                let mut message = vec![0; MESSAGE];
                // If the guest is gone, the other thread hears of it.
                while let Some(length) = next(&device, &over, &mut message) {
                    let message = message.get(..length).unwrap_or_default();
                    if wire::send(&mut to, Kind::Data, message).is_err() {
                        return;
                    }
                }
                let _ = wire::send(&mut to, Kind::End, &[]);
            };
            thread::Builder::new().name("appliance-mount".to_owned()).spawn(pass).map_err(ApplianceError::Stream)?
        };
        let ended = self.answers(&device);
        if ended.is_err() {
            // The reader may wait for the guest to take a request, which it will not.
            self.running.stopper()();
        }
        // The reader may still wait for requests, which nobody answers any more.
        let _ = write(&*over, &1u64.to_ne_bytes());
        let _ = reader.join();
        drop(device);
        ended?;
        let events = self.events.clone();
        let report = self.close()?;
        events.emit(ApplianceEvent::Ended(report));
        Ok(())
    }

    /// Passes answers to the kernel until the guest has no more.
    fn answers(&mut self, device: &OwnedFd) -> Result<(), ApplianceError> {
        loop {
            match self.running.receive()? {
                (Kind::Data, message) => reply(device, &message),
                (Kind::Note, line) => self.events.emit(ApplianceEvent::Note(error::one_line(&line))),
                (Kind::Message, bytes) => {
                    return match wire::decode(&bytes).map_err(ApplianceError::Stream)? {
                        Answer::Done { .. } => Ok(()),
                        Answer::Failed { text, errno } => {
                            Err(ApplianceError::Guest { text: error::one_line(text.as_bytes()), errno })
                        }
                    };
                }
                (Kind::End | Kind::GiveUp, _) => return Err(ApplianceError::Protocol),
            }
        }
    }
}

/// Waits for the kernel's next message; `None` when the mount is gone or `over` says so.
fn next(device: &OwnedFd, over: &OwnedFd, message: &mut [u8]) -> Option<usize> {
    loop {
        let mut places = [PollFd::new(device, PollFlags::IN), PollFd::new(over, PollFlags::IN)];
        match poll(&mut places, None) {
            Ok(_) if !places[1].revents().is_empty() => return None,
            Ok(_) | Err(Errno::INTR) => {}
            Err(_) => return None,
        }
        match read(device, &mut *message) {
            Ok(length) => return Some(length),
            // ENOENT: the request was interrupted before it could be read.
            Err(Errno::INTR | Errno::AGAIN | Errno::NOENT) => {}
            // Unmounted, or aborted.
            Err(_) => return None,
        }
    }
}

/// Passes an answer on. The kernel refuses the answer to a request that was interrupted; this is no error.
fn reply(device: &OwnedFd, message: &[u8]) {
    while let Err(Errno::INTR | Errno::AGAIN) = write(device, message) {}
}
