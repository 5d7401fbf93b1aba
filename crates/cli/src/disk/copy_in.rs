//! `inarch disk cp FILE IMAGE:/PATH`: copies into an image.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use inarch_jobs::appliance::{
    Appliance, ApplianceError, ApplianceRequest, Isolation, NewAttributes, NewFileOptions, Target,
};
use inarch_jobs::run::AttachedDisk;
use inarch_jobs::source::ImageFormat;
use inarch_jobs::{Events, PathError, counted, shown};
use inarch_tree::scan::is_portable_xattr;
use rustix::fs::{
    AtFlags, CWD, Dir, FileType, Mode, OFlags, Statx, StatxFlags, fgetxattr, flistxattr, openat, readlinkat, statx,
};
use rustix::io::Errno;

use super::machine::tell;
use crate::output::{answer, complain};
use crate::signals::NotedSignals;
use crate::size;

/// Copies files and directories of this machine into an image: several of them into a directory.
pub fn copy(
    files: &[&Path],
    to: &OsStr,
    format: Option<ImageFormat>,
    with: &[PathBuf],
    isolation: Isolation,
) -> anyhow::Result<ExitCode> {
    let target = Target::parse(to)?;
    anyhow::ensure!(
        !target.path.as_os_str().is_empty(),
        "say where it goes in the image: inarch disk cp FILE {}:/PATH",
        shown(Path::new(to)).trim_end_matches(':')
    );
    // What cannot be read is known before a machine is started for it.
    for from in files {
        from.symlink_metadata().map_err(|error| anyhow::anyhow!("{}: {error}", shown(from)))?;
    }
    let image = AttachedDisk { path: target.image.clone(), read_only: false, format, sector: None, seen: None };
    let request =
        ApplianceRequest { image, with: with.to_vec(), isolation, ..ApplianceRequest::new(target.image, target.which) };
    let mut appliance = Appliance::open(&request, Events::new(tell))?;
    let signals = NotedSignals::catch();
    let copied = copy_with(&mut appliance, files, &target.path, &|| signals.check());
    // The file systems are unmounted in any case, so that what has arrived is there without a repair.
    if let Err(ApplianceError::Input(_)) = copied {
        appliance.close()?;
        let image = shown(&request.image.path);
        complain(format_args!(
            "interrupted: some of {} is not in {image}; the files that are there are whole",
            files.iter().map(|from| shown(from)).collect::<Vec<_>>().join(", ")
        ));
        signals.end_as_they_would();
        return Ok(ExitCode::FAILURE);
    }
    let Copied { files, bytes, failed } = copied?;
    appliance.close()?;
    answer(format!("{}, {} of content\n", counted(files, "file", "files"), size::show(bytes)))?;
    Ok(if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// What was copied.
pub struct Copied {
    /// Files of all kinds.
    pub files: u64,
    /// Bytes of content.
    pub bytes: u64,
    /// Whether something was not copied, which was said.
    pub failed: bool,
}

/// Copies files and directories of this machine to `place`, or into it if that is a directory, as it must be for several: permissions, times
/// of the last change, hard links, extended attributes, and as root owners. What cannot be copied is reported.
///
/// # Errors
/// The appliance failed; or `goes_on` is an error, which is [`ApplianceError::Input`].
pub fn copy_with(
    appliance: &mut Appliance,
    files: &[&Path],
    place: &Path,
    goes_on: &GoesOn<'_>,
) -> Result<Copied, ApplianceError> {
    let is_into = appliance.is_directory(place)?;
    if files.len() > 1 && !is_into {
        return Err(PathError::new(place, "is no directory of the image, as several files need", Errno::NOTDIR).into());
    }
    let targets = files.iter().map(|from| match (is_into, from.file_name()) {
        (true, Some(name)) => Ok((*from, place.join(name))),
        (false, _) if place.as_os_str().as_bytes().ends_with(b"/") && !is_directory(from) => {
            Err(PathError::new(place, "is no place for a file", Errno::NOTDIR))
        }
        _ => Ok((*from, place.to_owned())),
    });
    let targets = targets.collect::<Result<Vec<_>, _>>()?;
    appliance.begin_copy()?;
    let mut copying = Copying { appliance, goes_on, links: HashMap::new(), files: 0, bytes: 0, failed: false };
    for (from, to) in targets {
        copying.copy(Source { directory: CWD, name: from.as_os_str(), path: from }, &to)?;
    }
    let Copying { files, bytes, failed, .. } = copying;
    appliance.sync()?;
    Ok(Copied { files, bytes, failed })
}

/// Whether it is a directory, and no link to one: links are copied as links.
fn is_directory(from: &Path) -> bool {
    from.symlink_metadata().is_ok_and(|is| is.is_dir())
}

/// An error if the user wants no more of it.
pub type GoesOn<'a> = dyn Fn() -> io::Result<()> + 'a;

/// A file that is read as long as it goes on.
pub struct Watched<'a> {
    /// The file.
    pub file: File,
    /// Whether it goes on.
    pub goes_on: &'a GoesOn<'a>,
}

impl Read for Watched<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        (self.goes_on)()?;
        self.file.read(buffer)
    }
}

