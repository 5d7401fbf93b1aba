//! Changes of what is mounted: an [appliance](crate::appliance) makes them, since the readers only read. One is started for the first change, serves
//! those that follow on the same device, and is ended by [`Session::settle`] before anything is read.

use std::collections::VecDeque;
use std::path::{Path, PathBuf};

use inarch_disk::guest::Subvolume;
use inarch_lifecycle::Events;
use inarch_lifecycle::shown;
use inarch_source::Which;

use super::mounts::Mounted;
use super::{Place, Session, ShellError};
use crate::appliance::{Appliance, ApplianceError, ApplianceEvent, ApplianceRequest, FileAttributes};
use crate::run::AttachedDisk;
use inarch_guest::GuestError;

/// Symbolic links on one way, at most: `MAXSYMLINKS` of Linux's include/linux/namei.h.
const MAX_LINKS: u32 = 40;

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
        let mut real = Vec::new();
        for path in paths {
            real.extend(self.by_appliance(path, links)?);
        }
        if real.len() < N {
            // The readers know all devices, but see the changes only when the appliance has ended.
            self.settle()?;
            real = paths.iter().map(|path| self.real(path, links)).collect::<Result<_, _>>()?;
        }
        for (path, within) in real.iter().zip(&mut within) {
            let over = self.mounts.iter().filter(|mounted| path.starts_with(&mounted.at));
            let mounted = over.max_by_key(|mounted| mounted.at.components().count()).ok_or(ShellError::NotMounted)?;
            if at.as_ref().is_some_and(|at| *at != mounted.at) {
                return Err(ShellError::unfit(shown(path), "it is on another file system than the first path"));
            }
            *within = Path::new("/").join(path.strip_prefix(&mounted.at).unwrap_or(path));
            at = Some(mounted.at.clone());
        }
        let appliance = self.appliance(&at.ok_or(ShellError::NotMounted)?, events)?;
        Ok(change(appliance, within)?)
    }

    /// Like [`Session::real`], but asks the running appliance, as the readers do not see its changes. `None` if none runs, or if the path
    /// leads to another device.
    fn by_appliance(&mut self, path: &Path, links: Links) -> Result<Option<PathBuf>, ShellError> {
        let Some(Changing { at, appliance, .. }) = &mut self.changing else { return Ok(None) };
        let Ok(below) = path.strip_prefix(&*at) else { return Ok(None) };
        let names = |path: &Path| path.components().map(|name| name.as_os_str().to_owned()).collect::<VecDeque<_>>();
        let (mut left, mut here, mut followed) = (names(below), at.clone(), 0);
        let root = PathBuf::from("/");
        while let Some(name) = left.pop_front() {
            let leads_up = name == "/" || name == "..";
            if name == "." {
                continue;
            }
            if leads_up && *at != root && (name == "/" || here == *at) {
                return Ok(None);
            }
            match (leads_up, name == "/") {
                (true, true) => here.clone_from(&root),
                // Above the root there is itself.
                (true, false) => drop(here.pop()),
                (false, _) => here.push(&name),
            }
            if leads_up {
                continue;
            }
            if here != *at && self.mounts.iter().any(|mounted| mounted.at == here) {
                return Ok(None);
            }
            if left.is_empty() && links == Links::Taken {
                break;
            }
            let within = root.join(here.strip_prefix(&*at).unwrap_or(&here));
            match appliance.attributes(&within) {
                Ok(FileAttributes { target: Some(target), .. }) => {
                    followed += 1;
                    if followed > MAX_LINKS {
                        return Ok(None);
                    }
                    here.pop();
                    let mut further = names(&target);
                    further.append(&mut left);
                    left = further;
                }
                Ok(_) => {}
                // What follows is not there either.
                Err(ApplianceError::Guest { .. }) if !left.iter().any(|name| name == "..") => {
                    here.extend(left);
                    break;
                }
                Err(ApplianceError::Guest { .. }) => return Ok(None),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(Some(here))
    }

    /// The path without symbolic links on the way, as far as it is there.
    fn real(&self, path: &Path, links: Links) -> Result<PathBuf, ShellError> {
        let guest = self.guest()?;
        let mut known = path;
        if links == Links::Taken {
            known = path.parent().unwrap_or(path);
        }
        loop {
            match guest.canonical(known) {
                Ok(real) => return Ok(real.join(path.strip_prefix(known).unwrap_or(Path::new("")))),
                Err(GuestError::Absent { .. }) => {}
                // It may be a link that leads elsewhere.
                Err(error) => return Err(error.into()),
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
            if mounted.options.split(',').any(|option| option == "ro") {
                let what = "it is mounted for reading only; umount it, and mount it again to change files";
                return Err(ShellError::unfit(&*mounted.device, what));
            }
            let drive = self.drives.get(disk).ok_or(ShellError::NoDrives)?;
            let image = AttachedDisk {
                path: drive.path.clone(),
                read_only: false,
                format: drive.options.format,
                sector: None,
                seen: None,
            };
            let request = ApplianceRequest {
                image,
                with: drive.options.with.clone(),
                isolation: drive.options.isolation,
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
        let subvolume = match Subvolume::of_options(&mounted.options) {
            Err(error) => return Err(ShellError::unfit(device, error.to_string())),
            Ok(Some(Subvolume::Path(path))) => Some(path),
            Ok(Some(Subvolume::Id(_))) => {
                let what =
                    "it is mounted by a subvolume's number; mount that by -m DEVICE:DIR:subvol=NAME to change it";
                return Err(ShellError::unfit(device, what));
            }
            Ok(None) => None,
        };
        let named = mounted.device.strip_prefix("btrfsvol:").and_then(|rest| {
            let rest = rest.strip_prefix("/dev/")?;
            rest.split_once('/').map(|(_, subvolume)| subvolume)
        });
        let name = match subvolume.as_deref().or(named) {
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
