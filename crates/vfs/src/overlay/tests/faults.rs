//! Whatever call of the upper layer fails, and whenever the server is killed, clients see the state before a change or
//! the state after it.

use std::collections::BTreeMap;
use std::os::unix::fs::PermissionsExt;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use rustix::fs::{AtFlags, CWD, Timespec, Timestamps};

use super::closed::as_user;
use super::watched::Watched;
use super::*;
use crate::MemoryFiles;

/// What happens at a call of the upper layer.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Fault {
    Fails(Errno),
    /// Neither this call nor any later one is made.
    Killed,
}

/// Counts the calls of an upper layer, and has one of them fail.
#[derive(Default)]
struct Calls {
    is_armed: AtomicBool,
    made: AtomicUsize,
    fault: Mutex<Option<(usize, Fault)>>,
    /// Whether content goes by calls, which can fail, and not by the host's kernel.
    hides_files: bool,
    /// The upper layer, if it is in memory: all servers of a scene have the same one.
    in_memory: Option<Mutex<Arc<MemoryFiles>>>,
}

impl Calls {
    /// The upper layer of the scene in `directory`.
    fn upper(&self, directory: &TempDir) -> Arc<dyn FileSystem> {
        match &self.in_memory {
            Some(files) => hold(files).clone(),
            None => layer(directory, "over", false),
        }
    }

    fn call(&self) -> Result<(), Errno> {
        if !self.is_armed.load(Ordering::SeqCst) {
            return Ok(());
        }
        let number = self.made.fetch_add(1, Ordering::SeqCst);
        match *hold(&self.fault) {
            Some((at, Fault::Fails(errno))) if at == number => Err(errno),
            Some((at, Fault::Killed)) if at <= number => Err(Errno::IO),
            _ => Ok(()),
        }
    }
}

/// A list by which a directory's new files are read by group 7.
fn default_list() -> Vec<u8> {
    let entries = [(1u16, 7u16, u32::MAX), (4, 0, u32::MAX), (8, 5, 7), (16, 5, u32::MAX), (32, 0, u32::MAX)];
    let mut list = 2u32.to_le_bytes().to_vec();
    for (tag, permissions, id) in entries {
        list.extend(tag.to_le_bytes().into_iter().chain(permissions.to_le_bytes()).chain(id.to_le_bytes()));
    }
    list
}

/// A directory in memory if possible: there are thousands of them, and no test here needs a disk.
pub fn fast_directory() -> TempDir {
    let in_memory = tempfile::tempdir_in("/dev/shm").ok().filter(|directory| {
        rustix::fs::setxattr(directory.path(), "user.x", b"x", rustix::fs::XattrFlags::empty()).is_ok()
    });
    in_memory.unwrap_or_else(|| tempfile::tempdir().unwrap())
}

/// Gives a file to a user and a group, if root does it.
fn own(path: &Path, (uid, gid): (u32, u32)) {
    if rustix::process::geteuid().is_root() {
        std::os::unix::fs::lchown(path, Some(uid), Some(gid)).unwrap();
    }
}

