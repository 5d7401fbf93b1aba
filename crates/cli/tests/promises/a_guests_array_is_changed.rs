//! Promise: files on a RAID array that lies on a guest's disk are changed on all of its members, whatever the machine is called that made it. An array
//! that is not complete is only read.

use std::path::Path;
use std::process::Command;

use crate::support::bare_guest::BareGuest;
use crate::support::{
    INARCH, any_machine, assert_one_line, assert_status, host, programs, run_script_in, scratch, stdout,
};

/// Makes a mirror of two partitions in a guest, with a root in it: this host's kernel may have no arrays.
const MAKE: &str = "set -e; modprobe raid1; modprobe ext4; d=$INARCH_DISK_1
    mdadm --create /dev/md/data --quiet --run --homehost=another --name=data --metadata=1.2 --level=1 --raid-devices=2 ${d}1 ${d}2
    mke2fs -q -t ext4 -L data /dev/md/data; mkdir -p /run/m; mount /dev/md/data /run/m; mkdir /run/m/etc
    echo 'LABEL=data / ext4 x 0 0' > /run/m/etc/fstab; umount /run/m; mdadm --quiet --wait /dev/md/data || :; mdadm --quiet --stop /dev/md/data";

fn sh(dir: &Path, script: &str) -> std::process::Output {
    let mut command = Command::new("sh");
    command.arg("-c").arg(format!("i() {{ \"{INARCH}\" \"$@\"; }}\n{script}")).current_dir(dir);
    command.env("PATH", programs()).output().unwrap()
}

#[test]
fn on_all_of_its_members() {
    if BareGuest::or_skip("on_all_of_its_members").is_none() {
        return;
    }
    let dir = scratch();
    let dir = dir.path();
    host("sh", &["-ec", "truncate -s 60M disk; printf 'label: gpt\\nsize=20M\\nsize=20M\\n' | sfdisk -q disk"], dir);
    assert_status(&run_script_in(any_machine(), dir, &["-u", "root", "--disk", "disk"], MAKE, b""), 0);
    let written = "set -e; echo whole | i disk write disk /file; i disk mkdir disk:/dev/md/data /more; i disk fsck disk 2> /dev/null; i disk ls disk";
    let output = sh(dir, written);
    assert_status(&output, 0);
    assert_eq!(stdout(&output), "etc\nfile\nmore\n");
    // Each member by itself, without the superblock of the other.
    for other in [1, 2] {
        let start = [1, 21][other - 1];
        host(
            "sh",
            &[
                "-ec",
                &format!("cp disk one; dd if=/dev/zero of=one bs=1M seek={start} count=1 conv=notrunc status=none"),
            ],
            dir,
        );
        let output = sh(dir, "i disk cat one:/dev/md/data /file 2> /dev/null");
        assert_status(&output, 0);
        assert_eq!(stdout(&output), "whole\n");
    }
    host("cp", &["one", "before"], dir);
    assert_one_line(&sh(dir, "echo x | i disk write one:/dev/md/data /file"), &["/dev/md/data", "not all members"]);
    host("cmp", &["one", "before"], dir);
}
