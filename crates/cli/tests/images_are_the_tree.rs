//! Promise: an image holds the tree, whole and as it is, in every format; the same tree gives the same bytes, in a
//! file as down a pipe.

mod support;

use std::collections::BTreeMap;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command;

use support::{assert_status, host, inarch, scratch, stderr, stdout};

/// One line for each name: what every format keeps. Times are whole seconds.
const LISTING: &str = r#"
import hashlib, os, stat, sys
top = os.fsencode(sys.argv[1])
xattrs = sys.argv[2] == 'xattrs'
groups = {}
def line(path):
    s = os.lstat(path)
    name = os.path.relpath(path, top)
    fields = [ascii(name), oct(s.st_mode), s.st_uid, s.st_gid, int(s.st_mtime)]
    if stat.S_ISREG(s.st_mode):
        fields += [s.st_size, hashlib.sha256(open(path, 'rb').read()).hexdigest()]
    if stat.S_ISLNK(s.st_mode):
        fields += [ascii(os.readlink(path))]
    if stat.S_ISCHR(s.st_mode) or stat.S_ISBLK(s.st_mode):
        fields += [os.major(s.st_rdev), os.minor(s.st_rdev)]
    if not stat.S_ISDIR(s.st_mode):
        fields += ['links', s.st_nlink, groups.setdefault(s.st_ino, ascii(name))]
    if xattrs:
        for attribute in sorted(os.listxattr(path, follow_symlinks=False)):
            fields += [attribute, os.getxattr(path, attribute, follow_symlinks=False).hex()]
    print(*fields)
    if stat.S_ISDIR(s.st_mode):
        for name in sorted(os.listdir(path)):
            if name != b'lost+found':
                line(os.path.join(path, name))
line(top)
"#;

fn listing(dir: &Path, xattrs: bool) -> Vec<String> {
    let mode = if xattrs { "xattrs" } else { "none" };
    let text = host("python3", &["-c", LISTING, dir.to_str().unwrap(), mode], Path::new("/"));
    text.lines().map(str::to_owned).collect()
}

/// A tree with one of everything that all formats can hold.
fn tree(at: &Path) {
    std::fs::create_dir_all(at.join("dir/deeper")).unwrap();
    std::fs::write(at.join("dir/empty"), "").unwrap();
    std::fs::write(at.join("dir/deeper/odd \u{fc} name\n"), "text").unwrap();
    for (name, size) in [("block", 4096), ("more", 4097), ("megabytes", 3_500_000)] {
        let bytes: Vec<u8> = (0..size).map(|i: usize| ((i * 31) >> 3) as u8).collect();
        std::fs::write(at.join(name), bytes).unwrap();
    }
    std::fs::hard_link(at.join("more"), at.join("dir/same")).unwrap();
    symlink("../block", at.join("dir/link")).unwrap();
    let script =
        "mkfifo -m 640 pipe; mknod null c 1 3; chown 1234:70000 more; chmod 4755 block; touch -d @1234567890 more;
        truncate -s 20M sparse; printf end | dd of=sparse bs=1 seek=15000000 conv=notrunc status=none;
        setfattr -n user.note -v something more; setfattr -n security.capability \
        -v 0x0100000200040000000000000000000000000000 block; i=0;
        while [ $i -lt 300 ]; do echo $i > dir/file-$i; i=$((i + 1)); done; touch -d @1600000000 dir .";
    host("sh", &["-e", "-c", script], at);
}

/// A loop mount, undone when dropped.
struct Mount(PathBuf);

impl Mount {
    fn new(image: &Path, at: PathBuf) -> Mount {
        std::fs::create_dir_all(&at).unwrap();
        host("mount", &["-o", "loop,ro", image.to_str().unwrap(), at.to_str().unwrap()], Path::new("/"));
        Mount(at)
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.0).status();
    }
}

