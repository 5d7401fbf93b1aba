//! Decompresses LZ4 blocks up to a given length.
//!
//! Where files share pieces, a piece may contain more than the file has; in images without zero padding, any bytes
//! may follow it. Decoders that require the block's end refuse both.

/// Matches have at least this many bytes.
const MATCH_MIN: usize = 4;

/// Fills `out` from the start of an LZ4 block (`lz4_Block_format.md` of the LZ4 project); `None` if the block is
/// damaged or holds less.
pub(super) fn decompress(mut input: &[u8], out: &mut [u8]) -> Option<()> {
    let mut filled = 0;
    while filled < out.len() {
        let token = take(&mut input, 1)?.first().copied()?;
        let literals = length(&mut input, usize::from(token >> 4))?.min(out.len() - filled);
        out.get_mut(filled..filled + literals)?.copy_from_slice(take(&mut input, literals)?);
        filled += literals;
        if filled == out.len() {
            break;
        }
        let distance = take(&mut input, 2)?;
        let distance = usize::from(u16::from_le_bytes(distance.try_into().ok()?));
        let count = length(&mut input, usize::from(token & 15))?.checked_add(MATCH_MIN)?.min(out.len() - filled);
        copy_match(out, filled, distance, count)?;
        filled += count;
    }
    Some(())
}

/// Copies `count` bytes to `at` from `distance` before it; the ranges may overlap, which repeats bytes.
fn copy_match(out: &mut [u8], at: usize, distance: usize, count: usize) -> Option<()> {
    let from = at.checked_sub(distance).filter(|_| distance > 0)?;
    let mut done = 0;
    while done < count {
        // What has been copied extends what can be copied at once.
        let now = (distance + done).min(count - done);
        out.copy_within(from..from + now, at + done);
        done += now;
    }
    Some(())
}

fn take<'a>(input: &mut &'a [u8], count: usize) -> Option<&'a [u8]> {
    let (taken, rest) = input.split_at_checked(count)?;
    *input = rest;
    Some(taken)
}

/// A length whose first part is `nibble`; 15 means that bytes to be added follow, up to the first that is not 255.
fn length(input: &mut &[u8], nibble: usize) -> Option<usize> {
    let mut length = nibble;
    if nibble == 15 {
        loop {
            let byte = take(input, 1)?.first().copied()?;
            length = length.checked_add(byte.into())?;
            if byte != 255 {
                break;
            }
        }
    }
    Some(length)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn content(seed: u32) -> Vec<u8> {
        let mut state = seed;
        let mut next = move || {
            state = state.wrapping_mul(1_103_515_245).wrapping_add(12_345);
            state >> 16
        };
        let mut bytes: Vec<u8> = Vec::new();
        while bytes.len() < 100_000 {
            let length = next() as usize % 400;
            if next() % 3 == 0 || bytes.len() < 1000 {
                bytes.extend((0..length).map(|_| next() as u8));
            } else {
                let from = bytes.len() - 1 - next() as usize % 900;
                (0..length).for_each(|i| bytes.push(bytes[from + i % (bytes.len() - from)]));
            }
        }
        bytes
    }

    #[test]
    fn any_prefix_of_a_block_comes_out() {
        for seed in 0..5 {
            let content = content(seed);
            let mut packed = lz4_flex::block::compress(&content);
            packed.extend([0xAA; 100]);
            for length in [0, 1, 17, 5000, 99_999, content.len()] {
                let mut out = vec![0; length];
                decompress(&packed, &mut out).unwrap();
                assert!(out == content[..length]);
            }
        }
    }

    #[test]
    fn damaged_blocks_are_refused_or_give_something() {
        let content = content(9);
        let packed = lz4_flex::block::compress(&content[..5000]);
        let mut out = vec![0; 5000];
        for cut in 0..packed.len() {
            assert_eq!(decompress(&packed[..cut], &mut out), None, "{cut}");
        }
        for at in 0..packed.len() {
            let mut packed = packed.clone();
            packed[at] ^= 0xFF;
            let _ = decompress(&packed, &mut out);
        }
        assert_eq!(decompress(&[0x10, 1, 0, 0], &mut out), None);
        assert_eq!(decompress(&[0x10, 1, 2, 0], &mut out), None);
    }
}
