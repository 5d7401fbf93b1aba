//! Debian's kernel for an architecture, with its modules.

use std::fs;
use std::path::{Path, PathBuf};

use inarch_lifecycle::Events;
use inarch_lifecycle::PathError;
use inarch_lifecycle::trust::Missing;
use inarch_vm::Arch;

use super::fetch::{Apt, unpack};
use super::{Debian, DebianError, DebianEvent, once, place_with};

const BY_HAND: &str = "give a kernel with --kernel FILE, and its modules with --modules DIR";

fn name_of(debian: &Debian, arch: Arch) -> String {
    format!("linux-{}-{}", debian.suite, arch.debian())
}

/// The file of the kernel of `debian`'s suite, below a directory with its modules; fetched if it is not in the cache.
///
/// # Errors
/// It cannot be fetched, and why.
pub fn fetch(debian: &Debian, arch: Arch, events: &Events<DebianEvent>) -> Result<PathBuf, DebianError> {
    if !debian.packages.is_empty() {
        let text = debian.to_string().trim_start_matches("debian:").to_owned();
        return Err(DebianError::Name { text, what: "a kernel has no packages" });
    }
    let directory = once(&name_of(debian, arch), |path, scratch| {
        let what = format!("{} of {debian}", arch.kernel_package());
        let apt = Apt::new(scratch.path(), arch, &debian.suite, what.clone(), BY_HAND)?;
        events.emit(DebianEvent::Fetching { what, mirror: apt.mirror.clone() });
        apt.update()?;
        let packages = apt.needs(arch.kernel_package())?;
        let real = packages.iter().find(|package| package.starts_with("linux-image-"));
        let deb = apt.download(real.map_or(arch.kernel_package(), String::as_str))?;
        unpack(&deb, path, scratch, |unpacked| file_in(unpacked).map(drop))
    })?;
    file_in(&directory)
}

/// The file of the kernel, if it is in the cache.
///
/// # Errors
/// It is not.
pub fn cached(debian: &Debian, arch: Arch) -> Result<PathBuf, DebianError> {
    let directory = place_with(Missing::Leave)?.join(name_of(debian, arch));
    file_in(&directory).map_err(|_| DebianError::NotMade { what: format!("the kernel of {debian} for {arch}") })
}

/// The kernel in the /boot of an unpacked package.
fn file_in(directory: &Path) -> Result<PathBuf, DebianError> {
    let boot = directory.join("boot");
    let entries = fs::read_dir(&boot).map_err(|error| PathError::new(&boot, "cannot list it", error))?;
    let mut files = entries.flatten().map(|entry| entry.path());
    let is_kernel =
        |path: &PathBuf| path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"vmlinu"));
    let missing =
        || DebianError::Unpack { package: "its kernel".to_owned(), reason: "there is none in its /boot".to_owned() };
    files.find(is_kernel).ok_or_else(missing)
}
