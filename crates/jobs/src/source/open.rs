//! Opening a source: a tree, where its content lies, and what makes it the same another time.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use inarch_block::{BackedFiles, BackingFile, Content, HostFiles, Renumbered, read_content};
use inarch_confine::Parsing;
use inarch_format::oci::ImageConfig;
use inarch_format::{Damage, Host, ReadError, ThisHost, oci};
use inarch_tree::scan::{self, Report};
use inarch_tree::select::{ReadFile, Selection, select, with_directories};
use inarch_tree::{Attributes, BuildError, Builder, Extents, InodeId, Tree};
use inarch_volume::Volume;
use sha2::{Digest, Sha256};

use super::foreign::{parse, parse_asking};
use super::{FileKind, OpenError, Source};
use crate::text::shown;

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
    /// How a container image says that it is started.
    pub image: Option<ImageConfig>,
    /// The tree before it was selected from, where that makes a difference.
    pub(crate) original: Option<Arc<Tree>>,
    /// What besides the tree tells one moment of the source from another: the content of an archive may change and its
    /// names stay. Of a pipe it is there only if [`Resources::stamp`] asked for it.
    pub(crate) stamp: Vec<u8>,
}

/// What opening a source may use of this process, and what of it is wanted.
#[derive(Clone, Debug)]
pub struct Resources {
    /// How long a scan takes no more than the time that others leave of the processors.
    pub patience: Duration,
    /// How many sources share this process's descriptors, at least 1.
    pub sharers: usize,
    /// Where a compressed archive, or one from a pipe, is unpacked, into a file without a name.
    pub spool_directory: PathBuf,
    /// Whether the source must be known again another time: a pipe's bytes are hashed for it.
    pub stamp: bool,
}

impl Default for Resources {
    /// At once, for one source that is used once.
    fn default() -> Resources {
        Resources { patience: Duration::ZERO, sharers: 1, spool_directory: spool_directory(), stamp: false }
    }
}

/// Where archives are unpacked unless something else is said: `TMPDIR`, or /var/tmp, which is no memory.
pub(crate) fn spool_directory() -> PathBuf {
    let named = std::env::var_os("TMPDIR").map(PathBuf::from).filter(|path| path.is_absolute());
    named.unwrap_or_else(|| PathBuf::from("/var/tmp"))
}

/// Opens `source` and takes of it what `selection` says.
pub fn open(source: &Source, selection: &Selection) -> Result<Opened, OpenError> {
    open_with(source, selection, &Resources::default())
}

/// As [`open`], within `resources`.
pub fn open_with(source: &Source, selection: &Selection, resources: &Resources) -> Result<Opened, OpenError> {
    match source {
        Source::Directory(path) => open_directory(path, selection, resources),
        Source::Empty => empty().map_err(OpenError::Empty),
        foreign => open_foreign(foreign, selection, resources),
    }
}

/// Opens a source that others made: its file is opened here, and parsed by a thread that is confined to that.
fn open_foreign(source: &Source, selection: &Selection, resources: &Resources) -> Result<Opened, OpenError> {
    let path = source.path();
    let fail = |error| OpenError::Read { path: path.to_owned(), error };
    let cannot_open = |error| OpenError::path(path, "cannot open it", error);
    let input = match source {
        Source::StandardInput => rustix::stdio::stdin().try_clone_to_owned().map(File::from),
        _ => File::open(path),
    };
    let input = input.map_err(cannot_open)?;
    let mut host = ThisHost::new(&resources.spool_directory);
    let mut known = Vec::new();
    match source {
        Source::File { .. } => known = stamp(&input).map_err(cannot_open)?,
        Source::Oci { .. } => {
            known = if resources.stamp { stamp_all(path)? } else { Vec::new() };
            host = host.with_layout(input.try_clone().map_err(cannot_open)?.into(), path.to_owned());
        }
        _ => {}
    }
    let damage = if selection.salvage { Damage::Salvaged } else { Damage::Refused };
    parse_asking(&host, |parsing, host| {
        let opened = match source {
            Source::File { kind, .. } => open_file(parsing, (input, path), *kind, host, damage).map(Opened::from),
            Source::Oci { reference, .. } => {
                oci::open_file(parsing, (input, path), reference.as_deref(), host, damage).map(Opened::from)
            }
            _ => open_stream(parsing, input, resources.stamp, host, damage),
        };
        let mut opened = opened.map_err(fail)?;
        if !known.is_empty() {
            opened.stamp = known;
        }
        opened.select(source, selection)
    })?
}

