//! The hash of names in hashed directories (htree, `dir_index`): half MD4 over signed chars (`fs/ext4/hash.c`).

/// Where a name sorts in a hashed directory: by `major`, then by `minor`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct NameHash {
    /// The hash that index blocks hold; its lowest bit is clear.
    pub(crate) major: u32,
    /// Orders names of one `major`.
    pub(crate) minor: u32,
}

/// `EXT4_HTREE_EOF_32BIT`: no name has this hash.
const END: u32 = 0x7FFF_FFFF << 1;

/// Hashes a name (`__ext4fs_dirhash`, `DX_HASH_HALF_MD4`). A seed of zeros stands for MD4's own.
pub(crate) fn half_md4(name: &[u8], seed: &[u32; 4]) -> NameHash {
    let mut state = *seed;
    if state == [0; 4] {
        state = [0x6745_2301, 0xEFCD_AB89, 0x98BA_DCFE, 0x1032_5476];
    }
    let mut rest = name;
    loop {
        transform(&mut state, &pack(rest));
        match rest.get(32..) {
            Some(more) if !more.is_empty() => rest = more,
            _ => break,
        }
    }
    let major = state[1] & !1;
    NameHash { major: if major == END { END - 2 } else { major }, minor: state[2] }
}

/// The first 32 bytes of `name` as eight words, big end first, padded with the remaining length
/// (`str2hashbuf_signed`).
fn pack(name: &[u8]) -> [u32; 8] {
    let length = name.len() as u32;
    let pad = length | length << 8;
    let pad = pad | pad << 16;
    let mut words = [pad; 8];
    for (word, bytes) in words.iter_mut().zip(name.chunks(4)) {
        for byte in bytes {
            *word = (i32::from(*byte as i8) as u32).wrapping_add(*word << 8);
        }
    }
    words
}

/// One block of MD4, cut to three rounds of eight steps (`half_md4_transform`).
fn transform(state: &mut [u32; 4], input: &[u32; 8]) {
    let before = *state;
    round(state, input, [0, 1, 2, 3, 4, 5, 6, 7], [3, 7, 11, 19], 0, |x, y, z| z ^ (x & (y ^ z)));
    let majority = |x: u32, y: u32, z: u32| (x & y).wrapping_add((x ^ y) & z);
    round(state, input, [1, 3, 5, 7, 0, 2, 4, 6], [3, 5, 9, 13], 0x5A82_7999, majority);
    round(state, input, [3, 7, 2, 6, 1, 5, 0, 4], [3, 9, 11, 15], 0x6ED9_EBA1, |x, y, z| x ^ y ^ z);
    for (word, add) in state.iter_mut().zip(before) {
        *word = word.wrapping_add(add);
    }
}

/// Eight steps of a round. Inlined, so that its order, shifts and function are constants.
#[inline(always)]
fn round(
    state: &mut [u32; 4],
    input: &[u32; 8],
    order: [usize; 8],
    shifts: [u32; 4],
    constant: u32,
    mix: impl Fn(u32, u32, u32) -> u32,
) {
    let [mut a, mut b, mut c, mut d] = *state;
    for (step, word) in order.into_iter().enumerate() {
        let sum = a.wrapping_add(mix(b, c, d)).wrapping_add(input[word]).wrapping_add(constant);
        (a, b, c, d) = (d, sum.rotate_left(shifts[step % 4]), b, c);
    }
    *state = [a, b, c, d];
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Made with `debugfs -R "dx_hash -h half_md4 -s 01234567-89ab-cdef-0123-456789abcdef NAME"` of e2fsprogs 1.47.0,
    /// and without `-s` for the second pair.
    const VECTORS: [(&str, [u32; 2], [u32; 2]); 7] = [
        ("a", [0x35dc_0cc4, 0x3f1d_acef], [0xd5fa_7d7a, 0xacb4_8187]),
        ("lost+found", [0x663b_dc72, 0x562e_f5d8], [0x591d_e422, 0x6ffc_56e0]),
        ("entry-0000001", [0x9a4f_ddb6, 0x5ab8_228c], [0x4830_3898, 0xf676_c0d4]),
        ("abcdefghijklmnopqrstuvwxyz012345", [0x5732_34fc, 0x40d0_64fa], [0x1964_3b1a, 0xdde3_a0bf]),
        ("abcdefghijklmnopqrstuvwxyz0123456", [0xf738_b20a, 0x4d9b_7f9a], [0x16ed_9a9c, 0x2fb8_454f]),
        ("na\u{ef}ve", [0x83e5_3248, 0x0fc7_a66b], [0x1b42_012a, 0xfcf9_d17a]),
        ("\u{ff}\u{fe}", [0x862d_a0d6, 0xe285_0315], [0x36ae_d66e, 0x82da_b4a2]),
    ];

    fn hash(name: &[u8], seed: &[u32; 4]) -> [u32; 2] {
        let hash = half_md4(name, seed);
        [hash.major, hash.minor]
    }

    #[test]
    fn names_hash_as_in_e2fsprogs() {
        // The UUID's bytes as little-endian words.
        let seed = [0x6745_2301, 0xefcd_ab89, 0x6745_2301, 0xefcd_ab89];
        for (name, seeded, unseeded) in VECTORS {
            assert_eq!(hash(name.as_bytes(), &seed), seeded, "{name}");
            assert_eq!(hash(name.as_bytes(), &[0; 4]), unseeded, "{name} without a seed");
        }
        assert_eq!(hash(&[b'x'; 255], &seed), [0xac11_f156, 0x5e25_6f42]);
    }
}
