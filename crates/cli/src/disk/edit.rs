//! `inarch disk edit`: changes a file in an image with the user's editor.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use std::{fs, io};

use clap::Args;
use inarch_jobs::appliance::{Access, NewFileOptions, Target};
use inarch_jobs::guest::Guest;
use inarch_jobs::source::{Container, DiskPart, ImageFormat, Source};
use inarch_jobs::{Scratch, shown};

use super::machine::WrittenArguments;
use crate::output::complain;
use crate::signals::{INTERRUPTS, TERMINATIONS, end_by, leave_interrupts};
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
    leave_interrupts(|| edit_copy(image, &target, path, before))?
}

/// How long a signal that ends this process leaves the editor to save what it has.
const EDITOR_ENDS_IN: Duration = Duration::from_secs(2);

/// A private copy of a file, in a directory of its own. A guard removes the directory however this process ends, unless it is kept.
struct EditedCopy {
    path: PathBuf,
    before: Vec<u8>,
    state: Mutex<State>,
    /// Signalled when the editor has ended.
    ended: Condvar,
}

struct State {
    directory: Directory,
    has_editor_ended: bool,
}

/// What becomes of the directory.
enum Directory {
    /// It ends with this process.
    Guarded(Scratch),
    /// It has something of the user's, and stays.
    Kept,
    Removed,
}

impl EditedCopy {
    fn make(name: &OsStr, before: Vec<u8>) -> anyhow::Result<EditedCopy> {
        let directory = Scratch::within(&std::env::temp_dir())?;
        let path = directory.path().join(name);
        fs::write(&path, &before).map_err(|error| anyhow::anyhow!("{}: {error}", shown(&path)))?;
        let state = State { directory: Directory::Guarded(directory), has_editor_ended: false };
        Ok(EditedCopy { path, before, state: Mutex::new(state), ended: Condvar::new() })
    }

    fn directory(&self) -> &Path {
        self.path.parent().unwrap_or(&self.path)
    }

    /// What the editor has saved, if that is something else.
    fn change(&self) -> anyhow::Result<Option<Vec<u8>>> {
        let after = fs::read(&self.path).map_err(|error| anyhow::anyhow!("{}: {error}", shown(&self.path)))?;
        Ok((after != self.before).then_some(after))
    }

    /// Whether the directory has something of the user's: a change, or what an editor that is ended leaves for later beside the file.
    fn has_something_of_the_user(&self) -> bool {
        let Ok(listing) = fs::read_dir(self.directory()) else { return false };
        listing.flatten().any(|entry| entry.path() != self.path || !matches!(self.change(), Ok(None)))
    }

    /// Keeps the directory.
    fn keep(&self) {
        keep(&mut self.state());
    }

    /// Keeps the directory if it has something of the user's, and says where.
    fn keep_what_is_the_users(&self) {
        self.keep_if_needed(&mut self.state());
    }

    fn keep_if_needed(&self, state: &mut State) {
        if !matches!(state.directory, Directory::Removed) && self.has_something_of_the_user() {
            keep(state);
            self.say_where();
        }
    }

    /// Like [`EditedCopy::keep_what_is_the_users`], once the editor has ended or had the time for it.
    fn keep_before_the_end(&self) {
        let state = self.state();
        let waited = self.ended.wait_timeout_while(state, EDITOR_ENDS_IN, |state| !state.has_editor_ended);
        self.keep_if_needed(&mut waited.unwrap_or_else(PoisonError::into_inner).0);
    }

    fn note_editors_end(&self) {
        self.state().has_editor_ended = true;
        self.ended.notify_all();
    }

    /// Removes the directory unless it is kept.
    fn remove(&self) {
        let mut state = self.state();
        if matches!(state.directory, Directory::Guarded(_)) {
            self.remove_now(&mut state);
        }
    }

    /// Removes the directory: what is in it is in the image now.
    fn remove_written(&self) {
        self.remove_now(&mut self.state());
    }

    fn remove_now(&self, state: &mut State) {
        state.directory = Directory::Removed;
        match fs::remove_dir_all(self.directory()) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                complain(format_args!("{}: cannot be removed: {error}", shown(self.directory())));
            }
            _ => {}
        }
    }

    fn say_where(&self) {
        complain(format_args!("what you edited is in {}", shown(&self.path)));
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn keep(state: &mut State) {
    if let Directory::Guarded(directory) = std::mem::replace(&mut state.directory, Directory::Kept) {
        directory.keep();
    }
}

/// Has the editor edit a copy, and writes that back. Ctrl-C is the editor's until it has ended; then it ends this process.
fn edit_copy(image: &WrittenArguments, target: &Target, path: &Path, before: Vec<u8>) -> anyhow::Result<ExitCode> {
    let copy = Arc::new(EditedCopy::make(path.file_name().unwrap_or("file".as_ref()), before)?);
    let last = Arc::clone(&copy);
    end_by(&TERMINATIONS, move || last.keep_before_the_end());
    let edited = run_editor(&copy.path);
    copy.note_editors_end();
    let change = match edited.and_then(|()| copy.change()) {
        Ok(change) => change,
        Err(error) => {
            copy.keep_what_is_the_users();
            copy.remove();
            return Err(error);
        }
    };
    let Some(after) = change else {
        copy.remove();
        complain(format_args!("{}: not changed", shown(path)));
        return Ok(ExitCode::SUCCESS);
    };
    copy.keep();
    let last = Arc::clone(&copy);
    end_by(&INTERRUPTS, move || last.keep_what_is_the_users());
    let written = write_back(image, target, path, &copy.before, &after);
    match written {
        Ok(()) => copy.remove_written(),
        Err(_) => copy.say_where(),
    }
    written.map(|()| ExitCode::SUCCESS)
}

/// The file's content: by this program's own readers, or by the appliance if they cannot read it.
fn read(image: &WrittenArguments, target: &Target, path: &Path) -> anyhow::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    // The format that the appliance will take it for, so that both see the same file.
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
    // A shell runs it, because the variable may have options. The shell outlives signals; the editor has them as usual.
    let mut line = OsString::from("trap : INT QUIT HUP TERM; ");
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
