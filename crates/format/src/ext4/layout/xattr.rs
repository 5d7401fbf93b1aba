//! Places extended attributes: in the inode, in a block that inodes with equal sets share, or, for a value too large
//! for both, in an inode of its own.

use std::borrow::Cow;

use inarch_tree::Xattr;

use crate::ext4::spec::inode::XATTR_SPACE;
use crate::ext4::spec::xattr::{BLOCK_HEADER, END, INODE_HEADER, entry_size, index, sort_key, value_size};
use crate::ext4::spec::{BLOCK_SIZE, acl};

/// Bytes of a value at most (`XATTR_SIZE_MAX` in `include/uapi/linux/limits.h`).
const VALUE_MAX: usize = 65_536;

/// An attribute as ext4 stores it.
#[derive(Clone, Debug)]
pub(crate) struct Stored<'a> {
    /// The prefix of the name.
    pub(crate) index: u8,
    /// The rest of the name.
    pub(crate) name: &'a [u8],
    /// The value, in ext4's form.
    pub(crate) value: Cow<'a, [u8]>,
    /// Whether the value has an inode of its own.
    pub(crate) external: bool,
}

/// A set of attributes, split by place.
#[derive(Clone, Debug, Default)]
pub(crate) struct Placement<'a> {
    /// Those within the inode.
    pub(crate) inode: Vec<Stored<'a>>,
    /// Those in a block, in the order of the block.
    pub(crate) block: Vec<Stored<'a>>,
}

/// Why a set cannot be stored; the text goes into a message after the file's name.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum XattrError {
    /// ext4 keeps attributes of five namespaces only.
    #[error("ext4 cannot store the extended attribute {0:?}")]
    Namespace(String),
    /// The value of a POSIX ACL attribute is not one.
    #[error("the value of {0:?} is not a POSIX ACL of version 2")]
    Acl(String),
    /// The kernel passes no longer value on (`XATTR_SIZE_MAX`).
    #[error("the value of {name:?} has {size} bytes, more than 65536")]
    TooLong {
        /// The attribute.
        name: String,
        /// Bytes of its value.
        size: usize,
    },
    /// Names and values together exceed what one inode can have.
    #[error("its {0} extended attributes do not fit one block, even with their values stored apart")]
    TooMany(usize),
}

/// Splits a set between these places, always in the same way.
pub(crate) fn place(set: &[Xattr]) -> Result<Placement<'_>, XattrError> {
    let mut stored = set.iter().map(convert).collect::<Result<Vec<_>, _>>()?;
    stored.sort_by(|a, b| sort_key(a.index, a.name).cmp(&sort_key(b.index, b.name)));
    let mut placement = Placement::default();
    let mut room = XATTR_SPACE - INODE_HEADER - END;
    // Security labels and access lists have the greater prefixes; they are read most often.
    for attribute in stored.into_iter().rev() {
        let size = attribute.size();
        if size <= room {
            room -= size;
            placement.inode.push(attribute);
        } else {
            placement.block.push(attribute);
        }
    }
    placement.block.reverse();
    let limit = BLOCK_SIZE - BLOCK_HEADER - END;
    let mut total: usize = placement.block.iter().map(Stored::size).sum();
    while total > limit {
        let inline = placement.block.iter_mut().filter(|a| !a.external && !a.value.is_empty());
        let Some(largest) = inline.max_by_key(|a| a.value.len()) else {
            return Err(XattrError::TooMany(set.len()));
        };
        total -= value_size(largest.value.len());
        largest.external = true;
    }
    Ok(placement)
}

impl Stored<'_> {
    /// The bytes it takes where it is listed.
    fn size(&self) -> usize {
        entry_size(self.name.len()) + if self.external { 0 } else { value_size(self.value.len()) }
    }
}

fn convert(attribute: &Xattr) -> Result<Stored<'_>, XattrError> {
    let name = &*attribute.name;
    let lossy = || String::from_utf8_lossy(name).into_owned();
    if attribute.value.len() > VALUE_MAX {
        return Err(XattrError::TooLong { name: lossy(), size: attribute.value.len() });
    }
    let acl = match name {
        b"system.posix_acl_access" => Some(index::POSIX_ACL_ACCESS),
        b"system.posix_acl_default" => Some(index::POSIX_ACL_DEFAULT),
        _ => None,
    };
    if let Some(index) = acl {
        let value = acl::to_ext4(&attribute.value).ok_or_else(|| XattrError::Acl(lossy()))?;
        return Ok(Stored { index, name: b"", value: value.into(), external: false });
    }
    let prefixes: [(&[u8], u8); 3] =
        [(b"user.", index::USER), (b"trusted.", index::TRUSTED), (b"security.", index::SECURITY)];
    for (prefix, index) in prefixes {
        if let Some(name) = name.strip_prefix(prefix)
            && (1..=255).contains(&name.len())
        {
            return Ok(Stored { index, name, value: Cow::Borrowed(&attribute.value), external: false });
        }
    }
    Err(XattrError::Namespace(lossy()))
}
