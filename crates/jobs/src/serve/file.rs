//! `serve file`: serves the device as a raw image file in a FUSE mount.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use inarch_fuse::{ConnectionOptions, Session, SessionOptions};
use inarch_lifecycle::Events;
use inarch_lifecycle::LifecycleError;
use inarch_lifecycle::descriptors;
use inarch_lifecycle::guard::{Guard, Guarded, remove_empty_file};
use inarch_lifecycle::mounted::Mounted;
use inarch_mount::{FuseAccess, MountError, Unmounted};
use inarch_vfs::{ImageFile, ImageName};
use inarch_vm::command::shell_word;
use inarch_vm::machine::raw_file_arguments;

use super::ServedTree;
use super::making::Making;
use super::service::{Duty, Service, ServiceEvent, ServiceReport};
use crate::JobError;

/// The image's name where a directory is the mount point.
const NAME_IN_DIRECTORY: &str = "disk.raw";

/// What to serve, and where.
#[derive(Clone, Debug)]
pub struct FileRequest {
    /// What is offered.
    pub tree: ServedTree,
    /// An empty or new file, which the image takes the place of, or an empty directory, which it appears in.
    pub target: PathBuf,
}

/// The arguments that QEMU needs to have the disk, on one line, quoted for a shell.
pub fn qemu_arguments(request: &FileRequest) -> Result<String, JobError> {
    let path = resolve(&request.target)?;
    let image = if path.is_dir() { path.join(NAME_IN_DIRECTORY) } else { path };
    Ok(raw_file_arguments(&image, request.tree.read_only(), &serial(request, &image)))
}

fn serial(request: &FileRequest, image: &Path) -> String {
    request.tree.serial(image.as_os_str().as_bytes())
}

/// Starts a server, which runs until it is stopped, or until somebody unmounts the image. At its end it reports the
/// files that changed meanwhile.
///
/// # Errors
/// Nothing can be mounted there.
pub fn start(request: FileRequest, events: Events<ServiceEvent>) -> Result<Service, JobError> {
    Service::start(request.tree.sandbox, events, move |duty| serve(&request, duty))
}

fn serve(request: &FileRequest, duty: &Duty) -> Result<ServiceReport, JobError> {
    descriptors::make_room();
    let path = resolve(&request.target)?;
    let is_source = request.tree.source.path().canonicalize().is_ok_and(|source| source == path);
    if is_source || request.tree.recipe().takes_in(&path) {
        // The scan would wait for the mount, which waits for the scan.
        let reason = "it lies in the tree that it is to show; name a place outside".to_owned();
        return Err(MountError::Point { path, reason }.into());
    }
    let point = Point::take(path)?;
    // Nothing answers a look at the mount until the session runs.
    let usage = usage(request, &point.image())?;
    let kind = if point.is_ours { Guarded::OnOwnFile } else { Guarded::Mount };
    let tree = &request.tree;
    let access = if tree.read_only() { FuseAccess::Read } else { FuseAccess::Change };
    let (mount, device, mut guard) = Guard::of_fuse(&point.path, tree.source.path(), access, kind)?;
    let stop = &duty.stop;
    let making = Making::start(&request.tree, duty);
    let confined = request.tree.confine(Some(Path::new("/dev/fuse")))?;
    let stopped = stop.clone();
    let image = ImageFile::new(making.pending(), point.name(), request.tree.read_only(), move || stopped.is_stopped());
    let connection = ConnectionOptions { exclusive: true, ..ConnectionOptions::default() };
    let session = Session::new(device, Arc::new(image), SessionOptions { connection, ..SessionOptions::default() });
    let mounted = Mounted::served(mount, stop, move || session.run());
    duty.is_ready(making.introduction(usage + &confined));
    stop.wait().map_err(LifecycleError::Wait)?;
    // Requests that wait for the device need not wait any more.
    making.pending().wake();
    let unmounted = mounted.end(&mut guard, &point.path, || false);
    let report = making.finish(duty)?;
    if unmounted? == Unmounted::InUse {
        duty.events.emit(ServiceEvent::WasInUse { image: point.image() });
    }
    Ok(report)
}

/// The path without symlinks, as mount tables show it; the last component need not exist.
fn resolve(target: &Path) -> Result<PathBuf, JobError> {
    let fail = |error| JobError::path(target, "cannot be a mount point", error);
    match target.canonicalize() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let absolute = std::path::absolute(target).map_err(fail)?;
            let (Some(parent), Some(name)) = (absolute.parent(), absolute.file_name()) else {
                return Err(fail(error));
            };
            Ok(parent.canonicalize().map_err(fail)?.join(name))
        }
        result => result.map_err(fail),
    }
}

/// A mount point that is ours to mount on.
struct Point {
    path: PathBuf,
    is_directory: bool,
    /// Whether it was made here.
    is_ours: bool,
}

impl Point {
    /// Takes the file at `path`, if mounting would hide nothing of it, or creates one.
    fn take(path: PathBuf) -> Result<Point, JobError> {
        let refuse = |path: PathBuf, reason: &str| MountError::Point { path, reason: reason.to_owned() };
        match path.metadata() {
            Ok(metadata) if metadata.is_file() && metadata.len() > 0 => {
                Err(refuse(path, "the file is not empty; name an empty or a new one").into())
            }
            Ok(metadata) if metadata.is_dir() && path.read_dir().is_ok_and(|mut entries| entries.next().is_some()) => {
                Err(refuse(path, "the directory is not empty; name an empty one, or a new file").into())
            }
            Ok(metadata) => Ok(Point { is_directory: metadata.is_dir(), is_ours: false, path }),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                make(&path).map_err(|error| JobError::path(&path, "cannot make the file", error))?;
                Ok(Point { path, is_directory: false, is_ours: true })
            }
            Err(error) => Err(JobError::path(&path, "cannot be a mount point", error)),
        }
    }

    fn name(&self) -> ImageName {
        if self.is_directory { ImageName::In(NAME_IN_DIRECTORY.into()) } else { ImageName::Root }
    }

    /// Where the image is.
    fn image(&self) -> PathBuf {
        if self.is_directory { self.path.join(NAME_IN_DIRECTORY) } else { self.path.clone() }
    }
}

impl Drop for Point {
    fn drop(&mut self) {
        if self.is_ours {
            remove_empty_file(&self.path);
        }
    }
}

fn make(path: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).create_new(true).open(path)
}

/// How to use the image.
fn usage(request: &FileRequest, image: &Path) -> Result<String, JobError> {
    let quoted = shell_word(image.as_os_str());
    let option = if request.tree.read_only() { ",ro" } else { "" };
    Ok(format!(
        "image:  {quoted}, raw, for any machine (cloud-hypervisor --disk path={quoted})\n\
         QEMU:   {}\n\
         guest:  {}\n\
         host:   mount -o loop{option} {quoted} /mnt\n",
        qemu_arguments(request)?,
        request.tree.mount_command(&serial(request, image)),
    ))
}
