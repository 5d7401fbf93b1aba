//! [`OperationReport`] and [`FileReport`]: what was measured of one kind of request, and of one file.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use inarch_lifecycle::shown;
use inarch_vfs::{FileTime, Measures, Operation};
use serde::Serialize;

/// The requests of one kind to a live tree.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct OperationReport {
    /// The request, by the name of the system call or message that it mostly comes from.
    pub name: &'static str,
    /// How many there were.
    pub count: u64,
    /// How many of them failed: a look-up of a name that does not exist is one.
    pub failed: u64,
    /// Bytes that were read, written or copied.
    pub bytes: u64,
    /// Seconds in the file system, of all of them.
    pub seconds: f64,
    /// Seconds of the one that took the longest.
    pub longest: f64,
}

impl From<Operation> for OperationReport {
    fn from(operation: Operation) -> OperationReport {
        let Operation { name, count, failed, bytes, time, longest } = operation;
        OperationReport { name, count, failed, bytes, seconds: time.as_secs_f64(), longest: longest.as_secs_f64() }
    }
}

/// The requests to one file: those that open, read, write, copy, allocate, flush and close it, and bring it to the disk.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FileReport {
    /// Its path in the tree, for people to read: control characters are escaped.
    pub path: String,
    /// How many requests there were.
    pub requests: u64,
    /// Bytes that were read, written or copied into it.
    pub bytes: u64,
    /// Seconds in the file system, of all of them.
    pub seconds: f64,
}

impl From<FileTime> for FileReport {
    fn from(file: FileTime) -> FileReport {
        let FileTime { path, requests, bytes, time } = file;
        FileReport { path: shown(Path::new(OsStr::from_bytes(&path))), requests, bytes, seconds: time.as_secs_f64() }
    }
}

/// Files that a report names.
const SLOWEST: usize = 10;

/// What was measured, by kind and by file; what took the most time comes first.
pub fn reports(measures: &Measures) -> (Vec<OperationReport>, Vec<FileReport>) {
    let operations = measures.operations().into_iter().map(OperationReport::from).collect();
    (operations, measures.slowest_files(SLOWEST).into_iter().map(FileReport::from).collect())
}
