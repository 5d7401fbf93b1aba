//! Folding: turns what a command of a kept run wrote to a disk into a layer over the host's tree.
//!
//! 1. The disk is made again from the stored host tree, the run's earlier changes, and the command's overlay
//!    ([`KeptOverlay`]).
//! 2. The guest's file system is read from it and compared with the host's tree ([`inarch_tree::compare`]). A thread
//!    that is confined to parsing does this: it has the disk's files, and opens only files of the host's tree, for
//!    reading.
//! 3. The differences become the new layer. Its files' bytes stay where they are: in overlays, and in host files.
//!    Only bytes that are still in a journal are written out ([`Spill`]).
//! 4. The layer is put in place, and what it does not need is freed ([`DiskFiles::save_layer`]).

use std::collections::HashSet;
use std::error::Error;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;

use inarch_block::{Content, Device, Origin as Held, Seal, read_content};
use inarch_confine::{Parse, Parsing};
use inarch_format::ReadError;
use inarch_format::ext4::{self, Ext4Image, LostAndFound, Numbering, ReadOptions, open_image};
use inarch_tree::compare::{Difference, Lineage, MOST_PATHS, TooDeep, differences_but_deep};
use inarch_tree::layer::{Bytes, Facts, Holder, Identity, Layer, LayerError, Lender, Origin, Part, Place};
use inarch_tree::{DataRange, Extent, InodeId, Timestamp, Tree};

use super::files::{DiskFiles, FIRST_PAGE};
use super::layered::{KeptBase, Layered};
use super::own::{leave_out_own, mount_points};
use super::remade::{Remade, remake};
use super::same::{Side, have_same_bytes};
use super::{KeptRun, KeptTree};
use crate::kept::KeptError;
use crate::lifecycle::trust;
use crate::text::shown;

/// Folds every disk of a run that is not folded yet. Returns notes for the user, a line each.
pub(crate) fn fold(run: &KeptRun) -> Result<Vec<String>, KeptError> {
    fold_but(run, &[])
}

/// The same, except for the trees in `gone`.
pub(super) fn fold_but(run: &KeptRun, gone: &[KeptTree]) -> Result<Vec<String>, KeptError> {
    let Some(record) = &run.record else { return Ok(Vec::new()) };
    let mut notes = Vec::new();
    for tree in record.trees.iter().filter(|tree| !tree.read_only && !gone.contains(tree)) {
        let files = run.files(tree.ordinal);
        let Some(generation) = files.unfolded()? else { continue };
        let disk = KeptOverlay::open(run.name(), &files, tree, generation)?;
        let seal = Seal::new().map_err(|error| disk_error(tree, error))?;
        let spill = Spill::create(&files, generation, seal)?;
        let own = mount_points(tree, record);
        // The guest's file system is parsed where nothing but the host's tree can be opened.
        let parse = Parse::new().reading(&tree.source()).map_err(|error| disk_error(tree, error))?;
        let read = |parsing| {
            let disk = GuestDisk::read(parsing, disk).map_err(|error| disk_error(tree, error))?;
            disk.changed(spill, &own).map_err(KeptError::from)
        };
        let found = parse.run(read, || {}).map_err(|error| disk_error(tree, error))??;
        found.spill.finish()?;
        files.save_layer(&found.layer)?;
        let destination = shown(&tree.destination());
        notes.extend(found.notes.iter().map(|note| format!("{destination}: {note}")));
    }
    Ok(notes)
}

/// Keeps of what the run changed in a tree only `found`.
pub(super) fn keep_only(files: &DiskFiles, layered: &Arc<Layered>, found: &[Difference]) -> Result<(), KeptError> {
    let mut facts = LayeredFacts { layered };
    let layer = Layer::new(&layered.lower, &layered.tree, found, &mut facts).map_err(KeptError::Rest)?;
    files.save_layer(&layer)
}

fn disk_error(tree: &KeptTree, error: impl Into<Box<dyn Error + Send + Sync>>) -> KeptError {
    KeptError::Disk { tree: tree.source(), error: error.into() }
}

/// The most directories that are named each in a line.
const NAMED: usize = 4;

/// What is not kept, in lines.
fn left_out_notes(left_out: &[TooDeep]) -> Vec<String> {
    let mut lines: Vec<String> =
        left_out.iter().take(NAMED).map(|one| format!("{one}: it is not kept, and the rest is")).collect();
    if left_out.len() > NAMED {
        lines.push(format!("{} more directories are nested too deeply, and not kept", left_out.len() - NAMED));
    }
    lines
}

/// A disk with what its guest wrote.
struct KeptOverlay {
    disk: Remade,
    /// The name of the overlay's file.
    name: String,
}

