//! File system formats, each a pure function from a tree to a block map.

#![forbid(unsafe_code)]

pub mod ext4;
