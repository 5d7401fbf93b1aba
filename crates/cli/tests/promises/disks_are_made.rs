//! Promise: `inarch disk create`, `partition` and `format` make disks that the usual tools find right, without root and without loop devices; and
//! what fails leaves the image as it was.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::support::drawings::drawn;
use crate::support::mounted::unmount;
use crate::support::{
    INARCH, LONG, assert_one_line, assert_status, host, inarch, scratch, script_program, stdout, within,
};

/// A directory in memory, where files can have any size.
fn memory() -> tempfile::TempDir {
    tempfile::Builder::new().prefix("inarch-test.").tempdir_in("/dev/shm").unwrap()
}

fn disk(words: &[&str]) -> String {
    let output = inarch([&["disk"], words].concat());
    assert_status(&output, 0);
    stdout(&output)
}

fn json(words: &[&str]) -> Value {
    serde_json::from_str(&disk(words)).unwrap()
}

/// A disk of 1 GiB with a partition of 600 MiB, and one of the rest with a text at its start.
fn two_parts(dir: &Path) -> String {
    let image = dir.join("disk.img").to_str().unwrap().to_owned();
    disk(&["create", &image, "1G"]);
    disk(&["partition", &image, "--table", "gpt", "600M:linux:first", "rest:windows:second"]);
    File::options().write(true).open(&image).unwrap().write_all_at(b"neighbour", 601 << 20).unwrap();
    image
}

/// What blkid says of the first partition.
fn blkid(image: &str, key: &str) -> Option<String> {
    let words = ["--probe", "--output", "export", "--offset", "1048576", "--size", "629145600", image];
    let output = Command::new("/sbin/blkid").args(words).output().unwrap();
    stdout(&output).lines().find_map(|line| line.strip_prefix(&format!("{key}=")).map(str::to_owned))
}

fn only_the_image_is_there(dir: &Path) {
    let names: Vec<_> = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names, ["disk.img"], "{names:?}");
}

/// The file systems, what blkid calls them, and the command that checks a file of one.
const CHECKS: [(&str, &str, &str); 16] = [
    ("ext2", "ext2", "/sbin/e2fsck -fn part"),
    ("ext3", "ext3", "/sbin/e2fsck -fn part"),
    ("ext4", "ext4", "/sbin/e2fsck -fn part"),
    ("xfs", "xfs", "/sbin/xfs_repair -n -f part"),
    ("jfs", "jfs", "/sbin/fsck.jfs -n -f part"),
    ("reiserfs", "reiserfs", "/sbin/reiserfsck -y -q --check part"),
    // Its tools want a block device.
    ("nilfs2", "nilfs2", "/sbin/blkid -p part"),
    ("ntfs", "ntfs", "/usr/bin/ntfsfix -n part"),
    ("msdos", "vfat", "/sbin/fsck.fat -n part"),
    ("vfat", "vfat", "/sbin/fsck.fat -n part"),
    ("exfat", "exfat", "/sbin/fsck.exfat -n part"),
    ("btrfs", "btrfs", "btrfs check --readonly part"),
    ("f2fs", "f2fs", "/sbin/fsck.f2fs --dry-run part"),
    ("hfs", "hfs", "HOME=. hmount part"),
    ("gfs2", "gfs2", "/sbin/fsck.gfs2 -n part"),
    ("swap", "swap", "/sbin/swaplabel part"),
];

