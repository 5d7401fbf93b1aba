//! The fields of Rock Ridge (RRIP 1.12) in a record's system use area (SUSP 1.12).

use inarch_tree::Timestamp;
use inarch_volume::{NAME_MAX, Pages, TARGET_MAX, VolumeError};

use super::damaged;
use super::record::{Record, long_time, short_time};

/// The most continuation areas of a record, as in Linux (`RR_MAX_CE_ENTRIES` of fs/isofs/rock.c).
const AREAS: usize = 32;
/// The most bytes of one.
const AREA: u32 = 1 << 15;
/// The first bytes of the root's record for itself: `SP`, its length and version, and two bytes to be sure of.
const SHARING: [u8; 6] = [b'S', b'P', 7, 1, 0xBE, 0xEF];
/// Bytes that CD-ROM XA has in front.
const XA: usize = 14;

const CONTINUED: u8 = 0x01;
const CURRENT: u8 = 0x02;
const PARENT: u8 = 0x04;
const ROOT: u8 = 0x08;
const LONG_TIMES: u8 = 0x80;

/// Permissions, links and owners (`PX`).
#[derive(Clone, Copy, Debug)]
pub(super) struct Posix {
    pub(super) mode: u32,
    pub(super) links: u32,
    pub(super) uid: u32,
    pub(super) gid: u32,
}

/// What the fields of a record say.
#[derive(Debug, Default)]
pub(super) struct Rock {
    pub(super) posix: Option<Posix>,
    /// Major and minor number (`PN`).
    pub(super) device: (u32, u32),
    /// The name (`NM`).
    pub(super) name: Vec<u8>,
    /// Where a symbolic link points (`SL`).
    pub(super) target: Vec<u8>,
    /// What is wrong with it.
    pub(super) bad_target: bool,
    /// The block of the directory that is meant (`CL`).
    pub(super) child: Option<u32>,
    /// The block of a directory's parent, before it was moved (`PL`).
    pub(super) parent: Option<u32>,
    /// It is listed elsewhere (`RE`).
    pub(super) is_moved: bool,
    /// Times (`TF`).
    pub(super) created: Option<Timestamp>,
    pub(super) modified: Option<Timestamp>,
    pub(super) accessed: Option<Timestamp>,
    pub(super) changed: Option<Timestamp>,
    /// It is compressed: the bytes of its content (`ZF`).
    pub(super) zisofs: Option<u32>,
    /// It is sparse (`SF`).
    pub(super) is_sparse: bool,
    /// Bytes of continuation areas.
    pub(super) cost: u64,
    /// A component of the target continues.
    joins: bool,
}

/// How many bytes of system use areas are skipped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Skip {
    /// In the root's record for itself.
    pub(super) root: usize,
    /// In others.
    pub(super) others: usize,
}

/// What is skipped, if the root's record for itself says that Rock Ridge is used.
pub(super) fn skipped(root: &Record) -> Option<Skip> {
    [0, XA].into_iter().find_map(|before| {
        let area = root.system_use().get(before..)?;
        let others = before.max(usize::from(*area.get(6)?));
        area.starts_with(&SHARING).then_some(Skip { root: before, others })
    })
}

impl Rock {
    /// Reads the fields of a record and of its continuation areas.
    pub(super) fn read(pages: &Pages, record: &Record, skip: usize, block: u64) -> Result<Rock, VolumeError> {
        let mut rock = Rock::default();
        let mut next = rock.take(record.system_use().get(skip..).unwrap_or_default());
        let mut areas = 0;
        while let Some((number, offset, length)) = next {
            areas += 1;
            if areas > AREAS || length > AREA {
                return Err(damaged("has more continuation areas, or larger ones, than a record can have"));
            }
            let mut bytes = vec![0; length as usize];
            pages.read(u64::from(number) * block + u64::from(offset), &mut bytes)?;
            rock.cost += u64::from(length);
            next = rock.take(&bytes);
        }
        Ok(rock)
    }

