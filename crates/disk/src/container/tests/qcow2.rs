//! QCOW2.

use super::*;

#[test]
fn images_of_every_kind_are_read() {
    let images = Images::new();
    let raw = images.raw("raw");
    for (name, options) in [
        ("v3", ""),
        ("v2", "-o compat=0.10"),
        ("small", "-o cluster_size=512"),
        ("large", "-o cluster_size=2M"),
        ("zlib", "-c"),
        ("zlib-512", "-c -o cluster_size=512"),
        ("zlib-2M", "-c -o cluster_size=2M,compat=0.10"),
        ("zstd", "-c -o compression_type=zstd"),
        ("zstd-2M", "-c -o compression_type=zstd,cluster_size=2M"),
        ("extended", "-o extended_l2=on"),
        ("extended-zstd", "-c -o extended_l2=on,compression_type=zstd,cluster_size=16k"),
        ("preallocated", "-o preallocation=metadata"),
        ("full", "-o preallocation=falloc"),
    ] {
        images.qemu_img(&format!("convert -O qcow2 {options} raw {name}"));
        assert!(images.agrees(name, Container::Qcow2, &[]) == raw, "{name}");
        // Parts of clusters and subclusters, zeros over data, and data over what is compressed.
        let commands = [
            "write -P 9 5M 100k",
            "write -P 8 6200k 4k",
            "write -P 7 100k 1k",
            "write -z 96k 2k",
            "write -P 5 4090k 70k",
        ];
        images.qemu_io(name, "qcow2", &commands);
        if name != "v2" {
            images.qemu_io(name, "qcow2", &["write -z 2M 1M", "write -z -u 3M 256k", "discard 8M 128k"]);
        }
        images.agrees(name, Container::Qcow2, &[]);
    }
}

#[test]
fn snapshots_are_not_seen() {
    let images = Images::new();
    images.raw("raw");
    images.qemu_img("convert -O qcow2 raw image");
    images.qemu_img("snapshot -c before image");
    images.qemu_io("image", "qcow2", &["write -P 9 0 3M"]);
    images.qemu_img("snapshot -c after image");
    let read = images.agrees("image", Container::Qcow2, &[]);
    assert_eq!(read[..3 << 20], vec![9; 3 << 20]);
}

#[test]
fn huge_disks_take_no_time() {
    let images = Images::new();
    images.qemu_img("create -q -f qcow2 image 1P");
    images.qemu_io("image", "qcow2", &["write -P 9 1023T 4k"]);
    let disk = images.open("image", Container::Qcow2, &[]).unwrap();
    assert_eq!(disk.size(), 1 << 50);
    let mut bytes = [1; 8192];
    read_backing(&*disk, 1023 << 40, &mut bytes).unwrap();
    assert!(bytes[..4096] == [9; 4096] && bytes[4096..] == [0; 4096]);
    assert!(disk.lends(0, disk.size()));
}

#[test]
fn chains_are_read_where_they_are_named() {
    let images = Images::new();
    images.raw("base.raw");
    images.qemu_img("create -q -f qcow2 -b base.raw -F raw middle.qcow2");
    images.qemu_io("middle.qcow2", "qcow2", &["write -P 9 5M 100k", "write -P 8 6200k 4k", "write -z 64k 64k"]);
    // Longer than what is below, whose end is within a cluster.
    images.qemu_img("create -q -f qcow2 -o extended_l2=on -b middle.qcow2 -F qcow2 top.qcow2 12M");
    images.qemu_io("top.qcow2", "qcow2", &["write -P 7 300k 3k", "write -z 100k 2k"]);
    images.agrees("middle.qcow2", Container::Qcow2, &["base.raw"]);
    images.agrees("top.qcow2", Container::Qcow2, &["base.raw", "middle.qcow2"]);
    for with in [&[][..], &["middle.qcow2"], &["base.raw"]] {
        let error = images.open("top.qcow2", Container::Qcow2, with).err().unwrap();
        let ContainerError::NotNamed { reference, .. } = &error else { panic!("{error}") };
        let missing = if with == ["middle.qcow2"] { "base.raw" } else { "middle.qcow2" };
        assert_eq!((reference.role, &*reference.name), (Role::Backing, missing.as_bytes()));
        assert!(error.to_string().contains(&format!("backing file '{missing}'")), "{error}");
    }
    // No format in the image, which tools of today do not make: it is recognised.
    images.qemu_img("rebase -u -b /elsewhere/middle.qcow2 -F qcow2 top.qcow2");
    let top = fs::read(images.path("top.qcow2")).unwrap();
    let format = top.windows(4).position(|bytes| bytes == 0xE279_2ACAu32.to_be_bytes()).unwrap();
    patch(&images.path("top.qcow2"), format, &[1; 4]);
    assert!(images.open("top.qcow2", Container::Qcow2, &["middle.qcow2", "base.raw"]).is_ok());
    // One that is not read.
    images.qemu_img("rebase -u -b middle.qcow2 -F qed top.qcow2");
    let error = images.open("top.qcow2", Container::Qcow2, &["middle.qcow2"]).err().unwrap().to_string();
    assert!(error.contains("'qed'"), "{error}");
    // What is said to be raw is not looked into.
    images.qemu_img("rebase -u -b middle.qcow2 -F raw top.qcow2");
    let disk = images.open("top.qcow2", Container::Qcow2, &["middle.qcow2"]).unwrap();
    let mut magic = [0; 4];
    read_backing(&*disk, 0, &mut magic).unwrap();
    assert_eq!(&magic, MAGIC_OF_QCOW2);
}

