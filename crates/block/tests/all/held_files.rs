//! A held file reads as at the scan, whatever happens to it on the host; another file that changes is an error; there
//! is never a mixture.

use std::cell::Cell;
use std::fs::{self, File, Permissions};
use std::os::unix::fs::{FileExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::common::*;
use inarch_block::{Allowance, Device, Hold};
use inarch_tree::Tree;
use inarch_tree::select::Filter;
use proptest::prelude::*;

/// Longer than a tick of the kernel's clock for file times: before Linux 6.13 a change within one does not show.
const TICK: Duration = Duration::from_millis(20);

/// More than any test holds.
const ENOUGH: Allowance = Allowance { bytes: 1 << 30, files: 1000 };

/// In the order of holding: files smaller than a piece, of one piece, and of several.
const SIZES: [usize; 5] = [1, 5000, 131_072, 200_000, 400_000];

/// The file number `i`: each lies in a directory of its own.
fn name(i: usize) -> String {
    format!("d{i}/f")
}

/// A directory with a file of each size, and a device of it.
fn files(sizes: &[usize]) -> (tempfile::TempDir, std::sync::Arc<Tree>, Device) {
    let dir = tempfile::tempdir().unwrap();
    write_files(dir.path(), sizes);
    let (tree, device) = device(dir.path());
    std::thread::sleep(TICK);
    (dir, tree, device)
}

fn write_files(dir: &Path, sizes: &[usize]) {
    for (i, size) in sizes.iter().enumerate() {
        fs::create_dir(dir.join(format!("d{i}"))).unwrap();
        fs::write(dir.join(name(i)), pattern(i as u64, *size)).unwrap();
    }
}

fn hold(device: &Device, directory: &Path, allowance: &mut Allowance, stop: &dyn Fn() -> bool) -> std::io::Result<()> {
    device.hold(&Hold { below: b"", filter: &Filter::default(), directory, stop }, allowance)
}

/// For each file, whether it reads as it was, or fails. Anything else fails the test.
fn reads(device: &Device, tree: &Tree, sizes: &[usize]) -> Vec<bool> {
    let is_old = |(i, size): (usize, &usize)| {
        let offset = offset_of(tree, &name(i));
        let old = pattern(i as u64, *size);
        let whole = read(device, offset, *size);
        // In parts, the last of which extends beyond the file's end.
        let padded = size.next_multiple_of(BLOCK as usize);
        for at in (0..padded).step_by(65_536) {
            let length = (padded - at).min(65_536);
            let part = read(device, offset + at as u64, length);
            assert_eq!(part.is_ok(), whole.is_ok(), "a part of file {i}");
            let mut expected = old[at.min(*size)..(at + length).min(*size)].to_vec();
            expected.resize(length, 0);
            assert!(part.is_err() || part.unwrap() == expected, "bytes from {at} of file {i} are others");
        }
        match whole {
            Ok(bytes) => assert!(bytes == old, "file {i} holds other bytes"),
            Err(error) => assert_eq!(error.raw_os_error(), Some(libc::EIO)),
        }
        read(device, offset, *size).is_ok()
    };
    sizes.iter().enumerate().map(is_old).collect()
}

/// A change of a file on the host.
#[derive(Clone, Copy, Debug)]
enum Edit {
    Rewrite,
    RewriteWithItsTime,
    Truncate,
    Grow,
    Chmod,
    Replace,
    ReplaceWithItsTime,
    Remove,
    ReplaceByLink,
    ReplaceByDirectory,
    RenameDirectory,
    ReplaceDirectoryByLink,
}

const EDITS: [Edit; 12] = [
    Edit::Rewrite,
    Edit::RewriteWithItsTime,
    Edit::Truncate,
    Edit::Grow,
    Edit::Chmod,
    Edit::Replace,
    Edit::ReplaceWithItsTime,
    Edit::Remove,
    Edit::ReplaceByLink,
    Edit::ReplaceByDirectory,
    Edit::RenameDirectory,
    Edit::ReplaceDirectoryByLink,
];

fn edit(path: &Path, edit: Edit) {
    let open = || File::options().write(true).open(path).unwrap();
    let metadata = fs::metadata(path).unwrap();
    let other = pattern(99, metadata.len() as usize);
    let (directory, away) = (path.parent().unwrap(), path.parent().unwrap().with_extension("away"));
    match edit {
        Edit::Rewrite => open().write_all_at(&other, 0).unwrap(),
        Edit::RewriteWithItsTime => {
            open().write_all_at(&other, 0).unwrap();
            open().set_modified(metadata.modified().unwrap()).unwrap();
        }
        Edit::Truncate => open().set_len(metadata.len() / 2).unwrap(),
        Edit::Grow => open().write_all_at(b"more", metadata.len()).unwrap(),
        Edit::Chmod => fs::set_permissions(path, Permissions::from_mode(0o600)).unwrap(),
        Edit::Replace | Edit::ReplaceWithItsTime => {
            let new = path.with_extension("new");
            fs::write(&new, other).unwrap();
            if let Edit::ReplaceWithItsTime = edit {
                File::options().write(true).open(&new).unwrap().set_modified(metadata.modified().unwrap()).unwrap();
            }
            fs::rename(new, path).unwrap();
        }
        Edit::Remove => fs::remove_file(path).unwrap(),
        Edit::ReplaceByLink => {
            fs::rename(path, path.with_extension("away")).unwrap();
            symlink("f.away", path).unwrap();
        }
        Edit::ReplaceByDirectory => {
            fs::remove_file(path).unwrap();
            fs::create_dir(path).unwrap();
        }
        Edit::RenameDirectory => fs::rename(directory, away).unwrap(),
        Edit::ReplaceDirectoryByLink => {
            fs::rename(directory, &away).unwrap();
            symlink(&away, directory).unwrap();
        }
    }
}

#[test]
fn what_is_held_reads_as_it_was_after_every_kind_of_edit() {
    for (kind, opened) in EDITS.into_iter().flat_map(|kind| [(kind, false), (kind, true)]) {
        let (dir, tree, device) = files(&SIZES);
        if opened {
            // A part of each: the descriptors of all but the file of one byte stay open.
            (0..SIZES.len()).for_each(|i| drop(read(&device, offset_of(&tree, &name(i)), 1).unwrap()));
        }
        let spool = tempfile::tempdir().unwrap();
        let mut allowance = ENOUGH;
        hold(&device, spool.path(), &mut allowance, &|| false).unwrap();
        assert_eq!(allowance.files, ENOUGH.files - SIZES.len() as u64);
        (0..SIZES.len() - 1).for_each(|i| edit(&dir.path().join(name(i)), kind));
        assert_eq!(reads(&device, &tree, &SIZES), [true; SIZES.len()], "{kind:?}");
        let events = device.events();
        // An open file is unchanged, whatever its directory is called.
        let is_there = opened && matches!(kind, Edit::RenameDirectory | Edit::ReplaceDirectoryByLink);
        let held = if is_there { 1 } else { SIZES.len() as u64 - 1 };
        assert_eq!((events.changed.count, events.held.count), (0, held), "{kind:?}");
        assert_eq!(events.held.named[0].path, PathBuf::from(name(0)));
        assert_eq!(events.errors, 0);
        assert_eq!(fs::read_dir(spool.path()).unwrap().count(), 0, "the spool has no name");
    }
}

#[test]
fn what_changed_before_it_was_held_stays_an_error() {
    for kind in EDITS {
        let (dir, tree, device) = files(&SIZES);
        (0..SIZES.len() - 1).for_each(|i| edit(&dir.path().join(name(i)), kind));
        hold(&device, dir.path(), &mut ENOUGH.clone(), &|| false).unwrap();
        assert_eq!(device.events().changed.count, 0, "nobody read it yet");
        assert_eq!(reads(&device, &tree, &SIZES), [false, false, false, false, true], "{kind:?}");
        assert_eq!((device.events().changed.count, device.events().held.count), (4, 0));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]

    /// Tests edits at any moment of the copying, which stops at any moment and continues later.
    #[test]
    fn an_edit_at_any_moment_leaves_the_old_bytes_or_an_error(
        edits in prop::collection::vec((0..20usize, 0..SIZES.len(), prop::sample::select(&EDITS[..])), 0..4),
        stop_at in 0..20usize,
    ) {
        let (dir, tree, device) = files(&SIZES);
        let (asked, edited) = (Cell::new(0), Cell::new([None; SIZES.len()]));
        // Before each file and each of its pieces.
        let ask = |stop_at: usize| {
            asked.set(asked.get() + 1);
            for (at, file, kind) in &edits {
                let mut done = edited.get();
                if *at == asked.get() && done[*file].is_none() {
                    edit(&dir.path().join(name(*file)), *kind);
                    done[*file] = Some(*at);
                    edited.set(done);
                }
            }
            asked.get() == stop_at
        };
        hold(&device, dir.path(), &mut ENOUGH.clone(), &|| ask(stop_at)).unwrap();
        let before = edited.get();
        hold(&device, dir.path(), &mut ENOUGH.clone(), &|| ask(usize::MAX)).unwrap();
        for (i, old) in reads(&device, &tree, &SIZES).into_iter().enumerate() {
            prop_assert!(old || edited.get()[i].is_some(), "file {} was left alone: {:?}", i, before);
        }
        // Now everything else is held.
        let left: Vec<_> = (0..SIZES.len()).filter(|i| edited.get()[*i].is_none()).collect();
        left.iter().for_each(|i| edit(&dir.path().join(name(*i)), Edit::Rewrite));
        let now = reads(&device, &tree, &SIZES);
        prop_assert!(left.iter().all(|i| now[*i]), "{:?} of {:?}", left, now);
    }
}

#[test]
fn a_file_that_changes_while_it_is_copied_is_not_held() {
    // The fifteen calls: one at the start, one before each file, and one before each of its pieces; the last file has
    // four.
    for (asked, held) in [(11, false), (12, false), (13, false), (14, false), (15, false), (16, true)] {
        let (dir, tree, device) = files(&SIZES);
        let count = Cell::new(0);
        let last = dir.path().join(name(4));
        hold(&device, dir.path(), &mut ENOUGH.clone(), &|| {
            count.set(count.get() + 1);
            if count.get() == asked {
                edit(&last, Edit::RewriteWithItsTime);
            }
            false
        })
        .unwrap();
        if held {
            edit(&last, Edit::RewriteWithItsTime);
        }
        let expected = [true, true, true, true, held];
        assert_eq!((count.get(), reads(&device, &tree, &SIZES)), (15, expected.to_vec()), "edited at {asked}");
    }
}

#[test]
fn no_more_is_held_than_allowed() {
    for (allowance, held) in [
        (Allowance { bytes: 136_073, files: 100 }, 3),
        (Allowance { bytes: 136_072, files: 100 }, 2),
        (Allowance { bytes: 1 << 30, files: 1 }, 1),
        (Allowance { bytes: 0, files: 100 }, 0),
        (Allowance { bytes: 1 << 30, files: 0 }, 0),
    ] {
        let (dir, tree, device) = files(&SIZES);
        let mut left = allowance;
        hold(&device, dir.path(), &mut left, &|| false).unwrap();
        assert_eq!(allowance.files - left.files, held as u64);
        hold(&device, dir.path(), &mut left, &|| false).unwrap();
        (0..SIZES.len()).for_each(|i| edit(&dir.path().join(name(i)), Edit::Rewrite));
        let expected: Vec<_> = (0..SIZES.len()).map(|i| i < held).collect();
        assert_eq!(reads(&device, &tree, &SIZES), expected, "{allowance:?}");
    }
}

#[test]
fn only_what_is_below_a_directory_is_held_by_one_descriptor() {
    let (dir, tree, device) = files(&SIZES);
    fs::create_dir(dir.path().join("spool")).unwrap();
    for below in [&b"d2"[..], b"d3", b"none", b"d0/f"] {
        let spool = dir.path().join("spool");
        let filter = Filter::default();
        device.hold(&Hold { below, filter: &filter, directory: &spool, stop: &|| false }, &mut ENOUGH.clone()).unwrap();
    }
    let links = fs::read_dir("/proc/self/fd").unwrap().filter_map(|entry| fs::read_link(entry.ok()?.path()).ok());
    let root = dir.path().canonicalize().unwrap();
    assert_eq!(links.filter(|link| link.starts_with(&root) && *link != root).count(), 1);
    (0..SIZES.len()).for_each(|i| edit(&dir.path().join(name(i)), Edit::Remove));
    assert_eq!(reads(&device, &tree, &SIZES), [false, false, true, true, false]);
}

#[test]
fn what_git_ignores_is_not_held_where_that_is_said() {
    let (dir, _, _) = files(&SIZES);
    fs::write(dir.path().join("d1/.gitignore"), "f\n").unwrap();
    fs::write(dir.path().join("d3/.gitignore"), "/d0/\n!f\n").unwrap();
    fs::write(dir.path().join(".gitignore"), "/d2/\nd3/f\n").unwrap();
    let (tree, device) = device(dir.path());
    std::thread::sleep(TICK);
    let filter = Filter::builder().ignore_file(".gitignore".as_ref()).build().unwrap();
    let hold = Hold { below: b"", filter: &filter, directory: dir.path(), stop: &|| false };
    device.hold(&hold, &mut ENOUGH.clone()).unwrap();
    (0..SIZES.len()).for_each(|i| edit(&dir.path().join(name(i)), Edit::Rewrite));
    assert_eq!(reads(&device, &tree, &SIZES), [true, false, false, true, true]);
}

#[test]
fn a_spool_without_space_holds_what_it_has() {
    let test = "a_spool_without_space_holds_what_it_has";
    let Some(disk) = Mounted::new(test, &["-t", "tmpfs", "-o", "size=32M", "none"]) else { return };
    let (dir, tree, device) = files(&SIZES);
    let (count, filler) = (Cell::new(0), disk.0.path().join("filler"));
    let result = hold(&device, disk.0.path(), &mut ENOUGH.clone(), &|| {
        count.set(count.get() + 1);
        // Before the second piece of the fourth file.
        if count.get() == 10 {
            let mut file = File::create(&filler).unwrap();
            let full = std::io::copy(&mut std::io::repeat(1), &mut file).unwrap_err();
            assert_eq!(full.kind(), std::io::ErrorKind::StorageFull);
        }
        false
    });
    assert_eq!(result.unwrap_err().kind(), std::io::ErrorKind::StorageFull);
    (0..SIZES.len()).for_each(|i| edit(&dir.path().join(name(i)), Edit::Rewrite));
    assert_eq!(reads(&device, &tree, &SIZES), [true, true, true, false, false]);
    // Nothing of that file remains, and a full disk accepts none.
    fs::remove_file(&filler).unwrap();
    let used = rustix::fs::statvfs(disk.0.path()).unwrap();
    assert!((used.f_blocks - used.f_bfree) * used.f_frsize < 200_000);
}

#[test]
fn no_more_is_copied_than_a_part_of_what_is_free() {
    let test = "no_more_is_copied_than_a_part_of_what_is_free";
    let Some(disk) = Mounted::new(test, &["-t", "tmpfs", "-o", "size=1M", "none"]) else { return };
    let (dir, tree, device) = files(&SIZES);
    hold(&device, disk.0.path(), &mut ENOUGH.clone(), &|| false).unwrap();
    (0..SIZES.len()).for_each(|i| edit(&dir.path().join(name(i)), Edit::Rewrite));
    assert_eq!(reads(&device, &tree, &SIZES), [true, true, false, false, false]);
}

#[test]
fn where_blocks_can_be_shared_nothing_is_copied() {
    let test = "where_blocks_can_be_shared_nothing_is_copied";
    for system in ["xfs", "btrfs"] {
        let memory = tempfile::tempdir_in("/dev/shm").unwrap();
        let image = memory.path().join("disk");
        File::create(&image).unwrap().set_len(400 << 20).unwrap();
        let made = Command::new(format!("mkfs.{system}")).arg("-q").arg(&image).output();
        if !made.as_ref().is_ok_and(|output| output.status.success()) {
            eprintln!("skipped: {test}: {system} cannot be made here: {made:?}");
            continue;
        }
        let Some(disk) = Mounted::new(test, &["-o", "loop", image.to_str().unwrap()]) else { continue };
        // The last one is shared in two pieces.
        let sizes = [5000, 65_536, 200_001, 1 << 20, (16 << 20) + 5];
        let source = disk.0.path().join("source");
        fs::create_dir(&source).unwrap();
        write_files(&source, &sizes);
        let (tree, device) = device(&source);
        std::thread::sleep(TICK);
        let mut allowance = Allowance { bytes: 5000, files: 100 };
        hold(&device, disk.0.path(), &mut allowance, &|| false).unwrap();
        assert_eq!(allowance, Allowance { bytes: 0, files: 95 }, "{system}");
        for (i, kind) in [Edit::Rewrite, Edit::Truncate, Edit::Rewrite, Edit::Remove, Edit::Rewrite].iter().enumerate()
        {
            edit(&source.join(name(i)), *kind);
        }
        assert_eq!(reads(&device, &tree, &sizes), [true; 5], "{system}");
        assert_eq!((device.events().held.count, device.events().changed.count), (5, 0), "{system}");
    }
}
