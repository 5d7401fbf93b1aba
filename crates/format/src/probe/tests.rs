//! Every kind of file is recognised; none is taken for an archive without files.

use super::*;
use crate::readers;

/// Zeros with bytes put at some places.
fn head(parts: &[(usize, &[u8])]) -> Vec<u8> {
    let mut head = vec![0; HEAD];
    for (at, bytes) in parts {
        head[*at..*at + bytes.len()].copy_from_slice(bytes);
    }
    head
}

/// ext4's magic number.
const EXT4: (usize, &[u8]) = (1080, b"\x53\xef");

fn volume(name: &str) -> FileKind {
    FileKind::Volume(readers().iter().find(|reader| reader.name == name).unwrap())
}

fn other(parts: &[(usize, &[u8])]) -> String {
    match identify(Parsing::unconfined(), &head(parts), &[]) {
        Found::Other(text) => text,
        found => panic!("{parts:?}: {found:?}"),
    }
}

#[test]
fn every_magic_number_is_found_where_it_is_and_nowhere_else() {
    for kind in OTHERS {
        for magic in kind.magics {
            assert!(magic.0 + magic.1.len() <= HEAD, "{magic:?}");
            assert!(other(&[*magic]).starts_with("is "), "{magic:?}");
            // Cut before its last byte it is nothing.
            let mut cut = head(&[*magic]);
            cut.truncate(magic.0 + magic.1.len() - 1);
            assert!(
                !matches!(identify(Parsing::unconfined(), &cut, &[]), Found::Other(text) if text == kind.text()),
                "{magic:?}"
            );
        }
    }
    for (magic, kind) in SOURCES {
        assert_eq!(identify(Parsing::unconfined(), &head(&[*magic]), &[]), Found::Source(*kind), "{magic:?}");
    }
    for kind in table::AT_THE_END {
        assert_eq!(identify(Parsing::unconfined(), &[1], kind.magics[0].1), Found::Other(kind.text()));
    }
}

#[test]
fn names_are_the_right_ones() {
    for (at, bytes, name) in [
        (0, &b"QFI\xfb"[..], "a qcow2 disk image"),
        (512, b"EFI PART", "GPT"),
        (4096, b"EFI PART", "GPT"),
        (0, b"LUKS\xba\xbe", "LUKS"),
        (512, b"LABELONE", "LVM"),
        (64, b"\x7f\x10\xda\xbe", "VDI"),
        (0, b"PK\x03\x04", "ZIP"),
        (0, b"!<arch>\ndebian-binary", "Debian package"),
        (0, b"!<arch>\nmain.o/", "an ar archive"),
        (0, b"\xed\xab\xee\xdb", "RPM"),
        (0, b"BZh9", "bzip2"),
    ] {
        let text = other(&[(at, bytes)]);
        assert!(text.contains(name), "{text}");
    }
}

#[test]
fn boot_sectors_are_told_apart() {
    const SIGNATURE: (usize, &[u8]) = (510, b"\x55\xaa");
    assert!(other(&[SIGNATURE]).contains("a boot sector"));
    // One entry: Linux, 2048 sectors from sector 2048 on.
    let entry = [0x80, 0, 0, 0, 0x83, 0, 0, 0, 0, 8, 0, 0, 0, 8, 0, 0];
    assert!(other(&[SIGNATURE, (462, &entry)]).contains("MBR partition table"));
    let mut odd = entry;
    odd[0] = 7;
    assert!(other(&[SIGNATURE, (462, &odd)]).contains("a boot sector"));
    // 512 bytes a sector, 4 sectors a cluster, 1 reserved, 2 tables; a hard disk.
    let fields = [0, 2, 4, 1, 0, 2, 0, 2, 0, 0, 0xf8];
    let found = |parts: &[(usize, &[u8])]| identify(Parsing::unconfined(), &head(parts), &[]);
    assert_eq!(found(&[SIGNATURE, (11, &fields)]), Found::Source(volume("vfat")));
    assert_eq!(found(&[SIGNATURE, (3, b"EXFAT   ")]), Found::Source(volume("exfat")));
    // A partition table was written behind what was left of a file system.
    for old in [(11, &fields[..]), (3, b"EXFAT   ")] {
        assert!(other(&[SIGNATURE, old, (462, &entry)]).contains("MBR partition table"));
        assert!(other(&[SIGNATURE, old, (512, b"EFI PART")]).contains("GPT"));
    }
    // A file system with a loader in front of it is that file system.
    let ext4: (usize, &[u8]) = (1024, &[1, 0, 0, 0, 1, 0, 0, 0]);
    assert_eq!(identify(Parsing::unconfined(), &head(&[SIGNATURE, ext4, EXT4]), &[]), Found::Source(volume("ext4")));
}

#[test]
fn every_reader_knows_its_own() {
    let ext4: (usize, &[u8]) = (1024, &[1, 0, 0, 0, 1, 0, 0, 0]);
    for (parts, name) in [
        (&[EXT4, ext4][..], "ext4"),
        (&[(1024, b"\xe2\xe1\xf5\xe0")], "erofs"),
        (&[(0, b"hsqs")], "squashfs"),
        (&[(0x10040, b"_BHRfS_M")], "btrfs"),
        (&[(0x8001, b"CD001")], "iso9660"),
    ] {
        assert_eq!(identify(Parsing::unconfined(), &head(parts), &[]), Found::Source(volume(name)));
        assert_eq!(probe(Parsing::unconfined(), &Head(&head(parts))).unwrap(), Found::Source(volume(name)));
    }
    // Too short for a superblock.
    assert_eq!(identify(Parsing::unconfined(), &head(&[(1024, b"\xe2\xe1\xf5\xe0")])[..1027], &[]), Found::Unknown);
}

#[test]
fn two_bytes_alone_are_no_ext4_where_something_else_is() {
    assert_eq!(identify(Parsing::unconfined(), &head(&[EXT4]), &[]), Found::Source(volume("ext4")));
    let both = head(&[EXT4, (0x8001, b"CD001")]);
    assert_eq!(identify(Parsing::unconfined(), &both, &[]), Found::Source(volume("iso9660")));
}

#[test]
fn what_is_no_archive_says_so_of_itself() {
    assert_eq!(identify(Parsing::unconfined(), &[], &[]), Found::Zeros);
    assert_eq!(identify(Parsing::unconfined(), &head(&[]), &[]), Found::Zeros);
    assert_eq!(identify(Parsing::unconfined(), &[1; 70_000], &[]), Found::Unknown);
    let text = mistaken_for_a_tar(&head(&[(1024, b"\xe2\xe1\xf5\xe0")])).unwrap();
    assert!(text.contains("an EROFS file system") && text.contains("unpack it"), "{text}");
    assert_eq!(mistaken_for_a_tar(&head(&[])), None);
}
