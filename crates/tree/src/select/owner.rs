//! Maps owners at the source to owners in the tree.

use std::str::FromStr;

/// Maps the owners of inodes and of entries in POSIX ACLs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OwnerMap {
    /// Unchanged.
    #[default]
    Host,
    /// Files of this user (or group) become root's; others are unchanged.
    Map {
        /// The user that becomes 0.
        uid: u32,
        /// The group that becomes 0.
        gid: u32,
    },
    /// Files that are not root's become this guest user's (or group's).
    Squash {
        /// The user of the guest.
        uid: u32,
        /// The group of the guest.
        gid: u32,
    },
    /// All files become this user's and group's.
    Fixed {
        /// Owner.
        uid: u32,
        /// Group.
        gid: u32,
    },
}

/// The text names no owner map.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the owner {0:?} is none of map, host, squash and UID:GID (two numbers from 0 to 4294967294)")]
pub struct OwnerMapError(String);

impl FromStr for OwnerMap {
    type Err = OwnerMapError;

    /// Parses `host`; `map`, with the caller's effective ids; `squash`, to 0:0; or `UID:GID`.
    fn from_str(text: &str) -> Result<OwnerMap, OwnerMapError> {
        match text {
            "host" => Ok(OwnerMap::Host),
            "map" => Ok(OwnerMap::caller()),
            "squash" => Ok(OwnerMap::Squash { uid: 0, gid: 0 }),
            _ => {
                // u32::MAX means "no change" to chown.
                let id = |text: &str| text.parse().ok().filter(|id| *id != u32::MAX);
                let ids = text.split_once(':').and_then(|(uid, gid)| Some((id(uid)?, id(gid)?)));
                let (uid, gid) = ids.ok_or_else(|| OwnerMapError(text.to_owned()))?;
                Ok(OwnerMap::Fixed { uid, gid })
            }
        }
    }
}

impl OwnerMap {
    /// [`OwnerMap::Map`] of the caller's effective user and group.
    pub fn caller() -> OwnerMap {
        OwnerMap::Map { uid: rustix::process::geteuid().as_raw(), gid: rustix::process::getegid().as_raw() }
    }

    /// The owner in the tree of a file of `uid`.
    pub fn uid(&self, uid: u32) -> u32 {
        match *self {
            OwnerMap::Host => uid,
            OwnerMap::Map { uid: caller, .. } => from_caller(uid, caller),
            OwnerMap::Squash { uid: all, .. } => squashed(uid, all),
            OwnerMap::Fixed { uid: all, .. } => all,
        }
    }

    /// The group in the tree of a file of `gid`.
    pub fn gid(&self, gid: u32) -> u32 {
        match *self {
            OwnerMap::Host => gid,
            OwnerMap::Map { gid: caller, .. } => from_caller(gid, caller),
            OwnerMap::Squash { gid: all, .. } => squashed(gid, all),
            OwnerMap::Fixed { gid: all, .. } => all,
        }
    }

    /// Maps the named users and groups of a `system.posix_acl_*` value; see [`Owners::acl`].
    pub fn acl(&self, value: &mut Vec<u8>) {
        if *self != OwnerMap::Host {
            map_acl(value, |id| self.uid(id), |id| self.gid(id));
        }
    }
}

/// Maps a range of user or group ids to another range of the same length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct IdRange {
    first: u32,
    becomes: u32,
    count: u32,
}

/// The text is not a range of ids.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{0:?} is not a range of ids; write FROM:TO:COUNT, so that COUNT ids from FROM on become those from TO on, all below \
     4294967295"
)]
pub struct IdRangeError(String);

impl IdRange {
    /// The first id of the range, the id it is mapped to, and the number of ids.
    pub fn parts(&self) -> (u32, u32, u32) {
        (self.first, self.becomes, self.count)
    }
}

impl FromStr for IdRange {
    type Err = IdRangeError;

    /// Parses `FROM:TO:COUNT`.
    fn from_str(text: &str) -> Result<IdRange, IdRangeError> {
        let wrong = || IdRangeError(text.to_owned());
        let numbers: Vec<u32> = text.split(':').map(str::parse).collect::<Result<_, _>>().map_err(|_| wrong())?;
        let &[first, becomes, count] = &numbers[..] else { return Err(wrong()) };
        // u32::MAX means "no change" to chown.
        let fits = |start: u32| start.checked_add(count).is_some();
        if count == 0 || !fits(first) || !fits(becomes) { Err(wrong()) } else { Ok(IdRange { first, becomes, count }) }
    }
}

impl IdRange {
    /// The mapped `id`, if it is in this range.
    fn map(&self, id: u32) -> Option<u32> {
        let place = id.checked_sub(self.first).filter(|place| *place < self.count)?;
        Some(self.becomes + place)
    }
}

/// Maps owners: the first range that contains an id decides; other ids go by a map.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Owners {
    /// For ids in no range.
    pub map: OwnerMap,
    /// Ranges of users.
    pub users: Vec<IdRange>,
    /// Ranges of groups.
    pub groups: Vec<IdRange>,
}

impl From<OwnerMap> for Owners {
    fn from(map: OwnerMap) -> Owners {
        Owners { map, ..Owners::default() }
    }
}

