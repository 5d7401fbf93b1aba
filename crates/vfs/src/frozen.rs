//! What never changes: archives, images, and snapshots.

use std::time::Duration;

/// What never changes need never be asked for again: a year.
pub(crate) const FOR_EVER: Duration = Duration::from_secs(365 * 24 * 60 * 60);
