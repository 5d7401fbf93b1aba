//! Tells the user what happens while a source is fetched, or read from elsewhere.

use std::io::IsTerminal;

use inarch_jobs::cache::PullEvent;
use inarch_jobs::source::{Source, SourceEvent};
use inarch_jobs::{Events, counted};

use crate::duration::ago;
use crate::output::complain;
use crate::size::show;

/// The same source; the user is told what happens to it.
pub fn telling(source: Source) -> Source {
    source.telling(Events::new(|event| match event {
        SourceEvent::Pull(event) => tell(&event),
        SourceEvent::Remote(line) => complain(line),
    }))
}

/// Only a user at a terminal is told that something is fetched.
fn tell(event: &PullEvent) {
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
