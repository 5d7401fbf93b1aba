//! Promise: the files on a guest's disk are listed, printed, searched and copied where they are, as the guest has them. The image is not changed.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::support::listing::{assert_same, listing};
use crate::support::mounted::{Server, unmount};
use crate::support::{
    INARCH, LONG, LVM, any_machine, assert_one_line, assert_one_line_and, assert_status, host, inarch, scratch, stderr,
    stdout, within,
};

/// Makes `guest.img`: a GPT disk with a root (ext4, 64 MiB) and a home (ext4, 16 MiB, LABEL=home), from the directories `root` and `home`.
const DISK: &str = "
    cat > root/etc/fstab <<F
LABEL=root /     ext4 errors=remount-ro 0 1
/dev/sda2  /home ext4 defaults 0 2
UUID=1234  /srv  ext4 defaults 0 2
/dev/sda3  none  swap sw 0 0
F
    touch -d @1700000000 root/etc root/etc/fstab
    /sbin/mke2fs -q -t ext4 -L root -d root root.img 64M 2> /dev/null
    /sbin/mke2fs -q -t ext4 -L home -d home home.img 16M 2> /dev/null
    truncate -s 100M guest.img
    printf 'label: gpt\\nsize=64M,type=L,name=system\\nsize=16M,type=L\\nsize=8M,type=S\\n' | /sbin/sfdisk -q guest.img
    dd if=root.img of=guest.img bs=1M seek=1 conv=notrunc status=none
    dd if=home.img of=guest.img bs=1M seek=65 conv=notrunc status=none";

/// A guest with every kind of file, in `guest.img`; `root` and `home` are what it holds.
pub fn guest(dir: &Path) {
    let script = "
        mkdir -p root/etc root/home root/srv root/var/lib/dpkg root/usr/bin root/dir/below home/user
        printf 'Hello\\n' > root/etc/motd; echo box > root/etc/hostname
        printf 'ID=debian\\nVERSION_ID=\"12\"\\nPRETTY_NAME=\"Debian 12\"\\n' > root/etc/os-release
        printf 'Package: bash\\nStatus: install ok installed\\nVersion: 5\\nArchitecture: amd64\\n\\n' > root/var/lib/dpkg/status
        cp /bin/true root/usr/bin/bash
        printf 'first' > root/dir/sparse; truncate -s 3M root/dir/sparse; printf 'last' >> root/dir/sparse
        seq 300000 > root/dir/large; ln root/dir/large root/dir/below/again; ln -s ../etc/motd root/dir/link
        mkfifo root/dir/fifo; printf x > 'root/dir/a b'; chmod 4711 'root/dir/a b'; chmod 1777 root/dir/below
        setfattr -n user.note -v text root/dir/large; setfattr -n user.raw -v 0xff00 root/dir/large; : > root/dir/none
        printf 'of the user' > home/user/notes; chmod 600 home/user/notes
        if [ $(id -u) = 0 ]; then mknod root/dir/null c 1 3; chown -R 1234:5678 home/user root/dir/large; chmod 4711 'root/dir/a b'; fi
        find root home -exec touch -h -d @1700000000 {} +";
    host("sh", &["-ec", script], dir);
    host("sh", &["-ec", DISK], dir);
}

pub fn said(arguments: &[&str]) -> String {
    let output = inarch([&["disk"], arguments].concat());
    assert_status(&output, 0);
    stdout(&output)
}

pub fn lines(arguments: &[&str]) -> Vec<String> {
    said(arguments).lines().map(str::to_owned).collect()
}

