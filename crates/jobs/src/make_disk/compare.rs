//! `inarch disk compare-mkfs`: what the tools make of disks of many sizes, on sparse files.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use inarch_lifecycle::scratch::Scratch;

use super::MakeError;
use super::format::space;
use super::mkfs::{self, Ended, Limits};
use super::tools::{MAKERS, Maker, Wish};

/// What to compare.
#[derive(Clone, Debug)]
pub struct CompareRequest {
    /// Sizes of disks, in bytes.
    pub sizes: Vec<u64>,
    /// Where the sparse files are made.
    pub on: Vec<PathBuf>,
    /// The file systems; all if there are none.
    pub formats: Vec<&'static Maker>,
    /// How long a tool may take.
    pub time: Duration,
    /// How many bytes a file may really take.
    pub bytes: u64,
}

/// One file system of one size in one place.
#[derive(Clone, Debug)]
pub struct Measured {
    /// The directory.
    pub on: PathBuf,
    /// The file system's name.
    pub format: &'static str,
    /// Bytes of the disk.
    pub size: u64,
    /// What came of it.
    pub outcome: Outcome,
}

/// What a tool did.
#[derive(Clone, Debug)]
pub enum Outcome {
    /// It made a file system.
    Made(Made),
    /// It did not: why, in a line.
    Failed(String),
    /// It is not there: how to get it.
    Missing(String),
}

/// A file system that was made.
#[derive(Clone, Copy, Debug)]
pub struct Made {
    /// Seconds that the tool took.
    pub seconds: f64,
    /// Bytes that the file really takes.
    pub allocated: u64,
    /// Bytes of the disk that the file system covers, by its superblock.
    pub covered: Option<u64>,
    /// Bytes that are free for files, by its superblock.
    pub free: Option<u64>,
}

impl Measured {
    /// The part of the disk that files cannot have, from 0 to 1.
    pub fn overhead(&self) -> Option<f64> {
        match self.outcome {
            Outcome::Made(Made { free: Some(free), .. }) if self.size > 0 => {
                Some(1.0 - free.min(self.size) as f64 / self.size as f64)
            }
            _ => None,
        }
    }

    /// Whether the tool said that all was well, and left out more than a hundredth of the disk.
    pub fn is_truncated(&self) -> bool {
        matches!(self.outcome, Outcome::Made(Made { covered: Some(covered), .. }) if covered < self.size - self.size / 100)
    }
}

/// Measures one after another, and calls `each` with every result. Nothing is left behind.
///
/// # Errors
/// A directory cannot be used.
pub fn compare(request: &CompareRequest, mut each: impl FnMut(&Measured)) -> Result<Vec<Measured>, MakeError> {
    let all: Vec<&'static Maker> = MAKERS.iter().collect();
    let makers = if request.formats.is_empty() { &all } else { &request.formats };
    let mut measured = Vec::new();
    for directory in &request.on {
        for maker in makers {
            for size in &request.sizes {
                let outcome = measure(directory, maker, *size, request)?;
                let one = Measured { on: directory.clone(), format: maker.format, size: *size, outcome };
                each(&one);
                measured.push(one);
            }
        }
    }
    Ok(measured)
}

fn measure(on: &Path, maker: &Maker, size: u64, request: &CompareRequest) -> Result<Outcome, MakeError> {
    if let Err(MakeError::Missing { tool, remedy, .. }) = maker.find() {
        return Ok(Outcome::Missing(format!("{tool} is missing; {remedy}")));
    }
    let scratch = Scratch::within(on)?;
    let (file, path) = match scratch.sparse("volume", size) {
        Ok(made) => made,
        Err(error) => return Ok(Outcome::Failed(format!("no file can be so large there: {}", error.error))),
    };
    let limits = Limits { time: request.time, bytes: request.bytes };
    let time = match mkfs::run(maker, &Wish::default(), &scratch, &path, limits)? {
        Ended::Well { time } => time,
        Ended::Badly(reason) => return Ok(Outcome::Failed(reason)),
        Ended::Stopped(why) => return Ok(Outcome::Failed(format!("was stopped: {why}"))),
    };
    let allocated = file.metadata().map_or(0, |metadata| metadata.blocks().saturating_mul(512));
    let space = space(&file, &path, maker)?;
    Ok(Outcome::Made(Made {
        seconds: time.as_secs_f64(),
        allocated,
        covered: space.map(|space| space.covered),
        free: space.and_then(|space| space.free),
    }))
}
