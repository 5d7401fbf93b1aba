//! Promise: files on a guest's disk are changed without root, by the drivers and tools of a machine that mounts it. What is
//! written is there, the file system is clean, and what is interrupted leaves the file as it was. What is only read is not
//! written to.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use crate::support::drawings::drawn;
use crate::support::mounted::is_mounted;
use crate::support::{INARCH, LONG, assert_one_line, assert_status, scratch, stderr, stdout, within};

/// Runs a script in `dir`, in which `i` is the built command.
fn sh(dir: &Path, script: &str) -> Output {
    let mut command = Command::new("sh");
    command.arg("-ec").arg(format!("i() {{ \"{INARCH}\" \"$@\"; }}\n{script}")).current_dir(dir);
    // The variables of the host must not choose an editor.
    command.env_remove("VISUAL").env_remove("EDITOR").env("PATH", crate::support::programs()).output().unwrap()
}

fn done(dir: &Path, script: &str) -> String {
    let output = sh(dir, script);
    assert_status(&output, 0);
    stdout(&output)
}

/// Asserts that a change failed, with one line that has these parts.
fn assert_refused(output: &Output, parts: &[&str]) {
    assert_status(output, 1);
    // On a busy machine a guest may be late.
    let told: Vec<_> =
        stderr(output).lines().filter(|line| !line.contains("started once more")).map(str::to_owned).collect();
    let [told] = &told[..] else { panic!("{told:?}") };
    assert!(parts.iter().all(|part| told.contains(part)), "{told}");
}

/// Makes `guest.img`: a GPT disk with a root and a home, both ext4.
fn guest(dir: &Path) {
    done(
        dir,
        "mkdir -p root/etc root/home root/srv root/secret root/links home/user
        printf 'LABEL=root / ext4 defaults 0 1\\nLABEL=home /home ext4 defaults 0 2\\nUUID=99 /srv ext4 defaults 0 2\\n' > root/etc/fstab
        echo old > root/etc/shadow; chmod 640 root/etc/shadow; setfattr -n user.note -v kept root/etc/shadow
        [ $(id -u) != 0 ] || chown 0:42 root/etc/shadow
        ln -s /etc/shadow root/links/absolute; ln -s ../../../../../../etc/shadow root/links/up; ln -s / root/links/top
        echo note > home/user/notes
        mke2fs -q -t ext4 -L root -d root root.part 64M; mke2fs -q -t ext4 -L home -d home home.part 32M
        truncate -s 100M guest.img
        printf 'label: gpt\\nsize=64M\\nsize=32M\\n' | sfdisk -q guest.img
        dd if=root.part of=guest.img bs=1M seek=1 conv=notrunc status=none
        dd if=home.part of=guest.img bs=1M seek=65 conv=notrunc status=none",
    );
}

/// Cuts the partitions out, and checks them; what debugfs says of a file of the first.
fn checked(dir: &Path, ask: &str) -> String {
    done(
        dir,
        &format!(
            "dd if=guest.img of=root.now bs=1M skip=1 count=64 status=none; e2fsck -fn root.now >said 2>&1 || {{ cat said >&2; exit 1; }}
            dd if=guest.img of=home.now bs=1M skip=65 count=32 status=none; e2fsck -fn home.now >said 2>&1 || {{ cat said >&2; exit 1; }}
            debugfs -R '{ask}' root.now 2>/dev/null"
        ),
    )
}

