//! Volumes above partitions, as Linux laid them out, and hostile ones.
//!
//! golden/ has members that Linux 6.1 wrote (user-mode-linux 6.1.176 of Debian 12, whose device mapper and MD a plain user
//! can start). Every 4 KiB of a volume were written with their number, counted from 1 and in LVM's case from another 10,000
//! for each volume. Each line gives an offset and what lies there: a run of numbered blocks, or bytes. All other bytes are zeros.
//!
//! - zones, first: `mdadm --create --homehost=host --metadata=1.2 --level=0 --chunk=28 --raid-devices=3
//!   --layout=alternate` and `original`, over a, b, c and over c, b, a. These have 3, 5 and 5 MiB.
//! - row: `--metadata=1.1 --level=linear`; twin: `--metadata=1.0 --level=1`, written again from 10,001 on after `--fail` of a.
//! - old1: `--metadata=0.90 --level=1`.
//! - lvm: `pvcreate --metadatasize 60k --dataalignment 64k`, `vgcreate -s 64k`, `lvcreate` of lin (and `lvextend`, three
//!   times in all), str (`-i2 -I 8k`), mir (`--type raid1 -m1 --nosync`), omir (`--type mirror --mirrorlog core --nosync`), r0
//!   (`--type raid0 -i2 -I 4k`), snap (`-s`), pool and thin. `vgchange --addtag` until the text ran over its ring's end.
//!   Older texts, and what pool and snap hold, are left out.

use std::collections::HashMap;
use std::sync::Arc;

use inarch_block::read_backing;
use inarch_confine::Parse;

use crate::tests::Bytes;
use crate::{Above, Keys, Names, Piece, Volumes, above};

const BLOCK: usize = 4096;

fn unescaped(text: &str) -> Vec<u8> {
    let (mut bytes, mut rest) = (Vec::new(), text.bytes());
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'\\' => match rest.next().unwrap() {
                b'n' => b'\n',
                b't' => b'\t',
                b'x' => {
                    let digits = [rest.next().unwrap(), rest.next().unwrap()];
                    u8::from_str_radix(str::from_utf8(&digits).unwrap(), 16).unwrap()
                }
                other => other,
            },
            byte => byte,
        });
    }
    bytes
}

/// The members of a golden file, by name.
fn golden(text: &str) -> HashMap<String, Vec<u8>> {
    let (mut members, mut name) = (HashMap::new(), String::new());
    for line in text.lines() {
        let words: Vec<&str> = line.splitn(3, ' ').collect();
        if words[0] == "member" {
            name = words[1].to_owned();
            members.insert(name.clone(), vec![0; words[2].parse().unwrap()]);
            continue;
        }
        let (member, at): (&mut Vec<u8>, usize) = (members.get_mut(&name).unwrap(), words[1].parse().unwrap());
        let bytes = match words[2].split_once(' ') {
            Some((first, count)) if words[0] == "data" => {
                let (first, count): (u64, u64) = (first.parse().unwrap(), count.parse().unwrap());
                (first..first + count).flat_map(block).collect()
            }
            _ => unescaped(words[2]),
        };
        member[at..at + bytes.len()].copy_from_slice(&bytes);
    }
    members
}

fn block(number: u64) -> Vec<u8> {
    number.to_le_bytes().repeat(BLOCK / 8)
}

fn found(pieces: &[(&str, Vec<u8>)]) -> Volumes {
    let piece = |(name, bytes): &(&str, Vec<u8>)| Piece {
        name: (*name).to_owned(),
        names: Names::default(),
        backing: Arc::new(Bytes(bytes.clone())),
    };
    let pieces: Vec<Piece> = pieces.iter().map(piece).collect();
    Parse::new().run(|parsing| above(parsing, &pieces, &Keys::default()), || {}).unwrap().unwrap()
}

fn of_golden(text: &str, names: &[&'static str]) -> Volumes {
    let members = golden(text);
    found(&names.iter().map(|name| (*name, members[*name].clone())).collect::<Vec<_>>())
}

fn named<'a>(volumes: &'a Volumes, name: &str) -> &'a Above {
    volumes.list.iter().find(|volume| volume.name == name).unwrap_or_else(|| panic!("no {name}"))
}

