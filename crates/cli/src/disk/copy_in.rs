//! `inarch disk cp FILE IMAGE:/PATH`: copies into an image.

use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use inarch_jobs::appliance::{
    Appliance, ApplianceError, ApplianceRequest, FileAttributes, Isolation, NewFileOptions, Target,
};
use inarch_jobs::run::AttachedDisk;
use inarch_jobs::source::ImageFormat;
use inarch_jobs::{Events, counted, shown};
use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, openat, readlinkat, statat};

use super::machine::tell;
use crate::output::{answer, complain};
use crate::signals::NotedSignals;
use crate::size;

/// Copies a file or a directory of this machine into an image.
pub fn copy(
    from: &Path,
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
    from.symlink_metadata().map_err(|error| anyhow::anyhow!("{}: {error}", shown(from)))?;
    let image = AttachedDisk { path: target.image.clone(), read_only: false, format, sector: None, seen: None };
    let request =
        ApplianceRequest { image, with: with.to_vec(), isolation, ..ApplianceRequest::new(target.image, target.which) };
    let mut appliance = Appliance::open(&request, Events::new(tell))?;
    let signals = NotedSignals::catch();
    let copied = copy_with(&mut appliance, from, target.path, &|| signals.check());
    // The file systems are unmounted in any case, so that what has arrived is there without a repair.
    if let Err(ApplianceError::Input(_)) = copied {
        appliance.close()?;
        let image = shown(&request.image.path);
        complain(format_args!(
            "interrupted: some of {} is not in {image}; the files that are there are whole",
            shown(from)
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

/// Copies a file or a directory of this machine to `place`, or into it if that is a directory. What cannot be copied is reported.
///
/// # Errors
/// The appliance failed; or `goes_on` is an error, which is [`ApplianceError::Input`].
pub fn copy_with(
    appliance: &mut Appliance,
    from: &Path,
    mut place: PathBuf,
    goes_on: &GoesOn<'_>,
) -> Result<Copied, ApplianceError> {
    let is_directory = |attributes: &FileAttributes| attributes.mode & 0o170_000 == 0o040_000;
    match (appliance.attributes(&place), from.file_name()) {
        (Ok(attributes), Some(name)) if is_directory(&attributes) => place.push(name),
        _ => {}
    }
    let mut copying = Copying { appliance, goes_on, files: 0, bytes: 0, failed: false };
    copying.copy(Source { directory: CWD, name: from.as_os_str(), path: from }, &place)?;
    let Copying { files, bytes, failed, .. } = copying;
    Ok(Copied { files, bytes, failed })
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
    files: u64,
    bytes: u64,
    failed: bool,
}

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

impl Copying<'_> {
    /// Copies a file, or a directory with what is in it. Reports what cannot be copied, and goes on.
    fn copy(&mut self, from: Source<'_>, to: &Path) -> Result<(), ApplianceError> {
        (self.goes_on)().map_err(ApplianceError::Input)?;
        let is = match statat(from.directory, from.name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(is) => is,
            Err(error) => return self.failed(from.path, &io::Error::from(error)),
        };
        let mode = Some(is.st_mode & 0o7777);
        // A user's files become root's, who is the only one that is known in the image.
        let owner = rustix::process::geteuid().is_root().then_some((is.st_uid, is.st_gid));
        let done = match FileType::from_raw_mode(is.st_mode) {
            FileType::Directory => return self.copy_directory(from, to, mode, owner),
            FileType::Symlink => match readlinkat(from.directory, from.name, Vec::new()) {
                Ok(target) => self.appliance.symlink(Path::new(OsStr::from_bytes(target.as_bytes())), to),
                Err(error) => return self.failed(from.path, &io::Error::from(error)),
            },
            FileType::RegularFile => match from.file() {
                Ok(file) => {
                    let options = NewFileOptions { mode, owner, only_new: false };
                    let written = self.appliance.write(to, &options, &mut Watched { file, goes_on: self.goes_on });
                    written.map(|bytes| self.bytes = self.bytes.saturating_add(bytes))
                }
                Err(error) => return self.failed(from.path, &error),
            },
            _ => return self.failed(from.path, &"only files, directories and symbolic links are copied"),
        };
        self.count(from.path, done).map(drop)
    }

    fn copy_directory(
        &mut self,
        from: Source<'_>,
        to: &Path,
        mode: Option<u32>,
        owner: Option<(u32, u32)>,
    ) -> Result<(), ApplianceError> {
        let opened = from.open(OFlags::DIRECTORY).and_then(|directory| {
            let entries = Dir::read_from(&directory)?.collect::<Result<Vec<_>, _>>()?;
            Ok((directory, entries))
        });
        let (directory, entries) = match opened {
            Ok(opened) => opened,
            Err(error) => return self.failed(from.path, &error),
        };
        let made = self.appliance.make_directory(to, true, None);
        if !self.count(from.path, made)? {
            return Ok(());
        }
        for entry in entries {
            let name = OsStr::from_bytes(entry.file_name().to_bytes());
            if name != "." && name != ".." {
                let path = from.path.join(name);
                self.copy(Source { directory: directory.as_fd(), name, path: &path }, &to.join(name))?;
            }
        }
        // Last: it may forbid to make files in it.
        match self.appliance.change(to, mode, owner) {
            Err(error) => self.failed(from.path, &error),
            Ok(()) => Ok(()),
        }
    }

    /// Counts what was done, and reports what was not. Returns whether it was.
    fn count(&mut self, from: &Path, done: Result<(), ApplianceError>) -> Result<bool, ApplianceError> {
        match done {
            Ok(()) => self.files += 1,
            Err(error @ (ApplianceError::Guest { .. } | ApplianceError::Input(_))) => {
                self.failed(from, &error)?;
                return Ok(false);
            }
            Err(error) => return Err(error),
        }
        Ok(true)
    }

    fn failed(&mut self, from: &Path, error: &dyn std::fmt::Display) -> Result<(), ApplianceError> {
        // What the user interrupted is no failure of a file.
        (self.goes_on)().map_err(ApplianceError::Input)?;
        complain(format_args!("{}: {error}", shown(from)));
        self.failed = true;
        Ok(())
    }
}
