//! All connections of a guest: packets from it come in, packets to it come out.

use std::collections::{HashMap, VecDeque};
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::event::{EventfdFlags, Timespec, eventfd};
use rustix::io::Errno;
use zerocopy::little_endian::U32;

use super::hold;
use super::packet::{HOST_CID, Header, Ports, SHUTDOWN_RECEIVE, SHUTDOWN_SEND, TYPE_STREAM, op};
use super::stream::{Received, Stream};
use crate::vring::{Stop, notify};

/// Most connections at a time; further ones are refused.
const MOST_STREAMS: usize = 64;

/// Answers without data that may wait for the guest to receive them, before nothing more is taken from it.
const MOST_ANSWERS: usize = 256;

/// What opens a socket for a connection to a port.
pub type Open = dyn Fn(u32) -> Option<OwnedFd> + Send + Sync;

/// A packet to the guest, of which the data may go in several.
#[derive(Default)]
pub struct Outgoing {
    /// What it says; its length is that of all its data.
    pub header: Header,
    /// Its data.
    pub data: Vec<u8>,
}

#[derive(Default)]
struct State {
    streams: HashMap<Ports, Stream>,
    /// Packets without data.
    answers: VecDeque<Header>,
    /// Connections from whose sockets something may be received.
    readable: VecDeque<Ports>,
    /// Whether somebody sleeps until there is something for the guest.
    sleeps: bool,
}

/// All connections of a guest.
pub struct Switchboard {
    cid: u64,
    state: Mutex<State>,
    /// Answers were received by the guest.
    received: Condvar,
    /// What sockets are ready, and `wakeup`.
    epoll: OwnedFd,
    wakeup: OwnedFd,
}

/// No connection has it: both are `VMADDR_PORT_ANY`.
const WAKEUP: u64 = u64::MAX;

fn number(ports: Ports) -> u64 {
    u64::from(ports.guest) << 32 | u64::from(ports.host)
}

fn ports(number: u64) -> Ports {
    // Two halves of 32 bits.
    Ports { guest: (number >> 32) as u32, host: number as u32 }
}

