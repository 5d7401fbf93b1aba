//! `mount`: a tree as files on this host, without root where fusermount3 is installed.
//!
//! 1. The source becomes a layer of [`inarch_vfs`]: a directory of this host, live.
//! 2. It is mounted, and a guard started that takes the mount away however this process ends.
//! 3. Threads execute the kernel's requests until somebody unmounts it, or SIGINT or SIGTERM comes.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;

use inarch_fuse::mount::{Mount, MountError, Unmounted};
use inarch_fuse::{ConnectionOptions, ReadDirPlus, Session, SessionOptions};
pub use inarch_vfs::Changes;
use inarch_vfs::{FileSystem, HostDirectory, HostOptions};

use crate::JobError;
use crate::notes::{say, shown};
use crate::serve::guard::Guard;
use crate::serve::introduce;
use crate::serve::signals::stop_on_signals;
use crate::source::Source;

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

/// Mounts, and serves until SIGINT or SIGTERM, or until somebody unmounts it. Says on standard error what is mounted.
pub fn mount(request: &MountRequest) -> Result<(), JobError> {
    let point = request.point.canonicalize();
    let point = point.map_err(|error| JobError::path(&request.point, "cannot be a mount point", error))?;
    check_point(&request.source, &point)?;
    raise_descriptor_limit();
    let layer = layer(request)?;
    let stop = stop_on_signals()?;
    let (mount, device) = Mount::new(&point, request.read_only || request.changes == Changes::None)?;
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

fn layer(request: &MountRequest) -> Result<Arc<impl FileSystem>, JobError> {
    let Source::Directory(path) = &request.source else {
        return Err(JobError::Other(format!("{}: only a directory can be mounted yet", request.source)));
    };
    let options = HostOptions {
        changes: request.changes,
        read_only: request.read_only,
        host_files_from: PASSTHROUGH_FROM,
        ..HostOptions::default()
    };
    let layer = HostDirectory::new(path, options);
    Ok(Arc::new(layer.map_err(|error| JobError::path(&error.path, "cannot open it", error.error))?))
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
    let access = match (request.read_only, request.changes) {
        (true, _) | (_, Changes::None) => "read-only",
        _ => "changes are made in it",
    };
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
