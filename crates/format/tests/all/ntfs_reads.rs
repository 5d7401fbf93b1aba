//! The reader finds in volumes of mkntfs, filled by ntfs-3g, what ntfs-3g shows of them.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt, symlink};
use std::path::Path;
use std::sync::Arc;

use inarch_block::{Content, read_content};
use inarch_format::{Damage, TreeAndContent};
use inarch_tree::FileType;
use inarch_vfs::VolumeFiles;
use inarch_volume::VolumeError;
use rustix::fs::{Mode, XattrFlags, mknodat};

use crate::common::Scratch;
use crate::common::archive::run;
use crate::common::compare::assert_same;
use crate::ntfs::*;
use crate::volumes_agree;

fn set(path: &Path, name: &str, value: &[u8]) {
    rustix::fs::lsetxattr(path, name, value, XattrFlags::empty())
        .unwrap_or_else(|error| panic!("{path:?} {name}: {error}"));
}

/// Files of all kinds that ntfs-3g can make.
fn fill(dir: &Path, can_compress: bool) {
    fs::create_dir_all(dir.join("sub/deeper")).unwrap();
    fs::create_dir(dir.join("empty")).unwrap();
    for (i, size) in [0, 1, 100, 500, 640, 700, 1000, 4095, 4096, 5000, 70_000, 1_200_001].into_iter().enumerate() {
        fs::write(dir.join(format!("of{size}")), noise(i as u64, size)).unwrap();
    }
    let sparse = File::create(dir.join("sparse")).unwrap();
    sparse.set_len(10 << 20).unwrap();
    sparse.write_all_at(&noise(77, 5000), 3_000_000).unwrap();
    sparse.write_all_at(&noise(78, 5000), 6_000_000).unwrap();
    drop(sparse);
    fs::hard_link(dir.join("of5000"), dir.join("sub/hard")).unwrap();
    symlink("of5000", dir.join("link")).unwrap();
    symlink("t".repeat(2000), dir.join("sub/long-link")).unwrap();
    for i in 0..1500 {
        let mut file = File::create(dir.join(format!("sub/deeper/{i:04}{}", "n".repeat(i % 90)))).unwrap();
        file.write_all(&noise(i as u64, i % 300)).unwrap();
    }
    for name in ["Groß und klein", "groß UND klein", "日本語", "\u{1F600} smile"] {
        fs::write(dir.join("sub").join(name), name).unwrap();
    }
    fs::write(dir.join(format!("sub/{}", "ä".repeat(127))), "long").unwrap();
    // So many names do not fit a record: it gets a list of attributes.
    fs::write(dir.join("many names"), noise(5, 3000)).unwrap();
    for i in 0..40 {
        fs::hard_link(dir.join("many names"), dir.join(format!("sub/{i:02} {}", "m".repeat(60)))).unwrap();
    }
    // Two files that grow in turns are in many pieces.
    let [mut a, mut b] = ["pieces-a", "pieces-b"].map(|name| File::create(dir.join(name)).unwrap());
    for i in 0..400 {
        a.write_all(&noise(i, 4096)).unwrap();
        a.sync_all().unwrap();
        b.write_all(&noise(i + 1000, 4096)).unwrap();
        b.sync_all().unwrap();
    }
    set(&dir.join("of100"), "user.one", b"value");
    set(&dir.join("of1"), "user.large", &noise(9, 3000));
    set(&dir.join("of70000"), "user.Zone.Identifier", b"[ZoneTransfer]\r\nZoneId=3\r\n");
    set(&dir.join("sub"), "user.of a directory", b"1");
    let node = |name: &str, kind, device| {
        mknodat(rustix::fs::CWD, dir.join(name), kind, Mode::from(0o644), device).unwrap();
    };
    node("null", rustix::fs::FileType::CharacterDevice, rustix::fs::makedev(1, 3));
    node("disk", rustix::fs::FileType::BlockDevice, rustix::fs::makedev(259, 70_000));
    node("pipe", rustix::fs::FileType::Fifo, 0);
    if can_compress {
        fs::create_dir(dir.join("packed")).unwrap();
        // FILE_ATTRIBUTE_COMPRESSED: files that are made in it are compressed.
        set(&dir.join("packed"), "system.ntfs_attrib_be", &0x800u32.to_be_bytes());
        fs::write(dir.join("packed/text"), noise(11, 400_000)).unwrap();
        fs::write(dir.join("packed/words"), "the same words again and again. ".repeat(20_000)).unwrap();
        fs::write(dir.join("packed/zeros"), vec![0; 300_000]).unwrap();
        let random: Vec<u8> = (0..100_000u64).map(|i| (i.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 40) as u8).collect();
        fs::write(dir.join("packed/random"), random).unwrap();
        fs::write(dir.join("packed/small"), "resident").unwrap();
        let mut mixed = noise(12, 70_000);
        mixed.extend(vec![0; 200_000]);
        mixed.extend(noise(13, 1000));
        fs::write(dir.join("packed/mixed"), mixed).unwrap();
    }
}

