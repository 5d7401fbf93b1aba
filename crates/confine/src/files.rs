//! Landlock: limits which files a thread can open, and for what.
//!
//! The kernel checks a file when it is opened, whichever way it was found: by name, through `/proc/self/fd`, or by a
//! file handle, which could otherwise reach every file of a file system. Descriptors that are already open stay usable.
//! Landlock does not restrict attributes, nor descriptors opened with `O_PATH`.

use std::os::fd::AsFd;

use landlock::{
    ABI, Access as _, AccessFs, BitFlags, CompatLevel, Compatible, LandlockStatus, PathBeneath, RestrictionStatus,
    Ruleset, RulesetAttr, RulesetCreatedAttr, RulesetError, RulesetStatus, Scope,
};
use rustix::fs::{FileType, fstat};

use crate::{Access, Grant};

/// The newest Landlock version this code uses. An older kernel applies what it supports.
const VERSION: ABI = ABI::V6;

/// What a server may do in addition to opening files.
#[derive(Clone, Copy, Debug)]
pub struct Besides {
    /// Send signals to others.
    pub signals: bool,
    /// Let the kernel run programs from files that the server opens for FUSE passthrough.
    pub programs: bool,
}

/// Restricts the calling thread to the grants; describes what holds, and what this kernel's Landlock does not support.
pub fn restrict(grants: &[Grant], besides: Besides) -> Result<String, String> {
    let status = try_restrict(grants, besides).map_err(|error| format!("Landlock ({error})"))?;
    let version = match status {
        RestrictionStatus { ruleset: RulesetStatus::NotEnforced, .. } => ABI::Unsupported,
        RestrictionStatus { landlock: LandlockStatus::Available { effective_abi, .. }, .. } => effective_abi,
        _ => ABI::Unsupported,
    };
    describe(version)
}

/// Describes what a version of Landlock restricts.
fn describe(version: ABI) -> Result<String, String> {
    /// The version from which on each restriction works. Network ports (version 4) are left to the system call filter.
    const LATER: [(ABI, &str); 3] =
        [(ABI::V3, "truncation"), (ABI::V5, "ioctl of devices"), (ABI::V6, "signals and abstract sockets")];
    if version == ABI::Unsupported {
        return Err("Landlock (not in this kernel)".to_owned());
    }
    let lacks: Vec<&str> = LATER.iter().filter(|(from, _)| version < *from).map(|(_, what)| *what).collect();
    if lacks.is_empty() { Ok("Landlock".to_owned()) } else { Ok(format!("Landlock except for {}", lacks.join(", "))) }
}

fn try_restrict(grants: &[Grant], besides: Besides) -> Result<RestrictionStatus, RulesetError> {
    let scopes =
        if besides.signals { Scope::AbstractUnixSocket.into() } else { Scope::AbstractUnixSocket | Scope::Signal };
    let moves = grants.iter().any(|grant| grant.access == Access::Change);
    let mut ruleset = Ruleset::default();
    if moves {
        // Version 1 forbids every rename between directories. Then it is better not to use Landlock.
        ruleset = ruleset
            .set_compatibility(CompatLevel::SoftRequirement)
            .handle_access(AccessFs::Refer)?
            .set_compatibility(CompatLevel::BestEffort);
    }
    let mut ruleset = ruleset.handle_access(AccessFs::from_all(VERSION))?.scope(scopes)?.create()?;
    for grant in grants {
        let is_directory =
            fstat(&grant.place).is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Directory);
        let mut rights = rights(grant.access);
        if besides.programs && grant.access != Access::Device {
            rights |= AccessFs::Execute;
        }
        let rights = if is_directory { rights } else { rights & AccessFs::from_file(VERSION) };
        ruleset = ruleset.add_rule(PathBeneath::new(grant.place.as_fd(), rights))?;
    }
    ruleset.restrict_self()
}

fn rights(access: Access) -> BitFlags<AccessFs> {
    match access {
        Access::Read => AccessFs::ReadFile | AccessFs::ReadDir,
        Access::Run => AccessFs::ReadFile | AccessFs::ReadDir | AccessFs::Execute,
        Access::Change => AccessFs::from_all(VERSION) & !(AccessFs::Execute | AccessFs::IoctlDev),
        Access::Device => AccessFs::ReadFile | AccessFs::WriteFile | AccessFs::IoctlDev,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_older_version_is_told_with_what_it_lacks() {
        let all = [
            (ABI::V1, "Landlock except for truncation, ioctl of devices, signals and abstract sockets"),
            (ABI::V2, "Landlock except for truncation, ioctl of devices, signals and abstract sockets"),
            (ABI::V3, "Landlock except for ioctl of devices, signals and abstract sockets"),
            (ABI::V4, "Landlock except for ioctl of devices, signals and abstract sockets"),
            (ABI::V5, "Landlock except for signals and abstract sockets"),
            (ABI::V6, "Landlock"),
        ];
        for (version, words) in all {
            assert_eq!(describe(version).unwrap(), words, "{version:?}");
        }
        assert_eq!(describe(ABI::Unsupported).unwrap_err(), "Landlock (not in this kernel)");
    }
}
