//! Promise: `serve file` shows the disk as a raw image that any program can open, at a place where nothing else was,
//! and leaves nothing behind.

use std::fs;
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use crate::support::mounted::unmount;
use crate::support::{INARCH, LONG, assert_one_line, copy_command, host, inarch, manifest_program, scratch, within};

struct Server {
    child: Child,
    image: PathBuf,
}

/// After a test that failed.
impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
    }
}

fn is_mounted(path: &Path) -> bool {
    fs::read_to_string("/proc/self/mountinfo")
        .unwrap()
        .lines()
        .any(|line| line.contains(&format!(" {} ", path.display())))
}

impl Server {
    fn start(dir: &Path, target: &str, options: &[&str]) -> Server {
        let mount = dir.join(target);
        let child = Command::new(INARCH)
            .args(["serve", "file", "tree", target, "--overlay-dir", "."])
            .args(options)
            .current_dir(dir)
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        assert!(within(LONG, || is_mounted(&mount)), "the server does not come up");
        let image = if mount.is_dir() { mount.join("disk.raw") } else { mount };
        Server { child, image }
    }

    fn signal(&self, signal: &str) {
        host("kill", &[signal, &self.child.id().to_string()], Path::new("/"));
    }

    /// Status and standard error.
    fn end(mut self) -> (Option<i32>, String) {
        let mut text = String::new();
        self.child.stderr.take().unwrap().read_to_string(&mut text).unwrap();
        (self.child.wait().unwrap().code(), text)
    }
}

fn tree(dir: &Path) {
    fs::create_dir_all(dir.join("tree/sub")).unwrap();
    for number in 0..100usize {
        fs::write(dir.join(format!("tree/sub/{number}")), vec![number as u8 + 1; number * 997]).unwrap();
    }
    fs::hard_link(dir.join("tree/sub/7"), dir.join("tree/link")).unwrap();
    host("sh", &["-c", "cp -a /usr/include/linux tree/; truncate -s 1G tree/holes"], dir);
}

#[test]
fn programs_read_it_as_any_image() {
    let dir = scratch();
    tree(dir.path());
    let server = Server::start(dir.path(), "disk.raw", &["--read-only"]);
    let run = |program: &str, arguments: &[&str]| host(program, arguments, dir.path());
    run("e2fsck", &["-fn", "disk.raw"]);
    let size = fs::metadata(&server.image).unwrap().len();
    let info: serde_json::Value =
        serde_json::from_str(&run("qemu-img", &["info", "-f", "raw", "--output=json", "disk.raw"])).unwrap();
    assert_eq!(info["virtual-size"].as_u64(), Some(size));
    run("qemu-img", &["convert", "-f", "raw", "-O", "qcow2", "disk.raw", "disk.qcow2"]);
    run("qemu-img", &["compare", "-f", "raw", "-F", "qcow2", "disk.raw", "disk.qcow2"]);
    assert!(fs::OpenOptions::new().write(true).open(&server.image).is_err(), "it is read-only");
    // The host's own kernel mounts it, and sees the tree.
    fs::create_dir(dir.path().join("mnt")).unwrap();
    let program = manifest_program(dir.path());
    let compare = format!(
        "set -e; mount -o loop,ro disk.raw mnt; trap 'umount mnt' EXIT; \
         python3 {0} mnt | sed '1d' > there; python3 {0} tree | sed '1d' > here; cmp here there",
        program.display()
    );
    run("sh", &["-c", &compare]);
    server.signal("-TERM");
    let (status, text) = server.end();
    assert_eq!(status, Some(0), "{text}");
    assert!(!dir.path().join("disk.raw").exists(), "the file was made for it and goes with it");
}