/// A file system in an image, opened to be asked for what is wanted.
pub(crate) struct OpenedVolume {
    pub(crate) volume: Arc<dyn Volume>,
    /// What tells one state of the image from another.
    pub(crate) stamp: Vec<u8>,
}

/// Opens a source of which any part can be read when it is wanted; none if that is another kind of source.
pub(crate) fn open_volume(source: &Source, salvage: bool) -> Result<Option<OpenedVolume>, OpenError> {
    let Source::File { path, kind: FileKind::Volume(reader) } = source else { return Ok(None) };
    let cannot_open = |error| OpenError::path(path, "cannot open it", error);
    let file = File::open(path).map_err(cannot_open)?;
    let stamp = stamp(&file).map_err(cannot_open)?;
    let image = Arc::new(BackingFile::new(file, path.clone()).map_err(cannot_open)?);
    let damage = if salvage { Damage::Salvaged } else { Damage::Refused };
    let volume = parse(|parsing| reader.open(parsing, image, damage))?;
    let volume = volume.map_err(|error| OpenError::Read { path: path.clone(), error })?;
    Ok(Some(OpenedVolume { volume, stamp }))
}

impl Opened {
    /// A tree of the directory `path` as it was at some time: what has changed in it since then is found when it is read.
    pub(crate) fn at(path: &Path, tree: Tree) -> Result<Opened, OpenError> {
        let root = File::open(path).map_err(|error| OpenError::path(path, "cannot open the tree", error))?;
        let tree = Arc::new(tree);
        let content = Arc::new(HostFiles::new(root.into(), Arc::clone(&tree), HostFiles::default_max_open()));
        Ok(inarch_format::TreeAndContent { tree, content, notes: Vec::new(), image: None }.into())
    }
}

impl From<inarch_format::TreeAndContent> for Opened {
    fn from(opened: inarch_format::TreeAndContent) -> Opened {
        let inarch_format::TreeAndContent { tree, content, notes, image } = opened;
        Opened { tree, content, notes, image, report: Report::default(), original: None, stamp: Vec::new() }
    }
}

fn open_directory(path: &Path, selection: &Selection, resources: &Resources) -> Result<Opened, OpenError> {
    let mut options = selection.scan_options();
    options.patience = resources.patience;
    if path == Path::new("/") {
        options.leave_out.extend(KERNEL_TREES.iter().map(|name| name.as_bytes().to_vec()));
    }
    let scan = scan::scan(path, &options)?;
    let tree = Arc::new(scan.tree);
    let max_open = HostFiles::default_max_open() / resources.sharers.max(1);
    let content = Arc::new(HostFiles::new(scan.root, Arc::clone(&tree), max_open));
    let opened = Opened {
        report: scan.report,
        ..inarch_format::TreeAndContent { tree, content, notes: Vec::new(), image: None }.into()
    };
    let mut rest = selection.after_scan();
    if let Some(only) = &mut rest.only {
        // A trace on this host names files by the host's paths.
        let names = [std::path::absolute(path).ok(), path.canonicalize().ok()];
        for name in names.iter().flatten() {
            *only = Arc::new(only.beneath(name.as_os_str().as_bytes()));
        }
    }
    opened.select(&Source::Directory(path.to_owned()), &rest)
}

/// Directories of `/` that belong to its kernel or to this boot, and that a guest has its own of.
pub(crate) const KERNEL_TREES: [&str; 5] = ["proc", "sys", "dev", "run", "tmp"];

fn open_file(
    parsing: Parsing,
    (file, path): (File, &Path),
    kind: FileKind,
    host: &dyn Host,
    damage: Damage,
) -> Result<inarch_format::TreeAndContent, ReadError> {
    let backing = |file| match BackingFile::new(file, path.to_owned()) {
        Ok(backing) => Ok(Arc::new(backing)),
        Err(error) => Err(ReadError::Io { offset: 0, error }),
    };
    match kind {
        FileKind::Tar | FileKind::CompressedTar => oci::open_tar_file(parsing, file, path, host, damage),
        FileKind::Volume(reader) => reader.walk(parsing, backing(file)?, damage),
    }
}

