//! Writes changes of files and symlinks as a patch for git and patch(1).
//!
//! git does not track directories: a renamed directory appears as renames of all its files. Content that is not text
//! becomes git's binary patch, which patch(1) refuses.

mod binary;
#[cfg(test)]
mod tests;

use std::collections::{HashMap, HashSet};
use std::ffi::OsStr;
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use inarch_block::Content;
use inarch_tree::compare::{Aspects, Difference, Lineage};
use inarch_tree::{FileType, InodeId, Tree};
use similar::TextDiff;

use super::diff::RunDiff;
use super::side::Side;
use super::stat::{PATIENCE, TEXT_MAX};
use binary::{no_object, object_name, write_literal};

/// A larger file is in no patch, and git apply refuses one that would need it.
const BINARY_MAX: u64 = 64 << 20;

impl RunDiff {
    /// Writes a patch that turns the host's trees into the guest's: files, symlinks and permissions.
    pub fn write_patch(&self, out: &mut dyn Write) -> io::Result<()> {
        for tree in self.trees() {
            let disk = &tree.disk;
            let patch = Patch {
                old: (&disk.base, &*disk.base_content),
                new: (&disk.guest, &*disk.content),
                lineage: disk,
                destination: &tree.tree.destination(),
            };
            let files = patch.files(&tree.differences);
            let is_asked = |path: &[u8]| self.is_asked(&tree.in_guest(path));
            let asked = files.iter().filter(|file| is_asked(file.path) || file.from.is_some_and(is_asked));
            patch.write(asked, out)?;
        }
        Ok(())
    }
}

/// Two states of a tree.
struct Patch<'a> {
    old: (&'a Tree, &'a dyn Content),
    new: (&'a Tree, &'a dyn Content),
    lineage: &'a dyn Lineage,
    /// Where the guest has the tree.
    destination: &'a Path,
}

/// A file or symlink that came, went, changed or has another name.
struct FileChange<'d> {
    path: &'d [u8],
    /// The path before, where that was another one.
    from: Option<&'d [u8]>,
    old: Option<InodeId>,
    new: Option<InodeId>,
    /// Whether its bytes differ.
    content: bool,
}

impl Patch<'_> {
    /// Orders `differences` for the patch. First files that are too large, because git applies only what precedes the
    /// first part that it refuses; then removals, to free their names; then the rest.
    fn files<'d>(&self, differences: &'d [Difference]) -> Vec<FileChange<'d>> {
        let mut gone = Vec::new();
        let mut rest = Vec::new();
        for Difference { path, old, new, aspects } in differences {
            let change = |old, new| FileChange { path, from: None, old, new, content: true };
            let old = old.filter(|id| is_git_object(self.old.0, *id));
            let new = new.filter(|id| is_git_object(self.new.0, *id));
            match (old, new) {
                (None, None) => {}
                (Some(_), None) => gone.push(change(old, None)),
                (None, Some(_)) => rest.push(change(None, new)),
                // A symlink is no file with other permissions.
                (Some(_), Some(_)) if aspects.file_type => {
                    gone.push(change(old, None));
                    rest.push(change(None, new));
                }
                (Some(was), Some(is)) => {
                    if aspects.content || git_mode(self.old.0, was) != git_mode(self.new.0, is) {
                        rest.push(FileChange { content: aspects.content, ..change(old, new) });
                    }
                }
            }
        }
        let taken = self.find_renames(&gone, &mut rest);
        let mut files: Vec<FileChange<'d>> =
            gone.into_iter().enumerate().filter(|(i, _)| !taken.contains(i)).map(|(_, change)| change).collect();
        files.extend(rest);
        files.sort_by_key(|change| !self.is_too_large(change));
        files
    }

    fn is_too_large(&self, change: &FileChange<'_>) -> bool {
        let sizes = [change.old.map(|id| self.old.0.inode(id)), change.new.map(|id| self.new.0.inode(id))];
        change.content && sizes.iter().flatten().any(|inode| inode.size() > BINARY_MAX)
    }

    /// Combines a removal and an addition of the same file into a rename; records the consumed entries of `gone`.
    fn find_renames<'d>(&self, gone: &[FileChange<'d>], came: &mut [FileChange<'d>]) -> Vec<usize> {
        // Backwards, git takes no rename over what is at the old name now.
        let came_there: HashSet<&[u8]> = came.iter().map(|change| change.path).collect();
        let mut names: HashMap<InodeId, Vec<usize>> = HashMap::new();
        for (i, change) in gone.iter().enumerate().rev().filter(|(_, change)| !came_there.contains(change.path)) {
            if let Some(old) = change.old {
                names.entry(old).or_default().push(i);
            }
        }
        let mut taken = Vec::new();
        for change in came.iter_mut().filter(|change| change.old.is_none()) {
            let Some(new) = change.new else { continue };
            let Some(origin) = self.lineage.origin(new) else { continue };
            let aspects = Aspects::between((self.old.0, origin), (self.new.0, new), self.lineage);
            if aspects.file_type {
                continue;
            }
            let Some(i) = names.get_mut(&origin).and_then(Vec::pop) else { continue };
            change.from = gone.get(i).map(|gone| gone.path);
            change.old = Some(origin);
            change.content = aspects.content;
            taken.push(i);
        }
        taken
    }
}

