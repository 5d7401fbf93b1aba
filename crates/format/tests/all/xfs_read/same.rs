//! Images that mkfs.xfs made and the kernel wrote to, compared with the kernel's own mount.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, symlink};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use inarch_block::HostFiles;
use inarch_tree::scan::{ScanOptions, scan};
use rustix::fs::XattrFlags;

use super::made::{mkfs, open, questions};
use crate::common::Scratch;
use crate::common::mount::Mount;
use crate::ext4_read::made::{can_mount, fill, run, scratch};
use crate::ext4_read::same::assert_same;

/// Compares what we read of an image with the kernel's read-only mount of it; the notes of our reader.
fn assert_as_mounted(image: &Path) -> Vec<String> {
    let ours = open(image);
    let mount = Mount::new(image, "loop,ro").unwrap();
    let theirs = Arc::new(scan(&mount.0, &ScanOptions::default()).unwrap().tree);
    let files = HostFiles::new(File::open(&mount.0).unwrap().into(), theirs.clone(), 16);
    assert_same(&ours.tree, &*ours.content, &theirs, &files);
    for (id, inode) in ours.tree.inodes() {
        let there = theirs.inode(theirs.lookup(&ours.tree.path(id)).unwrap());
        assert_eq!(inode.source_ino(), there.source_ino());
    }
    questions(image, &ours.tree);
    ours.notes
}

/// What ext4's tests do not have: long attributes, and so many that they take a tree; targets that are not in the inode.
fn fill_more(at: &Path) {
    let set = |path: &str, name: &str, value: &[u8]| {
        rustix::fs::setxattr(at.join(path), name, value, XattrFlags::empty()).unwrap();
    };
    fs::create_dir(at.join("attributes")).unwrap();
    for (name, count, size) in [("few", 3, 100), ("leaf", 20, 60), ("long", 4, 30_000), ("tree", 900, 200)] {
        let path = format!("attributes/{name}");
        fs::write(at.join(&path), name).unwrap();
        for i in 0..count {
            let value: Vec<u8> = (0..size).map(|byte| (byte * 7 + i) as u8).collect();
            set(&path, &format!("user.{}{i}", "n".repeat(i % 100)), &value);
        }
    }
    set("attributes/long", "user.longest", &vec![9; 65_536]);
    set("attributes/long", "security.other", b"s");
    symlink("t".repeat(1023), at.join("attributes/link")).unwrap();
}

/// A file in many pieces, every second block of it; and one whose blocks are shared.
fn fill_pieces(at: &Path, pieces: u64) {
    let file = File::create(at.join("pieces")).unwrap();
    // Beyond the end of a file, the kernel would allocate more, for writes to come.
    file.set_len(pieces * 131_072).unwrap();
    for i in 0..pieces {
        file.write_all_at(&i.to_le_bytes(), i * 131_072).unwrap();
    }
    file.sync_all().unwrap();
    let file = File::create(at.join("backwards")).unwrap();
    for i in (0..200u64).rev() {
        file.write_all_at(&[i as u8; 4096], i * 4096).unwrap();
        file.sync_all().unwrap();
    }
}

fn preallocate(at: &Path) {
    use rustix::fs::{FallocateFlags, fallocate};
    let file = File::create(at.join("preallocated")).unwrap();
    fallocate(&file, FallocateFlags::empty(), 0, 1 << 20).unwrap();
    file.write_all_at(b"written", 300_000).unwrap();
    fallocate(&file, FallocateFlags::KEEP_SIZE, 1 << 20, 1 << 20).unwrap();
}

/// Makes a file system, has the kernel fill it, compares what we read.
fn filled(scratch: &Scratch, name: &str, options: &[&str]) {
    let image = scratch.path(name);
    mkfs(&image, 320, options);
    let mount = Mount::new(&image, "loop").unwrap();
    fill(&mount.0);
    fill_more(&mount.0);
    fill_pieces(&mount.0, 300);
    preallocate(&mount.0);
    if !options.iter().any(|option| option.contains("reflink=0")) {
        let (from, to) = (mount.0.join("a/size-12"), mount.0.join("a/shared"));
        run(Command::new("cp").arg("--reflink=always").arg(from).arg(&to));
        File::options().write(true).open(to).unwrap().write_all_at(&[1; 5000], 1_000_000).unwrap();
    }
    drop(mount);
    assert_eq!(assert_as_mounted(&image), [""; 0], "{options:?}");
}

#[test]
fn every_kind_of_file_system() {
    if !can_mount() {
        return;
    }
    let scratch = scratch();
    let kinds: [&[&str]; 9] = [
        &[],
        &["-b", "size=1024"],
        &["-b", "size=1024", "-n", "size=8192", "-i", "size=512"],
        &["-i", "size=2048", "-n", "size=65536"],
        &["-m", "bigtime=0,reflink=0,rmapbt=0,finobt=0,inobtcount=0", "-i", "sparse=0,nrext64=0"],
        &["-m", "bigtime=1,reflink=1,rmapbt=1,inobtcount=1", "-i", "sparse=1,nrext64=1"],
        &["-s", "size=4096", "-d", "agcount=16"],
        &["-d", "agcount=1", "-l", "version=2,su=65536"],
        &["-b", "size=16384"],
    ];
    for (i, options) in kinds.iter().enumerate() {
        filled(&scratch, &format!("image-{i}"), options);
    }
}

