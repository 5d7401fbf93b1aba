//! What a guest's machine is made of, and QEMU's command line for it.

use std::ffi::{OsStr, OsString};
use std::io;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV4, TcpListener, UdpSocket};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use crate::accel::Accel;
use crate::counter;
use crate::kernel::{Entry, Kernel};
use crate::qemu::{Qemu, QemuCommand, option_value, shell_word};

/// Name of the virtio-serial port that the agent speaks on, found in the guest by
/// /sys/class/virtio-ports/*/name.
pub const AGENT_PORT: &str = "org.inarch.agent";

/// A file or a socket that QEMU is given.
#[derive(Debug)]
pub enum Source {
    /// An open descriptor that QEMU inherits. Nothing of it is left behind however this process ends.
    Descriptor(OwnedFd),
    /// A path that QEMU opens or, for a socket, connects to.
    Path(PathBuf),
}

/// A disk served over vhost-user.
#[derive(Debug)]
pub struct Disk {
    /// The connected or to be connected socket.
    pub socket: Source,
    /// Name of the device within QEMU: letters, digits and `-`.
    pub id: String,
    /// Number of virtqueues, at least 1.
    pub queues: u16,
}

/// A directory that is served over vhost-user.
#[derive(Debug)]
pub struct Share {
    /// The connected or to be connected socket.
    pub socket: Source,
    /// The name by which the guest mounts it: letters, digits and `-`.
    pub tag: String,
    /// Number of request queues, at least 1.
    pub queues: u16,
    /// Descriptors in a queue.
    pub queue_size: u16,
}

/// A socket that a guest reaches over TCP, at [`FORWARD_ADDRESS`]: whoever is in the guest can, and nobody else.
#[derive(Debug)]
pub struct Forward {
    /// The connected or to be connected socket.
    pub socket: Source,
    /// Name of the device within QEMU: letters, digits and `-`.
    pub id: String,
    /// The port that leads there.
    pub port: u16,
}

/// A socket that a guest has as a virtio-serial port of its own, beside the agent's.
#[derive(Debug)]
pub struct Stream {
    /// The connected or to be connected socket.
    pub socket: Source,
    /// Name of the port, and of the device within QEMU: letters, digits and `-`.
    pub port: String,
}

/// Where a guest finds what its QEMU forwards: beside the addresses that QEMU's own network has (2 to 4, and 15).
pub const FORWARD_ADDRESS: Ipv4Addr = Ipv4Addr::new(10, 0, 2, 100);

/// A guest's machine.
#[derive(Debug)]
pub struct Machine {
    /// What it boots.
    pub kernel: Kernel,
    /// A cpio archive in memory or in a file.
    pub initramfs: Option<Source>,
    /// Words for the kernel's command line, after those that the machine needs.
    pub parameters: Vec<String>,
    /// Whether the kernel prints all that it has to say to its first serial line, which takes time, and not only what is grave.
    pub verbose: bool,
    /// What runs its instructions.
    pub accel: Accel,
    /// Number of processors, at least 1.
    pub cpus: u32,
    /// Memory in bytes, a multiple of a page.
    pub memory: u64,
    /// Socket for the agent's port.
    pub agent: Option<Source>,
    /// Pipe or file that gets what the kernel prints to its first serial line. QEMU writes a character at a time and drops those that find no
    /// room (`hw/char/serial.c`): a socket has room for some 280 of them, a pipe for 65,536 and more.
    pub console: Source,
    /// Disks in the guest's order: the first is /dev/vda.
    pub disks: Vec<Disk>,
    /// Directories that it shares.
    pub shares: Vec<Share>,
    /// Socket that serves its connections over vhost-user, for which it gets a virtio socket device.
    pub sockets: Option<Source>,
    /// Sockets that it reaches over TCP, for which it gets a network that leads nowhere else unless it has one.
    pub forwards: Vec<Forward>,
    /// Sockets that it has as ports, at most 29; only with an agent.
    pub streams: Vec<Stream>,
    /// Whether it has a network of its own behind a user-mode NAT.
    pub network: bool,
    /// Ports of this host that lead to the guest's; only with a network.
    pub published: Vec<PublishedPort>,
    /// More arguments for QEMU, after all others.
    pub arguments: Vec<OsString>,
}

