//! A run of which everything was applied: its next command begins with the host's trees as they are.
//!
//! What an apply writes is in the host's memory first, as that of any copy is. Until it is on the disk the guest's writes
//! stay: the next command waits for the disk, and lets go of them. If the machine was started again meanwhile, nobody
//! knows whether it was switched off in an orderly way: then everything must be there as it was applied.

use std::fs;
use std::io;
use std::path::Path;

use rustix::fs::{CWD, Mode, OFlags, openat, syncfs};

use super::apply::first_missing;
use super::diff::RunDiff;
use super::record::{Applied, Record};
use super::{KeptRun, KeptTree};
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
    if applied.boot != boot()?
        && let Some(path) = first_missing(run, &record, &RunDiff::of(run, &record)?)?
    {
        return Err(JobError::Other(format!(
            "the machine was started again since the kept run '{0}' was applied, and {path} is not as it was applied; \
             inarch apply {0} brings back what was lost, inarch discard {0} forgets the run",
            run.name()
        )));
    }
    for tree in record.trees.iter().filter(|tree| !tree.read_only) {
        make_durable(tree)?;
    }
    run.start_anew()?;
    run.save(Record { applied: None, made: None, ..record })
}

/// Waits until everything in the file system of a tree is on the disk.
fn make_durable(tree: &KeptTree) -> Result<(), JobError> {
    if tree.cross {
        rustix::fs::sync();
        return Ok(());
    }
    let source = tree.source();
    match openat(CWD, &source, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty()).and_then(syncfs) {
        // What is gone needs no disk.
        Ok(()) | Err(rustix::io::Errno::NOENT | rustix::io::Errno::NOTDIR) => Ok(()),
        Err(errno) => Err(JobError::path(&source, "cannot make what was applied durable", io::Error::from(errno))),
    }
}

/// What tells this start of the machine from others.
pub(super) fn boot() -> Result<String, JobError> {
    let path = Path::new("/proc/sys/kernel/random/boot_id");
    let text = fs::read_to_string(path).map_err(|error| JobError::path(path, "cannot be read", error))?;
    Ok(text.trim().to_owned())
}
