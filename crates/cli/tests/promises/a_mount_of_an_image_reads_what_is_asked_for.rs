//! Promise: `inarch mount` of a disk image reads what it is asked for. It is ready without having read the tree; damage to one
//! file is an error of that file, told once; damage to the image as a whole is refused.

use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::Path;

use crate::support::mounted::{Scene, Server, is_mounted, unmount};
use crate::support::{INARCH, assert_one_line, assert_status, copy_command, host, inarch, scratch, stderr, stdout};

const DIRECTORIES: usize = 200;
const FILES: usize = 200;

/// A header of a tar archive (POSIX.1-2017, pax, "ustar Interchange Format") of an empty file or a directory.
fn header(name: &str, kind: u8) -> [u8; 512] {
    let mut header = [0; 512];
    header[..name.len()].copy_from_slice(name.as_bytes());
    for (at, field) in [(100, "0000755\0"), (108, "0000000\0"), (116, "0000000\0"), (124, "00000000000\0")] {
        header[at..at + field.len()].copy_from_slice(field.as_bytes());
    }
    header[136..148].copy_from_slice(b"14000000000\0");
    header[148..156].fill(b' ');
    header[156] = kind;
    header[257..265].copy_from_slice(b"ustar\x0000");
    let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
    header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    header
}

/// An archive of many empty files.
fn archive(path: &Path) {
    let mut tar = Vec::new();
    for directory in 0..DIRECTORIES {
        tar.extend(header(&format!("directory {directory:03}/"), b'5'));
        for file in 0..FILES {
            tar.extend(header(&format!("directory {directory:03}/a file of some name {file:03}"), b'0'));
        }
    }
    tar.extend([0; 1024]);
    File::create(path).unwrap().write_all(&tar).unwrap();
}

/// Bytes that a process has read so far by any call.
fn read_by(process: u32) -> u64 {
    let io = fs::read_to_string(format!("/proc/{process}/io")).unwrap();
    io.lines().find_map(|line| line.strip_prefix("rchar: ")).unwrap().parse().unwrap()
}

#[test]
fn a_mount_is_ready_without_having_read_the_tree() {
    let dir = scratch();
    archive(&dir.path().join("t.tar"));
    for format in ["ext4", "erofs", "squashfs"] {
        let image = format!("t.{format}");
        host("sh", &["-c", &format!("{INARCH} image t.tar -o {image} --quiet")], dir.path());
        let mut server = Server::start(dir.path(), &image, &[]);
        let ready = read_by(server.child.id());
        assert!(ready < 1 << 20, "{image}: {ready} bytes were read to mount it");
        let one = "ls 'point/directory 123' | wc -l && stat -c %s 'point/directory 123/a file of some name 077'";
        assert_eq!(host("sh", &["-c", one], dir.path()), format!("{FILES}\n0\n"));
        let asked = read_by(server.child.id()) - ready;
        assert!(asked < 2 << 20, "{image}: {asked} bytes were read for one directory");
        // And all of it is there.
        let all = "find point -type f | wc -l; find point -type d -name 'directory *' | wc -l";
        let expected = format!("{}\n{DIRECTORIES}\n", DIRECTORIES * FILES);
        assert_eq!(host("sh", &["-c", all], dir.path()), expected, "{image}");
        let all = read_by(server.child.id()) - ready;
        assert!(all > asked, "{image}: {all} and {asked}");
        assert_eq!(server.end("-TERM"), Some(0), "{}", server.line);
    }
}

/// An ext4 image of a few directories; the only block of `d7` is damaged.
fn damaged(scene: &Scene) {
    let script = "for d in $(seq 20); do mkdir tree/d$d; echo $d > tree/d$d/file; done; mke2fs -qt ext4 -b 1024 -d tree t.ext4 16M 2>&1";
    assert_status(&scene.shell(script), 0);
    let number = |request: &str| -> u64 { stdout(&scene.shell(request)).trim().parse().unwrap() };
    let block = number("debugfs -R 'bmap d7 0' t.ext4 2> /dev/null");
    let size = number("dumpe2fs -h t.ext4 2> /dev/null | sed -n 's/^Block size: *//p'");
    let image = File::options().write(true).open(scene.path().join("t.ext4")).unwrap();
    image.write_all_at(&[0x55; 64], block * size + 30).unwrap();
}

