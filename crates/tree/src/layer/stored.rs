//! Encodes a layer as bytes for a later process, and decodes it.
//!
//! | offset | what |
//! |---|---|
//! | 0 | `INARCHLY` |
//! | 8 | version, 32 bits little-endian |
//! | 12 | CRC-32C of all that follows, 32 bits little-endian |
//! | 16 | the fields of [`Stored`] in postcard's format |

use std::borrow::Cow;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use super::{Identity, Layer, Lender, Mark, Name, Provenance};
use crate::{Extent, Extents, InodeId, LoadError, Tree};

const MAGIC: [u8; 8] = *b"INARCHLY";
/// Version 1 had no digests of directories' extended attributes.
const VERSION: u32 = 2;
const HEADER: usize = 16;

/// Why bytes are not a layer.
#[derive(Debug, thiserror::Error)]
pub enum LoadLayerError {
    /// They do not start with the magic number.
    #[error("it is not a layer: it does not start with the magic number")]
    NotALayer,
    /// Written by another version of this program.
    #[error("it has format version {found}; this program knows version {VERSION}")]
    Version {
        /// Its version.
        found: u32,
    },
    /// The checksum is wrong.
    #[error("it is damaged: its checksum is wrong")]
    Checksum,
    /// They end too early, or contain an impossible value.
    #[error("it is damaged: {0}")]
    Damaged(&'static str),
    /// Its tree is invalid.
    #[error(transparent)]
    Tree(#[from] LoadError),
}

/// Mark and former inode, of the root and then of each entry of the tree; 0 passing, 1 changed, 2 deleted.
type StoredName = (u8, Option<Identity>);
/// Origin, link, whole.
type StoredProvenance = (Option<u32>, Option<u32>, bool);
/// The inode; offset, length, at, backing.
type StoredExtent = (u32, u64, u64, u64, u32);

#[derive(Serialize, Deserialize)]
struct Stored<'a> {
    #[serde(borrow)]
    tree: Cow<'a, [u8]>,
    names: Vec<StoredName>,
    sources: Vec<StoredProvenance>,
    hidden: Vec<(Vec<u8>, Identity)>,
    lenders: Vec<Lender>,
    files: Vec<String>,
    extents: Vec<StoredExtent>,
}

impl Layer {
    /// Encodes the layer for [`Layer::load`]. The same layer gives the same bytes.
    pub fn store(&self) -> Vec<u8> {
        let name = |name: &Name| {
            let mark = match name.mark {
                Mark::Passing => 0,
                Mark::Changed => 1,
                Mark::Deleted => 2,
            };
            (mark, name.was)
        };
        let inodes = (0..self.tree.inode_count()).map(InodeId);
        let extents = inodes.flat_map(|id| {
            let extent = move |extent: &Extent| (id.0, extent.offset, extent.length, extent.at, extent.backing);
            self.extents.of(id).iter().map(extent)
        });
        let stored = Stored {
            tree: Cow::Owned(self.tree.store()),
            names: std::iter::once(&self.root).chain(&self.names).map(name).collect(),
            sources: self.sources.iter().map(|source| (source.origin, source.link, source.whole)).collect(),
            hidden: self.hidden.clone(),
            lenders: self.lenders.clone(),
            files: self.files.clone(),
            extents: extents.collect(),
        };
        // Encoding these types to memory cannot fail.
        let content = postcard::to_allocvec(&stored).unwrap_or_default();
        let mut out = Vec::with_capacity(HEADER + content.len());
        out.extend_from_slice(&MAGIC);
        out.extend_from_slice(&VERSION.to_le_bytes());
        out.extend_from_slice(&crc32c::crc32c(&content).to_le_bytes());
        out.extend_from_slice(&content);
        out
    }

    /// Decodes what [`Layer::store`] encoded. Any bytes are safe.
    pub fn load(bytes: &[u8]) -> Result<Layer, LoadLayerError> {
        let (header, content) = bytes.split_first_chunk::<HEADER>().ok_or(LoadLayerError::NotALayer)?;
        let [magic @ .., v0, v1, v2, v3, c0, c1, c2, c3] = *header;
        if magic != MAGIC {
            return Err(LoadLayerError::NotALayer);
        }
        let found = u32::from_le_bytes([v0, v1, v2, v3]);
        if !(1..=VERSION).contains(&found) {
            return Err(LoadLayerError::Version { found });
        }
        if crc32c::crc32c(content) != u32::from_le_bytes([c0, c1, c2, c3]) {
            return Err(LoadLayerError::Checksum);
        }
        let mut stored: Stored<'_> =
            postcard::from_bytes(content).map_err(|_| LoadLayerError::Damaged("its fields do not fit"))?;
        if found == 1 {
            let names = stored.names.iter_mut().filter_map(|(_, was)| was.as_mut());
            names.chain(stored.hidden.iter_mut().map(|(_, was)| was)).for_each(|was| *was = was.of_version_1());
        }
        Layer::of(stored)
    }

    fn of(stored: Stored<'_>) -> Result<Layer, LoadLayerError> {
        let tree = Arc::new(Tree::load(&stored.tree)?);
        let name = |(mark, was): StoredName| {
            let mark = match mark {
                0 => Mark::Passing,
                1 => Mark::Changed,
                2 => Mark::Deleted,
                _ => return Err(LoadLayerError::Damaged("a name has an unknown mark")),
            };
            Ok(Name { mark, was })
        };
        let mut names = stored.names.iter().copied().map(name);
        let root = names.next().ok_or(LoadLayerError::Damaged("it has no root"))??;
        let names: Vec<Name> = names.collect::<Result<_, _>>()?;
        if names.len() != tree.entry_count() as usize || stored.sources.len() != tree.inode_count() as usize {
            return Err(LoadLayerError::Damaged("it has another number of names or files than its tree"));
        }
        let holders = stored.lenders.len() + stored.files.len();
        let lends = |at: Option<u32>| at.is_none_or(|at| (at as usize) < stored.lenders.len());
        if !stored.sources.iter().all(|(origin, link, _)| lends(*origin) && lends(*link))
            || !stored.extents.iter().all(|extent| (extent.4 as usize) < holders)
        {
            return Err(LoadLayerError::Damaged("it names a file that it does not list"));
        }
        let source = |(origin, link, whole)| Provenance { origin, link, whole };
        let sources = stored.sources.iter().copied().map(source).collect();
        let extent = |(id, offset, length, at, backing)| (InodeId(id), Extent { offset, length, at, backing });
        let extents = Extents::new(tree.inode_count(), stored.extents.iter().copied().map(extent).collect())
            .map_err(|_| LoadLayerError::Damaged("extents of a file overlap"))?;
        let Stored { hidden, lenders, files, .. } = stored;
        Ok(Layer { tree, root, names, sources, hidden, lenders, files, extents })
    }
}
