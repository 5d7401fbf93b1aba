//! The overlay by itself, over a directory of the host.

mod closed;
mod copies;
mod faults;
mod watched;

use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt, symlink};
use std::path::{Path, PathBuf};

use tempfile::TempDir;

use super::*;
use crate::listing::Listing;
use crate::{HostDirectory, HostOptions};

const ME: Context<'static> = Context::SERVER;
const FILE: NewNode = NewNode { mode: libc::S_IFREG | 0o644, umask: 0, device: 0 };
const DIRECTORY: NewNode = NewNode { mode: libc::S_IFDIR | 0o755, umask: 0, device: 0 };
const READ: u32 = libc::O_RDONLY as u32;
const WRITE: u32 = libc::O_RDWR as u32;

struct Scene {
    directory: TempDir,
    overlay: Overlay,
}

impl Scene {
    fn new() -> Scene {
        let directory = tempfile::tempdir().unwrap();
        for name in ["lower", "over"] {
            fs::create_dir(directory.path().join(name)).unwrap();
        }
        fs::create_dir_all(directory.path().join("lower/d/e")).unwrap();
        for (path, content) in [("a", "lower a"), ("d/b", "lower b"), ("d/e/c", "lower c")] {
            fs::write(directory.path().join("lower").join(path), content).unwrap();
        }
        let overlay = overlay(directory.path());
        Scene { directory, overlay }
    }

    /// The same layers, as a later server has them.
    fn again(self) -> Scene {
        let overlay = overlay(self.directory.path());
        Scene { overlay, ..self }
    }

    fn upper(&self, path: &str) -> PathBuf {
        self.directory.path().join("over/upper").join(path)
    }

    fn try_node(&self, path: &str) -> Result<NodeId, Errno> {
        path.split('/').try_fold(NodeId::ROOT, |parent, name| {
            if name.is_empty() { Ok(parent) } else { Ok(self.overlay.lookup(&ME, parent, name.as_bytes())?.node) }
        })
    }

    fn node(&self, path: &str) -> NodeId {
        self.try_node(path).unwrap()
    }

    fn read(&self, path: &str) -> String {
        let node = self.node(path);
        let handle = self.overlay.open(&ME, node, READ).unwrap().handle;
        let text = self.read_handle(node, handle);
        self.overlay.release(node, handle, None);
        text
    }

    fn read_handle(&self, node: NodeId, handle: HandleId) -> String {
        let mut buffer = [0; 100];
        let slices = [VolatileSlice::from(&mut buffer[..])];
        let count = self.overlay.read(&ME, node, handle, 0, &slices).unwrap();
        String::from_utf8_lossy(&buffer[..count]).into_owned()
    }

    fn write(&self, node: NodeId, handle: HandleId, text: &str) {
        let mut bytes = text.as_bytes().to_vec();
        let slices = [VolatileSlice::from(&mut bytes[..])];
        assert_eq!(self.overlay.write(&ME, node, handle, 0, &slices, WriteKind::default()), Ok(text.len()));
    }

    fn create(&self, parent: &str, name: &str, text: &str) -> NodeId {
        let (entry, opened) =
            self.overlay.create(&ME, self.node(parent), name.as_bytes(), &FILE, WRITE | libc::O_EXCL as u32).unwrap();
        self.write(entry.node, opened.handle, text);
        self.overlay.release(entry.node, opened.handle, None);
        entry.node
    }

    fn names(&self, path: &str) -> Vec<String> {
        let node = self.node(path);
        let listed = Listing::whole(&self.overlay, node, (2, true));
        listed.iter().filter_map(|(_, entry)| *entry).for_each(|entry| self.overlay.forget(entry.node, 1));
        let mut all: Vec<String> = listed.into_iter().map(|(name, _)| name).collect();
        all.retain(|name| !name.starts_with('.'));
        all.sort();
        all
    }

    fn unlink(&self, parent: &str, name: &str) -> Result<(), Errno> {
        self.overlay.unlink(&ME, self.node(parent), name.as_bytes())
    }

