//! Copy-up: who owns the copies, when they are durable, and which calls wait for them.

use std::os::unix::fs::PermissionsExt;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Condvar, mpsc};

use super::watched::Watched;
use super::*;
use crate::{Changes, SetTime};

const ACCESS_ACL: &str = "system.posix_acl_access";
const DEFAULT_ACL: &str = "system.posix_acl_default";

fn layer(scene: &TempDir, name: &str) -> Arc<dyn FileSystem> {
    layer_changed_by(Changes::Guest, scene, name)
}

fn layer_changed_by(changes: Changes, scene: &TempDir, name: &str) -> Arc<dyn FileSystem> {
    let options = HostOptions { changes, ..HostOptions::default() };
    Arc::new(HostDirectory::new(&scene.path().join(name), options).unwrap())
}

fn scene_over(directory: TempDir, lower: Arc<dyn FileSystem>, upper: Arc<dyn FileSystem>) -> Scene {
    let overlay = Overlay::new(lower, upper, rustix::process::geteuid().is_root()).unwrap();
    Scene { directory, overlay }
}

/// A list that lets user 5 do what `permissions` say.
fn list(permissions: u16) -> Vec<u8> {
    let entries =
        [(1u16, 7u16, u32::MAX), (2, permissions, 5), (4, 0, u32::MAX), (16, permissions, u32::MAX), (32, 0, u32::MAX)];
    let mut list = 2u32.to_le_bytes().to_vec();
    for (tag, permissions, id) in entries {
        list.extend(tag.to_le_bytes().into_iter().chain(permissions.to_le_bytes()).chain(id.to_le_bytes()));
    }
    list
}

fn set(path: &Path, name: &str, value: &[u8]) {
    rustix::fs::setxattr(path, name, value, rustix::fs::XattrFlags::empty()).unwrap();
}

fn get(path: &Path, name: &str) -> Option<Vec<u8>> {
    let mut value = vec![0; 1000];
    let length = rustix::fs::getxattr(path, name, &mut value[..]).ok()?;
    Some(value[..length].to_vec())
}

fn chmod(scene: &Scene, path: &str, mode: u32) -> Result<Attributes, Errno> {
    let set = SetAttributes { mode: Some(mode), ..SetAttributes::default() };
    scene.overlay.set_attributes(&ME, scene.node(path), None, &set)
}

#[test]
fn a_copy_gives_nobody_more_rights_than_its_original() {
    let Scene { directory, .. } = Scene::new();
    let lower = directory.path().join("lower");
    // A default ACL of the upper layer's directory, which new files there inherit, grants rights to user 5.
    set(&directory.path().join("over"), DEFAULT_ACL, &list(7));
    fs::remove_dir_all(directory.path().join("over/upper")).unwrap();
    fs::remove_dir_all(directory.path().join("over/work")).unwrap();
    for (path, mode) in [("a", 0o600), ("d", 0o700), ("d/b", 0o640)] {
        fs::set_permissions(lower.join(path), fs::Permissions::from_mode(mode)).unwrap();
    }
    set(&lower.join("d/b"), ACCESS_ACL, &list(4));
    set(&lower.join("d/e"), DEFAULT_ACL, &list(5));
    let scene = {
        let layers = (layer(&directory, "lower"), layer(&directory, "over"));
        scene_over(directory, layers.0, layers.1)
    };
    let touch = SetAttributes { mtime: Some(SetTime::Now), ..SetAttributes::default() };
    for path in ["a", "d", "d/b", "d/e", "d/e/c"] {
        scene.overlay.set_attributes(&ME, scene.node(path), None, &touch).unwrap();
        let (original, copy) = (lower.join(path), scene.upper(path));
        let mode = |path: &Path| fs::metadata(path).unwrap().mode();
        assert_eq!(mode(&copy), mode(&original), "{path}");
        for name in [ACCESS_ACL, DEFAULT_ACL] {
            assert_eq!(get(&copy, name), get(&original, name), "{path}: {name}");
        }
    }
    assert_eq!(get(&scene.upper(""), DEFAULT_ACL), None);
}

