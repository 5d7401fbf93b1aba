//! Any image of ext2, ext3 or ext4 is opened or refused, and its content is read, in bounded time and memory.
//!
//! An input is a file system of our own planner, with bytes replaced and a log written into its journal; or the bytes of an
//! image themselves. Checksums are not verified, so that every change reaches the parser behind them.

#![no_main]

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, LazyLock};

use arbitrary::Arbitrary;
use inarch_block::{BLOCK_SIZE, Backing, Cursor, read_content};
use inarch_confine::Parsing;
use inarch_format::Damage;
use inarch_format::ext4::{LostAndFound, Options, ReadOptions, open_image, plan};
use inarch_fuzz::image::{metadata, replace};
use inarch_tree::{Attributes, Builder, DataRange, FileType, InodeId, Tree, Xattr};
use libfuzzer_sys::fuzz_target;

#[derive(Arbitrary, Debug)]
enum Input<'a> {
    Changed { patches: Vec<Patch<'a>>, log: Option<Log<'a>> },
    Raw(&'a [u8]),
}

/// Bytes to be replaced in a block that holds something.
#[derive(Arbitrary, Debug)]
struct Patch<'a> {
    block: u16,
    offset: u16,
    bytes: &'a [u8],
}

#[derive(Arbitrary, Debug)]
struct Log<'a> {
    compat: u8,
    incompat: u8,
    start: u8,
    blocks: Vec<LogBlock<'a>>,
}