fn agree(image: &Path, opened: TreeAndContent) {
    let volume = open_volume(image, Damage::Refused).unwrap();
    let tree = VolumeFiles::of_tree(opened.tree, opened.content, Box::new(|_| {}));
    volumes_agree::assert_same(&tree, &VolumeFiles::new(volume, false, Box::new(|line| panic!("{line}"))));
}

#[test]
fn volumes_of_ntfs_3g_come_back() {
    if !can_mount() {
        return;
    }
    for (cluster, sector) in [("512", "512"), ("4096", "512"), ("4096", "4096"), ("65536", "512")] {
        let scratch = Scratch::within("/tmp");
        let image = scratch.path("image");
        mkntfs(&image, 160, &["--cluster-size", cluster, "--sector-size", sector, "--label", "a label"]);
        let mounted = Mounted::writable(&image);
        fill(&mounted.0, cluster != "65536");
        drop(mounted);
        let opened = try_open(&image).unwrap_or_else(|error| panic!("clusters of {cluster}: {error}"));
        assert_eq!(opened.notes, [""; 0]);
        let mounted = Mounted::shown(&image);
        assert_same(&opened, &mounted.0);
        drop(mounted);
        agree(&image, opened);
    }
}

/// Content that is stored as it is, is lent from the image, and holes are known; compressed content is neither.
#[test]
fn content_is_pointers_into_the_image() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::within("/tmp");
    let image = scratch.path("image");
    mkntfs(&image, 64, &[]);
    let mounted = Mounted::writable(&image);
    fs::write(mounted.0.join("plain"), noise(1, 500_000)).unwrap();
    let sparse = File::create(mounted.0.join("sparse")).unwrap();
    sparse.set_len(8 << 20).unwrap();
    sparse.write_all_at(&noise(2, 4096), 4 << 20).unwrap();
    drop(sparse);
    fs::create_dir(mounted.0.join("packed")).unwrap();
    set(&mounted.0.join("packed"), "system.ntfs_attrib_be", &0x800u32.to_be_bytes());
    fs::write(mounted.0.join("packed/text"), noise(3, 500_000)).unwrap();
    let stored = fs::metadata(mounted.0.join("packed/text")).unwrap().blocks() * 512;
    drop(mounted);
    let opened = try_open(&image).unwrap();
    let (bytes, plain) = (fs::read(&image).unwrap(), opened.tree.lookup(b"plain").unwrap());
    let mut found = vec![0; 500_000];
    let lent = opened.content.lend(plain, 0, 500_000, &mut |_, lent| {
        let (to, from) = (lent.offset as usize, lent.at as usize);
        found[to..to + lent.length as usize].copy_from_slice(&bytes[from..from + lent.length as usize]);
        Ok(())
    });
    assert!(lent.unwrap() && found == noise(1, 500_000));
    let sparse = opened.tree.lookup(b"sparse").unwrap();
    let ranges = opened.tree.sparse_ranges(sparse).unwrap();
    assert_eq!(ranges.iter().map(|range| (range.offset, range.length)).collect::<Vec<_>>(), [(4 << 20, 4096)]);
    let packed = opened.tree.lookup(b"packed/text").unwrap();
    assert!(!opened.content.lend(packed, 0, 500_000, &mut |_, _| panic!("it is compressed")).unwrap());
    read_content(&*opened.content, packed, 0, &mut found).unwrap();
    assert!(found == noise(3, 500_000));
    let volume = open_volume(&image, Damage::Refused).unwrap();
    let node = volume.lookup(volume.root(), b"packed").unwrap().unwrap();
    let node = volume.lookup(node, b"text").unwrap().unwrap();
    assert!(stored < 450_000, "it was not compressed: {stored} bytes");
    assert_eq!(volume.attributes(node).unwrap().allocated, stored);
    // Any part, from any byte to any other.
    let expected = noise(3, 500_000);
    for i in 0..200usize {
        let (start, length) = (i * 7_919_317 % 500_100, i * i * 31 % 80_000);
        let mut found = vec![1; length];
        read_content(&*opened.content, packed, start as u64, &mut found).unwrap();
        let mut wanted = expected.get(start..).unwrap_or_default().to_vec();
        wanted.resize(length, 0);
        assert!(found == wanted, "{length} bytes from {start}");
    }
}

