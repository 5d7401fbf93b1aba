//! LZO1X, as the kernel's `Documentation/staging/lzo.rst` describes it, in the frames of Btrfs (`fs/btrfs/lzo.c`).

/// Bytes of a length in a frame.
const LENGTH: usize = 4;

/// Decompresses an extent: its whole length, then pieces, each after its own length. A piece decompresses to a sector at
/// most. No length crosses the end of a sector of the extent. Returns how many bytes of `out` it filled.
pub(super) fn decompress(input: &[u8], out: &mut [u8], sector: usize) -> Option<usize> {
    let total = number(input, 0)?;
    let input = input.get(..total)?;
    let (mut at, mut filled) = (LENGTH, 0);
    while at < total && filled < out.len() {
        let length = number(input, at)?;
        at += LENGTH;
        let piece = input.get(at..at.checked_add(length)?)?;
        let room = sector.min(out.len() - filled);
        filled += Piece { input: piece, out: out.get_mut(filled..filled + room)?, filled: 0 }.decompress()?;
        at += length;
        let left = sector - at % sector;
        if left < LENGTH {
            at += left;
        }
    }
    Some(filled)
}

fn number(input: &[u8], at: usize) -> Option<usize> {
    Some(u32::from_le_bytes(*input.get(at..)?.first_chunk()?) as usize)
}

/// A piece being decompressed.
struct Piece<'a> {
    /// What is left of it.
    input: &'a [u8],
    out: &'a mut [u8],
    filled: usize,
}

