//! A file's record, the records that extend it, and the attributes in all of them.

use std::ops::Range;

use inarch_tree::Extent;
use inarch_volume::VolumeError;

use super::mft::Mft;
use super::record::{Attribute, Form, Mapping, Record};
use super::runs::{Run, each_run};
use super::spec::{NUMBER, array, kind, part, u16_at, u32_at, u64_at};
use super::{about, damaged};

/// The most bytes of a list of attributes; Windows has the same limit.
const MAX_LIST: u64 = 256 << 10;

/// Takes the type, the name and the place of an attribute; false ends it.
type TakePart<'a> = dyn FnMut(u32, &[u8], Part) -> Result<bool, VolumeError> + 'a;

/// Where attributes are that do not fit a file's record.
pub(super) struct AttributeList(Vec<u8>);

/// An entry of a list of attributes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Part {
    /// The first cluster of the value that it maps.
    pub(super) first: u64,
    /// The record that it is in.
    pub(super) reference: u64,
    pub(super) instance: u16,
}

impl AttributeList {
    /// The list of the file with this record, if it has one.
    pub(super) fn of(mft: &Mft, base: &Record) -> Result<Option<AttributeList>, VolumeError> {
        for attribute in base.attributes() {
            let attribute = attribute?;
            if attribute.kind != kind::ATTRIBUTE_LIST {
                continue;
            }
            let bytes = match attribute.form {
                Form::Resident(value) => value.to_vec(),
                Form::Mapped(mapping) if mapping.first != 0 || mapping.size > MAX_LIST => {
                    return Err(damaged(format!("its list of attributes has {} bytes", mapping.size)));
                }
                Form::Mapped(mapping) => {
                    let mut bytes = vec![0; mapping.size as usize];
                    let written = mapping.size.min(mapping.initialized);
                    let mut found = Vec::new();
                    each_run(&mapping, mft.geometry.clusters, &mut |run| {
                        extend(mft, &run, &(0..written), &mut found).map(|()| true)
                    })?;
                    read_extents(mft, &found, 0, &mut bytes)?;
                    bytes
                }
            };
            return Ok(Some(AttributeList(bytes)));
        }
        Ok(None)
    }

    /// Calls `take` with the type, the name in UTF-16 and the place of each attribute, until it returns false.
    fn each(&self, take: &mut TakePart<'_>) -> Result<(), VolumeError> {
        let mut rest = &*self.0;
        while !rest.is_empty() {
            let parsed = || {
                let entry = part(rest, 0, usize::from(u16_at(rest, 4)?))?;
                let [name_length, name_at] = array(entry, 6)?;
                let name = part(entry, name_at.into(), 2 * usize::from(name_length));
                let name = if name_length == 0 { &[] } else { name? };
                let found =
                    Part { first: u64_at(entry, 8)?, reference: u64_at(entry, 16)?, instance: u16_at(entry, 24)? };
                Some((entry, u32_at(entry, 0)?, name, found))
            };
            let (entry, kind, name, found) =
                parsed().ok_or_else(|| damaged("its list of attributes makes no sense"))?;
            if !take(kind, name, found)? {
                return Ok(());
            }
            rest = rest.get(entry.len()..).unwrap_or_default();
        }
        Ok(())
    }
}

/// The places of the parts of one attribute, ascending from cluster 0.
pub(super) fn parts_of(list: &AttributeList, of: u32, named: &[u8]) -> Result<Vec<Part>, VolumeError> {
    let mut parts: Vec<Part> = Vec::new();
    list.each(&mut |kind, name, found| {
        if kind == of && name == named {
            let follows = parts.last().map_or(found.first == 0, |last| last.first < found.first);
            if !follows {
                return Err(damaged("its list of attributes has parts that do not follow each other"));
            }
            parts.push(found);
        }
        Ok(true)
    })?;
    Ok(parts)
}

/// A file: its record, and the list of attributes that it may have.
pub(super) struct Inode {
    pub(super) base: Record,
    list: Option<AttributeList>,
}

/// A value of a file, and where it is.
pub(super) struct Stream {
    kind: u32,
    pub(super) flags: u16,
    pub(super) value: Value,
}

/// Where a value is.
pub(super) enum Value {
    /// Within a record: few bytes.
    Resident(Vec<u8>),
    /// In clusters.
    Mapped(Mapped),
}

/// What is known of a value in clusters.
pub(super) struct Mapped {
    /// Bytes: of the value, at most `i64::MAX`; allocated, holes included, and without them; and written, the others of the value
    /// being zeros.
    pub(super) size: u64,
    pub(super) allocated: u64,
    pub(super) stored: u64,
    pub(super) written: u64,
    pub(super) unit_bits: u8,
    parts: Vec<Part>,
}

