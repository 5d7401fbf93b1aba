//! Opens a source: gives its tree, its content, and a stamp that tells one state of it from another.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use inarch_block::{BackedFiles, BackingFile, Content, HostFiles, Renumbered, read_content};
use inarch_cache::KeptImage;
use inarch_confine::Parsing;
use inarch_format::oci::ImageConfig;
use inarch_format::{Damage, Host, ReadError, ThisHost, TreeAndContent, oci};
use inarch_lifecycle::shown;
use inarch_tree::scan::{self, Report};
use inarch_tree::select::{ReadFile, Selection, beneath, select, with_directories};
use inarch_tree::{Attributes, BuildError, Builder, Extents, FileType, InodeId, Tree};
use inarch_volume::{TreeVolume, Volume};
use sha2::{Digest, Sha256};

use super::foreign::{parse, parse_asking};
use super::hashed::add_tree;
use super::{ArchivePart, DiskPart, FileKind, OpenError, Source, Which, disk};

/// An opened source: the part of it that was selected.
pub struct Opened {
    /// Names, attributes and sizes.
    pub tree: Arc<Tree>,
    /// The bytes of the tree's regular files.
    pub content: Arc<dyn Content>,
    /// What the scan of a directory left out, and why; for any source, how many names the filter excluded.
    pub report: Report,
    /// Lines about the source that the user should read; [`Source::named`] puts its name before them.
    pub notes: Vec<String>,
    /// How to start a container image, by its own configuration.
    pub image: Option<ImageConfig>,
    /// The tree before the selection, if the selection changed it.
    pub original: Option<Arc<Tree>>,
    /// Tells one state of the source from another, beside the tree: the content of an archive may change while its names stay the same.
    /// For a pipe it is empty unless [`Resources::stamp`] asked for it.
    pub stamp: Vec<u8>,
}

/// What opening a source may use, and what it must find out.
#[derive(Clone, Debug)]
pub struct Resources {
    /// How long a scan runs at the lowest priority.
    pub patience: Duration,
    /// The number of sources that share this process's descriptors, at least 1.
    pub sharers: usize,
    /// The directory in which a compressed archive, or one from a pipe, is unpacked into a nameless file.
    pub spool_directory: PathBuf,
    /// Whether the source must be recognised by a later command. If so, the bytes of a pipe are hashed.
    pub stamp: bool,
}

impl Default for Resources {
    /// For a single source, scanned at normal priority, that no later command must recognise.
    fn default() -> Resources {
        Resources { patience: Duration::ZERO, sharers: 1, spool_directory: spool_directory(), stamp: false }
    }
}

/// The default directory for unpacked archives: `TMPDIR`, or /var/tmp, which is on a disk (/tmp may be in memory).
pub fn spool_directory() -> PathBuf {
    let named = std::env::var_os("TMPDIR").map(PathBuf::from).filter(|path| path.is_absolute());
    named.unwrap_or_else(|| PathBuf::from("/var/tmp"))
}

/// Opens the part of `source` that `selection` includes.
pub fn open(source: &Source, selection: &Selection) -> Result<Opened, OpenError> {
    open_with(source, selection, &Resources::default())
}

/// Like [`open`], within `resources`.
pub fn open_with(source: &Source, selection: &Selection, resources: &Resources) -> Result<Opened, OpenError> {
    match source {
        Source::Directory(path) => open_directory(path, selection, resources),
        Source::Empty => empty().map_err(OpenError::Empty),
        Source::Disk { .. } => open_disk(source, selection),
        Source::Cache(cache) => cache.open(selection),
        foreign => open_foreign(foreign, selection, resources),
    }
}

