//! The guest's PID 1: the static program that the build makes of `agent/`.

/// The program, an ELF executable for the architecture that this library was built for.
///
/// The kernel starts it as `/init` of an [initramfs](crate::initramfs). As `agent --session FD`, it runs a
/// session over the socket `FD` in an ordinary process.
pub const AGENT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/agent"));
