//! Promise: a thread is confined before it reads the first byte of an archive, a disk image or a container image: it has a system
//! call filter, and opens nothing from then on.
//!
//! strace(1) tells every call of a command and of its threads.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use super::a_windows_disk_is_inspected::{EMPTY_HIVE, SOFTWARE};
use crate::support::mounted::{is_mount_point, unmount};
use crate::support::{INARCH, LONG, LVM, host, scratch, within};

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
    skopeo copy -q oci:layout:tag docker-archive:t.docker:name:tag
    qemu-img convert -O qcow2 -c t.ext4 t.qcow2";

/// The kinds of sources, and the file or directory of each.
const NAMES: [(&str, &str); 10] = [
    ("t.tar", "t.tar"),
    ("t.tar.gz", "t.tar.gz"),
    ("t.tar.xz", "t.tar.xz"),
    ("t.tar.zst", "t.tar.zst"),
    ("t.ext4", "t.ext4"),
    ("t.erofs", "t.erofs"),
    ("t.squashfs", "t.squashfs"),
    ("oci:layout", "layout/"),
    ("t.docker", "t.docker"),
    ("t.qcow2", "t.qcow2"),
];

/// `disk.img` with a GPT, whose partitions have the names of what they hold. All but exFAT have the file `numbers`.
const DISK: &str = "
    PATH=$PATH:/usr/sbin:/sbin; mkdir tree; seq 20000 > tree/numbers; printf secret > key
    { echo label: gpt; for name in ext4 xfs btrfs ntfs vfat iso f2fs luks exfat lvm; do echo size=300M,name=$name; done; } > table
    truncate -s 3010M disk.img; sfdisk -q disk.img < table; at=1
    put() { dd if=part of=disk.img bs=1M seek=$at conv=notrunc,sparse status=none; at=$((at + 300)); rm part; }
    truncate -s 16M part; mke2fs -q -t ext4 -d tree part 2>&1; put
    printf '/none\\n0 0\\nd--755 0 0\\nnumbers ---644 0 0 tree/numbers\\n$\\n' > prototype
    truncate -s 300M part; mkfs.xfs -q -p prototype part; put
    truncate -s 120M part; mkfs.btrfs -q -r tree part; put
    truncate -s 16M part; mkntfs -qF part 2>&1; ntfscp -qf part tree/numbers numbers; put
    truncate -s 40M part; mkfs.fat -F 32 part; mcopy -i part tree/numbers ::/; put
    genisoimage -quiet -R -o part tree; put
    truncate -s 128M part; mkfs.f2fs -q part; sload.f2fs -f tree part; put
    truncate -s 8M part; mke2fs -q -t ext4 -d tree part 2>&1; truncate -s 32M part
    cryptsetup reencrypt --encrypt --type luks2 --reduce-device-size 24M --key-file key -q --pbkdf pbkdf2 --pbkdf-force-iterations 1000 part; put
    truncate -s 16M part; mkfs.exfat part; put";

/// The last partition of `disk.img`: a volume group that lvm2 makes, without the device mapper.
const GROUP: &str = "
    truncate -s 40M part; first=$(losetup -f --show part); second=$first; trap 'losetup -d $first' EXIT
    lvm pvcreate -y $first; lvm vgcreate vg $first; lvm lvcreate -an -Zn -l 5 -n root vg
    truncate -s 20M fs; mke2fs -q -t ext4 -d tree fs 2>&1; dd if=fs of=$first bs=1M seek=1 status=none
    losetup -d $first; trap - EXIT; put";

/// `windows.raw` with an MBR, a FAT file system and a hive of Windows' registry, and the same in every container.
const WINDOWS: &str = "
    PATH=$PATH:/usr/sbin:/sbin; mkdir -p tree/Windows/System32/config; seq 20000 > tree/numbers
    python3 empty.py hive; hivexregedit --merge --prefix HKEY hive < SOFTWARE.reg; cp hive tree/Windows/System32/config/SOFTWARE
    truncate -s 39M part; mkfs.fat -F 32 part; mcopy -s -i part tree/Windows tree/numbers ::/
    truncate -s 40M windows.raw; echo start=2048,type=c | sfdisk -q --label dos windows.raw
    dd if=part of=windows.raw bs=1M seek=1 conv=notrunc status=none
    for format in qcow2 vdi vpc vhdx vmdk; do qemu-img convert -O $format windows.raw windows.$format; done";

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
    check_with(dir, arguments, Stdio::null(), of);
}

