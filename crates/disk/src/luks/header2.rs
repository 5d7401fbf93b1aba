//! The header of LUKS2, as its specification 1.1.1 has it: two copies of a binary part (section 2.1) and of an area of JSON (section 3).
//!
//! Numbers of the binary part are big-endian. Those of the JSON area that may exceed 53 bits are strings.

use std::collections::BTreeMap;

use base64ct::{Base64, Encoding};
use inarch_block::Backing;
use serde::Deserialize;

use super::hash::Hash;
use super::keyslot::{Derivation, KeyDigest, Keyslot};
use super::{Bound, Header, Segment};
use crate::DiskError;
use crate::identifiers::label;
use crate::read::{array, bytes};

/// Bytes of the binary part.
const BINARY: usize = 4096;
/// The sizes that a copy can have. The second copy follows the first, so these are also the places where it may lie (table 1).
const SIZES: [u64; 9] = [0x4000, 0x8000, 0x1_0000, 0x2_0000, 0x4_0000, 0x8_0000, 0x10_0000, 0x20_0000, 0x40_0000];
/// Where the checksum is.
const CHECKSUM: std::ops::Range<usize> = 448..512;
/// The most keyslots, digests and segments that are read: LUKS2_KEYSLOTS_MAX and the like of cryptsetup.
const MOST_OBJECTS: usize = 32;

/// A copy that is whole.
struct Copy {
    sequence: u64,
    json: Vec<u8>,
}

/// Reads the newer of the copies that are whole. The inner result says why the header cannot be used.
pub fn read(volume: &dyn Backing) -> Result<Result<Header, String>, DiskError> {
    let first = copy(volume, 0, b"LUKS\xBA\xBE")?;
    let mut newest = first.ok();
    // A damaged first copy does not say where the second one is.
    for at in SIZES {
        let Ok(second) = copy(volume, at, b"SKUL\xBA\xBE")? else { continue };
        if newest.as_ref().is_none_or(|newest| newest.sequence < second.sequence) {
            newest = Some(second);
        }
        break;
    }
    Ok(match newest {
        Some(copy) => parse(&copy.json),
        None => Err("both copies of its header are damaged".to_owned()),
    })
}

/// The copy at `at`, if it is whole.
fn copy(volume: &dyn Backing, at: u64, magic: &[u8; 6]) -> Result<Result<Copy, ()>, DiskError> {
    let Some(binary) = bytes(volume, at, BINARY)? else { return Ok(Err(())) };
    let number = |place| array(&binary, place).map(u64::from_be_bytes).unwrap_or_default();
    let (size, sequence) = (number(8), number(16));
    let is_it = binary.starts_with(magic) && binary.get(6..8) == Some(&[0, 2]) && number(256) == at;
    if !is_it || !SIZES.contains(&size) {
        return Ok(Err(()));
    }
    let Some(mut whole) = bytes(volume, at, size as usize)? else { return Ok(Err(())) };
    let hash = binary.get(72..104).and_then(label).and_then(|name| Hash::named(&name).ok());
    let Some(hash) = hash else { return Ok(Err(())) };
    let sum = binary.get(CHECKSUM).unwrap_or_default();
    if let Some(place) = whole.get_mut(CHECKSUM) {
        place.fill(0);
    }
    if sum.get(..hash.size()) != Some(&*hash.digest(&[&whole])) {
        return Ok(Err(()));
    }
    let json = whole.get(BINARY..).unwrap_or_default();
    let json = json.split(|byte| *byte == 0).next().unwrap_or_default().to_vec();
    Ok(Ok(Copy { sequence, json }))
}

/// The JSON area. What is not needed is not kept; serde_json goes 128 levels deep.
#[derive(Deserialize)]
struct Area {
    #[serde(default)]
    keyslots: BTreeMap<String, Slot>,
    segments: BTreeMap<String, Part>,
    #[serde(default)]
    digests: BTreeMap<String, Digest>,
    config: Config,
}

#[derive(Deserialize)]
struct Config {
    #[serde(default)]
    requirements: Requirements,
}

#[derive(Deserialize, Default)]
struct Requirements {
    #[serde(default)]
    mandatory: Vec<String>,
}

#[derive(Deserialize)]
struct Slot {
    #[serde(rename = "type")]
    kind: String,
    key_size: u32,
    af: Option<Splitter>,
    area: Option<SlotArea>,
    kdf: Option<Kdf>,
}

#[derive(Deserialize)]
struct Splitter {
    stripes: u32,
    hash: String,
}

#[derive(Deserialize)]
struct SlotArea {
    offset: String,
    #[serde(default)]
    encryption: String,
    #[serde(default)]
    key_size: u32,
}

#[derive(Deserialize)]
struct Kdf {
    #[serde(rename = "type")]
    kind: String,
    salt: String,
    #[serde(default)]
    hash: String,
    #[serde(default)]
    iterations: u32,
    #[serde(default)]
    time: u32,
    #[serde(default)]
    memory: u32,
    #[serde(default)]
    cpus: u32,
}

#[derive(Deserialize)]
struct Part {
    #[serde(rename = "type")]
    kind: String,
    offset: Option<String>,
    size: Option<String>,
    #[serde(default)]
    iv_tweak: Option<String>,
    encryption: Option<String>,
    sector_size: Option<u64>,
    integrity: Option<serde::de::IgnoredAny>,
    #[serde(default)]
    flags: Vec<String>,
}

