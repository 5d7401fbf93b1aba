//! Promise: a thread is confined before it reads the first byte of an archive, a disk image or a container image: it has a system
//! call filter, and opens nothing from then on.
//!
//! strace(1) tells every call of a command and of its threads.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use crate::support::mounted::unmount;
use crate::support::{INARCH, LONG, host, scratch, within};

/// A tree, and what others make of it.
const SOURCES: &str = "
    mkdir -p tree/bin tree/src; cp /bin/busybox tree/bin; ln -s busybox tree/bin/sh
    seq 200000 > tree/src/numbers; echo '*.o' > tree/src/.gitignore; echo o > tree/src/a.o
    setfacl -m u:nobody:r tree/src/numbers
    tar --acls -C tree -cf t.tar .; tar -C tree -cf plain.tar .
    gzip -k t.tar; xz -k -0 t.tar; zstd -q -k t.tar
    mke2fs -q -F -d tree t.ext4 16M 2>&1
    mkfs.erofs -zlz4 t.erofs tree 2>&1
    mksquashfs tree t.squashfs -quiet -noappend -no-progress 2>&1
    umoci init --layout layout && umoci new --image layout:tag && umoci unpack --image layout:tag bundle
    cp -a tree/. bundle/rootfs/ && umoci repack --image layout:tag bundle
    skopeo copy -q oci:layout:tag docker-archive:t.docker:name:tag";

/// The kinds of sources, and the file or directory of each.
const NAMES: [(&str, &str); 9] = [
    ("t.tar", "t.tar"),
    ("t.tar.gz", "t.tar.gz"),
    ("t.tar.xz", "t.tar.xz"),
    ("t.tar.zst", "t.tar.zst"),
    ("t.ext4", "t.ext4"),
    ("t.erofs", "t.erofs"),
    ("t.squashfs", "t.squashfs"),
    ("oci:layout", "layout/"),
    ("t.docker", "t.docker"),
];

/// Calls that read, start threads, confine, and open: those that strace is to tell of.
const CALLS: &str = "trace=read,readv,pread64,preadv,preadv2,mmap,seccomp,clone,clone3,fork,vfork,openat,openat2,socket,\
                     memfd_create,execve";
const READS: [&str; 6] = ["read", "readv", "pread64", "preadv", "preadv2", "mmap"];
const OPENS: [&str; 5] = ["openat", "openat2", "socket", "memfd_create", "execve"];
const STARTS: [&str; 4] = ["clone", "clone3", "fork", "vfork"];

/// The command `words` under strace.
fn trace(dir: &Path, words: &[&str]) -> Command {
    let mut command = Command::new("strace");
    command.args(["-f", "-qq", "-y", "-o", "log", "-e", CALLS]).args(words).current_dir(dir);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::piped());
    command
}

/// Whether a line is the beginning of one of these calls.
fn begins(line: &str, calls: &[&str]) -> bool {
    line.split_once('(').is_some_and(|(call, _)| calls.contains(&call))
}

/// What one of these calls gave, if a line is its end.
fn result<'l>(line: &'l str, calls: &[&str]) -> Option<&'l str> {
    let resumed = line.strip_prefix("<... ").and_then(|line| line.split_once(" resumed>"));
    let is_one = begins(line, calls) || resumed.is_some_and(|(call, _)| calls.contains(&call));
    is_one.then(|| line.rsplit_once(" = ")).flatten().map(|(_, result)| result.trim())
}

/// One thread, as a log tells of it.
#[derive(Default)]
struct Thread {
    is_confined: bool,
    has_read: bool,
    /// What it opened while it was confined.
    opened: Vec<String>,
}

/// Who started each thread.
fn parents(log: &str) -> BTreeMap<&str, &str> {
    let mut parents = BTreeMap::new();
    for (thread, call) in log.lines().filter_map(|line| line.split_once(' ')) {
        if let Some(child) = result(call.trim_start(), &STARTS) {
            parents.insert(child, thread);
        }
    }
    parents
}

