//! Decides which trees a run shows its guest, at which paths and by which transports.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use inarch_format::disk::DiskFormat;
use inarch_kept::mount_points_in;
use inarch_source::{KERNEL_TREES, Source};
use inarch_tree::select::{OwnerMap, Selection};
use inarch_vm::initramfs::SOCKET_MODULE;
use rustix::fs::{AtFlags, StatxAttributes, StatxFlags};

use super::choice::{self, Choice, Needs};
use super::error::MOST_TREES;
use super::holding::Held;
use super::shares::{SharedTree, Wire};
use super::traced::RunTrace;
use super::unpacked::{Places, UnpackedTree};
use super::{Publish, Root, RunError, RunRequest, TreeMount, Vmm, Way, WireOptions};
use crate::JobError;
use crate::device::{Recipe, Watcher, Writes};
use crate::share::{Changes, Refused, Share, Submounts, directory_of};

/// A tree on a disk, and where the guest mounts it.
#[derive(Clone, Debug)]
pub(super) struct Disk {
    pub recipe: Recipe,
    /// Absolute path in the guest; `/` for the root. `None` for the scratch disk, which holds the writes to overlaid
    /// trees.
    pub destination: Option<PathBuf>,
    pub read_only: bool,
    /// Whether it is the lower layer of an overlayfs in the guest, because its file system is read-only.
    pub overlaid: bool,
    /// Serial number of the disk, by which the guest finds it.
    pub serial: String,
    /// Which of its files are held.
    pub hold: Option<Held>,
}

/// The trees that a run shows its guest.
#[derive(Clone, Debug, Default)]
pub(super) struct Trees {
    /// Trees on disks: the root's first, and each mount point after those above it.
    pub disks: Vec<Disk>,
    /// Shared directories, in the same order.
    pub shares: Vec<SharedTree>,
    /// Trees that the guest unpacks, in the same order.
    pub unpacked: Vec<UnpackedTree>,
    /// The transport chosen for each `--via auto` tree.
    pub chosen: Vec<Chosen>,
}

/// The transport chosen for a tree.
#[derive(Clone, Debug)]
pub(super) struct Chosen {
    pub destination: PathBuf,
    pub choice: Choice,
}

/// The properties of a guest that decide about trees and transports.
pub(super) struct GuestAbilities<'a> {
    /// Whether its kernel has a module.
    pub has: &'a dyn Fn(&str) -> bool,
    /// Its memory, in bytes.
    pub memory: u64,
}

impl Trees {
    /// Whether the guest reaches a tree this way.
    pub fn need(&self, wire: Wire) -> bool {
        self.shares.iter().any(|shared| shared.wire == wire)
    }

    /// Has `trace` record what is done with the trees that the guest does not unpack.
    pub fn record(&mut self, trace: &RunTrace) {
        for shared in &mut self.shares {
            shared.trace = Some(trace.tree(&shared.destination));
        }
        for disk in &mut self.disks {
            let tree = disk.destination.as_deref().map(|destination| trace.tree(destination));
            disk.recipe.trace = tree.map(|tree| Watcher(Arc::new(move |content, of| tree.watch(content, of))));
        }
    }

    /// Has the requests to live trees measured.
    pub fn measure(&mut self) {
        self.shares.iter_mut().for_each(|shared| shared.share.measures = Some(Arc::default()));
    }

    /// The file system types that the guest's kernel must support.
    pub fn file_systems(&self) -> Vec<&'static str> {
        let mut names: Vec<_> = self.disks.iter().map(|disk| disk.recipe.format.name()).collect();
        let overlaid = self.disks.iter().any(|disk| disk.overlaid) || self.shares.iter().any(|shared| shared.overlaid);
        names.extend(overlaid.then_some("overlay"));
        names.extend(self.shares.iter().map(|shared| shared.wire.file_system()));
        names.extend((!self.unpacked.is_empty()).then_some("tmpfs"));
        names.sort_unstable();
        names.dedup();
        names
    }
}

/// A tree to be shown.
struct Wanted {
    source: Source,
    destination: PathBuf,
    selection: Selection,
    read_only: bool,
    via: Way,
    wire: WireOptions,
    changes: Changes,
    writeback: bool,
    write_through: bool,
    refused: Refused,
    hold: bool,
    live: bool,
    locks: bool,
}

