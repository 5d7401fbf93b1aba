//! Shares a directory of this host live: the file system behind a virtiofs device or 9P server, and what clients may
//! cache.

pub(crate) mod confinement;
mod operations;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::thread;
use std::{fmt, io};

use inarch_fuse::{ConnectionOptions, ReadDirPlus};
use inarch_lifecycle::shown;
use inarch_source::Source;
use inarch_tree::select::Owners;
pub use inarch_vfs::{Changes, Measures, Refused, Submounts};
use inarch_vfs::{
    DescriptorShares, FileSystem, HostDirectory, HostError, HostOptions, MappedOwners, Measured, OneClient, Slots,
};
use inarch_vhost::fs::{FsOptions, FsServer, MAX_CONNECTIONS, Tag};

use crate::JobError;
use inarch_upper::{Clients, LowerIdentity, Upper, UpperPlace};
pub use operations::{FileReport, OperationReport, reports};

/// Descriptors in a virtqueue, unless the machine is told otherwise: a request of 1 MiB takes 256 pages and some for its headers.
pub const QUEUE_SIZE: u16 = 1024;

/// A directory, and how it is shared.
#[derive(Clone, Debug)]
pub struct Share {
    /// Which.
    pub directory: PathBuf,
    /// Who may change it meanwhile.
    pub changes: Changes,
    /// Have the guest's kernel cache nothing: it asks for each name, for all attributes and for each byte that it reads.
    pub uncached: bool,
    /// Refuse the guest's writes.
    pub read_only: bool,
    /// What the guest cannot leave in the directory where its writes reach it.
    pub refused: Refused,
    /// Where the guest's writes go, if not to the directory itself.
    pub over: Option<UpperPlace>,
    /// What becomes of what is mounted beneath it.
    pub submounts: Submounts,
    /// Offer extended attributes.
    pub xattrs: bool,
    /// Have the guest's kernel enforce access control lists, which costs a request for each file that it has not met.
    pub acl: bool,
    /// Use the write-back cache of the guest's kernel, if only the guest changes the directory.
    ///
    /// Linux then asks for the attributes of each file again that was closed (`fuse_flush` of its fs/fuse/file.c).
    pub writeback: bool,
    /// Take locks on the host's files, where other machines and the host's programs see them; else each machine keeps its own.
    pub locks: bool,
    /// The owners that the guest sees, and the owners of what it creates on the host.
    pub owners: Owners,
    /// Counts the clients' requests, and the time that they take.
    pub measures: Option<Arc<Measures>>,
}

/// The upper layer over a shared directory, for all its clients. Ends when dropped.
pub(crate) struct Cover {
    layer: Arc<dyn FileSystem>,
    upper: Upper,
    without_opening: bool,
}

impl Cover {
    /// The directory that writes are in, if they are in one.
    pub fn path(&self) -> Option<&Path> {
        self.upper.path()
    }
}

/// `layer`, whose requests are measured if there are `measures` for that.
pub(crate) fn measured(layer: Arc<dyn FileSystem>, measures: Option<&Arc<Measures>>) -> Arc<dyn FileSystem> {
    match measures {
        Some(measures) => Arc::new(Measured::new(layer, Arc::clone(measures))),
        None => layer,
    }
}

/// `layer` with mapped owners. If all are shown as one, new files belong to this process's user.
pub(crate) fn with_owners(layer: Arc<dyn FileSystem>, owners: &Owners) -> Arc<dyn FileSystem> {
    let maker = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
    MappedOwners::over(layer, owners, maker)
}

/// The directory of `source`.
///
/// # Errors
/// `source` is not a directory; archives cannot be shared live.
pub fn directory_of(source: &Source) -> Result<&Path, JobError> {
    match source {
        Source::Directory(path) => Ok(path),
        other => Err(JobError::NotLive { path: other.path().to_owned() }),
    }
}