/// What is wrong in a log of a command that reads what `of` names: reads by a thread that is not confined, and files that a
/// confined reader opened all the same. Nothing read is wrong as well.
fn faults(log: &str, of: &Path) -> Vec<String> {
    let parents = parents(log);
    let of = format!("<{}", of.display());
    let mut threads: BTreeMap<&str, Thread> = BTreeMap::new();
    let mut faults = Vec::new();
    for (thread, call) in log.lines().filter_map(|line| line.split_once(' ')) {
        let call = call.trim_start();
        if !threads.contains_key(thread) {
            // A thread is born confined if the one that starts it is.
            let parent = parents.get(thread).and_then(|parent| threads.get(parent));
            let is_confined = parent.is_some_and(|parent| parent.is_confined);
            threads.insert(thread, Thread { is_confined, ..Thread::default() });
        }
        let Some(known) = threads.get_mut(thread) else { continue };
        if call.starts_with("seccomp(SECCOMP_SET_MODE_FILTER") {
            known.is_confined = true;
        } else if begins(call, &READS) && call.contains(&of) {
            known.has_read = true;
            if !known.is_confined {
                faults.push(format!("read outside: {call}"));
            }
        } else if known.is_confined && result(call, &OPENS).is_some_and(|result| !result.starts_with("-1 ")) {
            known.opened.push(call.to_owned());
        }
    }
    let readers = || threads.values().filter(|thread| thread.has_read);
    if readers().next().is_none() {
        faults.push("nothing is read".to_owned());
    }
    faults.extend(readers().flat_map(|reader| reader.opened.iter().map(|call| format!("opened inside: {call}"))));
    faults
}

#[track_caller]
fn assert_confined(dir: &Path, what: &[&str], of: &str) {
    let log = fs::read_to_string(dir.join("log")).unwrap();
    let faults = faults(&log, &dir.join(of));
    assert!(faults.is_empty(), "{what:?}: {faults:#?}");
}

/// Has `inarch ARGUMENTS` run to its end.
#[track_caller]
fn check(dir: &Path, arguments: &[&str], of: &str) {
    let words = [&[INARCH], arguments].concat();
    let output = trace(dir, &words).output().unwrap();
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    assert_confined(dir, arguments, of);
}

/// A directory without symlinks in its path, as strace shows it, and the sources in it; none without strace.
fn place() -> Option<tempfile::TempDir> {
    if Command::new("strace").arg("-V").output().is_err() {
        println!("skipped: {}: strace is not installed", std::thread::current().name().unwrap_or_default());
        return None;
    }
    let dir = scratch();
    host("sh", &["-euc", SOURCES], dir.path());
    Some(dir)
}

/// The test itself sees a reader that is not confined.
#[test]
fn a_reader_that_is_not_confined_is_seen() {
    let Some(dir) = place() else { return };
    let path = dir.path().join("t.tar");
    assert!(trace(dir.path(), &["cat", "t.tar"]).status().unwrap().success());
    let log = fs::read_to_string(dir.path().join("log")).unwrap();
    assert!(faults(&log, &path).iter().any(|fault| fault.starts_with("read outside")), "{log}");
    assert_eq!(faults(&log, &dir.path().join("t.ext4")), ["nothing is read"]);
}

#[test]
fn plans_and_images_are_made_so() {
    let Some(dir) = place() else { return };
    let dir = dir.path();
    for (source, of) in NAMES {
        check(dir, &["plan", source], of);
        check(dir, &["image", "-q", source, "-o", "out.tar", "--ignore-file=.gitignore"], of);
        check(dir, &["image", "-q", source, "-o", "out.ext4", "--verify"], of);
    }
    // Content that is compressed is read by those who write.
    for source in ["t.erofs", "t.squashfs"] {
        check(dir, &["plan", source, "--format", "squashfs"], source);
        check(dir, &["image", "-q", source, "-o", "out.squashfs", "--compress", "zstd"], source);
        check(dir, &["image", "-q", source, "-o", "out.erofs", "--compress", "lz4"], source);
        check(dir, &["image", "-q", source, "-o", "-", "--format", "squashfs"], source);
        check(dir, &["image", "-q", source, "-o", "-", "--format", "tar"], source);
    }
    // What comes through a pipe has no other name.
    let mut command = trace(dir, &[INARCH, "plan", "-"]);
    let output = command.stdin(File::open(dir.join("t.tar.zst")).unwrap()).output().unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_confined(dir, &["plan", "-"], "t.tar.zst");
    host("mkfifo", &["fifo"], dir);
    let mut writer = Command::new("sh").args(["-c", "cat t.tar.gz > fifo"]).current_dir(dir).spawn().unwrap();
    check(dir, &["plan", "fifo"], "fifo");
    assert!(writer.wait().unwrap().success());
}

