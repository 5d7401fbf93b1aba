//! Version 4, which not every kernel mounts: mkfs.xfs fills the images itself, and xfs_db adds attributes.

use std::fmt::Write;
use std::fs::{self, File};
use std::path::Path;
use std::process::Command;

use inarch_block::read_content;
use inarch_tree::FileType;

use super::made::{mkfs, open, questions};
use crate::ext4_read::made::{run, scratch};

/// Writes a prototype as mkfs.xfs reads it (`man mkfs.xfs`, "-p"), and the files that it names.
fn prototype(source: &Path, names: usize) -> String {
    fs::create_dir(source).unwrap();
    let mut text = String::from("x\n0 0\nd--755 0 0\n");
    for (i, size) in [0, 1, 500, 4096, 5000, 3_000_000].into_iter().enumerate() {
        let path = source.join(i.to_string());
        fs::write(&path, content(i, size)).unwrap();
        writeln!(text, "file-{i} ---644 {i} 7 {}", path.display()).unwrap();
    }
    for length in [1, 100, 156, 157, 1000] {
        writeln!(text, "link-{length} l--777 0 0 {}", "t".repeat(length)).unwrap();
    }
    text.push_str("null c--666 0 0 1 3\ndisk b--660 0 0 259 7000\nfifo p--600 0 0\n");
    text.push_str("short d--700 1 2\n one ---600 1 1 /dev/null\n two ---600 1 1 /dev/null\n$\n");
    text.push_str("block d--700 1 2\n");
    (0..40).for_each(|i| writeln!(text, " {i}-name ---600 {i} 1 /dev/null").unwrap());
    text.push_str("$\nlarge d--700 1 2\n");
    (0..names).for_each(|i| writeln!(text, " a-name-of-some-length-{i} ---600 1 1 /dev/null").unwrap());
    text.push_str("$\n$\n");
    text
}

fn content(number: usize, size: usize) -> Vec<u8> {
    (0..size).map(|i| (i ^ i >> 8 ^ number) as u8).collect()
}

#[test]
fn version_4_is_read_as_it_was_filled() {
    let scratch = scratch();
    let (source, proto) = (scratch.path("source"), scratch.path("proto"));
    fs::write(&proto, prototype(&source, 2000)).unwrap();
    let proto = proto.to_str().unwrap().to_owned();
    let kinds: [&[&str]; 4] = [
        &["-m", "crc=0"],
        &["-m", "crc=0", "-n", "ftype=1", "-b", "size=512"],
        &["-m", "crc=0", "-n", "size=16384,ftype=0", "-b", "size=2048", "-i", "size=512"],
        &["-m", "crc=0", "-b", "size=65536", "-i", "attr=1,projid32bit=0"],
    ];
    for (i, options) in kinds.iter().enumerate() {
        let image = scratch.path(&format!("image-{i}"));
        mkfs(
            &image,
            if options.contains(&"size=65536") { 1024 } else { 320 },
            &[options, &["-p", &proto][..]].concat(),
        );
        let opened = open(&image);
        assert_eq!(opened.notes, [""; 0]);
        let tree = &opened.tree;
        assert_eq!(tree.inode_count(), 1 + 6 + 5 + 3 + 3 + 2 + 40 + 2000, "{options:?}");
        for (i, size) in [0, 1, 500, 4096, 5000, 3_000_000].into_iter().enumerate() {
            let id = tree.lookup(format!("file-{i}").as_bytes()).unwrap();
            let mut bytes = vec![0; tree.inode(id).size() as usize];
            read_content(&*opened.content, id, 0, &mut bytes).unwrap();
            assert!(bytes == content(i, size), "{options:?} {i}");
            assert_eq!((tree.inode(id).uid(), tree.inode(id).gid(), tree.inode(id).mode()), (i as u32, 7, 0o100_644));
        }
        for length in [1, 100, 156, 157, 1000] {
            let id = tree.lookup(format!("link-{length}").as_bytes()).unwrap();
            assert_eq!(tree.symlink_target(id), "t".repeat(length).as_bytes());
        }
        let of = |name: &str| tree.inode(tree.lookup(name.as_bytes()).unwrap());
        assert_eq!((of("null").device(), of("disk").device()), ((1, 3), (259, 7000)));
        assert_eq!((of("disk").file_type(), of("fifo").file_type()), (FileType::BlockDevice, FileType::Fifo));
        assert_eq!(of("block/39-name").uid(), 39);
        questions(&image, tree);
    }
}

/// `attr_set -v N` of xfs_db(8) sets a value of N times 'v'.
#[test]
fn attributes_of_both_versions_are_read() {
    let scratch = scratch();
    let proto = scratch.path("proto");
    fs::write(&proto, "x\n0 0\nd--755 0 0\nfew ---644 0 0 /dev/null\nmany ---644 0 0 /dev/null\n$\n").unwrap();
    for (name, options) in [("old", ["-m", "crc=0"]), ("new", ["-m", "crc=1"])] {
        let image = scratch.path(name);
        mkfs(&image, 320, &[&options[..], &["-b", "size=1024", "-p", proto.to_str().unwrap()]].concat());
        let tree = open(&image).tree;
        let ino = |name: &[u8]| tree.inode(tree.lookup(name).unwrap()).source_ino();
        let mut commands = vec![format!("inode {}", ino(b"few"))];
        commands.push("attr_set -v 5 short".to_owned());
        commands.push("attr_set -r -v 50 root".to_owned());
        commands.push("attr_set -s -v 60000 long".to_owned());
        commands.push(format!("inode {}", ino(b"many")));
        commands.extend((0..300).map(|i| format!("attr_set -v {} name-{i}", 1 + i * 11)));
        let file = scratch.path("commands");
        fs::write(&file, commands.join("\n") + "\n").unwrap();
        run(Command::new("/usr/sbin/xfs_db").arg("-x").arg(&image).stdin(File::open(&file).unwrap()));
        let opened = open(&image);
        let xattrs = |name: &[u8]| {
            let inode = opened.tree.inode(opened.tree.lookup(name).unwrap());
            let list = opened.tree.xattrs(inode.xattrs()).iter();
            let mut list: Vec<_> = list.map(|xattr| (xattr.name.to_vec(), xattr.value.to_vec())).collect();
            list.sort();
            list
        };
        let value = |length| vec![b'v'; length];
        let few = [
            (b"security.long".to_vec(), value(60_000)),
            (b"trusted.root".to_vec(), value(50)),
            (b"user.short".to_vec(), value(5)),
        ];
        assert!(xattrs(b"few") == few);
        let mut many: Vec<_> = (0..300).map(|i| (format!("user.name-{i}").into_bytes(), value(1 + i * 11))).collect();
        many.sort();
        assert!(xattrs(b"many") == many);
    }
}
