//! What happens when time is up.

use std::time::{Duration, Instant};

use libc::{SIGKILL, SIGTERM};

use super::Relay;
use crate::protocol::HostFrame;
use crate::session::SessionError;

/// After SIGKILL the guest has so long to report the end.
const KILLED_GRACE: Duration = Duration::from_secs(3);
/// A guest that has said EXIT or ERROR has so long to read what we still send, BYE among it.
pub(super) const BYE_GRACE: Duration = Duration::from_secs(1);
/// A guest that writes back and unmounts has so long.
pub(super) const UNMOUNT_DEADLINE: Duration = Duration::from_secs(120);

/// What happens when time is up.
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
