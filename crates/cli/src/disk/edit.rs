//! `inarch disk edit`.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::{fs, io};

use clap::Args;
use inarch_jobs::appliance::{Access, NewFileOptions, Target};
use inarch_jobs::guest::Guest;
use inarch_jobs::source::{Container, DiskPart, ImageFormat, Source};
use inarch_jobs::{Scratch, shown};

use super::machine::WrittenArguments;
use crate::output::complain;
use crate::signals::{end_by_signals, leave_interrupts};
use crate::size;

/// The most bytes of a file that is edited.
const MOST: u64 = 64 << 20;

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
    // Refuse before the editor starts: what the user types there must not be lost.
    image.machine.request(&target, Access::Write).check()?;
    let before = read(image, &target, path)?;
    leave_interrupts(|| edit_copy(image, &target, path, &before))?
}

/// Has the editor edit a copy, and writes that back. Ctrl-C is the editor's until it has ended; then it ends this process.
fn edit_copy(image: &WrittenArguments, target: &Target, path: &Path, before: &[u8]) -> anyhow::Result<ExitCode> {
    let directory = Scratch::within(&std::env::temp_dir())?;
    let name = path.file_name().unwrap_or("file".as_ref());
    let copy = directory.path().join(name);
    let fail = |error| anyhow::anyhow!("{}: {error}", shown(&copy));
    fs::write(&copy, before).map_err(fail)?;
    run_editor(&copy)?;
    let after = fs::read(&copy).map_err(fail)?;
    if after == before {
        complain(format_args!("{}: not changed", shown(path)));
        return Ok(ExitCode::SUCCESS);
    }
    // From here on the copy outlives this process: it has what the user typed.
    let place = format!("what you edited is in {}", shown(&copy));
    let directory = directory.keep();
    let said = place.clone();
    end_by_signals(move || complain(said));
    let written = write_back(image, target, path, before, &after);
    if written.is_err() {
        complain(place);
    } else if let Err(error) = fs::remove_dir_all(&directory) {
        complain(format_args!("{}: cannot be removed: {error}", shown(&directory)));
    }
    written.map(|()| ExitCode::SUCCESS)
}

/// The file's content: by this program's own readers, or by the appliance if they cannot read it.
fn read(image: &WrittenArguments, target: &Target, path: &Path) -> anyhow::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    // What the appliance will take it for, so that both see the same file.
    let is_named_so = target.image.extension().is_some_and(|extension| extension == "qcow2");
    let usual = if is_named_so { ImageFormat::Container(Container::Qcow2) } else { ImageFormat::Raw };
    let part = DiskPart {
        which: target.which.clone(),
        format: Some(image.machine.format.unwrap_or(usual)),
        with: image.machine.with.clone(),
        ..DiskPart::default()
    };
    let source = Source::Disk { path: target.image.clone(), part: Box::new(part) };
    if let Ok(guest) = Guest::open(&source, false) {
        guest.read_while(path, |piece| {
            bytes.extend_from_slice(piece);
            Ok(bytes.len() as u64 <= MOST)
        })?;
    } else {
        let mut appliance = image.machine.open(target, Access::Read)?;
        appliance.read_range(path, 0, MOST + 1, |piece| take(&mut bytes, piece, MOST + 1))?;
        image.machine.close(appliance)?;
    }
    let most = size::show(MOST);
    anyhow::ensure!(bytes.len() as u64 <= MOST, "{}: it has more than {most}; cp and write change it", shown(path));
    Ok(bytes)
}

/// Adds a piece to what was read, if the appliance sends no more than it was asked for.
fn take(bytes: &mut Vec<u8>, piece: &[u8], most: u64) -> io::Result<()> {
    if (bytes.len() + piece.len()) as u64 > most {
        return Err(io::Error::other("it is longer than it was"));
    }
    bytes.extend_from_slice(piece);
    Ok(())
}

fn run_editor(copy: &Path) -> anyhow::Result<()> {
    let named =
        ["VISUAL", "EDITOR"].into_iter().find_map(|name| std::env::var_os(name).filter(|value| !value.is_empty()));
    let editor = named.unwrap_or_else(|| "vi".into());
    // As git and others do: the variable may have options.
    // The shell goes on at an interrupt as well, and the editor has it as usual.
    let mut line = OsString::from("trap : INT QUIT; ");
    line.push(&editor);
    line.push(" \"$@\"");
    let mut command = Command::new("sh");
    command.arg("-c").arg(line).arg(&editor).arg(copy);
    let status = command.status().map_err(|error| anyhow::anyhow!("cannot start the editor: {error}"))?;
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
    let (mut now, most) = (Vec::new(), before.len() as u64 + 1);
    appliance.read_range(path, 0, most, |piece| take(&mut now, piece, most))?;
    anyhow::ensure!(now == before, "{}: somebody else changed it meanwhile; nothing was written", shown(path));
    appliance.write(path, &NewFileOptions::default(), &mut &*after)?;
    image.machine.close(appliance)
}
