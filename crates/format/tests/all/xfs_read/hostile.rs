//! Damaged and hostile images: opened or refused, never a panic, an end, and nothing larger than the image allows.

use std::collections::HashSet;
use std::fs;
use std::path::Path;
use std::sync::{Arc, LazyLock};

use inarch_block::{Cursor, read_content};
use inarch_confine::Parsing;
use inarch_format::{Damage, ReadError, TreeAndContent, xfs};
use inarch_tree::FileType;
use inarch_volume::{Item, Node, Volume, is_name};
use vm_memory::VolatileSlice;

use super::made::{Sparse, mkfs};
use super::same::crashed;
use crate::ext4_read::made::{can_mount, scratch};

const BLOCK: u64 = 1024;

/// An image with everything that the reader has code for, and its inodes' size.
struct Base {
    image: Sparse,
    inode_size: u64,
    /// Blocks of 4 KiB with metadata of files.
    metadata: Vec<u64>,
}

/// Version 4 by mkfs.xfs alone, and version 5 that the kernel filled, where it can be mounted.
static BASES: LazyLock<Vec<Base>> = LazyLock::new(|| {
    let scratch = scratch();
    let (old, new) = (scratch.path("old"), scratch.path("new"));
    let proto = scratch.path("proto");
    let names: String = (0..800).map(|i| format!(" a-name-of-some-length-{i} ---600 1 1 /dev/null\n")).collect();
    let link = "t".repeat(900);
    let few = "few d--755 0 0\n a ---600 1 1 /dev/null\n b d--700 0 0\n $\n$\n";
    let text = format!("x\n0 0\nd--755 0 0\nlarge d--700 1 2\n{names}$\n{few}link l--777 0 0 {link}\n$\n");
    fs::write(&proto, text).unwrap();
    let proto = proto.to_str().unwrap();
    mkfs(&old, 32, &["-m", "crc=0", "-b", "size=1024", "-d", "agcount=2", "-p", proto]);
    let mut bases = vec![base(&old, 256)];
    if can_mount() {
        mkfs(&new, 48, &["-b", "size=1024", "-d", "agcount=2"]);
        fill(&new);
        bases.push(base(&new, 512));
    }
    bases
});

fn base(path: &Path, inode_size: u64) -> Base {
    let image = Sparse::read(path);
    let is_metadata = |at: u64| {
        let head = image.bytes(at, 12);
        let magics: [&[u8]; 9] = [b"XFSB", b"IN", b"XD2B", b"XD2D", b"XDB3", b"XDD3", b"BMA", b"XARM", b"XSLM"];
        magics.iter().any(|magic| head.starts_with(magic))
            || matches!(
                &head[8..10],
                [0x3E | 0x3D | 0x3B, 0xBE | 0xF1 | 0xFF | 0xEE] | [0xFE | 0xFB | 0xD2, 0xBE | 0xEE | 0xF1 | 0xFF]
            )
    };
    let has = |number: &&u64| (0..4).any(|i| is_metadata(**number * 4096 + i * BLOCK));
    let metadata = image.blocks.keys().filter(has).copied().collect();
    Base { metadata, image, inode_size }
}

fn fill(image: &Path) {
    use std::os::unix::fs::FileExt;
    let mount = crate::common::mount::Mount::new(image, "loop").unwrap();
    let at = &mount.0;
    fs::create_dir_all(at.join("few/b")).unwrap();
    fs::create_dir(at.join("large")).unwrap();
    let pieces = fs::File::create(at.join("pieces")).unwrap();
    // Beyond the end of a file, the kernel would allocate more, for writes to come.
    pieces.set_len(400 * 9000).unwrap();
    for i in 0..800u64 {
        let name = at.join(format!("large/a name of some length {i:03}"));
        fs::write(name, [7; 700]).unwrap();
        if i < 400 {
            pieces.write_all_at(&i.to_le_bytes(), i * 9000).unwrap();
        }
    }
    std::os::unix::fs::symlink("t".repeat(900), at.join("link")).unwrap();
    for i in 0..60 {
        let set = |name: String, value: &[u8]| {
            rustix::fs::setxattr(at.join("few"), name, value, rustix::fs::XattrFlags::empty()).unwrap();
        };
        set(format!("user.name{i}"), &[1; 100]);
        set("user.long".to_owned(), &[2; 5000]);
    }
    rustix::fs::setxattr(at.join("few/b"), "user.short", b"1", rustix::fs::XattrFlags::empty()).unwrap();
}

