//! What the names and records of kept runs must keep to, and errors name.

/// The version of the record that this program writes and reads.
pub(super) const VERSION: u32 = 3;

/// The longest name of a run.
pub(super) const LONGEST_NAME: usize = 100;
