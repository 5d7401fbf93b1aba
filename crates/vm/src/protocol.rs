//! The protocol between the host and the guest's agent, over the virtio-serial port
//! [`AGENT_PORT`](crate::machine::AGENT_PORT) or, in User-Mode Linux, over the virtio socket device ([`SOCKET_OF_AGENT`]).
//!
//! A frame is a type (1 byte), a payload length (32 bits, little-endian, as all integers here) and the payload.
//! `agent/protocol.h` is the agent's half. The agent sends HELLO. The host describes the session in frames that end
//! with RUN. Then data flows under credit in both directions until EXIT (or ERROR) and BYE.
//!
//! Data from the guest is hostile: lengths are bounded, nothing here panics, and unknown data is an error.

mod processes;

use std::net::Ipv4Addr;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::time::Duration;
use std::{ffi::OsString, time::SystemTime};

pub use processes::ProcessEvent;

/// Version of the protocol that both sides must speak.
pub const PROTOCOL_VERSION: u32 = 3;
/// The longest payload in either direction, in bytes: one argument of execve(2) (`MAX_ARG_STRLEN`, 128 KiB) fits.
pub const PAYLOAD_MAX: usize = 160 * 1024;
/// Bytes of type and length before a payload.
pub const HEADER: usize = 5;
/// The agent's port of the virtio socket device, on a machine without virtio-serial ports; as the next one in `agent/protocol.h`.
pub const SOCKET_OF_AGENT: u32 = 1;
/// The port of the first tree that the guest unpacks; the others follow.
pub const SOCKET_OF_FIRST_TREE: u32 = 1000;
/// Linux's highest signal number (`_NSIG`).
const SIGNAL_MAX: u8 = 64;
/// The most bytes of standard input in one frame.
pub const STDIN_FRAME: usize = 32 * 1024 - HEADER;

/// Frame types, as `FRAME_*` of `agent/protocol.h`, which describes their payloads.
mod kind {
    pub(super) const HELLO: u8 = 0x01;
    pub(super) const STARTED: u8 = 0x02;
    pub(super) const STDOUT: u8 = 0x03;
    pub(super) const STDERR: u8 = 0x04;
    pub(super) const STDIN_CREDIT: u8 = 0x05;
    pub(super) const STDIN_CLOSED: u8 = 0x06;
    pub(super) const EXIT: u8 = 0x07;
    pub(super) const ERROR: u8 = 0x08;
    pub(super) const WARNING: u8 = 0x09;
    pub(super) const UNMOUNTED: u8 = 0x0a;
    pub(super) const READY: u8 = 0x0b;
    pub(super) const PROCESSES: u8 = 0x0c;
    pub(super) const ARGUMENT: u8 = 0x80;
    pub(super) const ENVIRONMENT: u8 = 0x81;
    pub(super) const DIRECTORY: u8 = 0x82;
    pub(super) const USER_NAME: u8 = 0x83;
    pub(super) const USER_IDS: u8 = 0x84;
    pub(super) const HOSTNAME: u8 = 0x85;
    pub(super) const CLOCK: u8 = 0x86;
    pub(super) const NETWORK: u8 = 0x87;
    pub(super) const MOUNT: u8 = 0x88;
    pub(super) const TERMINAL: u8 = 0x89;
    pub(super) const OPEN_FILES: u8 = 0x8a;
    pub(super) const UMASK: u8 = 0x8b;
    pub(super) const CLEAN_SHUTDOWN: u8 = 0x8c;
    pub(super) const SCRATCH: u8 = 0x8d;
    pub(super) const MAKE_DIRECTORY: u8 = 0x8e;
    pub(super) const RUN: u8 = 0x8f;
    pub(super) const DISK: u8 = 0xa0;
    pub(super) const OBSERVE: u8 = 0xa1;
    pub(super) const STDIN: u8 = 0x90;
    pub(super) const STDIN_END: u8 = 0x91;
    pub(super) const OUTPUT_CREDIT: u8 = 0x92;
    pub(super) const OUTPUT_CLOSED: u8 = 0x93;
    pub(super) const SIGNAL: u8 = 0x94;
    pub(super) const WINDOW: u8 = 0x95;
    pub(super) const BYE: u8 = 0x96;
}

