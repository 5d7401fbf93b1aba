//! What a guest's machine is made of, and QEMU's command line for it.

use std::ffi::{OsStr, OsString};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};

use crate::accel::Accel;
use crate::kernel::Kernel;
use crate::qemu::{Qemu, QemuCommand, option_value, shell_word};

/// Name of the virtio-serial port that the agent speaks on: `/dev/virtio-ports/org.inarch.agent`, found in the guest by
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

/// A guest's machine.
#[derive(Debug)]
pub struct Machine {
    /// What it boots.
    pub kernel: Kernel,
    /// A cpio archive in memory or in a file.
    pub initramfs: Option<Source>,
    /// Words for the kernel's command line, after those that the machine needs.
    pub parameters: Vec<String>,
    /// What runs its instructions.
    pub accel: Accel,
    /// Number of processors, at least 1.
    pub cpus: u32,
    /// Memory in bytes, a multiple of a page.
    pub memory: u64,
    /// Socket for the agent's port.
    pub agent: Option<Source>,
    /// Socket that gets what the kernel prints to its first serial line.
    pub console: Source,
    /// Disks in the guest's order: the first is /dev/vda.
    pub disks: Vec<Disk>,
    /// Whether it has a network of its own behind a user-mode NAT.
    pub network: bool,
}

impl Machine {
    /// The command line that makes `qemu` this machine.
    pub fn command(self, qemu: &Qemu) -> QemuCommand {
        let mut line = CommandLine { arguments: Vec::new(), descriptors: Vec::new() };
        line.platform(&self, qemu);
        line.option("-append", parameters(self.accel, &self.parameters));
        if let Some(initramfs) = self.initramfs {
            let file = line.file(initramfs);
            line.option("-initrd", file);
        }
        line.chardev("console", self.console);
        line.option("-serial", "chardev:console");
        if let Some(agent) = self.agent {
            line.chardev("agent", agent);
            line.option("-device", "virtio-serial-pci,max_ports=2");
            line.option("-device", format!("virtserialport,chardev=agent,name={AGENT_PORT}"));
        }
        for disk in self.disks {
            line.disk(disk);
        }
        if self.network {
            line.option("-netdev", "user,id=net");
            // The option ROM is for booting from the network.
            line.option("-device", "virtio-net-pci,netdev=net,romfile=");
        }
        QemuCommand { program: qemu.path().to_owned(), arguments: line.arguments, descriptors: line.descriptors }
    }
}

/// The kernel's command line.
fn parameters(accel: Accel, extra: &[String]) -> String {
    let mut words = vec![
        // What a failed boot is explained from. `quiet` leaves emergencies: a panic is among them.
        "console=ttyS0",
        "quiet",
        // A panic ends the machine (QEMU has -no-reboot) instead of leaving it to hang.
        "panic=-1",
        // Tests of the kernel's own cryptography.
        "cryptomgr.notests",
        // There is one PCI bus; the others need not be looked for.
        "pci=lastbus=0",
        // No keyboard, no mouse: their controller is not probed.
        "i8042.noaux",
        "i8042.nokbd",
        "random.trust_cpu=on",
        "nokaslr",
        "mitigations=off",
        "audit=0",
        "rcupdate.rcu_expedited=1",
        "8250.nr_uarts=1",
        "init_on_alloc=0",
    ];
    if accel == Accel::Tcg {
        words.extend(["tsc=reliable", "no_timer_check"]);
    }
    words.extend(extra.iter().map(String::as_str));
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
        self.option("-machine", "q35,memory-backend=mem,usb=off");
        match machine.accel {
            Accel::Kvm => {
                self.option("-accel", "kvm");
                self.option("-cpu", "host");
            }
            Accel::Tcg => {
                self.option("-accel", "tcg,thread=multi");
                self.option("-cpu", "max");
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

    /// The path by which QEMU reads the file.
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
/// shell. Its memory must be shared besides: a memory back end with `share=on`.
pub fn vhost_user_blk_arguments(socket: &Path, queues: u16) -> String {
    const ID: &str = "inarch";
    let socket = chardev(ID, &Source::Path(socket.to_owned()));
    let device = vhost_user_blk(ID, queues);
    let words: [&OsStr; 4] = ["-chardev".as_ref(), &socket, "-device".as_ref(), device.as_ref()];
    words.map(shell_word).join(" ")
}