struct Copying<'a> {
    appliance: &'a mut Appliance,
    goes_on: &'a GoesOn<'a>,
    /// Files of several names, and where they are in the image.
    links: HashMap<Identity, PathBuf>,
    files: u64,
    bytes: u64,
    failed: bool,
}

/// A file, whatever its name: device, inode number and birth time, as a number may be used again.
type Identity = ((u32, u32), u64, (i64, u32));

/// A file of this machine: an open directory and a name in it, so that a link that is swapped in meanwhile cannot redirect the copy. The
/// path is for messages.
#[derive(Clone, Copy)]
struct Source<'a> {
    directory: BorrowedFd<'a>,
    name: &'a OsStr,
    path: &'a Path,
}

impl Source<'_> {
    /// Opens what is no symbolic link.
    fn open(self, flags: OFlags) -> io::Result<OwnedFd> {
        let flags = flags | OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        Ok(openat(self.directory, self.name, flags, Mode::empty())?)
    }

    /// Opens a regular file.
    fn file(self) -> io::Result<File> {
        let file = File::from(self.open(OFlags::empty())?);
        if file.metadata()?.is_file() { Ok(file) } else { Err(io::Error::other("it was replaced meanwhile")) }
    }
}

/// The longest list of names of a file's extended attributes (`XATTR_LIST_MAX`).
const XATTR_LIST_MAX: usize = 65_536;

/// What is asked about each file.
const WANTED: StatxFlags = StatxFlags::BASIC_STATS.union(StatxFlags::BTIME);

/// The longest path that Linux takes, its NUL included (include/uapi/linux/limits.h).
const PATH_MAX: usize = 4096;

/// The attributes that a copy gets. A user's files become root's, who is the only one that is known in the image, and lose what would
/// give their callers root's rights.
fn attributes(is: &Statx) -> NewAttributes {
    let is_root = rustix::process::geteuid().is_root();
    NewAttributes {
        mode: Some(u32::from(is.stx_mode) & if is_root { 0o7777 } else { 0o1777 }),
        owner: is_root.then_some((is.stx_uid, is.stx_gid)),
        modified: Some((is.stx_mtime.tv_sec, is.stx_mtime.tv_nsec)),
        xattrs: Vec::new(),
        copied: true,
    }
}

/// Whether an extended attribute means the same in an image. Labels of SELinux are those of this machine's policy, and signatures are made for
/// one place of a file.
fn is_copied(name: &[u8]) -> bool {
    is_portable_xattr(name)
        && !matches!(name, b"security.selinux" | b"security.ima" | b"security.evm")
        && (name != b"security.capability" || rustix::process::geteuid().is_root())
}