/// Opens a foreign source: opens its file here, and has a thread parse it that is confined to parsing.
fn open_foreign(source: &Source, selection: &Selection, resources: &Resources) -> Result<Opened, OpenError> {
    let kept = match source {
        Source::Registry(image) => Some(image.fetch()?),
        _ => None,
    };
    let path = kept.map_or(source.path(), KeptImage::place);
    let fail = |error| OpenError::Read { path: source.path().to_owned(), error };
    let cannot_open = |error| OpenError::path(path, "cannot open it", error);
    let input = match source {
        Source::StandardInput => rustix::stdio::stdin().try_clone_to_owned().map(File::from),
        _ => File::open(path),
    };
    let input = input.map_err(cannot_open)?;
    let mut host = ThisHost::new(&resources.spool_directory);
    let mut known = Vec::new();
    match source {
        Source::File { part, .. } => {
            let ArchivePart { machine, within } = &**part;
            known = stamp(&input).map_err(cannot_open)?;
            if machine != oci::machine() {
                known.extend([b"\0", machine.as_bytes()].concat());
            }
            let names = within.components().filter(|name| *name != Component::RootDir);
            known.extend(names.flat_map(|name| [b"\0/", name.as_os_str().as_bytes()].concat()));
        }
        Source::Oci { machine, .. } => {
            if resources.stamp {
                known = [&stamp_all(path)?[..], b"\0", machine.as_bytes()].concat();
            }
            host = host.with_layout(input.try_clone().map_err(cannot_open)?.into(), path.to_owned());
        }
        Source::Registry(image) => {
            let kept = image.fetch()?;
            // Content that is named by its digest is always the same.
            known = [kept.root.digest.to_string().as_bytes(), b"\0", image.machine().as_bytes()].concat();
            host = host.with_layout(input.try_clone().map_err(cannot_open)?.into(), path.to_owned());
        }
        _ => {}
    }
    let damage = damage(selection.salvage);
    let opened = parse_asking(&host, |parsing, host| {
        let opened = match source {
            Source::File { kind, part, .. } => {
                open_file(parsing, (input, path), (*kind, &part.machine), host, damage).map(Opened::from)
            }
            Source::Oci { reference, machine, .. } => {
                let wanted = oci::Wanted { reference: reference.as_deref(), machine };
                oci::open_file(parsing, (input, path), wanted, host, damage).map(Opened::from)
            }
            Source::Registry(image) => {
                let kept = image.fetch()?;
                oci::open_at(parsing, (&kept.root, path), image.machine(), host, damage).map(Opened::from)
            }
            _ => open_stream(parsing, input, resources.stamp, host, damage),
        };
        let mut opened = opened.map_err(fail)?;
        if !known.is_empty() {
            opened.stamp = known;
        }
        if let Source::File { part, .. } = source {
            opened = opened.beneath(source, &part.within)?;
        }
        opened.select(source, selection)
    })?;
    match (opened, kept) {
        (Err(OpenError::Read { path, error }), Some(kept)) => Err(without_damage(kept, path, error)),
        (opened, _) => opened.map(|mut opened| {
            opened.notes.extend(source.notes());
            opened
        }),
    }
}

/// Removes what of an image of a registry is damaged here, if that is why it cannot be read: then the next command fetches it again.
fn without_damage(kept: &KeptImage, path: PathBuf, error: ReadError) -> OpenError {
    match kept.discard_damaged() {
        Ok(1..) => OpenError::Damaged { path, error },
        _ => OpenError::Read { path, error },
    }
}

/// A file system in an image, opened for reading on demand.
pub struct OpenedVolume {
    /// The file system.
    pub volume: Arc<dyn Volume>,
    /// Lines about it that the user should read.
    pub notes: Vec<String>,
    /// Tells one state of the image from another.
    pub stamp: Vec<u8>,
}

/// Opens a disk image with a file system for reading on demand; `None` for any other source.
pub fn open_volume(source: &Source, salvage: bool) -> Result<Option<OpenedVolume>, OpenError> {
    let damage = damage(salvage);
    let (volume, stamp) = match source {
        Source::File { path, kind: FileKind::Volume(reader), .. } => {
            let cannot_open = |error| OpenError::path(path, "cannot open it", error);
            let file = File::open(path).map_err(cannot_open)?;
            let stamp = stamp(&file).map_err(cannot_open)?;
            let image = Arc::new(BackingFile::new(file, path.clone()).map_err(cannot_open)?);
            let volume = parse(|parsing| reader.open(parsing, image, damage))?;
            (volume.map_err(|error| OpenError::Read { path: path.clone(), error })?, stamp)
        }
        Source::Disk { path, part } => {
            let DiskPart { which, within, .. } = &**part;
            let mut known = Vec::new();
            let disks = part.files(path);
            for file in disks.iter().flat_map(|disk| [&disk.path].into_iter().chain(&disk.with)) {
                let cannot_open = |error| OpenError::path(file, "cannot open it", error);
                known.extend(File::open(file).and_then(|file| stamp(&file)).map_err(cannot_open)?);
            }
            let name = if let Which::Named(name) = which { name } else { "" };
            for part in [name.as_bytes(), within.as_os_str().as_bytes()] {
                known.extend_from_slice(&(part.len() as u64).to_le_bytes());
                known.extend_from_slice(part);
            }
            let images = part.open(path)?;
            let volume = parse(|parsing| disk::open(parsing, images, part, damage))?;
            (volume.map_err(|error| OpenError::Disk { path: path.clone(), error: Box::new(error) })?, known)
        }
        _ => return Ok(None),
    };
    let notes = source.notes().into_iter().chain(volume.notes()).collect();
    Ok(Some(OpenedVolume { volume, notes, stamp }))
}

/// Opens the part of a disk's file system that `selection` includes, and reads all its names.
fn open_disk(source: &Source, selection: &Selection) -> Result<Opened, OpenError> {
    let Some(OpenedVolume { volume, stamp, .. }) = open_volume(source, selection.salvage)? else {
        return empty().map_err(OpenError::Empty);
    };
    let fail = |error| OpenError::Read { path: source.path().to_owned(), error };
    parse(|parsing| {
        let mut opened = TreeAndContent::walk(parsing, volume, damage(selection.salvage)).map_err(fail)?;
        opened.notes.extend(source.notes());
        Opened { stamp, ..opened.into() }.select(source, selection)
    })?
}