/// Why a volume is not read.
fn reason(volume: &Above) -> &str {
    volume.bytes.as_ref().err().expect("it is not read")
}

/// Checks that a volume has blocks of ascending numbers, read at once and across blocks.
fn assert_counts_from(volume: &Above, first: u64) {
    let backing = volume.bytes.as_ref().unwrap_or_else(|why| panic!("{}: {why}", volume.name));
    assert_eq!(backing.size(), volume.size);
    let expected: Vec<u8> = (first..).take(volume.size.div_ceil(BLOCK as u64) as usize).flat_map(block).collect();
    let mut bytes = vec![0; volume.size as usize];
    read_backing(&**backing, 0, &mut bytes).unwrap();
    // What is no whole block at the end was not written.
    let whole = bytes.len() / BLOCK * BLOCK;
    let wrong = bytes[..whole].chunks(BLOCK).zip(expected.chunks(BLOCK)).position(|(ours, theirs)| ours != theirs);
    assert_eq!(wrong, None, "{}: a block is another", volume.name);
    for (at, count) in [(1, 10), (4090, 12), (30_000, 90_000), (whole - 9000, 9000)] {
        let mut part = vec![0; count];
        read_backing(&**backing, at as u64, &mut part).unwrap();
        assert!(part == expected[at..at + count], "{}: {count} bytes from {at}", volume.name);
    }
    let beyond = read_backing(&**backing, volume.size - 1, &mut [0; 2]);
    assert!(beyond.is_err());
}

const MD: &str = include_str!("golden/md.txt");
const LVM: &str = include_str!("golden/lvm.txt");

#[test]
fn arrays_are_read_as_linux_lays_them_out() {
    for (name, members, level, id) in [
        ("zones", &["zones.c", "zones.a", "zones.b"][..], "raid0", "2879615e-cc0f-0d95-2790-eac4731f1350"),
        ("first", &["first.a", "first.b", "first.c"], "raid0", "8e68a896-3f55-f285-88d2-cf498d0713db"),
        ("row", &["row.c", "row.a"], "linear", "eeeaee13-0a28-a41b-2e51-0f21e0dba3f9"),
    ] {
        let told = of_golden(MD, members);
        let array = named(&told, &format!("/dev/md/{name}"));
        assert_eq!((array.layout.as_str(), array.id.as_deref()), (level, Some(id)));
        assert_eq!((array.on.len(), &told.notes[..]), (members.len(), &[][..]));
        assert_counts_from(array, 1);
        let told = of_golden(MD, &members[1..]);
        assert!(reason(&told.list[0]).contains("1 of its"), "{}", reason(&told.list[0]));
    }
}

#[test]
fn a_mirror_is_read_from_its_newest_member() {
    let told = of_golden(MD, &["twin.a", "twin.b"]);
    assert_counts_from(named(&told, "/dev/md/twin"), 10_001);
    // The one that has left knows nothing of it.
    let told = of_golden(MD, &["twin.a"]);
    assert_counts_from(named(&told, "/dev/md/twin"), 1);
    assert_eq!(told.notes, ["/dev/md/twin: 1 of its members are missing"]);
    for members in [&["old1.a", "old1.b"][..], &["old1.b"]] {
        let told = of_golden(MD, members);
        assert_counts_from(named(&told, "/dev/md9"), 1);
        assert_eq!(told.list[0].id.as_deref(), Some("0b32ea09-c20a-8bf2-3d18-6b3c53958f34"));
    }
}