#[test]
fn a_file_is_replaced_and_keeps_what_it_was() {
    let dir = scratch();
    let dir = dir.path();
    guest(dir);
    let before = fs::read("/etc/shadow").ok();
    // Links of the guest lead to its own files.
    done(dir, "echo one | i disk write guest.img:/links/absolute");
    assert_eq!(checked(dir, "cat /etc/shadow"), "one\n");
    done(dir, "echo two | i disk write guest.img /links/top/links/up");
    assert_eq!(checked(dir, "cat /etc/shadow"), "two\n");
    let told = checked(dir, "stat /etc/shadow");
    let group = if rustix::process::geteuid().is_root() { "Group:    42" } else { "Group:" };
    for part in ["Mode:  0640", group, "user.note (4) = \"kept\"", "Links: 1"] {
        assert!(told.contains(part), "{part}: {told}");
    }
    assert_eq!(fs::read("/etc/shadow").ok(), before);
    // Another volume of the guest is mounted where its fstab says; what is missing is not written over.
    done(
        dir,
        "i disk mkdir -p guest.img /home/user/a/b /etc/x; echo far | i disk write guest.img /home/user/a/b/file --mode 600 --owner 7:8",
    );
    checked(dir, "ls /");
    assert_eq!(done(dir, "debugfs -R 'cat /user/a/b/file' home.now 2>/dev/null"), "far\n");
    let told = done(dir, "debugfs -R 'stat /user/a/b/file' home.now 2>/dev/null");
    assert!(told.contains("Mode:  0600") && told.contains("User:     7   Group:     8"), "{told}");
    assert_refused(&sh(dir, "echo x | i disk write guest.img /srv/file"), &["/srv", "not on this image"]);
    let removed = sh(dir, "i disk rm -r guest.img /home/user /nothing /etc/x /home");
    assert_status(&removed, 1);
    let told = stderr(&removed);
    assert!(
        told.contains("/nothing: No such file") && told.contains("/home: another volume is mounted on it"),
        "{told}"
    );
    assert!(!checked(dir, "ls /etc").contains(" x"));
    assert!(!done(dir, "debugfs -R 'ls /' home.now 2>/dev/null").contains("user"));
    // A tree of the host, and again over itself.
    done(
        dir,
        "mkdir -p tree/below; echo deep > tree/below/file; chmod 751 tree; ln -s file tree/below/link; ln tree/below/file tree/again
        setfattr -n user.note -v kept tree/below/file; touch -hd @1000000000.5 tree/below/file tree/below/link tree
        for round in 1 2; do i disk cp tree guest.img:/links; done",
    );
    // A link to a directory is a directory to copy into, and a link that is copied does not take its place. A capability of the file that
    // is replaced does not become that of another content.
    done(
        dir,
        "ln -s file lib; echo new > ping; setfattr -n user.own -v own ping
        i disk mkdir -p guest.img /srv2 && i disk cp lib guest.img:/links/top && i disk cp lib guest.img:/links/top/links/
        [ $(id -u) != 0 ] || setfattr -n security.capability -v 0x0100000200200000000000000000000000000000 ping
        i disk cp ping guest.img:/links/ && setfattr -x security.capability ping 2> /dev/null || :; i disk cp ping guest.img:/links",
    );
    assert!(checked(dir, "stat /links/top").contains("Fast link dest: \"/\""));
    for place in ["/lib", "/links/lib"] {
        assert!(checked(dir, &format!("stat {place}")).contains("Fast link dest: \"file\""), "{place}");
    }
    let told = checked(dir, "stat /links/ping");
    assert!(told.contains("user.own (3) = \"own\"") && !told.contains("capability"), "{told}");
    assert_one_line(&sh(dir, "i disk cp ping guest.img:/links/none/"), &["/links/none/", "no place for a file"]);
    // Several go into a directory, and none of them takes the place of another.
    let several = sh(dir, "mkdir -p two; echo two > two/ping; i disk cp ping tree two/ping guest.img:/srv2");
    assert_status(&several, 1);
    assert!(stderr(&several).contains("two/ping: "), "{}", stderr(&several));
    assert_eq!(checked(dir, "cat /srv2/ping"), "new\n");
    assert_eq!(checked(dir, "cat /srv2/tree/below/file"), "deep\n");
    assert_one_line(&sh(dir, "i disk cp ping tree guest.img:/srv2/new"), &["/srv2/new", "several files"]);
    let from_image =
        "qemu-img create -q -f qcow2 -b guest.img -F raw over.qcow2; i disk cp over.qcow2 /etc/fstab guest.img:/srv2";
    assert_one_line(&sh(dir, from_image), &["from image to image", "two steps", "over.qcow2"]);
    assert_one_line(&sh(dir, "i disk cp guest.img /none guest.img:/srv2"), &["from image to image", "two steps"]);
    assert_eq!(checked(dir, "cat /links/tree/again"), "deep\n");
    let told = checked(dir, "stat /links/tree/again");
    for part in ["Links: 2", "mtime: 0x3b9aca00:77359400", "user.note (4) = \"kept\""] {
        assert!(told.contains(part), "{part}: {told}");
    }
    assert!(checked(dir, "stat /links/tree/below/link").contains("mtime: 0x3b9aca00:77359400"));
    let told = checked(dir, "stat /links/tree");
    assert!(told.contains("Mode:  0751") && told.contains("mtime: 0x3b9aca00:77359400"), "{told}");
}