#[test]
fn as_the_guest_has_it() {
    let dir = scratch();
    guest(dir.path());
    let image = dir.path().join("guest.img");
    let before = (fs::read(&image).unwrap(), image.metadata().unwrap().mtime());
    let image = image.to_str().unwrap();
    let volume = |name: &str| format!("{image}:{name}");

    assert_eq!(lines(&["ls", image]), ["dir", "etc", "home", "srv", "usr", "var"]);
    assert_eq!(lines(&["ls", image, "home/user"]), ["notes"]);
    assert_eq!(lines(&["ls", &volume("1"), "home"]), [""; 0], "the volume alone");
    for name in ["2", "/dev/sda2", "vda2", "LABEL=home"] {
        assert_eq!(lines(&["ls", &volume(name)]), ["user"], "{name}");
    }
    assert_eq!(lines(&["ls", &volume("PARTLABEL=system:/etc"), "motd"]), ["motd"]);
    let listed = lines(&["ls", image, "home", "home/user/notes", "home/user"]);
    assert_eq!(listed, ["home/user/notes", "", "home:", "user", "", "home/user:", "notes"]);
    let several = inarch(["disk", "ls", "--json", image, "none", "home", "home/user/notes"]);
    assert_status(&several, 1);
    assert!(stderr(&several).contains("none: there is no such file"), "{}", stderr(&several));
    let paths: Vec<Value> = stdout(&several).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(paths.iter().map(|entry| &entry["path"]).collect::<Vec<_>>(), ["home/user", "home/user/notes"]);
    assert_eq!(said(&["cat", image, "dir/link", "/home/user/notes"]), "Hello\nof the user");
    assert!(
        lines(&["ls", "-lah", image, "dir"]).iter().any(|line| line.contains("3.0 MiB") && line.ends_with("sparse"))
    );
    assert_eq!(said(&["cat", &volume("LABEL=home:/user/notes")]), "of the user");
    assert!(lines(&["stat", &volume("/etc/motd")])[0].ends_with("/etc/motd"));
    assert_one_line(&inarch(["disk", "cat", image]), &["no file is named", "PATH"]);
    assert_one_line(&inarch(["disk", "cp", image, "etc"]), &["one place is missing", "etc TO", "etc:/PATH"]);
    assert_eq!(said(&["cat", image, "dir/sparse"]).into_bytes(), fs::read(dir.path().join("root/dir/sparse")).unwrap());

    let found = lines(&["find", image, "/dir"]);
    let expected = host(
        "sh",
        &["-c", "cd root && find /../$PWD/dir -mindepth 1 | sed \"s,.*root,,\" | LC_ALL=C sort"],
        dir.path(),
    );
    let expected: Vec<&str> = expected.lines().collect();
    let mut found: Vec<&str> = found.iter().map(|line| line.trim_matches('\'')).collect();
    found.sort_unstable();
    assert_eq!(found, expected);
    assert_eq!(lines(&["find", image, "--type", "f", "--name", "n*"]), ["/dir/none", "/home/user/notes"]);
    assert_eq!(
        lines(&["find", image, "-type", "f", "-name", "n*"]),
        ["/dir/none", "/home/user/notes"],
        "as of find(1)"
    );
    assert_eq!(lines(&["find", image, "dir", "--size-above", "1M"]), ["dir/below/again", "dir/large", "dir/sparse"]);

    let stat: Value = serde_json::from_str(&said(&["stat", "--json", image, "dir/large"])).unwrap();
    let real = dir.path().join("root/dir/large").metadata().unwrap();
    assert_eq!(stat["size"], real.size());
    assert_eq!((&stat["uid"], &stat["gid"]), (&real.uid().into(), &real.gid().into()));
    assert_eq!((&stat["links"], &stat["mtime"]), (&2.into(), &1_700_000_000.0.into()));
    assert_eq!(stat["xattrs"]["user.note"], "text");
    // What is no text is there with all its bytes.
    assert_eq!(stat["xattrs_hex"], serde_json::json!({ "user.raw": "ff00" }));
    assert!(said(&["stat", image, "dir/large"]).contains("user.raw=0xff00"));
    assert_eq!(stat["mtime_nsec"], 0);
    if rustix::process::geteuid().is_root() {
        let stat: Value = serde_json::from_str(&said(&["stat", "--json", image, "dir/null"])).unwrap();
        assert_eq!(stat["device"], serde_json::json!([1, 3]));
    }

    let inspected: Value = serde_json::from_str(&said(&["inspect", "--json", image])).unwrap();
    let system = &inspected[0];
    assert_eq!((&system["root"], &system["hostname"]), (&"/dev/sda1".into(), &"box".into()));
    assert_eq!((&system["name"], &system["version"]), (&"Debian 12".into(), &"12".into()));
    assert_eq!(system["arch"], std::env::consts::ARCH);
    assert_eq!(system["packages"][0]["name"], "bash");
    let mounts = system["mounts"].as_array().unwrap();
    let mounts: Vec<_> = mounts.iter().map(|mount| (mount["directory"].as_str(), mount["volume"].as_str())).collect();
    let on = |directory, volume| (Some(directory), volume);
    assert_eq!(mounts, [on("/", Some("/dev/sda1")), on("/home", Some("/dev/sda2")), on("/srv", None)]);

    let usage: Value = serde_json::from_str(&said(&["df", "--json", image])).unwrap();
    // What dumpe2fs says of the volume: "Free blocks: 1234", of 1024 bytes.
    for (number, file) in ["root.img", "home.img"].into_iter().enumerate() {
        let told = host("sh", &["-c", &format!("/sbin/dumpe2fs -h {file} 2> /dev/null")], dir.path());
        let field = |name: &str| -> u64 {
            let line = told.lines().find_map(|line| line.strip_prefix(name)).unwrap();
            line.trim().parse().unwrap()
        };
        let (free, reserved) = (field("Free blocks:"), field("Reserved block count:"));
        assert_eq!(usage[number]["free"], free * field("Block size:"));
        assert_eq!(usage[number]["available"], (free - reserved) * field("Block size:"));
        assert_eq!(usage[number]["free_inodes"], field("Free inodes:"));
    }
    let after = (fs::read(image).unwrap(), Path::new(image).metadata().unwrap().mtime());
    assert!(before == after, "the image was changed");
}

