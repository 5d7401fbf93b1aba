//! Promise: the same tree gives the same bytes, in a file, on a device, and down a pipe; options reach the image.

use std::collections::BTreeMap;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::Path;

use crate::support::listing::Mount;
use crate::support::{assert_status, host, inarch, scratch, stderr, stdout};

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

#[test]
fn the_same_tree_gives_the_same_bytes() {
    let dir = scratch();
    let source = dir.path().join("source");
    std::fs::create_dir(&source).unwrap();
    tree(&source);
    let source = source.to_str().unwrap();
    let plain = ["ext4", "erofs", "squashfs", "tar", "cpio"].map(|format| (format, &[][..]));
    let compressed =
        [("erofs", "lz4"), ("squashfs", "zstd"), ("squashfs", "gzip"), ("squashfs", "xz"), ("squashfs", "lz4")];
    let compressed = compressed.map(|(format, algorithm)| (format, [format!("--compress={algorithm}")]));
    let compressed = compressed.iter().map(|(format, options)| (*format, &options[..]));
    for (format, options) in plain.into_iter().chain(compressed) {
        let image = dir.path().join(format!("image.{format}"));
        let name = image.to_str().unwrap();
        let make = |output: &str, more: &[&str]| {
            let arguments = ["image", source, "-o", output, "--format", format].into_iter().chain(more.iter().copied());
            let made = inarch(arguments.chain(options.iter().map(String::as_str)));
            assert_status(&made, 0);
            made
        };
        let made = make(name, &["--verify"]);
        assert!(stderr(&made).starts_with(&format!("{name}: {format}, ")), "{}", stderr(&made));

        // Once more, and down a pipe.
        let whole = std::fs::read(&image).unwrap();
        make(name, &["--quiet"]);
        assert!(std::fs::read(&image).unwrap() == whole, "{format} {options:?}: the second run gave other bytes");
        let piped = make("-", &["--quiet"]);
        assert!(piped.stdout == whole, "{format} {options:?}: other bytes came down the pipe");
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

#[test]
fn a_block_device_of_large_sectors_holds_an_archive() {
    let dir = scratch();
    let (source, disk) = (dir.path().join("source"), dir.path().join("disk"));
    std::fs::create_dir(&source).unwrap();
    tree(&source);
    // Archives end, and have gaps, anywhere; the device zeroes whole sectors.
    std::fs::File::create(source.join("sparse")).unwrap().set_len(3 << 20).unwrap();
    for format in ["tar", "cpio"] {
        std::fs::write(&disk, vec![0xAA; 64 << 20]).unwrap();
        let attach = ["-b", "4096", "-f", "--show", disk.to_str().unwrap()];
        let device = host("losetup", &attach, Path::new("/")).trim().to_owned();
        let made = inarch(["image", source.to_str().unwrap(), "-o", &device, "--format", format]);
        host("losetup", &["-d", &device], Path::new("/"));
        assert_status(&made, 0);
        let file = dir.path().join(format!("image.{format}"));
        assert_status(&inarch(["image", source.to_str().unwrap(), "-o", file.to_str().unwrap()]), 0);
        let (archive, disk) = (std::fs::read(&file).unwrap(), std::fs::read(&disk).unwrap());
        assert!(disk[..archive.len()] == archive, "{format}");
    }
}