    fn rename(&self, from: (&str, &str), to: (&str, &str), flags: u32) -> Result<(), Errno> {
        let (source, target) = (self.node(from.0), self.node(to.0));
        self.overlay.rename(&ME, source, from.1.as_bytes(), target, to.1.as_bytes(), flags)
    }
}

fn overlay(directory: &Path) -> Overlay {
    let layer = |name: &str, read_only| {
        let options = HostOptions { changes: crate::Changes::Guest, read_only, ..HostOptions::default() };
        Arc::new(HostDirectory::new(&directory.join(name), options).unwrap())
    };
    Overlay::new(layer("lower", true), layer("over", false), rustix::process::geteuid().is_root()).unwrap()
}

#[test]
fn what_is_changed_is_kept_above_and_what_is_below_stays() {
    let scene = Scene::new();
    assert_eq!(scene.read("d/e/c"), "lower c");
    let c = scene.node("d/e/c");
    let before = scene.overlay.attributes(&ME, c, None).unwrap();
    let reading = scene.overlay.open(&ME, c, READ).unwrap().handle;
    let handle = scene.overlay.open(&ME, c, WRITE).unwrap().handle;
    scene.write(c, handle, "upper");
    // A program that had it open before sees it too, under the same number.
    assert_eq!(scene.read_handle(c, reading), "upper c");
    assert_eq!(scene.overlay.attributes(&ME, c, None).unwrap().inode, before.inode);
    assert_eq!(scene.node("d/e/c"), c);
    assert_eq!(fs::read_to_string(scene.upper("d/e/c")).unwrap(), "upper c");
    assert_eq!(fs::read_to_string(scene.directory.path().join("lower/d/e/c")).unwrap(), "lower c");
    scene.create("d", "new", "new");
    assert_eq!(scene.names("d"), ["b", "e", "new"]);
    let scene = scene.again();
    assert_eq!(
        (scene.read("d/e/c"), scene.read("d/new"), scene.read("a")),
        ("upper c".into(), "new".into(), "lower a".into())
    );
}

#[test]
fn a_file_that_parts_from_its_other_names_has_another_number() {
    let mut scene = Scene::new();
    let lower = scene.directory.path().join("lower");
    fs::hard_link(lower.join("a"), lower.join("d/a")).unwrap();
    symlink("a", lower.join("l")).unwrap();
    fs::hard_link(lower.join("l"), lower.join("d/l")).unwrap();
    let numbers = |scene: &Scene, file: &str| -> (u64, u64) {
        let number = |path: &str| scene.overlay.attributes(&ME, scene.node(path), None).unwrap().inode;
        (number(file), number(&format!("d/{file}")))
    };
    let is_one = |scene: &Scene, file| matches!(numbers(scene, file), (one, other) if one == other);
    assert!(is_one(&scene, "a") && is_one(&scene, "l"));
    let a = scene.node("a");
    let handle = scene.overlay.open(&ME, a, WRITE).unwrap().handle;
    scene.write(a, handle, "upper");
    let set = SetAttributes { uid: Some(1), ..SetAttributes::default() };
    scene.overlay.set_attributes(&ME, scene.node("l"), None, &set).unwrap();
    let told = ["a", "l"].map(|file| numbers(&scene, file));
    // With several links again, programs would take both for one file.
    scene.overlay.link(&ME, a, scene.node("d"), b"linked").unwrap();
    assert_eq!(scene.overlay.attributes(&ME, scene.node("d/linked"), None).unwrap().inode, told[0].0);
    assert!(!is_one(&scene, "a") && !is_one(&scene, "l"));
    scene = scene.again();
    assert_eq!(["a", "l"].map(|file| numbers(&scene, file)), told);
}

