//! Damaged images that are asked for what is wanted of them: no panic, nothing that is larger than the image allows, an end.

use std::collections::HashSet;
use std::fs;
use std::sync::Arc;

use inarch_block::{Backing, Content, Cursor, Device, read_backing};
use inarch_confine::Parsing;
use inarch_format::{Damage, ImageOptions, Layout, Reader, format_by_name};
use inarch_tree::{Attributes, Extent, Tree};
use inarch_volume::{Item, Node, Volume, VolumeError, is_name};
use vm_memory::VolatileSlice;

use crate::common::odd::xattr;
use crate::common::{attributes, builder, directory, file, reader, written_readers};
use crate::erofs::Bytes;
use crate::ext4_read::made::{mke2fs, scratch};
use crate::squashfs::Pattern;

fn tree() -> Tree {
    let mut b = builder();
    let set = b.intern_xattrs(vec![xattr("user.shared", &[1; 40]), xattr("trusted.own", b"2")]);
    b.add(b"a", &Attributes { xattrs: set, ..file(5000) }).unwrap();
    let dir = b.add(b"dir", &Attributes { xattrs: set, ..directory() }).unwrap();
    let link = b.add(b"link", &attributes(0o120_777)).unwrap();
    b.set_target(link, &[b'x'; 100]).unwrap();
    let sparse = b.add(b"sparse", &file(400_000)).unwrap();
    b.set_sparse(sparse, &[inarch_tree::DataRange { offset: 9000, length: 10_000 }]).unwrap();
    b.list(dir).unwrap();
    for i in 0..500 {
        b.add(format!("a name of some length {i:03}").as_bytes(), &file(i % 3)).unwrap();
    }
    b.finish().unwrap()
}

/// An image, and the ranges of its metadata.
fn image(reader: &Reader) -> (Vec<u8>, Vec<std::ops::Range<usize>>) {
    let tree = Arc::new(tree());
    let planned = format_by_name(reader.name).unwrap().plan(&tree, &ImageOptions::default()).unwrap();
    let Layout::Blocks(map) = planned.layout else { panic!("no blocks") };
    let metadata = map.metadata().iter().map(|range| range.start as usize * 4096..range.end as usize * 4096).collect();
    let blocks = map.blocks();
    let content: Arc<dyn Content> = Arc::new(Pattern::new(&tree));
    let device = Device::new(map, content, None, blocks);
    let mut bytes = vec![0; device.size() as usize];
    read_backing(&device, 0, &mut bytes).unwrap();
    (bytes, metadata)
}

/// Asks for everything that can be reached, of nodes that were not met before; gives how many there were.
pub fn ask_for_everything(volume: &dyn Volume, size: usize) -> usize {
    let mut seen = HashSet::from([volume.root()]);
    let mut pending = vec![volume.root(), Node(0), Node(1), Node(u64::MAX), Node(1 << 40)];
    let mut count = 0;
    while let Some(node) = pending.pop() {
        count += 1;
        let attributes = volume.attributes(node);
        let _ = (volume.target(node), volume.parent(node), volume.xattrs(node, &mut |_| {}));
        let mut listed = 0;
        let result = volume.list(node, 0, &mut |item| {
            listed += 1;
            if let Item::Entry(entry) = item {
                assert!(is_name(entry.name) && entry.next < 1 << 62);
                if seen.len() < 2000 && seen.insert(entry.node) {
                    pending.push(entry.node);
                }
            }
            true
        });
        assert!(listed <= size / 8 + 100, "{listed} names in {size} bytes");
        if matches!(result, Err(VolumeError::WrongType)) {
            assert_eq!(listed, 0);
        }
        let _ = (volume.lookup(node, b"a name of some length 123"), volume.lookup(node, b"none"));
        let _ = volume.list(node, 12_345, &mut |_| true);
        let _ = volume.list(node, u64::MAX >> 2, &mut |_| true);
        // An inode may be damaged where its content is not.
        let known = attributes.is_ok();
        let end = attributes.map_or(0, |attributes| attributes.size);
        for offset in [0, 1, end / 2, end.saturating_sub(1), end, u64::MAX - 10] {
            let mut buffer = [0; 5000];
            let slices = [VolatileSlice::from(&mut buffer[..])];
            let _ = volume.read(node, offset, 5000, &mut Cursor::new(&slices));
            let _ = volume.data(node, offset);
            if let Ok(Some(extents)) = volume.extents(node, offset, u64::MAX) {
                assert!(extents.is_sorted_by(|a, b| a.offset + a.length <= b.offset));
                let within = |extent: &Extent| extent.length > 0 && extent.offset + extent.length <= end;
                assert!(!known || extents.iter().all(within));
            }
        }
    }
    count
}

