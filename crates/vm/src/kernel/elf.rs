//! Inspects a vmlinux: whether it is an x86-64 ELF file, its PVH entry and its release.

use super::fields::{c_string, le16, le32, le64, release as release_of};

const MAGIC: &[u8] = b"\x7fELF";
const CLASS: usize = 4;
const CLASS_64: u8 = 2;
const DATA: usize = 5;
const DATA_LITTLE_ENDIAN: u8 = 1;
const MACHINE: usize = 18;
const MACHINE_X86_64: u16 = 62;
const PROGRAM_HEADERS: usize = 32;
const PROGRAM_HEADER_SIZE: usize = 54;
const PROGRAM_HEADER_COUNT: usize = 56;
/// Size of a program header of this class.
const PROGRAM_HEADER: usize = 56;

const SEGMENT_NOTE: u32 = 4;
const SEGMENT_OFFSET: usize = 8;
const SEGMENT_FILE_SIZE: usize = 32;

/// `XEN_ELFNOTE_PHYS32_ENTRY` (include/xen/interface/elfnote.h): the address of the PVH entry.
const NOTE_PVH_ENTRY: u32 = 18;
const NOTE_HEADER: usize = 12;
/// The bytes of a note segment that are read; a kernel's has a few hundred. A file may name one segment 65,535 times.
const NOTES_LIMIT: usize = 16 << 10;

/// The start of `linux_banner` (init/version.c).
const BANNER: &[u8] = b"Linux version ";
/// The longest banner that is read.
const BANNER_LIMIT: usize = 1024;

/// Whether `bytes` begin as an ELF file does.
pub fn is_elf(bytes: &[u8]) -> bool {
    bytes.starts_with(MAGIC)
}

/// Whether `bytes` are a 64-bit little-endian ELF file.
pub fn is_elf64(bytes: &[u8]) -> bool {
    is_elf(bytes) && bytes.get(CLASS) == Some(&CLASS_64) && bytes.get(DATA) == Some(&DATA_LITTLE_ENDIAN)
}

/// Whether `bytes` are an ELF file for x86-64.
pub fn is_x86_64(bytes: &[u8]) -> bool {
    is_elf64(bytes) && le16(bytes, MACHINE) == Some(MACHINE_X86_64)
}

/// Whether `bytes`, a whole x86-64 ELF file, have a note with a PVH entry.
pub fn has_pvh_entry(bytes: &[u8]) -> bool {
    is_x86_64(bytes) && note_segments(bytes).is_some_and(|mut segments| segments.any(has_pvh_note))
}

/// The release in a vmlinux's banner.
pub fn release(bytes: &[u8]) -> Option<String> {
    let mut from = 0;
    // The banner's format string ("Linux version %s") may come before the banner.
    while let Some(found) = find(bytes.get(from..)?, BANNER) {
        from = from.checked_add(found)?.checked_add(BANNER.len())?;
        if let Some(release) = c_string(bytes, from, BANNER_LIMIT).and_then(release_of) {
            return Some(release.to_owned());
        }
    }
    None
}

fn find(haystack: &[u8], needle: &[u8]) -> Option<usize> {
    memchr::memmem::find(haystack, needle)
}

fn note_segments(bytes: &[u8]) -> Option<impl Iterator<Item = &[u8]>> {
    let table = usize::try_from(le64(bytes, PROGRAM_HEADERS)?).ok()?;
    if usize::from(le16(bytes, PROGRAM_HEADER_SIZE)?) != PROGRAM_HEADER {
        return None;
    }
    let count = usize::from(le16(bytes, PROGRAM_HEADER_COUNT)?);
    Some((0..count).filter_map(move |index| {
        let header = bytes.get(table.checked_add(index.checked_mul(PROGRAM_HEADER)?)?..)?;
        if le32(header, 0)? != SEGMENT_NOTE {
            return None;
        }
        let offset = usize::try_from(le64(header, SEGMENT_OFFSET)?).ok()?;
        let length = usize::try_from(le64(header, SEGMENT_FILE_SIZE)?).ok()?;
        let segment = bytes.get(offset..offset.checked_add(length)?)?;
        segment.get(..NOTES_LIMIT).or(Some(segment))
    }))
}

/// Walks a note segment: each note is its name's size, its descriptor's size and its type, then name and descriptor,
/// both padded to 4 bytes.
fn has_pvh_note(mut notes: &[u8]) -> bool {
    let mut next = || -> Option<bool> {
        let name_size = usize::try_from(le32(notes, 0)?).ok()?;
        let descriptor_size = usize::try_from(le32(notes, 4)?).ok()?;
        let kind = le32(notes, 8)?;
        let name = notes.get(NOTE_HEADER..NOTE_HEADER.checked_add(name_size)?)?;
        let descriptor = NOTE_HEADER.checked_add(name_size.checked_next_multiple_of(4)?)?;
        let end = descriptor.checked_add(descriptor_size)?;
        let found =
            kind == NOTE_PVH_ENTRY && name == b"Xen\0" && matches!(descriptor_size, 4 | 8) && end <= notes.len();
        notes = notes.get(end.checked_next_multiple_of(4)?..).unwrap_or_default();
        Some(found)
    };
    loop {
        match next() {
            Some(true) => return true,
            Some(false) => {}
            None => return false,
        }
    }
}
