//! The guest's PID 1: the static program that the build makes of `agent/`.

use crate::arch::Arch;

/// The program, an ELF executable for the architecture that this library was built for.
///
/// The kernel starts it as `/init` of an [initramfs](crate::initramfs). As `agent --session FD`, it runs a
/// session over the socket `FD` in an ordinary process.
pub const AGENT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/agent"));

/// The program for `arch`; `None` if the machine that built this library had no compiler for it
/// ([`Arch::compiler_packages`]).
pub fn agent_of(arch: Arch) -> Option<&'static [u8]> {
    let program: &[u8] = match arch {
        _ if arch == Arch::host() => AGENT,
        Arch::X86_64 => include_bytes!(concat!(env!("OUT_DIR"), "/agent-x86_64")),
        Arch::Riscv64 => include_bytes!(concat!(env!("OUT_DIR"), "/agent-riscv64")),
        Arch::Aarch64 => include_bytes!(concat!(env!("OUT_DIR"), "/agent-aarch64")),
    };
    (!program.is_empty()).then_some(program)
}
