//! [`Outbox`]: collects replies to send them together.

use std::time::Instant;

use inarch_server::Sender;

use super::QUICK;

/// Replies are collected only while they have fewer bytes than this: sending costs less than copying more.
const MOST_BYTES: usize = 16 << 10;
/// And only while there are fewer than this: while the client wakes up for the first ones, the server works on the
/// others.
const MOST_ANSWERS: usize = 4;

/// Replies to requests that arrived together and that one thread executes in turn. Waking the client once for all of
/// them is faster than waking it for each.
#[derive(Default)]
pub struct Outbox {
    bytes: Vec<u8>,
    count: usize,
    /// When the first of them was added.
    since: Option<Instant>,
}

impl Outbox {
    /// Adds a reply. This call or [`Outbox::send`] sends it soon.
    pub fn add(&mut self, sender: &Sender<'_>, message: &[u8]) {
        if self.bytes.len() + message.len() > MOST_BYTES {
            sender.send(&[&self.bytes, message]);
            return self.clear();
        }
        self.bytes.extend_from_slice(message);
        self.count += 1;
        let since = *self.since.get_or_insert_with(Instant::now);
        if self.count >= MOST_ANSWERS || since.elapsed() > QUICK {
            self.send(sender);
        }
    }

    /// Sends the collected replies.
    pub fn send(&mut self, sender: &Sender<'_>) {
        if !self.bytes.is_empty() {
            sender.send(&[&self.bytes]);
            self.clear();
        }
    }

    fn clear(&mut self) {
        self.bytes.clear();
        self.count = 0;
        self.since = None;
    }
}
