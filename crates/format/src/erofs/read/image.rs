//! Reading an image's bytes, each range checked against its end.

use std::sync::Arc;

use inarch_block::{Backing, read_backing};

use super::damaged;
use crate::ReadError;

/// An image.
#[derive(Clone)]
pub(crate) struct Image {
    backing: Arc<dyn Backing>,
    size: u64,
}

impl Image {
    pub(crate) fn new(backing: Arc<dyn Backing>) -> Image {
        let size = backing.size();
        Image { backing, size }
    }

    /// Its size in bytes.
    pub(crate) fn size(&self) -> u64 {
        self.size
    }

    /// Whether `length` bytes from `at` are within it.
    pub(crate) fn holds(&self, at: u64, length: u64) -> bool {
        at.checked_add(length).is_some_and(|end| end <= self.size)
    }

    /// Fills `out` from byte `at`.
    pub(crate) fn read(&self, at: u64, out: &mut [u8]) -> Result<(), ReadError> {
        if !self.holds(at, out.len() as u64) {
            let (length, size) = (out.len(), self.size);
            return Err(damaged(format!("{length} bytes at byte {at} lie beyond the image's end at {size}")));
        }
        read_backing(&*self.backing, at, out).map_err(|error| ReadError::Io { offset: at, error })
    }
}

/// Bytes of a page.
const PAGE: u64 = 1 << 16;
/// Pages kept.
const PAGES: u64 = 64;

/// Reads small pieces of metadata through a few large ones that are kept.
pub(crate) struct Pages {
    image: Image,
    /// A page's number decides its place.
    pages: Vec<Page>,
}

#[derive(Clone, Default)]
struct Page {
    number: Option<u64>,
    bytes: Vec<u8>,
}

impl Pages {
    pub(crate) fn new(image: Image) -> Pages {
        Pages { image, pages: vec![Page::default(); PAGES as usize] }
    }

    pub(crate) fn image(&self) -> &Image {
        &self.image
    }

    /// Fills `out` from byte `at`.
    pub(crate) fn read(&mut self, at: u64, out: &mut [u8]) -> Result<(), ReadError> {
        if !self.image.holds(at, out.len() as u64) {
            return self.image.read(at, out);
        }
        let mut done = 0;
        while let Some(rest) = out.get_mut(done..).filter(|rest| !rest.is_empty()) {
            let from = at + done as u64;
            let page = self.page(from / PAGE)?;
            let held = page.get((from % PAGE) as usize..).unwrap_or_default();
            let count = held.len().min(rest.len());
            for (to, from) in rest.iter_mut().zip(held) {
                *to = *from;
            }
            if count == 0 {
                return Err(damaged(format!("byte {from} lies beyond the image's end")));
            }
            done += count;
        }
        Ok(())
    }

    /// The `N` bytes from byte `at`.
    pub(crate) fn array<const N: usize>(&mut self, at: u64) -> Result<[u8; N], ReadError> {
        let mut bytes = [0; N];
        self.read(at, &mut bytes).map(|()| bytes)
    }

    fn page(&mut self, number: u64) -> Result<&[u8], ReadError> {
        let missing = || damaged("internal: no page");
        let page = self.pages.get_mut((number % PAGES) as usize).ok_or_else(missing)?;
        if page.number != Some(number) {
            page.number = None;
            page.bytes.resize(PAGE.min(self.image.size - number * PAGE) as usize, 0);
            self.image.read(number * PAGE, &mut page.bytes)?;
            page.number = Some(number);
        }
        Ok(&page.bytes)
    }
}
