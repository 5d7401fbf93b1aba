//! The guest's PID 1: the static program built from `agent/`.

/// The program, an ELF executable for the architecture that this library was built for.
///
/// The kernel starts it as `/init` of an [`Initramfs`](crate::initramfs::Initramfs). Started as `agent --session FD`, it
/// holds a session over the socket `FD` in an ordinary process.
pub const AGENT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/agent"));
