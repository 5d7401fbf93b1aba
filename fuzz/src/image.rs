//! Images in memory: bytes of our own planner, to be damaged.

use std::io;
use std::ops::Range;
use std::sync::Arc;

use inarch_block::{BLOCK_SIZE, Backing, BlockMap, Cursor};
use inarch_format::{Format, ImageOptions, Layout};
use inarch_tree::{Attributes, Builder, DataRange, InodeId, Tree, Xattr};

/// Bytes in memory, read as a file. Who reads beyond the end gets an error.
pub struct Memory(pub Vec<u8>);

impl Backing for Memory {
    fn size(&self) -> u64 {
        self.0.len() as u64
    }

    fn read(&self, offset: u64, count: u64, out: &mut Cursor<'_, '_>) -> io::Result<()> {
        let end = offset.checked_add(count).ok_or(io::ErrorKind::InvalidInput)?;
        let bytes = self.0.get(offset as usize..end as usize).ok_or(io::ErrorKind::UnexpectedEof)?;
        out.copy_from(bytes);
        Ok(())
    }
}

/// A tree with attributes, holes, a symlink, and a directory of so many names that it takes several blocks.
pub fn tree(names: usize) -> Tree {
    let attributes = |mode| Attributes { mode, ..Attributes::default() };
    let mut b = Builder::new(&attributes(0o040755)).unwrap();
    let xattr = |name: &[u8], value: &[u8]| Xattr { name: name.into(), value: value.into() };
    let set = b.intern_xattrs(vec![xattr(b"user.shared", &[1; 40]), xattr(b"trusted.own", b"2")]);
    b.list(InodeId::ROOT).unwrap();
    b.add(b"a", &Attributes { xattrs: set, size: 5000, ..attributes(0o100644) }).unwrap();
    let dir = b.add(b"dir", &Attributes { xattrs: set, ..attributes(0o040755) }).unwrap();
    let link = b.add(b"link", &attributes(0o120777)).unwrap();
    b.set_target(link, b"a").unwrap();
    let sparse = b.add(b"sparse", &Attributes { size: 400_000, ..attributes(0o100644) }).unwrap();
    b.set_sparse(sparse, &[DataRange { offset: 9000, length: 10_000 }]).unwrap();
    b.list(dir).unwrap();
    for i in 0..names {
        b.add(format!("a name of some length {i:03}").as_bytes(), &attributes(0o100644)).unwrap();
    }
    b.finish().unwrap()
}

/// The map of a tree that is not compressed.
pub fn plan(format: &dyn Format, tree: Tree, options: &ImageOptions) -> BlockMap {
    let planned = format.plan(&Arc::new(tree), options).expect("the tree is sound");
    let Layout::Blocks(map) = planned.layout else { panic!("a map was planned") };
    map
}

/// The numbers of a map's blocks that are metadata.
pub fn metadata(map: &BlockMap) -> impl Iterator<Item = u64> {
    map.metadata().iter().flat_map(Range::clone)
}

/// A map's metadata; what files hold is zeros. Blocks of them behind the metadata are there up to block `least`.
pub fn render(map: &BlockMap, least: u64) -> Vec<u8> {
    let end = map.metadata().iter().map(|range| range.end).max().unwrap_or(0);
    let mut image = vec![0; end.max(map.blocks().min(least)) as usize * BLOCK_SIZE];
    let mut block = [0; BLOCK_SIZE];
    for number in metadata(map) {
        map.render(number, &mut block);
        image[number as usize * BLOCK_SIZE..][..BLOCK_SIZE].copy_from_slice(&block);
    }
    image
}

/// Replaces what lies at `at`, as far as the image goes.
pub fn replace(image: &mut [u8], at: usize, bytes: &[u8]) {
    for (to, from) in image.iter_mut().skip(at).zip(bytes) {
        *to = *from;
    }
}