#[test]
fn every_tool_makes_its_file_system_on_a_partition() {
    for (format, kind, check) in CHECKS {
        let dir = memory();
        let image = two_parts(dir.path());
        let label = if format == "gfs2" { "" } else { "MYLABEL" };
        let told = json(&["format", &image, format, "-p", "1", "--label", label, "--json"]);
        only_the_image_is_there(dir.path());
        assert_eq!(blkid(&image, "TYPE").as_deref(), Some(kind), "{format}");
        if format != "gfs2" {
            assert_eq!(blkid(&image, "LABEL").as_deref(), Some("MYLABEL"), "{format}");
            assert!(told["covered"].as_u64().unwrap() > (600 << 20) * 99 / 100, "{told}");
        }
        // Holes stay holes.
        let stored = told["stored"].as_u64().unwrap();
        let taken = fs::metadata(&image).unwrap().blocks() * 512;
        assert!(taken <= stored + (256 << 10), "{format}: {taken} bytes for {stored}");
        // The table and the other partition are as they were.
        let listed = json(&["list", "--json", &image]);
        assert_eq!(listed["partitions"][0]["format"], kind, "{listed}");
        assert_eq!(listed["partitions"].as_array().unwrap().len(), 2);
        let mut neighbour = [0; 9];
        File::open(&image).unwrap().read_exact_at(&mut neighbour, 601 << 20).unwrap();
        assert_eq!(&neighbour, b"neighbour", "{format}");
        let cut = "dd if=disk.img of=part bs=1M skip=1 count=600 conv=sparse status=none";
        host("sh", &["-ec", &format!("{cut}; {check} >said 2>&1 || {{ cat said >&2; exit 1; }}")], dir.path());
    }
}

#[test]
fn usual_tools_find_the_tables_right() {
    let dir = memory();
    let image = two_parts(dir.path());
    let told = host("/sbin/sgdisk", &["-v", &image], dir.path());
    assert!(told.contains("No problems found"), "{told}");
    host("/sbin/parted", &["-s", &image, "print"], dir.path());
    let told: Value = serde_json::from_str(&host("/sbin/sfdisk", &["--json", &image], dir.path())).unwrap();
    let table = &told["partitiontable"];
    assert_eq!((table["label"].as_str(), table["firstlba"].as_u64()), (Some("gpt"), Some(34)));
    assert_eq!(table["partitions"][0]["start"], 2048);
    assert_eq!(table["partitions"][0]["size"], 600 * 2048);
    assert_eq!(table["partitions"][0]["name"], "first");
    assert_eq!(table["partitions"][1]["type"], "EBD0A0A2-B9E5-4433-87C0-68B6B72699C7");
    // With an MBR, and with sectors of 4 KiB.
    disk(&["partition", &image, "--force", "--table", "mbr", "100M:swap", "rest"]);
    let told: Value = serde_json::from_str(&host("/sbin/sfdisk", &["--json", &image], dir.path())).unwrap();
    let table = &told["partitiontable"];
    assert_eq!(table["label"], "dos");
    assert_eq!((&table["partitions"][0]["type"], &table["partitions"][1]["type"]), (&"82".into(), &"83".into()));
    assert_eq!(table["partitions"][1]["start"], 101 * 2048);
    disk(&["partition", &image, "--force", "--table", "gpt", "--sector", "4096", "rest:linux:root"]);
    let listed = json(&["list", "--json", &image]);
    assert_eq!((&listed["table"]["kind"], &listed["table"]["sector"]), (&"gpt".into(), &4096.into()));
    assert_eq!(listed["partitions"][0]["start"], 1 << 20);
    // The tools take a file's sectors for 512 bytes. Our reader, which agrees with them on those, finds either copy right.
    File::options().write(true).open(&image).unwrap().write_all_at(b"damage", 4096 + 60).unwrap();
    let output = inarch(["disk", "list", "--json", &image]);
    assert!(crate::support::stderr(&output).contains("second copy of the table is used"));
    let second: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(second["partitions"], listed["partitions"]);
}

#[test]
fn a_disk_can_have_an_exbibyte() {
    for (size, bytes) in [("1P", 1_u64 << 50), ("1E", 1 << 60), ("7E", 7 << 60)] {
        let dir = memory();
        let image = dir.path().join("disk.img").to_str().unwrap().to_owned();
        disk(&["create", &image, size]);
        assert_eq!(fs::metadata(&image).unwrap().len(), bytes);
        let told = json(&["partition", &image, "--json"]);
        assert_eq!(told["table"], "gpt");
        let told = host("/sbin/sgdisk", &["-v", &image], dir.path());
        assert!(told.contains("No problems found"), "{size}: {told}");
        disk(&["format", &image, "btrfs", "-p", "1"]);
        let listed = json(&["list", "--json", &image]);
        assert_eq!(listed["partitions"][0]["format"], "btrfs");
        assert!(fs::metadata(&image).unwrap().blocks() * 512 < 16 << 20, "{size}");
        only_the_image_is_there(dir.path());
    }
}

