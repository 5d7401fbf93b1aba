//! Assembles arrays of MD, Linux's software RAID, from partitions and disks ([`Piece`]).
//!
//! Linear arrays, RAID 0 and RAID 1 are read. A RAID 1 is read from one member that is complete and up to date. Arrays of
//! other levels are listed, but not read.

pub mod superblock;

use std::collections::HashSet;
use std::sync::Arc;

use inarch_block::Backing;
use superblock::Superblock;

use crate::DiskError;
use crate::above::{Above, Kind, Piece, Volumes};
use crate::mapped::{Leg, Mapped, Run, SECTOR};
use crate::window::Window;

/// The most members that an array may have. The kernel's limit is the room of a superblock.
const MOST_MEMBERS: u32 = 1920;

/// A piece that is a member.
struct Member {
    piece: Piece,
    block: Superblock,
}

/// Adds the arrays of members among `pieces`. Returns their backings as pieces, and the pieces that are no members.
pub fn assemble(pieces: Vec<Piece>, found: &mut Volumes) -> Result<(Vec<Piece>, Vec<Piece>), DiskError> {
    let (mut sets, mut rest): (Vec<Vec<Member>>, _) = (Vec::new(), Vec::new());
    for piece in pieces {
        let Some(block) = superblock::read(&*piece.backing)? else {
            rest.push(piece);
            continue;
        };
        let same = sets.iter_mut().find(|set| set.iter().any(|member| member.block.set == block.set));
        match same {
            Some(set) => set.push(Member { piece, block }),
            None => sets.push(vec![Member { piece, block }]),
        }
    }
    let mut arrays = Vec::new();
    for members in sets {
        let array = array(members, found);
        if let Ok(backing) = &array.bytes {
            arrays.push(Piece { name: array.name.clone(), names: array.names(), backing: Arc::clone(backing) });
        }
        found.list.push(array);
    }
    Ok((arrays, rest))
}

/// The array that these members make, though some may be missing.
fn array(mut members: Vec<Member>, found: &mut Volumes) -> Above {
    let on = members.iter().map(|member| member.piece.name.clone()).collect();
    members.sort_by_key(|member| std::cmp::Reverse(member.block.events));
    let newest = members.first().map(|member| member.block.clone());
    let made = newest.as_ref().ok_or_else(String::new).and_then(|newest| bytes(newest, &members));
    let name = name(newest.as_ref(), &found.list);
    let block = newest.as_ref();
    if made.is_ok()
        && let Some(missing) =
            block.and_then(|block| block.members.checked_sub(members.len() as u32)).filter(|missing| *missing > 0)
    {
        found.notes.push(format!("{name}: {missing} of its members are missing"));
    }
    Above {
        name,
        layout: block.map(Superblock::level_name).unwrap_or_default(),
        size: made.as_ref().map_or_else(|_| block.map_or(0, |block| block.used), |made| made.size()),
        id: block.and_then(Superblock::id),
        on,
        content: None,
        kind: Kind::Array,
        within: None,
        bytes: made,
    }
}

/// `/dev/md/NAME`, or by a number: that of version 0.90, or the highest that is free below 128, as mdadm takes it.
fn name(block: Option<&Superblock>, taken: &[Above]) -> String {
    let taken: HashSet<&str> = taken.iter().map(|other| other.name.as_str()).collect();
    let is_of_name = |byte: u8| byte.is_ascii_alphanumeric() || b"._-+".contains(&byte);
    let usable = |name: &&str| name.bytes().all(is_of_name) && !matches!(*name, "" | "." | "..");
    let own = match block {
        Some(Superblock { minor: Some(minor), .. }) => Some(format!("/dev/md{minor}")),
        Some(block) => block.name().filter(usable).map(|name| format!("/dev/md/{name}")),
        None => None,
    };
    let numbers = (0..=127).rev().chain(128..).map(|number: u32| format!("/dev/md{number}"));
    let names = own.into_iter().chain(numbers);
    names.into_iter().find(|name| !taken.contains(name.as_str())).unwrap_or_default()
}

/// The bytes of an array, or why they cannot be read. `members` are the newest first.
fn bytes(newest: &Superblock, members: &[Member]) -> Result<Arc<dyn Backing>, String> {
    if newest.reshapes {
        return Err("it is being changed to another shape, and such arrays are not read".to_owned());
    }
    if newest.members == 0 || newest.members > MOST_MEMBERS {
        return Err("it has a number of members that cannot be".to_owned());
    }
    match newest.level {
        -1 => linear(&all(newest, members)?),
        0 => striped(newest, &all(newest, members)?),
        1 => mirror(newest, members),
        _ => Err(format!("arrays of {} are not read", newest.level_name())),
    }
}