/// A whole guest is a root: its volumes are where its fstab has them, and what a command writes reaches none of them.
#[test]
fn and_a_command_has_it_as_its_root() {
    let dir = scratch();
    let files = "mkdir -p root/bin root/etc root/home root/srv home/user; cp /bin/busybox root/bin
        for tool in sh cat; do ln -s busybox root/bin/$tool; done; echo ID=guest > root/etc/os-release; echo notes > home/user/notes";
    host("sh", &["-ec", &format!("{files}\n{DISK}; qemu-img convert -O qcow2 guest.img guest.qcow2")], dir.path());
    let image = dir.path().join("guest.qcow2");
    let before = fs::read(&image).unwrap();
    let script = "cat /etc/os-release /home/user/notes; echo new > /home/user/notes; echo new > /etc/new; cat /home/user/notes /etc/new";
    let mut run = Command::new(INARCH);
    run.args(["run", "-q", any_machine(), "--no-project", "--root", "guest.qcow2", "sh", "-c", script]);
    let output = run.current_dir(dir.path()).output().unwrap();
    assert_status(&output, 0);
    assert_eq!(stdout(&output), "ID=guest\nnotes\nnew\nnew\n");
    assert!(fs::read(&image).unwrap() == before, "the image was changed");
}

/// Files by which systems are known, and which say nothing of themselves.
#[test]
fn and_empty_files_are_no_more_than_that() {
    let dir = scratch();
    let of_linux =
        "etc/os-release etc/fstab etc/crypttab etc/hostname etc/debian_version var/lib/dpkg/status lib/apk/db/installed
        var/lib/pacman/local/x-1/desc var/lib/rpm/rpmdb.sqlite usr/bin/bash";
    let of_windows = "Windows/System32/config/SOFTWARE Windows/System32/config/SYSTEM Windows/System32/ntoskrnl.exe";
    for (files, system) in [(of_linux, "linux"), (of_windows, "windows")] {
        let script = "rm -rf root; for file; do mkdir -p root/$(dirname $file); : > root/$file; done; /sbin/mke2fs -q -F -t ext4 -d root img 8M";
        let words = ["-ec", script, "sh"].into_iter().chain(files.split_whitespace());
        host("sh", &words.collect::<Vec<_>>(), dir.path());
        let image = dir.path().join("img");
        let found: Value = serde_json::from_str(&said(&["inspect", "--json", image.to_str().unwrap()])).unwrap();
        assert_eq!(found[0]["kind"], system, "{found:#}");
        assert_eq!(found[0]["version"], Value::Null);
    }
}

/// An fstab names logical volumes in two ways, and others by what blkid says of them.
#[test]
fn with_what_its_fstab_mounts_by_a_uuid_and_from_a_volume_group() {
    let test = "with_what_its_fstab_mounts_by_a_uuid_and_from_a_volume_group";
    if !rustix::process::geteuid().is_root() {
        return println!("skipped: {test}: lvm2 takes devices only, and only root makes them of files");
    }
    let dir = scratch();
    let script = "mkdir -p root/etc root/home root/data home/user data point; echo 'ID=guest' > root/etc/os-release
        echo notes > home/user/notes; echo data > data/file
        for name in home data; do /sbin/mke2fs -q -t ext4 -d $name $name.img 8M 2> /dev/null; done
        uuid=$(/sbin/blkid --probe -o value -s UUID home.img)
        printf \"/dev/mapper/vg-root / ext4\\n/dev/vg/data /data ext4\\nUUID=$uuid /home ext4\\n\" > root/etc/fstab
        /sbin/mke2fs -q -t ext4 -d root root.img 16M 2> /dev/null; truncate -s 50M guest.img
        printf 'label: gpt\\nsize=32M,type=V\\nsize=8M,type=L\\n' | /sbin/sfdisk -q guest.img
        dd if=home.img of=guest.img bs=1M seek=33 conv=notrunc status=none
        first=$(losetup -f --show -o 1M --sizelimit 32M guest.img); second=$first; trap 'losetup -d $first' EXIT
        lvm pvcreate -y $first; lvm vgcreate vg $first
        lvm lvcreate -an -Zn -l 4 -n root vg; lvm lvcreate -an -Zn -l 2 -n data vg
        dd if=root.img of=$first bs=1M seek=1 status=none; dd if=data.img of=$first bs=1M seek=17 status=none";
    host("sh", &["-ec", &script.replacen("EXIT\n", &format!("EXIT\n{LVM}"), 1)], dir.path());
    let image = dir.path().join("guest.img");
    let before = fs::read(&image).unwrap();
    let inspected: Value = serde_json::from_str(&said(&["inspect", "--json", image.to_str().unwrap()])).unwrap();
    let mounts = inspected[0]["mounts"].as_array().unwrap().iter();
    let mounts: Vec<_> =
        mounts.map(|mount| ["directory", "volume"].map(|field| mount[field].as_str().unwrap())).collect();
    assert_eq!(mounts, [["/", "/dev/vg/root"], ["/data", "/dev/vg/data"], ["/home", "/dev/sda2"]]);

    // A mount has them all at their places, and takes no writes in any of them.
    let mut server = Server::start(dir.path(), "guest.img", &[]);
    let point = dir.path().join("point");
    for (path, text) in [("etc/os-release", "ID=guest\n"), ("data/file", "data\n"), ("home/user/notes", "notes\n")] {
        let path = point.join(path);
        assert_eq!(fs::read_to_string(&path).unwrap(), text);
        for refused in [fs::write(&path, "other"), fs::write(path.with_extension("new"), ""), fs::remove_file(&path)] {
            assert_eq!(refused.unwrap_err().kind(), std::io::ErrorKind::ReadOnlyFilesystem, "{path:?}");
        }
    }
    unmount(&point);
    assert_eq!(server.child.wait().unwrap().code(), Some(0));
    assert!(fs::read(&image).unwrap() == before, "the image was changed");
}

