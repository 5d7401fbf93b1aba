//! Who makes a new file: the thread takes the caller's user, group and umask before the call that makes it.
//!
//! So the host's kernel gives the file its owner, the group of a set-group-ID directory, and the permissions of a
//! default ACL in one step. To make it first and give it away afterwards would take a name that somebody else may have
//! given to another file meanwhile.
//!
//! A thread keeps what it took until it makes a file for somebody else: most of the time there is nothing to do. It stays
//! as powerful as before, for with `SECBIT_NO_SETUID_FIXUP` a change of user leaves its capabilities alone; whether the
//! caller may do what it asks for is for the client's kernel to say, as with every request.

use std::cell::Cell;

use rustix::fs::Mode;
use rustix::io::Errno;
use rustix::thread::{CapabilitiesSecureBits, capabilities_secure_bits, set_capabilities_secure_bits};

use super::system_calls;
use crate::Context;

/// What a thread makes files as.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Maker {
    uid: u32,
    gid: u32,
    umask: u32,
}

thread_local! {
    static MAKER: Cell<Option<Maker>> = const { Cell::new(None) };
}

/// Whether this process may open files whatever their permissions are.
pub fn may_open_every_file() -> bool {
    use rustix::thread::{CapabilitySet, capabilities};
    capabilities(None).is_ok_and(|sets| sets.effective.contains(CapabilitySet::DAC_OVERRIDE))
}

/// Whether this process may make files for others: it is root with all that this takes.
pub(super) fn may_act_for_others() -> bool {
    use rustix::thread::{CapabilitySet, capabilities};
    let needed = CapabilitySet::SETUID
        | CapabilitySet::SETGID
        | CapabilitySet::CHOWN
        | CapabilitySet::DAC_OVERRIDE
        | CapabilitySet::FOWNER
        | CapabilitySet::FSETID;
    // A server that has given up other capabilities has done so beforehand.
    let needed = if keeps_capabilities() { needed } else { needed | CapabilitySet::SETPCAP };
    capabilities(None).is_ok_and(|sets| sets.effective.contains(needed))
}

/// Whether a change of user leaves the thread's capabilities alone.
fn keeps_capabilities() -> bool {
    capabilities_secure_bits().is_ok_and(|bits| bits.contains(CapabilitiesSecureBits::NO_SETUID_FIXUP))
}

/// From now on the thread makes files as the caller, if it may, and with this umask.
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
        // A user that this user namespace does not know can own nothing in it.
        if !system_calls::set_file_owner(wanted.uid, wanted.gid) {
            MAKER.set(None);
            return Err(Errno::OVERFLOW);
        }
    }
    rustix::process::umask(Mode::from_raw_mode(wanted.umask));
    MAKER.set(Some(wanted));
    Ok(())
}
