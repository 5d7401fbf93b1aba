//! Answers requests of the FUSE protocol that the host's kernel has for the mounted tree. The host passes the messages
//! on as they are.

use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use inarch_fuse::{ConnectionOptions, Dispatcher, MAX_DATA, Scratch};
use inarch_lifecycle::descriptors;
use inarch_tree::select::{OwnerMap, Owners};
use inarch_vfs::{Changes, FileSystem, HostDirectory, HostOptions, Submounts};
use vm_memory::VolatileSlice;

use super::Host;
use super::failure::Failure;
use super::mounts::ROOT;
use crate::appliance::wire::{Kind, receive, send};
use crate::share::with_owners;

/// One waits for a slow disk while others answer.
const THREADS: usize = 4;

/// Bytes of an answer before its data.
const ANSWER_HEADER: usize = 16;

/// Answers until the host says that there are no more requests. With `owner`, all files are shown as that user's, and
/// new ones are root's.
pub(super) fn serve(read_only: bool, owner: Option<(u32, u32)>, host: &mut Host) -> Result<(), Failure> {
    descriptors::raise_limit();
    let options = HostOptions {
        // Nobody else is in this machine.
        changes: Changes::Guest,
        read_only,
        submounts: Submounts::Merged,
        ..HostOptions::default()
    };
    let files =
        HostDirectory::new(Path::new(ROOT), options).map_err(|error| Failure::of("the mounted tree", error.error))?;
    let map = owner.map_or(OwnerMap::Host, |(uid, gid)| OwnerMap::Fixed { uid, gid });
    let files: Arc<dyn FileSystem> = with_owners(Arc::new(files), &Owners::from(map));
    let connection = ConnectionOptions {
        exclusive: true,
        cache_symlinks: true,
        posix_acl: owner.is_none(),
        kill_privileges: true,
        ..ConnectionOptions::default()
    };
    let dispatcher = Dispatcher::new(files, connection, THREADS);
    let (from, to) = (Mutex::new(&mut host.from), Mutex::new(&mut host.to));
    let ended = AtomicBool::new(false);
    let answered = thread::scope(|scope| {
        let work = |number| {
            let (dispatcher, from, to, ended) = (&dispatcher, &from, &to, &ended);
            scope.spawn(move || answer_all(dispatcher, number, (from, to), ended))
        };
        let threads: Vec<_> = (0..THREADS).map(work).collect();
        let results =
            threads.into_iter().map(|thread| thread.join().unwrap_or_else(|_| Err(io::Error::other("a panic"))));
        results.fold(Ok(()), Result::and)
    });
    dispatcher.disconnect();
    answered.map_err(|error| Failure::of("the requests of the mount", error))
}

/// One thread's work.
fn answer_all(
    dispatcher: &Dispatcher<dyn FileSystem>,
    number: usize,
    (from, to): (&Mutex<&mut File>, &Mutex<&mut File>),
    ended: &AtomicBool,
) -> io::Result<()> {
    let mut answer = vec![0; MAX_DATA as usize + ANSWER_HEADER];
    let mut scratch = Scratch::default();
    loop {
        let received = {
            let mut from = from.lock().unwrap_or_else(PoisonError::into_inner);
            if ended.load(Ordering::Acquire) {
                return Ok(());
            }
            let received = receive(&mut **from);
            ended.store(!matches!(received, Ok(Some((Kind::Data, _)))), Ordering::Release);
            received?
        };
        let Some((Kind::Data, mut message)) = received else { return Ok(()) };
        let length = {
            let (message, out) = ([VolatileSlice::from(&mut message[..])], [VolatileSlice::from(&mut answer[..])]);
            dispatcher.execute(number, &message, &out, &mut scratch)
        };
        if let Some(answer) = answer.get(..length).filter(|answer| !answer.is_empty()) {
            send(&mut **to.lock().unwrap_or_else(PoisonError::into_inner), Kind::Data, answer)?;
        }
    }
}
