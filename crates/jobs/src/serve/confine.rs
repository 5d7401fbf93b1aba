//! What a server of live files gives up before it serves anybody: what a mistake in it could otherwise be used for.
//!
//! It keeps the capabilities that serving files takes and drops the others for good, and the kernel refuses it system
//! calls that start programs, open sockets, mount, trace, or reach into the kernel. The directory itself is guarded by
//! how it is served: one checked name at a time, beneath a descriptor.

use std::collections::BTreeMap;

use rustix::io::Errno;
use rustix::thread::{CapabilitySet, CapabilitySets};
use seccompiler::{BpfProgram, SeccompAction, SeccompFilter, TargetArch};

/// Owners, permissions and file handles of others' files; device nodes; file capabilities.
const KEPT: CapabilitySet = CapabilitySet::CHOWN
    .union(CapabilitySet::DAC_OVERRIDE)
    .union(CapabilitySet::DAC_READ_SEARCH)
    .union(CapabilitySet::FOWNER)
    .union(CapabilitySet::FSETID)
    .union(CapabilitySet::SETGID)
    .union(CapabilitySet::SETUID)
    .union(CapabilitySet::MKNOD)
    .union(CapabilitySet::SETFCAP);

/// System calls that no server of files needs once it listens.
const REFUSED: &[i64] = &[
    libc::SYS_execve,
    libc::SYS_execveat,
    libc::SYS_socket,
    libc::SYS_connect,
    libc::SYS_ptrace,
    libc::SYS_process_vm_readv,
    libc::SYS_process_vm_writev,
    libc::SYS_pidfd_getfd,
    libc::SYS_mount,
    libc::SYS_umount2,
    libc::SYS_move_mount,
    libc::SYS_open_tree,
    libc::SYS_fsopen,
    libc::SYS_fsconfig,
    libc::SYS_mount_setattr,
    libc::SYS_pivot_root,
    libc::SYS_chroot,
    libc::SYS_setns,
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_kexec_load,
    libc::SYS_reboot,
    libc::SYS_swapon,
    libc::SYS_swapoff,
    libc::SYS_bpf,
    libc::SYS_perf_event_open,
    libc::SYS_userfaultfd,
    libc::SYS_io_uring_setup,
    libc::SYS_add_key,
    libc::SYS_keyctl,
    libc::SYS_request_key,
];

/// Confines the calling thread and those that it starts from now on. Gives one line that says what protects.
pub(super) fn confine() -> String {
    let capabilities = drop_capabilities();
    let filter = filter_system_calls();
    let described = |done: bool, what: &'static str| done.then_some(what);
    let parts: Vec<&str> = [
        described(capabilities, "only the capabilities that files take"),
        described(filter, "no new programs, sockets, mounts or tracing (seccomp)"),
    ]
    .into_iter()
    .flatten()
    .collect();
    if parts.is_empty() {
        "nothing but its own checks: this kernel refuses to confine it".into()
    } else {
        parts.join("; ")
    }
}

/// Whether everything but [`KEPT`] is gone, or was never there.
fn drop_capabilities() -> bool {
    let drop = || -> Result<(), Errno> {
        let now = rustix::thread::capabilities(None)?;
        let permitted = now.permitted & KEPT;
        rustix::thread::set_capabilities(
            None,
            CapabilitySets { effective: now.effective & KEPT, permitted, inheritable: CapabilitySet::empty() },
        )
    };
    drop().is_ok()
}

/// Whether [`REFUSED`] are refused from now on.
fn filter_system_calls() -> bool {
    let Ok(architecture) = TargetArch::try_from(std::env::consts::ARCH) else { return false };
    // A call without rules matches whatever its arguments are.
    let rules: BTreeMap<_, _> = REFUSED.iter().map(|call| (*call, Vec::new())).collect();
    let refuse = SeccompAction::Errno(libc::EPERM as u32);
    let filter = SeccompFilter::new(rules, SeccompAction::Allow, refuse, architecture);
    let program = filter.and_then(BpfProgram::try_from);
    // Without the right to gain privileges, which the filter's installation gives up as well.
    program.is_ok_and(|program| seccompiler::apply_filter(&program).is_ok())
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    #[test]
    fn a_confined_thread_starts_no_program_and_keeps_its_files() {
        std::thread::spawn(|| {
            let file = tempfile::NamedTempFile::new().unwrap();
            let line = confine();
            assert!(line.contains("seccomp") && line.contains("capabilities"), "{line}");
            assert!(std::net::UdpSocket::bind("127.0.0.1:0").is_err());
            assert!(Command::new("true").status().is_err());
            std::fs::write(file.path(), "still").unwrap();
            assert_eq!(std::fs::read(file.path()).unwrap(), b"still");
            let now = rustix::thread::capabilities(None).unwrap();
            assert!(KEPT.contains(now.permitted) && KEPT.contains(now.effective));
        })
        .join()
        .unwrap();
    }
}
