//! Which directories a program that goes through a tree lists next.
//!
//! 1. A program has listed a directory, and was told of subdirectories in it ([`Walks::told`]).
//! 2. It lists one of them ([`Walks::listed`]): it seems to go through all, in that order. So a few of the next ones are listed
//!    before it comes there; then it takes no request to go through them. There are some more from the beginning where somebody has
//!    just been seen to go through all.
//! 3. Without a request nobody hears how far it is. So one in the middle of them is left out: who lists that, or the one behind
//!    the last, has come so far and is likely to go on, and twice as many are listed ahead of it from there.
//!
//! What nobody comes to see is no more than two directories, eight where somebody has just gone through others, or as many again as
//! somebody has gone through.

use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

use inarch_vfs::NodeId;

use crate::wire::listing::Subdirectory;

/// Directories that are listed ahead of a program of which nothing is known yet.
const FEWEST: usize = 2;

/// In a directory of which nothing is known yet, where somebody has just gone through another one.
const FIRST: usize = 8;

/// Ahead of one that has gone through many.
const MOST: usize = 32;

/// For so long a program that has gone through what was listed ahead is taken to be still at it.
const LASTS: Duration = if cfg!(test) { Duration::from_secs(3600) } else { Duration::from_secs(1) };

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
    /// When it was last seen that a program came as far as was listed ahead.
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
    /// How many were listed ahead the last time.
    ahead: usize,
}

/// Subdirectories, by name, that are to be listed.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Ahead {
    pub directory: NodeId,
    pub names: Vec<Box<[u8]>>,
}

impl Walks {
    /// A program has been told of these subdirectories, in this order, and of none before if it `begins`.
    pub fn told(&mut self, directory: NodeId, begins: bool, subdirectories: Vec<Subdirectory>) {
        let place = self.walks.iter().rposition(|walk| walk.directory == directory);
        let place = match place.filter(|_| !begins) {
            Some(place) => place,
            // An only child is listed by the program itself.
            None if subdirectories.len() < 2 => return,
            None => {
                let (subdirectories, next, left_out, ahead) = (Vec::new(), 0, None, 0);
                self.walks.push_back(Walk { directory, subdirectories, next, left_out, ahead });
                self.walks.len() - 1
            }
        };
        let number = self.first + place as u64;
        let Some(walk) = self.walks.get_mut(place) else { return };
        for subdirectory in subdirectories.into_iter().take(REMEMBERED.saturating_sub(walk.subdirectories.len())) {
            self.places.insert(subdirectory.0, (number, walk.subdirectories.len()));
            walk.subdirectories.push(subdirectory);
            self.count += 1;
        }
        self.forget_the_oldest();
    }

    /// A program lists a directory from its beginning.
    pub fn listed(&mut self, directory: NodeId) -> Option<Ahead> {
        let (number, place) = *self.places.get(&directory)?;
        let is_going = self.seen.is_some_and(|seen| seen.elapsed() < LASTS);
        let walk = self.walks.get_mut(usize::try_from(number.checked_sub(self.first)?).ok()?)?;
        if walk.next > 0 && (walk.left_out == Some(place) || walk.next == place) {
            walk.ahead = (2 * walk.ahead).clamp(FEWEST, MOST);
            self.seen = Some(Instant::now());
        } else if place < walk.next {
            // It is being listed just now, or the kernel has forgotten it.
            return None;
        } else {
            walk.ahead = if walk.next == 0 && is_going { FIRST } else { FEWEST };
        }
        walk.go_ahead(place)
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

impl Walk {
    /// Those that are to be listed ahead of a program that is at this place.
    fn go_ahead(&mut self, place: usize) -> Option<Ahead> {
        let from = self.next.max(place + 1);
        let to = self.subdirectories.len().min(place + 1 + self.ahead);
        let some = self.subdirectories.get(from..to).filter(|some| !some.is_empty())?;
        // Behind the last subdirectory nobody comes.
        let left_out = (to < self.subdirectories.len() && some.len() > 2).then(|| from + some.len() / 2);
        let names = (from..).zip(some).filter(|(place, _)| Some(*place) != left_out);
        let names = names.map(|(_, (_, name))| name.clone()).collect();
        (self.next, self.left_out) = (to, left_out);
        Some(Ahead { directory: self.directory, names })
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
        walks.told(DIRECTORY, true, subdirectories(100..200));
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
        // In the next directory there are some more from the beginning.
        walks.told(NodeId(2), true, subdirectories(300..400));
        assert_eq!(numbers(walks.listed(NodeId(300))), [301, 302, 303, 304, 306, 307, 308]);
        assert_eq!(walks.listed(NodeId(302)), None);
    }

    #[test]
    fn who_looks_here_and_there_is_gone_ahead_of_by_little() {
        let mut walks = Walks::default();
        walks.told(DIRECTORY, true, subdirectories(100..200));
        for number in [101, 110, 120, 150, 190] {
            assert_eq!(numbers(walks.listed(NodeId(number))), [number + 1, number + 2]);
        }
    }

    #[test]
    fn nobody_follows_who_has_only_one_way() {
        let mut walks = Walks::default();
        for number in 100..200 {
            walks.told(NodeId(number), true, subdirectories(number + 1..number + 2));
            assert_eq!(walks.listed(NodeId(number + 1)), None);
        }
        assert!(walks.places.is_empty() && walks.walks.is_empty());
    }

    #[test]
    fn a_directory_that_is_told_of_in_parts_is_one() {
        let mut walks = Walks::default();
        for (part, from) in [10, 12, 14].into_iter().enumerate() {
            walks.told(DIRECTORY, part == 0, subdirectories(from..from + 2));
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
