//! Promise: `inarch mount` shows a tree as it is, programs work in it as in any directory, a source that is not to be changed
//! is not, and the mount is gone when its server is.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::Duration;

use crate::support::mounted::{Server, WAYS, is_mounted, is_there, unmount};
use crate::support::{INARCH, LONG, assert_one_line, host, inarch, scratch, within};

fn tree(dir: &Path) {
    fs::create_dir_all(dir.join("tree/sub/deep")).unwrap();
    for number in 0..60usize {
        fs::write(dir.join(format!("tree/sub/{number}")), vec![number as u8; number * 997]).unwrap();
    }
    fs::hard_link(dir.join("tree/sub/7"), dir.join("tree/link")).unwrap();
    host("sh", &["-c", "ln -s sub/8 tree/symlink; mkfifo tree/fifo; truncate -s 300M tree/holes"], dir);
}

/// What `find` and checksums say of a directory.
fn manifest(dir: &Path, root: &str) -> String {
    let script = format!(
        "cd {root} && find . -printf '%p %y %m %U:%G %l %T@ ' \\( -type d -printf '\\n' -o -printf '%n %s\\n' \\) | sort && \
         find . -type f -size -1M -print0 | sort -z | xargs -0 sha256sum"
    );
    host("sh", &["-c", &script], dir)
}

#[test]
fn every_source_is_seen_as_it_is() {
    let dir = scratch();
    tree(dir.path());
    for format in ["ext4", "erofs"] {
        host("sh", &["-c", &format!("{INARCH} image tree -o tree.{format} --quiet")], dir.path());
    }
    host("sh", &["-c", &format!("{INARCH} image tree -o tree.tar --quiet")], dir.path());
    let expected = manifest(dir.path(), "tree");
    let sources = [
        ("tree", &["--ro"][..]),
        ("tree", &["-o", "ro"]),
        ("tree", &["--changes", "none"]),
        ("tree.tar", &[]),
        ("tree.ext4", &[]),
        ("tree.erofs", &[]),
        ("tree", &["--ephemeral"]),
        ("tree", &["--ephemeral", "--in-memory", "8M"]),
        ("tree.tar", &["--ephemeral", "--in-memory", "8M"]),
    ];
    for (via, (source, options)) in WAYS.iter().flat_map(|via| sources.map(|source| (via, source))) {
        let mut server = Server::start(dir.path(), source, &[options, &["--via", via]].concat());
        let found = manifest(dir.path(), "point");
        let lines = found.lines().count();
        // What an image adds.
        let found: String =
            found.lines().filter(|line| !line.contains("lost+found")).map(|line| format!("{line}\n")).collect();
        similar_asserts(&expected, &found, source);
        if options.contains(&"8M") {
            let full = "! dd if=/dev/zero of=point/full bs=1M count=9 2> full && grep -q 'No space left' full && rm point/full && \
                        dd if=/dev/zero of=point/fits bs=1M count=7 2> /dev/null && rm point/fits";
            host("sh", &["-c", full], dir.path());
        }
        // Twice, for what the kernel has kept by then.
        assert_eq!(manifest(dir.path(), "point").lines().count(), lines);
        if !options.contains(&"--ephemeral") {
            assert!(fs::write(dir.path().join("point/new"), "").is_err());
        }
        assert_eq!(server.end("-TERM"), Some(0), "{}", server.line);
        assert!(!is_mounted(dir.path()));
    }
    assert_eq!(manifest(dir.path(), "tree"), expected);
}

fn similar_asserts(expected: &str, found: &str, what: &str) {
    let missing: Vec<&str> =
        expected.lines().filter(|line| !found.lines().any(|other| other == *line)).take(5).collect();
    let added: Vec<&str> = found.lines().filter(|line| !expected.lines().any(|other| other == *line)).take(5).collect();
    assert!(missing.is_empty() && added.is_empty(), "{what}: missing {missing:#?}, added {added:#?}");
}

