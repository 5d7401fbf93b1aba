//! Two clients of one overlay.

use std::fs;
use std::sync::Arc;

use tempfile::TempDir;
use vm_memory::VolatileSlice;

use super::*;
use crate::listing::Listing;
use crate::{HostDirectory, HostOptions, Lock, MemoryFiles, Overlay};

const ME: Context<'static> = Context::SERVER;
const FILE: NewNode = NewNode { mode: libc::S_IFREG | 0o644, umask: 0, device: 0 };
const READ: u32 = libc::O_RDONLY as u32;

/// The directory below, what both clients share, and the clients.
fn scene() -> (TempDir, Arc<dyn FileSystem>, OneClient, OneClient) {
    let directory = tempfile::tempdir().unwrap();
    for name in ["a", "b", "c"] {
        fs::write(directory.path().join(name), format!("content of {name}")).unwrap();
    }
    fs::create_dir(directory.path().join("d")).unwrap();
    let lower = HostDirectory::new(directory.path(), HostOptions { read_only: true, ..HostOptions::default() });
    let overlay = Overlay::new(Arc::new(lower.unwrap()), Arc::new(MemoryFiles::new(1 << 20)), true).unwrap();
    let shared: Arc<dyn FileSystem> = Arc::new(overlay);
    let clients = [Arc::clone(&shared), Arc::clone(&shared)].map(OneClient::of);
    let [one, other] = clients;
    (directory, shared, one, other)
}

fn look_up(client: &dyn FileSystem, name: &str) -> NodeId {
    client.lookup(&ME, NodeId::ROOT, name.as_bytes()).unwrap().node
}

fn read(client: &dyn FileSystem, node: NodeId, handle: HandleId) -> Result<String, Errno> {
    let mut buffer = [0; 100];
    let count = client.read(&ME, node, handle, 0, &[VolatileSlice::from(&mut buffer[..])])?;
    Ok(String::from_utf8_lossy(&buffer[..count]).into_owned())
}

#[test]
fn a_client_that_opens_all_it_can_leaves_others_some() {
    let (_directory, shared, ..) = scene();
    let all = Arc::new(Slots::new(64, 2));
    let [greedy, other] = [(); 2].map(|()| OneClient::among(Arc::clone(&shared), &all));
    let open_all = |client: &OneClient| {
        let file = look_up(client, "a");
        let opened = std::iter::from_fn(|| client.open(&ME, file, READ).ok().map(|opened| (file, opened.handle)));
        let all: Vec<_> = opened.take(1000).collect();
        assert_eq!(client.open(&ME, file, READ).unwrap_err(), Errno::NFILE);
        assert_eq!(client.create(&ME, NodeId::ROOT, b"new", &FILE, READ).unwrap_err(), Errno::NFILE);
        all
    };
    let taken = open_all(&greedy);
    assert_eq!((taken.len(), open_all(&other).len()), (62, 2));
    // A failed open takes no slot.
    assert_eq!(other.open(&ME, NodeId(12345), READ).unwrap_err(), Errno::STALE);
    for (node, handle) in &taken[..10] {
        greedy.release(*node, *handle, None);
    }
    assert_eq!(open_all(&other).len(), 10);
    other.disconnected();
    assert_eq!(open_all(&greedy).len(), 10);
    drop(greedy);
    assert_eq!(open_all(&other).len(), 62);
}

#[test]
fn a_client_that_goes_takes_nothing_from_others() {
    let (_directory, shared, one, other) = scene();
    let open = |client: &OneClient, name| {
        let node = look_up(client, name);
        (node, client.open(&ME, node, READ).unwrap().handle)
    };
    let kept = open(&other, "a");
    let removed = open(&other, "b");
    let made = other.create(&ME, NodeId::ROOT, b"made", &FILE, libc::O_RDWR as u32).unwrap();
    let unnamed = other.create_unnamed(&ME, NodeId::ROOT, &FILE, libc::O_RDWR as u32).unwrap();
    let directory = look_up(&other, "d");
    let of_one = open(&one, "a");
    assert_eq!(of_one.0, kept.0);
    for name in ["b", "made", "d"] {
        look_up(&one, name);
    }
    let only_one = look_up(&one, "c");
    assert_eq!(Listing::whole(&one, NodeId::ROOT, (2, true)).len(), 7);
    other.unlink(&ME, NodeId::ROOT, b"b").unwrap();
    one.disconnected();
    assert_eq!(read(&other, kept.0, kept.1).as_deref(), Ok("content of a"));
    assert_eq!(read(&other, removed.0, removed.1).as_deref(), Ok("content of b"));
    assert_eq!(read(&other, made.0.node, made.1.handle).as_deref(), Ok(""));
    assert_eq!(read(&other, unnamed.0.node, unnamed.1.handle).as_deref(), Ok(""));
    assert!(other.attributes(&ME, directory, None).is_ok());
    assert_eq!(look_up(&other, "made"), made.0.node);
    // Nothing is left of the client that disconnected.
    assert_eq!(read(&*shared, of_one.0, of_one.1), Err(Errno::BADF));
    assert_eq!(shared.attributes(&ME, only_one, None), Err(Errno::STALE));
    // Nor of one whose connection is dropped.
    drop(other);
    for node in [kept.0, removed.0, made.0.node, unnamed.0.node, directory] {
        assert_eq!(shared.attributes(&ME, node, None), Err(Errno::STALE));
    }
    assert_eq!(read(&*shared, removed.0, removed.1), Err(Errno::BADF));
}

