//! [`Mounted`]: the volumes, mounted below one directory as the guest has them.

use std::ffi::{CString, OsStr};
use std::fs;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, openat, openat2, syncfs};
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};

use super::failure::{Failure, kernel_log};
use super::made::Made;
use super::tools::Tool;
use crate::appliance::wire::AttachedVolume;

/// Where the guest's root is mounted.
pub(super) const ROOT: &str = "/run/inarch/volumes";

const NTFS: Tool = Tool { program: "ntfs-3g", package: "ntfs-3g" };

/// Volumes that are mounted.
pub(super) struct Mounted {
    /// Names, devices and formats of the volumes.
    pub devices: Vec<(String, PathBuf, String)>,
    /// Where each is mounted, by the path in this machine.
    points: Vec<PathBuf>,
    root: Option<OwnedFd>,
    /// Directories, by their paths in this machine, at which a volume is missing, and why.
    missing: Vec<(PathBuf, String)>,
    /// What the copy that goes on has made.
    pub made: Made,
}

impl Mounted {
    pub fn new(missing: &[(String, String)]) -> Mounted {
        let missing = missing.iter().map(|(path, why)| (below_root(path), why.clone())).collect();
        Mounted { devices: Vec::new(), points: Vec::new(), root: None, missing, made: Made::default() }
    }

    /// Mounts a volume. The first one is the root.
    pub fn mount(
        &mut self,
        volume: &AttachedVolume,
        device: &Path,
        format: &str,
        read_only: bool,
    ) -> Result<(), Failure> {
        let point = match &self.root {
            None => {
                fs::create_dir_all(ROOT).map_err(|error| Failure::of(ROOT, error))?;
                PathBuf::from(ROOT)
            }
            // The directory may be a symbolic link, which leads nowhere but into the volume.
            Some(root) => {
                let directory =
                    open_in_root(root.as_fd(), volume.directory.as_bytes(), OFlags::PATH | OFlags::DIRECTORY);
                let fail =
                    |error| Failure::of(format!("there is no {} to mount {} on", volume.directory, volume.name), error);
                real_path(directory.map_err(fail)?.as_fd())?
            }
        };
        match (mount_one(volume, device, format, read_only, &point), &volume.subvolume) {
            // The subvolume may have been deleted. The guest starts without it if the fstab allows that.
            (Err(Failure { errno: Some(error), .. }), Some(subvolume))
                if self.root.is_some() && error == Errno::NOENT.raw_os_error() =>
            {
                self.missing.push((point, format!("its {subvolume} is not there ({})", volume.name)));
                return Ok(());
            }
            (mounted, _) => mounted?,
        }
        self.points.push(point.clone());
        if self.root.is_none() {
            let root = openat(CWD, &point, OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty());
            self.root = Some(root.map_err(|error| Failure::of(ROOT, error))?);
        }
        Ok(())
    }

    /// The mounted root.
    pub fn root(&self) -> Result<BorrowedFd<'_>, Failure> {
        self.root.as_ref().map(AsFd::as_fd).ok_or_else(|| Failure::new("nothing is mounted"))
    }

    /// Refuses a directory at which a volume is missing: what is written there would be hidden in the guest.
    pub fn check_place(&self, directory: BorrowedFd<'_>) -> Result<(), Failure> {
        if self.missing.is_empty() {
            return Ok(());
        }
        let path = real_path(directory)?;
        match self.missing.iter().find(|(missing, _)| path.starts_with(missing)) {
            None => Ok(()),
            Some((missing, why)) => {
                let shown = missing.strip_prefix(ROOT).unwrap_or(missing).display();
                Err(Failure::new(format!(
                    "the guest mounts a volume on /{shown}, but {why}; a guest that mounts it does not see what is written there"
                )))
            }
        }
    }

    /// Whether a volume is mounted on a directory or below it.
    pub fn has_mount_in(&self, directory: BorrowedFd<'_>) -> Result<bool, Failure> {
        let path = real_path(directory)?;
        Ok(self.points.iter().any(|point| point.starts_with(&path)))
    }

    /// Writes everything to the disks.
    pub fn sync(&self) -> Result<(), Failure> {
        for point in &self.points {
            let shown = Path::new("/").join(point.strip_prefix(ROOT).unwrap_or(point));
            let fail = |error: Errno| Failure::of(format!("cannot write everything to {}", shown.display()), error);
            let directory = openat(CWD, point, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty());
            directory.and_then(syncfs).map_err(fail)?;
        }
        Ok(())
    }

    /// Unmounts all, the last one first.
    pub fn unmount(mut self) -> Result<(), Failure> {
        self.sync()?;
        drop(self.root.take());
        for point in self.points.iter().rev() {
            let log = kernel_log().len();
            let fail = |error| Failure::of(format!("cannot unmount {}", point.display()), error).with_kernel_log(log);
            unmount(point, UnmountFlags::empty()).map_err(fail)?;
        }
        for (name, device, format) in &self.devices {
            if format == "ntfs" {
                wait_for_program(device);
            }
            // Not every file system has the disk write its cache when it is unmounted.
            let flushed = fs::File::open(device).and_then(|device| device.sync_all());
            flushed.map_err(|error| Failure::of(format!("cannot write everything to {name}"), error))?;
        }
        Ok(())
    }
}

