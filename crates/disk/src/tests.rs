//! Disks that the usual tools made, and damaged ones.

mod sealed_gpt;

use std::fs::{self, File};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;

use inarch_block::{Backing, BackingFile, Cursor};
use inarch_confine::Parse;

use super::*;
use sealed_gpt::{PARTS, SealedGpt};

pub(crate) struct Bytes(pub Vec<u8>);

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

fn examined(image: &Arc<dyn Backing>) -> Result<Disk, DiskError> {
    Parse::new().run(|parsing| examine(parsing, image), || {}).unwrap()
}

fn file(path: &Path) -> Disk {
    let image: Arc<dyn Backing> = Arc::new(BackingFile::new(File::open(path).unwrap(), path.to_owned()).unwrap());
    examined(&image).unwrap()
}

fn bytes_of(bytes: Vec<u8>) -> Result<Disk, DiskError> {
    let image: Arc<dyn Backing> = Arc::new(Bytes(bytes));
    examined(&image)
}

/// Makes an image of `mib` MiB. sfdisk partitions it by `script`.
fn partitioned(dir: &Path, mib: u64, script: &str) -> std::path::PathBuf {
    let path = dir.join("disk.img");
    File::create(&path).unwrap().set_len(mib << 20).unwrap();
    let mut sfdisk = Command::new("/sbin/sfdisk");
    let mut child = sfdisk.arg("-q").arg(&path).stdin(Stdio::piped()).spawn().unwrap();
    std::io::Write::write_all(&mut child.stdin.take().unwrap(), script.as_bytes()).unwrap();
    assert!(child.wait().unwrap().success());
    path
}

const GPT: &str = "label: gpt\nlabel-id: 11111111-2222-3333-4444-555555555555\n\
    start=2048, size=8192, type=C12A7328-F81F-11D2-BA4B-00A0C93EC93B, name=\"ESP\"\n\
    size=16384, type=L, name=\"root ü\", uuid=aaaaaaaa-bbbb-cccc-dddd-eeeeeeeeeeee, attrs=LegacyBIOSBootable\n";

#[test]
fn a_gpt_is_read() {
    let dir = tempfile::tempdir().unwrap();
    let disk = file(&partitioned(dir.path(), 20, GPT));
    let table = Table { kind: TableKind::Gpt, id: "11111111-2222-3333-4444-555555555555".into(), sector: 512 };
    assert_eq!((disk.table.as_ref(), disk.notes.len(), disk.content), (Some(&table), 0, None));
    let [esp, root] = &disk.parts[..] else { panic!("{:?}", disk.parts) };
    assert_eq!((esp.number, esp.start, esp.length), (1, 1 << 20, 4 << 20));
    assert_eq!((esp.type_name, esp.name.as_deref(), esp.boots), (Some("EFI system"), Some("ESP"), false));
    assert_eq!((root.start, root.length, root.boots), (5 << 20, 8 << 20, true));
    assert_eq!(root.name.as_deref(), Some("root ü"));
    assert_eq!(root.id.as_deref(), Some("aaaaaaaa-bbbb-cccc-dddd-eeeeeeeeeeee"));
    assert_eq!((root.type_name, root.content.as_ref()), (Some("Linux"), None));
}

#[test]
fn a_damaged_gpt_is_read_from_its_copy_or_refused() {
    let dir = tempfile::tempdir().unwrap();
    let whole = fs::read(partitioned(dir.path(), 20, GPT)).unwrap();
    let parts = bytes_of(whole.clone()).unwrap().parts;
    for at in [512 + 16, 512 + 72, 1024 + 32, 1024 + 128 + 56] {
        let mut first = whole.clone();
        first[at] ^= 1;
        let disk = bytes_of(first.clone()).unwrap();
        assert_eq!(disk.parts, parts, "{at}");
        assert!(disk.notes[0].contains("checksum") && disk.notes[1].contains("second copy"), "{:?}", disk.notes);
        // The other one, too.
        let last = first.len() - 512;
        first[last + 40] ^= 1;
        let error = bytes_of(first).unwrap_err().to_string();
        assert!(error.contains("first copy") && error.contains("second copy"), "{error}");
    }
    let mut gone = whole.clone();
    gone[512..520].fill(0);
    assert_eq!(bytes_of(gone).unwrap().parts, parts);
    let cut = bytes_of(whole[..1 << 20].to_vec()).unwrap();
    assert_eq!((cut.parts.len(), cut.notes.len()), (2, 2));
    // A disk with another table since is no GPT disk.
    let mut other = whole;
    other[512..1536].fill(0);
    other[446 + 4] = 0x83;
    let disk = bytes_of(other).unwrap();
    assert_eq!(disk.table.map(|table| table.kind), Some(TableKind::Mbr));
}

