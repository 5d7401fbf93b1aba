//! Creates files with the caller's user, group and umask, which the thread takes on before the call.
//!
//! So the host's kernel sets the owner, the group of a set-group-ID directory and the permissions of a default ACL in
//! one step. Creating the file first and changing its owner later would go through a name that may refer to another
//! file by then.
//!
//! A thread keeps these credentials until it creates a file for another user, so most creations need no extra call.
//! It keeps its capabilities, because with `SECBIT_NO_SETUID_FIXUP` a change of user does not clear them. Whether the
//! caller may do what it asks for is checked by the client's kernel, as for every request.

use std::cell::Cell;

use rustix::fs::Mode;
use rustix::io::Errno;
use rustix::thread::{CapabilitiesSecureBits, capabilities_secure_bits, set_capabilities_secure_bits};

use super::system_calls;
use crate::Context;

/// The credentials that a thread creates files with.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Maker {
    uid: u32,
    gid: u32,
    umask: u32,
}

thread_local! {
    static MAKER: Cell<Option<Maker>> = const { Cell::new(None) };
}

/// Whether this process may open files regardless of their permissions.
pub fn may_open_every_file() -> bool {
    use rustix::thread::{CapabilitySet, capabilities};
    capabilities(None).is_ok_and(|sets| sets.effective.contains(CapabilitySet::DAC_OVERRIDE))
}

/// Whether this process may create files for other users: it is root with all capabilities that this needs.
pub(super) fn may_act_for_others() -> bool {
    use rustix::thread::{CapabilitySet, capabilities};
    let needed = CapabilitySet::SETUID
        | CapabilitySet::SETGID
        | CapabilitySet::CHOWN
        | CapabilitySet::DAC_OVERRIDE
        | CapabilitySet::FOWNER
        | CapabilitySet::FSETID;
    // A server that dropped other capabilities has set the bit before.
    let needed = if keeps_capabilities() { needed } else { needed | CapabilitySet::SETPCAP };
    capabilities(None).is_ok_and(|sets| sets.effective.contains(needed))
}

/// Whether a change of user keeps the thread's capabilities.
fn keeps_capabilities() -> bool {
    capabilities_secure_bits().is_ok_and(|bits| bits.contains(CapabilitiesSecureBits::NO_SETUID_FIXUP))
}

/// Takes on the caller's credentials, if permitted, and this umask.
pub(super) fn make_as(context: &Context<'_>, umask: u32, for_others: bool) -> Result<(), Errno> {
    let wanted = Maker { uid: context.uid, gid: context.gid, umask: umask & 0o777 };
    let now = MAKER.get();
    if now == Some(wanted) {
        return Ok(());
    }
    if now.is_none() {
        system_calls::own_umask()?;
    }
    if for_others && now.is_none_or(|now| (now.uid, now.gid) != (wanted.uid, wanted.gid)) {
        if now.is_none() && !keeps_capabilities() {
            set_capabilities_secure_bits(capabilities_secure_bits()? | CapabilitiesSecureBits::NO_SETUID_FIXUP)?;
        }
        // A user unknown to this user namespace cannot own anything in it.
        if !system_calls::set_file_owner(wanted.uid, wanted.gid) {
            MAKER.set(None);
            return Err(Errno::OVERFLOW);
        }
    }
    rustix::process::umask(Mode::from_raw_mode(wanted.umask));
    MAKER.set(Some(wanted));
    Ok(())
}