/// Work as people do it, in `point/work`.
const WORK: &str = "set -e
mkdir point/work && cd point/work
git init -q g && cd g && cp -r ../../sub . && git add . && git -c user.name=n -c user.email=n@example.org commit -qm all
git gc -q && git fsck --strict && test -z \"$(git status --porcelain)\"
printf 'int main(void) { return 0; }' > main.c && cc -o program main.c && ./program
python3 - <<'END'
import mmap, os, sqlite3
base = sqlite3.connect('base')
base.execute('pragma journal_mode=wal')
base.execute('create table t (a integer, b text)')
for number in range(2000):
    base.execute('insert into t values (?, ?)', (number, 'x' * (number % 100)))
base.commit()
other = sqlite3.connect('base')
assert other.execute('select sum(a) from t').fetchone() == (1999000,)
assert other.execute('pragma integrity_check').fetchone() == ('ok',)
other.close()
base.close()
with open('mapped', 'wb+') as file:
    file.truncate(1 << 20)
    view = mmap.mmap(file.fileno(), 0)
    view[5000:5005] = b'hello'
    view.flush()
    os.unlink('mapped')
    file.seek(5000)
    assert file.read(5) == b'hello'
END
cp program p2 && mv p2 program && ./program && ln program p3 && chmod 600 p3 && test \"$(stat -c '%a %h' program)\" = '600 2'
truncate -s 100K sparse && fallocate -p -o 0 -l 8192 sparse && cp --sparse=always sparse copy && cmp sparse copy
cd ../.. && mv work/g moved && rm -rf moved
test ! -e moved
";

#[test]
fn programs_work_in_it() {
    let kinds = [
        &["--changes", "guest"][..],
        &["--changes", "host"],
        &["--ephemeral"],
        &["--overlay", "upper"],
        &["--ephemeral", "--in-memory", "300M"],
    ];
    for (via, options) in WAYS.iter().flat_map(|via| kinds.map(|options| (via, options))) {
        let dir = scratch();
        tree(dir.path());
        let before = manifest(dir.path(), "tree");
        let mut server = Server::start(dir.path(), "tree", &[options, &["--via", via]].concat());
        host("sh", &["-c", WORK], dir.path());
        assert_eq!(server.end("-INT"), Some(0));
        assert!(!is_mounted(dir.path()));
        let is_kept_apart = options[0] != "--changes";
        assert_eq!(dir.path().join("tree/work").exists(), !is_kept_apart);
        assert_eq!(dir.path().join("upper/upper/work").exists(), options[0] == "--overlay");
        if is_kept_apart {
            assert_eq!(manifest(dir.path(), "tree"), before);
        }
        let left = fs::read_dir(dir.path()).unwrap().flatten().map(|entry| entry.file_name());
        assert!(left.into_iter().all(|name| !name.to_string_lossy().starts_with("inarch-mount-")));
    }
}

#[test]
fn an_overlay_goes_on_where_it_stopped_and_the_kernel_reads_it_too() {
    for [first, second] in [["fuse", "auto"], ["auto", "fuse"], ["auto", "auto"], ["fuse", "fuse"]] {
        an_overlay_goes_on(["--via", first], ["--via", second]);
    }
}

fn an_overlay_goes_on(first: [&str; 2], second: [&str; 2]) {
    let dir = scratch();
    tree(dir.path());
    let change = "set -e; cd point; rm sub/1 link; echo new > sub/2; mkdir a; echo x > a/b; mv sub/3 a/c; rmdir sub/deep; \
                  mkdir sub/deep; chmod 700 sub/5; ln sub/5 a/hard";
    let start = |way: [&str; 2]| Server::start(dir.path(), "tree", &[&["--overlay", "upper"][..], &way].concat());
    let mut server = start(first);
    host("sh", &["-c", change], dir.path());
    let changed = manifest(dir.path(), "point");
    server.end("-TERM");
    let mut server = start(second);
    similar_asserts(&changed, &manifest(dir.path(), "point"), "the second time");
    // What was changed above is changed once more, and what was taken away stays so.
    let more =
        "set -e; cd point; rm a/c; echo more >> sub/2; mkdir link; touch link/in; rm sub/5; mv a b; echo 4 > sub/4";
    host("sh", &["-c", more], dir.path());
    let changed = manifest(dir.path(), "point");
    server.end("-TERM");
    let mut server = start(first);
    similar_asserts(&changed, &manifest(dir.path(), "point"), "the third time");
    server.end("-TERM");
    if !rustix::process::geteuid().is_root() {
        return println!(
            "skipped: an_overlay_goes_on_where_it_stopped_and_the_kernel_reads_it_too: only root mounts an overlayfs"
        );
    }
    let overlay =
        "mkdir merged && mount -t overlay none merged -o lowerdir=tree,upperdir=upper/upper,workdir=upper/work";
    host("sh", &["-c", overlay], dir.path());
    let merged = manifest(dir.path(), "merged");
    unmount(&dir.path().join("merged"));
    similar_asserts(&changed, &merged, "overlayfs");
    // Whatever overlayfs has left in the work directory.
    let mut server = start(["--via", "fuse"]);
    similar_asserts(&changed, &manifest(dir.path(), "point"), "after overlayfs");
    assert_eq!(fs::read_dir(dir.path().join("upper/work")).unwrap().count(), 0);
    server.end("-TERM");
}

