//! The hash functions that LUKS headers name, and PBKDF2 with them.

use pbkdf2::pbkdf2_hmac;
use sha1::Sha1;
use sha2::{Digest, Sha256, Sha512};

/// A hash function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hash {
    Sha1,
    Sha256,
    Sha512,
}

impl Hash {
    /// By the name that a header has for it; the error says it.
    pub fn named(name: &str) -> Result<Hash, String> {
        match name {
            "sha1" => Ok(Hash::Sha1),
            "sha256" => Ok(Hash::Sha256),
            "sha512" => Ok(Hash::Sha512),
            other => Err(format!("the hash function '{}' is not supported", other.escape_debug())),
        }
    }

    /// Bytes of a digest.
    pub fn size(self) -> usize {
        match self {
            Hash::Sha1 => 20,
            Hash::Sha256 => 32,
            Hash::Sha512 => 64,
        }
    }

    /// The digest of parts that follow each other.
    pub fn digest(self, parts: &[&[u8]]) -> Vec<u8> {
        fn of<D: Digest>(parts: &[&[u8]]) -> Vec<u8> {
            let mut hash = D::new();
            parts.iter().for_each(|part| hash.update(part));
            hash.finalize().to_vec()
        }
        match self {
            Hash::Sha1 => of::<Sha1>(parts),
            Hash::Sha256 => of::<Sha256>(parts),
            Hash::Sha512 => of::<Sha512>(parts),
        }
    }

    /// Fills `out` with PBKDF2 (RFC 8018, section 5.2) by HMAC with this function.
    pub fn pbkdf2(self, password: &[u8], salt: &[u8], iterations: u32, out: &mut [u8]) {
        match self {
            Hash::Sha1 => pbkdf2_hmac::<Sha1>(password, salt, iterations, out),
            Hash::Sha256 => pbkdf2_hmac::<Sha256>(password, salt, iterations, out),
            Hash::Sha512 => pbkdf2_hmac::<Sha512>(password, salt, iterations, out),
        }
    }
}
