//! What a guest of ours boots: kernel, modules, initramfs, and where they are cached.

use std::path::{Path, PathBuf};

use inarch_vm::accel::Verdicts;
use inarch_vm::initramfs;
use inarch_vm::kernel::Kernel;
use inarch_vm::kernel::cache::Cache;
use inarch_vm::modules::{ModuleSet, Modules};

use super::RunRequest;
use crate::JobError;

/// What every guest needs: the console port, the disks, and the file system on them.
const MODULES: [&str; 4] = ["virtio_pci", "virtio_console", "virtio_blk", "ext4"];

/// Where things are kept that can be made again: `$XDG_CACHE_HOME/inarch`, or `~/.cache/inarch`.
fn cache_directory() -> PathBuf {
    let absolute = |name: &str| std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute());
    let base = absolute("XDG_CACHE_HOME").or_else(|| Some(absolute("HOME")?.join(".cache")));
    base.unwrap_or_else(|| std::env::temp_dir().join(format!("inarch-cache-{}", rustix::process::getuid().as_raw())))
        .join("inarch")
}
