//! The queue of accesses to be written, with back-pressure.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

use rustix::io::Errno;

use super::{AccessKind, Identity};
use crate::{NodeId, hold};

/// The most bytes in the queue; as many can be with the writer.
const MOST: usize = 4 << 20;

/// The writer starts at once with this many bytes.
const ENOUGH: usize = 1 << 20;

/// With fewer it waits this long, so that it is not woken for each access.
const GATHERING: Duration = Duration::from_millis(5);

/// How a request names its target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// A node that was looked up.
    Node(NodeId),
    /// A name in a directory.
    Name(NodeId, Box<[u8]>),
}

impl Place {
    pub fn name(parent: NodeId, name: &[u8]) -> Place {
        Place::Name(parent, name.into())
    }

    fn weight(&self) -> usize {
        match self {
            Place::Node(_) => 0,
            Place::Name(_, name) => name.len(),
        }
    }
}

/// An access and its result.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Done {
    pub kind: AccessKind,
    pub place: Place,
    pub to: Option<Place>,
    pub detail: Option<Box<[u8]>>,
    pub identity: Option<Identity>,
    pub error: Option<Errno>,
    pub process: u32,
    /// It is not written to the record; it only updates the writer's nodes and names.
    pub is_silent: bool,
    /// The node that the client got, which counts as a look-up.
    pub node: Option<NodeId>,
}

/// A message in the queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    Done(Done),
    /// The client got these names of a directory, each followed by a slash.
    Listed(NodeId, Box<[u8]>),
    /// The client got a node without a name.
    Counted(NodeId),
    /// The client dropped look-ups.
    Forgot(NodeId, u64),
    /// The client disconnected.
    Disconnected,
}

impl Message {
    /// Bytes of memory.
    fn weight(&self) -> usize {
        let behind = match self {
            Message::Done(done) => {
                let names = done.place.weight() + done.to.as_ref().map_or(0, Place::weight);
                names + done.detail.as_ref().map_or(0, |detail| detail.len())
            }
            Message::Listed(_, names) => names.len(),
            Message::Counted(_) | Message::Forgot(..) | Message::Disconnected => 0,
        };
        size_of::<Message>() + behind
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Writer {
    #[default]
    Busy,
    /// The writer waits for the first message.
    Idle,
    /// The writer waits for enough messages.
    Gathering,
}

#[derive(Debug, Default)]
struct Waiting {
    messages: Vec<Message>,
    bytes: usize,
    writer: Writer,
    /// No more messages will come.
    ended: bool,
}

/// See the module.
#[derive(Debug, Default)]
pub struct Queue {
    waiting: Mutex<Waiting>,
    /// Wakes the writer.
    work: Condvar,
    /// Wakes those that wait for room.
    room: Condvar,
    failed: AtomicBool,
}

impl Queue {
    /// Adds a message, waiting for room. After the end it is dropped.
    pub fn push(&self, message: Message) {
        let weight = message.weight();
        let mut waiting = hold(&self.waiting);
        while waiting.bytes >= MOST && !waiting.ended {
            waiting = self.room.wait(waiting).unwrap_or_else(PoisonError::into_inner);
        }
        if waiting.ended {
            return;
        }
        waiting.messages.push(message);
        waiting.bytes += weight;
        let is_awaited = match waiting.writer {
            Writer::Busy => false,
            Writer::Idle => true,
            Writer::Gathering => waiting.bytes >= ENOUGH,
        };
        if is_awaited {
            waiting.writer = Writer::Busy;
            drop(waiting);
            self.work.notify_one();
        }
    }

    /// Moves all messages to the empty `messages`, after a moment if there are few.
    pub fn take(&self, messages: &mut Vec<Message>) -> Taken {
        let mut waiting = hold(&self.waiting);
        if waiting.messages.is_empty() && !waiting.ended {
            return Taken::Nothing;
        }
        if waiting.bytes < ENOUGH && !waiting.ended {
            waiting.writer = Writer::Gathering;
            let gathered = self.work.wait_timeout_while(waiting, GATHERING, |waiting| {
                waiting.writer == Writer::Gathering && !waiting.ended
            });
            waiting = gathered.unwrap_or_else(PoisonError::into_inner).0;
            waiting.writer = Writer::Busy;
        }
        if waiting.messages.is_empty() {
            return Taken::End;
        }
        std::mem::swap(&mut waiting.messages, messages);
        waiting.bytes = 0;
        drop(waiting);
        self.room.notify_all();
        Taken::Some
    }

    /// Waits for messages or the end.
    pub fn wait(&self) {
        let mut waiting = hold(&self.waiting);
        if waiting.messages.is_empty() && !waiting.ended {
            waiting.writer = Writer::Idle;
            let woken = self.work.wait_while(waiting, |waiting| waiting.writer == Writer::Idle && !waiting.ended);
            waiting = woken.unwrap_or_else(PoisonError::into_inner);
            waiting.writer = Writer::Busy;
        }
    }

    /// Ends the queue: no more messages will come.
    pub fn end(&self) {
        hold(&self.waiting).ended = true;
        self.work.notify_all();
        self.room.notify_all();
    }

    /// Fails the queue: nothing takes messages any more.
    pub fn fail(&self) {
        self.failed.store(true, Ordering::Release);
        let mut waiting = hold(&self.waiting);
        waiting.messages = Vec::new();
        drop(waiting);
        self.end();
    }

    /// Whether the queue has failed.
    pub fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Acquire)
    }
}

/// The result of `take`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    /// Messages.
    Some,
    /// None for now.
    Nothing,
    /// None, and none will come.
    End,
}