#[test]
fn logical_volumes_are_read_as_linux_lays_them_out() {
    let told = of_golden(LVM, &["lvm.a", "lvm.b"]);
    assert_eq!(told.notes, [""; 0]);
    let all: Vec<_> = told.list.iter().map(|volume| (volume.name.as_str(), volume.layout.as_str())).collect();
    let expected = [
        ("/dev/vg/lin", "linear"),
        ("/dev/vg/str", "striped"),
        ("/dev/vg/mir", "raid1"),
        ("/dev/vg/omir", "mirror"),
        ("/dev/vg/r0", "raid0"),
        ("/dev/vg/snap", "snapshot"),
        ("/dev/vg/pool", "thin-pool"),
        ("/dev/vg/thin", "thin"),
    ];
    assert!(expected.iter().all(|volume| all.contains(volume)) && all.len() == expected.len(), "{all:?}");
    for (number, name) in ["lin", "str", "mir", "omir", "r0"].iter().enumerate() {
        assert_counts_from(named(&told, &format!("/dev/vg/{name}")), 1 + 10_000 * number as u64);
    }
    let lin = named(&told, "/dev/vg/lin");
    assert_eq!(
        (lin.id.as_deref(), &lin.on[..]),
        (Some("VZTezY-otww-aaf1-YFVL-46Bu-qtPi-6qJiod"), &["lvm.a".into(), "lvm.b".into()][..])
    );
    for (name, why) in
        [("snap", "snapshots are not read"), ("thin", "was never written"), ("pool", "pool of thin volumes")]
    {
        assert!(reason(named(&told, &format!("/dev/vg/{name}"))).contains(why));
    }
}

#[test]
fn a_missing_physical_volume_is_named() {
    for (there, missing) in
        [("lvm.a", "gKUyN6-mpvc-Q6fH-hLKH-6Dq4-htdo-8EU5o1"), ("lvm.b", "46Nl4l-6eD6-KDPm-kgnk-xhpn-ZhMj-hdHV1a")]
    {
        let told = of_golden(LVM, &[there]);
        assert!(told.notes.len() == 1 && told.notes[0].contains(missing), "{:?}", told.notes);
        assert!(reason(named(&told, "/dev/vg/str")).contains(missing));
        assert_counts_from(named(&told, "/dev/vg/mir"), 20_001);
        assert_counts_from(named(&told, "/dev/vg/omir"), 30_001);
    }
}

#[test]
fn a_copy_that_failed_is_not_read() {
    let members = golden(LVM);
    let (a, b) = (members["lvm.a"].clone(), members["lvm.b"].clone());
    let (state_of_a, state_of_b, data_of_a) = (786_432, 393_216, 851_968);
    let mut other = a.clone();
    other[data_of_a] ^= 1;
    let is_of_b = |a: &[u8], b: &[u8]| {
        let told = found(&[("a", a.to_vec()), ("b", b.to_vec())]);
        named(&told, "/dev/vg/mir").on == ["b"]
    };
    assert!(!is_of_b(&other, &b));
    // b has a higher event count, because it recorded the failure of a.
    let mut newer = b.clone();
    newer[state_of_b + 16] += 1;
    newer[state_of_b + 24] = 1;
    assert!(is_of_b(&other, &newer));
    // A copy that is being made anew.
    let mut behind = other;
    behind[state_of_a + 32..state_of_a + 40].fill(0);
    assert!(is_of_b(&behind, &b));
}

/// A physical volume of 512 KiB whose area at 4 KiB has this text. The sums are right.
fn physical(text: &str) -> Vec<u8> {
    let mut bytes = vec![0; 512 << 10];
    let put = |bytes: &mut Vec<u8>, at: usize, part: &[u8]| bytes[at..at + part.len()].copy_from_slice(part);
    let number = |number: usize| (number as u64).to_le_bytes();
    put(&mut bytes, 512, b"LABELONE\x01\0\0\0\0\0\0\0\0\0\0\0\x20\0\0\0LVM2 001");
    put(&mut bytes, 544, &[b'p'; 32]);
    put(&mut bytes, 584, &number(256 << 10));
    put(&mut bytes, 616, &[number(4096), number(252 << 10)].concat());
    let sum = crate::lvm::checksum(&[&bytes[532..1024]]);
    put(&mut bytes, 528, &sum.to_le_bytes());
    put(&mut bytes, 4100, b" LVM2 x[5A%r0N*>\x01\0\0\0");
    put(&mut bytes, 4120, &[number(4096), number(252 << 10), number(512), number(text.len())].concat());
    put(&mut bytes, 4096 + 56, &crate::lvm::checksum(&[text.as_bytes()]).to_le_bytes());
    let sum = crate::lvm::checksum(&[&bytes[4100..4608]]);
    put(&mut bytes, 4096, &sum.to_le_bytes());
    put(&mut bytes, 4608, text.as_bytes());
    bytes
}