    /// Takes the fields of an area; gives where the next area is: a block, an offset in it, and a length.
    fn take(&mut self, mut area: &[u8]) -> Option<(u32, u32, u32)> {
        let mut next = None;
        while let Some(length) = area.get(2).map(|length| usize::from(*length)).filter(|length| *length >= 4) {
            let (Some(field), rest) = (area.get(..length), area.get(length..).unwrap_or_default()) else { break };
            let body = field.get(4..).unwrap_or_default();
            let number = |at: usize| {
                let bytes = body.get(at..).and_then(|rest| rest.first_chunk());
                bytes.map_or(0, |bytes| u32::from_le_bytes(*bytes))
            };
            match field.get(..2).unwrap_or_default() {
                b"ST" => break,
                b"CE" if body.len() >= 24 => next = Some((number(0), number(8), number(16))),
                b"PX" if body.len() >= 32 => {
                    self.posix = Some(Posix { mode: number(0), links: number(8), uid: number(16), gid: number(24) });
                }
                b"PN" if body.len() >= 16 => self.device = device(number(0), number(8)),
                b"NM" => self.take_name(body),
                b"SL" => self.take_target(body.get(1..).unwrap_or_default()),
                b"CL" if body.len() >= 8 => self.child = Some(number(0)),
                b"PL" if body.len() >= 8 => self.parent = Some(number(0)),
                b"RE" => self.is_moved = true,
                b"TF" => self.take_times(body),
                b"ZF" if body.len() >= 12 && body.starts_with(b"pz") => self.zisofs = Some(number(4)),
                b"SF" => self.is_sparse = true,
                _ => {}
            }
            area = rest;
        }
        next
    }

    fn take_name(&mut self, body: &[u8]) {
        let Some((flags, name)) = body.split_first() else { return };
        // The names of `.` and `..` are known.
        if flags & (CURRENT | PARENT) == 0 && self.name.len() <= NAME_MAX {
            self.name.extend_from_slice(name);
        }
    }

    fn take_target(&mut self, mut components: &[u8]) {
        while let [flags, length, rest @ ..] = components {
            let length = usize::from(*length);
            let Some(text) = rest.get(..length) else {
                self.bad_target = true;
                return;
            };
            if !self.target.is_empty() && !self.joins && self.target.last() != Some(&b'/') {
                self.target.push(b'/');
            }
            match flags & !CONTINUED {
                0 => self.target.extend_from_slice(text),
                CURRENT => self.target.push(b'.'),
                PARENT => self.target.extend_from_slice(b".."),
                ROOT => self.target.push(b'/'),
                _ => self.bad_target = true,
            }
            self.joins = flags & CONTINUED != 0;
            if self.target.len() > TARGET_MAX {
                self.bad_target = true;
                self.target.truncate(TARGET_MAX);
                return;
            }
            components = rest.get(length..).unwrap_or_default();
        }
    }

    fn take_times(&mut self, body: &[u8]) {
        let Some((flags, mut times)) = body.split_first() else { return };
        let places = [&mut self.created, &mut self.modified, &mut self.accessed, &mut self.changed];
        for (bit, place) in places.into_iter().enumerate() {
            if flags & (1 << bit) == 0 {
                continue;
            }
            let length = if flags & LONG_TIMES != 0 { 17 } else { 7 };
            let time = match flags & LONG_TIMES != 0 {
                true => times.first_chunk().and_then(long_time),
                false => times.first_chunk().and_then(short_time),
            };
            *place = time;
            times = times.get(length..).unwrap_or_default();
        }
    }
}

/// A device's numbers. Where the high word is not used, the low one has both, as Linux reads it.
fn device(high: u32, low: u32) -> (u32, u32) {
    match high == 0 && low & !0xFF != 0 {
        true => ((low >> 8) & 0xFFF, (low & 0xFF) | ((low >> 12) & 0xF_FF00)),
        false => (high, low),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn target(fields: &[&[u8]]) -> Vec<u8> {
        let mut rock = Rock::default();
        assert_eq!(rock.take(&fields.concat()), None);
        assert!(!rock.bad_target);
        rock.target
    }

    #[test]
    fn a_target_is_put_together_from_its_components() {
        assert_eq!(target(&[b"SL\x0A\x01\0\x08\0\0\x01a"]), b"/a");
        assert_eq!(target(&[b"SL\x0C\x01\0\x04\0\x02\0\0\x01a"]), b".././a");
        assert_eq!(target(&[b"SL\x08\x01\x01\x01\x01a", b"SL\x0B\x01\0\0\x01b\0\x01c"]), b"ab/c");
        let mut rock = Rock::default();
        rock.take(b"SL\x08\x01\0\0\x09a");
        assert!(rock.bad_target);
    }

    #[test]
    fn a_name_goes_on_in_another_field() {
        let mut rock = Rock::default();
        rock.take(b"NM\x07\x01\x01abNM\x06\x01\0cNM\x05\x01\x02ST\x04\x01NM\x06\x01\0d");
        assert_eq!(rock.name, b"abc");
    }
}
