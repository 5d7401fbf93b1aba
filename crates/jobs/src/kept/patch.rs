//! What changed within files: unified diffs as patch(1) and git take them, and how many lines they are.

use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::time::Duration;

use inarch_block::{Content, read_content};
use inarch_tree::compare::{Change, ChangeKind};
use inarch_tree::{FileType, InodeId, Tree};
use serde::Serialize;
use similar::{ChangeTag, TextDiff};

use super::diff::{RunDiff, TreeDiff};

/// A larger file is not compared line by line.
const TEXT_MAX: u64 = 8 << 20;
/// A file with a NUL among its first bytes is no text: git's rule.
const LOOKED_AT: usize = 8000;
/// After this long the shortest difference is no longer looked for, only some.
const PATIENCE: Duration = Duration::from_secs(2);

/// How much a file changed.
#[derive(Clone, Debug, Serialize)]
pub struct FileStat {
    /// The path in the guest.
    pub path: String,
    /// Lines that are new; nothing where the file is no text.
    pub added: Option<u64>,
    /// Lines that are gone; nothing where the file is no text.
    pub removed: Option<u64>,
    /// Bytes before.
    pub old_size: u64,
    /// Bytes now.
    pub size: u64,
}

/// One side of a comparison.
enum Side {
    /// The file is not there.
    Nothing,
    /// Its bytes: those of a text or a symlink's target.
    Text(Vec<u8>),
    /// It is no text, or too large.
    Opaque,
    /// It can no longer be read: the host's file that it lies in changed.
    Unreadable,
}

impl Side {
    fn bytes(&self) -> Option<&[u8]> {
        match self {
            Side::Nothing => Some(&[]),
            Side::Text(bytes) => Some(bytes),
            Side::Opaque | Side::Unreadable => None,
        }
    }
}

impl RunDiff {
    /// Writes a patch that makes of the trees as they were the trees as the guest has them, as far as files, symlinks
    /// and permissions go. Of what is no text it says only that it differs.
    pub fn write_patch(&self, out: &mut dyn Write) -> io::Result<()> {
        for tree in self.trees() {
            for change in tree.changes.iter().filter(|change| has_content(tree, change)) {
                tree.write_patch(change, out)?;
            }
        }
        Ok(())
    }

    /// How much each file changed, of those whose content did.
    pub fn stat(&self) -> Vec<FileStat> {
        let of_tree = |tree: &TreeDiff| -> Vec<FileStat> {
            let changed = tree.changes.iter().filter(|change| has_content(tree, change));
            changed.filter(|change| differs(change)).map(|change| tree.stat(change)).collect()
        };
        self.trees().iter().flat_map(of_tree).collect()
    }
}

/// Whether a change is of a file or a symlink.
fn has_content(tree: &TreeDiff, change: &Change) -> bool {
    let has = |tree: &Tree, id: Option<InodeId>| {
        id.is_some_and(|id| matches!(tree.inode(id).file_type(), FileType::Regular | FileType::Symlink))
    };
    has(&tree.disk.base, change.old) || has(&tree.disk.guest, change.new)
}

fn differs(change: &Change) -> bool {
    matches!(change.kind, ChangeKind::Added | ChangeKind::Deleted) || change.aspects.beyond_attributes()
}

impl TreeDiff {
    fn sides(&self, change: &Change) -> (Side, Side) {
        let disk = &self.disk;
        (side(&disk.base, &*disk.base_content, change.old), side(&disk.guest, &*disk.content, change.new))
    }

    fn stat(&self, change: &Change) -> FileStat {
        let (old, new) = self.sides(change);
        let lines = old.bytes().zip(new.bytes()).map(|(old, new)| {
            let diff = TextDiff::configure().timeout(PATIENCE).diff_lines(old, new);
            let count = |tag| diff.iter_all_changes().filter(|change| change.tag() == tag).count() as u64;
            (count(ChangeTag::Insert), count(ChangeTag::Delete))
        });
        let size = |tree: &Tree, id: Option<InodeId>| id.map_or(0, |id| tree.inode(id).size());
        FileStat {
            path: self.in_guest(&change.path).to_string_lossy().into_owned(),
            added: lines.map(|(added, _)| added),
            removed: lines.map(|(_, removed)| removed),
            old_size: size(&self.disk.base, change.old),
            size: size(&self.disk.guest, change.new),
        }
    }