/// strace and the server that it traces.
struct Server(Child);

// After a test that failed: a server outlives its strace.
impl Drop for Server {
    fn drop(&mut self) {
        let strace = self.0.id();
        let traced = fs::read_to_string(format!("/proc/{strace}/task/{strace}/children")).unwrap_or_default();
        for process in traced.split_whitespace() {
            let _ = Command::new("kill").arg(process).status();
        }
        let _ = self.0.wait();
    }
}

/// Starts a server under strace, and waits until `is_ready`.
#[track_caller]
fn serve(dir: &Path, arguments: &[&str], is_ready: impl Fn() -> bool) -> Server {
    let words = [&[INARCH], arguments].concat();
    let server = Server(trace(dir, &words).stderr(File::create(dir.join("said")).unwrap()).spawn().unwrap());
    let said = || fs::read_to_string(dir.join("said")).unwrap();
    assert!(within(LONG, &is_ready), "{arguments:?}: {}", said());
    server
}

#[test]
fn disks_are_served_so() {
    let Some(dir) = place() else { return };
    let dir = dir.path();
    for (source, of) in NAMES {
        let format = if source == "t.squashfs" { "ext4" } else { "squashfs" };
        let arguments = ["serve", "nbd", source, "--socket", "socket", "--once", "--format", format, "--ro"];
        let mut server = serve(dir, &arguments, || dir.join("socket").exists());
        let read = ["-r", "-f", "raw", "-c", "read 4k 64k", "nbd+unix:///?socket=socket"];
        host("qemu-io", &read, dir);
        assert!(server.0.wait().unwrap().success(), "{arguments:?}");
        assert_confined(dir, &arguments, of);
    }
}

/// Whether something is mounted there.
fn is_mounted(point: &Path) -> bool {
    let table = fs::read_to_string("/proc/self/mounts").unwrap();
    table.lines().any(|line| line.split(' ').nth(1) == point.to_str())
}

#[test]
fn mounts_are_made_so() {
    let Some(dir) = place() else { return };
    let dir = dir.path();
    let point = dir.join("point");
    fs::create_dir(&point).unwrap();
    let mut ways: BTreeSet<(&str, &str, &str)> = NAMES.iter().map(|(source, of)| (*source, *of, "fuse")).collect();
    if rustix::process::geteuid().is_root() {
        ways.extend(["t.tar", "t.ext4"].map(|source| (source, source, "auto")));
        // It takes no ACLs.
        ways.insert(("plain.tar", "plain.tar", "kernel"));
    }
    for (source, of, via) in ways {
        let arguments = ["mount", source, "point", "--via", via, "--ephemeral"];
        let mut server = serve(dir, &arguments, || is_mounted(&point) && point.join("src/numbers").exists());
        assert_eq!(fs::read_to_string(point.join("src/numbers")).unwrap().lines().count(), 200_000, "{source}");
        unmount(&dir.join("point"));
        assert!(server.0.wait().unwrap().success(), "{arguments:?}");
        assert_confined(dir, &arguments, of);
    }
}

#[test]
fn guests_get_them_so() {
    let Some(dir) = place() else { return };
    let dir = dir.path();
    let root =
        ["run", "--quiet", "--accel=tcg", "--root=t.tar.zst", "--tree=t.squashfs:/a,via=tar", "--tree=t.erofs:/b"];
    let command = ["--", "/bin/busybox", "cmp", "/a/src/numbers", "/b/src/numbers"];
    let words = [&root[..], &command[..]].concat();
    check(dir, &words, "t.tar.zst");
    for of in ["t.squashfs", "t.erofs"] {
        assert_confined(dir, &words, of);
    }
}
