//! Promise: an image that cannot be made is reported in one line with status 125, and nothing of it is left.

use std::io::{Read, Write};
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use crate::support::mounted::unmount;
use crate::support::{INARCH, assert_one_line, assert_status, host, inarch, scratch, stderr};

/// A scratch directory with a small `source` and an empty `place`.
fn small() -> tempfile::TempDir {
    let dir = scratch();
    std::fs::create_dir_all(dir.path().join("source/sub")).unwrap();
    std::fs::create_dir(dir.path().join("place")).unwrap();
    std::fs::write(dir.path().join("source/file"), vec![7; 100_000]).unwrap();
    dir
}

#[track_caller]
fn refused(dir: &Path, output: &str, options: &[&str], parts: &[&str]) {
    let before = host("find", &["."], dir);
    let source = dir.join("source");
    let mut arguments = vec!["image", source.to_str().unwrap(), "-o", output];
    arguments.extend(options);
    let output = Command::new(INARCH).args(arguments).current_dir(dir).output().unwrap();
    assert_one_line(&output, parts);
    assert_eq!(host("find", &["."], dir), before, "something was left behind");
}

#[test]
fn formats_and_options_that_there_are_not() {
    let dir = small();
    let dir = dir.path();
    refused(dir, "place/x.zip", &[], &["place/x.zip", "no format", "ext4", "erofs"]);
    refused(dir, "place/x", &[], &["no format"]);
    refused(dir, "-", &[], &["--format"]);
    refused(dir, "place/x.img", &["--format=zip"], &["'zip'", "squashfs"]);
    refused(dir, "place/x.ext4", &["--size=100K"], &["ext4", "102400 bytes are too few", "at least"]);
    refused(dir, "place/x.ext4", &["--size=many"], &["'many'"]);
    refused(dir, "place/x.ext4", &["--label=seventeen letters"], &["16 bytes"]);
    refused(dir, "place/x.ext4", &["--compress=zstd"], &["ext4", "compress"]);
    refused(dir, "place/x.ext4", &["--compress=rar"], &["'rar'"]);
    refused(dir, "place/x.ext4", &["--block-size=1K"], &["4096", "1024"]);
    refused(dir, "place/x.ext4", &["--uuid=1234"], &["'1234'", "UUID"]);
    refused(dir, "place/x.erofs", &["--free=1M"], &["erofs", "leave the free space out"]);
    refused(dir, "place/x.squashfs", &["--free=1M"], &["squashfs", "leave the free space out"]);
    refused(dir, "-", &["--format=tar", "--json"], &["--json"]);
    refused(dir, "place/x.tar.gz", &[], &["-o - --format tar | gzip > place/x.tar.gz"]);
    refused(dir, "place/x.cpio.zst", &[], &["-o - --format cpio | zstd > place/x.cpio.zst"]);
    refused(dir, "place/x.xz", &["--format=ext4"], &["-o - --format ext4 | xz > place/x.xz"]);
    refused(dir, "place", &[], &["place: is a directory"]);
}

#[test]
fn a_terminal_gets_no_image() {
    let dir = small();
    let program =
        "import pty, subprocess, sys; sys.exit(subprocess.run(sys.argv[1:], stdout=pty.openpty()[1]).returncode)";
    let words = ["-c", program, INARCH, "image", "source", "-o", "-", "--format=tar"];
    let output = Command::new("python3").args(words).current_dir(dir.path()).output().unwrap();
    assert_one_line(&output, &["standard output is a terminal"]);
}

#[test]
fn places_where_no_image_can_be() {
    let dir = small();
    let dir = dir.path();
    refused(dir, "missing/x.ext4", &[], &["missing/x.ext4", "no such"]);
    refused(dir, "place", &["--format=ext4"], &["place", "directory"]);
    std::fs::write(dir.join("file"), "").unwrap();
    refused(dir, "file/x.ext4", &[], &["file/x.ext4", "not a directory"]);
    refused(dir, "source/x.ext4", &[], &["lies in the source"]);
    refused(dir, "source/sub/x.ext4", &[], &["lies in the source"]);
    refused(dir, "place/../source/sub/x.ext4", &[], &["lies in the source"]);
    symlink(dir.join("source/sub/inside"), dir.join("place/x.ext4")).unwrap();
    std::fs::write(dir.join("source/sub/inside"), "").unwrap();
    refused(dir, "place/x.ext4", &[], &["lies in the source"]);
    // A list says what is taken.
    std::fs::write(dir.join("list"), "file\n").unwrap();
    for output in ["source/sub/x.tar", "source/sub/x.tar"] {
        let made =
            Command::new(INARCH).args(["image", "source", "--only", "list", "-o", output]).current_dir(dir).output();
        assert_status(&made.unwrap(), 0);
    }
    assert_eq!(host("tar", &["tf", "source/sub/x.tar"], dir), "./\n./file\n");
    std::fs::write(dir.join("list"), "file\nsub/\n").unwrap();
    refused(dir, "source/sub/x.tar", &["--only=list"], &["lies in the source"]);
}