#[test]
fn an_image_is_qcow2_where_a_file_cannot_be_so_large() {
    let dir = scratch();
    let at = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    for (name, size, bytes) in [("a.qcow2", "1G", 1_u64 << 30), ("b.qcow2", "1P", 1 << 50), ("c.qcow2", "2E", 2 << 60)]
    {
        let told = json(&["create", &at(name), size, "--json"]);
        assert_eq!(told["format"], "qcow2");
        let check = host("qemu-img", &["check", &at(name)], dir.path());
        assert!(check.contains("No errors"), "{check}");
        let info: Value =
            serde_json::from_str(&host("qemu-img", &["info", "--output=json", &at(name)], dir.path())).unwrap();
        assert_eq!(
            (info["virtual-size"].as_u64(), info["cluster-size"].as_u64()),
            (Some(bytes), told["cluster"].as_u64())
        );
        assert!(fs::metadata(at(name)).unwrap().blocks() * 512 < 1 << 20, "{name}");
    }
    host("qemu-io", &["-c", "write -P 7 900T 1M", "-c", "read -P 7 900T 1M", &at("b.qcow2")], dir.path());
    assert!(host("qemu-img", &["check", &at("b.qcow2")], dir.path()).contains("No errors"));
    assert_one_line(&inarch(["disk", "create", &at("d.qcow2"), "3E"]), &["d.qcow2", "2 EiB at most", "--format raw"]);
    assert_one_line(
        &inarch(["disk", "create", &at("d.vhd"), "1G"]),
        &["d.vhd", "--format raw", "create -f vpc", "vhd"],
    );
    assert_status(&inarch(["disk", "create", &at("d.vhd"), "1G", "--format=raw"]), 0);
    if host("stat", &["-f", "-c", "%T", "."], dir.path()).trim() == "ext2/ext3" {
        let output = inarch(["disk", "create", &at("disk.img"), "17T"]);
        assert_status(&output, 0);
        assert!(crate::support::stderr(&output).contains("16 TiB"));
        assert!(host("qemu-img", &["check", "-f", "qcow2", &at("disk.img")], dir.path()).contains("No errors"));
        let output = inarch(["disk", "create", &at("raw.img"), "17T", "--format", "raw"]);
        assert_one_line(&output, &["raw.img", "16 TiB", "--format qcow2"]);
        assert_one_line(&inarch(["disk", "create", &at("raw.img"), "3E"]), &["16 TiB", "2 EiB", "XFS"]);
        assert!(!Path::new(&at("raw.img")).exists());
    } else {
        println!("skipped: an_image_is_qcow2_where_a_file_cannot_be_so_large: /var/tmp is no ext4");
    }
}

#[test]
fn nothing_is_overwritten_unasked() {
    let dir = memory();
    let image = two_parts(dir.path());
    let again = |words: &[&str], parts: &[&str]| {
        let before = fs::metadata(&image).unwrap();
        assert_one_line(&inarch([&["disk"], words].concat()), parts);
        let after = fs::metadata(&image).unwrap();
        assert_eq!((before.modified().unwrap(), before.blocks()), (after.modified().unwrap(), after.blocks()));
        only_the_image_is_there(dir.path());
    };
    again(&["create", &image, "1G"], &["exists already", "--force"]);
    again(&["create", &format!("{image}2"), "1000"], &["sectors"]);
    again(&["partition", &image], &["holds a partition table (gpt)", "--force"]);
    again(&["format", &image, "ext4"], &["has partitions", "--partition"]);
    again(&["format", &image, "ext4", "-p", "3"], &["has no partition 3", "1, 2"]);
    again(&["format", &image, "ext4", "-p", "1", "--label", "seventeen letters"], &["16 bytes"]);
    again(&["format", &image, "gfs2", "-p", "1", "--label", "x"], &["gfs2 has no labels"]);
    again(&["format", &image, "xfs", "-p", "1", "--from", "/etc"], &["ext4", "--from"]);
    again(&["format", &image, "gfs", "-p", "1"], &["gfs", "Linux never had"]);
    again(&["format", &image, "zfs", "-p", "1"], &["zfs", "these are"]);
    again(&["format", &image, "ext4", "-p", "1", "--", "-b", "7"], &["mke2fs", "as it was"]);
    if !["/sbin/mkfs.hfsplus", "/sbin/newfs_hfs"].iter().any(|tool| Path::new(tool).exists()) {
        again(&["format", &image, "hfsplus", "-p", "1"], &["mkfs.hfsplus is missing", "Debian 12"]);
    }
    disk(&["format", &image, "ext4", "-p", "1", "--label", "old"]);
    again(&["format", &image, "xfs", "-p", "1"], &["partition 1 holds ext4 with the label old", "--force"]);
    disk(&["format", &image, "xfs", "-p", "1", "--force"]);
    assert_eq!(blkid(&image, "TYPE").as_deref(), Some("xfs"));
    // A disk that was a volume is no such one when it has partitions.
    disk(&["format", &image, "btrfs", "--force"]);
    assert_eq!(json(&["list", "--json", &image])["format"], "btrfs");
    again(&["partition", &image], &["the disk holds btrfs"]);
    disk(&["partition", &image, "--force"]);
    assert_eq!(json(&["list", "--json", &image])["table"]["kind"], "mbr");
}

