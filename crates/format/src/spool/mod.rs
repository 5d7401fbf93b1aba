//! Unpacks archives that cannot be read at any offset: compressed files and pipes. Their bytes are unpacked once,
//! with little memory, into a file without a name, so that nothing is left behind whatever happens.

mod decode;

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::Path;
use std::sync::Arc;

use inarch_block::{Backing, BackingFile};

use crate::notes::Notes;
use crate::{Damage, Host, ReadError};
pub(crate) use decode::Kind;
use decode::Source;

/// Bytes moved at once.
const STEP: usize = 256 << 10;

/// Bytes that tell a compression from a tar: the longest magic.
pub(crate) const MAGIC_BYTES: usize = 6;

/// An archive as a backing: the file itself if it can be read in place, otherwise an unpacked copy.
///
/// `path` names the file in messages; `host` gives the file for an unpacked copy.
pub(crate) fn open(
    mut file: File,
    path: &Path,
    host: &dyn Host,
    damage: Damage,
    notes: &mut Notes,
) -> Result<Arc<dyn Backing>, ReadError> {
    let at = |offset| move |error| ReadError::Io { offset, error };
    if !file.metadata().map_err(at(0))?.is_file() {
        return unpack(file, path, host, damage, notes);
    }
    let mut magic = Vec::with_capacity(MAGIC_BYTES);
    file.seek(SeekFrom::Start(0)).map_err(at(0))?;
    (&file).take(MAGIC_BYTES as u64).read_to_end(&mut magic).map_err(at(0))?;
    file.seek(SeekFrom::Start(0)).map_err(at(0))?;
    match Kind::of(&magic) {
        Kind::Plain => Ok(Arc::new(BackingFile::new(file, path.to_owned()).map_err(at(0))?)),
        _ => unpack(file, path, host, damage, notes),
    }
}

/// Unpacks `input` into a nameless file of `host`. `path` names the input in messages. If damage is salvaged,
/// the result ends at the damage.
pub(crate) fn unpack(
    input: impl Read,
    path: &Path,
    host: &dyn Host,
    damage: Damage,
    notes: &mut Notes,
) -> Result<Arc<dyn Backing>, ReadError> {
    let mut source = Source::new(input);
    let file = spool(&mut source, host, damage, notes)?;
    let backing = BackingFile::new(file, path.to_owned());
    Ok(Arc::new(backing.map_err(|error| host.spool_failed(error))?))
}

fn spool<R: Read>(
    source: &mut Source<R>,
    host: &dyn Host,
    damage: Damage,
    notes: &mut Notes,
) -> Result<File, ReadError> {
    let mut magic = [0; MAGIC_BYTES];
    let kind = Kind::of(source.peek(&mut magic).map_err(|error| ReadError::Io { offset: 0, error })?);
    let mut file = host.spool()?;
    let mut decoder = kind.decoder(&mut *source)?;
    let mut buffer = vec![0; STEP];
    loop {
        let got = match decoder.read(&mut buffer) {
            Ok(0) => break,
            Ok(got) => got,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => {
                drop(decoder);
                match source.explain(kind, error) {
                    ReadError::Format { format, reason } => notes.tell(damage.or_refuse(format, reason)?),
                    other => return Err(other),
                }
                break;
            }
        };
        let bytes = buffer.get(..got).unwrap_or_default();
        file.write_all(bytes).map_err(|error| host.spool_failed(error))?;
    }
    Ok(file)
}

#[cfg(test)]
mod tests;
