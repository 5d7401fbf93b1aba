//! The hash of names in hashed directories: half MD4 over signed chars (`fs/ext4/hash.c`).

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
    type Mix = fn(u32, u32, u32) -> u32;
    const ROUNDS: [(Mix, u32, [usize; 8], [u32; 4]); 3] = [
        (|x, y, z| z ^ (x & (y ^ z)), 0, [0, 1, 2, 3, 4, 5, 6, 7], [3, 7, 11, 19]),
        (|x, y, z| (x & y).wrapping_add((x ^ y) & z), 0x5A82_7999, [1, 3, 5, 7, 0, 2, 4, 6], [3, 5, 9, 13]),
        (|x, y, z| x ^ y ^ z, 0x6ED9_EBA1, [3, 7, 2, 6, 1, 5, 0, 4], [3, 9, 11, 15]),
    ];
    let [mut a, mut b, mut c, mut d] = *state;
    for (mix, constant, order, shifts) in ROUNDS {
        for (step, word) in order.into_iter().enumerate() {
            let sum = a.wrapping_add(mix(b, c, d)).wrapping_add(input[word]).wrapping_add(constant);
            (a, b, c, d) = (d, sum.rotate_left(shifts[step % 4]), b, c);
        }
    }
    for (word, add) in state.iter_mut().zip([a, b, c, d]) {
        *word = word.wrapping_add(add);
    }
}