/// A port of this host that leads to one of the guest's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PublishedPort {
    /// Whether it is UDP's; else TCP's.
    pub udp: bool,
    /// The address on this host.
    pub host: SocketAddrV4,
    /// The port in the guest.
    pub guest: u16,
}

impl PublishedPort {
    /// Fails if the address on this host cannot be had, which QEMU would only say without the reason.
    ///
    /// # Errors
    /// Another program has it, or it is no address of this host's, or this user may not have it.
    pub fn check(&self) -> io::Result<()> {
        match self.udp {
            true => UdpSocket::bind(self.host).map(drop),
            false => TcpListener::bind(self.host).map(drop),
        }
    }

    /// As QEMU's `hostfwd=`.
    fn rule(&self) -> String {
        let protocol = if self.udp { "udp" } else { "tcp" };
        format!(",hostfwd={protocol}:{}-:{}", self.host, self.guest)
    }
}

impl Machine {
    /// One without a device but its first serial line, and without a network.
    pub fn bare(kernel: Kernel, accel: Accel, cpus: u32, memory: u64, console: Source) -> Machine {
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
            shares: Vec::new(),
            sockets: None,
            forwards: Vec::new(),
            streams: Vec::new(),
            network: false,
            published: Vec::new(),
            arguments: Vec::new(),
        }
    }

    /// The command line that makes `qemu` this machine.
    pub fn command(self, qemu: &Qemu) -> QemuCommand {
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
            // The first port is the console's, were there one.
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
        QemuCommand { program: qemu.path().to_owned(), arguments: line.arguments, descriptors: line.descriptors }
    }
}

/// What a TCG guest sees as its processor.
///
/// - Without `erms` and `fsrm` the guest copies and clears by words and vectors: `rep movsb`, which those two make it
///   prefer, is translated byte by byte. Clearing memory is 7 times faster, fork and exec 1.5, file writes and reads 2.
/// - As a current Intel processor it has a constant time-stamp counter for the kernel. As the K8 that `max` says it is,
///   the kernel calibrates the delay loop of every further processor, 0.2 s each, and gets it wrong.
const TCG_CPU: &str = "max,-erms,-fsrm,vendor=GenuineIntel,family=6,model=85,stepping=4";

/// What has the kernel print nothing but what is grave.
const QUIET: &str = "quiet";

/// The kernel's parameters for every machine. None of them changes what a program may do; times are from a boot of
/// 1.3 s under TCG.
const PARAMETERS: [&str; 15] = [
    // What a failed boot is explained from; `quiet` leaves emergencies, and a panic is one.
    "console=ttyS0",
    QUIET,
    // A panic ends the machine (QEMU has -no-reboot) instead of leaving it to hang.
    "panic=-1",
    // Self-tests of the kernel's cryptography; the second runs in spite of the first (15 ms).
    "cryptomgr.notests",
    "initcall_blacklist=crypto_kdf108_init",
    // All devices are on the first PCI bus; the other 255 are not looked for.
    "pci=lastbus=0",
    // No keyboard and no mouse: their controller is not waited for.
    "i8042.noaux",
    "i8042.nokbd",
    // One serial line, not four to probe.
    "8250.nr_uarts=1",
    // RDRAND fills the pool at once; nothing waits for entropy.
    "random.trust_cpu=on",
    // The guest is protected from nobody but itself: no work-arounds for processors, no audit trail.
    "mitigations=off",
    "audit=0",
    // Waiting for a grace period costs an interrupt to each processor, not some ticks: mounts and module loads.
    "rcupdate.rcu_expedited=1",
    // Pages are cleared when they are handed to a program; not a second time inside the kernel.
    "init_on_alloc=0",
    // From 4 GiB on the kernel clears 64 MiB of bounce buffers for devices that cannot reach all memory (135 ms); a
    // virtio device reaches it all.
    "swiotlb=noforce",
];

/// Further parameters under TCG.
const TCG_PARAMETERS: [&str; 4] = [
    // The counter is the host's: the kernel's watch over it and over the timer's interrupts would only see delays.
    "tsc=reliable",
    "no_timer_check",
    // Splitting the kernel's mapping for read-only pages and walking it for a check takes 100 ms when translated.
    "rodata=off",
    // Lock prefixes cost a translator nothing; taking them out of the text of a kernel that boots with one processor does (0.05
    // to 0.1 s), and so does putting them back.
    "noreplace-smp",
];

