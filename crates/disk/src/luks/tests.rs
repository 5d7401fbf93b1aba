//! Volumes that are hostile or odd. crates/cli/tests/promises/encrypted_disks_are_read.rs has those of cryptsetup and QEMU.

use std::sync::Arc;

use inarch_block::read_backing;
use inarch_confine::Parsing;
use zeroize::Zeroizing;

use super::build::{CRYPT, DATA, first, json, seal, second};
use super::cipher::SectorCipher;
use crate::tests::Bytes;
use crate::{Above, Key, Keys, Kind, Names, Piece, above};

fn keys(passphrase: &[u8]) -> Keys {
    Keys::new(vec![Key { volume: None, bytes: Arc::new(Zeroizing::new(passphrase.to_vec())) }])
}

fn open_with(image: Vec<u8>, keys: &Keys) -> Vec<Above> {
    let piece = Piece { name: "disk".to_owned(), names: Names::default(), backing: Arc::new(Bytes(image)) };
    above(Parsing::unconfined(), &[piece], keys).unwrap().list
}

/// Opens a volume, and reads all of it.
fn opened(image: Vec<u8>) -> Result<Vec<u8>, String> {
    let volumes = open_with(image, &keys(b"secret"));
    let volume = volumes.first().ok_or("it is none")?;
    assert_eq!(volume.kind, Kind::Luks);
    let backing = volume.bytes.clone()?;
    let mut bytes = vec![0; backing.size() as usize];
    read_backing(&*backing, 0, &mut bytes).unwrap();
    // The same in pieces.
    for (at, count) in [(0, 1), (511, 2), (1000, 5000), (bytes.len().saturating_sub(3), 3)] {
        let mut part = vec![0; count.min(bytes.len())];
        if at + part.len() <= bytes.len() {
            read_backing(&*backing, at as u64, &mut part).unwrap();
            assert_eq!(part, bytes[at..at + part.len()]);
        }
    }
    assert!(read_backing(&*backing, bytes.len() as u64, &mut [0]).is_err());
    Ok(bytes)
}

#[test]
fn both_versions_give_the_same_bytes_with_the_key_alone() {
    let plain = opened(first()).unwrap();
    assert_eq!(plain.len(), DATA);
    assert!(plain.chunks(512).all(|sector| sector.iter().any(|byte| *byte != 0)));
    assert_eq!(opened(second(&json(CRYPT))).unwrap(), plain);
    for image in [first(), second(&json(CRYPT))] {
        let of = |passphrase: &[u8]| open_with(image.clone(), &keys(passphrase)).remove(0).bytes.err();
        assert_eq!(of(b"secret\n"), None, "a line break at the end is no part of it");
        assert_eq!(of(b"Secret").unwrap(), "no key that was given opens it");
        let other = Key { volume: Some("2".to_owned()), bytes: Arc::new(Zeroizing::new(b"secret".to_vec())) };
        let locked = open_with(image.clone(), &Keys::new(vec![other])).remove(0);
        assert!(locked.bytes.err().unwrap().contains("no key was given for it"), "the key is for another volume");
        assert_eq!(locked.name, "/dev/mapper/luks-0f2e4a10-9d4b-4f36-8d3c-1f4a1b6f0c11");
    }
    assert!(!format!("{:?}", keys(b"secret")).contains("115"), "a key is not printed");
}

#[test]
fn a_damaged_header_is_replaced_by_its_copy() {
    let image = second(&json(CRYPT));
    let plain = opened(image.clone()).unwrap();
    let mut damaged = image.clone();
    damaged[5000] ^= 1;
    assert_eq!(opened(damaged.clone()).unwrap(), plain);
    damaged[0x4000 + 5000] ^= 1;
    assert_eq!(opened(damaged).unwrap_err(), "both copies of its header are damaged");
    // The newer one counts.
    let mut newer = image.clone();
    newer[0x4000 + 23] = 4;
    newer[0x4000 + 4096] = b'x';
    seal(&mut newer);
    assert!(opened(newer).unwrap_err().contains("cannot be understood"));
}

#[test]
fn segments_follow_each_other() {
    let whole = opened(second(&json(CRYPT))).unwrap();
    let two = r#"{"1":{"type":"linear","offset":"33792","size":"dynamic"},
        "0":{"type":"crypt","offset":"33280","size":"512","iv_tweak":"0","encryption":"aes-xts-plain64","sector_size":512}}"#;
    let bytes = opened(second(&json(two))).unwrap();
    assert_eq!((bytes.len(), &bytes[..512]), (DATA, &whole[..512]));
    assert!(bytes[512..].iter().all(|byte| *byte == 0), "those are not encrypted");
}

