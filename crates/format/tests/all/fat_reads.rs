//! FATs that mkfs.fat and mtools made hold what was put into them.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use inarch_block::{BackingFile, read_content};
use inarch_confine::Parsing;
use inarch_format::{Damage, TreeAndContent, fat};
use inarch_tree::{FileType, InodeId};
use inarch_volume::Volume;

use crate::common::Scratch;
use crate::ext4_read::made::run;

/// 2024-07-04 12:34:56.
const WRITTEN: u64 = 1_720_096_496;

/// Mode, time of last write, and content of each name.
pub type Seen = BTreeMap<String, (u32, i64, Vec<u8>)>;

/// What is in an image, but for the root.
pub fn seen(opened: &TreeAndContent) -> Seen {
    let tree = &opened.tree;
    let mut seen = Seen::new();
    for (id, inode) in tree.inodes().filter(|(id, _)| *id != InodeId::ROOT) {
        let mut bytes = tree.symlink_target(id).to_vec();
        if inode.file_type() == FileType::Regular {
            bytes = vec![0; inode.size() as usize];
            read_content(&*opened.content, id, 0, &mut bytes).unwrap();
        }
        let path = String::from_utf8(tree.path(id)).unwrap();
        seen.insert(path, (inode.mode(), inode.mtime().seconds, bytes));
    }
    seen
}

/// Opens an image of the host.
pub fn backing(image: &Path) -> Arc<BackingFile> {
    Arc::new(BackingFile::new(File::open(image).unwrap(), image.to_owned()).unwrap())
}

fn opened(image: &Path) -> (Arc<dyn Volume>, TreeAndContent) {
    let volume = fat::open_volume(Parsing::unconfined(), backing(image), Damage::Refused).unwrap();
    let opened = TreeAndContent::walk(Parsing::unconfined(), Arc::clone(&volume), Damage::Refused).unwrap();
    (volume, opened)
}

/// A directory of names that FAT can hold, and what is to be seen of it.
fn source(at: &Path) -> Seen {
    let mut expected = Seen::new();
    let content = |size: usize| (0..size).map(|i| (i ^ i >> 8 ^ size) as u8).collect::<Vec<u8>>();
    let long = format!("{}.long", "n".repeat(240));
    let names = [
        "README.TXT",
        "lower.txt",
        "Mixed Case.text",
        "\u{DC}n\u{EF} \u{65E5}\u{672C}.txt",
        &long,
        "dot.",
        "a/b/c/deep",
    ];
    let sizes = [0, 1, 511, 512, 513, 4096, 100_000];
    let many = (0..300).map(|number| format!("many/a name of some length {number}.dat"));
    for (number, name) in names.iter().map(|name| (*name).to_owned()).chain(many).enumerate() {
        let (path, bytes) = (at.join(&name), content(sizes[number % sizes.len()] + number));
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, &bytes).unwrap();
        let time = SystemTime::UNIX_EPOCH + Duration::from_secs(WRITTEN);
        File::options().write(true).open(&path).unwrap().set_modified(time).unwrap();
        expected.insert(name, (0o100_644, WRITTEN as i64, bytes));
    }
    expected
}

fn mtools(image: &Path, arguments: &[&str]) {
    let (tool, rest) = arguments.split_first().unwrap();
    let mut command = Command::new(tool);
    command.arg("-i").arg(image).args(rest);
    let command = command.env("TZ", "UTC").env("LC_ALL", "C.UTF-8").env("MTOOLS_SKIP_CHECK", "1");
    let output = command.output().expect("mtools is installed");
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
}

/// Makes an image that holds the same as the source, with files that lie in pieces.
pub fn make(image: &Path, bits: &str, megabytes: u64, source: &Path) {
    File::create(image).unwrap().set_len(megabytes << 20).unwrap();
    let sectors = if bits == "32" { "1" } else { "4" };
    run(Command::new("mkfs.fat").args(["-F", bits, "-s", sectors, "-n", "LABEL"]).arg(image));
    // Gaps of one cluster, which what comes next fills.
    let scrap = image.with_extension("scrap");
    fs::write(&scrap, [7; 3000]).unwrap();
    let target = |number: usize| format!("::/scrap{number}");
    for number in 0..40 {
        mtools(image, &["mcopy", scrap.to_str().unwrap(), &target(number)]);
    }
    for number in (0..40).step_by(2) {
        mtools(image, &["mdel", &target(number)]);
    }
    let mut entries: Vec<_> = fs::read_dir(source).unwrap().map(|entry| entry.unwrap().path()).collect();
    entries.sort();
    for entry in entries {
        mtools(image, &["mcopy", "-s", "-m", "-Q", entry.to_str().unwrap(), "::/"]);
    }
    for number in (1..40).step_by(2) {
        mtools(image, &["mdel", &target(number)]);
    }
    mtools(image, &["mattrib", "+r", "::/README.TXT"]);
}

#[test]
fn what_mtools_wrote_is_read() {
    let scratch = Scratch::new();
    let mut expected = source(&scratch.path("source"));
    expected.get_mut("README.TXT").unwrap().0 = 0o100_444;
    // FAT has no dots at the end of names.
    let dot = expected.remove("dot.").unwrap();
    for (bits, megabytes) in [("12", 6), ("16", 32), ("32", 40)] {
        let image = scratch.path(bits);
        make(&image, bits, megabytes, &scratch.path("source"));
        let (volume, opened) = opened(&image);
        assert_eq!(opened.notes, [""; 0]);
        let mut found = seen(&opened);
        let found_dot = found.remove("dot").or_else(|| found.remove("dot.")).unwrap();
        assert_eq!(found_dot.2, dot.2);
        let directories = ["a", "a/b", "a/b/c", "many"].map(|name| found.remove(name).unwrap().0);
        assert_eq!(directories, [0o040_755; 4]);
        assert_eq!(found.keys().collect::<Vec<_>>(), expected.keys().collect::<Vec<_>>(), "{bits}");
        assert!(found == expected, "{bits}: content or times differ");
        // A file in pieces is more than one range of the image, and nothing of it is copied.
        let file = volume.lookup(volume.root(), b"lower.txt").unwrap().unwrap();
        assert!(volume.extents(file, 0, 1 << 20).unwrap().is_some());
        let place = |path: &[&str]| {
            path.iter().fold(volume.root(), |at, name| volume.lookup(at, name.as_bytes()).unwrap().unwrap())
        };
        assert_eq!(volume.parent(place(&["a", "b", "c"])).unwrap(), Some(place(&["a", "b"])));
        assert_eq!(volume.parent(place(&["a", "b"])).unwrap(), Some(place(&["a"])));
        assert_eq!(volume.parent(place(&["a"])).unwrap(), Some(volume.root()));
        let deep = place(&["a", "b", "c", "deep"]);
        assert!(volume.lookup(volume.root(), b"LOWER.TXT").unwrap().is_none());
        assert!(volume.list(deep, 0, &mut |_| true).is_err());
    }
}

#[test]
fn an_image_without_its_end_is_refused_or_salvaged() {
    let scratch = Scratch::new();
    source(&scratch.path("source"));
    make(&scratch.path("image"), "16", 32, &scratch.path("source"));
    File::options().write(true).open(scratch.path("image")).unwrap().set_len(20 << 20).unwrap();
    let open = |damage| fat::open_volume(Parsing::unconfined(), backing(&scratch.path("image")), damage);
    let error = open(Damage::Refused).err().unwrap().to_string();
    assert!(error.contains("its end is missing") && error.contains("--salvage"), "{error}");
    assert!(open(Damage::Salvaged).unwrap().notes()[0].contains("its end is missing"));
}
