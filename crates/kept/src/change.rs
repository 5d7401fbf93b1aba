//! A difference between two states of a tree, for people and programs.

use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use inarch_tree::compare::{Change, ChangeKind};
use inarch_tree::{FileType, InodeId, Tree};
use serde::Serialize;

/// One change, for people and programs.
#[derive(Clone, Debug, Serialize)]
pub struct ChangeReport {
    /// `added`, `changed`, `deleted`, `renamed` or `attributes`.
    pub kind: &'static str,
    /// The path in the guest.
    pub path: String,
    /// The bytes of the path where they are not UTF-8.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path_bytes: Option<Vec<u8>>,
    /// The path before, where that was another one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
    /// Another name of the same file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub link_to: Option<String>,
    /// `file`, `directory`, `symlink`, `char`, `block`, `fifo` or `socket`; for a deleted path, its former type.
    #[serde(rename = "type")]
    pub file_type: &'static str,
    /// What it was, where that is another kind of thing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub old_type: Option<&'static str>,
    /// Bytes of a regular file before.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub old_size: Option<u64>,
    /// Bytes of a regular file now.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub size: Option<u64>,
    /// Of what was changed or renamed: whether its bytes, its target or its kind are others.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub content: Option<bool>,
    /// What this machine did with the path, too, before the last command of the run: `changed` or `removed`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub conflict: Option<&'static str>,
    /// Permissions before and now, in octal, where they differ.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub mode: Option<[String; 2]>,
    /// Owner and group before and now, where they differ.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub owner: Option<[String; 2]>,
    /// Whether the time of the last change of content differs.
    pub mtime: bool,
    /// Whether extended attributes or ACLs differ.
    pub xattrs: bool,
}

impl ChangeReport {
    /// Of a change between an older and a newer tree; `place` gives the path that is shown for one in the trees.
    pub fn new(change: &Change, (old, new): (&Tree, &Tree), place: impl Fn(&[u8]) -> PathBuf) -> ChangeReport {
        let text = |path: &[u8]| place(path).to_string_lossy().into_owned();
        let path = place(&change.path);
        let raw = path.as_os_str().as_bytes();
        let (was, is) = (change.old.map(|id| old.inode(id)), change.new.map(|id| new.inode(id)));
        let size = |tree: &Tree, id: Option<InodeId>| {
            id.map(|id| tree.inode(id)).filter(|inode| inode.file_type() == FileType::Regular).map(|inode| inode.size())
        };
        let both = was.zip(is);
        ChangeReport {
            kind: kind_name(change.kind),
            path: text(&change.path),
            path_bytes: std::str::from_utf8(raw).is_err().then(|| raw.to_owned()),
            from: change.from.as_deref().map(text),
            link_to: change.link_to.as_deref().map(text),
            file_type: is.or(was).map_or("file", |inode| type_name(inode.file_type())),
            old_type: was.filter(|_| change.aspects.file_type).map(|inode| type_name(inode.file_type())),
            old_size: size(old, change.old),
            size: size(new, change.new),
            content: matches!(change.kind, ChangeKind::Changed | ChangeKind::Renamed)
                .then(|| change.aspects.beyond_attributes()),
            conflict: None,
            mode: both
                .filter(|_| change.aspects.mode)
                .map(|(was, is)| [was.mode(), is.mode()].map(|mode| format!("{:04o}", mode & 0o7777))),
            owner: both
                .filter(|_| change.aspects.owner)
                .map(|(was, is)| [was, is].map(|inode| format!("{}:{}", inode.uid(), inode.gid()))),
            mtime: change.aspects.mtime,
            xattrs: change.aspects.xattrs,
        }
    }
}

fn kind_name(kind: ChangeKind) -> &'static str {
    match kind {
        ChangeKind::Added => "added",
        ChangeKind::Changed => "changed",
        ChangeKind::Deleted => "deleted",
        ChangeKind::Renamed => "renamed",
        ChangeKind::Attributes => "attributes",
    }
}

fn type_name(file_type: FileType) -> &'static str {
    match file_type {
        FileType::Regular => "file",
        FileType::Directory => "directory",
        FileType::Symlink => "symlink",
        FileType::CharDevice => "char",
        FileType::BlockDevice => "block",
        FileType::Fifo => "fifo",
        FileType::Socket => "socket",
    }
}
