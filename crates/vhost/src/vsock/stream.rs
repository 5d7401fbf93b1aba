//! [`Stream`]: one connection, with a socket on our side and the credit of both sides.

use std::collections::VecDeque;
use std::num::Wrapping;
use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, Shutdown, recv, send, shutdown};
use zerocopy::little_endian::U32;

use super::packet::Header;

/// Our credit: bytes that the guest may send before the socket has accepted them. So much may be in the backlog.
pub const ROOM: u32 = 256 << 10;

/// The most bytes of data in a packet to the guest.
const LONGEST: usize = 64 << 10;

/// The result of receiving from the socket.
#[derive(Debug, PartialEq, Eq)]
pub enum Received {
    /// So many bytes, and there may be more.
    Some(usize),
    /// This many bytes; no more are ready.
    Last(usize),
    /// Nothing is ready.
    Nothing,
    /// The guest has no credit left.
    NoRoom,
    /// The end of the stream. `is_gone` says whether the peer has closed the socket, or only stopped sending.
    End { is_gone: bool },
}

/// One connection.
pub struct Stream {
    pub socket: OwnedFd,
    /// Bytes that the socket has not accepted yet.
    backlog: VecDeque<u8>,
    /// Bytes sent to the guest.
    sent: Wrapping<u32>,
    /// The guest's buffer size, and the bytes that its program has taken.
    room: u32,
    taken: Wrapping<u32>,
    /// Bytes from the guest; of these, how many the socket has accepted; and how many the guest was told of.
    came: Wrapping<u32>,
    forwarded: Wrapping<u32>,
    told: Wrapping<u32>,
    /// Whether the guest has stopped sending, and receiving.
    is_sent: bool,
    is_deaf: bool,
    /// Whether the guest has forgotten the connection, which remains only for its last bytes.
    pub is_left: bool,
    /// Whether the peer has stopped sending, whether it is gone, and whether the guest was told that no more data
    /// comes.
    has_ended: bool,
    is_gone: bool,
    pub is_finished: bool,
    /// Unique for each connection.
    pub id: u64,
    /// Whether it is in the queue of connections whose sockets may be readable.
    pub is_queued: bool,
    /// Whether data may be ready that did not fit the guest's credit.
    pub waits_for_room: bool,
}

impl Stream {
    /// A connection that the guest requested by `request`.
    pub fn new(id: u64, socket: OwnedFd, request: &Header) -> Stream {
        Stream {
            socket,
            backlog: VecDeque::new(),
            sent: Wrapping(0),
            room: request.buf_alloc.get(),
            taken: Wrapping(request.fwd_cnt.get()),
            came: Wrapping(0),
            forwarded: Wrapping(0),
            told: Wrapping(0),
            is_sent: false,
            is_deaf: false,
            is_left: false,
            has_ended: false,
            is_gone: false,
            is_finished: false,
            id,
            is_queued: false,
            waits_for_room: false,
        }
    }

    /// Updates the guest's credit from a packet.
    pub fn learn(&mut self, header: &Header) {
        self.room = header.buf_alloc.get();
        self.taken = Wrapping(header.fwd_cnt.get());
    }

    /// The guest's remaining credit in bytes; 0 if the guest contradicts itself.
    fn free(&self) -> u32 {
        self.room.saturating_sub((self.sent - self.taken).0)
    }

    /// Whether the guest has credit left.
    pub fn has_room(&self) -> bool {
        self.free() > 0
    }

    /// Adds our credit to a packet.
    pub fn tell(&mut self, header: &mut Header) {
        header.buf_alloc = U32::new(ROOM);
        header.fwd_cnt = U32::new(self.forwarded.0);
        self.told = self.forwarded;
    }

    /// Whether the guest may soon believe that it has no credit, although it has.
    pub fn must_tell(&self) -> bool {
        self.forwarded != self.told && (self.came - self.told).0 > ROOM / 2
    }

