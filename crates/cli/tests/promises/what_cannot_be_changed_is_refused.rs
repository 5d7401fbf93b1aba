//! Promise: what an appliance cannot change is refused in one line that says why, before a machine is started, and the image stays as it is.

use std::path::Path;
use std::process::Command;

use crate::support::{INARCH, LVM, assert_one_line, host, programs, scratch};

/// Runs words in a shell in `dir`, in which `i` is the built command. It must fail.
fn refused(dir: &Path, script: &str, parts: &[&str]) {
    let mut command = Command::new("sh");
    command.arg("-c").arg(format!("i() {{ \"{INARCH}\" \"$@\"; }}\n{script}")).current_dir(dir);
    let output = command.env("PATH", programs()).output().unwrap();
    assert_one_line(&output, parts);
}

#[test]
fn an_encrypted_volume_or_what_may_lie_in_it() {
    let dir = scratch();
    let dir = dir.path();
    // The root is encrypted; what is not is /boot, which must not be taken for it.
    host(
        "sh",
        &[
            "-ec",
            "printf secret > key; mkdir -p boot/grub; truncate -s 20M luks boot.part; mke2fs -q -t ext4 -L boot -d boot boot.part
            cryptsetup luksFormat -q --type luks2 --pbkdf pbkdf2 --pbkdf-force-iterations 1000 luks key
            truncate -s 44M guest.img; printf 'label: gpt\\nsize=20M\\nsize=20M\\n' | sfdisk -q guest.img
            dd if=boot.part of=guest.img bs=1M seek=1 conv=notrunc status=none; dd if=luks of=guest.img bs=1M seek=21 conv=notrunc status=none
            mkdir point; sha256sum guest.img luks > sums",
        ],
        dir,
    );
    for image in ["guest.img", "guest.img:2", "luks"] {
        let parts = [image.trim_end_matches(":2"), "encrypted", "only read", "--key"];
        for words in [
            "disk write IMAGE /x",
            "disk rm IMAGE /x",
            "disk mkdir -p IMAGE /etc/x",
            "disk fsck --repair IMAGE",
            "disk cp key IMAGE:/x",
        ] {
            refused(dir, &format!("i {} < key", words.replace("IMAGE", image)), &parts);
        }
        refused(dir, &format!("i disk resize {image} 16M"), &parts);
        refused(dir, &format!("i mount --rw {image} point"), &parts);
    }
    refused(dir, "i mount --rw --key key guest.img point", &["--key", "only read"]);
    host("sha256sum", &["-c", "sums"], dir);
}

#[test]
fn what_holds_no_files_and_what_is_not_resized() {
    let dir = scratch();
    let dir = dir.path();
    let script = format!(
        "truncate -s 40M pv; first=pv second=pv; first=$(losetup -f --show pv); second=$first; trap 'losetup -d $first' EXIT
        {LVM}
        lvm pvcreate -y $first; lvm vgcreate -y vg $first; lvm lvcreate -y -Wn -Zn -an -L 16M -n root vg
        truncate -s 80M parts.img; printf 'label: dos\\nparts.img1 : size=20M\\nparts.img2 : size=40M, type=5\\nparts.img5 : size=10M\\nparts.img6 : size=10M, type=82\\n' | sfdisk -q parts.img
        truncate -s 10M logical; mke2fs -q -t ext4 logical; start=$(sfdisk --dump parts.img | sed -n 's/^parts.img5.*start= *\\([0-9]*\\),.*/\\1/p')
        dd if=logical of=parts.img bs=512 seek=$start conv=notrunc status=none
        truncate -s 10M swap; mkswap -q swap; start=$(sfdisk --dump parts.img | sed -n 's/^parts.img6.*start= *\\([0-9]*\\),.*/\\1/p')
        dd if=swap of=parts.img bs=512 seek=$start conv=notrunc status=none"
    );
    host("sh", &["-ec", &script], dir);
    host("sh", &["-c", "sha256sum pv parts.img > sums"], dir);
    refused(dir, "i disk resize pv:/dev/vg/root 20M", &["/dev/vg/root", "logical volume", "lvextend"]);
    refused(dir, "i disk resize parts.img:5 8M", &["extended one is not resized"]);
    refused(dir, "i disk resize parts.img:2 50M", &["parts.img", "2"]);
    refused(dir, "i disk resize parts.img:6 5M", &["swap"]);
    refused(dir, "echo x | i disk write pv:/dev/sda /x", &["LVM2_member"]);
    refused(dir, "echo x | i disk write parts.img:6 /x", &["swap"]);
    refused(dir, "echo x | i disk write parts.img:7 /x", &["no volume '7'", "/dev/sda5"]);
    host("sha256sum", &["-c", "sums"], dir);
}

#[test]
fn options_that_would_have_no_effect() {
    let dir = scratch();
    let dir = dir.path();
    host("sh", &["-ec", "mkdir point; truncate -s 20M img; mke2fs -q -t ext4 img; sha256sum img > sums"], dir);
    for option in [
        "--record log",
        "--nosuid",
        "--nodev",
        "-o nosuid",
        "--salvage",
        "--changes host",
        "--owner map",
        "--via kernel",
        "--also img",
    ] {
        let name = if option == "-o nosuid" { "--nosuid" } else { option.split(' ').next().unwrap() };
        refused(dir, &format!("i mount --rw {option} img point"), &[name, "no effect"]);
    }
    for option in ["--isolate process", "--timings"] {
        refused(dir, &format!("i mount {option} img point"), &["--rw"]);
    }
    host("sh", &["-ec", "sha256sum -c sums; ! [ -e log ]"], dir);
}