/// Writes through a mapping and reads the file; then the other way.
const MAPPED_WRITES: &str = r#"
import mmap, os
at, length = 2 << 30, 1 << 20
file = os.open('disk.raw', os.O_RDWR)
memory = mmap.mmap(file, length, offset=at)
for fill in (b'mapped!!', b'and then'):
    memory[:] = fill * (length // 8)
    memory.flush()
    direct = os.open('disk.raw', os.O_RDONLY | os.O_DIRECT)
    into = mmap.mmap(-1, length)
    assert os.preadv(direct, [into], at) == length and into[:] == memory[:]
    assert os.pwrite(file, b'written!' * 512, at + 4096) == 4096
    assert memory[4096:8192] == b'written!' * 512
"#;

/// Free space is a hole of the image.
#[test]
fn holes_are_not_copied() {
    let dir = scratch();
    tree(dir.path());
    let server = Server::start(dir.path(), "disk.raw", &[]);
    let size = fs::metadata(&server.image).unwrap().len();
    let run = |program: &str, arguments: &[&str]| host(program, arguments, dir.path());
    run("cp", &["--sparse=auto", "disk.raw", "copy"]);
    run("qemu-img", &["compare", "-f", "raw", "-F", "raw", "disk.raw", "copy"]);
    let copied = fs::metadata(dir.path().join("copy")).unwrap();
    assert!(copied.blocks() * 512 < size / 2 + (64 << 20), "holes were copied");
    let map = run("qemu-img", &["map", "-f", "raw", "--output=json", "disk.raw"]);
    let map: Vec<serde_json::Value> = serde_json::from_str(&map).unwrap();
    assert!(map.iter().any(|part| part["data"] == false) && map.iter().any(|part| part["data"] == true));
    server.signal("-TERM");
    assert_eq!(server.end().0, Some(0));
}

#[test]
fn what_is_written_is_read_and_the_tree_is_untouched() {
    let dir = scratch();
    tree(dir.path());
    let server = Server::start(dir.path(), "disk.raw", &[]);
    let common =
        ["--name=v", "--filename=disk.raw", "--offset=2g", "--size=24m", "--verify=crc32c", "--verify_fatal=1"];
    for shape in [
        ["--rw=randwrite", "--bs=4k", "--ioengine=psync", "--direct=0"],
        ["--rw=randwrite", "--bs=4k", "--ioengine=libaio", "--direct=1"],
        ["--rw=randrw", "--bs=12k", "--ioengine=io_uring", "--direct=0"],
    ] {
        let arguments: Vec<&str> = common.iter().chain(&shape).copied().chain(["--iodepth=8"]).collect();
        host("fio", &arguments, dir.path());
    }
    host("python3", &["-c", MAPPED_WRITES], dir.path());
    let mut image = fs::OpenOptions::new().read(true).write(true).open(&server.image).unwrap();
    let size = image.metadata().unwrap().len();
    let at = 3 << 30;
    image.write_all_at(&[7; 65536], at).unwrap();
    host("fallocate", &["--punch-hole", "-o", "3G", "-l", "8K", "disk.raw"], dir.path());
    host("fallocate", &["--zero-range", "-o", "3221241856", "-l", "4000", "disk.raw"], dir.path());
    let mut back = vec![1; 65536];
    image.read_exact_at(&mut back, at).unwrap();
    let zeros = (0..8192).chain(16384..20384);
    assert!((0..65536).all(|i| back[i] == if zeros.clone().any(|zero| zero == i) { 0 } else { 7 }));
    assert_eq!(image.seek(SeekFrom::End(0)).unwrap(), size);
    assert!(image.write(b"x").is_err(), "a disk does not grow");
    assert!(image.set_len(size + 1).is_err() && image.set_len(size).is_ok());
    assert_eq!((&image).read(&mut [0]).unwrap(), 0);
    image.sync_all().unwrap();
    drop(image);
    // The host writes through the file system on it.
    fs::create_dir(dir.path().join("mnt")).unwrap();
    let write = "set -e; mount -o loop disk.raw mnt; cp -a mnt/linux mnt/copied; rm -r mnt/sub; sync; fstrim mnt; \
                 diff -r mnt/copied tree/linux; umount mnt; e2fsck -fn disk.raw";
    host("sh", &["-c", write], dir.path());
    assert!(dir.path().join("tree/sub/99").exists());
    server.signal("-INT");
    assert_eq!(server.end().0, Some(0));
}

#[test]
fn it_takes_the_place_of_a_file_or_appears_in_a_directory() {
    let dir = scratch();
    tree(dir.path());
    fs::write(dir.path().join("empty file"), "").unwrap();
    fs::create_dir(dir.path().join("directory")).unwrap();
    // Mount tables escape blanks: the second name has one.
    for (target, stays) in [("new", false), ("directory", true)] {
        let server = Server::start(dir.path(), target, &["--overlay", "overlay"]);
        host("e2fsck", &["-fn", server.image.to_str().unwrap()], dir.path());
        server.signal("-TERM");
        assert_eq!(server.end().0, Some(0));
        assert_eq!(dir.path().join(target).exists(), stays);
    }
    let mut server = Command::new(INARCH)
        .args(["serve", "file", "tree", "empty file", "--read-only"])
        .current_dir(dir.path())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let image = dir.path().join("empty file");
    assert!(within(LONG, || fs::metadata(&image).unwrap().len() > 0));
    // Somebody else takes it away: that is an end as good as any.
    unmount(&dir.path().join("empty file"));
    assert_eq!(server.wait().unwrap().code(), Some(0));
    assert_eq!(fs::metadata(&image).unwrap().len(), 0, "the file that was there is there again");
}

#[test]
fn after_kill_9_nothing_is_mounted_and_whoever_had_it_open_gets_errors() {
    let dir = scratch();
    tree(dir.path());
    let mut server = Server::start(dir.path(), "disk.raw", &[]);
    let image = fs::File::open(&server.image).unwrap();
    server.signal("-KILL");
    server.child.wait().unwrap();
    assert!(within(LONG, || !dir.path().join("disk.raw").exists()), "it is still there");
    assert!(!is_mounted(&dir.path().join("disk.raw")));
    assert!(image.read_exact_at(&mut [0; 4096], 1 << 30).is_err());
    // A server that is told to end while it is in use ends, and says so.
    let server = Server::start(dir.path(), "disk.raw", &[]);
    let image = fs::File::open(&server.image).unwrap();
    server.signal("-TERM");
    let (status, text) = server.end();
    assert_eq!(status, Some(0), "{text}");
    assert!(text.contains("was in use"), "{text}");
    assert!(!is_mounted(&dir.path().join("disk.raw")));
    assert!(image.read_exact_at(&mut [0; 4096], 1 << 30).is_err());
}

#[test]
fn places_that_would_hide_something_are_refused() {
    let dir = scratch();
    tree(dir.path());
    let path = |name: &str| dir.path().join(name).display().to_string();
    fs::write(path("full"), "x").unwrap();
    let try_it = |target: &str| inarch(["serve", "file", &path("tree"), target]);
    assert_one_line(&try_it(&path("full")), &["full", "not empty"]);
    assert_one_line(&try_it(&path("")), &["not empty"]);
    assert_one_line(&try_it(&path("tree")), &["lies in the tree"]);
    assert_one_line(&try_it(&path("tree/new")), &["lies in the tree"]);
    assert_one_line(&try_it(&path("no/such/directory")), &["no/such/directory"]);
    assert_one_line(&try_it("/dev/null"), &["/dev/null"]);
    assert!(!dir.path().join("tree/new").exists());
    assert_eq!(fs::read_to_string(path("full")).unwrap(), "x");
}

#[test]
fn a_user_needs_no_privilege_but_fusermount3() {
    if !Path::new("/usr/bin/fusermount3").exists() {
        println!("skipped: a_user_needs_no_privilege_but_fusermount3: fusermount3 is not installed");
        return;
    }
    let dir = scratch();
    tree(dir.path());
    copy_command(&dir.path().join("inarch"));
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o777)).unwrap();
    let script = "set -e; trap 'kill $server' EXIT; \
                  ./inarch serve file tree disk.raw --overlay-dir . 2> log & server=$!; \
                  for i in $(seq 1200); do [ -s disk.raw ] && break; sleep 0.1; done; \
                  /sbin/e2fsck -fn disk.raw; dd if=/dev/zero of=disk.raw bs=1M count=1 seek=4096 conv=notrunc,fsync; \
                  kill $server; wait $server; trap - EXIT; [ ! -e disk.raw ]";
    let as_user = ["--reuid", "65534", "--regid", "65534", "--clear-groups", "sh", "-c", script];
    host("timeout", &[&["300", "setpriv"][..], &as_user].concat(), dir.path());
    let script = "PATH=/nowhere; exec ./inarch serve file tree disk.raw --overlay-dir .";
    let as_user = ["--reuid", "65534", "--regid", "65534", "--clear-groups", "/bin/sh", "-c", script];
    let output = Command::new("setpriv").args(as_user).current_dir(dir.path()).output().unwrap();
    assert_one_line(&output, &["fusermount3", "not installed"]);
    assert!(!dir.path().join("disk.raw").exists());
}