#[test]
fn attributes_go_up_with_a_file() {
    let scene = Scene::new();
    let lower = scene.directory.path().join("lower/a");
    let old = std::time::UNIX_EPOCH + Duration::from_secs(1_000_000);
    fs::File::options().write(true).open(&lower).unwrap().set_modified(old).unwrap();
    rustix::fs::setxattr(&lower, "user.x", b"kept", rustix::fs::XattrFlags::empty()).unwrap();
    let a = scene.node("a");
    let set = SetAttributes { mode: Some(0o4711), ..SetAttributes::default() };
    let attributes = scene.overlay.set_attributes(&ME, a, None, &set).unwrap();
    assert_eq!((attributes.mode & 0o7777, attributes.mtime.seconds), (0o4711, 1_000_000));
    assert_eq!(fs::metadata(scene.upper("a")).unwrap().mode() & 0o7777, 0o4711);
    assert_eq!(scene.overlay.get_xattr(&ME, a, b"user.x").unwrap(), b"kept");
    assert_eq!(scene.overlay.list_xattrs(&ME, a).unwrap(), b"user.x\0");
    assert_eq!(scene.overlay.set_xattr(&ME, a, b"user.overlay.opaque", b"y", 0, false), Err(Errno::PERM));
    let cut = SetAttributes { size: Some(3), ..SetAttributes::default() };
    scene.overlay.set_attributes(&ME, scene.node("d/b"), None, &cut).unwrap();
    assert_eq!(scene.read("d/b"), "low");
}

#[test]
fn what_overlayfs_left_below_is_refused() {
    if !rustix::process::geteuid().is_root() {
        return eprintln!("skipped: what_overlayfs_left_below_is_refused: only root sets trusted attributes");
    }
    let mut scene = Scene::new();
    scene.create("", "content", "above");
    scene.overlay.make_directory(&ME, NodeId::ROOT, b"moved", &DIRECTORY).unwrap();
    // An overlayfs mount with metacopy=on and redirect_dir=on leaves these.
    let set = |path: &str, name: &str, value: &[u8]| {
        let name = format!("trusted.overlay.{name}");
        rustix::fs::setxattr(scene.upper(path), name, value, rustix::fs::XattrFlags::empty()).unwrap();
    };
    set("content", "metacopy", b"");
    set("moved", "redirect", b"d");
    scene = scene.again();
    for path in ["content", "moved"] {
        assert_eq!(scene.try_node(path), Err(Errno::OPNOTSUPP), "{path}");
    }
    assert_eq!(scene.read("a"), "lower a");
}

#[test]
fn a_directory_above_is_not_merged_with_a_later_one_of_another_user() {
    if !rustix::process::geteuid().is_root() {
        println!(
            "skipped: a_directory_above_is_not_merged_with_a_later_one_of_another_user: only root gives files to others"
        );
        return;
    }
    let mut scene = Scene::new();
    let (d, e) = (scene.directory.path().join("lower/d"), scene.directory.path().join("lower/d/e"));
    std::os::unix::fs::chown(&e, Some(1), Some(1)).unwrap();
    scene.create("d/e", "new", "new");
    scene = scene.again();
    assert_eq!(
        (scene.names("d"), scene.names("d/e")),
        (vec!["b".to_owned(), "e".to_owned()], vec!["c".to_owned(), "new".to_owned()])
    );
    fs::rename(&e, d.join("before")).unwrap();
    fs::create_dir(&e).unwrap();
    fs::write(e.join("private"), "").unwrap();
    // The same user may have made the directory anew.
    std::os::unix::fs::chown(&e, Some(1), Some(1)).unwrap();
    scene = scene.again();
    assert_eq!(scene.names("d/e"), ["new", "private"]);
    std::os::unix::fs::chown(&e, Some(2), Some(1)).unwrap();
    scene = scene.again();
    assert_eq!(scene.names("d/e"), ["new"]);
    assert_eq!(scene.try_node("d/e/private"), Err(Errno::NOENT));
    let names = scene.overlay.list_xattrs(&ME, scene.node("d/e")).unwrap();
    assert!(names.is_empty(), "{}", String::from_utf8_lossy(&names));
}

