//! [`Machine`]: the devices of a guest's machine, and QEMU's command line for it.

use std::ffi::OsString;
use std::io;
use std::net::{Ipv4Addr, SocketAddrV4, TcpListener, UdpSocket};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::PathBuf;

use crate::accel::Accel;
use crate::arch::Arch;
use crate::command::{MachineCommand, option_value};
use crate::image_disk::ImageDisk;
use crate::kernel::Kernel;
use crate::qemu::Qemu;

mod arguments;
mod parameters;
#[cfg(test)]
mod tests;

pub use arguments::{
    NbdAddress, guest_forward_arguments, nbd_arguments, raw_file_arguments, shared_memory_arguments,
    vhost_user_blk_arguments, vhost_user_fs_arguments,
};
pub use parameters::CLEARED_PAGES;
pub(crate) use parameters::QUIET;
use parameters::parameters;

/// Name of the agent's virtio-serial port. The guest finds it in /sys/class/virtio-ports/*/name.
pub const AGENT_PORT: &str = "org.inarch.agent";

/// A file or a socket for QEMU.
#[derive(Debug)]
pub enum Endpoint {
    /// An open descriptor that QEMU inherits. Nothing remains of it, however this process ends.
    Descriptor(OwnedFd),
    /// A path that QEMU opens or, for a socket, connects to.
    Path(PathBuf),
}

/// A disk served over vhost-user.
#[derive(Debug)]
pub struct Disk {
    /// A connected or listening socket.
    pub socket: Endpoint,
    /// Name of the device within QEMU: letters, digits and `-`.
    pub id: String,
    /// Number of virtqueues, at least 1.
    pub queues: u16,
}

/// A directory that is served over vhost-user.
#[derive(Debug)]
pub struct Share {
    /// A connected or listening socket.
    pub socket: Endpoint,
    /// The name that the guest mounts: letters, digits and `-`.
    pub tag: String,
    /// Number of request queues, at least 1.
    pub queues: u16,
    /// Descriptors in a queue.
    pub queue_size: u16,
}

/// A socket that a guest reaches over TCP, at [`FORWARD_ADDRESS`]. Every process in the guest can connect to it; none
/// outside can.
#[derive(Debug)]
pub struct Forward {
    /// A connected or listening socket.
    pub socket: Endpoint,
    /// Name of the device within QEMU: letters, digits and `-`.
    pub id: String,
    /// The TCP port.
    pub port: u16,
}

/// A socket that a guest sees as another virtio-serial port.
#[derive(Debug)]
pub struct Stream {
    /// A connected or listening socket.
    pub socket: Endpoint,
    /// Name of the port, and of the device within QEMU: letters, digits and `-`.
    pub port: String,
}

/// The guest's address for [`Forward`]s; QEMU's own network uses the last numbers 2 to 4 and 15.
pub const FORWARD_ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 0, 2, 100);

/// A guest's machine.
#[derive(Debug)]
pub struct Machine {
    /// The kernel that it boots.
    pub kernel: Kernel,
    /// The firmware that starts the kernel under TCG, in place of QEMU's own.
    pub firmware: Option<PathBuf>,
    /// A cpio archive in memory or in a file.
    pub initramfs: Option<Endpoint>,
    /// Additional kernel parameters, after those that the machine needs.
    pub parameters: Vec<String>,
    /// Whether the kernel prints all messages to its first serial line, which takes time, and not only emergencies.
    pub verbose: bool,
    /// Its accelerator.
    pub accel: Accel,
    /// Number of processors, at least 1.
    pub cpus: u32,
    /// Memory in bytes, a multiple of a page.
    pub memory: u64,
    /// The other end of the agent's port.
    pub agent: Option<Endpoint>,
    /// Pipe or file for the kernel's output on its first serial line. QEMU writes one character at a time and drops
    /// those that find no room (`hw/char/serial.c`): a socket has room for about 280 of them, a pipe for 65,536 or
    /// more.
    pub console: Endpoint,
    /// Disks in the guest's order: the first is /dev/vda.
    pub disks: Vec<Disk>,
    /// Disks that QEMU opens itself, after those.
    pub images: Vec<ImageDisk>,
    /// Directories that it shares.
    pub shares: Vec<Share>,
    /// Socket of a vhost-user server for the machine's virtio socket device; `None` for no such device.
    pub sockets: Option<Endpoint>,
    /// Sockets that it reaches over TCP. If there are any and `network` is not set, it gets a network that leads
    /// nowhere else.
    pub forwards: Vec<Forward>,
    /// Sockets that it sees as virtio-serial ports, at most 29; only with an agent.
    pub streams: Vec<Stream>,
    /// Whether it has a network of its own behind a user-mode NAT.
    pub network: bool,
    /// Ports of this host that are forwarded to the guest; only with a network.
    pub published: Vec<PublishedPort>,
    /// Whether the guest may use RAID 5 and 6. Without, a kernel of User-Mode Linux starts in a third of the time; QEMU's is no
    /// slower with it.
    pub raid: bool,
    /// More arguments for QEMU, after all others.
    pub arguments: Vec<OsString>,
}

