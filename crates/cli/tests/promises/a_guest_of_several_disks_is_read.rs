//! Promise: a guest whose volumes lie on several disks is read as one: its disks are named, or libvirt's description of it names them.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use crate::support::{INARCH, LVM, assert_one_line, assert_status, host, inarch, scratch, stderr, stdout};

/// Two disks of 40 MiB: `one.img` is the root; `two.qcow2` has home, which the root's fstab mounts by the name of the second disk, and by its label.
const DISKS: &str = "
    mkdir -p root/etc root/home root/srv home; echo 'ID=guest' > root/etc/os-release; echo notes > home/notes
    printf 'LABEL=root / ext4\\n/dev/vdb1 /home ext4\\nLABEL=home /srv ext4\\n' > root/etc/fstab
    /sbin/mke2fs -q -t ext4 -L root -d root one.img 20M 2> /dev/null
    /sbin/mke2fs -q -t ext4 -L home -d home home.img 20M 2> /dev/null
    truncate -s 40M two.img; printf 'label: gpt\\nsize=20M,type=L\\n' | /sbin/sfdisk -q two.img
    dd if=home.img of=two.img bs=1M seek=1 conv=notrunc status=none
    qemu-img convert -O qcow2 two.img base.qcow2
    qemu-img create -q -f qcow2 -b base.qcow2 -F qcow2 two.qcow2";

/// Runs inarch where libvirt's descriptions are in `dir`/config, and no virsh is found but one in `dir`/bin.
fn with_libvirt(dir: &Path, words: &[&str]) -> Output {
    let path = format!("{}/bin:/usr/bin:/bin", dir.display());
    let mut command = Command::new(INARCH);
    command.args(words).current_dir(dir).env("XDG_CONFIG_HOME", dir.join("config")).env("PATH", path);
    command.output().unwrap()
}

fn describe(dir: &Path, name: &str, attributes: &str, disks: &str) {
    let at = dir.join("config/libvirt/qemu");
    fs::create_dir_all(&at).unwrap();
    let xml = format!("<domain type='kvm' {attributes}><name>{name}</name><devices>{disks}</devices></domain>");
    fs::write(at.join(format!("{name}.xml")), xml).unwrap();
}

fn disk(kind: &str, path: &Path, target: &str) -> String {
    let path = path.display();
    format!("<disk type='file'><driver type='{kind}'/><source file='{path}'/><target dev='{target}'/></disk>")
}

#[test]
fn if_its_disks_are_named() {
    let dir = scratch();
    host("sh", &["-ec", DISKS], dir.path());
    let at = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let others = ["--also", &at("two.qcow2"), "--with", &at("base.qcow2")];
    for path in ["/home/notes", "/srv/notes"] {
        let output = inarch([&["disk", "cat"][..], &others, &[&at("one.img"), path]].concat());
        assert_status(&output, 0);
        assert_eq!(stdout(&output), "notes\n");
        assert_eq!(stderr(&output), "");
    }
    let output = inarch([&["disk", "inspect"][..], &others, &[&at("one.img")]].concat());
    assert!(stdout(&output).lines().any(|line| line.contains("/home") && line.contains("/dev/sdb1")), "{output:?}");
    let output = inarch([&["image"][..], &others, &[&at("one.img"), "-o", &at("all.tar")]].concat());
    assert_status(&output, 0);
    assert!(host("tar", &["tf", "all.tar"], dir.path()).contains("srv/notes"));
    let output = inarch(["disk", "ls", "--also", &at("two.img"), dir.path().to_str().unwrap()]);
    assert_one_line(&output, &["leave --also out"]);
}

