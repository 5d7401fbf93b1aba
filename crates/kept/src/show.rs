//! `diff --show`: the guest's version of a file.

use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use inarch_block::read_content;
use inarch_tree::FileType;

use super::Store;
use super::diff::{RunDiff, TreeDiff};
use crate::KeptError;

/// Bytes that are read at once.
const PIECE: u64 = 256 << 10;

/// Writes the guest's version of the absolute guest path `path` of the kept run `name`: a file's bytes, or a
/// symlink's target. It does not matter whether the change was applied or conflicts.
///
/// # Errors
/// The run has no such file, it has another type, or part of it is in a host file that has changed.
pub fn show(name: &str, path: &Path, out: &mut dyn Write) -> Result<(), KeptError> {
    let run = Store::of_user()?.open(name)?;
    let record = run.record.as_ref().ok_or_else(|| KeptError::NoRecord(name.to_owned()))?;
    let diff = RunDiff::of(&run, record)?;
    diff.refuse_gone(path)?;
    let within = |tree: &&TreeDiff| path.starts_with(tree.tree.destination());
    let deepest = |tree: &&TreeDiff| tree.tree.destination().components().count();
    let tree = diff.trees().iter().filter(within).max_by_key(deepest);
    let Some(tree) = tree else {
        return Err(KeptError::Unchanged { path: path.to_owned(), name: name.to_owned() });
    };
    tree.show(path, out)
}

impl TreeDiff {
    fn show(&self, path: &Path, out: &mut dyn Write) -> Result<(), KeptError> {
        let refuse = |reason| KeptError::Nothing { path: path.to_owned(), reason };
        let write = |error| KeptError::path(path, "cannot be written out", error);
        let within = path.strip_prefix(self.tree.destination()).unwrap_or(path);
        let guest = &self.disk.guest;
        let id = guest.lookup(within.as_os_str().as_bytes()).ok_or_else(|| refuse("the guest has nothing there"))?;
        let inode = guest.inode(id);
        match inode.file_type() {
            FileType::Symlink => return out.write_all(guest.symlink_target(id)).map_err(write),
            FileType::Regular => {}
            _ => return Err(refuse("the guest has no file there")),
        }
        let mut buffer = vec![0; PIECE.min(inode.size()) as usize];
        let mut at = 0;
        while at < inode.size() {
            let count = (inode.size() - at).min(PIECE) as usize;
            let piece = buffer.get_mut(..count).unwrap_or_default();
            read_content(&*self.disk.content, id, at, piece)
                .map_err(|_| refuse("a part of it lies in a file of this machine that changed"))?;
            out.write_all(piece).map_err(write)?;
            at += count as u64;
        }
        Ok(())
    }
}