#[test]
fn what_is_removed_stays_removed() {
    let scene = Scene::new();
    scene.unlink("", "a").unwrap();
    assert_eq!(scene.try_node("a").unwrap_err(), Errno::NOENT);
    assert!(fs::symlink_metadata(scene.upper("a")).unwrap().file_type().is_char_device());
    assert_eq!(scene.unlink("", "a"), Err(Errno::NOENT));
    assert_eq!(scene.overlay.remove_directory(&ME, NodeId::ROOT, b"d"), Err(Errno::NOTEMPTY));
    scene.unlink("d/e", "c").unwrap();
    let d = scene.node("d");
    scene.overlay.remove_directory(&ME, d, b"e").unwrap();
    assert_eq!(scene.names("d"), ["b"]);
    let scene = scene.again();
    assert_eq!((scene.names(""), scene.names("d")), (vec!["d".to_owned()], vec!["b".to_owned()]));
    // What is made in its place is not merged with what was below.
    scene.overlay.make_directory(&ME, scene.node("d"), b"e", &DIRECTORY).unwrap();
    assert!(scene.names("d/e").is_empty());
    scene.create("", "a", "new");
    let scene = scene.again();
    assert!(scene.names("d/e").is_empty());
    assert_eq!(scene.read("a"), "new");
}

#[test]
fn a_name_moves_and_covers_what_is_below() {
    let scene = Scene::new();
    scene.rename(("", "a"), ("d", "b"), 0).unwrap();
    assert_eq!((scene.names(""), scene.read("d/b")), (vec!["d".to_owned()], "lower a".to_owned()));
    assert_eq!(scene.rename(("", "d"), ("", "f"), 0), Err(Errno::XDEV));
    scene.overlay.make_directory(&ME, NodeId::ROOT, b"new", &DIRECTORY).unwrap();
    scene.create("new", "x", "x");
    assert_eq!(scene.rename(("", "new"), ("d", "e"), 0), Err(Errno::NOTEMPTY));
    scene.unlink("d/e", "c").unwrap();
    scene.rename(("", "new"), ("d", "e"), 0).unwrap();
    assert_eq!(scene.names("d/e"), ["x"]);
    let scene = scene.again();
    assert_eq!(
        (scene.names(""), scene.names("d/e"), scene.read("d/b")),
        (vec!["d".into()], vec!["x".into()], "lower a".into())
    );
    scene.create("", "y", "y");
    scene.rename(("", "y"), ("d", "b"), libc::RENAME_EXCHANGE).unwrap();
    assert_eq!((scene.read("y"), scene.read("d/b")), ("lower a".into(), "y".into()));
    assert_eq!(scene.rename(("", "y"), ("d", "b"), libc::RENAME_NOREPLACE), Err(Errno::EXIST));
    assert_eq!(scene.rename(("", "y"), ("d", "e"), 0), Err(Errno::ISDIR));
    assert_eq!(scene.rename(("d", "e"), ("", "y"), 0), Err(Errno::NOTDIR));
}

#[test]
fn links_and_symbolic_links_are_made_and_brought_up() {
    let scene = Scene::new();
    symlink("d/b", scene.directory.path().join("lower/link")).unwrap();
    assert_eq!(scene.overlay.read_link(&ME, scene.node("link")).unwrap(), b"d/b");
    scene.rename(("", "link"), ("d", "link"), 0).unwrap();
    assert_eq!(scene.overlay.read_link(&ME, scene.node("d/link")).unwrap(), b"d/b");
    let a = scene.node("a");
    let linked = scene.overlay.link(&ME, a, scene.node("d"), b"a2").unwrap();
    assert_eq!((linked.node, linked.attributes.links), (a, 2));
    scene.unlink("", "a").unwrap();
    assert_eq!(scene.read("d/a2"), "lower a");
    assert_eq!(scene.overlay.link(&ME, a, NodeId::ROOT, b"d").unwrap_err(), Errno::EXIST);
    scene.overlay.make_symlink(&ME, NodeId::ROOT, b"s", b"anywhere").unwrap();
    assert_eq!(scene.overlay.read_link(&ME, scene.node("s")).unwrap(), b"anywhere");
    let whiteout = NewNode { mode: libc::S_IFCHR, umask: 0, device: 0 };
    assert_eq!(scene.overlay.make_node(&ME, NodeId::ROOT, b"w", &whiteout).unwrap_err(), Errno::PERM);
}