impl Piece<'_> {
    fn decompress(mut self) -> Option<usize> {
        // Literals that the last instruction copied: 0 to 3, or 4 for a long run.
        let mut state = 0;
        if let Some(run) = self.input.first().and_then(|first| first.checked_sub(17)).filter(|run| *run > 0) {
            self.byte()?;
            self.literals(run.into())?;
            state = run.min(4);
        }
        loop {
            let code = usize::from(self.byte()?);
            let (length, distance, literals) = match code {
                0..16 if state == 0 => {
                    let length = 3 + if code == 0 { self.long(15)? } else { code };
                    self.literals(length)?;
                    state = 4;
                    continue;
                }
                0..16 => {
                    let high = usize::from(self.byte()?) << 2;
                    let (length, nearest) = if state == 4 { (3, 2049) } else { (2, 1) };
                    (length, high + (code >> 2) + nearest, code)
                }
                16..64 => {
                    let mask = if code < 32 { 7 } else { 31 };
                    let length = 2 + if code & mask == 0 { self.long(mask)? } else { code & mask };
                    let word = usize::from(self.byte()?) | usize::from(self.byte()?) << 8;
                    let nearest = if code < 32 { 0x4000 + ((code & 8) << 11) } else { 1 };
                    let distance = nearest + (word >> 2);
                    if distance == 0x4000 && code < 32 {
                        return Some(self.filled);
                    }
                    (length, distance, word)
                }
                _ => ((code >> 5) + 1, (usize::from(self.byte()?) << 3) + (code >> 2 & 7) + 1, code),
            };
            self.repeat(length, distance)?;
            self.literals(literals & 3)?;
            state = (literals & 3) as u8;
        }
    }

    fn byte(&mut self) -> Option<u8> {
        let (first, rest) = self.input.split_first()?;
        self.input = rest;
        Some(*first)
    }

    /// A length beyond what its instruction holds: 255 for each zero, and the byte that follows.
    fn long(&mut self, base: usize) -> Option<usize> {
        let mut length = base;
        loop {
            match self.byte()? {
                0 => length += 255,
                last => return Some(length + usize::from(last)),
            }
        }
    }

    fn literals(&mut self, count: usize) -> Option<()> {
        let (now, later) = self.input.split_at_checked(count)?;
        self.out.get_mut(self.filled..self.filled.checked_add(count)?)?.copy_from_slice(now);
        self.input = later;
        self.filled += count;
        Some(())
    }

    /// Copies from `distance` bytes before; the copy may overlap itself.
    fn repeat(&mut self, length: usize, distance: usize) -> Option<()> {
        let from = self.filled.checked_sub(distance)?;
        let end = self.filled.checked_add(length).filter(|end| *end <= self.out.len())?;
        if distance >= length {
            self.out.copy_within(from..from + length, self.filled);
        } else {
            for at in self.filled..end {
                let byte = *self.out.get(at - distance)?;
                *self.out.get_mut(at)? = byte;
            }
        }
        self.filled = end;
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn framed(pieces: &[&[u8]]) -> Vec<u8> {
        let mut frame = vec![0; LENGTH];
        for piece in pieces {
            frame.extend((piece.len() as u32).to_le_bytes());
            frame.extend_from_slice(piece);
            let left = 4096 - frame.len() % 4096;
            frame.resize(frame.len() + if left < LENGTH { left } else { 0 }, 0);
        }
        let total = (frame.len() as u32).to_le_bytes();
        frame[..LENGTH].copy_from_slice(&total);
        frame
    }

    const END: [u8; 3] = [0x11, 0, 0];

    #[test]
    fn instructions_do_what_the_description_says() {
        let mut out = vec![0; 8192];
        let mut gives = |piece: &[u8], expected: &[u8]| {
            let piece = [piece, &END].concat();
            let filled = decompress(&framed(&[&piece]), &mut out, 4096);
            assert_eq!(filled.map(|filled| out[..filled].to_vec()).as_deref(), Some(expected), "{piece:?}");
        };
        // A first byte above 17: literals.
        gives(&[21, b'a', b'b', b'c', b'd'], b"abcd");
        // A long run of literals: 18 and a byte.
        gives(&[&[0, 1][..], &[b'x'; 19]].concat(), &[b'x'; 19]);
        // Three bytes from a distance of 1, an overlap; then a literal.
        gives(&[21, b'a', b'b', b'c', b'd', 0x20 | 1, 1, 0, b'!'], b"abcdddd!");
        // Length 3 + 1, distance 4, of an instruction of two bytes.
        gives(&[21, b'a', b'b', b'c', b'd', 0x60 | 3 << 2, 0], b"abcdabcd");
        // After one literal: two bytes from near.
        gives(&[18, b'a', 0, 0], b"aaa");
    }

    #[test]
    fn pieces_follow_each_other_and_no_length_lies_across_a_sector() {
        let piece = |byte: u8, count: u8| [&[17 + count][..], &vec![byte; usize::from(count)], &END].concat();
        let mut pieces: Vec<Vec<u8>> = (0..50).map(|byte| piece(byte, 100)).collect();
        pieces.push(piece(99, 7));
        let frame = framed(&pieces.iter().map(Vec::as_slice).collect::<Vec<_>>());
        let mut out = vec![0; 6000];
        assert_eq!(decompress(&frame, &mut out, 4096), Some(5007));
        assert!(out[4900..5000].iter().all(|byte| *byte == 49) && out[5006] == 99);
    }

    #[test]
    fn damaged_data_is_refused_and_never_read_beyond() {
        let mut out = vec![0; 4096];
        for piece in [&[][..], &[21, 1], &[0], &[0, 0, 0], &[18, b'a', 0x60, 200, 0x11, 0, 0], &[0x20, 0, 0, 0]] {
            assert_eq!(decompress(&framed(&[piece]), &mut out, 4096), None, "{piece:?}");
        }
        assert_eq!(decompress(&[0xff; 100], &mut out, 4096), None);
        assert_eq!(decompress(&[9, 0, 0, 0, 200, 0, 0, 0, 1], &mut out, 4096), None);
        // More than a sector.
        let bomb = [&[18, b'a', 0x20][..], &[0; 1000], &[1, 0, 0], &END].concat();
        assert_eq!(decompress(&framed(&[&bomb]), &mut out, 4096), None);
    }
}