/// The same with a standard input.
#[track_caller]
fn check_with(dir: &Path, arguments: &[&str], input: Stdio, of: &str) {
    let words = [&[INARCH], arguments].concat();
    let output = trace(dir, &words).stdin(input).output().unwrap();
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    assert_confined(dir, arguments, of);
}

/// A directory without symlinks in its path, as strace shows it, and the sources in it; none without strace.
fn place() -> Option<tempfile::TempDir> {
    place_of(SOURCES)
}

/// The same with what a script makes.
fn place_of(script: &str) -> Option<tempfile::TempDir> {
    if Command::new("strace").arg("-V").output().is_err() {
        println!("skipped: {}: strace is not installed", std::thread::current().name().unwrap_or_default());
        return None;
    }
    let dir = scratch();
    host("sh", &["-euc", script], dir.path());
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
    check_with(dir, &["plan", "-"], File::open(dir.join("t.tar.zst")).unwrap().into(), "t.tar.zst");
    host("mkfifo", &["fifo"], dir);
    let mut writer = Command::new("sh").args(["-c", "cat t.tar.gz > fifo"]).current_dir(dir).spawn().unwrap();
    check(dir, &["plan", "fifo"], "fifo");
    assert!(writer.wait().unwrap().success());
}

/// strace and the server that it traces.
struct Server(Child);

impl Server {
    /// Tells the server to end, as a user does.
    fn terminate(&self) {
        let strace = self.0.id();
        let traced = fs::read_to_string(format!("/proc/{strace}/task/{strace}/children")).unwrap_or_default();
        for process in traced.split_whitespace() {
            let _ = Command::new("kill").arg(process).status();
        }
    }
}

