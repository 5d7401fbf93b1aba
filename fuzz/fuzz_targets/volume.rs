//! Damaged images of every format that Inarch also writes, asked on demand for nodes at random: no panic, no unbounded allocation, no
//! endless loop, and no more names of a directory than its image has room for.

#![no_main]

use std::sync::{Arc, LazyLock};

use arbitrary::Arbitrary;
use inarch_block::Cursor;
use inarch_confine::Parsing;
use inarch_format::{Damage, ImageOptions, Reader, format_by_name, readers};
use inarch_fuzz::image::{self, Memory};
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

/// The readers of formats that can be written, too, each with an image.
static BASES: LazyLock<Vec<(&'static Reader, Vec<u8>)>> = LazyLock::new(|| {
    let render = |reader: &'static Reader| {
        let format = format_by_name(reader.name)?;
        // Most of the metadata of such small trees lies in the first mebibyte, each format's elsewhere.
        Some((reader, image::render(&image::plan(format, image::tree(300), &ImageOptions::default()), 256)))
    };
    readers().iter().filter_map(render).collect()
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
    let (reader, base) = &BASES[usize::from(input.format) % BASES.len()];
    let mut image = base.clone();
    for (at, bytes) in &input.patches {
        let at = usize::from(*at) * image.len() / (1 << 16);
        image::replace(&mut image, at, &bytes[..bytes.len().min(4096)]);
    }
    let size = image.len();
    let damage = if input.refused { Damage::Refused } else { Damage::Salvaged };
    let Ok(volume) = reader.open(Parsing::unconfined(), Arc::new(Memory(image)), damage) else { return };
    let mut nodes = vec![volume.root()];
    for question in input.questions.iter().take(64) {
        ask(&*volume, &mut nodes, question, size);
    }
});