/// Every state that a name can be in, in both layers; not even their owner may write to the `closed` directories.
fn starting_state(calls: &Arc<Calls>, directory: TempDir, closed: &[&str]) -> Scene {
    let path = directory.path();
    // A server's thread has its own umask by then.
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o022));
    for name in
        ["over", "lower/dir", "lower/merged", "lower/emptied", "lower/gone-dir/deep", "lower/opaque", "lower/shared"]
    {
        fs::create_dir_all(path.join(name)).unwrap();
    }
    for name in [
        "low",
        "gone",
        "changed",
        "dir/inner",
        "merged/a",
        "merged/b",
        "emptied/x",
        "emptied/y",
        "gone-dir/deep/secret",
        "opaque/old",
        "shared/gone",
    ] {
        fs::write(path.join("lower").join(name), format!("lower {name}")).unwrap();
    }
    symlink("dir/inner", path.join("lower/link")).unwrap();
    for name in ["", "dir", "merged", "emptied", "gone-dir", "gone-dir/deep", "opaque", "shared"] {
        // A server's thread makes files for whom it worked last.
        own(&path.join("lower").join(name), (0, 0));
    }
    for name in ["low", "gone", "changed", "dir/inner", "merged/a", "merged/b", "link", "dir"] {
        let path = path.join("lower").join(name);
        own(&path, (7, 8));
        let old = Timespec { tv_sec: OLD, tv_nsec: 0 };
        let times = Timestamps { last_access: old, last_modification: old };
        rustix::fs::utimensat(CWD, path, &times, AtFlags::SYMLINK_NOFOLLOW).unwrap();
    }
    for name in ["low", "changed", "merged", "merged/b"] {
        let path = path.join("lower").join(name);
        rustix::fs::setxattr(path, "user.old", b"old", rustix::fs::XattrFlags::empty()).unwrap();
    }
    for name in closed {
        let closed = fs::Permissions::from_mode(0o555);
        fs::set_permissions(path.join("lower").join(name), closed).unwrap();
    }
    if let Some(files) = &calls.in_memory {
        *hold(files) = empty_memory();
    }
    // Nobody waits for the disk.
    let Scene { directory, overlay } = open(directory, calls);
    let scene = Scene { directory, overlay: overlay.thrown_away() };
    let overlay = &scene.overlay;
    for (parent, name) in [
        ("", "gone"),
        ("emptied", "x"),
        ("emptied", "y"),
        ("opaque", "old"),
        ("shared", "gone"),
        ("gone-dir/deep", "secret"),
    ] {
        scene.unlink(parent, name).unwrap();
    }
    overlay.remove_directory(&ME, scene.node("gone-dir"), b"deep").unwrap();
    for name in ["gone-dir", "opaque"] {
        overlay.remove_directory(&ME, NodeId::ROOT, name.as_bytes()).unwrap();
    }
    for name in ["opaque", "up-dir", "up-empty"] {
        overlay.make_directory(&ME, NodeId::ROOT, name.as_bytes(), &DIRECTORY).unwrap();
    }
    for (parent, name) in [("opaque", "new"), ("up-dir", "f"), ("", "up")] {
        scene.create(parent, name, "upper");
    }
    for name in ["changed", "merged/a"] {
        let node = scene.node(name);
        let handle = overlay.open(&ME, node, WRITE).unwrap().handle;
        scene.write(node, handle, "UPPER");
        overlay.release(node, handle, None);
    }
    let shared = scene.node("shared");
    let set = SetAttributes { mode: Some(0o2775), ..SetAttributes::default() };
    overlay.set_attributes(&ME, shared, None, &set).unwrap();
    overlay.set_xattr(&ME, shared, b"system.posix_acl_default", &default_list(), 0, false).unwrap();
    open(scene.directory, calls)
}

fn layer(directory: &TempDir, name: &str, read_only: bool) -> Arc<dyn FileSystem> {
    let options = HostOptions { changes: crate::Changes::Guest, read_only, ..HostOptions::default() };
    Arc::new(HostDirectory::new(&directory.path().join(name), options).unwrap())
}

fn empty_memory() -> Arc<MemoryFiles> {
    Arc::new(MemoryFiles::new(1 << 20))
}

fn open(directory: TempDir, calls: &Arc<Calls>) -> Scene {
    let (below, hides_files) = (calls.upper(&directory), calls.hides_files);
    let calls = Arc::clone(calls);
    let upper = Arc::new(Watched { below, watch: Box::new(move |_, _| calls.call()), hides_files });
    let lower = layer(&directory, "lower", true);
    let overlay = Overlay::new(lower, upper, rustix::process::geteuid().is_root()).unwrap();
    Scene { directory, overlay }
}

/// The time of what lies in the lower layer, in seconds since 1970.
const OLD: i64 = 1_000_000_000;

/// What is seen of a path.
#[derive(Debug, PartialEq)]
struct Seen {
    mode: u32,
    owner: (u32, u32),
    /// Its content or target.
    content: String,
    xattrs: Vec<String>,
    /// Of what is no directory: how many names it has, and whether its time is that of the lower layer.
    links_and_age: Option<(u32, bool)>,
}

type View = BTreeMap<String, Seen>;

