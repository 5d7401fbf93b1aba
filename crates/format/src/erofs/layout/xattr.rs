//! Extended attributes: those that many inodes share are stored once, the others after each inode.

use std::collections::HashMap;

use inarch_tree::{InodeId, Tree, Xattr, XattrSetId};

use super::refuse_file;
use crate::FormatError;
use crate::erofs::spec::xattr::{AREA_MAX, HEADER_SIZE, SHARED_MAX, UNIT, VALUE_MAX, entry_size, split_name};

/// An attribute that is stored once.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shared {
    /// A set that has it, and its place there.
    pub(crate) set: XattrSetId,
    pub(crate) place: u32,
    /// Where it starts, in units of four bytes.
    pub(crate) at: u32,
}

/// How one set is stored.
#[derive(Clone, Copy, Debug, Default)]
struct Area {
    /// Bytes after an inode.
    size: u32,
    /// Its shared attributes in [`Xattrs::users`].
    first: u32,
    count: u32,
}

/// One of a set's attributes that is shared.
#[derive(Clone, Copy, Debug)]
struct User {
    /// Its place in the set.
    place: u32,
    /// The attribute in [`Xattrs::shared`].
    shared: u32,
}

/// Where all attributes of a tree go.
#[derive(Debug, Default)]
pub(crate) struct Xattrs {
    /// By set.
    areas: Vec<Area>,
    users: Vec<User>,
    /// Ascending by address.
    shared: Vec<Shared>,
    shared_bytes: u64,
}

/// How an attribute of a set is stored.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Stored<'a> {
    /// Once for all, at this address in units.
    Shared(u32),
    /// Behind the inode.
    Own(&'a Xattr),
}

/// How often an attribute occurs, and whether it has been given its place.
#[derive(Default)]
struct Use {
    inodes: u64,
    shared: Option<u32>,
}

impl Xattrs {
    /// Finds which attributes to share. Errors name the first file with one that cannot be stored.
    pub(crate) fn new(tree: &Tree) -> Result<Xattrs, FormatError> {
        let sets = sets_in_use(tree);
        let mut uses: HashMap<&Xattr, Use> = HashMap::new();
        for (set, owner, inodes) in &sets {
            for attribute in tree.xattrs(*set) {
                check(attribute).map_err(|reason| refuse_file(tree, *owner, reason))?;
                uses.entry(attribute).or_default().inodes += inodes;
            }
        }
        let mut xattrs = Xattrs::default();
        for (set, owner, _) in &sets {
            let area = xattrs.add(tree, *set, &mut uses);
            let area = area.map_err(|reason| refuse_file(tree, *owner, reason))?;
            xattrs.areas.resize(set.0 as usize, Area::default());
            xattrs.areas.push(area);
        }
        Ok(xattrs)
    }

