//! The time, and an identifier of this start of the machine.

use std::fs;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use crate::KeptError;

/// Seconds since 1970.
pub fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// What tells this start of the machine from others.
pub(super) fn boot() -> Result<String, KeptError> {
    #[cfg(test)]
    if let Some(boot) = super::staged::boot() {
        return Ok(boot);
    }
    let path = Path::new("/proc/sys/kernel/random/boot_id");
    let text = fs::read_to_string(path).map_err(|error| KeptError::path(path, "cannot be read", error))?;
    Ok(text.trim().to_owned())
}