#[test]
fn a_place_that_another_user_redirects() {
    if !rustix::process::geteuid().is_root() {
        println!("skipped: a_place_that_another_user_redirects: another user's link can only be made as root");
        return;
    }
    let dir = small();
    let dir = dir.path();
    let script = "mkdir -m 1777 shared; echo keep > victim; mkfifo fifo; truncate -s 8M disk; losetup -f --show disk";
    let device = host("sh", &["-ec", script], dir);
    let places = ["victim", "fifo", "none"].map(|name| dir.join(name).display().to_string());
    for target in places.iter().map(String::as_str).chain([device.trim()]) {
        host("sh", &["-ec", &format!("ln -sfn {target} shared/out; chown -h 65534 shared/out")], dir);
        refused(dir, "shared/out", &["--format=tar"], &["shared/out", "belongs to user 65534, who could redirect it"]);
    }
    host("losetup", &["-d", device.trim()], dir);
    assert_eq!(std::fs::read_to_string(dir.join("victim")).unwrap(), "keep\n");
    assert!(host("sh", &["-c", "tr -d '\\0' < disk"], dir).is_empty());
    // In a directory of one's own a link leads where it says.
    symlink("victim", dir.join("mine")).unwrap();
    assert_status(
        &inarch([
            "image",
            dir.join("source").to_str().unwrap(),
            "-o",
            dir.join("mine").to_str().unwrap(),
            "--format=tar",
        ]),
        0,
    );
    assert!(std::fs::metadata(dir.join("victim")).unwrap().len() > 100_000 && dir.join("mine").is_symlink());
}

#[test]
fn the_source_itself() {
    let dir = small();
    let archive = dir.path().join("a.tar");
    let source = dir.path().join("source");
    let made = inarch(["image", "--quiet", source.to_str().unwrap(), "-o", archive.to_str().unwrap()]);
    assert_status(&made, 0);
    let bytes = std::fs::read(&archive).unwrap();
    symlink(&archive, dir.path().join("b.tar")).unwrap();
    for name in ["a.tar", "b.tar"] {
        let name = dir.path().join(name);
        let again = inarch(["image", archive.to_str().unwrap(), "-o", name.to_str().unwrap()]);
        assert_one_line(&again, &["is the source"]);
    }
    assert!(std::fs::read(&archive).unwrap() == bytes);
}

/// A small tmpfs, unmounted when dropped.
struct SmallDisk(tempfile::TempDir);

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(self.0.path()).status();
    }
}

#[test]
fn a_full_disk() {
    let dir = small();
    std::fs::write(dir.path().join("source/large"), vec![1; 12 << 20]).unwrap();
    let disk = SmallDisk(scratch());
    let place = disk.0.path();
    host("mount", &["-t", "tmpfs", "-o", "size=4m", "tmpfs", place.to_str().unwrap()], Path::new("/"));
    for format in ["ext4", "erofs", "squashfs", "tar", "cpio"] {
        let image = place.join(format!("x.{format}"));
        refused(dir.path(), image.to_str().unwrap(), &[], &[image.to_str().unwrap(), "disk is full"]);
        assert_eq!(std::fs::read_dir(place).unwrap().count(), 0, "{format}");
    }
    host("sh", &["-c", "head -c 9000000 /dev/urandom > source/noise"], dir.path());
    for (format, compression) in [("erofs", "lz4"), ("squashfs", "zstd"), ("squashfs", "gzip")] {
        let image = place.join(format!("x.{format}"));
        let options = [&*format!("--compress={compression}")];
        refused(dir.path(), image.to_str().unwrap(), &options, &[image.to_str().unwrap(), "disk is full"]);
        assert_eq!(std::fs::read_dir(place).unwrap().count(), 0, "{format}, {compression}");
    }
    let used = rustix::fs::statvfs(place).unwrap();
    assert_eq!(used.f_bavail, used.f_blocks, "the space was not given back");
}

#[test]
fn help_that_nobody_gets() {
    let to = |place: &str, words: &[&str]| {
        let place = std::fs::OpenOptions::new().write(true).open(place).unwrap();
        Command::new(INARCH)
            .args(words)
            .stdout(place)
            .stderr(Stdio::piped())
            .spawn()
            .unwrap()
            .wait_with_output()
            .unwrap()
    };
    for words in [&["--help"][..], &["--version"], &["help", "serve"]] {
        assert_one_line(&to("/dev/full", words), &["cannot write to standard output"]);
        assert_status(&to("/dev/null", words), 0);
    }
}