    fn add<'a>(
        &mut self,
        tree: &'a Tree,
        set: XattrSetId,
        uses: &mut HashMap<&'a Xattr, Use>,
    ) -> Result<Area, &'static str> {
        let first = self.users.len();
        let mut size = HEADER_SIZE;
        for (place, attribute) in tree.xattrs(set).iter().enumerate() {
            let bytes = stored_size(attribute) as u64;
            let found = uses.get_mut(attribute).filter(|found| bytes * (found.inodes - 1) > UNIT as u64 * found.inodes);
            let Some(found) = found.filter(|_| self.users.len() - first < SHARED_MAX) else {
                size += bytes as usize;
                continue;
            };
            let shared = match found.shared {
                Some(shared) => shared,
                None => self.share(set, place as u32, bytes)?,
            };
            found.shared = Some(shared);
            self.users.push(User { place: place as u32, shared });
            size += UNIT;
        }
        if size > AREA_MAX {
            return Err("its extended attributes exceed 262148 bytes");
        }
        let count = self.users.len() - first;
        Ok(Area { size: size as u32, first: first as u32, count: count as u32 })
    }

    /// Assigns a shared attribute its place.
    fn share(&mut self, set: XattrSetId, place: u32, bytes: u64) -> Result<u32, &'static str> {
        let at = u32::try_from(self.shared_bytes / UNIT as u64);
        let at = at.map_err(|_| "the extended attributes up to this file's exceed 16 GiB")?;
        self.shared.push(Shared { set, place, at });
        self.shared_bytes += bytes;
        Ok(self.shared.len() as u32 - 1)
    }

    /// Bytes after an inode with the set `set`.
    pub(crate) fn area_size(&self, set: XattrSetId) -> u64 {
        self.areas.get(set.0 as usize).map_or(0, |area| u64::from(area.size))
    }

    /// Bytes of all shared attributes.
    pub(crate) fn shared_bytes(&self) -> u64 {
        self.shared_bytes
    }

    /// The shared attributes that end after byte `from` of theirs, ascending.
    pub(crate) fn shared_from(&self, from: u64) -> &[Shared] {
        let next = self.shared.partition_point(|shared| u64::from(shared.at) * UNIT as u64 <= from);
        self.shared.get(next.saturating_sub(1)..).unwrap_or_default()
    }

    /// The attributes of a set: the shared ones first.
    pub(crate) fn stored<'a>(&self, tree: &'a Tree, set: XattrSetId) -> Vec<Stored<'a>> {
        let area = self.areas.get(set.0 as usize).copied().unwrap_or_default();
        let users = self.users.get(area.first as usize..(area.first + area.count) as usize).unwrap_or_default();
        let address = |user: &User| self.shared.get(user.shared as usize).map(|shared| Stored::Shared(shared.at));
        let is_shared = |place: usize| users.binary_search_by_key(&(place as u32), |user| user.place).is_ok();
        let own = tree.xattrs(set).iter().enumerate().filter(|(place, _)| !is_shared(*place));
        users.iter().filter_map(address).chain(own.map(|(_, attribute)| Stored::Own(attribute))).collect()
    }
}

/// The sets that inodes have, ascending, each with the first inode that has it and their number.
fn sets_in_use(tree: &Tree) -> Vec<(XattrSetId, InodeId, u64)> {
    let mut uses: Vec<Option<(InodeId, u64)>> = Vec::new();
    for (id, inode) in tree.inodes() {
        let set = inode.xattrs();
        if tree.xattrs(set).is_empty() {
            continue;
        }
        if uses.len() <= set.0 as usize {
            uses.resize(set.0 as usize + 1, None);
        }
        if let Some(slot) = uses.get_mut(set.0 as usize) {
            slot.get_or_insert((id, 0)).1 += 1;
        }
    }
    let used = uses.into_iter().zip(0..);
    used.filter_map(|(slot, set)| slot.map(|(owner, inodes)| (XattrSetId(set), owner, inodes))).collect()
}

/// Bytes of an attribute where it is stored.
fn stored_size(attribute: &Xattr) -> usize {
    let rest = split_name(&attribute.name).map_or(0, |(_, rest)| rest.len());
    entry_size(rest, attribute.value.len())
}

/// Refuses what cannot be stored.
fn check(attribute: &Xattr) -> Result<(), String> {
    let name = String::from_utf8_lossy(&attribute.name);
    let Some((index, _)) = split_name(&attribute.name) else {
        return Err(format!("the extended attribute {name:?} is of no namespace that can be stored"));
    };
    let length = attribute.value.len();
    if length > VALUE_MAX {
        return Err(format!("the value of {name:?} has {length} bytes, more than {VALUE_MAX}"));
    }
    if matches!(index, 2 | 3) && !is_acl(&attribute.value) {
        return Err(format!("the value of {name:?} is not a POSIX ACL of version 2"));
    }
    Ok(())
}

/// Whether a value has the form of `include/uapi/linux/posix_acl_xattr.h`: a version, then entries of eight bytes.
fn is_acl(value: &[u8]) -> bool {
    value.strip_prefix(&2u32.to_le_bytes()).is_some_and(|entries| entries.len().is_multiple_of(8))
}
