//! The guest's initramfs: the agent, the kernel modules it needs to reach its disks, and nothing else.

use crate::agent::AGENT;
use crate::cpio::CpioWriter;
use crate::modules::{ModuleError, ModuleTree, without_signature};

/// Drivers without which the agent cannot speak; loaded first.
const CHANNEL_MODULES: [&str; 2] = ["virtio_pci", "virtio_console"];

/// What a guest's initramfs must be able to do.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Features {
    /// Types of the file systems that will be mounted, as in [`Mount::fstype`](crate::protocol::Mount::fstype).
    pub file_systems: Vec<String>,
    /// Whether there are virtio-blk disks.
    pub disks: bool,
    /// Whether there is a virtio-net interface.
    pub network: bool,
}

impl Features {
    /// The modules, in the order in which they are worth loading: the disks' driver is last, because it reads the
    /// disks as soon as it is loaded, and waits for them.
    fn modules(&self) -> Vec<&str> {
        let mut modules = CHANNEL_MODULES.to_vec();
        for file_system in &self.file_systems {
            match file_system.as_str() {
                // Built into every kernel that can have devtmpfs.
                "tmpfs" | "ramfs" => {}
                "9p" => modules.extend(["9pnet_virtio", "9p"]),
                other => modules.push(other),
            }
        }
        modules.extend(self.network.then_some("virtio_net"));
        modules.extend(self.disks.then_some("virtio_blk"));
        modules
    }
}

/// Builds the initramfs of a guest: an uncompressed cpio archive. The same kernel and features give the same bytes.
///
/// # Errors
/// The kernel lacks a driver, or a module cannot be read.
pub fn build(tree: &ModuleTree, features: &Features) -> Result<Vec<u8>, ModuleError> {
    let modules = tree.resolve(&features.modules())?;
    let mut cpio = CpioWriter::new();
    // The kernel opens it for PID 1 before devtmpfs is mounted.
    cpio.directory("dev", 0o755);
    cpio.character_device("dev/console", 0o600, 5, 1);
    cpio.directory("root", 0o755);
    cpio.file("init", 0o755, AGENT);
    cpio.directory("modules", 0o755);
    let mut order = String::new();
    for module in &modules {
        order.push_str(&module.name);
        order.push_str(".ko\n");
        let signed = module.read()?;
        let content = if tree.takes_unsigned() { without_signature(&signed) } else { &signed };
        cpio.file(&format!("modules/{}.ko", module.name), 0o600, content);
    }
    cpio.file("modules/order", 0o600, order.as_bytes());
    Ok(cpio.finish())
}
