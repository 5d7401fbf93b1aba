//! Maps owners in the guest back to owners on the host.

use inarch_tree::select::{IdRange, OwnerMap, Owners};
use serde::{Deserialize, Serialize};

/// The map from an owner in the guest to the owner on the host.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OwnersBack {
    users: IdsBack,
    groups: IdsBack,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
struct IdsBack {
    /// First id in the guest, the host's first, and how many; the first range that holds an id decides.
    ranges: Vec<[u32; 3]>,
    /// What every other id is on the host; the same where there is none.
    others: Option<u32>,
    /// Whether ids outside of the ranges have no id on the host.
    #[serde(default)]
    ranges_only: bool,
}

impl OwnersBack {
    /// The inverse of `owners`. Where that maps many owners to one, the inverse maps it to the caller.
    pub fn new(owners: &Owners) -> OwnersBack {
        let caller = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        let (mut users, mut groups) = (IdsBack::of(&owners.users), IdsBack::of(&owners.groups));
        match owners.map {
            OwnerMap::Host => {}
            OwnerMap::Map { uid, gid } => {
                users.ranges.push([0, uid, 1]);
                groups.ranges.push([0, gid, 1]);
            }
            OwnerMap::Squash { uid, gid } => {
                users.ranges.push([uid, caller.0, 1]);
                groups.ranges.push([gid, caller.1, 1]);
            }
            OwnerMap::Fixed { .. } => (users.others, groups.others) = (Some(caller.0), Some(caller.1)),
        }
        OwnersBack { users, groups }
    }

    /// The host's user for one of the guest, if it has one.
    pub fn uid(&self, uid: u32) -> Option<u32> {
        self.users.back(uid)
    }

    /// The host's group for one of the guest, if it has one.
    pub fn gid(&self, gid: u32) -> Option<u32> {
        self.groups.back(gid)
    }

    /// Maps the named users and groups of a `system.posix_acl_*` value (`include/uapi/linux/posix_acl_xattr.h`) back
    /// to the host's; returns `false` if one of them does not exist there.
    pub fn acl(&self, value: &mut [u8]) -> bool {
        const USER: u16 = 0x02;
        const GROUP: u16 = 0x08;
        let Some((_version, entries)) = value.split_first_chunk_mut::<4>() else { return true };
        let mut all = true;
        for [t0, t1, _, _, id @ ..] in entries.as_chunks_mut::<8>().0 {
            let host = match u16::from_le_bytes([*t0, *t1]) {
                USER => self.uid(u32::from_le_bytes(*id)),
                GROUP => self.gid(u32::from_le_bytes(*id)),
                _ => continue,
            };
            match host {
                Some(host) => *id = host.to_le_bytes(),
                None => all = false,
            }
        }
        all
    }
}

impl IdsBack {
    fn of(ranges: &[IdRange]) -> IdsBack {
        let back = |range: &IdRange| {
            let (first, becomes, count) = range.parts();
            [becomes, first, count]
        };
        IdsBack { ranges: ranges.iter().map(back).collect(), others: None, ranges_only: !ranges.is_empty() }
    }

    fn back(&self, id: u32) -> Option<u32> {
        let found = self.ranges.iter().find_map(|[first, host, count]| {
            let within = id.checked_sub(*first).filter(|within| within < count)?;
            host.checked_add(within)
        });
        found.or(self.others).or((!self.ranges_only).then_some(id))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owners_come_back_as_they_went() {
        let back = |owners: Owners| OwnersBack::new(&owners);
        assert_eq!(back(Owners::default()).uid(7), Some(7));
        let mapped = back(OwnerMap::Map { uid: 1000, gid: 100 }.into());
        assert_eq!((mapped.uid(0), mapped.gid(0), mapped.uid(7)), (Some(1000), Some(100), Some(7)));
        let fixed = back(OwnerMap::Fixed { uid: 5, gid: 6 }.into());
        assert_eq!(fixed.uid(42), Some(rustix::process::geteuid().as_raw()));
        let ranges = Owners { users: vec!["100000:0:65536".parse().unwrap()], ..Owners::default() };
        let ranges = back(ranges);
        assert_eq!((ranges.uid(0), ranges.uid(65_535), ranges.uid(65_536)), (Some(100_000), Some(165_535), None));
        assert_eq!(ranges.gid(3), Some(3));
    }

    #[test]
    fn acls_name_owners_of_the_host() {
        let entry = |tag: u16, id: u32| [&tag.to_le_bytes()[..], &[7, 0], &id.to_le_bytes()].concat();
        let acl = |ids: [u32; 3]| [&[2, 0, 0, 0][..], &entry(1, ids[0]), &entry(2, ids[1]), &entry(8, ids[2])].concat();
        let mut value = acl([u32::MAX, 0, 0]);
        OwnersBack::new(&OwnerMap::Map { uid: 1000, gid: 100 }.into()).acl(&mut value);
        assert_eq!(value, acl([u32::MAX, 1000, 100]));
        let mut torn = vec![2, 0, 0, 0, 2, 0, 7];
        OwnersBack::default().acl(&mut torn);
        assert_eq!(torn, [2, 0, 0, 0, 2, 0, 7]);
    }
}
