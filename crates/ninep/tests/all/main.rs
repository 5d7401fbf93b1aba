//! Tests of the 9P server through a client.
//! One program, because linking each file alone takes longer than running most of them.

mod support;

mod attributes;
mod ending;
mod every_kind_of_layer;
mod flushing_and_locks;
mod hostile;
mod names;
mod open_files;
mod versions_and_frames;
mod walking;
mod xattrs_and_directories;
