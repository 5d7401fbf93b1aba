//! Handles a session's time limits.

use std::time::{Duration, Instant};

use libc::{SIGKILL, SIGTERM};

use super::Relay;
use crate::protocol::HostFrame;
use crate::session::SessionError;

/// How long the guest may take to report the end after SIGKILL.
const KILLED_GRACE: Duration = Duration::from_secs(3);
/// How long a guest that has sent EXIT or ERROR may take to read our last frames, including BYE.
pub(super) const BYE_GRACE: Duration = Duration::from_secs(1);
/// How long a guest may take to write back and unmount.
pub(super) const UNMOUNT_DEADLINE: Duration = Duration::from_secs(120);

/// What to do when a time limit is reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Deadline {
    Start,
    StartWhenReady,
    Terminate,
    Kill,
    GiveUp,
    Unmount,
}

impl Relay<'_> {
    pub(super) fn check_deadline(&mut self) -> Result<(), SessionError> {
        let now = Instant::now();
        if self.bye_until.is_some_and(|until| now >= until) {
            self.bye_until = None;
            self.deaf = true;
        }
        let Some((at, deadline)) = self.deadline else { return Ok(()) };
        if now < at {
            return Ok(());
        }
        self.deadline = match deadline {
            Deadline::Start => {
                let waited = self.options.start.unwrap_or_default();
                return Err(SessionError::NotStarted { waited });
            }
            Deadline::StartWhenReady => {
                return Err(SessionError::NotStartedThoughReady { waited: self.options.start_when_ready });
            }
            Deadline::Terminate => {
                self.timed_out = true;
                self.say(HostFrame::Signal(SIGTERM as u32));
                Some((now + self.options.kill_grace, Deadline::Kill))
            }
            Deadline::Kill => {
                self.say(HostFrame::Signal(SIGKILL as u32));
                Some((now + KILLED_GRACE, Deadline::GiveUp))
            }
            Deadline::GiveUp => {
                self.given_up = true;
                None
            }
            Deadline::Unmount => return Err(SessionError::NotUnmounted),
        };
        Ok(())
    }
}
