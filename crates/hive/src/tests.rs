//! Hives that hivex made, a hive and logs by the specification, and damaged ones.

mod build;

use std::fmt::Write as _;
use std::fs;
use std::io;
use std::process::{Command, Stdio};
use std::sync::Arc;

use inarch_block::{Backing, Cursor};
use inarch_confine::Parsing;

use super::*;
use build::{HEADER, SECTOR, STRUCTURES, log};

struct Bytes(Vec<u8>);

impl Backing for Bytes {
    fn size(&self) -> u64 {
        self.0.len() as u64
    }

    fn read(&self, offset: u64, count: u64, out: &mut Cursor<'_, '_>) -> io::Result<()> {
        let end = offset.checked_add(count).ok_or(io::ErrorKind::UnexpectedEof)?;
        out.copy_from(self.0.get(offset as usize..end as usize).ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }
}

fn open(hive: &[u8], logs: &[Vec<u8>]) -> Result<Hive, HiveError> {
    let logs: Vec<Arc<dyn Backing>> = logs.iter().map(|log| Arc::new(Bytes(log.clone())) as _).collect();
    Hive::open(Parsing::unconfined(), Arc::new(Bytes(hive.to_vec())), &logs)
}

/// A hive with `count` keys below `a`, made by hivexregedit from an empty one: 4 KiB of header, and one bin with a root (the
/// specification's "Base block", "Hive bin", "Key node").
fn made(count: usize) -> Vec<u8> {
    let mut hive = vec![0; 8192];
    let mut put = |at: usize, bytes: &[u8]| hive[at..at + bytes.len()].copy_from_slice(bytes);
    put(0, b"regf");
    for (at, number) in [(4, 1_u32), (8, 1), (20, 1), (24, 5), (32, 1), (36, 32), (40, 4096), (44, 1)] {
        put(at, &number.to_le_bytes());
    }
    put(4096, b"hbin");
    put(4096 + 8, &4096_u32.to_le_bytes());
    // The root's cell, 88 bytes.
    put(4128, &(-88_i32).to_le_bytes());
    put(4132, b"nk\x2c\0");
    for at in [16, 28, 32, 40, 48] {
        put(4132 + at, &u32::MAX.to_le_bytes());
    }
    put(4132 + 72, &4_u16.to_le_bytes());
    put(4132 + 76, b"ROOT");
    // Its security descriptor, which hivex gives to new keys.
    put(4132 + 44, &120_u32.to_le_bytes());
    put(4216, &(-48_i32).to_le_bytes());
    put(4220, b"sk");
    for (at, number) in [(4224, 120_u32), (4228, 120), (4232, 1), (4236, 20), (4240, 0x8000_0001)] {
        put(at, &number.to_le_bytes());
    }
    put(4264, &(4096_i32 - 168).to_le_bytes());
    let sum = base::checksum(&hive);
    hive[508..512].copy_from_slice(&sum.to_le_bytes());

    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("hive");
    fs::write(&path, &hive).unwrap();
    let mut reg =
        "Windows Registry Editor Version 5.00\n\n[HKEY\\a]\n\"text\"=str(1):\"t\u{fc}r\"\n\"number\"=dword:0000002a\n\
        @=hex(7):61,00,00,00,62,00,00,00,00,00\n\"big\"=hex:"
            .to_owned();
    reg += &vec!["7f"; 9000].join(",");
    reg.push_str("\n\n");
    for number in 0..count {
        let _ = write!(reg, "[HKEY\\a\\key{number:05}]\n\"n\"=dword:{number:08x}\n\n");
    }
    let mut merge = Command::new("hivexregedit")
        .args(["--merge", "--prefix", "HKEY"])
        .arg(&path)
        .stdin(Stdio::piped())
        .spawn()
        .unwrap();
    // hivexregedit takes each byte for a character.
    let reg: Vec<u8> = reg.chars().map(|letter| u8::try_from(letter).unwrap()).collect();
    io::Write::write_all(&mut merge.stdin.take().unwrap(), &reg).unwrap();
    assert!(merge.wait().unwrap().success());
    fs::read(&path).unwrap()
}

#[test]
fn keys_and_values_are_those_that_hivex_wrote() {
    let hive = open(&made(1200), &[]).unwrap();
    assert!(hive.notes().is_empty(), "{:?}", hive.notes());
    let a = hive.find(["A"]).unwrap().unwrap();
    assert_eq!(hive.subkeys(&a).unwrap().len(), 1200);
    let shown = |name: &str| {
        let values = hive.values(&a).unwrap();
        let value = values.iter().find(|value| value.name.is(name)).unwrap();
        Shown::new(value.kind, hive.data(value).unwrap())
    };
    assert_eq!(shown("TEXT"), Shown::Text("t\u{fc}r".to_owned()));
    assert_eq!(shown("number"), Shown::Number(42));
    assert_eq!(shown(""), Shown::Texts(vec!["a".to_owned(), "b".to_owned()]));
    assert_eq!(shown("big"), Shown::Bytes(vec![0x7f; 9000]));
    let mut walk = hive.walk(hive.root().unwrap());
    let mut paths = Vec::new();
    while let Some(visited) = walk.next_key().unwrap() {
        paths.push(visited.path.join("\\"));
    }
    assert_eq!((paths.len(), &*paths[0], &*paths[1], &*paths[1201]), (1202, "", "a", "a\\key01199"));
    assert!(hive.find(["a", "none"]).unwrap().is_none());
}

fn text(hive: &Hive) -> String {
    let a = hive.find(["a"]).unwrap().unwrap();
    let values = hive.values(&a).unwrap();
    let value = values.iter().find(|value| value.name.is("text")).unwrap();
    Shown::new(value.kind, hive.data(value).unwrap()).to_string()
}

#[test]
fn logs_are_replayed_into_a_hive_that_was_not_written_back() {
    let clean = made(3);
    let place = clean.windows(6).position(|bytes| bytes == b"t\0\xfc\0r\0").unwrap();
    let page = place / 512 * 512;
    let change = |letter: u8| {
        let mut bytes = clean[page..page + 512].to_vec();
        bytes[place - page] = letter;
        (u32::try_from(page - 4096).unwrap(), bytes)
    };
    let mut dirty = clean.clone();
    let sequence = u32::from_le_bytes(clean[8..12].try_into().unwrap());
    dirty[4..8].copy_from_slice(&(sequence + 1).to_le_bytes());
    let sum = base::checksum(&dirty);
    dirty[508..512].copy_from_slice(&sum.to_le_bytes());
    let logs = [log(&dirty, sequence, &[change(b'x')]), log(&dirty, sequence + 1, &[change(b'y')])];
    assert_eq!(text(&open(&dirty, &logs).unwrap()), "y\u{fc}r");
    let [first, second] = logs;
    let logs = [second.clone(), first.clone()];
    assert_eq!(text(&open(&dirty, &logs).unwrap()), "y\u{fc}r", "whatever their order");
    assert_eq!(text(&open(&clean, &logs).unwrap()), "t\u{fc}r", "a clean hive needs none");
    let mut damaged = second;
    damaged[512 + 60] ^= 1;
    assert_eq!(text(&open(&dirty, &[first, damaged]).unwrap()), "x\u{fc}r", "up to what is damaged");
    let alone = open(&dirty, &[]).unwrap();
    assert!(alone.notes()[0].contains("no log"), "{:?}", alone.notes());
}

fn everything(hive: &[u8]) -> Result<usize, HiveError> {
    let hive = open(hive, &[])?;
    let _ = hive.current_control_set();
    let root = hive.root()?;
    for key in hive.subkeys(&root)? {
        hive.values(&key)?;
    }
    let (mut walk, mut count) = (hive.walk(root), 0);
    while let Some(visited) = walk.next_key()? {
        export_key("HKEY", &visited, &mut |_| {});
        count += 1;
    }
    Ok(count)
}

#[test]
fn damaged_hives_end() {
    let clean = made(100);
    assert_eq!(everything(&clean).unwrap(), 102);
    // Numbers of a plain generator (Knuth's MMIX), so that a failure comes again.
    let mut seed = 1_u64;
    let mut next = |below: usize| {
        seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (seed >> 33) as usize % below
    };
    let mut refused = 0;
    for _ in 0..3000 {
        let mut hive = clean.clone();
        for _ in 0..next(8) + 1 {
            let at = next(hive.len());
            hive[at] = [0, 0xFF, 0x80, next(256) as u8][next(4)];
        }
        hive.truncate(if next(10) == 0 { next(clean.len()) } else { clean.len() });
        refused += usize::from(everything(&hive).is_err());
    }
    assert!(refused > 100, "{refused}");
}

#[test]
fn circles_and_sizes_that_are_none_are_refused() {
    let clean = made(20);
    let root = 4096 + u32::from_le_bytes(clean[36..40].try_into().unwrap()) as usize;
    let number = |at: usize| u32::from_le_bytes(clean[at..at + 4].try_into().unwrap()) as usize;
    let list = 4096 + number(root + 4 + 28);
    let with = |at: usize, number: u32| {
        let mut hive = clean.clone();
        hive[at..at + 4].copy_from_slice(&number.to_le_bytes());
        everything(&hive)
    };
    // The root is below itself.
    assert!(matches!(with(list + 8, u32::try_from(root - 4096).unwrap()), Err(HiveError::Circle("keys"))));
    for size in [0, 4, 88, i32::MIN as u32, (-7_i32) as u32, u32::MAX, 0x8000_0008] {
        assert!(matches!(with(root, size), Err(HiveError::Damaged { .. })), "{size:#x}");
    }
    // An index whose leaf is an index: itself.
    let mut within = clean.clone();
    within[list + 4..list + 8].copy_from_slice(b"ri\x01\0");
    within[list + 8..list + 12].copy_from_slice(&u32::try_from(list - 4096).unwrap().to_le_bytes());
    assert!(matches!(everything(&within), Err(HiveError::Damaged { .. })));
    // More keys, and more values, than their lists have.
    assert!(matches!(with(list + 4, 0xFFFF_666C), Err(HiveError::Damaged { .. })));
    let a = 4096 + number(list + 8);
    assert!(matches!(with(a + 4 + 36, u32::MAX), Err(HiveError::Damaged { .. })));
}

#[test]
fn the_sample_has_lists_and_values_of_every_kind() {
    let sample = build::sample();
    assert_eq!(everything(&sample).unwrap(), 15);
    let hive = open(&sample, &[]).unwrap();
    assert!(hive.notes().is_empty(), "{:?}", hive.notes());
    assert_eq!(hive.current_control_set().unwrap().as_deref(), Some("ControlSet001"));
    let a = hive.find(["a"]).unwrap().unwrap();
    let values = hive.values_with_data(&a).unwrap();
    let shown: Vec<Shown> = values.into_iter().map(|(value, data)| Shown::new(value.kind, data)).collect();
    let [first, .., big] = &shown[..] else { panic!("{shown:?}") };
    let text = |text: &str| Shown::Text(text.to_owned());
    assert_eq!((first, &shown[1]), (&text("t\u{fc}r"), &text("%a%")));
    assert_eq!(shown[2], Shown::Texts(vec!["a".to_owned(), "b".to_owned()]));
    assert_eq!(shown[3..6], [Shown::Number(42), Shown::Number(42), Shown::Number(42)]);
    assert_eq!(*big, Shown::Bytes([vec![0x7F; 16_344], vec![0x7E; 56]].concat()));
    let program = hive.find(["Microsoft", "Windows", "CurrentVersion", "Uninstall", "{A}"]).unwrap().unwrap();
    assert_eq!(hive.values(&program).unwrap().len(), 2);
}

#[test]
fn no_byte_of_a_header_or_log_panics_when_checksums_are_right() {
    let clean = build::sample();
    let values = [0, 1, 0x7F, 0x80, 0xFF];
    let mut opened = 0;
    for at in 0..SECTOR {
        for value in values {
            let mut hive = clean.clone();
            hive[at] = value;
            build::seal(&mut hive);
            opened += usize::from(everything(&hive).is_ok());
        }
    }
    // Few bytes of a header decide whether it is one, and where the root is.
    assert!(opened > SECTOR * values.len() * 4 / 5, "{opened}");
    let mut dirty = clean.clone();
    build::soil(&mut dirty);
    let place = u32::try_from(STRUCTURES - HEADER).unwrap();
    let with_entries = log(&dirty, 1, &[(place, clean[STRUCTURES..STRUCTURES + SECTOR].to_vec())]);
    let with_bits = build::old_log(&dirty, &[0xFF; 5], &[]);
    for (whole, seal) in [(with_entries, build::seal_log as fn(&mut [u8])), (with_bits, build::seal)] {
        let (mut replayed, places) = (0, 1100);
        for at in 0..places {
            for value in values {
                let mut log = whole.clone();
                log[at] = value;
                seal(&mut log);
                let Ok(hive) = open(&dirty, &[log]) else { continue };
                let _ = hive.current_control_set();
                replayed += usize::from(hive.notes()[0].starts_with("1 change that was not written back"));
            }
        }
        assert!(replayed > places * values.len() * 4 / 5, "{replayed}");
    }
}

/// A hive with `count` keys below `a`, and an index root of `leaves` leaves. With `of_all`, all keys below `a` share the index root; otherwise
/// it is `a`'s own. All leaves are one cell: the last one of the hive, 16 KiB long and without items.
fn with_empty_leaves(count: usize, leaves: u16, of_all: bool) -> Vec<u8> {
    let mut hive = made(count);
    let number = |hive: &[u8], at: usize| u32::from_le_bytes(hive[at..at + 4].try_into().unwrap()) as usize;
    let root = 4096 + number(&hive, 36);
    let a = 4096 + number(&hive, 4096 + number(&hive, root + 4 + 28) + 8);
    let list = 4096 + number(&hive, a + 4 + 28);
    let mut keys = vec![a];
    if of_all {
        keys = (0..count).map(|index| 4096 + number(&hive, list + 8 + index * 8)).collect();
    }
    let index = hive.len();
    let size = (8 + 4 * usize::from(leaves)).next_multiple_of(8);
    let leaf = index + size;
    let offset = |at: usize| u32::try_from(at - 4096).unwrap().to_le_bytes();
    hive.extend(i32::try_from(size).unwrap().wrapping_neg().to_le_bytes());
    hive.extend(b"ri");
    hive.extend(leaves.to_le_bytes());
    (0..leaves).for_each(|_| hive.extend(offset(leaf)));
    hive.resize(leaf, 0);
    hive.extend((-16384_i32).to_le_bytes());
    hive.extend(b"li\0\0");
    hive.resize(leaf + 16384, 0);
    for key in keys {
        hive[key + 4 + 20..key + 4 + 24].copy_from_slice(&1_u32.to_le_bytes());
        hive[key + 4 + 28..key + 4 + 32].copy_from_slice(&offset(index));
    }
    let length = u32::try_from(hive.len() - 4096).unwrap();
    hive[40..44].copy_from_slice(&length.to_le_bytes());
    let sum = base::checksum(&hive);
    hive[508..512].copy_from_slice(&sum.to_le_bytes());
    hive
}

#[test]
fn leaves_without_keys_take_room_too() {
    assert_eq!(everything(&with_empty_leaves(20, 100, false)).unwrap(), 2);
    // More than the hive has room for; and some that are few, but listed by each key.
    assert!(matches!(everything(&with_empty_leaves(20, 20_000, false)), Err(HiveError::Circle("keys"))));
    assert_eq!(everything(&with_empty_leaves(2, 100, true)).unwrap(), 4);
    assert!(matches!(everything(&with_empty_leaves(200, 1000, true)), Err(HiveError::Circle("keys"))));
}

#[test]
fn a_list_is_read_no_further_than_its_items() {
    /// Bytes whose last pages cannot be read.
    struct Broken(Bytes);
    impl Backing for Broken {
        fn size(&self) -> u64 {
            self.0.size()
        }
        fn read(&self, offset: u64, count: u64, out: &mut Cursor<'_, '_>) -> io::Result<()> {
            match offset.saturating_add(count) > self.size() - 8192 {
                true => Err(io::ErrorKind::Other.into()),
                false => self.0.read(offset, count, out),
            }
        }
    }
    let broken = Broken(Bytes(with_empty_leaves(20, 1, false)));
    let hive = Hive::open(Parsing::unconfined(), Arc::new(broken), &[]).unwrap();
    let a = hive.find(["a"]).unwrap().unwrap();
    assert!(hive.subkeys(&a).unwrap().is_empty());
}

#[test]
fn a_sector_far_behind_the_end_makes_no_room() {
    let far = crate::cells::Replayed::from([(0x007F_FFF0, Box::new([0; crate::base::SECTOR]))]);
    let cells = crate::cells::Cells::new(Arc::new(Bytes(vec![0; 8192])), far, u32::MAX);
    assert_eq!(cells.length() as usize, 8192 - crate::base::LENGTH + crate::base::SECTOR);
}
