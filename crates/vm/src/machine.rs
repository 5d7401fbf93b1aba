//! [`Machine`]: the devices of a guest's machine, and QEMU's command line for it.

use std::ffi::{OsStr, OsString};
use std::io;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpListener, UdpSocket};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use crate::accel::Accel;
use crate::arch::Arch;
use crate::command::{MachineCommand, option_value, shell_word};
use crate::counter;
use crate::image_disk::ImageDisk;
use crate::kernel::{Entry, Kernel};
use crate::qemu::Qemu;

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

/// The ARM processor that a TCG guest sees: all that QEMU can do, but for the authentication of pointers. Debian's programs and
/// its kernel have that in every function, and by default each takes a block cipher: 2.2 times the boot.
const ARM_TCG_CPU: &str = "max,pauth=off";

/// Makes the kernel print emergencies only.
pub(crate) const QUIET: &str = "quiet";

/// Kernel parameters for every machine. None changes what a program may do. The times are from a boot of 1.3 s under
/// TCG.
const PARAMETERS: [&str; 10] = [
    QUIET,
    // A panic ends the machine (QEMU has -no-reboot) instead of leaving it to hang.
    "panic=-1",
    // No self-tests of the kernel's cryptography; the second parameter runs in spite of the first (15 ms).
    "cryptomgr.notests",
    "initcall_blacklist=crypto_kdf108_init",
    // RDRAND fills the entropy pool at once; nothing waits for it.
    "random.trust_cpu=on",
    // The guest needs no protection from itself: no mitigations of processor bugs, no audit trail.
    "mitigations=off",
    "audit=0",
    // A grace period then costs an interrupt to each processor instead of some ticks: faster mounts and module loads.
    "rcupdate.rcu_expedited=1",
    // Pages are cleared when a program gets them; do not clear them a second time inside the kernel.
    "init_on_alloc=0",
    // From 4 GiB on the kernel clears 64 MiB of bounce buffers for devices that cannot reach all memory (135 ms);
    // virtio devices can.
    "swiotlb=noforce",
];

/// Additional parameters for x86-64.
const X86_PARAMETERS: [&str; 5] = [
    // A failed boot is explained from this output; `quiet` does not suppress emergencies such as a panic.
    "console=ttyS0",
    // All devices are on the first PCI bus; do not probe the other 255.
    "pci=lastbus=0",
    // There is no keyboard or mouse; do not wait for their controller.
    "i8042.noaux",
    "i8042.nokbd",
    // One serial line, not four to probe.
    "8250.nr_uarts=1",
];

/// Additional parameters for RISC-V.
const RISCV_PARAMETERS: [&str; 2] = ["console=ttyS0", "8250.nr_uarts=1"];

/// Additional parameters for ARM. A kernel that does not move itself need not relocate itself, and large pages map it if it
/// is not to be read-only, page by page: together a third of a boot under TCG.
const ARM_PARAMETERS: [&str; 3] = ["console=ttyAMA0", "nokaslr", "rodata=off"];

/// Additional parameters for x86-64 under TCG.
const TCG_PARAMETERS: [&str; 4] = [
    // The counter is the host's: the kernel's watchdogs for it and for timer interrupts would only see delays.
    "tsc=reliable",
    "no_timer_check",
    // Splitting the kernel's mapping for read-only pages and walking it for a check takes 100 ms when translated.
    "rodata=off",
    // Lock prefixes cost nothing under TCG. Patching them out of a kernel that boots with one processor costs 0.05 to
    // 0.1 s, and so does patching them in again.
    "noreplace-smp",
];

/// Boots with one processor; the agent starts the others (`agent/processors.c`).
///
/// Some guests of two processors hung at boot under QEMU 7.2, about one of 150 on a busy machine. Both processors were
/// at the first instruction of a function that the kernel patches at that time, with interrupts off. A likely cause,
/// not proven: the kernel first writes a breakpoint and later the final bytes (`arch/x86/kernel/alternative.c`,
/// `text_poke_bp_batch`), and QEMU translates code before it write-protects the page. A processor that translates the
/// breakpoint while another one writes the final bytes keeps that translation, and takes a breakpoint for ever that is
/// no longer there. While one processor runs, no other one translates. The cost is within the noise (1.01 of a boot, by
/// 14 pairs).
///
/// The last word keeps the kernel from patching `native_send_call_func_ipi` when the last processor has started
/// (`arch/x86/kernel/apic/ipi.c`, `apic_smt_update`), at the same time as modules are loaded, which sends such
/// interrupts. With it, a debugger sees no patch (`text_poke_bp_batch`) while more than one processor runs, from the
/// boot to the command's end; with a network there is one, in `netdev_pick_tx`, before anything is sent. It costs one
/// interrupt for each processor, instead of one broadcast.
///
/// The kernel does not know INARCH_START_PROCESSORS and passes it to the agent as an environment variable. A user's own
/// `maxcpus=` takes precedence; then the agent starts no processors.
///
/// Guests of other architectures do the same, without the last word: one of 22 boots of a RISC-V kernel with two processors hung under
/// QEMU 7.2 too, and a 64-bit ARM kernel takes two thirds of the work to boot.
const ONE_AT_BOOT: [&str; 3] = ["maxcpus=1", "INARCH_START_PROCESSORS=1", "no_ipi_broadcast=1"];

