//! Changes of what is mounted: an [appliance](crate::appliance) makes them, since the readers only read. One is started for the first change, serves
//! those that follow on the same device, and is ended by [`Session::settle`] before anything is read.

use std::path::{Path, PathBuf};

use super::mounts::Mounted;
use super::{Place, Session, ShellError};
use crate::appliance::{Appliance, ApplianceError, ApplianceEvent, ApplianceRequest};
use crate::events::Events;
use crate::run::AttachedDisk;
use crate::source::Which;
use crate::text::shown;

/// An appliance that runs.
pub(super) struct Changing {
    /// The directory on which its device is mounted.
    at: PathBuf,
    disk: usize,
    appliance: Appliance,
}

/// Whether a change is of what a symbolic link leads to, or of the link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Links {
    /// Of what it leads to.
    Followed,
    /// Of the link.
    Taken,
}

impl Session {
    /// Has an appliance change something. `change` gets `paths` as they are on the device, which must be the same for all of them.
    ///
    /// # Errors
    /// Nothing is mounted there, the drive is read-only, the appliance does not start, or the change cannot be made.
    pub fn change<T, const N: usize>(
        &mut self,
        paths: [&Path; N],
        links: Links,
        events: Events<ApplianceEvent>,
        change: impl FnOnce(&mut Appliance, [PathBuf; N]) -> Result<T, ApplianceError>,
    ) -> Result<T, ShellError> {
        let mut at: Option<PathBuf> = None;
        let mut within = [const { PathBuf::new() }; N];
        for (path, within) in paths.iter().zip(&mut within) {
            let path = self.real(path, links)?;
            let over = self.mounts.iter().filter(|mounted| path.starts_with(&mounted.at));
            let mounted = over.max_by_key(|mounted| mounted.at.components().count()).ok_or(ShellError::NotMounted)?;
            if at.as_ref().is_some_and(|at| *at != mounted.at) {
                return Err(ShellError::unfit(shown(&path), "it is on another file system than the first path"));
            }
            *within = Path::new("/").join(path.strip_prefix(&mounted.at).unwrap_or(&path));
            at = Some(mounted.at.clone());
        }
        let appliance = self.appliance(&at.ok_or(ShellError::NotMounted)?, events)?;
        Ok(change(appliance, within)?)
    }

    /// The path without symbolic links on the way, as far as it is there: what was made since the last reading is not known here.
    fn real(&self, path: &Path, links: Links) -> Result<PathBuf, ShellError> {
        let guest = self.guest()?;
        let mut known = path;
        if links == Links::Taken {
            known = path.parent().unwrap_or(path);
        }
        loop {
            if let Ok(real) = guest.canonical(known) {
                return Ok(real.join(path.strip_prefix(known).unwrap_or(Path::new(""))));
            }
            match known.parent() {
                Some(parent) => known = parent,
                None => return Err(ShellError::unfit(shown(path), "a path begins with a slash")),
            }
        }
    }

    /// The appliance for the device that is mounted on `at`.
    fn appliance(&mut self, at: &Path, events: Events<ApplianceEvent>) -> Result<&mut Appliance, ShellError> {
        if self.changing.as_ref().is_none_or(|changing| changing.at != at) {
            self.settle()?;
            let mounted = self.mounts.iter().find(|mounted| mounted.at == at).ok_or(ShellError::NotMounted)?;
            let (disk, which) = self.volume_of(mounted)?;
            self.writable(disk)?;
            let drive = self.drives.get(disk).ok_or(ShellError::NoDrives)?;
            let image =
                AttachedDisk { path: drive.path.clone(), read_only: false, format: drive.options.format, sector: None };
            let request = ApplianceRequest {
                image,
                with: drive.options.with.clone(),
                ..ApplianceRequest::new(drive.path.clone(), which)
            };
            let appliance = Appliance::open(&request, events)?;
            self.changing = Some(Changing { at: at.to_owned(), disk, appliance });
        }
        self.changing.as_mut().map(|changing| &mut changing.appliance).ok_or(ShellError::NotMounted)
    }

    /// The disk that a device is on, and the name that it has where that disk is the only one.
    fn volume_of(&self, mounted: &Mounted) -> Result<(usize, Which), ShellError> {
        let device = mounted.device.strip_prefix("btrfsvol:").unwrap_or(&mounted.device);
        if mounted.is_system && mounted.files.format() == "btrfs" {
            let what = "its root may be a subvolume; mount that by -m DEVICE:/:subvol=NAME to change it";
            return Err(ShellError::unfit(device, what));
        }
        let (disk, name) = match mounted.place {
            Place::Disk(disk) => (disk, "/dev/sda".to_owned()),
            Place::Part(disk, part) => (disk, format!("/dev/sda{part}")),
            Place::Above if self.drives.len() == 1 => (0, device.to_owned()),
            Place::Above => {
                return Err(ShellError::unfit(device, "volumes that may lie on several drives are only read"));
            }
        };
        let subvolume = mounted.options.split(',').find_map(|option| option.strip_prefix("subvol="));
        let named = mounted.device.strip_prefix("btrfsvol:").and_then(|rest| {
            let rest = rest.strip_prefix("/dev/")?;
            rest.split_once('/').map(|(_, subvolume)| subvolume)
        });
        let name = match subvolume.or(named) {
            Some(subvolume) => format!("{name}@{subvolume}"),
            None => name,
        };
        Ok((disk, Which::Named(name)))
    }

    /// Ends the appliance, if one runs: what was changed is on the image then, and is read anew.
    ///
    /// # Errors
    /// A file system cannot be unmounted, or the machine failed. What was written may be lost then.
    pub fn settle(&mut self) -> Result<(), ShellError> {
        let Some(Changing { disk, appliance, .. }) = self.changing.take() else { return Ok(()) };
        let closed = appliance.close();
        self.forget(disk);
        self.remount();
        closed?;
        Ok(())
    }
}