#[test]
fn every_damage_is_survived_by_what_is_asked_on_demand() {
    for reader in written_readers() {
        let (image, metadata) = image(reader);
        let open = |image: &[u8], damage| reader.open(Parsing::unconfined(), Arc::new(Bytes(image.to_vec())), damage);
        let whole = ask_for_everything(&*open(&image, Damage::Refused).unwrap(), image.len());
        assert!(whole > 500, "{}: {whole}", reader.name);
        let mut state = 1u64;
        let mut random = |below: usize| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as usize % below
        };
        let mut opened = 0;
        for round in 0..60 {
            let mut damaged = image.clone();
            for _ in 0..1 + round % 4 {
                let range = metadata[random(metadata.len())].clone();
                let at = range.start + random(range.len());
                let value = [0, 1, 0x7F, 0xFF, random(256) as u8][random(5)];
                let end = (at + 1 + random(8)).min(range.end);
                damaged[at..end].fill(value);
            }
            for damage in [Damage::Refused, Damage::Salvaged] {
                if let Ok(volume) = open(&damaged, damage) {
                    opened += 1;
                    ask_for_everything(&*volume, damaged.len());
                }
            }
        }
        assert!(opened > 20, "{}: {opened}", reader.name);
    }
}

/// A volume reports a loss while it answers; the receiver of the report may then ask the volume for more, as a mount asks for the
/// node's inode number.
#[test]
fn a_loss_is_told_where_more_can_be_asked() {
    let dir = scratch();
    let (source, path) = (dir.path("source"), dir.path("image"));
    fs::create_dir(&source).unwrap();
    fs::write(source.join("a"), b"content").unwrap();
    rustix::fs::setxattr(source.join("a"), "user.mark", b"v", rustix::fs::XattrFlags::empty()).unwrap();
    // Without checksums, which would find the damage before.
    mke2fs(&path, 8, &["-t", "ext4", "-O", "^metadata_csum", "-d", source.to_str().unwrap()]);
    let mut image = fs::read(&path).unwrap();
    let name = image.windows(4).position(|bytes| bytes == b"mark").unwrap();
    // The offset of the attribute's value, 14 bytes before its name: behind the end.
    image[name - 14..name - 12].fill(0xFF);
    let volume = reader("ext4");
    let volume = volume.open(Parsing::unconfined(), Arc::new(Bytes(image)), Damage::Refused).unwrap();
    let file = volume.lookup(volume.root(), b"a").unwrap().unwrap();
    let mut told = 0;
    let _ = volume.xattrs(file, &mut |_| {
        told += 1;
        assert_eq!(volume.attributes(file).unwrap().size, 7);
    });
    assert_eq!(told, 1);
}

/// What is wrong with one file is met when that file is asked for, and by nobody else.
#[test]
fn damage_to_one_file_is_an_error_of_that_file_alone() {
    for reader in written_readers() {
        let (mut image, metadata) = image(reader);
        let open = |image: &[u8]| {
            reader.open(Parsing::unconfined(), Arc::new(Bytes(image.to_vec())), Damage::Refused).unwrap()
        };
        let volume = open(&image);
        let link = volume.lookup(volume.root(), b"link").unwrap().unwrap();
        assert_eq!(volume.target(link).unwrap(), [b'x'; 100]);
        // The target's first bytes become NUL, wherever they are.
        let at = metadata.iter().flat_map(Clone::clone).find(|at| image[*at..].starts_with(&[b'x'; 100])).unwrap();
        image[at..at + 4].fill(0);
        let volume = open(&image);
        assert!(matches!(volume.target(link), Err(VolumeError::Damaged(_))), "{}", reader.name);
        let file = volume.lookup(volume.root(), b"a").unwrap().unwrap();
        assert_eq!(volume.attributes(file).unwrap().size, 5000);
        assert!(matches!(volume.target(file), Err(VolumeError::WrongType)));
        assert!(matches!(volume.lookup(file, b"x"), Err(VolumeError::WrongType)));
        assert!(matches!(volume.list(link, 0, &mut |_| true), Err(VolumeError::WrongType)));
        assert!(matches!(volume.extents(link, 0, 1), Err(VolumeError::WrongType)));
    }
}