impl Switchboard {
    /// No connections, of the guest with this context identifier.
    ///
    /// # Errors
    /// There are no more descriptors.
    pub fn new(cid: u64) -> io::Result<Switchboard> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let wakeup = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        epoll::add(&epoll, &wakeup, EventData::new_u64(WAKEUP), EventFlags::IN)?;
        Ok(Switchboard { cid, state: Mutex::default(), received: Condvar::new(), epoll, wakeup })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        hold(&self.state)
    }

    /// Takes a packet from the guest; `open` makes our end of a connection. What makes no sense is refused or passed over.
    pub fn take(&self, header: &Header, data: &[u8], open: &Open) {
        if header.src_cid.get() != self.cid || header.dst_cid.get() != HOST_CID {
            return;
        }
        let mut state = self.lock();
        let ports = header.ports();
        match header.op.get() {
            op::RST => state.remove(ports),
            op::REQUEST if self.accept(&mut state, header, open) => state.answer(self.cid, ports, op::RESPONSE),
            op if op != op::REQUEST && self.serve(&mut state, header, data) => {}
            _ => state.refuse(self.cid, ports),
        }
        if state.sleeps && state.has_work() {
            state.sleeps = false;
            notify(self.wakeup.as_fd());
        }
    }

    /// Makes a connection; false if there can be none.
    fn accept(&self, state: &mut State, request: &Header, open: &Open) -> bool {
        let ports = request.ports();
        if request.socket_type.get() != TYPE_STREAM
            || number(ports) == WAKEUP
            || state.streams.contains_key(&ports)
            || state.streams.len() >= MOST_STREAMS
        {
            return false;
        }
        let Some(socket) = open(ports.host) else { return false };
        let events = EventFlags::IN | EventFlags::RDHUP | EventFlags::ET;
        if epoll::add(&self.epoll, &socket, EventData::new_u64(number(ports)), events).is_err() {
            return false;
        }
        state.streams.insert(ports, Stream::new(socket, request));
        true
    }

    /// Takes a packet of a connection; false if there is none, or it cannot go on.
    fn serve(&self, state: &mut State, header: &Header, data: &[u8]) -> bool {
        let ports = header.ports();
        let Some(stream) = state.streams.get_mut(&ports) else { return false };
        stream.learn(header);
        let flags = header.flags.get();
        let (receives, sends) = (flags & SHUTDOWN_RECEIVE != 0, flags & SHUTDOWN_SEND != 0);
        let goes_on = match header.op.get() {
            op::RW => {
                let had_backlog = stream.has_backlog();
                let is_forwarded = stream.forward(data).is_ok();
                if stream.has_backlog() && !had_backlog {
                    let events = EventFlags::IN | EventFlags::OUT | EventFlags::RDHUP | EventFlags::ET;
                    // Without, the rest goes with what comes next.
                    let _ = epoll::modify(&self.epoll, &stream.socket, EventData::new_u64(number(ports)), events);
                }
                is_forwarded
            }
            op::CREDIT_UPDATE => true,
            op::CREDIT_REQUEST => {
                state.answer(self.cid, ports, op::CREDIT_UPDATE);
                return true;
            }
            op::SHUTDOWN => {
                stream.end(receives, sends);
                !stream.is_over()
            }
            _ => false,
        };
        if !goes_on {
            return false;
        }
        let must_tell = stream.must_tell();
        if stream.waits_for_room && stream.has_room() {
            stream.waits_for_room = false;
            state.queue(ports);
        }
        if must_tell {
            state.answer(self.cid, ports, op::CREDIT_UPDATE);
        }
        true
    }

    /// Whether another packet may be taken from the guest.
    pub fn can_take(&self) -> bool {
        self.lock().answers.len() < MOST_ANSWERS
    }

    /// Waits for that, or until `stop` is set.
    pub fn wait_until_it_can_take(&self, stop: &Stop) {
        let mut state = self.lock();
        while state.answers.len() >= MOST_ANSWERS && !stop.is_set() {
            state = self.received.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Makes the next packet to the guest; false if there is none.
    pub fn give(&self, outgoing: &mut Outgoing) -> bool {
        let mut state = self.lock();
        outgoing.data.clear();
        if let Some(answer) = state.answers.pop_front() {
            outgoing.header = answer;
            if state.answers.len() < MOST_ANSWERS {
                self.received.notify_all();
            }
            return true;
        }
        while let Some(ports) = state.readable.pop_front() {
            let Some(stream) = state.streams.get_mut(&ports) else { continue };
            stream.is_queued = false;
            let (length, more) = match stream.receive(&mut outgoing.data) {
                Received::Some(length) => (length, true),
                Received::Last(length) => (length, false),
                Received::Nothing | Received::NoRoom => continue,
                Received::End => {
                    outgoing.data.clear();
                    outgoing.header = Header::to_guest(self.cid, ports, op::SHUTDOWN);
                    outgoing.header.flags = U32::new(SHUTDOWN_RECEIVE | SHUTDOWN_SEND);
                    state.streams.remove(&ports);
                    return true;
                }
            };
            outgoing.header = Header::to_guest(self.cid, ports, op::RW);
            // At most the longest packet.
            outgoing.header.len = U32::new(length as u32);
            stream.tell(&mut outgoing.header);
            if more {
                // Behind the others.
                state.queue(ports);
            }
            return true;
        }
        outgoing.data.clear();
        false
    }

    /// Waits until `stop` is set.
    pub fn wait_until_stopped(&self, stop: &Stop) {
        let mut state = self.lock();
        while !stop.is_set() {
            state = self.received.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Waits until there may be a packet to the guest; only looks if `stop` is set.
    pub fn wait_until_it_can_give(&self, stop: &Stop) {
        let mut ready = Vec::with_capacity(16);
        loop {
            {
                let mut state = self.lock();
                if state.has_work() {
                    return;
                }
                state.sleeps = true;
            }
            ready.clear();
            let timeout = stop.is_set().then(Timespec::default);
            match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut ready), timeout.as_ref()) {
                Ok(_) | Err(Errno::INTR) => {}
                // Only for a wrong call, which would go wrong again at once.
                Err(_) => return thread::sleep(Duration::from_millis(1)),
            }
            let mut state = self.lock();
            state.sleeps = false;
            for event in &ready {
                match event.data.u64() {
                    WAKEUP => drop(rustix::io::read(&self.wakeup, &mut [0; 8])),
                    number => self.ready(&mut state, ports(number), event.flags),
                }
            }
            if stop.is_set() {
                return;
            }
        }
    }

    /// A connection's socket can be received from, or take more.
    fn ready(&self, state: &mut State, ports: Ports, events: EventFlags) {
        let Some(stream) = state.streams.get_mut(&ports) else { return };
        // That somebody has hung up is told once only, also while there is still something to receive.
        let ended = EventFlags::RDHUP | EventFlags::HUP | EventFlags::ERR;
        stream.has_ended |= events.intersects(ended);
        if events.contains(EventFlags::OUT) && stream.has_backlog() {
            stream.flush();
            if stream.is_over() {
                return state.refuse(self.cid, ports);
            }
            let must_tell = stream.must_tell();
            if !stream.has_backlog() {
                let events = EventFlags::IN | EventFlags::RDHUP | EventFlags::ET;
                // It would only be woken in vain.
                let _ = epoll::modify(&self.epoll, &stream.socket, EventData::new_u64(number(ports)), events);
            }
            if must_tell {
                state.answer(self.cid, ports, op::CREDIT_UPDATE);
            }
        }
        if events.intersects(EventFlags::IN | ended) {
            state.queue(ports);
        }
    }

    /// Makes those who wait look again.
    pub fn wake(&self) {
        let _state = self.lock();
        notify(self.wakeup.as_fd());
        self.received.notify_all();
    }
}

impl State {
    fn has_work(&self) -> bool {
        !self.answers.is_empty() || !self.readable.is_empty()
    }

    fn queue(&mut self, ports: Ports) {
        if let Some(stream) = self.streams.get_mut(&ports)
            && !stream.is_queued
        {
            stream.is_queued = true;
            self.readable.push_back(ports);
        }
    }

    fn answer(&mut self, cid: u64, ports: Ports, op: u16) {
        let mut header = Header::to_guest(cid, ports, op);
        if let Some(stream) = self.streams.get_mut(&ports) {
            stream.tell(&mut header);
        }
        self.answers.push_back(header);
    }

    fn remove(&mut self, ports: Ports) {
        self.streams.remove(&ports);
    }

    fn refuse(&mut self, cid: u64, ports: Ports) {
        self.remove(ports);
        self.answer(cid, ports, op::RST);
    }
}
