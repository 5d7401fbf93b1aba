//! Tests with generated kernel files: a bzImage with every compression, a vmlinux, and hostile ones.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use proptest::prelude::*;

use super::*;
use crate::arch::Arch;

const RELEASE: &str = "6.1.0-test";

/// An ELF file with a note segment; `note_type` 18 is the PVH entry.
fn vmlinux(note_type: u32) -> Vec<u8> {
    let mut file = vec![0; 64];
    file[..8].copy_from_slice(b"\x7fELF\x02\x01\x01\0");
    file[18..20].copy_from_slice(&62_u16.to_le_bytes());
    file[32..40].copy_from_slice(&64_u64.to_le_bytes());
    file[54..56].copy_from_slice(&56_u16.to_le_bytes());
    file[56..58].copy_from_slice(&1_u16.to_le_bytes());
    let mut segment = vec![0; 56];
    segment[..4].copy_from_slice(&4_u32.to_le_bytes());
    segment[8..16].copy_from_slice(&120_u64.to_le_bytes());
    let mut notes = Vec::new();
    for (name, kind, descriptor) in [(&b"GNU\0"[..], 3, &[1; 20][..]), (b"Xen\0", note_type, &[0, 0, 0, 1][..])] {
        notes.extend((name.len() as u32).to_le_bytes());
        notes.extend((descriptor.len() as u32).to_le_bytes());
        notes.extend(u32::to_le_bytes(kind));
        notes.extend(name);
        notes.extend(descriptor);
    }
    segment[32..40].copy_from_slice(&(notes.len() as u64).to_le_bytes());
    file.extend(segment);
    file.extend(notes);
    file.extend(b"Linux version %s\0");
    file.extend(format!("Linux version {RELEASE} (builder) #1 SMP\0").bytes());
    // More than one block of the LZ4 format.
    file.extend((0..9_000_000_u32).map(|n| (n >> 9) as u8));
    file
}

/// A bzImage with `payload` as it is.
fn bzimage(payload: &[u8]) -> Vec<u8> {
    const SETUP: usize = 2 * 512;
    let mut file = vec![0; SETUP];
    file[0x1f1] = 1;
    file[0x202..0x206].copy_from_slice(b"HdrS");
    file[0x206..0x208].copy_from_slice(&0x020f_u16.to_le_bytes());
    file[0x20e..0x210].copy_from_slice(&0x100_u16.to_le_bytes());
    let version = format!("{RELEASE} (builder) #1 SMP\0");
    file[0x300..0x300 + version.len()].copy_from_slice(version.as_bytes());
    file[0x248..0x24c].copy_from_slice(&16_u32.to_le_bytes());
    file[0x24c..0x250].copy_from_slice(&(payload.len() as u32).to_le_bytes());
    file.extend([0x90; 16]);
    file.extend(payload);
    file.extend(b"what follows the payload");
    file
}

fn unpack(payload: &[u8]) -> Result<Vec<u8>, PayloadError> {
    payload::unpack(payload, payload::MAX_UNPACKED)
}

fn with_size(mut compressed: Vec<u8>, size: usize) -> Vec<u8> {
    compressed.extend((size as u32).to_le_bytes());
    compressed
}

fn gzip(data: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(data).unwrap();
    encoder.finish().unwrap()
}

/// As the kernel's build calls xz: with the filter for x86 code and CRC32.
fn xz(data: &[u8]) -> Vec<u8> {
    use liblzma::stream::{Check, Filters, LzmaOptions, Stream};
    let mut filters = Filters::new();
    filters.x86().lzma2(&LzmaOptions::new_preset(0).unwrap());
    let stream = Stream::new_stream_encoder(&filters, Check::Crc32).unwrap();
    let mut encoder = liblzma::write::XzEncoder::new_stream(Vec::new(), stream);
    encoder.write_all(data).unwrap();
    with_size(encoder.finish().unwrap(), data.len())
}

fn zstd(data: &[u8]) -> Vec<u8> {
    with_size(::zstd::encode_all(data, 1).unwrap(), data.len())
}

fn lz4(data: &[u8]) -> Vec<u8> {
    let mut compressed = vec![0x02, 0x21, 0x4c, 0x18];
    for block in data.chunks(8 << 20) {
        let block = lz4_flex::block::compress(block);
        compressed.extend((block.len() as u32).to_le_bytes());
        compressed.extend(block);
    }
    with_size(compressed, data.len())
}

