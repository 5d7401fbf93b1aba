//! Parses the setup header of an x86 bzImage (Documentation/x86/boot.rst in the kernel's sources).

use super::fields::{c_string, le16, le32, release};

const SETUP_SECTS: usize = 0x1f1;
const HEADER_MAGIC: usize = 0x202;
const PROTOCOL_VERSION: usize = 0x206;
const KERNEL_VERSION: usize = 0x20e;
const PAYLOAD_OFFSET: usize = 0x248;
const PAYLOAD_LENGTH: usize = 0x24c;

/// The base of `kernel_version`.
const VERSION_BASE: usize = 0x200;
/// The longest version text that is read.
const VERSION_LIMIT: usize = 512;
const SECTOR: usize = 512;
/// The first protocol version with `payload_offset` and `payload_length`.
const PROTOCOL_WITH_PAYLOAD: u16 = 0x0208;
/// The meaning of a `setup_sects` of 0.
const DEFAULT_SETUP_SECTS: u8 = 4;

/// Why a file is not a bzImage with a payload.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum HeaderError {
    /// There is no setup header.
    #[error("no Linux setup header")]
    NoMagic,
    /// A kernel from before 2.6.26.
    #[error("boot protocol {}.{} is older than 2.8", .0 >> 8, .0 & 0xff)]
    OldProtocol(u16),
    /// The payload is not inside the file.
    #[error(
        "setup header: payload_offset {offset} and payload_length {length} reach outside of the {size} bytes of the file"
    )]
    Payload {
        /// `payload_offset`, in bytes from the protected-mode code.
        offset: u32,
        /// `payload_length` in bytes.
        length: u32,
        /// Size of the file.
        size: usize,
    },
}

/// The content of a bzImage's header.
#[derive(Debug, PartialEq, Eq)]
pub struct BzImage<'a> {
    /// Release, such as `6.1.0-56-amd64`; `None` if the header has no valid one.
    pub release: Option<&'a str>,
    /// The compressed vmlinux, followed by its unpacked size as a little-endian u32.
    pub payload: &'a [u8],
}

impl<'a> BzImage<'a> {
    /// Parses the setup header of `bytes`, a whole file.
    ///
    /// # Errors
    /// The file has no setup header, or the header points outside of the file.
    pub fn parse(bytes: &'a [u8]) -> Result<BzImage<'a>, HeaderError> {
        if bytes.get(HEADER_MAGIC..HEADER_MAGIC + 4) != Some(b"HdrS") {
            return Err(HeaderError::NoMagic);
        }
        let protocol = le16(bytes, PROTOCOL_VERSION).ok_or(HeaderError::NoMagic)?;
        if protocol < PROTOCOL_WITH_PAYLOAD {
            return Err(HeaderError::OldProtocol(protocol));
        }
        let sectors = match bytes.get(SETUP_SECTS) {
            Some(0) | None => DEFAULT_SETUP_SECTS,
            Some(&sectors) => sectors,
        };
        let offset = le32(bytes, PAYLOAD_OFFSET).ok_or(HeaderError::NoMagic)?;
        let length = le32(bytes, PAYLOAD_LENGTH).ok_or(HeaderError::NoMagic)?;
        let setup = (usize::from(sectors) + 1) * SECTOR;
        let payload = (|| {
            let start = setup.checked_add(usize::try_from(offset).ok()?)?;
            bytes.get(start..start.checked_add(usize::try_from(length).ok()?)?)
        })();
        let payload = payload.ok_or(HeaderError::Payload { offset, length, size: bytes.len() })?;
        Ok(BzImage { release: version(bytes), payload })
    }
}

fn version(bytes: &[u8]) -> Option<&str> {
    let offset = usize::from(le16(bytes, KERNEL_VERSION)?);
    if offset == 0 {
        return None;
    }
    release(c_string(bytes, VERSION_BASE + offset, VERSION_LIMIT)?)
}
