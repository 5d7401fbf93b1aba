//! Discs that genisoimage and xorriso made hold what was put into them, and so do some that are put together here.

use std::fs::{self, File};
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, SystemTime};

use inarch_confine::Parsing;
use inarch_format::{Damage, TreeAndContent, iso9660 as reader};
use inarch_tree::FileType;
use rustix::fs::{AtFlags, Timespec, Timestamps};

use crate::common::Scratch;
use crate::common::compare::{Facts, assert_facts, facts_of_directory, facts_of_tree};
use crate::ext4_read::made::run;
use crate::fat_reads::{backing, seen};
use crate::iso9660::{Disc, field, name, posix, record};

const WRITTEN: u64 = 1_720_096_496;
const DEEP: &str = "1/2/3/4/5/6/7/8/9/10/11/12";

fn source(at: &Path) {
    fs::create_dir_all(at.join(DEEP)).unwrap();
    fs::create_dir_all(at.join("many")).unwrap();
    for (number, path) in
        ["README.TXT", "a name with \u{E9} and \u{65E5}", "empty", "1/one", "script.sh"].iter().enumerate()
    {
        fs::write(at.join(path), vec![number as u8; number % 4 * 1500]).unwrap();
    }
    fs::write(at.join(DEEP).join("deep"), b"deep down").unwrap();
    fs::write(at.join("n".repeat(200)), b"long").unwrap();
    for number in 0..200 {
        fs::write(at.join(format!("many/name {number} {}", "x".repeat(number % 50))), number.to_string()).unwrap();
    }
    for (number, target) in
        ["README.TXT", "/abs/../x/./y", &"d/".repeat(60), &"t".repeat(200), "../.."].iter().enumerate()
    {
        symlink(target.trim_end_matches('/'), at.join(format!("link{number}"))).unwrap();
    }
    run(Command::new("mkfifo").arg(at.join("fifo")));
    run(Command::new("chmod").arg("4755").arg(at.join("script.sh")));
    stamp(at);
}

/// Gives everything one time, in whole seconds.
fn stamp(at: &Path) {
    for entry in fs::read_dir(at).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() && !path.is_symlink() {
            stamp(&path);
        }
        let time = Timespec { tv_sec: WRITTEN as i64, tv_nsec: 0 };
        let times = Timestamps { last_access: time, last_modification: time };
        rustix::fs::utimensat(rustix::fs::CWD, &path, &times, AtFlags::SYMLINK_NOFOLLOW).unwrap();
    }
    let time = SystemTime::UNIX_EPOCH + Duration::from_secs(WRITTEN);
    File::open(at).unwrap().set_modified(time).unwrap();
}

fn opened(image: &Path) -> TreeAndContent {
    let volume = reader::open_volume(Parsing::unconfined(), backing(image), Damage::Refused).unwrap();
    TreeAndContent::walk(Parsing::unconfined(), volume, Damage::Refused).unwrap()
}

fn make(program: &str, options: &[&str], image: &Path, source: &Path) {
    // A program that does not end is a failure.
    let mut command = Command::new("timeout");
    run(command.args(["60", program, "-quiet"]).args(options).arg("-o").arg(image).arg(source).env("TZ", "UTC"));
}

/// Without what is no part of the source.
fn of_source(mut facts: Facts) -> Facts {
    facts.remove(&b"rr_moved"[..]);
    facts.remove(&b""[..]);
    facts
}

#[test]
fn rock_ridge_is_read_with_moved_directories() {
    let scratch = Scratch::new();
    let source_at = scratch.path("source");
    source(&source_at);
    let expected = of_source(facts_of_directory(&source_at));
    for (number, (program, options)) in [
        ("genisoimage", &["-R"][..]),
        ("genisoimage", &["-R", "-J", "-joliet-long", "-iso-level", "3"]),
        ("xorrisofs", &["-R"]),
        ("xorrisofs", &["-R", "-J", "-joliet-long", "-disallow_dir_id_ext", "-iso-level", "1"]),
    ]
    .into_iter()
    .enumerate()
    {
        let image = scratch.path(&number.to_string());
        make(program, options, &image, &source_at);
        let opened = opened(&image);
        assert_eq!(opened.notes, [""; 0]);
        assert_facts(&of_source(facts_of_tree(&opened)), &expected);
        // An independent reader finds the same.
        let unpacked = scratch.path(&format!("unpacked{number}"));
        fs::create_dir(&unpacked).unwrap();
        run(Command::new("bsdtar").arg("-xpf").arg(&image).arg("-C").arg(&unpacked));
        let [mut found, mut unpacked] = [facts_of_tree(&opened), facts_of_directory(&unpacked)].map(of_source);
        // bsdtar loses a slash of a target in two fields.
        [&mut found, &mut unpacked].iter_mut().for_each(|facts| drop(facts.remove(&b"link2"[..])));
        assert_facts(&found, &unpacked);
    }
}

