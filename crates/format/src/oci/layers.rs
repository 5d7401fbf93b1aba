//! Opens an image's layers for reading at any offset, and verifies their digests.

use std::io::{self, Read};
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use inarch_block::{Backing, Cursor};

use super::digest::{Digest, HashedReader};
use super::select::Layer;
use super::store::{Blob, Store};
use super::{malformed, within};
use crate::notes::Notes;
use crate::{Damage, Host, ReadError, spool};

/// Bytes hashed at once.
const STEP: usize = 256 << 10;

/// The layers in order, each a plain tar: at its place in the store, or unpacked into a nameless file of `host`.
/// Works on as many at once as there are processors. When damage is salvaged, a layer with a wrong digest is used, and
/// a missing one is empty.
pub(super) fn open(
    store: &Store<'_>,
    layers: &[Layer],
    host: &dyn Host,
    damage: Damage,
    notes: &mut Notes,
) -> Result<Vec<Blob>, ReadError> {
    let next = Mutex::new(layers.iter().enumerate());
    let done = Mutex::new(Vec::with_capacity(layers.len()));
    let take = || next.lock().unwrap_or_else(PoisonError::into_inner).next();
    let threads = host.threads().min(layers.len());
    thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some((index, layer)) = take() {
                    let mut notes = Notes::default();
                    let blob = open_layer(store, layer, host, damage, &mut notes);
                    let opened = blob.map(|blob| (blob, notes.into_lines()));
                    done.lock().unwrap_or_else(PoisonError::into_inner).push((index, opened));
                }
            });
        }
    });
    let mut done = done.into_inner().unwrap_or_else(PoisonError::into_inner);
    done.sort_by_key(|(index, _)| *index);
    let mut blobs = Vec::with_capacity(layers.len());
    for (_, opened) in done {
        let (blob, lines) = opened?;
        lines.into_iter().for_each(|line| notes.tell(line));
        blobs.push(blob);
    }
    Ok(blobs)
}

/// Turns damage into an error or a note.
fn tolerate(result: Result<(), ReadError>, damage: Damage, notes: &mut Notes) -> Result<(), ReadError> {
    match result {
        Err(ReadError::Format { format, reason }) => {
            notes.tell(damage.or_refuse(format, reason)?);
            Ok(())
        }
        other => other,
    }
}

fn open_layer(
    store: &Store<'_>,
    layer: &Layer,
    host: &dyn Host,
    damage: Damage,
    notes: &mut Notes,
) -> Result<Blob, ReadError> {
    let name = &layer.name;
    let Some(blob) = store.find(name)? else {
        tolerate(Err(malformed(format!("{} is missing", name.escape_debug()))), damage, notes)?;
        return Ok(Blob { start: 0, length: 0, backing: Arc::new(Nothing) });
    };
    if let Some(size) = layer.size.filter(|size| *size != blob.length) {
        let reason = format!("{name} has {} bytes, expected were {size}", blob.length);
        tolerate(Err(malformed(reason)), damage, notes)?;
    }
    let mut magic = Vec::new();
    let read = |error| ReadError::Io { offset: blob.start, error };
    blob.reader().take(spool::MAGIC_BYTES as u64).read_to_end(&mut magic).map_err(read)?;
    if spool::Kind::of(&magic) == spool::Kind::Plain {
        for digest in [&layer.digest, &layer.diff_id].into_iter().flatten() {
            tolerate(verify(&blob, digest, name), damage, notes)?;
        }
        return Ok(blob);
    }
    let mut input = HashedReader { input: blob.reader(), hasher: layer.digest.as_ref().map(Digest::hasher) };
    let backing = spool::unpack(&mut input, Path::new(name), host, damage, notes);
    let backing = backing.map_err(|error| within(error, layer))?;
    // A decoder may not have read what follows the end of its data.
    io::copy(&mut input, &mut io::sink()).map_err(read)?;
    if let (Some(digest), Some(hasher)) = (&layer.digest, input.hasher) {
        tolerate(digest.check(hasher, name), damage, notes)?;
    }
    let unpacked = Blob { start: 0, length: backing.size(), backing: Arc::clone(&backing) };
    if let Some(diff_id) = &layer.diff_id {
        tolerate(verify(&unpacked, diff_id, name), damage, notes)?;
    }
    Ok(unpacked)
}

/// Replaces a missing layer.
struct Nothing;

impl Backing for Nothing {
    fn size(&self) -> u64 {
        0
    }

    fn read(&self, _: u64, _: u64, _: &mut Cursor<'_, '_>) -> io::Result<()> {
        Err(io::ErrorKind::UnexpectedEof.into())
    }
}

fn verify(blob: &Blob, digest: &Digest, name: &str) -> Result<(), ReadError> {
    let mut hasher = digest.hasher();
    let mut buffer = vec![0; STEP];
    let mut reader = blob.reader();
    loop {
        let got = reader.read(&mut buffer).map_err(|error| ReadError::Io { offset: blob.start, error })?;
        if got == 0 {
            return digest.check(hasher, name);
        }
        hasher.update(buffer.get(..got).unwrap_or_default());
    }
}
