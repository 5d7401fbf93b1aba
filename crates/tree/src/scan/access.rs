//! Decides whether the caller may read a file, without a system call where possible.

use rustix::thread::CapabilitySet;

/// What is known of a file's access ACL.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Acl {
    /// There is none: the mode decides.
    Absent,
    /// There is one, or it was not read.
    Possible,
}

/// Whether a [`Caller`] may read a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It may be read.
    Readable,
    /// It may not be read.
    Unreadable,
    /// Only the kernel can tell: ask `faccessat2`.
    Ask,
}

/// The ids and capabilities of this process that the kernel checks.
#[derive(Clone, Debug)]
pub(super) struct Caller {
    uid: u32,
    groups: Vec<u32>,
    reads_all: bool,
    /// The ids that stand for ids which the caller's user namespace does not map.
    overflow: (u32, u32),
}

impl Caller {
    pub(super) fn current() -> Caller {
        let mut groups = vec![rustix::process::getegid().as_raw()];
        groups.extend(rustix::process::getgroups().unwrap_or_default().iter().map(|group| group.as_raw()));
        let any = CapabilitySet::DAC_OVERRIDE | CapabilitySet::DAC_READ_SEARCH;
        let reads_all = rustix::thread::capabilities(None).is_ok_and(|sets| sets.effective.intersects(any));
        let overflow = |file| {
            let text = std::fs::read_to_string(file).unwrap_or_default();
            text.trim().parse().unwrap_or(65534)
        };
        let overflow = (overflow("/proc/sys/kernel/overflowuid"), overflow("/proc/sys/kernel/overflowgid"));
        Caller { uid: rustix::process::geteuid().as_raw(), groups, reads_all, overflow }
    }

    /// Follows `acl_permission_check` and `generic_permission` of `fs/namei.c`.
    pub(super) fn reads(&self, mode: u32, uid: u32, gid: u32, acl: Acl) -> Verdict {
        if self.reads_all {
            // Capabilities count only for files whose owner and group the user namespace maps.
            let mapped = uid != self.overflow.0 && gid != self.overflow.1;
            return if mapped { Verdict::Readable } else { Verdict::Ask };
        }
        let class = if uid == self.uid {
            0o400
        } else if acl == Acl::Possible {
            return Verdict::Ask;
        } else if self.groups.contains(&gid) {
            0o040
        } else {
            0o004
        };
        if mode & class != 0 { Verdict::Readable } else { Verdict::Unreadable }
    }
}