/// One of the command's output streams, numbered like its descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum OutputStream {
    /// Standard output; with a terminal, all output.
    Stdout = 1,
    /// Standard error.
    Stderr = 2,
}

/// A guest message that breaks the protocol.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProtocolError {
    /// A payload longer than [`PAYLOAD_MAX`].
    #[error("the guest announced a frame of type {kind:#04x} with {length} bytes; {PAYLOAD_MAX} are allowed")]
    TooLong {
        /// The frame's type.
        kind: u8,
        /// The length that it announced.
        length: u32,
    },
    /// An unknown type, or a payload with the wrong size or with numbers out of range.
    #[error("the guest sent a frame of type {kind:#04x} with {length} bytes, which this protocol does not have")]
    Unknown {
        /// The frame's type.
        kind: u8,
        /// Its payload's length.
        length: usize,
    },
}

/// The processors' time in the guest while a command ran. `user` and `system` are the command's own, with those of the
/// children that it waited for (`getrusage(2)`). `idle` and `waiting` are those of the whole guest, of all its
/// processors (`proc_stat(5)`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CpuTime {
    /// In programs.
    pub user: Duration,
    /// In the kernel.
    pub system: Duration,
    /// With nothing to do. Waiting for a live tree counts here.
    pub idle: Duration,
    /// With nothing to do, while waiting for a disk.
    pub waiting: Duration,
}

/// A frame from the agent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GuestFrame {
    /// The agent runs, and speaks this version.
    Hello {
        /// Compare with [`PROTOCOL_VERSION`].
        version: u32,
    },
    /// The command has been started.
    Started {
        /// When the agent began, since the kernel's boot.
        agent: Duration,
        /// When the command began, since the kernel's boot.
        command: Duration,
    },
    /// Output of the command.
    Output(OutputStream, Vec<u8>),
    /// The host may send this many more bytes of standard input.
    StdinCredit(u32),
    /// No process in the guest reads standard input any more.
    StdinClosed,
    /// The command has ended, and all of its output has been sent.
    Exit {
        /// `_exit`'s value.
        status: u8,
        /// The signal that ended it, at most 64 (`SIGRTMAX`), or 0.
        signal: u8,
        /// The processor's time that it took.
        cpu: CpuTime,
    },
    /// The command could not be started.
    Error {
        /// The exit status that a shell would give.
        status: u8,
        /// One line.
        text: String,
    },
    /// Something is missing, but the command can start.
    Warning(String),
    /// Every file system is unmounted.
    Unmounted,
    /// Everything that the command needs is mounted; it starts within moments.
    Ready,
    /// What happened to processes of the guest, in order.
    Processes(Vec<ProcessEvent>),
}

/// Decodes frames from a stream of bytes.
#[derive(Debug, Default)]
pub struct Decoder {
    buffer: Vec<u8>,
    start: usize,
}

impl Decoder {
    /// A decoder at the stream's start.
    pub fn new() -> Self {
        Self::default()
    }

    /// Appends bytes of the stream. The buffer stays smaller than one frame plus what is pushed between two calls of
    /// [`Decoder::next`] that return `None`.
    pub fn push(&mut self, bytes: &[u8]) {
        if self.start > 0 {
            self.buffer.drain(..self.start);
            self.start = 0;
        }
        self.buffer.extend_from_slice(bytes);
    }

    /// The next complete frame, or `None` until more is pushed. After an error the decoder is unusable.
    #[allow(clippy::should_implement_trait, reason = "an iterator ends for good, this one goes on after a push")]
    pub fn next(&mut self) -> Result<Option<GuestFrame>, ProtocolError> {
        let held = self.buffer.get(self.start..).unwrap_or_default();
        let Some((header, rest)) = held.split_first_chunk::<HEADER>() else { return Ok(None) };
        let [kind, length @ ..] = *header;
        let length = u32::from_le_bytes(length);
        if length as usize > PAYLOAD_MAX {
            return Err(ProtocolError::TooLong { kind, length });
        }
        let Some(payload) = rest.get(..length as usize) else { return Ok(None) };
        let frame = parse(kind, payload)?;
        self.start += HEADER + length as usize;
        Ok(Some(frame))
    }
}

