//! Promise: most requests to a directory of the host are one system call. Counted by strace(1) of a script that is this
//! program itself.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::Command;

use inarch_vfs::{
    Changes, Context, DirectoryEntry, DirectorySink, FileSystem, HostDirectory, HostOptions, NewNode, NodeId,
};

/// Where the script finds its directory.
const VARIABLE: &str = "INARCH_TEST_DIRECTORY";

/// What tells the script's steps apart in the log.
const MARK: &str = "/step-";

const ENTRIES: usize = 200;

/// Takes all entries.
#[derive(Default)]
struct All {
    count: usize,
    next: u64,
}

impl DirectorySink for All {
    fn wants_entries(&self) -> bool {
        true
    }

    fn has_room(&self, _: usize) -> bool {
        true
    }

    fn push(&mut self, entry: &DirectoryEntry<'_>) -> bool {
        self.count += usize::from(entry.entry.is_some());
        self.next = entry.next;
        true
    }
}

/// From here on, up to the next mark, calls are counted for `step`.
fn mark(step: &str) {
    let _ = Path::new(&format!("{MARK}{step}")).symlink_metadata();
}

/// Does each operation once, marked.
fn script(directory: &Path) {
    let options = HostOptions { changes: Changes::Guest, ..HostOptions::default() };
    let layer = HostDirectory::new(directory, options).unwrap();
    let me = &Context::SERVER;
    let new = NewNode { mode: libc::S_IFREG | 0o644, umask: 0o022, device: 0 };
    let flags = libc::O_RDWR as u32;
    let d = layer.lookup(me, NodeId::ROOT, b"d").unwrap().node;
    let e = layer.lookup(me, NodeId::ROOT, b"e").unwrap().node;
    // The first time, directories are opened, and the thread takes the caller's umask.
    for directory in [d, e] {
        layer.create(me, directory, b"first", &new, flags).unwrap();
    }
    mark("lookup");
    let entry = layer.lookup(me, d, b"0").unwrap();
    mark("lookup-known");
    layer.lookup(me, d, b"0").unwrap();
    mark("lookup-missing");
    layer.lookup(me, d, b"none").unwrap_err();
    mark("attributes");
    layer.attributes(me, entry.node, None).unwrap();
    mark("create");
    let (created, opened) = layer.create(me, d, b"new", &new, flags).unwrap();
    mark("attributes-open");
    layer.attributes(me, created.node, Some(opened.handle)).unwrap();
    mark("release");
    layer.release(created.node, opened.handle, None);
    mark("rename");
    layer.rename(me, d, b"new", e, b"newer", 0).unwrap();
    mark("attributes-renamed");
    layer.attributes(me, created.node, None).unwrap();
    mark("unlink");
    layer.unlink(me, e, b"newer").unwrap();
    mark("make-directory");
    layer.make_directory(me, d, b"directory", &new).unwrap();
    mark("read-directory");
    let mut all = All::default();
    layer.read_directory(me, e, Default::default(), 0, &mut all).unwrap();
    mark("read-directory-known");
    let mut known = All::default();
    layer.read_directory(me, e, Default::default(), 0, &mut known).unwrap();
    mark("end");
    // What was made there is known from the start, everything from then on.
    assert_eq!((all.count, known.count), (ENTRIES, 0));
}

/// Calls that are made for memory and threads, whatever the program does. Where debug assertions are on, the standard library looks at
/// each descriptor before it closes it.
fn is_incidental(name: &str, call: &str) -> bool {
    let debug = cfg!(debug_assertions) && name == "fcntl" && call.contains("F_GETFD");
    debug || ["mmap", "munmap", "mremap", "brk", "futex", "madvise", "mprotect", "sched_yield"].contains(&name)
}

#[test]
fn most_requests_are_one_system_call() {
    if let Some(directory) = std::env::var_os(VARIABLE) {
        return script(Path::new(&directory));
    }
    let directory = tempfile::tempdir().unwrap();
    for name in ["d", "e"] {
        let sub = directory.path().join("tree").join(name);
        fs::create_dir_all(&sub).unwrap();
        for number in 0..ENTRIES {
            fs::write(sub.join(number.to_string()), "").unwrap();
        }
    }
    let log = directory.path().join("log");
    let traced = Command::new("strace")
        .args(["-f", "-o"])
        .arg(&log)
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", "most_requests_are_one_system_call"])
        .env(VARIABLE, directory.path().join("tree"))
        .output();
    let traced = match traced {
        Err(_) => return println!("skipped: most_requests_are_one_system_call: strace is not installed"),
        Ok(output) => output,
    };
    assert!(traced.status.success(), "{}", String::from_utf8_lossy(&traced.stderr));
    let calls = calls_by_step(&fs::read_to_string(&log).unwrap());
    let limits = [
        ("lookup", 2),
        ("lookup-known", 1),
        ("lookup-missing", 1),
        ("attributes", 1),
        ("attributes-open", 1),
        ("attributes-renamed", 1),
        ("create", 3),
        ("release", 1),
        ("rename", 1),
        ("unlink", 1),
        ("make-directory", 2),
        // One an entry, and a few for the whole.
        ("read-directory", ENTRIES + 8),
        ("read-directory-known", 4),
    ];
    for (step, limit) in limits {
        let calls = &calls[step];
        assert!(!calls.is_empty() && calls.len() <= limit, "{step}: {} calls: {calls:#?}", calls.len());
    }
}

/// The system calls of each step, as strace writes them.
fn calls_by_step(log: &str) -> BTreeMap<String, Vec<String>> {
    let mut steps: BTreeMap<String, Vec<String>> = BTreeMap::new();
    // The thread that makes the marks is the one that counts.
    let mut now: Option<(String, String)> = None;
    for line in log.lines() {
        let Some((thread, call)) = line.split_once(' ') else { continue };
        let call = call.trim_start();
        let name = call.split('(').next().unwrap_or_default();
        if let Some((_, rest)) = call.split_once(MARK) {
            let step = rest.split('"').next().unwrap_or_default();
            now = Some((thread.to_owned(), step.to_owned()));
            steps.entry(step.to_owned()).or_default();
        } else if let Some((marked, step)) = &now
            && marked == thread
            && !is_incidental(name, call)
            && !call.starts_with("<...")
            && let Some(calls) = steps.get_mut(step)
        {
            calls.push(call.to_owned());
        }
    }
    steps
}