#[test]
fn a_table_that_cannot_address_a_partition_is_refused() {
    let dir = memory();
    let image = dir.path().join("disk.img").to_str().unwrap().to_owned();
    disk(&["create", &image, "3T"]);
    for (words, parts) in [
        (&["--table", "mbr"][..], &["beyond 2 TiB", "GPT"][..]),
        (&["--table", "mbr", "--sector", "4096"], &["512"]),
        (&["--sector", "1024"], &["512 or 4096"]),
        (&["--table", "mbr", "1G", "1G", "1G", "1G", "1G"], &["4 partitions at most"]),
        (&["--table", "mbr", "1G:bios"], &["bios", "GPT"]),
        (&["--table", "mbr", "1G:linux:name"], &["no names"]),
        (&["4T"], &["partition 1 does not fit"]),
        (&["rest", "1G"], &["none can follow"]),
        (&["0"], &["no size"]),
        (&["1G:beos"], &["beos", "these are"]),
        (&["1G:linux:0123456789012345678901234567890123456"], &["36 letters"]),
    ] {
        assert_one_line(&inarch([&["disk", "partition", &image], words].concat()), parts);
        assert_eq!(fs::metadata(&image).unwrap().blocks(), 0);
    }
    disk(&["create", "--force", &image, "1M"]);
    assert_one_line(&inarch(["disk", "partition", &image]), &["too small"]);
}

/// A directory with a tool of this name that writes to its last argument, and then never ends.
fn endless(dir: &Path, name: &str) -> PathBuf {
    let bin = dir.join("bin");
    fs::create_dir(&bin).unwrap();
    let script = "#!/bin/sh\nfor last; do :; done\necho $$ > \"${0%/*}/pid\"\n\
        echo begun > \"$last\"\nexec /bin/sleep 1000\n";
    script_program(&bin.join(name), script);
    bin
}

#[test]
fn a_killed_format_leaves_the_image_as_it_was() {
    let (dir, tools) = (memory(), memory());
    let image = two_parts(dir.path());
    let bin = endless(tools.path(), "mkfs.jfs");
    let words = ["disk", "format", &image, "jfs", "-p", "1"];
    let mut child = Command::new(INARCH).args(words).env("PATH", bin).stderr(Stdio::null()).spawn().unwrap();
    let begun = || {
        let entries = fs::read_dir(dir.path()).unwrap().flatten();
        entries.map(|entry| entry.path().join("volume")).any(|path| path.metadata().is_ok_and(|file| file.blocks() > 0))
    };
    assert!(within(LONG, begun));
    let before = fs::metadata(&image).unwrap();
    assert_one_line(&inarch(["disk", "format", &image, "ext4", "-p", "2"]), &["in use by another process"]);
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(within(LONG, || fs::read_dir(dir.path()).unwrap().count() == 1));
    let after = fs::metadata(&image).unwrap();
    assert_eq!((before.modified().unwrap(), before.blocks()), (after.modified().unwrap(), after.blocks()));
    // The tool outlives the process that was killed, since SIGKILL cannot be passed on.
    host("sh", &["-c", "kill $(cat bin/pid)"], tools.path());
}

