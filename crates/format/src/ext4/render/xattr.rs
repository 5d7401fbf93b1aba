//! Renders extended attributes: in inodes, in blocks, and values in inodes of their own.

use inarch_tree::XattrSetId;

use super::Renderer;
use crate::ext4::layout::measure::XattrValue;
use crate::ext4::layout::xattr::{Stored, place};
use crate::ext4::spec::inode::Inode;
use crate::ext4::spec::xattr::{AreaWriter, BlockIdentity, Value, value_hash};
use crate::ext4::spec::{BLOCK_SIZE, Block};

impl Renderer {
    /// Writes the attributes in the inode of `node` and the pointer to its attribute block. Returns the blocks that
    /// count as the inode's: that block, and values in inodes of their own (`ext4_xattr_inode_alloc_quota`).
    pub(super) fn set_xattrs(&self, inode: &mut Inode, node: u32, set: XattrSetId, area: &mut [u8]) -> u64 {
        if set == XattrSetId::NONE {
            return 0;
        }
        let Ok(placed) = place(self.tree.xattrs(set)) else { return 0 };
        if !placed.inode.is_empty() {
            let mut writer = AreaWriter::in_inode(area);
            for stored in &placed.inode {
                writer.push(stored.index, stored.name, Value::Inline(&stored.value));
            }
        }
        let Some(block) = self.layout.measured.xattrs.block_of(node) else { return 0 };
        inode.set_file_acl(self.layout.regions.xattr_blocks.start + u64::from(block));
        let (_, values) = self.layout.measured.xattrs.values_of(set);
        1 + values.iter().map(|value| u64::from(value.size).div_ceil(BLOCK_SIZE as u64)).sum::<u64>()
    }

    /// Attribute block `index`.
    pub(super) fn render_xattr_block(&self, index: usize, out: &mut Block) {
        let Some(block) = self.layout.measured.xattrs.blocks.get(index) else { return };
        let Ok(placed) = place(self.tree.xattrs(block.set)) else { return };
        let (first, _) = self.layout.measured.xattrs.values_of(block.set);
        let mut nodes = (first..).map(|value| self.layout.nodes.ino(self.layout.nodes.value_node(value)));
        let mut writer = AreaWriter::in_block(out);
        for stored in &placed.block {
            let value = self.block_value(stored, &mut nodes);
            writer.push(stored.index, stored.name, value);
        }
        writer.finish_block(BlockIdentity {
            seed: self.seed,
            number: self.layout.regions.xattr_blocks.start + index as u64,
            references: block.references,
        });
    }

    fn block_value<'a>(&self, stored: &'a Stored<'_>, inos: &mut impl Iterator<Item = u32>) -> Value<'a> {
        if !stored.external {
            return Value::Inline(&stored.value);
        }
        let hash = value_hash(self.seed, &stored.value);
        Value::Inode { ino: inos.next().unwrap_or(0), size: stored.value.len() as u32, hash }
    }

    /// Block `index` of the values.
    pub(super) fn render_xattr_value(&self, index: u64, out: &mut Block) {
        let values = &self.layout.measured.xattrs.values;
        let place = values.partition_point(|value| value.block <= index).checked_sub(1);
        let Some(value) = place.and_then(|place| values.get(place)) else { return };
        let start = (index - value.block) as usize * BLOCK_SIZE;
        self.with_value(value, |bytes| {
            let rest = bytes.get(start..).unwrap_or(&[]);
            let length = rest.len().min(BLOCK_SIZE);
            out[..length].copy_from_slice(&rest[..length]);
        });
    }

    /// Calls `read` with a value that has an inode of its own.
    pub(super) fn with_value<R>(&self, value: &XattrValue, read: impl FnOnce(&[u8]) -> R) -> R {
        let placed = place(self.tree.xattrs(value.set)).unwrap_or_default();
        let bytes = placed.block.get(value.place as usize).map_or(&[][..], |stored| &stored.value);
        read(bytes)
    }
}