#[test]
fn a_removed_file_stays_open() {
    let scene = Scene::new();
    let a = scene.node("a");
    let handle = scene.overlay.open(&ME, a, READ).unwrap().handle;
    let b = scene.node("d/b");
    let writing = scene.overlay.open(&ME, b, WRITE).unwrap().handle;
    scene.unlink("", "a").unwrap();
    scene.unlink("d", "b").unwrap();
    assert_eq!(scene.read_handle(a, handle), "lower a");
    scene.write(b, writing, "x");
    assert_eq!(scene.read_handle(b, writing), "xower b");
    for node in [a, b] {
        assert_eq!(scene.overlay.attributes(&ME, node, None).unwrap().links, 0);
    }
}

#[test]
fn what_is_given_back_is_gone() {
    let scene = Scene::new();
    for path in ["a", "d/e/c", "d/b"] {
        scene.read(path);
    }
    scene.create("d", "new", "x");
    scene.rename(("d", "new"), ("d", "b"), 0).unwrap();
    scene.unlink("d/e", "c").unwrap();
    assert!(hold(&scene.overlay.table).len() > 4);
    for node in 2..40 {
        for generation in 0..9u64 {
            scene.overlay.forget(NodeId(generation << 32 | node), u64::MAX);
        }
    }
    assert_eq!(hold(&scene.overlay.table).len(), 1);
    for node in [0, 99, u64::MAX] {
        assert_eq!(scene.overlay.attributes(&ME, NodeId(node), None).unwrap_err(), Errno::STALE);
        assert_eq!(scene.overlay.lookup(&ME, NodeId(node), b"x").unwrap_err(), Errno::STALE);
    }
    assert_eq!(scene.overlay.lookup(&ME, NodeId::ROOT, b"..").unwrap_err(), Errno::INVAL);
    assert_eq!(scene.names("d"), ["b", "e"]);
    scene.overlay.disconnected();
    assert_eq!(scene.names("d"), ["b", "e"]);
}

#[test]
fn a_directory_that_cannot_hide_what_was_there_is_not_made() {
    use rustix::thread::{CapabilitySet, CapabilitySets, capabilities, set_capabilities};
    if !rustix::process::geteuid().is_root() {
        println!("skipped: a_directory_that_cannot_hide_what_was_there_is_not_made: needs root");
        return;
    }
    let Scene { directory, .. } = Scene::new();
    let layer =
        |name: &str| Arc::new(HostDirectory::new(&directory.path().join(name), HostOptions::default()).unwrap());
    let overlay = Overlay::new(layer("lower"), layer("over"), true).unwrap();
    let scene = Scene { directory, overlay };
    scene.unlink("d/e", "c").unwrap();
    scene.overlay.remove_directory(&ME, scene.node("d"), b"e").unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // Of this thread alone.
            let CapabilitySets { effective, permitted, inheritable } = capabilities(None).unwrap();
            let effective = effective - CapabilitySet::SYS_ADMIN;
            set_capabilities(None, CapabilitySets { effective, permitted, inheritable }).unwrap();
            let made = scene.overlay.make_directory(&ME, scene.node("d"), b"e", &DIRECTORY);
            assert_eq!(made.err(), Some(Errno::PERM));
        });
    });
    assert_eq!(scene.names("d"), ["b"]);
    scene.overlay.make_directory(&ME, scene.node("d"), b"e", &DIRECTORY).unwrap();
    assert!(scene.names("d/e").is_empty());
}