// After a test that failed: a server outlives its strace.
impl Drop for Server {
    fn drop(&mut self) {
        self.terminate();
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
        let mut server = serve(dir, &arguments, || is_mount_point(&point) && point.join("src/numbers").exists());
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
    let others = ["--tree=t.qcow2:/c", "--disk=t.ext4,ro"];
    let command = ["--", "/bin/sh", "-c", "cd /a/src; cmp numbers /b/src/numbers && cmp numbers /c/src/numbers"];
    let words = [&root[..], &others[..], &command[..]].concat();
    check(dir, &words, "t.tar.zst");
    for of in ["t.squashfs", "t.erofs", "t.qcow2", "t.ext4"] {
        assert_confined(dir, &words, of);
    }
}

#[test]
fn volumes_of_every_kind_are_read_so() {
    let is_root = rustix::process::geteuid().is_root();
    let mut script = DISK.to_owned();
    if is_root {
        script += &GROUP.replacen("EXIT\n", &format!("EXIT\n{LVM}"), 1);
    } else {
        println!("skipped: volumes_of_every_kind_are_read_so: a logical volume: only root makes one");
    }
    let Some(dir) = place_of(&script) else { return };
    let dir = dir.path();
    let check = |arguments: &[&str]| check(dir, arguments, "disk.img");
    let names = ["ext4", "xfs", "btrfs", "ntfs", "vfat", "iso", "f2fs"].map(|name| format!("PARTLABEL={name}"));
    let logical = is_root.then(|| "/dev/vg/root".to_owned());
    let mut script = String::new();
    for name in names.iter().chain(&logical) {
        let volume = &*format!("disk.img:{name}");
        check(&["disk", "ls", volume]);
        check(&["disk", "cat", volume, "numbers"]);
        check(&["image", "-q", volume, "-o", "out.tar"]);
        script += &format!("mount {name} /\ndownload /numbers copy\n!cmp copy tree/numbers\numount /\n");
    }
    check(&["disk", "ls", "disk.img:PARTLABEL=exfat"]);
    check(&["disk", "list", "--key=key", "disk.img"]);
    check(&["disk", "cat", "--key=key", "disk.img:PARTLABEL=luks", "numbers"]);
    check(&["disk", "df", "disk.img"]);
    check(&["disk", "inspect", "disk.img"]);
    check(&["disk", "diff", "disk.img:PARTLABEL=xfs", "disk.img:PARTLABEL=ntfs"]);
    fs::write(dir.join("script"), script).unwrap();
    let script = File::open(dir.join("script")).unwrap();
    check_with(dir, &["shell", "--ro", "disk.img"], script.into(), "disk.img");

    let point = dir.join("point");
    fs::create_dir(&point).unwrap();
    for (name, key) in [("xfs", None), ("btrfs", None), ("luks", Some("--key=key"))] {
        let volume = format!("disk.img:PARTLABEL={name}");
        let mount: Vec<&str> = ["mount", &volume, "point"].into_iter().chain(key).collect();
        let mut server = serve(dir, &mount, || is_mount_point(&point));
        host("sh", &["-ec", "ls point; cmp point/numbers tree/numbers"], dir);
        unmount(&point);
        assert!(server.0.wait().unwrap().success(), "{mount:?}");
        assert_confined(dir, &mount, "disk.img");

        let file: Vec<&str> = ["serve", "file", &volume, "raw.img", "--ro"].into_iter().chain(key).collect();
        let mut server = serve(dir, &file, || is_mount_point(&dir.join("raw.img")));
        host("sh", &["-ec", "/sbin/debugfs -R 'cat /numbers' raw.img 2> /dev/null | cmp - tree/numbers"], dir);
        unmount(&dir.join("raw.img"));
        assert!(server.0.wait().unwrap().success(), "{file:?}");
        assert_confined(dir, &file, "disk.img");
    }
}

/// An overlay asks the file system below it for its numbers, which these three have to count.
#[test]
fn so_are_volumes_with_an_overlay() {
    let script = "PATH=$PATH:/usr/sbin:/sbin; mkdir point; truncate -s 16M vfat ntfs exfat
        mkfs.fat vfat; mkntfs -qF ntfs 2>&1; mkfs.exfat exfat";
    let Some(dir) = place_of(script) else { return };
    let (dir, point) = (dir.path(), dir.path().join("point"));
    for name in ["vfat", "ntfs", "exfat"] {
        let mount = ["mount", name, "point", "--ephemeral"];
        let mut server = serve(dir, &mount, || is_mount_point(&point));
        unmount(&point);
        assert!(server.0.wait().unwrap().success(), "{mount:?}");
        assert_confined(dir, &mount, name);
    }
}

#[test]
fn disks_in_containers_are_read_so() {
    let hive = format!("cat > empty.py <<'END'{EMPTY_HIVE}END\ncat > SOFTWARE.reg <<'END'\n{SOFTWARE}END\n");
    let Some(dir) = place_of(&(hive + WINDOWS)) else { return };
    let dir = dir.path();
    for format in ["raw", "qcow2", "vdi", "vpc", "vhdx", "vmdk"] {
        let image = &*format!("windows.{format}");
        let volume = &*format!("{image}:1");
        let check = |arguments: &[&str]| check(dir, arguments, image);
        check(&["disk", "list", image]);
        check(&["disk", "cat", volume, "numbers"]);
        check(&["disk", "inspect", image]);
        check(&["disk", "reg", image, r"HKLM\SOFTWARE\Microsoft"]);
        check(&["image", "-q", volume, "-o", "out.erofs", "--compress=lz4"]);
        check(&["shell", image, "inspect-os", ":", "checksum-device", "md5", "/dev/sda1"]);

        let nbd = ["serve", "nbd", volume, "--socket", "socket", "--once", "--ro"];
        let mut server = serve(dir, &nbd, || dir.join("socket").exists());
        let read = "nbdcopy 'nbd+unix:///?socket=socket' copy
            /sbin/debugfs -R 'cat /numbers' copy 2> /dev/null | cmp - tree/numbers";
        host("sh", &["-ec", read], dir);
        assert!(server.0.wait().unwrap().success(), "{nbd:?}");
        assert_confined(dir, &nbd, image);
    }
    check(dir, &["disk", "reg", "hive", "Microsoft"], "hive");
    // This one has no client: it reads what it needs to start.
    let blk = ["serve", "blk", "windows.vdi:1", "--socket", "socket", "--ro"];
    let mut server = serve(dir, &blk, || dir.join("socket").exists());
    server.terminate();
    assert!(server.0.wait().unwrap().success(), "{blk:?}");
    assert_confined(dir, &blk, "windows.vdi");
}
