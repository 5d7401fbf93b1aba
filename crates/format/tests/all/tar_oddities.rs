//! Archives that no program should make: each is read as unpacking it would go, or refused with one clear line.

use std::io::Cursor;
use std::sync::Arc;

use crate::common::compare::facts_of_tree;
use crate::common::mount::unmount;
use inarch_block::{Backing, read_content};
use inarch_confine::Parsing;
use inarch_format::{Damage, ReadError, ThisHost, TreeAndContent, oci};
use inarch_tree::{DataRange, InodeId};

struct Memory(Vec<u8>);

impl Backing for Memory {
    fn size(&self) -> u64 {
        self.0.len() as u64
    }

    fn read(&self, offset: u64, count: u64, out: &mut inarch_block::Cursor<'_, '_>) -> std::io::Result<()> {
        let bytes = self.0.get(offset as usize..(offset + count) as usize);
        out.copy_from(bytes.ok_or(std::io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }
}

/// Opens an archive with these bytes.
fn read(bytes: &[u8], damage: Damage) -> Result<TreeAndContent, ReadError> {
    let archive = Arc::new(Memory(bytes.to_vec()));
    oci::open_tar(Parsing::unconfined(), archive, &ThisHost::new(&std::env::temp_dir()), damage)
}

/// An archive that is put together by hand.
#[derive(Clone, Default)]
struct Archive(Vec<u8>);

impl Archive {
    /// A header; `patches` are put over it before its checksum.
    fn header(mut self, name: &str, kind: u8, size: u64, patches: &[(usize, &[u8])]) -> Archive {
        let mut header = [0; 512];
        let fields = [
            (0, name.as_bytes()),
            (100, b"0000644"),
            (108, b"0000000"),
            (116, b"0000000"),
            (124, format!("{size:011o}").as_bytes()),
            (136, b"00000000001"),
            (148, b"        "),
            (156, &[kind]),
            (257, b"ustar\x0000"),
        ]
        .map(|(at, bytes): (usize, &[u8])| (at, bytes.to_vec()));
        let patches = patches.iter().map(|(at, bytes)| (*at, bytes.to_vec()));
        for (at, bytes) in fields.into_iter().chain(patches) {
            header[at..at + bytes.len()].copy_from_slice(&bytes);
        }
        let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
        header[148..155].copy_from_slice(format!("{sum:06o}\0").as_bytes());
        self.0.extend_from_slice(&header);
        self
    }

    fn data(mut self, data: &[u8]) -> Archive {
        self.0.extend_from_slice(data);
        self.0.resize(self.0.len().next_multiple_of(512), 0);
        self
    }

    fn file(self, name: &str, data: &str) -> Archive {
        self.header(name, b'0', data.len() as u64, &[]).data(data.as_bytes())
    }

    fn link(self, kind: u8, name: &str, target: &str) -> Archive {
        self.header(name, kind, 0, &[(157, target.as_bytes())])
    }

    fn extended(self, kind: u8, records: &[(&str, &str)]) -> Archive {
        let mut data = String::new();
        for (keyword, value) in records {
            let body = format!(" {keyword}={value}\n");
            let digits = (1..8).find(|digits| (body.len() + digits).to_string().len() == *digits);
            data.push_str(&format!("{}{body}", body.len() + digits.unwrap()));
        }
        self.header("pax", kind, data.len() as u64, &[]).data(data.as_bytes())
    }

    fn end(mut self) -> Archive {
        self.0.resize(self.0.len() + 1024, 0);
        self
    }

    fn open(self) -> Result<TreeAndContent, ReadError> {
        self.end().open_bytes()
    }

    /// Without an end of its own.
    fn open_bytes(self) -> Result<TreeAndContent, ReadError> {
        read(&self.0, Damage::Refused)
    }

    /// Its names, a slash and a number behind each that has more than one.
    fn names(self) -> Vec<String> {
        let opened = self.open().unwrap();
        facts_of_tree(&opened).into_keys().skip(1).map(|name| name.escape_ascii().to_string()).collect()
    }

    fn notes(self) -> Vec<String> {
        self.open().unwrap().notes
    }

    fn refusal(self) -> String {
        self.open().err().expect("it is refused").to_string()
    }

    fn refusal_of_bytes(self) -> String {
        self.open_bytes().err().expect("it is refused").to_string()
    }
}

/// What can be read of damaged bytes.
fn salvaged(bytes: Vec<u8>) -> TreeAndContent {
    read(&bytes, Damage::Salvaged).unwrap()
}

fn content(opened: &TreeAndContent, path: &str) -> String {
    let inode = opened.tree.lookup(path.as_bytes()).unwrap_or_else(|| panic!("{path} is missing"));
    let mut bytes = vec![0; opened.tree.inode(inode).size() as usize];
    read_content(&*opened.content, inode, 0, &mut bytes).unwrap();
    String::from_utf8(bytes).unwrap()
}

fn new() -> Archive {
    Archive::default()
}

#[test]
fn nothing_leaves_the_tree() {
    let archive = new()
        .file("../up", "1")
        .file("/etc/passwd", "2")
        .file("a/../../b", "3")
        .link(b'2', "out", "/../../outside")
        .file("out/x", "4")
        .link(b'1', "hard", "../../secret")
        .link(b'1', "etc2", "/etc/passwd");
    let opened = archive.clone().open().unwrap();
    assert_eq!(content(&opened, "etc/passwd"), "2");
    assert_eq!(content(&opened, "etc2"), "2");
    assert_eq!(content(&opened, "outside/x"), "4");
    assert_eq!(archive.clone().names(), ["etc", "etc/passwd", "etc2", "out", "outside", "outside/x"]);
    let notes = archive.notes();
    assert!(notes.contains(&"../up: it is left out, as its path has '..' in it".to_owned()), "{notes:?}");
    assert!(notes.iter().any(|note| note.starts_with("hard: ")), "{notes:?}");
}

#[test]
fn hard_links_need_a_target_that_came_before() {
    let archive =
        new().link(b'1', "early", "late").file("late", "x").link(b'1', "gone", "nothing").link(b'1', "ok", "late");
    assert_eq!(archive.clone().names(), ["late", "ok"]);
    assert_eq!(archive.notes().len(), 2);
}

#[test]
fn a_hard_link_may_have_content_of_its_own_or_claim_some() {
    let claims = new().file("a", "hello").header("b", b'1', 5, &[(157, b"a")]).file("c", "x").open().unwrap();
    assert_eq!((content(&claims, "b"), content(&claims, "c")), ("hello".to_owned(), "x".to_owned()));
    let has =
        new().file("a", "hello").header("b", b'1', 5, &[(157, b"a")]).data(b"hello").file("c", "x").open().unwrap();
    assert_eq!((content(&has, "b"), content(&has, "c")), ("hello".to_owned(), "x".to_owned()));
}

#[test]
fn a_directory_may_have_content_or_claim_some() {
    for kind in [0, b'0', b'5'] {
        let claims = new().header("d/", kind, 5, &[]).file("a", "1");
        let has = new().header("d/", kind, 5, &[]).data(b"hello").file("a", "1");
        for archive in [claims, has] {
            assert_eq!(archive.names(), ["a", "d"], "{kind}");
        }
    }
}

#[test]
fn global_headers_hold_until_they_are_taken_back() {
    let opened = new()
        .extended(b'g', &[("uid", "77"), ("mtime", "5.5"), ("comment", "x")])
        .file("a", "")
        .extended(b'x', &[("uid", "78")])
        .file("b", "")
        .extended(b'x', &[("uid", "")])
        .file("c", "")
        .extended(b'g', &[("uid", "")])
        .file("d", "")
        .open()
        .unwrap();
    let uid = |name: &str| opened.tree.inode(opened.tree.lookup(name.as_bytes()).unwrap()).uid();
    assert_eq!((uid("a"), uid("b"), uid("c"), uid("d")), (77, 78, 0, 0));
    let mtime = opened.tree.inode(opened.tree.lookup(b"d").unwrap()).mtime();
    assert_eq!((mtime.seconds, mtime.nanoseconds), (5, 500_000_000));
}

/// Records of attributes with these names and values.
fn attributes(archive: Archive, kind: u8, all: &[(String, &str)]) -> Archive {
    let keywords: Vec<String> = all.iter().map(|(name, _)| format!("SCHILY.xattr.user.{name}")).collect();
    let records: Vec<_> = keywords.iter().zip(all).map(|(keyword, (_, value))| (&keyword[..], *value)).collect();
    archive.extended(kind, &records)
}

#[test]
fn a_file_has_no_more_attributes_than_linux_gives_it() {
    let value = "v".repeat(1 << 16);
    let many = |count: usize| (0..count).map(|number| (number.to_string(), "")).collect::<Vec<_>>();
    let large = |count: usize| (0..count).map(|number| (number.to_string(), &value[..])).collect::<Vec<_>>();
    for (set, fits) in [(many(90), true), (many(20_000), false), (large(16), true), (large(17), false)] {
        let archive = attributes(new().file("before", ""), b'x', &set).file("dir/it", "");
        if fits {
            let opened = archive.open().unwrap();
            let inode = opened.tree.inode(opened.tree.lookup(b"dir/it").unwrap());
            assert_eq!(opened.tree.xattrs(inode.xattrs()).len(), set.len());
        } else {
            let line = archive.clone().refusal();
            assert!(line.contains("dir/it: more extended attributes than a file can have"), "{line}");
            assert_eq!(line.lines().count(), 1);
            // The others are there.
            let opened = salvaged(archive.file("after", "").end().0);
            assert!(opened.tree.lookup(b"before").is_some() && opened.tree.lookup(b"after").is_some());
            assert!(opened.tree.lookup(b"dir/it").is_none());
        }
        let global = attributes(new(), b'g', &set).file("it", "");
        match fits {
            true => assert_eq!(global.names(), ["it"]),
            false => assert!(global.refusal().contains("the global header: more extended attributes")),
        }
    }
    // The same one again and again is one.
    let again: Vec<_> = (0..20_000).map(|_| ("same".to_owned(), "")).collect();
    assert_eq!(attributes(new(), b'x', &again).file("it", "").names(), ["it"]);
}

#[test]
fn attributes_of_a_global_header_are_stored_once() {
    let set: Vec<_> = (0..400).map(|number| (number.to_string(), "value")).collect();
    let mut archive = attributes(new(), b'g', &set);
    for number in 0..500 {
        archive = match number {
            // Equal sets, though each comes with records of its own.
            100..120 => attributes(archive, b'x', &[("own".to_owned(), "1")]).file(&format!("own{number}"), ""),
            _ => archive.file(&format!("shared{number}"), ""),
        };
    }
    let opened = archive.open().unwrap();
    let sets = |prefix: &str| {
        let inodes = (0..500).filter_map(|number| opened.tree.lookup(format!("{prefix}{number}").as_bytes()));
        let sets: std::collections::BTreeSet<_> = inodes.map(|inode| opened.tree.inode(inode).xattrs()).collect();
        assert_eq!(sets.len(), 1, "{prefix}");
        opened.tree.xattrs(*sets.first().unwrap()).len()
    };
    assert_eq!((sets("shared"), sets("own")), (400, 401));
}

#[test]
fn few_attributes_do_not_become_many() {
    let value = "v".repeat(1 << 16);
    let set: Vec<_> = (0..15).map(|number| (number.to_string(), &value[..])).collect();
    // Members of a kilobyte and a half. Each has a megabyte of attributes, which differ from the last one's.
    let mut archive = attributes(new(), b'g', &set);
    let mut headers = archive.clone();
    for number in 0..100 {
        archive = attributes(archive, b'x', &[(format!("own{number}"), "1")]).file(&format!("file{number}"), "");
        headers =
            attributes(headers, b'g', &[("0".to_owned(), &number.to_string())]).file(&format!("file{number}"), "");
    }
    let line = archive.refusal();
    assert!(line.contains("file") && line.contains("are too large for an archive of its size"), "{line}");
    let line = headers.refusal();
    assert!(line.contains("the global header") && line.contains("too large for an archive of its size"), "{line}");
    // What is in the archive may be as large as it is.
    let mut archive = new();
    for number in 0..40 {
        archive = attributes(archive, b'x', &[(number.to_string(), &value)]).file(&format!("file{number}"), "");
    }
    assert_eq!(archive.names().len(), 40);
}

#[test]
fn maps_of_sparse_files_are_not_global() {
    let archive = new().extended(b'g', &[("GNU.sparse.map", "0,1,5,1"), ("GNU.sparse.size", "9")]).file("a", "text");
    assert_eq!(content(&archive.open().unwrap(), "a"), "text");
}

#[test]
fn whiteouts_are_files_of_a_single_archive() {
    let archive = new().file("a", "").file(".wh.a", "").file("d/.wh..wh..opq", "");
    assert_eq!(archive.clone().names(), [".wh.a", "a", "d", "d/.wh..wh..opq"]);
    assert_eq!(archive.notes().len(), 2);
}

#[test]
fn unknown_types_are_files_and_parts_of_volumes_are_not() {
    let archive = new().header("odd", b'Q', 2, &[]).data(b"hi").header("part", b'M', 2, &[]).data(b"hi").file("z", "");
    assert_eq!(content(&archive.clone().open().unwrap(), "odd"), "hi");
    assert_eq!(archive.clone().names(), ["odd", "z"]);
    assert_eq!(archive.notes().len(), 2);
}

#[test]
fn sparse_files_hold_what_their_map_says_and_no_more() {
    let record = |map: &str, size: &str| {
        new().extended(b'x', &[("GNU.sparse.map", map), ("GNU.sparse.size", size)]).file("s", "0123456789").open()
    };
    let opened = record("100,4,104,2,200,4,300,0", "300").unwrap();
    let inode = opened.tree.lookup(b"s").unwrap();
    let ranges = [DataRange { offset: 100, length: 6 }, DataRange { offset: 200, length: 4 }];
    assert_eq!(opened.tree.sparse_ranges(inode), Some(&ranges[..]));
    assert_eq!(content(&opened, "s").trim_matches('\0').replace('\0', ""), "0123456789");
    for (map, size) in [
        ("0,11", "300"),
        ("100,4,50,4", "300"),
        ("100,4,103,4", "300"),
        ("298,4", "300"),
        ("100", "300"),
        ("100,x", "300"),
        ("18446744073709551615,1", "18446744073709551615"),
        ("0,1", "18446744073709551615"),
        ("9223372036854775807,1,0,1", "9"),
    ] {
        assert!(record(map, size).is_err(), "{map} of {size}");
    }
    let leading = |map: &str| {
        let records = [("GNU.sparse.major", "1"), ("GNU.sparse.minor", "0"), ("GNU.sparse.realsize", "300")];
        new().extended(b'x', &records).header("s", b'0', 522, &[]).data(map.as_bytes()).data(b"0123456789").open()
    };
    assert!(leading("1\n290\n10\n").is_ok());
    for map in [
        "",
        "1\n",
        "99999999999\n",
        "2\n0\n5\n",
        "1\n291\n10\n",
        "1\n0\n11\n",
        "x\n",
        "-1\n",
        "1\n0\n123456789012345678901\n",
    ] {
        assert!(leading(map).is_err(), "{map:?}");
    }
}

#[test]
fn an_archive_may_have_no_members() {
    // What libarchive and busybox write, and GNU tar.
    for length in [1024, 10_240] {
        let opened = Archive(vec![0; length]).open_bytes().unwrap();
        assert_eq!((opened.tree.entry_count(), &opened.notes[..]), (0, &[][..]), "{length}");
    }
}

#[test]
fn checksums_may_be_sums_of_signed_bytes() {
    let mut archive = new().file("\u{e4}", "1");
    let header = &mut archive.0[..512];
    header[148..156].fill(b' ');
    let sum: i32 = header.iter().map(|byte| i32::from(*byte as i8)).sum();
    header[148..155].copy_from_slice(format!("{sum:06o}\0").as_bytes());
    assert_eq!(content(&archive.open().unwrap(), "\u{e4}"), "1");
}

#[test]
fn what_is_damaged_is_refused_by_its_place() {
    assert!(Archive(vec![b'x'; 2048]).refusal().contains("does not start as a tar"));
    let empty = Archive(Vec::new()).refusal_of_bytes();
    assert!(empty.starts_with("tar: it is empty; --salvage"), "{empty}");
    for length in [512, 1025, 10_752, 1 << 20] {
        let zeros = Archive(vec![0; length]).refusal_of_bytes();
        assert!(zeros.contains("nothing but zeros") || zeros.contains("cut"), "{length}: {zeros}");
    }
    let mut damaged = new().file("a", "1").file("b", "2");
    damaged.0[1030] ^= 1;
    let refusal = damaged.refusal();
    assert!(
        refusal.starts_with("tar: byte 1024: the header's checksum is wrong; the archive is damaged;"),
        "{refusal}"
    );
    let cut = new().header("a", b'0', 10_000, &[]).refusal();
    assert!(cut.contains("cut off") && cut.contains("10000"), "{cut}");
    let huge = new().header("a", b'0', 0, &[(124, b"\x80\0\0\0\x7f\xff\xff\xff\xff\xff\xff\xff")]).refusal();
    assert!(huge.contains("cut off"), "{huge}");
    for (field, at, bytes) in [
        ("size", 124, &b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xfe"[..]),
        ("size", 124, b"00000009000"),
        ("uid", 108, b"\x80\0\0\x7f\xff\xff\xff\xff"),
        ("mtime", 136, b"soon"),
        ("mode", 100, b"rwxr-xr"),
    ] {
        let refusal = new().header("a", b'0', 0, &[(at, bytes)]).refusal();
        assert!(refusal.contains(field) && refusal.contains("byte 0"), "{refusal}");
    }
    for (keyword, value) in [("size", "x"), ("mtime", "1e9"), ("uid", "99999999999"), ("size", "18446744073709551615")]
    {
        let refusal = new().extended(b'x', &[(keyword, value)]).file("a", "").refusal();
        assert!(refusal.starts_with("tar: "), "{refusal}");
    }
    assert!(new().header("pax", b'x', 20 << 20, &[]).refusal().contains("extended header"));
}

/// As `tar -i` takes them: but nobody asked for it.
#[test]
fn what_lies_behind_the_end_is_refused_or_salvaged() {
    let appended = [new().file("a", "1").end().0, new().file("b", "2").end().0].concat();
    let refusal = Archive(appended.clone()).refusal_of_bytes();
    assert!(refusal.contains("byte 1024: here the archive ends") && refusal.contains("more at byte 2048"), "{refusal}");
    let opened = salvaged(appended);
    assert_eq!((&*content(&opened, "a"), &*content(&opened, "b")), ("1", "2"));
    assert!(opened.notes.iter().any(|note| note.contains("byte 1024")), "{:?}", opened.notes);

    let mut hole = new().file("a", "1").file("b", "2").file("c", "3").end().0;
    hole[1024..1536].fill(0);
    assert!(Archive(hole.clone()).refusal_of_bytes().contains("a part of it was lost"));
    let opened = salvaged(hole);
    assert_eq!((&*content(&opened, "a"), &*content(&opened, "c")), ("1", "3"));
    assert!(opened.tree.lookup(b"b").is_none());

    let front = [vec![0; 512], new().file("a", "1").end().0].concat();
    assert!(Archive(front.clone()).refusal_of_bytes().contains("begins with 512 zeros"));
    assert_eq!(content(&salvaged(front), "a"), "1");
    // The blocking factor's zeros are no hole.
    assert!(Archive([new().file("a", "1").end().0, vec![0; 10_240]].concat()).open_bytes().unwrap().notes.is_empty());
    let open_end = new().file("a", "1");
    assert!(open_end.open_bytes().unwrap().notes[0].contains("may be missing"));
}

#[test]
fn damage_costs_the_member_it_is_in_where_it_is_salvaged() {
    let mut damaged = new().file("a", "1").file("b", "2").file("c", "3").end().0;
    damaged[1030] ^= 1;
    let opened = salvaged(damaged);
    assert_eq!((&*content(&opened, "a"), &*content(&opened, "c")), ("1", "3"));
    assert!(opened.tree.lookup(b"b").is_none() && opened.notes[0].contains("byte 1024"), "{:?}", opened.notes);
    // What is left of a member that was cut off is not searched for headers: it may be an archive itself.
    let inner = String::from_utf8(new().file("inner", "").0).unwrap();
    let cut = new().file("a", "1").header("b", b'0', 10_000, &[]).data(inner.as_bytes());
    let opened = salvaged(cut.0);
    assert!(opened.tree.lookup(b"inner").is_none() && opened.tree.lookup(b"a").is_some());
    assert!(salvaged(Vec::new()).tree.entry_count() == 0 && salvaged(vec![0; 512]).tree.entry_count() == 0);
    let none = read(&[1; 4096], Damage::Salvaged).err().unwrap().to_string();
    assert!(none.contains("no header of a tar"), "{none}");
}

/// Any archive cut at any block, or with any byte of a header changed, is read or refused, and is never a panic.
#[test]
fn every_cut_and_every_flipped_byte() {
    let archive = new()
        .extended(b'g', &[("comment", "x")])
        .header("name", b'L', 5, &[(257, b"ustar  \0")])
        .data(b"long\0")
        .file("short", "1")
        .extended(
            b'x',
            &[("GNU.sparse.map", "1,2"), ("GNU.sparse.size", "9"), ("SCHILY.acl.access", "u::rwx,g::-,o::-")],
        )
        .file("s", "12")
        .link(b'2', "link", "s")
        .link(b'1', "hard", "s")
        .end();
    for end in 0..archive.0.len() {
        let _ = read(&archive.0[..end], Damage::Refused);
    }
    for end in 0..archive.0.len() {
        let _ = read(&archive.0[..end], Damage::Salvaged);
    }
    for at in 0..archive.0.len() {
        for flip in [0x01, 0x80, 0xff] {
            let mut bytes = archive.0.clone();
            bytes[at] ^= flip;
            // The checksum of the block that was changed, put right: it may be no header.
            for fixed in [false, true] {
                if fixed {
                    let block = &mut bytes[at / 512 * 512..][..512];
                    block[148..156].fill(b' ');
                    let sum: u32 = block.iter().map(|byte| u32::from(*byte)).sum();
                    block[148..155].copy_from_slice(format!("{sum:06o}\0").as_bytes());
                }
                let both = [Damage::Refused, Damage::Salvaged];
                for opened in both.iter().flat_map(|damage| read(&bytes, *damage)) {
                    for (id, inode) in opened.tree.inodes().filter(|(id, _)| *id != InodeId::ROOT) {
                        let mut content = vec![0; inode.size().min(4096) as usize];
                        read_content(&*opened.content, id, 0, &mut content).unwrap();
                    }
                }
            }
        }
    }
}

#[test]
fn many_names_of_hostile_shapes_take_little() {
    let mut archive = new();
    for i in 0..200 {
        archive = archive.extended(b'x', &[("path", &"d/".repeat(2000)), ("linkpath", "x")]);
        archive = archive.header(&format!("{i}"), b'5', 0, &[]);
        archive = archive.link(b'2', &format!("l{i}"), &"d/".repeat(48)).file(&format!("l{i}/l{i}/x"), "");
    }
    assert!(archive.open().unwrap().tree.inode_count() < 5000);
}

#[test]
fn a_full_disk_is_said_and_nothing_is_left() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: a_full_disk_is_said_and_nothing_is_left: a full disk: it needs root to mount one");
        return;
    }
    let scratch = tempfile::tempdir().unwrap();
    let disk = scratch.path().join("disk");
    std::fs::create_dir(&disk).unwrap();
    let mount = |arguments: &[&str]| {
        assert!(std::process::Command::new(arguments[0]).args(&arguments[1..]).arg(&disk).status().unwrap().success());
    };
    mount(&["mount", "-t", "tmpfs", "-o", "size=1m", "none"]);
    let bomb = zstd::encode_all(Cursor::new(vec![0; 64 << 20]), 19).unwrap();
    let error = oci::open_tar_stream(Parsing::unconfined(), Cursor::new(bomb), &ThisHost::new(&disk), Damage::Refused)
        .err()
        .unwrap()
        .to_string();
    let left = std::fs::read_dir(&disk).unwrap().count();
    assert!(unmount(&disk));
    assert!(error.contains("No space left on device") && error.contains("disk"), "{error}");
    assert_eq!(left, 0);
}
