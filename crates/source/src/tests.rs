//! What SRC names, recognised by its bytes.

use super::*;

fn volume(name: &str) -> FileKind {
    FileKind::Volume(inarch_format::readers().iter().find(|reader| reader.name == name).unwrap())
}

fn parse(path: &Path) -> Result<Source, String> {
    Source::parse(path.as_os_str()).map_err(|error| error.to_string())
}

/// The source that is a file of this kind.
fn file_of(path: PathBuf, kind: FileKind) -> Source {
    Source::File { path, kind, part: Box::default() }
}

#[test]
fn a_source_is_told_by_what_it_is_and_not_by_its_name() {
    let dir = tempfile::tempdir().unwrap();
    let with = |name: &str, offset: usize, magic: &[u8]| {
        let path = dir.path().join(name);
        let mut bytes = vec![1; 70_000];
        bytes[offset..offset + magic.len()].copy_from_slice(magic);
        fs::write(&path, bytes).unwrap();
        path
    };
    let kinds = [
        (257, &b"ustar\0"[..], FileKind::Tar),
        (257, b"ustar  ", FileKind::Tar),
        (0, b"\x1f\x8b\x08", FileKind::CompressedTar),
        (0, b"\x28\xb5\x2f\xfd", FileKind::CompressedTar),
        (0, b"\xfd7zXZ\0", FileKind::CompressedTar),
        (1080, b"\x53\xef", volume("ext4")),
        (1024, b"\xe2\xe1\xf5\xe0", volume("erofs")),
        (0, b"hsqs", volume("squashfs")),
    ];
    for (offset, magic, kind) in kinds {
        let path = with("x.zip", offset, magic);
        assert_eq!(parse(&path).unwrap(), file_of(path, kind));
    }
    let path = dir.path().to_owned();
    assert_eq!(parse(&path).unwrap(), Source::Directory(path));
    assert_eq!(parse(Path::new("-")).unwrap(), Source::StandardInput);

    for (offset, magic, what) in [(0, &b"PK\x03\x04"[..], "ZIP"), (0, b"BZh9", "bzip2")] {
        let error = parse(&with("x.tar", offset, magic)).unwrap_err();
        assert!(error.contains(what), "{error}");
    }
    // Errors in a disk are reported when it is opened. A Btrfs may hold a guest in its subvolumes.
    for (offset, magic) in [(0, &b"QFI\xfb"[..]), (512, b"EFI PART"), (65_600, b"_BHRfS_M")] {
        let path = with("x.tar", offset, magic);
        assert_eq!(parse(&path).unwrap(), Source::Disk { path, part: DiskPart::new(Which::Auto, PathBuf::new()) });
    }
    let error = parse(&with("x.tar", 0, b"\x01\x01")).unwrap_err();
    assert!(error.contains("no known kind; a source is a directory, a tar archive"), "{error}");
}

/// A guest can write the header of an archive to the place of its boot loader.
#[test]
fn a_directory_stays_meant_when_the_format_is_said() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("disk.img");
    let named = || parse(&dir.path().join("disk.img:/etc")).unwrap();
    let within = |source: Source| match source {
        Source::Disk { part, .. } => (true, part.within, part.format),
        Source::File { part, .. } => (false, part.within, None),
        other => panic!("{other:?}"),
    };
    let etc = || PathBuf::from("/etc");
    let mut bytes = vec![1; 70_000];
    bytes[257..263].copy_from_slice(b"ustar\0");
    fs::write(&path, bytes).unwrap();
    assert_eq!(within(named()), (false, etc(), None));
    let needs = DiskNeeds { format: Some(ImageFormat::Raw), ..DiskNeeds::default() };
    let raw = Source::parse_with(dir.path().join("disk.img:/etc").as_os_str(), &needs).unwrap();
    assert_eq!(within(raw), (true, etc(), Some(ImageFormat::Raw)));
    // Zeros in the place of a boot loader make no archive of a disk.
    fs::write(&path, vec![0; 70_000]).unwrap();
    assert_eq!(within(named()), (true, etc(), None));
}

#[test]
fn a_tar_of_before_ustar_is_known_by_its_checksum_and_an_empty_one_by_its_zeros() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("x");
    let mut header = [0; 1024];
    header[..4].copy_from_slice(b"name");
    header[148..156].fill(b' ');
    let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
    header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    fs::write(&path, header).unwrap();
    assert_eq!(parse(&path).unwrap(), file_of(path.clone(), FileKind::Tar));
    header[0] = b'g';
    fs::write(&path, header).unwrap();
    assert!(parse(&path).is_err());
    fs::write(&path, [0; 1024]).unwrap();
    assert_eq!(parse(&path).unwrap(), file_of(path.clone(), FileKind::Tar));
    fs::write(&path, "").unwrap();
    assert_eq!(parse(&path).unwrap(), file_of(path.clone(), FileKind::Tar));
}

#[test]
fn a_volume_of_an_image_is_named_after_a_colon() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("disk.img");
    fs::write(&path, "x").unwrap();
    let within = |which, within: &str| Source::Disk { path: path.clone(), part: DiskPart::new(which, within.into()) };
    let disk = |which| within(which, "");
    let named = |name: &str| parse(&dir.path().join(format!("disk.img:{name}"))).unwrap();
    assert_eq!(named("root"), disk(Which::Named("root".to_owned())));
    assert_eq!(named("LABEL=a:b"), disk(Which::Named("LABEL=a:b".to_owned())));
    assert_eq!(named("auto"), disk(Which::Auto));
    let device = Which::Named("/dev/sda1".to_owned());
    assert_eq!(named("/dev/sda1"), disk(device.clone()));
    assert_eq!(named("/dev/sda1:/home/user"), within(device, "/home/user"));
    assert_eq!(named("/home/user"), within(Which::Auto, "/home/user"));
    assert_eq!(named("/"), within(Which::Auto, "/"));
    for text in ["auto:/dev/x", "/dev/sda1:/home", "/etc", "LABEL=x"] {
        let source = named(text);
        let shown = source.to_string();
        assert_eq!(Source::parse(OsStr::new(&shown)).unwrap(), source, "{shown}");
    }
    // A file that is so called is that file.
    let file = dir.path().join("disk.img:root");
    fs::write(&file, [0; 1024]).unwrap();
    assert_eq!(parse(&file).unwrap(), file_of(file, FileKind::Tar));
    assert!(parse(&dir.path().join("none:root")).unwrap_err().contains("No such file"));
}
