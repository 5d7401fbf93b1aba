//! Landlock: which files are within reach, and for what.
//!
//! The kernel compares the file that is about to be opened with what was granted, however it was found: by a name, through
//! `/proc/self/fd`, or by a file handle, which otherwise reaches every file of a file system. Descriptors that are open
//! already stay as they are. Attributes are not its business, nor are descriptors for them alone (`O_PATH`).

use std::os::fd::AsFd;

use landlock::{
    ABI, Access as _, AccessFs, BitFlags, CompatLevel, Compatible, PathBeneath, RestrictionStatus, Ruleset,
    RulesetAttr, RulesetCreatedAttr, RulesetError, RulesetStatus, Scope,
};
use rustix::fs::{FileType, fstat};

use crate::{Access, Grant};

/// The newest version that this was made for; of an older kernel's, what there is.
const VERSION: ABI = ABI::V6;

/// Restricts the calling thread to what was granted, and with `signals` lets it send them to others.
pub fn restrict(grants: &[Grant], signals: bool) -> Result<(), String> {
    match try_restrict(grants, signals) {
        Ok(RestrictionStatus { ruleset: RulesetStatus::NotEnforced, .. }) => Err("not in this kernel".to_owned()),
        Ok(_) => Ok(()),
        Err(error) => Err(error.to_string()),
    }
}

fn try_restrict(grants: &[Grant], signals: bool) -> Result<RestrictionStatus, RulesetError> {
    let scopes = if signals { Scope::AbstractUnixSocket.into() } else { Scope::AbstractUnixSocket | Scope::Signal };
    let moves = grants.iter().any(|grant| grant.access == Access::Change);
    let mut ruleset = Ruleset::default();
    if moves {
        // Before its second version, nothing could be renamed from one directory to another under Landlock: then rather none.
        ruleset = ruleset
            .set_compatibility(CompatLevel::SoftRequirement)
            .handle_access(AccessFs::Refer)?
            .set_compatibility(CompatLevel::BestEffort);
    }
    let mut ruleset = ruleset.handle_access(AccessFs::from_all(VERSION))?.scope(scopes)?.create()?;
    for grant in grants {
        let is_directory =
            fstat(&grant.place).is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::Directory);
        let rights = rights(grant.access);
        let rights = if is_directory { rights } else { rights & AccessFs::from_file(VERSION) };
        ruleset = ruleset.add_rule(PathBeneath::new(grant.place.as_fd(), rights))?;
    }
    ruleset.restrict_self()
}

fn rights(access: Access) -> BitFlags<AccessFs> {
    match access {
        Access::Read => AccessFs::ReadFile | AccessFs::ReadDir,
        Access::Change => AccessFs::from_all(VERSION) & !(AccessFs::Execute | AccessFs::IoctlDev),
        Access::Device => AccessFs::ReadFile | AccessFs::WriteFile | AccessFs::IoctlDev,
    }
}