#[test]
fn a_list_that_cannot_be_kept_is_not_dropped() {
    let Scene { directory, .. } = Scene::new();
    set(&directory.path().join("lower/a"), ACCESS_ACL, &list(4));
    let upper = Watched::over(layer(&directory, "over"), |call, name| match call {
        "set attribute" if name == ACCESS_ACL.as_bytes() => Err(Errno::OPNOTSUPP),
        _ => Ok(()),
    });
    let lower = layer(&directory, "lower");
    let scene = scene_over(directory, lower, upper);
    assert_eq!(chmod(&scene, "a", 0o644), Err(Errno::OPNOTSUPP));
    assert!(!scene.upper("a").exists());
    assert!(chmod(&scene, "d/b", 0o600).is_ok());
}

#[test]
fn removing_a_list_that_is_not_there_succeeds_as_on_a_disk() {
    let scene = Scene::new();
    let remove = |path: &str, name: &str| scene.overlay.remove_xattr(&ME, scene.node(path), name.as_bytes());
    for list in [ACCESS_ACL, DEFAULT_ACL] {
        assert_eq!(remove("d", list), Ok(()), "{list}");
    }
    assert_eq!(remove("d", "user.none"), Err(Errno::NODATA));
    assert!(!scene.upper("d").exists());
    set(&scene.directory.path().join("lower/d/b"), ACCESS_ACL, &list(4));
    assert_eq!(remove("d/b", ACCESS_ACL), Ok(()));
    assert_eq!(get(&scene.upper("d/b"), ACCESS_ACL), None);
    assert!(scene.upper("d/b").exists());
}

#[test]
fn a_copy_is_durable_before_it_hides_its_original() {
    let Scene { directory, .. } = Scene::new();
    let calls = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&calls);
    let upper = Watched::over(layer(&directory, "over"), move |call, _| {
        hold(&seen).push(call);
        Ok(())
    });
    let lower = layer(&directory, "lower");
    let scene = scene_over(directory, lower, upper);
    let a = scene.node("a");
    let reading = scene.overlay.open(&ME, a, READ).unwrap().handle;
    assert_eq!(scene.overlay.fsync(&ME, a, reading, false), Ok(()));
    chmod(&scene, "a", 0o640).unwrap();
    let order = |calls: &[&str]| {
        let at = |wanted: &str| calls.iter().position(|call| *call == wanted);
        (at("fsync"), at("link"))
    };
    let (synced, linked) = order(&hold(&calls));
    assert!(synced.is_some() && synced < linked, "{:?}", hold(&calls));
    // Also through a handle that was opened before.
    hold(&calls).clear();
    assert_eq!(scene.overlay.fsync(&ME, a, reading, false), Ok(()));
    assert!(hold(&calls).contains(&"fsync"), "{:?}", hold(&calls));
    // A truncation waits for no sync, and neither does a temporary upper layer.
    hold(&calls).clear();
    let cut = SetAttributes { size: Some(0), ..SetAttributes::default() };
    scene.overlay.set_attributes(&ME, scene.node("d/b"), None, &cut).unwrap();
    let scene = Scene { overlay: scene.overlay.thrown_away(), ..scene };
    chmod(&scene, "d/e/c", 0o640).unwrap();
    assert!(!hold(&calls).contains(&"fsync"), "{:?}", hold(&calls));
}

/// Holds up reads of content until it is opened.
#[derive(Default)]
struct Gate {
    is_open: Mutex<bool>,
    opened: Condvar,
    waiting: AtomicUsize,
}

impl Gate {
    fn pass(&self) {
        self.waiting.fetch_add(1, Ordering::SeqCst);
        let mut is_open = hold(&self.is_open);
        while !*is_open {
            is_open = self.opened.wait(is_open).unwrap();
        }
    }

    fn open(&self) {
        *hold(&self.is_open) = true;
        self.opened.notify_all();
    }

    fn wait_for_somebody(&self) {
        while self.waiting.load(Ordering::SeqCst) == 0 {
            std::thread::yield_now();
        }
    }
}

/// An overlay in which the first piece of each copy of `a` waits, and the offsets that are read.
fn gated(size: usize) -> (Scene, Arc<Gate>, Arc<Mutex<Vec<u64>>>) {
    gated_over(Changes::Guest, size)
}

