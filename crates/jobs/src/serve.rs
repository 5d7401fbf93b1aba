//! `serve blk`: a tree's device on a socket, for virtual machines that someone else starts.

use std::fs::Metadata;
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::thread;

use inarch_tree::scan::ScanOptions;
use inarch_vhost::blk::{BlkServer, StopHandle};
use inarch_vhost::{Event, Pending};
use signal_hook::consts::{SIGINT, SIGTERM};

use crate::JobError;
pub use crate::device::Writes;
use crate::device::{Recipe, disk_options};
use crate::notes::{notes, say};

/// The longest path a Unix socket can have: `sun_path` less its final NUL.
const LONGEST_SOCKET_PATH: usize = 107;

/// What to serve, and where.
#[derive(Clone, Debug)]
pub struct ServeRequest {
    /// The directory.
    pub source: PathBuf,
    /// What of it is taken.
    pub scan: ScanOptions,
    /// The socket to listen on.
    pub socket: PathBuf,
    /// What becomes of the guest's writes.
    pub writes: Writes,
    /// Request queues; as many as there are processors where not given.
    pub queues: Option<u16>,
    /// End when the first machine disconnects.
    pub once: bool,
}

impl ServeRequest {
    fn queues(&self) -> u16 {
        let processors = thread::available_parallelism().map_or(1, |n| n.get().min(8) as u16);
        self.queues.unwrap_or(processors)
    }
}

/// The arguments that QEMU needs to have the disk, on one line, quoted for a shell.
pub fn qemu_arguments(request: &ServeRequest) -> Result<String, JobError> {
    check_length(&request.socket)?;
    let socket = std::path::absolute(&request.socket)
        .map_err(|error| JobError::path(&request.socket, "cannot make the path absolute", error))?;
    Ok(inarch_vm::machine::vhost_user_blk_arguments(&socket, request.queues()))
}

/// Serves until SIGINT or SIGTERM, or with `once` until the first machine has gone. Says on standard error how to
/// use the disk, and at the end which files changed meanwhile.
pub fn serve(request: &ServeRequest) -> Result<(), JobError> {
    if !request.source.is_dir() {
        // The scan says it better than a listening socket that fails every request.
        inarch_tree::scan::scan(&request.source, &ScanOptions { threads: 1, ..ScanOptions::default() })?;
    }
    let listener = listen(&request.socket)?;
    let mut guard = SocketGuard::start(&request.socket)?;
    let recipe = Recipe {
        source: request.source.clone(),
        scan: request.scan.clone(),
        writes: request.writes.clone(),
        ordinal: 0,
        disks: 1,
    };
    introduce(request)?;
    let stop = StopHandle::new().map_err(|error| JobError::Other(format!("cannot make an eventfd: {error}")))?;
    stop_on_signals(stop.clone())?;
    let pending = Arc::new(Pending::new());
    let planned = {
        let (pending, stop) = (Arc::clone(&pending), stop.clone());
        thread::spawn(move || {
            let prepared = recipe.prepare();
            match &prepared {
                Ok(prepared) => pending.set(Ok(Arc::clone(&prepared.device))),
                Err(error) => {
                    pending.set(Err(error.to_string()));
                    // A tree that cannot be planned ends the server with its reason.
                    stop.stop();
                }
            }
            prepared
        })
    };
    let options = disk_options(request.queues(), matches!(request.writes, Writes::Refused), "inarch-0");
    let server = BlkServer::new(Arc::clone(&pending), options).on_event(|event| match event {
        // The guest has an error status for it, and the device remembers the files that changed.
        Event::RequestFailed { .. } => {}
        event => say(event),
    });
    let served = if request.once { server.serve_one(listener, &stop) } else { server.serve_listener(listener, &stop) };
    guard.remove();
    if pending.get().is_none() {
        // Told to stop before the plan was made: nobody waits for it any more.
        return Ok(());
    }
    let prepared = planned.join().unwrap_or_else(|_| Err(JobError::Other("the plan failed".into())))?;
    for note in notes(&prepared.device, &request.source, prepared.writable_bytes()) {
        say(note);
    }
    served.map_err(|error| JobError::Other(format!("{}: {error}", request.socket.display())))
}