impl Wanted {
    /// Whether the guest's writes go to a separate overlay.
    fn is_overlaid(&self) -> bool {
        let takes_writes = match self.via {
            Way::Disk(format) => format.is_writable(),
            Way::Virtiofs | Way::Ninep => self.write_through,
            Way::Tar | Way::Auto => true,
        };
        !self.read_only && !takes_writes
    }

    /// Chooses the best transport if none is given; returns the choice.
    fn choose(&mut self, guest: &GuestAbilities<'_>) -> Option<Chosen> {
        if self.via != Way::Auto {
            return None;
        }
        let needs = Needs {
            write_through: self.write_through,
            live: self.live,
            overlay: !self.read_only,
            directory: matches!(self.source, Source::Directory(_)) && self.selection.is_all(),
        };
        let choice = choice::choose(guest.has, needs);
        self.via = choice.way;
        Some(Chosen { destination: self.destination.clone(), choice })
    }
}

/// What is looked at of trees before the guest is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Look {
    /// Those that the guest unpacks are scanned: their size says where it has room for them.
    AtUnpacked,
    /// Nothing: the machine is not started.
    Nowhere,
}

/// Finds the trees of a run.
pub(super) fn trees(
    request: &RunRequest,
    directory: Option<&Path>,
    guest: &GuestAbilities<'_>,
    look: Look,
) -> Result<Trees, JobError> {
    let mut wanted = wanted(request, directory)?;
    let chosen = wanted.iter_mut().filter_map(|tree| tree.choose(guest)).collect();
    let mut trees = Trees { chosen, ..Trees::default() };
    let destinations: Vec<PathBuf> = wanted.iter().map(|tree| tree.destination.clone()).collect();
    // In a writable tree the agent makes them.
    let mount_points = |tree: &Wanted| match tree.read_only {
        true => mount_points_in(&tree.destination, destinations.iter().cloned()).into_iter().collect(),
        false => Vec::new(),
    };
    let has_disks = (guest.has)("ext4") && (guest.has)("virtio_blk");
    let is_unpacked = wanted.iter().any(|tree| tree.via == Way::Tar);
    let is_asked = is_unpacked && has_disks && look == Look::AtUnpacked;
    let mut places = Places::new(guest.memory, is_asked.then_some(&request.overlay_dir))?;
    // A kernel without these can run nothing; loading its modules reports that.
    let is_reached = match request.vmm {
        Vmm::Qemu => (guest.has)("virtio_pci") && (guest.has)("virtio_console"),
        Vmm::Uml => (guest.has)(SOCKET_MODULE),
    };
    for (ordinal, tree) in wanted.iter().filter(|tree| is_reached && tree.via == Way::Tar).enumerate() {
        if look == Look::Nowhere {
            let (source, destination) = (tree.source.clone(), tree.destination.clone());
            trees.unpacked.push(UnpackedTree::unseen(source, ordinal, destination, tree.read_only));
            continue;
        }
        let source = (tree.source.clone(), &tree.selection);
        let place = (tree.destination.clone(), tree.read_only, mount_points(tree));
        trees.unpacked.push(UnpackedTree::open(source, ordinal, place, &mut places, &request.overlay_dir)?);
    }
    // Without ext4 the writes stay in the guest's memory.
    let written = wanted.iter().any(Wanted::is_overlaid) && has_disks;
    let has_scratch = written || trees.unpacked.iter().any(|tree| tree.on_scratch);
    let is_disk = |tree: &Wanted| matches!(tree.via, Way::Disk(_));
    let count = wanted.iter().filter(|tree| is_disk(tree)).count() as u8 + u8::from(has_scratch);
    for tree in wanted {
        let mount_points = mount_points(&tree);
        match tree.via {
            Way::Disk(format) => {
                let ordinal = trees.disks.len() as u8;
                let mut disk = disk(request, (ordinal, count), format, tree);
                disk.recipe.mount_points = mount_points;
                trees.disks.push(disk);
            }
            Way::Virtiofs => {
                check_mount_points(&tree, &mount_points)?;
                trees.shares.push(shared(trees.shares.len(), Wire::Virtiofs, tree)?);
            }
            Way::Ninep => {
                check_mount_points(&tree, &mount_points)?;
                let wire = if (guest.has)(SOCKET_MODULE) { Wire::Ninep } else { Wire::NinepOverTcp };
                trees.shares.push(shared(trees.shares.len(), wire, tree)?);
            }
            Way::Tar | Way::Auto => {}
        }
    }
    trees.disks.extend(has_scratch.then(|| scratch(request, count)));
    Ok(trees)
}

