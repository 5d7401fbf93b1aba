//! Makes small LUKS volumes for tests and fuzzing. Their passphrase is `secret`.
//!
//! Nothing is encrypted here. The keyslot's area has arbitrary bytes: with the passphrase they decrypt to some volume key,
//! and the header has the digest of that key. What the data decrypt to does not matter.

use sha2::{Digest, Sha256};

/// Bytes of a keyslot's area: two stripes of a key of 64 bytes, in one sector.
const AREA: u64 = 512;
/// Bytes of data.
pub const DATA: usize = 16 << 10;
/// PBKDF2 of the key with SHA-256, 32 zeros as salt and one iteration.
const DIGEST: [u8; 32] = [
    98, 82, 199, 228, 8, 151, 70, 51, 65, 128, 14, 70, 215, 56, 203, 99, 44, 90, 123, 46, 191, 27, 197, 134, 105, 202,
    141, 137, 5, 210, 49, 184,
];

/// An area that is no zeros.
fn area() -> Vec<u8> {
    (0..AREA).map(|at| at as u8 ^ 0x5A).collect()
}

fn put(image: &mut [u8], at: usize, bytes: &[u8]) {
    image[at..at + bytes.len()].copy_from_slice(bytes);
}

/// A LUKS1 volume.
pub fn first() -> Vec<u8> {
    let mut image = vec![0; 16 * 512 + DATA];
    put(&mut image, 0, b"LUKS\xBA\xBE\0\x01aes");
    put(&mut image, 40, b"xts-plain64");
    put(&mut image, 72, b"sha256");
    put(&mut image, 104, &16u32.to_be_bytes());
    put(&mut image, 108, &64u32.to_be_bytes());
    put(&mut image, 112, &DIGEST[..20]);
    put(&mut image, 164, &1u32.to_be_bytes());
    put(&mut image, 168, b"0f2e4a10-9d4b-4f36-8d3c-1f4a1b6f0c11");
    put(&mut image, 208, &0x00AC_71F3u32.to_be_bytes());
    put(&mut image, 212, &1u32.to_be_bytes());
    put(&mut image, 248, &8u32.to_be_bytes());
    put(&mut image, 252, &2u32.to_be_bytes());
    put(&mut image, 8 * 512, &area());
    image
}

/// What a LUKS2 header says, with these segments.
pub fn json(segments: &str) -> String {
    let salt = "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=";
    let digest = base64(&DIGEST);
    format!(
        r#"{{"keyslots":{{"0":{{"type":"luks2","key_size":64,"af":{{"type":"luks1","stripes":2,"hash":"sha256"}},
"area":{{"type":"raw","offset":"32768","size":"512","encryption":"aes-xts-plain64","key_size":64}},
"kdf":{{"type":"pbkdf2","hash":"sha256","iterations":1,"salt":"{salt}"}}}}}},
"tokens":{{}},"segments":{segments},
"digests":{{"0":{{"type":"pbkdf2","keyslots":["0"],"segments":["0","1"],"hash":"sha256","iterations":1,"salt":"{salt}","digest":"{digest}"}}}},
"config":{{"json_size":"12288","keyslots_size":"512"}}}}"#
    )
}

/// The usual segment.
pub const CRYPT: &str = r#"{"0":{"type":"crypt","offset":"33280","size":"dynamic","iv_tweak":"0","encryption":"aes-xts-plain64","sector_size":512}}"#;

fn base64(bytes: &[u8]) -> String {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for part in bytes.chunks(3) {
        let number = part.iter().fold(0, |number, byte| number << 8 | u32::from(*byte)) << (8 * (3 - part.len()));
        for digit in 0..=part.len() {
            text.push(char::from(LETTERS[(number >> (18 - 6 * digit)) as usize & 63]));
        }
        (part.len()..3).for_each(|_| text.push('='));
    }
    text
}

/// A LUKS2 volume whose header says `json`.
pub fn second(json: &str) -> Vec<u8> {
    let mut image = vec![0; (32 << 10) + AREA as usize + DATA];
    for (at, magic, sequence) in [(0, b"LUKS\xBA\xBE", 3u64), (0x4000, b"SKUL\xBA\xBE", 3)] {
        put(&mut image, at, magic);
        put(&mut image, at + 6, &[0, 2]);
        put(&mut image, at + 8, &0x4000u64.to_be_bytes());
        put(&mut image, at + 16, &sequence.to_be_bytes());
        put(&mut image, at + 24, b"a label");
        put(&mut image, at + 72, b"sha256");
        put(&mut image, at + 168, b"0f2e4a10-9d4b-4f36-8d3c-1f4a1b6f0c11");
        put(&mut image, at + 256, &(at as u64).to_be_bytes());
        put(&mut image, at + 4096, &json.as_bytes()[..json.len().min(12 << 10)]);
    }
    put(&mut image, 32 << 10, &area());
    seal(&mut image);
    image
}

/// Makes the checksums of both copies of a LUKS2 header right.
pub fn seal(image: &mut [u8]) {
    for copy in [0, 0x4000] {
        let Some(copy) = image.get_mut(copy..copy + 0x4000) else { continue };
        copy[448..512].fill(0);
        let sum = Sha256::digest(&*copy);
        copy[448..480].copy_from_slice(&sum);
    }
}
