//! What disks of guests have in common, whatever is on them.

pub(crate) mod room;
