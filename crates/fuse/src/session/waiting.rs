//! The requests of a session that wait for locks, and the thread that retries them.

use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};

use inarch_vfs::FileSystem;
use vm_memory::VolatileSlice;

use super::channel::Channel;
use crate::dispatch::{Dispatcher, Pause, Scratch};
use crate::wire::structs::OutHeader;

/// A parked request, and the descriptor that it must be answered on.
struct Request {
    message: Vec<u8>,
    channel: Channel,
}

/// See the module.
#[derive(Default)]
pub(super) struct Waiting {
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    requests: Vec<Request>,
    ended: bool,
}

impl Waiting {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Parks a request, unless descriptors are short.
    pub fn add(&self, message: Vec<u8>, channel: &Channel) -> io::Result<()> {
        let channel = channel.duplicate()?;
        self.state().requests.push(Request { message, channel });
        Ok(())
    }

    /// Ends all waits.
    pub fn end<F: FileSystem + ?Sized>(&self, dispatcher: &Dispatcher<F>) {
        self.state().ended = true;
        dispatcher.locks_changed();
    }

    /// Runs the thread that retries.
    pub fn attend<F: FileSystem + ?Sized>(&self, dispatcher: &Dispatcher<F>) {
        let mut scratch = Scratch::default();
        let mut pause = Pause::default();
        loop {
            let seen = dispatcher.lock_changes();
            let requests = std::mem::take(&mut self.state().requests);
            let before = requests.len();
            let still: Vec<Request> =
                requests.into_iter().filter_map(|request| ask(dispatcher, request, &mut scratch)).collect();
            if still.len() < before {
                pause = Pause::default();
            }
            let anybody = {
                let mut state = self.state();
                if state.ended {
                    return;
                }
                state.requests.extend(still);
                !state.requests.is_empty()
            };
            dispatcher.wait_for_locks(seen, anybody.then(|| pause.next()));
        }
    }
}

/// Retries a request; returns it if it still has to wait.
fn ask<F: FileSystem + ?Sized>(
    dispatcher: &Dispatcher<F>,
    mut request: Request,
    scratch: &mut Scratch,
) -> Option<Request> {
    let mut answer = [0; size_of::<OutHeader>()];
    let length = {
        let message = [VolatileSlice::from(&mut request.message[..])];
        let out = [VolatileSlice::from(&mut answer[..])];
        dispatcher.execute_or_park(dispatcher.attendant(), &message, &out, scratch)
    };
    match length {
        None => Some(request),
        Some(length) => {
            // If the device fails, the threads that read from it report it.
            let _ = request.channel.reply(answer.get(..length).unwrap_or_default());
            None
        }
    }
}
