//! Real guests: QEMU, translated, with a Linux kernel of this machine.

mod a_command_runs_in_a_guest;
mod boot;
