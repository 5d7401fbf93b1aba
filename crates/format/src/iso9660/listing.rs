//! Lists a directory.

use inarch_volume::{Loss, VolumeError};

use super::record::Record;
use super::rock::{Rock, Skip};
use super::volume::IsoVolume;
use super::{SECTOR, damaged};
use crate::wide::Shown;

/// A file or directory.
pub(super) struct Found {
    pub(super) shown: Shown,
    /// Its node.
    pub(super) node: u64,
    pub(super) is_directory: bool,
    /// The byte after its records, from the directory's start.
    pub(super) next: u64,
    /// Bytes of continuation areas.
    pub(super) cost: u64,
}

/// Which names are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Names {
    /// Those of Rock Ridge.
    Rock(Skip),
    Joliet,
    Plain,
}

impl Names {
    /// The name of a record.
    fn of(self, record: &Record, rock: &Rock) -> Shown {
        match self {
            Names::Rock(_) if !rock.name.is_empty() => Shown::of_bytes(&rock.name, record.at),
            Names::Joliet => {
                let units: Vec<_> = record.name().as_chunks().0.iter().map(|pair| u16::from_be_bytes(*pair)).collect();
                Shown::of_utf16(unversioned(&units, u16::from).iter().copied(), record.at)
            }
            _ => Shown::of_bytes(unversioned(record.name(), |byte| byte), record.at),
        }
    }
}

/// A name without the version `;1` and dots at its end.
fn unversioned<T: PartialEq + Copy>(name: &[T], of: impl Fn(u8) -> T) -> &[T] {
    let name = name.strip_suffix(&[of(b';'), of(b'1')]).unwrap_or(name);
    let length = name.iter().rposition(|unit| *unit != of(b'.')).map_or(0, |last| last + 1);
    name.get(..length.max(1)).unwrap_or(name)
}

/// Calls `take` for what is listed from byte `from` of the directory on, until it returns false, and for what is missing.
pub(super) fn each(
    volume: &IsoVolume,
    directory: &Record,
    from: u64,
    take: &mut dyn FnMut(Result<Found, Loss>) -> bool,
) -> Result<(), VolumeError> {
    let (start, size) = (directory.content(volume.block()), directory.size());
    // Records do not cross sectors, so the first one of a sector is known.
    let mut within = from - from % SECTOR;
    let (mut is_continuation, mut open) = (false, None);
    while within < size {
        let at = start + within;
        let record = match Record::read(&volume.pages, at) {
            Ok(Some(record)) => record,
            // The rest of a sector, or of a block, is empty.
            Ok(None) => {
                within = (within + 1).next_multiple_of(volume.block());
                continue;
            }
            Err(VolumeError::Damaged(reason)) => {
                if within >= from && !take(Err(Loss::damage(format!("{reason}; names are missing")))) {
                    return Ok(());
                }
                within = (within + 1).next_multiple_of(SECTOR);
                continue;
            }
            Err(error) => return Err(error),
        };
        let before = within;
        within += record.length();
        let is_first = !std::mem::replace(&mut is_continuation, record.is_continued());
        if is_first && before >= from && !record.is_self() && !record.is_parent() && !record.is_associated() {
            open = found(volume, &record)?;
        }
        // The records of a file's further sections follow the first one.
        if is_continuation {
            continue;
        }
        if let Some(found) = open.take()
            && !take(found.map(|found| Found { next: within, ..found }))
        {
            return Ok(());
        }
    }
    if let Some(found) = open {
        take(found.map(|found| Found { next: size, ..found }));
    }
    Ok(())
}

/// What a file's first record says; none if it is listed elsewhere, where it was before it was moved.
fn found(volume: &IsoVolume, record: &Record) -> Result<Option<Result<Found, Loss>>, VolumeError> {
    let rock = match volume.rock(record) {
        Ok(rock) if rock.is_moved => return Ok(None),
        Ok(rock) => rock,
        Err(VolumeError::Damaged(reason)) => {
            let name = String::from_utf8_lossy(record.name()).into_owned();
            return Ok(Some(Err(Loss::damage(format!("has an entry {name:?} that is left out: it {reason}")))));
        }
        Err(error) => return Err(error),
    };
    let is_directory = record.is_directory() || rock.child.is_some();
    let (shown, node) = (volume.names.of(record, &rock), volume.node_of(record, &rock));
    Ok(Some(Ok(Found { shown, node, is_directory, next: 0, cost: rock.cost })))
}

/// The records of a file, one for each section.
pub(super) fn sections(volume: &IsoVolume, first: Record) -> Result<Vec<Record>, VolumeError> {
    let mut sections = vec![first];
    while let Some(last) = sections.last().filter(|last| last.is_continued()) {
        let next = last.after(&volume.pages)?.filter(|next| next.name() == last.name() && !next.is_directory());
        let next = next.ok_or_else(|| damaged("has no last section"))?;
        if sections.len() >= SECTIONS {
            return Err(damaged(format!("has more than {SECTIONS} sections")));
        }
        sections.push(next);
    }
    Ok(sections)
}

/// The most sections of a file: enough for 16 TiB.
const SECTIONS: usize = 4096;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plain_name_loses_its_version() {
        let plain = |name: &'static [u8]| unversioned(name, |byte| byte);
        assert_eq!(plain(b"README.TXT;1"), b"README.TXT");
        assert_eq!(plain(b"README.;1"), b"README");
        assert_eq!(plain(b"A;2"), b"A;2");
        assert_eq!(plain(b".;1"), b".");
        assert_eq!(plain(b";1"), b"");
    }
}
