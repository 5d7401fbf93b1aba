//! All compressions yield the same bytes, and leave nothing behind.

use std::io::Cursor;

use inarch_block::read_backing;

use super::*;
use crate::ThisHost;

fn sample() -> Vec<u8> {
    (0..3_000_000u32).flat_map(|i| (i / 7).to_le_bytes()).collect()
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

/// With a checksum, as the program `zstd` writes it.
fn zstd(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = zstd::Encoder::new(Vec::new(), 1).unwrap();
    encoder.include_checksum(true).unwrap();
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

fn xz(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = liblzma::write::XzEncoder::new(Vec::new(), 0);
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

fn unpacked(bytes: &[u8]) -> Result<Vec<u8>, ReadError> {
    let directory = tempfile::tempdir().unwrap();
    let backing = unpack(
        Cursor::new(bytes),
        Path::new("-"),
        &ThisHost::new(directory.path()),
        Damage::Refused,
        &mut Notes::default(),
    )?;
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0, "a file without a name");
    let mut out = vec![0; backing.size() as usize];
    read_backing(&*backing, 0, &mut out).unwrap();
    Ok(out)
}

fn refusal(bytes: &[u8]) -> String {
    unpacked(bytes).expect_err("it cannot be unpacked").to_string()
}

#[test]
fn members_and_frames_are_unpacked_one_after_another() {
    let whole = sample();
    let (front, back) = whole.split_at(whole.len() / 3);
    let skippable = [&[0x50, 0x2a, 0x4d, 0x18, 3, 0, 0, 0, 1, 2, 3][..], &zstd(front)].concat();
    let packed = [
        whole.clone(),
        gzip(&whole),
        [gzip(front), gzip(back)].concat(),
        [zstd(front), zstd(back)].concat(),
        [skippable, zstd(back)].concat(),
        [xz(front), xz(back)].concat(),
    ];
    for (which, bytes) in packed.iter().enumerate() {
        assert!(unpacked(bytes).unwrap() == whole, "{which}");
    }
    assert_eq!(unpacked(b"").unwrap(), b"");
    assert_eq!(unpacked(b"abc").unwrap(), b"abc");
}

#[test]
fn damaged_and_cut_off_files_are_errors() {
    let whole = sample();
    for (name, packed) in [("gzip", gzip(&whole)), ("zstd", zstd(&whole)), ("xz", xz(&whole))] {
        let cut = refusal(&packed[..packed.len() - 5]);
        assert!(cut.contains(name) && cut.contains("cut off"), "{cut}");
        let mut damaged = packed.clone();
        let middle = damaged.len() / 2;
        for byte in &mut damaged[middle..middle + 64] {
            *byte ^= 0x55;
        }
        let damaged = refusal(&damaged);
        assert!(damaged.contains("damaged"), "{name}: {damaged}");
    }
    let other = refusal(b"BZh91AY&SY");
    assert!(other.contains("bzip2"), "{other}");
}

#[test]
fn a_directory_that_is_not_there_is_named() {
    let error = unpack(
        Cursor::new(b"x"),
        Path::new("-"),
        &ThisHost::new(Path::new("/nonexistent/spool")),
        Damage::Refused,
        &mut Notes::default(),
    )
    .err()
    .unwrap()
    .to_string();
    assert!(error.contains("/nonexistent/spool"), "{error}");
}

#[test]
fn an_error_of_the_input_is_its_own() {
    struct Broken;
    impl Read for Broken {
        fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
            Err(io::Error::other("unplugged"))
        }
    }
    let packed = gzip(&sample());
    let input = Cursor::new(packed[..packed.len() / 2].to_owned()).chain(Broken);
    let error =
        unpack(input, Path::new("-"), &ThisHost::new(&std::env::temp_dir()), Damage::Refused, &mut Notes::default())
            .err()
            .unwrap();
    assert!(matches!(error, ReadError::Io { .. }) && error.to_string().contains("unplugged"), "{error}");
}