type Compress = fn(&[u8]) -> Vec<u8>;
const COMPRESSIONS: [(&str, Compress); 4] = [("gzip", gzip), ("xz", xz), ("zstd", zstd), ("lz4", lz4)];

struct Fixture {
    directory: tempfile::TempDir,
}

impl Fixture {
    fn new() -> Fixture {
        Fixture { directory: tempfile::tempdir().unwrap() }
    }

    fn file(&self, bytes: &[u8]) -> PathBuf {
        let path = self.directory.path().join("kernel");
        fs::write(&path, bytes).unwrap();
        path
    }

    fn cache(&self) -> Cache {
        Cache::at(&self.directory.path().join("cache"))
    }

    fn open(&self, bytes: &[u8]) -> Result<Kernel, KernelError> {
        Kernel::open(&self.file(bytes), Arch::X86_64, &self.cache())
    }

    /// The error's message, with the kernel's path as `KERNEL`.
    fn refuse(&self, bytes: &[u8]) -> String {
        let message = self.open(bytes).unwrap_err().to_string();
        message.replace(self.file(bytes).to_str().unwrap(), "KERNEL")
    }
}

#[test]
fn every_compression_is_unpacked() {
    let vmlinux = vmlinux(18);
    for (name, compress) in COMPRESSIONS {
        let fixture = Fixture::new();
        let kernel = fixture.open(&bzimage(&compress(&vmlinux))).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!((kernel.release.as_str(), kernel.entry), (RELEASE, Entry::Pvh), "{name}");
        assert!(fs::read(&kernel.image).unwrap() == vmlinux, "{name}");
        assert_eq!(kernel.modules, None);
    }
}

#[test]
fn second_open_takes_the_cached_copy() {
    let fixture = Fixture::new();
    let file = fixture.file(&bzimage(&gzip(&vmlinux(18))));
    let first = Kernel::open(&file, Arch::X86_64, &fixture.cache()).unwrap();
    fs::write(&first.image, b"the cached copy").unwrap();
    assert_eq!(Kernel::open(&file, Arch::X86_64, &fixture.cache()).unwrap(), first);
    assert_eq!(fs::read(&first.image).unwrap(), b"the cached copy");
}

#[test]
fn an_entry_that_may_be_somebody_elses_is_not_booted() {
    let fixture = Fixture::new();
    let file = fixture.file(&bzimage(&gzip(&vmlinux(18))));
    let first = Kernel::open(&file, Arch::X86_64, &fixture.cache()).unwrap();
    let theirs = fixture.directory.path().join("theirs");
    let unpacked_again = |how: &str| {
        let again = Kernel::open(&file, Arch::X86_64, &fixture.cache()).unwrap();
        assert!(again == first && fs::read(&again.image).unwrap() == vmlinux(18), "{how}");
        assert!(again.image.symlink_metadata().unwrap().is_file(), "{how}");
    };
    fs::write(&theirs, b"another kernel").unwrap();
    fs::remove_file(&first.image).unwrap();
    std::os::unix::fs::symlink(&theirs, &first.image).unwrap();
    unpacked_again("a symbolic link");
    fs::remove_file(&first.image).unwrap();
    fs::hard_link(&theirs, &first.image).unwrap();
    unpacked_again("a hard link");
    if rustix::process::geteuid().is_root() {
        fs::write(&first.image, b"another kernel").unwrap();
        std::os::unix::fs::chown(&first.image, Some(65_534), None).unwrap();
        unpacked_again("another user's");
    }
    assert_eq!(fs::read(&theirs).unwrap(), b"another kernel");
}

#[test]
fn without_a_cache_the_bzimage_boots() {
    let fixture = Fixture::new();
    let file = fixture.file(&bzimage(&gzip(&vmlinux(18))));
    let kernel = Kernel::open(&file, Arch::X86_64, &Cache::none()).unwrap();
    assert_eq!((kernel.entry, &kernel.image), (Entry::BzImage, &kernel.source));
}

#[test]
fn replaced_kernel_is_unpacked_again() {
    let fixture = Fixture::new();
    let first = fixture.open(&bzimage(&gzip(&vmlinux(18)))).unwrap();
    let second = fixture.open(&bzimage(&zstd(&vmlinux(18)))).unwrap();
    assert_ne!(first.image, second.image);
}