impl KeptOverlay {
    fn open(run: &str, files: &DiskFiles, tree: &KeptTree, generation: u64) -> Result<KeptOverlay, KeptError> {
        let kept = KeptBase { run: run.to_owned(), destination: tree.destination(), files: files.clone() };
        let disk = remake(&tree.source(), &kept, &files.overlay(generation), tree.ordinal)?;
        // A crash of the machine may still lose what is only in its memory.
        disk.device.flush().map_err(|error| disk_error(tree, error))?;
        Ok(KeptOverlay { disk, name: files.seal_overlay(generation)? })
    }
}

/// What a guest did to a disk.
struct Found {
    layer: Layer,
    spill: Spill,
    /// Notes: what was left out, and others.
    notes: Vec<String>,
}

/// A disk with what its guest wrote, and the file system that the guest left on it.
struct GuestDisk {
    host: Arc<dyn Content>,
    layered: Arc<Layered>,
    image: Ext4Image,
    numbering: Numbering,
    device: Arc<Device>,
    overlay_name: String,
    /// Where in the overlay's file the device's first byte is.
    data_start: u64,
}

impl GuestDisk {
    fn read(parsing: Parsing, overlay: KeptOverlay) -> Result<GuestDisk, String> {
        let KeptOverlay { disk: Remade { layered, host, device, numbering }, name } = overlay;
        let options = ReadOptions { lost_and_found: LostAndFound::Keep, ..ReadOptions::default() };
        let image = open_image(parsing, Arc::clone(&device) as _, &options).map_err(|error| match error {
            // Unread files would count as removed.
            ReadError::Damaged { format, reason } => format!("{format}: {reason}"),
            other => other.to_string(),
        })?;
        let data_start = device.overlay_data_start().unwrap_or(0);
        Ok(GuestDisk { host, layered, image, numbering, device, overlay_name: name, data_start })
    }

    fn guest(&self) -> &Arc<Tree> {
        &self.image.opened.tree
    }

    /// What the guest changed.
    fn changed(&self, spill: Spill, own: &HashSet<Vec<u8>>) -> Result<Found, LayerError> {
        let (mut found, left_out) = differences_but_deep(&self.layered.lower, self.guest(), self, MOST_PATHS);
        leave_out_own(&mut found, (self.guest(), &*self.image.opened.content), own);
        let mut facts = GuestFacts { disk: self, spill };
        let layer = Layer::new(&self.layered.lower, self.guest(), &found, &mut facts)?;
        let notes = self.image.opened.notes.iter().cloned().chain(left_out_notes(&left_out)).collect();
        Ok(Found { layer, spill: facts.spill, notes })
    }

    /// The inode of the planned tree that an inode of the guest still is. A reused inode number has a random
    /// generation; a planned inode's generation is 0.
    fn planned(&self, new: InodeId) -> Option<InodeId> {
        let planned = self.numbering.inode(self.image.ino(new)).filter(|_| self.image.generation(new) == 0)?;
        let kind = |tree: &Tree, id| tree.inode(id).file_type();
        (kind(&self.layered.tree, planned) == kind(self.guest(), new)).then_some(planned)
    }

    /// Whether every byte of the guest's file is still where the plan put the planned file's: then the content is the
    /// same, and need not be read.
    fn is_untouched(&self, planned: InodeId, new: InodeId) -> bool {
        if self.layered.tree.inode(planned).size() != self.guest().inode(new).size() {
            return false;
        }
        let pieces = self.pieces(planned, new);
        let length = |(range, _): &(Range<u64>, bool)| range.end - range.start;
        pieces.iter().all(|(_, in_place)| *in_place)
            && pieces.iter().map(length).sum::<u64>() == self.data_bytes(planned)
    }

    /// The parts of a guest's file on the disk, and whether each is where the plan put that part of a planned file.
    fn pieces(&self, planned: InodeId, new: InodeId) -> Vec<(Range<u64>, bool)> {
        let mut pieces = Vec::new();
        for extent in self.image.extents().of(new) {
            let mut done = 0;
            while done < extent.length {
                let (held, count) = self.device.origin(extent.at + done);
                let there = Held::File { inode: planned, offset: extent.offset + done };
                let count = count.min(extent.length - done);
                let start = extent.offset + done;
                // Parts in the journal are not on the disk yet.
                pieces.push((start..start + count, held == there && self.image.is_on_device(extent)));
                done += count;
            }
        }
        pieces
    }

