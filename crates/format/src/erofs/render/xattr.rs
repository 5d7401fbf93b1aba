//! Renders extended attributes.

use inarch_tree::{Xattr, XattrSetId};
use zerocopy::IntoBytes;
use zerocopy::little_endian::U16;

use super::{Renderer, Window};
use crate::erofs::layout::xattr::Stored;
use crate::erofs::spec::xattr::{ENTRY_SIZE, HEADER_SIZE, SHARED_COUNT, UNIT, XattrEntry, entry_size, split_name};

impl Renderer {
    /// Renders the extended attributes after an inode with the set `set`, from byte `at` of the device.
    pub(super) fn render_own_xattrs(&self, set: XattrSetId, at: u64, window: &mut Window<'_>) {
        let stored = self.layout.tables.xattrs.stored(&self.tree, set);
        let shared = stored.iter().filter(|stored| matches!(stored, Stored::Shared(_))).count();
        let mut header = [0; HEADER_SIZE];
        if let Some(count) = header.get_mut(SHARED_COUNT) {
            *count = shared as u8;
        }
        window.put(at, &header);
        let mut at = at + HEADER_SIZE as u64;
        for stored in stored {
            at += match stored {
                Stored::Shared(address) => {
                    window.put(at, &address.to_le_bytes());
                    UNIT as u64
                }
                Stored::Own(attribute) => put_entry(attribute, at, window),
            };
        }
    }

    /// Renders a block of the region of shared attributes.
    pub(super) fn render_shared_xattrs(&self, window: &mut Window<'_>) {
        for shared in self.layout.tables.xattrs.shared_from(window.start) {
            let at = u64::from(shared.at) * UNIT as u64;
            if at >= window.end() {
                break;
            }
            if let Some(attribute) = self.tree.xattrs(shared.set).get(shared.place as usize) {
                put_entry(attribute, at, window);
            }
        }
    }
}

/// Puts an attribute at byte `at`; gives the bytes it takes.
fn put_entry(attribute: &Xattr, at: u64, window: &mut Window<'_>) -> u64 {
    // Names that do not split were refused.
    let (index, rest) = split_name(&attribute.name).unwrap_or_default();
    let (name_length, value_length) = (rest.len(), attribute.value.len());
    let entry = XattrEntry { name_length: name_length as u8, index, value_length: U16::new(value_length as u16) };
    window.put(at, entry.as_bytes());
    window.put(at + ENTRY_SIZE as u64, rest);
    window.put(at + (ENTRY_SIZE + name_length) as u64, &attribute.value);
    entry_size(name_length, value_length) as u64
}