#[test]
fn entries_out_of_use_go_when_another_comes() {
    let fixture = Fixture::new();
    let first = fixture.open(&bzimage(&gzip(&vmlinux(18)))).unwrap();
    let long_ago = std::time::SystemTime::now() - 2 * cache::MAX_AGE;
    fs::File::options().write(true).open(&first.image).unwrap().set_modified(long_ago).unwrap();
    let second = fixture.open(&bzimage(&zstd(&vmlinux(18)))).unwrap();
    assert!(!first.image.exists());
    assert!(second.image.exists());
    assert_eq!(fs::read_dir(fixture.directory.path().join("cache")).unwrap().count(), 2);
}

#[test]
fn what_takes_the_name_of_an_open_cache_stays_as_it_is() {
    let fixture = Fixture::new();
    let file = fixture.file(&bzimage(&gzip(&vmlinux(18))));
    let at = |name: &str| fixture.directory.path().join(name);
    fs::create_dir(at("cache")).unwrap();
    let cache = Cache::in_open(fs::File::open(at("cache")).unwrap().into(), &at("cache"));
    // A directory of another user, with an old file in it, takes the cache's name.
    fs::create_dir(at("theirs")).unwrap();
    let old = fs::File::create(at("theirs/old")).unwrap();
    old.set_modified(std::time::SystemTime::now() - 2 * cache::MAX_AGE).unwrap();
    fs::rename(at("cache"), at("moved")).unwrap();
    std::os::unix::fs::symlink("theirs", at("cache")).unwrap();
    let kernel = Kernel::open(&file, Arch::X86_64, &cache).unwrap();
    assert_eq!(fs::read_dir(at("theirs")).unwrap().count(), 1);
    assert!(at("theirs/old").exists());
    let name = kernel.image.file_name().unwrap();
    assert!(fs::read(at("moved").join(name)).unwrap() == vmlinux(18));
    // The entry is found and cleared in the directory that was opened.
    assert_eq!(Kernel::open(&file, Arch::X86_64, &cache).unwrap(), kernel);
    let long_ago = std::time::SystemTime::now() - 2 * cache::MAX_AGE;
    fs::File::options().write(true).open(at("moved").join(name)).unwrap().set_modified(long_ago).unwrap();
    Kernel::open(&fixture.file(&bzimage(&zstd(&vmlinux(18)))), Arch::X86_64, &cache).unwrap();
    assert!(!at("moved").join(name).exists());
    assert_eq!(fs::read_dir(at("moved")).unwrap().count(), 2);
}

#[test]
fn bzimage_boots_as_it_is_where_nothing_better_can_be_had() {
    let without_entry = bzimage(&gzip(&vmlinux(5)));
    let rare_compression = bzimage(b"BZh91AY&SY and so on");
    for file in [without_entry, rare_compression] {
        let fixture = Fixture::new();
        let kernel = fixture.open(&file).unwrap();
        assert_eq!((kernel.entry, &kernel.image), (Entry::BzImage, &kernel.source));
        assert_eq!(kernel.release, RELEASE);
    }
    let fixture = Fixture::new();
    let file = fixture.file(&bzimage(&gzip(&vmlinux(18))));
    let kernel = Kernel::open(&file, Arch::X86_64, &Cache::at(Path::new("/proc/no-such-cache"))).unwrap();
    assert_eq!(kernel.entry, Entry::BzImage);
}

#[test]
fn vmlinux_boots_without_a_copy() {
    let fixture = Fixture::new();
    let kernel = fixture.open(&vmlinux(18)).unwrap();
    assert_eq!((kernel.release.as_str(), kernel.entry, &kernel.image), (RELEASE, Entry::Pvh, &kernel.source));
    assert!(fixture.refuse(&vmlinux(5)).starts_with("KERNEL is an ELF file without a PVH entry"));
}

#[test]
fn other_files_are_named_for_what_they_are() {
    let fixture = Fixture::new();
    let mut other_machine = vmlinux(18);
    other_machine[18] = 183;
    let cases: [(&[u8], &str); 5] = [
        (b"", "an empty file"),
        (b"#!/bin/sh\n", "a script"),
        (b"070701000", "a cpio archive"),
        (&other_machine, "an ELF file of another machine"),
        (b"\x01\x02\x03", "a file that begins with 01 02 03"),
    ];
    for (bytes, found) in cases {
        let message = fixture.refuse(bytes);
        assert!(message.starts_with("KERNEL is not a kernel for x86_64") && message.contains(found), "{message}");
    }
}