#[test]
fn what_the_host_changes_is_seen() {
    for via in WAYS {
        what_changes_is_seen(&["--changes", "host", "--via", via]);
    }
}

fn what_changes_is_seen(options: &[&str]) {
    let dir = scratch();
    tree(dir.path());
    let mut server = Server::start(dir.path(), "tree", options);
    let file = dir.path().join("point/sub/9");
    assert_eq!(fs::metadata(&file).unwrap().size(), 9 * 997);
    assert!(!dir.path().join("point/late").exists());
    fs::write(dir.path().join("tree/sub/9"), "changed").unwrap();
    fs::write(dir.path().join("tree/late"), "late").unwrap();
    let size = || fs::metadata(&file).unwrap().size();
    assert!(within(LONG, || size() == 7 && dir.path().join("point/late").exists()));
    assert_eq!(fs::read(&file).unwrap(), b"changed");
    assert_eq!(fs::read(dir.path().join("point/late")).unwrap(), b"late");
    fs::rename(dir.path().join("tree/sub"), dir.path().join("tree/moved")).unwrap();
    assert!(within(LONG, || !file.exists()));
    assert_eq!(fs::read(dir.path().join("point/moved/9")).unwrap(), b"changed");
    server.end("-TERM");
}

#[test]
fn a_write_without_privilege_ends_set_user_id_bits() {
    if !rustix::process::geteuid().is_root() {
        return println!("skipped: a_write_without_privilege_ends_set_user_id_bits: only root can be several users");
    }
    let dir = scratch();
    tree(dir.path());
    host("chmod", &["755", "."], dir.path());
    host("sh", &["-c", "cp /bin/true tree/large; truncate -s 1M tree/large; cp /bin/true tree/small"], dir.path());
    let kinds = [["--changes", "host"], ["--changes", "guest"]];
    for options in WAYS.iter().flat_map(|via| kinds.map(|[name, value]| [name, value, "--via", via])) {
        host("sh", &["-c", "chown nobody tree/large tree/small; chmod 6755 tree/large tree/small"], dir.path());
        let mut server = Server::start(dir.path(), "tree", &options);
        let by_fuse = options[3] == "fuse";
        let calls = by_fuse.then(|| IoControls::of(dir.path(), server.child.id()));
        // The kernel shows the old mode for as long as it keeps attributes.
        let work = "set -e; for file in large small; do
                exec 3< point/$file; printf x | setpriv --reuid nobody --regid nogroup --clear-groups dd of=point/$file conv=notrunc \
                    oflag=append status=none; exec 3<&-; stat -c %a tree/$file; done";
        assert_eq!(host("sh", &["-c", work], dir.path()), "755\n755\n", "{options:?}");
        let allocate = "chmod 6777 point/small; setpriv --reuid nobody --regid nogroup --clear-groups \
            fallocate -l 64K point/small; stat -c %a tree/small";
        assert_eq!(host("sh", &["-c", allocate], dir.path()), "777\n", "{options:?}");
        // Set when the kernel has the file already.
        let late = "set -e; exec 3< point/large; chmod 6755 point/large; test $(stat -c %a tree/large) = 6755; printf x |
            setpriv --reuid nobody --regid nogroup --clear-groups dd of=point/large conv=notrunc status=none; stat -c %a tree/large";
        assert_eq!(host("sh", &["-c", late], dir.path()), "755\n", "{options:?}");
        server.end("-TERM");
        // That was about data that the kernel writes by itself.
        let mut calls = calls.map(IoControls::all).unwrap_or_default();
        calls.retain(|call| call.contains(" 0x4010e501, "));
        let passes_through = calls.iter().any(|call| !call.contains("= -"));
        assert!(passes_through || !by_fuse || !may_pass_through(), "{options:?}: no backing file, but {calls:?}");
    }
}