/// Nothing can be added to a shared directory.
fn check_mount_points(tree: &Wanted, mount_points: &[Vec<u8>]) -> Result<(), RunError> {
    let source = tree.source.path();
    let missing = |point: &&Vec<u8>| !source.join(OsStr::from_bytes(point)).exists();
    let mut missing: Vec<String> =
        mount_points.iter().filter(missing).map(|point| String::from_utf8_lossy(point).into_owned()).collect();
    missing.sort();
    match missing.is_empty() {
        true => Ok(()),
        false => Err(RunError::NoMountPoint { tree: source.to_owned(), missing: missing.join(", ").into() }),
    }
}

/// The requested trees, each mount point after those above it.
fn wanted(request: &RunRequest, directory: Option<&Path>) -> Result<Vec<Wanted>, JobError> {
    let mut wanted: Vec<Wanted> = Vec::new();
    let like_root = |source, destination: &Path| Wanted {
        source,
        destination: destination.to_owned(),
        selection: request.root_selection.clone(),
        read_only: request.root_read_only,
        via: request.root_via,
        wire: request.root_wire,
        changes: Changes::Host,
        writeback: false,
        write_through: false,
        refused: Refused::default(),
        hold: false,
        live: false,
        locks: false,
    };
    let host = |path: &Path| Source::Directory(path.to_owned());
    match &request.root {
        Root::Host => wanted.push(like_root(host(Path::new("/")), Path::new("/"))),
        Root::Source(source) => wanted.push(like_root(source.clone(), Path::new("/"))),
        Root::None => {}
    }
    for tree in &request.trees {
        wanted.push(Wanted {
            source: tree.source.clone(),
            destination: destination(tree)?,
            selection: tree.selection.clone(),
            read_only: tree.read_only,
            via: tree.via,
            wire: tree.wire,
            changes: tree.changes,
            writeback: tree.writeback,
            write_through: tree.write_through,
            refused: tree.refused,
            hold: tree.hold,
            live: tree.live,
            locks: false,
        });
    }
    for cache in request.caches.iter().filter(|cache| cache.live) {
        let (uid, gid) = cache.owner;
        wanted.push(Wanted {
            source: Source::Directory(cache.place.live_directory()),
            destination: clean(&cache.destination)?,
            selection: Selection { owners: OwnerMap::Fixed { uid, gid }.into(), ..Selection::default() },
            read_only: cache.publish == Publish::Never,
            via: Way::Virtiofs,
            wire: WireOptions::default(),
            changes: Changes::Host,
            writeback: false,
            write_through: cache.publish != Publish::Never,
            refused: Refused { privileges: true, devices: true },
            hold: false,
            live: true,
            locks: true,
        });
    }
    for cache in request.caches.iter().filter(|cache| !cache.live) {
        wanted.push(Wanted {
            source: cache.source(),
            destination: clean(&cache.destination)?,
            selection: Selection::default(),
            read_only: false,
            via: Way::Disk(DiskFormat::Ext4),
            wire: WireOptions::default(),
            changes: Changes::Host,
            writeback: false,
            write_through: false,
            refused: Refused { privileges: true, devices: true },
            hold: false,
            live: false,
            locks: false,
        });
    }
    if let (Root::Host, Some(directory)) = (&request.root, directory)
        && !is_covered(directory, &wanted)
    {
        wanted.push(like_root(host(directory), directory));
    }
    wanted.iter_mut().for_each(leave_caches_out);
    if wanted.iter().any(|tree| tree.source == Source::StandardInput) {
        return Err(RunError::StandardInput.into());
    }
    if wanted.len() > MOST_TREES {
        return Err(RunError::TooManyTrees(wanted.len()).into());
    }
    wanted.sort_by_key(|tree| (tree.destination.components().count(), tree.destination.clone()));
    if let Some(pair) = wanted.windows(2).find(|pair| pair[0].destination == pair[1].destination) {
        return Err(RunError::SamePlace { destination: pair[0].destination.clone() }.into());
    }
    Ok(wanted)
}

/// What other projects have in their caches is not for this guest.
fn leave_caches_out(tree: &mut Wanted) {
    let (Source::Directory(root), Ok(caches)) = (&tree.source, inarch_cache::home()) else { return };
    let below = caches.canonicalize().ok().zip(root.canonicalize().ok());
    let below =
        below.and_then(|(caches, root)| Some(caches.strip_prefix(root).ok()?.as_os_str().as_bytes().to_owned()));
    tree.selection.leave_out.extend(below.filter(|below| !below.is_empty()));
}

