//! Promise: every server sandboxes itself before its first client, reports that in one line, and still does its whole
//! work, with few descriptors however many files there are.

use std::collections::BTreeSet;
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::support::bare_guest::BareGuest;
use crate::support::served::{Served, field_of};
use crate::support::{INARCH, LONG, NINEP_CLIENT, host, scratch, within};

/// Every server, by the arguments before its options.
const SERVERS: [&[&str]; 6] = [
    &["serve", "virtiofs", "tree", "--socket", "socket"],
    &["serve", "9p", "tree", "--socket", "socket"],
    &["mount", "tree", "point", "--via", "fuse"],
    &["serve", "blk", "tree", "--socket", "socket"],
    &["serve", "nbd", "tree", "--socket", "socket"],
    &["serve", "file", "tree", "disk"],
];

/// What this test itself may do, which a server that is not confined may do as well.
fn own(field: &str) -> String {
    field_of(&fs::read_to_string("/proc/self/status").unwrap(), field)
}

fn count(capabilities: &str) -> u32 {
    u64::from_str_radix(capabilities, 16).unwrap().count_ones()
}

/// A tree, a mount point, and something beside them.
fn place() -> tempfile::TempDir {
    let dir = scratch();
    fs::create_dir_all(dir.path().join("tree/sub")).unwrap();
    fs::create_dir(dir.path().join("point")).unwrap();
    fs::write(dir.path().join("tree/sub/file"), "content\n").unwrap();
    fs::write(dir.path().join("beside"), "secret\n").unwrap();
    dir
}

