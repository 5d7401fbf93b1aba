//! A mount that a test uses.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use super::{INARCH, host};

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
    let point = dir.join("point");
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
    table.lines().any(|line| line.contains(&format!(" {} ", point.display())))
}