/// The members by their places, each with its length in bytes; fails if one is missing.
fn all(newest: &Superblock, members: &[Member]) -> Result<Vec<(Leg, u64)>, String> {
    let mut places: Vec<Option<&Member>> = vec![None; newest.members as usize];
    for member in members {
        let place = member.block.role.and_then(|role| places.get_mut(role as usize));
        if let Some(place) = place.filter(|place| place.is_none()) {
            *place = Some(member);
        }
    }
    let missing = places.iter().filter(|place| place.is_none()).count();
    if missing > 0 {
        return Err(format!("{missing} of its {} members are missing", places.len()));
    }
    let leg = |member: &Member| {
        let (start, length) = (member.block.start, member.block.length);
        let whole = length - if newest.chunk > 0 { length % newest.chunk } else { 0 };
        (Leg { backing: Arc::clone(&member.piece.backing), at: start }, whole)
    };
    Ok(places.into_iter().flatten().map(leg).collect())
}

fn mapped(runs: Vec<Run>) -> Result<Arc<dyn Backing>, String> {
    Ok(Arc::new(Mapped::new(runs).map_err(|error| error.to_string())?))
}

fn linear(members: &[(Leg, u64)]) -> Result<Arc<dyn Backing>, String> {
    mapped(members.iter().map(|(leg, length)| Run { length: *length, legs: vec![leg.clone()], chunk: 0 }).collect())
}

/// RAID 0: members of one size are striped; of several sizes, the rest of the larger ones is striped after that, and so on
/// (drivers/md/raid0.c, `create_strip_zones` and `map_sector`).
fn striped(newest: &Superblock, members: &[(Leg, u64)]) -> Result<Arc<dyn Backing>, String> {
    const BY_ARRAY: u32 = 1;
    const BY_ZONE: u32 = 2;
    let chunk = Some(newest.chunk).filter(|chunk| *chunk >= SECTOR).ok_or("its chunks have no size")?;
    let (mut runs, mut done, mut start) = (Vec::new(), 0, 0u64);
    loop {
        let mut larger: Vec<(Leg, u64)> = members.iter().filter(|(_, length)| *length > done).cloned().collect();
        let Some(end) = larger.iter().map(|(_, length)| *length).min() else { break };
        let length = (end - done).checked_mul(larger.len() as u64).ok_or("it has a size that cannot be")?;
        // Linux once counted chunks from the array's start in later zones, too. Now the superblock says which way of
        // counting applies.
        match newest.layout {
            _ if runs.is_empty() => {}
            BY_ARRAY => {
                let first = (start / chunk) % larger.len() as u64;
                larger.rotate_left(first as usize);
            }
            BY_ZONE => {}
            _ => return Err("its members have several sizes, and it does not say how they are striped".to_owned()),
        }
        let mut legs = Vec::with_capacity(larger.len());
        for (leg, _) in larger {
            let at = leg.at.checked_add(done).ok_or("it has a size that cannot be")?;
            legs.push(Leg { at, ..leg });
        }
        runs.push(Run { length, legs, chunk });
        start = start.checked_add(length).ok_or("it has a size that cannot be")?;
        done = end;
    }
    // Linux masks the sizes with the chunk's (`raid0_size`), which cuts off more if that is no power of two.
    let sectors = members.iter().map(|(_, length)| (length / SECTOR) & !(chunk / SECTOR - 1));
    let size = sectors.fold(0, u64::saturating_add).saturating_mul(SECTOR);
    if size == 0 {
        return Err("it has a size that cannot be".to_owned());
    }
    Ok(Arc::new(Window::new(mapped(runs)?, 0, size)))
}

/// RAID 1: the newest member that has all of its data.
fn mirror(newest: &Superblock, members: &[Member]) -> Result<Arc<dyn Backing>, String> {
    let is_usable = |member: &&Member| member.block.is_whole && member.block.role.is_some();
    let member = members.iter().find(is_usable).filter(|member| member.block.events == newest.events);
    let member = member.ok_or("no member of it is whole")?;
    let (start, length) = (member.block.start, newest.used);
    let end = start.checked_add(length).filter(|_| length > 0).ok_or("it has a size that cannot be")?;
    if end > member.piece.backing.size() {
        return Err(format!("it goes beyond the end of {}", member.piece.name));
    }
    Ok(Arc::new(Window::new(Arc::clone(&member.piece.backing), start, length)))
}
