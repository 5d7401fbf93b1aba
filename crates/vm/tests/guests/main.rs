//! Tests with real guests: QEMU under TCG, with a Linux kernel of this machine.

mod a_command_runs_in_a_guest;
mod boot;
