//! Answers that are sent together.

use std::time::Instant;

use inarch_server::Sender;

use super::QUICK;

/// Answers wait for others only while they are fewer bytes than this: it costs less to send than to copy what is longer.
const MOST_BYTES: usize = 16 << 10;
/// And while they are fewer than this: while a client is being woken for the first ones, the server goes on to the others.
const MOST_ANSWERS: usize = 4;

/// Answers to requests that arrived together, executed one after the other by one thread: a client that is woken once for all
/// of them is answered sooner than one that is woken for each.
#[derive(Default)]
pub struct Outbox {
    bytes: Vec<u8>,
    count: usize,
    /// When the first of them was there.
    since: Option<Instant>,
}

impl Outbox {
    /// Adds an answer. It is sent soon, by this or by [`Outbox::send`].
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

    /// Sends what waits.
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
