//! Guests: their kernel, the machine they run in, and the process that is that machine.

pub mod kernel;
