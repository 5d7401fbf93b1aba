//! Decrypts sectors as dm-crypt encrypts them: AES in the modes XTS and CBC.
//!
//! The names of ciphers are those of the kernel's dm-crypt: cipher, mode and how the initialization vector (IV) is made of a sector's number.

use aes::cipher::{Array, BlockCipherDecrypt, BlockCipherEncrypt, KeyInit};
use aes::{Aes128, Aes256};

use super::hash::Hash;

/// Bytes of an AES block.
const BLOCK: usize = 16;
/// Cipher blocks per batch: XTS computes the tweaks of one batch before it decrypts it.
const BATCH: usize = 32;

type Block = aes::Block;

/// AES with a key of either size. Its keys are zeroed when it is dropped.
enum Aes {
    Short(Box<Aes128>),
    Long(Box<Aes256>),
}

impl Aes {
    fn new(key: &[u8]) -> Option<Aes> {
        match key.len() {
            16 => Aes128::new_from_slice(key).ok().map(Box::new).map(Aes::Short),
            32 => Aes256::new_from_slice(key).ok().map(Box::new).map(Aes::Long),
            _ => None,
        }
    }

    fn encrypt(&self, block: &mut Block) {
        match self {
            Aes::Short(aes) => aes.encrypt_block(block),
            Aes::Long(aes) => aes.encrypt_block(block),
        }
    }

    /// Several blocks at once take a fraction of the time: the processor works on them in parallel.
    fn decrypt(&self, blocks: &mut [Block]) {
        match self {
            Aes::Short(aes) => aes.decrypt_blocks(blocks),
            Aes::Long(aes) => aes.decrypt_blocks(blocks),
        }
    }
}

/// How the IV is made of a sector's number, as in the kernel's drivers/md/dm-crypt.c.
enum Iv {
    /// The lower 32 bits, little-endian.
    Plain,
    /// All 64 bits, little-endian.
    Plain64,
    /// All 64 bits, encrypted with a hash of the key.
    Essiv(Aes),
}

/// A cipher with its key.
pub struct SectorCipher {
    mode: Mode,
    iv: Iv,
}

enum Mode {
    /// IEEE Std 1619: the data's key and the tweak's.
    Xts(Aes, Aes),
    Cbc(Aes),
}

impl SectorCipher {
    /// A cipher by its name in a header, such as `aes-xts-plain64` or `aes-cbc-essiv:sha256`.
    ///
    /// # Errors
    /// It is not supported, or the key has a length that it does not have.
    pub fn new(name: &str, key: &[u8]) -> Result<SectorCipher, String> {
        let unsupported = || format!("the cipher '{}' is not supported", name.escape_debug());
        let (cipher, rest) = name.split_once('-').ok_or_else(unsupported)?;
        let (mode, iv) = rest.split_once('-').ok_or_else(unsupported)?;
        if cipher != "aes" {
            return Err(unsupported());
        }
        let length = || format!("its key has {} bits, which '{}' has not", key.len() * 8, name.escape_debug());
        let mode = match mode {
            "xts" => {
                let (data, tweak) = key.split_at(key.len() / 2);
                Mode::Xts(Aes::new(data).ok_or_else(length)?, Aes::new(tweak).ok_or_else(length)?)
            }
            "cbc" => Mode::Cbc(Aes::new(key).ok_or_else(length)?),
            _ => return Err(unsupported()),
        };
        let iv = match iv {
            "plain" => Iv::Plain,
            "plain64" => Iv::Plain64,
            "essiv:sha256" => {
                let salt = zeroize::Zeroizing::new(Hash::Sha256.digest(&[key]));
                Iv::Essiv(Aes::new(&salt).ok_or_else(unsupported)?)
            }
            _ => return Err(unsupported()),
        };
        Ok(SectorCipher { mode, iv })
    }

    fn iv(&self, number: u64) -> Block {
        let mut iv = Block::default();
        let number = if matches!(self.iv, Iv::Plain) { number & u64::from(u32::MAX) } else { number };
        for (to, from) in iv.iter_mut().zip(number.to_le_bytes()) {
            *to = from;
        }
        if let Iv::Essiv(aes) = &self.iv {
            aes.encrypt(&mut iv);
        }
        iv
    }

    /// Decrypts sectors of `size` bytes, a multiple of 512. `number` is that of the first one, counted in sectors of 512 bytes whatever their size is.
    pub fn decrypt(&self, data: &mut [u8], size: usize, number: u64) {
        for (index, sector) in data.chunks_mut(size).enumerate() {
            let iv = self.iv(number.wrapping_add(index as u64 * (size as u64 / 512)));
            let (blocks, _) = Array::slice_as_chunks_mut(sector);
            match &self.mode {
                Mode::Xts(aes, tweaks) => decrypt_xts(aes, tweaks, blocks, iv),
                Mode::Cbc(aes) => decrypt_cbc(aes, blocks, iv),
            }
        }
    }
}

fn add(block: &mut Block, other: &Block) {
    for (byte, other) in block.iter_mut().zip(other) {
        *byte ^= other;
    }
}

/// XTS of a whole number of blocks: each is added to its tweak before and after.
fn decrypt_xts(aes: &Aes, tweaks: &Aes, blocks: &mut [Block], iv: Block) {
    let mut first = iv;
    tweaks.encrypt(&mut first);
    let mut tweak = u128::from_le_bytes(first.into());
    let mut batch = [0; BATCH];
    for blocks in blocks.chunks_mut(BATCH) {
        for (block, own) in blocks.iter_mut().zip(&mut batch) {
            *own = tweak;
            add(block, &tweak.to_le_bytes().into());
            // Times x, modulo x^128 + x^7 + x^2 + x + 1.
            tweak = (tweak << 1) ^ if tweak >> 127 == 1 { 0x87 } else { 0 };
        }
        aes.decrypt(blocks);
        for (block, own) in blocks.iter_mut().zip(&batch) {
            add(block, &own.to_le_bytes().into());
        }
    }
}

/// CBC: each block is added to the encrypted one before it.
fn decrypt_cbc(aes: &Aes, blocks: &mut [Block], iv: Block) {
    let mut before = iv;
    for blocks in blocks.chunks_mut(BATCH) {
        let mut encrypted = [Block::default(); BATCH];
        for (own, block) in encrypted.iter_mut().zip(blocks.iter()) {
            *own = *block;
        }
        aes.decrypt(blocks);
        for (block, own) in blocks.iter_mut().zip(&encrypted) {
            add(block, &before);
            before = *own;
        }
    }
}

const _: () = assert!(size_of::<Block>() == BLOCK);