/// Two files of one copy can have one place in the image: by a link that is there, or because the file system does not distinguish letters.
#[test]
fn a_copy_replaces_none_of_its_own_files() {
    let dir = scratch();
    let dir = dir.path();
    done(
        dir,
        "mkdir -p root/d d cs fat; ln -s a root/d/b; ln -s / root/top; mke2fs -q -t ext4 -d root ext4 32M
        echo AAA > d/a; ln d/a d/c; echo BBB > d/b; echo one > cs/readme; echo two > cs/README
        truncate -s 64M fat.img; mkfs.vfat fat.img > said",
    );
    for (copy, shown) in [("i disk cp d ext4:/", "ext4 /d/c"), ("i disk cp cs fat.img:/", "fat.img /cs/readme")] {
        assert_refused(&sh(dir, copy), &["this copy has already written another file there"]);
        let text = done(dir, &format!("i disk cat {shown}"));
        assert!(text == "AAA\n" || text == "one\n" || text == "two\n", "{text}");
    }
    // Nor does it write through a link that it has made, or merge two directories.
    done(
        dir,
        "mkdir -p image/through image/merged from/through/under from/merged/x from/merged/y; ln -s x image/through/y; ln -s x image/merged/y
        ln -s link image/through/under; echo shadow > image/shadow; ln -s /shadow from/through/x; ln -s / from/through/link
        echo taken > from/through/y; echo taken > from/through/under/shadow; chmod 700 from/merged/x; chmod 777 from/merged/y
        mke2fs -q -t ext4 -d image linked 32M; ! i disk cp from/through linked:/ 2> told; ! i disk cp from/merged linked:/ 2>> told",
    );
    assert_eq!(done(dir, "i disk cat linked /shadow; e2fsck -fn linked > said 2>&1 || cat said"), "shadow\n");
    let told = fs::read_to_string(dir.join("told")).unwrap();
    assert!(told.contains("this copy has already written another file there"), "{told}");
    // A copy has no rights that the directory hands down, but those of its source.
    done(
        dir,
        "mkdir acl top; echo secret > sec; chmod 640 sec; echo x > top/new; mkfifo -m 620 top/fifo; touch -d @1000000000 top/fifo
        [ $(id -u) != 0 ] || mknod top/null c 1 3
        setfattr -n system.posix_acl_default -v 0x0200000001000700ffffffff02000700e803000004000500ffffffff10000700ffffffff20000000ffffffff acl
        i disk cp acl ext4:/; i disk cp sec ext4:/acl; i disk cp d ext4:/acl; i disk cp top ext4:/; i disk cp acl ext4:/acl/",
    );
    let has_acl =
        |path: &str| done(dir, &format!("debugfs -R 'ea_list {path}' ext4 2>/dev/null")).contains("system.posix_acl");
    assert_eq!(["/acl", "/acl/sec", "/acl/d", "/acl/d/b", "/acl/acl"].map(has_acl), [true, false, false, false, true]);
    let told = done(dir, "debugfs -R 'stat /fifo' ext4 2>/dev/null");
    for part in ["Type: FIFO", "Mode:  0620", "mtime: 0x3b9aca00"] {
        assert!(told.contains(part), "{part}: {told}");
    }
    let told = done(dir, "debugfs -R 'stat /null' ext4 2>/dev/null");
    let is_device = told.contains("Type: character special") && told.contains("01:03");
    assert!(is_device || !rustix::process::geteuid().is_root(), "{told}");
    assert_eq!(done(dir, "i disk cat ext4 /new; e2fsck -fn ext4 > said 2>&1 || cat said"), "x\n");
    assert_one_line(&sh(dir, "ln -s d link; i disk cp link ext4:/none/"), &["/none/", "no place for a file"]);
}