/// The program that serves an NTFS writes its last bytes after the unmount: waits until nobody has the device open for
/// himself.
fn wait_for_program(device: &Path) {
    use std::os::unix::fs::OpenOptionsExt;
    for _ in 0..1000 {
        let opened = fs::File::options().read(true).custom_flags(libc::O_EXCL).open(device);
        if !opened.is_err_and(|error| error.raw_os_error() == Some(libc::EBUSY)) {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
}

fn below_root(path: &str) -> PathBuf {
    Path::new(ROOT).join(path.trim_start_matches('/'))
}

/// The path of an open directory in this machine.
fn real_path(directory: BorrowedFd<'_>) -> Result<PathBuf, Failure> {
    use std::os::fd::AsRawFd;
    let link = format!("/proc/self/fd/{}", directory.as_raw_fd());
    fs::read_link(link).map_err(|error| Failure::of("the path of a directory", error))
}

/// The options for reading without any write, not even that of a journal that was not written back.
fn without_recovery(format: &str) -> &'static str {
    match format {
        "ext3" | "ext4" => "noload",
        "xfs" | "nilfs2" | "f2fs" => "norecovery",
        "btrfs" => "rescue=nologreplay",
        "reiserfs" => "nolog",
        _ => "",
    }
}

fn mount_one(
    volume: &AttachedVolume,
    device: &Path,
    format: &str,
    read_only: bool,
    point: &Path,
) -> Result<(), Failure> {
    let log = kernel_log().len();
    let name = &volume.name;
    if format == "ntfs" {
        let options = if read_only { "ro,norecover" } else { "rw,windows_names" };
        let words = [Path::new("-o"), Path::new(options), device, point];
        return NTFS
            .must(words)
            .map(drop)
            .map_err(|failure| Failure { text: super::tools::with_name(&failure.text, device, name), ..failure });
    }
    let mut options: Vec<String> = Vec::new();
    if read_only {
        options.extend(Some(without_recovery(format).to_owned()).filter(|option| !option.is_empty()));
    }
    options.extend(volume.subvolume.clone());
    match format {
        "vfat" => options.push("utf8".to_owned()),
        "gfs2" => options.push("lockproto=lock_nolock".to_owned()),
        _ => {}
    }
    let options = CString::new(options.join(",")).map_err(|error| Failure::of("a mount's options", error))?;
    let mut flags = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC | MountFlags::NOATIME;
    flags.set(MountFlags::RDONLY, read_only);
    let is_never_written = !read_only && matches!(format, "squashfs" | "erofs" | "iso9660" | "cramfs");
    let never = || {
        Failure::new(format!(
            "{name}: a {format} is never written to; mount it with --ephemeral or --overlay, which take writes"
        ))
    };
    mount(device, point, format, flags, &*options).map_err(|error| match is_never_written {
        true => never(),
        false => Failure::of(format!("cannot mount {name} ({format})"), error).with_kernel_log(log),
    })?;
    // Damage makes some file systems refuse writes from the beginning.
    let writable = rustix::fs::statvfs(point).map_err(|error| Failure::of(name, error))?;
    if !read_only && writable.f_flag.contains(rustix::fs::StatVfsMountFlags::RDONLY) {
        let refused = match is_never_written {
            true => never(),
            false => {
                Failure::new(format!("{name}: the guest's kernel mounts it read-only; inarch disk fsck checks it"))
            }
        };
        let _ = unmount(point, UnmountFlags::empty());
        return Err(refused.with_kernel_log(log));
    }
    Ok(())
}

/// Opens a path beneath `root`.
pub(super) fn open_in_root(root: BorrowedFd<'_>, path: &[u8], flags: OFlags) -> Result<OwnedFd, Errno> {
    let path = match path {
        [] => &b"/"[..],
        path => path,
    };
    let resolve = ResolveFlags::IN_ROOT | ResolveFlags::NO_MAGICLINKS;
    openat2(root, OsStr::from_bytes(path), flags | OFlags::CLOEXEC, Mode::empty(), resolve)
}
