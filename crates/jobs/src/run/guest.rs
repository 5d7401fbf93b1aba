//! Finds what a guest boots: kernel, modules and initramfs, and the cache for them.

use std::path::Path;
use std::sync::Arc;

use inarch_lifecycle::state;
use inarch_lifecycle::trust::{self, Missing, Obstacle, Owner};
use inarch_vm::Arch;
use inarch_vm::accel::Verdicts;
use inarch_vm::kernel::cache::Cache;
use inarch_vm::kernel::{Kernel, KernelError};
use inarch_vm::modules::{ModuleError, ModuleTree};

use super::{RunError, RunFault};

/// The least memory in which a guest boots, with room for a small command.
const LEAST_MEMORY: u64 = 128 << 20;

/// The most memory by default: from 4 GiB on the guest's kernel takes 0.3 s longer to boot under TCG.
const USUAL_MEMORY: u64 = 2 << 30;

/// The unpacked kernels in the cache directory.
///
/// A guest boots what is there. So a directory is refused that another user can write to, such as a user's `HOME` under root. Old files are
/// removed there, so we use the descriptor that was checked.
fn kernels() -> Result<Cache, Obstacle> {
    let Some(home) = state::cache() else { return Ok(Cache::none()) };
    let opened = trust::open_directory(&home, &["kernels"], Missing::MakeReadable, Owner::UserOrRoot)?;
    Ok(opened.map_or_else(Cache::none, |directory| Cache::in_open(directory, &home.join("kernels"))))
}

/// The kernel of a guest of `arch`: the named one, or the best in /boot. If it cannot be kept unpacked, `tell` gets the reason.
pub(crate) fn find_kernel(
    arch: Arch,
    named: Option<&Path>,
    tell: impl FnOnce(RunFault),
) -> Result<Kernel, KernelError> {
    let cache = kernels().unwrap_or_else(|obstacle| {
        if obstacle.is_distrust() {
            tell(RunFault::NoKernelCache(Arc::new(obstacle)));
        }
        Cache::none()
    });
    match named {
        Some(path) => Kernel::open(path, arch, &cache),
        None if arch != Arch::host() => Err(KernelError::NoneFor { arch }),
        None => Kernel::find(&cache),
    }
}

/// What earlier runs found out about KVM.
pub(crate) fn verdicts() -> Verdicts {
    let trusted = state::cache().filter(|home| trust::directory(home, &[], Missing::Leave, Owner::UserOrRoot).is_ok());
    trusted.map_or_else(Verdicts::none, |home| Verdicts::at(&home.join("kvm-verdicts")))
}

/// The kernel's modules: in `directory`, or in the usual place.
pub(crate) fn modules(kernel: &Kernel, directory: Option<&Path>) -> Result<ModuleTree, ModuleError> {
    if let Some(path) = directory {
        std::fs::metadata(path).map_err(|source| ModuleError::Read { path: path.to_owned(), source })?;
    }
    let usual = || Path::new("/lib/modules").join(&kernel.release);
    let directory = directory.map(Path::to_owned).or(kernel.modules.clone()).unwrap_or_else(usual);
    ModuleTree::open(&kernel.release, &directory)
}

/// Bytes of memory for the guest: the requested size, or half of this machine's within bounds.
pub(super) fn memory(asked: Option<u64>) -> Result<u64, RunError> {
    let host = {
        let info = rustix::system::sysinfo();
        (info.totalram as u64).saturating_mul(u64::from(info.mem_unit))
    };
    let mib = |bytes: u64| bytes >> 20;
    match asked {
        None => Ok((host / 2).clamp(LEAST_MEMORY, USUAL_MEMORY) & !((1 << 20) - 1)),
        Some(bytes) if bytes < LEAST_MEMORY => Err(RunError::TooLittleMemory { bytes, least: mib(LEAST_MEMORY) }),
        Some(bytes) if bytes > host => Err(RunError::TooMuchMemory { mib: mib(bytes), host: mib(host) }),
        // QEMU needs whole pages; whole mebibytes are easier to read in a process list.
        Some(bytes) => Ok(bytes.next_multiple_of(1 << 20)),
    }
}
