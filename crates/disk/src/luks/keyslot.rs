//! From a passphrase to a volume's key: a keyslot's derivation function, its area and its digest.
//!
//! The LUKS1 specification 1.2.3 calls the steps TKS1: a key is derived from the passphrase, decrypts the area, and the area's stripes give the
//! volume's key. LUKS2 (specification 1.1.1, section 3.2) has the same steps with more functions.

use inarch_block::{Backing, read_backing};
use zeroize::Zeroizing;

use super::cipher::SectorCipher;
use super::hash::Hash;

/// The most bytes of a volume's key.
pub const MOST_KEY: u32 = 64;
/// The most stripes of a key; cryptsetup always has 4000.
pub const MOST_STRIPES: u32 = 4000;
/// The most KiB that a derivation takes: the most that cryptsetup takes unless it is told to take more.
const MOST_MEMORY: u32 = 1 << 20;
/// The most KiB that a derivation passes over, its memory times its iterations: a minute or so.
const MOST_PASSES: u64 = 64 << 20;
/// The most iterations of PBKDF2: a few minutes.
const MOST_ITERATIONS: u32 = 500_000_000;
/// The most of them for a digest, which is made for every key that a keyslot gives; cryptsetup takes an eighth of a second for it.
const MOST_DIGEST_ITERATIONS: u32 = 20_000_000;

/// A function that derives a key from a passphrase.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Derivation {
    /// PBKDF2.
    Pbkdf2 { hash: Hash, iterations: u32, salt: Vec<u8> },
    /// Argon2 (RFC 9106), of version 1.3.
    Argon2 {
        /// Whether it is the variant `argon2id`, not `argon2i`.
        is_hybrid: bool,
        passes: u32,
        /// KiB.
        memory: u32,
        lanes: u32,
        salt: Vec<u8>,
    },
}

impl Derivation {
    /// Checks that it takes bounded time and memory; the error says what is too much.
    pub fn check(&self) -> Result<(), String> {
        match self {
            Derivation::Pbkdf2 { iterations, .. } if *iterations == 0 || *iterations > MOST_ITERATIONS => {
                Err(format!("it derives its key with {iterations} iterations, and at most {MOST_ITERATIONS} are done"))
            }
            Derivation::Argon2 { memory, .. } if *memory > MOST_MEMORY => {
                let (mib, most) = (memory.div_ceil(1024), MOST_MEMORY / 1024);
                Err(format!("it derives its key in {mib} MiB of memory, and at most {most} MiB are used"))
            }
            Derivation::Argon2 { memory, passes, .. } if u64::from(*memory) * u64::from(*passes) > MOST_PASSES => {
                Err(format!("it derives its key in {passes} passes over its memory, which takes too long"))
            }
            _ => Ok(()),
        }
    }

    /// The key of `length` bytes.
    fn derive(&self, passphrase: &[u8], length: usize) -> Result<Zeroizing<Vec<u8>>, String> {
        self.check()?;
        let mut key = Zeroizing::new(vec![0; length]);
        match self {
            Derivation::Pbkdf2 { hash, iterations, salt } => hash.pbkdf2(passphrase, salt, *iterations, &mut key),
            Derivation::Argon2 { is_hybrid, passes, memory, lanes, salt } => {
                let kind = if *is_hybrid { argon2::Algorithm::Argon2id } else { argon2::Algorithm::Argon2i };
                let fail = |error| format!("its key cannot be derived: {error}");
                let parameters = argon2::Params::new(*memory, *passes, *lanes, Some(length)).map_err(fail)?;
                let argon2 = argon2::Argon2::new(kind, argon2::Version::V0x13, parameters);
                argon2.hash_password_into(passphrase, salt, &mut key).map_err(fail)?;
            }
        }
        Ok(key)
    }
}

/// What tells whether a key is the volume's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyDigest {
    pub hash: Hash,
    pub iterations: u32,
    pub salt: Vec<u8>,
    pub digest: Vec<u8>,
}

