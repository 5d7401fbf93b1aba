//! The recorder over a file system in memory.

use super::*;
use crate::MemoryFiles;
use crate::listing::Listing;

const ME: Context<'static> = Context { pid: 77, ..Context::SERVER };
const FILE: NewNode = NewNode { mode: libc::S_IFREG | 0o644, umask: 0, device: 0 };
const DIRECTORY: NewNode = NewNode { mode: libc::S_IFDIR | 0o755, umask: 0, device: 0 };

#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<String>>>);

impl AccessSink for Lines {
    fn record(&self, access: &Access<'_>) {
        assert_eq!(access.pid, ME.pid);
        let to = access.to.map(|to| format!(" -> {}", String::from_utf8_lossy(to))).unwrap_or_default();
        let path = String::from_utf8_lossy(access.path);
        hold(&self.0).push(format!("{} {path}{to}", access.kind.name()));
    }
}

impl Lines {
    fn take(&self) -> Vec<String> {
        std::mem::take(&mut hold(&self.0))
    }
}

fn scene() -> (Recorder<Lines>, Lines) {
    let lines = Lines::default();
    (Recorder::new(Arc::new(MemoryFiles::new(1 << 20)), lines.clone()), lines)
}

#[test]
fn each_access_is_told_by_its_path() {
    let (layer, lines) = scene();
    assert!(layer.lookup(&ME, NodeId::ROOT, b"d").is_err());
    let d = layer.make_directory(&ME, NodeId::ROOT, b"d", &DIRECTORY).unwrap().node;
    let e = layer.make_directory(&ME, d, b"e", &DIRECTORY).unwrap().node;
    let flags = libc::O_RDWR as u32;
    let (a, opened) = layer.create(&ME, e, b"a", &FILE, flags).unwrap();
    assert_eq!((a.valid, a.attributes.valid, layer.absence_valid(d)), Default::default());
    let mut text = *b"text";
    for _ in 0..3 {
        let slices = [VolatileSlice::from(&mut text[..])];
        layer.write(&ME, a.node, opened.handle, 0, &slices, WriteKind::default()).unwrap();
        layer.read(&ME, a.node, opened.handle, 0, &slices).unwrap();
    }
    layer.release(a.node, opened.handle, None);
    let told = ["absent d", "create d", "create d/e", "create d/e/a", "open-write d/e/a", "write d/e/a", "read d/e/a"];
    assert_eq!(lines.take(), told);
    layer.rename(&ME, NodeId::ROOT, b"d", NodeId::ROOT, b"f", 0).unwrap();
    let again = layer.open(&ME, a.node, libc::O_RDONLY as u32).unwrap();
    layer.read(&ME, a.node, again.handle, 0, &[]).unwrap();
    layer.attributes(&ME, a.node, None).unwrap();
    layer.link(&ME, a.node, NodeId::ROOT, b"link").unwrap();
    layer.attributes(&ME, a.node, None).unwrap();
    layer.unlink(&ME, e, b"a").unwrap();
    layer.make_symlink(&ME, e, b"s", b"x").unwrap();
    let s = layer.lookup(&ME, e, b"s").unwrap();
    layer.read_link(&ME, s.node).unwrap();
    layer.set_attributes(&ME, s.node, None, &SetAttributes::default()).unwrap();
    let told = [
        "rename d -> f",
        "open-read f/e/a",
        "read f/e/a",
        "attributes f/e/a",
        "link f/e/a -> link",
        "attributes link",
        "remove f/e/a",
        "create f/e/s",
        "found f/e/s",
        "read-link f/e/s",
        "set-attributes f/e/s",
    ];
    assert_eq!(lines.take(), told);
    layer.rename(&ME, e, b"s", NodeId::ROOT, b"link", libc::RENAME_EXCHANGE).unwrap();
    layer.attributes(&ME, a.node, None).unwrap();
    layer.attributes(&ME, s.node, None).unwrap();
    assert_eq!(lines.take(), ["rename f/e/s -> link", "attributes f/e/s", "attributes link"]);
    assert!(layer.host_file(a.node, again.handle).is_none());
    let writable = layer.open(&ME, a.node, flags).unwrap();
    layer.fallocate(&ME, a.node, writable.handle, 0, 0, 99).unwrap();
    layer.set_xattr(&ME, a.node, b"user.x", b"value", 0, false).unwrap();
    layer.remove_xattr(&ME, a.node, b"user.x").unwrap();
    assert!(layer.remove_xattr(&ME, a.node, b"user.x").is_err());
    let path = "f/e/s";
    let told = ["open-write", "write", "set-attributes", "set-attributes"].map(|access| format!("{access} {path}"));
    assert_eq!(lines.take(), told);
}

#[test]
fn what_a_list_gives_is_known_and_what_is_given_back_is_not() {
    let (layer, lines) = scene();
    for name in [b"a", b"b"] {
        let made = layer.make_directory(&ME, NodeId::ROOT, name, &DIRECTORY).unwrap();
        layer.forget(made.node, 1);
    }
    assert_eq!(hold(&layer.paths).len(), 0);
    lines.take();
    let listed = Listing::of(&layer, &ME, (NodeId::ROOT, HandleId::default()), 0, (100, true)).unwrap().entries;
    assert!(listed.iter().all(|(_, entry)| entry.is_none_or(|entry| entry.valid.is_zero())));
    assert_eq!((listed.len(), hold(&layer.paths).len(), lines.take()), (4, 2, vec!["list ".to_owned()]));
    let a = layer.lookup(&ME, NodeId::ROOT, b"a").unwrap().node;
    let inner = layer.make_directory(&ME, a, b"inner", &DIRECTORY).unwrap().node;
    // The path stays while something lies there.
    layer.forget(a, u64::MAX);
    layer.attributes(&ME, inner, None).unwrap();
    assert_eq!(lines.take(), ["found a", "create a/inner", "attributes a/inner"]);
    layer.forget(inner, u64::MAX);
    assert_eq!(hold(&layer.paths).len(), 1);
    layer.disconnected();
    assert_eq!(hold(&layer.paths).len(), 0);
}
