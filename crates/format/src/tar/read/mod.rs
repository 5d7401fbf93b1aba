//! Reading archives.
//!
//! 1. `crate::spool` gives bytes that can be read at any offset: the file itself, or what it unpacks to.
//! 2. [`member`] goes from header to header, past the content, and puts together what the headers of one member say.
//! 3. [`index`](mod@index) adds the members to an assembly, in their order, as unpacking would.
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
use inarch_tree::{BuildError, Extents, Tree};

pub(crate) use index::{Archive, Whiteouts, index};

use crate::assemble::Assembly;
use crate::notes::Notes;
use crate::{Damage, Opened, ReadError, probe, spool};

/// Opens a tar archive, compressed by gzip, zstd or xz or not at all, which its first bytes tell.
///
/// A plain archive in a regular file is read where it is, now and as long as the tree is used; a change of it is found.
/// Any other is unpacked into a nameless file in `spool_directory` first. `path` names it in messages.
///
/// A member that cannot be a part of a tree, as its path has `..` in it or it links to something that is not there, is
/// left out and noted. Errors: the archive is damaged or cut off, is no tar, or there is no room for what it unpacks to.
pub fn open_file(file: File, path: &Path, spool_directory: &Path, damage: Damage) -> Result<Opened, ReadError> {
    let mut notes = Notes::default();
    open_noted(spool::open(file, path, spool_directory, damage, &mut notes)?, damage, notes)
}

/// As [`open_file`], of an archive that comes through a pipe.
pub fn open_stream(input: impl Read, spool_directory: &Path, damage: Damage) -> Result<Opened, ReadError> {
    let mut notes = Notes::default();
    open_noted(spool::unpack(input, Path::new("-"), spool_directory, damage, &mut notes)?, damage, notes)
}

/// Opens a plain tar archive.
pub fn open(backing: Arc<dyn Backing>, damage: Damage) -> Result<Opened, ReadError> {
    open_noted(backing, damage, Notes::default())
}

fn open_noted(backing: Arc<dyn Backing>, damage: Damage, mut notes: Notes) -> Result<Opened, ReadError> {
    let files = read_archive(&*backing, damage, &mut notes)?;
    Ok(opened(files, vec![backing], notes))
}

/// The files of a plain tar archive, and where in it their bytes lie.
pub(crate) fn read_archive(
    backing: &dyn Backing,
    damage: Damage,
    notes: &mut Notes,
) -> Result<(Tree, Extents), ReadError> {
    let mut assembly = Assembly::new();
    let indexed = index(Archive::whole(backing), Whiteouts::Names, damage, &mut assembly, notes);
    if !matches!(indexed, Ok(true)) {
        refuse_what_is_none(backing)?;
    }
    indexed?;
    assembly.finish().map_err(too_much)
}

/// Refuses what is no tar archive by its name.
fn refuse_what_is_none(backing: &dyn Backing) -> Result<(), ReadError> {
    let mut head = vec![0; backing.size().min(probe::HEAD as u64) as usize];
    read_backing(backing, 0, &mut head).map_err(|error| ReadError::Io { offset: 0, error })?;
    match probe::mistaken_for_a_tar(&head) {
        Some(found) => Err(ReadError::Format { format: "tar", reason: format!("it {found}") }),
        None => Ok(()),
    }
}

/// Files whose bytes lie in these backings.
pub(crate) fn opened((tree, extents): (Tree, Extents), backings: Vec<Arc<dyn Backing>>, notes: Notes) -> Opened {
    let tree = Arc::new(tree);
    let content = Arc::new(BackedFiles::new(Arc::clone(&tree), extents, backings));
    Opened { tree, content, notes: notes.into_lines(), image: None }
}

/// An assembly is a tree unless it does not fit one.
pub(crate) fn too_much(error: BuildError) -> ReadError {
    ReadError::Format { format: "tar", reason: error.to_string() }
}
