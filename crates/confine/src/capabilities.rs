//! Capabilities: the thread keeps those that its work needs, and gives up the others for good.

use rustix::io::Errno;
use rustix::thread::{
    CapabilitiesSecureBits, CapabilitySet, CapabilitySets, capabilities, capabilities_secure_bits, set_capabilities,
    set_capabilities_secure_bits,
};

use crate::Work;

/// Reading other users' files, by name and by handle, and without updating their access times.
const READING: CapabilitySet = CapabilitySet::DAC_READ_SEARCH.union(CapabilitySet::FOWNER);

/// Changing other users' files, their owners, permissions and capabilities; making device nodes.
const CHANGING: CapabilitySet = READING
    .union(CapabilitySet::CHOWN)
    .union(CapabilitySet::DAC_OVERRIDE)
    .union(CapabilitySet::FSETID)
    .union(CapabilitySet::SETGID)
    .union(CapabilitySet::SETUID)
    .union(CapabilitySet::MKNOD)
    .union(CapabilitySet::SETFCAP);

impl Work {
    /// The capabilities that this work needs when it touches other users' files.
    pub(crate) fn capabilities(self, makes_devices: bool) -> CapabilitySet {
        let wanted = match self {
            Work::Image | Work::Fetch => CapabilitySet::empty(),
            Work::ReadOnlyShare | Work::Disk | Work::Parse => READING,
            // An overlay may lie in another user's directory, and `trusted.` attributes are part of the tree.
            Work::Plan => READING.union(CapabilitySet::DAC_OVERRIDE).union(CapabilitySet::SYS_ADMIN),
            Work::Share => CHANGING,
            // Needed for FUSE_DEV_IOC_BACKING_OPEN, and for the `trusted.` attributes of an upper layer. The filter
            // refuses the other system calls that this capability permits.
            Work::ReadOnlyMount => READING.union(CapabilitySet::SYS_ADMIN),
            Work::CoveredShare | Work::Mount => CHANGING.union(CapabilitySet::SYS_ADMIN),
        };
        if makes_devices { wanted } else { wanted - CapabilitySet::MKNOD }
    }
}

/// Whether this thread may create a mount namespace.
pub fn may_mount() -> bool {
    capabilities(None).is_ok_and(|sets| sets.effective.contains(CapabilitySet::SYS_ADMIN))
}

/// Keeps those of the thread's capabilities that are in `wanted`; returns how many remain, in words.
pub fn keep(wanted: CapabilitySet) -> Result<String, String> {
    let drop = || -> Result<(u32, u32), Errno> {
        let now = capabilities(None)?;
        let kept = now.permitted & wanted;
        if now.effective.contains(CapabilitySet::SETPCAP) && wanted.contains(CapabilitySet::SETUID) {
            // A thread that makes files for other users changes its user ID; it must keep its capabilities then.
            set_capabilities_secure_bits(capabilities_secure_bits()? | CapabilitiesSecureBits::NO_SETUID_FIXUP)?;
        }
        let sets =
            CapabilitySets { effective: now.effective & kept, permitted: kept, inheritable: CapabilitySet::empty() };
        set_capabilities(None, sets)?;
        Ok((kept.bits().count_ones(), now.permitted.bits().count_ones()))
    };
    match drop() {
        Ok((_, 0)) => Ok("no capabilities".to_owned()),
        Ok((kept, all)) => Ok(format!("{kept} of {all} capabilities left")),
        Err(errno) => Err(format!("giving up capabilities ({errno})")),
    }
}
