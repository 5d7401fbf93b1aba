//! Promise: a block device is a source as an image file is: what is on it is listed, read, mounted and taken into images, and nothing is written to
//! it but by a guest that has it as a disk.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use crate::support::mounted::{Server, unmount};
use crate::support::{
    INARCH, any_machine, assert_one_line, assert_status, copy_command, host, inarch, run_script_in, scratch, stderr,
    stdout,
};

/// A loop device of a file, detached at the end.
struct Device(String);

impl Device {
    fn of(dir: &Path, file: &str, options: &[&str]) -> Device {
        let words = [&["--find", "--show"][..], options, &[file]].concat();
        Device(host("losetup", &words, dir).trim().to_owned())
    }
}

// After a test that failed, too.
impl Drop for Device {
    fn drop(&mut self) {
        let _ = Command::new("losetup").args(["--detach", &self.0]).status();
    }
}

/// An ext4 in `bare`, and as the only partition of `disk-512` and `disk-4096`, whose names say the size of their sectors.
fn disks(dir: &Path) {
    let script = "mkdir tree hosts; seq 100000 > tree/numbers; ln -s numbers tree/link
        truncate -s 20M bare; /sbin/mke2fs -q -t ext4 -L data -d tree bare
        for size in 512 4096; do
            truncate -s 32M disk-$size; device=$(losetup --find --show --sector-size $size disk-$size)
            trap 'losetup -d $device' EXIT
            printf 'label: gpt\\nsize=20M,type=L,name=first\\n' | /sbin/sfdisk -q --no-tell-kernel $device
            losetup -d $device; trap - EXIT
            dd if=bare of=disk-$size bs=1M seek=1 conv=notrunc status=none
        done";
    host("sh", &["-ec", script], dir);
}

fn is_root(test: &str) -> bool {
    let is = rustix::process::geteuid().is_root();
    if !is {
        println!("skipped: {test}: only root makes loop devices");
    }
    is
}

/// What `inarch WORDS` prints in a directory.
#[track_caller]
fn said(dir: &Path, words: &[&str]) -> String {
    let output = Command::new(INARCH).args(words).current_dir(dir).output().unwrap();
    assert_status(&output, 0);
    stdout(&output)
}

#[test]
fn whatever_its_sectors_are() {
    if !is_root("whatever_its_sectors_are") {
        return;
    }
    let dir = scratch();
    disks(dir.path());
    let said = |words: &[&str]| said(dir.path(), words);
    let numbers = fs::read_to_string(dir.path().join("tree/numbers")).unwrap();
    for (file, options, volume) in [
        ("disk-512", &["--sector-size=512"][..], ":1"),
        ("disk-4096", &["--read-only", "--sector-size=4096"], ":PARTLABEL=first"),
        ("bare", &[], ""),
    ] {
        let before = host("sha256sum", &[file], dir.path());
        let device = Device::of(dir.path(), file, options);
        let device = &*device.0;
        for words in [&["disk", "list"][..], &["disk", "list", "--json"], &["disk", "df"]] {
            let of = |source: &str| said(&[words, &[source]].concat());
            assert_eq!(of(device).replace(device, file), of(file), "{words:?}");
        }
        let volume = &*format!("{device}{volume}");
        assert_eq!(said(&["disk", "ls", volume, "/"]), "link\nnumbers\n");
        assert!(said(&["disk", "cat", volume, "/link"]) == numbers, "{volume}");
        said(&["image", "-q", volume, "-o", "x.tar"]);
        assert!(host("tar", &["xOf", "x.tar", "./numbers"], dir.path()) == numbers, "{volume}");
        assert_eq!(said(&["shell", "--ro", device, "-m", "LABEL=data", "wc-l", "/numbers"]), "100000\n");

        let mut server = Server::start(dir.path(), volume, &[]);
        let point = dir.path().join("point");
        assert!(fs::read_to_string(point.join("link")).unwrap() == numbers, "{volume}");
        unmount(&point);
        assert_eq!(server.child.wait().unwrap().code(), Some(0));
        assert_eq!(host("sha256sum", &[file], dir.path()), before);
    }
}

#[test]
fn a_guest_writes_to_it_as_to_a_disk() {
    if !is_root("a_guest_writes_to_it_as_to_a_disk") {
        return;
    }
    let dir = scratch();
    disks(dir.path());
    let device = Device::of(dir.path(), "bare", &[]);
    let script = "mount $INARCH_DISK_1 /mnt && tail -n 1 /mnt/numbers && echo written > /mnt/new && umount /mnt";
    let output = run_script_in(any_machine(), dir.path(), &["-u", "root", "--disk", &device.0], script, b"");
    assert_status(&output, 0);
    assert_eq!(stdout(&output), "100000\n");
    drop(device);
    assert_eq!(host("debugfs", &["-R", "cat /new", "bare"], dir.path()), "written\n");
    host("e2fsck", &["-fn", "bare"], dir.path());
}

#[test]
fn unless_one_may_not_read_it() {
    if !is_root("unless_one_may_not_read_it") {
        return;
    }
    let dir = scratch();
    disks(dir.path());
    copy_command(&dir.path().join("inarch"));
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let device = Device::of(dir.path(), "bare", &["--read-only"]);
    let device = &*device.0;
    for words in [&["disk", "ls", device][..], &["mount", device, "hosts"], &["plan", device], &["shell", device]] {
        let mut user = Command::new("setpriv");
        user.args(["--reuid", "65534", "--regid", "65534", "--clear-groups", "./inarch"]);
        let output = user.args(words).current_dir(dir.path()).output().unwrap();
        assert_one_line(&output, &[device, "Permission denied"]);
    }
    // It is read while this host's kernel has it mounted, with a line that says what this means.
    host("mount", &["-o", "ro", device, "hosts"], dir.path());
    let verbs = [
        &["disk", "cat", device, "/numbers"][..],
        &["disk", "list", device],
        &["disk", "df", device],
        &["disk", "inspect", device],
        &["disk", "diff", device, device],
        &["plan", device],
    ];
    let told = verbs.map(|words| (words, inarch(words)));
    unmount(&dir.path().join("hosts"));
    for (words, output) in told {
        assert_status(&output, 0);
        // A plan has what is noted among what it prints.
        let said = stdout(&output) + &stderr(&output);
        assert!(said.contains("the device is in use"), "{words:?}: {said}");
    }
}
