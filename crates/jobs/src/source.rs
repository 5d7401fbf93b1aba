//! SRC, the same for every command: what a text names, and opening it as a tree with its content.

mod kind;

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::{fmt, fs, io};

use inarch_block::{Content, HostFiles, Renumbered, read_content};
use inarch_tree::scan::{self, Report};
use inarch_tree::select::{ReadFile, Selection, select};
use inarch_tree::{InodeId, Tree};

use crate::JobError;
use crate::notes::shown;
pub use kind::FileKind;

/// Where a tree comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// A directory of this host.
    Directory(PathBuf),
    /// An archive or a disk image.
    File {
        /// Where it is.
        path: PathBuf,
        /// What it is, by its first bytes.
        kind: FileKind,
    },
}

/// Why a text names no source.
#[derive(Debug, thiserror::Error)]
pub enum SourceError {
    /// There is nothing, or it cannot be looked at.
    #[error("{}: cannot be used as a source: {error}", shown(path))]
    Inaccessible {
        /// What was named.
        path: PathBuf,
        /// Why not.
        error: io::Error,
    },
    /// It is something else.
    #[error("{}: {found}; a source is a directory, {}", shown(path), kind::ACCEPTED)]
    Unknown {
        /// What was named.
        path: PathBuf,
        /// What it looks like.
        found: String,
    },
}

impl Source {
    /// What `text` names. Looks at the file's type and, unless it is a directory, at its first bytes.
    pub fn parse(text: &OsStr) -> Result<Source, SourceError> {
        let path = PathBuf::from(text);
        let fail = |error| SourceError::Inaccessible { path: path.clone(), error };
        let metadata = fs::metadata(&path).map_err(fail)?;
        if metadata.is_dir() {
            return Ok(Source::Directory(path));
        }
        if !metadata.is_file() {
            return Err(SourceError::Unknown { path, found: "is no regular file".to_owned() });
        }
        match kind::recognise(&path).map_err(fail)? {
            Ok(kind) => Ok(Source::File { path, kind }),
            Err(found) => Err(SourceError::Unknown { path, found: found.to_owned() }),
        }
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        match self {
            Source::Directory(path) | Source::File { path, .. } => path,
        }
    }
}

/// As it was written.
impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&shown(self.path()))
    }
}

/// An opened source: what was selected of it.
pub struct Opened {
    /// Names, attributes and sizes.
    pub tree: Arc<Tree>,
    /// What the tree's regular files hold.
    pub content: Arc<dyn Content>,
    /// What a directory's scan left out, and why; of any source, how many names the filter took out.
    pub report: Report,
    /// What else the user should know, a line each.
    pub notes: Vec<String>,
    /// The tree before it was selected from, where that makes a difference.
    pub(crate) original: Option<Arc<Tree>>,
}

/// What opening a source may use of this process.
#[derive(Clone, Copy, Debug)]
pub struct Resources {
    /// Threads of a scan; as many as there are processors where it is 0.
    pub threads: usize,
    /// How many sources share this process's descriptors, at least 1.
    pub sharers: usize,
}

impl Default for Resources {
    /// Every processor, for one source.
    fn default() -> Resources {
        Resources { threads: 0, sharers: 1 }
    }
}

/// Opens `source` and takes of it what `selection` says.
pub fn open(source: &Source, selection: &Selection) -> Result<Opened, JobError> {
    open_with(source, selection, Resources::default())
}

/// As [`open`], within `resources`.
pub fn open_with(source: &Source, selection: &Selection, resources: Resources) -> Result<Opened, JobError> {
    match source {
        Source::Directory(path) => open_directory(path, selection, resources),
        Source::File { path, kind } => Err(JobError::Other(format!("{}: {kind:?}", shown(path)))),
    }
}

fn open_directory(path: &Path, selection: &Selection, resources: Resources) -> Result<Opened, JobError> {
    let mut options = selection.scan_options();
    options.threads = resources.threads;
    if path == Path::new("/") {
        options.leave_out.extend(KERNEL_TREES.iter().map(|name| name.as_bytes().to_vec()));
    }
    let scan = scan::scan(path, &options)?;
    let tree = Arc::new(scan.tree);
    let max_open = HostFiles::default_max_open() / resources.sharers.max(1);
    let content = Arc::new(HostFiles::new(scan.root, Arc::clone(&tree), max_open));
    let opened = Opened { tree, content, report: scan.report, notes: Vec::new(), original: None };
    let mut rest = selection.after_scan();
    if let Some(only) = &mut rest.only {
        // A trace on this host names files by the host's paths.
        let names = [std::path::absolute(path).ok(), path.canonicalize().ok()];
        for name in names.iter().flatten() {
            *only = Arc::new(only.beneath(name.as_os_str().as_bytes()));
        }
    }
    opened.select(path, &rest)
}

/// Directories of `/` that belong to its kernel or to this boot, and that a guest has its own of.
pub(crate) const KERNEL_TREES: [&str; 5] = ["proc", "sys", "dev", "run", "tmp"];

impl Opened {
    /// What `selection` leaves of it.
    fn select(self, path: &Path, selection: &Selection) -> Result<Opened, JobError> {
        if selection.is_all() {
            return Ok(self);
        }
        let read: &ReadFile<'_> = &|inode: InodeId, most: u64| {
            let mut text = vec![0; self.tree.inode(inode).size().min(most) as usize];
            read_content(&*self.content, inode, 0, &mut text).ok().map(|()| text)
        };
        let selected = select(&self.tree, selection, read)
            .map_err(|error| JobError::Other(format!("{}: {error}", shown(path))))?;
        let mut opened = Opened {
            tree: Arc::new(selected.tree),
            content: Arc::new(Renumbered::new(self.content, selected.origins)),
            original: Some(self.original.unwrap_or(self.tree)),
            ..self
        };
        opened.report.filtered += selected.filtered;
        if let Some(first) = selected.missing.first() {
            let count = selected.missing.len();
            let first = String::from_utf8_lossy(first);
            let first = shown(Path::new(&*first));
            opened
                .notes
                .push(format!("{count} of the paths in --only are not in {}; the first is {first}", shown(path)));
        }
        Ok(opened)
    }
}