#[test]
fn a_process_and_a_virtual_machine_do_the_same() {
    let dir = scratch();
    let dir = dir.path();
    guest(dir);
    for (isolate, program) in [("process", "start User-Mode Linux"), ("vm", "start QEMU")] {
        let words = format!("--isolate {isolate} --timings=time.svg guest.img /etc/{isolate}");
        let told = sh(dir, &format!("echo {isolate} | i disk write {words} 2>&1"));
        assert_status(&told, 0);
        assert!(stdout(&told).contains(program), "{}", stdout(&told));
        let picture = drawn(&dir.join("time.svg"));
        assert!(picture.contains(program), "{picture}");
        assert_eq!(checked(dir, &format!("cat /etc/{isolate}")), format!("{isolate}\n"));
    }
    // As a power cut leaves it.
    done(dir, "debugfs -w -R 'feature needs_recovery' 'guest.img?offset=1048576' >said 2>&1");
    let told = sh(dir, "i disk fsck --isolate process guest.img");
    assert_status(&told, 0);
    assert!(stderr(&told).contains("/dev/sda1: its journal holds changes"), "{}", stderr(&told));
    // Linux uses the second copy of a table only if it is told to.
    let damaged = "cp guest.img gpt.img; dd if=/dev/zero of=gpt.img bs=512 seek=1 count=1 conv=notrunc status=none
        echo second | i disk write gpt.img /etc/second 2> said; i disk cat gpt.img /etc/second 2> said";
    assert_eq!(done(dir, damaged), "second\n");
    // What one of them cannot do is not done by the other, where it was asked for.
    done(dir, "qemu-img convert -O qcow2 guest.img guest.qcow2");
    assert_one_line(&sh(dir, "i disk mkdir --isolate process guest.qcow2 /x"), &["guest.qcow2", "raw images only"]);
    assert_one_line(
        &sh(dir, "INARCH_UML=/nowhere i disk mkdir --isolate process guest.img /x"),
        &["/nowhere", "User-Mode Linux"],
    );
}

#[test]
fn every_file_system_is_checked_whether_the_guest_mounts_it_or_not() {
    let dir = scratch();
    let dir = dir.path();
    let files = "mkdir -p root/etc data; echo ID=guest > root/etc/os-release; echo 'LABEL=root / ext4' > root/etc/fstab; echo f > data/f
        mke2fs -q -t ext4 -L root -d root root.img 16M; mke2fs -q -t ext4 -d data data.img 16M
        debugfs -w -R 'sif /f links_count 9' data.img > said 2>&1; truncate -s 40M guest.img
        printf 'label: gpt\\nsize=16M\\nsize=16M\\nsize=1M\\n' | sfdisk -q guest.img
        truncate -s 1M swap.img; mkswap -q swap.img > said; dd if=root.img of=guest.img bs=1M seek=1 conv=notrunc status=none
        dd if=data.img of=guest.img bs=1M seek=17 conv=notrunc status=none; dd if=swap.img of=guest.img bs=1M seek=33 conv=notrunc status=none";
    done(dir, files);
    let names = |output: &std::process::Output| {
        let told = stderr(output);
        ["/dev/sda1: e2fsck", "/dev/sda2: e2fsck", "/dev/sda3"].map(|name| told.contains(name))
    };
    let told = sh(dir, "i disk fsck guest.img");
    assert_status(&told, 4);
    assert_eq!(names(&told), [true, true, false], "{}", stderr(&told));
    assert_status(&sh(dir, "i disk fsck --repair guest.img"), 1);
    // Neither is the root of an operating system any more.
    done(
        dir,
        "dd if=data.img of=guest.img bs=1M seek=1 conv=notrunc status=none; i disk fsck --repair guest.img:1 2> said || true",
    );
    let told = sh(dir, "i disk fsck guest.img");
    assert_status(&told, 0);
    assert_eq!(names(&told), [true, true, false], "{}", stderr(&told));
}

/// File systems, the size of their images, how they are made and checked.
const FILE_SYSTEMS: [(&str, &str, &str, &str); 8] = [
    ("xfs", "320M", "mkfs.xfs -q -f img", "xfs_repair -n -f img"),
    ("btrfs", "200M", "mkfs.btrfs -q -f img", "btrfs check --readonly img"),
    ("vfat", "64M", "mkfs.fat -F 32 img", "fsck.fat -n img"),
    ("ntfs", "64M", "mkntfs -F -Q -q img", "ntfsfix -n img"),
    ("jfs", "32M", "mkfs.jfs -q img", "fsck.jfs -n -f img"),
    ("reiserfs", "64M", "mkreiserfs -q -f -f img", "reiserfsck -y -q --check img"),
    ("f2fs", "128M", "mkfs.f2fs -q img", "fsck.f2fs --dry-run img"),
    ("nilfs2", "150M", "mkfs.nilfs2 -q img", "true"),
];

