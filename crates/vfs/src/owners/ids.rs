//! Maps IDs between clients and the file system below.

use inarch_tree::select::{IdRange, OwnerMap};

/// The IDs outside all ranges.
#[derive(Clone, Copy, Debug)]
enum Others {
    /// They are unchanged.
    Same,
    /// One is shown as another; the rest are unchanged.
    One { below: u32, seen: u32 },
    /// All are shown as one, except 0 if it `spares_root`. What clients create belongs to `maker`.
    All { maker: u32, seen: u32, spares_root: bool },
}

/// A map of user or group IDs, both ways.
#[derive(Clone, Debug)]
pub(super) struct Ids {
    ranges: Vec<IdRange>,
    others: Others,
}

impl Ids {
    /// The user map. If many are shown as one, that one is `maker` below.
    pub fn of_users(map: OwnerMap, ranges: &[IdRange], maker: u32) -> Ids {
        let others = match map {
            OwnerMap::Host => Others::Same,
            OwnerMap::Map { uid, .. } => Others::One { below: uid, seen: 0 },
            OwnerMap::Squash { uid, .. } => Others::All { maker, seen: uid, spares_root: true },
            OwnerMap::Fixed { uid, .. } => Others::All { maker, seen: uid, spares_root: false },
        };
        Ids { ranges: ranges.to_vec(), others }
    }

    /// The group map.
    pub fn of_groups(map: OwnerMap, ranges: &[IdRange], maker: u32) -> Ids {
        let others = match map {
            OwnerMap::Host => Others::Same,
            OwnerMap::Map { gid, .. } => Others::One { below: gid, seen: 0 },
            OwnerMap::Squash { gid, .. } => Others::All { maker, seen: gid, spares_root: true },
            OwnerMap::Fixed { gid, .. } => Others::All { maker, seen: gid, spares_root: false },
        };
        Ids { ranges: ranges.to_vec(), others }
    }

    /// Whether the map changes nothing.
    pub fn is_identity(&self) -> bool {
        let same = |range: &IdRange| {
            let (first, becomes, count) = range.parts();
            first == becomes || count == 0
        };
        let others_same = match self.others {
            Others::Same => true,
            Others::One { below, seen } => below == seen,
            Others::All { .. } => false,
        };
        others_same && self.ranges.iter().all(same)
    }

    /// The ID that is shown for an ID below.
    pub fn seen(&self, id: u32) -> u32 {
        let in_range = self.ranges.iter().find_map(|range| {
            let (first, becomes, count) = range.parts();
            moved(id, first, becomes, count)
        });
        in_range.unwrap_or(match self.others {
            Others::Same => id,
            Others::One { below, seen } => {
                if id == below {
                    seen
                } else {
                    id
                }
            }
            Others::All { spares_root: true, .. } if id == 0 => 0,
            Others::All { seen, .. } => seen,
        })
    }

    /// The ID below that is shown as `id`; `None` if there is none. Of several, the one that a range names, then the
    /// map's.
    pub fn below(&self, id: u32) -> Option<u32> {
        let of_ranges = self.ranges.iter().filter_map(|range| {
            let (first, becomes, count) = range.parts();
            moved(id, becomes, first, count)
        });
        let of_map = match self.others {
            Others::One { below, seen } if id == seen => Some(below),
            Others::All { maker, seen, .. } if id == seen => Some(maker),
            Others::All { spares_root: true, .. } if id == 0 => Some(0),
            Others::All { .. } => None,
            Others::Same | Others::One { .. } => Some(id),
        };
        // An earlier range may contain it too, and show it as another one.
        of_ranges.chain(of_map).find(|below| self.seen(*below) == id)
    }

    /// The owner below of what a client with this ID creates: like [`Ids::below`], but if all are shown as one,
    /// everybody is that one.
    pub fn maker(&self, id: u32) -> Option<u32> {
        self.below(id).or(match self.others {
            Others::All { seen, .. } => self.below(seen),
            Others::Same | Others::One { .. } => None,
        })
    }
}

