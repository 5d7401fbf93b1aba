//! `inarch disk write`, `rm` and `mkdir`: change files in an image.

use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args;
use inarch_jobs::appliance::{Access, Appliance, ApplianceError, NewAttributes, NewFileOptions, Target};
use inarch_jobs::shown;
use rustix::io::Errno;

use super::machine::WrittenArguments;
use crate::output::complain;

/// Options of `inarch disk write`.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  inarch disk write guest.img /etc/hostname <<< web1
  inarch disk write guest.qcow2 /root/.ssh/authorized_keys --mode 600 < key.pub

The file gets its name when it is complete; a file that was there keeps its mode, owner and extended attributes. If this is \
interrupted, the old file is as it was.")]
pub struct WriteArguments {
    #[command(flatten)]
    image: WrittenArguments,

    /// The file
    path: Option<PathBuf>,

    /// Permissions, in octal [default: those of a file that is there, or 644]
    #[arg(long, value_name = "MODE", value_parser = mode)]
    mode: Option<u32>,

    /// Owner, by number [default: that of a file that is there, or 0:0]
    #[arg(long, value_name = "UID:GID", value_parser = owner)]
    owner: Option<(u32, u32)>,

    /// Fail if there is a file already
    #[arg(long)]
    new: bool,
}

/// Options of `inarch disk rm`.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  inarch disk rm guest.img /etc/machine-id /var/lib/dbus/machine-id
  inarch disk rm -r guest.qcow2:/var/cache/apt/archives")]
pub struct RmArguments {
    #[command(flatten)]
    image: WrittenArguments,

    /// The files
    paths: Vec<PathBuf>,

    /// Remove directories with all that is in them
    #[arg(short, long, alias = "R")]
    recursive: bool,

    /// Do not fail for files that are not there
    #[arg(short, long)]
    force: bool,
}

/// Options of `inarch disk mkdir`.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  inarch disk mkdir -p guest.img /srv/www/site
  inarch disk mkdir guest.img:2 /data --mode 700")]
pub struct MkdirArguments {
    #[command(flatten)]
    image: WrittenArguments,

    /// The directories
    paths: Vec<PathBuf>,

    /// Make the directories above as well, and accept what is there
    #[arg(short, long)]
    parents: bool,

    /// Permissions, in octal [default: 755]
    #[arg(long, value_name = "MODE", value_parser = mode)]
    mode: Option<u32>,
}

/// Parses permissions in octal.
pub fn mode(text: &str) -> Result<u32, String> {
    let mode = u32::from_str_radix(text, 8).ok().filter(|mode| *mode <= 0o7777);
    mode.ok_or_else(|| format!("{}: permissions are octal, as 644", shown(Path::new(text))))
}

/// Parses `UID:GID`.
pub fn owner(text: &str) -> Result<(u32, u32), String> {
    let numbers = text.split_once(':').and_then(|(uid, gid)| Some((uid.parse().ok()?, gid.parse().ok()?)));
    numbers.ok_or_else(|| format!("'{text}' is no owner; write UID:GID, as numbers: names are the guest's own"))
}

/// `inarch disk write`.
pub fn write(arguments: &WriteArguments) -> anyhow::Result<ExitCode> {
    let WriteArguments { image, path, mode, owner, new } = arguments;
    let (target, paths) = image.target(path.as_slice())?;
    let [path] = &paths[..] else { anyhow::bail!("say which file: inarch disk write IMAGE /PATH < FILE") };
    let mut appliance = image.machine.open(&target, Access::Write)?;
    let attributes = NewAttributes { mode: *mode, owner: *owner, ..NewAttributes::default() };
    let options = NewFileOptions { attributes, only_new: *new };
    let written = appliance.write(path, &options, &mut io::stdin().lock());
    let written = told(&target, written.map(drop))?;
    image.machine.close(appliance)?;
    Ok(written)
}

/// `inarch disk rm`.
pub fn rm(arguments: &RmArguments) -> anyhow::Result<ExitCode> {
    let RmArguments { image, paths, recursive, force } = arguments;
    for_each(image, paths, "inarch disk rm IMAGE /PATH...", |appliance, path| {
        match appliance.remove(path, *recursive) {
            Err(error) if *force && error.is_absent() => Ok(()),
            result => result.map_err(|error| hinted(error, Errno::NOTEMPTY, "; -r removes it with what is in it")),
        }
    })
}

/// `inarch disk mkdir`.
pub fn mkdir(arguments: &MkdirArguments) -> anyhow::Result<ExitCode> {
    let MkdirArguments { image, paths, parents, mode } = arguments;
    for_each(image, paths, "inarch disk mkdir IMAGE /PATH...", |appliance, path| {
        let made = appliance.make_directory(path, *parents, *mode);
        made.map_err(|error| hinted(error, Errno::NOENT, "; -p makes those above it, too"))
    })
}

/// The error of a tool in the guest, with what helps if it is this one.
fn hinted(error: ApplianceError, of: Errno, hint: &str) -> ApplianceError {
    match error {
        ApplianceError::Guest { text, errno } if errno == Some(of.raw_os_error()) => {
            ApplianceError::Guest { text: text + hint, errno }
        }
        error => error,
    }
}

/// Does something with each path in one appliance. What fails is reported, and the others are done.
fn for_each(
    image: &WrittenArguments,
    paths: &[PathBuf],
    usage: &str,
    mut change: impl FnMut(&mut Appliance, &PathBuf) -> Result<(), ApplianceError>,
) -> anyhow::Result<ExitCode> {
    let (target, paths) = image.target(paths)?;
    anyhow::ensure!(!paths.is_empty(), "say which: {usage}");
    let mut appliance = image.machine.open(&target, Access::Write)?;
    let mut status = ExitCode::SUCCESS;
    for path in &paths {
        let done = told(&target, change(&mut appliance, path))?;
        if done != ExitCode::SUCCESS {
            status = done;
        }
    }
    image.machine.close(appliance)?;
    Ok(status)
}

/// Reports what failed in the guest, after which others can be tried; passes other errors on.
fn told(target: &Target, result: Result<(), ApplianceError>) -> anyhow::Result<ExitCode> {
    match result {
        Ok(()) => Ok(ExitCode::SUCCESS),
        Err(error @ ApplianceError::Guest { .. }) => {
            complain(format_args!("{}: {error}", shown(&target.image)));
            Ok(ExitCode::FAILURE)
        }
        Err(error) => Err(error.into()),
    }
}