#[test]
fn every_file_system_that_the_kernel_knows_is_written_to_and_read() {
    for (format, size, make, check) in FILE_SYSTEMS {
        let dir = scratch();
        let dir = dir.path();
        done(dir, &format!("truncate -s {size} img; {make} >said 2>&1 || {{ cat said >&2; exit 1; }}"));
        done(
            dir,
            "mkdir in; seq 50000 > in/numbers; ln in/numbers in/again; [ $(id -u) != 0 ] || chown 7:8 in/numbers; chmod 2755 in/again
            touch -d @1000000000 in/numbers; i disk cp in img:/; i disk cp in img:/",
        );
        done(dir, &format!("{check} >said 2>&1 || {{ cat said >&2; exit 1; }}; sha256sum img > sums"));
        // What Inarch does not read itself is read by the kernel of such a machine, and not written to.
        let read = done(dir, "i disk cat img /in/again; i disk ls --json img /in");
        let (numbers, listed) = read.split_at(read.find('{').unwrap_or(read.len()));
        assert_eq!(numbers, (1..=50000).map(|n| format!("{n}\n")).collect::<String>(), "{format}");
        let listed: Vec<serde_json::Value> = listed.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        assert_eq!(listed.len(), 2, "{format}: {listed:?}");
        for entry in listed.iter().filter(|_| format != "vfat") {
            assert!(entry["links"] == 2 && entry["mtime"].to_string().contains("1000000000"), "{format}: {entry}");
            let is_owned = !rustix::process::geteuid().is_root() || entry["uid"] == 7 && entry["gid"] == 8;
            assert!(is_owned || format == "ntfs", "{format}: {entry}");
        }
        done(dir, "sha256sum -c sums");
    }
}

#[test]
fn what_is_interrupted_or_has_no_room_leaves_the_file_as_it_was() {
    let dir = scratch();
    let dir = dir.path();
    guest(dir);
    let input = Command::new("sh").arg("-c").arg("head -c 20M /dev/urandom; sleep 1000").stdout(Stdio::piped()).spawn();
    let mut input = input.unwrap();
    let mut write = Command::new(INARCH);
    write.args(["disk", "write", "guest.img", "/etc/shadow"]).current_dir(dir).stdin(input.stdout.take().unwrap());
    let mut write = write.spawn().unwrap();
    // By then the machine is up, and writes what has come.
    let grows = || {
        fs::metadata(dir.join("guest.img")).is_ok_and(|is| std::os::unix::fs::MetadataExt::blocks(&is) > 2 * (16 << 10))
    };
    let began = within(LONG, grows);
    write.kill().unwrap();
    write.wait().unwrap();
    input.kill().unwrap();
    input.wait().unwrap();
    assert!(began, "the data never reached the image");
    let repaired = sh(dir, "dd if=guest.img of=root.now bs=1M skip=1 count=64 status=none; e2fsck -fp root.now");
    assert!(repaired.status.code().is_some_and(|code| code <= 1), "{}", stdout(&repaired));
    done(dir, "e2fsck -fn root.now >/dev/null 2>&1; dd if=root.now of=guest.img bs=1M seek=1 conv=notrunc status=none");
    assert_eq!(checked(dir, "cat /etc/shadow"), "old\n");
    // Larger than the room that this machine has for the image.
    if rustix::process::geteuid().is_root() {
        let small = "mkdir small; mount -t tmpfs -o size=24M none small; trap 'cd ..; umount small' EXIT; cd small; mkdir -p r/etc; echo old > r/etc/f
            mke2fs -q -t ext4 -d r img 100M >said; set +e; head -c 60M /dev/urandom | i disk write img /etc/f; s=$?; set -e
            i disk cat img /etc/f; cp --sparse=always img ../small.img; exit $s";
        let full = sh(dir, small);
        assert_eq!((full.status.success(), &*stdout(&full)), (false, "old\n"), "{}", stderr(&full));
        assert!(stderr(&full).contains("no room left for the image"), "{}", stderr(&full));
        let repaired = sh(dir, "e2fsck -fp small.img");
        assert!(repaired.status.code().is_some_and(|code| code <= 1), "{}", stdout(&repaired));
    }
    // Larger than the volume.
    let full = sh(dir, "head -c 100M /dev/zero | tr '\\0' x | i disk write guest.img /etc/shadow");
    assert_refused(&full, &["/etc/shadow", "No space left"]);
    assert_eq!(checked(dir, "cat /etc/shadow"), "old\n");
}

