//! Tests of block maps, devices and images.
//! One program, because linking each file alone takes longer than running most of them.

mod common;

mod backed_files;
mod changed_files;
mod held_files;
mod host_files;
mod hostile_offsets;
mod images_hold_what_devices_give;
mod origins;
mod out_of_space;
mod overlay_model;
mod young_files;
