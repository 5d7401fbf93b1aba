//! LUKS: encrypted volumes, opened with a key that the user gives.
//!
//! 1. The header says how keys are derived and where the data are: that of LUKS1 ([`header1`]) or LUKS2 ([`header2`]).
//! 2. A keyslot gives the volume's key for a passphrase ([`keyslot`]). A digest tells whether it is the right one.
//! 3. The data's sectors are decrypted when they are read ([`opened`], [`cipher`]).
//!
//! The memory and time that a header can demand are bounded. Keys are zeroed in memory when they are no longer needed.

#[cfg(test)]
mod build;
mod cipher;
mod hash;
mod header1;
mod header2;
mod keyslot;
mod opened;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use cipher::SectorCipher;
use inarch_block::Backing;
use keyslot::{KeyDigest, Keyslot};
use opened::Decrypted;
use zeroize::Zeroizing;

use crate::above::{Above, Kind, Piece, Volumes};
use crate::keys::Keys;
use crate::mapped::{Leg, Mapped, Run};
use crate::signature::{Signature, at_the_start};
use crate::{DiskError, Window};

/// How often passphrases are tried on keyslots in all: a header can make each try take up to a minute.
const MOST_TRIES: u32 = 256;

/// The most digests that tell the key of a segment: one, and another while a volume is encrypted anew.
const MOST_DIGESTS: usize = 4;

/// The most LUKS volumes that are looked at.
const MOST_VOLUMES: usize = 256;

/// What a header says.
pub(crate) struct Header {
    version: u8,
    keyslots: Vec<Keyslot>,
    /// The parts of the volume, one after the other.
    segments: Vec<Segment>,
}

/// A part of the volume.
struct Segment {
    /// Where it starts below, in bytes.
    start: u64,
    /// Bytes; `None` for all that follow.
    length: Option<u64>,
    /// What encrypts it.
    encryption: Option<String>,
    /// Bytes of a sector.
    sector: u64,
    /// The number of the first sector for the initialization vector.
    tweak: u64,
    /// Which keys are its, if it is encrypted.
    keys: Option<Bound>,
}

/// The keys of a segment.
struct Bound {
    /// What recognises them: a key that fits any of these.
    digests: Vec<KeyDigest>,
    /// The numbers of the keyslots that hold them.
    keyslots: Vec<usize>,
}

/// Opens the LUKS volumes among `pieces` with the keys that fit, and adds all of them to those found. Gives the opened ones as pieces, and the other pieces.
pub(crate) fn assemble(
    pieces: Vec<Piece>,
    keys: &Keys,
    tries: &mut Tries,
    found: &mut Volumes,
) -> Result<(Vec<Piece>, Vec<Piece>), DiskError> {
    let (mut opened, mut rest) = (Vec::new(), Vec::new());
    for mut piece in pieces {
        let content = at_the_start(&*piece.backing)?.filter(|content| content.format == "crypto_LUKS");
        let Some(content) = content else {
            rest.push(piece);
            continue;
        };
        if found.list.iter().filter(|volume| volume.kind == Kind::Luks).count() >= MOST_VOLUMES {
            found.notes.push(format!("{}: there are too many LUKS volumes; it is left out", piece.name));
            continue;
        }
        let name = name(&content, found);
        piece.names.content = Some(content);
        let (layout, bytes) = open(&piece, keys, tries)?;
        let within = piece.names;
        if let Ok(backing) = &bytes {
            let names = crate::Names {
                above: Some(name.clone()),
                within: Some(Box::new(within.clone())),
                ..Default::default()
            };
            opened.push(Piece { name: name.clone(), names, backing: Arc::clone(backing) });
        }
        let size = bytes.as_ref().map_or_else(|_| piece.backing.size(), |bytes| bytes.size());
        found.list.push(Above {
            name,
            kind: Kind::Luks,
            layout,
            size,
            id: None,
            on: vec![piece.name],
            content: None,
            within: Some(within),
            bytes,
        });
    }
    Ok((opened, rest))
}

/// `/dev/mapper/luks-UUID`, as systemd calls it; with a number if that name is taken.
fn name(content: &Signature, found: &Volumes) -> String {
    let is_of_uuid = |byte: u8| byte.is_ascii_hexdigit() || byte == b'-';
    let uuid = content.uuid.as_deref().filter(|uuid| uuid.bytes().all(is_of_uuid));
    let name = format!("/dev/mapper/luks-{}", uuid.unwrap_or("unnamed"));
    let is_free = |name: &String| !found.list.iter().any(|other| other.name == *name);
    let others = (2..).map(|number: u32| format!("{name}_{number}"));
    [name.clone()].into_iter().chain(others).find(is_free).unwrap_or_default()
}