/// Other file systems count what is free in their own ways: FAT by its table, NTFS by a bitmap.
#[test]
fn with_what_is_free() {
    let dir = scratch();
    let free = |image: &str| {
        let path = dir.path().join(image);
        let told: Value = serde_json::from_str(&said(&["df", "--json", path.to_str().unwrap()])).unwrap();
        (told[0]["size"].as_u64().unwrap(), told[0]["free"].as_u64().unwrap())
    };
    for bits in ["12", "16", "32"] {
        let script = format!(
            "rm -f fat; head -c 300000 /dev/urandom > file; truncate -s 40M fat; /sbin/mkfs.fat -F {bits} fat > /dev/null 2>&1
            mcopy -i fat file ::/file; /sbin/fsck.fat -n fat | tail -1"
        );
        // "fat: 1 files, 147/20414 clusters"
        let told = host("sh", &["-ec", &script], dir.path());
        let clusters = told.split_whitespace().find_map(|word| word.split_once('/')).unwrap();
        let (used, all): (u64, u64) = (clusters.0.parse().unwrap(), clusters.1.parse().unwrap());
        let (size, free) = free("fat");
        assert_eq!(free * all, size * (all - used), "FAT{bits}: {told}");
        assert!(used > 1);
    }
    let script = "truncate -s 40M ntfs; /sbin/mkntfs -qF ntfs > /dev/null 2>&1; ntfsinfo -m ntfs";
    let told = host("sh", &["-ec", script], dir.path());
    let clusters = told.lines().find_map(|line| line.trim().strip_prefix("Free Clusters: ")).unwrap();
    let clusters: u64 = clusters.split(' ').next().unwrap().parse().unwrap();
    assert_eq!(free("ntfs").1, clusters * 4096);
}

#[test]
fn and_copied_with_all_attributes() {
    let dir = scratch();
    guest(dir.path());
    let at = |name: &str| dir.path().join(name);
    let text = |path: PathBuf| path.to_str().unwrap().to_owned();
    let image = text(at("guest.img"));
    let output = inarch(["disk", "cp", &format!("{image}:1"), "/dir", &text(at("copy"))]);
    assert_status(&output, if rustix::process::geteuid().is_root() { 0 } else { 1 });
    let mut expected = listing(&at("root/dir"));
    let found = listing(&at("copy"));
    if !rustix::process::geteuid().is_root() {
        expected.get_mut(&b"a b"[..]).unwrap().mode &= !0o6000;
    }
    assert_same(&found, &expected, "the copy");
    assert!(at("copy/sparse").metadata().unwrap().blocks() < 1000, "holes are kept");
    // Into a directory; and as a file.
    fs::create_dir(at("into")).unwrap();
    said(&["cp", &image, "home/user/notes", &text(at("into"))]);
    assert_eq!(fs::read(at("into/notes")).unwrap(), b"of the user");
    // As with docker cp; what exists under such a name is a file.
    said(&["cp", &format!("{image}:/home/user/notes"), &text(at("notes"))]);
    assert_eq!(fs::read(at("notes")).unwrap(), b"of the user");
    let odd = inarch(["disk", "cp", &text(at("none:/none")), &text(at("new"))]);
    assert_one_line(&odd, &["none", "No such file"]);
    let archive = text(at("home.tar"));
    assert_status(&inarch(["image", "-q", &format!("{image}:/home"), "-o", &archive]), 0);
    assert!(host("tar", &["tf", &archive], dir.path()).contains("./user/notes"));

    for (path, to, status, parts) in [
        ("etc/motd", "into/notes", 125, &["into/notes", "nothing is written over"][..]),
        ("etc/nothing", "new", 1, &["etc/nothing", "no such file"]),
        ("/", "into", 125, &["into", "name the copy"]),
        ("etc/motd", "none/new", 125, &["none", "No such file"]),
    ] {
        let output = inarch(["disk", "cp", &format!("{image}:1"), path, &text(at(to))]);
        assert_one_line_and(&output, status, parts);
    }
    assert_eq!(fs::read_dir(at("into")).unwrap().count(), 1, "nothing half-made is left");

    let several =
        |to: &str| inarch(["disk", "cp", &format!("{image}:1"), "etc/motd", "nothing", "dir/below", &text(at(to))]);
    assert_one_line(&several("none"), &["none", "no such directory"]);
    assert_one_line_and(&several("into"), 1, &["nothing", "no such file"]);
    assert_eq!(fs::read(at("into/motd")).unwrap(), b"Hello\n");
    assert_eq!(fs::read(at("into/below/again")).unwrap(), fs::read(at("root/dir/large")).unwrap());
}

