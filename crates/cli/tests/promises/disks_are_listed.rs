//! Promise: `inarch disk list` tells what is on a disk image as the usual tools do, and writes nothing to it.

use std::fs::{self, File};
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use crate::support::{INARCH, LVM, assert_one_line, assert_status, host, inarch, scratch, stderr, stdout};

/// What blkid says of a part of an image: TYPE, LABEL and UUID.
fn blkid(image: &Path, offset: u64, size: u64) -> [Option<String>; 3] {
    let offset = offset.to_string();
    let (size, image) = (size.to_string(), image.to_str().unwrap());
    let words = ["--probe", "--output", "export", "--offset", &offset, "--size", &size, image];
    let output = Command::new("/sbin/blkid").args(words).output().unwrap();
    let text = stdout(&output);
    ["TYPE=", "LABEL=", "UUID="].map(|key| text.lines().find_map(|line| line.strip_prefix(key)).map(str::to_owned))
}

#[test]
fn with_their_partitions() {
    let dir = scratch();
    let image = dir.path().join("disk.img");
    File::create(&image).unwrap().set_len(1 << 30).unwrap();
    let script = "printf 'label: gpt\\nsize=8M,type=U,name=EFI\\nsize=60M,type=L,name=\"root fs\"\\nsize=10M,type=S\\n\
        size=320M,type=L\\nsize=130M,type=L\\nsize=40M,type=L\\n' | /sbin/sfdisk -q disk.img
        part() { dd if=part of=disk.img bs=1M seek=$1 conv=notrunc,sparse status=none; rm part; }
        truncate -s 8M part; /sbin/mkfs.fat -n ESP part > /dev/null; part 1
        truncate -s 60M part; /sbin/mke2fs -q -t ext4 -L root part; part 9
        truncate -s 10M part; /sbin/mkswap -q -L swap part; part 69
        truncate -s 320M part; /sbin/mkfs.xfs -q -L xfs part; part 79
        truncate -s 130M part; /sbin/mkfs.btrfs -q -L btrfs part; part 399
        mkdir tree; echo text > tree/file; mksquashfs tree part -quiet -no-progress > /dev/null; part 529";
    host("sh", &["-ec", script], dir.path());
    let before = fs::metadata(&image).unwrap().modified().unwrap();
    let output = inarch(["disk", "list", "--json", image.to_str().unwrap()]);
    assert_status(&output, 0);
    assert_eq!(fs::metadata(&image).unwrap().modified().unwrap(), before);
    let told: Value = serde_json::from_slice(&output.stdout).unwrap();
    let text = |part: &Value, field: &str| part[field].as_str().map(str::to_owned);
    let parts = told["partitions"].as_array().unwrap();
    assert_eq!(parts.len(), 6);
    for part in parts {
        let (start, size) = (part["start"].as_u64().unwrap(), part["size"].as_u64().unwrap());
        let ours = ["format", "label", "uuid"].map(|field| text(part, field));
        assert_eq!(ours, blkid(&image, start, size), "{part}");
        assert!(ours[0].is_some(), "{part}");
    }
    let listed = |field: &str| host("/sbin/sfdisk", &["--json", "disk.img"], dir.path()).contains(field);
    let upper = |id: Option<String>| id.unwrap().to_uppercase();
    assert!(parts.iter().all(|part| listed(&upper(text(part, "id"))) && listed(&upper(text(part, "type")))));
    assert!(listed(&upper(text(&told["table"], "id"))));

    let output = inarch(["disk", "list", image.to_str().unwrap()]);
    assert_status(&output, 0);
    let lines: Vec<String> = stdout(&output).lines().map(str::to_owned).collect();
    assert_eq!(lines.len(), 2 + 6);
    assert!(
        lines[0].starts_with("1.0 GiB, gpt ") && lines[3].contains("root fs") && lines[3].contains("ext4"),
        "{lines:#?}"
    );
}

