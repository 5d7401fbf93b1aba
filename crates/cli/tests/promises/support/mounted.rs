//! A mount that a test uses.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use super::{INARCH, host, programs, scratch};

/// The ways to serve a mount of root's: through the kernel where it can, and through FUSE. The same promises hold for both.
pub const WAYS: [&str; 2] = ["auto", "fuse"];

/// A running `inarch mount`, in a directory of a test's own, of `source` on `point`.
pub struct Server {
    /// The process.
    pub child: Child,
    /// What it says when it is mounted.
    pub line: String,
}

// After a test that failed.
impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
    }
}

impl Server {
    /// Starts it with `options`; gives it when it is mounted.
    pub fn start(dir: &Path, source: &str, options: &[&str]) -> Server {
        let _ = fs::create_dir(dir.join("point"));
        let mut child = Command::new(INARCH)
            .args(["mount", source, "point", "--overlay-dir", "."])
            .args(options)
            .current_dir(dir)
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        BufReader::new(child.stderr.take().unwrap()).read_line(&mut line).unwrap();
        assert!(line.starts_with("mounted "), "{line}");
        Server { child, line }
    }

    /// Ends it by a signal; gives its status.
    pub fn end(&mut self, signal: &str) -> Option<i32> {
        host("kill", &[signal, &self.child.id().to_string()], Path::new("/"));
        self.child.wait().unwrap().code()
    }
}

/// Whether `point` in `dir` is a mount point.
pub fn is_mounted(dir: &Path) -> bool {
    is_mount_point(&dir.join("point"))
}

/// Whether something is mounted there.
pub fn is_mount_point(point: &Path) -> bool {
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
    table.lines().any(|line| line.contains(&format!(" {} ", point.display())))
}

/// Takes a mount away by umount(8). A process that another test starts has our descriptors until it runs its program.
#[track_caller]
pub fn unmount(point: &Path) {
    assert!(is_unmounted(point), "{point:?} cannot be unmounted");
}

/// Runs umount(8) until it succeeds, for some seconds.
pub fn is_unmounted(point: &Path) -> bool {
    (0..50).any(|attempt| {
        std::thread::sleep(Duration::from_millis(attempt * 4));
        Command::new("umount").arg(point).output().is_ok_and(|output| output.status.success())
    })
}

/// A directory with a tree, whose mount is taken away at the end.
pub struct Scene {
    dir: tempfile::TempDir,
    /// The option that says what serves mounts in it, if it is said.
    way: Option<[&'static str; 2]>,
}

impl Drop for Scene {
    fn drop(&mut self) {
        // After a test that failed.
        let _ = Command::new("umount").args(["-q", "--lazy"]).arg(self.path().join("point")).status();
    }
}

impl Scene {
    /// With `tree/file` and an empty `point`.
    pub fn new() -> Scene {
        Scene::with(None)
    }

    /// The same, whose mounts are served by this of [`WAYS`].
    pub fn via(via: &'static str) -> Scene {
        Scene::with(Some(["--via", via]))
    }

    fn with(way: Option<[&'static str; 2]>) -> Scene {
        let dir = scratch();
        for name in ["tree", "point"] {
            fs::create_dir(dir.path().join(name)).unwrap();
        }
        fs::write(dir.path().join("tree/file"), "content").unwrap();
        Scene { dir, way }
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    /// The option that says how it is mounted.
    pub fn way(&self) -> &[&'static str] {
        self.way.as_ref().map_or(&[], |way| way)
    }

    /// Runs a shell's script, to whose end all that it has written to belongs.
    pub fn shell(&self, script: &str) -> Output {
        let mut command = Command::new("sh");
        let script = script.replace("$INARCH mount ", &format!("$INARCH mount {} ", self.way().join(" ")));
        command.args(["-c", &script]).current_dir(self.path()).env("PATH", programs()).stdin(Stdio::null());
        command.env("INARCH", INARCH).env("XDG_STATE_HOME", self.path().join("state")).output().unwrap()
    }

    /// Where servers in the background say what they have to say.
    pub fn usual_log(&self) -> PathBuf {
        self.path().join("state/inarch/mount.log")
    }
}

/// The process that a log's last line is of.
pub fn last_process(log: &Path) -> u32 {
    let log = fs::read_to_string(log).unwrap();
    let (_, rest) = log.lines().last().unwrap().split_once("inarch[").unwrap();
    rest.split_once("]:").unwrap().0.parse().unwrap()
}

/// Whether there is such a process, and it has not ended.
pub fn is_there(process: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{process}/stat"));
    // A zombie stays in /proc until its parent waits for it.
    stat.is_ok_and(|stat| !stat.rsplit_once(')').unwrap().1.starts_with(" Z"))
}