fn parse(kind: u8, payload: &[u8]) -> Result<GuestFrame, ProtocolError> {
    let unknown = || ProtocolError::Unknown { kind, length: payload.len() };
    let micros = |bytes: [u8; 8]| Duration::from_micros(u64::from_le_bytes(bytes));
    Ok(match kind {
        kind::HELLO => GuestFrame::Hello { version: u32::from_le_bytes(payload.try_into().map_err(|_| unknown())?) },
        kind::STARTED => {
            let (agent, command) = halves::<8>(payload).ok_or_else(unknown)?;
            GuestFrame::Started { agent: micros(agent), command: micros(command) }
        }
        kind::STDOUT => GuestFrame::Output(OutputStream::Stdout, payload.to_vec()),
        kind::STDERR => GuestFrame::Output(OutputStream::Stderr, payload.to_vec()),
        kind::STDIN_CREDIT => GuestFrame::StdinCredit(u32::from_le_bytes(payload.try_into().map_err(|_| unknown())?)),
        kind::STDIN_CLOSED if payload.is_empty() => GuestFrame::StdinClosed,
        kind::EXIT => {
            let (ended, times) = payload.split_first_chunk::<8>().ok_or_else(unknown)?;
            let (status, signal) = halves::<4>(ended).ok_or_else(unknown)?;
            let (taken, rest) = halves::<16>(times).ok_or_else(unknown)?;
            let [(user, system), (idle, waiting)] =
                [halves::<8>(&taken), halves::<8>(&rest)].map(Option::unwrap_or_default);
            let [user, system, idle, waiting] = [user, system, idle, waiting].map(micros);
            let cpu = CpuTime { user, system, idle, waiting };
            let status = u8::try_from(u32::from_le_bytes(status)).map_err(|_| unknown())?;
            let signal = u8::try_from(u32::from_le_bytes(signal)).ok().filter(|signal| *signal <= SIGNAL_MAX);
            GuestFrame::Exit { status, signal: signal.ok_or_else(unknown)?, cpu }
        }
        kind::ERROR => {
            let (status, text) = payload.split_first_chunk::<4>().ok_or_else(unknown)?;
            let status = u8::try_from(u32::from_le_bytes(*status)).map_err(|_| unknown())?;
            GuestFrame::Error { status, text: one_line(text) }
        }
        kind::WARNING => GuestFrame::Warning(one_line(payload)),
        kind::UNMOUNTED if payload.is_empty() => GuestFrame::Unmounted,
        kind::READY if payload.is_empty() => GuestFrame::Ready,
        kind::PROCESSES => GuestFrame::Processes(processes::parse(payload).ok_or_else(unknown)?),
        _ => return Err(unknown()),
    })
}

fn halves<const N: usize>(payload: &[u8]) -> Option<([u8; N], [u8; N])> {
    let (first, rest) = payload.split_first_chunk::<N>()?;
    Some((*first, rest.try_into().ok()?))
}

/// Makes a guest's text safe for our terminal: no control characters, so no escape sequences and no second line.
fn one_line(text: &[u8]) -> String {
    String::from_utf8_lossy(text).chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

/// The user that runs the command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum User {
    /// `USER[:GROUP]`, each a number, or a name in the guest's `/etc/passwd` and `/etc/group`. A number need not be
    /// listed there. Without a group, the user's own group (0 if the user is not listed) and supplementary groups
    /// apply.
    Name(String),
    /// By number.
    Ids {
        /// User.
        uid: u32,
        /// Group.
        gid: u32,
        /// Supplementary groups.
        groups: Vec<u32>,
    },
}

/// The source of a [`Mount`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MountSource {
    /// The virtio-blk disk with this serial (at most 20 bytes, `VIRTIO_BLK_ID_BYTES`).
    DiskSerial(String),
    /// As for mount(2): a tag, or a word for file systems without a source.
    Name(String),
    /// A port of the host's 9P server, reached by `AF_VSOCK` ([`Machine::sockets`]).
    ///
    /// [`Machine::sockets`]: crate::machine::Machine::sockets
    HostPort(u32),
    /// None: an empty file system, into which the guest unpacks the tar archive from a virtio-serial port.
    Archive {
        /// The port's name.
        port: String,
        /// Whether it is a directory of [`SessionRequest::scratch`], not a file system of [`Mount::fstype`].
        on_scratch: bool,
    },
}