#[test]
fn or_refused_in_one_line() {
    let dir = scratch();
    let at = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    host("qemu-img", &["create", "-q", "-f", "qed", "guest.qed", "1G"], dir.path());
    host("sh", &["-ec", "truncate -s 8M bad; echo label: gpt | /sbin/sfdisk -q bad"], dir.path());
    let mut bad = fs::read(at("bad")).unwrap();
    let last = bad.len() - 512;
    bad[512 + 20] ^= 1;
    bad[last + 40] ^= 1;
    fs::write(at("bad"), bad).unwrap();
    for (image, parts) in [
        (at("guest.qed"), &["guest.qed", "QED", "qemu-img convert"][..]),
        (at("bad"), &["bad", "partition table is damaged", "first copy", "second copy"]),
        (at("none"), &["none", "No such file"]),
        (at(""), &["directory"]),
    ] {
        let output = inarch(["disk", "list", &image]);
        assert_status(&output, 125);
        assert_one_line(&output, parts);
    }
    fs::write(at("empty"), "").unwrap();
    let output = inarch(["disk", "list", &at("empty")]);
    assert_status(&output, 0);
    assert_eq!(stdout(&output), "0 B, no partition table and no known content\n");
}

/// A guest's disk with a partition that is a physical volume, and a second disk that is one as a whole: lvm2 makes the group, without the
/// device mapper. The first extents of `root` hold an ext4. `lvs` prints its view.
const GROUP: &str = "truncate -s 70M disk.img; truncate -s 64M more.img
    printf 'label: gpt\\nsize=64M,type=V\\n' | /sbin/sfdisk -q disk.img
    first=$(losetup -f --show -o 1M --sizelimit 64M disk.img); second=$(losetup -f --show more.img)
    trap 'losetup -d $first $second' EXIT
    lvm pvcreate -y $first $second > /dev/null
    lvm vgcreate my-vg $first $second > /dev/null
    lvm lvcreate -an -Zn -l 5 -n root my-vg $first > /dev/null
    lvm lvcreate -an -Zn -l 6 -i 2 -I 64 -n data my-vg > /dev/null
    mkdir -p tree/etc; echo 'ID=guest' > tree/etc/os-release
    truncate -s 20M fs; /sbin/mke2fs -q -t ext4 -d tree -L root fs
    dd if=fs of=$first bs=1M seek=1 status=none
    lvm lvs --noheadings --units b --nosuffix --separator ' ' -o lv_name,lv_size,lv_uuid,lv_layout my-vg";

#[test]
fn with_their_logical_volumes() {
    if !rustix::process::geteuid().is_root() {
        return println!(
            "skipped: with_their_logical_volumes: lvm2 takes devices only, and only root makes them of files"
        );
    }
    let dir = scratch();
    let listed = host("sh", &["-ec", &GROUP.replacen("EXIT\n", &format!("EXIT\n{LVM}"), 1)], dir.path());
    let lines: Vec<Vec<&str>> = listed.lines().map(|line| line.split_whitespace().collect()).collect();
    let at = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let output = inarch(["disk", "list", "--json", &at("disk.img"), &at("more.img")]);
    assert_status(&output, 0);
    let told: Value = serde_json::from_slice(&output.stdout).unwrap();
    let volumes = told["volumes"].as_array().unwrap();
    assert_eq!((volumes.len(), lines.len()), (2, 2));
    for line in &lines {
        let volume = volumes.iter().find(|volume| volume["name"] == format!("/dev/my-vg/{}", line[0])).unwrap();
        assert_eq!([volume["size"].to_string(), volume["id"].as_str().unwrap().to_owned()], [line[1], line[2]]);
        assert_eq!(volume["layout"], line[3]);
    }
    let root = volumes.iter().find(|volume| volume["name"] == "/dev/my-vg/root").unwrap();
    let ours = ["format", "label", "uuid"].map(|field| root[field].as_str().map(str::to_owned));
    assert_eq!(ours, blkid(&dir.path().join("fs"), 0, 20 << 20));
    assert_eq!(root["on"], serde_json::json!([at("disk.img") + ":1"]));

    // One disk alone has what lies on it, and says what does not.
    let output = inarch(["disk", "list", &at("disk.img")]);
    assert_status(&output, 0);
    let said = stderr(&output);
    assert!(said.contains("my-vg: physical volume") && said.contains("/dev/my-vg/data cannot be read"), "{said}");
    assert!(stdout(&output).contains("/dev/my-vg/root"));
    for name in ["/dev/my-vg/root", "my-vg/root", "/dev/mapper/my--vg-root", "LABEL=root"] {
        let output = inarch(["disk", "cat", &format!("{}:{name}", at("disk.img")), "/etc/os-release"]);
        assert_status(&output, 0);
        assert_eq!(stdout(&output), "ID=guest\n", "{name}");
    }
}

