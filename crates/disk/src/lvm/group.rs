//! A volume group as its metadata describes it: lvm2's lib/format_text/export.c writes it.

use std::collections::{HashMap, HashSet};
use std::fmt;

use super::text::{Section, Value};
use crate::mapped::SECTOR;

/// The most logical volumes of a group that are read.
const MOST_VOLUMES: usize = 4096;
/// The longest name, in bytes (lvm2's `NAME_LEN`).
const LONGEST_NAME: usize = 127;
/// Why the changes of a snapshot are no volume.
const SNAPSHOT: &str = "snapshots are not read";

/// A volume group.
pub struct Group {
    pub name: String,
    pub id: String,
    /// Higher in newer metadata.
    pub sequence: u64,
    /// Bytes of an extent.
    pub extent: u64,
    /// The physical volumes, by the names that segments have for them.
    pub physical: HashMap<String, Physical>,
    /// The logical volumes by their order: those that users see, and those they are made of.
    pub logical: Vec<Logical>,
    /// The pools of thin volumes, by name.
    pub pools: HashMap<String, Pool>,
    /// The names of the logical volumes.
    names: HashSet<String>,
    /// How many logical volumes are left out.
    pub left_out: usize,
}

/// A physical volume of a group.
pub struct Physical {
    pub id: String,
    /// Where it was when the metadata was written.
    pub device: Option<String>,
    /// Where its extents start, in bytes.
    pub start: u64,
}

/// A logical volume.
pub struct Logical {
    pub name: String,
    pub id: Option<String>,
    /// Whether it is more than a part of others.
    pub is_visible: bool,
    /// Its length.
    pub extents: u64,
    /// By their order, without gaps; or why they cannot be read.
    pub segments: Result<Vec<Segment>, String>,
    /// How it is laid out, in LVM's word: the type of its first segment.
    pub layout: String,
}

/// A range of a logical volume.
pub struct Segment {
    /// In extents.
    pub count: u64,
    pub kind: Kind,
}

/// Where the extents of a segment are.
pub enum Kind {
    /// On areas by turns.
    Areas { areas: Vec<Area>, chunk: u64 },
    /// Copies, each on a logical volume: with the name of the volume that holds the copy's state, if there is one.
    Copies(Vec<(Option<String>, Area)>),
    /// Nowhere: they are zeros.
    Zeros,
    /// In a pool, as the device of that number. What the device does not have is in an origin outside of the pool, if there
    /// is one.
    Thin { pool: String, device: u64, origin: Option<String> },
}

/// The logical volumes that a pool of thin volumes is made of.
pub struct Pool {
    pub metadata: String,
    pub data: String,
}

/// A place in a physical or logical volume.
pub struct Area {
    pub name: String,
    /// In extents.
    pub start: u64,
}

/// Whether a name is one that LVM allows (lvm2's `validate_name`): it can be a part of a path.
fn is_name(name: &str) -> bool {
    let is_of_name = |byte: u8| byte.is_ascii_alphanumeric() || b"._-+".contains(&byte);
    name.bytes().all(is_of_name)
        && !matches!(name, "" | "." | "..")
        && !name.starts_with('-')
        && name.len() <= LONGEST_NAME
}

/// Whether it may be an identifier.
fn is_id(id: &str) -> bool {
    (1..=64).contains(&id.len()) && id.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
}

