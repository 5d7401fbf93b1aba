//! From the root through all directories: the tree, and the extents of its files.

use std::collections::HashMap;

use inarch_tree::{Attributes, BuildError, Builder, DataRange, Extent, Extents, FileType, InodeId, Tree};

use super::backing;
use super::flaw::{Findings, Flaw, tolerate, unreadable};
use super::inline;
use super::inodes::{Inodes, Slot};
use super::journal::Replayed;
use super::listing::Listing;
use super::mapping::{Claims, Place, Run, map};
use super::volume::Volume;
use super::xattrs::{self, XattrReader};
use super::{LostAndFound, ReadOptions};
use crate::ReadError;
use crate::ext4::spec::ROOT_INO;
use crate::ext4::spec::inode::{BLOCK_FIELD, FAST_SYMLINK_MAX, Inode, decode_time, flags};

/// The name of the directory that e2fsck puts what it finds without a name in.
const LOST_AND_FOUND: &[u8] = b"lost+found";
/// Bytes of a symlink's target at most (`PATH_MAX`, with the final NUL).
const TARGET_MAX: u64 = 4095;

/// What a walk gives.
pub(super) struct Walked {
    pub(super) tree: Tree,
    pub(super) extents: Extents,
    /// `i_generation` of each inode of the tree.
    pub(super) generations: Vec<u32>,
    pub(super) findings: Findings,
}

/// A walk on its way.
struct Walk<'a> {
    volume: &'a Volume,
    replayed: Option<&'a Replayed>,
    inodes: Inodes,
    builder: Builder,
    extents: Vec<(InodeId, Extent)>,
    generations: Vec<u32>,
    /// The inodes of the tree by their numbers on the device.
    known: HashMap<u32, InodeId>,
    /// Directories whose names are still to be read, the next one last.
    stack: Vec<(u32, InodeId)>,
    claims: Claims,
    findings: Findings,
    xattrs: XattrReader,
    features: Features,
    runs: Vec<Run>,
    ranges: Vec<DataRange>,
}

/// What inodes have that a tree cannot hold.
#[derive(Default)]
struct Features {
    /// Files with fs-verity.
    verity: u64,
    /// Directories that fold case.
    casefold: u64,
    /// Inodes with attributes of chattr(1), and the flags of all of them together.
    chattr: (u64, u32),
}

impl Features {
    fn count(&mut self, inode: &Inode) {
        self.verity += u64::from(inode.has(flags::VERITY));
        self.casefold += u64::from(inode.has(flags::CASEFOLD));
        let of_chattr =
            flags::OF_CHATTR.iter().filter(|(flag, _)| inode.has(*flag)).fold(0, |all, (flag, _)| all | flag);
        self.chattr.0 += u64::from(of_chattr != 0);
        self.chattr.1 |= of_chattr;
    }

    fn notes(&self) -> Vec<String> {
        let letters: String =
            flags::OF_CHATTR.iter().filter(|(flag, _)| self.chattr.1 & flag != 0).map(|(_, letter)| *letter).collect();
        let notes = [
            (self.verity, "files have fs-verity, whose hashes are neither checked nor kept".to_owned()),
            (self.casefold, "directories ignore the case of names, which is not kept".to_owned()),
            (self.chattr.0, format!("files and directories have attributes of chattr ({letters}), which are not kept")),
        ];
        notes.into_iter().filter(|(count, _)| *count > 0).map(|(count, note)| format!("{count} {note}")).collect()
    }
}

/// Reads everything that has a name.
pub(super) fn walk(volume: &Volume, replayed: Option<&Replayed>, options: &ReadOptions) -> Result<Walked, ReadError> {
    let mut inodes = Inodes::new();
    let root = tolerate(root(volume, &mut inodes))?.map_err(|reason| unreadable(format!("its root {reason}")))?;
    let expected = expected(volume);
    let mut walk = Walk {
        volume,
        replayed,
        inodes,
        builder: root.builder,
        extents: Vec::with_capacity(expected),
        generations: vec![root.generation],
        known: HashMap::with_capacity(expected),
        stack: vec![(ROOT_INO, InodeId::ROOT)],
        claims: Claims::default(),
        findings: root.findings,
        xattrs: root.xattrs,
        features: root.features,
        runs: Vec::new(),
        ranges: Vec::new(),
    };
    walk.known.insert(ROOT_INO, InodeId::ROOT);
    let mut listing = Listing::default();
    while let Some((ino, dir)) = walk.stack.pop() {
        walk.directory(ino, dir, &mut listing, options)?;
    }
    walk.tell_features();
    let tree = walk.builder.finish().map_err(not_built)?;
    let extents = Extents::new(tree.inode_count(), walk.extents).map_err(|error| unreadable(error.to_string()))?;
    Ok(Walked { tree, extents, generations: walk.generations, findings: walk.findings })
}

