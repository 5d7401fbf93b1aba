//! What a client may keep cached when it opens a file or directory that anybody may change.

use std::time::Duration;

use super::super::unchanged::SETTLED;
use super::*;
use crate::Caching;

/// In a directory of `place`, in which every change counts as settled after `settled`.
fn scene(place: &str, settled: Duration) -> Scene {
    let directory = tempfile::tempdir_in(place).unwrap();
    let mut layer = HostDirectory::new(directory.path(), HostOptions::default()).unwrap();
    layer.settled = settled;
    Scene { directory, layer }
}

fn open(scene: &Scene, node: NodeId) -> Caching {
    let opened = scene.layer.open(&ME, node, libc::O_RDONLY as u32).unwrap();
    scene.layer.release(node, opened.handle, None);
    opened.caching
}

fn list(scene: &Scene) -> Caching {
    let opened = scene.layer.open_directory(&ME, NodeId::ROOT).unwrap();
    scene.layer.release_directory(NodeId::ROOT, opened.handle);
    opened.caching
}

#[test]
fn content_stays_until_something_changes() {
    let scene = scene("/var/tmp", Duration::ZERO);
    scene.file("a", "content");
    let (a, path) = (scene.node("a"), scene.path().join("a"));
    let changes: [&dyn Fn(); 4] = [
        &|| fs::write(&path, "CONTENT").unwrap(),
        &|| fs::write(&path, "more content").unwrap(),
        &|| {
            // The same size, and an mtime that is put back: the ctime tells.
            let before = fs::metadata(&path).unwrap().modified().unwrap();
            fs::write(&path, "MORE CONTENT").unwrap();
            fs::File::options().write(true).open(&path).unwrap().set_modified(before).unwrap();
        },
        &|| fs::write(&path, "").unwrap(),
    ];
    assert_eq!(open(&scene, a), Caching::Fresh);
    for change in changes {
        assert_eq!([open(&scene, a), open(&scene, a)], [Caching::Keep; 2]);
        // Older kernels' clocks tick every 10 ms at most.
        std::thread::sleep(Duration::from_millis(20));
        change();
        assert_eq!(open(&scene, a), Caching::Fresh);
    }
}

#[test]
fn listings_stay_until_a_name_changes() {
    let scene = scene("/var/tmp", Duration::ZERO);
    scene.file("a", "content");
    assert_eq!([list(&scene), list(&scene)], [Caching::Fresh, Caching::Keep]);
    std::thread::sleep(Duration::from_millis(20));
    fs::rename(scene.path().join("a"), scene.path().join("b")).unwrap();
    assert_eq!([list(&scene), list(&scene)], [Caching::Fresh, Caching::Keep]);
}

/// Otherwise a client asks for the attributes of all entries one by one.
#[test]
fn listings_with_attributes_stay_where_entries_were_looked_up() {
    let scene = scene("/var/tmp", Duration::ZERO);
    scene.file("a", "content");
    assert_eq!([list(&scene), list(&scene)], [Caching::Fresh, Caching::Keep]);
    let plus = true;
    scene.list(NodeId::ROOT, 100, plus);
    assert_eq!([list(&scene), list(&scene)], [Caching::Fresh; 2]);
    scene.node("a");
    assert_eq!([list(&scene), list(&scene)], [Caching::Keep; 2]);
}

#[test]
fn what_changed_a_moment_ago_does_not_stay() {
    let scene = scene("/var/tmp", SETTLED);
    scene.file("a", "content");
    let a = scene.node("a");
    assert_eq!([open(&scene, a), open(&scene, a), list(&scene), list(&scene)], [Caching::Fresh; 4]);
}

#[test]
fn nothing_stays_where_a_write_may_go_unnoticed() {
    let scene = scene("/dev/shm", Duration::ZERO);
    scene.file("a", "content");
    let a = scene.node("a");
    assert_eq!([open(&scene, a), open(&scene, a), list(&scene), list(&scene)], [Caching::Fresh; 4]);
}

#[test]
fn nothing_stays_where_clients_are_to_cache_nothing() {
    let directory = tempfile::tempdir_in("/var/tmp").unwrap();
    let options = HostOptions { uncached: true, ..HostOptions::default() };
    let mut layer = HostDirectory::new(directory.path(), options).unwrap();
    layer.settled = Duration::ZERO;
    let scene = Scene { directory, layer };
    scene.file("a", "content");
    let entry = scene.layer.lookup(&ME, NodeId::ROOT, b"a").unwrap();
    assert_eq!((entry.valid, entry.attributes.valid), (Duration::ZERO, Duration::ZERO));
    assert_eq!(scene.layer.absence_valid(NodeId::ROOT), Duration::ZERO);
    for _ in 0..2 {
        assert_eq!((open(&scene, entry.node), list(&scene)), (Caching::Direct, Caching::Direct));
    }
}
