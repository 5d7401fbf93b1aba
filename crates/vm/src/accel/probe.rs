//! Tests whether Linux boots, by booting a kernel once.
//!
//! The kernel boots with neither an initramfs nor a disk. If it works, it stops with a panic about its missing root;
//! that panic is the proof.

use std::io;
use std::time::{Duration, Instant};

use super::Accel;
use crate::kernel::Kernel;
use crate::machine::{Endpoint, Machine};
use crate::process::{GuestFailure, Process, SpawnError, Symptom, console_pipe};
use crate::qemu::Qemu;

/// Enough for a distribution's kernel.
const MEMORY: u64 = 256 << 20;
/// The message of every kernel without a root (init/do_mounts.c).
const NO_ROOT: &str = "Unable to mount root fs";

/// Why a kernel did not boot.
#[derive(Debug, thiserror::Error)]
pub enum ProbeError {
    /// No pipe could be created.
    #[error("cannot make a pipe for the console: {0}")]
    Pipe(#[from] io::Error),
    /// QEMU could not be started.
    #[error(transparent)]
    Spawn(#[from] SpawnError),
    /// It did not boot.
    #[error(transparent)]
    Guest(GuestFailure),
}

/// Boots `kernel` once and returns how long it took. Gives up after `patience`.
///
/// # Errors
/// The kernel did not boot, with the reason.
pub fn probe(qemu: &Qemu, kernel: &Kernel, accel: Accel, patience: Duration) -> Result<Duration, ProbeError> {
    let (ours, theirs) = console_pipe()?;
    let machine = Machine::bare(kernel.clone(), accel, 1, MEMORY, Endpoint::Descriptor(theirs));
    let begun = Instant::now();
    let process = Process::spawn(machine.command(qemu), ours, None)?;
    let symptom = match process.wait(patience) {
        Some(_) => Symptom::Closed,
        None => Symptom::Silence(patience),
    };
    let took = begun.elapsed();
    match process.explain(symptom) {
        GuestFailure::Panic { message, .. } if message.contains(NO_ROOT) => Ok(took),
        failure => Err(ProbeError::Guest(failure)),
    }
}
