//! Tests of the vhost-user devices through a front end.
//! One program, because linking each file alone takes longer than running most of them.

mod common;

mod connections;
mod fs;
mod hostile;
mod padded_memory_tables;
mod pending;
mod qemu;
mod requests;
mod shared_memory_may_go_away;
mod sockets;
mod waiting_locks;