/// Says how to use the disk.
fn introduce(request: &ServeRequest) -> Result<(), JobError> {
    let option = if matches!(request.writes, Writes::Refused) { "-o ro " } else { "" };
    let text = format!(
        "QEMU:   {}\n\
         memory: must be shared: -object memory-backend-memfd,id=mem,size=4G,share=on -machine memory-backend=mem\n\
         guest:  mount -t ext4 {option}/dev/disk/by-id/virtio-inarch-0 /mnt\n",
        qemu_arguments(request)?
    );
    // Whoever does not listen knows it already.
    let _ = io::stderr().write_all(text.as_bytes());
    Ok(())
}

fn stop_on_signals(stop: StopHandle) -> Result<(), JobError> {
    let mut signals = signal_hook::iterator::Signals::new([SIGINT, SIGTERM])
        .map_err(|error| JobError::Other(format!("cannot catch signals: {error}")))?;
    thread::spawn(move || {
        for signal in signals.forever() {
            if stop.is_stopped() {
                // Asked twice. The socket's guard sees our end.
                std::process::exit(128 + signal);
            }
            stop.stop();
        }
    });
    Ok(())
}

fn check_length(path: &Path) -> Result<(), JobError> {
    let length = path.as_os_str().as_bytes().len();
    if length > LONGEST_SOCKET_PATH {
        let reason = format!("the path has {length} bytes; a socket's has at most {LONGEST_SOCKET_PATH}");
        return Err(JobError::Socket { path: path.to_owned(), reason });
    }
    Ok(())
}

/// Listens on `path`. A socket that nobody listens on any more is taken over.
fn listen(path: &Path) -> Result<UnixListener, JobError> {
    check_length(path)?;
    let refuse = |reason: String| JobError::Socket { path: path.to_owned(), reason };
    match UnixListener::bind(path) {
        Ok(listener) => return Ok(listener),
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => {}
        Err(error) => return Err(refuse(format!("cannot listen there: {error}"))),
    }
    let is_socket = path.symlink_metadata().is_ok_and(|m| m.file_type().is_socket());
    if !is_socket {
        return Err(refuse("exists and is no socket; name another path".into()));
    }
    match UnixStream::connect(path) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {}
        _ => return Err(refuse("another server listens there; name another path or stop it".into())),
    }
    std::fs::remove_file(path).map_err(|error| refuse(format!("cannot remove the stale socket: {error}")))?;
    UnixListener::bind(path).map_err(|error| refuse(format!("cannot listen there: {error}")))
}

/// Removes the socket when the server ends, however it ends: a child of ours waits for our end of a pipe to close,
/// which even SIGKILL cannot prevent.
struct SocketGuard {
    child: Child,
}

/// The command line of the child: this program with this word, the socket's path and its inode number.
pub const GUARD_ARGUMENT: &str = "remove-socket-at-end-of-input";

impl SocketGuard {
    fn start(path: &Path) -> Result<SocketGuard, JobError> {
        let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        let inode =
            path.symlink_metadata().map_err(|error| JobError::path(&path, "cannot see the socket", error))?.ino();
        let child = Command::new("/proc/self/exe")
            .arg(GUARD_ARGUMENT)
            .arg(&path)
            .arg(inode.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()
            .map_err(|error| JobError::path(&path, "cannot start the process that removes it", error))?;
        Ok(SocketGuard { child })
    }

    fn remove(&mut self) {
        drop(self.child.stdin.take());
        let _ = self.child.wait();
    }
}

impl Drop for SocketGuard {
    fn drop(&mut self) {
        self.remove();
    }
}

/// The child's whole life: waits until standard input ends, then removes the socket at `path`, if it is still the one
/// with this inode number.
pub fn guard_socket(path: &Path, inode: &str) {
    // However the input ends, it has ended.
    let _ = io::copy(&mut io::stdin(), &mut io::sink());
    let is_ours = |metadata: Metadata| metadata.file_type().is_socket() && metadata.ino().to_string() == inode;
    if path.symlink_metadata().is_ok_and(is_ours) {
        // Nobody is left to be told.
        let _ = std::fs::remove_file(path);
    }
}
