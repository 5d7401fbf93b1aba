//! Which directories a program that goes through a tree lists next.
//!
//! 1. A program has listed a directory, and was told of subdirectories in it ([`Walks::told`]).
//! 2. It lists one of them ([`Walks::listed`]): it seems to go through all, in that order. So a few of the next ones are listed
//!    before it comes there; then it takes no request to go through them.
//! 3. Without a request nobody hears how far it is. So one in the middle of them is left out: who lists that, or the one behind
//!    the last, has come so far and is likely to go on, and twice as many are listed ahead of it from there.
//!
//! What nobody comes to see costs as much as what somebody has been seen to list, at most.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use inarch_vfs::NodeId;

use crate::wire::listing::Subdirectory;

/// Directories that are listed ahead of a program of which nothing is known yet.
const FEWEST: usize = 2;

/// And of one that has gone through many.
const MOST: usize = 32;

/// For so long a program that has gone through what was listed ahead is taken to be still at it.
const LASTS: Duration = Duration::from_secs(1);

/// Directories whose subdirectories are remembered.
const WALKS: usize = 64;

/// Those subdirectories in all.
const REMEMBERED: usize = 16_384;

/// See the module's text.
#[derive(Debug, Default)]
pub(super) struct Walks {
    /// The oldest first.
    walks: VecDeque<Walk>,
    /// The number of the first of them.
    first: u64,
    /// Subdirectories in all of them.
    count: usize,
    /// The walk that a subdirectory belongs to, and its place there.
    places: HashMap<NodeId, (u64, usize)>,
    /// Directories that are listed ahead, and when it was last seen that a program came as far.
    ahead: usize,
    seen: Option<Instant>,
}

/// A directory, and the subdirectories that a program was told of.
#[derive(Debug)]
struct Walk {
    directory: NodeId,
    subdirectories: Vec<Subdirectory>,
    /// Those before this place have been listed, or were left to the program.
    next: usize,
    /// The one among them that was left out.
    left_out: Option<usize>,
}

/// Subdirectories, by name, that are to be listed.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Ahead {
    pub directory: NodeId,
    pub names: Vec<Box<[u8]>>,
}

impl Walks {
    /// A program has been told of these subdirectories, in this order, and of none before if it `begins`.
    pub fn told(&mut self, directory: NodeId, begins: bool, subdirectories: Vec<Subdirectory>) -> Option<Ahead> {
        let place = self.walks.iter().rposition(|walk| walk.directory == directory);
        let place = match place.filter(|_| !begins) {
            Some(place) => place,
            None => {
                // An only child is listed by the program itself.
                if subdirectories.len() < 2 {
                    return None;
                }
                self.walks.push_back(Walk { directory, subdirectories: Vec::new(), next: 0, left_out: None });
                self.walks.len() - 1
            }
        };
        let number = self.first + place as u64;
        let walk = self.walks.get_mut(place)?;
        for subdirectory in subdirectories.into_iter().take(REMEMBERED.saturating_sub(walk.subdirectories.len())) {
            self.places.insert(subdirectory.0, (number, walk.subdirectories.len()));
            walk.subdirectories.push(subdirectory);
            self.count += 1;
        }
        self.forget_the_oldest();
        // Who is known to go through what it lists begins with the first.
        if begins && self.is_going() { self.next(number, 0) } else { None }
    }

    /// A program lists a directory from its beginning.
    pub fn listed(&mut self, directory: NodeId) -> Option<Ahead> {
        let (number, place) = *self.places.get(&directory)?;
        let walk = self.walk(number)?;
        if walk.next > 0 && (walk.left_out == Some(place) || walk.next == place) {
            self.ahead = (2 * self.ahead).clamp(FEWEST, MOST);
            self.seen = Some(Instant::now());
        } else if place < walk.next {
            // It is being listed just now, or the kernel has forgotten it.
            return None;
        } else if !self.is_going() {
            self.ahead = FEWEST;
        }
        self.next(number, place)
    }

    fn walk(&mut self, number: u64) -> Option<&mut Walk> {
        self.walks.get_mut(usize::try_from(number.checked_sub(self.first)?).ok()?)
    }

    fn is_going(&self) -> bool {
        self.seen.is_some_and(|seen| seen.elapsed() < LASTS)
    }