#[test]
fn an_mbr_with_an_extended_partition_is_read() {
    let dir = tempfile::tempdir().unwrap();
    let script = "label: dos\nlabel-id: 0xcafe1234\nstart=2048, size=8192, type=83, bootable\nsize=20480, type=5\n\
        start=12288, size=4096, type=82\nstart=18432, size=4096, type=83\n";
    let disk = file(&partitioned(dir.path(), 20, script));
    assert_eq!(disk.table.map(|table| (table.kind, table.id)), Some((TableKind::Mbr, "cafe1234".to_owned())));
    let found: Vec<_> = disk.parts.iter().map(|part| (part.number, part.type_id.as_str(), part.boots)).collect();
    assert_eq!(found, [(1, "83", true), (2, "05", false), (5, "82", false), (6, "83", false)]);
    assert_eq!(disk.parts[2].start, 12_288 * 512);
    assert_eq!(disk.parts[3].id.as_deref(), Some("cafe1234-06"));
}

#[test]
fn a_chain_without_end_ends() {
    let mut image = vec![0; 64 << 10];
    let entry = |image: &mut Vec<u8>, sector: usize, place: usize, kind: u8, start: u32, length: u32| {
        let at = sector * 512 + 446 + 16 * place;
        image[at + 4] = kind;
        image[at + 8..at + 12].copy_from_slice(&start.to_le_bytes());
        image[at + 12..at + 16].copy_from_slice(&length.to_le_bytes());
        image[sector * 512 + 510..sector * 512 + 512].copy_from_slice(&[0x55, 0xAA]);
    };
    entry(&mut image, 0, 0, 5, 8, 100);
    entry(&mut image, 8, 0, 0x83, 1, 1);
    entry(&mut image, 8, 1, 5, 2, 1);
    entry(&mut image, 10, 0, 0x83, 1, u32::MAX);
    entry(&mut image, 10, 1, 5, 0, 1);
    let disk = bytes_of(image.clone()).unwrap();
    assert_eq!(disk.parts.iter().map(|part| part.number).collect::<Vec<_>>(), [1, 5, 6]);
    assert!(disk.notes.iter().any(|note| note.contains("no end")), "{:?}", disk.notes);
    assert!(disk.notes.iter().any(|note| note.contains("partition 6 goes beyond")), "{:?}", disk.notes);
    entry(&mut image, 10, 1, 5, u32::MAX, 1);
    assert!(bytes_of(image).unwrap().notes.iter().any(|note| note.contains("breaks off")));
}

