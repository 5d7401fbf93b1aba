//! The header of LUKS1, as its specification 1.2.3 has it in section 2.1. Numbers are big-endian.

use inarch_block::Backing;

use super::hash::Hash;
use super::keyslot::{Derivation, KeyDigest, Keyslot};
use super::{Bound, Header, Segment};
use crate::DiskError;
use crate::identifiers::label;
use crate::read::{array, bytes};

/// Bytes of the header.
const HEADER: usize = 592;
const KEYSLOTS: usize = 208;
const KEYSLOT: usize = 48;
const IN_USE: u32 = 0x00AC_71F3;

fn number(bytes: &[u8], at: usize) -> Option<u32> {
    array(bytes, at).map(u32::from_be_bytes)
}

fn text(bytes: &[u8], at: usize, length: usize) -> String {
    bytes.get(at..at.saturating_add(length)).and_then(label).unwrap_or_default()
}

/// Reads the header at the start of a volume. The inner result says why it cannot be used.
pub fn read(volume: &dyn Backing) -> Result<Result<Header, String>, DiskError> {
    let Some(bytes) = bytes(volume, 0, HEADER)? else { return Ok(Err("its header is cut off".to_owned())) };
    Ok(parse(&bytes).unwrap_or_else(|| Err("its header is cut off".to_owned())))
}

/// `None` never happens, as all bytes are there.
fn parse(bytes: &[u8]) -> Option<Result<Header, String>> {
    let encryption = format!("{}-{}", text(bytes, 8, 32), text(bytes, 40, 32));
    let hash = match Hash::named(&text(bytes, 72, 32)) {
        Ok(hash) => hash,
        Err(why) => return Some(Err(why)),
    };
    let (payload, key) = (number(bytes, 104)?, number(bytes, 108)?);
    if payload == 0 {
        return Some(Err("its header lies apart from its data, and such volumes are not read".to_owned()));
    }
    let digest = KeyDigest {
        hash,
        iterations: number(bytes, 164)?,
        salt: bytes.get(132..164)?.to_vec(),
        digest: bytes.get(112..132)?.to_vec(),
    };
    let mut keyslots = Vec::new();
    for slot in bytes.get(KEYSLOTS..HEADER)?.chunks_exact(KEYSLOT) {
        if number(slot, 0)? != IN_USE {
            continue;
        }
        keyslots.push(Keyslot {
            derivation: Derivation::Pbkdf2 { hash, iterations: number(slot, 4)?, salt: slot.get(8..40)?.to_vec() },
            encryption: encryption.clone(),
            area_key: key,
            area: u64::from(number(slot, 40)?) * 512,
            key_length: key,
            stripes: number(slot, 44)?,
            mixer: hash,
        });
    }
    let segment = Segment {
        start: u64::from(payload) * 512,
        length: None,
        encryption: Some(encryption),
        sector: 512,
        tweak: 0,
        keys: Some(Bound { digests: vec![digest], keyslots: (0..keyslots.len()).collect() }),
    };
    Some(Ok(Header { version: 1, keyslots, segments: vec![segment] }))
}
