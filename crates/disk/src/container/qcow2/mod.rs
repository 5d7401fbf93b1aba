//! QCOW2, versions 2 and 3 (QEMU, docs/interop/qcow2.txt): standard and extended L2 entries, clusters compressed by zlib or
//! zstd, a backing file, an external data file.
//!
//! The image's reference counts are not read, as only writers need them. Nor are its internal snapshots.

mod header;
mod map;

use std::sync::Arc;

use inarch_block::Backing;
use inarch_confine::Parsing;

use super::mapped::Mapped;
use super::opening::Opening;
use super::{Container, ContainerError, Reference, Role};
use header::Header;
use map::Clusters;

/// The first bytes.
pub(super) const MAGIC: &[u8] = b"QFI\xfb";

/// Opens an image, and what it names.
pub(super) fn open(opening: &mut Opening<'_, '_>, file: Arc<dyn Backing>) -> Result<Arc<dyn Backing>, ContainerError> {
    let kind = Container::Qcow2;
    let header = Header::read(&*file)?;
    let data = match &header.data_file {
        None => Arc::clone(&file),
        Some(name) => opening.named(kind, Reference { role: Role::Data, name: name.clone() })?,
    };
    let below = match &header.backing {
        None => None,
        Some(name) => {
            let below = opening.named(kind, Reference { role: Role::Backing, name: name.clone() })?;
            Some(opening.lower(kind, below, header.backing_format.as_deref())?)
        }
    };
    let map = Clusters::new(&header, opening.tables(&file));
    Ok(Arc::new(Mapped { map, size: header.size, data, below }))
}

/// The files that an image names.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct QcowNames {
    /// Its backing file.
    pub backing: Option<Reference>,
    /// The format of that, as the image has it: `raw`, `qcow2`, or none, or any other bytes.
    pub backing_format: Option<Vec<u8>>,
    /// The file that its clusters lie in.
    pub data: Option<Reference>,
}

/// The files that a qcow2 image names. Opens none of them.
///
/// # Errors
/// It is no qcow2 image, or one of a kind that is not read.
pub fn qcow2_names(_: Parsing, file: &dyn Backing) -> Result<QcowNames, ContainerError> {
    let Header { backing, backing_format, data_file, .. } = Header::read(file)?;
    let named = |role| move |name| Reference { role, name };
    Ok(QcowNames { backing: backing.map(named(Role::Backing)), backing_format, data: data_file.map(named(Role::Data)) })
}
