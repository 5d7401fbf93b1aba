//! The process that becomes the command: it gives itself a root directory in which every path leads through the recorder,
//! and then executes the command.
//!
//! The starter ([`super::start`]) starts this program's own file again for it, because only a process with one thread can enter
//! a user namespace. Both speak through a socket with a name that nobody else knows:
//!
//! 1. The starter makes the FUSE mount and serves it. For root the mount is nowhere; its descriptor is sent. For a user, fusermount3 mounts
//!    on a directory of the starter's. In a mount that is made in a user namespace, other users' files would be nobody's, and could not be
//!    written (`HAS_UNMAPPED_ID` of Linux's fs/namei.c).
//! 2. This process makes its mounts private, attaches the outside paths, which lead past the recorder, makes the FUSE mount its
//!    root, and returns to its working directory there. Where a mount of this machine forbids set-user-ID programs, devices and so on,
//!    it forbids them in the view. It reports this. The starter then unmounts a user's mount from that directory,
//!    starts the recording, and answers.
//! 3. It executes the command, which closes the socket. A failure before that is sent: a status, and why.

use std::ffi::{OsStr, OsString};
use std::io::{self, IoSlice, IoSliceMut, Read, Write};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixStream};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use inarch_lifecycle::shown;
use inarch_mount::{
    Refusal, attach_tree, clone_tree, replace_root, restrict, restrict_beneath, unshare_mounts, unshare_mounts_as_user,
};
use rustix::fs::{Mode, OFlags, openat};
use rustix::mount::MountAttrFlags;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage, SendFlags,
    recvmsg, sendmsg,
};
use rustix::process::{Resource, Rlimit, Signal, chdir, getrlimit, set_parent_process_death_signal, setrlimit};

/// The first word of the child's command line; what follows is [`become_command`]'s.
pub const VIEW_ARGUMENT: &str = "become-the-traced-command";

/// Precedes the command in the child's command line.
pub(super) const COMMAND_FOLLOWS: &str = "--";

/// What the child sends when it is in the view. No status of a failure.
pub(super) const ENTERED: u8 = 0;

/// The exit statuses of a command that could not be executed, as of a shell: not found, not executable.
const NOT_FOUND: u8 = 127;
const NOT_EXECUTABLE: u8 = 126;
/// Something else went wrong.
const FAILED: u8 = 125;

/// Why the command does not run.
struct Failure {
    status: u8,
    reason: String,
}

impl From<Refusal> for Failure {
    fn from(refusal: Refusal) -> Failure {
        Failure { status: FAILED, reason: format!("cannot give the command a view of its own: {refusal}") }
    }
}

/// The main function of the child. `words` are the socket's name, the place of the FUSE mount, which is empty if its descriptor
/// comes, the soft limit of descriptors, the paths outside of the view, and the command. Returns the status to exit with if the command was not executed.
pub fn become_command(words: &[OsString]) -> u8 {
    let [socket, point, limit, rest @ ..] = words else { return FAILED };
    let Some(at) = rest.iter().position(|word| word == COMMAND_FOLLOWS) else { return FAILED };
    let (outside, command) = (&rest[..at], &rest[at + 1..]);
    let stream = SocketAddr::from_abstract_name(socket.as_bytes()).and_then(|name| UnixStream::connect_addr(&name));
    let Ok(mut stream) = stream else { return FAILED };
    restore_limit(limit);
    let Failure { status, reason } = execute(&stream, point, outside, command);
    // If the starter is gone, nobody needs to be told.
    let _ = stream.write_all(&[&[status], reason.as_bytes()].concat());
    status
}

/// Gives this process the soft limit of descriptors that its starter had before it raised its own for the files of the view.
fn restore_limit(limit: &OsStr) {
    if let Some(current) = limit.to_str().and_then(|limit| limit.parse().ok()) {
        let maximum = getrlimit(Resource::Nofile).maximum;
        // A limit can always be lowered.
        let _ = setrlimit(Resource::Nofile, Rlimit { current: Some(current), maximum });
    }
}