fn gated_over(changes: Changes, size: usize) -> (Scene, Arc<Gate>, Arc<Mutex<Vec<u64>>>) {
    let Scene { directory, .. } = Scene::new();
    fs::write(directory.path().join("lower/a"), vec![b'a'; size]).unwrap();
    let (gate, read) = (Arc::new(Gate::default()), Arc::new(Mutex::new(Vec::new())));
    let (watched, offsets) = (Arc::clone(&gate), Arc::clone(&read));
    let lower = Watched {
        below: layer_changed_by(changes, &directory, "lower"),
        watch: Box::new(move |call, offset| {
            if call == "read" {
                hold(&offsets).push(str::from_utf8(offset).unwrap().parse().unwrap());
                watched.pass();
            }
            Ok(())
        }),
        hides_files: true,
    };
    let upper = layer(&directory, "over");
    (scene_over(directory, Arc::new(lower), upper), gate, read)
}

/// What copies a lower file up, and the name that the file has then.
type Copier = (fn(&Scene, &Context<'_>, NodeId) -> Result<(), Errno>, &'static str);

const COPIERS: [Copier; 8] = [
    (|scene, context, a| scene.overlay.open(context, a, WRITE).map(drop), "a"),
    (|scene, context, a| scene.overlay.open(context, a, WRITE | libc::O_APPEND as u32).map(drop), "a"),
    (|scene, context, _| scene.overlay.rename(context, NodeId::ROOT, b"a", NodeId::ROOT, b"moved", 0), "moved"),
    (
        |scene, context, _| {
            let flags = rustix::fs::RenameFlags::EXCHANGE.bits();
            scene.overlay.rename(context, NodeId::ROOT, b"a", NodeId::ROOT, b"other", flags)
        },
        "other",
    ),
    (|scene, context, a| scene.overlay.link(context, a, NodeId::ROOT, b"linked").map(drop), "linked"),
    (
        |scene, context, a| {
            let set = SetAttributes { mode: Some(0o600), ..SetAttributes::default() };
            scene.overlay.set_attributes(context, a, None, &set).map(drop)
        },
        "a",
    ),
    (
        |scene, context, a| {
            let set = SetAttributes { size: Some((3 << 20) - 1), ..SetAttributes::default() };
            scene.overlay.set_attributes(context, a, None, &set).map(drop)
        },
        "a",
    ),
    (|scene, context, a| scene.overlay.set_xattr(context, a, b"user.x", b"value", 0, false), "a"),
];

#[test]
fn all_else_goes_on_while_a_file_is_copied() {
    for (copy, name) in COPIERS {
        all_else_goes_on(copy, name);
    }
}

fn all_else_goes_on(copy: fn(&Scene, &Context<'_>, NodeId) -> Result<(), Errno>, name: &str) {
    let (scene, gate, _) = gated(3 << 20);
    let (a, root) = (scene.node("a"), NodeId::ROOT);
    scene.create("", "other", "an upper one");
    let is_interrupted = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (scene, flag) = (&scene, &is_interrupted);
        let copying = scope.spawn(move || copy(scene, &ME, a));
        gate.wait_for_somebody();
        // Each of these would wait for ever.
        scene.overlay.make_directory(&ME, root, b"made", &DIRECTORY).unwrap();
        scene.create("made", "file", "x");
        scene.rename(("made", "file"), ("d", "file"), 0).unwrap();
        scene.unlink("d", "b").unwrap();
        assert_eq!(scene.names("d"), ["e", "file"]);
        assert_eq!(scene.overlay.attributes(&ME, a, None).unwrap().size, 3 << 20);
        // Another request for the same file waits until it is answered or interrupted.
        let (started, has_started) = mpsc::channel();
        let waiting = scope.spawn(move || {
            let interrupted = || {
                let _ = started.send(());
                flag.load(Ordering::SeqCst)
            };
            let context = Context { interrupted: &interrupted, ..ME };
            scene.overlay.open(&context, a, WRITE).map(drop)
        });
        has_started.recv().unwrap();
        is_interrupted.store(true, Ordering::SeqCst);
        scene.overlay.interrupted();
        assert_eq!(waiting.join().unwrap(), Err(Errno::INTR));
        gate.open();
        copying.join().unwrap().unwrap();
    });
    assert!(fs::metadata(scene.upper(name)).unwrap().len() >= (3 << 20) - 1);
}