/// Asks for everything that can be reached, of nodes that were not met before; gives how many there were.
fn ask_for_everything(volume: &dyn Volume, size: u64) -> usize {
    let mut seen = HashSet::from([volume.root()]);
    let mut pending = vec![volume.root(), Node(0), Node(1), Node(u64::MAX), Node(1 << 40)];
    let mut count = 0;
    while let Some(node) = pending.pop() {
        count += 1;
        let end = volume.attributes(node).map_or(0, |attributes| attributes.size);
        let _ = (volume.target(node), volume.parent(node), volume.xattrs(node, &mut |_| {}));
        let mut listed = 0;
        let _ = volume.list(node, 0, &mut |item| {
            listed += 1;
            if let Item::Entry(entry) = item {
                assert!(is_name(entry.name) && entry.next < 1 << 62);
                if seen.len() < 100 && seen.insert(entry.node) {
                    pending.push(entry.node);
                }
            }
            true
        });
        assert!(listed <= size / 8 + 100, "{listed} names in {size} bytes");
        let _ = (volume.lookup(node, b"a name of some length 123"), volume.lookup(node, b"none"));
        let _ = volume.list(node, 12_345, &mut |_| true);
        let _ = volume.list(node, u64::MAX >> 2, &mut |_| true);
        for offset in [0, end / 2, end.saturating_sub(1), u64::MAX - 10] {
            let mut buffer = [0; 5000];
            let slices = [VolatileSlice::from(&mut buffer[..])];
            let _ = volume.read(node, offset, 5000, &mut Cursor::new(&slices));
            if let Ok(Some(extents)) = volume.extents(node, offset, u64::MAX) {
                assert!(extents.is_sorted_by(|a, b| a.offset + a.length <= b.offset));
                assert!(extents.iter().all(|extent| extent.length > 0 && extent.offset + extent.length <= end));
            }
        }
    }
    count
}

fn open(image: &Sparse, damage: Damage) -> Result<TreeAndContent, ReadError> {
    xfs::open_with(Parsing::unconfined(), Arc::new(image.clone()), damage)
}

fn read_everything(opened: &TreeAndContent) {
    for (id, inode) in opened.tree.inodes().filter(|(_, inode)| inode.file_type() == FileType::Regular).take(50) {
        let mut bytes = [0; 5000];
        for offset in [0, inode.size().saturating_sub(5000)] {
            let _ = read_content(&*opened.content, id, offset, &mut bytes);
        }
    }
}

/// Random bytes in random metadata, with checksums made right afterwards: half of the rounds, where there are any.
#[test]
fn every_damage_is_survived() {
    for base in BASES.iter() {
        assert_eq!(open(&base.image, Damage::Refused).unwrap().notes, [""; 0]);
        assert!(base.metadata.len() > 50);
        let mut state = 1u64;
        let mut random = |below: usize| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as usize % below
        };
        let (mut opened, mut whole) = (0, 0);
        for round in 0..1500 {
            let mut image = base.image.clone();
            for _ in 0..1 + round % 4 {
                // The first blocks with metadata are those of the superblock and of the first inodes.
                let few = [5, base.metadata.len()][round % 2];
                let number = base.metadata[random(few)];
                let at = number * 4096 + random(4096) as u64;
                let value = [0, 1, 0x7F, 0xFF, random(256) as u8][random(5)];
                image.put(at, &vec![value; (1 + random(8)).min((4096 - at % 4096) as usize)]);
                if round % 4 != 0 {
                    image.seal_block(number, BLOCK, base.inode_size);
                }
            }
            whole += usize::from(open(&image, Damage::Refused).is_ok());
            if let Ok(salvaged) = open(&image, Damage::Salvaged) {
                read_everything(&salvaged);
                let volume = xfs::open_volume(Parsing::unconfined(), Arc::new(image), Damage::Salvaged).unwrap();
                opened += 1;
                if round % 3 == 0 {
                    ask_for_everything(&*volume, base.image.size);
                }
            }
        }
        assert!(opened > 700 && whole > 50, "{opened} {whole}");
    }
}

