//! Any squashfs image is opened or refused, and its content is read, in bounded time and memory.
//!
//! An input is an image of our own planner, compressed or not, with bytes replaced; or the bytes of an image themselves.

#![no_main]

use std::io;
use std::sync::{Arc, LazyLock, Mutex};

use arbitrary::Arbitrary;
use inarch_confine::Parsing;
use inarch_block::{Content, Cursor, Sink, read_content};
use inarch_format::squashfs::{Squashfs, open_with};
use inarch_format::{Algorithm, Compression, Damage, Format, ImageOptions, Layout, Pack};
use inarch_fuzz::image::{self, Memory};
use inarch_tree::{Attributes, Builder, DataRange, InodeId, Tree, Xattr};
use libfuzzer_sys::fuzz_target;

#[derive(Arbitrary, Debug)]
enum Input<'a> {
    Changed { base: u8, patches: Vec<Patch<'a>>, length: Option<u16> },
    Raw(&'a [u8]),
}

/// Bytes to be replaced, counted from the end, where the metadata is, or from the start, where the superblock is.
#[derive(Arbitrary, Debug)]
struct Patch<'a> {
    from_end: bool,
    offset: u16,
    bytes: &'a [u8],
}

/// Text of a sort.
struct Text;

impl Content for Text {
    fn read(&self, inode: InodeId, offset: u64, count: u64, out: &mut Cursor<'_, '_>) -> io::Result<()> {
        let byte = |at: u64| (at / 5 * u64::from(inode.0 + 3) % 251) as u8;
        out.copy_from(&(offset..offset + count).map(byte).collect::<Vec<_>>());
        Ok(())
    }
}

struct Bytes(Mutex<Vec<u8>>);

impl Sink for Bytes {
    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let mut all = self.0.lock().unwrap();
        let end = offset as usize + bytes.len();
        let length = all.len().max(end);
        all.resize(length, 0);
        all[offset as usize..end].copy_from_slice(bytes);
        Ok(())
    }
}

/// A tree with every kind of file.
fn tree() -> Tree {
    let attributes = |mode, size| Attributes { mode, size, ..Attributes::default() };
    let mut b = Builder::new(&attributes(0o040755, 0)).unwrap();
    let xattr = |name: &str, value: &[u8]| Xattr { name: name.as_bytes().into(), value: value.into() };
    let set = b.intern_xattrs(vec![xattr("user.a", b"1"), xattr("trusted.b", &[7; 300])]);
    b.list(InodeId::ROOT).unwrap();
    let dir = b.add(b"dir", &Attributes { xattrs: set, ..attributes(0o040755, 0) }).unwrap();
    b.add(b"door", &attributes(0o140755, 0)).unwrap();
    let file = b.add(b"file", &Attributes { xattrs: set, ..attributes(0o100644, 10_000) }).unwrap();
    let link = b.add(b"link", &Attributes { xattrs: set, ..attributes(0o120777, 0) }).unwrap();
    b.set_target(link, b"file").unwrap();
    b.add(b"node", &Attributes { device: (1, 3), ..attributes(0o020666, 0) }).unwrap();
    b.add(b"pipe", &attributes(0o010644, 0)).unwrap();
    let sparse = b.add(b"sparse", &attributes(0o100644, 100_000)).unwrap();
    b.set_sparse(sparse, &[DataRange { offset: 50_000, length: 5000 }]).unwrap();
    b.list(dir).unwrap();
    b.link(b"hard", file).unwrap();
    for i in 0..700 {
        b.add(format!("name {i:04}").as_bytes(), &attributes(0o100644, i % 9)).unwrap();
    }
    b.finish().unwrap()
}

fn packed(pack: &dyn Pack) -> Vec<u8> {
    let bytes = Bytes(Mutex::default());
    pack.pack(&Text, &bytes, &()).unwrap();
    bytes.0.into_inner().unwrap()
}

static BASES: LazyLock<Vec<Vec<u8>>> = LazyLock::new(|| {
    let tree = Arc::new(tree());
    let plan = |compression| {
        let options = ImageOptions { compression, block_size: Some(4096), threads: 1, ..ImageOptions::default() };
        match Squashfs.plan(&tree, &options).unwrap().layout {
            Layout::Packed(pack) => packed(&*pack),
            Layout::Blocks(map) => image::render(&map, map.blocks()),
            Layout::Stream(_) => unreachable!("squashfs is no archive"),
        }
    };
    // Low levels: AddressSanitizer takes a constant table of zstd's higher ones for a variable that is gone.
    let algorithms =
        [(Algorithm::Gzip, Some(1)), (Algorithm::Lz4, None), (Algorithm::Xz, Some(1)), (Algorithm::Zstd, Some(1))];
    let compressed = algorithms.map(|(algorithm, level)| plan(Some(Compression { algorithm, level })));
    // Half of the inputs change what is not compressed, where every byte is seen by the reader.
    let stored = plan(None);
    (0..4).map(|_| stored.clone()).chain(compressed).collect()
});

fn read_all(image: Vec<u8>) {
    let Ok(opened) = open_with(Parsing::unconfined(), Arc::new(Memory(image)), Damage::Salvaged) else { return };
    let mut buffer = vec![0; 20_000];
    for (id, inode) in opened.tree.inodes().take(2000) {
        let _ = opened.tree.symlink_target(id);
        for offset in [0, inode.size() / 2, inode.size().saturating_sub(9000)] {
            let _ = read_content(&*opened.content, id, offset, &mut buffer);
        }
        let _ = opened.content.lend(id, 0, inode.size().min(1 << 20), &mut |_, _| Ok(()));
    }
    let _ = opened.content.changed();
}

fuzz_target!(|input: Input| {
    match input {
        Input::Raw(bytes) => read_all(bytes.to_vec()),
        Input::Changed { base, patches, length } => {
            let mut image = BASES[usize::from(base) % BASES.len()].clone();
            for patch in patches {
                let offset = usize::from(patch.offset);
                let at = if patch.from_end { image.len().saturating_sub(offset) } else { offset.min(image.len()) };
                image::replace(&mut image, at, patch.bytes);
            }
            image.truncate(length.map_or(image.len(), usize::from));
            read_all(image);
        }
    }
});
