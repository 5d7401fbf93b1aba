//! Decides which rights remain to the threads that make or serve a disk.

use std::path::Path;

use inarch_lifecycle::PathError;
use inarch_lifecycle::confinement::{Access, Confinement, Grants, Work};
use inarch_source::Source;

use super::{Recipe, Writes};
use crate::JobError;

/// For a thread that makes a disk, and ends with that.
///
/// # Errors
/// What it keeps is not there.
pub(crate) fn of_plan(recipe: &Recipe) -> Result<Confinement, JobError> {
    let mut confinement = Confinement::new(Work::Plan);
    match &recipe.source {
        Source::Directory(path) | Source::File { path, .. } | Source::Oci { path, .. } => {
            confinement = confinement.granted(path, Access::Read)?;
        }
        Source::Disk { .. } => {
            for disk in recipe.source.disks() {
                for file in disk.with.iter().chain([&disk.path]) {
                    confinement = confinement.granted(file, Access::Read)?;
                }
            }
        }
        // Landlock knows no pipe without a name, and lets it be opened again.
        Source::Pipe(path) if path.canonicalize().is_ok() => confinement = confinement.granted(path, Access::Read)?,
        Source::Pipe(_) | Source::StandardInput | Source::Empty => {}
        // It is fetched before: the thread makes no connection. What turns out to be damaged is removed.
        Source::Registry(image) => confinement = confinement.granted(image.fetch()?.place(), Access::Change)?,
        // Its generation is taken before: the thread does not change the cache's files.
        Source::Cache(cache) => {
            cache.take()?;
            confinement = confinement.granted_if_there(&cache.place.directory(), Access::Change)?;
        }
    }
    if !matches!(recipe.source, Source::Directory(_) | Source::Empty) {
        confinement = confinement.granted_if_there(&recipe.resources().spool_directory, Access::Change)?;
    }
    match &recipe.writes {
        Writes::Refused => Ok(confinement),
        Writes::ThrownAway(directory) => Ok(confinement.granted_if_there(directory, Access::Change)?),
        Writes::Kept(file) if file.exists() => Ok(confinement.granted(file, Access::Change)?),
        Writes::Kept(file) => {
            // It is made in its directory.
            let directory = file.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
            Ok(confinement.granted_if_there(directory, Access::Change)?)
        }
    }
}

/// For the threads that serve a disk of `source`. A directory's files are opened on read; of other sources everything
/// is open already. Of the host's names only `device` remains.
pub(crate) fn of_disk(source: &Source, device: Option<&Path>) -> Result<Confinement, PathError> {
    let mut confinement = disk_among_others(source)?;
    let mut places = Vec::new();
    if let Source::Directory(path) = source {
        let fail = |error| PathError::new(path, "cannot be kept within reach", error);
        places.push(path.canonicalize().map_err(fail)?);
    }
    if let Some(device) = device {
        confinement = confinement.granted(device, Access::Device)?;
        places.push(device.to_owned());
    }
    Ok(confinement.only(places))
}

/// For threads that serve a disk of `source`.
pub(crate) fn disk_among_others(source: &Source) -> Result<Confinement, PathError> {
    let confinement = Confinement::new(Work::Disk);
    match source {
        Source::Directory(path) => confinement.granted(path, Access::Read),
        _ => Ok(confinement),
    }
}