/// An image with its checksums right, which is changed at one place of a structure, and what is said about it.
fn assert_told(base: &Base, at: u64, bytes: &[u8], says: &str) {
    let mut image = base.image.clone();
    image.put(at, bytes);
    image.seal_block(at / 4096, BLOCK, base.inode_size);
    let error = open(&image, Damage::Refused).err().map(|error| error.to_string()).unwrap_or_default();
    assert!(error.contains(says), "{error:?} does not say {says:?}");
    // An end, whether much is left or not.
    if let Ok(volume) = xfs::open_volume(Parsing::unconfined(), Arc::new(image.clone()), Damage::Salvaged) {
        ask_for_everything(&*volume, image.size);
        read_everything(&open(&image, Damage::Salvaged).unwrap());
    }
}

impl Base {
    /// Where the inode of a path lies, by its number.
    fn inode(&self, path: &str) -> u64 {
        let tree = open(&self.image, Damage::Refused).unwrap().tree;
        self.place(tree.inode(tree.lookup(path.as_bytes()).unwrap()).source_ino())
    }

    fn number(&self, at: u64, length: usize) -> u64 {
        self.image.bytes(at, length).iter().fold(0, |number, byte| number << 8 | u64::from(*byte))
    }

    /// The byte of a block with a number of the kind that metadata has.
    fn block(&self, number: u64) -> u64 {
        let (per_group, log) = (self.number(84, 4), self.number(124, 1));
        ((number >> log) * per_group + (number & ((1 << log) - 1))) * BLOCK
    }

    fn place(&self, ino: u64) -> u64 {
        let log = self.number(123, 1);
        self.block(ino >> log) + (ino & ((1 << log) - 1)) * self.inode_size
    }

    /// Where the data fork of an inode starts.
    fn fork(&self, path: &str) -> u64 {
        self.inode(path) + if self.inode_size == 512 { 176 } else { 100 }
    }
}

#[test]
fn inconsistent_structures_are_told() {
    for base in BASES.iter() {
        // The size of a file beyond what any can have, a type that is none, an inode that is no longer in use.
        let few = base.inode("few/b");
        assert_told(base, few + 2, &[0, 0], "not in use");
        assert_told(base, few + 2, &[0x31, 0xFF], "of no type");
        assert_told(base, few, b"XX", "magic number");
        assert_told(base, few + 16, &[0; 4], "deleted");
        assert_told(base, few + 82, &[0xFF], "attributes start beyond");
        let link = base.inode("link");
        assert_told(base, link + 56, &(1u64 << 63).to_be_bytes(), "a size of");
        assert_told(base, link + 56, &2000u64.to_be_bytes(), "a target of 2000 bytes");
        // The root's own numbers.
        assert_told(base, 56, &(1u64 << 50).to_be_bytes(), "its root has the inode number");
        assert_told(base, 84, &[0; 4], "contradicts itself");
        assert_told(base, 100, &[0xB4, 0xA7], "version 7");
        // A directory with a name for itself: the shortform entry of "b" in "few".
        let root = base.number(56, 8);
        let fork = base.fork("few");
        let names = base.image.bytes(fork, 60);
        let b = names.windows(1).rposition(|name| name == b"b").unwrap() as u64;
        let ino = fork + b + 2;
        assert_told(base, ino, &(root as u32).to_be_bytes(), "is a directory that has a name already");
        assert_told(base, ino, &[0x7F, 0xFF, 0xFF, 0xFF], "which no file can have");
        // The first extent of a large directory: beyond the end, and over another one's.
        let fork = base.fork("large");
        let extent = base.image.bytes(fork, 16);
        if base.image.bytes(base.inode("large") + 5, 1) == [2] {
            assert_told(base, fork + 8, &[0xFF, 0xFF, 0xFF, 0xF0], "beyond the file system's end");
            assert_told(base, fork + 16, &extent, "overlap or are empty");
            assert_told(base, base.inode("large") + 76, &[0x7F, 0xFF, 0xFF, 0xFF], "no room for them");
        }
    }
}