/// A tree of nothing but the root.
struct Root {
    builder: Builder,
    generation: u32,
    xattrs: XattrReader,
    findings: Findings,
    features: Features,
}

/// How many inodes there will be, nearly; a wrong number costs a little time or address space.
fn expected(volume: &Volume) -> usize {
    let (all, free) = (volume.superblock.inodes_count.get(), volume.superblock.free_inodes_count.get());
    all.saturating_sub(free).min(1 << 20) as usize
}

fn root(volume: &Volume, inodes: &mut Inodes) -> Result<Root, Flaw> {
    let slot = inodes.get(volume, ROOT_INO)?;
    let (mut root, generation) = attributes(&slot).map_err(Flaw::Bad)?;
    let stored = xattrs::stored(&slot);
    let mut features = Features::default();
    features.count(&slot.inode);
    if FileType::from_mode(root.mode) != Some(FileType::Directory) {
        return Err(Flaw::Bad("is no directory".to_owned()));
    }
    let mut builder = Builder::with_capacity(&root, expected(volume), 0).map_err(not_built)?;
    let mut findings = Findings::default();
    let mut xattrs = XattrReader::new();
    if let Some(stored) = stored {
        let (set, flaws) = xattrs.read(volume, inodes, stored, &mut builder)?;
        flaws.into_iter().for_each(|flaw| findings.push_loss(InodeId::ROOT, b"", flaw));
        root.xattrs = set;
        builder.set_root(&root).map_err(not_built)?;
    }
    Ok(Root { builder, generation, xattrs, findings, features })
}

fn not_built(error: BuildError) -> ReadError {
    unreadable(error.to_string())
}

/// The attributes of an inode, and its generation.
fn attributes(slot: &Slot<'_>) -> Result<(Attributes, u32), String> {
    let inode = &slot.inode;
    let mode = u32::from(inode.mode.get());
    let file_type = FileType::from_mode(mode);
    let file_type = file_type.ok_or_else(|| format!("has an inode, {}, of no type: mode {mode:#o}", slot.ino))?;
    if inode.links_count.get() == 0 {
        return Err(format!("has an inode, {}, that was deleted", slot.ino));
    }
    if inode.has(flags::EA_INODE) {
        return Err(format!("has an inode, {}, that is an extended attribute's", slot.ino));
    }
    let size = if file_type == FileType::Regular { inode.size() } else { 0 };
    if i64::try_from(size).is_err() {
        return Err(format!("has an inode, {}, with a size of {size} bytes", slot.ino));
    }
    let (uid, gid) = inode.owner();
    let is_device = matches!(file_type, FileType::CharDevice | FileType::BlockDevice);
    let attributes = Attributes {
        mode,
        uid,
        gid,
        size,
        mtime: decode_time(inode.mtime, inode.mtime_extra),
        ctime: decode_time(inode.ctime, inode.ctime_extra),
        source_ino: u64::from(slot.ino),
        device: if is_device { inode.device() } else { (0, 0) },
        ..Attributes::default()
    };
    Ok((attributes, inode.generation.get()))
}

