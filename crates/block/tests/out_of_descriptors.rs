//! Without a free descriptor a read fails and no file is reported as changed, because none may have changed.

#[path = "all/common/mod.rs"]
mod common;

use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::thread;
use std::time::Duration;

use common::*;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Uses up all descriptors; returns the previous limit.
fn use_up() -> Rlimit {
    let before = getrlimit(Resource::Nofile);
    // A new descriptor gets the lowest free number.
    let lowest = File::open("/").unwrap().as_raw_fd() as u64;
    setrlimit(Resource::Nofile, Rlimit { current: Some(lowest), ..before }).unwrap();
    before
}

fn give_back(before: Rlimit) {
    setrlimit(Resource::Nofile, before).unwrap();
}

// The limit is the whole process's, so this file has one test.
#[test]
fn a_read_without_a_descriptor_fails_and_names_no_file() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("d")).unwrap();
    for name in ["d/a", "d/b"] {
        fs::write(dir.path().join(name), pattern(1, 9000)).unwrap();
    }
    let (tree, device) = device(dir.path());
    let (a, b) = (offset_of(&tree, "d/a"), offset_of(&tree, "d/b"));

    // A part of a file: its descriptor stays open, and is closed for the next file.
    assert_eq!(read(&device, a, 4096).unwrap(), pattern(1, 4096));
    let before = use_up();
    assert_eq!(read(&device, b, 9000).unwrap(), pattern(1, 9000));
    give_back(before);

    let before = use_up();
    let error = read(&device, b, 9000).unwrap_err();
    give_back(before);
    assert_eq!(error.raw_os_error(), Some(libc::EIO));
    let events = device.events();
    assert_eq!((events.errors, events.out_of_descriptors, events.changed.count), (1, 1, 0));
    assert_eq!(read(&device, b, 9000).unwrap(), pattern(1, 9000), "the next read is as good as ever");

    // A descriptor that becomes free soon is waited for.
    let waited = (0..20).any(|_| {
        let before = use_up();
        thread::scope(|scope| {
            scope.spawn(move || {
                thread::sleep(Duration::from_millis(2));
                give_back(before);
            });
            read(&device, b, 9000).is_ok()
        })
    });
    assert!(waited);

    fs::remove_file(dir.path().join("d/b")).unwrap();
    read(&device, b, 9000).unwrap_err();
    assert_eq!(device.events().changed.named[0].path, Path::new("d/b"));
}