#[test]
fn what_others_write_is_seen_as_soon_as_what_the_host_changes() {
    let second = Duration::from_secs(1);
    let day = second * 60 * 60 * 24;
    for (changes, valid, caching) in [
        (crate::Changes::Host, second, crate::Caching::Fresh),
        (crate::Changes::Guest, day, crate::Caching::Keep),
        (crate::Changes::None, day, crate::Caching::Keep),
    ] {
        let Scene { directory, overlay } = Scene::new();
        let scene = Scene { directory, overlay: overlay.changed_by(changes) };
        let new = scene.overlay.make_directory(&ME, NodeId::ROOT, b"new", &DIRECTORY).unwrap();
        let (made, opened) = scene.overlay.create(&ME, new.node, b"made", &FILE, WRITE).unwrap();
        assert_eq!(opened.caching, caching);
        assert_eq!(scene.overlay.open(&ME, made.node, READ).unwrap().caching, caching);
        assert_eq!(scene.overlay.open(&ME, scene.node("a"), WRITE).unwrap().caching, caching);
        let found = ["new", "new/made", "a", "d"].map(|path| {
            let (parent, name) = path.rsplit_once('/').unwrap_or(("", path));
            scene.overlay.lookup(&ME, scene.node(parent), name.as_bytes()).unwrap()
        });
        for entry in [[new, made].as_slice(), &found].concat() {
            assert_eq!((entry.valid, entry.attributes.valid), (valid, valid));
            assert_eq!(scene.overlay.attributes(&ME, entry.node, None).unwrap().valid, valid);
        }
        assert_eq!([new.node, scene.node("d")].map(|node| scene.overlay.absence_valid(node)), [valid; 2]);
    }
}

/// An overlay whose files are used without being opened, with its upper layer in a directory and in memory.
fn unopened() -> [Scene; 2] {
    [false, true].map(|in_memory| {
        let Scene { directory, .. } = Scene::new();
        let layer = |name: &str, read_only| {
            let options = HostOptions {
                changes: crate::Changes::Guest,
                read_only,
                without_opening: true,
                ..HostOptions::default()
            };
            Arc::new(HostDirectory::new(&directory.path().join(name), options).unwrap())
        };
        let upper: Arc<dyn FileSystem> = match in_memory {
            true => Arc::new(crate::MemoryFiles::new(1 << 24).without_opening()),
            false => layer("over", false),
        };
        let overlay = Overlay::new(layer("lower", true), upper, rustix::process::geteuid().is_root()).unwrap();
        Scene { directory, overlay: overlay.without_opening() }
    })
}

#[test]
fn files_are_used_without_being_opened() {
    for scene in unopened() {
        let (overlay, no_handle) = (&scene.overlay, HandleId::default());
        let (a, c) = (scene.node("a"), scene.node("d/e/c"));
        assert_eq!(overlay.open(&ME, a, READ), Err(Errno::NOSYS));
        assert_eq!(scene.read_handle(a, no_handle), "lower a");
        scene.write(a, no_handle, "upper");
        assert_eq!(scene.read_handle(a, no_handle), "upper a");
        assert_eq!(fs::read_to_string(scene.directory.path().join("lower/a")).unwrap(), "lower a");
        assert_eq!(overlay.fsync(&ME, a, no_handle, false), Ok(()));
        // A file that is not written has nothing in the upper layer.
        assert_eq!(overlay.fsync(&ME, c, no_handle, false), Ok(()));
        assert_eq!(overlay.seek(&ME, c, no_handle, 0, libc::SEEK_HOLE as u32), Ok(7));
        assert_eq!(overlay.copy_range(&ME, (c, no_handle, 0), (a, no_handle, 0), 5), Err(Errno::XDEV));
        assert_eq!(scene.overlay.layers(c).unwrap().upper, None);
        assert_eq!(overlay.fallocate(&ME, c, no_handle, 0, 0, 10), Ok(()));
        assert_eq!(overlay.attributes(&ME, c, None).unwrap().size, 10);
        let (made, opened) = overlay.create(&ME, NodeId::ROOT, b"made", &FILE, WRITE | libc::O_EXCL as u32).unwrap();
        assert_eq!(opened.handle, no_handle);
        scene.write(made.node, no_handle, "made");
        let (unnamed, _) = overlay.create_unnamed(&ME, NodeId::ROOT, &FILE, WRITE).unwrap();
        scene.write(unnamed.node, no_handle, "named later");
        overlay.link(&ME, unnamed.node, NodeId::ROOT, b"linked").unwrap();
        assert_eq!(scene.read_handle(scene.node("linked"), no_handle), "named later");
        for nothing in [NodeId::ROOT, scene.node("d"), NodeId(99)] {
            let wrong = if nothing == NodeId(99) { Errno::STALE } else { Errno::ISDIR };
            let data = &mut [0u8; 1][..];
            let slices = [VolatileSlice::from(data)];
            assert_eq!(overlay.read(&ME, nothing, no_handle, 0, &slices), Err(wrong));
            let written = overlay.write(&ME, nothing, no_handle, 0, &slices, WriteKind::default());
            assert_eq!(written, Err(wrong));
        }
    }
}