impl Walk<'_> {
    fn directory(
        &mut self,
        ino: u32,
        dir: InodeId,
        listing: &mut Listing,
        options: &ReadOptions,
    ) -> Result<(), ReadError> {
        self.builder.list(dir).map_err(not_built)?;
        let slot = match tolerate(self.inodes.get(self.volume, ino))? {
            Ok(slot) => slot,
            Err(reason) => {
                self.findings.push(dir, b"", reason);
                return Ok(());
            }
        };
        if slot.inode.has(flags::ENCRYPT) {
            self.findings.push_sound(dir, b"", "is encrypted; what is in it is left out".to_owned());
            return Ok(());
        }
        listing.read(self.volume, &mut self.claims, &slot)?;
        for fault in listing.faults.drain(..) {
            self.findings.push(dir, b"", fault);
        }
        let oldest = self.stack.len();
        for index in 0..listing.len() {
            let Some((name, ino)) = listing.get(index) else { continue };
            if dir == InodeId::ROOT && name == LOST_AND_FOUND && self.omits(ino, options.lost_and_found)? {
                continue;
            }
            if let Err(reason) = tolerate(self.entry(dir, name, ino))? {
                self.findings.push(dir, name, format!("{reason}; it is left out"));
            }
        }
        if let Some(added) = self.stack.get_mut(oldest..) {
            added.reverse();
        }
        Ok(())
    }

    fn tell_features(&mut self) {
        self.volume.warnings().into_iter().for_each(|warning| self.findings.push_general(warning));
        self.features.notes().into_iter().for_each(|note| self.findings.push_general(note));
    }

    /// Whether `lost+found` is to be left out.
    fn omits(&mut self, ino: u32, choice: LostAndFound) -> Result<bool, ReadError> {
        if choice != LostAndFound::KeepIfUsed {
            return Ok(choice == LostAndFound::Omit);
        }
        let Ok(slot) = tolerate(self.inodes.get(self.volume, ino))? else { return Ok(false) };
        if FileType::from_mode(u32::from(slot.inode.mode.get())) != Some(FileType::Directory) {
            return Ok(false);
        }
        // Read again if it is kept, so nothing is claimed for it here.
        let mut listing = Listing::default();
        listing.read(self.volume, &mut Claims::default(), &slot)?;
        Ok(listing.len() == 0 && listing.faults.is_empty())
    }

    /// Adds a name to the directory being listed.
    fn entry(&mut self, dir: InodeId, name: &[u8], ino: u32) -> Result<(), Flaw> {
        if !self.volume.is_nameable(ino) {
            return Err(Flaw::Bad(format!("has the inode number {ino}, which no file can have")));
        }
        if let Some(known) = self.known.get(&ino) {
            return self.builder.link(name, *known).map_err(|error| match error {
                BuildError::Misuse(_) => Flaw::Bad(format!("is a directory, inode {ino}, that has a name already")),
                other => Flaw::Host(not_built(other)),
            });
        }
        let slot = self.inodes.get(self.volume, ino)?;
        let (mut attributes, generation) = attributes(&slot).map_err(Flaw::Bad)?;
        let is_encrypted = slot.inode.has(flags::ENCRYPT);
        if is_encrypted && FileType::from_mode(attributes.mode) == Some(FileType::Symlink) {
            self.findings.push_sound(dir, name, "is an encrypted symlink; it is left out".to_owned());
            return Ok(());
        }
        self.runs.clear();
        let (mut notes, mut lost) = (Vec::new(), Vec::new());
        let body = body(self.volume, &mut self.claims, &slot, &mut self.runs, &mut notes)?;
        self.features.count(&slot.inode);
        if let Some(stored) = xattrs::stored(&slot) {
            let (set, flaws) = self.xattrs.read(self.volume, &mut self.inodes, stored, &mut self.builder)?;
            attributes.xattrs = set;
            lost = flaws;
        }
        let id = self.builder.add(name, &attributes).map_err(not_built)?;
        self.generations.push(generation);
        self.known.insert(ino, id);
        match body {
            Body::Directory => self.stack.push((ino, id)),
            Body::Symlink(target) => self.builder.set_target(id, &target).map_err(not_built)?,
            Body::Mapped => self.content(id, attributes.size)?,
            Body::Inline(extents) => {
                let there = extents.into_iter().filter(|extent| extent.length > 0);
                there.for_each(|extent| self.push_extent(id, extent));
            }
            Body::Empty => {}
        }
        for note in notes {
            self.findings.push(dir, name, note);
        }
        lost.into_iter().for_each(|loss| self.findings.push_loss(dir, name, loss));
        if is_encrypted && FileType::from_mode(attributes.mode) == Some(FileType::Regular) {
            self.findings.push_sound(dir, name, "is encrypted; its content cannot be read".to_owned());
        }
        Ok(())
    }

    fn push_extent(&mut self, id: InodeId, mut extent: Extent) {
        let in_log = |replayed: &Replayed| replayed.covers(extent.at, extent.length);
        if extent.backing == backing::IMAGE && self.replayed.is_some_and(in_log) {
            extent.backing = backing::REPLAYED;
        }
        self.extents.push((id, extent));
    }

    /// Says what `runs` is as the content of a file of `size` bytes.
    fn content(&mut self, id: InodeId, size: u64) -> Result<(), ReadError> {
        self.ranges.clear();
        let block_size = self.volume.block_size;
        let mut covered = 0;
        let runs = std::mem::take(&mut self.runs);
        for run in &runs {
            let offset = run.logical * block_size;
            let length = (run.length * block_size).min(size.saturating_sub(offset));
            let (backing, at) = match run.place {
                Place::Blocks(block) => (backing::IMAGE, block * block_size),
                Place::Unknown => (backing::UNKNOWN, 0),
                Place::Zeros => continue,
            };
            if length == 0 {
                continue;
            }
            self.push_extent(id, Extent { offset, length, at, backing });
            covered += length;
            match self.ranges.last_mut().filter(|last| last.offset + last.length == offset) {
                Some(last) => last.length += length,
                None => self.ranges.push(DataRange { offset, length }),
            }
        }
        self.runs = runs;
        if covered < size {
            self.builder.set_sparse(id, &self.ranges).map_err(not_built)?;
        }
        Ok(())
    }
}

