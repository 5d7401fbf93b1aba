//! Images are read back: those planned here, and those of `mkfs.erofs`, which the kernel of this host judges.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::{FileExt, symlink};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use crate::common::mount::Mount;
use crate::common::*;
use crate::erofs::{Pattern, assert_same, compare, make, odd_tree};
use inarch_block::BackingFile;
use inarch_confine::Parsing;
use inarch_format::TreeAndContent;
use inarch_format::erofs::open;

fn read(image: &Path) -> TreeAndContent {
    let backing = BackingFile::new(File::open(image).unwrap(), image.into()).unwrap();
    open(Parsing::unconfined(), Arc::new(backing)).unwrap_or_else(|error| panic!("{image:?}: {error}"))
}

#[test]
fn what_was_planned_comes_back() {
    let tree = Arc::new(odd_tree());
    let scratch = Scratch::new();
    let image = scratch.path("image");
    let content = Arc::new(Pattern(tree.clone()));
    for inline_files in [false, true] {
        make(&tree, content.clone(), &image, inline_files);
        let opened = read(&image);
        assert_same(&tree, &*content, &opened.tree, &*opened.content);
        assert_eq!(opened.notes, Vec::<String>::new());
    }
}

/// Bytes that compress well here and badly there.
fn content(seed: u32, length: usize) -> Vec<u8> {
    let mut state = seed | 1;
    let mut bytes = Vec::with_capacity(length + 300);
    while bytes.len() < length {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        match state >> 29 {
            0 => (0..200u8).for_each(|i| bytes.push((state >> (i % 24)) as u8 ^ i.wrapping_mul(37))),
            1 | 2 => bytes.extend([(state >> 20) as u8; 300]),
            _ => bytes.extend_from_slice(format!("line {} of the text\n", state >> 24).as_bytes()),
        }
    }
    bytes.truncate(length);
    bytes
}

/// A directory with a bit of everything that compression and its options treat differently.
fn make_source(root: &Path) {
    for dir in ["many", "empty", "sizes"] {
        fs::create_dir_all(root.join(dir)).unwrap();
    }
    for i in 0..600u32 {
        fs::write(root.join(format!("many/file number {i}")), content(i, i as usize * 7)).unwrap();
    }
    for length in [0, 1, 4095, 4096, 4097, 8191, 8192, 65_536, 65_537, 200_000, 1 << 20, 3_333_333] {
        fs::write(root.join(format!("sizes/{length}")), content(length as u32 + 1, length)).unwrap();
    }
    let incompressible: Vec<u8> =
        (0..150_001u64).map(|i| (i.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 56) as u8).collect();
    fs::write(root.join("incompressible"), &incompressible).unwrap();
    fs::write(root.join("zeros"), vec![0; 5_000_000]).unwrap();
    let mixed = [&incompressible[..], &content(5, 700_000), &incompressible, &[0; 300_000], &content(6, 99)].concat();
    fs::write(root.join("mixed"), mixed).unwrap();
    let sparse = File::create(root.join("sparse")).unwrap();
    (&sparse).write_all(b"x").unwrap();
    (1..20).for_each(|i| sparse.write_all_at(b"content", i * 1_000_000 + i).unwrap());
    sparse.set_len(30_000_000).unwrap();
    fs::hard_link(root.join("mixed"), root.join("many/link to mixed")).unwrap();
    symlink("mixed", root.join("short link")).unwrap();
    symlink("x/".repeat(1000), root.join("long link")).unwrap();
    rustix::fs::mknodat(
        rustix::fs::CWD,
        root.join("device"),
        rustix::fs::FileType::CharacterDevice,
        rustix::fs::Mode::from_raw_mode(0o600),
        rustix::fs::makedev(259, 70_000),
    )
    .unwrap();
    let flags = rustix::fs::XattrFlags::empty();
    for i in 0..20 {
        let path = root.join(format!("many/file number {i}"));
        rustix::fs::setxattr(&path, "user.shared", b"the same on each", flags).unwrap();
        rustix::fs::setxattr(&path, "trusted.own", format!("{i}").as_bytes(), flags).unwrap();
    }
    rustix::fs::setxattr(root, "user.note", &[b'n'; 1000], flags).unwrap();
    rustix::fs::setxattr(root.join("empty"), "system.posix_acl_default", &crate::common::odd::acl(), flags).unwrap();
    rustix::fs::setxattr(root.join("zeros"), "system.posix_acl_access", &crate::common::odd::acl(), flags).unwrap();
}

/// Makes an image by `mkfs.erofs` for each list of options, and compares what is read with what the kernel shows.
fn reads_like_the_kernel(options: &[&[&str]]) {
    if !rustix::process::geteuid().is_root() {
        eprintln!(
            "skipped: {}: device nodes, trusted attributes and mounting an image: they need root",
            std::thread::current().name().unwrap_or("a test")
        );
        return;
    }
    // With chunks, mkfs.erofs 1.5 fails on a sparse file of a tmpfs.
    let scratch = Scratch::within("/var/tmp");
    let source = scratch.path("source");
    make_source(&source);
    for (number, options) in options.iter().enumerate() {
        let image = scratch.path(&format!("image{number}"));
        let program = std::env::var_os("MKFS_EROFS").unwrap_or("mkfs.erofs".into());
        let output = Command::new(program).args(*options).arg(&image).arg(&source).output();
        let output = output.expect("erofs-utils is installed");
        assert!(output.status.success(), "{options:?}: {}", String::from_utf8_lossy(&output.stderr));
        let opened = read(&image);
        let Some(mount) = Mount::new(&image, "loop,ro") else { return };
        eprintln!("{options:?}");
        compare(&opened.tree, &*opened.content, &mount.0);
    }
}

#[test]
fn uncompressed_images_of_mkfs_erofs() {
    reads_like_the_kernel(&[
        &[],
        &["-Eforce-inode-extended"],
        &["-Eforce-inode-compact", "-T1234567890"],
        &["-Enoinline_data"],
        &["--chunksize=4096"],
        &["--chunksize=65536", "-Eforce-chunk-indexes"],
        &["-x-1"],
        &["-x0", "--all-root"],
        &["-x1000", "-Eforce-inode-extended"],
    ]);
}

#[test]
fn compressed_images_of_mkfs_erofs() {
    reads_like_the_kernel(&[
        &["-zlz4hc"],
        &["-zlz4", "-Elegacy-compress"],
        &["-zlz4hc,12", "-C65536"],
        &["-zlz4", "-C1048576", "-Elegacy-compress"],
        &["-zlz4hc", "-Eztailpacking"],
        &["-zlz4", "-Eztailpacking", "-C16384", "-Elegacy-compress"],
        &["-zlz4hc", "-Eforce-inode-compact", "--max-extent-bytes=16384"],
    ]);
}