impl Copying<'_> {
    /// Copies a file, or a directory with what is in it. Reports what cannot be copied, and goes on.
    fn copy(&mut self, from: Source<'_>, to: &Path) -> Result<(), ApplianceError> {
        (self.goes_on)().map_err(ApplianceError::Input)?;
        if to.as_os_str().len() >= PATH_MAX {
            return self.failed(from.path, &"its path in the image would be too long");
        }
        let is = match statx(from.directory, from.name, AtFlags::SYMLINK_NOFOLLOW, WANTED) {
            Ok(is) => is,
            Err(error) => return self.failed(from.path, &io::Error::from(error)),
        };
        let done = match FileType::from_raw_mode(is.stx_mode.into()) {
            FileType::Directory => return self.copy_directory(from, to),
            FileType::Symlink => match readlinkat(from.directory, from.name, Vec::new()) {
                Ok(target) => {
                    let attributes = NewAttributes { mode: None, ..attributes(&is) };
                    self.appliance.write_symlink(Path::new(OsStr::from_bytes(target.as_bytes())), to, &attributes)
                }
                Err(error) => return self.failed(from.path, &io::Error::from(error)),
            },
            FileType::RegularFile => return self.copy_file(from, to),
            FileType::Unknown => return self.failed(from.path, &"it is of an unknown kind"),
            // FIFOs, sockets and devices. A set-user-ID bit means nothing there.
            _ => {
                let device = (is.stx_rdev_major, is.stx_rdev_minor);
                self.appliance.write_node(to, is.stx_mode.into(), device, &attributes(&is))
            }
        };
        self.count(from.path, done).map(drop)
    }

    fn copy_file(&mut self, from: Source<'_>, to: &Path) -> Result<(), ApplianceError> {
        // The attributes are those of the file whose content is read: another one may have its name by now.
        let opened = from.file().and_then(|file| {
            let is = statx(&file, c"", AtFlags::EMPTY_PATH, WANTED)?;
            Ok((file, is))
        });
        let (file, is) = match opened {
            Ok(opened) => opened,
            Err(error) => return self.failed(from.path, &error),
        };
        let birth = (is.stx_btime.tv_sec, is.stx_btime.tv_nsec);
        let identity = (is.stx_nlink > 1).then_some(((is.stx_dev_major, is.stx_dev_minor), is.stx_ino, birth));
        if let Some(first) = identity.and_then(|identity| self.links.get(&identity)) {
            match self.appliance.link_copied(first, to) {
                // The file system has no hard links, or the names lie in two of them: it is copied.
                Err(ApplianceError::Guest { .. }) => {}
                done => return self.count(from.path, done).map(drop),
            }
        }
        let xattrs = self.xattrs(&file, from.path)?;
        let options = NewFileOptions { attributes: NewAttributes { xattrs, ..attributes(&is) }, only_new: false };
        let written = self.appliance.write(to, &options, &mut Watched { file, goes_on: self.goes_on });
        let written = written.map(|written| {
            self.bytes = self.bytes.saturating_add(written.bytes);
            written.lost
        });
        if let Some(lost) = self.count(from.path, written)? {
            self.lost(from.path, &lost)?;
            self.links.extend(identity.map(|identity| (identity, to.to_owned())));
        }
        Ok(())
    }

    /// The extended attributes of a file that are to be copied. Those that do not fit into a message are reported.
    fn xattrs(&mut self, file: &File, path: &Path) -> Result<Vec<(OsString, Vec<u8>)>, ApplianceError> {
        let (mut found, mut room) = (Vec::new(), NewAttributes::XATTRS_MOST);
        let mut names = vec![0; XATTR_LIST_MAX];
        let length = match flistxattr(file, &mut names[..]) {
            Err(Errno::OPNOTSUPP) => 0,
            Err(error) => {
                self.failed(path, &io::Error::from(error))?;
                0
            }
            Ok(length) => length,
        };
        names.truncate(length);
        let mut value = vec![0; NewAttributes::XATTRS_MOST];
        for name in names.split(|byte| *byte == 0).filter(|name| is_copied(name)) {
            let name = OsStr::from_bytes(name);
            let length = match fgetxattr(file, name, &mut value[..]) {
                Ok(length) if name.len() + length <= room => length,
                Ok(_) | Err(Errno::RANGE) => {
                    self.failed(path, &format!("its attribute {} is too long to be copied", shown(Path::new(name))))?;
                    continue;
                }
                // It was removed meanwhile.
                Err(Errno::NODATA) => continue,
                Err(error) => {
                    self.failed(path, &io::Error::from(error))?;
                    continue;
                }
            };
            room -= name.len() + length;
            found.push((name.to_owned(), value[..length].to_vec()));
        }
        Ok(found)
    }

    /// Reports extended attributes that the image's file system did not take.
    fn lost(&mut self, path: &Path, names: &[OsString]) -> Result<(), ApplianceError> {
        for name in names {
            self.failed(path, &format!("the image does not keep its attribute {}", shown(Path::new(name))))?;
        }
        Ok(())
    }

    fn copy_directory(&mut self, from: Source<'_>, to: &Path) -> Result<(), ApplianceError> {
        let opened = from.open(OFlags::DIRECTORY).and_then(|directory| {
            let is = statx(&directory, c"", AtFlags::EMPTY_PATH, WANTED)?;
            let entries = Dir::read_from(&directory)?.collect::<Result<Vec<_>, _>>()?;
            Ok((File::from(directory), is, entries))
        });
        let (directory, is, entries) = match opened {
            Ok(opened) => opened,
            Err(error) => return self.failed(from.path, &error),
        };
        let made = self.appliance.make_copied_directory(to);
        if self.count(from.path, made)?.is_none() {
            return Ok(());
        }
        for entry in entries {
            let name = OsStr::from_bytes(entry.file_name().to_bytes());
            if name != "." && name != ".." {
                let path = from.path.join(name);
                self.copy(Source { directory: directory.as_fd(), name, path: &path }, &to.join(name))?;
            }
        }
        // The root of the image keeps its own attributes.
        if to.file_name().is_none() {
            return Ok(());
        }
        // The directory's attributes come last. Its mode may forbid new files, and new files change its time.
        let xattrs = self.xattrs(&directory, from.path)?;
        match self.appliance.change(to, &NewAttributes { xattrs, ..attributes(&is) }) {
            Err(error) => self.failed(from.path, &error),
            Ok(lost) => self.lost(from.path, &lost),
        }
    }

    /// Counts what was done, and reports what was not, which is `None`.
    fn count<T>(&mut self, from: &Path, done: Result<T, ApplianceError>) -> Result<Option<T>, ApplianceError> {
        match done {
            Ok(done) => {
                self.files += 1;
                Ok(Some(done))
            }
            Err(error @ (ApplianceError::Guest { .. } | ApplianceError::Input(_))) => {
                self.failed(from, &error)?;
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    fn failed(&mut self, from: &Path, error: &dyn std::fmt::Display) -> Result<(), ApplianceError> {
        // What the user interrupted is no failure of a file.
        (self.goes_on)().map_err(ApplianceError::Input)?;
        complain(format_args!("{}: {error}", shown(from)));
        self.failed = true;
        Ok(())
    }
}
