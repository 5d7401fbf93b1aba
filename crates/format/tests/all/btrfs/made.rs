//! File systems that the kernel of this host has written: every way of compression, sizes of nodes, checksums; reflinks,
//! snapshots, subvolumes, large directories, sparse and preallocated files.

use std::collections::HashMap;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use inarch_block::BackingFile;
use inarch_confine::Parsing;
use inarch_format::btrfs::{Root, open_volume};
use inarch_format::{Damage, TreeAndContent};
use inarch_volume::{Node, Volume};
use rustix::fs::{SeekFrom, XattrFlags, seek};

use super::build::{name_hash, text};
use super::opened;
use crate::common::Scratch;
use crate::common::archive::{self, ALL, sample};
use crate::common::compare::{Facts, assert_facts, facts_of_directory, facts_of_tree};
use crate::common::mount::Mount;
use crate::ext4_read::made::{can_mount, run, scratch};
use crate::volumes_agree::assert_agree;

/// Directories where a subvolume is missing: the kernel says that they changed just now.
const MISSING: &[&str] = &["snapshot/inner", "snapshots/of-snapshot/inner"];

/// Bytes that do not compress.
fn noise(length: usize) -> Vec<u8> {
    let mut state = 1u64;
    let next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) as u8
    };
    std::iter::repeat_with(next).take(length).collect()
}

fn btrfs(arguments: &[&str], at: &Path) {
    run(Command::new("btrfs").args(arguments).current_dir(at));
}

fn host(script: &str, at: &Path) {
    run(Command::new("sh").args(["-ec", script]).current_dir(at));
}

/// Names of one hash, which share an item of a directory.
fn same_hash() -> Vec<[String; 2]> {
    let mut known = HashMap::new();
    let mut pairs = Vec::new();
    for number in 0..400_000 {
        let name = format!("{:016x}", u64::from(number + 1u32).wrapping_mul(0x9E37_79B9_7F4A_7C15));
        if let Some(other) = known.insert(name_hash(name.as_bytes()), name.clone()) {
            pairs.push([other, name]);
        }
    }
    assert!(pairs.len() > 3);
    pairs
}

/// Fills a mounted file system with some thousand files of all kinds.
fn fill(at: &Path) {
    sample(&at.join("sample"), ALL);
    for directory in ["sizes", "many", "names", "attributes"] {
        fs::create_dir(at.join(directory)).unwrap();
    }
    for size in [1, 100, 2000, 2048, 2049, 4000, 4096, 5000, 100_000, 131_072, 131_073, 1_000_003, 5_000_000] {
        fs::write(at.join(format!("sizes/text-{size}")), text(size)).unwrap();
        fs::write(at.join(format!("sizes/noise-{size}")), noise(size)).unwrap();
    }
    let mixed = [text(200_000), noise(200_000), vec![0; 200_000], text(777)].concat();
    fs::write(at.join("sizes/mixed"), &mixed).unwrap();
    for number in 0..1500 {
        let directory = at.join(format!("many/{}/{}", number % 7, number % 40));
        fs::create_dir_all(&directory).unwrap();
        fs::write(directory.join(format!("{number}")), &text(6000)[..number * 4]).unwrap();
    }
    for number in 0..4000 {
        fs::write(at.join(format!("names/{number:0>width$}", width = 1 + number % 240)), "").unwrap();
    }
    for pair in same_hash() {
        for name in pair {
            fs::write(at.join("names").join(&name), name.as_bytes()).unwrap();
        }
    }
    for (number, length) in [0, 1, 300, 2000, 3000].into_iter().enumerate() {
        let path = at.join(format!("attributes/{number}"));
        fs::write(&path, "x").unwrap();
        for more in 0..20 {
            let name = format!("user.attribute-{more}");
            rustix::fs::setxattr(&path, name, &noise(length), XattrFlags::empty()).unwrap();
        }
    }
    // Parts of extents: shared ones, overwritten ones, cut ones.
    host("cp --reflink=always sizes/text-1000003 shared; cp --reflink=always sizes/mixed cut", at);
    let shared = File::options().write(true).open(at.join("shared")).unwrap();
    rustix::fs::fsync(&shared).unwrap();
    shared.write_all_at(&noise(9000), 300_000).unwrap();
    File::options().write(true).open(at.join("cut")).unwrap().set_len(150_001).unwrap();
    let script = "fallocate -l 1M preallocated; fallocate -l 300K partly; echo x > behind; fallocate -n -l 1M behind; touch nocow; chattr +C nocow
        yes nocow | head -c 300000 > nocow; cp sizes/noise-1000003 punched; sync
        fallocate -p -o 65536 -l 100000 punched; fallocate -p -o 500000 -l 4096 punched; truncate -s 2M punched";
    host(script, at);
    File::options().write(true).open(at.join("partly")).unwrap().write_all_at(&text(10_000), 100_000).unwrap();
    subvolumes(at);
}