#[test]
fn in_any_case_of_letters_where_the_guest_takes_them_so() {
    let dir = scratch();
    let script = "
        printf text > file; truncate -s 16M fat.img ext4.img
        /sbin/mkfs.vfat fat.img > /dev/null; mmd -i fat.img '::/Some Folder'; mcopy -i fat.img file '::/Some Folder/Long Name.Txt'
        mkdir root; cp file root/File; /sbin/mke2fs -q -t ext4 -d root ext4.img 2> /dev/null";
    host("sh", &["-ec", script], dir.path());
    let image = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    assert_eq!(said(&["cat", &image("fat.img"), "/SOME folder/long name.TXT"]), "text");
    let absent = |image: &str, path: &str| {
        let output = inarch(["disk", "cat", image, path]);
        assert_status(&output, 1);
        assert!(stderr(&output).contains("no such file"), "{}", stderr(&output));
    };
    absent(&image("fat.img"), "/some folder/other");
    assert_eq!(said(&["cat", &image("ext4.img"), "/File"]), "text");
    absent(&image("ext4.img"), "/file");
}

/// An image may have two files of one name, or a directory in itself.
#[test]
fn and_leads_nowhere_else() {
    let dir = scratch();
    let at = |name: &str| dir.path().join(name);
    fs::create_dir_all(at("outside")).unwrap();
    let script = "
        mkdir -p root/top/dir root/top/name-2; printf secret > root/top/name-2/file; ln -s $PWD/outside root/top/name-1
        ln root/top/name-2/file root/top/other-name; printf host > outside/file
        /sbin/mke2fs -q -t ext4 -O ^metadata_csum -d root image 16M 2> /dev/null
        printf 'ln top top/dir/loop\\n' | /sbin/debugfs -w image > /dev/null 2>&1";
    host("sh", &["-ec", script], dir.path());
    let mut bytes = fs::read(at("image")).unwrap();
    let second = bytes.windows(6).position(|name| name == b"name-2").unwrap();
    bytes[second + 5] = b'1';
    fs::write(at("image"), bytes).unwrap();
    let image = at("image");
    let image = image.to_str().unwrap();
    let output = inarch(["disk", "cp", "--salvage", image, "/top", at("copy").to_str().unwrap()]);
    assert_status(&output, 1);
    let said = stderr(&output);
    assert!(said.contains("name-1: left out") && said.contains("/top/dir/loop"), "{said}");
    assert!(fs::symlink_metadata(at("copy/name-1")).is_ok(), "the first file of the name");
    assert!(said.contains("other-name: left out"), "{said}");
    assert!(fs::symlink_metadata(at("copy/other-name")).is_err(), "a hard link to what the first name leads to");
    assert_eq!(fs::metadata(at("outside/file")).unwrap().nlink(), 1);
    assert_eq!(fs::read_dir(at("outside")).unwrap().count(), 1);
    let left: Vec<_> = fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left.len(), 4, "{left:?}");
    let found = inarch(["disk", "find", "--salvage", image]);
    assert!(stdout(&found).lines().filter(|line| line.ends_with("loop")).count() == 1, "it ends");
}