/// A file system to be mounted in the guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    /// Its source.
    pub source: MountSource,
    /// The file system's type, e.g. `ext4`.
    pub fstype: String,
    /// The mount point: an absolute path; `/` is the root. Missing directories are made.
    pub target: PathBuf,
    /// Options for the file system, comma-separated, as the data of mount(2).
    pub options: String,
    /// `MS_RDONLY`.
    pub read_only: bool,
    /// `MS_NOSUID` and `MS_NODEV`.
    pub no_suid_no_dev: bool,
    /// `MS_NOATIME`.
    pub no_atime: bool,
    /// Use it as the lower layer of an overlayfs; writes go to [`SessionRequest::scratch`].
    pub overlaid: bool,
}

impl Mount {
    /// A tmpfs that everybody may write to, like `/tmp`.
    pub fn tmpfs(target: impl Into<PathBuf>) -> Self {
        Self {
            source: MountSource::Name("tmpfs".to_owned()),
            fstype: "tmpfs".to_owned(),
            target: target.into(),
            options: "mode=1777".to_owned(),
            read_only: false,
            no_suid_no_dev: true,
            no_atime: false,
            overlaid: false,
        }
    }
}

/// A guest's address on a user-mode network.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Network {
    /// The guest's address.
    pub address: Ipv4Addr,
    /// Its network's mask.
    pub netmask: Ipv4Addr,
    /// The default route's gateway; unspecified for none.
    pub gateway: Ipv4Addr,
    /// The name server for `/etc/resolv.conf`; unspecified for none.
    pub name_server: Ipv4Addr,
}

impl Network {
    /// The defaults of QEMU's `-netdev user`.
    pub const QEMU_USER: Self = Self {
        address: Ipv4Addr::new(10, 0, 2, 15),
        netmask: Ipv4Addr::new(255, 255, 255, 0),
        gateway: Ipv4Addr::new(10, 0, 2, 2),
        name_server: Ipv4Addr::new(10, 0, 2, 3),
    };

    /// The same, for a network that leads only to what QEMU forwards.
    pub const QEMU_RESTRICTED: Self =
        Self { gateway: Ipv4Addr::UNSPECIFIED, name_server: Ipv4Addr::UNSPECIFIED, ..Self::QEMU_USER };
}

/// Size of a terminal, in characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WindowSize {
    /// Lines.
    pub rows: u16,
    /// Characters in a line.
    pub columns: u16,
}

/// A session: everything that the agent must know before it starts the command.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SessionRequest {
    /// The command and its arguments; the first is searched in the environment's `PATH`.
    pub command: Vec<OsString>,
    /// The command's environment. HOME, USER, LOGNAME, SHELL and PATH are added if they are missing.
    pub environment: Vec<(OsString, OsString)>,
    /// Working directory; `/` if `None`.
    pub directory: Option<PathBuf>,
    /// Make the working directory if it is missing.
    pub make_directory: bool,
    /// The user; root if `None`.
    pub user: Option<User>,
    /// The guest's host name.
    pub hostname: Option<String>,
    /// Set the guest's clock when the session begins, and again when the command has started.
    pub set_clock: bool,
    /// Address of the first network interface.
    pub network: Option<Network>,
    /// In mount order. Without one at `/`, the initramfs is the root. The agent mounts `/proc`, `/sys`, `/dev`,
    /// `/dev/pts`, `/dev/shm` and `/run` itself, after the root and before every other mount.
    pub mounts: Vec<Mount>,
    /// Serial of the ext4 disk for writes to [`Mount::overlaid`] file systems, and for unpacked archives.
    pub scratch: Option<String>,
    /// Serials of disks that are the command's: it finds each as `/dev/disk/by-id/virtio-SERIAL`, as its own user may
    /// read and write it, and the device's name in a variable `INARCH_DISK_1` and so on.
    pub disks: Vec<String>,
    /// Give the command a terminal of this size.
    pub terminal: Option<WindowSize>,
    /// Soft and hard `RLIMIT_NOFILE`; 1024 and 1048576 if `None`.
    pub open_files: Option<(u64, u64)>,
    /// File mode creation mask; 022 if `None`.
    pub umask: Option<u32>,
    /// Unmount every file system after the command's end, and report it.
    pub clean_shutdown: bool,
    /// Report what happens to processes.
    pub observe: bool,
}

