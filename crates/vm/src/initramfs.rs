//! Builds the guest's initramfs: the agent and the kernel modules for its devices, nothing else.

use crate::agent::agent_of;
use crate::arch::Arch;
use crate::cpio::CpioWriter;
use crate::module_file::quick_to_load;
use crate::modules::{ModuleError, ModuleTree};

/// The driver of a virtio socket device.
pub const SOCKET_MODULE: &str = "vmw_vsock_virtio_transport";

/// How the agent speaks with the host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Channel {
    /// By a virtio-serial port, on the PCI bus.
    #[default]
    Port,
    /// By the virtio socket device of User-Mode Linux, which has no such bus.
    Socket,
}

impl Channel {
    /// Its drivers. The agent loads them first and speaks before it loads others.
    fn modules(self) -> &'static [&'static str] {
        match self {
            Channel::Port => &["virtio_pci", "virtio_console"],
            Channel::Socket => &[SOCKET_MODULE],
        }
    }
}

/// What a guest's initramfs must support.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Features {
    /// How the agent speaks with the host.
    pub channel: Channel,
    /// The file system types to be mounted, as in [`Mount::fstype`](crate::protocol::Mount::fstype).
    pub file_systems: Vec<String>,
    /// Whether there are virtio-blk disks.
    pub disks: bool,
    /// Whether there is a virtio-net interface.
    pub network: bool,
    /// Whether there is a virtio socket device.
    pub sockets: bool,
}

impl Features {
    /// The modules that the agent loads itself, the port's driver first, because the host waits for HELLO. The disks'
    /// driver waits for the disks, possibly as long as a scan of their trees takes.
    fn in_order(&self) -> Vec<&str> {
        let mut modules = self.channel.modules().to_vec();
        modules.extend(self.disks.then_some("virtio_blk"));
        modules
    }

    /// The modules that a second process of the guest loads in parallel, on another processor.
    fn beside(&self) -> Vec<&str> {
        let mut modules = Vec::new();
        for file_system in &self.file_systems {
            match file_system.as_str() {
                // Built into every kernel that can have devtmpfs.
                "tmpfs" | "ramfs" => {}
                "9p" => modules.extend(["9pnet_fd", "9p"]),
                other => modules.push(other),
            }
        }
        modules.extend(self.network.then_some("virtio_net"));
        modules.extend(self.sockets.then_some(SOCKET_MODULE));
        modules
    }
}

/// Why there is no initramfs.
#[derive(Debug, thiserror::Error)]
pub enum InitramfsError {
    /// A driver, or its file.
    #[error(transparent)]
    Module(#[from] ModuleError),
    /// The build of this program found no compiler for that architecture.
    #[error(
        "this inarch was built without an agent for {arch}; build it again after: apt install {}", .arch.compiler_packages()
    )]
    NoAgent {
        /// The guest's architecture.
        arch: Arch,
    },
}

/// Builds the initramfs of a guest of `arch`: an uncompressed cpio archive. The same kernel and features give the same bytes.
///
/// # Errors
/// The kernel lacks a driver, a module cannot be read, or there is no agent for `arch`.
pub fn build(arch: Arch, tree: &ModuleTree, features: &Features) -> Result<Vec<u8>, InitramfsError> {
    let agent = agent_of(arch).ok_or(InitramfsError::NoAgent { arch })?;
    let mut order = features.in_order();
    let mut beside = features.beside();
    // Two processes load modules at the same time. What both need comes by the agent's own list.
    let agents = tree.resolve(&order)?;
    for module in beside.clone() {
        let needs = tree.resolve(&[module])?;
        if needs.iter().any(|need| agents.iter().any(|other| other.name == need.name)) {
            beside.retain(|other| *other != module);
            order.push(module);
        }
    }
    let (port, beside) = (tree.resolve(features.channel.modules())?, tree.resolve(&beside)?);
    let mut in_order = tree.resolve(&order)?;
    in_order.retain(|module| port.iter().all(|other| other.name != module.name));
    let mut cpio = CpioWriter::new();
    // The kernel opens it for PID 1 before devtmpfs is mounted.
    cpio.directory("dev", 0o755);
    cpio.character_device("dev/console", 0o600, 5, 1);
    cpio.directory("root", 0o755);
    cpio.file("init", 0o755, agent);
    cpio.directory("modules", 0o755);
    for (list, modules) in [("modules/port", &port), ("modules/order", &in_order), ("modules/beside", &beside)] {
        let mut names = String::new();
        for module in modules {
            names.push_str(&module.name);
            names.push_str(".ko\n");
            let mut content = module.read()?;
            if tree.takes_unsigned() {
                content = quick_to_load(content);
            }
            cpio.file(&format!("modules/{}.ko", module.name), 0o600, &content);
        }
        cpio.file(list, 0o600, names.as_bytes());
    }
    Ok(cpio.finish())
}
