//! [`Seal`]: a random number in a file's first page, after the header. A layer that points into the file repeats it.

use std::fmt::{self, Display, Formatter};
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::str::FromStr;

/// The offset of the seal; kept overlays leave the rest of their header's page to zeros.
const AT: u64 = 512;
const MAGIC: [u8; 8] = *b"INARCHSL";
/// Magic number, seal, and the CRC-32C of both, little-endian.
const LENGTH: usize = 8 + Seal::LENGTH + 4;

/// Distinguishes a file that is no longer written to from its earlier states, and from every other file. A copy of the
/// file has the same seal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seal([u8; Seal::LENGTH]);

impl Seal {
    const LENGTH: usize = 16;

    /// A new seal, different each time.
    ///
    /// # Errors
    /// The kernel has no random numbers.
    pub fn new() -> io::Result<Seal> {
        let mut bytes = [0; Seal::LENGTH];
        File::open("/dev/urandom")?.read_exact(&mut bytes)?;
        Ok(Seal(bytes))
    }

    /// Writes the seal into a file, replacing an earlier one, and waits until everything written to the file is on the
    /// disk.
    ///
    /// # Errors
    /// Those of writing.
    pub fn put(self, file: &File) -> io::Result<()> {
        let mut bytes = [&MAGIC[..], &self.0].concat();
        bytes.extend(crc32c::crc32c(&bytes).to_le_bytes());
        file.write_all_at(&bytes, AT)?;
        file.sync_data()
    }

    /// The seal of a file, if it has one.
    ///
    /// # Errors
    /// Those of reading.
    pub fn of(file: &File) -> io::Result<Option<Seal>> {
        let mut bytes = [0; LENGTH];
        match file.read_exact_at(&mut bytes, AT) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
            result => result?,
        }
        let (content, checksum) = bytes.split_at(LENGTH - 4);
        let seal = content.strip_prefix(&MAGIC).and_then(|seal| seal.try_into().ok());
        Ok(seal.map(Seal).filter(|_| crc32c::crc32c(content).to_le_bytes() == checksum))
    }
}

impl Display for Seal {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", u128::from_be_bytes(self.0))
    }
}

impl FromStr for Seal {
    type Err = ();

    fn from_str(text: &str) -> Result<Seal, ()> {
        let is_hex = text.len() == 2 * Seal::LENGTH && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        let number = u128::from_str_radix(text, 16).map_err(|_| ())?;
        if is_hex { Ok(Seal(number.to_be_bytes())) } else { Err(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_stays_with_its_file() {
        let file = tempfile::tempfile().unwrap();
        assert_eq!(Seal::of(&file).unwrap(), None);
        file.set_len(1 << 20).unwrap();
        assert_eq!(Seal::of(&file).unwrap(), None);
        let (one, other) = (Seal::new().unwrap(), Seal::new().unwrap());
        assert_ne!(one, other);
        for seal in [one, other] {
            seal.put(&file).unwrap();
            assert_eq!(Seal::of(&file).unwrap(), Some(seal));
            assert_eq!(seal.to_string().parse(), Ok(seal));
        }
        file.write_all_at(&[!other.0[1]], AT + 9).unwrap();
        assert_eq!(Seal::of(&file).unwrap(), None, "half of one is none");
        for text in ["", "+0000000000000000000000000000001", "00", "zz"] {
            assert_eq!(text.parse::<Seal>(), Err(()));
        }
    }
}
