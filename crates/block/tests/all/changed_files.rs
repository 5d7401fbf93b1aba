//! A snapshot is a snapshot: a change on the host becomes an error that names the file, never other bytes.

use std::fs::{self, File, Permissions};
use std::os::unix::fs::{FileExt, PermissionsExt, symlink};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::common::*;
use inarch_block::ChangeReason;

/// Longer than a tick of the kernel's clock for file times: before Linux 6.13 a change within one does not show.
const TICK: Duration = Duration::from_millis(20);

/// Why reading the file `f` fails after `change`, with at most `max_open` open files; it may be read before, too.
fn reason_after(change: impl Fn(&Path), read_before: bool) -> ChangeReason {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("d")).unwrap();
    fs::write(dir.path().join("d/f"), pattern(1, 9000)).unwrap();
    fs::write(dir.path().join("d/other"), pattern(2, 9000)).unwrap();
    let (tree, device) = device(dir.path());
    let offset = offset_of(&tree, "d/f");
    if read_before {
        // A part of the file: the descriptor stays open.
        assert_eq!(read(&device, offset, 4096).unwrap(), pattern(1, 4096));
    }
    std::thread::sleep(TICK);
    change(&dir.path().join("d/f"));
    let mut out = vec![0xee; 4096];
    let error = device.read_at(offset, &[out.as_mut_slice().into()]).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::EIO));
    assert_eq!(out, [0; 4096], "an error gives no bytes away");
    read(&device, offset + 4096, 4096).unwrap_err();
    let changed = device.events().changed;
    assert_eq!((changed.count, changed.named.len()), (1, 1), "named once");
    assert_eq!(changed.named[0].path, Path::new("d/f"));
    assert_eq!(device.events().errors, 2);
    changed.named[0].reason.clone()
}

#[test]
fn a_changed_file_reads_as_an_error_and_is_named() {
    for opened in [true, false] {
        let rewrite = |path: &Path| File::options().write(true).open(path).unwrap().write_all_at(b"x", 0).unwrap();
        assert_eq!(reason_after(rewrite, opened), ChangeReason::Written);
        let truncate = |path: &Path| File::options().write(true).open(path).unwrap().set_len(100).unwrap();
        assert_eq!(reason_after(truncate, opened), ChangeReason::Size { was: 9000, now: 100 });
        let grow = |path: &Path| File::options().write(true).open(path).unwrap().set_len(9001).unwrap();
        assert_eq!(reason_after(grow, opened), ChangeReason::Size { was: 9000, now: 9001 });
        let restore_mtime = |path: &Path| {
            let mtime = fs::metadata(path).unwrap().modified().unwrap();
            fs::write(path, pattern(9, 9000)).unwrap();
            File::options().write(true).open(path).unwrap().set_modified(mtime).unwrap();
        };
        assert_eq!(reason_after(restore_mtime, opened), ChangeReason::Attributes);
        let chmod = |path: &Path| fs::set_permissions(path, Permissions::from_mode(0o600)).unwrap();
        assert_eq!(reason_after(chmod, opened), ChangeReason::Attributes);
    }
}

#[test]
fn a_replaced_file_reads_as_an_error_and_is_named() {
    assert_eq!(reason_after(|path| fs::remove_file(path).unwrap(), false), ChangeReason::Vanished);
    let unlinked_while_open = reason_after(|path| fs::remove_file(path).unwrap(), true);
    assert_eq!(unlinked_while_open, ChangeReason::Attributes);
    let by_another = |path: &Path| fs::rename(path.with_file_name("other"), path).unwrap();
    assert_eq!(reason_after(by_another, false), ChangeReason::OtherInode);
    let by_directory = |path: &Path| {
        fs::remove_file(path).unwrap();
        fs::create_dir(path).unwrap();
    };
    assert_eq!(reason_after(by_directory, false), ChangeReason::Replaced);
    let by_symlink = |path: &Path| {
        fs::remove_file(path).unwrap();
        symlink("other", path).unwrap();
    };
    assert_eq!(reason_after(by_symlink, false), ChangeReason::Replaced);
    let by_fifo = |path: &Path| {
        fs::remove_file(path).unwrap();
        rustix::fs::mknodat(rustix::fs::CWD, path, rustix::fs::FileType::Fifo, 0o644.into(), 0).unwrap();
    };
    assert_eq!(reason_after(by_fifo, false), ChangeReason::Replaced);
}