/// Leaves all processors but the first off until the agent starts them (`agent/processors.c`).
///
/// Some guests of two processors hung while they booted under QEMU 7.2, about one of 150 on a busy machine: both processors at the
/// first instruction of a function that the kernel patches then, with interrupts off. What fits (it is not proven): the kernel
/// writes a breakpoint first and the final bytes later (`arch/x86/kernel/alternative.c`, `text_poke_bp_batch`), and QEMU
/// translates code before it write-protects the page. A processor that translates the breakpoint while another one writes
/// the final bytes keeps the translation, and takes a breakpoint that is no longer there for ever. While one processor runs, no
/// other one translates. What it costs is lost in the noise (1.01 of a boot by 14 pairs).
///
/// The second word keeps the kernel from patching `native_send_call_func_ipi` when the last processor has started
/// (`arch/x86/kernel/apic/ipi.c`, `apic_smt_update`): that one was started beside the loading of modules, which sends such interrupts.
/// With it, a debugger sees no patch (`text_poke_bp_batch`) while more than one processor runs, from the boot to the command's end; with a
/// network there is one, in `netdev_pick_tx`, before anything is sent. What it costs are as many interrupts as processors, where one
/// broadcast would do.
///
/// The kernel hands the last word, which it does not know, to the agent as a variable of its environment. A user who gives a
/// `maxcpus=` gets as many as that says, and the agent starts none.
const ONE_AT_BOOT: [&str; 3] = ["maxcpus=1", "no_ipi_broadcast=1", "INARCH_START_PROCESSORS=1"];

/// The kernel's command line.
fn parameters(machine: &Machine) -> String {
    let rate = (machine.accel == Accel::Tcg).then(counter::kilohertz).flatten();
    let rate = rate.map(|rate| format!("tsc_early_khz={rate}"));
    let mut words = PARAMETERS.to_vec();
    words.retain(|word| !(machine.verbose && *word == QUIET));
    if machine.kernel.entry == Entry::BzImage {
        // Spares the bzImage's own loader a relocation; a vmlinux is never moved, and would hand the word to init.
        words.push("nokaslr");
    }
    if machine.accel == Accel::Tcg {
        words.extend(TCG_PARAMETERS);
        words.extend(rate.as_deref());
        if machine.cpus > 1 && !machine.parameters.iter().any(|word| word.starts_with("maxcpus=")) {
            words.extend(ONE_AT_BOOT);
        }
    }
    words.extend(machine.parameters.iter().map(String::as_str));
    words.join(" ")
}

struct CommandLine {
    arguments: Vec<OsString>,
    descriptors: Vec<OwnedFd>,
}

impl CommandLine {
    fn option(&mut self, name: &str, value: impl Into<OsString>) {
        self.arguments.push(name.into());
        self.arguments.push(value.into());
    }

    fn platform(&mut self, machine: &Machine, qemu: &Qemu) {
        for flag in ["-nodefaults", "-no-user-config", "-no-reboot"] {
            self.arguments.push(flag.into());
        }
        self.option("-display", "none");
        // Nothing but virtio devices: each controller less is a device less to probe.
        self.option("-machine", "q35,memory-backend=mem,usb=off,sata=off,smbus=off");
        match machine.accel {
            Accel::Kvm => {
                self.option("-accel", "kvm");
                self.option("-cpu", "host");
            }
            Accel::Tcg => {
                self.option("-accel", "tcg,thread=multi");
                self.option("-cpu", TCG_CPU);
            }
        }
        self.option("-smp", machine.cpus.to_string());
        self.option("-m", format!("{}B", machine.memory));
        // Back ends of vhost-user devices map the guest's memory.
        self.option("-object", format!("memory-backend-memfd,id=mem,size={}B,share=on", machine.memory));
        if let Some(firmware) = qemu.qboot() {
            self.option("-bios", firmware);
        }
        self.option("-kernel", &machine.kernel.image);
    }

    /// The path by which QEMU opens the file.
    fn file(&mut self, source: Source) -> OsString {
        match source {
            Source::Path(path) => path.into_os_string(),
            Source::Descriptor(descriptor) => {
                let path = format!("/proc/self/fd/{}", descriptor.as_raw_fd());
                self.descriptors.push(descriptor);
                path.into()
            }
        }
    }

