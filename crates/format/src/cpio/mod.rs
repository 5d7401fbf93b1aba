//! [`Cpio`]: writes cpio archives of the `newc` kind, like `cpio -o -H newc`; the kernel unpacks them as an initramfs
//! (`Documentation/driver-api/early-userspace/buffer-format.rst`, `init/initramfs.c`).
//!
//! Names have no leading `./`; the root is `.`. The content of an inode with several names is at the last of them:
//! GNU cpio expects it there, the kernel accepts it anywhere. `newc` has no extended attributes, no nanoseconds, no
//! files of 4 GiB or more, no holes, and no times before 1970 or after 2106.

use std::collections::HashMap;
use std::sync::Arc;

use inarch_tree::{DataRange, FileType, Inode, InodeId, Tree, XattrSetId};

use crate::archive::{Archive, Members, Pieces, Queue};
use crate::notes::Notes;
use crate::walk::{Walk, refuse_options};
use crate::{Format, FormatError, ImageOptions, Layout, Piece, Planned};

/// The name of the last entry, which ends an archive.
const TRAILER: &[u8] = b"TRAILER!!!";

/// The kernel's `PATH_MAX`: names and targets must fit, including a final NUL.
const PATH_MAX: usize = 4096;

/// Archives are written in whole blocks of this many bytes.
const BLOCK: u64 = 512;

/// The format.
#[derive(Clone, Copy, Debug)]
pub struct Cpio;

impl Format for Cpio {
    fn name(&self) -> &'static str {
        "cpio"
    }

    fn plan(&self, tree: &Arc<Tree>, options: &ImageOptions) -> Result<Planned, FormatError> {
        refuse_options("cpio", options)?;
        let mut notes = Notes::default();
        note(tree, InodeId::ROOT, b".", &mut notes);
        let mut walk = Walk::new(tree, b"");
        while let Some((path, inode)) = walk.next() {
            check(tree, inode, path)?;
            note(tree, inode, path, &mut notes);
        }
        let mut notes = notes.into_lines();
        if tree.inodes().any(|(_, inode)| inode.mtime().nanoseconds != 0) {
            notes.push("times are cut to whole seconds, as newc has no others".to_owned());
        }
        let stream = Archive::new(tree, |tree| Box::new(Pieces::<CpioMembers<'_>>::new(tree)));
        Ok(Planned { layout: Layout::Stream(Box::new(stream)), notes })
    }
}

/// Refuses what an archive cannot hold.
fn check(tree: &Tree, inode: InodeId, path: &[u8]) -> Result<(), FormatError> {
    let refuse = |reason: String| Err(FormatError { format: "cpio", reason });
    let size = tree.inode(inode).size();
    if size > u64::from(u32::MAX) {
        return refuse(format!("{} has {size} bytes; newc holds less than 4 GiB", path.escape_ascii()));
    }
    if path.len() >= PATH_MAX {
        return refuse(format!("{}... is longer than the {} bytes of a name", path[..64].escape_ascii(), PATH_MAX - 1));
    }
    Ok(())
}

fn note(tree: &Tree, inode: InodeId, path: &[u8], notes: &mut Notes) {
    let inode = tree.inode(inode);
    if inode.xattrs() != XattrSetId::NONE {
        notes.add(path, "its extended attributes are left out, as newc has none");
    }
    if u32::try_from(inode.mtime().seconds).is_err() {
        notes.add(path, "its time becomes the nearest from 1970 to 2106, as newc has no other");
    }
}

struct CpioMembers<'t> {
    tree: &'t Tree,
    /// For inodes with several names, how many names are still to come.
    names_left: HashMap<InodeId, u32>,
}

impl<'t> Members<'t> for CpioMembers<'t> {
    const PREFIX: &'static [u8] = b"";

    fn new(tree: &'t Tree) -> CpioMembers<'t> {
        CpioMembers { tree, names_left: HashMap::new() }
    }

    fn root(&mut self, queue: &mut Queue) {
        queue.push(Piece::Bytes(Header::of(InodeId::ROOT, self.tree.inode(InodeId::ROOT), 0).bytes(b".")));
    }

    fn member(&mut self, path: &[u8], id: InodeId, queue: &mut Queue) {
        let inode = self.tree.inode(id);
        let file_type = inode.file_type();
        let mut is_last = true;
        if file_type != FileType::Directory && inode.links() > 1 {
            let left = self.names_left.entry(id).or_insert(inode.links());
            *left -= 1;
            is_last = *left == 0;
        }
        let target = self.tree.symlink_target(id);
        let size = match file_type {
            FileType::Symlink => target.len() as u64,
            FileType::Regular if is_last => inode.size(),
            _ => 0,
        };
        let header = Header::of(id, inode, size as u32);
        // The bare name would end the archive.
        let mut header = if path == TRAILER { header.bytes(&[b"./", TRAILER].concat()) } else { header.bytes(path) };
        header.extend_from_slice(target);
        queue.push(Piece::Bytes(header));
        if file_type == FileType::Regular && size > 0 {
            content(self.tree, id, size, queue);
        }
        queue.push(Piece::Zeros(size.next_multiple_of(4) - size));
    }

    fn end(&mut self, queue: &mut Queue) {
        queue.push(Piece::Bytes(Header { links: 1, ..Header::default() }.bytes(TRAILER)));
        queue.push(Piece::Zeros(queue.made().next_multiple_of(BLOCK) - queue.made()));
    }
}

/// The content of a file of `size` bytes, zeros in its holes.
fn content(tree: &Tree, inode: InodeId, size: u64, queue: &mut Queue) {
    let whole = [DataRange { offset: 0, length: size }];
    let mut at = 0;
    for DataRange { offset, length } in tree.sparse_ranges(inode).unwrap_or(&whole).iter().copied() {
        queue.push(Piece::Zeros(offset - at));
        queue.push(Piece::File { inode, offset, length });
        at = offset + length;
    }
    queue.push(Piece::Zeros(size - at));
}

/// A member's header: the magic, and 13 numbers of 8 hexadecimal digits.
#[derive(Default)]
struct Header {
    inode: u32,
    mode: u32,
    uid: u32,
    gid: u32,
    links: u32,
    mtime: u32,
    size: u32,
    device: (u32, u32),
}

impl Header {
    fn of(id: InodeId, inode: &Inode, size: u32) -> Header {
        Header {
            // Trees never use a few of the highest inode numbers, so this cannot overflow.
            inode: id.0.saturating_add(1),
            mode: inode.mode(),
            uid: inode.uid(),
            gid: inode.gid(),
            links: inode.links(),
            mtime: inode.mtime().seconds.clamp(0, u32::MAX.into()) as u32,
            size,
            device: inode.device(),
        }
    }

    /// The header, the name, and padding to a multiple of 4 bytes.
    fn bytes(&self, name: &[u8]) -> Vec<u8> {
        let fields = [
            self.inode,
            self.mode,
            self.uid,
            self.gid,
            self.links,
            self.mtime,
            self.size,
            // The device of the original file.
            0,
            0,
            self.device.0,
            self.device.1,
            name.len() as u32 + 1,
            // A checksum, used in another kind of cpio archives only.
            0,
        ];
        let mut bytes = b"070701".to_vec();
        for field in fields {
            bytes.extend_from_slice(format!("{field:08X}").as_bytes());
        }
        bytes.extend_from_slice(name);
        bytes.push(0);
        bytes.resize(bytes.len().next_multiple_of(4), 0);
        bytes
    }
}
