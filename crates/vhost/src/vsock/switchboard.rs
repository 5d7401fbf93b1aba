//! [`Switchboard`]: all connections of a guest. It handles packets from the guest and chooses the packets to the guest.

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

/// The most connections at a time; further ones are refused.
const MOST_STREAMS: usize = 64;

/// The sockets are polled again after this many packets to the guest, even if more packets are ready.
const PACKETS_A_LOOK: u32 = 4;

/// Packets without data that may wait for the guest. Above this, no more packets are taken from the guest.
const MOST_ANSWERS: usize = 256;

/// Opens a socket for a connection to a port.
pub type Open = dyn Fn(u32) -> Option<OwnedFd> + Send + Sync;

/// A packet to the guest, whose data may be sent in several packets.
#[derive(Default)]
pub struct Outgoing {
    /// Its header, with the length of all its data.
    pub header: Header,
    /// Its data is the beginning of this.
    room: Vec<u8>,
    length: usize,
    /// The connection to which it belongs, if it is useless without it.
    stream: Option<(Ports, u64)>,
}

impl Outgoing {
    /// Its data.
    pub fn data(&self) -> &[u8] {
        self.room.get(..self.length).unwrap_or_default()
    }
}

#[derive(Default)]
struct State {
    streams: HashMap<Ports, Stream>,
    /// Packets without data.
    answers: VecDeque<Header>,
    /// Connections whose sockets may be readable.
    readable: VecDeque<Ports>,
    /// The number of connections so far.
    count: u64,
    /// Packets with data since the sockets were last polled.
    unlooked: u32,
    /// Whether a thread sleeps until there is a packet for the guest.
    sleeps: bool,
}

/// All connections of a guest.
pub struct Switchboard {
    cid: u64,
    state: Mutex<State>,
    /// Signalled when the guest has received packets without data.
    received: Condvar,
    /// Polls the sockets and `wakeup`.
    epoll: OwnedFd,
    wakeup: OwnedFd,
}

/// Not a valid connection: both ports are `VMADDR_PORT_ANY`.
const WAKEUP: u64 = u64::MAX;

fn number(ports: Ports) -> u64 {
    u64::from(ports.guest) << 32 | u64::from(ports.host)
}

fn ports(number: u64) -> Ports {
    // Two halves of 32 bits.
    Ports { guest: (number >> 32) as u32, host: number as u32 }
}

/// The events to wait for on a connection's socket; each is reported once (edge-triggered).
fn awaited(has_backlog: bool) -> EventFlags {
    let usual = EventFlags::IN | EventFlags::RDHUP | EventFlags::ET;
    if has_backlog { usual | EventFlags::OUT } else { usual }
}