/// The guest's path of a tree.
fn destination(tree: &TreeMount) -> Result<PathBuf, JobError> {
    let source = &tree.source;
    let destination = match (&tree.destination, source) {
        (Some(destination), _) => destination.clone(),
        (None, Source::Directory(path)) => {
            std::path::absolute(path).map_err(|error| JobError::path(path, "cannot be used as a tree", error))?
        }
        _ => return Err(RunError::NoPlace { from: source.clone() }.into()),
    };
    let destination = clean(&destination)?;
    if destination == Path::new("/") {
        return Err(RunError::AtRoot.into());
    }
    Ok(destination)
}

fn shared(ordinal: usize, wire: Wire, wanted: Wanted) -> Result<SharedTree, JobError> {
    let overlaid = wanted.is_overlaid();
    let share = Share {
        directory: directory_of(&wanted.source)?.to_owned(),
        changes: wanted.changes,
        uncached: false,
        read_only: wanted.read_only || overlaid,
        refused: wanted.refused,
        over: None,
        submounts: match wanted.selection.cross {
            false => Submounts::Empty,
            // The guest's overlayfs accepts no lower layer that contains mount points.
            true if overlaid => Submounts::Merged,
            true => Submounts::Separate,
        },
        xattrs: true,
        acl: false,
        writeback: wanted.writeback,
        locks: wanted.locks,
        owners: wanted.selection.owners.clone(),
        measures: None,
    };
    let tag = format!("inarch-{ordinal}");
    Ok(SharedTree {
        share,
        wire,
        options: wanted.wire,
        ordinal,
        destination: wanted.destination,
        overlaid,
        tag,
        trace: None,
        requests: Arc::default(),
    })
}

fn disk(request: &RunRequest, (ordinal, disks): (u8, u8), format: DiskFormat, wanted: Wanted) -> Disk {
    let overlaid = wanted.is_overlaid();
    let Wanted { source, destination, selection, read_only, hold, .. } = wanted;
    let hold = hold.then(Held::default);
    let read_only = read_only || overlaid;
    let writes = if read_only { Writes::Refused } else { Writes::ThrownAway(request.overlay_dir.clone()) };
    let recipe = Recipe {
        source,
        selection,
        patience: Duration::ZERO,
        format,
        writes,
        ordinal,
        disks,
        kept: None,
        mount_points: Vec::new(),
        trace: None,
    };
    Disk { recipe, destination: Some(destination), read_only, overlaid, serial: format!("inarch-{ordinal}"), hold }
}

/// The scratch disk, which comes last: it holds the writes to trees with read-only file systems.
fn scratch(request: &RunRequest, disks: u8) -> Disk {
    let recipe = Recipe {
        source: Source::Empty,
        selection: Selection::default(),
        patience: Duration::ZERO,
        format: DiskFormat::Ext4,
        writes: Writes::ThrownAway(request.overlay_dir.clone()),
        ordinal: disks - 1,
        disks,
        kept: None,
        mount_points: Vec::new(),
        trace: None,
    };
    Disk {
        recipe,
        destination: None,
        read_only: false,
        overlaid: false,
        serial: "inarch-scratch".to_owned(),
        hold: None,
    }
}

/// Whether the guest already sees this machine's `directory` through another tree. A directory that does not exist here
/// may exist there; the guest will tell.
fn is_covered(directory: &Path, trees: &[Wanted]) -> bool {
    let below_a_tree =
        trees.iter().any(|tree| tree.destination != Path::new("/") && directory.starts_with(&tree.destination));
    let first = directory.components().find_map(|component| match component {
        Component::Normal(name) => Some(name),
        _ => None,
    });
    let of_the_guest = first.is_some_and(|first| KERNEL_TREES.iter().any(|name| first == OsStr::new(name)));
    let crosses = trees.first().is_some_and(|tree| tree.selection.cross);
    let mounted = || directory.ancestors().any(|path| path != Path::new("/") && is_mount_point(path));
    below_a_tree || !directory.exists() || (!of_the_guest && (crosses || !mounted()))
}

/// Whether `path` is a mount point, by the scan's own rule, which detects bind mounts too.
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
fn clean(path: &Path) -> Result<PathBuf, RunError> {
    if path.components().any(|component| component == Component::ParentDir) {
        return Err(RunError::Upwards { destination: path.to_owned() });
    }
    Ok(path.components().collect())
}