#[test]
fn a_removed_file_is_used_without_being_opened() {
    for scene in unopened() {
        let (overlay, no_handle) = (&scene.overlay, HandleId::default());
        let (a, b, c) = (scene.node("a"), scene.node("d/b"), scene.node("d/e/c"));
        scene.write(a, no_handle, "upper");
        scene.unlink("", "a").unwrap();
        scene.unlink("d/e", "c").unwrap();
        overlay.remove_directory(&ME, scene.node("d"), b"e").unwrap();
        // What takes its place is another file.
        scene.create("", "new", "new");
        scene.rename(("", "new"), ("d", "b"), 0).unwrap();
        scene.create("", "a", "another");
        assert_eq!([a, b, c].map(|node| scene.read_handle(node, no_handle)), ["upper a", "lower b", "lower c"]);
        for (node, text) in [(a, "UPPER a"), (b, "UPPER b"), (c, "UPPER c")] {
            scene.write(node, no_handle, "UPPER");
            assert_eq!(scene.read_handle(node, no_handle), text);
            assert_eq!(overlay.attributes(&ME, node, None).unwrap().links, 0);
        }
        assert_eq!(
            (scene.read_handle(scene.node("a"), no_handle).as_str(), scene.names("d")),
            ("another", vec!["b".into()])
        );
        assert_eq!(scene.read_handle(scene.node("d/b"), no_handle), "new");
    }
}

#[test]
fn a_removed_file_that_is_brought_up_is_gone_when_nobody_knows_it() {
    let Scene { directory, overlay } = Scene::new();
    drop(overlay);
    let lower = HostDirectory::new(&directory.path().join("lower"), HostOptions::default()).unwrap();
    let overlay = Overlay::new(Arc::new(lower), Arc::new(crate::MemoryFiles::new(1 << 24)), true).unwrap();
    let scene = Scene { directory, overlay };
    let free = || scene.overlay.statistics(&ME, NodeId::ROOT).unwrap().free_blocks;
    fs::write(scene.directory.path().join("lower/a"), [1; 1 << 20]).unwrap();
    let a = scene.node("a");
    let reading = scene.overlay.open(&ME, a, READ).unwrap().handle;
    scene.unlink("", "a").unwrap();
    let before = free();
    let set = SetAttributes { mode: Some(0o604), ..SetAttributes::default() };
    let attributes = scene.overlay.set_attributes(&ME, a, None, &set).unwrap();
    assert_eq!((attributes.mode & 0o7777, attributes.links, attributes.size), (0o604, 0, 1 << 20));
    assert!(free() <= before - 256);
    assert_eq!(scene.read_handle(a, reading), "\u{1}".repeat(100));
    scene.overlay.release(a, reading, None);
    assert_eq!(scene.overlay.attributes(&ME, a, None).unwrap().mode & 0o7777, 0o604);
    scene.overlay.forget(a, u64::MAX);
    assert_eq!(free(), before);
    assert_eq!(scene.try_node("a"), Err(Errno::NOENT));
}