impl Share {
    /// The same share with an absolute path without symbolic links.
    ///
    /// # Errors
    /// There is no such directory.
    pub(crate) fn resolved(&self) -> Result<Share, JobError> {
        let directory = self.directory.canonicalize();
        let directory = directory.map_err(|error| JobError::path(&self.directory, "cannot be shared", error))?;
        Ok(Share { directory, ..self.clone() })
    }

    /// Whether writes fail.
    pub fn refuses_writes(&self) -> bool {
        self.read_only || (self.changes == Changes::None && self.over.is_none())
    }

    /// Whether writes change the directory.
    pub(crate) fn writes_through(&self) -> bool {
        !self.refuses_writes() && self.over.is_none()
    }

    /// What becomes of writes that do not all change the directory, in words.
    pub(crate) fn fate_of_writes(&self) -> Option<String> {
        let left_out = left_out(self.refused);
        match &self.over {
            Some(place) => Some(place.to_string()),
            None if self.refuses_writes() || left_out.is_empty() => None,
            None => Some(format!("writes change it{left_out}")),
        }
    }

    /// Whether the guest's kernel uses a write-back cache: only if nobody else could want to see the writes.
    fn writeback(&self) -> bool {
        self.writeback && self.changes == Changes::Guest && self.writes_through()
    }

    /// Whether the guest uses files without open requests: only if nobody else changes them, and the server may open
    /// any file at any time, whatever its permissions.
    pub(crate) fn without_opening(&self) -> bool {
        // Where nothing is written at all, it is so in any case.
        let changes = self.changes == Changes::Guest || self.changes == Changes::None && self.over.is_some();
        changes && inarch_vfs::may_open_every_file()
    }

    /// Whether clients open directories by requests, so that the server can invalidate cached listings and one
    /// READDIRPLUS refreshes many attributes. A guest that is the only one to change the directory asks for the
    /// attributes of each file it has read, unless mounted read-only; with write-back, of each file that was closed.
    fn opens_directories(&self) -> bool {
        self.changes == Changes::Guest && !self.refuses_writes() && !self.writeback()
    }

    fn host_options(&self) -> HostOptions {
        HostOptions {
            changes: self.changes,
            uncached: self.uncached,
            read_only: !self.writes_through(),
            refused: self.refused,
            submounts: self.submounts,
            writeback: self.writeback(),
            locks: self.locks,
            ..HostOptions::default()
        }
    }

    fn connection_options(&self) -> ConnectionOptions {
        let alone = self.changes != Changes::Host;
        ConnectionOptions {
            readdirplus: ReadDirPlus::Auto,
            writeback: self.writeback(),
            exclusive: alone,
            cache_symlinks: !self.uncached,
            xattrs: self.xattrs,
            posix_acl: self.acl,
            kill_privileges: true,
            locks: self.locks,
            flush: self.locks,
            ..ConnectionOptions::default()
        }
    }

    /// Opens the upper layer, if there is one, for clients that open files before use, or do not.
    ///
    /// # Errors
    /// The directory cannot be opened, or the writes cannot be kept at their place.
    pub(crate) fn cover(&self, without_opening: bool) -> Result<Option<Cover>, JobError> {
        let Some(place) = &self.over else { return Ok(None) };
        place.check_apart_from(&self.directory)?;
        let fail = |path: &Path, error| JobError::path(path, "cannot be shared", error);
        let identity = LowerIdentity::of_directory(&self.directory).map_err(|error| fail(&self.directory, error))?;
        let options = HostOptions { without_opening, ..self.host_options() };
        let opened = HostDirectory::new(&self.directory, options);
        let directory = opened.map_err(|error| fail(&error.path, error.error))?;
        let opens_directories = self.opens_directories();
        let clients = Clients { changes: self.changes, without_opening, opens_directories };
        let (layer, upper) = Upper::over(Arc::new(directory), place, clients, Some(&identity))?;
        Ok(Some(Cover { layer: with_owners(layer, &self.owners), upper, without_opening }))
    }