/// The ioctl(2) calls of a process, with numbers for their arguments; 0x4010e501 is `FUSE_DEV_IOC_BACKING_OPEN`.
struct IoControls {
    strace: Child,
    log: PathBuf,
}

impl IoControls {
    fn of(dir: &Path, process: u32) -> IoControls {
        let log = dir.join("ioctls");
        let mut strace = Command::new("strace");
        strace.args(["-f", "-qq", "-e", "trace=ioctl", "-e", "raw=ioctl", "-o"]).arg(&log);
        let strace = strace.args(["-p", &process.to_string()]).spawn().expect("strace");
        let is_followed = |task: fs::DirEntry| {
            let status = fs::read_to_string(task.path().join("status"));
            status.is_ok_and(|status| !status.contains("TracerPid:\t0\n"))
        };
        let tasks = || fs::read_dir(format!("/proc/{process}/task")).unwrap().flatten();
        assert!(within(LONG, || tasks().all(is_followed)), "strace does not follow the server");
        IoControls { strace, log }
    }

    /// One call a line, once the process has ended.
    fn all(mut self) -> Vec<String> {
        self.strace.wait().unwrap();
        fs::read_to_string(self.log).unwrap().lines().map(str::to_owned).collect()
    }
}

/// Whether this kernel can do I/O for a FUSE server that is root, by its version.
fn may_pass_through() -> bool {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let mut numbers = release.split(['.', '-']).map(|part| part.parse::<u32>().unwrap_or(0));
    (numbers.next(), numbers.next()) >= (Some(6), Some(9))
}

/// Names of a process's threads.
fn threads(process: u32) -> Vec<String> {
    let threads = fs::read_dir(format!("/proc/{process}/task")).unwrap().flatten();
    threads.filter_map(|thread| fs::read_to_string(thread.path().join("comm")).ok()).collect()
}

/// The kernel's switch for FUSE over io_uring, of connections that begin from then on.
const RING_SWITCH: &str = "/sys/module/fuse/parameters/enable_uring";

/// Switches FUSE over io_uring off again, however the test ends.
struct RingsOff;

impl Drop for RingsOff {
    fn drop(&mut self) {
        // Nothing is to be done about it.
        let _ = fs::write(RING_SWITCH, "N");
    }
}

