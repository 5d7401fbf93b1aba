//! Reads tar archives: indexes their members into a tree, whose content stays in the archive.
//!
//! 1. `crate::spool` returns bytes that can be read at any offset: the file itself, or its unpacked content.
//! 2. [`member`] goes from header to header, past the content, and combines the headers of each member.
//! 3. [`index`](mod@index) adds the members to an assembly in order, as unpacking would.
//! 4. The assembly becomes a tree, and ranges of the archive.

mod extended;
mod index;
mod member;
mod sparse;
mod users;
mod window;

use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::sync::Arc;

use inarch_block::{BackedFiles, Backing, read_backing};
use inarch_confine::Parsing;
use inarch_tree::{BuildError, Extents, Tree};

pub(crate) use index::{Archive, Whiteouts, index};

use crate::assemble::Assembly;
use crate::notes::Notes;
use crate::{Damage, Host, ReadError, TreeAndContent, probe, spool};

/// Opens a tar archive, plain or compressed by gzip, zstd or xz, detected by its first bytes.
///
/// A plain archive in a regular file is read where it is, as long as the tree is used; a change of it is detected. Any
/// other is first unpacked into a nameless file of `host`. `path` names it in messages.
///
/// A member that cannot be part of a tree, because its path contains `..` or it links to a missing file, is left out
/// with a note. Errors: the archive is damaged or truncated, is not a tar, or there is no room to unpack it.
pub fn open_file(
    _: Parsing,
    file: File,
    path: &Path,
    host: &dyn Host,
    damage: Damage,
) -> Result<TreeAndContent, ReadError> {
    let mut notes = Notes::default();
    open_noted(spool::open(file, path, host, damage, &mut notes)?, host, damage, notes)
}

/// Like [`open_file`], for an archive from a pipe.
pub fn open_stream(_: Parsing, input: impl Read, host: &dyn Host, damage: Damage) -> Result<TreeAndContent, ReadError> {
    let mut notes = Notes::default();
    open_noted(spool::unpack(input, Path::new("-"), host, damage, &mut notes)?, host, damage, notes)
}

/// Opens a plain tar archive.
pub fn open(
    _: Parsing,
    backing: Arc<dyn Backing>,
    host: &dyn Host,
    damage: Damage,
) -> Result<TreeAndContent, ReadError> {
    open_noted(backing, host, damage, Notes::default())
}

fn open_noted(
    backing: Arc<dyn Backing>,
    host: &dyn Host,
    damage: Damage,
    mut notes: Notes,
) -> Result<TreeAndContent, ReadError> {
    let files = read_archive(&*backing, host, damage, &mut notes)?;
    Ok(opened(files, vec![backing], notes))
}

/// The files of a plain tar archive, and where in it their bytes are.
pub(crate) fn read_archive(
    backing: &dyn Backing,
    host: &dyn Host,
    damage: Damage,
    notes: &mut Notes,
) -> Result<(Tree, Extents), ReadError> {
    let mut assembly = Assembly::new();
    let indexed = index(Archive::whole(backing), Whiteouts::Names, (host, damage), &mut assembly, notes);
    if !matches!(indexed, Ok(true)) {
        refuse_what_is_none(backing)?;
    }
    indexed?;
    assembly.finish().map_err(too_much)
}

/// Refuses a file of another format, by the format's name.
fn refuse_what_is_none(backing: &dyn Backing) -> Result<(), ReadError> {
    let mut head = vec![0; backing.size().min(probe::HEAD as u64) as usize];
    read_backing(backing, 0, &mut head).map_err(|error| ReadError::Io { offset: 0, error })?;
    match probe::mistaken_for_a_tar(&head) {
        Some(found) => Err(ReadError::Format { format: "tar", reason: format!("it {found}") }),
        None => Ok(()),
    }
}

/// Files whose bytes are in these backings.
pub(crate) fn opened(
    (tree, extents): (Tree, Extents),
    backings: Vec<Arc<dyn Backing>>,
    notes: Notes,
) -> TreeAndContent {
    let tree = Arc::new(tree);
    let content = Arc::new(BackedFiles::new(Arc::clone(&tree), extents, backings));
    TreeAndContent { tree, content, notes: notes.into_lines(), image: None }
}

/// The error of an assembly that does not fit a tree.
pub(crate) fn too_much(error: BuildError) -> ReadError {
    ReadError::Format { format: "tar", reason: error.to_string() }
}