    /// The directory as one file system for many clients, with locks on the host's files; or the upper layer over it,
    /// whose clients keep their own locks.
    ///
    /// # Errors
    /// The directory cannot be opened.
    pub(crate) fn for_many(&self, cover: Option<&Cover>) -> Result<Arc<dyn FileSystem>, JobError> {
        if let Some(cover) = cover {
            return Ok(measured(Arc::clone(&cover.layer), self.measures.as_ref()));
        }
        // Their kernels say nothing of what they keep back.
        let options = HostOptions { locks: true, writeback: false, ..self.host_options() };
        let opened = HostDirectory::new(&self.directory, options);
        let directory = opened.map_err(|error| JobError::path(&error.path, "cannot be shared", error.error))?;
        Ok(measured(with_owners(Arc::new(directory), &self.owners), self.measures.as_ref()))
    }

    /// The options for Linux's 9P mount, except those of the transport.
    pub(crate) fn ninep_mount_options(&self, msize: u32) -> String {
        // Content is cached if nobody else changes it. Otherwise only mapped pages are, which programs and databases
        // need.
        let cache = match self.changes {
            Changes::Guest | Changes::None => "loose",
            Changes::Host => "mmap",
        };
        format!("version=9p2000.L,msize={msize},cache={cache}")
    }

    /// A server that opens the directory anew for each machine that connects, or gives each the same upper layer. Each is served
    /// what `adapt` makes of that.
    ///
    /// # Errors
    /// The directory cannot be opened.
    pub(crate) fn server(
        &self,
        queues: u16,
        tag: Option<Tag>,
        cover: Option<&Cover>,
        adapt: impl Fn(Arc<dyn FileSystem>) -> io::Result<Arc<dyn FileSystem>> + Send + Sync + 'static,
    ) -> Result<FsServer, JobError> {
        // Decided once, so that both sides agree, whatever the process gives up in between.
        let without_opening = cover.map_or_else(|| self.without_opening(), |cover| cover.without_opening);
        let layers = Layers::new(cover.map(|cover| Arc::clone(&cover.layer)), inarch_vfs::descriptor_limit());
        // Reports an unusable directory now rather than to a machine.
        layers
            .open(self, without_opening)
            .map_err(|error| JobError::path(&error.path, "cannot be shared", error.error))?;
        let connection = ConnectionOptions { open: !without_opening, ..self.connection_options() };
        let options = FsOptions { queues, tag, connection };
        let share = self.clone();
        let open = move || {
            let layer = layers.open(&share, without_opening).map_err(|error| io::Error::other(error.to_string()))?;
            Ok(measured(adapt(layer)?, share.measures.as_ref()))
        };
        Ok(FsServer::new(open, options))
    }
}

/// What machines get that connect to one server, so that none takes the others' descriptors.
struct Layers {
    /// The upper layer that all have, and the files that each may have open.
    over: Option<(Arc<dyn FileSystem>, Arc<Slots>)>,
    shares: Arc<DescriptorShares>,
}

impl Layers {
    /// Divides `descriptors`, a number of open files of this process, among the machines.
    fn new(over: Option<Arc<dyn FileSystem>>, descriptors: usize) -> Layers {
        // Two layers of the host may be below one file that is open.
        let slots = || Arc::new(Slots::new(descriptors / 6, MAX_CONNECTIONS));
        let shares = DescriptorShares::new(descriptors, MAX_CONNECTIONS);
        Layers { over: over.map(|layer| (layer, slots())), shares }
    }

    /// For one more machine.
    fn open(&self, share: &Share, without_opening: bool) -> Result<Arc<dyn FileSystem>, HostError> {
        if let Some((layer, slots)) = &self.over {
            // When one client disconnects, the others continue.
            return Ok(Arc::new(OneClient::among(Arc::clone(layer), slots)));
        }
        let descriptors = self.shares.take().ok_or_else(|| HostError {
            path: share.directory.clone(),
            error: io::Error::other("too few descriptors are left for one more machine (ulimit -n)"),
        })?;
        let options = HostOptions {
            without_opening,
            opens_directories: share.opens_directories(),
            descriptors: Some(descriptors.count()),
            ..share.host_options()
        };
        let directory = HostDirectory::new(&share.directory, options)?.holding(descriptors);
        Ok(with_owners(Arc::new(directory), &share.owners))
    }
}

