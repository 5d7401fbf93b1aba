//! Images that mke2fs made, and that the kernel then wrote to.

use std::fs;
use std::os::unix::fs::{FileExt, symlink};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use inarch_block::BackingFile;
use inarch_confine::Parsing;
use inarch_format::ext4::{LostAndFound, ReadOptions, open_image};
use rustix::fs::XattrFlags;

use super::same::{assert_as_mounted, assert_as_viewed, open};
use crate::common::mount::Mount;
use crate::common::*;

/// Runs a tool; fails with what it says.
pub fn run(command: &mut Command) {
    let output = command.env("LC_ALL", "C").output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
}

/// Makes a file system of `megabytes` with some options of mke2fs.
pub fn mke2fs(image: &Path, megabytes: u64, options: &[&str]) {
    fs::File::create(image).unwrap().set_len(megabytes << 20).unwrap();
    run(Command::new("mke2fs").args(["-q", "-F"]).args(options).arg(image));
}

/// A place for images: in memory where there is one.
pub fn scratch() -> Scratch {
    if Path::new("/dev/shm").is_dir() { Scratch::within("/dev/shm") } else { Scratch::new() }
}

/// Whether images can be mounted here; says so where not.
pub fn can_mount() -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        eprintln!("skipped: {}: mounting an image: it needs root", std::thread::current().name().unwrap_or("a test"));
    }
    root
}

/// A bit of everything, made through a mounted file system.
pub fn fill(at: &Path) {
    let file = |name: &str, size: usize| {
        let bytes: Vec<u8> = (0..size).map(|i| (i ^ i >> 8 ^ size) as u8).collect();
        fs::write(at.join(name), bytes).unwrap();
    };
    for dir in ["a/b/c/d", "many", "empty", "acl"] {
        fs::create_dir_all(at.join(dir)).unwrap();
    }
    for (i, size) in [0, 1, 59, 60, 61, 100, 150, 1023, 1024, 4096, 4097, 70_000, 3_000_000].into_iter().enumerate() {
        file(&format!("a/size-{i}"), size);
    }
    for i in 0..1500 {
        file(&format!("many/{i:0>width$}", width = 1 + i % 200), i % 90);
    }
    for i in (0..1500).step_by(3) {
        fs::remove_file(at.join(format!("many/{i:0>width$}", width = 1 + i % 200))).unwrap();
    }
    let sparse = fs::File::create(at.join("a/sparse")).unwrap();
    for i in 0..300 {
        sparse.write_all_at(b"content", i * 70_001).unwrap();
    }
    sparse.write_all_at(b"far", 3 << 30).unwrap();
    sparse.set_len(4 << 30).unwrap();
    fs::hard_link(at.join("a/size-5"), at.join("a/b/hard link")).unwrap();
    for length in [1, 59, 60, 100, 1000] {
        symlink("t".repeat(length), at.join(format!("link-{length}"))).unwrap();
    }
    run(Command::new("mknod").arg(at.join("null")).args(["c", "1", "3"]));
    run(Command::new("mknod").arg(at.join("disk")).args(["b", "259", "70000"]));
    run(Command::new("mkfifo").arg(at.join("fifo")));
    run(Command::new("touch").args(["-d", "1960-01-01 00:00:00.5 UTC"]).arg(at.join("a/size-1")));
    std::os::unix::fs::chown(at.join("a/b"), Some(123_456), Some(654_321)).unwrap();
    xattrs(at);
}

fn xattrs(at: &Path) {
    let set = |path: &str, name: &str, value: &[u8]| {
        rustix::fs::setxattr(at.join(path), name, value, XattrFlags::empty()).unwrap();
    };
    set("a/size-2", "user.small", b"1");
    set("a/size-3", "user.larger", &[7; 600]);
    set("a/size-3", "trusted.t", b"");
    set("a/size-4", "user.larger", &[7; 600]);
    set("empty", "user.on-directory", b"x");
    set("acl", "system.posix_acl_default", &odd::acl());
    set("acl", "system.posix_acl_access", &odd::acl());
    set("", "user.on-root", b"root");
}