/// An `Image` with this magic.
fn image(magic: &[u8; 4]) -> Vec<u8> {
    let mut bytes = vec![0; 4096];
    bytes[0x38..0x3c].copy_from_slice(magic);
    bytes.extend(format!("Linux version {RELEASE} (gcc)\0").as_bytes());
    bytes
}

#[test]
fn an_image_boots_unpacked_and_on_its_own_architecture() {
    let fixture = Fixture::new();
    let open = |bytes: &[u8], arch, cache: &Cache| Kernel::open(&fixture.file(bytes), arch, cache);
    let (riscv, arm) = (image(b"RSC\x05"), image(b"ARM\x64"));
    let kernel = open(&riscv, Arch::Riscv64, &Cache::none()).unwrap();
    assert_eq!((kernel.arch, kernel.entry, &kernel.image), (Arch::Riscv64, Entry::Image, &kernel.source));
    assert_eq!(kernel.release, RELEASE);
    // The kernel's build makes Image.gz, without the size that a bzImage's payload ends with.
    let packed = gzip(&arm);
    let kernel = open(&packed, Arch::Aarch64, &fixture.cache()).unwrap();
    assert!(fs::read(&kernel.image).unwrap() == arm);
    assert_eq!(Kernel::open(&kernel.source, Arch::Aarch64, &fixture.cache()).unwrap(), kernel);
    let error = Kernel::open(&kernel.source, Arch::X86_64, &fixture.cache()).unwrap_err();
    assert!(matches!(error, KernelError::OtherArch { found: Arch::Aarch64, .. }), "{error}");
    for (bytes, arch) in [(&arm, Arch::Riscv64), (&packed, Arch::Riscv64), (&riscv, Arch::X86_64)] {
        let error = open(bytes, arch, &fixture.cache()).unwrap_err();
        assert!(matches!(error, KernelError::OtherArch { .. }), "{arch}: {error}");
    }
    let error = open(&vmlinux(18), Arch::Aarch64, &fixture.cache()).unwrap_err();
    assert!(matches!(error, KernelError::OtherArch { found: Arch::X86_64, .. }), "{error}");
    let cut = packed[..packed.len() / 2].to_vec();
    assert!(matches!(open(&cut, Arch::Aarch64, &Cache::none()).unwrap_err(), KernelError::Image { .. }));
    assert!(matches!(open(&packed, Arch::Aarch64, &Cache::none()).unwrap_err(), KernelError::NoPlace { .. }));
}

#[test]
fn missing_file_and_directory_are_errors() {
    let fixture = Fixture::new();
    let open = |path: &Path| Kernel::open(path, Arch::X86_64, &fixture.cache()).unwrap_err().to_string();
    assert!(open(Path::new("/nonexistent")).starts_with("cannot read the kernel /nonexistent: No such file"));
    assert_eq!(open(Path::new("/dev")), "cannot read the kernel /dev: not a regular file");
}

#[test]
fn header_that_points_out_of_the_file_is_refused() {
    let fixture = Fixture::new();
    let good = bzimage(&gzip(b"small"));
    for (field, value) in [(0x248, u32::MAX), (0x24c, u32::MAX), (0x24c, good.len() as u32)] {
        let mut bad = good.clone();
        bad[field..field + 4].copy_from_slice(&value.to_le_bytes());
        let message = fixture.refuse(&bad);
        assert!(message.starts_with("KERNEL: setup header: payload_offset"), "{message}");
    }
    let mut old = good;
    old[0x206..0x208].copy_from_slice(&0x0203_u16.to_le_bytes());
    assert_eq!(fixture.refuse(&old), "KERNEL: boot protocol 2.3 is older than 2.8");
}

#[test]
fn release_that_would_leave_the_directory_of_modules_is_refused() {
    let fixture = Fixture::new();
    for bad in ["../../etc", "6.1/../..", "\u{1b}[31m6.1"] {
        let mut file = bzimage(&gzip(&vmlinux(18)));
        file[0x300..0x320].fill(0);
        file[0x300..0x300 + bad.len()].copy_from_slice(bad.as_bytes());
        assert_eq!(fixture.refuse(&file), "KERNEL is a kernel, but does not say which release it is", "{bad}");
    }
}