#[test]
fn only_so_many_files_are_open() {
    let Scene { directory, overlay } = Scene::new();
    drop(overlay);
    // Files of the lower layer need no open, so its own limit is never reached.
    let lower = HostOptions { changes: crate::Changes::None, ..HostOptions::default() };
    let lower = HostDirectory::new(&directory.path().join("lower"), lower).unwrap();
    let overlay = Overlay::new(Arc::new(lower), Arc::new(crate::MemoryFiles::new(1 << 20)), true).unwrap();
    let a = overlay.lookup(&ME, NodeId::ROOT, b"a").unwrap().node;
    let first = overlay.open(&ME, a, READ).unwrap().handle;
    let refused = (0..2 << 20).find_map(|_| overlay.open(&ME, a, READ).err());
    assert_eq!(refused, Some(Errno::NFILE));
    overlay.release(a, first, None);
    assert!(overlay.open(&ME, a, READ).is_ok());
}

#[test]
fn a_client_is_told_again_of_what_it_has_read_or_written_in_a_directory_that_it_opens() {
    let scene = Scene::new();
    for name in ["x", "y", "z"] {
        scene.create("d", name, "above");
    }
    let scene = scene.again();
    let scene = Scene { overlay: scene.overlay.opening_directories(), ..scene };
    let d = scene.node("d");
    let open = || scene.overlay.open_directory(&ME, d).map(|opened| opened.caching);
    // Lists without opening, as a client does that has opened the directory before.
    let told = || {
        let (mut told, mut next) = (Vec::new(), 0);
        loop {
            let part = Listing::of(&scene.overlay, &ME, (d, HandleId::default()), next, (3, true)).unwrap();
            if part.entries.is_empty() {
                told.sort();
                return told;
            }
            next = part.next;
            told.extend(part.entries.into_iter().filter_map(|(name, entry)| Some((name, entry?.attributes.size))));
        }
    };
    assert_eq!((told().len(), told().len(), open()), (5, 0, Ok(Caching::Keep)));
    for name in ["d/b", "d/x", "d/y"] {
        scene.read(name);
    }
    assert_eq!(open(), Ok(Caching::Fresh));
    assert_eq!(told(), [("b".to_owned(), 7), ("x".to_owned(), 5), ("y".to_owned(), 5)]);
    assert_eq!((open(), told().len()), (Ok(Caching::Keep), 0));
    // After a copy-up, listings report the attributes of the copy.
    for name in ["b", "x", "y", "z"] {
        let node = scene.node(&format!("d/{name}"));
        let handle = scene.overlay.open(&ME, node, WRITE).unwrap().handle;
        scene.write(node, handle, "much longer");
    }
    assert_eq!(open(), Ok(Caching::Fresh));
    assert_eq!(told().iter().map(|(_, size)| *size).collect::<Vec<_>>(), [11; 4]);
    // Without `opening_directories`, directories need no open.
    assert!(matches!(scene.again().overlay.open_directory(&ME, NodeId::ROOT), Err(Errno::NOSYS)));
}

#[test]
fn a_file_that_was_brought_up_gets_further_names() {
    let scene = Scene::new();
    let made = scene.overlay.make_directory(&ME, NodeId::ROOT, b"made", &DIRECTORY).unwrap().node;
    let b = scene.node("d/b");
    let set = SetAttributes { mode: Some(0o700), ..SetAttributes::default() };
    // A kernel refuses to link a file that it was told has no names.
    assert_eq!(scene.overlay.set_attributes(&ME, b, None, &set).unwrap().links, 1);
    let linked = scene.overlay.link(&ME, b, made, b"hard").unwrap();
    assert_eq!((linked.node, linked.attributes.links), (b, 2));
    assert_eq!(scene.read("made/hard"), "lower b");
}