impl Stream {
    /// Bytes of the value.
    pub(super) fn size(&self) -> u64 {
        match &self.value {
            Value::Resident(bytes) => bytes.len() as u64,
            Value::Mapped(mapped) => mapped.size,
        }
    }
}

impl Inode {
    /// The file whose first record is `base`.
    pub(super) fn new(mft: &Mft, base: Record) -> Result<Inode, VolumeError> {
        if base.base() != 0 {
            return Err(damaged(format!("MFT record {} extends that of another file", base.number)));
        }
        let list = AttributeList::of(mft, &base)?;
        Ok(Inode { base, list })
    }

    /// Gives `take` the attribute at a place that the list has, or one of `kind` in the file's own record.
    fn at<T>(
        &self,
        mft: &Mft,
        kind: u32,
        place: &Part,
        take: impl FnOnce(&Attribute<'_>) -> Result<T, VolumeError>,
    ) -> Result<T, VolumeError> {
        let number = place.reference & NUMBER;
        let more;
        let record = match number == self.base.number {
            true => &self.base,
            false => {
                more = mft.record(number)?;
                if more.base() != self.base.reference() || more.reference() != place.reference {
                    return Err(damaged(format!("MFT record {number} is to extend it, but belongs to another file")));
                }
                &more
            }
        };
        for attribute in record.attributes() {
            let attribute = attribute?;
            if attribute.kind == kind && attribute.instance == place.instance {
                return take(&attribute);
            }
        }
        Err(damaged(format!("MFT record {number} does not have the attribute {kind:#x} that it is to have")))
    }

    /// Calls `take` with each attribute of a type, whatever its name, until it returns false. Of one in several parts, with the
    /// first.
    pub(super) fn each(
        &self,
        mft: &Mft,
        kind: u32,
        take: &mut dyn FnMut(&Attribute<'_>) -> Result<bool, VolumeError>,
    ) -> Result<(), VolumeError> {
        match &self.list {
            None => {
                for attribute in self.base.attributes() {
                    let attribute = attribute?;
                    if attribute.kind == kind && !take(&attribute)? {
                        return Ok(());
                    }
                }
                Ok(())
            }
            Some(list) => list.each(&mut |of, _, place| match of == kind && place.first == 0 {
                true => self.at(mft, kind, &place, &mut *take),
                false => Ok(true),
            }),
        }
    }

    /// The value of a type, and of a name in UTF-16.
    pub(super) fn stream(&self, mft: &Mft, kind: u32, name: &[u8]) -> Result<Option<Stream>, VolumeError> {
        let parts = match &self.list {
            Some(list) => parts_of(list, kind, name)?,
            None => {
                let mut parts = Vec::new();
                for attribute in self.base.attributes() {
                    let attribute = attribute?;
                    if attribute.kind == kind && attribute.name == name {
                        let (reference, instance) = (self.base.number, attribute.instance);
                        parts.push(Part { first: 0, reference, instance });
                        break;
                    }
                }
                parts
            }
        };
        let Some(first) = parts.first().copied() else { return Ok(None) };
        self.at(mft, kind, &first, |attribute| {
            let value = match attribute.form {
                Form::Resident(bytes) => Value::Resident(bytes.to_vec()),
                Form::Mapped(mapping) => Value::Mapped(Mapped::new(&mapping, parts)?),
            };
            Ok(Some(Stream { kind, flags: attribute.flags, value }))
        })
    }

    /// Calls `take` with the runs that have a cluster of `range`, cut to that, until it returns false. The range ends within
    /// what is allocated, or that is an error.
    pub(super) fn each_run(
        &self,
        mft: &Mft,
        stream: &Stream,
        range: Range<u64>,
        take: &mut dyn FnMut(Run) -> Result<bool, VolumeError>,
    ) -> Result<(), VolumeError> {
        let Value::Mapped(mapped) = &stream.value else { return Ok(()) };
        let (mut at, mut ended) = (range.start, range.is_empty());
        // The last part that begins before the range, and those after it.
        let index = mapped.parts.partition_point(|part| part.first <= range.start).saturating_sub(1);
        for place in mapped.parts.iter().skip(index) {
            if ended || at >= range.end {
                break;
            }
            self.at(mft, stream.kind, place, |attribute| {
                let Form::Mapped(mapping) = attribute.form else {
                    return Err(damaged("a part of it is in clusters, and another one is not"));
                };
                if mapping.first != place.first || mapping.first > at {
                    return Err(damaged(format!("nothing maps its cluster {at}")));
                }
                each_run(&mapping, mft.geometry.clusters, &mut |run| {
                    let (start, end) = (run.first.max(range.start), run.end().min(range.end));
                    if start < end {
                        let place = run.place.map(|place| place + (start - run.first));
                        at = end;
                        ended = !take(Run { first: start, count: end - start, place })?;
                    }
                    Ok(!ended && run.end() < range.end)
                })
            })?;
        }
        match ended || at >= range.end {
            true => Ok(()),
            false => Err(damaged(format!("nothing maps its cluster {at}"))),
        }
    }

    /// Adds where the bytes `range` of a value in clusters are, as far as they were written and are no holes; ascending.
    pub(super) fn extents(
        &self,
        mft: &Mft,
        stream: &Stream,
        range: Range<u64>,
        found: &mut Vec<Extent>,
    ) -> Result<(), VolumeError> {
        let Value::Mapped(mapped) = &stream.value else { return Ok(()) };
        let range = range.start..range.end.min(mapped.written);
        if range.is_empty() {
            return Ok(());
        }
        let bits = mft.geometry.cluster_bits;
        let clusters = range.start >> bits..range.end.div_ceil(1 << bits);
        self.each_run(mft, stream, clusters, &mut |run| extend(mft, &run, &range, found).map(|()| true))
    }

    /// Fills `out` from byte `offset` of a value, which must have as many bytes.
    pub(super) fn read(&self, mft: &Mft, stream: &Stream, offset: u64, out: &mut [u8]) -> Result<(), VolumeError> {
        let end = offset.checked_add(out.len() as u64).filter(|end| *end <= stream.size());
        let end = end.ok_or_else(|| damaged(format!("it has {} bytes, fewer than it should", stream.size())))?;
        match &stream.value {
            Value::Resident(bytes) => {
                let from = bytes.get(offset as usize..end as usize).unwrap_or_default();
                out.iter_mut().zip(from).for_each(|(to, from)| *to = *from);
                Ok(())
            }
            Value::Mapped(_) => {
                let mut found = Vec::new();
                self.extents(mft, stream, offset..end, &mut found)?;
                read_extents(mft, &found, offset, out)
            }
        }
    }

    /// All of a value of a type and name, if it has up to `most` bytes.
    pub(super) fn bytes(&self, mft: &Mft, kind: u32, name: &[u8], most: u64) -> Result<Option<Vec<u8>>, VolumeError> {
        let Some(stream) = self.stream(mft, kind, name)? else { return Ok(None) };
        if stream.size() > most {
            return Err(damaged(format!("its attribute {kind:#x} has {} bytes; {most} are too many", stream.size())));
        }
        let mut bytes = vec![0; stream.size() as usize];
        self.read(mft, &stream, 0, &mut bytes).map_err(|error| about(&format!("its attribute {kind:#x}"), error))?;
        Ok(Some(bytes))
    }
}

impl Mapped {
    fn new(mapping: &Mapping<'_>, parts: Vec<Part>) -> Result<Mapped, VolumeError> {
        let Mapping { allocated, stored, size, initialized, unit_bits, .. } = *mapping;
        match i64::try_from(size) {
            Ok(_) => Ok(Mapped { size, allocated, stored, written: size.min(initialized), unit_bits, parts }),
            Err(_) => Err(damaged(format!("it has {size} bytes, more than a file can have"))),
        }
    }
}

/// Adds the bytes of a run that are in `range`, if it is no hole.
fn extend(mft: &Mft, run: &Run, range: &Range<u64>, found: &mut Vec<Extent>) -> Result<(), VolumeError> {
    let bits = mft.geometry.cluster_bits;
    let Some(place) = run.place else { return Ok(()) };
    // Runs of a list of attributes are not cut to it: its end may be far beyond what bytes can count.
    let Some(first) = run.first.checked_mul(1 << bits) else { return Ok(()) };
    let (start, end) = (first.max(range.start), first.saturating_add(run.count << bits).min(range.end));
    if start >= end {
        return Ok(());
    }
    let (at, length) = ((place << bits) + (start - first), end - start);
    if !mft.holds(at, length) {
        let size = mft.image_size();
        return Err(damaged(format!("{length} bytes of it at byte {at} lie beyond the image's end at {size}")));
    }
    match found.last_mut() {
        Some(last) if last.offset + last.length == start && last.at + last.length == at => last.length += length,
        _ => found.push(Extent { offset: start, length, at, backing: 0 }),
    }
    Ok(())
}

/// Fills `out`, which begins at `offset` of a value, with what is in these extents, and zeros.
fn read_extents(mft: &Mft, extents: &[Extent], offset: u64, out: &mut [u8]) -> Result<(), VolumeError> {
    out.fill(0);
    for extent in extents {
        let start = (extent.offset - offset) as usize;
        let place = out.get_mut(start..start + extent.length as usize).unwrap_or_default();
        mft.read(extent.at, place)?;
    }
    Ok(())
}
