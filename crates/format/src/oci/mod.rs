//! Reads container images: OCI layouts, in a directory or an archive, and archives of `docker save`.
//!
//! 1. [`store`] finds documents and layers by name or digest, in a directory or a tar archive.
//! 2. [`select`] follows the index to the manifest of one image for this machine, and lists its layers.
//! 3. [`layers`] opens each layer for reading at any offset and verifies its digest. A plain layer stays where it is; a
//!    compressed one is unpacked into a nameless file.
//! 4. The layers are merged, with their whiteouts, as unpacking them would.
//!
//! Sources: the OCI image specification (image-layout.md, image-index.md, manifest.md, layer.md) and Docker's image
//! specification 1.2.

mod config;
mod described;
mod digest;
mod document;
mod document_type;
mod layers;
mod select;
mod store;

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
use std::sync::Arc;

use inarch_block::Backing;
use inarch_confine::Parsing;

use crate::assemble::Assembly;
use crate::notes::Notes;
use crate::tar::{Archive, Whiteouts};
use crate::{Damage, Host, ReadError, TreeAndContent, spool, tar};
pub use config::ImageConfig;
pub use described::{Described, Document, leads_to, read_document};
pub use digest::{Digest, Hasher};
pub use document::machine;
pub use document_type::{DOCUMENT_TYPES, document_type};
pub use select::Wanted;
use select::{Image, Layer};
use store::{ArchiveStore, Store};

/// Opens the image in `file`: an OCI layout directory, which is `host`'s, or an archive (of any compression that a tar source may have) of
/// such a layout or by `docker save`.
///
/// Compressed layers are unpacked into nameless files of `host`. `path` names it in messages.
///
/// Errors: no image has that name, or there are several and no reference; a digest differs; the type of a document or
/// layer is unknown; and the errors of [`open_tar_file`].
pub fn open_file(
    parsing: Parsing,
    (file, path): (File, &Path),
    wanted: Wanted<'_>,
    host: &dyn Host,
    damage: Damage,
) -> Result<TreeAndContent, ReadError> {
    let failed = |error: io::Error| malformed(format!("cannot open {}: {error}", path.display()));
    if file.metadata().map_err(failed)?.is_dir() {
        let store = Store::Directory { host, path: path.to_owned() };
        return open_store(&store, wanted, host, damage, Notes::default());
    }
    let mut notes = Notes::default();
    let archive = spool::open(file, path, host, damage, &mut notes)?;
    open_archive(parsing, archive, wanted, host, damage).map(|opened| after(notes, opened))
}

/// Opens an image whose documents and layers lie beneath `host`'s directory, each by its digest, as in an OCI layout, and to which `root` leads. Of an
/// image for several machines, that for `machine` is taken: an architecture as images name it. `path` names the directory in messages.
///
/// Errors: those of [`open_file`].
pub fn open_at(
    _: Parsing,
    (root, path): (&Described, &Path),
    machine: &str,
    host: &dyn Host,
    damage: Damage,
) -> Result<TreeAndContent, ReadError> {
    let mut notes = Notes::default();
    let store = Store::Directory { host, path: path.to_owned() };
    let image = select::image_at(&store, root, machine, &mut notes)?;
    open_image(&store, image, host, damage, notes)
}

/// Opens the image in an uncompressed archive, like [`open_file`].
pub fn open_archive(
    _: Parsing,
    archive: Arc<dyn Backing>,
    wanted: Wanted<'_>,
    host: &dyn Host,
    damage: Damage,
) -> Result<TreeAndContent, ReadError> {
    let mut notes = Notes::default();
    let store = Store::Archive(ArchiveStore::open(archive, host, damage, &mut notes)?);
    open_store(&store, wanted, host, damage, notes)
}

/// Opens a tar archive, plain or compressed by gzip, zstd or xz, detected by its first bytes; or the container image in it
/// if it is one.
///
/// A plain archive in a regular file is read where it is, as long as the tree is used; a change of it is detected. Any
/// other is first unpacked into a nameless file of `host`. `path` names it in messages.
///
/// A member that cannot be part of a tree, because its path contains `..` or it links to a missing file, is left out
/// with a note. Errors: the archive is damaged or truncated, is not a tar, or there is no room to unpack it; for an image,
/// those of [`open_file`].
pub fn open_tar_file(
    parsing: Parsing,
    file: File,
    path: &Path,
    host: &dyn Host,
    damage: Damage,
) -> Result<TreeAndContent, ReadError> {
    open_tar_file_for(parsing, (file, path), machine(), host, damage)
}

