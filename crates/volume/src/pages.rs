//! A bounded cache of an image's bytes, for small reads of metadata.

use std::sync::{Arc, Mutex, PoisonError};

use inarch_block::{Backing, read_backing};

use crate::VolumeError;

/// Bytes of a page. Inodes of an image may lie each beside its content, where larger pages are mostly content.
const PAGE: u64 = 1 << 12;

/// Reads small pieces of an image through pages of 4 KiB, of which some are kept.
///
/// A page's number determines its slot in the cache, and each slot has its own lock, so threads that read different
/// parts do not wait for each other.
pub struct Pages {
    backing: Arc<dyn Backing>,
    size: u64,
    places: Box<[Mutex<Page>]>,
}

#[derive(Default)]
struct Page {
    number: Option<u64>,
    bytes: Vec<u8>,
}

impl Pages {
    /// A cache of `count` pages of `backing`, at least one.
    pub fn new(backing: Arc<dyn Backing>, count: usize) -> Pages {
        let size = backing.size();
        Pages { backing, size, places: (0..count.max(1)).map(|_| Mutex::default()).collect() }
    }

    /// The backing.
    pub fn backing(&self) -> &Arc<dyn Backing> {
        &self.backing
    }

    /// The size of the image in bytes.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Whether `length` bytes from `at` are within the image.
    pub fn holds(&self, at: u64, length: u64) -> bool {
        at.checked_add(length).is_some_and(|end| end <= self.size)
    }

    /// Fills `out` from byte `at`. Past the end, the image counts as damaged.
    pub fn read(&self, at: u64, out: &mut [u8]) -> Result<(), VolumeError> {
        let length = out.len() as u64;
        if !self.holds(at, length) {
            let size = self.size;
            return Err(VolumeError::Damaged(format!(
                "{length} bytes at byte {at} lie beyond the image's end at {size}"
            )));
        }
        if length > PAGE {
            return self.fetch(at, out);
        }
        let (mut at, mut rest) = (at, out);
        while !rest.is_empty() {
            let within = at % PAGE;
            let count = (PAGE - within).min(rest.len() as u64) as usize;
            let (now, later) = rest.split_at_mut(count);
            self.copy(at / PAGE, within as usize, now)?;
            (at, rest) = (at + count as u64, later);
        }
        Ok(())
    }

    /// The `N` bytes from byte `at`.
    pub fn array<const N: usize>(&self, at: u64) -> Result<[u8; N], VolumeError> {
        let mut bytes = [0; N];
        self.read(at, &mut bytes).map(|()| bytes)
    }

    fn copy(&self, number: u64, within: usize, out: &mut [u8]) -> Result<(), VolumeError> {
        let lost = || VolumeError::Damaged(format!("nothing is at byte {}", number.saturating_mul(PAGE)));
        let place = self.places.get((number % self.places.len() as u64) as usize).ok_or_else(lost)?;
        let mut page = place.lock().unwrap_or_else(PoisonError::into_inner);
        if page.number != Some(number) {
            page.number = None;
            let start = number * PAGE;
            page.bytes.resize(PAGE.min(self.size - start) as usize, 0);
            self.fetch(start, &mut page.bytes)?;
            page.number = Some(number);
        }
        out.copy_from_slice(page.bytes.get(within..within + out.len()).ok_or_else(lost)?);
        Ok(())
    }

    fn fetch(&self, at: u64, out: &mut [u8]) -> Result<(), VolumeError> {
        read_backing(&*self.backing, at, out).map_err(|error| VolumeError::Io { offset: at, error })
    }
}
