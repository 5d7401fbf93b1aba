//! [`OperationReport`]: what was measured of one kind of request.

use inarch_vfs::Operation;
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
