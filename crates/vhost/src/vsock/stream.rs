//! One connection: a socket on our side, and what both sides have told each other about their room for data.

use std::collections::VecDeque;
use std::num::Wrapping;
use std::os::fd::OwnedFd;

use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, Shutdown, recv, send, shutdown};
use zerocopy::little_endian::U32;

use super::packet::Header;

/// Bytes that the guest may send before the socket has taken them: so much is held for it.
pub const ROOM: u32 = 256 << 10;

/// Most bytes of data in a packet to the guest.
const LONGEST: usize = 64 << 10;

/// What became of a try to receive from the socket.
#[derive(Debug, PartialEq, Eq)]
pub enum Received {
    /// So many bytes, and there may be more.
    Some(usize),
    /// So many bytes, and nothing is left.
    Last(usize),
    /// Nothing is there.
    Nothing,
    /// The guest has no room for more.
    NoRoom,
    /// Nothing will come any more, and whoever it came from is still there, or is gone as well.
    End { is_gone: bool },
}

/// One connection.
pub struct Stream {
    pub socket: OwnedFd,
    /// What the socket has not taken yet.
    backlog: VecDeque<u8>,
    /// Bytes sent to the guest.
    sent: Wrapping<u32>,
    /// Bytes that the guest has room for in all, and that its program has taken.
    room: u32,
    taken: Wrapping<u32>,
    /// Bytes that came from the guest, that the socket has taken of them, and that the guest was told of.
    came: Wrapping<u32>,
    forwarded: Wrapping<u32>,
    told: Wrapping<u32>,
    /// Whether the guest sends nothing any more, or receives nothing.
    is_sent: bool,
    is_deaf: bool,
    /// Whether it knows nothing of the connection any more, which only remains for its last bytes.
    pub is_left: bool,
    /// Whether the socket's other end sends nothing any more, whether it is gone, and whether the guest was told that nothing comes.
    has_ended: bool,
    is_gone: bool,
    pub is_finished: bool,
    /// Another one for each connection.
    pub id: u64,
    /// Whether it stands in the queue of those from whose sockets something may be received.
    pub is_queued: bool,
    /// Whether something may be there for which the guest had no room.
    pub waits_for_room: bool,
}

impl Stream {
    /// A connection that the guest has asked for by `request`.
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

    /// Takes what a packet says about the guest's room.
    pub fn learn(&mut self, header: &Header) {
        self.room = header.buf_alloc.get();
        self.taken = Wrapping(header.fwd_cnt.get());
    }

    /// Bytes that the guest has room for now. A guest that contradicts itself has none.
    fn free(&self) -> u32 {
        self.room.saturating_sub((self.sent - self.taken).0)
    }

    /// Whether the guest has room for more.
    pub fn has_room(&self) -> bool {
        self.free() > 0
    }

    /// Says in a packet what room we have.
    pub fn tell(&mut self, header: &mut Header) {
        header.buf_alloc = U32::new(ROOM);
        header.fwd_cnt = U32::new(self.forwarded.0);
        self.told = self.forwarded;
    }

    /// Whether the guest may soon think that there is no room, though there is.
    pub fn must_tell(&self) -> bool {
        self.forwarded != self.told && (self.came - self.told).0 > ROOM / 2
    }

    /// Whether the socket is to take more when it can.
    pub fn has_backlog(&self) -> bool {
        !self.backlog.is_empty()
    }

    /// The socket's other end sends nothing any more, or is gone.
    pub fn hang_up(&mut self, is_gone: bool) {
        self.has_ended = true;
        self.is_gone |= is_gone;
    }

    /// Gives data of the guest to the socket, or keeps it until that takes it. What nobody reads any more is thrown away.
    ///
    /// # Errors
    /// The guest has sent more than it had room for, or after it had said that it would send nothing any more.
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

    /// Gives the socket what it has not taken yet.
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

    /// Gives the socket as much as it takes; nobody being there takes all.
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
        // At most as much as came.
        self.forwarded += given as u32;
        given
    }

    /// The guest receives nothing any more, or sends nothing any more.
    pub fn end(&mut self, receives: bool, sends: bool) {
        self.is_deaf |= receives;
        self.is_sent |= sends;
        if receives {
            // Who writes there learns it.
            let _ = shutdown(&self.socket, Shutdown::Read);
        }
        self.flush();
    }

    /// Whether the guest sends nothing any more.
    pub fn is_sent(&self) -> bool {
        self.is_sent
    }

    /// Whether nothing is left to be carried either way.
    pub fn is_over(&self) -> bool {
        let nothing_to_guest = self.is_deaf || self.is_finished || self.is_left;
        let nothing_to_host = self.is_gone || (self.is_sent && self.backlog.is_empty());
        nothing_to_guest && nothing_to_host
    }

    /// Receives from the socket into `buffer` what the guest has room for.
    pub fn receive(&mut self, buffer: &mut Vec<u8>) -> Received {
        if self.is_deaf || self.is_left {
            return Received::Nothing;
        }
        let most = LONGEST.min(self.free() as usize);
        if most == 0 {
            self.waits_for_room = true;
            return Received::NoRoom;
        }
        buffer.resize(most, 0);
        let received = loop {
            match recv(&self.socket, &mut buffer[..], RecvFlags::DONTWAIT) {
                Err(Errno::INTR) => {}
                other => break other,
            }
        };
        match received {
            Ok((0, _)) => Received::End { is_gone: self.is_gone },
            Ok((length, _)) => {
                buffer.truncate(length);
                // At most LONGEST.
                self.sent += length as u32;
                if length < most && !self.has_ended { Received::Last(length) } else { Received::Some(length) }
            }
            Err(Errno::AGAIN) => Received::Nothing,
            Err(_) => Received::End { is_gone: true },
        }
    }
}
