//! Confines the threads of a job before it serves anybody.

use std::fmt;
use std::io;
use std::path::Path;

pub use inarch_confine::{Access, Confinement, Work};

use inarch_confine::Confined;

use crate::path_error::PathError;

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
    /// Confines the calling thread and the threads that it starts later.
    pub fn enter(self, confinement: &Confinement) -> Confined {
        match self {
            Sandbox::Auto => confinement.enter(),
            Sandbox::None => Confined::not_at_all(),
        }
    }

    /// Confines a server to everything beneath `place`; returns the line that says so.
    pub fn confine_to(self, place: impl fmt::Display, confinement: &Confinement) -> String {
        format!("guard:  confined to {place}: {}\n", self.enter(confinement))
    }
}

/// Everything is granted while it can still be reached.
pub trait Grants: Sized {
    /// Grants what is at `path`.
    fn granted(self, path: &Path, access: Access) -> Result<Self, PathError>;

    /// Grants the path if it exists. Otherwise the code that needs it reports the error.
    fn granted_if_there(self, path: &Path, access: Access) -> Result<Self, PathError> {
        if path.exists() { self.granted(path, access) } else { Ok(self) }
    }
}

impl Grants for Confinement {
    fn granted(self, path: &Path, access: Access) -> Result<Confinement, PathError> {
        self.grant(path, access).map_err(|error: io::Error| PathError::new(path, "cannot be kept within reach", error))
    }
}