#[test]
fn a_copy_gives_no_rights_that_were_taken_away_meanwhile() {
    let (scene, gate, _) = gated_over(Changes::Host, 3 << 20);
    let a = scene.node("a");
    let below = scene.directory.path().join("lower/a");
    let restrict = |mode| fs::set_permissions(&below, fs::Permissions::from_mode(mode)).unwrap();
    let is_interrupted = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (scene, flag) = (&scene, &is_interrupted);
        let copying = scope.spawn(move || {
            let interrupted = || flag.load(Ordering::SeqCst);
            scene.overlay.open(&Context { interrupted: &interrupted, ..ME }, a, WRITE).map(drop)
        });
        gate.wait_for_somebody();
        // A user's request waits for it.
        let (started, has_started) = mpsc::channel();
        let waiting = scope.spawn(move || {
            let interrupted = || {
                let _ = started.send(());
                false
            };
            let mode = SetAttributes { mode: Some(0o777), ..SetAttributes::default() };
            let user = Context { uid: 65534, gid: 65534, interrupted: &interrupted, ..ME };
            scene.overlay.set_attributes(&user, a, None, &mode).map(drop)
        });
        has_started.recv().unwrap();
        restrict(0o600);
        is_interrupted.store(true, Ordering::SeqCst);
        scene.overlay.interrupted();
        gate.open();
        assert_eq!(copying.join().unwrap(), Err(Errno::INTR));
        assert_eq!(waiting.join().unwrap(), Err(Errno::STALE));
    });
    assert!(!scene.upper("a").exists());

    // What is written after a change of the mode is in no copy with the old mode.
    let (scene, gate, _) = gated_over(Changes::Host, 3 << 20);
    let a = scene.node("a");
    let below = scene.directory.path().join("lower/a");
    std::thread::scope(|scope| {
        let copying = scope.spawn(|| scene.overlay.open(&ME, a, WRITE).map(drop));
        gate.wait_for_somebody();
        fs::set_permissions(&below, fs::Permissions::from_mode(0o600)).unwrap();
        gate.open();
        assert_eq!(copying.join().unwrap(), Err(Errno::STALE));
    });
    assert!(!scene.upper("a").exists());
    scene.overlay.open(&ME, a, WRITE).unwrap();
    assert_eq!(fs::metadata(scene.upper("a")).unwrap().permissions().mode() & 0o777, 0o600);
}

#[test]
fn a_copy_is_of_one_version() {
    // The host rewrites the file while it is copied.
    let (scene, gate, read) = gated_over(Changes::Host, 3 << 20);
    let a = scene.node("a");
    let below = scene.directory.path().join("lower/a");
    std::thread::scope(|scope| {
        let copying = scope.spawn(|| scene.overlay.open(&ME, a, WRITE).map(drop));
        while hold(&read).is_empty() {
            std::thread::yield_now();
        }
        fs::write(&below, vec![b'b'; (3 << 20) + 1]).unwrap();
        gate.open();
        assert_eq!(copying.join().unwrap(), Ok(()));
    });
    assert_eq!(fs::read(scene.upper("a")).unwrap(), vec![b'b'; (3 << 20) + 1]);
    assert!(hold(&read).len() > 3, "{:?}", hold(&read));

    // It does so again and again.
    let Scene { directory, .. } = Scene::new();
    let below = directory.path().join("lower/a");
    fs::write(&below, vec![b'a'; 3 << 20]).unwrap();
    let writing = below.clone();
    let lower = Watched {
        below: layer_changed_by(Changes::Host, &directory, "lower"),
        watch: Box::new(move |call, _| {
            if call == "read" {
                let size = fs::metadata(&writing).unwrap().len();
                fs::write(&writing, vec![b'x'; size as usize + 1]).unwrap();
            }
            Ok(())
        }),
        hides_files: true,
    };
    let upper = layer(&directory, "over");
    let scene = scene_over(directory, Arc::new(lower), upper);
    let a = scene.node("a");
    assert_eq!(scene.overlay.open(&ME, a, WRITE).map(drop), Err(Errno::TXTBSY));
    assert!(!scene.upper("a").exists());
    // What is truncated needs none of it.
    scene.overlay.open(&ME, a, WRITE | libc::O_TRUNC as u32).unwrap();
    assert_eq!(fs::metadata(scene.upper("a")).unwrap().len(), 0);
}