impl Switchboard {
    /// No connections yet; `cid` is the guest's context identifier.
    ///
    /// # Errors
    /// No descriptor is left.
    pub fn new(cid: u64) -> io::Result<Switchboard> {
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC)?;
        let wakeup = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        epoll::add(&epoll, &wakeup, EventData::new_u64(WAKEUP), EventFlags::IN)?;
        Ok(Switchboard { cid, state: Mutex::default(), received: Condvar::new(), epoll, wakeup })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        hold(&self.state)
    }

    /// Handles a packet from the guest; `open` makes our end of a new connection. An invalid packet is refused or
    /// ignored.
    pub fn take(&self, header: &Header, data: &[u8], open: &Open) {
        if header.src_cid.get() != self.cid || header.dst_cid.get() != HOST_CID {
            return;
        }
        let mut state = self.lock();
        let ports = header.ports();
        match header.op.get() {
            op::RST => state.leave(ports),
            op::REQUEST if self.accept(&mut state, header, open) => state.answer(self.cid, ports, op::RESPONSE),
            op if op != op::REQUEST && self.serve(&mut state, header, data) => {}
            _ => state.refuse(self.cid, ports),
        }
        if state.sleeps && state.has_work() {
            state.sleeps = false;
            notify(self.wakeup.as_fd());
        }
    }

    /// The guest has sent an incomplete packet: resets its connection.
    pub fn take_damaged(&self, header: &Header) {
        if header.src_cid.get() == self.cid && header.op.get() != op::RST {
            self.take(&Header { op: 0.into(), ..*header }, &[], &|_| None);
        }
    }

    /// Makes a connection; returns false if it is refused.
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
        if epoll::add(&self.epoll, &socket, EventData::new_u64(number(ports)), awaited(false)).is_err() {
            return false;
        }
        state.count += 1;
        let stream = Stream::new(state.count, socket, request);
        state.streams.insert(ports, stream);
        true
    }

    /// Handles a packet of a connection; returns false if there is no such connection, or if it must be reset.
    fn serve(&self, state: &mut State, header: &Header, data: &[u8]) -> bool {
        let ports = header.ports();
        let Some(stream) = state.streams.get_mut(&ports).filter(|stream| !stream.is_left) else { return false };
        stream.learn(header);
        let flags = header.flags.get();
        let (receives, sends) = (flags & SHUTDOWN_RECEIVE != 0, flags & SHUTDOWN_SEND != 0);
        let had_backlog = stream.has_backlog();
        let is_known = match header.op.get() {
            op::RW => stream.forward(data).is_ok(),
            op::CREDIT_UPDATE | op::CREDIT_REQUEST => true,
            op::SHUTDOWN => {
                stream.end(receives, sends);
                true
            }
            _ => false,
        };
        if !is_known || stream.is_over() {
            return false;
        }
        if stream.has_backlog() && !had_backlog {
            // If this fails, the backlog continues with the guest's next packet.
            let _ = epoll::modify(&self.epoll, &stream.socket, EventData::new_u64(number(ports)), awaited(true));
        }
        let must_tell = stream.must_tell() || header.op.get() == op::CREDIT_REQUEST;
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

    /// Waits until another packet may be taken, or `stop` is set.
    pub fn wait_until_it_can_take(&self, stop: &Stop) {
        let mut state = self.lock();
        while state.answers.len() >= MOST_ANSWERS && !stop.is_set() {
            state = self.received.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Makes the next packet to the guest; returns false if there is none.
    pub fn give(&self, outgoing: &mut Outgoing) -> bool {
        let mut state = self.lock();
        if state.unlooked >= PACKETS_A_LOOK {
            drop(state);
            // A connection with much data must not starve the others.
            self.look(Some(&Timespec::default()));
            state = self.lock();
        }
        (outgoing.length, outgoing.stream) = (0, None);
        if let Some(answer) = state.answers.pop_front() {
            outgoing.header = answer;
            self.received.notify_all();
            return true;
        }
        while let Some(ports) = state.readable.pop_front() {
            let Some(stream) = state.streams.get_mut(&ports) else { continue };
            stream.is_queued = false;
            let (length, more) = match stream.receive(&mut outgoing.room) {
                Received::Some(length) => (length, true),
                Received::Last(length) => (length, false),
                Received::Nothing | Received::NoRoom => continue,
                Received::End { is_gone } if is_gone || !stream.is_finished => {
                    outgoing.header = Header::to_guest(self.cid, ports, op::SHUTDOWN);
                    stream.tell(&mut outgoing.header);
                    stream.is_finished = true;
                    let deaf = if is_gone { SHUTDOWN_RECEIVE } else { 0 };
                    outgoing.header.flags = U32::new(SHUTDOWN_SEND | deaf);
                    if is_gone || stream.is_over() {
                        state.streams.remove(&ports);
                    }
                    return true;
                }
                Received::End { .. } => continue,
            };
            outgoing.header = Header::to_guest(self.cid, ports, op::RW);
            // At most the longest packet.
            outgoing.header.len = U32::new(length as u32);
            outgoing.length = length;
            outgoing.stream = Some((ports, stream.id));
            stream.tell(&mut outgoing.header);
            if more {
                // It is queued last.
                state.queue(ports);
            }
            state.unlooked += 1;
            return true;
        }
        false
    }

    /// Whether the rest of a packet that the guest received in part may still be sent: its connection still exists.
    pub fn goes_on(&self, outgoing: &Outgoing) -> bool {
        let Some((ports, id)) = outgoing.stream else { return true };
        self.lock().streams.get(&ports).is_some_and(|stream| stream.id == id && !stream.is_left)
    }

    /// Waits until `stop` is set.
    pub fn wait_until_stopped(&self, stop: &Stop) {
        let mut state = self.lock();
        while !stop.is_set() {
            state = self.received.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Waits until there may be a packet to the guest; returns at once if `stop` is set.
    pub fn wait_until_it_can_give(&self, stop: &Stop) {
        loop {
            {
                let mut state = self.lock();
                if state.has_work() {
                    return;
                }
                state.sleeps = true;
            }
            let is_stopped = stop.is_set();
            self.look(is_stopped.then_some(&Timespec::default()));
            if is_stopped {
                return;
            }
        }
    }

    /// Waits until sockets are ready or `wakeup` is signalled, at most `timeout`, and records which are ready.
    fn look(&self, timeout: Option<&Timespec>) {
        let mut ready = Vec::with_capacity(16);
        match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut ready), timeout) {
            Ok(_) | Err(Errno::INTR) => {}
            // Only a programming error fails here, and would fail again at once.
            Err(_) => thread::sleep(Duration::from_millis(1)),
        }
        let mut state = self.lock();
        (state.sleeps, state.unlooked) = (false, 0);
        for event in &ready {
            match event.data.u64() {
                WAKEUP => drop(rustix::io::read(&self.wakeup, &mut [0; 8])),
                number => self.ready(&mut state, ports(number), event.flags),
            }
        }
    }

    /// A connection's socket is readable or writable.
    fn ready(&self, state: &mut State, ports: Ports, events: EventFlags) {
        let Some(stream) = state.streams.get_mut(&ports) else { return };
        // A hang-up is reported only once, even while there is data to receive.
        let gone = EventFlags::HUP | EventFlags::ERR;
        let ended = EventFlags::RDHUP | gone;
        if events.intersects(ended) {
            stream.hang_up(events.intersects(gone));
        }
        let had_backlog = stream.has_backlog();
        if events.contains(EventFlags::OUT) {
            stream.flush();
        }
        if stream.is_over() {
            return if stream.is_left { state.remove(ports) } else { state.refuse(self.cid, ports) };
        }
        if had_backlog && !stream.has_backlog() {
            // It would wake the thread for nothing. The modification reports readiness again, so no event is lost.
            let _ = epoll::modify(&self.epoll, &stream.socket, EventData::new_u64(number(ports)), awaited(false));
            if stream.must_tell() {
                state.answer(self.cid, ports, op::CREDIT_UPDATE);
            }
        }
        if events.intersects(EventFlags::IN | ended) {
            state.queue(ports);
        }
    }

    /// Makes waiting threads check again.
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

    /// The guest has forgotten a connection. If it had announced the end of its data before, the backlog still goes to
    /// the socket.
    fn leave(&mut self, ports: Ports) {
        let Some(stream) = self.streams.get_mut(&ports) else { return };
        stream.is_left = stream.is_sent() && stream.has_backlog();
        if !stream.is_left {
            self.remove(ports);
        }
    }

    fn refuse(&mut self, cid: u64, ports: Ports) {
        self.remove(ports);
        self.answer(cid, ports, op::RST);
    }
}