/// A file in so many pieces that its list of runs is in several records.
#[test]
fn content_in_many_pieces_is_put_together() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::within("/tmp");
    let image = scratch.path("image");
    mkntfs(&image, 8, &["--cluster-size", "512"]);
    let mounted = Mounted::writable(&image);
    let name = |i: usize| mounted.0.join(format!("{i}"));
    (0..1500).for_each(|i| fs::write(name(i), noise(i as u64, 1000)).unwrap());
    // What is left of the volume is filled; then about half of the files make place, here and there.
    let mut filler = File::create(mounted.0.join("filler")).unwrap();
    while filler.write_all(&[b'f'; 512]).is_ok() {}
    drop(filler);
    let goes = |i: &usize| (*i as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 63 == 1;
    (0..1500).filter(goes).for_each(|i| fs::remove_file(name(i)).unwrap());
    fs::write(mounted.0.join("pieces"), noise(7, 600_000)).unwrap();
    drop(mounted);
    let opened = try_open(&image).unwrap();
    let id = opened.tree.lookup(b"pieces").unwrap();
    let mut found = vec![0; 600_000];
    read_content(&*opened.content, id, 0, &mut found).unwrap();
    assert!(found == noise(7, 600_000));
    let volume = open_volume(&image, Damage::Refused).unwrap();
    let node = volume.lookup(volume.root(), b"pieces").unwrap().unwrap();
    let extents = volume.extents(node, 0, u64::MAX).unwrap().unwrap();
    assert!(extents.len() > 200, "{} pieces", extents.len());
    // A part of it is what of all lies in it, from whichever record.
    for (start, length) in [(0, 1), (123_456, 7890), (511, 2), (599_999, 100), (300_000, 300_000)] {
        let end = (start + length).min(600_000);
        let part = volume.extents(node, start, length).unwrap().unwrap();
        let bytes: u64 = part.iter().map(|extent| extent.length).sum();
        assert_eq!((part[0].offset, bytes), (start, end - start));
    }
    let mounted = Mounted::shown(&image);
    assert_same(&opened, &mounted.0);
    drop(mounted);
    agree(&image, opened);
}

/// A reparse point as ntfs-3g stores it: tag, length, data.
fn reparse(tag: u32, data: &[u8]) -> Vec<u8> {
    [&tag.to_le_bytes()[..], &(data.len() as u16).to_le_bytes(), &[0, 0], data].concat()
}

fn paths(substitute: &str, flags: Option<u32>) -> Vec<u8> {
    let name: Vec<u8> = substitute.encode_utf16().flat_map(u16::to_le_bytes).collect();
    let length = name.len() as u16;
    // A junction's names end with a NUL each. The name to print is the same.
    let places = [0, length, length + 2, length];
    let mut data: Vec<u8> = places.into_iter().flat_map(u16::to_le_bytes).collect();
    data.extend(flags.map(u32::to_le_bytes).into_iter().flatten());
    [&data[..], &name, &[0, 0], &name, &[0, 0]].concat()
}