#[derive(Deserialize)]
struct Digest {
    #[serde(rename = "type")]
    kind: String,
    #[serde(default)]
    keyslots: Vec<String>,
    #[serde(default)]
    segments: Vec<String>,
    salt: String,
    digest: String,
    hash: String,
    iterations: u32,
}

fn parse(json: &[u8]) -> Result<Header, String> {
    let area: Area = serde_json::from_slice(json).map_err(|error| {
        format!("its header cannot be understood at line {}, column {}", error.line(), error.column())
    })?;
    let counts = [area.keyslots.len(), area.segments.len(), area.digests.len()];
    if counts.into_iter().any(|count| count > MOST_OBJECTS) {
        return Err("its header has more parts than cryptsetup allows".to_owned());
    }
    if let Some(first) = area.config.requirements.mandatory.first() {
        return Err(format!("its header asks for '{}', which is not supported", first.escape_debug()));
    }
    // Those of other types hold no key, as `reencrypt` does.
    let slots: Vec<_> = area.keyslots.iter().filter_map(|(name, slot)| Some((name, keyslot(slot)?))).collect();
    let keyslots = slots.iter().map(|(_, slot)| slot.clone()).collect();
    let mut parts: Vec<_> = area.segments.iter().collect();
    parts.retain(|(_, part)| !part.flags.iter().any(|flag| flag.starts_with("backup-")));
    parts.sort_by_key(|(name, _)| name.parse::<u32>().unwrap_or(u32::MAX));
    let mut segments = Vec::new();
    for (name, part) in parts {
        let of_it = area.digests.values().filter(|digest| digest.segments.contains(name));
        let mut bound = Bound { digests: Vec::new(), keyslots: Vec::new() };
        for digest in of_it {
            bound.digests.push(key_digest(digest)?);
            let is_bound = |(_, (name, _)): &(usize, &(&String, Keyslot))| digest.keyslots.contains(name);
            bound.keyslots.extend(slots.iter().enumerate().filter(is_bound).map(|(index, _)| index));
        }
        segments.push(segment(part, bound)?);
    }
    if segments.is_empty() {
        return Err("its header has no segment".to_owned());
    }
    Ok(Header { version: 2, keyslots, segments })
}

fn base64(text: &str) -> Option<Vec<u8>> {
    Base64::decode_vec(text).ok()
}

/// A keyslot that may hold a key; `None` for others, and for those that cannot be understood.
fn keyslot(slot: &Slot) -> Option<Keyslot> {
    let (kdf, area, af) = (slot.kdf.as_ref()?, slot.area.as_ref()?, slot.af.as_ref()?);
    if slot.kind != "luks2" {
        return None;
    }
    let salt = base64(&kdf.salt)?;
    let derivation = match &*kdf.kind {
        "pbkdf2" => Derivation::Pbkdf2 { hash: Hash::named(&kdf.hash).ok()?, iterations: kdf.iterations, salt },
        kind @ ("argon2i" | "argon2id") => Derivation::Argon2 {
            is_hybrid: kind == "argon2id",
            passes: kdf.time,
            memory: kdf.memory,
            lanes: kdf.cpus,
            salt,
        },
        _ => return None,
    };
    Some(Keyslot {
        derivation,
        encryption: area.encryption.clone(),
        area_key: area.key_size,
        area: area.offset.parse().ok()?,
        key_length: slot.key_size,
        stripes: af.stripes,
        mixer: Hash::named(&af.hash).ok()?,
    })
}

fn key_digest(digest: &Digest) -> Result<KeyDigest, String> {
    if digest.kind != "pbkdf2" {
        return Err(format!("a digest of type '{}' is not supported", digest.kind.escape_debug()));
    }
    let bytes = |text: &str| base64(text).ok_or("a digest in its header is damaged");
    let (salt, bytes) = (bytes(&digest.salt)?, bytes(&digest.digest)?);
    Ok(KeyDigest { hash: Hash::named(&digest.hash)?, iterations: digest.iterations, salt, digest: bytes })
}

fn segment(part: &Part, bound: Bound) -> Result<Segment, String> {
    let damaged = || "a segment in its header has numbers that cannot be".to_owned();
    let number = |text: &Option<String>| text.as_ref().and_then(|text| text.parse::<u64>().ok()).ok_or_else(damaged);
    let length = if part.size.as_deref() == Some("dynamic") { None } else { Some(number(&part.size)?) };
    let start = number(&part.offset)?;
    let linear = Segment { start, length, encryption: None, sector: 512, tweak: 0, keys: None };
    match &*part.kind {
        "linear" => Ok(linear),
        "crypt" if part.integrity.is_some() => Err("it has integrity tags, and such volumes are not read".to_owned()),
        "crypt" => {
            let sector = part.sector_size.unwrap_or(512);
            if ![512, 1024, 2048, 4096].contains(&sector) {
                return Err(damaged());
            }
            let tweak = if part.iv_tweak.is_some() { number(&part.iv_tweak)? } else { 0 };
            let encryption = Some(part.encryption.clone().ok_or_else(damaged)?);
            Ok(Segment { encryption, sector, tweak, keys: Some(bound), ..linear })
        }
        other => Err(format!("a segment of type '{}' is not supported", other.escape_debug())),
    }
}
