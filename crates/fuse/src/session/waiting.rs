//! Requests of a session that wait for locks, and the thread that asks again for them.

use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};

use inarch_vfs::FileSystem;
use vm_memory::VolatileSlice;

use super::channel::Channel;
use crate::dispatch::{Dispatcher, Pause, Scratch};
use crate::wire::structs::OutHeader;

/// A request, and where it came from: it must be answered there.
struct Request {
    message: Vec<u8>,
    channel: Channel,
}

/// See the module's text.
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

    /// A request waits from now on, unless there is no descriptor for it.
    pub fn add(&self, message: Vec<u8>, channel: &Channel) -> io::Result<()> {
        let channel = channel.duplicate()?;
        self.state().requests.push(Request { message, channel });
        Ok(())
    }

    /// Nobody waits any more.
    pub fn end<F: FileSystem + ?Sized>(&self, dispatcher: &Dispatcher<F>) {
        self.state().ended = true;
        dispatcher.locks_changed();
    }

    /// The life of the thread that asks again.
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

/// Asks again; gives the request back if it still has to wait.
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
            // When the device fails, the threads that read from it say so.
            let _ = request.channel.reply(answer.get(..length).unwrap_or_default());
            None
        }
    }
}