impl Owners {
    /// The owner in the tree of a file of `uid`.
    pub fn uid(&self, uid: u32) -> u32 {
        self.users.iter().find_map(|range| range.map(uid)).unwrap_or_else(|| self.map.uid(uid))
    }

    /// The group in the tree of a file of `gid`.
    pub fn gid(&self, gid: u32) -> u32 {
        self.groups.iter().find_map(|range| range.map(gid)).unwrap_or_else(|| self.map.gid(gid))
    }

    /// The ranges (first ID, its image, count) for users and for groups, if no two IDs become one: what the kernel's
    /// idmapped mounts support.
    pub fn one_to_one(&self) -> Option<[Vec<(u32, u32, u32)>; 2]> {
        let (uid, gid) = match self.map {
            OwnerMap::Host => (None, None),
            OwnerMap::Map { uid, gid } => (Some(uid), Some(gid)),
            OwnerMap::Squash { .. } | OwnerMap::Fixed { .. } => return None,
        };
        Some([one_to_one(&self.users, uid, |id| self.uid(id))?, one_to_one(&self.groups, gid, |id| self.gid(id))?])
    }

    /// Maps the named users and groups of a `system.posix_acl_*` value (`include/uapi/linux/posix_acl_xattr.h`).
    /// Entries that are mapped to the same user or group are merged into one that grants what any of them grants. A
    /// value that is not an ACL of version 2 is unchanged.
    pub fn acl(&self, value: &mut Vec<u8>) {
        if *self != Owners::default() {
            map_acl(value, |id| self.uid(id), |id| self.gid(id));
        }
    }

    /// The map that a scan applies. Ranges take precedence over it, so with ranges the scan applies none.
    pub(super) fn of_scan(&self) -> OwnerMap {
        if self.has_ranges() { OwnerMap::Host } else { self.map }
    }

    pub(super) fn after_scan(&self) -> Owners {
        if self.has_ranges() { self.clone() } else { Owners::default() }
    }

    fn has_ranges(&self) -> bool {
        !self.users.is_empty() || !self.groups.is_empty()
    }
}

/// See [`Owners::one_to_one`]: `becomes` is the map of `ranges`, and `single` is another ID that is mapped.
fn one_to_one(ranges: &[IdRange], single: Option<u32>, becomes: impl Fn(u32) -> u32) -> Option<Vec<(u32, u32, u32)>> {
    /// As many lines as a map of the kernel has (`UID_GID_MAP_MAX_EXTENTS` of Linux's include/linux/user_namespace.h).
    const MOST: usize = 340;
    // Between two of these bounds, IDs map in order.
    let mut bounds = vec![0, u32::MAX];
    bounds.extend(ranges.iter().flat_map(|range| [range.first, range.first.saturating_add(range.count)]));
    bounds.extend(single.into_iter().flat_map(|id| [id, id.saturating_add(1)]));
    bounds.sort_unstable();
    bounds.dedup();
    let mut found: Vec<(u32, u32, u32)> = Vec::new();
    for (first, end) in bounds.iter().zip(bounds.iter().skip(1)) {
        let (seen, count) = (becomes(*first), end - first);
        match found.last_mut() {
            Some((below, above, length)) if *below + *length == *first && *above + *length == seen => *length += count,
            _ => found.push((*first, seen, count)),
        }
    }
    let mut seen: Vec<(u32, u32)> = found.iter().map(|(_, seen, count)| (*seen, *count)).collect();
    seen.sort_unstable();
    let apart = seen.iter().zip(seen.iter().skip(1)).all(|((one, count), (next, _))| *count <= next - one);
    (apart && found.len() <= MOST).then_some(found)
}

/// See [`Owners::acl`].
fn map_acl(value: &mut Vec<u8>, uid: impl Fn(u32) -> u32, gid: impl Fn(u32) -> u32) {
    const HEADER: usize = 4;
    const ENTRY: usize = 8;
    const USER: u16 = 0x02;
    const GROUP: u16 = 0x08;
    if value.first_chunk() != Some(&2u32.to_le_bytes()) {
        return;
    }
    let (chunks, rest) = value[HEADER..].as_chunks::<ENTRY>();
    if !rest.is_empty() {
        return;
    }
    let mut entries: Vec<(u16, u32, u16)> = Vec::with_capacity(chunks.len());
    for [t0, t1, p0, p1, i0, i1, i2, i3] in chunks {
        let tag = u16::from_le_bytes([*t0, *t1]);
        let id = u32::from_le_bytes([*i0, *i1, *i2, *i3]);
        let id = match tag {
            USER => uid(id),
            GROUP => gid(id),
            _ => id,
        };
        entries.push((tag, id, u16::from_le_bytes([*p0, *p1])));
    }
    entries.sort_unstable();
    entries.dedup_by(|b, a| {
        let same = (a.0, a.1) == (b.0, b.1);
        if same {
            a.2 |= b.2;
        }
        same
    });
    value.truncate(HEADER);
    for (tag, id, permissions) in entries {
        value.extend_from_slice(&tag.to_le_bytes());
        value.extend_from_slice(&permissions.to_le_bytes());
        value.extend_from_slice(&id.to_le_bytes());
    }
}

fn from_caller(id: u32, caller: u32) -> u32 {
    if id == caller { 0 } else { id }
}

fn squashed(id: u32, all: u32) -> u32 {
    if id == 0 { 0 } else { all }
}
