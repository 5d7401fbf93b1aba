//! The command line of a kernel of User-Mode Linux. Each word is an argument of its own: no shell sees it.

use std::ffi::OsString;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use inarch_confine::{ADDRESS, Access, Enclosure};

use super::UmlError;
use super::memory::memory_directory;
use super::xsave;
use crate::command::{Enclosed, MachineCommand};
use crate::machine::{Endpoint, Machine, QUIET};

/// The longest command line, with its last byte (`COMMAND_LINE_SIZE` of arch/um/include/asm/setup.h).
pub const LONGEST: usize = 4095;

/// Numbers of virtio devices (include/uapi/linux/virtio_ids.h).
const BLOCK: u32 = 2;
const SOCKETS: u32 = 19;
const FILE_SYSTEM: u32 = 26;

/// What the program needs: directories of programs and libraries, and files that it reads, such as the one with the
/// processor's features.
const PROGRAMS: [&str; 8] =
    ["/lib", "/lib32", "/lib64", "/usr/lib", "/usr/lib32", "/usr/lib64", "/nix/store", "/gnu/store"];
const READ: [&str; 4] = ["/etc/ld.so.cache", "/proc/cpuinfo", "/dev/random", "/dev/urandom"];
/// The device that replaces a terminal.
const NULL: &str = "/dev/null";

/// Kernel parameters for every machine. None of them changes what a program may do; only [`RAID`] does.
const PARAMETERS: [&str; 10] = [
    QUIET,
    // A panic ends the machine instead of leaving it to hang.
    "panic=-1",
    "noreboot",
    // No terminal of this machine: neither in a window nor at a port.
    "con=null",
    "ssl=null",
    // The number of delay loops in a tick, which would take 90 ms to measure. Nothing waits by such loops.
    "lpj=20000000",
    "audit=0",
    // See QEMU's parameters. This processor is not translated.
    "mitigations=off",
    "rcupdate.rcu_expedited=1",
    "init_on_alloc=0",
];

/// Initialisation calls that the kernel skips: those for the file with its process number, for the socket by which it
/// is controlled, and for the file system by which a guest mounts files of the host.
const LEFT_OUT: &str = "make_umid_init,mconsole_init,init_hostfs";

/// The initialisation call that chooses the fastest code for the parity of RAID 6, by trying each for 0.17 s. A guest
/// that uses RAID 5 or 6, of MD, LVM or btrfs, needs it.
const RAID: &str = "raid6_select_algo";

/// Has the agent speak by the virtio socket device.
const SOCKET_AGENT: &str = "INARCH_SOCKETS=1";

/// The command line as it grows.
struct Line {
    words: Vec<OsString>,
    descriptors: Vec<OwnedFd>,
    sockets: Vec<OwnedFd>,
}

impl Line {
    /// The path by which the kernel opens a file.
    fn file(&mut self, file: Endpoint) -> PathBuf {
        match file {
            Endpoint::Path(path) => path,
            Endpoint::Descriptor(descriptor) => {
                let path = own_descriptor(descriptor.as_raw_fd());
                self.descriptors.push(descriptor);
                path
            }
        }
    }

    /// A virtio device behind a socket, which the kernel connects to.
    fn device(&mut self, socket: Endpoint, number: u32) {
        let address = match socket {
            Endpoint::Path(path) => path.into_os_string(),
            Endpoint::Descriptor(socket) => {
                self.sockets.push(socket);
                format!("{ADDRESS}{}", self.sockets.len() - 1).into()
            }
        };
        let mut word = OsString::from("virtio_uml.device=");
        word.push(address);
        word.push(format!(":{number}"));
        self.words.push(word);
    }

    fn word(&mut self, name: &str, value: impl AsRef<std::ffi::OsStr>) {
        let mut word = OsString::from(name);
        word.push(value);
        self.words.push(word);
    }
}

fn own_descriptor(number: i32) -> PathBuf {
    format!("/proc/self/fd/{number}").into()
}

impl Machine {
    /// The command line of this machine as a kernel of User-Mode Linux. The agent's port, and all other streams, are
    /// connections of the virtio socket device. The machine must not ask for anything that only QEMU has.
    ///
    /// # Errors
    /// It is too long, there is no place for its memory, or the program cannot be enclosed.
    pub fn uml_command(self) -> Result<MachineCommand, UmlError> {
        let is_real = matches!(self.console, Endpoint::Descriptor(_));
        let mut line = Line { words: Vec::new(), descriptors: Vec::new(), sockets: Vec::new() };
        line.word("mem=", format!("{}M", self.memory >> 20));
        let quiet = PARAMETERS.iter().filter(|word| !(self.verbose && **word == QUIET));
        line.words.extend(quiet.map(OsString::from));
        line.word("initcall_blacklist=", LEFT_OUT);
        if !self.raid {
            line.word("initcall_blacklist=", RAID);
        }
        if let Some(initramfs) = self.initramfs {
            let file = line.file(initramfs);
            line.word("initrd=", file);
        }
        match self.console {
            Endpoint::Path(_) => line.words.push("con0=null,fd:1".into()),
            Endpoint::Descriptor(console) => {
                line.word("con0=null,fd:", console.as_raw_fd().to_string());
                line.descriptors.push(console);
            }
        }
        for disk in self.disks {
            line.device(disk.socket, BLOCK);
        }
        for share in self.shares {
            line.device(share.socket, FILE_SYSTEM);
        }
        if let Some(sockets) = self.sockets {
            line.device(sockets, SOCKETS);
            line.words.push(SOCKET_AGENT.into());
        }
        line.words.extend(
            self.parameters
                .into_iter()
                .flat_map(|words| words.split_ascii_whitespace().map(OsString::from).collect::<Vec<_>>()),
        );
        let enclosed = match is_real {
            true => Some(enclosed(&self.kernel.image, self.memory, &mut line)?),
            false => None,
        };
        let bytes = line.words.iter().map(|word| word.len() + 1).sum();
        if bytes > LONGEST {
            return Err(UmlError::TooLong { bytes });
        }
        let Line { words, descriptors, .. } = line;
        Ok(MachineCommand { program: self.kernel.image, arguments: words, descriptors, enclosed })
    }
}

