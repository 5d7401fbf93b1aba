//! Prefetching for a client that walks the tree.

use std::collections::HashSet;
use std::os::unix::fs::{MetadataExt, symlink};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use super::super::ahead::{Ahead, Bounds};
use super::*;

/// Visits directories even if everything is cached, as it always is in a test.
const BOUNDS: Bounds =
    Bounds { directories: 4, entries: 10, walks: 3, at_hand: 0, again: Duration::from_secs(24 * 60 * 60) };

fn scene() -> Scene {
    let mut scene = Scene::new();
    scene.layer.ahead = Ahead::new(BOUNDS, scene.layer.stat_flags);
    scene
}

impl Scene {
    fn directory(&self, path: &str, files: u32) -> u64 {
        fs::create_dir(self.path().join(path)).unwrap();
        (0..files).for_each(|file| self.file(&format!("{path}/{file}"), ""));
        fs::metadata(self.path().join(path)).unwrap().ino()
    }

    /// Lists a directory with attributes, as a program that walks the tree does.
    fn walk(&self, node: NodeId) {
        self.list(node, usize::MAX, true);
    }

    fn looked_at(&self) -> Vec<u64> {
        self.layer.ahead.looked_at().into_iter().map(|(inode, _)| inode).collect()
    }
}

/// The path of another directory, relative to the offered one beside it.
fn beside(other: &Path) -> PathBuf {
    Path::new("..").join(other.file_name().unwrap())
}

#[test]
fn a_few_of_the_directories_that_come_next_are_looked_at() {
    let scene = scene();
    let all: HashSet<u64> = (0..20).map(|number| scene.directory(&format!("d{number}"), 1)).collect();
    // A client that lists names alone does not walk the tree.
    scene.list(NodeId::ROOT, usize::MAX, false);
    assert!(scene.looked_at().is_empty());
    scene.walk(NodeId::ROOT);
    let first = scene.looked_at();
    // The host may list `.` after the first directory. That is worth another visit if the first one has been visited by
    // then.
    assert!((4..=5).contains(&first.len()), "{first:?}");
    assert!(first.iter().all(|inode| all.contains(inode)), "{first:?} of {all:?}");
    // Each listed directory allows one more visit, until all have been listed or visited, each once.
    for number in 0..20 {
        scene.walk(scene.node(&format!("d{number}")));
    }
    let looked_at = scene.looked_at();
    let different: HashSet<u64> = looked_at.iter().copied().collect();
    assert_eq!(different.len(), looked_at.len());
    assert!(different.is_subset(&all));
    scene.walk(NodeId::ROOT);
    assert_eq!(scene.looked_at(), looked_at);
}

#[test]
fn of_a_large_directory_only_the_beginning_is_looked_at() {
    let scene = scene();
    let large = scene.directory("large", 50);
    scene.walk(NodeId::ROOT);
    assert_eq!(scene.layer.ahead.looked_at(), [(large, 10)]);
}

#[test]
fn what_was_offered_last_comes_first() {
    let scene = scene();
    for directory in 0..20 {
        scene.directory(&format!("{directory}"), 0);
    }
    scene.walk(NodeId::ROOT);
    scene.looked_at();
    let inner: HashSet<u64> = (0..3).map(|number| scene.directory(&format!("0/{number}"), 0)).collect();
    scene.walk(scene.node("0"));
    let looked_at: HashSet<u64> = scene.looked_at().into_iter().collect();
    assert!(inner.is_subset(&looked_at), "{inner:?}, {looked_at:?}");
}

#[test]
fn the_thread_ends_with_the_layer() {
    let scene = scene();
    scene.directory("d", 1);
    scene.walk(NodeId::ROOT);
    let trace = scene.layer.ahead.trace();
    assert!(trace.upgrade().is_some());
    drop(scene);
    assert!(trace.upgrade().is_none());
}