/// A partitioned disk, and its image in every container. The raw one lies beside them as disk.img.
fn containers(dir: &Path) -> [&'static str; 6] {
    let script = "truncate -s 40M disk.img
        printf 'label: gpt\\nsize=8M,type=U,name=EFI\\nsize=20M,type=L,name=root\\n' | /sbin/sfdisk -q disk.img
        truncate -s 20M part; /sbin/mke2fs -q -t ext4 -L rootfs part
        dd if=part of=disk.img bs=1M seek=9 conv=notrunc,sparse status=none; rm part
        qemu-img convert -O qcow2 -c disk.img guest.qcow2
        qemu-img convert -O vdi disk.img guest.vdi
        qemu-img convert -O vpc -o force_size=on disk.img guest.vhd
        qemu-img convert -O vhdx disk.img guest.vhdx
        qemu-img convert -O vmdk disk.img guest.vmdk
        qemu-img convert -O vmdk -o subformat=streamOptimized disk.img stream.vmdk";
    host("sh", &["-ec", script], dir);
    ["guest.qcow2", "guest.vdi", "guest.vhd", "guest.vhdx", "guest.vmdk", "stream.vmdk"]
}

fn listed(dir: &Path, words: &[&str]) -> Value {
    let output = inarch_in(dir, words);
    assert_status(&output, 0);
    serde_json::from_slice(&output.stdout).unwrap()
}

/// `inarch disk list --json` with these words, in a directory.
fn inarch_in(dir: &Path, words: &[&str]) -> std::process::Output {
    Command::new(INARCH).args(["disk", "list", "--json"]).args(words).current_dir(dir).output().unwrap()
}

#[test]
fn in_every_container() {
    let dir = scratch();
    let images = containers(dir.path());
    let raw = listed(dir.path(), &["disk.img"]);
    assert_eq!(raw["partitions"][1]["label"], "rootfs");
    for image in images {
        let mut found = listed(dir.path(), &[image]);
        let kind = Path::new(image).extension().unwrap().to_str().unwrap();
        assert_eq!(found["container"], kind);
        for field in ["image", "container"] {
            found[field] = raw[field].clone();
        }
        assert_eq!(found, raw, "{image}");
        // A format that it is not.
        let other = if kind == "vdi" { "qcow2" } else { "vdi" };
        let output = inarch_in(dir.path(), &["--format", other, image]);
        assert_status(&output, 125);
        assert_one_line(&output, &[image, other]);
    }
    assert!(listed(dir.path(), &["--format", "raw", "guest.qcow2"])["table"].is_null());
    let output = inarch(["disk", "list", dir.path().join("guest.qcow2").to_str().unwrap()]);
    assert!(stdout(&output).starts_with("40.0 MiB in qcow2, gpt "), "{output:?}");
}