/// A directory that its owner cannot write to is copied by a plain user, and nothing is left of a copy that fails.
#[test]
fn also_read_only_directories() {
    let dir = scratch();
    let script = "
        mkdir -p s/top/x; echo hi > s/top/x/f; chmod 555 s/top s/top/x; chmod 777 .
        truncate -s 8M image; /sbin/mke2fs -q -t ext4 -d s image 2> /dev/null";
    host("sh", &["-ec", script], dir.path());
    let copy = "setpriv --reuid 65534 --regid 65534 --clear-groups \"$0\" disk cp image /top ./copy; find copy -printf '%m %p\\n' | sort; ls -A";
    let copy = if rustix::process::geteuid().is_root() {
        copy.to_owned()
    } else {
        copy.replace("setpriv --reuid 65534 --regid 65534 --clear-groups ", "")
    };
    let told = host("sh", &["-ec", &copy, crate::support::INARCH], dir.path());
    assert!(told.contains("555 copy\n555 copy/x\n644 copy/x/f\n"), "{told}");
    assert!(!told.contains(".inarch"), "{told}");
    host("chmod", &["-R", "u+w", "."], dir.path());
}

/// A copy whose process is killed leaves nothing, neither under its name nor beside it.
#[test]
fn and_a_killed_copy_leaves_nothing() {
    let dir = scratch();
    let script = "mkdir s out; yes | head -c 300M > s/large; /sbin/mke2fs -q -t ext4 -d s image 400M 2> /dev/null";
    host("sh", &["-ec", script], dir.path());
    let [image, out] = ["image", "out"].map(|name| dir.path().join(name));
    let mut copy = Command::new(INARCH)
        .args(["disk", "cp"])
        .arg(image)
        .args(["/large", "out/new"])
        .current_dir(dir.path())
        .spawn()
        .unwrap();
    let left = || fs::read_dir(&out).unwrap().count();
    assert!(within(LONG, || left() > 0), "nothing was begun");
    copy.kill().unwrap();
    copy.wait().unwrap();
    assert!(!out.join("new").exists(), "it was killed too late");
    assert!(within(LONG, || left() == 0), "something is left");
}

/// A subvolume is mounted where the fstab says, not the directory that it is in.
#[test]
fn with_subvolumes() {
    let dir = scratch();
    let script = "
        mkdir -p b/@data b/@/etc; echo right > b/@data/f; echo wrong > b/f; echo 'ID=x' > b/@/etc/os-release; mkdir b/@/data
        printf 'LABEL=b / btrfs subvol=@\\nLABEL=b /data btrfs subvol=/@data,ro\\n' > b/@/etc/fstab
        truncate -s 120M image; /sbin/mkfs.btrfs -q -L b -r b image";
    host("sh", &["-ec", script], dir.path());
    let image = dir.path().join("image");
    let image = format!("{}:auto", image.to_str().unwrap());
    assert_eq!(said(&["cat", &image, "/data/f"]), "right\n");
    let inspected: Value = serde_json::from_str(&said(&["inspect", "--json", &image])).unwrap();
    assert_eq!(inspected[0]["distribution"], "x");
}