/// Blocks that are allocated and never written, before and behind the end of a file.
fn preallocate(at: &Path) {
    use rustix::fs::{FallocateFlags, fallocate};
    let file = fs::File::create(at.join("a/preallocated")).unwrap();
    fallocate(&file, FallocateFlags::empty(), 0, 1 << 20).unwrap();
    file.write_all_at(b"written", 300_000).unwrap();
    fallocate(&file, FallocateFlags::KEEP_SIZE, 1 << 20, 1 << 20).unwrap();
}

/// Makes a file system, has the kernel fill it, compares what we read.
fn filled(scratch: &Scratch, name: &str, options: &[&str]) {
    let image = scratch.path(name);
    mke2fs(&image, 128, options);
    let mount = Mount::new(&image, "loop").unwrap();
    fill(&mount.0);
    if !options.iter().any(|option| option.contains("^extent") || *option == "ext2" || *option == "ext3") {
        preallocate(&mount.0);
    }
    drop(mount);
    assert_clean(&image);
    assert_eq!(assert_as_mounted(&image, "loop,ro"), [""; 0], "{options:?}");
}

#[test]
fn every_kind_of_file_system() {
    if !can_mount() {
        return;
    }
    let scratch = scratch();
    let kinds: [&[&str]; 14] = [
        &["-t", "ext4"],
        &["-t", "ext4", "-b", "1024"],
        &["-t", "ext4", "-b", "2048", "-I", "512"],
        &["-t", "ext4", "-I", "128"],
        &["-t", "ext4", "-O", "^extent,^64bit"],
        &["-t", "ext4", "-O", "inline_data"],
        &["-t", "ext4", "-O", "inline_data", "-I", "1024"],
        &["-t", "ext4", "-O", "ea_inode"],
        &["-t", "ext4", "-O", "^metadata_csum,uninit_bg,^64bit"],
        &["-t", "ext4", "-O", "^metadata_csum,^uninit_bg,^dir_index"],
        &["-t", "ext4", "-O", "bigalloc", "-C", "16384"],
        &["-t", "ext4", "-O", "meta_bg,^resize_inode,metadata_csum_seed", "-b", "1024", "-g", "1024"],
        &["-t", "ext2", "-b", "1024"],
        &["-t", "ext3"],
    ];
    for (i, options) in kinds.iter().enumerate() {
        filled(&scratch, &format!("image-{i}"), options);
    }
}

/// mke2fs writes the files itself, in its own way.
#[test]
fn what_mke2fs_fills() {
    if !can_mount() {
        return;
    }
    let scratch = scratch();
    let source = scratch.path("source");
    fs::create_dir(&source).unwrap();
    fill(&source);
    let source = source.to_str().unwrap();
    let kinds: [&[&str]; 6] = [
        &["-t", "ext2", "-b", "1024"],
        &["-t", "ext3", "-b", "2048"],
        &["-t", "ext4"],
        &["-t", "ext4", "-b", "1024", "-O", "inline_data,^64bit"],
        &["-t", "ext4", "-O", "bigalloc,^metadata_csum"],
        &["-t", "ext4", "-O", "meta_bg,^resize_inode,sparse_super2"],
    ];
    for (i, options) in kinds.iter().enumerate() {
        let image = scratch.path(&format!("image-{i}"));
        mke2fs(&image, 256, &[*options, &["-d", source]].concat());
        assert_eq!(assert_as_mounted(&image, "loop,ro"), [""; 0], "{options:?}");
        // What the crate does not know.
        let beyond = ["inline_data", "bigalloc", "meta_bg"];
        if !options.iter().any(|option| beyond.iter().any(|name| option.contains(name))) {
            assert_as_viewed(&image);
        }
    }
}

