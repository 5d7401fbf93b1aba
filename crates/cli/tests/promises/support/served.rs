//! A server that a test starts and ends.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, Stdio};

use super::{INARCH, host};

/// A server in a directory of the test's own, once it has confined itself.
pub struct Served {
    /// The process.
    pub child: Child,
    /// The line that says how.
    pub guard: String,
    /// What it has to say after that: the server does not end for want of a reader.
    pub stderr: BufReader<ChildStderr>,
}

// After a test that failed.
impl Drop for Served {
    fn drop(&mut self) {
        let _ = self.child.kill();
    }
}

impl Served {
    /// Starts `inarch` with these arguments.
    pub fn start(dir: &Path, arguments: &[&str]) -> Served {
        Served::start_by(dir, &[INARCH], arguments)
    }

    /// Starts it by a command of more than one word, which becomes the server.
    pub fn start_by(dir: &Path, command: &[&str], arguments: &[&str]) -> Served {
        let words = [command, arguments].concat();
        let mut child = Command::new(words[0])
            .args(&words[1..])
            .current_dir(dir)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut stderr = BufReader::new(child.stderr.take().unwrap());
        let mut guard = String::new();
        while !guard.starts_with("guard:") {
            guard.clear();
            assert_ne!(stderr.read_line(&mut guard).unwrap(), 0, "{words:?} has ended");
        }
        Served { child, guard, stderr }
    }

    /// A file that the kernel has of the process.
    pub fn proc(&self, name: &str) -> PathBuf {
        Path::new("/proc").join(self.child.id().to_string()).join(name)
    }

    /// A file of the thread that serves: the first one of a server only waits for it.
    pub fn of_serving_thread(&self, name: &str) -> PathBuf {
        let tasks = fs::read_dir(self.proc("task")).unwrap().map(|task| task.unwrap().path());
        let serves = |task: &PathBuf| {
            fs::read_to_string(task.join("comm"))
                .is_ok_and(|comm| ["server\n", "mount\n", "fuse\n"].contains(&comm.as_str()))
        };
        tasks.into_iter().find(serves).map_or_else(|| self.proc(name), |task| task.join(name))
    }

    /// A field of each thread's status.
    pub fn status(&self, field: &str) -> Vec<String> {
        let tasks = fs::read_dir(self.proc("task")).unwrap();
        // A thread may have ended since.
        let texts = tasks.filter_map(|task| fs::read_to_string(task.ok()?.path().join("status")).ok());
        texts.map(|text| field_of(&text, field)).collect()
    }

    /// How many files it has open.
    pub fn descriptors(&self) -> usize {
        fs::read_dir(self.proc("fd")).map_or(0, Iterator::count)
    }

    /// Ends it as a user does.
    pub fn end(mut self) {
        host("kill", &["-TERM", &self.child.id().to_string()], Path::new("/"));
        assert_eq!(self.child.wait().unwrap().code(), Some(0));
    }
}

/// A field of a `/proc/PID/status`.
pub fn field_of(status: &str, field: &str) -> String {
    let line = status.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
    line.unwrap_or_else(|| panic!("no {field} in {status}")).trim().to_owned()
}