/// Commands that open an image; the last two write to it.
const OPENING: [&[&str]; 11] = [
    &["disk", "list", "IMAGE"],
    &["disk", "ls", "IMAGE"],
    &["disk", "cat", "IMAGE", "/file"],
    &["image", "IMAGE", "-o", "out.tar"],
    &["mount", "IMAGE", "point"],
    &["shell", "IMAGE"],
    &["serve", "nbd", "IMAGE", "--socket", "socket"],
    &["serve", "blk", "IMAGE", "--socket", "socket"],
    &["serve", "file", "IMAGE", "raw.img"],
    &["disk", "write", "IMAGE", "/file"],
    &["run", "--quiet", "--accel=tcg", "--disk", "IMAGE", "true"],
];

/// The bytes of an image decide which files it names; the user, which of them are opened.
#[test]
fn without_a_file_that_only_the_image_names() {
    let dir = scratch();
    containers(dir.path());
    let script = "mkdir host point; mv disk.img host/secret; echo list-filesystems > script
        qemu-img create -q -f qcow2 -b $PWD/host/secret -F raw backing.qcow2
        qemu-img create -q -f qcow2 -o data_file=$PWD/new,data_file_raw=on data.qcow2 40M; mv new spare
        sed -i s,$PWD/new,$PWD/key, data.qcow2; mkfifo key
        qemu-img create -q -f vmdk -o subformat=monolithicFlat flat.vmdk 40M
        sed -i s,flat-flat.vmdk,/etc/passwd, flat.vmdk
        qemu-img create -q -f qcow2 -b backing.qcow2 -F qcow2 chain.qcow2";
    host("sh", &["-ec", script], dir.path());
    for (image, asks) in [
        ("backing.qcow2", "backing file '"),
        ("data.qcow2", "data file '"),
        ("flat.vmdk", "extent '/etc/passwd'"),
        ("chain.qcow2", "backing file 'backing.qcow2'"),
    ] {
        // Commands that write to an image refuse a VMDK one, whatever it names.
        let count = if image == "flat.vmdk" { OPENING.len() - 2 } else { OPENING.len() };
        for words in &OPENING[..count] {
            let output = Command::new("strace")
                .args(["-f", "-qq", "-o", "log", "-e", "trace=open,openat,openat2", INARCH])
                .args(words.iter().map(|&word| if word == "IMAGE" { image } else { word }))
                .current_dir(dir.path())
                .stdin(File::open(dir.path().join("script")).unwrap())
                .output()
                .unwrap();
            assert_status(&output, if words[0] == "shell" { 1 } else { 125 });
            let said = stderr(&output);
            let line = said.lines().last().unwrap_or_default();
            assert!([image, asks, "--with FILE"].iter().all(|part| line.contains(part)), "{words:?}: {said}");
            // A server has said before how it is used.
            assert!(words[0] == "serve" || said.lines().count() == 1, "{words:?}: {said}");
            let log = fs::read_to_string(dir.path().join("log")).unwrap();
            assert!(log.contains(image), "{log}");
            for named in ["secret\"", "key\"", "passwd\"", "\"backing.qcow2\""] {
                let is_image = image == named.trim_matches('"');
                assert!(is_image || !log.contains(named), "{words:?}: {image} opens {named}: {log}");
            }
        }
    }
    // What the user names is opened, wherever it is.
    host("sh", &["-ec", "mv host/secret ."], dir.path());
    let with = ["--with", "secret", "--with", "backing.qcow2"];
    for (image, with) in [("backing.qcow2", &with[..2]), ("chain.qcow2", &with)] {
        let found = listed(dir.path(), &[&[image], with].concat());
        assert_eq!(found["partitions"][1]["label"], "rootfs", "{image}");
    }
    // `--with` refuses what is no regular file. A file that no image names gets a line.
    let output = inarch_in(dir.path(), &["data.qcow2", "--with", "key"]);
    assert_status(&output, 125);
    assert_one_line(&output, &["key", "neither a regular file"]);
    let output = inarch_in(dir.path(), &["guest.qcow2", "--with", "secret"]);
    assert_status(&output, 0);
    assert!(String::from_utf8_lossy(&output.stderr).contains("no image asks for secret"), "{output:?}");
}