/// Like [`open_tar_file`]; of a container image for several machines, takes that for `machine`, as images name it.
pub fn open_tar_file_for(
    parsing: Parsing,
    (file, path): (File, &Path),
    machine: &str,
    host: &dyn Host,
    damage: Damage,
) -> Result<TreeAndContent, ReadError> {
    let mut notes = Notes::default();
    let archive = spool::open(file, path, host, damage, &mut notes)?;
    open_tar_or_image(parsing, archive, machine, host, damage).map(|opened| after(notes, opened))
}

/// Like [`open_tar_file`], for an archive from a pipe.
pub fn open_tar_stream(
    parsing: Parsing,
    input: impl Read,
    host: &dyn Host,
    damage: Damage,
) -> Result<TreeAndContent, ReadError> {
    let mut notes = Notes::default();
    let archive = spool::unpack(input, Path::new("-"), host, damage, &mut notes)?;
    open_tar(parsing, archive, host, damage).map(|opened| after(notes, opened))
}

/// Opens an uncompressed tar archive, or the container image in it, like [`open_tar_file`].
pub fn open_tar(
    parsing: Parsing,
    archive: Arc<dyn Backing>,
    host: &dyn Host,
    damage: Damage,
) -> Result<TreeAndContent, ReadError> {
    open_tar_or_image(parsing, archive, machine(), host, damage)
}

fn open_tar_or_image(
    _: Parsing,
    archive: Arc<dyn Backing>,
    machine: &str,
    host: &dyn Host,
    damage: Damage,
) -> Result<TreeAndContent, ReadError> {
    let mut notes = Notes::default();
    let archive = ArchiveStore::open(archive, host, damage, &mut notes)?;
    if archive.is_image() {
        return open_store(&Store::Archive(archive), Wanted { reference: None, machine }, host, damage, notes);
    }
    let ArchiveStore { tree, extents, backing } = archive;
    Ok(tar::opened((*tree, extents), vec![backing], notes))
}

/// Adds the notes of an earlier step.
fn after(earlier: Notes, opened: TreeAndContent) -> TreeAndContent {
    let notes = earlier.into_lines().into_iter().chain(opened.notes).collect();
    TreeAndContent { notes, ..opened }
}

fn open_store(
    store: &Store<'_>,
    wanted: Wanted<'_>,
    host: &dyn Host,
    damage: Damage,
    mut notes: Notes,
) -> Result<TreeAndContent, ReadError> {
    let image = select::image(store, wanted, &mut notes)?;
    open_image(store, image, host, damage, notes)
}

fn open_image(
    store: &Store<'_>,
    image: Image,
    host: &dyn Host,
    damage: Damage,
    mut notes: Notes,
) -> Result<TreeAndContent, ReadError> {
    let Image { layers: listed, config } = image;
    let layers = layers::open(store, &listed, host, damage, &mut notes)?;
    let mut assembly = Assembly::new();
    for (number, (blob, layer)) in layers.iter().zip(&listed).enumerate() {
        if number > 0 {
            assembly.next_layer();
        }
        let archive =
            Archive { backing: &*blob.backing, number: number as u32, start: blob.start, length: blob.length };
        tar::index(archive, Whiteouts::Removals, (host, damage), &mut assembly, &mut notes)
            .map_err(|error| within(error, layer))?;
    }
    let backings = layers.into_iter().map(|blob| blob.backing).collect();
    let files = assembly.finish().map_err(tar::too_much)?;
    Ok(TreeAndContent { image: Some(config), ..tar::opened(files, backings, notes) })
}

/// Adds the layer's name to an error.
fn within(error: ReadError, layer: &Layer) -> ReadError {
    match error {
        ReadError::Format { reason, .. } => malformed(format!("layer {}: {reason}", layer.name.escape_debug())),
        ReadError::Damaged { reason, .. } => {
            ReadError::Damaged { format: "oci", reason: format!("layer {}: {reason}", layer.name.escape_debug()) }
        }
        other => other,
    }
}

pub(crate) fn malformed(reason: impl Into<String>) -> ReadError {
    ReadError::Format { format: "oci", reason: reason.into() }
}
