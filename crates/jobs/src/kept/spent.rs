//! A run of which everything was applied: its next command begins with the host's trees as they are.
//!
//! What an apply writes is in the host's memory first, as that of any copy is. Until it is on the disk the guest's writes
//! stay: the next command waits for the disk, and lets go of them. If the machine was started again meanwhile, nobody
//! knows whether it was switched off in an orderly way: then everything must be there as it was applied. So it is after a
//! wait for the disk that failed: the kernel tells of a write that failed once, and the next wait succeeds.

use std::fs;
use std::path::Path;

use super::KeptRun;
use super::apply::{first_missing, make_durable};
use super::diff::RunDiff;
use super::record::{Applied, Record, UNKNOWN_BOOT};
use crate::JobError;

impl Applied {
    /// An apply that ends now.
    pub fn now() -> Result<Applied, JobError> {
        Ok(Applied { boot: boot()? })
    }
}

/// Lets go of what the guest of a run wrote if all of it was applied.
pub(crate) fn settle(run: &mut KeptRun) -> Result<(), JobError> {
    let Some(record) = run.record.clone() else { return Ok(()) };
    let Some(applied) = &record.applied else { return Ok(()) };
    let is_new_boot = applied.boot != boot()?;
    let writable = || record.trees.iter().filter(|tree| !tree.read_only);
    let needs_diff = is_new_boot || writable().any(|tree| tree.cross);
    let diff = needs_diff.then(|| RunDiff::of(run, &record)).transpose()?;
    if let Some(diff) = diff.as_ref().filter(|_| is_new_boot)
        && let Some(path) = first_missing(run, &record, diff)?
    {
        let since = match applied.boot == UNKNOWN_BOOT {
            true => "the disk failed after",
            false => "the machine was started again since",
        };
        return Err(JobError::Other(format!(
            "{since} the kept run '{0}' was applied, and {path} is not as it was applied; inarch apply {0} brings back \
             what was lost, inarch discard {0} forgets the run",
            run.name()
        )));
    }
    for tree in writable() {
        let of_tree = diff.iter().flat_map(RunDiff::trees).filter(|one| one.tree == *tree);
        let written = of_tree.flat_map(|one| &one.differences).map(|difference| &difference.path[..]);
        if let Err(error) = make_durable(tree, written) {
            run.save(record.in_doubt())?;
            return Err(error);
        }
    }
    run.start_anew()?;
    run.save(Record { applied: None, made: None, ..record })
}

/// What tells this start of the machine from others.
pub(super) fn boot() -> Result<String, JobError> {
    let path = Path::new("/proc/sys/kernel/random/boot_id");
    let text = fs::read_to_string(path).map_err(|error| JobError::path(path, "cannot be read", error))?;
    Ok(text.trim().to_owned())
}
