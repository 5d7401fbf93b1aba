//! What was done and is not written down yet. Whoever does something while that is too much waits.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

use rustix::io::Errno;

use super::{AccessKind, Identity, hold};
use crate::NodeId;

/// Bytes that may wait to be written down; as many are being written at the same time.
const MOST: usize = 4 << 20;

/// With so many the writer begins at once.
const ENOUGH: usize = 1 << 20;

/// With fewer it waits for so long, so that it is not woken for each.
const GATHERING: Duration = Duration::from_millis(5);

/// By what somebody names what an access is to.
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

/// Something that was done, or failed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Done {
    pub kind: AccessKind,
    pub place: Place,
    pub to: Option<Place>,
    pub detail: Option<Box<[u8]>>,
    pub identity: Option<Identity>,
    pub error: Option<Errno>,
    pub process: u32,
    /// The node that the client was given with it, which counts as a lookup.
    pub node: Option<NodeId>,
}

/// What waits in the queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Message {
    Done(Done),
    /// The client was given a node by no name.
    Counted(NodeId),
    /// It has given back so many lookups.
    Forgot(NodeId, u64),
    /// It is gone.
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
            Message::Counted(_) | Message::Forgot(..) | Message::Disconnected => 0,
        };
        size_of::<Message>() + behind
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Writer {
    #[default]
    Busy,
    /// It is to be woken by the first message.
    Idle,
    /// It is to be woken when there are enough.
    Gathering,
}

#[derive(Debug, Default)]
struct Waiting {
    messages: Vec<Message>,
    bytes: usize,
    writer: Writer,
    /// Nothing more is to come.
    ended: bool,
}

/// See the module's text.
#[derive(Debug, Default)]
pub struct Queue {
    waiting: Mutex<Waiting>,
    /// For the writer.
    work: Condvar,
    /// For those who wait.
    room: Condvar,
    failed: AtomicBool,
}

impl Queue {
    /// Adds a message, as soon as there is room. After the end nobody takes it.
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

    /// Puts what waits into `messages`, which is empty. If that is little, a moment later.
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

    /// Waits until there is something to take, or the end has come.
    pub fn wait(&self) {
        let mut waiting = hold(&self.waiting);
        if waiting.messages.is_empty() && !waiting.ended {
            waiting.writer = Writer::Idle;
            let woken = self.work.wait_while(waiting, |waiting| waiting.writer == Writer::Idle && !waiting.ended);
            waiting = woken.unwrap_or_else(PoisonError::into_inner);
            waiting.writer = Writer::Busy;
        }
    }

    /// Nothing more is to come.
    pub fn end(&self) {
        hold(&self.waiting).ended = true;
        self.work.notify_all();
        self.room.notify_all();
    }

    /// Nobody takes anything any more, because that failed.
    pub fn fail(&self) {
        self.failed.store(true, Ordering::Release);
        let mut waiting = hold(&self.waiting);
        waiting.messages = Vec::new();
        drop(waiting);
        self.end();
    }

    /// Whether that is so.
    pub fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Acquire)
    }
}

/// What a writer got.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    /// Messages.
    Some,
    /// None for now.
    Nothing,
    /// None ever again.
    End,
}
