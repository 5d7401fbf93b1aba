//! Any bytes as a guest's kernel: a bzImage, a vmlinux, an Image, or a compressed payload.
//!
//! Parts taken from an image must lie inside of it, unpacked data must not exceed the limit, and a release must be a plain
//! name, because it becomes part of a path.

#![no_main]

use arbitrary::Arbitrary;
use inarch_vm::kernel::bzimage::BzImage;
use inarch_vm::kernel::{elf, image, payload};
use libfuzzer_sys::fuzz_target;

/// Bytes that a payload may unpack to.
const LIMIT: usize = 1 << 20;

/// A file, or parts of one that get past the first checks.
#[derive(Arbitrary, Debug)]
enum Input<'a> {
    File(&'a [u8]),
    BzImage {
        setup_sects: u8,
        protocol: u8,
        version: u16,
        offset: u16,
        length: u16,
        setup: &'a [u8],
        body: Payload<'a>,
    },
    Elf {
        table: u8,
        count: u16,
        headers: Vec<ProgramHeader>,
        notes: &'a [u8],
    },
    Payload(Payload<'a>),
}

#[derive(Arbitrary, Debug)]
struct ProgramHeader {
    note: bool,
    offset: u16,
    size: u16,
}

#[derive(Arbitrary, Debug)]
struct Payload<'a> {
    compression: u8,
    data: &'a [u8],
    size: u32,
}

impl Payload<'_> {
    fn bytes(&self) -> Vec<u8> {
        const MAGICS: [&[u8]; 8] = [
            &[0x1f, 0x8b, 8],
            &[0xfd, b'7', b'z', b'X', b'Z', 0],
            &[0x28, 0xb5, 0x2f, 0xfd],
            &[0x02, 0x21, 0x4c, 0x18],
            b"BZh",
            &[0x5d, 0, 0],
            b"\x7fELF",
            &[],
        ];
        let magic = MAGICS[usize::from(self.compression) % MAGICS.len()];
        let size = self.size % (2 * LIMIT as u32);
        [magic, self.data, &size.to_le_bytes()].concat()
    }
}

/// Puts `bytes` at `offset` of a file that may have to grow for them.
fn put(file: &mut Vec<u8>, offset: usize, bytes: &[u8]) {
    let end = offset + bytes.len();
    file.resize(file.len().max(end), 0);
    file[offset..end].copy_from_slice(bytes);
}

fn file(input: &Input<'_>) -> Vec<u8> {
    match input {
        Input::File(bytes) => bytes.to_vec(),
        Input::BzImage { setup_sects, protocol, version, offset, length, setup, body } => {
            let sectors = setup_sects % 4;
            let body = body.bytes();
            let mut file = setup[..setup.len().min(0x1000)].to_vec();
            put(&mut file, 0x1f1, &[sectors]);
            put(&mut file, 0x202, b"HdrS");
            put(&mut file, 0x206, &(0x200 + u16::from(protocol % 16)).to_le_bytes());
            put(&mut file, 0x20e, &version.to_le_bytes());
            put(&mut file, 0x248, &u32::from(*offset % 64).to_le_bytes());
            // Usually the whole payload; sometimes a part of it, or more than there is.
            let length = if *length % 4 == 0 { u32::from(*length) } else { body.len() as u32 };
            put(&mut file, 0x24c, &length.to_le_bytes());
            let setup_size = if sectors == 0 { 5 } else { usize::from(sectors) + 1 } * 512;
            put(&mut file, setup_size + usize::from(*offset % 64), &body);
            file
        }
        Input::Elf { table, count, headers, notes } => {
            let mut file = b"\x7fELF\x02\x01\x01".to_vec();
            put(&mut file, 18, &62u16.to_le_bytes());
            put(&mut file, 32, &u64::from(*table).to_le_bytes());
            put(&mut file, 54, &56u16.to_le_bytes());
            put(&mut file, 56, &count.to_le_bytes());
            for (i, header) in headers.iter().take(16).enumerate() {
                let at = usize::from(*table) + 56 * i;
                put(&mut file, at, &if header.note { 4u32 } else { 1 }.to_le_bytes());
                put(&mut file, at + 8, &u64::from(header.offset).to_le_bytes());
                put(&mut file, at + 32, &u64::from(header.size).to_le_bytes());
            }
            file.extend_from_slice(notes);
            file
        }
        Input::Payload(payload) => payload.bytes(),
    }
}

fn check_release(release: &str) {
    assert!(release.starts_with(|first: char| first.is_ascii_digit()), "{release}");
    assert!(release.chars().all(|c| c.is_ascii_alphanumeric() || ".-_+~".contains(c)), "{release}");
}

fn check_vmlinux(bytes: &[u8]) {
    assert!(!elf::has_pvh_entry(bytes) || elf::is_x86_64(bytes));
    if let Some(release) = elf::release(bytes) {
        check_release(&release);
    }
}

fn check_payload(bytes: &[u8]) {
    if let Ok(vmlinux) = payload::unpack(bytes, LIMIT) {
        assert!(vmlinux.len() <= LIMIT);
        check_vmlinux(&vmlinux);
    }
}

fuzz_target!(|input: Input<'_>| {
    let bytes = file(&input);
    check_vmlinux(&bytes);
    check_payload(&bytes);
    let _ = image::arch(&bytes);
    if let Some(compressed) = image::compressed(&bytes) {
        assert!(bytes.as_ptr_range().contains(&compressed.as_ptr()));
        if let Ok(unpacked) = image::unpack(compressed) {
            let _ = image::arch(&unpacked);
        }
    }
    if let Ok(image) = BzImage::parse(&bytes) {
        assert!(bytes.as_ptr_range().contains(&image.payload.as_ptr()) || image.payload.is_empty());
        if let Some(release) = image.release {
            check_release(release);
        }
        check_payload(image.payload);
    }
});