fn subvolumes(at: &Path) {
    btrfs(&["subvolume", "create", "volume"], at);
    btrfs(&["subvolume", "create", "volume/inner"], at);
    fs::write(at.join("volume/a"), text(50_000)).unwrap();
    fs::create_dir(at.join("volume/directory")).unwrap();
    fs::write(at.join("volume/inner/b"), "inner").unwrap();
    btrfs(&["subvolume", "snapshot", "-r", "volume", "snapshot"], at);
    fs::write(at.join("volume/directory/later"), "later").unwrap();
    fs::write(at.join("volume/a"), text(20)).unwrap();
    fs::create_dir(at.join("snapshots")).unwrap();
    btrfs(&["subvolume", "snapshot", "snapshot", "snapshots/of-snapshot"], at);
    fs::write(at.join("snapshots/of-snapshot/directory/changed"), "changed").unwrap();
    fs::hard_link(at.join("volume/inner/b"), at.join("volume/inner/c")).unwrap();
    btrfs(&["subvolume", "create", "deleted"], at);
    btrfs(&["subvolume", "delete", "deleted"], at);
}

/// Makes a file system and fills it.
fn make(scratch: &Scratch, mkfs: &[&str], options: &str, fill: &dyn Fn(&Path)) -> PathBuf {
    let image = scratch.path("image");
    File::create(&image).unwrap().set_len(400 << 20).unwrap();
    run(Command::new("mkfs.btrfs").arg("-q").args(mkfs).arg(&image));
    let mount = Mount::new(&image, &format!("loop,{options}")).unwrap();
    fill(&mount.0);
    drop(mount);
    image
}

/// Facts without those of directories that stand in for subvolumes, which must be there.
fn without_missing(mut facts: Facts, missing: &[&str]) -> Facts {
    for path in missing {
        assert_eq!(facts.remove(path.as_bytes()).expect(path)[0], "40755", "{path}");
    }
    facts
}

fn assert_as_mounted(image: &Path, root: Root, options: &str, missing: &[&str]) -> TreeAndContent {
    let opened = opened(image, root).unwrap();
    let mount = Mount::new(image, &format!("loop,ro,{options}")).unwrap();
    let found = without_missing(facts_of_tree(&opened), missing);
    assert_facts(&found, &without_missing(facts_of_directory(&mount.0), missing));
    opened
}

#[test]
fn every_file_is_as_the_kernel_shows_it() {
    if !can_mount() {
        return;
    }
    for (mkfs, options) in [
        (&[][..], "compress=no"),
        (&["--csum", "xxhash"], "compress-force=zlib"),
        (&["--csum", "sha256", "-n", "64k"], "compress-force=lzo"),
        (&["-n", "4k", "-m", "single"], "compress=zstd"),
        (&["--mixed", "--csum", "blake2", "-O", "^no-holes"], "compress-force=zstd:9"),
    ] {
        let scratch = scratch();
        let image = make(&scratch, mkfs, options, &fill);
        let opened = assert_as_mounted(&image, Root::Default, "", MISSING);
        let told = |text: &str| opened.notes.iter().any(|note| note.contains(text));
        assert!(opened.tree.inode_count() > 5500);
        assert_eq!(told("BLAKE2b"), mkfs.contains(&"blake2"), "{:?}", opened.notes);
        assert!(told("2 directories are empty in a snapshot"), "{:?}", opened.notes);
        assert!(told("chattr (C), which"), "{:?}", opened.notes);
    }
}

#[test]
fn any_subvolume_can_be_the_root() {
    if !can_mount() {
        return;
    }
    let scratch = scratch();
    let image = make(&scratch, &[], "compress=no", &|at| {
        subvolumes(at);
        // `set-default` of the one that was made first after the top.
        btrfs(&["subvolume", "set-default", "256", "."], at);
    });
    let inner = &["inner"][..];
    for (root, options, missing) in [
        (Root::Default, "", &[][..]),
        (Root::Id(5), "subvolid=5", MISSING),
        (Root::Id(256), "subvolid=256", &[]),
        (Root::Path(b"/volume/inner".to_vec()), "subvol=volume/inner", &[]),
        (Root::Path(b"snapshots//of-snapshot/".to_vec()), "subvol=snapshots/of-snapshot", inner),
    ] {
        assert_as_mounted(&image, root, options, missing);
    }
    for root in
        [Root::Id(7), Root::Id(9999), Root::Path(b"volume/a".to_vec()), Root::Path(b"volume/directory".to_vec())]
    {
        let error = opened(&image, root.clone()).err().unwrap().to_string();
        assert!(error.contains("it has no subvolume"), "{root:?}: {error}");
    }
    assert!(opened(&image, Root::Path(b"snapshot/inner".to_vec())).is_err());
}

fn find(volume: &dyn Volume, path: &str) -> Node {
    path.split('/').fold(volume.root(), |node, name| volume.lookup(node, name.as_bytes()).unwrap().expect(path))
}