#[test]
fn if_libvirt_knows_it() {
    let dir = scratch();
    host("sh", &["-ec", DISKS], dir.path());
    let at = |name: &str| dir.path().join(name);
    let said = |words: &[&str]| {
        let output = with_libvirt(dir.path(), words);
        assert_status(&output, 0);
        (stdout(&output), stderr(&output))
    };
    let second = disk("qcow2", &at("two.qcow2"), "vdb");
    let chained = second.replace(
        "<target",
        &format!("<backingStore type='file'><source file='{}'/></backingStore><target", at("base.qcow2").display()),
    );
    describe(dir.path(), "stopped", "", &(second.clone() + &disk("raw", &at("one.img"), "vda")));
    describe(dir.path(), "running", "id='7'", &(chained + &disk("raw", &at("one.img"), "vda")));
    let base = at("base.qcow2");
    let stopped = ["--with", base.to_str().unwrap()];
    assert_eq!(said(&[&["disk", "cat"][..], &stopped, &["libvirt:stopped", "/home/notes"]].concat()).0, "notes\n");
    let (text, lines) = said(&["disk", "cat", "libvirt:running", "/home/notes"]);
    assert_eq!((&*text, lines.contains("the domain is running")), ("notes\n", true), "{lines}");
    assert_eq!(said(&["disk", "ls", "libvirt:running:/dev/vdb1"]).0, "notes\n");
    assert_eq!(said(&["disk", "ls", "libvirt:running:/home"]).0, "notes\n");
    let (text, _) = said(&["disk", "list", "libvirt:running"]);
    assert!(text.contains("one.img") && text.contains("in qcow2") && text.contains("home"), "{text}");
    said(&["image", "libvirt:running", "-o", "out.tar"]);
    // The description's format counts, not the first bytes.
    describe(dir.path(), "raw", "", &disk("raw", &at("base.qcow2"), "vda"));
    let output = with_libvirt(dir.path(), &["disk", "ls", "libvirt:raw"]);
    assert_one_line(&output, &["base.qcow2"]);
    // What virsh says comes first.
    fs::create_dir(at("bin")).unwrap();
    let xml = at("config/libvirt/qemu/running.xml");
    fs::write(at("bin/virsh"), format!("#!/bin/sh\necho \"$*\" > asked\ncat {}\n", xml.display())).unwrap();
    host("chmod", &["755", "bin/virsh"], dir.path());
    assert_eq!(said(&["disk", "cat", "libvirt:other", "/etc/os-release"]).0, "ID=guest\n");
    assert_eq!(fs::read_to_string(at("asked")).unwrap(), "--readonly --quiet dumpxml --domain=other\n");
}

#[test]
fn or_refused_in_one_line() {
    let dir = scratch();
    let network = "<disk type='network'><source protocol='rbd' name='pool/image'/><target dev='vda'/></disk>";
    describe(dir.path(), "far", "", network);
    describe(dir.path(), "gone", "", &disk("raw", &dir.path().join("gone.img"), "vda"));
    fs::write(dir.path().join("config/libvirt/qemu/laughs.xml"), "<!DOCTYPE d [<!ENTITY a 'x'>]><domain>&a;</domain>")
        .unwrap();
    for (words, parts) in [
        (["disk", "ls", "libvirt:none"], &["libvirt:none", "not found", "no virsh", "none.xml"][..]),
        (["disk", "ls", "libvirt:far"], &["libvirt:far", "vda is left out", "rbd", "pool/image"]),
        (["disk", "ls", "libvirt:gone"], &["gone.img", "No such file"]),
        (["disk", "ls", "libvirt:laughs"], &["libvirt:laughs", "cannot be understood"]),
        (["disk", "ls", "libvirt:../x"], &["no name of a domain"]),
    ] {
        assert_one_line(&with_libvirt(dir.path(), &words), parts);
    }
}

/// A volume group on two disks, with a volume that begins on the first and ends on the second: lvm2 makes it, without the device mapper.
#[test]
fn with_a_volume_group_on_several_disks() {
    if !rustix::process::geteuid().is_root() {
        return println!(
            "skipped: with_a_volume_group_on_several_disks: lvm2 takes devices only, and only root makes them of files"
        );
    }
    let dir = scratch();
    let script = "truncate -s 32M one.img two.img
        first=$(losetup -f --show one.img); second=$(losetup -f --show two.img)
        trap 'losetup -d $first $second' EXIT
        lvm pvcreate -y $first $second > /dev/null; lvm vgcreate vg $first $second > /dev/null
        lvm lvcreate -an -Zn -l 7 -n data vg $first > /dev/null; lvm lvextend -l +5 vg/data $second > /dev/null
        mkdir -p tree; seq 3000000 > tree/numbers
        truncate -s 48M fs; /sbin/mke2fs -q -t ext4 -d tree -L data fs
        dd if=fs of=$first bs=1M seek=1 count=28 status=none; dd if=fs of=$second bs=1M seek=1 skip=28 status=none";
    host("sh", &["-ec", &script.replacen("EXIT\n", &format!("EXIT\n{LVM}"), 1)], dir.path());
    let at = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    for name in ["", ":vg/data", ":LABEL=data", ":/dev/mapper/vg-data"] {
        let output = inarch(["disk", "cat", "--also", &at("two.img"), &(at("one.img") + name), "numbers"]);
        assert_status(&output, 0);
        assert!(output.stdout == fs::read(at("tree/numbers")).unwrap(), "{name}");
    }
    let output = inarch(["disk", "df", "--also", &at("two.img"), &at("one.img")]);
    assert!(stdout(&output).contains("/dev/vg/data"), "{output:?}");
}
