//! [`Digest`]: content digests (the image specification's descriptor.md).

use std::fmt;
use std::io::{self, Read};

use sha2::{Digest as _, Sha256, Sha512};

use super::malformed;
use crate::ReadError;

/// A validated digest: a known algorithm, and the right number of lower-case hexadecimal digits.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Digest {
    algorithm: Algorithm,
    hex: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Algorithm {
    Sha256,
    Sha512,
}

impl Algorithm {
    fn name(self) -> &'static str {
        match self {
            Algorithm::Sha256 => "sha256",
            Algorithm::Sha512 => "sha512",
        }
    }

    fn digits(self) -> usize {
        match self {
            Algorithm::Sha256 => 64,
            Algorithm::Sha512 => 128,
        }
    }
}

impl Digest {
    /// Parses `sha256:` or `sha512:` and hexadecimal digits.
    ///
    /// # Errors
    /// It is something else.
    pub fn parse(text: &str) -> Result<Digest, ReadError> {
        let bad = |reason| malformed(format!("the digest '{}' {reason}", text.escape_debug()));
        let (name, hex) = text.split_once(':').ok_or_else(|| bad("has no algorithm in front"))?;
        let algorithm = [Algorithm::Sha256, Algorithm::Sha512].into_iter().find(|known| known.name() == name);
        let algorithm = algorithm.ok_or_else(|| bad("has an unknown algorithm; sha256 and sha512 are known"))?;
        if hex.len() != algorithm.digits() || !hex.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f')) {
            return Err(bad("is not as many lower-case hexadecimal digits as its algorithm has"));
        }
        Ok(Digest { algorithm, hex: hex.to_owned() })
    }

    /// The SHA-256 of these bytes.
    pub fn of(bytes: &[u8]) -> Digest {
        let mut hasher = Hasher::default();
        hasher.update(bytes);
        hasher.into()
    }

    /// The path of the content in an OCI layout: it leads nowhere else.
    pub fn path(&self) -> String {
        format!("blobs/{}/{}", self.algorithm.name(), self.hex)
    }

    /// A hasher of the digest's algorithm.
    pub fn hasher(&self) -> Hasher {
        match self.algorithm {
            Algorithm::Sha256 => Hasher::Sha256(Sha256::new()),
            Algorithm::Sha512 => Hasher::Sha512(Sha512::new()),
        }
    }

    /// Compares the digest with the hash of the content at `path`.
    ///
    /// # Errors
    /// They differ.
    pub fn check(&self, hasher: Hasher, path: &str) -> Result<(), ReadError> {
        let Digest { hex: found, .. } = Digest::from(hasher);
        if found != self.hex {
            return Err(malformed(format!("{path} is damaged: its digest is {found} instead of {self}")));
        }
        Ok(())
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.algorithm.name(), self.hex)
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A hash in progress.
#[derive(Clone, Debug)]
pub enum Hasher {
    /// SHA-256.
    Sha256(Sha256),
    /// SHA-512.
    Sha512(Sha512),
}

impl Hasher {
    /// Adds bytes.
    pub fn update(&mut self, bytes: &[u8]) {
        match self {
            Hasher::Sha256(hash) => hash.update(bytes),
            Hasher::Sha512(hash) => hash.update(bytes),
        }
    }
}

/// A SHA-256 of nothing yet.
impl Default for Hasher {
    fn default() -> Hasher {
        Hasher::Sha256(Sha256::new())
    }
}

impl From<Hasher> for Digest {
    fn from(hasher: Hasher) -> Digest {
        let (algorithm, hex) = match hasher {
            Hasher::Sha256(hash) => (Algorithm::Sha256, hex(&hash.finalize())),
            Hasher::Sha512(hash) => (Algorithm::Sha512, hex(&hash.finalize())),
        };
        Digest { algorithm, hex }
    }
}

/// Hashes everything that is read through it.
pub(super) struct HashedReader<R> {
    pub(super) input: R,
    pub(super) hasher: Option<Hasher>,
}

impl<R: Read> Read for HashedReader<R> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let got = self.input.read(out)?;
        if let (Some(hasher), Some(bytes)) = (&mut self.hasher, out.get(..got)) {
            hasher.update(bytes);
        }
        Ok(got)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_names_a_blob_is_a_digest() {
        let hex = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        let digest = Digest::parse(&format!("sha256:{hex}")).unwrap();
        assert_eq!(digest.path(), format!("blobs/sha256/{hex}"));
        let mut hasher = digest.hasher();
        hasher.update(b"abc");
        digest.check(hasher, "x").unwrap();
        let error = digest.check(digest.hasher(), "x").unwrap_err().to_string();
        assert!(error.contains("x is damaged"), "{error}");
        let bad = [
            hex.to_owned(),
            format!("sha256:{}", hex.to_uppercase()),
            format!("sha256:{}", &hex[1..]),
            format!("sha512:{hex}"),
            format!("md5:{hex}"),
            format!("../sha256:{hex}"),
            format!("sha256:../../{}", &hex[6..]),
            format!("sha256:{}/", &hex[1..]),
        ];
        for text in bad {
            assert!(Digest::parse(&text).is_err(), "{text}");
        }
    }
}
