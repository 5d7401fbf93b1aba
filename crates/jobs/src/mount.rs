//! `mount`: a tree as files on this host, without root where fusermount3 is installed.
//!
//! 1. The source becomes a layer of [`inarch_vfs`]: a directory of this host, live, or the tree of an archive or image.
//! 2. It is mounted, and a guard started that takes the mount away however this process ends.
//! 3. Threads execute the kernel's requests until somebody unmounts it, or SIGINT or SIGTERM comes.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;

use inarch_fuse::mount::{Mount, MountError, Unmounted};
use inarch_fuse::{ConnectionOptions, ReadDirPlus, Session, SessionOptions};
use inarch_tree::select::Selection;
pub use inarch_vfs::Changes;
use inarch_vfs::{FileSystem, HostDirectory, HostOptions, TreeFiles};

use crate::JobError;
use crate::notes::{say, shown};
use crate::serve::guard::Guard;
use crate::serve::introduce;
use crate::serve::signals::stop_on_signals;
use crate::source::{self, Source};

/// Smaller files that are only read go through the kernel's cache of the mount: to hand one to the kernel and take it
/// back takes two calls, as long as reading so much.
const PASSTHROUGH_FROM: u64 = 256 << 10;

/// What to mount, and where.
#[derive(Clone, Debug)]
pub struct MountRequest {
    /// What is offered.
    pub source: Source,
    /// An empty directory, or the source itself.
    pub point: PathBuf,
    /// Who may change the source while it is mounted.
    pub changes: Changes,
    /// Refuse what would change it.
    pub read_only: bool,
}

impl MountRequest {
    /// What is no directory does not change, and what nobody changes is not changed here either.
    fn effective(&self) -> MountRequest {
        let is_directory = matches!(self.source, Source::Directory(_));
        let changes = if is_directory { self.changes } else { Changes::None };
        MountRequest { changes, read_only: self.read_only || changes == Changes::None, ..self.clone() }
    }
}

/// Mounts, and serves until SIGINT or SIGTERM, or until somebody unmounts it. Says on standard error what is mounted.
pub fn mount(request: &MountRequest) -> Result<(), JobError> {
    let point = request.point.canonicalize();
    let point = point.map_err(|error| JobError::path(&request.point, "cannot be a mount point", error))?;
    check_point(&request.source, &point)?;
    raise_descriptor_limit();
    let request = &request.effective();
    let (layer, notes) = layer(request)?;
    notes.iter().for_each(say);
    let stop = stop_on_signals()?;
    let (mount, device) = Mount::new(&point, request.read_only)?;
    let mut guard = Guard::of_mount(&mount, false)?;
    let session = Session::new(device, layer, session_options(request.changes));
    let at_end = stop.clone();
    let session = thread::spawn(move || {
        let ended = session.run();
        at_end.stop();
        ended
    });
    introduce(&introduction(request, &point));
    stop.wait().map_err(|error| JobError::Other(format!("cannot wait for the end: {error}")))?;
    let unmounted = mount.unmount();
    guard.release();
    match unmounted? {
        Unmounted::Clean => {
            let ended = session.join().unwrap_or(Ok(()));
            ended.map_err(|error| JobError::Other(format!("{}: {error}", shown(&point))))
        }
        Unmounted::InUse => {
            say(format_args!("{} was in use: whoever has files of it open gets errors from now on", shown(&point)));
            Ok(())
        }
    }
}

/// Refuses a mount point that the server would meet in its own tree: it would wait for itself.
fn check_point(source: &Source, point: &Path) -> Result<(), JobError> {
    let refuse = |reason: &str| Err(MountError::Point { path: point.to_owned(), reason: reason.to_owned() }.into());
    let Source::Directory(directory) = source else { return Ok(()) };
    let Ok(directory) = directory.canonicalize() else { return Ok(()) };
    if point != directory && point.starts_with(&directory) {
        return refuse("it lies in the tree that it is to show; name a place outside");
    }
    Ok(())
}

/// What the requests are executed by, and what else the user should know, a line each.
fn layer(request: &MountRequest) -> Result<(Arc<dyn FileSystem>, Vec<String>), JobError> {
    let Source::Directory(path) = &request.source else {
        let opened = source::open(&request.source, &Selection::default())?;
        return Ok((Arc::new(TreeFiles::new(opened.tree, opened.content)), opened.notes));
    };
    let options = HostOptions {
        changes: request.changes,
        read_only: request.read_only,
        host_files_from: PASSTHROUGH_FROM,
        ..HostOptions::default()
    };
    let layer = HostDirectory::new(path, options);
    let layer = layer.map_err(|error| JobError::path(&error.path, "cannot open it", error.error))?;
    Ok((Arc::new(layer), Vec::new()))
}

fn session_options(changes: Changes) -> SessionOptions {
    let alone = changes != Changes::Host;
    let connection = ConnectionOptions {
        readdirplus: ReadDirPlus::Auto,
        exclusive: alone,
        cache_symlinks: alone,
        posix_acl: true,
        kill_privileges: true,
        ..ConnectionOptions::default()
    };
    // The mount itself may be a layer of an overlayfs.
    SessionOptions { connection, passthrough_depth: 1, ..SessionOptions::default() }
}

/// Open files count as descriptors of this process, so that it takes as many as it may have.
fn raise_descriptor_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    // If that fails, fewer files can be open at a time.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
}

/// What is mounted, and what keeps requests within it.
fn introduction(request: &MountRequest, point: &Path) -> String {
    let access = if request.read_only { "read-only" } else { "changes are made in it" };
    let changes = match request.changes {
        Changes::Guest => "nobody else changes it",
        Changes::Host => "changes made elsewhere are seen within a second",
        Changes::None => "nobody changes it",
    };
    format!(
        "mounted {} on {}: {access}; {changes}; one name at a time, no symbolic link followed, no device opened\n",
        request.source,
        shown(point)
    )
}