#[test]
fn the_log_of_an_xfs_is_written_back_before_it_is_repaired() {
    if !rustix::process::geteuid().is_root() {
        return println!("skipped: the_log_of_an_xfs_is_written_back_before_it_is_repaired: only root mounts an image");
    }
    let dir = scratch();
    let dir = dir.path();
    // What was synced is in the log alone when the file system goes down.
    done(
        dir,
        "truncate -s 320M img; mkfs.xfs -q img; mkdir m; mount -o loop img m; trap 'umount m 2>/dev/null || :' EXIT
        for i in $(seq 100); do : > m/f$i; done; xfs_io -x -c 'shutdown -f' m; umount m",
    );
    let repaired = sh(dir, "i disk fsck --repair img");
    assert_status(&repaired, 1);
    assert!(stderr(&repaired).contains("/dev/sda: its log is written back"), "{}", stderr(&repaired));
    assert_eq!(done(dir, "i disk ls img | wc -l; xfs_repair -n -f img >said 2>&1; ! grep ALERT said"), "100\n");
}

#[test]
fn an_interrupted_copy_leaves_whole_files_and_a_clean_file_system() {
    let dir = scratch();
    let dir = dir.path();
    done(
        dir,
        "mkdir tree from; mke2fs -q -t ext4 -d tree img 1G; echo small > from/small; yes | head -c 500M > from/large",
    );
    let blocks = || std::os::unix::fs::MetadataExt::blocks(&fs::metadata(dir.join("img")).unwrap());
    let before = blocks();
    let mut copy = Command::new(INARCH);
    copy.args(["disk", "cp", "from", "img:/copy"]).current_dir(dir).stdout(Stdio::piped()).stderr(Stdio::piped());
    let copy = copy.spawn().unwrap();
    let began = within(LONG, || blocks() > before + 2 * (16 << 10));
    rustix::process::kill_process(rustix::process::Pid::from_child(&copy), rustix::process::Signal::INT).unwrap();
    let ended = copy.wait_with_output().unwrap();
    assert!(began, "the data never reached the image: {}", stderr(&ended));
    assert_eq!(std::os::unix::process::ExitStatusExt::signal(&ended.status), Some(2), "{ended:?}");
    assert_eq!(stderr(&ended), "inarch: interrupted: some of from is not in img; the files that are there are whole\n");
    done(dir, "e2fsck -fn img >said 2>&1 || { cat said >&2; exit 1; }; ! dumpe2fs -h img 2>&1 | grep needs_recovery");
    let names = done(dir, "i disk ls img /copy");
    assert!(!names.contains("large"), "{names}");
    // Its permissions come last.
    assert!(done(dir, "debugfs -R 'stat /copy' img 2>/dev/null").contains("Mode:  0700"));
}