/// All that is seen.
fn view(scene: &Scene) -> View {
    let mut seen = BTreeMap::new();
    let mut left = vec![String::new()];
    while let Some(path) = left.pop() {
        let node = scene.node(&path);
        let is = scene.overlay.attributes(&ME, node, None).unwrap();
        let mode = is.mode;
        let content = match mode & libc::S_IFMT {
            libc::S_IFREG => scene.read(&path),
            libc::S_IFLNK => String::from_utf8(scene.overlay.read_link(&ME, node).unwrap()).unwrap(),
            libc::S_IFDIR => {
                let prefix = if path.is_empty() { path.clone() } else { format!("{path}/") };
                left.extend(scene.names(&path).into_iter().map(|name| format!("{prefix}{name}")));
                String::new()
            }
            _ => String::new(),
        };
        let names = String::from_utf8(scene.overlay.list_xattrs(&ME, node).unwrap()).unwrap();
        let value = |name: &str| scene.overlay.get_xattr(&ME, node, name.as_bytes()).unwrap();
        let xattrs = names.split_terminator('\0').map(|name| format!("{name} {:?}", value(name))).collect();
        let links_and_age = (mode & libc::S_IFMT != libc::S_IFDIR).then_some((is.links, is.mtime.seconds == OLD));
        seen.insert(path, Seen { mode, owner: (is.uid, is.gid), content, xattrs, links_and_age });
    }
    seen
}

type Operation = Box<dyn Fn(&Scene) -> Result<(), Errno>>;

/// All that changes something, on every state.
fn operations() -> Vec<(String, Operation)> {
    let mut all: Vec<(String, Operation)> = Vec::new();
    let mut add = |name: String, operation: Operation| all.push((name, operation));
    fn at(scene: &Scene, path: &'static str) -> Result<(NodeId, &'static [u8]), Errno> {
        let (parent, name) = path.rsplit_once('/').unwrap_or(("", path));
        Ok((scene.try_node(parent)?, name.as_bytes()))
    }
    const EVERYTHING: [&str; 16] = [
        "low",
        "gone",
        "changed",
        "dir",
        "merged",
        "emptied",
        "gone-dir",
        "opaque",
        "link",
        "up",
        "up-dir",
        "up-empty",
        "new",
        "merged/b",
        "shared/gone",
        "emptied/x",
    ];
    for path in EVERYTHING {
        add(
            format!("unlink {path}"),
            Box::new(move |scene| {
                let (parent, name) = at(scene, path)?;
                scene.overlay.unlink(&ME, parent, name)
            }),
        );
        add(
            format!("rmdir {path}"),
            Box::new(move |scene| {
                let (parent, name) = at(scene, path)?;
                scene.overlay.remove_directory(&ME, parent, name)
            }),
        );
        for flags in [libc::O_EXCL as u32, libc::O_TRUNC as u32] {
            add(
                format!("create {path} {flags:x}"),
                Box::new(move |scene| {
                    let (parent, name) = at(scene, path)?;
                    scene.overlay.create(&ME, parent, name, &FILE, WRITE | flags).map(drop)
                }),
            );
        }
        add(
            format!("mkdir {path}"),
            Box::new(move |scene| {
                let (parent, name) = at(scene, path)?;
                scene.overlay.make_directory(&ME, parent, name, &DIRECTORY).map(drop)
            }),
        );
        add(
            format!("symlink {path}"),
            Box::new(move |scene| {
                let (parent, name) = at(scene, path)?;
                scene.overlay.make_symlink(&ME, parent, name, b"target").map(drop)
            }),
        );
        add(
            format!("mkfifo {path}"),
            Box::new(move |scene| {
                let (parent, name) = at(scene, path)?;
                let new = NewNode { mode: libc::S_IFIFO | 0o640, umask: 0, device: 0 };
                scene.overlay.make_node(&ME, parent, name, &new).map(drop)
            }),
        );
        add(
            format!("link low {path}"),
            Box::new(move |scene| {
                let (parent, name) = at(scene, path)?;
                scene.overlay.link(&ME, scene.try_node("low")?, parent, name).map(drop)
            }),
        );
        add(
            format!("chmod {path}"),
            Box::new(move |scene| {
                let set = SetAttributes { mode: Some(0o710), ..SetAttributes::default() };
                let node = scene.try_node(path)?;
                if scene.overlay.attributes(&ME, node, None)?.mode & libc::S_IFMT == libc::S_IFLNK {
                    return Ok(());
                }
                scene.overlay.set_attributes(&ME, node, None, &set).map(drop)
            }),
        );
        add(
            format!("truncate {path}"),
            Box::new(move |scene| {
                let set = SetAttributes { size: Some(3), ..SetAttributes::default() };
                scene.overlay.set_attributes(&ME, scene.try_node(path)?, None, &set).map(drop)
            }),
        );
        add(
            format!("setxattr {path}"),
            Box::new(move |scene| scene.overlay.set_xattr(&ME, scene.try_node(path)?, b"user.x", b"x", 0, false)),
        );
        add(
            format!("open truncated {path}"),
            Box::new(move |scene| {
                scene.overlay.open(&ME, scene.try_node(path)?, WRITE | libc::O_TRUNC as u32).map(drop)
            }),
        );
        add(
            format!("removexattr {path}"),
            Box::new(move |scene| scene.overlay.remove_xattr(&ME, scene.try_node(path)?, b"user.old")),
        );
        add(
            format!("write {path}"),
            Box::new(move |scene| {
                let node = scene.try_node(path)?;
                let handle = scene.overlay.open(&ME, node, WRITE)?.handle;
                let mut bytes = *b"written";
                let data = [VolatileSlice::from(&mut bytes[..])];
                scene.overlay.write(&ME, node, handle, 2, &data, WriteKind::default()).map(drop)
            }),
        );
        add(
            format!("unnamed {path}"),
            Box::new(move |scene| {
                let (parent, name) = at(scene, path)?;
                let (made, _) = scene.overlay.create_unnamed(&ME, parent, &FILE, WRITE)?;
                scene.overlay.link(&ME, made.node, parent, name).map(drop)
            }),
        );
        for other in ["new", "up", "low"] {
            add(
                format!("rename {path} {other} noreplace"),
                Box::new(move |scene| {
                    let (from, to) = (at(scene, path)?, at(scene, other)?);
                    scene.overlay.rename(&ME, from.0, from.1, to.0, to.1, libc::RENAME_NOREPLACE)
                }),
            );
        }
        for other in EVERYTHING {
            for flags in [0, libc::RENAME_EXCHANGE] {
                add(
                    format!("rename {path} {other} {flags}"),
                    Box::new(move |scene| {
                        let (from, to) = (at(scene, path)?, at(scene, other)?);
                        scene.overlay.rename(&ME, from.0, from.1, to.0, to.1, flags)
                    }),
                );
            }
        }
    }
    all
}

