//! What each server keeps when it confines itself, before it serves anybody.

use std::fmt;
use std::io;
use std::path::Path;

pub(crate) use inarch_confine::{Access, Confinement, Work};

use inarch_confine::Confined;

use crate::JobError;
use crate::device::{Recipe, Writes};
use crate::share::{Cover, Share};
use crate::source::Source;
use crate::text::shown;

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

    /// Grants what is at `path`; if there is nothing, whoever needs it says so.
    fn granted_if_there(self, path: &Path, access: Access) -> Result<Self, JobError> {
        if path.exists() { self.granted(path, access) } else { Ok(self) }
    }
}

impl Grants for Confinement {
    fn granted(self, path: &Path, access: Access) -> Result<Confinement, JobError> {
        self.grant(path, access).map_err(|error: io::Error| JobError::path(path, "cannot be kept within reach", error))
    }
}

/// For a server that does nothing but share a directory whose path has no symbolic links: nothing else is left of the
/// host's names.
pub(crate) fn of_share(share: &Share, cover: Option<&Cover>) -> Result<Confinement, JobError> {
    let mut confinement = among_others(share)?;
    let mut places = vec![share.directory.clone()];
    if let Some(path) = cover.and_then(Cover::path) {
        let path = path.canonicalize().map_err(|error| JobError::path(path, "cannot be kept within reach", error))?;
        confinement = confinement.granted(&path, Access::Change)?;
        places.push(path);
    }
    Ok(confinement.only(places))
}

/// For threads that share a directory.
pub(crate) fn among_others(share: &Share) -> Result<Confinement, JobError> {
    let work = match share {
        Share { over: Some(_), .. } => Work::CoveredShare,
        share if share.refuses_writes() => Work::ReadOnlyShare,
        _ => Work::Share,
    };
    let access = if share.writes_through() { Access::Change } else { Access::Read };
    let confinement = Confinement::new(work).granted(&share.directory, access)?;
    let makes_devices = share.over.is_some() || !share.refused.devices;
    Ok(if makes_devices { confinement } else { confinement.without_devices() })
}

/// For a thread that makes a disk, and ends with that.
pub(crate) fn of_plan(recipe: &Recipe) -> Result<Confinement, JobError> {
    let mut confinement = Confinement::new(Work::Plan);
    match &recipe.source {
        Source::Directory(path) | Source::File { path, .. } | Source::Oci { path, .. } => {
            confinement = confinement.granted(path, Access::Read)?;
        }
        // Landlock knows no pipe without a name, and lets it be opened again.
        Source::Pipe(path) if path.canonicalize().is_ok() => confinement = confinement.granted(path, Access::Read)?,
        Source::Pipe(_) | Source::StandardInput | Source::Empty => {}
    }
    if !matches!(recipe.source, Source::Directory(_) | Source::Empty) {
        confinement = confinement.granted_if_there(&recipe.resources().spool_directory, Access::Change)?;
    }
    match &recipe.writes {
        Writes::Refused => Ok(confinement),
        Writes::ThrownAway(directory) => confinement.granted_if_there(directory, Access::Change),
        Writes::Kept(file) if file.exists() => confinement.granted(file, Access::Change),
        Writes::Kept(file) => {
            // It is made in its directory.
            let directory = file.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
            confinement.granted_if_there(directory, Access::Change)
        }
    }
}

/// For the threads that serve a disk of `source`: a directory's files are opened when they are read, of anything else all
/// that is read is open by then. Of the host's names nothing else is left but `device`.
pub(crate) fn of_disk(source: &Source, device: Option<&Path>) -> Result<Confinement, JobError> {
    let mut confinement = disk_among_others(source)?;
    let mut places = Vec::new();
    if let Source::Directory(path) = source {
        let fail = |error| JobError::path(path, "cannot be kept within reach", error);
        places.push(path.canonicalize().map_err(fail)?);
    }
    if let Some(device) = device {
        confinement = confinement.granted(device, Access::Device)?;
        places.push(device.to_owned());
    }
    Ok(confinement.only(places))
}

/// For threads that serve a disk of `source`.
pub(crate) fn disk_among_others(source: &Source) -> Result<Confinement, JobError> {
    let confinement = Confinement::new(Work::Disk);
    match source {
        Source::Directory(path) => confinement.granted(path, Access::Read),
        _ => Ok(confinement),
    }
}

/// The place of a share, for [`Sandbox::confine_to`].
pub(crate) fn place(share: &Share) -> String {
    let access = if share.refuses_writes() { ", read-only," } else { "" };
    format!("{}{access}", shown(&share.directory))
}