    /// Bytes of a planned file in blocks on the disk.
    fn data_bytes(&self, planned: InodeId) -> u64 {
        const BLOCK: u64 = inarch_block::BLOCK_SIZE as u64;
        let size = self.layered.tree.inode(planned).size();
        let Some(ranges) = self.layered.tree.sparse_ranges(planned) else { return size };
        let mut bytes = 0;
        let mut end = 0;
        for DataRange { offset, length } in ranges {
            let start = (offset / BLOCK * BLOCK).max(end);
            end = (offset + length).next_multiple_of(BLOCK).min(size).max(start);
            bytes += end - start;
        }
        bytes
    }
}

impl Lineage for GuestDisk {
    fn origin(&self, new: InodeId) -> Option<InodeId> {
        self.layered.origin(self.planned(new)?)
    }

    fn same_content(&self, old: InodeId, new: InodeId) -> bool {
        let planned = self.planned(new).filter(|planned| self.layered.whole(*planned) == Some(old));
        if planned.is_some_and(|planned| self.is_untouched(planned, new)) {
            return true;
        }
        let pieces = planned.map(|planned| self.pieces(planned, new)).unwrap_or_default();
        let mut known: Vec<Range<u64>> =
            pieces.into_iter().filter(|(_, in_place)| *in_place).map(|(range, _)| range).collect();
        // Extents of a damaged file system may overlap.
        known.sort_unstable_by_key(|range| range.start);
        let is = Side { content: &*self.image.opened.content, tree: self.guest(), inode: new };
        let was = Side { content: &*self.host, tree: &self.layered.lower, inode: old };
        // What can no longer be read for comparison counts as changed.
        have_same_bytes(is, was, &known).unwrap_or(false)
    }

    fn as_stored(&self, time: Timestamp) -> Timestamp {
        ext4::stored_time(time)
    }
}

/// Where the bytes of a layered tree's files are.
struct LayeredFacts<'a> {
    layered: &'a Layered,
}

impl LayeredFacts<'_> {
    /// Adds where the bytes of a part of a file of the layered tree are, as a part of another file from `offset` on.
    fn add(&self, planned: InodeId, from: u64, length: u64, offset: u64, parts: &mut Vec<Part>) {
        if let Some(lower) = self.layered.whole(planned) {
            let holder = Holder::Lender(Lender::of(&self.layered.lower, lower));
            return parts.push(Part { offset, length, at: from, holder });
        }
        let Some(Origin::Upper(upper)) = self.layered.owner(planned) else { return };
        let layer = &self.layered.layer;
        if let (true, Some(lender)) = (layer.is_whole(upper), layer.origin(upper)) {
            // It is gone on the host; reading it gives an error.
            let holder = layer.lenders().get(lender).cloned().map(Holder::Lender);
            return parts.extend(holder.map(|holder| Part { offset, length, at: from, holder }));
        }
        for extent in layer.extents().of(upper) {
            let start = extent.offset.max(from);
            let end = (extent.offset + extent.length).min(from.saturating_add(length));
            let holder = match layer.place(extent.backing) {
                Some(Place::Lender(at)) => layer.lenders().get(at).cloned().map(Holder::Lender),
                Some(Place::File(_, name)) => Some(Holder::File(name.to_owned())),
                None => None,
            };
            if let (true, Some(holder)) = (start < end, holder) {
                let at = extent.at + (start - extent.offset);
                parts.push(Part { offset: offset + (start - from), length: end - start, at, holder });
            }
        }
    }

    fn origin(&self, planned: InodeId) -> Option<Lender> {
        if let Some(lower) = self.layered.whole(planned).or_else(|| self.layered.origin(planned)) {
            return Some(Lender::of(&self.layered.lower, lower));
        }
        match self.layered.owner(planned)? {
            Origin::Upper(upper) => {
                let layer = &self.layered.layer;
                layer.lenders().get(layer.origin(upper)?).cloned()
            }
            Origin::Lower(lower) => Some(Lender::of(&self.layered.lower, lower)),
        }
    }

    fn bytes(&self, planned: InodeId) -> Bytes {
        let whole = match self.layered.owner(planned) {
            Some(Origin::Lower(_)) => true,
            Some(Origin::Upper(upper)) => self.layered.layer.is_whole(upper),
            None => false,
        };
        if whole {
            return Bytes::Whole;
        }
        let mut parts = Vec::new();
        self.add(planned, 0, self.layered.tree.inode(planned).size(), 0, &mut parts);
        Bytes::Parts(parts)
    }
}

impl Facts for LayeredFacts<'_> {
    fn origin(&self, new: InodeId) -> Option<Lender> {
        LayeredFacts::origin(self, new)
    }

    fn bytes(&mut self, new: InodeId) -> io::Result<Bytes> {
        Ok(LayeredFacts::bytes(self, new))
    }

    fn was(&self, path: &[u8]) -> Option<Option<Identity>> {
        self.layered.layer.was(path)
    }
}