/// A directory with so many names that its index has levels and its fork is a tree, and a file in so many pieces that its
/// tree has levels.
#[test]
fn deep_indexes_and_deep_extent_trees() {
    if !can_mount() {
        return;
    }
    let scratch = scratch();
    let image = scratch.path("image");
    mkfs(&image, 1024, &["-b", "size=1024"]);
    let mount = Mount::new(&image, "loop").unwrap();
    for i in 0..30_000 {
        File::create(mount.0.join(format!("a name that is made longer by its number {i}"))).unwrap();
    }
    fill_pieces(&mount.0, 20_000);
    for i in (0..30_000).step_by(7) {
        fs::remove_file(mount.0.join(format!("a name that is made longer by its number {i}"))).unwrap();
    }
    drop(mount);
    assert_eq!(assert_as_mounted(&image), [""; 0]);
}

/// Makes a file system whose changes are in its journal, as after a crash.
pub fn crashed(image: &Path, megabytes: u64, options: &[&str], fill: impl Fn(&Path)) {
    mkfs(image, megabytes, options);
    let mount = Mount::new(image, "loop").unwrap();
    fill(&mount.0);
    rustix::fs::syncfs(File::open(&mount.0).unwrap()).unwrap();
    // What is in the journal now is all that there will be of it.
    fs::create_dir_all(mount.0.join("late/deep")).unwrap();
    for i in 0..700 {
        symlink("somewhere", mount.0.join(format!("late/a link with a long name {i}"))).unwrap();
    }
    fs::rename(mount.0.join("late/deep"), mount.0.join("deep")).unwrap();
    for i in (0..700).step_by(2) {
        fs::remove_file(mount.0.join(format!("late/a link with a long name {i}"))).unwrap();
    }
    rustix::fs::setxattr(mount.0.join("deep"), "user.late", &[3; 2000], XattrFlags::empty()).unwrap();
    run(Command::new("/usr/sbin/xfs_io").args(["-x", "-c", "shutdown -f"]).arg(&mount.0));
}

/// What was not written back before a crash is in the journal: our reader finds what the kernel recovers.
#[test]
fn a_journal_is_replayed_as_by_the_kernel() {
    if !can_mount() {
        return;
    }
    let scratch = scratch();
    let kinds: [&[&str]; 4] =
        [&[], &["-b", "size=1024"], &["-n", "size=16384", "-i", "size=1024"], &["-l", "su=65536"]];
    for (i, options) in kinds.iter().enumerate() {
        let (image, recovered) = (scratch.path(&format!("image-{i}")), scratch.path(&format!("recovered-{i}")));
        crashed(&image, 320, options, |at| {
            fill(at);
            fill_more(at);
            fill_pieces(at, 300);
        });
        fs::copy(&image, &recovered).unwrap();
        drop(Mount::new(&recovered, "loop").unwrap());
        let before = fs::read(&image).unwrap();
        let ours = open(&image);
        let mount = Mount::new(&recovered, "loop,ro").unwrap();
        let theirs = Arc::new(scan(&mount.0, &ScanOptions::default()).unwrap().tree);
        let files = HostFiles::new(File::open(&mount.0).unwrap().into(), theirs.clone(), 16);
        assert_same(&ours.tree, &*ours.content, &theirs, &files);
        questions(&image, &ours.tree);
        assert_eq!(ours.notes, [""; 0]);
        assert!(ours.tree.lookup(b"deep").is_some());
        assert!(fs::read(&image).unwrap() == before, "the image was written to");
    }
}

/// A journal on another device cannot be replayed.
#[test]
fn a_journal_that_was_not_replayed_is_told() {
    let scratch = scratch();
    let (image, journal) = (scratch.path("image"), scratch.path("journal"));
    File::create(&journal).unwrap().set_len(64 << 20).unwrap();
    mkfs(&image, 320, &["-l", &format!("logdev={},size=32m", journal.display())]);
    let notes = open(&image).notes;
    assert!(notes.len() == 1 && notes[0].contains("was not replayed; last changes may be missing"), "{notes:?}");
}

/// Attributes of chattr(1), which a tree does not have, are told.
#[test]
fn attributes_of_chattr_are_told() {
    if !can_mount() {
        return;
    }
    let scratch = scratch();
    let image = scratch.path("image");
    mkfs(&image, 320, &[]);
    let mount = Mount::new(&image, "loop").unwrap();
    fs::write(mount.0.join("fixed"), b"content").unwrap();
    run(Command::new("chattr").arg("+iA").arg(mount.0.join("fixed")));
    drop(mount);
    assert_eq!(open(&image).notes, ["1 file or directory has attributes of chattr (iA), which are not kept"]);
}
