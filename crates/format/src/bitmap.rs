//! Bitmaps of clusters.

/// How many of the first `bits` bits are 0, those of a byte from the lowest on. Bits that `bytes` does not have count as 1.
pub(crate) fn zeros(bytes: &[u8], bits: u64) -> u64 {
    let whole = usize::try_from(bits / 8).unwrap_or(usize::MAX).min(bytes.len());
    let count = |bytes: &[u8]| bytes.iter().map(|byte| u64::from(byte.count_zeros())).sum::<u64>();
    let last = bytes.get(whole).filter(|_| !bits.is_multiple_of(8)).map_or(0, |byte| {
        let unused = 0xFF_u8 << (bits % 8);
        u64::from((byte | unused).count_zeros())
    });
    count(bytes.get(..whole).unwrap_or_default()) + last
}

#[cfg(test)]
mod tests {
    use super::zeros;

    #[test]
    fn the_bits_of_a_volume_are_counted() {
        for (bytes, bits, free) in [
            (&[0b1010_1010, 0][..], 16, 12),
            (&[0b1010_1010, 0], 10, 6),
            (&[0b1010_1010, 0b10], 9, 5),
            (&[0xFF, 0], 8, 0),
            (&[0], 100, 8),
            (&[], 100, 0),
        ] {
            assert_eq!(zeros(bytes, bits), free, "{bytes:?} {bits}");
        }
    }
}
