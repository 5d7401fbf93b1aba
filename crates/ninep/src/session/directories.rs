//! `Treaddir`: lists a directory.

use std::cell::Cell;

use inarch_vfs::{DirectoryEntry, DirectorySink};
use rustix::io::Errno;
use zerocopy::IntoBytes;

use super::place::TYPE_MASK;
use super::usage::Use;
use super::walk::group_of;
use super::{Answer, Call, Session, attributes};
use crate::wire::{Qid, ReplyBuffer, kind};

/// Bytes of an entry without its name: qid, next offset, type, and the name's length.
const ENTRY: usize = size_of::<Qid>() + size_of::<u64>() + size_of::<u8>() + size_of::<u16>();

/// Collects entries in a reply's data.
struct Entries<'o> {
    out: &'o mut [u8],
    used: usize,
    /// Whether an entry did not fit.
    full: Cell<bool>,
}

impl DirectorySink for Entries<'_> {
    fn wants_entries(&self) -> bool {
        false
    }

    fn has_room(&self, name: usize) -> bool {
        let has_room = self.out.len() - self.used >= ENTRY + name;
        self.full.set(!has_room);
        has_room
    }

    fn push(&mut self, entry: &DirectoryEntry<'_>) -> bool {
        let length = ENTRY + entry.name.len();
        let Some(out) = self.out.get_mut(self.used..).and_then(|rest| rest.get_mut(..length)) else {
            self.full.set(true);
            return false;
        };
        let qid = attributes::qid_of(entry.inode, entry.mode);
        // The type bits of a mode (`DT_*`), as in a directory of the host.
        let file_type = ((entry.mode & TYPE_MASK) >> 12) as u8;
        let name_length = (entry.name.len() as u16).to_le_bytes();
        let next = entry.next.to_le_bytes();
        let mut at = 0;
        for field in [qid.as_bytes(), &next, &[file_type], &name_length, entry.name] {
            if let Some(room) = out.get_mut(at..at + field.len()) {
                room.copy_from_slice(field);
            }
            at += field.len();
        }
        self.used += length;
        true
    }
}

impl Session<'_> {
    /// `Treaddir`: as many entries as fit. No entry means the end of the directory, so it is an error if not even one
    /// fits.
    pub(super) fn readdir(
        &self,
        call: &Call<'_>,
        fid: u32,
        offset: u64,
        count: u32,
        out: &mut ReplyBuffer,
    ) -> Result<Answer, Errno> {
        let fid = self.fids.get(fid)?;
        let Some(Use::Directory(directory)) = fid.usage.as_deref() else {
            return Err(if fid.usage.is_some() && !fid.place.is_directory() { Errno::NOTDIR } else { Errno::BADF });
        };
        let mut entries =
            Entries { out: out.data(count.min(self.most_data()) as usize), used: 0, full: Cell::new(false) };
        call.context(fid.uid, group_of(fid.uid), |context| {
            self.file_system().read_directory(context, directory.place.node, directory.handle(), offset, &mut entries)
        })?;
        let (used, full) = (entries.used, entries.full.get());
        if used == 0 && full {
            return Err(Errno::INVAL);
        }
        out.set_data(call.tag, kind::READDIR, used);
        Ok(Answer::Made)
    }
}
