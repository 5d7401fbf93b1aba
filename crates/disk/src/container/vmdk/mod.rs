//! VMDK ("Virtual Disk Format 5.0", VMware): hosted sparse and stream-optimised extents, and descriptors of flat and sparse
//! ones. Extents of ESX (`vmfsSparse`, `seSparse`) are not read.

mod descriptor;
mod joined;
mod sparse;

use std::sync::Arc;

use inarch_block::{Backing, read_backing};

use super::opening::Opening;
use super::{Container, ContainerError, Reference, Role};
use crate::window::Window;
use descriptor::{Descriptor, ExtentKind};
use joined::{Joined, Part};
use sparse::Sparse;

/// What a sparse extent begins with; one of ESX; a descriptor.
const SPARSE: &[u8] = b"KDMV";
const ESX_SPARSE: &[u8] = b"COWD";
const DESCRIPTOR: &[u8] = b"# Disk DescriptorFile";
pub(super) const MAGICS: [&[u8]; 3] = [SPARSE, ESX_SPARSE, DESCRIPTOR];

const SECTOR: u64 = 512;

fn refused(reason: impl Into<String>) -> ContainerError {
    Container::Vmdk.refused(reason)
}

fn begins_with(file: &dyn Backing, magic: &[u8]) -> Result<bool, ContainerError> {
    let mut head = vec![0; (magic.len() as u64).min(file.size()) as usize];
    read_backing(file, 0, &mut head).map_err(|error| ContainerError::Io { offset: 0, error })?;
    Ok(head == magic)
}

/// Opens an image: a sparse extent that is the whole disk, or a descriptor and the extents that it names.
pub(super) fn open(opening: &mut Opening<'_, '_>, file: Arc<dyn Backing>) -> Result<Arc<dyn Backing>, ContainerError> {
    if begins_with(&*file, ESX_SPARSE)? {
        return Err(refused(
            "a sparse extent of ESX, which is not read here; 'qemu-img convert' makes another image of it",
        ));
    }
    if begins_with(&*file, SPARSE)? {
        let sparse = Sparse::read(&*file)?;
        let below = match sparse.descriptor(&*file)? {
            Some(descriptor) => parent(opening, &descriptor)?,
            None => None,
        };
        return Ok(sparse.disk(opening, file, below));
    }
    let descriptor = Descriptor::of_file(&*file)?;
    let below = parent(opening, &descriptor)?;
    let mut joined = Joined::default();
    for extent in descriptor.extents()? {
        let below = below
            .as_ref()
            .map(|below| -> Arc<dyn Backing> { Arc::new(Window::new(Arc::clone(below), joined.size, extent.length)) });
        let disk: Option<Arc<dyn Backing>> = match extent.kind {
            ExtentKind::Zeros => None,
            ExtentKind::Flat { name, offset } => {
                let file = opening.named(Container::Vmdk, Reference { role: Role::Extent, name })?;
                Some(Arc::new(Window::new(file, offset, extent.length)))
            }
            ExtentKind::Sparse { name } => {
                let file = opening.named(Container::Vmdk, Reference { role: Role::Extent, name })?;
                Some(Arc::new(Window::new(Sparse::read(&*file)?.disk(opening, file, below), 0, extent.length)))
            }
        };
        if let Some(disk) = &disk
            && disk.size() < extent.length
        {
            let reason =
                format!("an extent has {} bytes of the {} that the descriptor says", disk.size(), extent.length);
            return Err(refused(reason));
        }
        joined.add(Part { start: joined.size, length: extent.length, disk })?;
    }
    Ok(Arc::new(joined))
}

/// The parent, if the image has only the differences to one. Each image has a number that changes when it is written to
/// (`CID`). The parent's must still be the one that the image has for it.
fn parent(opening: &mut Opening<'_, '_>, descriptor: &Descriptor) -> Result<Option<Arc<dyn Backing>>, ContainerError> {
    let Some(number) = descriptor.value(b"parentCID").filter(|number| !number.eq_ignore_ascii_case(b"ffffffff")) else {
        return Ok(None);
    };
    let name = descriptor.value(b"parentFileNameHint");
    let name = name.ok_or_else(|| refused("it has only the differences to another image, which it does not name"))?;
    let file = opening.named(Container::Vmdk, Reference { role: Role::Backing, name: name.to_vec() })?;
    let of_parent = if begins_with(&*file, SPARSE)? {
        Sparse::read(&*file)?.descriptor(&*file)?
    } else {
        Some(Descriptor::of_file(&*file)?)
    };
    let is_same =
        of_parent.is_some_and(|parent| parent.value(b"CID").is_some_and(|own| own.eq_ignore_ascii_case(number)));
    if !is_same {
        return Err(refused(
            "the backing file that you named is another image, or was written to since (its CID differs)",
        ));
    }
    opening.lower(Container::Vmdk, file, Some(b"vmdk")).map(Some)
}