#[test]
fn requests_come_by_io_uring_where_that_is_on() {
    let dir = scratch();
    tree(dir.path());
    let is_ring = |name: &String| name.starts_with("fuse-");
    let mut server = Server::start(dir.path(), "tree", &["--io-uring", "off"]);
    assert!(!threads(server.child.id()).iter().any(is_ring));
    server.end("-TERM");
    // All other tests here use it too where it is on.
    let switch = fs::read_to_string(RING_SWITCH);
    let _switched_back = if switch.as_ref().is_ok_and(|switch| switch.starts_with('Y')) {
        None
    } else {
        let text = |path: &str| dir.path().join(path).display().to_string();
        let refused = inarch(["mount", &text("tree"), &text("point"), "--io-uring", "on"]);
        assert_one_line(&refused, &["FUSE over io_uring", if switch.is_ok() { "enable_uring" } else { "Linux 6.14" }]);
        if let Err(error) = fs::write(RING_SWITCH, "Y") {
            return println!(
                "skipped: requests_come_by_io_uring_where_that_is_on: FUSE over io_uring is off on this machine, and cannot be switched on: {error}"
            );
        }
        Some(RingsOff)
    };
    for options in [&["--changes", "guest"][..], &["--ephemeral"]] {
        let mut server = Server::start(dir.path(), "tree", &[options, &["--io-uring", "on"]].concat());
        host("sh", &["-c", WORK], dir.path());
        assert!(threads(server.child.id()).iter().any(is_ring));
        assert_eq!(server.end("-TERM"), Some(0));
        assert!(!is_mounted(dir.path()));
    }
    // Switched off while mounts begin: requests come by the device.
    let script = format!(
        "for i in $(seq 1000); do echo N > {RING_SWITCH}; sleep 0.02; echo Y > {RING_SWITCH}; sleep 0.02; done"
    );
    let mut switching = Command::new("sh").args(["-c", &script]).spawn().unwrap();
    for _ in 0..12 {
        let mut server = Server::start(dir.path(), "tree", &["--via", "fuse"]);
        assert!(dir.path().join("point/sub").exists());
        assert_eq!(server.end("-TERM"), Some(0));
    }
    switching.kill().unwrap();
    switching.wait().unwrap();
    fs::write(RING_SWITCH, "Y").unwrap();
    // Killed while there are requests: their callers get errors, and nothing is left.
    let mut server = Server::start(dir.path(), "tree", &["--io-uring", "on", "--changes", "host"]);
    let mut busy = Command::new("sh")
        // The point alone is found after the mount's end too.
        .args(["-c", "while find point/sub point -type f -size -9k -exec cat {} + >/dev/null 2>&1; do :; done"])
        .current_dir(dir.path())
        .spawn()
        .unwrap();
    std::thread::sleep(Duration::from_millis(300));
    server.end("-KILL");
    assert!(within(LONG, || busy.try_wait().unwrap().is_some()), "a program waits for a server that is gone");
    assert!(within(LONG, || !is_mounted(dir.path())), "the mount is still there");
}

#[test]
fn a_killed_server_leaves_no_thrown_away_writes() {
    for via in WAYS {
        a_killed_server_leaves_nothing(via);
    }
}

fn a_killed_server_leaves_nothing(via: &str) {
    let dir = scratch();
    tree(dir.path());
    let mut server = Server::start(dir.path(), "tree", &["--ephemeral", "--via", via]);
    host("sh", &["-c", "cp -r point/sub point/more && ln -s / point/more/root"], dir.path());
    let left = || {
        let names = fs::read_dir(dir.path()).unwrap().flatten().map(|entry| entry.file_name());
        names.filter(|name| name.to_string_lossy().starts_with("inarch-mount-")).count()
    };
    assert_eq!(left(), 1);
    server.end("-KILL");
    assert!(within(LONG, || left() == 0 && !is_mounted(dir.path())), "something is left");
    assert!(Path::new("/etc").exists());
}

#[test]
fn kept_writes_are_shown_over_their_own_tree_only() {
    for via in WAYS {
        kept_writes_belong_to_a_tree(["--via", via]);
    }
}