/// Executes the command; returns only if that fails.
fn execute(stream: &UnixStream, point: &OsStr, outside: &[OsString], command: &[OsString]) -> Failure {
    let Some((program, arguments)) = command.split_first() else {
        return Failure { status: FAILED, reason: "there is no command".to_owned() };
    };
    if let Err(failure) = enter(stream, point, outside) {
        return failure;
    }
    let error = Command::new(program).args(arguments).exec();
    let name = program.display();
    if error.kind() != io::ErrorKind::NotFound {
        return Failure { status: NOT_EXECUTABLE, reason: format!("{name}: {error}") };
    }
    // The kernel says the same of a script whose interpreter is missing, and of a program whose loader is.
    // To open a fifo would wait.
    let is_there = program.as_bytes().contains(&b'/') && Path::new(program).is_file();
    let reason = match is_there.then(|| interpreter(Path::new(program))) {
        Some(Some(interpreter)) => format!("{name}: its interpreter {} is missing", shown(&interpreter)),
        Some(None) => format!("{name}: its interpreter (loader) is missing"),
        None => format!("{name}: command not found"),
    };
    Failure { status: NOT_FOUND, reason }
}

/// What the first line of a script names, as `load_script` of Linux's fs/binfmt_script.c reads it.
fn interpreter(script: &Path) -> Option<PathBuf> {
    let mut start = Vec::new();
    // `BINPRM_BUF_SIZE`: the kernel looks no further.
    std::fs::File::open(script).ok()?.take(256).read_to_end(&mut start).ok()?;
    let line = start.strip_prefix(b"#!")?.split(|byte| *byte == b'\n').next()?;
    let name = line.split(|byte| matches!(byte, b' ' | b'\t' | 0)).find(|word| !word.is_empty())?;
    Some(PathBuf::from(OsStr::from_bytes(name)))
}

/// Gives this process the view.
fn enter(mut stream: &UnixStream, point: &OsStr, outside: &[OsString]) -> Result<(), Failure> {
    let fail = |what: &str, error: io::Error| Failure { status: FAILED, reason: format!("{what}: {error}") };
    // Nothing in the view answers once the starter is gone.
    set_parent_process_death_signal(Some(Signal::KILL)).map_err(|errno| fail("prctl", errno.into()))?;
    let restrictions = restrictions(outside);
    let directory = std::env::current_dir().map_err(|error| fail("the working directory has no path", error))?;
    if point.is_empty() { unshare_mounts() } else { unshare_mounts_as_user() }?;
    let root = if point.is_empty() {
        receive(stream).map_err(|error| fail("the view", error))?
    } else {
        clone_tree(point.as_ref())?
    };
    let outside: Vec<(&Path, OwnedFd)> =
        outside.iter().map(|path| Ok((Path::new(path), clone_tree(path.as_ref())?))).collect::<Result<_, Refusal>>()?;
    let (whole, beneath): (Vec<_>, Vec<_>) = restrictions.into_iter().partition(|(path, _)| path == Path::new("/"));
    whole.iter().try_for_each(|(_, flags)| restrict(root.as_fd(), *flags))?;
    replace_root(root.as_fd(), || {
        beneath.iter().try_for_each(|(path, flags)| restrict_at(root.as_fd(), path, *flags))?;
        outside.iter().try_for_each(|(path, tree)| attach(root.as_fd(), path, tree))
    })?;
    chdir(&directory).map_err(|errno| fail(&directory.display().to_string(), errno.into()))?;
    stream.write_all(&[ENTERED]).map_err(|error| fail("cannot speak with inarch", error))?;
    // The recording begins.
    let mut answer = [0];
    stream.read_exact(&mut answer).map_err(|error| fail("cannot speak with inarch", error))
}

/// What is forbidden in the mounts that the view shows as one file system, as `path`, not outside of it.
fn restrictions(outside: &[OsString]) -> Vec<(PathBuf, MountAttrFlags)> {
    let mut all = inarch_mount::restrictions_beneath(Path::new("/"));
    all.retain(|(point, _)| !outside.iter().any(|outside| point.starts_with(outside)));
    all
}

