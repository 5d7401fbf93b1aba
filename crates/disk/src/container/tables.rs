//! Reads tables of an image, by pages that are cached.

use std::io;
use std::sync::Arc;

use inarch_block::{Backing, read_backing};

use super::cache::{Cache, Key};

/// Bytes of a page: the entries of 128 MiB of a QCOW2 with the usual clusters.
const PAGE: u64 = 16 << 10;

/// A file with tables in it.
pub(super) struct Tables {
    file: Arc<dyn Backing>,
    cache: Arc<Cache>,
    number: u32,
}

impl Tables {
    /// `number` is the file's number in the cache.
    pub(super) fn new(file: Arc<dyn Backing>, cache: Arc<Cache>, number: u32) -> Tables {
        Tables { file, cache, number }
    }

    /// The `N` bytes at `at`; fails beyond the end.
    pub(super) fn array<const N: usize>(&self, at: u64) -> io::Result<[u8; N]> {
        if at.checked_add(N as u64).is_none_or(|end| end > self.file.size()) {
            return Err(damaged(format!(
                "a table entry at byte {at} is beyond the end of the file; the image is cut off or damaged"
            )));
        }
        let page = self.page(at - at % PAGE)?;
        if let Some(bytes) = page.get((at % PAGE) as usize..).and_then(|rest| rest.first_chunk()) {
            return Ok(*bytes);
        }
        let mut bytes = [0; N];
        read_backing(&*self.file, at, &mut bytes)?;
        Ok(bytes)
    }

    /// The page from `start`, which is a multiple of its size and within the file.
    fn page(&self, start: u64) -> io::Result<Arc<[u8]>> {
        let key = Key { file: self.number, at: start, unpacked: false };
        if let Some(page) = self.cache.get(key) {
            return Ok(page);
        }
        let length = PAGE.min(self.file.size().saturating_sub(start));
        let mut page = vec![0; length as usize];
        read_backing(&*self.file, start, &mut page)?;
        let page: Arc<[u8]> = page.into();
        self.cache.put(key, &page);
        Ok(page)
    }

    /// The decompressed cluster that `at` identifies: from the cache, or from `unpack`.
    pub(super) fn unpacked(
        &self,
        at: u64,
        unpack: impl FnOnce(&dyn Backing) -> io::Result<Vec<u8>>,
    ) -> io::Result<Arc<[u8]>> {
        let key = Key { file: self.number, at, unpacked: true };
        if let Some(cluster) = self.cache.get(key) {
            return Ok(cluster);
        }
        let cluster: Arc<[u8]> = unpack(&*self.file)?.into();
        self.cache.put(key, &cluster);
        Ok(cluster)
    }
}

/// An error for what an image should not have.
pub(super) fn damaged(reason: impl Into<String>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, reason.into())
}
