//! Volume groups of LVM2: the labels of physical volumes, the text that describes a group, and where the bytes of its
//! logical volumes are.
//!
//! Linear and striped volumes are read, mirrors from one copy, and thin volumes. Others are listed with the reason why they are not.

mod group;
mod label;
mod map;
mod text;
mod thin;

use std::collections::{HashMap, HashSet};

use group::Group;
#[cfg(test)]
pub use label::checksum;

use crate::DiskError;
use crate::above::{Above, Kind, Piece, Volumes};

/// The most bytes of text that are read of all physical volumes.
const MOST_TEXT: usize = 64 << 20;

/// The most logical volumes of all groups that are listed.
const MOST_VOLUMES: usize = 8192;

/// The pieces with their places in the order of all, by the identifiers of their physical volumes.
type Physical<'a> = HashMap<String, (usize, &'a Piece)>;

/// Adds the logical volumes of the groups on `pieces`.
pub fn assemble(pieces: &[Piece], found: &mut Volumes) -> Result<(), DiskError> {
    let mut physical = Physical::new();
    // Groups in the order in which they are found.
    let mut groups: Vec<Group> = Vec::new();
    let (mut known, mut read) = (HashSet::new(), 0);
    for (index, piece) in pieces.iter().enumerate() {
        let Some(label) = label::label(&*piece.backing, &piece.name, &mut found.notes)? else { continue };
        if let Some((_, first)) = physical.get(&label.id) {
            let (name, first) = (&piece.name, &first.name);
            found
                .notes
                .push(format!("{name}: it has the identifier of the LVM physical volume on {first}; it is left out"));
            continue;
        }
        physical.insert(label.id.clone(), (index, piece));
        for text in label::texts(&*piece.backing, &label, &piece.name, &mut found.notes)? {
            // Every physical volume of a group has the same text, as a rule.
            if known.contains(&text) {
                continue;
            }
            read += text.len();
            if read > MOST_TEXT {
                found.notes.push(format!("{}: this is too much LVM metadata; it is left out", piece.name));
                break;
            }
            match text::parse(&text)
                .map_err(|error| format!("cannot be understood at {error}"))
                .and_then(|whole| Group::of(&whole))
            {
                Ok(group) => add(group, &mut groups),
                Err(what) => found.notes.push(format!("{}: the LVM metadata {what}", piece.name)),
            }
            known.insert(text);
        }
    }
    let taken = found.list.iter().filter_map(|volume| volume.name.strip_prefix("/dev/")?.split_once('/'));
    let mut names: HashSet<String> = taken.map(|(group, _)| group.to_owned()).collect();
    for group in &groups {
        // One name may be that of two groups, of two machines.
        let name =
            if names.insert(group.name.clone()) { group.name.clone() } else { format!("{}_{}", group.name, group.id) };
        show(group, &name, &physical, found);
        found.groups.push(name);
    }
    Ok(())
}

/// Keeps the newest description of each group.
fn add(group: Group, groups: &mut Vec<Group>) {
    match groups.iter_mut().find(|other| other.id == group.id) {
        Some(other) if other.sequence < group.sequence => *other = group,
        Some(_) => {}
        None => groups.push(group),
    }
}

/// Adds the logical volumes of a group that users see.
fn show(group: &Group, name: &str, physical: &Physical<'_>, found: &mut Volumes) {
    let mut missing: Vec<_> = group.physical.values().filter(|volume| !physical.contains_key(&volume.id)).collect();
    missing.sort_by_key(|volume| &volume.id);
    for volume in missing {
        found.notes.push(format!("volume group {name}: {volume} is missing"));
    }
    if group.left_out > 0 {
        let count = group.left_out;
        found.notes.push(format!(
            "volume group {name}: logical volumes that LVM does not allow, or too many: {count} left out"
        ));
    }
    let bytes = map::volumes(group, physical);
    for volume in group.logical.iter().filter(|volume| volume.is_visible) {
        if found.list.len() >= MOST_VOLUMES {
            found.notes.push(format!("volume group {name}: there are too many logical volumes; the rest is left out"));
            break;
        }
        let made = bytes.get(volume.name.as_str()).cloned();
        let (bytes, on) = match made {
            Some(Ok(made)) => (Ok(made.bytes), names(&made.on, physical)),
            Some(Err(why)) => (Err(why), Vec::new()),
            None => (Err("it lies on itself, or on too many volumes above each other".to_owned()), Vec::new()),
        };
        found.list.push(Above {
            name: format!("/dev/{name}/{}", volume.name),
            layout: volume.layout.clone(),
            size: volume.extents.saturating_mul(group.extent),
            id: volume.id.clone(),
            on,
            content: None,
            kind: Kind::Logical,
            within: None,
            bytes,
        });
    }
}

/// The names of pieces, by their order.
fn names(on: &map::Below, physical: &Physical<'_>) -> Vec<String> {
    let mut pieces: Vec<_> = physical.values().filter(|(index, _)| on.has(*index)).collect();
    pieces.sort_by_key(|(index, _)| *index);
    pieces.into_iter().map(|(_, piece)| piece.name.clone()).collect()
}
