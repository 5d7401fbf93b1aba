//! The reader of ext4 finds on an image what the kernel does when it mounts it.

mod hostile;
mod journals;
pub mod made;
mod planned;
pub mod same;
