//! LZNT1, the compression of files ([MS-XCA], section 2.5).

use super::spec::u16_at;

/// Bytes that a chunk has when it is decompressed; only the last one may have fewer.
const CHUNK: usize = 4096;
/// Bits of a chunk's header: whether it is compressed, and its bytes less one.
const IS_COMPRESSED: u16 = 0x8000;
const LENGTH: u16 = 0x0FFF;

/// Decompresses into `out`; what is not filled becomes zeros. `None` if the input makes no sense.
pub(super) fn decompress(mut input: &[u8], out: &mut [u8]) -> Option<()> {
    for chunk in out.chunks_mut(CHUNK) {
        let header = u16_at(input, 0).unwrap_or(0);
        let filled = match header {
            0 => {
                input = &[];
                0
            }
            _ => {
                let length = usize::from(header & LENGTH) + 1;
                let (own, rest) = input.get(2..)?.split_at_checked(length)?;
                input = rest;
                match header & IS_COMPRESSED {
                    0 => {
                        let own = own.get(..chunk.len().min(own.len()))?;
                        chunk.get_mut(..own.len())?.copy_from_slice(own);
                        own.len()
                    }
                    _ => decompress_chunk(own, chunk)?,
                }
            }
        };
        chunk.get_mut(filled..)?.fill(0);
    }
    Some(())
}

/// Decompresses a chunk; gives the bytes that were filled.
fn decompress_chunk(mut input: &[u8], out: &mut [u8]) -> Option<usize> {
    let mut at = 0;
    while let Some((flags, rest)) = input.split_first() {
        input = rest;
        for bit in 0..8 {
            if input.is_empty() {
                break;
            }
            if flags >> bit & 1 == 0 {
                let (byte, rest) = input.split_first()?;
                *out.get_mut(at)? = *byte;
                (at, input) = (at + 1, rest);
                continue;
            }
            let token = usize::from(u16_at(input, 0)?);
            input = input.get(2..)?;
            // The more bytes precede, the more bits say how far back it is; 4 at least.
            let back_bits = (usize::BITS - at.checked_sub(1)?.leading_zeros()).max(4);
            let length_bits = 16 - back_bits;
            let from = at.checked_sub((token >> length_bits) + 1)?;
            let end = at + (token & ((1 << length_bits) - 1)) + 3;
            if end > out.len() {
                return None;
            }
            // It may overlap what it makes.
            for place in from..from + (end - at) {
                let byte = *out.get(place)?;
                *out.get_mut(at)? = byte;
                at += 1;
            }
        }
    }
    Some(at)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example of [MS-XCA], section 3.3.
    #[test]
    fn the_specifications_example_is_decompressed() {
        const PLAIN: &[u8] = b"F# F# G A A G F# E D D E F# F# E E F# F# G A A G F# E D D E F# E D D E E F# D E F# G F# D E F# G F# E D E \
            A F# F# G A A G F# E D D E F# E D D\0";
        let packed = [
            0x38, 0xb0, 0x88, 0x46, 0x23, 0x20, 0x00, 0x20, 0x47, 0x20, 0x41, 0x00, 0x10, 0xa2, 0x47, 0x01, 0xa0, 0x45,
            0x20, 0x44, 0x00, 0x08, 0x45, 0x01, 0x50, 0x79, 0x00, 0xc0, 0x45, 0x20, 0x05, 0x24, 0x13, 0x88, 0x05, 0xb4,
            0x02, 0x4a, 0x44, 0xef, 0x03, 0x58, 0x02, 0x8c, 0x09, 0x16, 0x01, 0x48, 0x45, 0x00, 0xbe, 0x00, 0x9e, 0x00,
            0x04, 0x01, 0x18, 0x90, 0x00,
        ];
        let mut out = [1; 5000];
        decompress(&packed, &mut out).unwrap();
        assert_eq!(String::from_utf8_lossy(&out[..PLAIN.len()]), String::from_utf8_lossy(PLAIN));
        assert!(out[PLAIN.len()..].iter().all(|byte| *byte == 0));
    }

    #[test]
    fn input_that_makes_no_sense_is_refused() {
        for input in [
            &[0x00, 0xB0][..],                  // no bytes of the chunk
            &[0x02, 0xB0, 1, 0, 0],             // back from the start
            &[0x03, 0xB0, 2, b'a', 0x00, 0x10], // back before the start
            &[0x03, 0xB0, 2, b'a', 0xFF, 0x0F], // beyond the end
            &[0x02, 0xB0, 2, b'a', 0x00],       // half a token
        ] {
            assert!(decompress(input, &mut [0; 4096]).is_none(), "{input:?}");
        }
    }

    #[test]
    fn random_bytes_do_not_panic() {
        let mut state = 1u64;
        for _ in 0..20_000 {
            let bytes: Vec<u8> = (0..40)
                .map(|_| {
                    state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                    (state >> 56) as u8
                })
                .collect();
            let _ = decompress(&[&[37, 0xB0][..], &bytes].concat(), &mut [0; 4096]);
        }
    }
}