#[test]
fn what_is_not_supported_is_named() {
    let with = |from: &str, to: &str| opened(second(&json(CRYPT).replace(from, to)));
    let digest = r#"{"type":"pbkdf2","segments":["0"],"hash":"sha256","iterations":1,"salt":"AAAA","digest":"AAAA"}"#;
    for (from, to, part) in [
        (
            "\"keyslots_size\"",
            "\"requirements\":{\"mandatory\":[\"online-reencrypt-v2\"]},\"keyslots_size\"",
            "online-reencrypt",
        ),
        (
            "\"encryption\":\"aes-xts-plain64\",\"sector",
            "\"encryption\":\"serpent-xts-plain64\",\"sector",
            "serpent-xts-plain64",
        ),
        ("\"sector_size\":512", "\"sector_size\":512,\"integrity\":{}", "integrity"),
        ("\"sector_size\":512", "\"sector_size\":513", "numbers that cannot be"),
        ("\"33280\"", "\"18446744073709551615\"", "beyond the end"),
        ("\"dynamic\"", "\"99999999999\"", "beyond the end"),
        ("\"stripes\":2", "\"stripes\":4294967295", "sizes that cannot be"),
        ("\"offset\":\"32768\"", "\"offset\":\"18446744073709551615\"", "beyond the end"),
        (
            "\"type\":\"pbkdf2\",\"hash\":\"sha256\",\"iterations\":1",
            "\"type\":\"pbkdf2\",\"hash\":\"sha256\",\"iterations\":4294967295",
            "iterations",
        ),
        (
            "\"type\":\"pbkdf2\",\"hash\":\"sha256\",\"iterations\":1",
            "\"type\":\"argon2id\",\"time\":4,\"memory\":4194304,\"cpus\":4",
            "4096 MiB of memory, and at most 1024 MiB",
        ),
        (
            "\"type\":\"pbkdf2\",\"hash\":\"sha256\",\"iterations\":1",
            "\"type\":\"argon2i\",\"time\":4294967295,\"memory\":1024,\"cpus\":4",
            "takes too long",
        ),
        (
            "\"type\":\"pbkdf2\",\"hash\":\"sha256\",\"iterations\":1",
            "\"type\":\"argon2i\",\"time\":1,\"memory\":8,\"cpus\":4294967295",
            "cannot be derived",
        ),
        ("\"type\":\"luks2\"", "\"type\":\"reencrypt\"", "no keyslot"),
        (
            "\"1\"],\"hash\":\"sha256\",\"iterations\":1,",
            "\"1\"],\"hash\":\"sha256\",\"iterations\":500000000,",
            "500000000 iterations, and at most",
        ),
        (
            "\"digests\":{\"0\":",
            &format!("\"digests\":{{{}\"0\":", (1..5).map(|n| format!("\"{n}\":{digest},")).collect::<String>()),
            "more than 4 digests",
        ),
    ] {
        let error = with(from, to).expect_err(part);
        assert!(error.contains(part) && error.lines().count() == 1, "{part}: {error}");
    }
    assert!(opened(second(&"[".repeat(12_000))).is_err(), "it is not deep");
    let mut third = first();
    third[7] = 3;
    assert!(opened(third).unwrap_err().contains("version"));
    let mut apart = first();
    apart[104..108].fill(0);
    assert!(opened(apart).unwrap_err().contains("apart"));
}

/// IEEE Std 1619-2007, annex B, vector 1.
#[test]
fn xts_is_that_of_the_standard() {
    let mut block = [
        0x91, 0x7c, 0xf6, 0x9e, 0xbd, 0x68, 0xb2, 0xec, 0x9b, 0x9f, 0xe9, 0xa3, 0xea, 0xdd, 0xa6, 0x92, 0xcd, 0x43,
        0xd2, 0xf5, 0x95, 0x98, 0xed, 0x85, 0x8c, 0x02, 0xc2, 0x65, 0x2f, 0xbf, 0x92, 0x2e,
    ];
    SectorCipher::new("aes-xts-plain64", &[0; 32]).unwrap().decrypt(&mut block, 512, 0);
    assert_eq!(block, [0; 32]);
}

#[test]
fn any_damage_is_survived() {
    for image in [first(), second(&json(CRYPT))] {
        let is_second = image[7] == 2;
        // Numbers, names, and all of the JSON area.
        let takes_long = |at: &usize| (164..168).contains(at) || (212..216).contains(at);
        let places = (0..600).chain(4096..5200).filter(|at| is_second || (*at < 600 && !takes_long(at)));
        for at in places {
            for bit in [0, 3, 7] {
                let mut damaged = image.clone();
                damaged[at] ^= 1 << bit;
                if is_second {
                    let (copy, second) = damaged.split_at_mut(0x4000);
                    second[4096..0x4000].copy_from_slice(&copy[4096..]);
                    seal(&mut damaged);
                }
                let _ = opened(damaged);
            }
        }
        for length in (0..600).chain((600..image.len()).step_by(997)) {
            let _ = opened(image[..length].to_vec());
        }
    }
}
