//! [`ApplianceVolume`]: what the guest's kernel mounts as a [`Volume`], for the commands that look at files. It is
//! for file systems that no reader of Inarch's can read.

use std::collections::HashMap;
use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::{fmt, io};

use inarch_block::{Backing, Cursor};
use inarch_lifecycle::Events;
use inarch_tree::{Extent, FileType, Timestamp, Xattr};
use inarch_volume::{Attributes, Item, Listed, Loss, Node, Statistics, Volume, VolumeError};

use super::volumes::{self, Wanted};
use super::{Access, Appliance, ApplianceError, ApplianceEvent, ApplianceRequest, FileAttributes};
use inarch_guest::Guest;

/// File systems that Linux mounts and Inarch has no reader of, by the names of their signatures.
const OF_THE_KERNEL: [&str; 6] = ["jfs", "reiserfs", "nilfs2", "hfs", "hfsplus", "gfs2"];

/// The most files that are known at once, and the most bytes of their paths.
const MOST: usize = 4_000_000;
const MOST_BYTES: usize = 1 << 30;

/// Opens an image whose file system only the kernel of an appliance reads; `None` if it is no such image. Nothing is
/// written to it.
///
/// # Errors
/// The appliance cannot be started, or cannot mount it.
pub fn look(request: &ApplianceRequest, events: Events<ApplianceEvent>) -> Result<Option<Guest>, ApplianceError> {
    let mut image = request.image.clone();
    image.read_only = true;
    let Ok((image, format)) = image.settled() else { return Ok(None) };
    let Ok(plan) = volumes::plan(&image, format, &request.with, Wanted::Named(&request.which)) else { return Ok(None) };
    let is_of_the_kernel = |format: &str| OF_THE_KERNEL.contains(&format);
    if !plan.attach.volumes.iter().any(|volume| volume.format.as_deref().is_some_and(is_of_the_kernel)) {
        return Ok(None);
    }
    let request = ApplianceRequest { access: Access::Read, ..request.clone() };
    let volume = ApplianceVolume::new(Appliance::open(&request, events)?)?;
    Ok(Some(Guest::over(Arc::new(volume), image.path)))
}

/// The mounted files.
pub struct ApplianceVolume {
    state: Mutex<State>,
}

/// An entry of a directory.
type Named = (Vec<u8>, Node);

struct State {
    appliance: Appliance,
    /// Path and attributes of each node, by its number.
    nodes: Vec<(PathBuf, Attributes)>,
    /// The numbers of paths.
    numbers: HashMap<PathBuf, u64>,
    /// Bytes of all paths.
    bytes: usize,
    /// The directory that was listed last.
    listed: Option<(Node, Vec<Named>)>,
}

impl State {
    fn add(&mut self, path: PathBuf, found: &FileAttributes) -> Result<Node, VolumeError> {
        let attributes = attributes(found);
        if let Some(number) = self.numbers.get(&path) {
            return Ok(Node(*number));
        }
        self.bytes = self.bytes.saturating_add(path.as_os_str().len());
        if self.nodes.len() >= MOST || self.bytes > MOST_BYTES {
            return Err(VolumeError::Unsupported("has more files than can be looked at".to_owned()));
        }
        let number = self.nodes.len() as u64;
        self.numbers.insert(path.clone(), number);
        self.nodes.push((path, attributes));
        Ok(Node(number))
    }

    fn node(&self, node: Node) -> Result<(PathBuf, Attributes), VolumeError> {
        let found = usize::try_from(node.0).ok().and_then(|number| self.nodes.get(number));
        found.cloned().ok_or_else(|| VolumeError::Damaged("a file that is none".to_owned()))
    }

    /// The entries of a directory, by name.
    fn entries(&mut self, directory: Node) -> Result<&[Named], VolumeError> {
        if self.listed.as_ref().is_none_or(|(listed, _)| *listed != directory) {
            let (path, _) = self.node(directory)?;
            let found = self.appliance.list(&path).map_err(failed)?;
            let mut entries = Vec::with_capacity(found.len());
            for attributes in &found {
                let node = self.add(path.join(&attributes.name), attributes)?;
                entries.push((attributes.name.as_bytes().to_vec(), node));
            }
            self.listed = Some((directory, entries));
        }
        Ok(self.listed.as_ref().map_or(&[], |(_, entries)| entries))
    }
}

fn attributes(found: &FileAttributes) -> Attributes {
    let mtime = Timestamp { seconds: found.modified.0, nanoseconds: found.modified.1.min(999_999_999) };
    let is_sized = matches!(FileType::from_mode(found.mode), Some(FileType::Regular | FileType::Symlink));
    Attributes {
        inode: found.inode,
        mode: found.mode,
        links: u32::try_from(found.links).unwrap_or(u32::MAX),
        uid: found.uid,
        gid: found.gid,
        size: if is_sized { found.size.min(i64::MAX as u64) } else { 0 },
        allocated: found.size,
        device: found.device,
        mtime,
        ctime: mtime,
        ..Attributes::default()
    }
}

