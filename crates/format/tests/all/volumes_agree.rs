//! The walk over a volume and the questions to it give the same, for random trees in every format that is read and written: names from any
//! place of a listing on, attributes, targets, extended attributes, content, and where its holes are.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use inarch_block::{Backing, BackingFile, Content, Device, FileSink};
use inarch_confine::Parsing;
use inarch_format::erofs::{self, Erofs};
use inarch_format::ext4::{self, Ext4};
use inarch_format::squashfs::{self, Squashfs};
use inarch_format::{Algorithm, Compression, Damage, Format, ImageOptions, Layout, ReadError, TreeAndContent};
use inarch_tree::{InodeId, Tree};
use inarch_vfs::{Attributes, Context, DirectoryEntry, DirectorySink, FileSystem, HandleId, NodeId, VolumeFiles};
use inarch_volume::Volume;
use proptest::prelude::*;
use rustix::io::Errno;
use vm_memory::VolatileSlice;

use crate::common::forest::{forest, grow};
use crate::common::{Scratch, builder, rounds};
use crate::squashfs::Pattern;

const ME: Context<'static> = Context::SERVER;

type OpenVolume = fn(Parsing, Arc<dyn Backing>, Damage) -> Result<Arc<dyn Volume>, ReadError>;

/// Takes so many entries, and where to go on.
struct Page(Vec<(Vec<u8>, u32, Option<NodeId>)>, usize, u64, bool);

impl DirectorySink for Page {
    fn wants_entries(&self) -> bool {
        self.3
    }

    fn has_room(&self, _: usize) -> bool {
        self.0.len() < self.1
    }

    fn push(&mut self, entry: &DirectoryEntry<'_>) -> bool {
        if !self.has_room(entry.name.len()) {
            return false;
        }
        self.0.push((entry.name.to_vec(), entry.mode, entry.entry.map(|entry| entry.node)));
        self.2 = entry.next;
        true
    }
}

/// All names of a directory but the dots, with their types and nodes, `room` at a time.
fn list(layer: &dyn FileSystem, directory: NodeId, room: usize, plus: bool) -> Vec<(Vec<u8>, u32, Option<NodeId>)> {
    let (mut all, mut next) = (Vec::new(), 0);
    loop {
        let mut page = Page(Vec::new(), room, next, plus);
        layer.read_directory(&ME, directory, HandleId::default(), next, &mut page).unwrap();
        if page.0.is_empty() {
            break;
        }
        next = page.2;
        all.append(&mut page.0);
    }
    let dots: Vec<_> = all.iter().take(2).map(|(name, ..)| name.clone()).collect();
    assert_eq!(dots, [b".".to_vec(), b"..".to_vec()]);
    all.drain(..2);
    all.sort();
    all
}

/// What two views of one file system must have in common: their numbers are their own.
fn common(of: Attributes) -> Attributes {
    // Btrfs counts one link for every directory.
    let links = if of.mode & libc::S_IFMT == libc::S_IFDIR { 0 } else { of.links };
    Attributes { inode: 0, blocks: 0, block_size: 0, atime: of.mtime, birth: None, links, ..of }
}

fn read(layer: &dyn FileSystem, node: NodeId, offset: u64, length: usize) -> Result<Vec<u8>, Errno> {
    let mut bytes = vec![0xEE; length];
    let count = layer.read(&ME, node, HandleId::default(), offset, &[VolatileSlice::from(&mut bytes[..])])?;
    bytes.truncate(count);
    Ok(bytes)
}

fn assert_same_file(tree: &dyn FileSystem, of_tree: NodeId, volume: &dyn FileSystem, of_volume: NodeId, size: u64) {
    for (offset, length) in [(0, size as usize + 10), (size / 2, 5000), (size.saturating_sub(7), 100), (size + 1, 1)] {
        let length = length.min(1 << 21);
        let (a, b) = (read(tree, of_tree, offset, length), read(volume, of_volume, offset, length));
        assert!(a == b, "{length} bytes at {offset} differ");
    }
    for offset in [0, 1, size / 3, size / 2, size.saturating_sub(1), size] {
        for whence in [libc::SEEK_DATA, libc::SEEK_HOLE] {
            let seek = |layer: &dyn FileSystem, node| layer.seek(&ME, node, HandleId::default(), offset, whence as u32);
            assert_eq!(seek(tree, of_tree), seek(volume, of_volume), "seek {whence} from {offset} of {size}");
        }
    }
}

