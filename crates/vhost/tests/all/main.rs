//! The vhost-user devices, as a front end meets them.
//! One program: to link each file alone takes longer than to run most of them.

mod common;

mod connections;
mod fs;
mod hostile;
mod pending;
mod qemu;
mod requests;
mod shared_memory_may_go_away;
mod sockets;