/// The image of `id` if `count` IDs from `first` are mapped to those from `to`.
fn moved(id: u32, first: u32, to: u32, count: u32) -> Option<u32> {
    let place = id.checked_sub(first).filter(|place| *place < count)?;
    to.checked_add(place)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn users(map: OwnerMap, ranges: &[&str]) -> Ids {
        let ranges: Vec<IdRange> = ranges.iter().map(|range| range.parse().unwrap()).collect();
        Ids::of_users(map, &ranges, 1000)
    }

    #[test]
    fn an_id_that_comes_back_is_the_one_that_went() {
        let maps = [
            users(OwnerMap::Host, &[]),
            users(OwnerMap::Map { uid: 1000, gid: 0 }, &[]),
            users(OwnerMap::Squash { uid: 0, gid: 0 }, &[]),
            users(OwnerMap::Squash { uid: 7, gid: 0 }, &[]),
            users(OwnerMap::Fixed { uid: 5, gid: 0 }, &["100:5:2"]),
            users(OwnerMap::Host, &["100000:0:65536", "0:65536:10", "100000:9:1"]),
        ];
        for ids in &maps {
            for id in (0..70_000).chain(99_990..170_000).chain([u32::MAX - 1]) {
                if let Some(below) = ids.below(id) {
                    assert_eq!((ids.seen(below), ids.maker(id)), (id, Some(below)), "{ids:?}");
                }
            }
        }
    }

    #[test]
    fn every_word_does_what_it_does_to_a_snapshot() {
        let texts = ["host", "squash", "5:6"];
        for map in texts.iter().map(|text| text.parse().unwrap()).chain([OwnerMap::Map { uid: 3, gid: 4 }]) {
            let ranges: Vec<IdRange> = vec!["7:100:2".parse().unwrap()];
            let owners = inarch_tree::select::Owners { map, users: ranges.clone(), groups: ranges.clone() };
            let (users, groups) = (Ids::of_users(map, &ranges, 9), Ids::of_groups(map, &ranges, 9));
            for id in [0, 1, 3, 4, 5, 6, 7, 8, 9, 100, 65_534] {
                assert_eq!((users.seen(id), groups.seen(id)), (owners.uid(id), owners.gid(id)), "{map:?} {id}");
            }
        }
    }

    #[test]
    fn what_would_be_seen_as_another_does_not_go_down() {
        let map = users(OwnerMap::Map { uid: 1000, gid: 0 }, &[]);
        assert_eq!((map.below(0), map.below(1000), map.below(5)), (Some(1000), None, Some(5)));
        assert_eq!((map.maker(0), map.maker(1000)), (Some(1000), None));
        let squash = users(OwnerMap::Squash { uid: 0, gid: 0 }, &[]);
        assert_eq!((squash.below(0), squash.below(5), squash.maker(5)), (Some(1000), None, Some(1000)));
        let other = users(OwnerMap::Squash { uid: 7, gid: 0 }, &[]);
        assert_eq!((other.below(0), other.below(7), other.maker(8)), (Some(0), Some(1000), Some(1000)));
        let ranges = users(OwnerMap::Host, &["100000:0:65536"]);
        assert_eq!(
            (ranges.below(33), ranges.below(100_033), ranges.below(70_000)),
            (Some(100_033), None, Some(70_000))
        );
        // No ID is shown as that one, so nobody can create anything.
        let taken = users(OwnerMap::Fixed { uid: 5, gid: 0 }, &["1000:9:1"]);
        assert_eq!((taken.below(5), taken.maker(5), taken.below(9)), (None, None, Some(1000)));
    }

    #[test]
    fn a_map_that_changes_nothing_is_known() {
        assert!(users(OwnerMap::Host, &[]).is_identity());
        assert!(users(OwnerMap::Map { uid: 0, gid: 9 }, &["5:5:3"]).is_identity());
        assert!(!users(OwnerMap::Squash { uid: 0, gid: 0 }, &[]).is_identity());
        assert!(!users(OwnerMap::Host, &["0:1:1"]).is_identity());
    }
}
