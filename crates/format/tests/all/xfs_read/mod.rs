//! The reader of XFS finds on an image what the kernel does when it mounts it.

mod hostile;
mod made;
mod old;
mod same;
