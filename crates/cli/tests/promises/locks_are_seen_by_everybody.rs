//! Promise: with `--locks host`, programs in a mount, in another mount and on the host exclude each other; a lock ends with
//! its owner, and a program that waits for one can be interrupted.

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use crate::support::mounted::{Server, WAYS};
use crate::support::{LONG, assert_one_line, host, inarch, scratch, within};

/// Makes the file SIGN.ready, takes a lock, says so by making the file SIGN, and keeps it until it is killed:
/// `PATH KIND START LENGTH WAIT SIGN`.
const HOLD: &str = r"
import fcntl, os, signal, sys, time
path, kind, start, length, wait, sign = sys.argv[1:]
file = open(path, 'rb+')
flags = fcntl.LOCK_EX | (0 if wait == 'wait' else fcntl.LOCK_NB)
signal.signal(signal.SIGUSR1, lambda *a: (open(sign + '.interrupted', 'w'), os._exit(9)))
open(sign + '.ready', 'w').close()
try:
    if kind == 'flock':
        fcntl.flock(file, flags)
    elif kind == 'open file':
        import struct
        lock = struct.pack('hhqqi4x', fcntl.F_WRLCK, 0, int(start), int(length), 0)
        fcntl.fcntl(file, fcntl.F_OFD_SETLK, lock)
        file.close()
        file = open(path, 'rb+')
        fcntl.fcntl(file, fcntl.F_OFD_SETLK, lock)
    else:
        fcntl.lockf(file, flags, int(length), int(start))
except OSError as error:
    os._exit(7 if error.errno == 11 else 8)
open(sign, 'w').close()
time.sleep(600)
";

struct Holder(Child);

impl Drop for Holder {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Holder {
    fn start(dir: &Path, path: &str, lock: [&str; 3], wait: &str, sign: &str) -> Holder {
        let [kind, start, length] = lock;
        let child = Command::new("python3")
            // It starts in half of the time without the packages of its site.
            .args(["-S", "-E", "-c", HOLD, path, kind, start, length, wait, sign])
            .current_dir(dir)
            .stdin(Stdio::null())
            .spawn()
            .unwrap();
        Holder(child)
    }

    fn signal(&self, signal: &str) {
        host("kill", &[signal, &self.0.id().to_string()], Path::new("/"));
    }

    /// Whether it is in the system call that waits for a lock: python3's `fcntl` asks for nothing else then.
    fn waits(&self) -> bool {
        let call = fs::read_to_string(format!("/proc/{}/syscall", self.0.id())).unwrap_or_default();
        let mut words = call.split_whitespace();
        let [number, _, command] = [words.next(), words.next(), words.next()];
        number == Some(&libc::SYS_fcntl.to_string()) && command == Some(&format!("{:#x}", libc::F_SETLKW))
    }