    fn chardev(&mut self, id: &str, socket: Source) {
        let value = chardev(id, &socket);
        self.option("-chardev", value);
        if let Source::Descriptor(descriptor) = socket {
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

fn chardev(id: &str, socket: &Source) -> OsString {
    let mut value = OsString::from(format!("socket,id={id},"));
    match socket {
        Source::Descriptor(descriptor) => value.push(format!("fd={}", descriptor.as_raw_fd())),
        Source::Path(path) => {
            value.push("path=");
            value.push(option_value(path.as_os_str()));
        }
    }
    value
}

fn vhost_user_blk(chardev: &str, queues: u16) -> String {
    format!("vhost-user-blk-pci,id=disk-{chardev},chardev={chardev},num-queues={queues}")
}

/// What another machine needs on its QEMU command line to have the disk served at `socket`, on one line, quoted for a
/// shell. `id` tells it from the machine's other devices: letters, digits and `-`. Its memory must be shared besides, as
/// [`shared_memory_arguments`] has it.
pub fn vhost_user_blk_arguments(socket: &Path, queues: u16, id: &str) -> String {
    let socket = chardev(id, &Source::Path(socket.to_owned()));
    let device = vhost_user_blk(id, queues);
    let words: [&OsStr; 4] = ["-chardev".as_ref(), &socket, "-device".as_ref(), device.as_ref()];
    words.map(shell_word).join(" ")
}

/// What gives a machine so many bytes of memory that devices outside of QEMU can map. Once a machine.
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

/// As [`vhost_user_blk_arguments`] for a directory that is shared at `socket`, which the guest knows by its `tag`.
pub fn vhost_user_fs_arguments(socket: &Path, tag: &str, queues: u16, queue_size: u16) -> String {
    // One machine may have several. An id of QEMU's has letters, digits and '-._' (`id_wellformed` of its util/id.c).
    let in_id = |c: char| if c.is_ascii_alphanumeric() || "-._".contains(c) { c } else { '_' };
    let id = format!("fs-{}", tag.chars().map(in_id).collect::<String>());
    let socket = chardev(&id, &Source::Path(socket.to_owned()));
    let device = vhost_user_fs(&id, tag, queues, queue_size);
    let words: [&OsStr; 4] = ["-chardev".as_ref(), &socket, "-device".as_ref(), &device];
    words.map(shell_word).join(" ")
}

/// Where an NBD server is to be reached.
#[derive(Clone, Debug)]
pub enum NbdAddress {
    /// A Unix socket.
    Socket(PathBuf),
    /// A TCP port.
    Tcp(SocketAddr),
}

/// As [`vhost_user_blk_arguments`] for an export of an NBD server; the disk gets this serial number, by which
/// its parts are told from other disks' as well: letters, digits and `-`, at most 20. Any memory will do.
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

/// Arguments that give a machine a network of its own, on which [`FORWARD_ADDRESS`] and `port` lead to the socket at `path`.
/// `id` tells its parts from others: letters, digits and `-`.
pub fn guest_forward_arguments(path: &Path, port: u16, id: &str) -> String {
    let socket = chardev(id, &Source::Path(path.to_owned()));
    format!(
        "-chardev {} -netdev user,id=net-{id},guestfwd=tcp:{FORWARD_ADDRESS}:{port}-chardev:{id} \
         -device virtio-net-pci,netdev=net-{id}",
        shell_word(&socket)
    )
}

/// As [`nbd_arguments`] for a file that holds a raw image.
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
            source: "/boot/vmlinuz".into(),
            release: "6.1.0".to_owned(),
            image: "/cache/vmlinux".into(),
            entry: Entry::Pvh,
            modules: None,
        };
        let console = Source::Path("/run/console".into());
        Machine { parameters: vec!["user.word".to_owned()], ..Machine::bare(kernel, Accel::Tcg, 2, 512 << 20, console) }
    }

    fn line(machine: Machine) -> String {
        machine.command(&Qemu::at(Path::new("/usr/bin/qemu"))).shell_line()
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
            "-kernel /cache/vmlinux -append 'console=ttyS0 quiet panic=-1 ",
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
        let disks = vec![disk(Source::Descriptor(first.into()), "root"), disk(Source::Path("/a,b".into()), "second")];
        let command = Machine { disks, ..machine() }.command(&Qemu::at(Path::new("qemu")));
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
        let line = line(Machine { initramfs: Some(Source::Descriptor(file.into())), ..machine() });
        assert!(line.contains(&expected), "{line}");
    }
}
