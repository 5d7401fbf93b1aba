//! Images that QEMU's tools made, compared with what QEMU reads of them; and damaged ones.

mod hostile;
mod qcow2;
mod vhd;
mod vhdx;
mod vmdk;

use std::ffi::OsStr;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use inarch_block::{Backing, BackingFile, read_backing};
use inarch_confine::Parsing;

use super::*;

/// A directory for images.
struct Images(tempfile::TempDir);

/// The length of the disks that are converted: no multiple of any cluster.
const LENGTH: u64 = (9 << 20) + 512 * 3;

impl Images {
    fn new() -> Images {
        Images(tempfile::tempdir().unwrap())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Runs a tool in the directory.
    fn run(&self, program: &str, words: impl IntoIterator<Item = impl AsRef<OsStr>>) -> String {
        let mut command = Command::new(program);
        let output = command.args(words).current_dir(self.0.path()).output().unwrap();
        assert!(output.status.success(), "{command:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    fn qemu_img(&self, words: &str) -> String {
        self.run("qemu-img", words.split_whitespace())
    }

    /// Has qemu-io do each of these with an image.
    fn qemu_io(&self, image: &str, format: &str, commands: &[&str]) {
        let words = ["-f", format, image].into_iter().chain(commands.iter().flat_map(|command| ["-c", command]));
        self.run("qemu-io", words);
    }

    /// A raw disk: runs of data that compresses and of data that does not, zeros, holes.
    fn raw(&self, name: &str) -> Vec<u8> {
        let mut bytes = vec![0; LENGTH as usize];
        let mut random = Random(7);
        for (block, chunk) in bytes.chunks_mut(48 << 10).enumerate() {
            match block % 5 {
                0 => chunk.fill_with(|| random.below(256) as u8),
                1 | 2 => chunk.iter_mut().enumerate().for_each(|(at, byte)| *byte = (at / 700 + block) as u8),
                _ => {}
            }
        }
        bytes[5 << 20..(7 << 20) + 5000].fill(0);
        fs::write(self.path(name), &bytes).unwrap();
        bytes
    }

    fn backing(&self, name: &str) -> Arc<dyn Backing> {
        let path = self.path(name);
        Arc::new(BackingFile::new(File::open(&path).unwrap(), path).unwrap())
    }

    /// Opens an image with files that the user named.
    fn open(&self, name: &str, kind: Container, with: &[&str]) -> Result<Arc<dyn Backing>, ContainerError> {
        let file = self.backing(name);
        assert_eq!(recognise(Parsing::unconfined(), &*file).unwrap(), Some(kind), "{name}");
        let mut files = NamedFiles::new(with.iter().map(|name| (self.path(name), self.backing(name))).collect());
        let opened = open(Parsing::unconfined(), kind, file, &mut |reference| files.take(reference));
        assert!(opened.is_err() || files.left().next().is_none(), "not all of {with:?} is used");
        opened
    }

    /// Asserts that an image is read as QEMU reads it: size, content, and which bytes lie in which place of the file.
    fn agrees(&self, name: &str, kind: Container, with: &[&str]) -> Vec<u8> {
        self.run("qemu-img", ["convert", "-f", kind.qemu_name(), "-O", "raw", name, "as-qemu-reads.raw"]);
        let expected = fs::read(self.path("as-qemu-reads.raw")).unwrap();
        let disk = self.open(name, kind, with).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(disk.size(), expected.len() as u64, "{name}");
        let mut bytes = vec![1; expected.len()];
        read_backing(&*disk, 0, &mut bytes).unwrap();
        let differs = bytes.iter().zip(&expected).position(|(ours, theirs)| ours != theirs);
        assert_eq!(differs, None, "{name}");
        let mut random = Random(3);
        for _ in 0..200 {
            let start = random.below(expected.len());
            let end = (start + 1 + random.below(200_000)).min(expected.len());
            let mut bytes = vec![1; end - start];
            read_backing(&*disk, start as u64, &mut bytes).unwrap();
            assert!(bytes == expected[start..end], "{name}: {start}..{end}");
        }
        assert!(read_backing(&*disk, expected.len() as u64, &mut [0]).is_err());
        let map = self.run("qemu-img", ["map", "--output=json", "-f", kind.qemu_name(), name]);
        // QEMU does not tell it of VHDX.
        if kind != Container::Vhdx {
            assert_eq!(lent(&*disk), mapped(&map), "{name}");
        }
        expected
    }
}

/// Where a range of a disk is in a file: start, start in the file, length.
type Range = (u64, u64, u64);

fn push(ranges: &mut Vec<Range>, range: Range) {
    match ranges.last_mut() {
        Some((start, at, length)) if *start + *length == range.0 && *at + *length == range.1 => *length += range.2,
        _ => ranges.push(range),
    }
}

/// What a disk lends of what is no compressed cluster.
fn lent(disk: &dyn Backing) -> Vec<Range> {
    let mut ranges = Vec::new();
    let mut offset = 0;
    while offset < disk.size() {
        let count = 512.min(disk.size() - offset);
        let mut take = |_: std::os::fd::BorrowedFd<'_>, part: inarch_block::Lent| {
            push(&mut ranges, (part.offset, part.at, part.length));
            Ok(())
        };
        if disk.lends(offset, count) {
            disk.lend(offset, count, &mut take).unwrap();
        }
        offset += count;
    }
    ranges
}

/// The same of what qemu-img map prints, a line for each range.
fn mapped(map: &str) -> Vec<Range> {
    let number = |line: &str, key: &str| {
        let rest = line.split_once(&format!("\"{key}\": "))?.1;
        rest[..rest.find(|c: char| !c.is_ascii_digit())?].parse::<u64>().ok()
    };
    let mut ranges = Vec::new();
    for line in map.lines().filter(|line| line.contains("\"data\": true")) {
        if let (Some(start), Some(at), Some(length)) =
            (number(line, "start"), number(line, "offset"), number(line, "length"))
        {
            push(&mut ranges, (start, at, length));
        }
    }
    ranges
}

/// Numbers that are the same every time.
struct Random(u64);

impl Random {
    fn below(&mut self, below: usize) -> usize {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) as usize % below
    }
}