impl Patch<'_> {
    fn write<'d>(&self, files: impl Iterator<Item = &'d FileChange<'d>>, out: &mut dyn Write) -> io::Result<()> {
        for file in files {
            self.write_file(file, out)?;
        }
        Ok(())
    }

    fn write_file(&self, file: &FileChange<'_>, out: &mut dyn Write) -> io::Result<()> {
        let (from, to) = (self.name(b"a/", file.from.unwrap_or(file.path)), self.name(b"b/", file.path));
        let (old, new) = match file.content {
            true => (Side::read(self.old, file.old, BINARY_MAX), Side::read(self.new, file.new, BINARY_MAX)),
            false => (Side::Nothing, Side::Nothing),
        };
        // A line that is of no patch is passed over.
        match (&old, &new) {
            (_, Side::Unreadable) => {
                let reason = "it cannot be read: the file of this machine that holds a part of it changed";
                return writeln!(out, "# {to}: {reason}");
            }
            (Side::Unreadable, Side::Nothing) => {
                return writeln!(out, "# {to}: the guest removed it, and this machine changed it since");
            }
            (Side::Unreadable, _) => {
                let reason = "the file of this machine that it was made from changed, so it cannot be compared; \
                              diff --show has the guest's version";
                return writeln!(out, "# {to}: {reason}");
            }
            _ => {}
        }
        writeln!(out, "diff --git {from} {to}")?;
        let (old_name, new_name) =
            (file.old.map_or("/dev/null", |_| &from[..]), file.new.map_or("/dev/null", |_| &to[..]));
        let (old_mode, new_mode) =
            (file.old.map(|id| git_mode(self.old.0, id)), file.new.map(|id| git_mode(self.new.0, id)));
        match (old_mode, new_mode) {
            (None, Some(mode)) => writeln!(out, "new file mode {mode}")?,
            (Some(mode), None) => writeln!(out, "deleted file mode {mode}")?,
            (Some(was), Some(is)) if was != is => writeln!(out, "old mode {was}\nnew mode {is}")?,
            _ => {}
        }
        if let Some(from) = file.from {
            writeln!(out, "rename from {}\nrename to {}", self.name(b"", from), self.name(b"", file.path))?;
        }
        if !file.content {
            return Ok(());
        }
        let Some((was, is)) = old.bytes().zip(new.bytes()) else {
            // git apply refuses the patch, and names the line. patch(1) leaves the file alone.
            writeln!(out, "GIT binary patch")?;
            return writeln!(out, "# {to}: it is too large for a patch; diff --show has the guest's version\n");
        };
        let object = |id: Option<InodeId>, bytes: &[u8]| id.map_or_else(no_object, |_| object_name(bytes));
        let mode = old_mode.filter(|mode| Some(*mode) == new_mode).map_or(String::new(), |mode| format!(" {mode}"));
        writeln!(out, "index {}..{}{mode}", object(file.old, was), object(file.new, is))?;
        let is_short = |bytes: &[u8]| bytes.len() as u64 <= TEXT_MAX;
        match old.text().zip(new.text()).filter(|(was, is)| is_short(was) && is_short(is)) {
            Some((was, is)) => {
                let diff = TextDiff::configure().timeout(PATIENCE).diff_lines(was, is);
                diff.unified_diff().header(&header_name(old_name), &header_name(new_name)).to_writer(out)
            }
            None => {
                writeln!(out, "GIT binary patch")?;
                write_literal(is, out)?;
                write_literal(was, out)
            }
        }
    }

    /// A path of the guest after `prefix`, quoted for a patch.
    fn name(&self, prefix: &[u8], path: &[u8]) -> String {
        let path = match path {
            [] => self.destination.to_owned(),
            path => self.destination.join(OsStr::from_bytes(path)),
        };
        let path = path.as_os_str().as_bytes();
        quoted(&[prefix, path.strip_prefix(b"/").unwrap_or(path)].concat())
    }
}

/// Whether git has a name for what an inode is.
fn is_git_object(tree: &Tree, id: InodeId) -> bool {
    matches!(tree.inode(id).file_type(), FileType::Regular | FileType::Symlink)
}

/// The modes that git knows.
fn git_mode(tree: &Tree, id: InodeId) -> &'static str {
    let inode = tree.inode(id);
    match inode.file_type() {
        FileType::Symlink => "120000",
        _ if inode.mode() & 0o100 != 0 => "100755",
        _ => "100644",
    }
}

/// A name in a header line, terminated such that patch(1) finds its end.
fn header_name(name: &str) -> String {
    let tab = if name.contains(' ') && !name.starts_with('"') { "\t" } else { "" };
    format!("{name}{tab}")
}

/// A name as git writes it: in quotes, with C's escapes, where it holds anything but printable ASCII.
fn quoted(name: &[u8]) -> String {
    if name.iter().all(|byte| matches!(byte, 0x20..=0x7e) && !matches!(byte, b'"' | b'\\')) {
        return String::from_utf8_lossy(name).into_owned();
    }
    let escaped: String = name
        .iter()
        .map(|byte| match byte {
            b'"' => "\\\"".to_owned(),
            b'\\' => "\\\\".to_owned(),
            b'\n' => "\\n".to_owned(),
            b'\t' => "\\t".to_owned(),
            0x20..=0x7e => char::from(*byte).to_string(),
            byte => format!("\\{byte:03o}"),
        })
        .collect();
    format!("\"{escaped}\"")
}