fn kept_writes_belong_to_a_tree([option, via]: [&str; 2]) {
    let dir = scratch();
    tree(dir.path());
    fs::create_dir(dir.path().join("other")).unwrap();
    host("sh", &["-c", &format!("{INARCH} image tree -o tree.tar --quiet")], dir.path());
    let path = |name: &str| dir.path().join(name).display().to_string();
    let refused = |source: &str, upper: &str, parts: &[&str]| {
        assert_one_line(
            &inarch(["mount", &path(source), &path("point"), "--overlay", &path(upper), option, via]),
            parts,
        );
        assert!(!is_mounted(dir.path()));
    };
    let mut server = Server::start(dir.path(), "tree", &["--overlay", "upper", option, via]);
    fs::write(dir.path().join("point/new"), "new").unwrap();
    let names = host("getfattr", &["-m", "-", "point"], dir.path());
    assert!(!names.contains("inarch"), "{names}");
    fs::create_dir(dir.path().join("second")).unwrap();
    let second = inarch(["mount", &path("tree"), &path("second"), "--overlay", &path("upper")]);
    assert_one_line(&second, &["upper", "another inarch keeps writes there"]);
    server.end("-TERM");
    refused("other", "upper", &["upper", "over", "other", "those over", "tree", "name another directory"]);
    refused("tree.tar", "upper", &["tree.tar", "those over"]);
    // The same directory under another name, and with another content.
    fs::rename(dir.path().join("tree"), dir.path().join("renamed")).unwrap();
    fs::write(dir.path().join("renamed/late"), "late").unwrap();
    let mut server = Server::start(dir.path(), "renamed", &["--overlay", "upper", option, via]);
    assert!(dir.path().join("point/new").exists() && dir.path().join("point/late").exists());
    server.end("-TERM");
    for _ in 0..2 {
        assert_eq!(
            Server::start(dir.path(), "tree.tar", &["--overlay", "archives", option, via]).end("-TERM"),
            Some(0)
        );
    }
    host("sh", &["-c", &format!("rm tree.tar && {INARCH} image renamed -o tree.tar --quiet")], dir.path());
    refused("tree.tar", "archives", &["those over an earlier state of it"]);
}

#[test]
fn a_server_that_does_not_answer_holds_up_nothing_above_its_mount() {
    let dir = scratch();
    tree(dir.path());
    let mut server = Server::start(dir.path(), "tree", &["--via", "fuse"]);
    let signal = |name: &str| host("kill", &[name, &server.child.id().to_string()], dir.path());
    signal("-STOP");
    // Until the kernel would ask again.
    std::thread::sleep(Duration::from_millis(1500));
    let long = LONG.as_secs().to_string();
    let plan = Command::new("timeout").args([&*long, INARCH, "plan", "--json", "."]).current_dir(dir.path()).output();
    let above = scratch();
    let mut live = Server::start(above.path(), dir.path().to_str().unwrap(), &["--ro"]);
    let listed = Command::new("timeout").args([&*long, "find", "point", "-ls"]).current_dir(above.path()).output();
    signal("-CONT");
    let listed = listed.unwrap();
    let text = String::from_utf8_lossy(&listed.stdout);
    assert!(listed.status.success() && text.contains("point/tree/") && text.contains("point/point\n"), "{text}");
    assert!(!text.contains("point/point/"), "{text}");
    assert_eq!(live.end("-TERM"), Some(0));
    let plan = plan.unwrap();
    let text = String::from_utf8_lossy(&plan.stdout);
    assert!(plan.status.success() && text.contains("point"), "{} {text}", plan.status);
    assert_eq!(server.end("-TERM"), Some(0));
}

#[test]
fn a_point_that_cannot_be_is_told_in_one_line() {
    let dir = scratch();
    tree(dir.path());
    let text = |path: &str| dir.path().join(path).display().to_string();
    let inside = inarch(["mount", &text("tree"), &text("tree/sub")]);
    assert_one_line(&inside, &["lies in the tree that it is to show"]);
    // A tree from elsewhere, in a mount namespace of its own, should it be mounted.
    let hidden = format!("exec timeout -s KILL 30 {INARCH} mount {} /", text("tree"));
    let hidden =
        Command::new("unshare").args(["--mount", "--propagation", "slave", "sh", "-c", &hidden]).output().unwrap();
    assert_one_line(&hidden, &["would hide every file of this machine"]);
    assert_one_line(&inarch(["mount", &text("tree"), &text("none")]), &["none", "cannot be a mount point"]);
    assert_one_line(&inarch(["mount", &text("none"), &text("tree")]), &["none"]);
    let lost = inarch(["mount", &text("tree"), &text("tree"), "--overlay", &text("none/upper")]);
    assert_one_line(&lost, &["cannot keep writes there"]);
    fs::write(dir.path().join("file"), "not hidden").unwrap();
    for source in ["tree", "tree.tar"] {
        host("tar", &["-cf", "tree.tar", "tree"], dir.path());
        let hiding = inarch(["mount", &text(source), &text("file")]);
        assert_one_line(&hiding, &["file", "cannot be a mount point", "no directory"]);
    }
    assert_eq!(fs::read_to_string(dir.path().join("file")).unwrap(), "not hidden");
}