#[test]
fn a_full_disk_leaves_the_image_as_it_was() {
    let dir = scratch();
    let full = dir.path().join("full");
    fs::create_dir(&full).unwrap();
    let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", "size=6m", "tmpfs"]).arg(&full).status().unwrap();
    if !mounted.success() {
        println!("skipped: a_full_disk_leaves_the_image_as_it_was: tmpfs cannot be mounted");
        return;
    }
    let image = two_parts(&full);
    let before = fs::metadata(&image).unwrap();
    // Btrfs takes 4.5 MiB here: once beside the image, and then there is no room in the image.
    let output = inarch(["disk", "format", &image, "btrfs", "-p", "1"]);
    let after = fs::metadata(&image).unwrap();
    let names = fs::read_dir(&full).unwrap().count();
    unmount(&full);
    assert_one_line(&output, &["no space left", "as it was"]);
    assert_eq!(names, 1);
    assert_eq!(before.len(), after.len());
}

#[test]
fn a_tree_is_put_into_a_partition() {
    let dir = memory();
    let image = two_parts(dir.path());
    let tree = scratch();
    fs::write(tree.path().join("hello"), "world").unwrap();
    fs::write(tree.path().join("large"), vec![7; 3 << 20]).unwrap();
    let from = tree.path().to_str().unwrap();
    disk(&["format", &image, "ext4", "-p", "1", "--label", "tree", "--from", from]);
    only_the_image_is_there(dir.path());
    assert_eq!(blkid(&image, "LABEL").as_deref(), Some("tree"));
    let script = "dd if=disk.img of=part bs=1M skip=1 count=600 conv=sparse status=none; /sbin/e2fsck -fn part >&2
        /sbin/debugfs -R 'cat hello' part; /sbin/debugfs -R 'dump large large' part";
    assert_eq!(host("sh", &["-ec", script], dir.path()), "world");
    assert_eq!(fs::read(dir.path().join("large")).unwrap(), vec![7; 3 << 20]);
    // A part of it.
    let words =
        ["format", &image, "ext4", "-p", "1", "--from", from, "--force", "--exclude", "large", "--owner", "7:8"];
    disk(&words);
    let script =
        "dd if=disk.img of=part bs=1M skip=1 count=600 conv=sparse status=none; /sbin/debugfs -R 'ls -l /' part";
    let listed = host("sh", &["-ec", script], dir.path());
    let hello =
        listed.lines().find(|line| line.ends_with(" hello")).map(|line| line.split_whitespace().collect::<Vec<_>>());
    assert!(hello.is_some_and(|words| words[3..5] == ["7", "8"]) && !listed.contains("large"), "{listed}");
    let alone = inarch(["disk", "format", &image, "ext4", "-p", "1", "--force", "--exclude", "large"]);
    assert_one_line(&alone, &["--from SRC"]);
    // A tree that does not fit.
    let before = fs::metadata(&image).unwrap().modified().unwrap();
    disk(&["create", "--force", &format!("{image}.small"), "2M"]);
    let output = inarch(["disk", "format", &format!("{image}.small"), "ext4", "--from", from]);
    assert_status(&output, 125);
    assert_eq!(fs::metadata(&image).unwrap().modified().unwrap(), before);
}