/// Why a session cannot be encoded.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RequestError {
    /// Longer than execve(2) or a frame allows.
    #[error("{what} is too long: {length} bytes")]
    TooLong {
        /// Which part.
        what: &'static str,
        /// Its length.
        length: usize,
    },
    /// Text that contains a NUL byte.
    #[error("{what} contains a NUL byte")]
    Nul {
        /// Which part.
        what: &'static str,
    },
}

impl SessionRequest {
    /// Encodes the frames that describe this session, with RUN at the end.
    pub fn encode(&self) -> Result<Vec<u8>, RequestError> {
        let mut out = Vec::new();
        for argument in &self.command {
            text(&mut out, kind::ARGUMENT, "an argument of the command", argument.as_bytes())?;
        }
        for (name, value) in &self.environment {
            let line = [name.as_bytes(), b"=", value.as_bytes()].concat();
            text(&mut out, kind::ENVIRONMENT, "a variable of the environment", &line)?;
        }
        if let Some(directory) = &self.directory {
            text(&mut out, kind::DIRECTORY, "the working directory", directory.as_os_str().as_bytes())?;
        }
        match &self.user {
            None => {}
            Some(User::Name(name)) => text(&mut out, kind::USER_NAME, "the user's name", name.as_bytes())?,
            Some(User::Ids { uid, gid, groups }) => {
                let numbers = [*uid, *gid].into_iter().chain(groups.iter().copied());
                let payload: Vec<u8> = numbers.flat_map(u32::to_le_bytes).collect();
                bounded(&mut out, kind::USER_IDS, "the list of groups", &payload)?;
            }
        }
        if let Some(hostname) = &self.hostname {
            text(&mut out, kind::HOSTNAME, "the host name", hostname.as_bytes())?;
        }
        if let Some(scratch) = &self.scratch {
            text(&mut out, kind::SCRATCH, "the serial of the scratch disk", scratch.as_bytes())?;
        }
        for disk in &self.disks {
            text(&mut out, kind::DISK, "the serial of a disk", disk.as_bytes())?;
        }
        for mount in &self.mounts {
            mount.encode(&mut out)?;
        }
        self.encode_numbers(&mut out);
        frame(&mut out, kind::RUN, &[]);
        Ok(out)
    }

    fn encode_numbers(&self, out: &mut Vec<u8>) {
        if self.set_clock {
            HostFrame::Clock(SystemTime::now()).encode(out);
        }
        if let Some(network) = self.network {
            let addresses = [network.address, network.netmask, network.gateway, network.name_server];
            frame(out, kind::NETWORK, addresses.map(|address| address.octets()).as_flattened());
        }
        if let Some(size) = self.terminal {
            frame(out, kind::TERMINAL, &size.encode());
        }
        if let Some((soft, hard)) = self.open_files {
            frame(out, kind::OPEN_FILES, [soft.to_le_bytes(), hard.to_le_bytes()].as_flattened());
        }
        if let Some(umask) = self.umask {
            frame(out, kind::UMASK, &umask.to_le_bytes());
        }
        if self.clean_shutdown {
            frame(out, kind::CLEAN_SHUTDOWN, &[]);
        }
        if self.make_directory {
            frame(out, kind::MAKE_DIRECTORY, &[]);
        }
        if self.observe {
            frame(out, kind::OBSERVE, &[]);
        }
    }
}

impl Mount {
    const READ_ONLY: u32 = 1;
    const BY_SERIAL: u32 = 2;
    const NO_SUID: u32 = 4;
    const NO_DEV: u32 = 8;
    const NO_ATIME: u32 = 16;
    const OVERLAID: u32 = 32;
    const UNPACKED: u32 = 64;
    const ON_SCRATCH: u32 = 128;
    const BY_SOCKET: u32 = 256;

