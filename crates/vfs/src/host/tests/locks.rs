//! Locks are taken on the host: who owns them, when they end, and what they conflict with.

use super::*;
use crate::LockKind;

#[test]
fn locks_are_the_owners_and_reach_the_host() {
    let scene = Scene::with(HostOptions { locks: true, ..HostOptions::default() });
    scene.file("a", "");
    let a = scene.node("a");
    let (first, second) = (scene.open(a, WRITE), scene.open(a, WRITE));
    let range = |kind, start, end| Lock { kind, start, end, pid: 1, whole_file: false };
    let set = |handle, owner, lock: Lock| scene.layer.set_lock(&ME, a, handle, LockOwner(owner), &lock, false);
    set(first, 1, range(LockKind::Exclusive, 0, 9)).unwrap();
    // The same owner by another handle; another owner elsewhere, and in the same place.
    set(second, 1, range(LockKind::Exclusive, 5, 14)).unwrap();
    set(second, 2, range(LockKind::Shared, 20, u64::MAX)).unwrap();
    assert_eq!(set(second, 2, range(LockKind::Shared, 9, 9)), Err(Errno::AGAIN));
    let against = scene.layer.test_lock(&ME, a, second, LockOwner(2), &range(LockKind::Shared, 3, 3)).unwrap().unwrap();
    assert_eq!((against.kind, against.start, against.end), (LockKind::Exclusive, 0, 14));
    let other =
        scene.layer.test_lock(&ME, a, second, LockOwner(1), &range(LockKind::Exclusive, 99, 99)).unwrap().unwrap();
    assert_eq!((other.kind, other.start, other.end), (LockKind::Shared, 20, u64::MAX));
    // Closing any of its descriptors ends an owner's locks.
    scene.layer.flush(&ME, a, second, Some(LockOwner(1))).unwrap();
    set(second, 2, range(LockKind::Shared, 9, 9)).unwrap();
    assert_eq!(set(first, 3, range(LockKind::Exclusive, u64::MAX, 0)), Err(Errno::INVAL));

    let whole = |kind| Lock { kind, start: 0, end: u64::MAX, pid: 1, whole_file: true };
    set(first, 1, whole(LockKind::Exclusive)).unwrap();
    assert_eq!(set(second, 1, whole(LockKind::Shared)), Err(Errno::AGAIN));
    let host = fs::File::open(scene.path().join("a")).unwrap();
    assert!(host.try_lock().is_err());
    let asked = std::sync::atomic::AtomicU32::new(0);
    let interrupted = || asked.fetch_add(1, std::sync::atomic::Ordering::Relaxed) > 2;
    let context = Context { interrupted: &interrupted, ..ME };
    let waiting = scene.layer.set_lock(&context, a, second, LockOwner(1), &whole(LockKind::Shared), true);
    assert_eq!(waiting, Err(Errno::INTR));
    scene.layer.release(a, first, Some(LockOwner(1)));
    set(second, 1, whole(LockKind::Shared)).unwrap();
}

#[test]
fn locks_end_at_the_latest_with_the_file_they_were_taken_by() {
    let scene = Scene::with(HostOptions { locks: true, ..HostOptions::default() });
    scene.file("a", "");
    let a = scene.node("a");
    let (first, second) = (scene.open(a, WRITE), scene.open(a, WRITE));
    let lock = Lock { kind: LockKind::Exclusive, start: 3, end: 5, pid: 1, whole_file: false };
    let set = |handle, owner| scene.layer.set_lock(&ME, a, handle, LockOwner(owner), &lock, false);
    // The lock of an open file: nobody reports the end of its owner.
    set(first, 7).unwrap();
    assert_eq!(set(second, 8), Err(Errno::AGAIN));
    scene.layer.release(a, first, None);
    set(second, 8).unwrap();
    scene.layer.flush(&ME, a, second, Some(LockOwner(8))).unwrap();
    // A process that has closed one file and locks by another one keeps that lock when the first is released.
    let first = scene.open(a, WRITE);
    set(first, 1).unwrap();
    scene.layer.flush(&ME, a, first, Some(LockOwner(1))).unwrap();
    set(second, 1).unwrap();
    scene.layer.release(a, first, None);
    let third = scene.open(a, WRITE);
    assert_eq!(set(third, 2), Err(Errno::AGAIN));
}

#[test]
fn a_shared_lock_of_who_reads_lets_a_program_run() {
    let scene = Scene::with(HostOptions { locks: true, ..HostOptions::default() });
    let program = scene.path().join("program");
    fs::copy("/bin/true", &program).unwrap();
    let node = scene.node("program");
    let handle = scene.open(node, 0);
    for whole_file in [false, true] {
        let lock = Lock { kind: LockKind::Shared, start: 0, end: u64::MAX, pid: 1, whole_file };
        scene.layer.set_lock(&ME, node, handle, LockOwner(1), &lock, false).unwrap();
        assert!(std::process::Command::new(&program).status().unwrap().success());
    }
}

#[test]
fn an_owner_that_reads_and_then_writes_keeps_its_shared_locks() {
    let scene = Scene::with(HostOptions { locks: true, ..HostOptions::default() });
    scene.file("a", "");
    let a = scene.node("a");
    let (reading, writing, other) = (scene.open(a, 0), scene.open(a, WRITE), scene.open(a, WRITE));
    let set = |handle, owner, kind, start, end| {
        let lock = Lock { kind, start, end, pid: 1, whole_file: false };
        scene.layer.set_lock(&ME, a, handle, LockOwner(owner), &lock, false)
    };
    set(reading, 1, LockKind::Shared, 0, 9).unwrap();
    set(reading, 1, LockKind::Shared, 20, 29).unwrap();
    set(reading, 1, LockKind::None, 25, 29).unwrap();
    set(other, 2, LockKind::Shared, 8, 8).unwrap();
    assert_eq!(set(writing, 1, LockKind::Exclusive, 5, 8), Err(Errno::AGAIN));
    set(writing, 1, LockKind::Exclusive, 5, 6).unwrap();
    for (start, expected) in
        [(0, Err(Errno::AGAIN)), (5, Err(Errno::AGAIN)), (9, Err(Errno::AGAIN)), (24, Err(Errno::AGAIN)), (25, Ok(()))]
    {
        assert_eq!(set(other, 2, LockKind::Exclusive, start, start), expected, "{start}");
    }
    scene.layer.flush(&ME, a, reading, Some(LockOwner(1))).unwrap();
    set(other, 2, LockKind::Exclusive, 0, 24).unwrap();
}

#[test]
fn files_that_need_not_be_opened_are_locked_as_well() {
    let options = HostOptions { locks: true, changes: Changes::None, read_only: true, ..HostOptions::default() };
    let scene = Scene::with(options);
    scene.file("a", "");
    let a = scene.node("a");
    let none = crate::HandleId::default();
    let set = |owner, kind| {
        let lock = Lock { kind, start: 0, end: 9, pid: 1, whole_file: false };
        scene.layer.set_lock(&ME, a, none, LockOwner(owner), &lock, false)
    };
    set(1, LockKind::Shared).unwrap();
    let exclusive = Lock { kind: LockKind::Exclusive, start: 0, end: 0, pid: 1, whole_file: false };
    assert!(scene.layer.test_lock(&ME, a, none, LockOwner(2), &exclusive).unwrap().is_some());
    assert_eq!(set(2, LockKind::Exclusive), Err(Errno::BADF));
    scene.layer.flush(&ME, a, none, Some(LockOwner(1))).unwrap();
    assert!(scene.layer.test_lock(&ME, a, none, LockOwner(2), &exclusive).unwrap().is_none());
}