#[test]
fn tools_are_compared() {
    let dir = memory();
    let (svg, on) = (dir.path().join("mkfs.svg"), dir.path().to_str().unwrap());
    let words = ["compare-mkfs", "1M", "64M", "3T", "--on", on, "--fs", "ext4,vfat,swap,hfsplus", "--svg"];
    let told = json(&[&words[..], &[svg.to_str().unwrap(), "--json"]].concat());
    let measured = told["measured"].as_array().unwrap();
    assert_eq!(measured.len(), 12);
    let of = |format: &str, size: u64| {
        measured.iter().find(|one| one["format"] == format && one["size"] == size).unwrap_or_else(|| panic!("{told}"))
    };
    let ext4 = of("ext4", 64 << 20);
    assert!(ext4["seconds"].as_f64().unwrap() > 0.0 && ext4["allocated"].as_u64().unwrap() > 0, "{ext4}");
    assert!((0.01..0.3).contains(&ext4["overhead"].as_f64().unwrap()), "{ext4}");
    assert_eq!(ext4["truncated"], false);
    // mkfs.fat makes what FAT32 can address, and says that all is well.
    let vfat = of("vfat", 3 << 40);
    assert!(vfat["truncated"] == true || vfat["failed"].is_string(), "{vfat}");
    assert_eq!(told["gone"][0]["format"], "gfs");
    assert!(drawn(&svg).contains("<polyline"));
    let table = disk(&["compare-mkfs", "64M", "--on", on, "--fs", "ext4,xfs", "--timeout", "20s"]);
    assert!(table.contains("OVERHEAD") && table.contains("ext4") && table.contains("gfs:"), "{table}");
    assert!(table.lines().any(|line| line.starts_with("xfs") && line.contains('-')), "{table}");
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
}

#[test]
fn not_under_a_running_guest() {
    let dir = scratch();
    let dir = dir.path();
    host(
        "sh",
        &["-ec", "truncate -s 40M img; printf 'label: gpt\nsize=30M\n' | /sbin/sfdisk -q img; sha256sum img > sums"],
        dir,
    );
    let guest = ["-f", "raw", "-c", "read 0 1", "-c", "sleep 1000000", "img"];
    let mut guest = Command::new("qemu-io").args(guest).current_dir(dir).stdout(Stdio::null()).spawn().unwrap();
    let image = dir.join("img");
    let number = format!(":{} ", image.metadata().unwrap().ino());
    assert!(
        within(LONG, || fs::read_to_string("/proc/locks").unwrap().contains(&number)),
        "QEMU did not lock the image"
    );
    let image = image.to_str().unwrap();
    for words in [&["partition", image, "--force"][..], &["format", image, "ext4", "-p", "1", "--force"]] {
        assert_one_line(&inarch([&["disk"], words].concat()), &[image, "running guest"]);
    }
    guest.kill().unwrap();
    guest.wait().unwrap();
    host("sha256sum", &["-c", "sums"], dir);
}

/// Whatever is there, of a kind that is known or not.
#[test]
fn not_over_what_is_there() {
    let dir = scratch();
    let script = "
        tar cf t.tar /etc/passwd; truncate -s 10M t.tar; printf somebody > unknown; truncate -s 10M unknown
        truncate -s 24M refs; printf 'label: gpt\\nsize=20M\\n' | /sbin/sfdisk -q refs
        printf '\\0\\0\\0ReFS\\0' | dd of=refs bs=1 seek=1048576 conv=notrunc status=none
        truncate -s 24M raw; printf 'label: gpt\\nsize=20M\\n' | /sbin/sfdisk -q raw
        qemu-img convert -O qcow2 raw guests; qemu-img convert -O vdi raw d.vdi
        qemu-img convert -O vpc -o subformat=fixed,force_size raw d.vhd";
    host("sh", &["-ec", script], dir.path());
    let at = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    for (arguments, file) in [
        (&["format", "FILE", "ext4"][..], "t.tar"),
        (&["partition", "FILE"], "t.tar"),
        (&["format", "FILE", "ext4"], "unknown"),
        (&["partition", "FILE"], "unknown"),
        (&["format", "FILE", "ext4", "-p", "1"], "refs"),
        // What a guest wrote may look like a qcow2 image: only a name says that it is one.
        (&["partition", "FILE", "--force"], "guests"),
        (&["partition", "FILE", "--force"], "d.vdi"),
        (&["partition", "FILE", "--force"], "d.vhd"),
        (&["format", "FILE", "ext4", "--force"], "d.vhd"),
    ] {
        let before = fs::read(at(file)).unwrap();
        let path = at(file);
        let words: Vec<&str> = arguments.iter().map(|word| if *word == "FILE" { &*path } else { word }).collect();
        let output = inarch([&["disk"], &*words].concat());
        assert_one_line(&output, &[file]);
        assert!(fs::read(at(file)).unwrap() == before, "{arguments:?} {file}");
    }
}