/// Any subvolume can be named, by its path from the top on, whatever the default one is.
#[test]
fn with_a_subvolume_that_is_named() {
    if !rustix::process::geteuid().is_root() {
        return println!("skipped: with_a_subvolume_that_is_named: only root mounts a Btrfs, to make subvolumes");
    }
    let dir = scratch();
    let script = "truncate -s 120M part; /sbin/mkfs.btrfs -q -L b part; mkdir m; mount -o loop part m; trap 'umount m' EXIT
        btrfs -q subvolume create m/@ ; btrfs -q subvolume create m/@home; mkdir m/@/etc m/@/home m/snap m/@/old; echo first > m/@/etc/hostname
        echo 'ID=x' > m/@/etc/os-release; echo notes > m/@home/notes; mkdir m/@/gone m/@/bad; btrfs -q subvolume create 'm/a,b'
        btrfs -q subvolume snapshot -r m/@ 'm/snap/of root'; echo second > m/@/etc/hostname
        top=$(btrfs inspect-internal rootid m/@); home=$(btrfs inspect-internal rootid m/@home)
        printf 'LABEL=b / btrfs subvol=@\\nLABEL=b /home btrfs subvolid=0x%x\\nLABEL=b /old btrfs subvol=/snap/of\\\\040root\\n' $home > m/@/etc/fstab
        printf 'LABEL=b /gone btrfs noauto,subvolid=9999\\nLABEL=b /bad btrfs subvolid=9x\\n' >> m/@/etc/fstab
        btrfs subvolume set-default $top m
        umount m; trap - EXIT
        truncate -s 130M image; printf 'label: gpt\\nsize=120M\\n' | /sbin/sfdisk -q image; dd if=part of=image bs=1M seek=1 conv=notrunc status=none";
    host("sh", &["-ec", script], dir.path());
    let image = dir.path().join("image");
    let image = image.to_str().unwrap();
    assert_eq!(said(&["cat", image, "etc/hostname"]), "second\n");
    assert_eq!(
        (said(&["cat", image, "home/notes"]), said(&["cat", image, "old/etc/hostname"])),
        ("notes\n".to_owned(), "first\n".to_owned())
    );
    for (volume, path, text) in [
        ("1@snap/of root", "etc/hostname", "first\n"),
        ("1@@home", "notes", "notes\n"),
        ("@@", "/etc/hostname", "second\n"),
        ("LABEL=b@snap/of root:/etc", "hostname", "first\n"),
    ] {
        assert_eq!(said(&["cat", &format!("{image}:{volume}"), path]), text, "{volume}");
    }
    // What changes the guest, and the shell, find the same subvolumes as the guest.
    assert_eq!(host(INARCH, &["shell", "--ro", "-i", "-a", "image", "cat", "/home/notes"], dir.path()), "notes\n");
    host("sh", &["-ec", &format!("echo new | {INARCH} disk write image /home/new")], dir.path());
    assert_eq!(said(&["cat", &format!("{image}:1@@home"), "new"]), "new\n");
    // A guest goes on without what cannot be mounted; what is written there would be hidden.
    for (place, why) in [("/gone/file", "subvolid=9999"), ("/bad/file", "subvolid=\"9x\" is not the number")] {
        let mut write = Command::new("sh");
        write.args(["-c", &format!("echo x | {INARCH} disk write image {place}")]);
        let output = write.current_dir(dir.path()).output().unwrap();
        assert_status(&output, 1);
        let told = stderr(&output);
        assert!(told.contains(place.trim_end_matches("/file")) && told.contains(why), "{told}");
    }
    // A comma would begin another option of the mount.
    host("sh", &["-ec", &format!("echo comma | {INARCH} disk write 'image:1@a,b' /file")], dir.path());
    assert_eq!(said(&["cat", &format!("{image}:1@a,b"), "file"]), "comma\n");
    let listed: Value = serde_json::from_str(&said(&["list", "--json", image])).unwrap();
    let listed: Vec<_> = listed["subvolumes"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| {
            (one["path"].as_str().unwrap(), one["snapshot"] == true, one["read_only"] == true, one["default"] == true)
        })
        .collect();
    assert_eq!(
        listed,
        [
            ("@", false, false, true),
            ("@home", false, false, false),
            ("a,b", false, false, false),
            ("snap/of root", true, true, false)
        ]
    );
    assert!(said(&["list", image]).contains("snapshot, read-only"));
    let output = inarch(["disk", "ls", &format!("{image}:1@none")]);
    assert_one_line(&output, &["no subvolume 'none'", "@, @home, a,b, snap/of root"]);

    // The words for `shell` name the root's subvolume where it is not the default one.
    let script = "mount -o loop part m; trap 'umount m' EXIT; btrfs subvolume set-default 5 m; umount m; trap - EXIT";
    host("sh", &["-ec", script], dir.path());
    let words = said(&["inspect", "--options", dir.path().join("part").to_str().unwrap()]);
    assert!(words.contains("-m /dev/sda:/:subvol=@ -m /dev/sda:/home:subvolid="), "{words}");
    let script = format!("eval {INARCH} shell --ro $({INARCH} disk inspect --options part) cat /home/notes");
    assert_eq!(host("sh", &["-ec", &script], dir.path()), "notes\n");
    // A disk without a partition table is the same guest, for what reads it and for what changes it.
    let bare = dir.path().join("part");
    let bare = bare.to_str().unwrap();
    assert_eq!(said(&["cat", bare, "etc/hostname"]), "second\n");
    assert_eq!(said(&["ls", bare, "/home"]), "notes\n");
    host("sh", &["-ec", &format!("echo new | {INARCH} disk write part /home/new")], dir.path());
    assert_eq!(said(&["cat", bare, "home/new"]), "new\n");
    host(INARCH, &["image", "part", "-o", "part.tar"], dir.path());
    assert_eq!(host("tar", &["xOf", "part.tar", "./home/notes"], dir.path()), "notes\n");
}

