//! [`Side`]: a file in one of two compared states.

use inarch_block::{Content, read_content};
use inarch_tree::{FileType, InodeId, Tree};

/// A file with a NUL among its first bytes is no text: git's rule.
const LOOKED_AT: usize = 8000;

/// What is at a path, as a patch sees it.
pub(super) enum Side {
    /// No file or symlink is there.
    Nothing,
    /// A file's bytes, or a symlink's target.
    Bytes(Vec<u8>),
    /// It is larger than is wanted.
    TooLarge,
    /// It cannot be read any more, because a host file that it refers to has changed.
    Unreadable,
}

impl Side {
    /// Reads `id`, if it has at most `most` bytes.
    pub fn read((tree, content): (&Tree, &dyn Content), id: Option<InodeId>, most: u64) -> Side {
        let Some(id) = id else { return Side::Nothing };
        let inode = tree.inode(id);
        match inode.file_type() {
            FileType::Symlink => Side::Bytes(tree.symlink_target(id).to_owned()),
            FileType::Regular if inode.size() <= most => {
                let mut bytes = vec![0; inode.size() as usize];
                match read_content(content, id, 0, &mut bytes) {
                    Ok(()) => Side::Bytes(bytes),
                    Err(_) => Side::Unreadable,
                }
            }
            FileType::Regular => Side::TooLarge,
            _ => Side::Nothing,
        }
    }

    /// The bytes, none of what is not there.
    pub fn bytes(&self) -> Option<&[u8]> {
        match self {
            Side::Nothing => Some(&[]),
            Side::Bytes(bytes) => Some(bytes),
            Side::TooLarge | Side::Unreadable => None,
        }
    }

    /// The bytes, if they are a text with line ends as git and patch(1) see them; `similar` also ends a line at a
    /// carriage return.
    pub fn text(&self) -> Option<&[u8]> {
        let has_zero = |bytes: &[u8]| bytes.iter().take(LOOKED_AT).any(|byte| *byte == 0);
        let ends_otherwise =
            |bytes: &[u8]| bytes.windows(2).any(|two| two[0] == b'\r' && two[1] != b'\n') || bytes.ends_with(b"\r");
        self.bytes().filter(|bytes| !has_zero(bytes) && !ends_otherwise(bytes))
    }
}