#[test]
fn a_qcow2_image_is_filled_as_a_raw_one() {
    let dir = scratch();
    let sh = |script: &str| host("sh", &["-ec", script], dir.path());
    let image = dir.path().join("d.qcow2").to_str().unwrap().to_owned();
    disk(&["create", &image, "700M"]);
    disk(&["partition", &image, "--table", "gpt", "400M:linux:first", "rest:windows:second"]);
    disk(&["format", &image, "xfs", "-p", "1", "--label", "one"]);
    disk(&["format", &image, "vfat", "-p", "2", "--label", "TWO"]);
    let check = "
        qemu-img check -q d.qcow2; qemu-img convert -O raw d.qcow2 raw; /sbin/sfdisk -Vq raw; rm -f first second
        dd if=raw of=first bs=1M skip=1 count=400 status=none; dd if=raw of=second bs=1M skip=401 count=299 status=none
        /sbin/fsck.fat -n second >&2; /sbin/blkid -p -s LABEL -o value first second";
    assert_eq!(sh(&format!("{check}; /sbin/xfs_repair -nf first 2>&1 | grep -c bad || true")), "one\nTWO\n0\n");
    assert!(fs::metadata(&image).unwrap().blocks() * 512 < 32 << 20);

    // What was there is gone, wherever it lay, and the neighbour is as it was.
    sh(
        "qemu-io -f qcow2 -c 'write -q -P 0xab 1M 64K' -c 'write -q -P 0xab 200M 30M' -c 'write -q -P 0xab 400M 1M' d.qcow2",
    );
    assert_one_line(&inarch(["disk", "format", &image, "ext4", "-p", "1"]), &["partition 1 holds data", "--force"]);
    sh("cp second before; mkdir tree; echo text > tree/file");
    disk(&[
        "format",
        &image,
        "ext4",
        "-p",
        "1",
        "--label",
        "new",
        "--from",
        dir.path().join("tree").to_str().unwrap(),
        "--force",
    ]);
    // Some bytes of a time or a checksum may be the same.
    let gone = "[ $(tr -dc '\\253' < first | wc -c) -lt 100 ] && echo gone";
    assert_eq!(sh(&format!("{check}; cmp before second; {gone}")), "new\nTWO\ngone\n");
    sh("/sbin/e2fsck -fn first >&2");
    assert_eq!(disk(&["cat", &format!("{image}:1"), "/file"]), "text\n");

    // A new table over an old one: that is not found beside it.
    assert_one_line(&inarch(["disk", "partition", &image]), &["holds a partition table (gpt)", "--force"]);
    disk(&["partition", &image, "--table", "mbr", "100M", "--force"]);
    let told = json(&["list", "--json", &image]);
    assert_eq!((&told["table"]["kind"], told["partitions"].as_array().unwrap().len()), (&"mbr".into(), 1));
    assert_eq!(sh("qemu-img convert -O raw d.qcow2 raw; tail -c 1M raw | tr -d '\\0' | wc -c"), "0\n");

    // Not in another file that the image names, and not beside another process.
    sh("qemu-img create -q -f qcow2 -b d.qcow2 -F qcow2 over.qcow2; sha256sum d.qcow2 over.qcow2 > sums");
    for words in [&["partition", "--force"][..], &["format", "--force", "ext4"]] {
        let over = dir.path().join("over.qcow2");
        let words = [&["disk", words[0], over.to_str().unwrap()], &words[1..]].concat();
        assert_one_line(&inarch(words), &["over.qcow2", "names another file", "qemu-img convert"]);
    }
    let held = fs::File::open(&image).unwrap();
    rustix::fs::flock(&held, rustix::fs::FlockOperation::LockShared).unwrap();
    assert_one_line(&inarch(["disk", "partition", &image, "--force"]), &["d.qcow2", "in use"]);
    sh("sha256sum -c sums >&2; test \"$(ls -A | grep -c inarch)\" = 0");
}