#[test]
fn joliet_and_plain_names_are_read() {
    let scratch = Scratch::new();
    let source_at = scratch.path("source");
    fs::create_dir_all(source_at.join("Dir")).unwrap();
    fs::write(source_at.join("Dir/a Name with \u{E9} \u{65E5}.text"), b"one").unwrap();
    fs::write(source_at.join("readme.txt"), b"two").unwrap();
    fs::write(source_at.join("noext"), b"three").unwrap();
    stamp(&source_at);
    let names = |opened: &TreeAndContent| seen(opened).into_keys().collect::<Vec<_>>();
    make("genisoimage", &["-J", "-input-charset", "utf-8"], &scratch.path("joliet"), &source_at);
    let joliet = opened(&scratch.path("joliet"));
    assert_eq!(names(&joliet), ["Dir", "Dir/a Name with \u{E9} \u{65E5}.text", "noext", "readme.txt"]);
    assert_eq!(seen(&joliet)["readme.txt"], (0o100_644, WRITTEN as i64, b"two".to_vec()));
    assert_eq!(seen(&joliet)["Dir"].0, 0o040_755);
    make("genisoimage", &[], &scratch.path("plain"), &source_at);
    let plain = names(&opened(&scratch.path("plain")));
    assert_eq!([&plain[0], &plain[2], &plain[3]], ["DIR", "NOEXT", "README.TXT"], "{plain:?}");
}

#[test]
fn a_file_of_several_sections_is_one_file() {
    for rock in [false, true] {
        let mut disc = Disc::new(rock);
        let system = |named: &[u8]| if rock { [posix(0o100_600), name(named)].concat() } else { Vec::new() };
        // So many names that the sections lie in two sectors.
        for number in 0..31 {
            disc.put(&record(
                format!("FILLER{number:02}.TXT;1").as_bytes(),
                0,
                40,
                3,
                if rock { b"" } else { &[0; 12] },
            ));
        }
        disc.fill(40, b"abc");
        let mut other = Disc::new(rock);
        for (section, (sector, size)) in [(30, 2048), (35, 4096), (33, 100)].into_iter().enumerate() {
            let flags = if section < 2 { 0x80 } else { 0 };
            other.put(&record(b"BIG.BIN;1", flags, sector, size, &system(b"big")));
            other.fill(sector, &[b'0' + section as u8; 2048]);
        }
        other.fill(36, &[b'1'; 2048]);
        other.put(&record(b"LAST.;1", 0, 40, 3, &system(b"last")));
        other.fill(40, b"abc");
        let opened = other.walk(Damage::Refused).unwrap();
        let seen = seen(&opened);
        let [big, last] = if rock { ["big", "last"] } else { ["BIG.BIN", "LAST"] };
        assert_eq!(seen.keys().collect::<Vec<_>>(), [big, last]);
        let mode = if rock { 0o100_600 } else { 0o100_644 };
        let expected = [vec![b'0'; 2048], vec![b'1'; 4096], vec![b'2'; 100]].concat();
        assert!(seen[big] == (mode, WRITTEN as i64, expected));
        assert_eq!(seen[last].2, b"abc");
        assert_eq!(disc.walk(Damage::Refused).unwrap().tree.inode_count(), 32);
    }
}

#[test]
fn compressed_content_is_said_to_be_unread() {
    let mut disc = Disc::new(true);
    let zisofs = field(b"ZF", b"pz\x04\x0F\x10\0\0\0\0\0\0\x10");
    disc.put(&record(b"A.;1", 0, 30, 100, &[posix(0o100_644), name(b"packed"), zisofs].concat()));
    disc.put(&record(b"B.;1", 0, 30, 100, &[posix(0o100_644), name(b"plain")].concat()));
    let opened = disc.walk(Damage::Refused).unwrap();
    assert_eq!(opened.notes, ["\"packed\": is compressed by zisofs, which is not read; it is left out"]);
    assert_eq!(seen(&opened).into_keys().collect::<Vec<_>>(), ["plain"]);
}

#[test]
fn devices_have_their_numbers() {
    let mut disc = Disc::new(true);
    let number = |high: u32, low: u32| {
        let both = |n: u32| [n.to_le_bytes(), n.to_be_bytes()].concat();
        field(b"PN", &[both(high), both(low)].concat())
    };
    disc.put(&record(b"A.;1", 0, 0, 0, &[posix(0o020_666), name(b"null"), number(1, 3)].concat()));
    disc.put(&record(b"B.;1", 0, 0, 0, &[posix(0o060_660), name(b"old"), number(0, 0x801)].concat()));
    let opened = disc.walk(Damage::Refused).unwrap();
    let devices: Vec<_> = opened.tree.inodes().skip(1).map(|(_, inode)| (inode.file_type(), inode.device())).collect();
    assert_eq!(devices, [(FileType::CharDevice, (1, 3)), (FileType::BlockDevice, (8, 1))]);
}
