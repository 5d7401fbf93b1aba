//! ext4 as a [`Format`]: images to be written out.

use std::sync::Arc;

use inarch_block::BLOCK_SIZE;
use inarch_tree::Tree;

use super::NAME;
use super::spec::LINK_MAX;
use super::{Options, Size, plan_sized};
use crate::notes::counted;
use crate::{Format, FormatError, ImageOptions, Layout, Planned};

/// ext4 with a journal, as `mke2fs` makes it: can be mounted read-write, and checked by `e2fsck`.
#[derive(Clone, Copy, Debug, Default)]
pub struct Ext4;

impl Format for Ext4 {
    fn name(&self) -> &'static str {
        NAME
    }

    fn plan(&self, tree: &Arc<Tree>, options: &ImageOptions) -> Result<Planned, FormatError> {
        let refuse = |reason: String| FormatError { format: NAME, reason };
        if options.compression.is_some() {
            return Err(refuse("it compresses nothing; take erofs or squashfs, or do without compression".into()));
        }
        if let Some(size) = options.block_size.filter(|size| *size as usize != BLOCK_SIZE) {
            return Err(refuse(format!("a block has 4096 bytes, not {size}")));
        }
        let size = options.size.map_or(Size::Free(options.free_bytes), Size::Whole);
        let defaults = Options::default();
        let uuid = options.uuid.unwrap_or(defaults.uuid);
        let ext4 = Options { label: options.label.clone(), uuid, epoch: options.epoch, ..defaults };
        let plan = plan_sized(Arc::clone(tree), &ext4, size).map_err(|error| refuse(error.to_string()))?;
        let mut notes = Vec::new();
        if plan.summary.split_inodes > 0 {
            notes.push(format!(
                "files with more than {LINK_MAX} hard links, the most that ext4 counts, were split into {}",
                counted(plan.summary.split_inodes, "more copy", "more copies")
            ));
        }
        Ok(Planned { layout: Layout::Blocks(plan.map), notes })
    }
}