/// A group with these logical volumes: name, and lines of one segment each.
fn group(volumes: &[(&str, &[&str])]) -> String {
    let mut text = "contents = \"Text Format Volume Group\"\nversion = 1\nvg {\nid = \"g\"\nseqno = 1\nextent_size = 8\n\
        physical_volumes {\npv0 {\nid = \"pppppp-pppp-pppp-pppp-pppp-pppp-pppppp\"\npe_start = 512\n}\n}\nlogical_volumes {\n"
        .to_owned();
    for (name, segments) in volumes {
        text += &format!("{name} {{\nstatus = [\"VISIBLE\"]\n");
        for (number, segment) in (1..).zip(*segments) {
            text += &format!("segment{number} {{\n{segment}\n}}\n");
        }
        text += "}\n";
    }
    text + "}\n}\n"
}

fn linear(start: u64, count: u64, on: &str, at: u64) -> String {
    format!(
        "start_extent = {start}\nextent_count = {count}\ntype = \"striped\"\nstripe_count = 1\nstripes = [\"{on}\", {at}]"
    )
}

#[test]
fn volumes_on_themselves_and_beyond_the_end_are_refused() {
    let (own, on_b, on_a) = (linear(0, 1, "own", 0), linear(0, 1, "b", 0), linear(0, 1, "a", 0));
    let huge = "start_extent = 0\nextent_count = 9223372036854775807\ntype = \"striped\"\nstripes = [\"pv0\", 0]";
    let far = linear(0, 1, "pv0", 9_223_372_036_854_775_807);
    let (beyond, first, over) = (linear(0, 65, "pv0", 0), linear(0, 2, "pv0", 0), linear(1, 2, "pv0", 4));
    let nothing =
        "start_extent = 0\nextent_count = 1\ntype = \"striped\"\nstripes = [\"pv0\", 0, \"pv0\", 1]\nstripe_size = 0";
    let strange = linear(0, 1, "pv9", 0);
    let text = group(&[
        ("own", &[&own]),
        ("a", &[&on_b]),
        ("b", &[&on_a]),
        ("huge", &[huge]),
        ("far", &[&far]),
        ("beyond", &[&beyond]),
        ("over", &[&first, &over]),
        ("nothing", &[nothing]),
        ("strange", &[&strange]),
        ("none", &[]),
        ("..", &[&first]),
        ("good", &[&first]),
    ]);
    let told = found(&[("p", physical(&text))]);
    for (name, why) in [
        ("own", "lies on itself"),
        ("a", "lies on itself"),
        ("b", "lies on itself"),
        ("huge", "size that cannot be"),
        ("far", "size that cannot be"),
        ("beyond", "beyond the end"),
        ("over", "does not follow"),
        ("nothing", "stripes of a size"),
        ("strange", "does not have"),
        ("none", "no segments"),
    ] {
        let reason = reason(named(&told, &format!("/dev/vg/{name}")));
        assert!(reason.contains(why), "{name}: {reason}");
    }
    assert!(named(&told, "/dev/vg/good").bytes.is_ok() && told.list.len() == 11);
    assert!(told.notes.iter().any(|note| note.ends_with("1 left out")), "{:?}", told.notes);
}

#[test]
fn a_tower_of_volumes_ends() {
    let towers: Vec<(String, String)> = (0..40)
        .map(|floor| {
            (
                format!("v{floor}"),
                linear(0, 1, &if floor == 0 { "pv0".to_owned() } else { format!("v{}", floor - 1) }, 0),
            )
        })
        .collect();
    let segments: Vec<[&str; 1]> = towers.iter().map(|(_, segment)| [segment.as_str()]).collect();
    let volumes: Vec<(&str, &[&str])> =
        towers.iter().zip(&segments).map(|((name, _), segment)| (name.as_str(), &segment[..])).collect();
    let told = found(&[("p", physical(&group(&volumes)))]);
    assert!(named(&told, "/dev/vg/v7").bytes.is_ok());
    assert!(reason(named(&told, "/dev/vg/v8")).contains("too many volumes"));
}

