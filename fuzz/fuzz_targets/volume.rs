//! Damaged images of every format that is read, asked on demand for nodes at random: no panic, no unbounded allocation, no
//! endless loop, and no more names of a directory than its image has room for.

#![no_main]

use std::io;
use std::sync::{Arc, LazyLock};

use arbitrary::Arbitrary;
use inarch_block::{BLOCK_SIZE, Backing, BlockMap, Cursor};
use inarch_confine::Parsing;
use inarch_format::{Damage, Format, ImageOptions, Layout, format_by_name, readers};
use inarch_tree::{Attributes, Builder, DataRange, InodeId, Tree, Xattr};
use inarch_volume::{Item, Node, Volume};
use libfuzzer_sys::fuzz_target;
use vm_memory::VolatileSlice;

#[derive(Arbitrary, Debug)]
struct Input<'a> {
    format: u8,
    refused: bool,
    patches: Vec<(u16, &'a [u8])>,
    questions: Vec<Question<'a>>,
}

#[derive(Arbitrary, Debug)]
enum Question<'a> {
    Attributes(u8),
    Lookup(u8, &'a [u8]),
    List(u8, u64),
    Parent(u8),
    Target(u8),
    Xattrs(u8),
    Read(u8, u64, u16),
    Extents(u8, u64, u64),
    Data(u8, u64),
    /// Any number as a node from now on.
    Remember(u64),
}

struct Image(Vec<u8>);

impl Backing for Image {
    fn size(&self) -> u64 {
        self.0.len() as u64
    }

    fn read(&self, offset: u64, count: u64, out: &mut Cursor<'_, '_>) -> io::Result<()> {
        let end = offset.checked_add(count).ok_or(io::ErrorKind::UnexpectedEof)?;
        let bytes = self.0.get(offset as usize..end as usize).ok_or(io::ErrorKind::UnexpectedEof)?;
        out.copy_from(bytes);
        Ok(())
    }
}

fn tree() -> Tree {
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
    for i in 0..300 {
        b.add(format!("a name of some length {i:03}").as_bytes(), &attributes(0o100644)).unwrap();
    }
    b.finish().unwrap()
}

/// The metadata of a map; what files hold is zeros.
fn render(map: &BlockMap) -> Vec<u8> {
    let end = map.metadata().iter().map(|range| range.end).max().unwrap_or(0);
    let mut image = vec![0; (end as usize * BLOCK_SIZE).max(map.blocks().min(256) as usize * BLOCK_SIZE)];
    let mut block = [0; BLOCK_SIZE];
    for number in map.metadata().iter().flat_map(Clone::clone) {
        map.render(number, &mut block);
        image[number as usize * BLOCK_SIZE..][..BLOCK_SIZE].copy_from_slice(&block);
    }
    image
}

static BASES: LazyLock<Vec<Vec<u8>>> = LazyLock::new(|| {
    let plan = |format: &dyn Format| {
        let planned = format.plan(&Arc::new(tree()), &ImageOptions::default()).expect("the tree is sound");
        let Layout::Blocks(map) = planned.layout else { panic!("a map was planned") };
        render(&map)
    };
    readers().iter().map(|reader| plan(format_by_name(reader.name).expect("it is written, too"))).collect()
});

fn ask(volume: &dyn Volume, nodes: &mut Vec<Node>, question: &Question<'_>, size: usize) {
    let node = |index: &u8| nodes[usize::from(*index) % nodes.len()];
    match question {
        Question::Attributes(index) => drop(volume.attributes(node(index))),
        Question::Lookup(index, name) => {
            if let Ok(Some(found)) = volume.lookup(node(index), name) {
                nodes.push(found);
            }
        }
        Question::List(index, from) => {
            let (directory, mut count, mut found) = (node(index), 0, Vec::new());
            let _ = volume.list(directory, *from, &mut |item| {
                count += 1;
                if let Item::Entry(entry) = item {
                    assert!(inarch_volume::is_name(entry.name) && entry.next < 1 << 62);
                    found.push(entry.node);
                }
                true
            });
            // Eight bytes an entry at least; metadata of squashfs is not compressed here.
            assert!(count <= size / 8 + 100, "{count} entries in {size} bytes");
            nodes.extend(found.into_iter().take(20));
        }
        Question::Parent(index) => drop(volume.parent(node(index))),
        Question::Target(index) => drop(volume.target(node(index))),
        Question::Xattrs(index) => drop(volume.xattrs(node(index), &mut |_| {})),
        Question::Read(index, offset, count) => {
            let mut buffer = vec![0; usize::from(*count)];
            let slices = [VolatileSlice::from(&mut buffer[..])];
            let _ = volume.read(node(index), *offset, u64::from(*count), &mut Cursor::new(&slices));
        }
        Question::Extents(index, offset, count) => {
            if let Ok(Some(extents)) = volume.extents(node(index), *offset, *count) {
                assert!(extents.is_sorted_by(|a, b| a.offset + a.length <= b.offset));
            }
        }
        Question::Data(index, offset) => drop(volume.data(node(index), *offset)),
        Question::Remember(number) => nodes.push(Node(*number)),
    }
}

fuzz_target!(|input: Input<'_>| {
    let which = usize::from(input.format) % readers().len();
    let mut image = BASES[which].clone();
    for (at, bytes) in &input.patches {
        // Most of the metadata of such small trees lies in the first 16 MiB, each format's elsewhere.
        let at = usize::from(*at) * image.len() / (1 << 16);
        let bytes = &bytes[..bytes.len().min(4096).min(image.len() - at)];
        image[at..at + bytes.len()].copy_from_slice(bytes);
    }
    let size = image.len();
    let damage = if input.refused { Damage::Refused } else { Damage::Salvaged };
    let Ok(volume) = readers()[which].open(Parsing::unconfined(), Arc::new(Image(image)), damage) else { return };
    let mut nodes = vec![volume.root()];
    for question in input.questions.iter().take(64) {
        ask(&*volume, &mut nodes, question, size);
    }
});
