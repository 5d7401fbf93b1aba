//! Tests damaged images of every kind: opening and reading them ends, does not panic, and lends only parts of the range asked for.

use std::hint::black_box;

use super::*;

/// Images of every kind.
fn made(images: &Images) -> Vec<(Container, Vec<u8>)> {
    images.raw("raw");
    images.qemu_img("create -q -f qcow2 -b raw -F raw top.qcow2");
    images.qemu_io("top.qcow2", "qcow2", &["write -P 9 1M 300k", "write -z 2M 64k", "write -c -P 4 3M 64k"]);
    images.qemu_img("create -q -f qcow2 -o data_file=data.bin data.qcow2 1M");
    images.qemu_img("convert -O vmdk raw base.vmdk");
    images.qemu_img("create -q -f vmdk -b base.vmdk -F vmdk top.vmdk");
    for (name, options) in [
        ("a.qcow2", "-O qcow2"),
        ("b.qcow2", "-O qcow2 -c -o cluster_size=4k"),
        ("c.qcow2", "-O qcow2 -c -o compression_type=zstd,extended_l2=on,cluster_size=16k"),
        ("d.qcow2", "-O qcow2 -o extended_l2=on"),
        ("a.vdi", "-O vdi"),
        ("a.vhd", "-O vpc"),
        ("b.vhd", "-O vpc -o subformat=fixed"),
        ("a.vhdx", "-O vhdx -o block_size=1M"),
        ("a.vmdk", "-O vmdk"),
        ("b.vmdk", "-O vmdk -o subformat=streamOptimized"),
        ("c.vmdk", "-O vmdk -o subformat=monolithicFlat"),
    ] {
        images.qemu_img(&format!("convert {options} raw {name}"));
    }
    super::vhdx::unclosed(images, "b.vhdx");
    let mut made = Vec::new();
    for entry in fs::read_dir(images.0.path()).unwrap() {
        let path = entry.unwrap().path();
        let kind = path.extension().and_then(OsStr::to_str).and_then(Container::by_name);
        if let Some(kind) = kind.filter(|_| !path.ends_with("c-flat.vmdk")) {
            made.push((kind, fs::read(&path).unwrap()));
        }
    }
    made
}

/// Makes checksums right again, so that damage gets past them.
fn seal(kind: Container, bytes: &mut [u8]) {
    let end = bytes.len();
    match kind {
        Container::Vhd if end > 2048 => {
            super::vhd::seal(&mut bytes[end - 512..], 64);
            super::vhd::seal(&mut bytes[..512], 64);
            super::vhd::seal(&mut bytes[512..1536], 36);
        }
        Container::Vhdx if end > 2 << 20 => {
            for at in [64 << 10, 128 << 10] {
                super::vhdx::seal(&mut bytes[at..at + 4096]);
            }
            for at in [192 << 10, 256 << 10] {
                super::vhdx::seal(&mut bytes[at..at + (64 << 10)]);
            }
            for at in
                (1 << 20..2 << 20).step_by(4096).filter(|at| bytes[*at..].starts_with(b"loge")).collect::<Vec<_>>()
            {
                super::vhdx::seal(&mut bytes[at..at + 8192]);
            }
        }
        _ => {}
    }
}

/// Opens an image and asks for all of it; whether it could be opened.
fn ask(kind: Container, bytes: Vec<u8>, parent: &Arc<dyn Backing>) -> bool {
    let length = bytes.len();
    let file: Arc<dyn Backing> = Arc::new(Bytes(bytes));
    let mut asked = 0;
    let mut below = |_: &Reference| {
        asked += 1;
        (asked < 100).then(|| Arc::clone(parent))
    };
    let _ = recognise(Parsing::unconfined(), &*file);
    let Ok(disk) = open(Parsing::unconfined(), kind, file, &mut below) else { return false };
    let size = disk.size();
    for offset in
        [0, 1, 4095, size / 3, size / 2, size.saturating_sub(70_000), size.saturating_sub(1), size, u64::MAX - 5]
    {
        let mut buffer = vec![0; 70_000.min(length)];
        let _ = black_box(read_backing(&*disk, offset, &mut buffer));
        let count = (16 << 20).min(size.saturating_sub(offset));
        if black_box(disk.lends(offset, count)) {
            let mut last = offset;
            let lent = disk.lend(offset, count, &mut |_, part| {
                assert!(part.offset >= last && part.length > 0 && part.offset + part.length <= offset + count);
                last = part.offset + part.length;
                Ok(())
            });
            // Bytes in memory are not lent.
            let _ = black_box(lent);
        }
        let _ = black_box(disk.lends(offset, u64::MAX));
    }
    true
}

#[test]
fn every_damage_is_survived() {
    let images = Images::new();
    let mut random = Random(1);
    for (kind, image) in made(&images) {
        // An image with a parent asks for one of its kind, or for any bytes.
        let parent = if kind == Container::Vmdk { images.backing("base.vmdk") } else { Arc::new(Bytes(image.clone())) };
        // Where the structures are: what is near a byte that is not content. The first parts have nearly all of them.
        let interesting = [512, 4096, 1 << 18, 3 << 20, image.len()];
        let mut opened = 0;
        for round in 0..400 {
            let mut damaged = image.clone();
            for _ in 0..1 + round % 5 {
                let structures: &[usize] = match kind {
                    // Headers, regions, log, table of blocks, metadata.
                    Container::Vhdx => &[64 << 10, 192 << 10, 1 << 20, 2 << 20, 3 << 20, (3 << 20) + (64 << 10)],
                    _ => &[0, 0, 0, image.len().saturating_sub(2048)],
                };
                let from = structures[random.below(structures.len())];
                let within = interesting[random.below(interesting.len())].min(image.len() - from);
                let at = from + random.below(within);
                let value = [0, 1, 0x7F, 0x80, 0xFF, random.below(256) as u8][random.below(6)];
                let end = (at + 1 + random.below(8)).min(damaged.len());
                damaged[at..end].fill(value);
            }
            if round % 20 == 7 {
                damaged.truncate(random.below(image.len()));
            }
            if round % 4 > 0 {
                seal(kind, &mut damaged);
            }
            opened += usize::from(ask(kind, damaged, &parent));
        }
        assert!(opened > 20 || image.len() < 2000, "{kind}: {opened} of {} bytes", image.len());
    }
}

#[test]
fn any_bytes_are_survived_as_any_kind() {
    let mut random = Random(5);
    for round in 0..500 {
        let mut bytes: Vec<u8> =
            (0..random.below(8192)).map(|_| [0, 0, 0, random.below(256) as u8][random.below(4)]).collect();
        let magics: [(usize, &[u8]); 6] = [
            (0, b"QFI\xfb\0\0\0\x03"),
            (64, b"\x7f\x10\xda\xbe\x01\0\x01\0"),
            (0, b"conectix"),
            (0, b"vhdxfile"),
            (0, b"KDMV\x01\0\0\0"),
            (0, b"# Disk DescriptorFile\n"),
        ];
        let (at, magic) = magics[round % 6];
        if let Some(place) = bytes.get_mut(at..at + magic.len()) {
            place.copy_from_slice(magic);
        }
        for kind in Container::ALL {
            ask(kind, bytes.clone(), &(Arc::new(Bytes(bytes.clone())) as Arc<dyn Backing>));
        }
    }
}