#[test]
fn links_of_windows_lead_where_they_should() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::within("/tmp");
    let image = scratch.path("image");
    mkntfs(&image, 32, &[]);
    let mounted = Mounted::writable(&image);
    let dir = &mounted.0;
    fs::create_dir_all(dir.join("Users/Public/Documents")).unwrap();
    fs::create_dir_all(dir.join("a/b/c")).unwrap();
    fs::write(dir.join("Users/file.txt"), "text").unwrap();
    let (mount_point, symlink) = (0xA000_0003, 0xA000_000C);
    let links: &[(&str, bool, Vec<u8>, &str)] = &[
        ("Documents and Settings", true, reparse(mount_point, &paths(r"\??\C:\Users", None)), "Users"),
        ("a/b/junction", true, reparse(mount_point, &paths(r"\??\C:\users\PUBLIC", None)), "../../Users/Public"),
        ("a/b/top", true, reparse(mount_point, &paths(r"\??\C:\", None)), "../.."),
        ("a/away", true, reparse(mount_point, &paths(r"\??\D:\somewhere", None)), "D:/somewhere"),
        ("a/volume", true, reparse(mount_point, &paths(r"\??\Volume{12}\", None)), "//?/Volume{12}"),
        ("a/relative", false, reparse(symlink, &paths(r"..\users\FILE.TXT", Some(1))), "../Users/file.txt"),
        ("a/absolute", false, reparse(symlink, &paths(r"\??\C:\Users\file.txt", Some(0))), "../Users/file.txt"),
        ("a/rooted", false, reparse(symlink, &paths(r"\Users\file.txt", Some(1))), "../Users/file.txt"),
        ("a/dangling", false, reparse(symlink, &paths(r"nowhere\file", Some(1))), "nowhere/file"),
        ("a/share", false, reparse(symlink, &paths(r"\??\UNC\server\share", Some(0))), "//server/share"),
        (
            "a/through",
            true,
            reparse(symlink, &paths(r"\Documents and settings\Public", Some(1))),
            "../Documents and Settings/Public",
        ),
        ("a/wsl", false, reparse(0xA000_001D, b"\x02\0\0\0../some/where"), "../some/where"),
    ];
    for (name, is_directory, data, _) in links {
        match is_directory {
            true => fs::create_dir(dir.join(name)).unwrap(),
            false => drop(File::create(dir.join(name)).unwrap()),
        }
        set(&dir.join(name), "system.ntfs_reparse_data", data);
    }
    // Content that others provide: the size is known, the bytes are not.
    fs::write(dir.join("compact"), vec![0; 5000]).unwrap();
    set(&dir.join("compact"), "system.ntfs_reparse_data", &reparse(0x8000_0017, &[0; 16]));
    // A file of OneDrive that is here.
    fs::write(dir.join("synced"), "content").unwrap();
    set(&dir.join("synced"), "system.ntfs_reparse_data", &reparse(0x9000_601A, &[0; 16]));
    fs::create_dir(dir.join("cloud")).unwrap();
    fs::write(dir.join("cloud/here"), "here").unwrap();
    drop(mounted);
    let opened = try_open(&image).unwrap();
    for (name, _, _, target) in links {
        let id = opened.tree.lookup(name.as_bytes()).unwrap_or_else(|| panic!("{name}"));
        assert_eq!(opened.tree.inode(id).file_type(), FileType::Symlink, "{name}");
        assert_eq!(String::from_utf8_lossy(opened.tree.symlink_target(id)), *target, "{name}");
    }
    let mut synced = [0; 7];
    read_content(&*opened.content, opened.tree.lookup(b"synced").unwrap(), 0, &mut synced).unwrap();
    assert_eq!(&synced, b"content");
    assert!(opened.tree.lookup(b"compact").is_none() && opened.tree.lookup(b"cloud/here").is_some());
    assert!(
        opened.notes.iter().any(|note| note.contains("compact") && note.contains("left out")),
        "{:?}",
        opened.notes
    );
    let volume = open_volume(&image, Damage::Refused).unwrap();
    let node = volume.lookup(volume.root(), b"compact").unwrap().unwrap();
    assert_eq!(volume.attributes(node).unwrap().size, 5000);
    assert!(
        matches!(volume.extents(node, 0, 10), Err(VolumeError::Unsupported(reason)) if reason.contains("compress"))
    );
    // Names for MS-DOS are not listed, and a name is found as it is written only.
    let users = volume.lookup(volume.root(), b"Users").unwrap().unwrap();
    assert!(volume.lookup(volume.root(), b"USERS").unwrap().is_none());
    assert!(volume.lookup(volume.root(), b"$MFT").unwrap().is_none());
    assert_eq!(volume.parent(users).unwrap(), Some(volume.root()));
}

/// Content as wimlib compresses it, in chunks of so many bytes: a WIM image stores a file as Windows's system compression does.
fn compressed_by_wimlib(dir: &Path, content: &[u8], chunk: usize) -> Vec<u8> {
    let (source, image) = (dir.join("source"), dir.join("wim"));
    fs::create_dir_all(&source).unwrap();
    fs::write(source.join("file"), content).unwrap();
    let _ = fs::remove_file(&image);
    let chunk = format!("--chunk-size={chunk}");
    let arguments = ["capture".as_ref(), source.as_os_str(), image.as_os_str(), "--compress=xpress".as_ref()];
    run("wimlib-imagex", &[&arguments[..], &[chunk.as_ref()]].concat());
    let wim = fs::read(&image).unwrap();
    // The header has where the table of resources is; each has its size, flags, place, and size before.
    let (size, at) = (number(&wim, 48, 7) as usize, number(&wim, 56, 8) as usize);
    let entry = (at..at + size)
        .step_by(50)
        .find(|entry| wim[entry + 7] == 4 && number(&wim, entry + 16, 8) == content.len() as u64);
    let entry = entry.expect("the file is in the image");
    wim[number(&wim, entry + 8, 8) as usize..][..number(&wim, entry, 7) as usize].to_vec()
}

#[test]
fn windows_system_compression_is_read() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::within("/tmp");
    let image = scratch.path("image");
    mkntfs(&image, 32, &[]);
    // What compresses well, what does not, and long matches.
    let mut content = noise(1, 300_000);
    content.extend((0..20_000u64).map(|i| (i.wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 40) as u8));
    content.extend("the same words again and again, ".repeat(3000).into_bytes());
    content.extend(vec![7; 100_001]);
    let mounted = Mounted::writable(&image);
    let variants = [("4K", 4096, 0u32), ("8K", 8192, 2), ("16K", 16_384, 3)];
    for (name, chunk, algorithm) in variants {
        let stored = compressed_by_wimlib(&scratch.path("made"), &content, chunk);
        assert!(stored.len() < content.len());
        let file = mounted.0.join(name);
        File::create(&file).unwrap().set_len(content.len() as u64).unwrap();
        // A stream is too large for setxattr(2): ntfscp writes it.
        fs::write(scratch.path(name), &stored).unwrap();
        let data: Vec<u8> = [1, 2, 1, algorithm].into_iter().flat_map(u32::to_le_bytes).collect();
        set(&file, "system.ntfs_reparse_data", &reparse(0x8000_0017, &data));
    }
    drop(mounted);
    for (name, ..) in variants {
        let arguments = ["--force", "--quiet", "--attr-name", "WofCompressedData"].map(OsStr::new);
        let paths = [image.as_os_str(), scratch.path(name).as_os_str(), OsStr::new(name)].map(OsStr::to_owned);
        let paths: Vec<&OsStr> = paths.iter().map(|path| &**path).collect();
        run("/sbin/ntfscp", &[&arguments[..], &paths].concat());
    }
    let opened = try_open(&image).unwrap();
    assert_eq!(opened.notes, [""; 0]);
    for (name, ..) in variants {
        let id = opened.tree.lookup(name.as_bytes()).unwrap();
        assert_eq!(opened.tree.inode(id).size(), content.len() as u64);
        assert!(opened.tree.xattrs(opened.tree.inode(id).xattrs()).is_empty());
        let mut found = vec![0; content.len()];
        read_content(&*opened.content, id, 0, &mut found).unwrap();
        assert!(found == content, "{name}");
        for i in 0..100usize {
            let (start, length) = (i * 7_919_317 % content.len(), i * i * 3 % 40_000);
            let mut found = vec![1; length];
            read_content(&*opened.content, id, start as u64, &mut found).unwrap();
            let mut wanted = content[start..].to_vec();
            wanted.resize(length, 0);
            assert!(found == wanted, "{name}: {length} bytes from {start}");
        }
    }
    agree(&image, opened);
}

/// Windows's names for MS-DOS, which ntfs-3g makes when asked.
#[test]
fn short_names_are_not_names() {
    if !can_mount() {
        return;
    }
    let scratch = Scratch::within("/tmp");
    let image = scratch.path("image");
    mkntfs(&image, 32, &[]);
    let mounted = Mounted::new(&image, "streams_interface=xattr,windows_names");
    fs::write(mounted.0.join("a long name.text"), "content").unwrap();
    set(&mounted.0.join("a long name.text"), "system.ntfs_dos_name", b"ALONGN~1.TEX");
    fs::create_dir(mounted.0.join("Program Files")).unwrap();
    set(&mounted.0.join("Program Files"), "system.ntfs_dos_name", b"PROGRA~1");
    fs::create_dir(mounted.0.join("x")).unwrap();
    let data = reparse(0xA000_0003, &paths(r"\??\C:\PROGRA~1", None));
    set(&mounted.0.join("x"), "system.ntfs_reparse_data", &data);
    drop(mounted);
    let opened = try_open(&image).unwrap();
    let names: Vec<_> = opened.tree.entries(inarch_tree::InodeId::ROOT).map(|entry| entry.name.to_vec()).collect();
    assert_eq!(names, [b"Program Files".to_vec(), b"a long name.text".to_vec(), b"x".to_vec()]);
    let file = opened.tree.lookup(b"a long name.text").unwrap();
    assert_eq!(opened.tree.inode(file).links(), 1);
    assert_eq!(opened.tree.symlink_target(opened.tree.lookup(b"x").unwrap()), b"Program Files");
    let volume = open_volume(&image, Damage::Refused).unwrap();
    assert!(volume.lookup(volume.root(), b"ALONGN~1.TEX").unwrap().is_none());
    assert_eq!(
        volume.attributes(volume.lookup(volume.root(), b"a long name.text").unwrap().unwrap()).unwrap().links,
        1
    );
}

/// What is set in the volume's own files is told, and the volume is read.
#[test]
fn a_volume_that_was_not_left_cleanly_is_noted() {
    let scratch = Scratch::new();
    let image = scratch.path("image");
    mkntfs(&image, 16, &[]);
    assert_eq!(try_open(&image).unwrap().notes, [""; 0]);
    let clean = fs::read(&image).unwrap();
    let notes = |image: &[u8]| {
        fs::write(scratch.path("changed"), image).unwrap();
        try_open(&scratch.path("changed")).unwrap().notes
    };
    let mut dirty = clean.clone();
    let information = attribute(&dirty, record(&dirty, 3), 0x70);
    let value = information + number(&dirty, information + 20, 2) as usize;
    dirty[value + 10] |= 1;
    assert!(notes(&dirty)[0].contains("dirty"), "{:?}", notes(&dirty));
    // A restart page whose area, at byte 48, has a client, and not the flag that the log is clean.
    let mut logged = clean.clone();
    let data = attribute(&logged, record(&logged, 2), 0x80);
    let pairs = data + number(&logged, data + 32, 2) as usize;
    let (count, places) = (usize::from(logged[pairs] & 15), usize::from(logged[pairs] >> 4));
    let cluster = number(&logged, 11, 2) * number(&logged, 13, 1);
    let log = (number(&logged, pairs + 1 + count, places) * cluster) as usize;
    logged[log..log + 512].fill(0);
    logged[log..log + 4].copy_from_slice(b"RSTR");
    logged[log + 16..log + 20].copy_from_slice(&4096u32.to_le_bytes());
    logged[log + 24..log + 26].copy_from_slice(&48u16.to_le_bytes());
    logged[log + 48] = 7;
    assert!(notes(&logged)[0].contains("log is not replayed"), "{:?}", notes(&logged));
    logged[log + 48 + 14] = 2;
    assert_eq!(notes(&logged), [""; 0]);
    if !can_mount() {
        return;
    }
    let mounted = Mounted::writable(&image);
    fs::write(mounted.0.join("hiberfil.sys"), [&b"HIBR"[..], &[0; 5000]].concat()).unwrap();
    drop(mounted);
    let opened = try_open(&image).unwrap();
    assert!(opened.notes[0].contains("hibernated"), "{:?}", opened.notes);
    let content: Arc<dyn Content> = opened.content;
    let mut magic = [0; 4];
    read_content(&*content, opened.tree.lookup(b"hiberfil.sys").unwrap(), 0, &mut magic).unwrap();
    assert_eq!(&magic, b"HIBR");
}