#[test]
fn who_is_interrupted_gets_his_copy_whatever_asked_for_it() {
    for (copy, name) in COPIERS {
        let (scene, gate, read) = gated(3 << 20);
        gate.open();
        let a = scene.node("a");
        scene.create("", "other", "an upper one");
        let context = Context { interrupted: &|| true, ..ME };
        let before = scene.names("");
        assert_eq!(copy(&scene, &context, a), Err(Errno::INTR), "{name}");
        assert_eq!(
            (scene.names(""), scene.overlay.attributes(&ME, a, None).unwrap().size),
            (before, 3 << 20),
            "{name}"
        );
        (0..10).find(|_| copy(&scene, &context, a) != Err(Errno::INTR)).unwrap();
        // No byte was read twice.
        let read = hold(&read).clone();
        assert_eq!(read[..], [0, 1 << 20, 2 << 20][..read.len().min(3)], "{name}");
        assert!(fs::metadata(scene.upper(name)).unwrap().len() > 2 << 20, "{name}");
    }
}

#[test]
fn who_is_interrupted_again_and_again_gets_his_copy() {
    let (scene, gate, read) = gated(3 << 20);
    gate.open();
    let context = Context { interrupted: &|| true, ..ME };
    let a = scene.node("a");
    let attempts = (0..).find(|_| scene.overlay.open(&context, a, WRITE) != Err(Errno::INTR)).unwrap();
    assert_eq!((attempts, &**hold(&read)), (2, &[0, 1 << 20, 2 << 20][..]));
    assert_eq!(fs::read(scene.upper("a")).unwrap(), vec![b'a'; 3 << 20]);
    // A partial copy that nobody continues is dropped.
    let (scene, gate, _) = gated(3 << 20);
    gate.open();
    let a = scene.node("a");
    assert_eq!(scene.overlay.open(&context, a, WRITE), Err(Errno::INTR));
    scene.overlay.forget(a, u64::MAX);
    assert_eq!(scene.overlay.copying.take(|_| true).len(), 0);
}

#[test]
fn what_is_open_stays_usable_when_its_copy_is_removed() {
    for replaced in [false, true] {
        let scene = Scene::new();
        let a = scene.node("a");
        let reading = scene.overlay.open(&ME, a, READ).unwrap().handle;
        let writing = scene.overlay.open(&ME, a, WRITE).unwrap().handle;
        scene.write(a, writing, "UPPER");
        scene.overlay.release(a, writing, None);
        if replaced {
            scene.rename(("d", "b"), ("", "a"), 0).unwrap();
        } else {
            scene.unlink("", "a").unwrap();
        }
        assert_eq!(scene.read_handle(a, reading), "UPPER a");
        assert_eq!(scene.overlay.attributes(&ME, a, Some(reading)).unwrap().links, 0);
        assert_eq!(scene.overlay.seek(&ME, a, reading, 0, libc::SEEK_HOLE as u32), Ok(7));
        assert_eq!(scene.overlay.fsync(&ME, a, reading, false), Ok(()));
    }
}

#[test]
fn a_copy_keeps_its_inode_number_when_it_is_forgotten() {
    let scene = Scene::new();
    symlink("a", scene.directory.path().join("lower/link")).unwrap();
    let names = if rustix::process::geteuid().is_root() { &["a", "d/b", "link"][..] } else { &["a", "d/b"] };
    let number = |scene: &Scene, path: &str| {
        let node = scene.node(path);
        scene.overlay.attributes(&ME, node, None).unwrap().inode
    };
    let before: Vec<u64> = names.iter().map(|path| number(&scene, path)).collect();
    let touch = SetAttributes { mtime: Some(SetTime::Now), ..SetAttributes::default() };
    for path in names {
        scene.overlay.set_attributes(&ME, scene.node(path), None, &touch).unwrap();
    }
    let scene = scene.again();
    assert_eq!(names.iter().map(|path| number(&scene, path)).collect::<Vec<_>>(), before);
    // Under another name too; what takes its place is another file.
    scene.rename(("", "a"), ("d", "moved"), 0).unwrap();
    scene.create("", "a", "new");
    let scene = scene.again();
    assert_eq!(number(&scene, "d/moved"), before[0]);
    assert_ne!(number(&scene, "a"), before[0]);
    let listed = scene.overlay.list_xattrs(&ME, scene.node("d/moved")).unwrap();
    assert!(!String::from_utf8(listed).unwrap().contains("inarch"));
}

