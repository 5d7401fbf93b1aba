//! What each server keeps when it confines itself, before it serves anybody.

use std::fmt;
use std::io;
use std::path::Path;

pub(crate) use inarch_confine::{Access, Confinement, Work};

use inarch_confine::Confined;

use crate::JobError;
use crate::notes::shown;
use crate::share::Share;

/// Whether a server confines itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sandbox {
    /// By all that this machine has and the user may use.
    #[default]
    Auto,
    /// Not at all.
    None,
}

impl Sandbox {
    /// Confines the calling thread and those that it starts from now on.
    pub(crate) fn enter(self, confinement: &Confinement) -> Confined {
        match self {
            Sandbox::Auto => confinement.enter(),
            Sandbox::None => Confined::not_at_all(),
        }
    }

    /// Confines a server to what is beneath `place`; gives the line that says so.
    pub(crate) fn confine_to(self, place: impl fmt::Display, confinement: &Confinement) -> String {
        format!("guard:  confined to {place} {}\n", self.enter(confinement))
    }
}

/// Everything is granted while it can still be reached.
pub(crate) trait Grants: Sized {
    /// Grants what is at `path`.
    fn granted(self, path: &Path, access: Access) -> Result<Self, JobError>;
}

impl Grants for Confinement {
    fn granted(self, path: &Path, access: Access) -> Result<Confinement, JobError> {
        self.grant(path, access).map_err(|error: io::Error| JobError::path(path, "cannot be kept within reach", error))
    }
}

/// For a server that does nothing but share a directory whose path has no symbolic links: nothing else is left of the
/// host's names.
pub(crate) fn of_share(share: &Share) -> Result<Confinement, JobError> {
    Ok(among_others(share)?.only(share.directory.clone()))
}

/// For threads that share a directory.
pub(crate) fn among_others(share: &Share) -> Result<Confinement, JobError> {
    let (work, access) =
        if share.refuses_writes() { (Work::ReadOnlyShare, Access::Read) } else { (Work::Share, Access::Change) };
    Confinement::new(work).granted(&share.directory, access)
}

/// The place of a share, for [`Sandbox::confine_to`].
pub(crate) fn place(share: &Share) -> String {
    let access = if share.refuses_writes() { ", read-only," } else { "" };
    format!("{}{access}", shown(&share.directory))
}
