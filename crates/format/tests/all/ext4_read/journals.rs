//! Images copied while they are mounted: what we read of them is what the kernel shows once it has replayed the journal.

use std::collections::HashSet;
use std::fs;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use inarch_confine::Parsing;
use inarch_format::{Damage, ext4};
use inarch_tree::scan::{ScanOptions, scan};

use super::made::{can_mount, fill, mke2fs, run, scratch};
use super::same::{assert_same, open};
use crate::common::mount::Mount;
use crate::common::*;

/// Copies an image as a crash would leave it.
fn copy(image: &Path, to: PathBuf) -> PathBuf {
    run(Command::new("cp").arg("--sparse=always").arg(image).arg(&to));
    to
}

/// Compares what we read of an image with what the kernel shows of it after it has mounted it for writing. The image
/// is removed.
fn compare(image: &Path) {
    // The kernel writes to the image that it mounts, and ours must stay as it is.
    let unchanged = copy(image, image.with_extension("ours"));
    let ours = open(&unchanged);
    let mount = Mount::new(image, "loop").unwrap();
    let theirs = Arc::new(scan(&mount.0, &ScanOptions::default()).unwrap().tree);
    let files = inarch_block::HostFiles::new(fs::File::open(&mount.0).unwrap().into(), theirs.clone(), 16);
    assert_same(&ours.opened.tree, &*ours.opened.content, &theirs, &files);
    assert_eq!(ours.opened.notes, [""; 0]);
    // What is free is not what the superblock says, which is written when a file system is unmounted.
    let backing = inarch_block::BackingFile::new(fs::File::open(&unchanged).unwrap(), unchanged.clone()).unwrap();
    let volume = ext4::open_volume(Parsing::unconfined(), Arc::new(backing), Damage::Refused).unwrap();
    let ours = volume.statistics();
    let (ours, theirs) = ((ours.free_blocks, ours.free_inodes), free(&mount));
    drop((files, mount));
    // The kernel goes on to free orphans: files that were removed while they were open, or whose removal the crash interrupted.
    if ours != theirs {
        assert_eq!(ours, free_before_orphans(&unchanged));
    }
    fs::remove_file(image).unwrap();
    fs::remove_file(unchanged).unwrap();
}

/// Free blocks and inodes of what is mounted.
fn free(mount: &Mount) -> (u64, u64) {
    let told = rustix::fs::statvfs(&mount.0).unwrap();
    (told.f_bfree, told.f_ffree)
}

/// The same once the journal is replayed: the kernel frees no orphan of a device that cannot be written to.
fn free_before_orphans(image: &Path) -> (u64, u64) {
    let replayed = copy(image, image.with_extension("replayed"));
    // Checksums do not fit before (`-n`).
    run(Command::new("debugfs").args(["-n", "-w", "-R", "journal_run"]).arg(&replayed));
    let free = free(&Mount::new(&replayed, "loop,ro").unwrap());
    fs::remove_file(replayed).unwrap();
    free
}

/// Works on a mounted file system, and copies it after each of a few steps. Every file is made durable before a copy:
/// what the kernel had not yet committed is in no copy.
fn crash(scratch: &Scratch, name: &str, options: &[&str], mount_options: &str) {
    let image = scratch.path(name);
    mke2fs(&image, 128, options);
    let mount = Mount::new(&image, mount_options).unwrap();
    let mut copies = Vec::new();
    let mut commit = |step: &str| {
        let mut file = fs::File::create(mount.0.join(format!("durable-{step}"))).unwrap();
        file.write_all(step.as_bytes()).unwrap();
        file.sync_all().unwrap();
        copies.push(copy(&image, scratch.path(&format!("{name}-{step}"))));
    };
    fill(&mount.0);
    commit("filled");
    // Blocks of deleted directories, revoked in the journal, become content of files.
    fs::remove_dir_all(mount.0.join("many")).unwrap();
    fs::remove_dir_all(mount.0.join("a")).unwrap();
    commit("removed");
    for i in 0..40 {
        // Begins as the journal's own blocks do: escaped where data is journaled.
        let mut bytes = vec![i; 30_000];
        bytes[..4].copy_from_slice(&0xC03B_3998u32.to_be_bytes());
        bytes[4096..4100].copy_from_slice(&0xC03B_3998u32.to_be_bytes());
        fs::write(mount.0.join(format!("new-{i}")), bytes).unwrap();
    }
    commit("rewritten");
    for i in 0..400 {
        fs::create_dir(mount.0.join(format!("directory-{i}"))).unwrap();
        fs::rename(mount.0.join(format!("directory-{i}")), mount.0.join(format!("empty/{i}"))).unwrap();
        if i % 100 == 0 {
            commit(&i.to_string());
        }
    }
    let removed = fs::File::create(mount.0.join("removed")).unwrap();
    (&removed).write_all(&[1; 50_000]).unwrap();
    removed.sync_all().unwrap();
    fs::remove_file(mount.0.join("removed")).unwrap();
    commit("orphan");
    drop((removed, mount));
    for image in copies {
        compare(&image);
    }
}

