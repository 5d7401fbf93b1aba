//! Promise: thin volumes and their snapshots are read as Linux wrote them.
//!
//! This host's kernel may have no device mapper, so a guest makes the volumes.

use std::fs;

use crate::support::bare_guest::BareGuest;
use crate::support::{any_machine, assert_status, host, inarch, run_script_in, scratch, stderr, stdout};

/// Makes `disk` in the guest: a pool with a volume, a snapshot of it from before the last change, and one without anything. Prints checksums.
const MAKE: &str = "set -e
    modprobe loop; modprobe dm-thin-pool; modprobe ext4; mkdir -p /run/m
    cd /run; truncate -s 96M disk; loop=$(losetup -f --show disk)
    lvm() { word=$1; shift; command lvm $word --config 'devices { use_devicesfile=0 obtain_device_list_from_udev=0 }
        global { locking_dir=\"/run/lock\" use_lvmpolld=0 thin_check_executable=\"\" } backup { backup=0 archive=0 }
        activation { monitoring=0 udev_sync=0 udev_rules=0 }' \"$@\" > /run/log 2>&1 || { cat /run/log >&2; exit 9; }; }
    lvm pvcreate -y $loop; lvm vgcreate vg $loop
    lvm lvcreate -y -T -L 64M --poolmetadatasize 4M -c 64k vg/pool
    lvm lvcreate -y -V 192M -T vg/pool -n thin; lvm lvcreate -y -V 256M -T vg/pool -n empty
    mke2fs -q -t ext4 -O ^has_journal -L thin /dev/vg/thin
    mount /dev/vg/thin m; seq 700000 > m/numbers; head -c 3000000 /dev/urandom > m/noise
    sha256sum m/numbers m/noise | cut -c1-64; umount m; lvm lvcreate -y -s -n before vg/thin; lvm lvchange -y -ay -K vg/before
    mount /dev/vg/thin m; seq 100 800000 > m/numbers; rm m/noise; sha256sum m/numbers | cut -c1-64; umount m
    lvm vgchange -an vg; losetup -d $loop; cp --sparse=always disk /out/disk";

#[test]
fn with_their_snapshots() {
    if BareGuest::or_skip("with_their_snapshots").is_none() {
        return;
    }
    let dir = scratch();
    let out = dir.path().join("out");
    fs::create_dir(&out).unwrap();
    let share = format!("{}:/out", out.display());
    let output = run_script_in(any_machine(), dir.path(), &["-v", &share], MAKE, b"");
    assert_status(&output, 0);
    let sums = stdout(&output);
    let sums: Vec<_> = sums.lines().collect();
    let disk = out.join("disk");
    let disk = disk.to_str().unwrap();
    let files = [("before", "numbers"), ("before", "noise"), ("thin", "numbers")];
    assert_eq!(sums.len(), files.len());
    for ((volume, file), sum) in files.iter().zip(&sums) {
        let output = inarch(["disk", "cat", &format!("{disk}:vg/{volume}"), file]);
        assert_status(&output, 0);
        fs::write(dir.path().join("read"), &output.stdout).unwrap();
        assert!(host("sha256sum", &["read"], dir.path()).starts_with(sum), "{volume} {file}");
    }
    assert_status(&inarch(["disk", "stat", &format!("{disk}:vg/thin"), "noise"]), 1);
    let output = inarch(["disk", "list", disk]);
    assert_status(&output, 0);
    let (said, complaints) = (stdout(&output), stderr(&output));
    assert!(said.lines().filter(|line| line.contains(" thin ") && line.contains("ext4")).count() == 2, "{said}");
    assert!(said.contains("/dev/vg/empty") && !complaints.contains("/dev/vg/empty"), "{said}{complaints}");
    assert!(complaints.contains("/dev/vg/pool cannot be read: it is the pool of thin volumes"), "{complaints}");
}