    fn status(mut self) -> Option<i32> {
        self.0.wait().unwrap().code()
    }
}

const WHOLE: [&str; 3] = ["flock", "0", "0"];

#[test]
fn mounts_and_the_host_exclude_each_other() {
    for via in WAYS {
        all_exclude_each_other(["--locks", "host", "--via", via]);
    }
}

/// A mount of the first kind, one by FUSE, and the host.
fn all_exclude_each_other(options: [&str; 4]) {
    let dir = scratch();
    for name in ["tree", "one", "two"] {
        fs::create_dir(dir.path().join(name)).unwrap();
    }
    fs::write(dir.path().join("tree/file"), "x".repeat(1000)).unwrap();
    fs::create_dir(dir.path().join("two/point")).unwrap();
    let tree = dir.path().join("tree").display().to_string();
    let mut first = Server::start(dir.path(), "tree", &options);
    let mut second = Server::start(&dir.path().join("two"), &tree, &["--locks", "host", "--via", "fuse"]);
    assert!(first.line.contains("locks are the host's"), "{}", first.line);
    let (here, there, below) = ("point/file", "two/point/file", "tree/file");
    let hold = |path: &str, lock, sign: &str| {
        let holder = Holder::start(dir.path(), path, lock, "now", sign);
        assert!(within(LONG, || dir.path().join(sign).exists()), "{path} {lock:?} {sign}");
        holder
    };
    let try_it = |path: &str, lock| Holder::start(dir.path(), path, lock, "now", "tried").status();
    let is_free = |path: &str, lock| {
        let holder = hold(path, lock, "free");
        fs::remove_file(dir.path().join("free")).unwrap();
        drop(holder);
    };
    // Locked, closed, and locked again: a lock of an open file ends with it, not with its process.
    for (number, lock) in [WHOLE, ["range", "100", "10"], ["open file", "200", "10"]].into_iter().enumerate() {
        for (holder, others) in [(here, [there, below]), (below, [here, there]), (there, [here, below])] {
            let sign = format!("{number}-{}", holder.replace('/', "-"));
            let held = hold(holder, lock, &sign);
            for other in others {
                assert_eq!(try_it(other, lock), Some(7), "{holder} {other} {lock:?}");
            }
            // Also in the same mount.
            assert_eq!(try_it(holder, lock), Some(7), "{holder} {lock:?}");
            if lock[0] == "range" {
                is_free(others[0], ["range", "110", "10"]);
            }
            drop(held);
            is_free(others[1], lock);
        }
    }
    waiting(dir.path());
    assert_eq!((first.end("-TERM"), second.end("-TERM")), (Some(0), Some(0)));
    // They end with their server as well.
    let mut first = Server::start(dir.path(), "tree", &["--locks", "host", "--via", "fuse"]);
    let held = hold(here, WHOLE, "last");
    assert_eq!(try_it(below, WHOLE), Some(7));
    first.end("-KILL");
    is_free(below, WHOLE);
    drop(held);
}

/// Those who wait: more than the server has threads, and all else goes on meanwhile.
fn waiting(dir: &Path) {
    let range = ["range", "500", "5"];
    let held = Holder::start(dir, "tree/file", range, "now", "held");
    assert!(within(LONG, || dir.join("held").exists()));
    let wait = |number: usize| Holder::start(dir, "point/file", range, "wait", &format!("waiter{number}"));
    let waiters: Vec<Holder> = (0..40).map(wait).collect();
    let is_ready = |number: usize| dir.join(format!("waiter{number}.ready")).exists();
    assert!(within(LONG, || (0..40).all(is_ready)));
    assert!(within(LONG, || waiters.iter().all(Holder::waits)), "not all wait");
    let place = dir.to_owned();
    let writer = std::thread::spawn(move || {
        for number in 0..20 {
            fs::write(place.join(format!("point/other{number}")), "still served").unwrap();
        }
    });
    assert!(within(LONG, || writer.is_finished()), "nothing is served while others wait");
    writer.join().unwrap();
    let has = |number: usize| dir.join(format!("waiter{number}")).exists();
    assert!((0..40).all(|number| !has(number)));
    for waiter in &waiters[..10] {
        waiter.signal("-USR1");
    }
    let interrupted = |number: usize| dir.join(format!("waiter{number}.interrupted")).exists();
    assert!(within(LONG, || (0..10).all(interrupted)), "a program that waits cannot be interrupted");
    for waiter in &waiters[10..20] {
        waiter.signal("-KILL");
    }
    let mut rest: Vec<Option<Holder>> = waiters.into_iter().map(Some).skip(20).collect();
    drop(held);
    // One after the other gets it, each when the one before is gone.
    for _ in 0..rest.len() {
        let next = || rest.iter().position(|waiter| waiter.is_some()).is_some();
        assert!(next());
        let mut got = None;
        assert!(within(LONG, || {
            got = (0..rest.len()).find(|at| rest[*at].is_some() && has(at + 20));
            got.is_some()
        }));
        let others = (0..rest.len()).filter(|at| rest[*at].is_some() && has(at + 20)).count();
        assert_eq!(others, 1, "two have the lock");
        rest[got.unwrap()] = None;
    }
}

#[test]
fn a_lock_that_cannot_be_is_refused_in_one_line() {
    let dir = scratch();
    fs::create_dir(dir.path().join("tree")).unwrap();
    fs::create_dir(dir.path().join("point")).unwrap();
    let path = |name: &str| dir.path().join(name).display().to_string();
    let mount =
        |options: &[&str]| inarch([&["mount", &path("tree"), &path("point"), "--locks", "host"][..], options].concat());
    assert_one_line(&mount(&["--ephemeral"]), &["--locks host", "overlay"]);
    assert_one_line(&mount(&["--changes", "none"]), &["--locks host", "--changes none"]);
}