/// How often keys may still be tried.
pub(crate) struct Tries(u32);

impl Default for Tries {
    fn default() -> Tries {
        Tries(MOST_TRIES)
    }
}

type Bytes = Result<Arc<dyn Backing>, String>;

/// The layout of a volume, and its bytes, if a key opens it.
fn open(piece: &Piece, keys: &Keys, tries: &mut Tries) -> Result<(String, Bytes), DiskError> {
    let version = crate::read::bytes(&*piece.backing, 6, 2)?;
    let header = match version.as_deref() {
        Some([0, 1]) => header1::read(&*piece.backing)?,
        Some([0, 2]) => header2::read(&*piece.backing)?,
        _ => return Ok(("luks".to_owned(), Err("its version of LUKS is not supported".to_owned()))),
    };
    let header = match header {
        Ok(header) => header,
        Err(why) => return Ok(("luks".to_owned(), Err(why))),
    };
    let layout = format!("luks{}", header.version);
    let candidates: Vec<&[u8]> = keys.of(&piece.names).collect();
    if candidates.is_empty() {
        let why =
            if keys.is_empty() { "it is locked; --key FILE opens it" } else { "it is locked; no key was given for it" };
        return Ok((layout, Err(why.to_owned())));
    }
    let bytes = unlock(&header, &piece.backing, &candidates, tries);
    if bytes.is_ok() {
        keys.note_use();
    }
    Ok((layout, bytes))
}

/// The volume as its segments make it.
fn unlock(header: &Header, below: &Arc<dyn Backing>, candidates: &[&[u8]], tries: &mut Tries) -> Bytes {
    let mut known: Vec<Zeroizing<Vec<u8>>> = Vec::new();
    let mut runs = Vec::new();
    for segment in &header.segments {
        let rest = below.size().checked_sub(segment.start).ok_or("a segment of it lies beyond the end")?;
        let length = segment.length.unwrap_or(rest);
        let range = (segment.start, length);
        let (backing, at): (Arc<dyn Backing>, u64) = match (&segment.encryption, &segment.keys) {
            (Some(encryption), Some(bound)) => {
                let key = volume_key(header, bound, below, candidates, (&mut known, tries))?;
                let cipher = SectorCipher::new(encryption, &key)?;
                let decrypted = Decrypted::new(Arc::clone(below), range, cipher, (segment.sector, segment.tweak));
                (Arc::new(decrypted.ok_or("a segment of it lies beyond the end")?), 0)
            }
            _ => (Arc::new(Window::new(Arc::clone(below), segment.start, length)), 0),
        };
        runs.push(Run { length: backing.size(), legs: vec![Leg { backing, at }], chunk: 0 });
    }
    Ok(Arc::new(Mapped::new(runs).map_err(|error| error.to_string())?))
}

/// The key of a segment: one that opened a segment before, or one that a keyslot gives for a candidate.
fn volume_key(
    header: &Header,
    bound: &Bound,
    below: &Arc<dyn Backing>,
    candidates: &[&[u8]],
    (known, tries): (&mut Vec<Zeroizing<Vec<u8>>>, &mut Tries),
) -> Result<Zeroizing<Vec<u8>>, String> {
    bound.digests.iter().try_for_each(KeyDigest::check)?;
    if bound.digests.len() > MOST_DIGESTS {
        return Err(format!("a segment of it has more than {MOST_DIGESTS} digests of its key"));
    }
    if let Some(key) = known.iter().find(|key| bound.digests.iter().any(|digest| digest.fits(key))) {
        return Ok(key.clone());
    }
    let mut failed = None;
    for candidate in candidates {
        for keyslot in bound.keyslots.iter().filter_map(|index| header.keyslots.get(*index)) {
            tries.0 = tries.0.checked_sub(1).ok_or("too many keys were tried on too many keyslots")?;
            match keyslot.open(&**below, candidate, &bound.digests) {
                Ok(Some(key)) => {
                    known.push(key.clone());
                    return Ok(key);
                }
                Ok(None) => {}
                Err(why) => failed = Some(why),
            }
        }
    }
    let is_empty = bound.keyslots.is_empty();
    let none = || if is_empty { "it has no keyslot that can be used" } else { "no key that was given opens it" };
    Err(failed.unwrap_or_else(|| none().to_owned()))
}