/// What lies in the work directory.
fn left_behind(scene: &Scene, calls: &Calls) -> usize {
    let upper = calls.upper(&scene.directory);
    let work = upper.lookup(&ME, NodeId::ROOT, b"work").unwrap().node;
    Listing::whole(&*upper, work, (2, false)).iter().filter(|(name, _)| name != "." && name != "..").count()
}

/// All operations, with only as many renames as reach each case of the overlay. `scripts/soak` also tries all renames
/// in a directory, and `make test` tries them in memory.
fn of_each_kind() -> Vec<(String, Operation)> {
    let mut chosen = operations();
    if std::env::var_os("INARCH_TEST_ROUNDS").is_none() {
        chosen.retain(|(what, _)| match what.split(' ').collect::<Vec<_>>()[..] {
            ["rename", from, to, _] => {
                ["low", "changed", "dir", "merged", "opaque", "link", "up", "up-dir", "merged/b"].contains(&from)
                    && ["new", "gone", "low", "emptied", "gone-dir", "merged/b", "up-empty", "up", "shared/gone"]
                        .contains(&to)
            }
            _ => true,
        });
    }
    chosen
}

#[test]
fn a_change_is_seen_whole_or_not_at_all_whatever_fails() {
    whole_or_not_at_all(of_each_kind(), Calls::default(), |calls| starting_state(calls, fast_directory(), &[]));
}

#[test]
fn so_is_a_change_that_is_kept_in_memory() {
    let calls = Calls { in_memory: Some(Mutex::new(empty_memory())), ..Calls::default() };
    whole_or_not_at_all(operations(), calls, |calls| starting_state(calls, fast_directory(), &[]));
}

#[test]
fn so_is_a_change_whose_content_is_copied_by_calls() {
    let mut chosen = operations();
    chosen.retain(|(what, _)| match what.split(' ').collect::<Vec<_>>()[..] {
        ["rename", "low" | "merged/b", to, _] => ["up", "new", "gone"].contains(&to),
        [.., "low" | "merged/b" | "merged"] => !what.starts_with("rename"),
        _ => false,
    });
    assert!(chosen.len() > 30, "{}", chosen.len());
    let calls = Calls { hides_files: true, ..Calls::default() };
    whole_or_not_at_all(chosen, calls, |calls| starting_state(calls, fast_directory(), &[]));
}

