//! Tells what happens while an image of a registry is fetched.

use std::io::IsTerminal;

use inarch_jobs::cache::PullEvent;
use inarch_jobs::counted;

use crate::duration::ago;
use crate::output::complain;
use crate::size::show;

/// Tells the user. Only a user at a terminal is told that something is fetched.
pub fn tell(event: &PullEvent) {
    match event {
        PullEvent::Fetching { name, blobs, bytes } if std::io::stderr().is_terminal() => {
            complain(format_args!("{name}: fetching {}, {}", counted(*blobs as u64, "part", "parts"), show(*bytes)));
        }
        PullEvent::Fetching { .. } => {}
        PullEvent::Kept { name, reason, asked } => {
            complain(format_args!("{name}: {reason}; the copy here is used (checked: {})", ago(*asked)));
        }
    }
}