/// Label and UUID as the tools set them; the command is what follows the format's name.
type Made = (&'static str, &'static [&'static str], Option<&'static str>, Option<&'static str>);

const MADE: [Made; 5] = [
    ("ext4", &["mke2fs", "-q", "-t", "ext4", "-L", "lab", "-U", UUID], Some("lab"), Some(UUID)),
    ("ext3", &["mke2fs", "-q", "-t", "ext3", "-L", "lab", "-U", UUID], Some("lab"), Some(UUID)),
    ("ext2", &["mke2fs", "-q", "-t", "ext2", "-U", UUID], None, Some(UUID)),
    ("swap", &["mkswap", "-q", "-L", "lab", "-U", UUID], Some("lab"), Some(UUID)),
    ("vfat", &["mkfs.fat", "-n", "LAB", "-i", "1234ABCD"], Some("LAB"), Some("1234-ABCD")),
];

const UUID: &str = "01234567-89ab-cdef-0123-456789abcdef";

#[test]
fn contents_are_told_as_the_tools_made_them() {
    let dir = tempfile::tempdir().unwrap();
    for (format, words, label, uuid) in MADE {
        let path = dir.path().join(format);
        File::create(&path).unwrap().set_len(8 << 20).unwrap();
        let program = Path::new("/sbin").join(words[0]);
        let made = Command::new(program).args(&words[1..]).arg(&path).output().unwrap();
        assert!(made.status.success(), "{made:?}");
        let content = file(&path).content;
        let expected = Signature { format, label: label.map(Into::into), uuid: uuid.map(Into::into) };
        assert_eq!(content, Some(expected));
    }
}

#[test]
fn a_part_has_its_own_content() {
    let dir = tempfile::tempdir().unwrap();
    let path = partitioned(dir.path(), 20, GPT);
    let part = dir.path().join("part");
    File::create(&part).unwrap().set_len(8 << 20).unwrap();
    let made = Command::new("/sbin/mke2fs").args(["-q", "-t", "ext4", "-U", UUID]).arg(&part).status().unwrap();
    assert!(made.success());
    let mut image = fs::read(&path).unwrap();
    image[5 << 20..13 << 20].copy_from_slice(&fs::read(&part).unwrap());
    let disk = bytes_of(image).unwrap();
    let content = disk.parts[1].content.as_ref().unwrap();
    assert_eq!((content.format, content.uuid.as_deref()), ("ext4", Some(UUID)));
}

#[test]
fn no_flipped_byte_and_no_cut_panics() {
    let dir = tempfile::tempdir().unwrap();
    let whole = fs::read(partitioned(dir.path(), 4, &GPT.replace("8192", "1024").replace("16384", "1024"))).unwrap();
    let places = (440..2048).step_by(7).chain(whole.len() - 512..whole.len());
    for at in places {
        for value in [0, 1, 0x7F, 0xFF] {
            let mut bytes = whole.clone();
            bytes[at] = value;
            let _ = bytes_of(bytes);
        }
    }
    for length in [0, 1, 511, 512, 513, 1024, 1500, 20_000] {
        let _ = bytes_of(whole[..length].to_vec());
    }
}

/// Examines a disk. What is found is within it, and has room in it.
fn bounded(image: Vec<u8>) -> Result<Disk, DiskError> {
    let size = image.len() as u64;
    let image: Arc<dyn Backing> = Arc::new(Bytes(image));
    let disk = examine(Parsing::unconfined(), &image)?;
    assert!(disk.parts.len() as u64 <= size / 128, "{} parts", disk.parts.len());
    assert!(disk.notes.len() <= disk.parts.len() + 8, "{:?}", disk.notes);
    for part in disk.parts.iter().filter(|part| part.content.is_some()) {
        assert!(part.start + part.length <= size, "{part:?}");
    }
    Ok(disk)
}

#[test]
fn no_byte_of_a_gpt_panics_when_its_checksums_are_right() {
    for sector in [512, 4096] {
        let whole = SealedGpt::new(sector);
        let intact = bounded(whole.image.clone()).unwrap();
        assert_eq!((intact.table.as_ref().unwrap().kind, intact.notes.len()), (TableKind::Gpt, 0));
        let ranges = intact.parts.iter().map(|part| (part.start as usize, part.length as usize));
        assert_eq!(ranges.collect::<Vec<_>>(), PARTS);
        let (headers, entries) = (whole.headers(), whole.entries());
        // A header, the entries that are used, and the first byte of the next one.
        let of_copy =
            |copy: usize| (headers[copy]..headers[copy] + 92).chain(entries[copy]..entries[copy] + 3 * 128 + 1);
        let (mut told, mut wrong) = (0, Vec::new());
        for gone in [false, true] {
            let mut base = whole.clone();
            if gone {
                // Without the first copy, the second one is used.
                base.image[headers[0]..headers[0] + 8].fill(0);
            }
            for at in (440..512).chain(of_copy(usize::from(gone))) {
                for value in [0, 1, 0x7F, 0x80, 0xFF] {
                    let mut disk = base.clone();
                    disk.image[at] = value;
                    (0..2).for_each(|copy| disk.seal(copy));
                    let found = bounded(disk.image);
                    let notes = match &found {
                        Ok(disk) => disk.notes.join("; "),
                        Err(error) => error.to_string(),
                    };
                    told += usize::from(found.is_ok_and(|disk| disk.parts != intact.parts));
                    // Entries that lie in their header can have no checksum.
                    let places = headers.map(|header| header + 72..header + 80);
                    if notes.contains("checksum") && !places.iter().any(|place| place.contains(&at)) {
                        wrong.push((at, value, notes));
                    }
                }
            }
        }
        assert!(wrong.is_empty(), "{wrong:?}");
        // Entries that were changed are taken, which a wrong checksum would have prevented.
        assert!(told > 1000, "{told}");
    }
}

#[test]
fn sizes_of_any_bytes_are_told_or_not() {
    let formats = [
        "ext4", "xfs", "btrfs", "jfs", "reiserfs", "nilfs2", "ntfs", "exfat", "vfat", "f2fs", "hfs", "hfsplus", "swap",
    ];
    let mut state = 1_u64;
    let mut told = 0;
    for round in 0..3000_u32 {
        // Only the places of superblocks matter; small numbers and large ones.
        let mut bytes = vec![0; 0x1_1000];
        for from in [0, 1024, 0x8000, 0x1_0000] {
            for byte in bytes.iter_mut().skip(from).take(512) {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                let random = state >> 56;
                *byte = if round.is_multiple_of(2) || random.is_multiple_of(4) { (state >> 48) as u8 } else { 0 };
            }
        }
        let volume = Bytes(bytes);
        let count =
            |parsing| formats.iter().filter(|format| space(parsing, &volume, format).unwrap().is_some()).count();
        told += Parse::new().run(count, || {}).unwrap();
    }
    assert!(told > 0);
}
