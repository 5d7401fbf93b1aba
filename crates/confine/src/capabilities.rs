//! Capabilities: those that the work takes are kept, the others given up for good.

use rustix::io::Errno;
use rustix::thread::{
    CapabilitiesSecureBits, CapabilitySet, CapabilitySets, capabilities, capabilities_secure_bits, set_capabilities,
    set_capabilities_secure_bits,
};

use crate::Work;

/// Others' files, by name and by handle, and without touching their access times.
const READING: CapabilitySet = CapabilitySet::DAC_READ_SEARCH.union(CapabilitySet::FOWNER);

/// Others' files, their owners, permissions and capabilities; device nodes.
const CHANGING: CapabilitySet = READING
    .union(CapabilitySet::CHOWN)
    .union(CapabilitySet::DAC_OVERRIDE)
    .union(CapabilitySet::FSETID)
    .union(CapabilitySet::SETGID)
    .union(CapabilitySet::SETUID)
    .union(CapabilitySet::MKNOD)
    .union(CapabilitySet::SETFCAP);

impl Work {
    /// What it takes where others' files are concerned.
    pub(crate) fn capabilities(self, makes_devices: bool) -> CapabilitySet {
        let wanted = match self {
            Work::ReadOnlyShare | Work::Disk => READING,
            // An overlay may lie in another user's directory; `trusted.` attributes are a part of the tree.
            Work::Plan => READING.union(CapabilitySet::DAC_OVERRIDE).union(CapabilitySet::SYS_ADMIN),
            Work::Share => CHANGING,
            // FUSE_DEV_IOC_BACKING_OPEN, and `trusted.` attributes, which an upper layer has. What else it stands for takes
            // system calls that are refused.
            Work::ReadOnlyMount => READING.union(CapabilitySet::SYS_ADMIN),
            Work::CoveredShare | Work::Mount => CHANGING.union(CapabilitySet::SYS_ADMIN),
        };
        if makes_devices { wanted } else { wanted - CapabilitySet::MKNOD }
    }
}

/// Whether this thread may have a mount namespace of its own.
pub fn may_mount() -> bool {
    capabilities(None).is_ok_and(|sets| sets.effective.contains(CapabilitySet::SYS_ADMIN))
}

/// Keeps of the thread's capabilities those in `wanted`; says how many there are left.
pub fn keep(wanted: CapabilitySet) -> Result<String, String> {
    let drop = || -> Result<(u32, u32), Errno> {
        let now = capabilities(None)?;
        let kept = now.permitted & wanted;
        if now.effective.contains(CapabilitySet::SETPCAP) && wanted.contains(CapabilitySet::SETUID) {
            // Who makes files for others changes the user that it makes them as, and stays as powerful meanwhile.
            set_capabilities_secure_bits(capabilities_secure_bits()? | CapabilitiesSecureBits::NO_SETUID_FIXUP)?;
        }
        let sets =
            CapabilitySets { effective: now.effective & kept, permitted: kept, inheritable: CapabilitySet::empty() };
        set_capabilities(None, sets)?;
        Ok((kept.bits().count_ones(), now.permitted.bits().count_ones()))
    };
    match drop() {
        Ok((_, 0)) => Ok("no capabilities".to_owned()),
        Ok((kept, all)) => Ok(format!("{kept} of {all} capabilities")),
        Err(errno) => Err(format!("giving up capabilities ({errno})")),
    }
}
