//! An independent reader, the crate ext4-view, finds in a planned device the tree it was planned from.

use std::error::Error;
use std::sync::Arc;

use crate::common::forest::{forest, grow};
use crate::common::view::assert_same;
use crate::common::*;
use ext4_view::{Ext4, Ext4Read};
use inarch_block::{BLOCK_SIZE, BlockMap, Run};
use inarch_format::ext4::{Options, plan};
use inarch_tree::{DataRange, InodeId, Tree};
use proptest::prelude::*;

/// Serves a block map with [`pattern`] as the content of its files.
struct Device(Arc<BlockMap>);

impl Ext4Read for Device {
    fn read(&mut self, start: u64, out: &mut [u8]) -> Result<(), Box<dyn Error + Send + Sync + 'static>> {
        let mut block = [0; BLOCK_SIZE];
        let mut at = start;
        for chunk in chunks(out, start) {
            block.fill(0);
            let number = at / BLOCK_SIZE as u64;
            match self.0.lookup(number).0 {
                Run::Zeros => {}
                Run::Metadata => self.0.render(number, &mut block),
                Run::File { inode, block: first } => fill_pattern(inode, first, &mut block),
            }
            let within = at as usize % BLOCK_SIZE;
            chunk.copy_from_slice(&block[within..within + chunk.len()]);
            at += chunk.len() as u64;
        }
        Ok(())
    }
}

/// Cuts `out`, which starts at byte `start` of the device, where blocks end.
fn chunks(mut out: &mut [u8], start: u64) -> Vec<&mut [u8]> {
    let mut list = Vec::new();
    let mut room = BLOCK_SIZE - start as usize % BLOCK_SIZE;
    while !out.is_empty() {
        let (chunk, rest) = out.split_at_mut(room.min(out.len()));
        list.push(chunk);
        (out, room) = (rest, BLOCK_SIZE);
    }
    list
}

/// What a file holds by the tree: the pattern in every block that has data, zeros in the others.
fn expected_content(tree: &Tree, id: InodeId) -> Vec<u8> {
    let size = tree.inode(id).size() as usize;
    let mut content = vec![0; size.next_multiple_of(BLOCK_SIZE)];
    let whole = [DataRange { offset: 0, length: size as u64 }];
    for range in tree.sparse_ranges(id).unwrap_or(if size > 0 { &whole } else { &[] }) {
        let blocks = range.offset as usize / BLOCK_SIZE..((range.offset + range.length) as usize).div_ceil(BLOCK_SIZE);
        for block in blocks {
            fill_pattern(id, block as u64, &mut content[block * BLOCK_SIZE..][..BLOCK_SIZE]);
        }
    }
    content.truncate(size);
    content
}

fn rendered(map: &BlockMap) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut block = [0; BLOCK_SIZE];
    for number in map.metadata().iter().flat_map(Clone::clone) {
        map.render(number, &mut block);
        bytes.extend_from_slice(&block);
    }
    bytes
}

proptest! {
    #![proptest_config(ProptestConfig { cases: rounds(6), max_shrink_iters: 20, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn random_trees(forest in forest(), journal in any::<bool>(), free_bytes in 0..400_000_000u64) {
        let mut b = builder();
        grow(&mut b, forest, &mut Vec::new());
        let tree = Arc::new(b.finish().unwrap());
        let options = Options { free_bytes, free_inodes: 50, journal: journal.then_some(4 << 20), ..Options::default() };
        let planned = plan(tree.clone(), &options).unwrap();
        let again = plan(tree.clone(), &options).unwrap();
        prop_assert!(rendered(&planned.map) == rendered(&again.map));

        let scratch = Scratch::new();
        dump(&planned.map, &scratch.path("image"), fill_pattern);
        assert_clean(&scratch.path("image"));
        let fs = Ext4::load(Box::new(Device(Arc::new(planned.map)))).unwrap();
        assert_same(&tree, &fs, &|id| expected_content(&tree, id));
    }
}

#[test]
fn names_and_content_of_a_hashed_directory() {
    let mut b = builder();
    for i in 0..10_000 {
        b.add(format!("{i:05}").as_bytes(), &file(i % 5)).unwrap();
    }
    let tree = Arc::new(b.finish().unwrap());
    let planned = plan(tree.clone(), &small()).unwrap();
    let fs = Ext4::load(Box::new(Device(Arc::new(planned.map)))).unwrap();
    assert_same(&tree, &fs, &|id| expected_content(&tree, id));
}
