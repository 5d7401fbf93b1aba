//! VHD.

use super::*;

#[test]
fn fixed_and_dynamic_images_are_read() {
    let images = Images::new();
    let raw = images.raw("raw");
    for (name, options) in
        [("dynamic", "-o force_size=on"), ("rounded", ""), ("fixed", "-o subformat=fixed,force_size=on")]
    {
        images.qemu_img(&format!("convert -O vpc {options} raw {name}"));
        let read = images.agrees(name, Container::Vhd, &[]);
        assert!(read[..raw.len()] == raw && read[raw.len()..].iter().all(|byte| *byte == 0), "{name}");
        images.qemu_io(name, "vpc", &["write -P 9 5M 100k", "write -P 8 6200k 4k"]);
        images.agrees(name, Container::Vhd, &[]);
    }
}

/// A footer's or header's checksum.
pub(super) fn seal(bytes: &mut [u8], at: usize) {
    bytes[at..at + 4].fill(0);
    let sum = !bytes.iter().map(|byte| u32::from(*byte)).sum::<u32>();
    bytes[at..at + 4].copy_from_slice(&sum.to_be_bytes());
}

/// Makes an image of the differences to `parent` of a dynamic one: the sectors that `is_own` tells are its own. QEMU writes
/// no such images; the fields are those of the specification.
fn differencing(images: &Images, name: &str, parent: &str, parent_id: &[u8], is_own: fn(usize) -> bool) {
    let mut bytes = fs::read(images.path(name)).unwrap();
    let end = bytes.len() - 512;
    for at in [0, end] {
        bytes[at + 63] = 4;
        seal(&mut bytes[at..at + 512], 64);
    }
    let header = &mut bytes[512..1536];
    header[40..56].copy_from_slice(parent_id);
    for (at, unit) in parent.encode_utf16().enumerate() {
        header[64 + 2 * at..66 + 2 * at].copy_from_slice(&unit.to_be_bytes());
    }
    seal(header, 36);
    // The table is behind the header; blocks of 2 MiB have a bitmap of one sector.
    for block in 0..5 {
        let entry: [u8; 4] = bytes[1536 + 4 * block..1540 + 4 * block].try_into().unwrap();
        if entry != [0xFF; 4] {
            let start = u32::from_be_bytes(entry) as usize * 512;
            bytes[start..start + 512].fill(0);
            for sector in (0..4096).filter(|sector| is_own(block * 4096 + sector)) {
                bytes[start + sector / 8] |= 0x80 >> (sector % 8);
            }
        }
    }
    fs::write(images.path(name), bytes).unwrap();
}

#[test]
fn differences_are_read_over_the_parent_that_is_named() {
    let images = Images::new();
    let lower = images.raw("raw");
    images.qemu_img("convert -O vpc -o force_size=on raw parent.vhd");
    let upper: Vec<u8> = lower.iter().map(|byte| byte ^ 0x55).collect();
    fs::write(images.path("upper.raw"), &upper[..8 << 20]).unwrap();
    fs::OpenOptions::new().write(true).open(images.path("upper.raw")).unwrap().set_len(LENGTH).unwrap();
    images.qemu_img("convert -O vpc -o force_size=on upper.raw child.vhd");
    let id = fs::read(images.path("parent.vhd")).unwrap()[68..84].to_vec();
    let is_own = |sector: usize| sector % 7 < 3 || (sector / 100).is_multiple_of(2);
    differencing(&images, "child.vhd", r"C:\disks\parent.vhd", &id, is_own);
    let disk = images.open("child.vhd", Container::Vhd, &["parent.vhd"]).unwrap();
    let mut bytes = vec![0; LENGTH as usize];
    read_backing(&*disk, 0, &mut bytes).unwrap();
    for (sector, found) in bytes.chunks(512).enumerate() {
        let range = sector * 512..sector * 512 + 512;
        let expected = if sector < 16_384 && is_own(sector) { &upper[range] } else { &lower[range] };
        assert!(found == expected, "{sector}");
    }
    assert!(disk.lends(0, LENGTH));
    let error = images.open("child.vhd", Container::Vhd, &[]).err().unwrap().to_string();
    assert!(error.contains(r"'C:\disks\parent.vhd'"), "{error}");
    // Another image of that name.
    images.qemu_img("convert -O vpc -o force_size=on raw parent.vhd");
    let error = images.open("child.vhd", Container::Vhd, &["parent.vhd"]).err().unwrap().to_string();
    assert!(error.contains("another identifier"), "{error}");
}

#[test]
fn a_lost_footer_is_read_from_its_copy() {
    let images = Images::new();
    images.raw("raw");
    images.qemu_img("convert -O vpc -o force_size=on raw image");
    let file = File::options().write(true).open(images.path("image")).unwrap();
    file.set_len(file.metadata().unwrap().len() - 512).unwrap();
    assert_eq!(images.open("image", Container::Vhd, &[]).unwrap().size(), LENGTH);
    patch(&images.path("image"), 50, &[1]);
    let error = images.open("image", Container::Vhd, &[]).err().unwrap().to_string();
    assert!(error.contains("no footer"), "{error}");
}