#[test]
fn payload_that_lies_about_its_size_is_refused() {
    let zeros = vec![0; 64 << 20];
    for (name, compress) in COMPRESSIONS {
        let mut bomb = compress(&zeros);
        let end = bomb.len() - 4;
        // A size beyond the limit is refused before anything is unpacked.
        bomb[end..].copy_from_slice(&u32::MAX.to_le_bytes());
        assert!(matches!(unpack(&bomb), Err(PayloadError::TooLarge { .. })), "{name}");
        for said in [1000_u32, 65 << 20] {
            bomb[end..].copy_from_slice(&said.to_le_bytes());
            let error = unpack(&bomb).unwrap_err();
            assert!(matches!(error, PayloadError::Size { .. } | PayloadError::Damaged { .. }), "{name}: {error}");
        }
    }
}

#[test]
fn payload_beyond_the_callers_limit_is_refused() {
    for (name, compress) in COMPRESSIONS {
        let payload = compress(&[7; 5000]);
        assert_eq!(payload::unpack(&payload, 5000).unwrap(), [7; 5000], "{name}");
        let error = payload::unpack(&payload, 4999).unwrap_err();
        assert!(matches!(error, PayloadError::TooLarge { declared: 5000, limit: 4999 }), "{name}: {error}");
    }
}

#[test]
fn one_large_note_segment_that_is_named_often_costs_little() {
    const NOTES: usize = 64 + 65_535 * 56;
    let mut file = vmlinux(18)[..64].to_vec();
    file[56..58].copy_from_slice(&u16::MAX.to_le_bytes());
    let mut header = [0; 56];
    header[..4].copy_from_slice(&4_u32.to_le_bytes());
    header[8..16].copy_from_slice(&(NOTES as u64).to_le_bytes());
    header[32..40].copy_from_slice(&(16_u64 << 20).to_le_bytes());
    file.extend(header.repeat(65_535));
    // Empty notes without end.
    file.resize(NOTES + (16 << 20), 0);
    // Reading each segment completely would read a terabyte.
    assert!(!elf::has_pvh_entry(&file));
}

#[test]
fn damaged_payload_is_refused() {
    let vmlinux = vmlinux(18);
    for (name, compress) in COMPRESSIONS {
        let good = compress(&vmlinux);
        let cut = with_size(good[..good.len() / 2].to_vec(), vmlinux.len());
        let error = unpack(&cut).unwrap_err();
        assert!(matches!(error, PayloadError::Size { .. } | PayloadError::Damaged { .. }), "{name}: {error}");
    }
    assert!(matches!(unpack(b"no such compression"), Err(PayloadError::Unknown(_))));
    assert!(matches!(unpack(b"\x1f\x8b"), Err(PayloadError::Unknown(_))));
}

proptest! {
    #[test]
    fn no_bytes_make_a_parser_panic(bytes in prop::collection::vec(any::<u8>(), 0..2048), start in 0_usize..5) {
        let starts: [&[u8]; 5] = [b"", b"\x7fELF\x02\x01", b"\x02\x21\x4c\x18", b"\x28\xb5\x2f\xfd", b"\xfd7zXZ\0"];
        let mut file = bytes;
        let magic = starts[start];
        if file.len() > magic.len() {
            file[..magic.len()].copy_from_slice(magic);
        }
        let _ = unpack(&file);
        let _ = elf::has_pvh_entry(&file);
        let _ = elf::release(&file);
        let _ = BzImage::parse(&file);
    }

    #[test]
    fn no_change_of_a_header_makes_a_parser_panic(offset in 0_usize..0x260, value in any::<u32>()) {
        let mut file = bzimage(&with_size(b"\x02\x21\x4c\x18".to_vec(), 10));
        file[offset..offset + 4].copy_from_slice(&value.to_le_bytes());
        if let Ok(header) = BzImage::parse(&file) {
            let _ = unpack(header.payload);
        }
        let mut elf = vmlinux(18)[..300].to_vec();
        let offset = offset % 296;
        elf[offset..offset + 4].copy_from_slice(&value.to_le_bytes());
        let _ = elf::has_pvh_entry(&elf);
        let _ = elf::release(&elf);
    }
}
