//! Which trees a run shows its guest, and where.

use std::ffi::OsStr;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};

use inarch_tree::select::Selection;
use rustix::fs::{AtFlags, StatxAttributes, StatxFlags};

use super::{Root, RunRequest};
use crate::JobError;
use crate::device::{FileSystem, Recipe, Writes};
use crate::source::{KERNEL_TREES, Source};

/// A tree and where the guest mounts it.
#[derive(Clone, Debug)]
pub(super) struct Disk {
    pub recipe: Recipe,
    /// Absolute path in the guest; `/` for the root.
    pub destination: PathBuf,
    pub read_only: bool,
    /// Serial number of the disk, by which the guest tells it from the others.
    pub serial: String,
}

impl Disk {
    /// Whether this is the guest's root.
    pub fn is_root(&self) -> bool {
        self.destination == Path::new("/")
    }
}

/// Most disks of one guest: each takes a slot of its PCI bus.
const MOST_DISKS: usize = 24;

/// The disks of a run, the root's first, each mount point after those above it.
pub(super) fn disks(request: &RunRequest, directory: Option<&Path>) -> Result<Vec<Disk>, JobError> {
    let mut wanted: Vec<(Source, PathBuf, Selection, bool)> = Vec::new();
    let host = |path: &Path| Source::Directory(path.to_owned());
    match &request.root {
        Root::Host => wanted.push((host(Path::new("/")), "/".into(), request.root_selection.clone(), false)),
        Root::Source(source) => wanted.push((source.clone(), "/".into(), request.root_selection.clone(), false)),
        Root::None => {}
    }
    for tree in &request.trees {
        let destination = match &tree.destination {
            Some(destination) => destination.clone(),
            None => std::path::absolute(tree.source.path())
                .map_err(|error| JobError::path(tree.source.path(), "cannot be used as a tree", error))?,
        };
        let destination = clean(&destination)?;
        if destination == Path::new("/") {
            return Err(JobError::Other("a tree cannot be mounted at /; use --root for that".into()));
        }
        wanted.push((tree.source.clone(), destination, tree.selection.clone(), tree.read_only));
    }
    if let (Root::Host, Some(directory)) = (&request.root, directory)
        && !is_covered(directory, &wanted)
    {
        wanted.push((host(directory), directory.to_owned(), request.root_selection.clone(), false));
    }
    if wanted.len() > MOST_DISKS {
        return Err(JobError::Other(format!("{} trees are too many; a guest takes {MOST_DISKS}", wanted.len())));
    }
    wanted.sort_by_key(|(_, destination, ..)| (destination.components().count(), destination.clone()));
    if let Some(pair) = wanted.windows(2).find(|pair| pair[0].1 == pair[1].1) {
        return Err(JobError::Other(format!("two trees are to be mounted at {}", pair[0].1.display())));
    }
    let count = wanted.len() as u8;
    Ok(wanted.into_iter().zip(0..).map(|(wanted, i)| disk(request, (i, count), wanted)).collect())
}

fn disk(
    request: &RunRequest,
    (ordinal, disks): (u8, u8),
    (source, destination, selection, read_only): (Source, PathBuf, Selection, bool),
) -> Disk {
    let writes = if read_only { Writes::Refused } else { Writes::ThrownAway(request.overlay_dir.clone()) };
    let recipe = Recipe { source, selection, threads: 0, format: FileSystem::Ext4, writes, ordinal, disks };
    Disk { recipe, destination, read_only, serial: format!("inarch-{ordinal}") }
}

/// Whether the guest sees this machine's `directory` by the trees it has already. One that does not exist here may
/// exist there; the guest will say.
fn is_covered(directory: &Path, trees: &[(Source, PathBuf, Selection, bool)]) -> bool {
    let below_a_tree =
        trees.iter().any(|(_, destination, ..)| destination != Path::new("/") && directory.starts_with(destination));
    let first = directory.components().find_map(|component| match component {
        Component::Normal(name) => Some(name),
        _ => None,
    });
    let of_the_guest = first.is_some_and(|first| KERNEL_TREES.iter().any(|name| first == OsStr::new(name)));
    let crosses = trees.first().is_some_and(|(_, _, selection, _)| selection.cross);
    let mounted = || directory.ancestors().any(|path| path != Path::new("/") && is_mount_point(path));
    below_a_tree || !directory.exists() || (!of_the_guest && (crosses || !mounted()))
}

/// Whether something is mounted at `path`: the scan's own rule, which sees bind mounts too.
fn is_mount_point(path: &Path) -> bool {
    let device = |path: &Path| path.metadata().map(|metadata| metadata.dev()).ok();
    match rustix::fs::statx(rustix::fs::CWD, path, AtFlags::NO_AUTOMOUNT, StatxFlags::TYPE) {
        Ok(status) if status.stx_attributes_mask.contains(StatxAttributes::MOUNT_ROOT) => {
            status.stx_attributes.contains(StatxAttributes::MOUNT_ROOT)
        }
        // Before Linux 5.8.
        _ => path.parent().is_some_and(|parent| device(path) != device(parent)),
    }
}

/// An absolute path without `.`, `..` and double slashes.
fn clean(path: &Path) -> Result<PathBuf, JobError> {
    if path.components().any(|component| component == Component::ParentDir) {
        return Err(JobError::Other(format!("{}: a mount point is given without '..'", path.display())));
    }
    Ok(path.components().collect())
}