/// What an inode has beside its attributes.
enum Body {
    Directory,
    /// What it points at.
    Symlink(Vec<u8>),
    /// A file of the runs that were found.
    Mapped,
    /// A file within its inode.
    Inline([Extent; 2]),
    /// A device node, a FIFO or a socket.
    Empty,
}

/// Finds it; the runs of a file's blocks go into `runs`, what is wrong with them into `notes`.
fn body(
    volume: &Volume,
    claims: &mut Claims,
    slot: &Slot<'_>,
    runs: &mut Vec<Run>,
    notes: &mut Vec<String>,
) -> Result<Body, Flaw> {
    let inode = &slot.inode;
    let size = inode.size();
    let blocks = size.div_ceil(volume.block_size);
    let unknown = (blocks > 0).then_some(Run { logical: 0, length: blocks, place: Place::Unknown });
    match FileType::from_mode(u32::from(inode.mode.get())) {
        Some(FileType::Directory) => return Ok(Body::Directory),
        Some(FileType::Symlink) => return Ok(Body::Symlink(symlink_target(volume, claims, runs, slot)?)),
        // Nobody can read what is encrypted.
        Some(FileType::Regular) if inode.has(flags::ENCRYPT) => runs.extend(unknown),
        Some(FileType::Regular) if inode.has(flags::INLINE_DATA) => match inline_extents(slot, size) {
            Some(extents) => return Ok(Body::Inline(extents)),
            None => {
                notes.push("says that its content is in its inode, where it is not".to_owned());
                runs.extend(unknown);
            }
        },
        Some(FileType::Regular) => {
            notes.extend(map(volume, claims, slot.ino, inode, blocks, runs)?);
            let is_there = |run: &Run| match run.place {
                Place::Blocks(first) => volume.has(first, run.length),
                _ => true,
            };
            if !runs.iter().all(is_there) {
                notes.push("has content behind the end of the image; it cannot be read".to_owned());
            }
        }
        _ => return Ok(Body::Empty),
    }
    Ok(Body::Mapped)
}

/// The extents of content within an inode, bytes of the inode table; they may be empty.
fn inline_extents(slot: &Slot<'_>, size: u64) -> Option<[Extent; 2]> {
    let [first, second] = inline::parts(slot)?;
    let (head, tail) = (size.min(BLOCK_FIELD as u64), size.saturating_sub(BLOCK_FIELD as u64));
    if tail > second.len() as u64 {
        return None;
    }
    let at = |start: usize| slot.at + start as u64;
    Some([
        Extent { offset: 0, length: head, at: at(first.start), backing: backing::IMAGE },
        Extent { offset: head, length: tail, at: at(second.start), backing: backing::IMAGE },
    ])
}

/// What a symlink points at: in `i_block`, in the inode, or in blocks.
fn symlink_target(volume: &Volume, claims: &mut Claims, runs: &mut Vec<Run>, slot: &Slot<'_>) -> Result<Vec<u8>, Flaw> {
    let inode: &Inode = &slot.inode;
    let size = inode.size();
    if !(1..=TARGET_MAX).contains(&size) {
        return Err(Flaw::Bad(format!("is a symlink with a target of {size} bytes")));
    }
    let length = size as usize;
    let target = if inode.has(flags::INLINE_DATA) {
        inline::content(slot, length)
    } else if length <= FAST_SYMLINK_MAX && !inode.has(flags::EXTENTS) {
        inode.block.get(..length).map(<[u8]>::to_vec)
    } else {
        let flaw = map(volume, claims, slot.ino, inode, size.div_ceil(volume.block_size), runs)?;
        if let Some(reason) = flaw {
            return Err(Flaw::Bad(reason));
        }
        let mut target = vec![0; length];
        for (run, rest) in runs.iter().map(|run| (run, run.logical * volume.block_size)) {
            let Place::Blocks(block) = run.place else { continue };
            let part = target.get_mut(rest as usize..).unwrap_or_default();
            let count = part.len().min((run.length * volume.block_size) as usize);
            volume.read_blocks(block, part.get_mut(..count).unwrap_or_default())?;
        }
        Some(target)
    };
    let target = target.filter(|target| !target.contains(&0));
    target.ok_or_else(|| Flaw::Bad("is a symlink whose target is not there, or has a NUL in it".to_owned()))
}