#[test]
fn attributes_are_set_by_what_is_open() {
    let Scene { directory, .. } = Scene::new();
    let calls = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&calls);
    let upper = Watched::over(layer(&directory, "over"), move |call, _| {
        hold(&seen).push(call);
        Ok(())
    });
    let lower = layer(&directory, "lower");
    let scene = scene_over(directory, lower, upper);
    let a = scene.node("a");
    let writing = scene.overlay.open(&ME, a, WRITE).unwrap().handle;
    hold(&calls).clear();
    let cut = SetAttributes { size: Some(1), ..SetAttributes::default() };
    assert_eq!(scene.overlay.set_attributes(&ME, a, Some(writing), &cut).unwrap().size, 1);
    assert_eq!(scene.overlay.attributes(&ME, a, Some(writing)).unwrap().size, 1);
    assert_eq!(*hold(&calls), ["set attributes by handle", "attributes by handle"]);
}

#[test]
fn an_emptied_directory_stays_so_when_it_is_not_replaced() {
    let scene = Scene::new();
    scene.unlink("d/e", "c").unwrap();
    fs::create_dir(scene.directory.path().join("lower/other")).unwrap();
    let scene = scene.again();
    assert_eq!(scene.rename(("", "other"), ("d", "e"), 0), Err(Errno::XDEV));
    assert!(scene.names("d/e").is_empty());
    let scene = scene.again();
    assert!(scene.names("d/e").is_empty());
}

#[test]
fn in_a_removed_directory_there_is_nothing_any_more() {
    let scene = Scene::new();
    let e = scene.node("d/e");
    scene.unlink("d/e", "c").unwrap();
    scene.overlay.remove_directory(&ME, scene.node("d"), b"e").unwrap();
    assert_eq!(scene.overlay.lookup(&ME, e, b"c").unwrap_err(), Errno::NOENT);
    assert_eq!(scene.overlay.make_directory(&ME, e, b"new", &DIRECTORY).unwrap_err(), Errno::NOENT);
    assert!(Listing::whole(&scene.overlay, e, (2, true)).is_empty());
    scene.create("", "x", "x");
    let root = NodeId::ROOT;
    assert_eq!(scene.overlay.rename(&ME, root, b"x", e, b"x", 0), Err(Errno::NOENT));
    assert_eq!(fs::read_dir(scene.directory.path().join("over/work")).unwrap().count(), 0);
}

#[test]
fn a_copy_leaves_the_directories_above_it_as_they_were() {
    let scene = Scene::new();
    let lower = scene.directory.path().join("lower");
    symlink("c", lower.join("d/e/link")).unwrap();
    for (number, path) in ["", "d", "d/e"].iter().enumerate() {
        let seconds = 1_000_000_000 + number as u64;
        let [accessed, modified] = [seconds, seconds + 100].map(|at| std::time::UNIX_EPOCH + Duration::new(at, 7));
        let times = fs::FileTimes::new().set_accessed(accessed).set_modified(modified);
        fs::set_permissions(lower.join(path), fs::Permissions::from_mode(0o2751)).unwrap();
        if rustix::process::geteuid().is_root() {
            std::os::unix::fs::chown(lower.join(path), Some(7), Some(8)).unwrap();
        }
        fs::File::open(lower.join(path)).unwrap().set_times(times).unwrap();
    }
    let scene = scene.again();
    let seen = |scene: &Scene| {
        ["", "d", "d/e"].map(|path| {
            let Attributes { mode, uid, gid, atime, mtime, .. } =
                scene.overlay.attributes(&ME, scene.node(path), None).unwrap();
            (mode, uid, gid, atime, mtime)
        })
    };
    let before = seen(&scene);
    assert_eq!(before[1].4.seconds, 1_000_000_101);
    chmod(&scene, "d/e/c", 0o600).unwrap();
    assert_eq!(seen(&scene), before, "chmod of a file");
    let b = scene.node("d/b");
    let handle = scene.overlay.open(&ME, b, WRITE | libc::O_APPEND as u32).unwrap().handle;
    scene.write(b, handle, "x");
    assert_eq!(seen(&scene), before, "a write");
    let touch = SetAttributes { mtime: Some(SetTime::Now), ..SetAttributes::default() };
    scene.overlay.set_attributes(&ME, scene.node("d/e/link"), None, &touch).unwrap();
    assert_eq!(seen(&scene), before, "a symbolic link's time");
    let scene = scene.again();
    assert_eq!(seen(&scene), before, "for the next server");
    // A real change of a directory shows, and stays after a later copy-up of a file in it.
    scene.create("", "new", "new");
    let changed = seen(&scene);
    assert_ne!(changed[0].4, before[0].4);
    chmod(&scene, "a", 0o600).unwrap();
    assert_eq!(seen(&scene), changed);
    // Only directories are copied up; the copy of the outer one goes into a directory that is in the upper layer
    // already.
    let scene = Scene::new();
    let (node, d) = (scene.node("d/e"), scene.node("d"));
    let before = [scene.node(""), d].map(|node| scene.overlay.attributes(&ME, node, None).unwrap().mtime);
    scene.overlay.set_attributes(&ME, node, None, &touch).unwrap();
    let after = [scene.node(""), d].map(|node| scene.overlay.attributes(&ME, node, None).unwrap().mtime);
    assert_eq!(after, before);
}

