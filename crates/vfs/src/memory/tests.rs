//! The file system in memory by itself, without a kernel in between.

use super::*;
use crate::Overlay;
use crate::listing::Listing;
use crate::xattr_names::DEFAULT_ACL;

const ME: Context<'static> = Context::SERVER;
const FILE: NewNode = NewNode { mode: libc::S_IFREG | 0o644, umask: 0, device: 0 };
const DIRECTORY: NewNode = NewNode { mode: libc::S_IFDIR | 0o755, umask: 0, device: 0 };
const WRITE: u32 = libc::O_RDWR as u32;
const SPACE: u64 = 1 << 20;

struct Scene(MemoryFiles);

impl Scene {
    fn new() -> Scene {
        Scene(MemoryFiles::new(SPACE))
    }

    fn directory(&self, parent: NodeId, name: &str) -> NodeId {
        self.0.make_directory(&ME, parent, name.as_bytes(), &DIRECTORY).unwrap().node
    }

    fn file(&self, parent: NodeId, name: &str, text: &str) -> NodeId {
        let (entry, opened) = self.0.create(&ME, parent, name.as_bytes(), &FILE, WRITE | libc::O_EXCL as u32).unwrap();
        self.write(entry.node, opened.handle, 0, text).unwrap();
        self.0.release(entry.node, opened.handle, None);
        entry.node
    }

    fn write(&self, node: NodeId, handle: HandleId, offset: u64, text: &str) -> Result<usize, Errno> {
        let mut bytes = text.as_bytes().to_vec();
        self.0.write(&ME, node, handle, offset, &[VolatileSlice::from(&mut bytes[..])], WriteKind::default())
    }

    fn read(&self, node: NodeId) -> String {
        let handle = self.0.open(&ME, node, libc::O_RDONLY as u32).unwrap().handle;
        let text = self.read_handle(node, handle);
        self.0.release(node, handle, None);
        text
    }

    fn read_handle(&self, node: NodeId, handle: HandleId) -> String {
        let mut buffer = [0; 100];
        let count = self.0.read(&ME, node, handle, 0, &[VolatileSlice::from(&mut buffer[..])]).unwrap();
        String::from_utf8_lossy(&buffer[..count]).into_owned()
    }

    fn lookup(&self, parent: NodeId, name: &str) -> Result<Entry, Errno> {
        self.0.lookup(&ME, parent, name.as_bytes())
    }

    fn names(&self, node: NodeId, room: usize) -> Vec<String> {
        Listing::whole(&self.0, node, (room, false)).into_iter().map(|(name, _)| name).collect()
    }

    fn rename(&self, from: (NodeId, &str), to: (NodeId, &str), flags: u32) -> Result<(), Errno> {
        self.0.rename(&ME, from.0, from.1.as_bytes(), to.0, to.1.as_bytes(), flags)
    }

    fn links(&self, node: NodeId) -> u32 {
        self.0.attributes(&ME, node, None).unwrap().links
    }
}

