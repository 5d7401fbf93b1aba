//! Recognises an `Image`, the form in which kernels for RISC-V and 64-bit ARM boot (Linux's
//! Documentation/arch/riscv/boot-image-header.rst and arch/arm64/booting.rst), and unpacks one that is compressed.

use std::io::{self, Read};

use super::fields::le32;
use super::payload::MAX_UNPACKED;
use crate::arch::Arch;

/// Offset of the magic, which names the architecture. Both headers begin with 56 bytes that boot loaders read.
const MAGIC: usize = 0x38;
const GZIP: [u8; 3] = [0x1f, 0x8b, 8];
/// Offset and magic of an EFI program that unpacks the kernel itself (Linux's drivers/firmware/efi/libstub/zboot-header.S).
const ZBOOT: usize = 4;
const ZBOOT_MAGIC: &[u8] = b"zimg";
/// Offsets of a zboot's payload: where it begins, and its bytes; both from the file's begin, as little-endian u32.
const ZBOOT_OFFSET: usize = 8;
const ZBOOT_SIZE: usize = 12;

/// The architecture of the `Image` in `bytes`, if it is one.
pub fn arch(bytes: &[u8]) -> Option<Arch> {
    match bytes.get(MAGIC..)?.first_chunk()? {
        b"RSC\x05" => Some(Arch::Riscv64),
        b"ARM\x64" => Some(Arch::Aarch64),
        _ => None,
    }
}

/// The compressed `Image` in `bytes`: the whole file, or the payload of a zboot program; `None` if it is not compressed with gzip.
pub fn compressed(bytes: &[u8]) -> Option<&[u8]> {
    let payload = || {
        let offset = usize::try_from(le32(bytes, ZBOOT_OFFSET)?).ok()?;
        let size = usize::try_from(le32(bytes, ZBOOT_SIZE)?).ok()?;
        bytes.get(offset..offset.checked_add(size)?)
    };
    let is_zboot = bytes.get(ZBOOT..).is_some_and(|rest| rest.starts_with(ZBOOT_MAGIC));
    let data = if is_zboot { payload()? } else { bytes };
    data.starts_with(&GZIP).then_some(data)
}

/// Unpacks what [`compressed`] returned, to at most [`MAX_UNPACKED`] bytes.
///
/// # Errors
/// It is damaged, or larger.
pub fn unpack(compressed: &[u8]) -> io::Result<Vec<u8>> {
    let mut image = Vec::new();
    flate2::read::GzDecoder::new(compressed).take(MAX_UNPACKED as u64 + 1).read_to_end(&mut image)?;
    if image.len() > MAX_UNPACKED {
        return Err(io::Error::other(format!("it unpacks to more than {} MiB", MAX_UNPACKED >> 20)));
    }
    Ok(image)
}
