//! `inarch disk cp FILE IMAGE:/PATH`: copies into an image.

use std::ffi::OsStr;
use std::fs::{self, File, Metadata};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use inarch_jobs::appliance::{Appliance, ApplianceError, ApplianceRequest, FileAttributes, NewFileOptions, Target};
use inarch_jobs::run::AttachedDisk;
use inarch_jobs::source::ImageFormat;
use inarch_jobs::{Events, counted, shown};

use super::machine::tell;
use crate::output::{answer, complain};
use crate::size;

/// Copies a file or a directory of this machine into an image.
pub fn copy(from: &Path, to: &OsStr, format: Option<ImageFormat>, with: &[PathBuf]) -> anyhow::Result<ExitCode> {
    let target = Target::parse(to)?;
    anyhow::ensure!(
        !target.path.as_os_str().is_empty(),
        "say where it goes in the image: inarch disk cp FILE {}:/PATH",
        shown(Path::new(to))
    );
    // What cannot be read is known before a machine is started for it.
    let is = from.symlink_metadata().map_err(|error| anyhow::anyhow!("{}: {error}", shown(from)))?;
    let image = AttachedDisk { path: target.image.clone(), read_only: false, format, sector: None };
    let request = ApplianceRequest { image, with: with.to_vec(), ..ApplianceRequest::new(target.image, target.which) };
    let mut appliance = Appliance::open(&request, Events::new(tell))?;
    let Copied { files, bytes, failed } = copy_with(&mut appliance, from, target.path, &is)?;
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
/// The appliance failed.
pub fn copy_with(
    appliance: &mut Appliance,
    from: &Path,
    mut place: PathBuf,
    is: &Metadata,
) -> Result<Copied, ApplianceError> {
    let is_directory = |attributes: &FileAttributes| attributes.mode & 0o170_000 == 0o040_000;
    match (appliance.attributes(&place), from.file_name()) {
        (Ok(attributes), Some(name)) if is_directory(&attributes) => place.push(name),
        _ => {}
    }
    let mut copying = Copying { appliance, files: 0, bytes: 0, failed: false };
    copying.copy(from, &place, is)?;
    let Copying { files, bytes, failed, .. } = copying;
    Ok(Copied { files, bytes, failed })
}

struct Copying<'a> {
    appliance: &'a mut Appliance,
    files: u64,
    bytes: u64,
    failed: bool,
}

impl Copying<'_> {
    /// Copies a file, or a directory with what is in it. Reports what cannot be copied, and goes on.
    fn copy(&mut self, from: &Path, to: &Path, is: &Metadata) -> Result<(), ApplianceError> {
        let mode = Some(is.mode() & 0o7777);
        // A user's files become root's, who is the only one that is known in the image.
        let owner = rustix::process::geteuid().is_root().then(|| (is.uid(), is.gid()));
        let kind = is.file_type();
        let done = if kind.is_dir() {
            self.appliance.make_directory(to, true, None)
        } else if kind.is_symlink() {
            match fs::read_link(from) {
                Ok(target) => self.appliance.symlink(&target, to),
                Err(error) => return self.failed(from, &error),
            }
        } else if kind.is_file() {
            match File::open(from) {
                Ok(mut file) => {
                    let options = NewFileOptions { mode, owner, only_new: false };
                    let written = self.appliance.write(to, &options, &mut file);
                    written.map(|bytes| self.bytes = self.bytes.saturating_add(bytes))
                }
                Err(error) => return self.failed(from, &error),
            }
        } else {
            return self.failed(from, &"only files, directories and symbolic links are copied");
        };
        match done {
            Ok(()) => self.files += 1,
            Err(error @ (ApplianceError::Guest { .. } | ApplianceError::Input(_))) => return self.failed(from, &error),
            Err(error) => return Err(error),
        }
        if kind.is_dir() {
            self.copy_entries(from, to)?;
            // Last: it may forbid to make files in it.
            if let Err(error) = self.appliance.change(to, mode, owner) {
                return self.failed(from, &error);
            }
        }
        Ok(())
    }

    fn copy_entries(&mut self, from: &Path, to: &Path) -> Result<(), ApplianceError> {
        let entries = match fs::read_dir(from).and_then(Iterator::collect::<Result<Vec<_>, _>>) {
            Ok(entries) => entries,
            Err(error) => return self.failed(from, &error),
        };
        for entry in entries {
            match entry.metadata() {
                Ok(is) => self.copy(&entry.path(), &to.join(entry.file_name()), &is)?,
                Err(error) => self.failed(&entry.path(), &error)?,
            }
        }
        Ok(())
    }

    fn failed(&mut self, from: &Path, error: &dyn std::fmt::Display) -> Result<(), ApplianceError> {
        complain(format_args!("{}: {error}", shown(from)));
        self.failed = true;
        Ok(())
    }
}