/// A port of this host that is forwarded to a port of the guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PublishedPort {
    /// Whether it is a UDP port; otherwise TCP.
    pub udp: bool,
    /// The address on this host.
    pub host: SocketAddrV4,
    /// The port in the guest.
    pub guest: u16,
}

impl PublishedPort {
    /// Checks that the port of this host is available; QEMU's own error would not give the reason.
    ///
    /// # Errors
    /// Another program uses it, the address is not this host's, or this user may not use it.
    pub fn check(&self) -> io::Result<()> {
        match self.udp {
            true => UdpSocket::bind(self.host).map(drop),
            false => TcpListener::bind(self.host).map(drop),
        }
    }

    /// The port as QEMU's `hostfwd=`.
    fn rule(&self) -> String {
        let protocol = if self.udp { "udp" } else { "tcp" };
        format!(",hostfwd={protocol}:{}-:{}", self.host, self.guest)
    }
}

impl Machine {
    /// A machine with no device but its first serial line, and without a network.
    pub fn bare(kernel: Kernel, accel: Accel, cpus: u32, memory: u64, console: Endpoint) -> Machine {
        Machine {
            kernel,
            firmware: None,
            initramfs: None,
            parameters: Vec::new(),
            verbose: false,
            accel,
            cpus,
            memory,
            agent: None,
            console,
            disks: Vec::new(),
            images: Vec::new(),
            shares: Vec::new(),
            sockets: None,
            forwards: Vec::new(),
            streams: Vec::new(),
            network: false,
            published: Vec::new(),
            raid: false,
            arguments: Vec::new(),
        }
    }

    /// The `qemu` command line of this machine.
    pub fn command(self, qemu: &Qemu) -> MachineCommand {
        let mut line = CommandLine { arguments: Vec::new(), descriptors: Vec::new() };
        line.platform(&self, qemu);
        line.option("-append", parameters(&self));
        if let Some(initramfs) = self.initramfs {
            let file = line.file(initramfs);
            line.option("-initrd", file);
        }
        let console = line.file(self.console);
        let mut value = OsString::from("file,id=console,path=");
        value.push(option_value(&console));
        line.option("-chardev", value);
        line.option("-serial", "chardev:console");
        if let Some(agent) = self.agent {
            line.chardev("agent", agent);
            // Port 0 is reserved for a console.
            line.option("-device", format!("virtio-serial-pci,max_ports={}", 2 + self.streams.len()));
            line.option("-device", format!("virtserialport,chardev=agent,name={AGENT_PORT}"));
            for Stream { socket, port } in self.streams {
                line.chardev(&port, socket);
                line.option("-device", format!("virtserialport,chardev={port},name={port}"));
            }
        }
        for disk in self.disks {
            line.disk(disk);
        }
        for image in self.images {
            line.image(image);
        }
        for share in self.shares {
            line.share(share);
        }
        if let Some(sockets) = self.sockets {
            line.chardev("sockets", sockets);
            line.option("-device", "vhost-user-vsock-pci,chardev=sockets");
        }
        if self.network || !self.forwards.is_empty() {
            let mut network = String::from(if self.network { "user,id=net" } else { "user,id=net,restrict=on" });
            for Forward { socket, id, port } in self.forwards {
                network.push_str(&format!(",guestfwd=tcp:{FORWARD_ADDRESS}:{port}-chardev:{id}"));
                line.chardev(&id, socket);
            }
            network.extend(self.published.iter().map(PublishedPort::rule));
            line.option("-netdev", network);
            // The option ROM is for booting from the network.
            line.option("-device", "virtio-net-pci,netdev=net,romfile=");
        }
        line.arguments.extend(self.arguments);
        let CommandLine { arguments, descriptors } = line;
        MachineCommand { program: qemu.path().to_owned(), arguments, descriptors, enclosed: None }
    }
}

/// The processor that a TCG guest sees.
///
/// - Without `erms` and `fsrm` the guest copies and clears memory by words and vectors. With them it prefers `rep
///   movsb`, which TCG translates byte by byte. Clearing memory is 7 times faster without, fork and exec 1.5 times,
///   file writes and reads 2 times.
/// - For a current Intel processor the kernel assumes a constant time-stamp counter. For the K8 that `max` claims to
///   be, it calibrates the delay loop of every further processor, 0.2 s each, with wrong results.
const TCG_CPU: &str = "max,-erms,-fsrm,vendor=GenuineIntel,family=6,model=85,stepping=4";