/// A small file system that is unmounted at the end.
struct Small(PathBuf);

impl Drop for Small {
    fn drop(&mut self) {
        let _ = std::process::Command::new("umount").arg("--lazy").arg(&self.0).status();
    }
}

#[test]
fn a_copy_that_finds_no_space_leaves_all_as_it_was() {
    if !rustix::process::geteuid().is_root() {
        return println!(
            "skipped: a_copy_that_finds_no_space_leaves_all_as_it_was: only root can mount a small file system"
        );
    }
    let Scene { directory, overlay } = Scene::new();
    drop(overlay);
    let large = vec![b'x'; 2 << 20];
    fs::write(directory.path().join("lower/large"), &large).unwrap();
    let over = directory.path().join("over");
    let mut mount = std::process::Command::new("mount");
    assert!(mount.args(["-t", "tmpfs", "-o", "size=1m,mode=700", "none"]).arg(&over).status().unwrap().success());
    let _small = Small(over.clone());
    // The kernel copies what both layers have as files, unless they are hidden from it.
    for hides_files in [false, true] {
        let lower = layer(&directory, "lower");
        let upper = Watched { below: layer(&directory, "over"), watch: Box::new(|_, _| Ok(())), hides_files };
        let overlay = Overlay::new(lower, Arc::new(upper), true).unwrap();
        let node = overlay.lookup(&ME, NodeId::ROOT, b"large").unwrap().node;
        let root = NodeId::ROOT;
        let mode = SetAttributes { mode: Some(0o600), ..SetAttributes::default() };
        let size = SetAttributes { size: Some((2 << 20) - 1), ..SetAttributes::default() };
        let refused = [
            overlay.set_attributes(&ME, node, None, &mode).map(drop),
            overlay.set_attributes(&ME, node, None, &size).map(drop),
            overlay.rename(&ME, root, b"large", root, b"other", 0),
            overlay.rename(&ME, root, b"large", root, b"a", libc::RENAME_EXCHANGE),
            overlay.link(&ME, node, root, b"other").map(drop),
            overlay.set_xattr(&ME, node, b"user.x", b"x", 0, false),
            overlay.open(&ME, node, WRITE).map(drop),
        ];
        assert_eq!(refused, [Err(Errno::NOSPC); 7]);
        let handle = overlay.open(&ME, node, READ).unwrap().handle;
        let mut content = vec![0; 3 << 20];
        let count = overlay.read(&ME, node, handle, 0, &[VolatileSlice::from(&mut content[..])]).unwrap();
        assert!(content[..count] == large);
        assert_eq!(overlay.lookup(&ME, root, b"other").map(drop), Err(Errno::NOENT));
        assert_eq!(overlay.get_xattr(&ME, node, b"user.x").map(drop), Err(Errno::NODATA));
        assert_eq!(fs::read_dir(over.join("work")).unwrap().count(), 0);
        // There is space for what is small.
        let small = overlay.lookup(&ME, root, b"a").unwrap().node;
        overlay.set_attributes(&ME, small, None, &mode).unwrap();
        assert!(overlay.open(&ME, node, WRITE | libc::O_TRUNC as u32).is_ok());
        fs::remove_dir_all(over.join("upper")).unwrap();
        fs::remove_dir_all(over.join("work")).unwrap();
    }
}