#[test]
fn names_are_made_moved_and_removed() {
    let scene = Scene::new();
    let (d, e) = (scene.directory(NodeId::ROOT, "d"), scene.directory(NodeId::ROOT, "e"));
    let inner = scene.directory(d, "inner");
    let a = scene.file(d, "a", "content");
    assert_eq!((scene.links(NodeId::ROOT), scene.links(d), scene.links(a)), (4, 3, 1));
    assert_eq!(scene.names(d, 1), [".", "..", "inner", "a"]);
    assert_eq!(scene.0.parent(&ME, inner).unwrap().node, d);
    scene.rename((d, "inner"), (e, "moved"), 0).unwrap();
    assert_eq!((scene.links(d), scene.links(e), scene.0.parent(&ME, inner).unwrap().node), (2, 3, e));
    assert_eq!(scene.rename((NodeId::ROOT, "e"), (inner, "x"), 0), Err(Errno::INVAL));
    assert_eq!(scene.rename((d, "a"), (e, "moved"), 0), Err(Errno::ISDIR));
    assert_eq!(scene.rename((e, "moved"), (d, "a"), 0), Err(Errno::NOTDIR));
    assert_eq!(scene.rename((NodeId::ROOT, "d"), (NodeId::ROOT, "e"), 0), Err(Errno::NOTEMPTY));
    assert_eq!(scene.rename((d, "a"), (e, "moved"), libc::RENAME_NOREPLACE), Err(Errno::EXIST));
    scene.rename((d, "a"), (e, "moved"), libc::RENAME_EXCHANGE).unwrap();
    assert_eq!((scene.lookup(e, "moved").unwrap().node, scene.lookup(d, "a").unwrap().node), (a, inner));
    assert_eq!((scene.links(d), scene.links(e)), (3, 2));
    assert_eq!(scene.0.link(&ME, a, d, b"again").unwrap().attributes.links, 2);
    assert_eq!(scene.0.link(&ME, inner, d, b"no").unwrap_err(), Errno::PERM);
    scene.0.unlink(&ME, e, b"moved").unwrap();
    assert_eq!((scene.read(a), scene.links(a)), ("content".into(), 1));
    assert_eq!(scene.0.remove_directory(&ME, NodeId::ROOT, b"d"), Err(Errno::NOTEMPTY));
    assert_eq!(scene.0.unlink(&ME, NodeId::ROOT, b"d"), Err(Errno::ISDIR));
    scene.0.remove_directory(&ME, NodeId::ROOT, b"e").unwrap();
    assert_eq!(scene.0.create(&ME, e, b"new", &FILE, WRITE).unwrap_err(), Errno::NOENT);
    assert_eq!(scene.rename((d, "again"), (e, "new"), 0), Err(Errno::NOENT));
    scene.0.make_symlink(&ME, d, b"link", b"somewhere").unwrap();
    let link = scene.lookup(d, "link").unwrap();
    assert_eq!((scene.0.read_link(&ME, link.node).unwrap(), link.attributes.size), (b"somewhere".to_vec(), 9));
}

#[test]
fn a_list_goes_on_where_it_was() {
    let scene = Scene::new();
    for number in 0..20 {
        scene.file(NodeId::ROOT, &number.to_string(), "");
    }
    let root = (NodeId::ROOT, HandleId::default());
    let first = Listing::of(&scene.0, &ME, root, 0, (12, false)).unwrap();
    for number in 5..15 {
        scene.0.unlink(&ME, NodeId::ROOT, number.to_string().as_bytes()).unwrap();
    }
    scene.file(NodeId::ROOT, "late", "");
    let rest = Listing::of(&scene.0, &ME, root, first.next, (100, false)).unwrap();
    assert_eq!(rest.names(), ["15", "16", "17", "18", "19", "late"]);
}

#[test]
fn what_is_open_stays_and_what_is_gone_gives_its_space_back() {
    let scene = Scene::new();
    let a = scene.file(NodeId::ROOT, "a", "still here");
    let handle = scene.0.open(&ME, a, WRITE).unwrap().handle;
    scene.0.set_xattr(&ME, a, b"user.x", b"value", 0, false).unwrap();
    scene.0.unlink(&ME, NodeId::ROOT, b"a").unwrap();
    scene.0.forget(a, u64::MAX);
    assert_eq!(scene.read_handle(a, handle), "still here");
    scene.0.release(a, handle, None);
    assert_eq!(scene.0.attributes(&ME, a, None).unwrap_err(), Errno::STALE);
    assert_eq!(scene.0.space.free(), SPACE);
    let (unnamed, opened) = scene.0.create_unnamed(&ME, NodeId::ROOT, &FILE, WRITE).unwrap();
    scene.write(unnamed.node, opened.handle, 0, "named later").unwrap();
    scene.0.link(&ME, unnamed.node, NodeId::ROOT, b"named").unwrap();
    scene.0.release(unnamed.node, opened.handle, None);
    assert_eq!((scene.read(unnamed.node), scene.links(unnamed.node)), ("named later".into(), 1));
    let (dropped, _) = scene.0.create_unnamed(&ME, NodeId::ROOT, &FILE, WRITE).unwrap();
    scene.0.disconnected();
    assert!(scene.0.attributes(&ME, dropped.node, None).is_err());
    assert_eq!(scene.names(NodeId::ROOT, 9), [".", "..", "named"]);
    let named = scene.lookup(NodeId::ROOT, "named").unwrap();
    scene.0.unlink(&ME, NodeId::ROOT, b"named").unwrap();
    scene.0.forget(named.node, 1);
    assert_eq!(scene.0.space.free(), SPACE);
}

