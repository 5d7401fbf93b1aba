//! Marvin32, the checksum of log entries.

/// The seed for logs: "Log entries", note 3, of the specification. Its bytes are written there from the highest.
const SEED: u64 = 0x82EF_4D88_7A4E_55C5;

/// The checksum of bytes in a log entry.
pub fn checksum(bytes: &[u8]) -> u64 {
    seeded(SEED, bytes)
}

pub(crate) fn seeded(seed: u64, bytes: &[u8]) -> u64 {
    // The low and the high half.
    let (mut low, mut high) = (seed as u32, (seed >> 32) as u32);
    let (words, rest) = bytes.as_chunks::<4>();
    for word in words {
        low = low.wrapping_add(u32::from_le_bytes(*word));
        (low, high) = mix(low, high);
    }
    // Up to three bytes, ended by 0x80.
    let last = rest.iter().rev().fold(0x80, |last, byte| last << 8 | u32::from(*byte));
    (low, high) = mix(low.wrapping_add(last), high);
    (low, high) = mix(low, high);
    u64::from(high) << 32 | u64::from(low)
}

fn mix(low: u32, high: u32) -> (u32, u32) {
    let high = high ^ low;
    let low = low.rotate_left(20).wrapping_add(high);
    let high = high.rotate_left(9) ^ low;
    let low = low.rotate_left(27).wrapping_add(high);
    (low, high.rotate_left(19))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Vectors of the tests of .NET's System.Private.CoreLib (Marvin).
    #[test]
    fn known_sums() {
        let seed = 0x004F_B61A_001B_DBCC;
        assert_eq!(seeded(seed, &[]), 0x30ED_35C1_00CD_3C7D);
        assert_eq!(seeded(seed, &[0xAF]), 0x48E7_3FC7_7D75_DDC1);
        assert_eq!(seeded(seed, &[0xE7, 0x0F]), 0xB5F6_E1FC_485D_BFF8);
        assert_eq!(seeded(seed, &[0x37, 0xF4, 0x95]), 0xF0B0_7C78_9B8C_F7E8);
        assert_eq!(seeded(seed, &[0x86, 0x42, 0xDC, 0x59]), 0x7008_F2E8_7E9C_F556);
        assert_eq!(seeded(seed, &[0xAB, 0x42, 0x7E, 0xA8, 0xD1, 0x0F, 0xC7]), 0xE118_47E4_F067_8C41);
    }
}
