//! Any bytes as a disk image: it is examined or refused, and no partition lies outside of what can be read.
//!
//! An input is a small disk with a GPT, with bytes replaced and checksums made right again; tables of MBRs; what volumes of every format begin with; or an image
//! itself, of 32 KiB or more.

#![no_main]

#[path = "../../crates/disk/src/tests/sealed_gpt.rs"]
mod sealed_gpt;

use std::sync::{Arc, LazyLock};

use arbitrary::{Arbitrary, Unstructured};
use inarch_block::Backing;
use inarch_confine::Parsing;
use inarch_disk::{Keys, Window, examine, space, volumes};
use inarch_fuzz::image::{Memory, replace};
use libfuzzer_sys::fuzz_target;
use sealed_gpt::{PARTS, SealedGpt};

/// The least bytes of an input that is an image itself.
const WHOLE: usize = 32 << 10;

#[derive(Arbitrary, Debug)]
enum Input<'a> {
    Gpt {
        /// Whether its sectors have 4096 bytes.
        has_large_sectors: bool,
        /// Whether the checksums of a copy stay as they are.
        is_torn: [bool; 2],
        patches: Vec<Patch<'a>>,
        contents: Vec<(u8, Content<'a>)>,
        length: Option<u16>,
    },
    Mbr {
        entries: Vec<Entry>,
        contents: Vec<(u8, Content<'a>)>,
    },
    /// A disk without a table.
    Volume(Vec<Content<'a>>),
    Raw(&'a [u8]),
}

/// Bytes to be replaced in a disk with a GPT.
#[derive(Arbitrary, Debug)]
enum Patch<'a> {
    /// In the first sector's table.
    Protective(u8, &'a [u8]),
    /// In the header of the first copy or the second.
    Header(bool, u8, &'a [u8]),
    /// In one of its entries.
    Entry(bool, u8, u8, &'a [u8]),
    Anywhere(u32, &'a [u8]),
}

/// An entry of an MBR, or of a sector of an extended partition.
#[derive(Arbitrary, Debug)]
struct Entry {
    sector: u8,
    place: u8,
    flag: u8,
    kind: u8,
    start: u32,
    length: u32,
    /// Whether its start and its length may be beyond the end of the disk.
    is_far: bool,
}

/// What marks a format, and bytes to be replaced near that.
#[derive(Arbitrary, Debug)]
struct Content<'a> {
    format: u8,
    at: u16,
    bytes: &'a [u8],
}

/// What marks formats: bytes and their places.
const MARKS: [&[(usize, &[u8])]; 25] = [
    &[(0, b"LUKS\xBA\xBE\0\x02")],
    &[(512, b"LABELONE"), (532, &[32, 0, 0, 0]), (536, b"LVM2 001")],
    &[(4096, &[0xFC, 0x4E, 0x2B, 0xA9, 1, 0, 0, 0])],
    &[(0, b"XFSB")],
    &[(0x1_0040, b"_BHRfS_M")],
    &[(1080, &[0x53, 0xEF])],
    &[(0, b"hsqs"), (28, &[4, 0])],
    &[(1024, &[0xE2, 0xE1, 0xF5, 0xE0])],
    &[(1024, &[0x10, 0x20, 0xF5, 0xF2])],
    &[(32_769, b"CD001")],
    &[(1024, b"H+\0\x04")],
    &[(1024, b"BD"), (1044, &[0, 0, 2, 0])],
    &[(32_768, b"JFS1")],
    &[(0x1_0034, b"ReIsEr2Fs")],
    &[(1024, &[2, 0, 0, 0, 0, 0, 0x34, 0x34])],
    &[(0x1_0000, &[0x01, 0x16, 0x19, 0x70, 0, 0, 0, 1])],
    &[(32, b"NXSB")],
    &[(4086, b"SWAPSPACE2")],
    &[(3, b"-FVE-FS-")],
    &[(3, b"NTFS    ")],
    &[(3, b"EXFAT   ")],
    &[(54, b"FAT16   "), (510, &[0x55, 0xAA])],
    &[(82, b"FAT32   "), (510, &[0x55, 0xAA])],
    &[(4120, &[0xC6, 0x85, 0x73, 0xF6, 0x4E, 0x1A, 0x45, 0xCA, 0x82, 0x65, 0xF5, 0x7F, 0x48, 0xBA, 0x6D, 0x81])],
    // No mark: bytes at the start alone.
    &[(0, b"")],
];

/// The formats that have a size, as the bytes of a volume say it.
const SIZED: [&str; 13] =
    ["ext4", "xfs", "btrfs", "jfs", "reiserfs", "nilfs2", "ntfs", "exfat", "vfat", "f2fs", "hfs", "hfsplus", "swap"];

/// With sectors of 512 bytes, and of 4096.
static BASES: LazyLock<[SealedGpt; 2]> = LazyLock::new(|| {
    let bases = [512, 4096].map(SealedGpt::new);
    for base in &bases {
        // What is refused as it is would hide what its changes do.
        let image: Arc<dyn Backing> = Arc::new(Memory(base.image.clone()));
        let disk = examine(Parsing::unconfined(), &image).expect("it is sound");
        assert!(disk.parts.len() == PARTS.len() && disk.notes.is_empty());
    }
    bases
});

impl Content<'_> {
    /// Writes it into a volume, given by where it starts and how long it is.
    fn put(&self, image: &mut [u8], (start, length): (usize, usize)) {
        let Some(volume) = image.get_mut(start..start + length) else { return };
        let marks = MARKS[usize::from(self.format) % MARKS.len()];
        let near = marks[0].0 / 512 * 512;
        replace(volume, near + usize::from(self.at) % 1024, &self.bytes[..self.bytes.len().min(1024)]);
        for (at, bytes) in marks {
            replace(volume, *at, bytes);
        }
    }
}

fn put_contents(image: &mut [u8], contents: &[(u8, Content<'_>)]) {
    for (part, content) in contents {
        content.put(image, PARTS[usize::from(*part) % PARTS.len()]);
    }
}

fn gpt(mut disk: SealedGpt, patches: &[Patch<'_>], is_torn: [bool; 2]) -> Vec<u8> {
    let (headers, entries) = (disk.headers(), disk.entries());
    for patch in patches {
        let (at, bytes) = match patch {
            Patch::Protective(at, bytes) => (440 + usize::from(*at) % 72, bytes),
            Patch::Header(is_second, at, bytes) => (headers[usize::from(*is_second)] + usize::from(*at) % 100, bytes),
            Patch::Entry(is_second, number, at, bytes) => {
                let entry = usize::from(*number) % 16 * 128 + usize::from(*at) % 128;
                (entries[usize::from(*is_second)] + entry, bytes)
            }
            Patch::Anywhere(at, bytes) => (*at as usize % disk.image.len(), bytes),
        };
        replace(&mut disk.image, at, &bytes[..bytes.len().min(256)]);
    }
    for (copy, is_torn) in is_torn.into_iter().enumerate() {
        if !is_torn {
            disk.seal(copy);
        }
    }
    disk.image
}

/// Sectors with tables, where there are entries.
fn mbr(entries: &[Entry]) -> Vec<u8> {
    let end = PARTS[PARTS.len() - 1];
    let mut image = vec![0; end.0 + end.1];
    for entry in entries {
        let sector = usize::from(entry.sector % 64) * 512;
        let at = sector + 446 + 16 * usize::from(entry.place % 4);
        let [start, length] = [entry.start, entry.length].map(|count| if entry.is_far { count } else { count % 256 });
        // Usual types, and any other.
        let kind = [0x83, 0x05, 0x0F, 0x82, 0xEE, 0, entry.kind, entry.kind][usize::from(entry.kind) % 8];
        // Another flag makes it no table.
        let flag = if entry.flag < 250 { (entry.flag % 2) << 7 } else { entry.flag };
        replace(&mut image, at, &[flag, 0, 0, 0, kind]);
        replace(&mut image, at + 8, &start.to_le_bytes());
        replace(&mut image, at + 12, &length.to_le_bytes());
        replace(&mut image, sector + 510, &[0x55, 0xAA]);
    }
    image
}

fn look(bytes: Vec<u8>) {
    let parsing = Parsing::unconfined();
    let size = bytes.len() as u64;
    let image: Arc<dyn Backing> = Arc::new(Memory(bytes));
    for format in SIZED {
        let _ = space(parsing, &*image, format);
    }
    let Ok(disk) = examine(parsing, &image) else { return };
    // An entry of a GPT has 128 bytes at least, and of those of extended partitions there are 256 at most.
    assert!(disk.parts.len() as u64 <= size / 128 + 260 && disk.notes.len() <= disk.parts.len() + 8);
    for part in &disk.parts {
        let Some(content) = &part.content else { continue };
        assert!(part.start + part.length <= disk.size);
        let _ = space(parsing, &Window::new(Arc::clone(&image), part.start, part.length), content.format);
    }
    for volume in volumes(parsing, &[image], &Keys::default()).unwrap_or_default() {
        assert!(!volume.name().is_empty() && !volume.answers_to(""));
    }
}

fuzz_target!(|bytes: &[u8]| {
    if bytes.len() >= WHOLE {
        return look(bytes.to_vec());
    }
    match Input::arbitrary_take_rest(Unstructured::new(bytes)) {
        Ok(Input::Gpt { has_large_sectors, is_torn, patches, contents, length }) => {
            let mut base = BASES[usize::from(has_large_sectors)].clone();
            put_contents(&mut base.image, &contents);
            let mut image = gpt(base, &patches, is_torn);
            image.truncate(length.map_or(image.len(), |length| usize::from(length) * 4));
            look(image);
        }
        Ok(Input::Mbr { entries, contents }) => {
            let mut image = mbr(&entries);
            put_contents(&mut image, &contents);
            look(image);
        }
        Ok(Input::Volume(contents)) => {
            let whole = PARTS[0].1;
            let mut image = vec![0; whole];
            contents.iter().for_each(|content| content.put(&mut image, (0, whole)));
            look(image);
        }
        Ok(Input::Raw(bytes)) => look(bytes.to_vec()),
        Err(_) => {}
    }
});
