//! Lists of runs ("mapping pairs"): where the clusters of a value are.

use inarch_volume::VolumeError;

use super::damaged;
use super::record::Mapping;

/// Successive clusters of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Run {
    /// The first one's number in the value.
    pub(super) first: u64,
    pub(super) count: u64,
    /// Where they are in the volume; `None` for a hole.
    pub(super) place: Option<u64>,
}

impl Run {
    /// The first cluster behind it.
    pub(super) fn end(&self) -> u64 {
        self.first + self.count
    }
}

/// Calls `take` with the runs of a mapping in order, each checked to be within the volume's `clusters`, until it returns false.
/// All of them together are exactly the mapping's clusters.
pub(super) fn each_run(
    mapping: &Mapping<'_>,
    clusters: u64,
    take: &mut dyn FnMut(Run) -> Result<bool, VolumeError>,
) -> Result<(), VolumeError> {
    let mut rest = mapping.pairs;
    let (mut first, mut place) = (mapping.first, 0i64);
    loop {
        let [header, more @ ..] = rest else { return Err(damaged("its list of runs has no end")) };
        if *header == 0 {
            break;
        }
        let (count_bytes, place_bytes) = (usize::from(header & 15), usize::from(header >> 4));
        let cut = || damaged("its list of runs is cut off");
        let (count, more) = more.split_at_checked(count_bytes).ok_or_else(cut)?;
        let (delta, more) = more.split_at_checked(place_bytes).ok_or_else(cut)?;
        let wrong = || damaged(format!("its run of clusters from {first} on is out of range"));
        let count = number(count).and_then(|count| u64::try_from(count).ok()).filter(|count| *count > 0);
        let count = count.ok_or_else(wrong)?;
        if first.checked_add(count).is_none_or(|end| end > mapping.end) {
            return Err(wrong());
        }
        let found = match delta {
            // A hole.
            [] => None,
            delta => {
                place = number(delta).and_then(|delta| place.checked_add(delta)).ok_or_else(wrong)?;
                let start = u64::try_from(place).map_err(|_| wrong())?;
                if start.checked_add(count).is_none_or(|end| end > clusters) {
                    return Err(wrong());
                }
                Some(start)
            }
        };
        let run = Run { first, count, place: found };
        if !take(run)? {
            return Ok(());
        }
        (first, rest) = (run.end(), more);
    }
    match first == mapping.end {
        true => Ok(()),
        false => Err(damaged(format!("its runs end at cluster {first} of {}", mapping.end))),
    }
}

/// A number with a sign, of up to 8 bytes.
fn number(bytes: &[u8]) -> Option<i64> {
    let negative = bytes.last()? & 0x80 != 0;
    let mut all = [if negative { 0xFF } else { 0 }; 8];
    all.get_mut(..bytes.len())?.copy_from_slice(bytes);
    Some(i64::from_le_bytes(all))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn runs(pairs: &[u8], end: u64) -> Result<Vec<Run>, VolumeError> {
        let mapping = Mapping { first: 0, end, unit_bits: 0, allocated: 0, stored: 0, size: 0, initialized: 0, pairs };
        let mut found = Vec::new();
        each_run(&mapping, 0x10000, &mut |run| {
            found.push(run);
            Ok(true)
        })?;
        Ok(found)
    }

    #[test]
    fn runs_are_relative_and_holes_have_no_place() {
        // 0x18 clusters at 0x5634; a hole of 0x20; 8 clusters 0x134 before the first.
        let pairs = b"\x21\x18\x34\x56\x01\x20\x21\x08\xCC\xFE\0";
        let expected = [(0, 0x18, Some(0x5634)), (0x18, 0x20, None), (0x38, 8, Some(0x5500))];
        let expected = expected.map(|(first, count, place)| Run { first, count, place });
        assert_eq!(runs(pairs, 0x40).unwrap(), expected);
    }

    #[test]
    fn runs_out_of_range_are_refused() {
        for (pairs, end) in [
            (&b""[..], 0),                                          // no end
            (b"\x21\x18\x34", 0x18),                                // cut off
            (b"\x11\x18\x34\0", 0x19),                              // too few
            (b"\x11\x18\x34\0", 0x17),                              // too many
            (b"\x11\x00\x34\0", 0),                                 // empty
            (b"\x11\x88\x34\0", 0x88),                              // a negative count
            (b"\x11\x18\x84\0", 0x18),                              // before the volume
            (b"\x31\x18\0\0\x01\0", 0x18),                          // behind it
            (b"\x10\x00\0", 0),                                     // no count
            (b"\x19\x01\x01\x01\x01\x01\x01\x01\x01\x01\x01\0", 0), // nine bytes
        ] {
            assert!(matches!(runs(pairs, end), Err(VolumeError::Damaged(_))), "{pairs:?}");
        }
    }
}