/// Compares everything, from the root on.
pub fn assert_same(tree: &dyn FileSystem, volume: &dyn FileSystem) {
    let mut pending = vec![(NodeId::ROOT, NodeId::ROOT)];
    let mut count = 0;
    while let Some((a, b)) = pending.pop() {
        let expected = list(tree, a, usize::MAX, true);
        for room in [1 + count % 5, usize::MAX] {
            let found = list(volume, b, room, true);
            let names =
                |list: &[(Vec<u8>, u32, _)]| list.iter().map(|(n, mode, _)| (n.clone(), *mode)).collect::<Vec<_>>();
            assert_eq!(names(&found), names(&expected));
            // Without a look at its inode, an entry may have no type.
            let mut untold = names(&list(volume, b, room, false));
            untold.iter_mut().zip(&expected).for_each(|(found, told)| found.1 |= if found.1 == 0 { told.1 } else { 0 });
            assert_eq!(untold, names(&expected));
        }
        assert_eq!(volume.lookup(&ME, b, b"no such name").unwrap_err(), Errno::NOENT);
        for (name, _, node) in expected {
            count += 1;
            let (of_tree, of_volume) = (node.unwrap(), volume.lookup(&ME, b, &name).unwrap());
            assert_eq!(tree.lookup(&ME, a, &name).unwrap().node, of_tree);
            let attributes = tree.attributes(&ME, of_tree, None).unwrap();
            let node = of_volume.node;
            let mut found = common(of_volume.attributes);
            // A directory whose format does not count its subdirectories has one link.
            if found.mode & libc::S_IFMT == libc::S_IFDIR && found.links == 1 {
                found.links = attributes.links;
            }
            assert_eq!(found, common(attributes), "{}", name.escape_ascii());
            assert_eq!(volume.attributes(&ME, node, None).unwrap(), of_volume.attributes);
            let mut xattrs = [tree.list_xattrs(&ME, of_tree).unwrap(), volume.list_xattrs(&ME, node).unwrap()]
                .map(|list| list.split(|byte| *byte == 0).map(<[u8]>::to_vec).collect::<Vec<_>>());
            xattrs.iter_mut().for_each(|list| list.sort());
            assert_eq!(xattrs[0], xattrs[1]);
            for xattr in xattrs[0].iter().filter(|name| !name.is_empty()) {
                assert_eq!(tree.get_xattr(&ME, of_tree, xattr), volume.get_xattr(&ME, node, xattr));
            }
            match attributes.mode & libc::S_IFMT {
                libc::S_IFDIR => {
                    assert_eq!(volume.parent(&ME, node).unwrap().node, b);
                    pending.push((of_tree, node));
                }
                libc::S_IFLNK => assert_eq!(tree.read_link(&ME, of_tree), volume.read_link(&ME, node)),
                libc::S_IFREG => assert_same_file(tree, of_tree, volume, node, attributes.size),
                _ => {}
            }
        }
    }
}

/// An image of a tree, as a backing.
fn image(format: &dyn Format, tree: &Arc<Tree>, options: &ImageOptions, path: &Path) -> Arc<dyn Backing> {
    let content: Arc<dyn Content> = Arc::new(Pattern::new(tree));
    match format.plan(tree, options).unwrap().layout {
        Layout::Blocks(map) => {
            let blocks = map.blocks();
            Arc::new(Device::new(map, content, None, blocks))
        }
        Layout::Packed(pack) => {
            let file = File::create_new(path).unwrap();
            let length = pack.pack(&*content, &FileSink::new(&file), &()).unwrap();
            file.set_len(length).unwrap();
            Arc::new(BackingFile::new(File::open(path).unwrap(), path.to_owned()).unwrap())
        }
        Layout::Stream(_) => panic!("no stream is read here"),
    }
}

pub fn assert_agree(open: OpenVolume, image: Arc<dyn Backing>, inodes: u32) {
    let walked = TreeAndContent::walk(
        Parsing::unconfined(),
        open(Parsing::unconfined(), Arc::clone(&image), Damage::Refused).unwrap(),
        Damage::Refused,
    )
    .unwrap();
    assert_eq!(walked.notes, [""; 0]);
    assert_eq!(walked.tree.inode_count(), inodes);
    let tree = VolumeFiles::of_tree(walked.tree, walked.content, Box::new(|_| {}));
    let tell = Box::new(|line: &str| panic!("{line}"));
    assert_same(&tree, &VolumeFiles::new(open(Parsing::unconfined(), image, Damage::Refused).unwrap(), false, tell));
}

fn assert_every_format_agrees(tree: Tree) {
    let tree = Arc::new(tree);
    let scratch = Scratch::new();
    let plain = ImageOptions::default();
    // The readers do not know the level; the default one of zstd takes most of the time.
    let compressed = |algorithm, level, block_size| ImageOptions {
        compression: Some(Compression { algorithm, level }),
        block_size,
        ..ImageOptions::default()
    };
    let inline = ImageOptions { inline_files: true, ..ImageOptions::default() };
    let small = Some(4096);
    let all: [(&dyn Format, OpenVolume, &ImageOptions); 6] = [
        (&Ext4, ext4::open_volume, &plain),
        (&Erofs, erofs::open_volume, &plain),
        (&Erofs, erofs::open_volume, &inline),
        (&Erofs, erofs::open_volume, &compressed(Algorithm::Lz4, None, None)),
        (&Squashfs, squashfs::open_volume, &plain),
        (&Squashfs, squashfs::open_volume, &compressed(Algorithm::Zstd, Some(1), small)),
    ];
    for (number, (format, open, options)) in all.into_iter().enumerate() {
        let image = image(format, &tree, options, &scratch.path(&number.to_string()));
        assert_agree(open, image, tree.inode_count());
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: rounds(4), ..ProptestConfig::default() })]
    #[test]
    fn random_trees_give_the_same(entries in forest()) {
        let mut b = builder();
        grow(&mut b, entries, &mut Vec::new());
        assert_every_format_agrees(b.finish().unwrap());
    }
}

/// Directories of many blocks, with an index where the format has one, and a file with many blocks.
#[test]
fn large_directories_and_files_give_the_same() {
    let mut b = builder();
    let file = |size| crate::common::file(size);
    let large = b.add(b"large", &crate::common::directory()).unwrap();
    b.add(b"long", &file((2048 + 100) * 4096 + 77)).unwrap();
    let sparse = b.add(b"sparse", &file(1 << 25)).unwrap();
    let range = |offset, length| inarch_tree::DataRange { offset, length };
    b.set_sparse(sparse, &[range(1 << 20, 70_000), range(1 << 24, 4096)]).unwrap();
    b.list(large).unwrap();
    for number in 0..3000 {
        b.add(format!("{number:04} {}", "n".repeat(number % 200)).as_bytes(), &file(number as u64 % 3)).unwrap();
    }
    let tree = b.finish().unwrap();
    assert_eq!(tree.parent(InodeId(4)), large);
    assert_every_format_agrees(tree);
}
