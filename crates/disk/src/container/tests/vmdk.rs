//! VMDK.

use super::*;

#[test]
fn sparse_and_compressed_images_are_read() {
    let images = Images::new();
    let raw = images.raw("raw");
    for (name, options) in [
        ("sparse", "-o subformat=monolithicSparse"),
        ("zeros", "-o subformat=monolithicSparse,zeroed_grain=on"),
        ("stream", "-o subformat=streamOptimized"),
    ] {
        images.qemu_img(&format!("convert -O vmdk {options} raw {name}"));
        assert!(images.agrees(name, Container::Vmdk, &[]) == raw, "{name}");
        if name != "stream" {
            images.qemu_io(name, "vmdk", &["write -P 9 5M 100k", "write -P 8 6200k 4k", "write -z 2M 1M"]);
            images.agrees(name, Container::Vmdk, &[]);
        }
    }
}

#[test]
fn descriptors_are_read_with_the_extents_that_are_named() {
    let images = Images::new();
    let raw = images.raw("raw");
    images.qemu_img("convert -O vmdk -o subformat=monolithicFlat raw flat.vmdk");
    assert!(images.agrees("flat.vmdk", Container::Vmdk, &["flat-flat.vmdk"]) == raw);
    images.qemu_img("convert -O vmdk -o subformat=twoGbMaxExtentSparse raw two.vmdk");
    assert!(images.agrees("two.vmdk", Container::Vmdk, &["two-s001.vmdk"]) == raw);
    // Several of each kind.
    images.qemu_img("create -q -f vmdk -o subformat=twoGbMaxExtentSparse many.vmdk 5G");
    images.qemu_io("many.vmdk", "vmdk", &["write -P 9 2047M 2M", "write -P 8 4G 1M"]);
    let disk =
        images.open("many.vmdk", Container::Vmdk, &["many-s001.vmdk", "many-s002.vmdk", "many-s003.vmdk"]).unwrap();
    let mut bytes = vec![1; 4 << 20];
    read_backing(&*disk, 2046 << 20, &mut bytes).unwrap();
    let expected = [vec![0; 1 << 20], vec![9; 2 << 20], vec![0; 1 << 20]].concat();
    assert!(disk.size() == 5 << 30 && bytes == expected);
    assert_eq!(lent_between(&*disk, 2046 << 20, 2050 << 20), 2 << 20);
    let text = format!(
        "# Disk DescriptorFile\nversion=1\nCID=1\nparentCID=ffffffff\ncreateType=\"custom\"\n\
         RW 16 FLAT \"raw\" 8\r\nRDONLY 8 ZERO\nRW {} SPARSE \"two-s001.vmdk\"\n",
        LENGTH / 512
    );
    fs::write(images.path("mixed.vmdk"), text).unwrap();
    let disk = images.open("mixed.vmdk", Container::Vmdk, &["raw", "two-s001.vmdk"]).unwrap();
    let mut bytes = vec![1; disk.size() as usize];
    read_backing(&*disk, 0, &mut bytes).unwrap();
    assert!(bytes == [&raw[4096..12288], &[0; 4096], &raw].concat());
    for (with, missing) in [(&[][..], "raw"), (&["raw"], "two-s001.vmdk")] {
        let error = images.open("mixed.vmdk", Container::Vmdk, with).err().unwrap().to_string();
        assert!(error.contains(&format!("extent '{missing}'")), "{error}");
    }
}

/// Bytes that are lent of a range.
fn lent_between(disk: &dyn Backing, start: u64, end: u64) -> u64 {
    let mut sum = 0;
    let mut take = |_: std::os::fd::BorrowedFd<'_>, part: inarch_block::Lent| {
        assert!(part.offset >= start && part.offset + part.length <= end);
        sum += part.length;
        Ok(())
    };
    disk.lend(start, end - start, &mut take).unwrap();
    sum
}

#[test]
fn differences_are_read_over_the_parent_that_is_named() {
    let images = Images::new();
    images.raw("raw");
    images.qemu_img("convert -O vmdk raw base.vmdk");
    images.qemu_img("create -q -f vmdk -b base.vmdk -F vmdk top.vmdk");
    images.qemu_io("top.vmdk", "vmdk", &["write -P 9 5M 100k", "write -P 8 6200k 4k"]);
    images.agrees("top.vmdk", Container::Vmdk, &["base.vmdk"]);
    let error = images.open("top.vmdk", Container::Vmdk, &[]).err().unwrap().to_string();
    assert!(error.contains("backing file 'base.vmdk'"), "{error}");
    // QEMU gives an image another CID when it is written to.
    images.qemu_io("base.vmdk", "vmdk", &["write -P 1 0 4k"]);
    let error = images.open("top.vmdk", Container::Vmdk, &["base.vmdk"]).err().unwrap().to_string();
    assert!(error.contains("CID"), "{error}");
}

#[test]
fn what_cannot_be_read_is_named() {
    let images = Images::new();
    let refused = |bytes: &[u8], parts: &[&str]| {
        fs::write(images.path("image"), bytes).unwrap();
        let error = images.open("image", Container::Vmdk, &[]).err().unwrap().to_string();
        assert!(error.starts_with("vmdk: ") && parts.iter().all(|part| error.contains(part)), "{error}");
    };
    refused(b"COWD\x01", &["ESX"]);
    refused(b"# Disk DescriptorFile\n", &["no extents"]);
    refused(b"# Disk DescriptorFile\nRW 100 SESPARSE \"x\"\n", &["'SESPARSE'"]);
    refused(b"# Disk DescriptorFile\nRW 99999999999999999 FLAT \"x\"\n", &["makes no sense"]);
    refused(b"# Disk DescriptorFile\nRW 1 FLAT /etc/passwd\n", &["makes no sense"]);
    refused(b"# Disk DescriptorFile\nRW 1 FLAT \"/etc/passwd\"\n", &["'/etc/passwd'", "--with"]);
    refused(b"KDMV", &["header"]);
    // As a transfer as text changes it.
    images.qemu_img("create -q -f vmdk whole 1M");
    let mut bytes = fs::read(images.path("whole")).unwrap();
    bytes[75] = b'\n';
    refused(&bytes, &["line ends"]);
}
