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

use std::sync::Arc;

use inarch_block::{BackedFiles, Backing, read_backing};
use inarch_tree::{BuildError, Extents, Tree};

pub(crate) use index::{Archive, Whiteouts, index};

use crate::assemble::Assembly;
use crate::notes::Notes;
use crate::{Damage, Host, ReadError, TreeAndContent, probe};

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