#[test]
fn an_image_is_changed_by_one_and_trusted_by_nobody() {
    let dir = scratch();
    let dir = dir.path();
    done(
        dir,
        "mkdir tree; echo secret > secret; echo text > tree/file; mke2fs -q -t ext4 -d tree img 32M; sha256sum img > sums",
    );
    let told = |output: Output, parts: &[&str]| {
        assert_status(&output, 125);
        assert_one_line(&output, parts);
    };
    // A guest wrote the header of a container onto its raw disk, which names a file of the host.
    done(
        dir,
        "qemu-img create -q -f qcow2 -b secret -F raw guest.raw 32M 2>/dev/null || qemu-img create -q -u -f qcow2 -b secret -F raw guest.raw 32M",
    );
    for command in
        ["i run --root none --disk guest.raw true", "echo x | i disk write guest.raw /file", "i disk fsck guest.raw"]
    {
        told(sh(dir, command), &["guest.raw", "looks like a qcow2 image", "--format raw or qcow2"]);
    }
    for command in
        ["i run --root none --disk guest.raw,format=qcow2 true", "echo x | i disk write --format qcow2 guest.raw /file"]
    {
        told(sh(dir, command), &["asks for its backing file 'secret'", "--with FILE"]);
    }
    told(sh(dir, "i run --root none --disk img,format=qcow2 true"), &["it is none"]);
    told(sh(dir, "i run --root none --disk absent true"), &["absent"]);
    // Two writers, whether they are ours or QEMU's.
    told(
        sh(dir, "flock -x img \"$0\" 2>/dev/null; exec 9<img; flock -x 9; i run --root none --disk img true"),
        &["another process uses it"],
    );
    let held = "qemu-io -f raw -c 'read 0 1' -c 'sleep 20000' img >/dev/null & p=$!; until grep -q \":$(stat -c %i img) \" /proc/locks; do sleep 0.05; done; i run --root none --disk img true; s=$?; kill $p; exit $s";
    told(sh(dir, &held.replace("i run", "set +e; i run")), &["img", "another process uses it"]);
    // What is only read stays as it is.
    let run = "i run -u root --disk img,ro sh -c 'mount -o ro $INARCH_DISK_1 /mnt; cat /mnt/file; umount /mnt; exec echo x > $INARCH_DISK_1'";
    let output = sh(dir, run);
    assert!(!output.status.success() && stdout(&output) == "text\n", "{}", stderr(&output));
    assert_status(&sh(dir, "i disk fsck img"), 0);
    done(dir, "sha256sum -c sums");
    // What a command writes to its disk is there when it ends.
    done(dir, "qemu-img create -q -f qcow2 new.qcow2 64M");
    let made = done(
        dir,
        "i run -u root --disk new.qcow2 --disk img,ro sh -ec 'mke2fs -q $INARCH_DISK_1; mount $INARCH_DISK_1 /mnt; \
         echo made > /mnt/file; readlink -f /dev/disk/by-id/virtio-disk1 /dev/disk/by-id/virtio-disk2; echo $INARCH_DISK_1 $INARCH_DISK_2'",
    );
    let words: Vec<&str> = made.split_whitespace().collect();
    assert_eq!((words.len(), words[..2] == words[2..]), (4, true), "{made}");
    assert_eq!(done(dir, "qemu-img check -q new.qcow2; i disk cat new.qcow2 /file"), "made\n");
    let told = done(dir, "i run --root none --disk new.qcow2 --dry-run true");
    assert!(told.contains("\"backing\":null") && told.contains("new.qcow2"), "{told}");
}

#[test]
fn a_disk_is_mounted_for_writing() {
    let dir = scratch();
    let dir = dir.path();
    guest(dir);
    fs::create_dir(dir.join("point")).unwrap();
    let script = "
        i mount -b --rw guest.img point --log log >/dev/null 2>&1
        echo hello > point/etc/hello; mkdir -p point/home/user/deep/er; seq 100000 > point/home/user/deep/numbers
        mv point/home/user/notes point/home/user/deep; ln -s deep point/home/user/link; ln point/etc/hello point/etc/again
        chmod 600 point/etc/hello; rm point/links/up; cmp point/home/user/link/notes home/user/notes
        dd if=/dev/urandom of=point/large bs=1M count=8 conv=fsync status=none; cp point/large large
        status=0; echo x | i disk write guest.img /x 2> second || status=$?; [ $status = 125 ]
        i umount point; ! mountpoint -q point";
    done(dir, script);
    // The image is released when the mount is gone, and kept from others until then.
    let second = fs::read_to_string(dir.join("second")).unwrap();
    assert!(second.contains("another process uses it"), "{second}");
    assert_eq!(checked(dir, "cat /etc/again"), "hello\n");
    let told = checked(dir, "stat /etc/hello");
    assert!(told.contains("Mode:  0600") && told.contains("Links: 2"), "{told}");
    done(dir, "debugfs -R 'dump /large dumped' root.now 2>/dev/null; cmp large dumped");
    done(dir, "debugfs -R 'cat /user/deep/numbers' home.now 2>/dev/null | cmp - - <<E\n$(seq 100000)\nE");
    // Killed: the mount is gone, and the file system is as after a power cut.
    let mut mount = Command::new(INARCH);
    mount
        .args(["mount", "--rw", "-q", "guest.img", "point"])
        .current_dir(dir)
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let mut mount = mount.spawn().unwrap();
    assert!(within(LONG, || fs::write(dir.join("point/etc/first"), "first").is_ok()
        && dir.join("point/etc/first").exists()
        && is_mounted(dir)));
    done(dir, "sync point/etc/first; echo second > point/etc/second");
    mount.kill().unwrap();
    mount.wait().unwrap();
    assert!(within(LONG, || !is_mounted(dir)));
    // Every writer holds a lock on the image.
    let lock = format!(":{} ", fs::metadata(dir.join("guest.img")).unwrap().ino());
    assert!(within(LONG, || !fs::read_to_string("/proc/locks").unwrap().contains(&lock)));
    let repaired = sh(dir, "dd if=guest.img of=root.now bs=1M skip=1 count=64 status=none; e2fsck -fp root.now");
    assert!(repaired.status.code().is_some_and(|code| code <= 1), "{}", stdout(&repaired));
    assert_eq!(done(dir, "debugfs -R 'cat /etc/first' root.now 2>/dev/null"), "first");
    // What cannot be changed is not mounted as if it could.
    done(dir, "tar cf tree.tar root");
    for option in ["--rw", "-o rw"] {
        assert_one_line(&sh(dir, &format!("i mount {option} tree.tar point")), &["archives are not changed"]);
    }
}