/// What of writes does not reach a directory, as an end of a half-sentence about writes.
pub(crate) fn left_out(refused: Refused) -> &'static str {
    match (refused.privileges, refused.devices) {
        (false, false) => "",
        (true, false) => ", without set-user-ID bits",
        (false, true) => ", without devices",
        (true, true) => ", without set-user-ID bits and devices",
    }
}

/// Mount points in a shared directory. The share shows each as an empty directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HiddenMountPoints {
    /// One of them.
    pub first: PathBuf,
    /// How many others there are.
    pub others: usize,
}

impl HiddenMountPoints {
    /// Those in `directory`, if there are any and they are shown empty.
    pub(crate) fn of(directory: &Path, submounts: Submounts) -> Option<HiddenMountPoints> {
        if submounts != Submounts::Empty {
            return None;
        }
        let mut points = inarch_mount::mount_points_beneath(directory).into_iter();
        Some(HiddenMountPoints { first: points.next()?, others: points.count() })
    }
}

impl fmt::Display for HiddenMountPoints {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let others = if self.others == 0 { String::new() } else { format!(", as {} more are", self.others) };
        let first = shown(&self.first);
        write!(f, "{first}: a mount point, shown as an empty directory{others}; --cross shows what is mounted")
    }
}

/// Request queues where none are asked for: as many as there are processors, up to 8.
pub fn default_queues() -> u16 {
    thread::available_parallelism().map_or(1, |processors| processors.get().min(8) as u16)
}

#[cfg(test)]
mod tests {
    use inarch_vfs::{Context, NodeId};
    use rustix::io::Errno;

    use super::*;

    const READ: u32 = libc::O_RDONLY as u32;

    fn share(directory: &Path) -> Share {
        Share {
            directory: directory.to_owned(),
            changes: Changes::Host,
            uncached: false,
            read_only: false,
            refused: Refused::default(),
            over: None,
            submounts: Submounts::Empty,
            xattrs: true,
            acl: false,
            writeback: false,
            locks: false,
            owners: Owners::default(),
            measures: None,
        }
    }

    /// As a machine opens them; ends with the error at which there are no more.
    fn open_all(layer: &dyn FileSystem) -> (usize, Errno) {
        let file = layer.lookup(&Context::SERVER, NodeId::ROOT, b"file").unwrap().node;
        for count in 0..10_000 {
            if let Err(error) = layer.open(&Context::SERVER, file, READ) {
                return (count, error);
            }
        }
        panic!("there is no limit");
    }

    #[test]
    fn a_machine_that_opens_all_it_can_leaves_others_some() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("file"), "content").unwrap();
        let share = share(dir.path());
        let layers = Layers::new(None, 4096);
        let machines = [(); 3].map(|()| layers.open(&share, false).unwrap());
        let opened = machines.each_ref().map(|machine| open_all(&**machine));
        assert!(opened.iter().all(|(count, error)| *count > 20 && *error == Errno::NFILE), "{opened:?}");
        assert!(opened.iter().map(|(count, _)| count).sum::<usize>() < 4096 / 2, "{opened:?}");
        drop(machines);
        // One that comes alone has most.
        let (alone, _) = open_all(&*layers.open(&share, false).unwrap());
        assert!(alone > 4096 / 8, "{alone}");

        let layer =
            with_owners(Arc::new(HostDirectory::new(dir.path(), HostOptions::default()).unwrap()), &Owners::default());
        let layers = Layers::new(Some(layer), 4096 * 6);
        let machines = [(); 3].map(|()| layers.open(&share, false).unwrap());
        let opened = machines.each_ref().map(|machine| open_all(&**machine));
        assert_eq!(opened, [4096 - 256 + 4, 4, 4].map(|count| (count, Errno::NFILE)));
    }
}
