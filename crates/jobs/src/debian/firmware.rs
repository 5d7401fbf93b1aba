//! The firmware of a RISC-V guest: OpenSBI.
//!
//! QEMU up to 8.0 brings a version before 1.3, which has a race (`lib/sbi/sbi_hsm.c`, `sbi_hsm_hart_start`). It marks a processor as
//! started before it writes the start address, and the processor may run in between. It then enters the kernel at its beginning a
//! second time, and clears variables of the kernel that runs. About one of 60 guests with two processors hung.
//!
//! A processor that waits to be started does not sleep in that version either, because its interrupt is still pending. A boot beside
//! other work took 5.1 s with it and 3.9 s with version 1.6.

use std::path::{Path, PathBuf};
use std::time::Duration;

use inarch_lifecycle::Events;
use inarch_lifecycle::trust::Missing;
use inarch_vm::Arch;
use inarch_vm::qemu::{Qemu, Version};

use super::fetch::{Apt, unpack};
use super::{DebianError, DebianEvent, USUAL_SUITE, once, place, place_with};

/// The first version of QEMU that brings a firmware without the fault.
const GOOD_QEMU: Version = Version { major: 8, minor: 1 };

const PACKAGE: &str = "opensbi";
const FILE: &str = "usr/lib/riscv64-linux-gnu/opensbi/generic/fw_dynamic.bin";
const BY_HAND: &str = "a newer QEMU (8.1) brings its own";

/// How long after a failure the next fetch is tried.
const AGAIN: Duration = Duration::from_secs(60 * 60);

fn name() -> String {
    format!("{PACKAGE}-{USUAL_SUITE}")
}

/// The firmware that guests of `arch` need in place of QEMU's own, if they need one; fetched if it is not in the cache.
///
/// # Errors
/// It cannot be fetched, and why. A guest can do with QEMU's own, but may hang.
pub fn fetch(arch: Arch, events: &Events<DebianEvent>) -> Result<Option<PathBuf>, DebianError> {
    let is_needed = || Qemu::find(arch).and_then(|qemu| qemu.version()).is_ok_and(|version| version < GOOD_QEMU);
    let known = cached(arch);
    if arch != Arch::Riscv64 || known.is_some() || !is_needed() {
        return Ok(known);
    }
    let failed = place()?.join(format!(".{}.failed", name()));
    if is_recent(&failed) {
        return Ok(None);
    }
    let directory = once(&name(), |path, scratch| {
        let what = format!("the firmware {PACKAGE} of debian:{USUAL_SUITE}");
        let apt = Apt::new(scratch.path(), arch, USUAL_SUITE, what.clone(), BY_HAND)?;
        events.emit(DebianEvent::Fetching { what, mirror: apt.mirror.clone() });
        apt.update()?;
        let deb = apt.download(PACKAGE)?;
        let reason = format!("there is no {FILE} in it");
        unpack(&deb, path, scratch, |unpacked| match file_in(unpacked) {
            Some(_) => Ok(()),
            None => Err(DebianError::Unpack { package: PACKAGE.to_owned(), reason }),
        })
    });
    if directory.is_err() {
        // A network that is not there must not hold up every run. Without the mark, the next one tries again.
        let _ = std::fs::write(&failed, "");
    }
    Ok(file_in(&directory?))
}

/// Whether a fetch failed a short while ago.
fn is_recent(failed: &Path) -> bool {
    let age = failed.metadata().and_then(|metadata| metadata.modified()).ok().and_then(|time| time.elapsed().ok());
    age.is_some_and(|age| age < AGAIN)
}

/// Half a sentence, for people: where the firmware is, if QEMU's own is not the one.
pub(crate) fn state(arch: Arch, version: Version) -> String {
    match cached(arch) {
        Some(file) => format!(", with the firmware {}", file.display()),
        None if arch == Arch::Riscv64 && version < GOOD_QEMU => {
            format!(", whose firmware has a fault; the first run fetches the one of debian:{USUAL_SUITE}")
        }
        None => String::new(),
    }
}

/// The firmware in the cache for guests of `arch`.
pub fn cached(arch: Arch) -> Option<PathBuf> {
    let directory = || place_with(Missing::Leave).ok().map(|place| place.join(name()));
    (arch == Arch::Riscv64).then(directory).flatten().and_then(|directory| file_in(&directory))
}

fn file_in(directory: &Path) -> Option<PathBuf> {
    Some(directory.join(FILE)).filter(|file| file.is_file())
}