/// Bytes in memory.
struct Bytes(Vec<u8>);

impl Backing for Bytes {
    fn size(&self) -> u64 {
        self.0.len() as u64
    }

    fn read(&self, offset: u64, count: u64, out: &mut inarch_block::Cursor<'_, '_>) -> io::Result<()> {
        let end = offset.checked_add(count).ok_or(io::ErrorKind::UnexpectedEof)?;
        out.copy_from(self.0.get(offset as usize..end as usize).ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }
}

/// Changes bytes of a file.
fn patch(path: &Path, at: usize, bytes: &[u8]) {
    let mut file = fs::read(path).unwrap();
    file[at..at + bytes.len()].copy_from_slice(bytes);
    fs::write(path, file).unwrap();
}

#[test]
fn vdi_images_are_read() {
    let images = Images::new();
    let raw = images.raw("raw");
    for (name, options) in [("dynamic", ""), ("fixed", "-o static=on")] {
        images.qemu_img(&format!("convert -O vdi {options} raw {name}"));
        assert!(images.agrees(name, Container::Vdi, &[]) == raw);
        images.qemu_io(name, "vdi", &["write -P 9 5M 100k", "write -P 8 6200k 4k"]);
        images.agrees(name, Container::Vdi, &[]);
    }
    images.qemu_img("create -q -f vdi empty 3T");
    assert_eq!(images.open("empty", Container::Vdi, &[]).unwrap().size(), 3 << 40);
    // A differencing image.
    patch(&images.path("dynamic"), 0x4C, &[4]);
    let error = images.open("dynamic", Container::Vdi, &[]).err().unwrap().to_string();
    assert!(error.contains("vdi: ") && error.contains("differences"), "{error}");
}

#[test]
fn a_raw_disk_is_no_container() {
    for bytes in [vec![], vec![0; 100], vec![0; 4096], b"QFI".to_vec(), b"conectix".repeat(64)] {
        let expected = bytes.starts_with(b"conectix").then_some(Container::Vhd);
        assert_eq!(recognise(Parsing::unconfined(), &Bytes(bytes)).unwrap(), expected);
    }
    assert!(Container::ALL.into_iter().all(|kind| Container::by_name(kind.name()) == Some(kind)));
    assert_eq!((Container::by_name("vpc"), Container::by_name("raw")), (Some(Container::Vhd), None));
}