#[test]
fn a_full_memory_is_a_full_disk() {
    let scene = Scene::new();
    let a = scene.file(NodeId::ROOT, "a", "x");
    let handle = scene.0.open(&ME, a, WRITE).unwrap().handle;
    let text = "x".repeat(SPACE as usize);
    let written = scene.write(a, handle, 0, &text).unwrap();
    assert!(written < text.len() && written > text.len() / 2, "{written}");
    assert_eq!(scene.write(a, handle, written as u64, &text), Err(Errno::NOSPC));
    assert_eq!(scene.0.fallocate(&ME, a, handle, 0, 0, SPACE), Err(Errno::NOSPC));
    let filled = (0..).map_while(|number: u32| {
        let name = format!("a file with a rather long name {number}");
        scene.0.make_directory(&ME, NodeId::ROOT, name.as_bytes(), &DIRECTORY).err()
    });
    assert_eq!(filled.last(), None);
    let full = (0..2000u32).find_map(|number| {
        let made = scene.0.make_symlink(&ME, NodeId::ROOT, number.to_string().as_bytes(), &[b'x'; 1000]);
        made.err()
    });
    assert_eq!(full, Some(Errno::NOSPC));
    let set = scene.0.set_xattr(&ME, a, b"user.x", &[1; 60_000], 0, false);
    assert_eq!(set, Err(Errno::NOSPC));
    // An ACL for which there is no room gives its group nothing.
    let users: Vec<u8> = (0..500u32).flat_map(|user| [[2, 0, 7, 0], user.to_le_bytes()]).flatten().collect();
    let mut long = list(6, 7, 0);
    long.splice(12..20, users);
    assert_eq!(scene.0.set_xattr(&ME, a, ACCESS_ACL, &long, 0, false), Err(Errno::NOSPC));
    assert_eq!(scene.0.attributes(&ME, a, None).unwrap().mode & 0o7777, 0o644);
    let cut = SetAttributes { size: Some(0), ..SetAttributes::default() };
    scene.0.set_attributes(&ME, a, None, &cut).unwrap();
    scene.0.set_xattr(&ME, a, b"user.x", &[1; 60_000], 0, false).unwrap();
    assert!(scene.0.statistics(&ME, a).unwrap().free_blocks > 0);
}

/// An ACL that grants the named user 7 everything, with this mask.
fn list(user: u8, mask: u8, other: u8) -> Vec<u8> {
    let entry = |tag: u8, permissions: u8, id: u8| [tag, 0, permissions, 0, id, 0, 0, 0];
    let entries = [entry(1, user, 0), entry(2, 7, 7), entry(4, 5, 0), entry(0x10, mask, 0), entry(0x20, other, 0)];
    [vec![2, 0, 0, 0], entries.concat()].concat()
}

#[test]
fn permissions_and_lists_agree_and_are_inherited() {
    let scene = Scene::new();
    let d = scene.directory(NodeId::ROOT, "d");
    let set = |node, name: &[u8], value: &[u8]| scene.0.set_xattr(&ME, node, name, value, 0, false);
    let mode = |node| scene.0.attributes(&ME, node, None).unwrap().mode & 0o7777;
    set(d, ACCESS_ACL, &list(7, 6, 1)).unwrap();
    assert_eq!(mode(d), 0o761);
    let chmod = SetAttributes { mode: Some(0o2750), ..SetAttributes::default() };
    scene.0.set_attributes(&ME, d, None, &chmod).unwrap();
    assert_eq!(scene.0.get_xattr(&ME, d, ACCESS_ACL).unwrap(), list(7, 5, 0));
    set(d, DEFAULT_ACL, &list(7, 7, 0)).unwrap();
    // The caller's umask does not count there.
    let new = NewNode { umask: 0o077, ..FILE };
    let a = scene.0.create(&Context { gid: 9, ..ME }, d, b"a", &new, WRITE).unwrap().0;
    assert_eq!((mode(a.node), a.attributes.gid), (0o640, scene.0.attributes(&ME, d, None).unwrap().gid));
    assert_eq!(scene.0.get_xattr(&ME, a.node, ACCESS_ACL).unwrap(), list(6, 4, 0));
    let inner = scene.directory(d, "inner");
    assert_eq!((mode(inner) & 0o2000, scene.0.get_xattr(&ME, inner, DEFAULT_ACL).unwrap()), (0o2000, list(7, 7, 0)));
    assert_eq!(set(a.node, DEFAULT_ACL, &list(7, 7, 0)), Err(Errno::ACCESS));
    assert_eq!(set(a.node, ACCESS_ACL, b"no list"), Err(Errno::INVAL));
    let minimal: Vec<u8> =
        [&[2, 0, 0, 0][..], &[1, 0, 6, 0, 0, 0, 0, 0, 4, 0, 4, 0, 0, 0, 0, 0, 0x20, 0, 4, 0, 0, 0, 0, 0]].concat();
    set(a.node, ACCESS_ACL, &minimal).unwrap();
    assert_eq!((mode(a.node), scene.0.list_xattrs(&ME, a.node).unwrap()), (0o644, Vec::new()));
    let plain = scene.0.create(&ME, NodeId::ROOT, b"plain", &new, WRITE).unwrap().0;
    assert_eq!(mode(plain.node), 0o600);
}