impl KeyDigest {
    /// Checks that it takes bounded time; the error says what is too much.
    pub fn check(&self) -> Result<(), String> {
        let (iterations, most) = (self.iterations, MOST_DIGEST_ITERATIONS);
        if iterations <= most {
            return Ok(());
        }
        Err(format!("its key has a digest of {iterations} iterations, and at most {most} are done"))
    }

    pub fn fits(&self, key: &[u8]) -> bool {
        if self.iterations == 0 || self.check().is_err() || !(1..=64).contains(&self.digest.len()) {
            return false;
        }
        let mut digest = vec![0; self.digest.len()];
        self.hash.pbkdf2(key, &self.salt, self.iterations, &mut digest);
        digest == self.digest
    }
}

/// A place where the volume's key is kept, encrypted by a passphrase.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Keyslot {
    pub derivation: Derivation,
    /// What encrypts the area, and the length of that one's key in bytes.
    pub encryption: String,
    pub area_key: u32,
    /// Where the area is, in bytes from the start of the header.
    pub area: u64,
    /// Bytes of the volume's key.
    pub key_length: u32,
    pub stripes: u32,
    /// What mixes the stripes.
    pub mixer: Hash,
}

impl Keyslot {
    /// The volume's key, if the passphrase opens this keyslot.
    ///
    /// # Errors
    /// The keyslot cannot be used; the text says why.
    pub fn open(
        &self,
        header: &dyn Backing,
        passphrase: &[u8],
        digests: &[KeyDigest],
    ) -> Result<Option<Zeroizing<Vec<u8>>>, String> {
        let key = self.key(header, passphrase)?;
        Ok(digests.iter().any(|digest| digest.fits(&key)).then_some(key))
    }

    /// The key that the keyslot gives for a passphrase, right or wrong.
    fn key(&self, header: &dyn Backing, passphrase: &[u8]) -> Result<Zeroizing<Vec<u8>>, String> {
        let is_possible = (1..=MOST_KEY).contains(&self.key_length)
            && (1..=MOST_KEY).contains(&self.area_key)
            && (1..=MOST_STRIPES).contains(&self.stripes);
        if !is_possible {
            return Err("a keyslot has sizes that cannot be".to_owned());
        }
        let length = self.key_length as usize * self.stripes as usize;
        let sectors = length.next_multiple_of(512);
        if self.area.checked_add(sectors as u64).is_none_or(|end| end > header.size()) {
            return Err("a keyslot lies beyond the end".to_owned());
        }
        let derived = self.derivation.derive(passphrase, self.area_key as usize)?;
        let cipher = SectorCipher::new(&self.encryption, &derived)?;
        let mut area = Zeroizing::new(vec![0; sectors]);
        read_backing(header, self.area, &mut area).map_err(|error| format!("a keyslot cannot be read: {error}"))?;
        cipher.decrypt(&mut area, 512, 0);
        Ok(merge(area.get(..length).unwrap_or_default(), self.key_length as usize, self.mixer))
    }
}

/// Merges the stripes of a key: the anti-forensic splitter of the LUKS1 specification, section 2.4.
fn merge(stripes: &[u8], length: usize, mixer: Hash) -> Zeroizing<Vec<u8>> {
    let mut key = Zeroizing::new(vec![0; length]);
    let mut left = stripes.chunks_exact(length).peekable();
    while let Some(stripe) = left.next() {
        for (byte, other) in key.iter_mut().zip(stripe) {
            *byte ^= other;
        }
        if left.peek().is_some() {
            diffuse(&mut key, mixer);
        }
    }
    key
}

/// Replaces each part of the key, of a digest's size, by the digest of the part's number and the part.
fn diffuse(key: &mut [u8], mixer: Hash) {
    for (number, part) in (0u32..).zip(key.chunks_mut(mixer.size())) {
        let digest = Zeroizing::new(mixer.digest(&[&number.to_be_bytes(), part]));
        for (byte, new) in part.iter_mut().zip(digest.iter()) {
            *byte = *new;
        }
    }
}
