//! Promise: everything that a format cannot hold, or that a user may not read, is reported in a line each.

use std::collections::BTreeMap;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::process::{Command, Stdio};

use crate::support::listing::Mount;
use crate::support::{assert_one_line, assert_status, copy_command, host, inarch, scratch, stderr};

/// What `inarch image SRC -o OUT` says, one image of `source` in `dir`.
fn said(source: &Path, dir: &Path, format: &str) -> Vec<String> {
    let image = dir.join(format!("image.{format}"));
    let made = inarch(["image", source.to_str().unwrap(), "-o", image.to_str().unwrap()]);
    assert_status(&made, 0);
    stderr(&made).lines().skip(1).map(|line| line.trim().to_owned()).collect()
}

#[test]
fn of_one_of_everything() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: of_one_of_everything: attributes of every kind: they need root");
        return;
    }
    let dir = scratch();
    let source = dir.path().join("source");
    let script =
        "mkdir source; cd source; echo a > acl; setfacl -m u:1000:r acl; echo x > xattr; setfattr -n user.a -v 1 xattr
        echo old > old; python3 -c 'import socket; socket.socket(socket.AF_UNIX).bind(\"socket\")'
        touch -d @1234567890 * .; touch -d '1950-01-01' old";
    host("sh", &["-euc", script], dir.path());
    let expected: [(&str, &[&str]); 5] = [
        ("ext4", &[]),
        ("erofs", &[]),
        ("squashfs", &["times from 1970 to 2106", "(POSIX ACLs) of 1 file are"]),
        ("tar", &["socket: it is left out, as a tar has no sockets"]),
        (
            "cpio",
            &[
                "acl: its extended attributes are left out",
                "xattr: its extended attributes are left out",
                "old: its time",
            ],
        ),
    ];
    for (format, parts) in expected {
        let lines = said(&source, dir.path(), format);
        assert_eq!(lines.len(), parts.len(), "{format}: {lines:#?}");
        for part in parts {
            assert!(lines.iter().any(|line| line.contains(part)), "{format}: '{part}' is not in {lines:#?}");
        }
    }
}

#[test]
fn times_finer_than_a_format_has_are_said_and_others_are_not() {
    let dir = scratch();
    let source = dir.path().join("source");
    std::fs::create_dir(&source).unwrap();
    for (time, formats) in [("@1234567890.5", &["squashfs", "cpio"][..]), ("@1234567890", &[])] {
        host("touch", &["-d", time, source.to_str().unwrap()], dir.path());
        for format in ["ext4", "erofs", "squashfs", "tar", "cpio"] {
            let said = said(&source, dir.path(), format);
            assert_eq!(
                said.iter().any(|line| line.starts_with("times are cut to whole seconds")),
                formats.contains(&format)
            );
        }
    }
}

#[test]
fn one_thing_is_no_things() {
    let dir = scratch();
    let source = dir.path().join("source");
    std::fs::create_dir(&source).unwrap();
    std::fs::write(source.join("file"), "x").unwrap();
    let image = dir.path().join("image.tar");
    let made = inarch(["image", source.to_str().unwrap(), "-o", image.to_str().unwrap()]);
    assert!(stderr(&made).contains(": 1 entry, 1 B of content in 1 file, in "), "{}", stderr(&made));
}

#[test]
fn more_hard_links_than_ext4_counts_are_split() {
    // In memory, where a file may have so many.
    let memory = tempfile::tempdir_in("/dev/shm").unwrap();
    let source = memory.path().join("source");
    std::fs::create_dir(&source).unwrap();
    std::fs::write(source.join("first"), "content").unwrap();
    for number in 1..65_100 {
        std::fs::hard_link(source.join("first"), source.join(number.to_string())).unwrap();
    }
    let lines = said(&source, memory.path(), "ext4");
    assert!(lines.len() == 1 && lines[0].contains("more than 65000 hard links"), "{lines:#?}");
    let image = memory.path().join("image.ext4");
    host("e2fsck", &["-fn", image.to_str().unwrap()], Path::new("/"));
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: more_hard_links_than_ext4_counts_are_split: mounting an image: it needs root");
        return;
    }
    let mount = Mount::new(&image, memory.path().join("mount"));
    let mut files = BTreeMap::new();
    for entry in std::fs::read_dir(&mount.0).unwrap() {
        let stat = entry.unwrap().metadata().unwrap();
        if stat.is_file() {
            *files.entry((stat.nlink(), stat.len(), stat.ino())).or_insert(0) += 1;
        }
    }
    let counts: Vec<_> = files.iter().map(|((links, length, _), names)| (*links, *length, *names)).collect();
    assert_eq!(counts, [(100, 7, 100), (65_000, 7, 65_000)]);
}

#[test]
fn a_path_that_is_too_long_for_a_cpio_is_refused_and_no_other_format_minds() {
    let dir = scratch();
    let script =
        "import os\nfor part in ['source'] + ['d' * 250] * 20:\n    os.mkdir(part); os.chdir(part)\nopen('f', 'w')";
    host("python3", &["-c", script], dir.path());
    let source = dir.path().join("source");
    for format in ["ext4", "erofs", "squashfs", "tar"] {
        let said = said(&source, dir.path(), format);
        assert!(said.iter().all(|line| line.starts_with("times are cut")), "{format}: {said:?}");
    }
    let image = dir.path().join("image.cpio");
    let refused = inarch(["image", source.to_str().unwrap(), "-o", image.to_str().unwrap()]);
    assert_one_line(&refused, &["cpio", "dddd", "longer than the 4095 bytes of a name"]);
    assert!(!image.exists());
}

#[test]
fn to_a_user_without_privileges() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: to_a_user_without_privileges: being another user: it needs root");
        return;
    }
    let dir = scratch();
    let dir = dir.path();
    std::fs::set_permissions(dir, PermissionsExt::from_mode(0o777)).unwrap();
    copy_command(&dir.join("inarch"));
    let script =
        "mkdir -p source/closed; cd source; mknod null c 1 3; mknod disk b 259 70000; mkfifo fifo; echo a > open
        echo s > secret; chmod 0 secret; echo x > closed/x; chmod 0 closed; chown 1000:70000 open; chmod 755 .";
    host("sh", &["-euc", script], dir);
    for format in ["ext4", "tar"] {
        let made = Command::new("setpriv")
            .args(["--reuid=65534", "--regid=65534", "--clear-groups", "./inarch", "image", "source", "-o"])
            .arg(format!("image.{format}"))
            .current_dir(dir)
            .stdin(Stdio::null())
            .output()
            .unwrap();
        assert_status(&made, 0);
        for part in ["secret: file not readable, left out", "closed: directory not readable, kept empty"] {
            assert!(stderr(&made).contains(part), "{}", stderr(&made));
        }
    }
    // Devices and owners need no privilege to be written down.
    let names = host("tar", &["--numeric-owner", "-tvf", "image.tar"], dir);
    for part in ["259,70000 ", "1,3 ", "1000/70000 ", "prw"] {
        assert!(names.contains(part), "'{part}' is not in {names}");
    }
    assert!(!names.contains("secret") && !names.contains("closed/x"), "{names}");
    host("e2fsck", &["-fn", "image.ext4"], dir);
}