/// The journal matters: with the flag cleared that says that it is needed, the same image has other names.
#[test]
fn what_is_only_in_the_journal_is_read() {
    if !can_mount() {
        return;
    }
    let scratch = scratch();
    let image = scratch.path("image");
    mke2fs(&image, 64, &["-t", "ext4", "-O", "^metadata_csum"]);
    let mount = Mount::new(&image, "loop").unwrap();
    fs::File::create(mount.0.join("durable")).unwrap().sync_all().unwrap();
    let copied = copy(&image, scratch.path("copy"));
    drop(mount);
    assert!(open(&copied).opened.tree.lookup(b"durable").is_some());
    let mut features = [0; 4];
    let file = fs::File::options().read(true).write(true).open(&copied).unwrap();
    file.read_exact_at(&mut features, 1024 + 0x60).unwrap();
    assert_eq!(features[0] & 4, 4);
    features[0] &= !4;
    file.write_all_at(&features, 1024 + 0x60).unwrap();
    assert!(open(&copied).opened.tree.lookup(b"durable").is_none());
}

#[test]
fn a_crash_is_recovered_as_by_the_kernel() {
    if !can_mount() {
        return;
    }
    let scratch = scratch();
    crash(&scratch, "ordered", &["-t", "ext4"], "loop");
    crash(&scratch, "old", &["-t", "ext3", "-b", "1024"], "loop");
    crash(&scratch, "no-csum", &["-t", "ext4", "-O", "^metadata_csum,^64bit"], "loop,journal_checksum");
    crash(&scratch, "async", &["-t", "ext4"], "loop,data=writeback,journal_async_commit");
    crash(&scratch, "small", &["-t", "ext4", "-b", "1024", "-J", "size=2"], "loop");
    crash(&scratch, "data", &["-t", "ext4"], "loop,data=journal");
}

/// Fast commits are another journal behind the journal: refused, not left out in silence.
#[test]
fn fast_commits_are_refused() {
    if !can_mount() {
        return;
    }
    let scratch = scratch();
    let image = scratch.path("image");
    mke2fs(&image, 64, &["-t", "ext4", "-O", "fast_commit"]);
    let mount = Mount::new(&image, "loop").unwrap();
    fs::write(mount.0.join("first"), "1").unwrap();
    run(Command::new("sync").arg("-f").arg(&mount.0));
    let before = copy(&image, scratch.path("before"));
    fs::File::create(mount.0.join("second")).unwrap().sync_all().unwrap();
    let after = copy(&image, scratch.path("after"));
    drop(mount);
    assert!(open(&before).opened.tree.lookup(b"first").is_some());
    let file = inarch_block::BackingFile::new(fs::File::open(&after).unwrap(), after.clone()).unwrap();
    let refused = inarch_format::ext4::open(Parsing::unconfined(), Arc::new(file), inarch_format::Damage::Refused)
        .err()
        .unwrap()
        .to_string();
    assert!(refused.contains("fast commits"), "{refused}");
}

/// One of the things that a program does to a tree; errors are as good as successes.
fn work(at: &Path, number: u32) {
    let pick = |salt: u32, below: u32| {
        let mixed = (number ^ salt.wrapping_mul(0x9E37_79B9)).wrapping_mul(0x85EB_CA6B);
        ((mixed ^ mixed >> 15).wrapping_mul(0xC2B2_AE35) >> 8) % below
    };
    let directory = at.join(format!("d{}", pick(1, 12)));
    let path = directory.join(format!("{}", pick(2, 60)));
    let other = at.join(format!("d{}/{}", pick(3, 12), pick(4, 60)));
    let open = || fs::File::options().create(true).write(true).truncate(false).open(&path);
    let _ = match pick(5, 12) {
        0 => fs::create_dir(&directory),
        1..=3 => open().and_then(|file| file.write_all_at(&vec![number as u8; pick(6, 30_000) as usize], 0)),
        4 => open().and_then(|file| file.write_all_at(b"far", u64::from(pick(7, 50_000_000)))),
        5 => open().and_then(|file| file.set_len(u64::from(pick(8, 100_000)))),
        6 => fs::rename(&path, &other),
        7 => fs::remove_file(&path),
        8 => fs::hard_link(&path, &other),
        9 => std::os::unix::fs::symlink("x".repeat(1 + pick(9, 100) as usize), &path),
        10 => fs::create_dir(&path).and_then(|()| fs::write(path.join("below"), "b")),
        _ => {
            let value = vec![7; pick(10, 900) as usize];
            let set = rustix::fs::setxattr(&path, "user.x", &value, rustix::fs::XattrFlags::empty());
            fs::remove_dir_all(&other).or(set.map_err(Into::into))
        }
    };
}