impl Group {
    /// The group that a text describes, or what is wrong.
    pub fn of(whole: &Section<'_>) -> Result<Group, String> {
        if whole.text("contents") != Some("Text Format Volume Group") || whole.number("version") != Some(1) {
            return Err("is no description of a volume group that is known".to_owned());
        }
        let [(name, group)] = &whole.sections[..] else { return Err("describes no single volume group".to_owned()) };
        if !is_name(name) {
            return Err("has a name of a volume group that LVM does not allow".to_owned());
        }
        let extent =
            group.number("extent_size").and_then(|sectors| sectors.checked_mul(SECTOR)).filter(|size| *size > 0);
        let (Some(id), Some(sequence), Some(extent)) =
            (group.text("id").filter(|id| is_id(id)), group.number("seqno"), extent)
        else {
            return Err("lacks the volume group's id, seqno or extent_size".to_owned());
        };
        let sections = |name| group.section(name).map(|section| &section.sections[..]).unwrap_or_default();
        let physical = sections("physical_volumes").iter().map(|(name, volume)| {
            let start = volume.number("pe_start").and_then(|sectors| sectors.checked_mul(SECTOR));
            let device = volume.text("device").map(str::to_owned);
            Some((str::to_owned(name), Physical { id: volume.text("id")?.to_owned(), device, start: start? }))
        });
        let physical = physical.collect::<Option<_>>().ok_or("lacks id or pe_start of a physical volume")?;
        let all = sections("logical_volumes");
        let parts = parts_of_snapshots(all);
        let known = all.iter().filter(|(name, _)| is_name(name)).take(MOST_VOLUMES);
        let logical: Vec<Logical> =
            known.map(|(name, volume)| logical(name, volume, parts.get(name).copied())).collect();
        let (left_out, names) = (all.len() - logical.len(), logical.iter().map(|volume| volume.name.clone()).collect());
        let pools = pools(all);
        let (name, id) = (str::to_owned(name), id.to_owned());
        Ok(Group { name, id, sequence, extent, physical, logical, pools, names, left_out })
    }

    /// Whether there is a logical volume of this name.
    pub fn has_logical(&self, name: &str) -> bool {
        self.names.contains(name)
    }
}

fn logical(name: &str, volume: &Section<'_>, unread: Option<&str>) -> Logical {
    let segment = |(name, section)| Some((str::strip_prefix(name, "segment")?.parse::<u64>().ok()?, section));
    let mut sections: Vec<_> =
        volume.sections.iter().map(|(name, section)| (*name, section)).filter_map(segment).collect();
    sections.sort_by_key(|(number, _)| *number);
    let is_snapshot = unread == Some(SNAPSHOT);
    let layout = match sections.first().and_then(|(_, first)| Some(layout(first, first.text("type")?))) {
        _ if is_snapshot => "snapshot".to_owned(),
        layout => layout.unwrap_or_default(),
    };
    // The volume that ties a snapshot to its origin is no volume of its own: users see its store.
    let is_tie = sections.first().is_some_and(|(_, first)| first.text("type") == Some("snapshot"));
    let extents = sections.iter().filter_map(|(_, section)| section.number("extent_count"));
    Logical {
        name: name.to_owned(),
        id: volume.text("id").filter(|id| is_id(id)).map(str::to_owned),
        is_visible: is_snapshot || (volume.lists("status", "VISIBLE") && !is_tie),
        extents: extents.fold(0, u64::saturating_add),
        segments: unread.map_or_else(|| segments(&sections), |why| Err(why.to_owned())),
        layout,
    }
}

/// The word that `lvs -o layout` has: what is striped over one area is linear.
fn layout(segment: &Section<'_>, kind: &str) -> String {
    let is_single = kind == "striped" && segment.number("stripe_count") == Some(1);
    if is_single { "linear".to_owned() } else { kind.to_owned() }
}