    fn write_patch(&self, change: &Change, out: &mut dyn Write) -> io::Result<()> {
        let from = self.name('a', change.from.as_deref().unwrap_or(&change.path));
        let to = self.name('b', &change.path);
        let mode = |tree: &Tree, id: Option<InodeId>| {
            let inode = id.map(|id| tree.inode(id)).filter(|inode| inode.file_type() != FileType::Directory);
            inode.map(|inode| git_mode(inode.mode()))
        };
        let (old_mode, new_mode) = (mode(&self.disk.base, change.old), mode(&self.disk.guest, change.new));
        if change.link_to.is_none() && change.kind == ChangeKind::Attributes && old_mode == new_mode {
            return Ok(());
        }
        writeln!(out, "diff --git {from} {to}")?;
        match (&old_mode, &new_mode) {
            (None, Some(mode)) => writeln!(out, "new file mode {mode}")?,
            (Some(mode), None) => writeln!(out, "deleted file mode {mode}")?,
            (Some(was), Some(is)) if was != is => writeln!(out, "old mode {was}\nnew mode {is}")?,
            _ => {}
        }
        if change.kind == ChangeKind::Renamed {
            // Without the leading `a/` and `b/`.
            let bare = |path: &[u8]| {
                let path = self.in_guest(path);
                let path = path.as_os_str().as_bytes();
                quoted(path.strip_prefix(b"/").unwrap_or(path))
            };
            let source = change.from.as_deref().unwrap_or(&change.path);
            writeln!(out, "rename from {}\nrename to {}", bare(source), bare(&change.path))?;
        }
        if !differs(change) {
            return Ok(());
        }
        let (old, new) = self.sides(change);
        let (old_name, new_name) = (
            if old_mode.is_some() { &from[..] } else { "/dev/null" },
            if new_mode.is_some() { &to[..] } else { "/dev/null" },
        );
        match old.bytes().zip(new.bytes()) {
            None if matches!(new, Side::Unreadable) => {
                writeln!(out, "# {to}: it cannot be read: the file of this machine that holds a part of it changed")
            }
            None if matches!(old, Side::Unreadable) && new_mode.is_none() => {
                writeln!(out, "# {to}: the guest removed it, and this machine changed it since")
            }
            None if matches!(old, Side::Unreadable) => writeln!(
                out,
                "# {to}: the file of this machine that it was made from changed, so it cannot be compared; \
                 diff --show has the guest's version"
            ),
            None => writeln!(out, "Binary files {old_name} and {new_name} differ"),
            Some((old, new)) if old == new => Ok(()),
            Some((old, new)) => {
                let diff = TextDiff::configure().timeout(PATIENCE).diff_lines(old, new);
                diff.unified_diff().header(old_name, new_name).to_writer(out)
            }
        }
    }

    /// A path of the guest below `a` or `b`, as a patch names it.
    fn name(&self, side: char, path: &[u8]) -> String {
        let path = self.in_guest(path);
        quoted(&[&[side as u8], path.as_os_str().as_bytes()].concat())
    }
}

/// The modes that git knows.
fn git_mode(mode: u32) -> &'static str {
    match FileType::from_mode(mode) {
        Some(FileType::Symlink) => "120000",
        _ if mode & 0o100 != 0 => "100755",
        _ => "100644",
    }
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

fn side(tree: &Tree, content: &dyn Content, id: Option<InodeId>) -> Side {
    let Some(id) = id else { return Side::Nothing };
    let inode = tree.inode(id);
    match inode.file_type() {
        FileType::Symlink => Side::Text(tree.symlink_target(id).to_owned()),
        FileType::Regular if inode.size() <= TEXT_MAX => {
            let mut bytes = vec![0; inode.size() as usize];
            if read_content(content, id, 0, &mut bytes).is_err() {
                return Side::Unreadable;
            }
            let is_text = !bytes.iter().take(LOOKED_AT).any(|byte| *byte == 0);
            if is_text { Side::Text(bytes) } else { Side::Opaque }
        }
        FileType::Regular => Side::Opaque,
        _ => Side::Nothing,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_quoted_as_git_does() {
        assert_eq!(quoted(b"a/plain name"), "a/plain name");
        assert_eq!(quoted(b"a/\xc3\xa4\n\"\\"), r#""a/\303\244\n\"\\""#);
    }
}