#[test]
fn an_image_whose_reader_has_gone() {
    let dir = small();
    std::fs::write(dir.path().join("source/large"), vec![1; 12 << 20]).unwrap();
    for format in ["ext4", "erofs", "squashfs", "tar", "cpio"] {
        let words = ["image", "source", "-o", "-", "--format", format];
        let mut child = Command::new(INARCH)
            .args(words)
            .current_dir(dir.path())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        child.stdout.take().unwrap().read_exact(&mut [0; 100]).unwrap();
        let output = child.wait_with_output().unwrap();
        assert_status(&output, 125);
        assert_eq!(stderr(&output), "", "{format}");
    }
}

#[test]
fn a_device_that_is_too_small_or_in_use() {
    let dir = small();
    let disk = dir.path().join("disk");
    std::fs::File::create(&disk).unwrap().set_len(1 << 20).unwrap();
    let device = host("losetup", &["-f", "--show", disk.to_str().unwrap()], Path::new("/")).trim().to_owned();
    std::fs::write(dir.path().join("source/large"), vec![1; 2 << 20]).unwrap();
    let small = inarch(["image", dir.path().join("source").to_str().unwrap(), "-o", &device, "--format=erofs"]);
    host("losetup", &["-d", &device], Path::new("/"));
    assert_one_line(&small, &[&device, "bytes"]);

    host("truncate", &["-s", "8M", disk.to_str().unwrap()], Path::new("/"));
    host("mke2fs", &["-q", "-F", disk.to_str().unwrap()], Path::new("/"));
    let device = host("losetup", &["-f", "--show", disk.to_str().unwrap()], Path::new("/")).trim().to_owned();
    let place = dir.path().join("place");
    host("mount", &[&device, place.to_str().unwrap()], Path::new("/"));
    let busy = inarch(["image", dir.path().join("source").to_str().unwrap(), "-o", &device, "--format=erofs"]);
    unmount(&place);
    host("losetup", &["-d", &device], Path::new("/"));
    assert_one_line(&busy, &[&device, "busy"]);
}

#[test]
fn a_file_that_changes_meanwhile() {
    let dir = small();
    let source = dir.path().join("source");
    // The pipe is full long before the last file, which then is another.
    std::fs::write(source.join("a"), vec![1; 8 << 20]).unwrap();
    std::fs::write(source.join("z"), vec![2; 5000]).unwrap();
    for format in ["tar", "cpio", "erofs", "ext4", "squashfs"] {
        let output = interrupted_by(&source, format, || std::fs::write(source.join("z"), vec![3; 5000]).unwrap());
        assert_one_line(&output, &["source/z", "was written to"]);
    }
}

/// What comes of `inarch image SRC -o -` if something happens after its first bytes.
fn interrupted_by(source: &Path, format: &str, something: impl FnOnce()) -> Output {
    let mut child = Command::new(INARCH)
        .args(["image", "-o", "-", "--format", format])
        .arg(source)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut pipe = child.stdout.take().unwrap();
    pipe.read_exact(&mut [0; 4096]).unwrap();
    something();
    std::io::copy(&mut pipe, &mut std::io::sink()).unwrap();
    child.wait_with_output().unwrap()
}

#[test]
fn an_archive_or_image_that_changes_meanwhile() {
    let dir = small();
    std::fs::write(dir.path().join("source/a"), vec![1; 8 << 20]).unwrap();
    let source = dir.path().join("source");
    for kind in ["tar", "ext4", "erofs", "squashfs"] {
        let image = dir.path().join(format!("a.{kind}"));
        let made = inarch(["image", "--quiet", source.to_str().unwrap(), "-o", image.to_str().unwrap()]);
        assert_status(&made, 0);
        let output = interrupted_by(&image, "erofs", || {
            std::fs::OpenOptions::new().append(true).open(&image).unwrap().write_all(&[0; 4096]).unwrap();
        });
        assert_one_line(&output, &[&format!("a.{kind}: "), "while the image was made of it; no image was made"]);
    }
}

#[test]
fn progress_is_for_terminals_and_quiet_says_nothing() {
    let dir = small();
    let image = dir.path().join("place/x.erofs");
    let source = dir.path().join("source");
    let made = inarch(["image", source.to_str().unwrap(), "-o", image.to_str().unwrap()]);
    assert_status(&made, 0);
    assert_eq!(stderr(&made).lines().count(), 1, "{}", stderr(&made));
    assert!(!stderr(&made).contains('\u{1b}'));
    let made = inarch(["image", source.to_str().unwrap(), "-o", image.to_str().unwrap(), "--quiet"]);
    assert_eq!((stderr(&made), made.stdout), (String::new(), Vec::new()));
}
