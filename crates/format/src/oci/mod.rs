//! Container images: OCI image layouts, in a directory or in an archive, and what `docker save` writes.
//!
//! 1. [`store`] finds documents and layers by name or digest, in a directory or in a tar archive.
//! 2. [`select`] goes from the index to the manifest of one image for this machine, and lists its layers.
//! 3. [`layers`] makes each layer readable at any offset, its digest verified: where it lies if it is plain, else
//!    unpacked into a nameless file.
//! 4. The layers are put on top of each other, with their whiteouts, as unpacking them would.
//!
//! Sources: the OCI image specification (image-layout.md, image-index.md, manifest.md, layer.md) and Docker's image
//! specification 1.2.

mod digest;
mod document;
mod layers;
mod select;
mod store;

use std::path::Path;
use std::sync::Arc;

use inarch_block::Backing;

use crate::assemble::Assembly;
use crate::notes::Notes;
use crate::tar::{Archive, Whiteouts};
use crate::{Opened, ReadError, tar};
use select::Layer;
use store::Store;

/// Opens the image at `path`: an OCI image layout directory, or an archive (of any compression that a tar source may
/// have) of such a layout or by `docker save`.
///
/// `reference` chooses among several images: by the name that the layout's index gives it, by the `NAME:TAG` of a Docker
/// archive, or by the digest of its manifest. Of an image for several machines, that for this machine's architecture is
/// taken. Compressed layers are unpacked into nameless files in `spool_directory`.
///
/// Errors: nothing of that name, or several and no reference; a digest that differs; a type of document or layer that is
/// unknown; and those of [`tar::open_file`].
pub fn open_path(path: &Path, reference: Option<&str>, spool_directory: &Path) -> Result<Opened, ReadError> {
    open_store(&Store::open(path, spool_directory)?, reference, spool_directory)
}

/// As [`open_path`], of an archive that is not compressed.
pub fn open_archive(
    archive: Arc<dyn Backing>,
    reference: Option<&str>,
    spool_directory: &Path,
) -> Result<Opened, ReadError> {
    open_store(&Store::of_archive(archive)?, reference, spool_directory)
}

fn open_store(store: &Store, reference: Option<&str>, spool_directory: &Path) -> Result<Opened, ReadError> {
    let mut notes = Notes::default();
    let image = select::image(store, reference, &mut notes)?;
    let layers = layers::open(store, &image, spool_directory)?;
    let mut assembly = Assembly::new();
    for (number, (blob, layer)) in layers.iter().zip(&image).enumerate() {
        if number > 0 {
            assembly.next_layer();
        }
        let archive =
            Archive { backing: &*blob.backing, number: number as u32, start: blob.start, length: blob.length };
        tar::index(archive, Whiteouts::Removals, &mut assembly, &mut notes).map_err(|error| within(error, layer))?;
    }
    let backings = layers.into_iter().map(|blob| blob.backing).collect();
    tar::opened(assembly, backings, notes)
}

/// An error in a layer, which it names.
fn within(error: ReadError, layer: &Layer) -> ReadError {
    match error {
        ReadError::Format { reason, .. } => malformed(format!("layer {}: {reason}", layer.name.escape_debug())),
        other => other,
    }
}

fn malformed(reason: impl Into<String>) -> ReadError {
    ReadError::Format { format: "oci", reason: reason.into() }
}
