//! Removes what was looked at, and nothing that takes its name between the look and the removal.
//!
//! unlink(2) removes whatever has the name by then. So the file is first renamed to a temporary name that nobody else
//! uses, looked at there, and then removed or put back.

use rustix::fs::Stat;
use rustix::io::Errno;

use super::error::{MakeError, host};
use super::host::Directory;

impl Directory {
    /// Removes what is called `name`, if `is_it` accepts it. Renames it to `gone` first, a free name, and looks at it
    /// there.
    ///
    /// # Errors
    /// `Changed`: it is something else, and has its name again. `Kept`: it has the name `gone`, since by now another
    /// thing has the old one, or the host refused to put it back.
    pub fn remove_seen(&self, name: &[u8], gone: &[u8], is_it: impl Fn(&Stat) -> bool) -> Result<(), MakeError> {
        match self.set_aside(name, self, gone) {
            Err(Errno::NOENT) => return Err(MakeError::Changed),
            // The longer name may need a block. A removal, which frees some, must not fail for want of one: so this
            // looks at the name, and removes it, without a rename.
            Err(Errno::NOSPC | Errno::DQUOT) => return self.remove_by_name(name, is_it),
            result => result.map_err(host("remove"))?,
        }
        let error = match self.stat(gone) {
            Ok(Some(stat)) if is_it(&stat) => match self.remove(gone) {
                Ok(()) => return Ok(()),
                Err(errno) => MakeError::Host("remove", errno),
            },
            Ok(_) => MakeError::Changed,
            Err(errno) => MakeError::Host("look at", errno),
        };
        match self.rename_new(gone, self, name) {
            Ok(()) | Err(Errno::NOENT) => Err(error),
            Err(_) => Err(MakeError::Kept(gone.to_owned())),
        }
    }

    fn remove_by_name(&self, name: &[u8], is_it: impl Fn(&Stat) -> bool) -> Result<(), MakeError> {
        match self.stat(name).map_err(host("look at"))? {
            Some(stat) if is_it(&stat) => self.remove(name).map_err(host("remove")),
            _ => Err(MakeError::Changed),
        }
    }
}