#[test]
fn writes_over_a_tree_are_not_kept_in_it_nor_where_there_is_no_room() {
    let dir = scratch();
    tree(dir.path());
    fs::create_dir(dir.path().join("point")).unwrap();
    let text = |path: &str| dir.path().join(path).display().to_string();
    let (tree, point) = (text("tree"), text("point"));
    for within in ["tree", "tree/new", "tree/sub", "tree/sub/../new"] {
        let within = text(within);
        let kept = inarch(["mount", &tree, &point, "--overlay", &within]);
        assert_one_line(&kept, &["cannot keep writes there", "lies in", "outside"]);
        let kept = inarch(["serve", "9p", &tree, "--socket", &text("socket"), "--overlay", &within]);
        assert_one_line(&kept, &["cannot keep writes there", "lies in", "outside"]);
    }
    let thrown = inarch(["mount", &tree, &point, "--ephemeral", "--overlay-dir", &text("tree/sub")]);
    assert_one_line(&thrown, &["cannot keep writes there", "lies in", "outside"]);
    let nothing = inarch(["mount", &tree, &point, "--ephemeral", "--in-memory", "0"]);
    assert_one_line(&nothing, &["--in-memory 0", "no room"]);
    assert!(!dir.path().join("tree/new").exists() && !is_mounted(dir.path()));
}

#[test]
fn kept_writes_are_there_as_soon_as_their_mount_was_taken_away() {
    for via in WAYS {
        kept_writes_are_there_at_once(via);
    }
}

fn kept_writes_are_there_at_once(via: &str) {
    let dir = scratch();
    tree(dir.path());
    let mut servers = Vec::new();
    for round in 0..5 {
        servers.push(Server::start(dir.path(), "tree", &["--overlay", "upper", "--via", via]));
        let is_there = |earlier: u32| dir.path().join(format!("point/{earlier}")).exists();
        assert!((0..round).all(is_there), "round {round}");
        fs::write(dir.path().join(format!("point/{round}")), "kept").unwrap();
        // Does not wait for the server.
        host("umount", &["--lazy", "point"], dir.path());
    }
    for mut server in servers {
        assert_eq!(server.child.wait().unwrap().code(), Some(0));
    }
}

#[test]
fn what_is_mounted_in_the_place_of_another_mount_stays() {
    let dir = scratch();
    fs::create_dir(dir.path().join("tree")).unwrap();
    fs::write(dir.path().join("tree/file"), "here").unwrap();
    let ends = [("-CONT", Some(0)), ("-KILL", None)];
    for (via, (signal, status)) in WAYS.iter().flat_map(|via| ends.map(|end| (via, end))) {
        let mut first = Server::start(dir.path(), "tree", &["--via", via]);
        let process = first.child.id();
        // Any of its threads may have started its guard.
        let threads = fs::read_dir(format!("/proc/{process}/task")).unwrap();
        let of_thread = |thread: fs::DirEntry| fs::read_to_string(thread.path().join("children")).unwrap();
        let children: String = threads.map(|thread| of_thread(thread.unwrap())).collect();
        let children: Vec<u32> = children.split_whitespace().map(|number| number.parse().unwrap()).collect();
        // It learns only when another has its place, and its numbers, that its own mount is gone; or never, and its guard neither.
        host("kill", &["-STOP", &process.to_string()], Path::new("/"));
        let unmount = "import ctypes, os, sys; sys.exit(ctypes.CDLL(None).umount2(os.fsencode(sys.argv[1]), 2))";
        host("python3", &["-c", unmount, dir.path().join("point").to_str().unwrap()], dir.path());
        let mut second = Server::start(dir.path(), "tree", &["--via", via]);
        assert_eq!(first.end(signal), status);
        assert!(!children.is_empty() && within(LONG, || !children.iter().any(|child| is_there(*child))), "{signal}");
        assert_eq!(fs::read_to_string(dir.path().join("point/file")).unwrap(), "here", "{signal}");
        assert_eq!(second.end("-TERM"), Some(0));
        assert!(!is_mounted(dir.path()));
    }
}
