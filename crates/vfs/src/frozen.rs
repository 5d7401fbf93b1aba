//! The TTL for what never changes: archives, images and snapshots.

use std::time::Duration;

/// A year.
pub(crate) const FOR_EVER: Duration = Duration::from_secs(365 * 24 * 60 * 60);