#[test]
fn a_symlink_swapped_in_for_a_directory_is_refused() {
    let outside = tempfile::tempdir().unwrap();
    fs::write(outside.path().join("f"), b"secret").unwrap();
    for target in [outside.path().to_path_buf(), "e".into(), "../..".into(), "/proc/self/root".into()] {
        let swap = |path: &Path| {
            let directory = path.parent().unwrap();
            fs::rename(directory, directory.with_file_name("e")).unwrap();
            symlink(&target, directory).unwrap();
        };
        assert_eq!(reason_after(swap, false), ChangeReason::Replaced, "{target:?}");
    }
}

#[test]
fn other_files_are_read_as_before() {
    let dir = tempfile::tempdir().unwrap();
    for name in ["a", "b", "c"] {
        fs::write(dir.path().join(name), pattern(u64::from(name.as_bytes()[0]), 5000)).unwrap();
    }
    let (tree, device) = device(dir.path());
    std::thread::sleep(TICK);
    fs::write(dir.path().join("b"), b"changed").unwrap();
    for name in ["a", "c"] {
        let expected = pattern(u64::from(name.as_bytes()[0]), 5000);
        assert_eq!(read(&device, offset_of(&tree, name), 5000).unwrap(), expected);
    }
    read(&device, offset_of(&tree, "a"), 5 * 4096).unwrap_err();
}

#[test]
fn the_first_thousand_are_named_and_all_are_counted() {
    let dir = tempfile::tempdir().unwrap();
    (0..1200).for_each(|i| fs::write(dir.path().join(format!("{i}")), b"x").unwrap());
    let (_, device) = device(dir.path());
    (0..1200).for_each(|i| fs::remove_file(dir.path().join(format!("{i}"))).unwrap());
    (FIRST_FILE..FIRST_FILE + 1200).for_each(|block| assert!(read(&device, block * BLOCK, 512).is_err()));
    let changed = device.events().changed;
    assert_eq!((changed.count, changed.named.len()), (1200, 1000));
}

#[test]
fn never_a_mixture() {
    const FILES: usize = 300;
    const SIZE: usize = 32 * 1024;
    let dir = tempfile::tempdir().unwrap();
    let path = |i: usize| dir.path().join(format!("{i:04}"));
    (0..FILES).for_each(|i| fs::write(path(i), pattern(i as u64, SIZE)).unwrap());
    let (_, device) = device(dir.path());
    assert_eq!(read(&device, FIRST_FILE * BLOCK, SIZE).unwrap(), pattern(0, SIZE));
    std::thread::sleep(TICK);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for i in 0..FILES {
                fs::write(path(i), pattern(1_000_000 + i as u64, SIZE)).unwrap();
                let file = File::options().write(true).open(path(i)).unwrap();
                (0..SIZE).step_by(4096).for_each(|at| file.write_all_at(&[0xaa; 4096], at as u64).unwrap());
            }
            done.store(true, Ordering::Release);
        });
        for thread in 0..2u64 {
            let (device, done) = (&device, &done);
            scope.spawn(move || {
                let mut random = Random(thread + 1);
                while !done.load(Ordering::Acquire) {
                    let i = random.below(FILES as u64);
                    let (from, length) = (random.below(8) as usize * 4096, random.below(4096) as usize + 1);
                    let offset = (FIRST_FILE + i * (SIZE as u64 / BLOCK)) * BLOCK + from as u64;
                    if let Ok(out) = read(device, offset, length) {
                        assert!(out == pattern(i, SIZE)[from..from + length], "file {i} holds other bytes");
                    }
                }
            });
        }
    });
    (0..FILES as u64).for_each(|i| assert!(read(&device, (FIRST_FILE + i * 8) * BLOCK, 4096).is_err()));
    assert_eq!(device.events().changed.count, FILES as u64);
}
