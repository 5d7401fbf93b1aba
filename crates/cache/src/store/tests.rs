//! How a cache is published, locked and removed, and what a sweep leaves.

use std::time::Duration;

use super::*;
use crate::InUse;

/// Publishes a generation without files.
fn publish(cache: &Cache, base: &Snapshot) -> Result<Option<u64>, CacheError> {
    let next = |now: &Generation, _: &str| {
        let (files, lists) = (now.places(), Lists::new());
        Ok(Some(Next { tree: Arc::clone(&now.tree), files, lists, drops: false }))
    };
    cache.lock()?.publish(cache.new_pack()?, ("a test", 0), base, next)
}

/// Another cache can have its name by then, with packs and generations of the same names.
#[test]
fn nothing_is_put_into_a_cache_that_was_made_anew() {
    let dir = tempfile::tempdir().unwrap();
    let place = CachePlace::new(dir.path(), Scope::User, "things").unwrap();
    let cache = Cache::make(&place).unwrap();
    publish(&cache, &Snapshot::empty().unwrap()).unwrap();
    let base = cache.snapshot().unwrap();
    place.remove().unwrap();
    let anew = Cache::make(&place).unwrap();
    publish(&anew, &Snapshot::empty().unwrap()).unwrap();
    assert!(matches!(publish(&anew, &base), Err(CacheError::Removed { .. })));
    assert_eq!(anew.snapshot().unwrap().generation.body.number, 1);
    let base = anew.snapshot().unwrap();
    assert_eq!(publish(&anew, &base).unwrap(), Some(2));
}

#[test]
fn a_lock_of_a_removed_cache_locks_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let place = CachePlace::new(dir.path(), Scope::User, "things").unwrap();
    let cache = Cache::make(&place).unwrap();
    let (taken, waiting) = (cache.lock().unwrap(), cache.clone());
    let inode = format!(":{} ", fs::metadata(cache.dir().join(LOCK)).unwrap().ino());
    let waiter = std::thread::spawn(move || waiting.lock().map(drop));
    let waits = |line: &str| line.contains("->") && line.contains(&inode);
    while !fs::read_to_string("/proc/locks").unwrap().lines().any(waits) {
        std::thread::sleep(Duration::from_millis(5));
    }
    place.remove().unwrap();
    let anew = Cache::make(&place).unwrap();
    drop(taken);
    assert!(matches!(waiter.join().unwrap(), Err(CacheError::Removed { .. })));
    drop(anew.lock().unwrap());
}

#[test]
fn a_cache_that_a_run_has_is_not_removed() {
    let dir = tempfile::tempdir().unwrap();
    let place = CachePlace::new(dir.path(), Scope::User, "things").unwrap();
    let cache = Cache::make(&place).unwrap();
    publish(&cache, &Snapshot::empty().unwrap()).unwrap();
    let by = |even_if_read| cache.close(even_if_read).unwrap().map(drop);
    let turn = cache.turn("a test", |_| false).unwrap();
    assert_eq!(by(true), Err(InUse::Locked));
    drop(turn);
    assert!(!cache.dir().join(USED).exists());
    let live = cache.take_live().unwrap();
    assert_eq!(by(true), Err(InUse::Live));
    drop(live);
    let reader = cache.snapshot().unwrap();
    assert_eq!((by(false), by(true)), (Err(InUse::Read), Ok(())));
    drop(reader);
    assert_eq!(by(false), Ok(()));
    assert!(cache.dir().join(USED).exists(), "taking a live directory is a use");
}

#[test]
fn a_pack_that_is_gone_is_damage() {
    let dir = tempfile::tempdir().unwrap();
    let place = CachePlace::new(dir.path(), Scope::User, "things").unwrap();
    let cache = Cache::make(&place).unwrap();
    assert!(matches!(cache.pack("00000001"), Err(CacheError::Damaged { .. })));
}

#[test]
fn what_another_process_has_not_finished_stays_for_a_day() {
    let dir = tempfile::tempdir().unwrap();
    let place = CachePlace::new(dir.path(), Scope::User, "things").unwrap();
    let cache = Cache::make(&place).unwrap();
    for directory in [GENERATIONS, PACKS] {
        for (name, age) in [(".inarch-1-0.tmp", 0), (".inarch-2-0.tmp", 25), ("00000007", 0)] {
            let file = File::create(cache.dir().join(directory).join(name)).unwrap();
            file.set_modified(SystemTime::now() - Duration::from_secs(age * 3600)).unwrap();
        }
    }
    // No generation of this cache: it is damaged, which a sweep says.
    fs::remove_file(cache.dir().join(GENERATIONS).join("00000007")).unwrap();
    cache.lock().unwrap().sweep().unwrap();
    let names = |directory| {
        let mut names: Vec<_> =
            fs::read_dir(cache.dir().join(directory)).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        names
    };
    assert_eq!(names(PACKS), [".inarch-1-0.tmp"]);
    assert_eq!(names(GENERATIONS), [".inarch-1-0.tmp"]);
}