#[derive(Arbitrary, Debug)]
enum LogBlock<'a> {
    Descriptor { tags: &'a [u8] },
    Revoke { length: u32, records: &'a [u8] },
    Commit,
    Data { block: u16 },
    Raw { bytes: &'a [u8] },
}

type Blocks = BTreeMap<u64, Vec<u8>>;

/// The blocks that are not zeros: those of this input above those of [`BASE`].
struct Image {
    blocks: Blocks,
    base: &'static Blocks,
    size: u64,
}

impl Backing for Image {
    fn size(&self) -> u64 {
        self.size
    }

    fn read(&self, offset: u64, count: u64, out: &mut Cursor<'_, '_>) -> io::Result<()> {
        let end = offset.checked_add(count).filter(|end| *end <= self.size).ok_or(io::ErrorKind::UnexpectedEof)?;
        let mut at = offset;
        while at < end {
            let (block, within) = (at / BLOCK_SIZE as u64, at as usize % BLOCK_SIZE);
            let now = (BLOCK_SIZE - within).min((end - at) as usize);
            match self.blocks.get(&block).or_else(|| self.base.get(&block)) {
                Some(bytes) => out.copy_from(&bytes[within..within + now]),
                None => out.fill_zeros(now as u64),
            }
            at += now as u64;
        }
        Ok(())
    }
}

static NOTHING: Blocks = BTreeMap::new();

static BASE: LazyLock<Blocks> = LazyLock::new(|| {
    let options = Options { free_bytes: 1 << 20, free_inodes: 16, journal: Some(4 << 20), ..Options::default() };
    let map = plan(Arc::new(tree()), &options).unwrap().map;
    let mut blocks = BTreeMap::new();
    for number in metadata(&map) {
        let mut block = [0; BLOCK_SIZE];
        map.render(number, &mut block);
        if block != [0; BLOCK_SIZE] {
            blocks.insert(number, block.to_vec());
        }
    }
    // Blocks to read for changed sizes.
    blocks.insert(map.blocks() - 1, vec![0; BLOCK_SIZE]);
    blocks
});

/// Every kind of file that the reader supports.
fn tree() -> Tree {
    let with = |mode, size| Attributes { mode, size, ..Attributes::default() };
    let mut b = Builder::new(&with(0o040755, 0)).unwrap();
    b.list(InodeId::ROOT).unwrap();
    let xattr = |name: &str, size: usize| Xattr { name: name.as_bytes().into(), value: vec![7; size].into() };
    let small = b.intern_xattrs(vec![xattr("user.small", 4)]);
    let large = b.intern_xattrs(vec![xattr("user.a", 3000), xattr("user.b", 9000)]);
    let crowd = b.add(b"crowd", &with(0o040755, 0)).unwrap();
    let deep = b.add(b"deep", &Attributes { xattrs: small, ..with(0o040755, 0) }).unwrap();
    let file = b.add(b"file", &Attributes { xattrs: large, ..with(0o100644, 10_000) }).unwrap();
    let link = b.add(b"link", &with(0o120777, 0)).unwrap();
    b.set_target(link, &[b't'; 100]).unwrap();
    let sparse = b.add(b"sparse", &with(0o100644, 1 << 24)).unwrap();
    let ranges: Vec<_> = (0..40).map(|i| DataRange { offset: i << 15, length: 4096 }).collect();
    b.set_sparse(sparse, &ranges).unwrap();
    b.list(crowd).unwrap();
    for i in 0..400 {
        b.add(format!("a name of some length {i:03}").as_bytes(), &with(0o100600, i % 3)).unwrap();
    }
    b.list(deep).unwrap();
    b.link(b"again", file).unwrap();
    b.add(b"below", &with(0o040755, 0)).unwrap();
    b.finish().unwrap()
}

impl Image {
    fn changed(patches: &[Patch<'_>], log: Option<&Log<'_>>) -> Image {
        let mut image = Image { blocks: BTreeMap::new(), base: &BASE, size: 0 };
        if let Some(log) = log {
            image.write_log(log);
        }
        let numbers: Vec<u64> = BASE.keys().chain(image.blocks.keys()).copied().collect();
        for patch in patches {
            let block = image.block(numbers[usize::from(patch.block) % numbers.len()]);
            replace(block, usize::from(patch.offset) % BLOCK_SIZE, patch.bytes);
        }
        image.size = BASE.keys().last().map_or(0, |last| (last + 1) * BLOCK_SIZE as u64);
        image
    }

    /// A block to be changed.
    fn block(&mut self, number: u64) -> &mut Vec<u8> {
        let base = || BASE.get(&number).cloned().unwrap_or_else(|| vec![0; BLOCK_SIZE]);
        self.blocks.entry(number).or_insert_with(base)
    }

    fn raw(bytes: &[u8]) -> Image {
        let blocks = bytes.chunks(BLOCK_SIZE).map(|chunk| {
            let mut block = chunk.to_vec();
            block.resize(BLOCK_SIZE, 0);
            block
        });
        Image { blocks: (0..).zip(blocks).collect(), base: &NOTHING, size: bytes.len() as u64 }
    }

    /// Fills the journal, and says that it has to be replayed.
    fn write_log(&mut self, log: &Log<'_>) {
        const MAGIC: u32 = 0xC03B_3998;
        let is_journal = |block: &[u8]| block[..8] == [0xC0, 0x3B, 0x39, 0x98, 0, 0, 0, 4];
        let Some(journal) = BASE.iter().find(|(_, block)| is_journal(block)).map(|(number, _)| *number) else { return };
        // The flag `needs_recovery` of the superblock.
        self.block(0)[1024 + 0x60] |= 4;
        let superblock = self.block(journal);
        superblock[0x1F] = log.start;
        superblock[0x27] = log.compat;
        superblock[0x2B] = log.incompat;
        superblock[0x50] = 4;
        let mut sequence = 1u32;
        for (number, kind) in (1..).zip(log.blocks.iter().take(200)) {
            let header = |kind: u32| [MAGIC, kind, sequence].map(u32::to_be_bytes).concat();
            let mut block = match kind {
                LogBlock::Descriptor { tags } => [&header(1), *tags].concat(),
                LogBlock::Revoke { length, records } => [&header(5)[..], &length.to_be_bytes(), records].concat(),
                LogBlock::Commit => {
                    let block = header(2);
                    sequence += 1;
                    block
                }
                LogBlock::Data { block } => BASE.values().nth(usize::from(*block)).cloned().unwrap_or_default(),
                LogBlock::Raw { bytes } => bytes.to_vec(),
            };
            block.resize(BLOCK_SIZE, 0);
            self.blocks.insert(journal + number, block);
        }
    }
}

fuzz_target!(|input: Input<'_>| {
    let image = match &input {
        Input::Changed { patches, log } => Image::changed(patches, log.as_ref()),
        Input::Raw(bytes) => Image::raw(bytes),
    };
    let options = ReadOptions { verify: false, lost_and_found: LostAndFound::KeepIfUsed, damage: Damage::Salvaged };
    let Ok(opened) = open_image(Parsing::unconfined(), Arc::new(image), &options) else { return };
    let tree = &opened.opened.tree;
    for (id, inode) in tree.inodes() {
        assert_eq!(opened.find(opened.ino(id)), Some(id));
        assert!(id == InodeId::ROOT || tree.lookup(&tree.path(id)) == Some(id));
        if inode.file_type() == FileType::Regular {
            let mut bytes = [0; 5000];
            for offset in [0, inode.size().saturating_sub(5000)] {
                let _ = read_content(&*opened.opened.content, id, offset, &mut bytes);
            }
        }
        let extents = opened.extents().of(id);
        assert!(extents.iter().all(|extent| extent.offset + extent.length <= inode.size()));
    }
});