#[test]
fn attributes_are_checked_and_privileges_cleared() {
    let scene = Scene::new();
    let a = scene.file(NodeId::ROOT, "a", "text");
    let set = |name: &[u8], flags| scene.0.set_xattr(&ME, a, name, b"v", flags, false);
    let (create, replace) = (libc::XATTR_CREATE as u32, libc::XATTR_REPLACE as u32);
    assert_eq!(set(b"user.x", replace), Err(Errno::NODATA));
    set(b"user.x", create).unwrap();
    assert_eq!(set(b"user.x", create), Err(Errno::EXIST));
    assert_eq!(
        (set(b"user.", 0), set(b"system.x", 0), set(b"", 0)),
        (Err(Errno::OPNOTSUPP), Err(Errno::OPNOTSUPP), Err(Errno::RANGE))
    );
    assert_eq!(set(&[b'x'; 256], 0), Err(Errno::RANGE));
    set(b"security.capability", 0).unwrap();
    assert_eq!(scene.0.list_xattrs(&ME, a).unwrap(), b"security.capability\0user.x\0");
    let privileged = SetAttributes { mode: Some(0o6755), ..SetAttributes::default() };
    scene.0.set_attributes(&ME, a, None, &privileged).unwrap();
    let handle = scene.0.open(&ME, a, WRITE | libc::O_APPEND as u32).unwrap().handle;
    let kind = WriteKind { kill_privileges: true, cached: false };
    let mut more = *b" more";
    scene.0.write(&ME, a, handle, 0, &[VolatileSlice::from(&mut more[..])], kind).unwrap();
    assert_eq!(scene.read(a), "text more");
    assert_eq!(scene.0.attributes(&ME, a, None).unwrap().mode & 0o7777, 0o755);
    assert_eq!(scene.0.list_xattrs(&ME, a).unwrap(), b"user.x\0");
    let reading = scene.0.open(&ME, a, libc::O_RDONLY as u32).unwrap().handle;
    assert_eq!(scene.write(a, reading, 0, "x"), Err(Errno::BADF));
    assert_eq!(scene.0.open(&ME, NodeId::ROOT, WRITE).unwrap_err(), Errno::ISDIR);
    for node in [0, 99, u64::MAX] {
        assert_eq!(scene.0.attributes(&ME, NodeId(node), None).unwrap_err(), Errno::STALE);
    }
    assert_eq!(scene.0.read(&ME, a, HandleId(99), 0, &[]), Err(Errno::BADF));
}

#[test]
fn it_is_an_upper_layer() {
    let lower = MemoryFiles::new(SPACE);
    let (entry, opened) = lower.create(&ME, NodeId::ROOT, b"below", &FILE, WRITE).unwrap();
    let mut text = *b"lower";
    lower
        .write(&ME, entry.node, opened.handle, 0, &[VolatileSlice::from(&mut text[..])], WriteKind::default())
        .unwrap();
    let overlay = Overlay::new(Arc::new(lower), Arc::new(MemoryFiles::new(SPACE)), true).unwrap();
    let below = overlay.lookup(&ME, NodeId::ROOT, b"below").unwrap().node;
    let cut = SetAttributes { size: Some(3), mode: Some(0o600), ..SetAttributes::default() };
    let attributes = overlay.set_attributes(&ME, below, None, &cut).unwrap();
    assert_eq!((attributes.size, attributes.mode & 0o777), (3, 0o600));
    overlay.unlink(&ME, NodeId::ROOT, b"below").unwrap();
    assert_eq!(overlay.lookup(&ME, NodeId::ROOT, b"below").unwrap_err(), Errno::NOENT);
    overlay.make_directory(&ME, NodeId::ROOT, b"below", &DIRECTORY).unwrap();
    assert!(overlay.lookup(&ME, NodeId::ROOT, b"below").is_ok());
}