/// Forbids in the view at `path` what is forbidden there outside.
fn restrict_at(root: BorrowedFd<'_>, path: &Path, flags: MountAttrFlags) -> Result<(), Refusal> {
    // What cannot be reached can do no harm.
    place(root, path).map_or(Ok(()), |point| restrict_beneath(point.as_fd(), flags))
}

/// The same path in the view.
fn place(root: BorrowedFd<'_>, path: &Path) -> Result<OwnedFd, Refusal> {
    let name = path.strip_prefix("/").unwrap_or(path);
    openat(root, name, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())
        .map_err(|errno| Refusal { what: path.display().to_string(), errno })
}

/// Sends the descriptor of a mount to the child.
pub(super) fn send(stream: &UnixStream, mount: BorrowedFd<'_>) -> io::Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    let mounts = [mount];
    control.push(SendAncillaryMessage::ScmRights(&mounts));
    sendmsg(stream, &[IoSlice::new(&[0])], &mut control, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// Receives it.
fn receive(stream: &UnixStream) -> io::Result<OwnedFd> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    recvmsg(stream, &mut [IoSliceMut::new(&mut byte)], &mut control, RecvFlags::CMSG_CLOEXEC)?;
    let received = control.drain().find_map(|message| match message {
        RecvAncillaryMessage::ScmRights(mut mounts) => mounts.next(),
        _ => None,
    });
    received.ok_or_else(|| io::Error::other("inarch has ended"))
}

/// Attaches what is at `path` outside to the same path in the view.
fn attach(root: BorrowedFd<'_>, path: &Path, tree: &OwnedFd) -> Result<(), Refusal> {
    attach_tree(tree.as_fd(), place(root, path)?.as_fd())
}

/// File systems that the kernel makes up: what is in them is no file of anybody's.
const MADE_UP: [&str; 22] = [
    "autofs",
    "binfmt_misc",
    "bpf",
    "cgroup",
    "cgroup2",
    "configfs",
    "debugfs",
    "devpts",
    "devtmpfs",
    "efivarfs",
    "fusectl",
    "hugetlbfs",
    "mqueue",
    "nsfs",
    "proc",
    "pstore",
    "ramfs",
    "rpc_pipefs",
    "securityfs",
    "selinuxfs",
    "sysfs",
    "tracefs",
];

/// The outermost paths on this machine that a view leaves out: file systems of the kernel, `/dev`, and `/run`, whose sockets
/// would lead nowhere in a view.
pub(super) fn outside_by_itself() -> Vec<PathBuf> {
    let mut paths: Vec<PathBuf> = ["/dev", "/run"].map(PathBuf::from).to_vec();
    let mounts = inarch_mount::topmost_beneath(Path::new("/")).into_iter();
    paths.extend(mounts.filter(|(_, entry)| MADE_UP.contains(&&*entry.kind)).map(|(point, _)| point));
    paths.retain(|path| path.exists());
    outermost(paths)
}

/// Those of `paths` that are beneath no other one.
pub(super) fn outermost(mut paths: Vec<PathBuf>) -> Vec<PathBuf> {
    paths.sort();
    paths.dedup_by(|later, earlier| later.starts_with(earlier));
    paths
}

/// The child's command line after its first word.
pub(super) fn words<'w>(
    (socket, point, limit): (&'w OsStr, &'w Path, &'w OsStr),
    outside: &'w [PathBuf],
    command: &'w [OsString],
) -> impl Iterator<Item = &'w OsStr> {
    let before = [OsStr::new(VIEW_ARGUMENT), socket, point.as_os_str(), limit]
        .into_iter()
        .chain(outside.iter().map(|path| path.as_os_str()));
    before.chain([OsStr::new(COMMAND_FOLLOWS)]).chain(command.iter().map(|word| &**word))
}