const MAGIC_OF_QCOW2: &[u8; 4] = b"QFI\xfb";

#[test]
fn a_chain_without_end_ends() {
    let images = Images::new();
    images.qemu_img("create -q -f qcow2 image 1M");
    images.qemu_img("rebase -u -b image -F qcow2 image");
    let file = images.backing("image");
    let mut asked = 0;
    let mut below = |_: &Reference| {
        asked += 1;
        Some(images.backing("image"))
    };
    let opened = open(Parsing::unconfined(), Container::Qcow2, file, &mut below);
    assert!(matches!(opened, Err(ContainerError::TooLong)));
    assert_eq!(asked, MAX_CHAIN);
    // The user names it once.
    let error = images.open("image", Container::Qcow2, &["image"]).err().unwrap();
    assert!(matches!(error, ContainerError::NotNamed { .. }));
}

#[test]
fn data_files_are_read_where_they_are_named() {
    let images = Images::new();
    let raw = images.raw("raw");
    for (name, options) in [
        ("raw-data", "data_file_raw=on"),
        ("data", "data_file_raw=off"),
        ("extended", "data_file_raw=off,extended_l2=on"),
    ] {
        let data = format!("{name}.bin");
        images.qemu_img(&format!("create -q -f qcow2 -o data_file={data},{options} {name} {LENGTH}"));
        images.qemu_img(&format!("convert -n -O qcow2 raw {name}"));
        assert!(images.agrees(name, Container::Qcow2, &[&data]) == raw);
        images.qemu_io(name, "qcow2", &["write -P 9 5M 100k", "write -z 96k 100k"]);
        images.agrees(name, Container::Qcow2, &[&data]);
        let error = images.open(name, Container::Qcow2, &[]).err().unwrap().to_string();
        assert!(error.contains(&format!("data file '{data}'")) && error.contains("--with"), "{error}");
    }
}

#[test]
fn what_cannot_be_read_is_named() {
    let images = Images::new();
    let refused = |name: &str, change: &dyn Fn(&Path), parts: &[&str]| {
        images.qemu_img(&format!("create -q -f qcow2 {name} 1M"));
        change(&images.path(name));
        let error = images.open(name, Container::Qcow2, &[]).err().unwrap().to_string();
        assert!(error.starts_with("qcow2: ") && parts.iter().all(|part| error.contains(part)), "{error}");
    };
    refused("version", &|path| patch(path, 7, &[9]), &["version 9"]);
    refused("encrypted", &|path| patch(path, 35, &[2]), &["encrypted"]);
    refused("feature", &|path| patch(path, 79, &[1 << 7]), &["bit 7"]);
    refused(
        "cut",
        &|path| File::options().write(true).open(path).unwrap().set_len(190_000).unwrap(),
        &["L1 table", "cut off"],
    );
    refused("clusters", &|path| patch(path, 23, &[30]), &["2^30"]);
    refused("method", &|path| patch(path, 104, &[7]), &["method 7"]);
    // A feature that the image has a name for: that of bit 0 is given to bit 9.
    let named = |path: &Path| {
        let bytes = fs::read(path).unwrap();
        let name = bytes.windows(9).position(|bytes| bytes == b"dirty bit").unwrap();
        patch(path, name - 1, &[9]);
        patch(path, 78, &[2]);
    };
    refused("named", &named, &["bit 9, 'dirty bit'"]);
}

#[test]
fn a_cut_image_is_no_zeros() {
    let images = Images::new();
    images.raw("raw");
    images.qemu_img("convert -O qcow2 raw image");
    let file = File::options().write(true).open(images.path("image")).unwrap();
    file.set_len(file.metadata().unwrap().len() - (1 << 20)).unwrap();
    let disk = images.open("image", Container::Qcow2, &[]).unwrap();
    let mut bytes = vec![0; LENGTH as usize];
    let error = read_backing(&*disk, 0, &mut bytes).unwrap_err();
    assert!(error.kind() == io::ErrorKind::InvalidData && error.to_string().contains("cut off"), "{error}");
    assert!(!disk.lends(0, LENGTH));
}