fn names(dir: &Path) -> BTreeSet<String> {
    fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Whether this kernel has Landlock, as landlock_create_ruleset(2) says.
fn has_landlock() -> bool {
    let ask = "import ctypes; print(ctypes.CDLL(None).syscall(444, None, 0, 1))";
    host("python3", &["-c", ask], Path::new("/")).trim().parse::<i32>().unwrap() > 0
}

#[test]
fn all_that_the_line_says_holds() {
    let has_landlock = has_landlock();
    for arguments in SERVERS {
        let dir = place();
        let server = Served::start(dir.path(), arguments);
        let guard = &server.guard;
        for thing in ["confined to", "capabilities", "a system call filter"] {
            assert!(guard.contains(thing), "{arguments:?}: {guard}");
        }
        assert_eq!(guard.contains("Landlock") && !guard.contains("Landlock ("), has_landlock, "{arguments:?}: {guard}");
        // The thread that makes a disk has just been started; it confines itself, and ends.
        for (field, value) in [("Seccomp", "2"), ("NoNewPrivs", "1")] {
            let all = || server.status(field).iter().all(|found| found == value);
            assert!(within(LONG, all), "{arguments:?}: {field}: {:?}", server.status(field));
        }
        check_capabilities(&server, arguments);
        check_names(&server, dir.path(), arguments);
        server.end();
        let left = if arguments[1] == "file" { "disk" } else { "socket" };
        assert!(!dir.path().join(left).exists(), "{arguments:?}");
        assert_eq!(names(dir.path()), ["beside", "point", "tree"].map(str::to_owned).into(), "{arguments:?}");
    }
}

/// The line tells how many capabilities are left: no thread has more, and those that only wait have fewer.
fn check_capabilities(server: &Served, arguments: &[&str]) {
    let told = match server.guard.split_once(" capabilities").unwrap().0 {
        before if before.ends_with(" no") => 0,
        before => {
            let words: Vec<&str> = before.rsplit(' ').take(3).collect();
            assert_eq!(words[0], count(&own("CapPrm")).to_string(), "{}", server.guard);
            words[2].parse().unwrap()
        }
    };
    for field in ["CapEff", "CapPrm"] {
        let all = || {
            let found: Vec<_> = server.status(field).iter().map(|found| count(found)).collect();
            found.iter().all(|count| *count <= told) && found.contains(&told)
        };
        assert!(within(LONG, all), "{arguments:?}: {field}: {:?}, not {told}", server.status(field));
    }
    assert!(told < 12, "{}", server.guard);
}

/// A server whose line mentions a mount namespace has one, with nothing in it but what it serves.
fn check_names(server: &Served, dir: &Path, arguments: &[&str]) {
    let namespace = |link: PathBuf| fs::read_link(link).unwrap();
    let has_own = namespace(server.of_serving_thread("ns/mnt")) != namespace("/proc/self/ns/mnt".into());
    assert_eq!(server.guard.contains("a mount namespace of its own"), has_own, "{arguments:?}: {}", server.guard);
    assert_eq!(has_own, is_root() && arguments[0] != "mount", "{arguments:?}");
    if !has_own {
        return;
    }
    let table = fs::read_to_string(server.of_serving_thread("mountinfo")).unwrap();
    let mounted: BTreeSet<&str> = table.lines().map(|line| line.split(' ').nth(4).unwrap()).collect();
    let tree = dir.join("tree").display().to_string();
    let mut expected = BTreeSet::from(["/", "/proc/self", tree.as_str()]);
    if arguments[1] == "file" {
        expected.insert("/dev/fuse");
    }
    assert_eq!(mounted, expected, "{arguments:?}");
    let seen =
        |path: &Path| server.of_serving_thread("root").join(path.strip_prefix("/").unwrap()).symlink_metadata().is_ok();
    assert!(seen(&dir.join("tree/sub/file")), "{arguments:?}");
    for path in
        [&dir.join("beside"), &dir.join("point"), Path::new("/etc/passwd"), Path::new("/usr"), Path::new("/proc/1")]
    {
        assert!(!seen(path), "{arguments:?}: {}", path.display());
    }
}

#[test]
fn without_a_sandbox_nothing_holds_and_the_line_says_so() {
    for arguments in SERVERS {
        let dir = place();
        let server = Served::start(dir.path(), &[arguments, &["--sandbox", "none"]].concat());
        assert!(server.guard.ends_with(": nothing but its own checks\n"), "{arguments:?}: {}", server.guard);
        for field in ["Seccomp", "NoNewPrivs", "CapEff"] {
            assert_eq!(server.status(field)[0], own(field), "{arguments:?}: {field}");
        }
        assert!(server.proc("root/etc/passwd").exists() == Path::new("/etc/passwd").exists(), "{arguments:?}");
        server.end();
    }
}

/// By a server's own client: what it writes is there the next time.
#[test]
fn a_confined_disk_is_read_and_written_and_kept() {
    let dir = place();
    let kept = ["--overlay", "overlay"];
    let shell = |script: &str| host("sh", &["-c", script], dir.path());
    for round in ["write -q -P 7", "read -q -P 7"] {
        let server = Served::start(dir.path(), &[SERVERS[4], &kept].concat());
        shell("nbdcopy 'nbd+unix:///?socket=socket' copy");
        assert_eq!(shell("debugfs -R 'cat /sub/file' copy; rm copy"), "content\n");
        // In free space, beyond all that the file system has.
        let io = format!("qemu-io -f raw -c '{round} 900M 3M' -c flush 'nbd+unix:///?socket=socket'");
        assert!(!shell(&io).contains("fail"), "{round}");
        server.end();
    }
    fs::remove_file(dir.path().join("overlay")).unwrap();
    for write in [true, false] {
        let server = Served::start(dir.path(), &[SERVERS[5], &kept].concat());
        assert_eq!(shell("debugfs -R 'cat /sub/file' disk"), "content\n");
        if write {
            shell("yes 7 | dd of=disk bs=1M count=3 seek=900 conv=notrunc,fsync iflag=fullblock status=none");
            shell("fallocate --punch-hole -o 900M -l 4096 disk");
        }
        let read = shell("dd if=disk bs=1M count=3 skip=900 status=none | sha256sum");
        assert_eq!(read, shell("(head -c 4096 /dev/zero; yes 7 | head -c 3141632) | sha256sum"));
        server.end();
    }
    assert_eq!(names(&dir.path().join("tree")), ["sub".to_owned()].into(), "the tree was written to");
    assert_eq!(names(dir.path()), ["beside", "overlay", "point", "tree"].map(str::to_owned).into());
}

/// The sources of a disk that is no directory, and what is refused as before.
#[test]
fn a_confined_disk_is_made_of_any_source() {
    let dir = place();
    let shell = |script: &str| host("bash", &["-c", script], dir.path());
    shell(
        "tar -C tree -cf tree.tar . && tar -C tree -czf tree.tar.gz . && mkfs.erofs --quiet tree.erofs tree && mkfifo fifo",
    );
    let read = "nbdcopy 'nbd+unix:///?socket=socket' copy && debugfs -R 'cat /sub/file' copy; rm copy";
    for source in ["tree.tar", "tree.tar.gz", "tree.erofs", "fifo"] {
        for writes in [&["--read-only"][..], &["--overlay-dir", "."], &["--overlay", "overlay"]] {
            let feed = (source == "fifo").then(|| {
                Command::new("sh").args(["-c", "cat tree.tar.gz > fifo"]).current_dir(dir.path()).spawn().unwrap()
            });
            let server = Served::start(dir.path(), &[&["serve", "nbd", source, "--socket", "socket"], writes].concat());
            assert_eq!(shell(read), "content\n", "{source} {writes:?}");
            server.end();
            feed.into_iter().for_each(|mut feed| assert!(feed.wait().unwrap().success()));
            let _ = fs::remove_file(dir.path().join("overlay"));
        }
    }
}

#[test]
fn a_confined_share_is_read_and_written() {
    let dir = place();
    let tree = dir.path().join("tree");
    let server = Served::start(dir.path(), SERVERS[1]);
    let work = "
client = NinepClient('socket')
fid = client.walk('sub', 'file')
client.open(fid)
assert client.read(fid) == b'content\\n' and client.size(fid) == 8
fid = client.create('made')
client.write(fid, b'by 9P')
client.sync(fid)
client.clunk(fid)
client.rename('made', 'by 9P')
for path in ('..', 'beside'), ('sub', '..', '..', 'beside'):
    try:
        client.open(client.walk(*path))
        raise SystemExit('reached what is beside')
    except OSError:
        pass";
    host("python3", &["-c", &format!("{NINEP_CLIENT}{work}")], dir.path());
    server.end();
    assert_eq!(fs::read_to_string(tree.join("by 9P")).unwrap(), "by 9P");

    let server = Served::start(dir.path(), SERVERS[2]);
    let work = "cd point; cat sub/file; echo made > made; chmod 4711 made; chown 1:1 made; mv made 'by mount'; ln 'by mount' link
        dd if=/dev/zero of=large bs=1M count=3 conv=fsync status=none; truncate -s 1M large; rm link; mkfifo fifo";
    assert_eq!(host("sh", &["-ec", work], dir.path()), "content\n");
    server.end();
    assert_eq!(fs::metadata(tree.join("large")).unwrap().len(), 1 << 20);
    assert_eq!(names(&tree), ["by 9P", "by mount", "fifo", "large", "sub"].map(str::to_owned).into());
    assert_eq!(names(dir.path()), ["beside", "point", "tree"].map(str::to_owned).into());
    assert_eq!(names(&dir.path().join("point")), BTreeSet::new());
}

/// A run's servers are threads beside the session's, which is not confined.
#[test]
fn the_servers_of_a_run_are_confined_too() {
    let dir = place();
    let other = dir.path().join("other");
    fs::create_dir(&other).unwrap();
    let trees = [
        format!("{}/tree:/by-virtiofs,rw,via=virtiofs", dir.path().display()),
        format!("{}:/by-9p,rw,via=9p", other.display()),
    ];
    let script = "cat /by-virtiofs/sub/file /etc/passwd > /by-9p/made; mv /by-virtiofs/sub/file /by-virtiofs/moved; echo up; cat";
    let mut run = Command::new(INARCH)
        .args(["run", "--quiet", "--accel", "tcg", "--tree", &trees[0], "--tree", &trees[1], "--", "sh", "-c", script])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    let mut stdout = BufReader::new(run.stdout.take().unwrap());
    stdout.read_line(&mut line).unwrap();
    let stderr = BufReader::new(run.stderr.take().unwrap());
    let mut server = Served { guard: String::new(), stderr, child: run };
    assert_eq!(line, "up\n");
    let fields = ["Name", "Seccomp", "NoNewPrivs"].map(|field| server.status(field));
    let [names, filters, privileges] = &fields;
    let confined: Vec<bool> =
        filters.iter().zip(privileges).map(|(filter, none)| filter == "2" && none == "1").collect();
    let of_queues = names.iter().zip(&confined).filter(|(name, _)| name.starts_with("vring-"));
    let of_queues: Vec<bool> = of_queues.map(|(_, confined)| *confined).collect();
    // At least one of the root's disk and two of the share; and for each of the three servers a thread that began it.
    assert!(of_queues.len() >= 3 && of_queues.iter().all(|confined| *confined), "{fields:?}");
    assert!(confined.iter().filter(|confined| **confined).count() >= of_queues.len() + 3, "{fields:?}");
    drop(server.child.stdin.take());
    assert_eq!(server.child.wait().unwrap().code(), Some(0));
    let passwd = fs::read_to_string("/etc/passwd").unwrap();
    assert_eq!(fs::read_to_string(other.join("made")).unwrap(), format!("content\n{passwd}"));
    assert!(dir.path().join("tree/moved").exists());
}

/// Front ends, one after the other, that cut the memory which they have shared before they say where a ring lies in it. Each is
/// disconnected. The numbers are those of vhost-user's messages: the owner, the memory, the features, a ring's addresses.
const FRONT_ENDS: &str = r#"
import os, socket, struct, sys

def send(end, request, payload=b"", files=()):
    socket.send_fds(end, [struct.pack("<III", request, 1, len(payload)) + payload], files)

for _ in range(3):
    end = socket.socket(socket.AF_UNIX)
    end.connect(sys.argv[1])
    memory = os.memfd_create("guest")
    os.ftruncate(memory, 1 << 20)
    send(end, 3)
    send(end, 5, struct.pack("<IIQQQQ", 1, 0, 0, 1 << 20, 1 << 30, 0), [memory])
    send(end, 1)
    assert len(end.recv(20, socket.MSG_WAITALL)) == 20
    os.ftruncate(memory, 0)
    send(end, 9, struct.pack("<IIQQQQ", 0, 0, 1 << 30, (1 << 30) + 8192, (1 << 30) + 4096, 0))
    assert end.recv(1) == b""
"#;

#[test]
fn front_ends_that_take_their_memory_away_harm_no_confined_server() {
    for kind in ["blk", "virtiofs"] {
        let dir = place();
        let server = Served::start(dir.path(), &["serve", kind, "tree", "--socket", "socket"]);
        host("python3", &["-c", FRONT_ENDS, "socket"], dir.path());
        server.end();
    }
}

/// Has no more than 1,024 descriptors, as `ulimit -n 1024` says.
const FEW_DESCRIPTORS: [&str; 3] = ["prlimit", "--nofile=1024:1024", INARCH];

/// Makes `directories` of 100 files each in `tree`; gives how many bytes the files have.
fn many_files(tree: &Path, directories: usize) -> usize {
    let mut bytes = 0;
    for directory in 0..directories {
        let at = tree.join(format!("d{directory}"));
        fs::create_dir(&at).unwrap();
        for file in 0..100 {
            let content = format!("{directory} {file}\n");
            bytes += content.len();
            fs::write(at.join(format!("f{file}")), content).unwrap();
        }
    }
    bytes
}

/// What a guest does with a disk and a share of the same many files: it reads all of them, and writes.
const GUEST: &str = r#"
sums() { find . -type f | sort | xargs cat | sha256sum; }
mount -t ext4 /dev/vda /mnt && cd /mnt && echo "report $(sums)"
echo from blk > written; sync; cd /; umount /mnt
mount -t virtiofs src /mnt && cd /mnt && echo "report $(sums)"
echo from virtiofs > made; mkdir new; mv made new/made; chmod 600 new/made; sync
cat ../beside ../../beside 2> /dev/null; cd /; umount /mnt && echo "report done""#;

#[test]
fn a_guest_has_a_confined_disk_and_a_confined_share_in_few_descriptors() {
    let Some(guest) = BareGuest::or_skip("a_guest_has_a_confined_disk_and_a_confined_share_in_few_descriptors") else {
        return;
    };
    let dir = place();
    many_files(&dir.path().join("tree"), 15);
    let sums = host("sh", &["-c", "cd tree && find . -type f | LC_ALL=C sort | xargs cat | sha256sum"], dir.path());
    let servers = [
        &["serve", "blk", "tree", "--socket", "blk", "--overlay", "overlay"][..],
        &["serve", "virtiofs", "tree", "--socket", "fs", "--tag", "src"],
    ];
    let printed = servers.map(|arguments| {
        host(INARCH, &[arguments, &["--print-qemu-args", "--qemu-memory", "none"]].concat(), dir.path())
    });
    let running = servers.map(|arguments| Served::start_by(dir.path(), &FEW_DESCRIPTORS, arguments));
    let arguments = printed.each_ref().map(|line| line.trim()).join(" ");
    let reports = guest.run(dir.path(), "virtio_pci virtio_blk ext4 virtiofs", GUEST, &arguments);
    assert_eq!(reports, [sums.trim_end(), sums.trim_end(), "done", "the end"]);
    running.into_iter().for_each(Served::end);
    assert_eq!(fs::read_to_string(dir.path().join("tree/new/made")).unwrap(), "from virtiofs\n");
    // What the share has changed, the disk never had: its tree is the one before that.
    fs::remove_dir_all(dir.path().join("tree/new")).unwrap();
    assert_eq!(names(dir.path()), ["beside", "initramfs", "overlay", "point", "tree"].map(str::to_owned).into());
}

#[test]
fn twenty_thousand_files_are_read_in_few_descriptors() {
    let dir = place();
    let bytes = many_files(&dir.path().join("tree"), 200) + "content\n".len();
    let shell = |script: &str| host("sh", &["-c", script], dir.path()).trim().to_owned();

    let server = Served::start_by(dir.path(), &FEW_DESCRIPTORS, SERVERS[1]);
    let work = "
client, bytes, opened = NinepClient('socket'), 0, []
for directory in range(200):
    for file in range(100):
        # Stays known, and is opened by another fid.
        client.walk(f'd{directory}', f'f{file}')
        fid = client.walk(f'd{directory}', f'f{file}')
        size = client.size(fid)
        client.open(fid)
        assert len(client.read(fid)) == size
        bytes += size
        # Some stay open.
        opened.append(fid)
        if len(opened) > 300:
            client.clunk(opened.pop(0))
print(bytes)";
    let read = host("python3", &["-c", &format!("{NINEP_CLIENT}{work}")], dir.path());
    assert_eq!(read.trim(), (bytes - "content\n".len()).to_string());
    assert!(server.descriptors() < 1024);
    server.end();

    let server = Served::start_by(dir.path(), &FEW_DESCRIPTORS, SERVERS[2]);
    assert_eq!(shell("find point -type f -size +0 -printf '%s\\n' | awk '{s += $1} END {print s}'"), bytes.to_string());
    assert_eq!(shell("find point -type f -print0 | xargs -0 cat | wc -c"), bytes.to_string());
    assert!(server.descriptors() < 1024);
    server.end();

    // The same device as `serve blk`, read by this host's kernel.
    let server = Served::start_by(dir.path(), &FEW_DESCRIPTORS, SERVERS[5]);
    let read = "mount -o loop,ro disk point && find point -type f -print0 | xargs -0 cat | wc -c; umount point";
    assert_eq!(shell(read), bytes.to_string());
    assert!(server.descriptors() < 1024);
    server.end();
}