#[test]
fn a_client_gives_back_no_more_than_it_has() {
    let (_directory, shared, one, other) = scene();
    let a = look_up(&other, "a");
    let handle = other.open(&ME, a, READ).unwrap().handle;
    one.forget(a, u64::MAX);
    one.release(a, handle, None);
    assert_eq!(read(&other, a, handle).as_deref(), Ok("content of a"));
    look_up(&one, "a");
    one.forget(a, u64::MAX);
    one.disconnected();
    assert!(shared.attributes(&ME, a, None).is_ok());
    other.release(a, handle, None);
    assert_eq!(read(&other, a, handle), Err(Errno::BADF));
    look_up(&other, "a");
    other.forget(a, 1);
    assert!(shared.attributes(&ME, a, None).is_ok());
    other.forget(a, 1);
    assert_eq!(shared.attributes(&ME, a, None), Err(Errno::STALE));
}

#[test]
fn a_client_reaches_nothing_by_the_numbers_of_others() {
    let (_directory, shared, one, other) = scene();
    let (a, d) = (look_up(&other, "a"), look_up(&other, "d"));
    let handle = other.open(&ME, a, libc::O_RDWR as u32).unwrap().handle;
    let (root, set, none) = (NodeId::ROOT, SetAttributes::default(), HandleId::default());
    let data = &mut [0; 9][..];
    let slices = [VolatileSlice::from(data)];
    let by_node: Vec<Result<(), Errno>> = vec![
        one.lookup(&ME, d, b"x").map(|_| ()),
        one.parent(&ME, d).map(|_| ()),
        one.attributes(&ME, a, None).map(|_| ()),
        one.attributes(&ME, a, Some(handle)).map(|_| ()),
        one.set_attributes(&ME, a, Some(handle), &set).map(|_| ()),
        one.read_link(&ME, a).map(|_| ()),
        one.make_node(&ME, d, b"x", &FILE).map(|_| ()),
        one.make_directory(&ME, d, b"x", &FILE).map(|_| ()),
        one.make_symlink(&ME, d, b"x", b"target").map(|_| ()),
        one.link(&ME, a, root, b"x").map(|_| ()),
        one.unlink(&ME, d, b"x"),
        one.remove_directory(&ME, d, b"x"),
        one.rename(&ME, root, b"b", d, b"b", 0),
        one.rename(&ME, d, b"x", root, b"x", 0),
        one.open(&ME, a, READ).map(|_| ()),
        one.create(&ME, d, b"x", &FILE, READ).map(|_| ()),
        one.create_unnamed(&ME, d, &FILE, READ).map(|_| ()),
        one.open_directory(&ME, d).map(|_| ()),
        one.get_xattr(&ME, a, b"user.x").map(|_| ()),
        one.list_xattrs(&ME, a).map(|_| ()),
        one.set_xattr(&ME, a, b"user.x", b"", 0, false),
        one.remove_xattr(&ME, a, b"user.x"),
        one.statistics(&ME, a).map(|_| ()),
        one.read(&ME, a, none, 0, &slices).map(|_| ()),
        Listing::of(&one, &ME, (d, none), 0, (9, true)).map(|_| ()),
    ];
    for (number, refused) in by_node.into_iter().enumerate() {
        assert_eq!(refused, Err(Errno::STALE), "number {number}");
    }
    let b = look_up(&one, "b");
    let own = one.open(&ME, b, READ).unwrap().handle;
    for node in [a, b] {
        let by_handle: Vec<Result<(), Errno>> = vec![
            one.read(&ME, node, handle, 0, &slices).map(|_| ()),
            one.write(&ME, node, handle, 0, &slices, WriteKind::default()).map(|_| ()),
            one.copy_range(&ME, (b, own, 0), (node, handle, 0), 1).map(|_| ()),
            one.copy_range(&ME, (node, handle, 0), (b, own, 0), 1).map(|_| ()),
            one.fsync(&ME, node, handle, false),
            one.fallocate(&ME, node, handle, 0, 0, 1),
            one.seek(&ME, node, handle, 0, 3).map(|_| ()),
        ];
        for (number, refused) in by_handle.into_iter().enumerate() {
            assert_eq!(refused, Err(Errno::BADF), "number {number}");
        }
    }
    assert!(one.host_file(a, handle).is_none());
    assert_eq!(
        (read(&other, a, handle).as_deref(), read(&one, b, own).as_deref()),
        (Ok("content of a"), Ok("content of b"))
    );
    assert!(shared.attributes(&ME, d, None).is_ok());
}

#[test]
fn locks_are_the_clients_own() {
    let (directory, ..) = scene();
    let options = HostOptions { locks: true, ..HostOptions::default() };
    let one = OneClient::of(Arc::new(HostDirectory::new(directory.path(), options).unwrap()));
    let a = look_up(&one, "a");
    let handle = one.open(&ME, a, READ).unwrap().handle;
    let lock = Lock { kind: crate::LockKind::Shared, start: 0, end: u64::MAX, pid: 1, whole_file: true };
    assert_eq!(one.set_lock(&ME, a, handle, LockOwner(1), &lock, false), Err(Errno::NOSYS));
    assert_eq!(one.flush(&ME, a, handle, Some(LockOwner(1))), Err(Errno::NOSYS));
}