/// A tree of nothing but its root.
fn empty() -> Result<Opened, BuildError> {
    let root = Attributes { mode: 0o040_755, ..Attributes::default() };
    let tree = Arc::new(Builder::new(&root)?.finish()?);
    let content = Arc::new(BackedFiles::new(Arc::clone(&tree), Extents::default(), Vec::new()));
    Ok(inarch_format::TreeAndContent { tree, content, notes: Vec::new(), image: None }.into())
}

/// [`stamp`] of a file, or of everything in a directory.
fn stamp_all(path: &Path) -> Result<Vec<u8>, OpenError> {
    if path.is_dir() {
        let tree = scan::scan(path, &scan::ScanOptions { threads: 1, ..Default::default() })?.tree;
        let mut hash = Sha256::new();
        crate::source::identity::add_tree(&mut hash, &tree);
        return Ok(hash.finalize().to_vec());
    }
    let stamp = File::open(path).and_then(|file| stamp(&file));
    stamp.map_err(|error| OpenError::path(path, "cannot open it", error))
}

/// What tells one state of an archive or image from another.
fn stamp(file: &File) -> io::Result<Vec<u8>> {
    let metadata = file.metadata()?;
    let times = [metadata.mtime(), metadata.mtime_nsec(), metadata.ctime(), metadata.ctime_nsec()];
    let numbers = [metadata.ino(), metadata.len()].into_iter().map(u64::to_le_bytes);
    Ok(numbers.chain(times.map(i64::to_le_bytes)).flatten().collect())
}

fn open_stream(
    parsing: Parsing,
    input: File,
    wants_stamp: bool,
    host: &dyn Host,
    damage: Damage,
) -> Result<Opened, ReadError> {
    let mut input = Hashing { input, hash: wants_stamp.then(Sha256::new) };
    let opened = oci::open_tar_stream(parsing, &mut input, host, damage)?;
    let stamp = input.hash.map(|hash| hash.finalize().to_vec()).unwrap_or_default();
    Ok(Opened { stamp, ..opened.into() })
}

/// Passes bytes on, and hashes them if that is wanted.
struct Hashing<R> {
    input: R,
    hash: Option<Sha256>,
}

impl<R: Read> Read for Hashing<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let got = self.input.read(buffer)?;
        if let (Some(hash), Some(bytes)) = (&mut self.hash, buffer.get(..got)) {
            hash.update(bytes);
        }
        Ok(got)
    }
}

impl Opened {
    /// It with directories, paths from the root, where nothing is at those.
    pub(crate) fn with_directories(self, paths: &[Vec<u8>]) -> Result<Opened, OpenError> {
        if paths.iter().all(|path| self.tree.lookup(path).is_some()) {
            return Ok(self);
        }
        let added = with_directories(&self.tree, paths);
        let added = added.map_err(OpenError::MountPoints)?;
        Ok(Opened {
            tree: Arc::new(added.tree),
            content: Arc::new(Renumbered::new(self.content, added.origins)),
            original: Some(self.original.unwrap_or(self.tree)),
            ..self
        })
    }

    /// What `selection` leaves of it.
    fn select(self, source: &Source, selection: &Selection) -> Result<Opened, OpenError> {
        if selection.is_all() {
            return Ok(self);
        }
        let read: &ReadFile<'_> = &|inode: InodeId, most: u64| {
            let mut text = vec![0; self.tree.inode(inode).size().min(most) as usize];
            read_content(&*self.content, inode, 0, &mut text).ok().map(|()| text)
        };
        let selected =
            select(&self.tree, selection, read).map_err(|error| OpenError::Select { from: source.clone(), error })?;
        let mut opened = Opened {
            tree: Arc::new(selected.tree),
            content: Arc::new(Renumbered::new(self.content, selected.origins)),
            original: Some(self.tree),
            ..self
        };
        opened.report.filtered += selected.filtered;
        if let Some(first) = selected.missing.first() {
            let of = if selected.missing.len() == 1 { "is" } else { "are" };
            let count = selected.missing.len();
            let first = shown(Path::new(&*String::from_utf8_lossy(first)));
            opened.notes.push(format!("{source}: {count} of the paths of --only {of} not in it; the first is {first}"));
        }
        Ok(opened)
    }
}
