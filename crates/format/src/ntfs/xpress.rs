//! XPRESS with Huffman codes ([MS-XCA], section 2.2), by which Windows's system compression stores chunks.

use super::spec::{array, u16_at, u32_at};

/// Symbols: bytes, and matches by their length and the bits of their distance.
const SYMBOLS: usize = 512;
/// Bytes of the lengths of their codes, 4 bits each.
const TABLE: usize = SYMBOLS / 2;
const MAX_LENGTH: usize = 15;
const LITERALS: usize = 256;

/// Decompresses exactly as many bytes as `out` has. `None` if the input makes no sense.
pub(super) fn decompress(input: &[u8], out: &mut [u8]) -> Option<()> {
    let codes = Codes::new(array(input, 0)?)?;
    let mut bits = Bits::new(input.get(TABLE..)?);
    let mut at = 0;
    while at < out.len() {
        let symbol = codes.next(&mut bits)?;
        let Some(matched) = symbol.checked_sub(LITERALS) else {
            *out.get_mut(at)? = symbol as u8;
            at += 1;
            continue;
        };
        let mut length = matched & 15;
        if length == 15 {
            length = match bits.byte()? {
                255 => match bits.word()? {
                    0 => usize::try_from(bits.long()?).ok()?,
                    more => usize::from(more),
                },
                more => usize::from(more) + 15,
            };
            if length < 15 {
                return None;
            }
        }
        let distance_bits = matched as u32 >> 4;
        let distance = (1usize << distance_bits) + bits.take(distance_bits) as usize;
        let from = at.checked_sub(distance)?;
        let end = at.checked_add(length)?.checked_add(3).filter(|end| *end <= out.len())?;
        // It may overlap what it makes.
        for place in from..from + (end - at) {
            let byte = *out.get(place)?;
            *out.get_mut(at)? = byte;
            at += 1;
        }
    }
    Some(())
}

/// Canonical Huffman codes.
struct Codes {
    /// For each length: the number that follows the last code of this length, and what to add to a code of this length to get
    /// its place among the symbols.
    ends: [(u32, usize); MAX_LENGTH + 1],
    /// Ordered by their codes.
    symbols: Vec<u16>,
}

impl Codes {
    fn new(table: [u8; TABLE]) -> Option<Codes> {
        let length =
            |symbol: usize| table.get(symbol / 2).map_or(0, |pair| usize::from(pair >> (4 * (symbol % 2)) & 15));
        let mut symbols: Vec<u16> = Vec::with_capacity(SYMBOLS);
        let mut ends = [(0u32, 0usize); MAX_LENGTH + 1];
        let mut code = 0u32;
        for bits in 1..=MAX_LENGTH {
            code <<= 1;
            let first = (symbols.len(), code);
            symbols.extend((0..SYMBOLS).filter(|symbol| length(*symbol) == bits).map(|symbol| symbol as u16));
            code += (symbols.len() - first.0) as u32;
            *ends.get_mut(bits)? = (code, first.0.wrapping_sub(first.1 as usize));
        }
        // More codes than bits can tell apart are an error; fewer are not met in a sound chunk.
        (code <= 1 << MAX_LENGTH && !symbols.is_empty()).then_some(Codes { ends, symbols })
    }

    /// The symbol of the next code.
    fn next(&self, bits: &mut Bits<'_>) -> Option<usize> {
        let ahead = bits.peek(MAX_LENGTH as u32);
        for (length, (end, add)) in self.ends.iter().enumerate().skip(1) {
            let code = ahead >> (MAX_LENGTH - length);
            if code < *end {
                bits.take(length as u32);
                let place = (code as usize).wrapping_add(*add);
                return self.symbols.get(place).map(|symbol| usize::from(*symbol));
            }
        }
        None
    }
}

/// Bits in words of 16, the highest first; bytes come from behind the words that were read ahead.
struct Bits<'a> {
    input: &'a [u8],
    at: usize,
    ahead: u32,
    /// Bits of `ahead` beyond 16.
    more: i32,
}

impl<'a> Bits<'a> {
    fn new(input: &'a [u8]) -> Bits<'a> {
        let word = |at| u32::from(u16_at(input, at).unwrap_or(0));
        Bits { input, at: 4, ahead: word(0) << 16 | word(2), more: 16 }
    }

    fn peek(&self, count: u32) -> u32 {
        self.ahead >> (32 - count)
    }

    /// The next 0 to 15 bits. Behind the end are zeros.
    fn take(&mut self, count: u32) -> u32 {
        if count == 0 {
            return 0;
        }
        let taken = self.peek(count);
        self.ahead <<= count;
        self.more -= count as i32;
        if self.more < 0 {
            let word = u32::from(u16_at(self.input, self.at).unwrap_or(0));
            self.ahead |= word << self.more.unsigned_abs();
            self.more += 16;
            self.at += 2;
        }
        taken
    }

    fn byte(&mut self) -> Option<u8> {
        let byte = *self.input.get(self.at)?;
        self.at += 1;
        Some(byte)
    }

    fn word(&mut self) -> Option<u16> {
        let word = u16_at(self.input, self.at)?;
        self.at += 2;
        Some(word)
    }

    fn long(&mut self) -> Option<u32> {
        let long = u32_at(self.input, self.at)?;
        self.at += 4;
        Some(long)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn random_bytes_do_not_panic() {
        let mut state = 1u64;
        let mut random = || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 56) as u8
        };
        // Codes of 9 bits for all symbols, and any codes.
        for round in 0..2000 {
            let table: Vec<u8> = (0..TABLE).map(|_| if round % 4 == 0 { random() } else { 0x99 }).collect();
            let bytes: Vec<u8> = (0..300).map(|_| random()).collect();
            let _ = decompress(&[table, bytes].concat(), &mut [0; 4096]);
        }
        assert!(decompress(&[], &mut [0; 10]).is_none());
        assert!(decompress(&[0; 300], &mut [0; 10]).is_none());
    }
}
