//! Answers reads: in chunks that tell holes from data if structured replies were agreed on, else in one piece.

use std::sync::PoisonError;

use inarch_server::{Allocation, BlockDevice};
use zerocopy::IntoBytes;

use crate::session::{PIECE, Session};
use crate::wire::Errno;
use crate::wire::reply::{Chunk, SimpleReply};
use crate::wire::request::{Request, flag};

/// The least hole that gets a chunk of its own: sending fewer zeros is cheaper.
const WORTHY_HOLE: u64 = 32 << 10;

impl<D: BlockDevice> Session<'_, D> {
    /// Reads the range and sends the answer; the caller sends an error.
    pub(crate) fn read(&self, request: &Request, piece: &mut [u8]) -> Result<(), Errno> {
        self.check_payload(request)?;
        let end = self.check_range(request)?;
        match (self.agreement.structured, request.has(flag::DF)) {
            (true, false) => self.read_chunks(request, end, piece),
            (true, true) if request.length as usize > PIECE => Err(Errno::Overflow),
            (false, true) => Err(Errno::Invalid),
            _ => self.read_whole(request, piece),
        }
    }

    /// Sends the range as chunks of data and holes. An error in the middle names its offset.
    fn read_chunks(&self, request: &Request, end: u64, piece: &mut [u8]) -> Result<(), Errno> {
        let cookie = request.cookie;
        if request.length == 0 {
            self.sender.send(&[&Chunk::None.encode(cookie, true)]);
        }
        let mut offset = request.offset;
        while offset < end && !self.sender.has_ended() {
            let hole = self.hole_at(offset, end);
            if hole > 0 {
                self.sender.send(&[&Chunk::Hole(offset, hole as u32).encode(cookie, offset + hole == end)]);
                offset += hole;
                continue;
            }
            let length = self.data_at(offset, end.min(offset + piece.len() as u64)) - offset;
            let data = piece.split_at_mut(length as usize).0;
            if let Err(errno) = self.fill(offset, data) {
                self.sender.send(&[&Chunk::ErrorAt(errno, offset).encode(cookie, true)]);
                return Ok(());
            }
            let chunk = Chunk::Data(offset, length as u32);
            self.sender.send(&[&chunk.encode(cookie, offset + length == end), data]);
            offset += length;
        }
        Ok(())
    }

    /// Bytes of the hole at `offset`, if there is one before `end` that is large enough for a chunk.
    fn hole_at(&self, offset: u64, end: u64) -> u64 {
        match self.device().allocation(offset, end - offset) {
            (Allocation::Hole, length) if length >= WORTHY_HOLE || offset + length == end => length,
            _ => 0,
        }
    }

    /// Where the data from `offset` ends: at the next hole that is large enough for a chunk, or at `end`.
    fn data_at(&self, offset: u64, end: u64) -> u64 {
        let mut at = offset;
        while at < end {
            let (allocation, length) = self.device().allocation(at, end - at);
            if allocation == Allocation::Hole && length >= WORTHY_HOLE && at > offset {
                break;
            }
            at += length.max(1);
        }
        at
    }

    /// Sends the range behind one header. It must be complete before the header is sent, because the header reports
    /// success.
    fn read_whole(&self, request: &Request, piece: &mut [u8]) -> Result<(), Errno> {
        let length = request.length as usize;
        if length <= piece.len() {
            return self.read_into(request, piece.split_at_mut(length).0);
        }
        let mut large = self.large.lock().unwrap_or_else(PoisonError::into_inner);
        if large.len() < length {
            large.resize(length, 0);
        }
        self.read_into(request, large.split_at_mut(length).0)
    }

    fn read_into(&self, request: &Request, data: &mut [u8]) -> Result<(), Errno> {
        self.fill(request.offset, data)?;
        if self.agreement.structured {
            let chunk = if data.is_empty() { Chunk::None } else { Chunk::Data(request.offset, request.length) };
            self.sender.send(&[&chunk.encode(request.cookie, true), data]);
        } else {
            self.sender.send(&[SimpleReply::new(request.cookie, Ok(())).as_bytes(), data]);
        }
        Ok(())
    }
}
