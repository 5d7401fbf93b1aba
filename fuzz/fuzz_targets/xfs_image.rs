//! Any bytes as an XFS file system, alone or over parts of one that mkfs.xfs made, of either version, so that they get past the
//! first checks. The checksums of version 5 are made right again.
//!
//! An image that opens must give a valid tree of bounded size. Reading its files may fail, but ends.

#![no_main]

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read};
use std::process::Command;
use std::sync::{Arc, LazyLock};

use arbitrary::Arbitrary;
use inarch_block::{Backing, Cursor, read_content};
use inarch_confine::Parsing;
use inarch_format::{Damage, xfs};
use inarch_fuzz::image::Memory;
use inarch_tree::InodeId;
use libfuzzer_sys::fuzz_target;

const BLOCK: usize = 1024;
const SIZE: u64 = 32 << 20;

#[derive(Arbitrary, Debug)]
enum Input<'a> {
    Changed { new: bool, patches: Vec<Patch<'a>> },
    Raw(&'a [u8]),
}

/// Bytes to be replaced in a block that holds something.
#[derive(Arbitrary, Debug)]
struct Patch<'a> {
    block: u16,
    offset: u16,
    bytes: &'a [u8],
}

type Blocks = BTreeMap<u64, Vec<u8>>;

/// The blocks that are not zeros: those of this input above those of a base.
struct Image {
    blocks: Blocks,
    base: &'static Blocks,
}

impl Backing for Image {
    fn size(&self) -> u64 {
        SIZE
    }

    fn read(&self, offset: u64, count: u64, out: &mut Cursor<'_, '_>) -> io::Result<()> {
        let end = offset.checked_add(count).filter(|end| *end <= SIZE).ok_or(io::ErrorKind::UnexpectedEof)?;
        let mut at = offset;
        while at < end {
            let (block, within) = (at / BLOCK as u64, at as usize % BLOCK);
            let now = (BLOCK - within).min((end - at) as usize);
            match self.blocks.get(&block).or_else(|| self.base.get(&block)) {
                Some(bytes) => out.copy_from(&bytes[within..within + now]),
                None => out.fill_zeros(now as u64),
            }
            at += now as u64;
        }
        Ok(())
    }
}

/// Both versions, with every kind of file that mkfs.xfs makes, and attributes by xfs_db.
static BASES: LazyLock<[Blocks; 2]> = LazyLock::new(|| ["crc=0", "crc=1"].map(base));

fn base(version: &str) -> Blocks {
    let dir = std::env::temp_dir().join(format!("xfs-image-{version}-{}", std::process::id()));
    fs::create_dir_all(&dir).expect("there is room");
    let (image, proto, commands) = (dir.join("image"), dir.join("proto"), dir.join("commands"));
    let names: String = (0..400).map(|i| format!(" a-name-of-some-length-{i} ---600 1 1 /dev/null\n")).collect();
    let text = format!("x\n0 0\nd--755 0 0\nlarge d--700 1 2\n{names}$\nfew d--755 0 0\n a ---600 1 1 /proc/self/exe\n$\nlink l--777 0 0 few/a\n$\n");
    fs::write(&proto, text).expect("there is room");
    File::create(&image).and_then(|file| file.set_len(SIZE)).expect("there is room");
    let mut mkfs = Command::new("/usr/sbin/mkfs.xfs");
    // So it makes small ones, too.
    mkfs.envs([("TEST_DIR", "x"), ("TEST_DEV", "x"), ("QA_CHECK_FS", "x")]);
    let options = ["-q", "-b", "size=1024", "-d", "agcount=2", "-m", version, "-p"];
    assert!(mkfs.args(options).args([&proto, &image]).status().expect("xfsprogs is installed").success());
    let attributes: String = (0..60).map(|i| format!("attr_set -v {} name-{i}\n", 1 + i * 40)).collect();
    fs::write(&commands, format!("inode 64\n{attributes}inode 68\nattr_set -v 5 short\n")).expect("there is room");
    let mut xfs_db = Command::new("/usr/sbin/xfs_db");
    xfs_db.arg("-x").arg(&image).stdin(File::open(&commands).expect("it was just written"));
    let _ = xfs_db.output();
    let (mut file, mut blocks) = (File::open(&image).expect("it was just made"), Blocks::new());
    let mut block = vec![0; BLOCK];
    for number in 0.. {
        if file.read_exact(&mut block).is_err() {
            break;
        }
        if block.iter().any(|byte| *byte != 0) {
            blocks.insert(number, block.clone());
        }
    }
    let _ = fs::remove_dir_all(dir);
    blocks
}

impl Image {
    fn changed(new: bool, patches: &[Patch<'_>]) -> Image {
        let base = &BASES[usize::from(new)];
        let mut image = Image { blocks: Blocks::new(), base };
        for patch in patches {
            let Some((number, bytes)) = base.iter().nth(usize::from(patch.block) % base.len()) else { continue };
            let block = image.blocks.entry(*number).or_insert_with(|| bytes.clone());
            for (to, from) in block.iter_mut().skip(usize::from(patch.offset) % BLOCK).zip(patch.bytes) {
                *to = *from;
            }
        }
        if new {
            image.blocks.values_mut().for_each(|block| seal(block));
        }
        image
    }
}

/// Makes the checksums of a block right.
fn seal(block: &mut [u8]) {
    let (parts, at) = match (&block[..4], &block[8..10]) {
        (b"XFSB", _) => (512, 224),
        ([b'I', b'N', ..], _) => (512, 100),
        (b"XDB3" | b"XDD3", _) => (BLOCK, 4),
        (b"BMA3", _) => (BLOCK, 64),
        (b"XARM" | b"XSLM", _) | (_, [0x3E | 0x3D | 0x3B, 0xBE | 0xF1 | 0xFF | 0xEE]) => (BLOCK, 12),
        _ => return,
    };
    for part in block.chunks_exact_mut(parts) {
        part[at..at + 4].fill(0);
        let crc = crc32c::crc32c(part);
        part[at..at + 4].copy_from_slice(&crc.to_le_bytes());
    }
}

fuzz_target!(|input: Input<'_>| {
    let image: Arc<dyn Backing> = match input {
        Input::Changed { new, patches } => Arc::new(Image::changed(new, &patches)),
        Input::Raw(bytes) => Arc::new(Memory(bytes.to_vec())),
    };
    let size = image.size();
    let Ok(opened) = xfs::open_with(Parsing::unconfined(), image, Damage::Salvaged) else { return };
    // A name takes 7 bytes of a directory at least, and no two directories share bytes.
    assert!(u64::from(opened.tree.entry_count()) <= size / 7);
    let mut buffer = [0; 5000];
    for (id, inode) in opened.tree.inodes().take(50) {
        assert!(id == InodeId::ROOT || opened.tree.lookup(&opened.tree.path(id)) == Some(id));
        for offset in [0, inode.size() / 2, inode.size().saturating_sub(5000)] {
            let _ = read_content(&*opened.content, id, offset, &mut buffer);
        }
    }
});
