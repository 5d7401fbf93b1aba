//! `inarch disk edit`.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

use clap::Args;
use inarch_jobs::appliance::{Access, NewFileOptions, Target};
use inarch_jobs::guest::Guest;
use inarch_jobs::shown;
use inarch_jobs::source::{DiskPart, Source};

use super::machine::WrittenArguments;
use crate::output::complain;

/// Options of `inarch disk edit`.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  inarch disk edit guest.img /etc/fstab
  EDITOR='sed -i s/quiet//' inarch disk edit guest.qcow2:/etc/default/grub

The editor gets a copy on this machine. It is written back if it changed; mode, owner and extended attributes stay.")]
pub struct EditArguments {
    #[command(flatten)]
    image: WrittenArguments,

    /// The file
    path: Option<PathBuf>,
}

/// `inarch disk edit`.
pub fn edit(arguments: &EditArguments) -> anyhow::Result<ExitCode> {
    let EditArguments { image, path } = arguments;
    let (target, paths) = image.target(path.as_slice())?;
    let [path] = &paths[..] else { anyhow::bail!("say which file: inarch disk edit IMAGE /PATH") };
    let before = read(image, &target, path)?;
    // Without these permissions the umask decides, and other users could read the copy.
    let private = Permissions::from_mode(0o700);
    let directory = tempfile::Builder::new().prefix("inarch-edit-").permissions(private).tempdir()?;
    let copy = directory.path().join(path.file_name().unwrap_or("file".as_ref()));
    fs::write(&copy, &before)?;
    run_editor(&copy)?;
    let after = fs::read(&copy)?;
    if after == before {
        complain(format_args!("{}: not changed", shown(path)));
        return Ok(ExitCode::SUCCESS);
    }
    let written = write_back(image, &target, path, &before, &after);
    if written.is_err() {
        let kept = directory.keep().join(copy.file_name().unwrap_or_default());
        complain(format_args!("what you edited is in {}", shown(&kept)));
    }
    written.map(|()| ExitCode::SUCCESS)
}

/// The file's content: by this program's own readers, or by the appliance if they cannot read it.
fn read(image: &WrittenArguments, target: &Target, path: &Path) -> anyhow::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let part = DiskPart { which: target.which.clone(), with: image.machine.with.clone(), ..DiskPart::default() };
    let source = Source::Disk { path: target.image.clone(), part: Box::new(part) };
    if let Ok(guest) = Guest::open(&source, false) {
        guest.read(path, |piece| {
            bytes.extend_from_slice(piece);
            Ok(())
        })?;
        return Ok(bytes);
    }
    let mut appliance = image.machine.open(target, Access::Read)?;
    appliance.read(path, |piece| {
        bytes.extend_from_slice(piece);
        Ok(())
    })?;
    image.machine.close(appliance)?;
    Ok(bytes)
}

fn run_editor(copy: &Path) -> anyhow::Result<()> {
    let named =
        ["VISUAL", "EDITOR"].into_iter().find_map(|name| std::env::var_os(name).filter(|value| !value.is_empty()));
    let editor = named.unwrap_or_else(|| "vi".into());
    // As git and others do: the variable may have options.
    let mut line = editor.clone();
    line.push(" \"$@\"");
    let status = Command::new("sh").arg("-c").arg(line).arg(&editor).arg(copy).status();
    let status = status.map_err(|error| anyhow::anyhow!("cannot start the editor: {error}"))?;
    anyhow::ensure!(
        status.success(),
        "the editor ({}) failed, so nothing was written ({status})",
        shown(Path::new(&editor))
    );
    Ok(())
}

fn write_back(
    image: &WrittenArguments,
    target: &Target,
    path: &Path,
    before: &[u8],
    after: &[u8],
) -> anyhow::Result<()> {
    let mut appliance = image.machine.open(target, Access::Write)?;
    let mut now = Vec::new();
    appliance.read(path, |piece| {
        now.extend_from_slice(piece);
        Ok(())
    })?;
    anyhow::ensure!(now == before, "{}: somebody else changed it meanwhile; nothing was written", shown(path));
    appliance.write(path, &NewFileOptions::default(), &mut &*after)?;
    Ok(image.machine.close(appliance)?)
}