/// A tree of extents that goes in a circle: the first child of the root is a node above itself, or the same as the second.
#[test]
fn trees_of_extents_that_go_in_circles_end() {
    for base in BASES.iter().filter(|base| base.inode_size == 512) {
        let inode = base.inode("pieces");
        let fork = inode + 176;
        assert_eq!(base.image.bytes(inode + 5, 1), [3], "it has no tree");
        let space = match base.number(inode + 82, 1) {
            0 => base.inode_size - 176,
            offset => offset * 8,
        };
        let pointers = fork + 4 + (space - 4) / 16 * 8;
        let count = base.number(fork + 2, 2);
        assert!(count > 1);
        let first = base.image.bytes(pointers, 8);
        assert_told(base, pointers + 8, &first, "is in another place, too");
        assert_told(base, pointers, &u64::MAX.to_be_bytes(), "beyond the file system's end");
        assert_told(base, fork, &[0, 7], "is none");
        assert_told(base, fork, &[0, 99], "no tree of extents");
        let first = base.block(base.number(pointers, 8));
        assert_told(base, first + 4, &[0, 1], "is none");
        assert_told(base, first + 6, &[0xFF, 0xFF], "is none");
        assert_told(base, first + 56, &[1; 8], "belongs to the inode");
    }
}

/// Without its checksum made right, no change of metadata goes unnoticed.
#[test]
fn checksums_are_checked() {
    for base in BASES.iter().filter(|base| base.inode_size == 512) {
        for path in ["few", "few/b", "large", "link", "pieces"] {
            let mut image = base.image.clone();
            image.put(base.inode(path) + 13, &[0x55]);
            let error = open(&image, Damage::Refused).err().unwrap().to_string();
            assert!(error.contains("wrong checksum") && error.contains("--salvage"), "{error}");
            assert!(open(&image, Damage::Salvaged).unwrap().notes.iter().any(|note| note.contains("wrong checksum")));
        }
    }
}

/// Random bytes in a journal that is to be replayed, whose records have no checksums any more.
#[test]
fn every_damage_to_a_journal_is_survived() {
    if !can_mount() {
        return;
    }
    let scratch = scratch();
    let path = scratch.path("image");
    crashed(&path, 48, &["-b", "size=1024", "-d", "agcount=2"], |_| {});
    let base = base(&path, 512);
    let mut image = base.image.clone();
    let log = base.block(base.number(48, 8));
    let end = log + base.number(96, 4) * BLOCK;
    let heads: Vec<u64> =
        (log..end).step_by(512).filter(|at| image.bytes(*at, 4) == [0xFE, 0xED, 0xBA, 0xBE]).collect();
    heads.iter().for_each(|at| image.put(at + 32, &[0; 4]));
    let whole = open(&image, Damage::Refused).unwrap();
    assert!(heads.len() > 3 && whole.notes.is_empty() && whole.tree.inode_count() > 350);
    let last = heads.last().unwrap() + (64 << 10);
    let (mut state, mut opened) = (7u64, 0);
    let mut random = |below: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    };
    for round in 0..600 {
        let mut image = image.clone();
        for _ in 0..1 + round % 3 {
            // Half of them in a header, whose first bytes matter most.
            let at = match round % 2 {
                0 => heads[random(heads.len() as u64) as usize] + random(64),
                _ => log + random(last.min(end) - log),
            };
            let value = [0, 1, 0x7F, 0xFF, random(256) as u8][random(5) as usize];
            image.put(at, &vec![value; 1 + random(4) as usize]);
        }
        if let Ok(salvaged) = open(&image, Damage::Salvaged) {
            opened += 1;
            read_everything(&salvaged);
        }
    }
    assert!(opened > 300, "{opened}");
}
