//! VHDX.

use super::*;

#[test]
fn fixed_and_dynamic_images_are_read() {
    let images = Images::new();
    let raw = images.raw("raw");
    for (name, options) in [("dynamic", ""), ("small", "-o block_size=1M"), ("fixed", "-o subformat=fixed")] {
        images.qemu_img(&format!("convert -O vhdx {options} raw {name}"));
        assert!(images.agrees(name, Container::Vhdx, &[]) == raw, "{name}");
        images.qemu_io(name, "vhdx", &["write -P 9 5M 100k", "write -P 8 6200k 4k"]);
        images.agrees(name, Container::Vhdx, &[]);
    }
    // The table has entries that are not of blocks.
    images.qemu_img("create -q -f vhdx -o block_size=1M huge 20G");
    images.qemu_io("huge", "vhdx", &["write -P 9 4095M 2M", "write -P 8 19G 1M"]);
    let disk = images.open("huge", Container::Vhdx, &[]).unwrap();
    let mut bytes = vec![0; 4 << 20];
    read_backing(&*disk, 4094 << 20, &mut bytes).unwrap();
    let expected = [vec![0; 1 << 20], vec![9; 2 << 20], vec![0; 1 << 20]].concat();
    assert!(bytes == expected);
    read_backing(&*disk, 19 << 30, &mut bytes).unwrap();
    assert!(bytes[..1 << 20] == vec![8; 1 << 20] && bytes[1 << 20..] == vec![0; 3 << 20]);
}

/// The checksum of a header or an entry.
pub(super) fn seal(bytes: &mut [u8]) {
    bytes[4..8].fill(0);
    let sum = crc32c::crc32c(bytes);
    bytes[4..8].copy_from_slice(&sum.to_le_bytes());
}

/// An image that was not closed: QEMU has written its log, but not yet the table of blocks. (QEMU empties the log after each
/// write, by a header without the log's identifier, so the test puts it back.)
pub(super) fn unclosed(images: &Images, name: &str) {
    images.qemu_img(&format!("create -q -f vhdx -o block_size=1M {name} 9M"));
    images.qemu_io(name, "vhdx", &["write -P 3 8M 1M"]);
    let before = fs::read(images.path(name)).unwrap();
    images.qemu_io(name, "vhdx", &["write -P 9 5M 100k", "write -P 8 0 1M"]);
    let mut after = fs::read(images.path(name)).unwrap();
    // QEMU makes the log at 1 MiB, and the table of blocks behind it.
    let table = 2 << 20..3 << 20;
    assert_ne!(after[table.clone()], before[table.clone()]);
    after[table.clone()].copy_from_slice(&before[table]);
    // QEMU's two entries have each a log of its own. Here they are of one, and the second continues the first.
    let log = [0xAB; 16];
    for at in [1 << 20, (1 << 20) + 8192] {
        let entry = &mut after[at..at + 8192];
        assert!(entry.starts_with(b"loge") && entry[8..12] == 8192u32.to_le_bytes());
        entry[12..16].fill(0);
        entry[32..48].copy_from_slice(&log);
        seal(entry);
    }
    for at in [64 << 10, 128 << 10] {
        let header = &mut after[at..at + 4096];
        header[48..64].copy_from_slice(&log);
        seal(header);
    }
    fs::write(images.path(name), after).unwrap();
}

#[test]
fn a_log_is_replayed_in_memory() {
    let images = Images::new();
    unclosed(&images, "image");
    let before = fs::read(images.path("image")).unwrap();
    let disk = images.open("image", Container::Vhdx, &[]).unwrap();
    let mut bytes = vec![0; 9 << 20];
    read_backing(&*disk, 0, &mut bytes).unwrap();
    assert!(fs::read(images.path("image")).unwrap() == before);
    drop(disk);
    // QEMU replays it in the file.
    images.qemu_img("check -q -r all image");
    assert!(images.agrees("image", Container::Vhdx, &[]) == bytes);
    assert!(bytes[..1 << 20] == vec![8; 1 << 20] && bytes[5 << 20..(5 << 20) + 102_400] == vec![9; 102_400]);
    assert!(bytes[8 << 20..] == vec![3; 1 << 20]);
}

#[test]
fn a_damaged_log_is_refused() {
    let images = Images::new();
    unclosed(&images, "image");
    let log = (1 << 20)..(2 << 20);
    let mut bytes = fs::read(images.path("image")).unwrap();
    bytes[log].chunks_mut(4096).for_each(|sector| sector[100] ^= 1);
    fs::write(images.path("image"), bytes).unwrap();
    let error = images.open("image", Container::Vhdx, &[]).err().unwrap().to_string();
    assert!(error.contains("not closed") && error.contains("qemu-img check"), "{error}");
}

#[test]
fn one_of_two_headers_and_tables_is_enough() {
    let images = Images::new();
    images.raw("raw");
    images.qemu_img("convert -O vhdx raw image");
    patch(&images.path("image"), (192 << 10) + 40, &[0xEE; 8]);
    assert_eq!(images.open("image", Container::Vhdx, &[]).unwrap().size(), LENGTH);
    patch(&images.path("image"), (256 << 10) + 40, &[0xEE; 8]);
    let error = images.open("image", Container::Vhdx, &[]).err().unwrap().to_string();
    assert!(error.contains("region tables"), "{error}");
}
