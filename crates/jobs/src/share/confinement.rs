//! Decides which rights remain to the threads that serve a shared directory.

use super::{Cover, Share};
use inarch_lifecycle::PathError;
use inarch_lifecycle::confinement::{Access, Confinement, Grants, Work};
use inarch_lifecycle::shown;

/// For a server that does nothing but share a directory, whose path has no symbolic links: no other name of the host
/// remains.
pub(crate) fn alone(share: &Share, cover: Option<&Cover>) -> Result<Confinement, PathError> {
    let mut confinement = among_others(share)?;
    let mut places = vec![share.directory.clone()];
    if let Some(path) = cover.and_then(Cover::path) {
        let path = path.canonicalize().map_err(|error| PathError::new(path, "cannot be kept within reach", error))?;
        confinement = confinement.granted(&path, Access::Change)?;
        places.push(path);
    }
    Ok(confinement.only(places))
}

/// For threads that share a directory.
pub(crate) fn among_others(share: &Share) -> Result<Confinement, PathError> {
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

/// The place of a share, for [`Sandbox::confine_to`](inarch_lifecycle::confinement::Sandbox::confine_to).
pub(crate) fn place(share: &Share) -> String {
    let access = if share.refuses_writes() { ", read-only" } else { "" };
    format!("{}{access}", shown(&share.directory))
}
