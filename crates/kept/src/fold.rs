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
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;

use inarch_block::{Content, Origin as Held, Seal, read_content};
use inarch_confine::Parse;
use inarch_lifecycle::trust;
use inarch_tree::compare::{Difference, MOST_PATHS, TooDeep, differences_but_deep};
use inarch_tree::layer::{Bytes, Facts, Holder, Identity, Layer, LayerError, Lender, Origin, Part, Place};
use inarch_tree::{Extent, InodeId};

use super::files::{DiskFiles, FIRST_PAGE};
use super::fold_note::FoldNote;
use super::guest_disk::{GuestDisk, WrittenDisk};
use super::layered::{KeptBase, Layered};
use super::own::{leave_out_own, mount_points};
use super::remade::remake;
use super::{KeptRun, KeptTree};
use crate::KeptError;

/// Folds every disk of a run that is not folded yet. Returns what could not be kept.
pub fn fold(run: &KeptRun) -> Result<Vec<FoldNote>, KeptError> {
    fold_but(run, &[])
}

/// The same, except for the trees in `gone`.
pub(super) fn fold_but(run: &KeptRun, gone: &[KeptTree]) -> Result<Vec<FoldNote>, KeptError> {
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
            let KeptOverlay { disk, name } = disk;
            let disk = GuestDisk::read(parsing, disk).map_err(|error| disk_error(tree, error))?;
            changed(&disk, name, spill, &own).map_err(KeptError::from)
        };
        let found = parse.run(read, || {}).map_err(|error| disk_error(tree, error))??;
        found.spill.finish()?;
        files.save_layer(&found.layer)?;
        let destination = tree.destination();
        let reader = |line| FoldNote::Reader { destination: destination.clone(), line };
        notes.extend(found.notes.into_iter().map(reader));
        notes.extend(FoldNote::left_out(destination, found.left_out));
    }
    Ok(notes)
}

/// Reduces what the run changed in a tree to `found`.
pub(super) fn keep_only(files: &DiskFiles, layered: &Arc<Layered>, found: &[Difference]) -> Result<(), KeptError> {
    let mut facts = LayeredFacts { layered };
    let layer = Layer::new(&layered.lower, &layered.tree, found, &mut facts).map_err(KeptError::Rest)?;
    files.save_layer(&layer)
}

fn disk_error(tree: &KeptTree, error: impl Into<Box<dyn Error + Send + Sync>>) -> KeptError {
    KeptError::Disk { tree: tree.source(), error: error.into() }
}

/// A disk with what its guest wrote.
struct KeptOverlay {
    disk: WrittenDisk,
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
    /// What the reader of the guest's file system says.
    notes: Vec<String>,
    /// What is not kept.
    left_out: Vec<TooDeep>,
}

/// What the guest of `disk` changed. `overlay` is the name of the file that holds its writes.
fn changed(disk: &GuestDisk, overlay: String, spill: Spill, own: &HashSet<Vec<u8>>) -> Result<Found, LayerError> {
    let WrittenDisk { layered, device, .. } = &disk.disk;
    let (mut found, left_out) = differences_but_deep(&layered.lower, disk.guest(), disk, MOST_PATHS);
    leave_out_own(&mut found, (disk.guest(), &*disk.image.opened.content), own);
    let mut facts = GuestFacts { disk, overlay, data_start: device.overlay_data_start().unwrap_or(0), spill };
    let layer = Layer::new(&layered.lower, disk.guest(), &found, &mut facts)?;
    Ok(Found { layer, spill: facts.spill, notes: disk.image.opened.notes.clone(), left_out })
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
    /// The name of the overlay's file.
    overlay: String,
    /// Where in the overlay's file the device's first byte is.
    data_start: u64,
    spill: Spill,
}

impl GuestFacts<'_> {
    fn layered(&self) -> LayeredFacts<'_> {
        LayeredFacts { layered: &self.disk.disk.layered }
    }

    /// Adds where the bytes of an extent of the guest's file are.
    fn add(&mut self, new: InodeId, extent: &Extent, parts: &mut Vec<Part>) -> io::Result<()> {
        if !self.disk.image.is_on_device(extent) {
            return self.spill.add(&*self.disk.image.opened.content, new, (extent.offset, extent.length), parts);
        }
        let mut done = 0;
        while done < extent.length {
            let (held, count) = self.disk.disk.device.origin(extent.at + done);
            let (offset, length) = (extent.offset + done, count.min(extent.length - done));
            match held {
                Held::Overlay => {
                    let at = self.data_start + extent.at + done;
                    parts.push(Part { offset, length, at, holder: Holder::File(self.overlay.clone()) });
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
        self.disk.disk.layered.layer.was(path)
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
