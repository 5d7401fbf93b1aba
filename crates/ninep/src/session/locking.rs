//! `Tlock` and `Tgetlock`: takes, releases and tests locks.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::{self, Scope};

use inarch_vfs::{Context, Lock, LockKind};
use rustix::io::Errno;

use super::locks::{Parked, Pause, Waiting, lock_of, range_of};
use super::walk::group_of;
use super::{Answer, Call, Session};
use crate::wire::{LockRange, Reply, ReplyBuffer, lock};

impl Session<'_> {
    /// `Tlock`. A client that learns that another has the lock asks again only after half a minute. So a client that
    /// wants to wait gets its reply when it has the lock.
    pub(super) fn lock<'scope>(
        &'scope self,
        scope: &'scope Scope<'scope, '_>,
        call: &Call<'_>,
        fid: u32,
        range: &LockRange<'_>,
        flags: u32,
    ) -> Result<Answer, Errno> {
        let fid = self.fids.get(fid)?;
        let file = self.opened(&fid)?;
        if flags & !(lock::BLOCK | lock::RECLAIM) != 0 {
            return Err(Errno::INVAL);
        }
        let wanted = lock_of(range)?;
        let owner = self.owners.owner(range);
        if wanted.kind != LockKind::None {
            file.note_owner(owner)?;
        }
        let waiting =
            Waiting { tag: call.tag, cancelled: Arc::clone(call.cancelled), fid: fid.clone(), owner, lock: wanted };
        match self.try_lock(&waiting) {
            Some(outcome) => {
                if wanted.kind != LockKind::Exclusive {
                    self.export.changes().changed();
                }
                return outcome.map(Answer::Of);
            }
            None if flags & lock::BLOCK == 0 => return Ok(Answer::Of(Reply::Lock { status: lock::BLOCKED })),
            None => {}
        }
        match self.waiting.park(waiting, self.options.waiting_locks) {
            Parked::FirstOne => {
                if thread::Builder::new().spawn_scoped(scope, || self.attend_locks()).is_err() {
                    self.waiting.unattended();
                    // If it is no longer parked, another thread has replied.
                    return Ok(match self.waiting.take(call.tag) {
                        Some(_) => Answer::Of(Reply::Lock { status: lock::BLOCKED }),
                        None => Answer::Later,
                    });
                }
                Ok(Answer::Later)
            }
            Parked::Attended => {
                self.export.changes().changed();
                Ok(Answer::Later)
            }
            Parked::Flushed => Ok(Answer::Nothing),
            Parked::Full => Ok(Answer::Of(Reply::Lock { status: lock::BLOCKED })),
        }
    }

    /// Tries to take or release a lock; `None` if another lock conflicts, or the server is ending.
    fn try_lock(&self, waiting: &Waiting) -> Option<Result<Reply<'static>, Errno>> {
        let uid = waiting.fid.uid;
        let interrupted = || waiting.cancelled.load(Ordering::Acquire);
        let context = Context { uid, gid: group_of(uid), interrupted: &interrupted, ..Context::SERVER };
        let set = waiting.file().and_then(|file| self.export.set_lock(&context, file, waiting.owner, &waiting.lock));
        match set {
            // The lock became free because the server ended its owner's connection, and will end this one too.
            Ok(()) if waiting.lock.kind != LockKind::None && (self.stopped)() => None,
            Ok(()) => Some(Ok(Reply::Lock { status: lock::SUCCESS })),
            Err(Errno::AGAIN) => None,
            Err(errno) => Some(Err(errno)),
        }
    }

    /// The loop of the thread that retries parked requests.
    fn attend_locks(&self) {
        let changes = self.export.changes();
        let mut seen = 0;
        let mut pause = Pause::new();
        loop {
            let (decided, more, ended) = self.waiting.try_each(|waiting| self.try_lock(waiting));
            for (waiting, outcome) in decided {
                self.answer_later(waiting.tag, outcome);
            }
            if ended {
                return;
            }
            let now = changes.wait(seen, more.then(|| pause.next()));
            if now != seen {
                pause = Pause::new();
            }
            seen = now;
        }
    }

    /// `Tgetlock`: a lock that conflicts with this one, or none. Linux's client always sends the kind "none"
    /// (`v9fs_file_getlock` of fs/9p/vfs_file.c): then any lock is returned.
    pub(super) fn getlock(
        &self,
        call: &Call<'_>,
        fid: u32,
        range: &LockRange<'_>,
        out: &mut ReplyBuffer,
    ) -> Result<Answer, Errno> {
        let fid = self.fids.get(fid)?;
        let file = self.opened(&fid)?;
        let asked = lock_of(range)?;
        let kind = if asked.kind == LockKind::None { LockKind::Exclusive } else { asked.kind };
        let wanted = Lock { kind, ..asked };
        let owner = self.owners.owner(range);
        let found = call.context(fid.uid, group_of(fid.uid), |context| {
            self.export.test_lock(context, file.place.node, file.handle(), owner, &wanted)
        })?;
        let answer = match &found {
            Some(found) => range_of(found, range.client),
            None => LockRange { kind: lock::UNLOCK, ..*range },
        };
        out.set(call.tag, &Reply::Getlock(answer));
        Ok(Answer::Made)
    }
}