#[test]
fn a_client_that_is_gone_leaves_no_descriptor() {
    let scene = scene();
    // More than two listed directories let the thread visit.
    for directory in 0..20 {
        scene.directory(&format!("{directory}"), 0);
    }
    let node = scene.node("0");
    scene.directory("0/inside", 0);
    scene.walk(NodeId::ROOT);
    scene.walk(node);
    scene.looked_at();
    assert!(scene.layer.ahead.walks() > 0);
    scene.layer.disconnected();
    assert_eq!(scene.layer.ahead.walks(), 0);
}

#[test]
fn nor_does_one_who_goes_while_directories_are_looked_at() {
    let mut scene = scene();
    scene.layer.ahead = Ahead::new(Bounds { again: Duration::ZERO, ..BOUNDS }, scene.layer.stat_flags);
    for directory in 0..20 {
        scene.directory(&format!("{directory}"), 10);
    }
    for round in 0..200 {
        let before = scene.looked_at().len();
        scene.walk(NodeId::ROOT);
        // Some rounds wait until the thread has begun.
        while round % 2 == 1 && scene.layer.ahead.count() == before {
            thread::yield_now();
        }
        scene.layer.disconnected();
        scene.looked_at();
        assert_eq!(scene.layer.ahead.walks(), 0);
    }
}

#[test]
fn links_and_what_cannot_be_listed_are_passed_by() {
    let scene = scene();
    let outside = tempfile::tempdir().unwrap();
    symlink(beside(outside.path()), scene.path().join("link")).unwrap();
    fs::set_permissions(scene.path(), fs::Permissions::from_mode(0o755)).unwrap();
    scene.directory("closed", 1);
    fs::set_permissions(scene.path().join("closed"), fs::Permissions::from_mode(0o000)).unwrap();
    scene.walk(NodeId::ROOT);
    let outside = fs::metadata(outside.path()).unwrap().ino();
    assert!(!scene.looked_at().contains(&outside));
    fs::set_permissions(scene.path().join("closed"), fs::Permissions::from_mode(0o700)).unwrap();
}

#[test]
fn times_of_access_stay() {
    let scene = scene();
    scene.directory("d", 1);
    let long_ago = std::time::SystemTime::UNIX_EPOCH + Duration::from_secs(1000);
    let directory = fs::File::open(scene.path().join("d")).unwrap();
    directory.set_times(fs::FileTimes::new().set_accessed(long_ago)).unwrap();
    scene.walk(NodeId::ROOT);
    assert_eq!(scene.looked_at().len(), 1);
    assert_eq!(directory.metadata().unwrap().accessed().unwrap(), long_ago);
}

#[test]
fn nothing_outside_is_looked_at_while_names_change() {
    let mut scene = scene();
    scene.layer.ahead = Ahead::new(Bounds { again: Duration::ZERO, ..BOUNDS }, scene.layer.stat_flags);
    let outside = tempfile::tempdir().unwrap();
    fs::create_dir(outside.path().join("inside")).unwrap();
    for number in 0..8 {
        scene.directory(&format!("{number}"), 3);
    }
    scene.walk(NodeId::ROOT);
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            for round in 0..1000 {
                let [name, other] = [round % 8, (round + 3) % 8].map(|number| scene.path().join(number.to_string()));
                let aside = scene.path().join("aside");
                fs::rename(&name, &aside).unwrap();
                symlink(beside(outside.path()), &name).unwrap();
                thread::yield_now();
                fs::remove_file(&name).unwrap();
                fs::rename(&other, &name).unwrap();
                fs::rename(&aside, &other).unwrap();
                fs::create_dir(&aside).unwrap();
                fs::remove_dir(&aside).unwrap();
            }
            done.store(true, Ordering::Relaxed);
        });
        while !done.load(Ordering::Relaxed) {
            scene.walk(NodeId::ROOT);
        }
    });
    let outside = fs::metadata(outside.path()).unwrap().ino();
    let looked_at = scene.looked_at();
    assert!(!looked_at.is_empty());
    assert!(!looked_at.contains(&outside));
}
