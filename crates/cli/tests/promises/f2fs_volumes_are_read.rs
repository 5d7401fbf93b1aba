//! Promise: what Linux wrote to an F2FS is read as Linux has it.
//!
//! This host's kernel may not know F2FS, so a guest makes the file systems.

use std::fs;
use std::path::Path;

use crate::support::bare_guest::BareGuest;
use crate::support::{
    any_machine, assert_one_line, assert_status, host, inarch, run_script, run_script_in, scratch, stderr, stdout,
};

/// Prints names, types, permissions, owners, sizes, link counts, times, targets, device numbers and content of what is in `.`.
const LISTING: &str = "
    find . ! -type d -printf '%p %y %m %U:%G %n %T@ %l\\n' | sort; find . -type d -printf '%p %y %m %U:%G %T@\\n' | sort
    find . -type f -print0 | sort -z | xargs -0 sha256sum; find . -type b -o -type c | sort | xargs stat -c '%n %t %T'
    getfattr -h -d -m - numbers small dir sparse";

/// Fills an F2FS in the guest with the options `$1` of mkfs.f2fs, and copies it to /out/`$2`, its listing beside it.
const MAKE: &str = "set -e
    modprobe loop; modprobe crc32_generic; modprobe f2fs; mkdir -p /run/m; cd /run
    make() {
        truncate -s 200M disk; mkfs.f2fs -q -f -l label $1 disk > /dev/null; mount -o loop,$3 disk m; cd m
        mkdir -p dir/below many; seq 400000 > numbers; printf small > small; : > empty; ln numbers dir/again; ln -s ../numbers dir/link
        ln -s $(printf 'x%.0s' $(seq 3000)) dir/long; truncate -s 30M sparse; printf end >> sparse; printf start | dd of=sparse conv=notrunc status=none
        mknod null c 1 3; mknod big b 300 70000; mkfifo fifo; chmod 4711 small; chown 1234:70000 empty dir
        for i in $(seq 1200); do echo $i > many/\"a name of some length $i\"; done; rm many/*7; mv many/*11 dir/below
        setfattr -n user.note -v text numbers; setfattr -n user.large -v $(printf 'y%.0s' $(seq 3000)) small
        setfattr -n trusted.own -v x dir; setfacl -m u:1234:r numbers; setfacl -d -m g:55:rwx dir
        touch -h -d @1700000000.123456789 numbers dir/link; dd if=/dev/urandom of=noise bs=7000 count=500 status=none
        sync; echo changed > small; rm noise; dd if=/dev/urandom of=tail bs=1000 count=900 status=none
        LISTING > /out/$2.list; cd ..; umount m; cp --sparse=always disk /out/$2; rm disk
    }
    make '' plain inline_dentry,inline_data
    make '-O extra_attr,inode_checksum,inode_crtime,flexible_inline_xattr -a 0' extra noinline_dentry,noinline_data,inline_xattr_size=120";

/// Makes an F2FS in the guest with a file that is compressed, if its kernel compresses, and copies it to /out/packed.
const PACK: &str = "set -e
    modprobe loop; modprobe crc32_generic; modprobe f2fs; mkdir -p /run/m; cd /run
    truncate -s 80M disk; mkfs.f2fs -q -f -O extra_attr,compression disk > /dev/null; mount -o loop disk m
    mkdir m/packed; if chattr +c m/packed 2> /dev/null; then seq 300000 > m/packed/numbers; echo plain > m/plain; fi; umount m
    cp --sparse=always disk /out/packed";

#[test]
fn as_linux_wrote_them() {
    if BareGuest::or_skip("as_linux_wrote_them").is_none() {
        return;
    }
    let dir = scratch();
    let out = dir.path().join("out");
    fs::create_dir(&out).unwrap();
    let share = format!("{}:/out", out.display());
    let make = MAKE.replace("LISTING", &format!("{{ {LISTING}; }}"));
    assert_status(&run_script_in(any_machine(), dir.path(), &["-v", &share], &make, b""), 0);
    // Debian's kernel for User-Mode Linux does not compress.
    assert_status(&run_script(dir.path(), &["-v", &share], PACK, b""), 0);
    for name in ["plain", "extra"] {
        assert_reads(&out, name);
    }
    let packed = out.join("packed");
    let output = inarch(["disk", "ls", packed.to_str().unwrap(), "packed"]);
    assert_status(&output, 0);
    if stdout(&output).contains("numbers") {
        assert_eq!(stdout(&inarch(["disk", "cat", packed.to_str().unwrap(), "plain"])), "plain\n");
        let output = inarch(["disk", "cat", packed.to_str().unwrap(), "packed/numbers"]);
        assert_status(&output, 1);
        assert!(stderr(&output).contains("is compressed"), "{output:?}");
    }
}

/// Checks that an image has what its guest saw: as root, with owners and devices.
fn assert_reads(out: &Path, name: &str) {
    let image = out.join(name);
    let image = image.to_str().unwrap();
    let listed = stdout(&inarch(["disk", "list", image]));
    assert!(listed.contains("f2fs, label label"), "{listed}");
    if !rustix::process::geteuid().is_root() {
        let test = std::thread::current().name().unwrap_or_default().to_owned();
        return println!("skipped: {test}: only root can give a copy its owners");
    }
    let copy = out.join(format!("{name}.copy"));
    let output = inarch(["disk", "cp", image, "/", copy.to_str().unwrap()]);
    assert_status(&output, 0);
    let ours = host("sh", &["-ec", LISTING], &copy);
    let theirs = fs::read_to_string(out.join(format!("{name}.list"))).unwrap();
    let differ = ours.lines().zip(theirs.lines()).find(|(ours, theirs)| ours != theirs);
    assert!(ours == theirs, "{name}: {differ:?}, {} and {} lines", ours.lines().count(), theirs.lines().count());
    let usage = stdout(&inarch(["disk", "df", image]));
    assert!(usage.contains("f2fs") && usage.contains('%'), "{usage}");
}

#[test]
fn or_refused_in_one_line() {
    let dir = scratch();
    host("sh", &["-ec", "truncate -s 60M image; mkfs.f2fs -q -f image > /dev/null"], dir.path());
    let image = dir.path().join("image");
    assert_status(&inarch(["disk", "ls", image.to_str().unwrap()]), 0);
    let sound = fs::read(&image).unwrap();
    let checkpoint = u32::from_le_bytes(sound[1100..1104].try_into().unwrap()) as usize * 4096;
    let mut damaged = sound.clone();
    damaged[checkpoint + 9] ^= 1;
    fs::write(&image, &damaged).unwrap();
    assert_status(&inarch(["disk", "ls", image.to_str().unwrap()]), 0);
    damaged[checkpoint + (2 << 20) + 9] ^= 1;
    fs::write(&image, &damaged).unwrap();
    let output = inarch(["disk", "ls", image.to_str().unwrap()]);
    assert_one_line(&output, &["image", "both of its checkpoints are damaged"]);
    let mut second = sound;
    second[1024..2048].fill(0);
    fs::write(&image, &second).unwrap();
    let output = inarch(["disk", "list", image.to_str().unwrap()]);
    assert_status(&output, 0);
}