#[test]
fn so_is_a_change_in_directories_that_their_owner_cannot_write_to() {
    const CLOSED: [&str; 8] = ["dir", "merged", "emptied", "gone-dir/deep", "gone-dir", "opaque", "shared", ""];
    // Every operation in one of these directories, but only some of the many renames.
    let is_of_interest = |what: &str| match what.split(' ').collect::<Vec<_>>()[..] {
        ["rename", from, to, _] => {
            ["merged/b", "up", "up-dir", "link"].contains(&from)
                && ["emptied", "gone-dir", "merged/b", "new", "shared/gone", "up-empty"].contains(&to)
        }
        _ => !["truncate", "setxattr", "removexattr", "write"].iter().any(|kind| what.starts_with(kind)),
    };
    as_user(|place| {
        let mut chosen = operations();
        chosen.retain(|(what, _)| is_of_interest(what));
        let last = Mutex::new(PathBuf::new());
        whole_or_not_at_all(chosen, Calls::default(), |calls| {
            let directory = tempfile::tempdir_in(place).unwrap();
            // There are many, and the user cannot remove what is in closed directories: removes the one before.
            let done = std::mem::replace(&mut *hold(&last), directory.path().to_owned());
            if done.exists() {
                open_all(&done);
                fs::remove_dir_all(done).unwrap();
            }
            starting_state(calls, directory, &CLOSED)
        });
    });
}

/// Lets the owner change all directories beneath one.
fn open_all(path: &Path) {
    fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
    for entry in fs::read_dir(path).unwrap().map(Result::unwrap) {
        if entry.file_type().unwrap().is_dir() {
            open_all(&entry.path());
        }
    }
}

fn whole_or_not_at_all(
    operations: Vec<(String, Operation)>,
    calls: Calls,
    starting_state: impl Fn(&Arc<Calls>) -> Scene,
) {
    let calls = Arc::new(calls);
    let before = view(&starting_state(&calls));
    let mut faults = 0;
    let takes_all = std::env::var_os("INARCH_TEST_ROUNDS").is_some();
    for (operation_number, (what, operation)) in operations.into_iter().enumerate() {
        // There are hundreds of renames, most of them of the same kind as their neighbours: each gets half of the faults, and the next pair the
        // other half. `scripts/soak` tries all.
        let is_tried = |number: usize, fault: Fault| {
            let half = (operation_number / 2 + number + usize::from(fault == Fault::Killed)) % 2;
            takes_all || half == 0 || !what.starts_with("rename")
        };
        let scene = starting_state(&calls);
        calls.made.store(0, Ordering::SeqCst);
        calls.is_armed.store(true, Ordering::SeqCst);
        let done = operation(&scene);
        calls.is_armed.store(false, Ordering::SeqCst);
        let after = view(&scene);
        let all = calls.made.load(Ordering::SeqCst);
        if done.is_err() {
            assert_eq!(after, before, "{what}: refused with {done:?}");
            // It stays refused; what matters is that a refusal changes nothing.
            assert_eq!(view(&open(scene.directory, &calls)), before, "{what}: refused, and opened again");
            continue;
        }
        for (number, fault) in (0..all).flat_map(|number| {
            let other = if number % 2 == 0 { Errno::IO } else { Errno::NOSPC };
            [(number, Fault::Fails(other)), (number, Fault::Killed)]
        }) {
            if !is_tried(number, fault) {
                continue;
            }
            faults += 1;
            let scene = starting_state(&calls);
            *hold(&calls.fault) = Some((number, fault));
            calls.made.store(0, Ordering::SeqCst);
            calls.is_armed.store(true, Ordering::SeqCst);
            let result = operation(&scene);
            calls.is_armed.store(false, Ordering::SeqCst);
            *hold(&calls.fault) = None;
            let seen = (fault != Fault::Killed).then(|| view(&scene));
            let scene = open(scene.directory, &calls);
            let kept = view(&scene);
            let told = format!("{what}: {fault:?} at call {number} of {all}, {result:?}");
            let other =
                |than: &View| kept.iter().filter(|(path, seen)| than.get(*path) != Some(seen)).collect::<Vec<_>>();
            assert!(
                kept == before || kept == after,
                "{told}: other than before {:#?}, than after {:#?}",
                other(&before),
                other(&after)
            );
            assert!(seen.is_none_or(|seen| seen == kept), "{told}: seen otherwise before it was opened again");
            assert!(result.is_err() || kept == after, "{told}: done, and not there");
            assert_eq!(left_behind(&scene, &calls), 0, "{told}");
        }
    }
    println!("{faults} faults");
}
