//! Finds the program that runs a guest: QEMU, or the kernel itself if that is User-Mode Linux. Refuses requests that this
//! program cannot fulfil.

use inarch_vm::initramfs::Channel;
use inarch_vm::qemu::Qemu;
use inarch_vm::{AccelChoice, Arch};

use super::RunError;
use super::request::{Root, RunRequest, Vmm};
use crate::JobError;

/// The program of a guest's machine, found.
#[derive(Clone, Debug)]
pub(super) enum Program {
    Qemu(Qemu),
    /// The kernel itself.
    Uml,
}

impl Vmm {
    /// Finds the program for guests of `arch`.
    pub(super) fn find(self, arch: Arch) -> Result<Program, JobError> {
        match self {
            Vmm::Qemu => Ok(Program::Qemu(Qemu::find(arch)?)),
            Vmm::Uml => Ok(Program::Uml),
        }
    }

    /// How the agent speaks.
    pub(super) fn channel(self) -> Channel {
        match self {
            Vmm::Qemu => Channel::Port,
            Vmm::Uml => Channel::Socket,
        }
    }

    /// Refuses what the machine does not have, and programs of this machine on another processor.
    pub(super) fn check(self, request: &RunRequest) -> Result<(), RunError> {
        if request.arch != Arch::host() && request.root == Root::Host {
            return Err(RunError::HostRoot { arch: request.arch });
        }
        if self == Vmm::Qemu {
            return Ok(());
        }
        let lacks = |option: &'static str, what: &'static str| Err(RunError::NotInUml { option, what });
        match request {
            RunRequest { arch, .. } if *arch != Arch::host() => lacks("--arch", "other processor"),
            RunRequest { cpus: Some(2..), .. } => lacks("--cpus", "second processor"),
            RunRequest { published, .. } if !published.is_empty() => lacks("-p", "network"),
            RunRequest { net: true, .. } => lacks("--net", "network"),
            RunRequest { qemu_arguments, .. } if !qemu_arguments.is_empty() => lacks("--qemu-arg", "QEMU"),
            RunRequest { accel: AccelChoice::Kvm | AccelChoice::Tcg, .. } => lacks("--accel", "accelerator"),
            _ => Ok(()),
        }
    }
}