/// Where the bytes of a guest's files are.
struct GuestFacts<'a> {
    disk: &'a GuestDisk,
    spill: Spill,
}

impl GuestFacts<'_> {
    fn layered(&self) -> LayeredFacts<'_> {
        LayeredFacts { layered: &self.disk.layered }
    }

    /// Adds where the bytes of an extent of the guest's file are.
    fn add(&mut self, new: InodeId, extent: &Extent, parts: &mut Vec<Part>) -> io::Result<()> {
        if !self.disk.image.is_on_device(extent) {
            return self.spill.add(&*self.disk.image.opened.content, new, (extent.offset, extent.length), parts);
        }
        let mut done = 0;
        while done < extent.length {
            let (held, count) = self.disk.device.origin(extent.at + done);
            let (offset, length) = (extent.offset + done, count.min(extent.length - done));
            match held {
                Held::Overlay => {
                    let at = self.disk.data_start + extent.at + done;
                    parts.push(Part { offset, length, at, holder: Holder::File(self.disk.overlay_name.clone()) });
                }
                Held::File { inode, offset: from } => self.layered().add(inode, from, length, offset, parts),
                Held::Zeros => {}
                Held::Metadata => self.spill.add(&*self.disk.image.opened.content, new, (offset, length), parts)?,
            }
            done += length;
        }
        Ok(())
    }
}

impl Facts for GuestFacts<'_> {
    fn origin(&self, new: InodeId) -> Option<Lender> {
        self.layered().origin(self.disk.planned(new)?)
    }

    fn bytes(&mut self, new: InodeId) -> io::Result<Bytes> {
        if let Some(planned) = self.disk.planned(new).filter(|planned| self.disk.is_untouched(*planned, new)) {
            return Ok(self.layered().bytes(planned));
        }
        let mut parts = Vec::new();
        for extent in self.disk.image.extents().of(new) {
            self.add(new, extent, &mut parts)?;
        }
        Ok(Bytes::Parts(parts))
    }

    fn was(&self, path: &[u8]) -> Option<Option<Identity>> {
        self.disk.layered.layer.was(path)
    }
}

/// Bytes that are written out because no file has them as they are.
struct Spill {
    path: PathBuf,
    name: String,
    seal: Seal,
    file: File,
    length: u64,
}

impl Spill {
    /// Creates its file before it is known to be needed, because the confined thread that writes to it cannot. If
    /// nothing refers to the file, it is removed when the layer is saved.
    fn create(files: &DiskFiles, generation: u64, seal: Seal) -> Result<Spill, KeptError> {
        let (path, name) = files.spilled(generation, seal);
        // One of an earlier attempt may be there.
        let file = trust::create(&path).map_err(|error| KeptError::path(&path, "cannot make it", error))?;
        Ok(Spill { path, name, seal, file, length: FIRST_PAGE })
    }

    /// Writes `length` bytes of a file from `offset` on.
    fn add(
        &mut self,
        content: &dyn Content,
        inode: InodeId,
        (offset, length): (u64, u64),
        parts: &mut Vec<Part>,
    ) -> io::Result<()> {
        const PIECE: u64 = 1 << 20;
        let mut buffer = vec![0; length.min(PIECE) as usize];
        let mut done = 0;
        while done < length {
            let count = (length - done).min(PIECE);
            let buffer = &mut buffer[..count as usize];
            read_content(content, inode, offset + done, buffer)?;
            self.file.write_all_at(buffer, self.length + done)?;
            done += count;
        }
        parts.push(Part { offset, length, at: self.length, holder: Holder::File(self.name.clone()) });
        self.length += length;
        Ok(())
    }

    /// Makes it durable.
    fn finish(self) -> Result<(), KeptError> {
        let Spill { path, seal, file, length, .. } = self;
        let synced = if length > FIRST_PAGE { seal.put(&file).and_then(|()| file.sync_all()) } else { Ok(()) };
        synced.map_err(|error| KeptError::path(&path, "cannot make it durable", error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_kept_is_named_in_few_lines() {
        let deep = |number: u8| TooDeep { levels: 30_000, top: vec![b'a' + number] };
        let lines = left_out_notes(&(0..6).map(deep).collect::<Vec<_>>());
        assert_eq!(lines.len(), NAMED + 1);
        assert_eq!(
            lines[0],
            "directories are nested 30000 levels deep at 'a', and too much differs there to be listed: it is not kept, and \
             the rest is"
        );
        assert_eq!(lines[NAMED], "2 more directories are nested too deeply, and not kept");
        assert_eq!(left_out_notes(&[]), [""; 0]);
    }
}