/// The ARM processor that a TCG guest sees: everything that QEMU can do except pointer authentication. Debian's
/// programs and kernel use that in every function, and by default QEMU computes a block cipher each time: a boot takes
/// 2.2 times as long.
const ARM_TCG_CPU: &str = "max,pauth=off";

/// QEMU's command line as it grows.
pub(crate) struct CommandLine {
    pub(crate) arguments: Vec<OsString>,
    pub(crate) descriptors: Vec<OwnedFd>,
}

impl CommandLine {
    pub(crate) fn option(&mut self, name: &str, value: impl Into<OsString>) {
        self.arguments.push(name.into());
        self.arguments.push(value.into());
    }

    fn platform(&mut self, machine: &Machine, qemu: &Qemu) {
        for flag in ["-nodefaults", "-no-user-config", "-no-reboot"] {
            self.arguments.push(flag.into());
        }
        self.option("-display", "none");
        let arch = machine.kernel.arch;
        // Only virtio devices: each controller less is a device less to probe.
        self.option(
            "-machine",
            match arch {
                Arch::X86_64 => "q35,memory-backend=mem,usb=off,sata=off,smbus=off",
                Arch::Riscv64 => "virt,memory-backend=mem",
                Arch::Aarch64 => "virt,gic-version=3,memory-backend=mem",
            },
        );
        match machine.accel {
            Accel::Kvm => {
                self.option("-accel", "kvm");
                self.option("-cpu", "host");
            }
            Accel::Tcg => {
                self.option("-accel", "tcg,thread=multi");
                self.option(
                    "-cpu",
                    match arch {
                        Arch::X86_64 => TCG_CPU,
                        Arch::Riscv64 => "rv64",
                        Arch::Aarch64 => ARM_TCG_CPU,
                    },
                );
            }
        }
        self.option("-smp", machine.cpus.to_string());
        self.option("-m", format!("{}B", machine.memory));
        // vhost-user back ends map the guest's memory.
        self.option("-object", format!("memory-backend-memfd,id=mem,size={}B,share=on", machine.memory));
        let firmware = match (arch, machine.accel) {
            (Arch::X86_64, _) => qemu.qboot(),
            (_, Accel::Tcg) => machine.firmware.clone(),
            (_, Accel::Kvm) => None,
        };
        if let Some(firmware) = firmware {
            self.option("-bios", firmware);
        }
        self.option("-kernel", &machine.kernel.image);
    }

    /// The path by which QEMU opens the file.
    fn file(&mut self, source: Endpoint) -> OsString {
        match source {
            Endpoint::Path(path) => path.into_os_string(),
            Endpoint::Descriptor(descriptor) => {
                let path = format!("/proc/self/fd/{}", descriptor.as_raw_fd());
                self.descriptors.push(descriptor);
                path.into()
            }
        }
    }

    fn chardev(&mut self, id: &str, socket: Endpoint) {
        let value = chardev(id, &socket);
        self.option("-chardev", value);
        if let Endpoint::Descriptor(descriptor) = socket {
            self.descriptors.push(descriptor);
        }
    }

    fn disk(&mut self, disk: Disk) {
        let device = vhost_user_blk(&disk.id, disk.queues);
        self.chardev(&disk.id, disk.socket);
        self.option("-device", device);
    }

    fn share(&mut self, share: Share) {
        let device = vhost_user_fs(&share.tag, &share.tag, share.queues, share.queue_size);
        self.chardev(&share.tag, share.socket);
        self.option("-device", device);
    }
}

fn chardev(id: &str, socket: &Endpoint) -> OsString {
    let mut value = OsString::from(format!("socket,id={id},"));
    match socket {
        Endpoint::Descriptor(descriptor) => value.push(format!("fd={}", descriptor.as_raw_fd())),
        Endpoint::Path(path) => {
            value.push("path=");
            value.push(option_value(path.as_os_str()));
        }
    }
    value
}

fn vhost_user_blk(chardev: &str, queues: u16) -> String {
    format!("vhost-user-blk-pci,id=disk-{chardev},chardev={chardev},num-queues={queues}")
}

fn vhost_user_fs(chardev: &str, tag: &str, queues: u16, queue_size: u16) -> OsString {
    let mut device = OsString::from(format!(
        "vhost-user-fs-pci,id=fs-{chardev},chardev={chardev},num-request-queues={queues},queue-size={queue_size},tag="
    ));
    device.push(option_value(tag.as_ref()));
    device
}