fn failed(error: ApplianceError) -> VolumeError {
    VolumeError::Io { offset: 0, error: io::Error::other(error.to_string()) }
}

impl ApplianceVolume {
    fn new(mut appliance: Appliance) -> Result<ApplianceVolume, ApplianceError> {
        let root = appliance.attributes(Path::new("/"))?;
        let nodes = vec![(PathBuf::from("/"), attributes(&root))];
        let numbers = HashMap::from([(PathBuf::from("/"), 0)]);
        Ok(ApplianceVolume { state: Mutex::new(State { appliance, nodes, numbers, bytes: 0, listed: None }) })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for ApplianceVolume {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ApplianceVolume")
    }
}

impl Volume for ApplianceVolume {
    fn format(&self) -> &'static str {
        "a file system of the kernel's"
    }

    fn root(&self) -> Node {
        Node(0)
    }

    fn attributes(&self, node: Node) -> Result<Attributes, VolumeError> {
        self.lock().node(node).map(|(_, attributes)| attributes)
    }

    fn lookup(&self, directory: Node, name: &[u8]) -> Result<Option<Node>, VolumeError> {
        let mut state = self.lock();
        let (path, attributes) = state.node(directory)?;
        if attributes.file_type() != Some(FileType::Directory) {
            return Err(VolumeError::WrongType);
        }
        let path = path.join(OsString::from_vec(name.to_vec()));
        if let Some(number) = state.numbers.get(&path) {
            return Ok(Some(Node(*number)));
        }
        match state.appliance.attributes(&path) {
            Ok(found) => state.add(path, &found).map(Some),
            Err(error) if error.is_absent() => Ok(None),
            Err(error) => Err(failed(error)),
        }
    }

    fn list(&self, directory: Node, from: u64, take: &mut dyn FnMut(Item<'_>) -> bool) -> Result<(), VolumeError> {
        let mut state = self.lock();
        let entries: Vec<_> = state.entries(directory)?.to_vec();
        let types: Vec<_> =
            entries.iter().map(|(_, node)| state.node(*node).ok().and_then(|(_, is)| is.file_type())).collect();
        // `take` may ask about what it is given.
        drop(state);
        let start = usize::try_from(from).unwrap_or(usize::MAX);
        for (at, ((name, node), kind)) in entries.iter().zip(types).enumerate().skip(start) {
            let listed = Listed { name, node: *node, file_type: kind, next: at as u64 + 1 };
            if !take(Item::entry(listed.name, listed.node, listed.file_type, listed.next)) {
                break;
            }
        }
        Ok(())
    }

    fn parent(&self, directory: Node) -> Result<Option<Node>, VolumeError> {
        let state = self.lock();
        let (path, _) = state.node(directory)?;
        let parent = path.parent().unwrap_or(Path::new("/"));
        Ok(state.numbers.get(parent).copied().map(Node))
    }

    fn target(&self, symlink: Node) -> Result<Vec<u8>, VolumeError> {
        let mut state = self.lock();
        let (path, _) = state.node(symlink)?;
        let found = state.appliance.attributes(&path).map_err(failed)?;
        found.target.map(|target| target.into_os_string().into_vec()).ok_or(VolumeError::WrongType)
    }

    fn xattrs(&self, _: Node, _: &mut dyn FnMut(Loss)) -> Result<Vec<Xattr>, VolumeError> {
        Ok(Vec::new())
    }

    fn read(&self, file: Node, offset: u64, count: u64, out: &mut Cursor<'_, '_>) -> Result<(), VolumeError> {
        let mut state = self.lock();
        let (path, _) = state.node(file)?;
        let mut left = count;
        let read = state.appliance.read_range(&path, offset, count, |bytes| {
            let length = bytes.len().min(usize::try_from(left).unwrap_or(usize::MAX));
            out.copy_from(bytes.get(..length).unwrap_or_default());
            left -= length as u64;
            Ok(())
        });
        read.map_err(failed)?;
        out.fill_zeros(left);
        Ok(())
    }

    fn extents(&self, _: Node, _: u64, _: u64) -> Result<Option<Vec<Extent>>, VolumeError> {
        Ok(None)
    }

    fn backings(&self) -> &[Arc<dyn Backing>] {
        &[]
    }

    fn block_size(&self) -> u32 {
        4096
    }

    fn statistics(&self) -> Statistics {
        Statistics { block_size: self.block_size(), name_max: 255, ..Statistics::default() }
    }
}