fn refused(path: &Path) -> impl FnOnce(std::io::Error) -> UmlError {
    let path = path.to_owned();
    |source| UmlError::Enclose { path, source }
}

/// Grants what the program needs to start.
pub(super) fn programs(program: &Path) -> Result<Enclosure, UmlError> {
    let mut enclosure = Enclosure::default().grant(program, Access::Run).map_err(refused(program))?;
    let places = PROGRAMS.map(|path| (path, Access::Run)).into_iter().chain(READ.map(|path| (path, Access::Read)));
    let places = places.chain([(NULL, Access::Device)]);
    for (path, access) in places.map(|(path, access)| (Path::new(path), access)).filter(|(path, _)| path.exists()) {
        enclosure = enclosure.grant(path, access).map_err(refused(path))?;
    }
    Ok(enclosure)
}

/// Grants what the program needs, and gives it a place for its memory.
fn enclosed(program: &Path, memory: u64, line: &mut Line) -> Result<Enclosed, UmlError> {
    let directory = memory_directory(memory)?;
    let own = own_descriptor(directory.as_raw_fd());
    let enclosure = programs(program)?.grant(&own, Access::Change).map_err(refused(&own))?;
    // The kernel makes no file in `uml_dir`, because that directory is already removed. And a guest that mounts this
    // machine's files by `hostfs` finds none.
    line.word("uml_dir=", &own);
    line.word("hostfs=", &own);
    let library = xsave::library().map_err(refused(Path::new("xsave.so")))?;
    let environment =
        vec![("TMPDIR", own.into_os_string()), (xsave::VARIABLE, own_descriptor(library.as_raw_fd()).into_os_string())];
    line.descriptors.extend([directory, library]);
    Ok(Enclosed { enclosure, sockets: std::mem::take(&mut line.sockets), environment })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Accel;
    use crate::kernel::{Entry, Kernel};
    use crate::machine::Disk;
    use std::os::unix::net::UnixStream;

    fn machine(console: Endpoint) -> Machine {
        let kernel = Kernel {
            arch: crate::arch::Arch::X86_64,
            source: "/bin/true".into(),
            release: "6.1".to_owned(),
            image: "/bin/true".into(),
            entry: Entry::Program,
            modules: None,
        };
        Machine {
            parameters: vec!["user.word other".to_owned()],
            ..Machine::bare(kernel, Accel::Tcg, 1, 128 << 20, console)
        }
    }

    #[test]
    fn the_line_for_people_has_names_and_makes_nothing() {
        let disks = vec![Disk { socket: Endpoint::Path("tree0.sock".into()), id: "tree0".to_owned(), queues: 1 }];
        let sockets = Some(Endpoint::Path("sockets.sock".into()));
        let initramfs = Some(Endpoint::Path("initramfs.cpio".into()));
        let machine = Machine { disks, sockets, initramfs, ..machine(Endpoint::Path("console.log".into())) };
        let line = machine.uml_command().unwrap();
        assert!(line.enclosed.is_none() && line.descriptors.is_empty());
        let line = line.shell_line();
        for part in [
            "/bin/true mem=128M quiet ",
            " initrd=initramfs.cpio con0=null,fd:1 ",
            " virtio_uml.device=tree0.sock:2 virtio_uml.device=sockets.sock:19 INARCH_SOCKETS=1 user.word other",
        ] {
            assert!(line.contains(part), "{part} in {line}");
        }
    }

    #[test]
    fn sockets_are_numbered_and_not_inherited() {
        let pair = || UnixStream::pair().unwrap();
        let ((console, _far), (first, _far1), (second, _far2)) = (pair(), pair(), pair());
        let number = console.as_raw_fd();
        let disk =
            |socket: UnixStream| Disk { socket: Endpoint::Descriptor(socket.into()), id: "tree".to_owned(), queues: 1 };
        let machine = Machine {
            disks: vec![disk(first), disk(second)],
            raid: true,
            ..machine(Endpoint::Descriptor(console.into()))
        };
        let command = machine.uml_command().unwrap();
        let line = command.shell_line();
        assert!(line.contains(" virtio_uml.device=inarch-0:2 virtio_uml.device=inarch-1:2 "), "{line}");
        assert!(line.contains(&format!("con0=null,fd:{number} ")) && !line.contains(RAID), "{line}");
        // The console, the directory for the memory, and the library for AMX.
        assert_eq!(command.descriptors.len(), 3);
        assert_eq!(command.enclosed.unwrap().sockets.len(), 2);
    }

    #[test]
    fn a_line_that_the_kernel_would_cut_off_is_refused() {
        let parameters = vec!["x".repeat(LONGEST)];
        let machine = Machine { parameters, ..machine(Endpoint::Path("console.log".into())) };
        assert!(matches!(machine.uml_command(), Err(UmlError::TooLong { .. })));
    }
}