#[test]
fn a_volume_grows_and_shrinks_with_its_partition() {
    let dir = scratch();
    let dir = dir.path();
    guest(dir);
    let sizes = "sfdisk --dump guest.img | sed -n 's/.*size= *\\([0-9]*\\).*/\\1/p' | tr '\\n' ' '";
    // The last partition grows with the image, and the second copy of the table goes to the new end.
    done(dir, "i disk resize guest.img:2 +64M");
    assert_eq!(done(dir, sizes), format!("{} {} ", 64 * 2048, 96 * 2048));
    done(
        dir,
        "sgdisk -v guest.img | grep -q 'No problems'; dd if=guest.img of=home.now bs=1M skip=65 count=96 status=none; e2fsck -fn home.now >/dev/null 2>&1",
    );
    assert!(done(dir, "dumpe2fs -h home.now 2>/dev/null | grep 'Block count'").contains(&(96 * 1024).to_string()));
    assert_eq!(done(dir, "debugfs -R 'cat /user/notes' home.now 2>/dev/null"), "note\n");
    done(dir, "i disk resize guest.img:2 40M");
    assert_eq!(done(dir, sizes), format!("{} {} ", 64 * 2048, 40 * 2048));
    done(dir, "dd if=guest.img of=home.now bs=1M skip=65 count=40 status=none; e2fsck -fn home.now >/dev/null 2>&1");
    assert_eq!(done(dir, "debugfs -R 'cat /user/notes' home.now 2>/dev/null"), "note\n");
    // Not into the next partition, and not below its files.
    assert_one_line(&sh(dir, "i disk resize guest.img:1 +1M"), &["another partition follows"]);
    done(dir, "sha256sum guest.img > sums; truncate -s 320M x.img; mkfs.xfs -q -f x.img");
    assert_status(&sh(dir, "i disk resize guest.img:2 1M"), 125);
    assert_one_line(&sh(dir, "i disk resize x.img 300M"), &["XFS cannot be made smaller"]);
    assert_eq!(
        done(dir, "i disk resize x.img 400M; xfs_repair -n -f x.img >/dev/null 2>&1; stat -c %s x.img"),
        format!("/dev/sda: 320 MiB -> 400 MiB\n{}\n", 400 << 20)
    );
}

#[test]
fn an_image_grows_by_the_files_that_were_named_for_it() {
    let dir = scratch();
    let dir = dir.path();
    // The image names its files elsewhere, where other files are by now.
    done(
        dir,
        "mkdir there; truncate -s 32M there/data.raw; mke2fs -q -t ext4 there/data.raw
        qemu-img create -q -f qcow2 -o data_file=$PWD/there/data.raw,data_file_raw=on img.qcow2 32M
        mke2fs -q -t ext4 -F there/data.raw; cp there/data.raw data.raw
        mke2fs -q -t ext4 base.img 32M; cp base.img there; qemu-img create -q -f qcow2 -b $PWD/there/base.img -F raw over.qcow2
        echo mine > there/data.raw; echo mine > there/base.img",
    );
    assert_eq!(done(dir, "i disk resize --with data.raw img.qcow2 64M"), "/dev/sda: 32.0 MiB -> 64.0 MiB\n");
    assert_eq!(done(dir, "i disk resize --with base.img over.qcow2 64M"), "/dev/sda: 32.0 MiB -> 64.0 MiB\n");
    assert_eq!(
        done(dir, "cat there/data.raw there/base.img; stat -c %s data.raw base.img"),
        "mine\nmine\n67108864\n33554432\n"
    );
    done(
        dir,
        "e2fsck -fn data.raw >/dev/null 2>&1; cp base.img there; qemu-img convert -O raw over.qcow2 raw; e2fsck -fn raw >/dev/null 2>&1",
    );
    assert_eq!(done(dir, "stat -c %s raw"), "67108864\n");
}