fn damage(salvage: bool) -> Damage {
    if salvage { Damage::Salvaged } else { Damage::Refused }
}

impl Opened {
    /// Opens an earlier state of the directory `path`, whose tree was stored. A file that has changed since then is found when it is read.
    pub fn at(path: &Path, tree: Tree) -> Result<Opened, OpenError> {
        let root = File::open(path).map_err(|error| OpenError::path(path, "cannot open the tree", error))?;
        let tree = Arc::new(tree);
        let content = Arc::new(HostFiles::new(root.into(), Arc::clone(&tree), HostFiles::default_max_open()));
        Ok(TreeAndContent { tree, content, notes: Vec::new(), image: None }.into())
    }
}

impl From<TreeAndContent> for Opened {
    fn from(opened: TreeAndContent) -> Opened {
        let TreeAndContent { tree, content, notes, image } = opened;
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
    let opened =
        Opened { report: scan.report, ..TreeAndContent { tree, content, notes: Vec::new(), image: None }.into() };
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

/// Directories of `/` that belong to the kernel or to this boot. A guest has its own.
pub const KERNEL_TREES: [&str; 5] = ["proc", "sys", "dev", "run", "tmp"];

fn open_file(
    parsing: Parsing,
    (file, path): (File, &Path),
    (kind, machine): (FileKind, &str),
    host: &dyn Host,
    damage: Damage,
) -> Result<TreeAndContent, ReadError> {
    let backing = |file| match BackingFile::new(file, path.to_owned()) {
        Ok(backing) => Ok(Arc::new(backing)),
        Err(error) => Err(ReadError::Io { offset: 0, error }),
    };
    match kind {
        FileKind::Tar | FileKind::CompressedTar => oci::open_tar_file_for(parsing, (file, path), machine, host, damage),
        FileKind::Volume(reader) => reader.walk(parsing, backing(file)?, damage),
    }
}

/// A tree with only a root.
fn empty() -> Result<Opened, BuildError> {
    let root = Attributes { mode: 0o040_755, ..Attributes::default() };
    let tree = Arc::new(Builder::new(&root)?.finish()?);
    let content = Arc::new(BackedFiles::new(Arc::clone(&tree), Extents::default(), Vec::new()));
    Ok(TreeAndContent { tree, content, notes: Vec::new(), image: None }.into())
}

/// [`stamp`] of a file, or of everything in a directory.
fn stamp_all(path: &Path) -> Result<Vec<u8>, OpenError> {
    if path.is_dir() {
        let tree = scan::scan(path, &scan::ScanOptions { threads: 1, ..Default::default() })?.tree;
        let mut hash = Sha256::new();
        add_tree(&mut hash, &tree);
        return Ok(hash.finalize().to_vec());
    }
    let stamp = File::open(path).and_then(|file| stamp(&file));
    stamp.map_err(|error| OpenError::path(path, "cannot open it", error))
}

/// Tells one state of an archive or image from another.
fn stamp(file: &File) -> io::Result<Vec<u8>> {
    let metadata = file.metadata()?;
    if metadata.file_type().is_block_device() {
        // Nothing tells whether it was written to, so it is never the same again.
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        return Ok(since.as_nanos().to_le_bytes().to_vec());
    }
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

/// A reader that passes bytes on, and hashes them if asked to.
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
    /// Adds empty directories at those of `paths` (from the root) that do not exist.
    pub fn with_directories(self, paths: &[Vec<u8>]) -> Result<Opened, OpenError> {
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

    /// A tree whose bytes are known.
    pub(super) fn of(tree: Arc<Tree>, content: Arc<dyn Content>) -> Opened {
        TreeAndContent { tree, content, notes: Vec::new(), image: None }.into()
    }

    /// The directory `within` of it, whose command and environment are no container image's.
    fn beneath(self, source: &Source, within: &Path) -> Result<Opened, OpenError> {
        if within.as_os_str().is_empty() {
            return Ok(self);
        }
        let volume = TreeVolume::new(Arc::clone(&self.tree), Arc::clone(&self.content));
        // As in a file system: links are followed, and lead nowhere outside.
        let place = inarch_volume::canonical(&volume, within.as_os_str().as_bytes()).ok().flatten();
        let none = |what| OpenError::NoDirectory { path: source.path().to_owned(), within: within.to_owned(), what };
        let top = place.and_then(|place| self.tree.lookup(&place)).ok_or_else(|| none("there is no such directory"))?;
        if self.tree.inode(top).file_type() != FileType::Directory {
            return Err(none("it is no directory"));
        }
        let taken = beneath(&self.tree, top).map_err(|error| OpenError::Select { from: source.clone(), error })?;
        let content = Arc::new(Renumbered::new(self.content, taken.origins));
        Ok(Opened { tree: Arc::new(taken.tree), content, image: None, ..self })
    }

    /// Applies `selection`.
    pub(super) fn select(self, source: &Source, selection: &Selection) -> Result<Opened, OpenError> {
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
            opened.notes.push(format!("{count} of the paths of --only {of} not in it; the first is {first}"));
        }
        Ok(opened)
    }
}
