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

mod config;
mod digest;
mod document;
mod layers;
mod select;
mod store;

use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::sync::Arc;

use inarch_block::Backing;

use crate::assemble::Assembly;
use crate::notes::Notes;
use crate::tar::{Archive, Whiteouts};
use crate::{Damage, Opened, ReadError, spool, tar};
pub use config::ImageConfig;
use select::{Image, Layer};
use store::{ArchiveStore, Store};

/// Opens the image at `path`: an OCI image layout directory, or an archive (of any compression that a tar source may
/// have) of such a layout or by `docker save`.
///
/// `reference` chooses among several images: by the name that the layout's index gives it, by the `NAME:TAG` of a Docker
/// archive, or by the digest of its manifest. Of an image for several machines, that for this machine's architecture is
/// taken. Compressed layers are unpacked into nameless files in `spool_directory`.
///
/// Errors: nothing of that name, or several and no reference; a digest that differs; a type of document or layer that is
/// unknown; and those of [`tar::open_file`].
pub fn open_path(
    path: &Path,
    reference: Option<&str>,
    spool_directory: &Path,
    damage: Damage,
) -> Result<Opened, ReadError> {
    let mut notes = Notes::default();
    let store = Store::open(path, spool_directory, damage, &mut notes)?;
    open_store(&store, reference, spool_directory, damage, notes)
}

/// As [`open_path`], of an archive that is not compressed.
pub fn open_archive(
    archive: Arc<dyn Backing>,
    reference: Option<&str>,
    spool_directory: &Path,
    damage: Damage,
) -> Result<Opened, ReadError> {
    let mut notes = Notes::default();
    let store = Store::Archive(ArchiveStore::open(archive, damage, &mut notes)?);
    open_store(&store, reference, spool_directory, damage, notes)
}

/// Opens a tar archive as [`tar::open_file`], but where it is a container image, that one.
pub fn open_tar_file(file: File, path: &Path, spool_directory: &Path, damage: Damage) -> Result<Opened, ReadError> {
    let mut notes = Notes::default();
    let backing = spool::open(file, path, spool_directory, damage, &mut notes)?;
    open_tar(backing, spool_directory, damage, notes)
}

/// As [`open_tar_file`], of an archive that comes through a pipe.
pub fn open_tar_stream(input: impl Read, spool_directory: &Path, damage: Damage) -> Result<Opened, ReadError> {
    let mut notes = Notes::default();
    let backing = spool::unpack(input, Path::new("-"), spool_directory, damage, &mut notes)?;
    open_tar(backing, spool_directory, damage, notes)
}

fn open_tar(
    backing: Arc<dyn Backing>,
    spool_directory: &Path,
    damage: Damage,
    mut notes: Notes,
) -> Result<Opened, ReadError> {
    let archive = ArchiveStore::open(backing, damage, &mut notes)?;
    if archive.is_image() {
        return open_store(&Store::Archive(archive), None, spool_directory, damage, notes);
    }
    let ArchiveStore { tree, extents, backing } = archive;
    Ok(tar::opened((*tree, extents), vec![backing], notes))
}

fn open_store(
    store: &Store,
    reference: Option<&str>,
    spool_directory: &Path,
    damage: Damage,
    mut notes: Notes,
) -> Result<Opened, ReadError> {
    let Image { layers: listed, config } = select::image(store, reference, &mut notes)?;
    let layers = layers::open(store, &listed, spool_directory, damage, &mut notes)?;
    let mut assembly = Assembly::new();
    for (number, (blob, layer)) in layers.iter().zip(&listed).enumerate() {
        if number > 0 {
            assembly.next_layer();
        }
        let archive =
            Archive { backing: &*blob.backing, number: number as u32, start: blob.start, length: blob.length };
        tar::index(archive, Whiteouts::Removals, damage, &mut assembly, &mut notes)
            .map_err(|error| within(error, layer))?;
    }
    let backings = layers.into_iter().map(|blob| blob.backing).collect();
    let files = assembly.finish().map_err(tar::too_much)?;
    Ok(Opened { image: Some(config), ..tar::opened(files, backings, notes) })
}

/// An error in a layer, which it names.
fn within(error: ReadError, layer: &Layer) -> ReadError {
    match error {
        ReadError::Format { reason, .. } => malformed(format!("layer {}: {reason}", layer.name.escape_debug())),
        ReadError::Damaged { reason, .. } => {
            ReadError::Damaged { format: "oci", reason: format!("layer {}: {reason}", layer.name.escape_debug()) }
        }
        other => other,
    }
}

fn malformed(reason: impl Into<String>) -> ReadError {
    ReadError::Format { format: "oci", reason: reason.into() }
}