    fn encode(&self, out: &mut Vec<u8>) -> Result<(), RequestError> {
        let number;
        let (source, of_source) = match &self.source {
            MountSource::DiskSerial(serial) => (serial, Self::BY_SERIAL),
            MountSource::Name(name) => (name, 0),
            MountSource::HostPort(port) => {
                number = port.to_string();
                (&number, Self::BY_SOCKET)
            }
            MountSource::Archive { port, on_scratch: false } => (port, Self::UNPACKED),
            MountSource::Archive { port, on_scratch: true } => (port, Self::UNPACKED | Self::ON_SCRATCH),
        };
        let flag = |set: bool, bits: u32| if set { bits } else { 0 };
        let flags = of_source
            | flag(self.read_only, Self::READ_ONLY)
            | flag(self.no_suid_no_dev, Self::NO_SUID | Self::NO_DEV)
            | flag(self.no_atime, Self::NO_ATIME)
            | flag(self.overlaid, Self::OVERLAID);
        let mut payload = flags.to_le_bytes().to_vec();
        let target = self.target.as_os_str().as_bytes();
        for part in [self.fstype.as_bytes(), source.as_bytes(), target, self.options.as_bytes()] {
            if part.contains(&0) {
                return Err(RequestError::Nul { what: "a mount" });
            }
            payload.extend_from_slice(part);
            payload.push(0);
        }
        bounded(out, kind::MOUNT, "a mount", &payload)
    }
}

impl WindowSize {
    fn encode(self) -> [u8; 4] {
        let ([a, b], [c, d]) = (self.rows.to_le_bytes(), self.columns.to_le_bytes());
        [a, b, c, d]
    }
}

/// A frame to the agent while the command runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostFrame<'a> {
    /// Standard input, at most [`STDIN_FRAME`] bytes and no more than the credit.
    Stdin(&'a [u8]),
    /// Standard input's end of file.
    StdinEnd,
    /// The agent may send this many more bytes of this stream.
    OutputCredit(OutputStream, u32),
    /// This stream's reader is gone.
    OutputClosed(OutputStream),
    /// Send the command this signal, by Linux's number.
    Signal(u32),
    /// The terminal has a new size.
    Window(WindowSize),
    /// The time, for a guest whose clock is behind.
    Clock(SystemTime),
    /// EXIT or ERROR has arrived.
    Bye,
}

impl HostFrame<'_> {
    /// Appends this frame to `out`.
    pub fn encode(&self, out: &mut Vec<u8>) {
        match *self {
            Self::Stdin(bytes) => frame(out, kind::STDIN, bytes),
            Self::StdinEnd => frame(out, kind::STDIN_END, &[]),
            Self::OutputCredit(stream, bytes) => {
                let [a, b, c, d] = bytes.to_le_bytes();
                frame(out, kind::OUTPUT_CREDIT, &[stream as u8, a, b, c, d]);
            }
            Self::OutputClosed(stream) => frame(out, kind::OUTPUT_CLOSED, &[stream as u8]),
            Self::Signal(number) => frame(out, kind::SIGNAL, &number.to_le_bytes()),
            Self::Window(size) => frame(out, kind::WINDOW, &size.encode()),
            Self::Clock(time) => {
                let since_epoch = time.duration_since(SystemTime::UNIX_EPOCH).ok();
                if let Some(nanoseconds) = since_epoch.and_then(|time| u64::try_from(time.as_nanos()).ok()) {
                    frame(out, kind::CLOCK, &nanoseconds.to_le_bytes());
                }
            }
            Self::Bye => frame(out, kind::BYE, &[]),
        }
    }
}

/// Appends a frame with a short payload.
fn frame(out: &mut Vec<u8>, kind: u8, payload: &[u8]) {
    debug_assert!(payload.len() <= PAYLOAD_MAX);
    out.push(kind);
    out.extend_from_slice(&(payload.len() as u32).to_le_bytes());
    out.extend_from_slice(payload);
}

fn bounded(out: &mut Vec<u8>, kind: u8, what: &'static str, payload: &[u8]) -> Result<(), RequestError> {
    if payload.len() > PAYLOAD_MAX {
        return Err(RequestError::TooLong { what, length: payload.len() });
    }
    frame(out, kind, payload);
    Ok(())
}

fn text(out: &mut Vec<u8>, kind: u8, what: &'static str, bytes: &[u8]) -> Result<(), RequestError> {
    if bytes.contains(&0) {
        return Err(RequestError::Nul { what });
    }
    bounded(out, kind, what, bytes)
}

#[cfg(test)]
mod tests;