/// Random work, copied at random points.
#[test]
fn crashes_in_random_work() {
    if !can_mount() {
        return;
    }
    let scratch = scratch();
    for (round, options) in [&["-t", "ext4"][..], &["-t", "ext4", "-b", "1024", "-O", "inline_data"]].iter().enumerate()
    {
        let image = scratch.path(&format!("random-{round}"));
        mke2fs(&image, 96, &[*options, &["-J", "size=4"]].concat());
        let mount = Mount::new(&image, "loop").unwrap();
        let mut copies = Vec::new();
        for number in 0..6000 {
            work(&mount.0, number);
            if number % 600 == 599 {
                fs::File::create(mount.0.join(number.to_string())).unwrap().sync_all().unwrap();
                copies.push(copy(&image, scratch.path(&format!("random-{round}-{number}"))));
            }
        }
        drop(mount);
        for image in copies {
            compare(&image);
        }
    }
}

/// The blocks of `after` that differ from those of `before`, of 4 KiB each; without the journal's own.
fn changed_blocks(before: &Path, after: &Path) -> Vec<(usize, Vec<u8>)> {
    let listed = Command::new("debugfs").args(["-R", "blocks <8>"]).arg(before).output().unwrap();
    let listed = String::from_utf8(listed.stdout).unwrap();
    let journal: HashSet<usize> = listed.split_whitespace().map(|block| block.parse().unwrap()).collect();
    let (before, after) = (fs::read(before).unwrap(), fs::read(after).unwrap());
    let blocks = before.chunks(4096).zip(after.chunks(4096)).enumerate();
    let changed = blocks.filter(|(number, (before, after))| before != after && !journal.contains(number));
    changed.map(|(number, (_, after))| (number, after.to_vec())).collect()
}

/// Writes all that changed as transactions of debugfs, which knows every version of checksums: an image as it was, with
/// such a journal, is read as the image that it becomes.
#[test]
fn journals_of_every_version() {
    if !can_mount() {
        return;
    }
    let scratch = scratch();
    for (round, (features, version)) in
        [("metadata_csum,64bit", "-c -v 3"), ("metadata_csum,64bit", "-c -v 2"), ("^metadata_csum,^64bit", "")]
            .into_iter()
            .enumerate()
    {
        let image = scratch.path(&format!("version-{round}"));
        mke2fs(&image, 32, &["-t", "ext4", "-b", "4096", "-N", "512", "-O", features]);
        let before = copy(&image, scratch.path(&format!("before-{round}")));
        let mount = Mount::new(&image, "loop").unwrap();
        // Escaped in the journal, as it begins with the journal's magic number.
        fs::write(mount.0.join("escaped"), [&0xC03B_3998u32.to_be_bytes()[..], &[5; 9000]].concat()).unwrap();
        fs::create_dir_all(mount.0.join("a/b/c")).unwrap();
        std::os::unix::fs::symlink("x".repeat(100), mount.0.join("link")).unwrap();
        drop(mount);
        let changed = changed_blocks(&before, &image);
        assert!(changed.len() > 5);
        let data = scratch.path("data");
        fs::write(&data, changed.iter().flat_map(|(_, block)| block.clone()).collect::<Vec<_>>()).unwrap();
        let numbers: Vec<_> = changed.iter().map(|(number, _)| number.to_string()).collect();
        let (numbers, stale) = (numbers.join(","), scratch.path("stale"));
        // A directory block of garbage, which a later transaction revokes.
        fs::write(&stale, [0xEE; 4096]).unwrap();
        let commands = format!(
            "jo {version}\njw -b {last} {stale}\njw -r {last}\njw -b {numbers} {data}\njc\n",
            last = changed[0].0,
            stale = stale.display(),
            data = data.display(),
        );
        let script = scratch.path("script");
        fs::write(&script, commands).unwrap();
        run(Command::new("debugfs").arg("-w").arg("-f").arg(&script).arg(&before));
        let (ours, theirs) = (open(&before), open(&image));
        assert!(theirs.opened.tree.lookup(b"a/b/c").is_some());
        assert_same(&ours.opened.tree, &*ours.opened.content, &theirs.opened.tree, &*theirs.opened.content);
        assert_eq!(ours.opened.notes, [""; 0]);
    }
}