/// `SEEK_DATA` and `SEEK_HOLE`, and which content is in the image as it is.
#[test]
fn holes_are_where_the_kernel_sees_them_and_only_what_is_compressed_is_unpacked() {
    if !can_mount() {
        return;
    }
    let scratch = scratch();
    let image = make(&scratch, &[], "compress=zstd", &fill);
    let backing = Arc::new(BackingFile::new(archive_file(&image), image.clone()).unwrap());
    let volume = open_volume(Parsing::unconfined(), backing, Damage::Refused).unwrap();
    let mount = Mount::new(&image, "loop,ro").unwrap();
    for path in [
        "punched",
        "sample/sparse",
        "sample/hole",
        "sample/sparse-end",
        "shared",
        "cut",
        "sizes/mixed",
        "preallocated",
        "partly",
    ] {
        let (node, file) = (find(&*volume, path), File::open(mount.0.join(path)).unwrap());
        let size = file.metadata().unwrap().len();
        let mut at = 0;
        while at < size {
            let data = seek(&file, SeekFrom::Data(at)).ok();
            let found = volume.data(node, at).unwrap();
            assert_eq!(found.map(|range| range.offset.max(at)), data, "{path} from {at}");
            let Some(range) = found else { break };
            let end = (range.offset + range.length).min(size);
            assert_eq!(seek(&file, SeekFrom::Hole(range.offset)).ok(), Some(end), "{path} from {at}");
            at = end + 1;
        }
    }
    let extents = |path| volume.extents(find(&*volume, path), 0, u64::MAX).unwrap().map(|list| list.len());
    assert_eq!(extents("sizes/text-1000003"), None);
    assert_eq!(extents("sizes/noise-100"), Some(1));
    assert!(extents("sizes/noise-1000003").is_some_and(|count| count <= 3));
    assert_eq!(extents("preallocated"), Some(0));
}

fn archive_file(image: &Path) -> File {
    crate::common::compare::open(image)
}

#[test]
fn a_walk_and_questions_give_the_same() {
    if !can_mount() {
        return;
    }
    let scratch = scratch();
    let image = make(&scratch, &[], "compress=lzo", &|at| {
        archive::sample(&at.join("sample"), ALL);
        fs::write(at.join("text"), text(300_000)).unwrap();
        btrfs(&["subvolume", "create", "volume"], at);
        btrfs(&["subvolume", "create", "volume/inner"], at);
        fs::write(at.join("volume/inner/b"), "inner").unwrap();
        for number in 0..2000 {
            fs::write(at.join(format!("volume/{number}")), text(number)).unwrap();
        }
    });
    let inodes = opened(&image, Root::Default).unwrap().tree.inode_count();
    let backing = Arc::new(BackingFile::new(archive_file(&image), image.clone()).unwrap());
    assert_agree(open_volume, backing, inodes);
}

/// A machine that lost power: what was synced since the last commit is in the log, which is not replayed.
#[test]
fn a_log_that_is_not_replayed_is_told() {
    if !can_mount() {
        return;
    }
    let scratch = scratch();
    let crashed = scratch.path("crashed");
    make(&scratch, &[], "commit=300", &|at| {
        fs::write(at.join("before"), "before").unwrap();
        host("sync -f .", at);
        fs::write(at.join("synced"), "synced").unwrap();
        File::open(at.join("synced")).unwrap().sync_all().unwrap();
        fs::copy(at.with_extension(""), &crashed).unwrap();
    });
    let opened = opened(&crashed, Root::Default).unwrap();
    assert!(opened.notes.iter().any(|note| note.contains("not replayed")), "{:?}", opened.notes);
    assert!(opened.tree.lookup(b"before").is_some());
}

#[test]
fn what_is_free_is_what_the_kernel_says() {
    if !can_mount() {
        return;
    }
    let scratch = scratch();
    for options in [&[][..], &["-m", "single"], &["-d", "dup", "-m", "dup"], &["--mixed"]] {
        let image = make(&scratch, options, "noatime", &|at| fs::write(at.join("file"), noise(30 << 20)).unwrap());
        let backing = BackingFile::new(File::open(&image).unwrap(), image.clone()).unwrap();
        let ours = open_volume(Parsing::unconfined(), Arc::new(backing), Damage::Refused).unwrap().statistics();
        // Of a file system that it may not write to, the kernel calls nothing available.
        let mount = Mount::new(&image, "loop").unwrap();
        let theirs = rustix::fs::statvfs(&mount.0).unwrap();
        assert_eq!((ours.blocks, ours.available_blocks()), (theirs.f_blocks, theirs.f_bavail), "{options:?}");
        // Its reserve for changes of metadata, whose size differs from version to version, counts as used.
        let told = Command::new("btrfs").args(["filesystem", "usage", "-b"]).arg(&mount.0).output().unwrap();
        let told = String::from_utf8(told.stdout).unwrap();
        let reserve = told.lines().find_map(|line| line.trim().strip_prefix("Global reserve:")).unwrap();
        let reserve: u64 = reserve.split_whitespace().next().unwrap().parse().unwrap();
        assert_eq!(ours.free_blocks - reserve / theirs.f_frsize, theirs.f_bfree, "{options:?}");
    }
}
