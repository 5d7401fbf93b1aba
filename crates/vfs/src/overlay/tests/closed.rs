//! An ordinary user's server changes files below directories that not even their owner may write to (mode 0555): the permissions that the
//! client sees decide.

use std::os::unix::fs::PermissionsExt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;

use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};

use super::watched::Watched;
use super::*;
use crate::SetTime;

/// Runs `act` in a thread of an ordinary user, with a directory of its own.
pub fn as_user(act: impl FnOnce(&Path) + Send) {
    let directory = super::faults::fast_directory();
    let is_root = rustix::process::geteuid().is_root();
    if is_root {
        std::os::unix::fs::chown(directory.path(), Some(65534), Some(65534)).unwrap();
    }
    let become_user = || {
        if is_root {
            let (uid, gid) = (rustix::process::Uid::from_raw(65534), rustix::process::Gid::from_raw(65534));
            set_thread_groups(&[]).unwrap();
            set_thread_res_gid(gid, gid, gid).unwrap();
            set_thread_res_uid(uid, uid, uid).unwrap();
        }
        act(directory.path());
    };
    let ended = std::thread::scope(|scope| scope.spawn(become_user).join());
    // So that it can be removed.
    std::process::Command::new("chmod").args(["-R", "u+rwx"]).arg(directory.path()).status().unwrap();
    if let Err(panic) = ended {
        std::panic::resume_unwind(panic);
    }
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

/// Files in directories that cannot be written to.
fn closed(place: &Path) -> Scene {
    let directory = tempfile::tempdir_in(place).unwrap();
    let lower = directory.path().join("lower");
    for name in ["over", "lower/d/e", "lower/d/empty"] {
        fs::create_dir_all(directory.path().join(name)).unwrap();
    }
    for name in ["a", "d/b", "d/other", "d/e/c"] {
        fs::write(lower.join(name), format!("lower {name}")).unwrap();
    }
    symlink("b", lower.join("d/link")).unwrap();
    for (path, mode) in [("d/e/c", 0o444), ("d/empty", 0o555), ("d/e", 0o500), ("d", 0o555), ("a", 0o400), ("", 0o555)]
    {
        set_mode(&lower.join(path), mode);
    }
    let overlay = overlay(directory.path());
    Scene { directory, overlay }
}

impl Scene {
    fn mode(&self, path: &str) -> u32 {
        self.overlay.attributes(&ME, self.node(path), None).unwrap().mode & 0o7777
    }

    fn chmod(&self, path: &str, mode: u32) -> Result<Attributes, Errno> {
        let set = SetAttributes { mode: Some(mode), ..SetAttributes::default() };
        self.overlay.set_attributes(&ME, self.node(path), None, &set)
    }

    /// Checks that the directories are as they were, for clients and above, and that nothing is left in the work directory.
    #[track_caller]
    fn directories_are_closed(&self) {
        for (path, mode) in [("", 0o555), ("d", 0o555), ("d/e", 0o500)] {
            assert_eq!(self.mode(path), mode, "{path}");
            if let Ok(above) = fs::metadata(self.upper(path)) {
                assert_eq!(above.mode() & 0o7777, mode, "{path}, above");
            }
        }
        assert_eq!(fs::read_dir(self.directory.path().join("over/work")).unwrap().count(), 0);
    }
}

#[test]
fn files_in_closed_directories_are_changed() {
    as_user(|place| {
        let scene = closed(place);
        scene.directories_are_closed();
        let mtime = |scene: &Scene, path: &str| scene.overlay.attributes(&ME, scene.node(path), None).unwrap().mtime;
        let times = ["", "d", "d/e"].map(|path| mtime(&scene, path));
        // In a directory that is copied up for it, into one that is copied up too.
        scene.chmod("d/e/c", 0o644).unwrap();
        scene.directories_are_closed();
        // In a directory that is in the upper layer already.
        let b = scene.node("d/b");
        let handle = scene.overlay.open(&ME, b, WRITE).unwrap().handle;
        scene.write(b, handle, "upper");
        scene.overlay.release(b, handle, None);
        scene.chmod("a", 0o600).unwrap();
        let touch = SetAttributes { mtime: Some(SetTime::Now), ..SetAttributes::default() };
        for path in ["d/link", "d/empty"] {
            scene.overlay.set_attributes(&ME, scene.node(path), None, &touch).unwrap();
        }
        scene.directories_are_closed();
        assert_eq!(["", "d", "d/e"].map(|path| mtime(&scene, path)), times);
        let scene = scene.again();
        scene.directories_are_closed();
        assert_eq!(["", "d", "d/e"].map(|path| mtime(&scene, path)), times);
        assert_eq!((scene.mode("d/e/c"), scene.mode("a")), (0o644, 0o600));
        assert_eq!((scene.read("d/b"), scene.read("d/e/c")), ("upper d/b".into(), "lower d/e/c".into()));
        // What nobody may read can be looked up anew.
        scene.chmod("d/b", 0).unwrap();
        let scene = scene.again();
        assert_eq!(scene.mode("d/b"), 0);
    });
}

#[test]
fn names_in_closed_directories_are_changed_for_who_may() {
    as_user(|place| {
        let scene = closed(place);
        scene.create("d", "new", "new");
        scene.unlink("d", "other").unwrap();
        scene.create("d", "other", "again");
        scene.rename(("d", "b"), ("d/e", "moved"), 0).unwrap();
        scene.unlink("d/e", "moved").unwrap();
        scene.rename(("d", "new"), ("d/e", "newer"), 0).unwrap();
        let (unnamed, _) = scene.overlay.create_unnamed(&ME, scene.node("d"), &FILE, WRITE).unwrap();
        scene.overlay.link(&ME, unnamed.node, scene.node("d"), b"unnamed").unwrap();
        scene.directories_are_closed();
        // A directory goes, another one comes in its place, and hides what was below.
        let d = scene.node("d");
        scene.overlay.remove_directory(&ME, d, b"empty").unwrap();
        let closed = NewNode { mode: libc::S_IFDIR | 0o555, ..DIRECTORY };
        scene.overlay.make_directory(&ME, d, b"empty", &closed).unwrap();
        scene.directories_are_closed();
        let scene = scene.again();
        scene.directories_are_closed();
        assert_eq!(scene.names("d"), ["e", "empty", "link", "other", "unnamed"]);
        assert_eq!(scene.names("d/e"), ["c", "newer"]);
        assert_eq!((scene.mode("d/empty"), scene.read("d/other")), (0o555, "again".into()));
        scene.overlay.remove_directory(&ME, scene.node("d"), b"empty").unwrap();
        let scene = scene.again();
        assert_eq!(scene.try_node("d/empty"), Err(Errno::NOENT));
        scene.directories_are_closed();
    });
}

#[test]
fn nobody_sees_a_closed_directory_open() {
    as_user(|place| {
        let scene = closed(place);
        scene.create("d", "first", "");
        let Scene { directory, .. } = scene;
        let host = |name: &str, read_only| {
            let options = HostOptions { changes: crate::Changes::Guest, read_only, ..HostOptions::default() };
            Arc::new(HostDirectory::new(&directory.path().join(name), options).unwrap())
        };
        let (go, gone) = mpsc::channel();
        let tries = AtomicUsize::new(0);
        let upper = Watched::over(host("over", false), move |call, name| {
            // The first time it is refused.
            if (call, name) == ("create", b"new") && tries.fetch_add(1, Ordering::SeqCst) == 1 {
                go.send(()).unwrap();
                // Enough time for a thread that does not wait to see what it must not see.
                std::thread::sleep(Duration::from_millis(50));
            }
            Ok(())
        });
        let overlay = Overlay::new(host("lower", true), upper, rustix::process::geteuid().is_root()).unwrap();
        let scene = Scene { directory, overlay };
        let d = scene.node("d");
        std::thread::scope(|threads| {
            let scene = &scene;
            let looker = threads.spawn(move || {
                gone.recv().unwrap();
                let found = scene.overlay.lookup(&ME, NodeId::ROOT, b"d").unwrap().attributes.mode & 0o7777;
                (found, scene.overlay.attributes(&ME, d, None).unwrap().mode & 0o7777)
            });
            scene.create("d", "new", "");
            assert_eq!(looker.join().unwrap(), (0o555, 0o555));
        });
    });
}
