//! [`Ahead`]: decides how many bytes to prefetch.
//!
//! A round trip to a remote takes as long as a megabyte. Files of one directory lie in a row in a pack. For a reader that goes through
//! them, each prefetch is twice as long as the last; a random reader gets none.

/// The most that is fetched ahead, in bytes.
const MOST: u64 = 4 << 20;
/// Files begin at a block's start: so much may lie between two.
const GAP: u64 = 4096;
/// How many readers are told apart.
const READERS: usize = 8;

/// The readers of a pack.
#[derive(Debug, Default)]
pub(super) struct Ahead([Reader; READERS], u64);

/// One that goes through a pack.
#[derive(Clone, Copy, Debug, Default)]
struct Reader {
    /// Where it missed something.
    start: u64,
    /// Where what it got then ends.
    end: u64,
    /// Bytes that were fetched ahead the last time.
    ahead: u64,
    /// When, by the number of misses.
    used: u64,
}

impl Ahead {
    /// Records a miss at `start`, by a read that ends at `end`. Returns how many bytes after that to prefetch.
    pub fn miss(&mut self, start: u64, end: u64) -> u64 {
        let Ahead(readers, misses) = self;
        *misses += 1;
        let follows =
            |reader: &&mut Reader| reader.used > 0 && reader.start < start && start <= reader.end.saturating_add(GAP);
        let follows = readers.iter_mut().find(follows);
        let (reader, ahead) = match follows {
            Some(reader) => {
                let ahead = (reader.ahead * 2).max(end.saturating_sub(start)).min(MOST);
                (Some(reader), ahead)
            }
            None => (readers.iter_mut().min_by_key(|reader| reader.used), 0),
        };
        reader
            .into_iter()
            .for_each(|reader| *reader = Reader { start, end: end.saturating_add(ahead), ahead, used: *misses });
        ahead
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_goes_through_gets_more_and_what_jumps_does_not() {
        let mut ahead = Ahead::default();
        for at in [1 << 30, 1 << 20, 5 << 20, 8192] {
            assert_eq!(ahead.miss(at, at + 4096), 0);
        }
        let (mut at, mut all) = (16384, Vec::new());
        for _ in 0..14 {
            let more = ahead.miss(at, at + 3000);
            all.push(more);
            // The next file begins at a block's start.
            at = (at + 3000 + more).next_multiple_of(4096);
        }
        assert!(all.windows(2).all(|pair| pair[0] <= pair[1]) && all.last() == Some(&MOST), "{all:?}");
    }
}