#[test]
fn damaged_metadata_is_left_out_with_a_note() {
    let text = group(&[("good", &[&linear(0, 1, "pv0", 0)])]);
    let whole = physical(&text);
    for (at, what) in [(560, "label"), (4100, "header"), (4096 + 48, "header"), (4700, "checksum")] {
        let mut bytes = whole.clone();
        bytes[at] ^= 1;
        let told = found(&[("p", bytes)]);
        assert!(
            told.list.is_empty() && told.notes.len() == 1 && told.notes[0].contains(what),
            "{at}: {:?}",
            told.notes
        );
    }
    for (text, what) in [
        (text.replace("version = 1", "version = 2"), "no description"),
        (text.replace("vg {", "../vg {"), "does not allow"),
        (text.replace("extent_size = 8", "extent_size = 36028797018963968"), "extent_size"),
        (text.clone() + "}", "brace"),
    ] {
        let told = found(&[("p", physical(&text))]);
        assert!(told.list.is_empty() && told.notes[0].contains(what), "{:?}", told.notes);
    }
    // The same one twice.
    let told = found(&[("p", whole.clone()), ("q", whole)]);
    assert!(told.list.len() == 1 && told.notes.len() == 1 && told.notes[0].starts_with("q: "), "{:?}", told.notes);
}

/// Numbers that are the same each time (Marsaglia's xorshift).
fn random(state: &mut u64) -> usize {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    (*state >> 16) as usize
}

#[test]
fn no_random_text_panics() {
    let members = golden(LVM);
    let whole = &members["lvm.a"];
    let text = [&whole[61_952..65_536], &whole[4608..8433]].concat();
    let text = String::from_utf8(text)
        .unwrap()
        .replace("46Nl4l-6eD6-KDPm-kgnk-xhpn-ZhMj-hdHV1a", "pppppp-pppp-pppp-pppp-pppp-pppp-pppppp");
    let mut state = 1;
    for _ in 0..1500 {
        let mut bytes = text.clone().into_bytes();
        for _ in 0..1 + random(&mut state) % 8 {
            let (at, from) = (random(&mut state) % bytes.len(), random(&mut state) % bytes.len());
            match random(&mut state) % 3 {
                0 => bytes[at] = (random(&mut state) % 128) as u8,
                1 => bytes[at] = bytes[from],
                _ => drop(bytes.drain(at..(at + random(&mut state) % 20).min(bytes.len()))),
            }
        }
        let told = found(&[("p", physical(&String::from_utf8_lossy(&bytes)))]);
        for backing in told.list.iter().filter_map(|volume| volume.bytes.as_ref().ok()) {
            let last = backing.size() - 1;
            read_backing(&**backing, last, &mut [0]).unwrap();
        }
    }
}

#[test]
fn no_random_superblock_panics() {
    let members = golden(MD);
    let cut = |bytes: &[u8]| bytes[..1 << 20].to_vec();
    let mut state = 2;
    for round in 0..1500 {
        let (name, at, length, sum_at) =
            [("zones.a", 4096, 512, 216), ("row.a", 0, 512, 216), ("old1.a", (1 << 20) - (1 << 16), 4096, 152)]
                [round % 3];
        let mut bytes = cut(&members[name]);
        if name == "old1.a" {
            let own = members[name].len() - (1 << 16);
            bytes[at..at + length].copy_from_slice(&members[name][own..own + length]);
        }
        for _ in 0..1 + random(&mut state) % 6 {
            let place = at + random(&mut state) % length;
            bytes[place] = [0, 1, 0x7F, 0xFF, random(&mut state) as u8][random(&mut state) % 5];
        }
        bytes[at + sum_at..at + sum_at + 4].fill(0);
        let words =
            bytes[at..at + length].chunks(4).map(|word| u64::from(u32::from_le_bytes(word.try_into().unwrap())));
        let sum: u64 = words.sum();
        let sum = (sum as u32).wrapping_add((sum >> 32) as u32);
        bytes[at + sum_at..at + sum_at + 4].copy_from_slice(&sum.to_le_bytes());
        let told = found(&[("p", bytes)]);
        for backing in told.list.iter().filter_map(|volume| volume.bytes.as_ref().ok()) {
            let last = backing.size() - 1;
            read_backing(&**backing, last, &mut [0]).unwrap();
        }
    }
}
