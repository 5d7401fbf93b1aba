//! A disk in memory that records its requests.

use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use inarch_vhost::blk::{BlkOptions, BlockDevice};
use vm_memory::{Bytes, VolatileSlice};

/// A request as the device saw it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Seen {
    Read(u64, u64),
    Write(u64, u64),
    Discard(u64, u64),
    WriteZeroes(u64, u64, bool),
    Flush,
}

/// A disk in memory.
pub struct MemoryDisk {
    pub bytes: Mutex<Vec<u8>>,
    pub seen: Mutex<Vec<Seen>>,
    /// Reads that begin here fail.
    pub bad_offset: Option<u64>,
    /// Reads that begin here panic.
    pub panic_offset: Option<u64>,
    pub read_only: bool,
    /// How long each read takes.
    pub delay: Duration,
}

impl MemoryDisk {
    /// A disk on which every sector contains its own number.
    pub fn numbered(sectors: u64) -> MemoryDisk {
        let bytes = (0..sectors).flat_map(sector).collect();
        MemoryDisk {
            bytes: Mutex::new(bytes),
            seen: Mutex::default(),
            bad_offset: None,
            panic_offset: None,
            read_only: false,
            delay: Duration::ZERO,
        }
    }

    pub fn options(&self) -> BlkOptions {
        BlkOptions { capacity: self.bytes().len() as u64, serial: "memory".into(), ..BlkOptions::default() }
    }

    pub fn bytes(&self) -> MutexGuard<'_, Vec<u8>> {
        self.bytes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub fn seen(&self) -> Vec<Seen> {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn saw(&self, seen: Seen) {
        self.seen.lock().unwrap_or_else(PoisonError::into_inner).push(seen);
    }
}

/// The content of sector `number` of a numbered disk.
pub fn sector(number: u64) -> [u8; 512] {
    let mut bytes = [0; 512];
    for chunk in bytes.chunks_exact_mut(8) {
        chunk.copy_from_slice(&number.to_le_bytes());
    }
    bytes
}

fn length(slices: &[VolatileSlice<'_>]) -> u64 {
    slices.iter().map(|slice| slice.len() as u64).sum()
}

impl BlockDevice for MemoryDisk {
    fn capacity(&self) -> u64 {
        self.bytes().len() as u64
    }

    fn read_only(&self) -> bool {
        self.read_only
    }

    fn read_at(&self, offset: u64, out: &[VolatileSlice<'_>]) -> io::Result<()> {
        self.saw(Seen::Read(offset, length(out)));
        if !self.delay.is_zero() {
            thread::sleep(self.delay);
        }
        if self.bad_offset == Some(offset) {
            return Err(io::Error::other("a bad sector"));
        }
        assert_ne!(self.panic_offset, Some(offset), "a bug in the device");
        let bytes = self.bytes();
        let mut at = offset as usize;
        for slice in out {
            slice.write_slice(&bytes[at..at + slice.len()], 0).map_err(io::Error::other)?;
            at += slice.len();
        }
        Ok(())
    }

    fn write_at(&self, offset: u64, data: &[VolatileSlice<'_>]) -> io::Result<()> {
        self.saw(Seen::Write(offset, length(data)));
        let mut bytes = self.bytes();
        let mut at = offset as usize;
        for slice in data {
            slice.read_slice(&mut bytes[at..at + slice.len()], 0).map_err(io::Error::other)?;
            at += slice.len();
        }
        Ok(())
    }

    fn discard(&self, offset: u64, length: u64) -> io::Result<()> {
        self.saw(Seen::Discard(offset, length));
        Ok(())
    }

    fn write_zeroes(&self, offset: u64, length: u64, unmap: bool) -> io::Result<()> {
        self.saw(Seen::WriteZeroes(offset, length, unmap));
        self.bytes()[offset as usize..(offset + length) as usize].fill(0);
        Ok(())
    }

    fn flush(&self) -> io::Result<()> {
        self.saw(Seen::Flush);
        Ok(())
    }
}