/// The kernel's command line.
fn parameters(machine: &Machine) -> String {
    let arch = machine.kernel.arch;
    let is_x86_tcg = machine.accel == Accel::Tcg && arch == Arch::X86_64;
    let rate = is_x86_tcg.then(counter::kilohertz).flatten();
    let rate = rate.map(|rate| format!("tsc_early_khz={rate}"));
    let mut words = match arch {
        Arch::X86_64 => X86_PARAMETERS.to_vec(),
        Arch::Riscv64 => RISCV_PARAMETERS.to_vec(),
        Arch::Aarch64 => ARM_PARAMETERS.to_vec(),
    };
    words.extend(PARAMETERS);
    words.retain(|word| !(machine.verbose && *word == QUIET));
    if machine.kernel.entry == Entry::BzImage {
        // Avoids a relocation by the bzImage's own loader. A vmlinux is never relocated, and would pass the word to
        // init.
        words.push("nokaslr");
    }
    if is_x86_tcg {
        words.extend(TCG_PARAMETERS);
        words.extend(rate.as_deref());
    }
    let is_limited = machine.parameters.iter().any(|word| word.starts_with("maxcpus="));
    if machine.accel == Accel::Tcg && machine.cpus > 1 && !is_limited {
        words.extend(&ONE_AT_BOOT[..if arch == Arch::X86_64 { ONE_AT_BOOT.len() } else { 2 }]);
    }
    words.extend(machine.parameters.iter().map(String::as_str));
    words.join(" ")
}

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
        if let (Arch::X86_64, Some(firmware)) = (arch, qemu.qboot()) {
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

/// The QEMU arguments for another machine that uses the disk at `socket`, on one line, quoted for a shell. `id`
/// distinguishes it from the machine's other devices: letters, digits and `-`. The machine also needs shared memory,
/// see [`shared_memory_arguments`].
pub fn vhost_user_blk_arguments(socket: &Path, queues: u16, id: &str) -> String {
    let socket = chardev(id, &Endpoint::Path(socket.to_owned()));
    let device = vhost_user_blk(id, queues);
    let words: [&OsStr; 4] = ["-chardev".as_ref(), &socket, "-device".as_ref(), device.as_ref()];
    words.map(shell_word).join(" ")
}

/// QEMU arguments for `bytes` bytes of memory that vhost-user back ends can map; once for each machine.
pub fn shared_memory_arguments(bytes: u64) -> String {
    format!("-object memory-backend-memfd,id=inarch-mem,size={bytes}B,share=on -machine memory-backend=inarch-mem")
}

fn vhost_user_fs(chardev: &str, tag: &str, queues: u16, queue_size: u16) -> OsString {
    let mut device = OsString::from(format!(
        "vhost-user-fs-pci,id=fs-{chardev},chardev={chardev},num-request-queues={queues},queue-size={queue_size},tag="
    ));
    device.push(option_value(tag.as_ref()));
    device
}

/// Like [`vhost_user_blk_arguments`], for a directory that is shared at `socket` with this `tag`.
pub fn vhost_user_fs_arguments(socket: &Path, tag: &str, queues: u16, queue_size: u16) -> String {
    // A machine may have several shares. QEMU's ids consist of letters, digits and '-._' (`id_wellformed` of its
    // util/id.c).
    let in_id = |c: char| if c.is_ascii_alphanumeric() || "-._".contains(c) { c } else { '_' };
    let id = format!("fs-{}", tag.chars().map(in_id).collect::<String>());
    let socket = chardev(&id, &Endpoint::Path(socket.to_owned()));
    let device = vhost_user_fs(&id, tag, queues, queue_size);
    let words: [&OsStr; 4] = ["-chardev".as_ref(), &socket, "-device".as_ref(), &device];
    words.map(shell_word).join(" ")
}

/// The address of an NBD server.
#[derive(Clone, Debug)]
pub enum NbdAddress {
    /// A Unix socket.
    Socket(PathBuf),
    /// A TCP port.
    Tcp(SocketAddr),
}

/// Like [`vhost_user_blk_arguments`], for an NBD export. The disk gets this serial number, which also distinguishes its
/// QEMU objects: letters, digits and `-`, at most 20. Works with any memory.
pub fn nbd_arguments(address: &NbdAddress, export: &str, read_only: bool, serial: &str) -> String {
    let mut node = OsString::from(format!("driver=nbd,node-name={serial},"));
    match address {
        NbdAddress::Socket(path) => {
            node.push("server.type=unix,server.path=");
            node.push(option_value(path.as_os_str()));
        }
        NbdAddress::Tcp(address) => {
            node.push(format!("server.type=inet,server.host={},server.port={}", address.ip(), address.port()));
        }
    }
    if !export.is_empty() {
        node.push(",export=");
        node.push(option_value(export.as_ref()));
    }
    node.push(if read_only { ",read-only=on" } else { ",discard=unmap" });
    raw_disk_arguments(&node, serial)
}

/// QEMU arguments for a network on which [`FORWARD_ADDRESS`] and `port` lead to the socket at `path`. `id`
/// distinguishes its QEMU objects: letters, digits and `-`.
pub fn guest_forward_arguments(path: &Path, port: u16, id: &str) -> String {
    let socket = chardev(id, &Endpoint::Path(path.to_owned()));
    format!(
        "-chardev {} -netdev user,id=net-{id},guestfwd=tcp:{FORWARD_ADDRESS}:{port}-chardev:{id} \
         -device virtio-net-pci,netdev=net-{id}",
        shell_word(&socket)
    )
}

/// Like [`nbd_arguments`], for a raw image file.
pub fn raw_file_arguments(file: &Path, read_only: bool, serial: &str) -> String {
    let mut node = OsString::from(format!("driver=file,node-name={serial},filename="));
    node.push(option_value(file.as_os_str()));
    node.push(if read_only { ",read-only=on" } else { ",discard=unmap" });
    raw_disk_arguments(&node, serial)
}

fn raw_disk_arguments(node: &OsStr, serial: &str) -> String {
    let device = format!("virtio-blk-pci,drive={serial},serial={serial}");
    let words: [&OsStr; 4] = ["-blockdev".as_ref(), node, "-device".as_ref(), device.as_ref()];
    words.map(shell_word).join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixStream;

    fn machine() -> Machine {
        let kernel = Kernel {
            arch: Arch::X86_64,
            source: "/boot/vmlinuz".into(),
            release: "6.1.0".to_owned(),
            image: "/cache/vmlinux".into(),
            entry: Entry::Pvh,
            modules: None,
        };
        let console = Endpoint::Path("/run/console".into());
        Machine { parameters: vec!["user.word".to_owned()], ..Machine::bare(kernel, Accel::Tcg, 2, 512 << 20, console) }
    }

    fn line(machine: Machine) -> String {
        machine.command(&Qemu::at(Path::new("/usr/bin/qemu"), Arch::X86_64)).shell_line()
    }

    #[test]
    fn disks_of_other_machines_are_named_as_qemu_wants_it() {
        let socket = NbdAddress::Socket("/tmp/a,b c".into());
        let words = "-blockdev 'driver=nbd,node-name=s,server.type=unix,server.path=/tmp/a,,b c,export=x,\
                     discard=unmap' -device virtio-blk-pci,drive=s,serial=s";
        assert_eq!(nbd_arguments(&socket, "x", false, "s"), words);
        let tcp = NbdAddress::Tcp("[::1]:10809".parse().unwrap());
        let words = "-blockdev driver=nbd,node-name=s,server.type=inet,server.host=::1,server.port=10809,\
                     read-only=on -device virtio-blk-pci,drive=s,serial=s";
        assert_eq!(nbd_arguments(&tcp, "", true, "s"), words);
    }

    #[test]
    fn line_can_be_read_and_run() {
        let line = line(machine());
        assert!(line.starts_with("/usr/bin/qemu -nodefaults "), "{line}");
        for part in [
            "-accel tcg,thread=multi ",
            "-smp 2 -m 536870912B -object memory-backend-memfd,id=mem,size=536870912B,share=on ",
            "-kernel /cache/vmlinux -append 'console=ttyS0 pci=lastbus=0 ",
            " quiet panic=-1 ",
            " user.word' -chardev file,id=console,path=/run/console -serial chardev:console",
        ] {
            assert!(line.contains(part), "{part} in {line}");
        }
        assert!(line.contains(" noreplace-smp ") && line.contains(" maxcpus=1 "), "{line}");
        assert_eq!(line.contains(" tsc_early_khz="), counter::kilohertz().is_some(), "{line}");
    }

    #[test]
    fn kernel_of_kvm_keeps_its_own_watch_over_time() {
        let line = line(Machine { accel: Accel::Kvm, ..machine() });
        assert!(line.contains("-accel kvm -cpu host "), "{line}");
        assert!(!line.contains("tsc"), "{line}");
    }

    #[test]
    fn other_architectures_have_their_own_machine_and_words() {
        for (arch, words) in [
            (Arch::Riscv64, ["-machine virt,memory-backend=mem ", "-cpu rv64 ", "'console=ttyS0 "]),
            (
                Arch::Aarch64,
                ["-machine virt,gic-version=3,memory-backend=mem ", "-cpu max,pauth=off ", "'console=ttyAMA0 "],
            ),
        ] {
            let kernel = Kernel { arch, entry: Entry::Image, ..machine().kernel };
            let line = line(Machine { kernel, ..machine() });
            for part in words.into_iter().chain([" maxcpus=1 INARCH_START_PROCESSORS=1 "]) {
                assert!(line.contains(part), "{part} in {line}");
            }
            for other in ["-bios", "tsc", "i8042", "no_ipi_broadcast"] {
                assert!(!line.contains(other), "{other} in {line}");
            }
        }
    }

    #[test]
    fn what_the_user_adds_comes_last() {
        let udp = PublishedPort { udp: true, host: "0.0.0.0:53".parse().unwrap(), guest: 5353 };
        let tcp = PublishedPort { udp: false, host: "127.0.0.1:8080".parse().unwrap(), guest: 80 };
        let arguments = ["-device", "virtio-rng-pci"].map(OsString::from).to_vec();
        let line = line(Machine { network: true, published: vec![tcp, udp], arguments, verbose: true, ..machine() });
        assert!(line.contains("user,id=net,hostfwd=tcp:127.0.0.1:8080-:80,hostfwd=udp:0.0.0.0:53-:5353 "), "{line}");
        assert!(line.ends_with(" -device virtio-rng-pci") && line.contains(" user.word'"), "{line}");
        assert!(!line.contains(" quiet "), "{line}");
        let line = self::line(Machine { parameters: vec!["maxcpus=2".to_owned()], cpus: 4, ..machine() });
        assert!(line.contains(" maxcpus=2'") && !line.contains("maxcpus=1") && !line.contains("START_"), "{line}");
    }

    #[test]
    fn disks_keep_their_order_and_descriptors_are_inherited() {
        let (first, _far) = UnixStream::pair().unwrap();
        let number = first.as_raw_fd();
        let disk = |socket, id: &str| Disk { socket, id: id.to_owned(), queues: 2 };
        let disks =
            vec![disk(Endpoint::Descriptor(first.into()), "root"), disk(Endpoint::Path("/a,b".into()), "second")];
        let command = Machine { disks, ..machine() }.command(&Qemu::at(Path::new("qemu"), Arch::X86_64));
        assert_eq!(command.descriptors.iter().map(AsRawFd::as_raw_fd).collect::<Vec<_>>(), [number]);
        let expected = format!(
            "-chardev socket,id=root,fd={number} -device vhost-user-blk-pci,id=disk-root,chardev=root,num-queues=2 \
             -chardev socket,id=second,path=/a,,b -device vhost-user-blk-pci,id=disk-second,chardev=second,num-queues=2"
        );
        assert!(command.shell_line().ends_with(&expected), "{}", command.shell_line());
    }

    #[test]
    fn initramfs_is_read_through_its_descriptor() {
        let file = std::fs::File::open("/dev/null").unwrap();
        let expected = format!("-initrd /proc/self/fd/{} ", file.as_raw_fd());
        let line = line(Machine { initramfs: Some(Endpoint::Descriptor(file.into())), ..machine() });
        assert!(line.contains(&expected), "{line}");
    }
}