#[test]
fn damage_to_one_directory_is_an_error_of_that_one() {
    let scene = Scene::new();
    damaged(&scene);
    for (options, status) in [("", 2), ("--salvage", 0)] {
        let mount = scene.shell(&format!("$INARCH mount --background --log log{options} {options} t.ext4 point"));
        assert_status(&mount, 0);
        let listed = scene.shell("ls point/d7; ls point/d7");
        assert_status(&listed, status);
        assert_eq!(stdout(&listed), "", "{options}");
        if status != 0 {
            assert!(stderr(&listed).contains("Structure needs cleaning"), "{}", stderr(&listed));
        }
        assert_eq!(stdout(&scene.shell("cat point/d8/file point/d20/file; ls point/file")), "8\n20\npoint/file\n");
        let inode = stdout(&scene.shell("stat -c %i point/d7"));
        unmount(&scene.path().join("point"));
        // Its server ends a moment later.
        let log = fs::read_to_string(scene.path().join(format!("log{options}"))).unwrap();
        let said = format!("t.ext4: inode {}: has a block with a wrong checksum", inode.trim());
        assert_eq!(log.matches(&said).count(), 1, "{log}");
    }
    // A command that needs all of the image refuses it.
    let plan = inarch(["plan", scene.path().join("t.ext4").to_str().unwrap()]);
    assert_one_line(&plan, &["it is damaged: \"d7\": has a block with a wrong checksum"]);
}

#[test]
fn an_archive_that_changes_is_an_error_and_is_named() {
    let scene = Scene::via("fuse");
    host("tar", &["-cf", "tree.tar", "tree"], scene.path());
    let used = scene.shell(
        "$INARCH mount -b tree.tar point --log log && ls point/tree && echo >> tree.tar && cat point/tree/file; cat log
         $INARCH umount point",
    );
    assert_status(&used, 0);
    let text = stdout(&used);
    assert!(text.starts_with("file\n") && !text.contains("content"), "{text}");
    assert!(
        text.contains("tree.tar: inode ") && text.contains("it was changed after it was opened: its size"),
        "{text}"
    );
}

#[test]
fn damage_to_the_whole_image_is_refused_before_it_is_mounted() {
    let scene = Scene::new();
    damaged(&scene);
    let (image, point) = (scene.path().join("t.ext4"), scene.path().join("point"));
    let whole = fs::read(&image).unwrap();
    let mount =
        |options: &[&str]| inarch([&["mount", image.to_str().unwrap(), point.to_str().unwrap()][..], options].concat());
    // The superblock's label, which its checksum covers.
    let mut changed = whole.clone();
    changed[1024 + 120] ^= 1;
    fs::write(&image, &changed).unwrap();
    assert_one_line(&mount(&[]), &["superblock's checksum is wrong", "--salvage"]);
    // The descriptor of the second block group, which the root is not in; the descriptors are in the third block.
    let mut changed = whole.clone();
    changed[2048 + 64 + 8] ^= 1;
    fs::write(&image, &changed).unwrap();
    assert_one_line(&mount(&[]), &["the descriptor of block group 1 is damaged"]);
    fs::write(&image, &whole[..whole.len() / 2]).unwrap();
    assert_one_line(&mount(&[]), &["cut off"]);
    assert!(!is_mounted(scene.path()));
}

/// Whoever may read an image can read everything in it by `disk cat`, too.
#[test]
fn a_user_reads_all_of_an_image_whatever_its_permissions_say() {
    if !Path::new("/usr/bin/fusermount3").exists() || !rustix::process::geteuid().is_root() {
        let test = "a_user_reads_all_of_an_image_whatever_its_permissions_say";
        return println!("skipped: {test}: that takes fusermount3, and root to be several users");
    }
    let scene = Scene::new();
    copy_command(&scene.path().join("inarch"));
    let made = scene.shell(
        "mkdir -p guest/home/alice && echo diary > guest/home/alice/notes && chmod 600 guest/home/alice/notes
         chmod 700 guest/home/alice && setfacl -m u:7:r guest/home/alice/notes && chown -R 1000:1000 guest/home/alice
         mke2fs -q -t ext4 -d guest guest.ext4 16M && tar -C guest -cf guest.tar . && chmod 644 guest.ext4 guest.tar
         mkdir -m 777 log && chmod 777 . point",
    );
    assert_status(&made, 0);
    for image in ["guest.ext4", "guest.tar"] {
        let used = scene.shell(&format!(
            "as() {{ setpriv --reuid $1 --regid $1 --clear-groups sh -c \"$2\"; }}
             as 65534 './inarch mount -qb {image} point --log log/{image}' || exit
             as 65534 'cd point/home/alice && test -r notes && cat notes && stat -c %u:%g:%a . && stat -c %u:%g notes
                 echo x 2>/dev/null > notes; echo $?'
             for user in 65533 0; do as $user 'ls point' 2>/dev/null; echo $?; done
             as 65534 './inarch umount point'"
        ));
        assert_status(&used, 0);
        assert_eq!(stdout(&used), "diary\n1000:1000:700\n1000:1000\n2\n2\n2\n", "{image}: {}", stderr(&used));
        // Root's mount lets others in, as permissions say.
        let used = scene.shell(&format!(
            "./inarch mount -qb {image} point --log root.log && cat point/home/alice/notes
             setpriv --reuid 65534 --regid 65534 --clear-groups ls point/home/alice 2>/dev/null; echo $?; ./inarch umount point"
        ));
        assert_eq!(stdout(&used), "diary\n2\n", "{image}: {}", stderr(&used));
    }
}