fn segments(sections: &[(u64, &Section<'_>)]) -> Result<Vec<Segment>, String> {
    let mut segments: Vec<Segment> = Vec::with_capacity(sections.len());
    let mut end = 0u64;
    for (number, section) in sections {
        let numbers = (section.number("start_extent"), section.number("extent_count").filter(|count| *count > 0));
        let (Some(start), Some(count)) = numbers else { return Err(format!("segment {number} has no place or size")) };
        if start != end {
            return Err(format!("segment {number} does not follow the one before it"));
        }
        end = start.checked_add(count).ok_or_else(|| format!("segment {number} has a size that cannot be"))?;
        segments.push(Segment { count, kind: kind(section, count)? });
    }
    if segments.is_empty() { Err("it has no segments".to_owned()) } else { Ok(segments) }
}

fn kind(section: &Section<'_>, count: u64) -> Result<Kind, String> {
    let word = section.text("type").unwrap_or_default();
    let missing = || format!("a segment of type '{}' does not say where it lies", word.escape_debug());
    match word {
        "striped" | "linear" => {
            let areas = areas(section.list("stripes")).ok_or_else(missing)?;
            striped(areas, section, count)
        }
        "raid0" | "raid0_meta" => {
            let areas = copies(section.list("raid0_lvs"), word == "raid0_meta").ok_or_else(missing)?;
            striped(areas.into_iter().map(|(_, area)| area).collect(), section, count)
        }
        "raid1" => Ok(Kind::Copies(copies(section.list("raids"), true).ok_or_else(missing)?)),
        "mirror" => {
            let areas = areas(section.list("mirrors")).ok_or_else(missing)?;
            Ok(Kind::Copies(areas.into_iter().map(|area| (None, area)).collect()))
        }
        "zero" => Ok(Kind::Zeros),
        "thin" => {
            let (pool, device) = section.text("thin_pool").zip(section.number("device_id")).ok_or_else(missing)?;
            let origin = section.text("external_origin").map(str::to_owned);
            Ok(Kind::Thin { pool: pool.to_owned(), device, origin })
        }
        "thin-pool" => Err("it is the pool of thin volumes, which are read by themselves".to_owned()),
        _ => Err(format!("segments of type '{}' are not read", word.escape_debug())),
    }
}

fn striped(areas: Vec<Area>, section: &Section<'_>, count: u64) -> Result<Kind, String> {
    let chunk = section.number("stripe_size").and_then(|sectors| sectors.checked_mul(SECTOR)).unwrap_or_default();
    let is_even = areas.len() == 1 || (chunk > 0 && count.is_multiple_of(areas.len() as u64));
    if is_even {
        Ok(Kind::Areas { areas, chunk })
    } else {
        Err("a segment has stripes of a size that cannot be".to_owned())
    }
}

/// Names, each with the extent at which the area starts.
fn areas(list: &[Value<'_>]) -> Option<Vec<Area>> {
    let (pairs, rest) = list.as_chunks::<2>();
    let areas = pairs.iter().map(|[name, start]| Some(Area { name: name.text()?.to_owned(), start: start.number()? }));
    if rest.is_empty() && !pairs.is_empty() { areas.collect() } else { None }
}

/// Names of logical volumes. With `have_state`, each follows the name of the volume with its state.
fn copies(list: &[Value<'_>], have_state: bool) -> Option<Vec<(Option<String>, Area)>> {
    let name = |value: &Value<'_>| Some(value.text()?.to_owned());
    if list.is_empty() {
        return None;
    }
    if !have_state {
        return list.iter().map(|image| Some((None, Area { name: name(image)?, start: 0 }))).collect();
    }
    let (pairs, rest) = list.as_chunks::<2>();
    let areas = pairs.iter().map(|[state, image]| Some((Some(name(state)?), Area { name: name(image)?, start: 0 })));
    if rest.is_empty() { areas.collect() } else { None }
}

/// The pools of thin volumes. Those that do not say where they lie are left out.
fn pools(volumes: &[(&str, Section<'_>)]) -> HashMap<String, Pool> {
    let pool = |(name, volume): &(&str, Section<'_>)| {
        let (_, segment) = volume.sections.iter().find(|(_, segment)| segment.text("type") == Some("thin-pool"))?;
        let (metadata, data) = segment.text("metadata").zip(segment.text("pool"))?;
        Some((str::to_owned(name), Pool { metadata: metadata.to_owned(), data: data.to_owned() }))
    };
    volumes.iter().filter_map(pool).collect()
}

/// The volumes that are no content of their own, by name: the changes of a snapshot, and what one is merged into.
fn parts_of_snapshots<'a>(volumes: &'a [(&str, Section<'_>)]) -> HashMap<&'a str, &'static str> {
    let segments = volumes.iter().flat_map(|(_, volume)| &volume.sections).map(|(_, segment)| segment);
    let mut parts = HashMap::new();
    for segment in segments.filter(|segment| segment.text("type") == Some("snapshot")) {
        let merging = segment.text("merging_store");
        let stores = segment.text("cow_store").into_iter().chain(merging);
        parts.extend(stores.map(|name| (name, SNAPSHOT)));
        let origin = segment.text("origin").filter(|_| merging.is_some());
        parts.extend(origin.map(|name| (name, "a snapshot is being merged into it")));
    }
    parts
}

impl fmt::Display for Physical {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "physical volume {}", self.id.escape_debug())?;
        match &self.device {
            Some(device) => write!(f, " (last seen as {})", device.escape_debug()),
            None => Ok(()),
        }
    }
}