#[test]
fn every_format_holds_the_whole_tree() {
    let dir = scratch();
    let source = dir.path().join("source");
    std::fs::create_dir(&source).unwrap();
    tree(&source);
    let source = source.to_str().unwrap();
    for format in ["ext4", "erofs", "squashfs", "tar", "cpio"] {
        let image = dir.path().join(format!("image.{format}"));
        let name = image.to_str().unwrap();
        let made = inarch(["image", source, "-o", name, "--verify"]);
        assert_status(&made, 0);
        assert!(stderr(&made).starts_with(&format!("{name}: {format}, ")), "{}", stderr(&made));

        let seen = dir.path().join(format!("seen.{format}"));
        std::fs::create_dir(&seen).unwrap();
        let place = seen.to_str().unwrap();
        let mount = match format {
            "tar" => {
                let options = ["--xattrs", "--xattrs-include=*", "--numeric-owner", "-xpf", name, "-C", place];
                host("tar", &options, Path::new("/"));
                None
            }
            "cpio" => {
                // cpio(1) itself sets directories' times too early.
                host("bsdtar", &["--numeric-owner", "-xpf", name, "-C", place], Path::new("/"));
                None
            }
            _ => Some(Mount::new(&image, seen.clone())),
        };
        let xattrs = format != "cpio";
        let (mut wanted, mut found) = (listing(Path::new(source), xattrs), listing(&seen, xattrs));
        if mount.is_none() {
            // The directory that was unpacked into was there before.
            wanted.remove(0);
            found.remove(0);
        }
        for (wanted, found) in wanted.iter().zip(&found) {
            assert_eq!(found, wanted, "{format}");
        }
        assert_eq!(found.len(), wanted.len(), "{format}");
        drop(mount);

        // Once more, and down a pipe.
        let whole = std::fs::read(&image).unwrap();
        assert_status(&inarch(["image", source, "-o", name, "--quiet"]), 0);
        assert!(std::fs::read(&image).unwrap() == whole, "{format}: the second run gave other bytes");
        let piped = inarch(["image", source, "-o", "-", "--format", format, "--quiet"]);
        assert_status(&piped, 0);
        assert!(piped.stdout == whole, "{format}: other bytes came down the pipe");
    }
}

#[test]
fn options_reach_the_image() {
    let dir = scratch();
    let source = dir.path().join("source");
    std::fs::create_dir(&source).unwrap();
    std::fs::write(source.join("file"), "content").unwrap();
    std::fs::write(source.join("file.o"), "object").unwrap();
    let image = dir.path().join("image");
    let uuid = "12345678-9abc-def0-1234-56789abcdef0";
    let made = inarch([
        "image",
        source.to_str().unwrap(),
        "-o",
        image.to_str().unwrap(),
        "--format=ext4",
        "--size=64M",
        "--label=name",
        &format!("--uuid={uuid}"),
        "--epoch=1000000000",
        "--exclude=*.o",
        "--json",
        "--sync",
    ]);
    assert_status(&made, 0);
    let text = stdout(&made);
    for part in ["\"format\": \"ext4\"", "\"image_bytes\": 67108864", "\"entries\": 1,", "\"content_bytes\": 7,"] {
        assert!(text.contains(part), "{part} is not in {text}");
    }
    let size = std::fs::metadata(&image).unwrap();
    assert_eq!(size.len(), 64 << 20);
    assert!(size.blocks() * 512 < 1 << 20, "zeros were written");
    let said = host("dumpe2fs", &["-h", image.to_str().unwrap()], Path::new("/"));
    let fields: BTreeMap<_, _> = said.lines().filter_map(|line| line.split_once(':')).collect();
    assert_eq!(fields["Filesystem volume name"].trim(), "name");
    assert_eq!(fields["Filesystem UUID"].trim(), uuid);
    assert!(fields.contains_key("Journal inode"), "an image has a journal");
    let mount = Mount::new(&image, dir.path().join("mount"));
    assert_eq!(std::fs::metadata(mount.0.join("file")).unwrap().mtime(), 1_000_000_000);
    assert!(!mount.0.join("file.o").exists());
}

#[test]
fn a_block_device_is_written_whole() {
    let dir = scratch();
    let (source, disk) = (dir.path().join("source"), dir.path().join("disk"));
    std::fs::create_dir(&source).unwrap();
    tree(&source);
    // What it held before must not show through the gaps.
    std::fs::write(&disk, vec![0xAA; 64 << 20]).unwrap();
    let device = host("losetup", &["-f", "--show", disk.to_str().unwrap()], Path::new("/")).trim().to_owned();
    let made = inarch(["image", source.to_str().unwrap(), "-o", &device, "--format=ext4", "--size=60M", "--verify"]);
    host("losetup", &["-d", &device], Path::new("/"));
    assert_status(&made, 0);
    host("e2fsck", &["-fn", disk.to_str().unwrap()], Path::new("/"));
    let file = dir.path().join("image.ext4");
    let made = inarch(["image", source.to_str().unwrap(), "-o", file.to_str().unwrap(), "--size=60M"]);
    assert_status(&made, 0);
    assert!(std::fs::read(&disk).unwrap()[..60 << 20] == std::fs::read(&file).unwrap());
}