    /// Whether the backlog is not empty.
    pub fn has_backlog(&self) -> bool {
        !self.backlog.is_empty()
    }

    /// The peer has stopped sending, or is gone.
    pub fn hang_up(&mut self, is_gone: bool) {
        self.has_ended = true;
        self.is_gone |= is_gone;
    }

    /// Passes the guest's data to the socket, or stores it in the backlog. Discards it if the peer no longer reads.
    ///
    /// # Errors
    /// The guest has exceeded its credit, or sent after it had announced the end of its data.
    pub fn forward(&mut self, data: &[u8]) -> Result<(), Errno> {
        let length = u32::try_from(data.len()).map_err(|_| Errno::MSGSIZE)?;
        self.came += length;
        if self.is_sent || (self.came - self.forwarded).0 > ROOM {
            return Err(Errno::NOBUFS);
        }
        self.flush();
        let at_once = if self.backlog.is_empty() { self.give(data) } else { 0 };
        self.backlog.extend(data.get(at_once..).unwrap_or_default());
        Ok(())
    }

    /// Passes the backlog to the socket.
    pub fn flush(&mut self) {
        let mut backlog = std::mem::take(&mut self.backlog);
        while !backlog.is_empty() {
            match self.give(backlog.as_slices().0) {
                0 => break,
                given => drop(backlog.drain(..given)),
            }
        }
        self.backlog = backlog;
        if self.is_sent && self.backlog.is_empty() {
            let _ = shutdown(&self.socket, Shutdown::Write);
        }
    }

    /// Passes as much as the socket accepts; if the peer is gone, discards everything.
    fn give(&mut self, data: &[u8]) -> usize {
        let mut given = 0;
        while let Some(rest) = data.get(given..).filter(|rest| !rest.is_empty()) {
            match send(&self.socket, rest, SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
                Ok(length) => given += length,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => break,
                Err(_) => {
                    self.hang_up(true);
                    given = data.len();
                }
            }
        }
        // At most as many bytes as came.
        self.forwarded += given as u32;
        given
    }

    /// The guest has stopped receiving, or sending.
    pub fn end(&mut self, receives: bool, sends: bool) {
        self.is_deaf |= receives;
        self.is_sent |= sends;
        if receives {
            // The peer learns it when it writes.
            let _ = shutdown(&self.socket, Shutdown::Read);
        }
        self.flush();
    }

    /// Whether the guest has stopped sending.
    pub fn is_sent(&self) -> bool {
        self.is_sent
    }

    /// Whether no data is left in either direction.
    pub fn is_over(&self) -> bool {
        let nothing_to_guest = self.is_deaf || self.is_finished || self.is_left;
        let nothing_to_host = self.is_gone || (self.is_sent && self.backlog.is_empty());
        nothing_to_guest && nothing_to_host
    }

    /// Receives from the socket into the beginning of `room`, up to the guest's credit. `room` gets its length the first time, and is not
    /// cleared: most packets are short.
    pub fn receive(&mut self, room: &mut Vec<u8>) -> Received {
        if self.is_deaf || self.is_left {
            return Received::Nothing;
        }
        let most = LONGEST.min(self.free() as usize);
        if most == 0 {
            self.waits_for_room = true;
            return Received::NoRoom;
        }
        room.resize(LONGEST, 0);
        let received = loop {
            match recv(&self.socket, &mut room[..most], RecvFlags::DONTWAIT) {
                Err(Errno::INTR) => {}
                other => break other,
            }
        };
        match received {
            Ok((0, _)) => Received::End { is_gone: self.is_gone },
            Ok((length, _)) => {
                // At most LONGEST.
                self.sent += length as u32;
                if length < most && !self.has_ended { Received::Last(length) } else { Received::Some(length) }
            }
            Err(Errno::AGAIN) => Received::Nothing,
            Err(_) => Received::End { is_gone: true },
        }
    }
}
