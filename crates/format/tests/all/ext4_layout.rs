//! Where things lie on a planned device: what a guest reads together lies together.

use crate::common::*;
use inarch_block::{BlockMap, Run};
use inarch_format::ext4::Options;
use inarch_tree::InodeId;

/// Two hundred directories of files of many sizes.
fn forest() -> inarch_tree::Tree {
    let mut b = builder();
    let dirs: Vec<InodeId> = (0..200).map(|i| b.add(format!("{i:03}").as_bytes(), &directory()).unwrap()).collect();
    for dir in dirs {
        b.list(dir).unwrap();
        for i in 0..50 {
            b.add(format!("{i:02}").as_bytes(), &file(i * i * 40)).unwrap();
        }
    }
    b.finish().unwrap()
}

#[test]
fn content_is_one_run_in_the_order_of_the_tree() {
    let plan = planned(forest(), &small());
    let files = plan.map.files();
    assert_eq!(files.len(), 200 * 49);
    assert!(files.is_sorted_by_key(|file| (file.inode, file.first)));
    let mut at = plan.summary.metadata_blocks;
    for file in files {
        assert_eq!(file.start, at);
        at += u64::from(file.blocks);
    }
    assert_eq!(at, plan.summary.metadata_blocks + plan.summary.data_blocks);
    assert_eq!(plan.map.lookup(at), (Run::Zeros, zeros_until_the_next_range(&plan.map, at)));
}

fn zeros_until_the_next_range(map: &BlockMap, block: u64) -> u64 {
    let next = map.metadata().iter().map(|range| range.start).find(|start| *start > block);
    next.map_or(u64::MAX - block, |start| start - block)
}

#[test]
fn all_metadata_lies_before_the_content() {
    for journal in [None, Some(8 << 20)] {
        let plan = planned(forest(), &Options { journal, ..small() });
        let last = plan.map.metadata().last().unwrap();
        assert!(last.end <= plan.summary.metadata_blocks);
    }
}

#[test]
fn free_space_costs_hardly_any_metadata() {
    let rendered = |free_bytes| {
        let plan = planned(forest(), &Options { free_bytes, ..Options::default() });
        plan.map.metadata().iter().map(|range| range.end - range.start).sum::<u64>()
    };
    let (least, most) = (rendered(0), rendered(1 << 40));
    // 8192 groups more have 64 blocks of descriptors, and leave fewer inodes to each, so more inode bitmaps are in use.
    assert!(most - least <= 150, "{least} and {most} blocks");
}

#[test]
fn the_summary_adds_up() {
    let plan = planned(forest(), &small());
    let s = &plan.summary;
    assert_eq!(s.blocks, s.metadata_blocks + s.data_blocks + s.free_blocks);
    assert_eq!(s.blocks, plan.map.blocks());
    assert_eq!(s.inodes - s.free_inodes, 11 + 200 + 200 * 50);
    assert_eq!(s.directory_blocks, 4 + 1 + 200, "lost+found, the root, the directories");
}

#[test]
fn inode_numbers_lead_back_to_the_tree() {
    let plan = planned(forest(), &Options { journal: Some(8 << 20), ..small() });
    assert_eq!(plan.numbering.inode(2), Some(InodeId::ROOT));
    for reserved in [0, 1, 3, 7, 8, 10, 11] {
        assert_eq!(plan.numbering.inode(reserved), None, "{reserved}");
    }
    for id in 1..=200 + 200 * 50 {
        assert_eq!(plan.numbering.inode(11 + id), Some(InodeId(id)));
    }
    assert_eq!(plan.numbering.inode(11 + 200 + 200 * 50 + 1), None);
    assert_eq!(plan.numbering.inode(u32::MAX), None);
}