/// A guest can write what it likes to the place of its boot loader.
#[test]
fn in_the_format_that_is_said() {
    let dir = scratch();
    guest(dir.path());
    host("sh", &["-ec", "printf 'QFI\\373\\0\\0\\0\\3' | dd of=guest.img conv=notrunc status=none"], dir.path());
    let image = dir.path().join("guest.img");
    let (image, out) = (image.to_str().unwrap(), dir.path().join("out"));
    for words in [
        &["ls", image, "/etc"][..],
        &["cat", image, "/etc/os-release"],
        &["find", image],
        &["stat", image, "/etc"],
        &["cp", image, "/etc", out.to_str().unwrap()],
        &["tar-out", image, "/etc", "-"],
        &["checksum", image],
        &["df", image],
        &["inspect", image],
        &["diff", image, dir.path().to_str().unwrap()],
        &["reg", image],
    ] {
        let without = inarch([&["disk"], words].concat());
        assert_status(&without, 125);
        assert!(stderr(&without).contains("qcow2"), "{without:?}");
        let output = inarch([&["disk"], words, &["--format=raw"]].concat());
        match words[0] {
            "reg" => assert_one_line(&output, &["Windows"]),
            _ => assert_status(&output, 0),
        }
    }
    assert_eq!(said(&["cat", "--format=raw", image, "/etc/motd"]), "Hello\n");
    assert_eq!(lines(&["ls", "--format=raw", &format!("{image}:/home")]), ["user"]);
    let point = dir.path().join("point");
    fs::create_dir(&point).unwrap();
    let point_text = point.to_str().unwrap();
    assert_status(&inarch(["mount", "-q", "--background", "--ro", "--format=raw", image, point_text]), 0);
    assert_eq!(fs::read(point.join("etc/motd")).unwrap(), b"Hello\n");
    assert_status(&inarch(["umount", "-q", point_text]), 0);
    // What is told to other programs, and to our own shell.
    let words = said(&["inspect", "--options", "--format=raw", image]);
    assert!(words.starts_with(&format!("--format=raw -a {image} -m /dev/sda1:/")), "{words}");
    let words = format!("$({INARCH} disk inspect --options --format raw guest.img)");
    let script = format!("eval {INARCH} shell --ro {words} cat /etc/motd");
    assert_eq!(host("sh", &["-c", &script], dir.path()), "Hello\n");

    // So are what is named beside it, and what is of a kind that is not read.
    let make = "cp guest.img beside.img; cp guest.img odd.img; printf 'QED\\0' | dd of=odd.img conv=notrunc status=none
        mke2fs -q -F -d root plain.img 16M 2>&1";
    host("sh", &["-ec", make], dir.path());
    let at = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    for words in [
        &["ls", &at("guest.img:1"), "/etc", "--also", &at("beside.img")][..],
        &["df", image, "--also", &at("beside.img")],
        &["ls", &at("odd.img"), "/etc"],
        &["ls", &at("odd.img:1"), "/etc"],
        &["cat", &at("odd.img"), "/etc/motd"],
        &["diff", &at("plain.img"), &at("root")],
        &["diff", &at("root"), &at("odd.img")],
    ] {
        assert_status(&inarch([&["disk"], words, &["--format=raw"]].concat()), 0);
    }
    // A partition is one whatever is before it, an archive's head for one.
    let forge = "mkdir t; tar -cf t.tar t; cp guest.img like.img; dd if=t.tar of=like.img bs=440 count=1 conv=notrunc status=none";
    host("sh", &["-ec", forge], dir.path());
    assert_eq!(said(&["cat", &at("like.img:1"), "/etc/motd"]), "Hello\n");
    let output = inarch(["disk", "ls", "--format=raw", dir.path().to_str().unwrap()]);
    assert_one_line(&output, &["it is no disk image", "--format"]);
}

#[test]
fn or_one_line_says_why_not() {
    let dir = scratch();
    guest(dir.path());
    let image = dir.path().join("guest.img");
    let image = image.to_str().unwrap();
    let volume = |name: &str| format!("{image}:{name}");
    for (arguments, parts) in [
        (&["ls", &volume("7")][..], &["no volume '7'", "/dev/sda1 (ext4, LABEL=root)", "/dev/sda3"][..]),
        (&["ls", &volume("3")], &["volume '3'", "cannot read"]),
        (&["ls", &volume("2:/nothing")], &["/nothing: there is no such directory"]),
        (&["df", dir.path().to_str().unwrap()], &["name a disk image"]),
        (&["ls", "/nothing/there"], &["/nothing/there", "No such file"]),
        (&["cp", &volume("2"), "user/notes", "-"], &["disk cat", "disk tar-out", "./-"]),
    ] {
        let output = inarch([&["disk"], arguments].concat());
        assert_status(&output, 125);
        assert_one_line(&output, parts);
    }
    // What is missing in an image that can be read.
    for (arguments, part) in [
        (&["ls", &volume("2"), "nothing"][..], "no such file"),
        (&["find", &volume("2"), "nothing"], "no such file"),
        (&["find", &volume("2"), "user/notes"], "it is no directory"),
        (&["cp", &volume("2"), "nothing", dir.path().to_str().unwrap()], "no such file"),
    ] {
        let output = inarch([&["disk"], arguments].concat());
        assert_one_line_and(&output, 1, &[part]);
    }
    // One of several files.
    for verb in ["cat", "stat"] {
        let output = inarch(["disk", verb, &volume("2"), "nothing", "user/notes"]);
        assert_status(&output, 1);
        assert!(stderr(&output).contains("nothing: there is no such file") && !output.stdout.is_empty(), "{output:?}");
    }
    let output = inarch(["disk", "cat", &volume("2"), "user"]);
    assert_status(&output, 1);
    assert!(stderr(&output).contains("user: it is a directory"));
}