    /// Those that are to be listed ahead of a program that is at this place.
    fn next(&mut self, number: u64, place: usize) -> Option<Ahead> {
        let ahead = self.ahead;
        let walk = self.walk(number)?;
        let from = walk.next.max(place + 1);
        let to = walk.subdirectories.len().min(place + 1 + ahead);
        let some = walk.subdirectories.get(from..to).filter(|some| !some.is_empty())?;
        // Behind the last subdirectory nobody comes.
        let left_out = (to < walk.subdirectories.len() && some.len() > 2).then(|| from + some.len() / 2);
        let names = (from..).zip(some).filter(|(place, _)| Some(*place) != left_out);
        let names = names.map(|(_, (_, name))| name.clone()).collect();
        (walk.next, walk.left_out) = (to, left_out);
        Some(Ahead { directory: walk.directory, names })
    }

    fn forget_the_oldest(&mut self) {
        while (self.walks.len() > WALKS || self.count > REMEMBERED)
            && let Some(walk) = self.walks.pop_front()
        {
            for (node, _) in &walk.subdirectories {
                if self.places.get(node).is_some_and(|(number, _)| *number == self.first) {
                    self.places.remove(node);
                }
            }
            self.count -= walk.subdirectories.len();
            self.first += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DIRECTORY: NodeId = NodeId(1);

    /// Subdirectories with these numbers, which are their names as well.
    fn subdirectories(numbers: std::ops::Range<u64>) -> Vec<Subdirectory> {
        numbers.map(|number| (NodeId(number), number.to_string().as_bytes().into())).collect()
    }

    /// The numbers that are to be listed.
    fn numbers(ahead: Option<Ahead>) -> Vec<u64> {
        let names = ahead.map_or(Vec::new(), |ahead| ahead.names);
        names.iter().map(|name| String::from_utf8_lossy(name).parse().unwrap()).collect()
    }

    #[test]
    fn the_further_a_program_has_come_the_further_it_is_gone_ahead_of() {
        let mut walks = Walks::default();
        assert_eq!(walks.told(DIRECTORY, true, subdirectories(100..200)), None);
        let (mut listed, mut by_program, mut most) = (vec![], vec![], 0);
        for number in 100..200 {
            if !listed.contains(&number) {
                by_program.push(number);
                let ahead = numbers(walks.listed(NodeId(number)));
                most = most.max(ahead.len());
                listed.extend(ahead);
            }
        }
        // Each by one of them only. Twice as many as before each time, and one in the middle left to the program.
        assert_eq!(listed.len() + by_program.len(), 100);
        assert_eq!(by_program, [100, 103, 106, 111, 121, 141, 164, 185]);
        assert!(most < MOST);
        // In the next directory it is not waited for the program.
        let ahead = numbers(walks.told(NodeId(2), true, subdirectories(300..310)));
        assert_eq!(ahead, Vec::from_iter(301..310));
        assert_eq!(walks.listed(NodeId(300)), None);
    }

    #[test]
    fn who_looks_here_and_there_is_gone_ahead_of_by_little() {
        let mut walks = Walks::default();
        walks.told(DIRECTORY, true, subdirectories(100..200));
        for number in [150, 120, 110, 190, 101] {
            assert!(numbers(walks.listed(NodeId(number))).len() <= FEWEST);
        }
    }

    #[test]
    fn nobody_follows_who_has_only_one_way() {
        let mut walks = Walks::default();
        for number in 100..200 {
            assert_eq!(walks.told(NodeId(number), true, subdirectories(number + 1..number + 2)), None);
            assert_eq!(walks.listed(NodeId(number + 1)), None);
        }
        assert!(walks.places.is_empty() && walks.walks.is_empty());
    }

    #[test]
    fn a_directory_that_is_told_of_in_parts_is_one() {
        let mut walks = Walks::default();
        for (part, from) in [10, 12, 14].into_iter().enumerate() {
            assert_eq!(walks.told(DIRECTORY, part == 0, subdirectories(from..from + 2)), None);
        }
        assert_eq!(numbers(walks.listed(NodeId(11))), [12, 13]);
        assert_eq!(numbers(walks.listed(NodeId(14))), [15]);
    }

    #[test]
    fn what_is_remembered_has_a_bound() {
        let mut walks = Walks::default();
        for walk in 1..2000 {
            walks.told(NodeId(walk), true, subdirectories(walk << 32..(walk << 32) + 999));
            assert!(walks.places.len() <= REMEMBERED && walks.walks.len() <= WALKS);
            assert_eq!(walks.places.len(), walks.count);
        }
        // A directory with more than that, told of in parts, is followed as far as that goes.
        for part in 0..100 {
            walks.told(DIRECTORY, part == 0, subdirectories(1000 * part..1000 * (part + 1)));
            assert!(walks.places.len() <= REMEMBERED && walks.count <= REMEMBERED);
        }
        assert!(walks.listed(NodeId(16_000)).is_some());
        assert_eq!(walks.listed(NodeId(99_000)), None);
    }
}