/// A directory with so many names that its index has levels, and a file in so many pieces that its tree has.
#[test]
fn deep_indexes_and_deep_extent_trees() {
    if !can_mount() {
        return;
    }
    let scratch = scratch();
    for (name, options) in [("extents", "large_dir"), ("maps", "^extent,^64bit,^metadata_csum")] {
        let image = scratch.path(name);
        mke2fs(&image, 512, &["-t", "ext4", "-b", "1024", "-N", "60000", "-O", options]);
        let mount = Mount::new(&image, "loop").unwrap();
        for i in 0..40_000 {
            fs::File::create(mount.0.join(format!("a name that is made longer by its number {i}"))).unwrap();
        }
        let pieces = fs::File::create(mount.0.join("pieces")).unwrap();
        for i in 0..30_000u64 {
            pieces.write_all_at(&i.to_le_bytes(), i * 5000).unwrap();
        }
        drop((pieces, mount));
        assert_eq!(assert_as_mounted(&image, "loop,ro"), [""; 0], "{options}");
    }
}

/// Runs a command of debugfs on an image.
fn debugfs(image: &Path, command: &str) {
    run(Command::new("debugfs").args(["-w", "-R", command]).arg(image));
}

/// What cannot be read as it is, or not wholly, is told.
#[test]
fn encryption_verity_and_case_are_told() {
    let scratch = scratch();
    let source = scratch.path("source");
    fs::create_dir_all(source.join("secret/below")).unwrap();
    fs::create_dir_all(source.join("folded")).unwrap();
    for name in ["hidden", "signed", "plain", "fixed"] {
        fs::write(source.join(name), name).unwrap();
    }
    let image = scratch.path("image");
    let source = source.to_str().unwrap();
    mke2fs(&image, 16, &["-t", "ext4", "-O", "encrypt,casefold,verity", "-d", source]);
    for (path, flags) in [
        ("secret", "0x80800"),
        ("hidden", "0x80800"),
        ("signed", "0x180000"),
        ("folded", "0x40080000"),
        ("fixed", "0x800b0"),
    ] {
        debugfs(&image, &format!("set_inode_field {path} flags {flags}"));
    }
    let ours = open(&image);
    let notes = [
        "1 file has fs-verity, whose hashes are neither checked nor kept",
        "1 directory ignores the case of names, which is not kept",
        "1 file or directory has attributes of chattr (iaA), which are not kept",
        "\"hidden\": is encrypted; its content cannot be read",
        "\"secret\": is encrypted; what is in it is left out",
    ];
    assert_eq!(ours.opened.notes, notes);
    let tree = &ours.opened.tree;
    assert_eq!(tree.entries(tree.lookup(b"secret").unwrap()).len(), 0);
    let read = |path: &[u8]| {
        let id = tree.lookup(path).unwrap();
        let mut bytes = vec![0; tree.inode(id).size() as usize];
        inarch_block::read_content(&*ours.opened.content, id, 0, &mut bytes).map(|()| bytes)
    };
    assert!(read(b"hidden").is_err());
    assert_eq!(read(b"signed").unwrap(), b"signed");
    assert_eq!(read(b"plain").unwrap(), b"plain");
}

/// `lost+found` is left out unless something is in it, or as the caller says.
#[test]
fn lost_and_found_is_kept_if_it_is_used() {
    let scratch = scratch();
    let image = scratch.path("image");
    mke2fs(&image, 16, &["-t", "ext4"]);
    let found = |lost_and_found| {
        let file = BackingFile::new(fs::File::open(&image).unwrap(), image.clone()).unwrap();
        let options = ReadOptions { lost_and_found, ..ReadOptions::default() };
        open_image(Parsing::unconfined(), Arc::new(file), &options).unwrap().opened.tree.lookup(b"lost+found").is_some()
    };
    assert!(found(LostAndFound::Keep));
    assert!(!found(LostAndFound::KeepIfUsed));
    debugfs(&image, "mkdir lost+found/#12");
    assert!(found(LostAndFound::KeepIfUsed));
    assert!(!found(LostAndFound::Omit));
}
