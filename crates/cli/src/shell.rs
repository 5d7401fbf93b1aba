//! `inarch shell`: guestfish's verbs over guest disks, with a prompt or as a script.
//!
//! - `lex`: a line's words.
//! - `verbs`: every verb, by groups; `elsewhere` has those of guestfish that are not here, and why.
//! - `run`: runs a line: pipes, errors, host commands.
//! - `prompt`, `complete`: the line editor.

mod complete;
mod lex;
mod prompt;
mod run;
mod verbs;

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, BufReader, IsTerminal};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use anyhow::{Context, anyhow, bail};
use clap::{Args, Parser};
use inarch_jobs::appliance::Isolation;
use inarch_jobs::shell::{DriveOptions, Session};
use inarch_jobs::shown;
use inarch_jobs::source::ImageFormat;

use crate::arguments::one_of;
use crate::disk::machine::isolation;
use crate::disk_options::DiskOptions;
use crate::output::complain;
use verbs::Verb;

/// Options of `inarch shell`.
#[derive(Args, Debug, Default)]
#[command(override_usage = "inarch shell [OPTIONS] [IMAGE]... [VERB [WORD]... [: VERB [WORD]...]...]")]
#[command(after_help = "\
Examples:
  inarch shell guest.qcow2 -i
  inarch shell -a disk.img run : list-filesystems
  inarch shell --ro guest.img -m /dev/sda1 cat /etc/fstab
  inarch shell < script

The verbs are guestfish's: 'inarch shell help' lists them.

Images are opened at once, and are read when a verb asks. Verbs that change tables, file systems or files do so at once, \
unless --ro is given.")]
pub struct ShellArguments {
    /// Add a disk image, like those before the first verb
    #[arg(short = 'a', long = "add", value_name = "IMAGE")]
    add: Vec<PathBuf>,

    /// Mount the operating system on the disks, with what its fstab names
    #[arg(short = 'i', long)]
    inspector: bool,

    /// Mount a device, by default on /
    #[arg(short = 'm', long = "mount", value_name = "DEV[:DIR[:OPTIONS]]")]
    mount: Vec<OsString>,

    /// Write nothing to the images
    #[arg(long, visible_alias = "read-only", conflicts_with = "rw")]
    ro: bool,

    /// Let verbs make tables and file systems on the images, which is the default
    #[arg(long)]
    rw: bool,

    /// Format of the images [default: by their first bytes]
    #[arg(long, value_name = "raw|qcow2|vdi|vhd|vhdx|vmdk", hide_possible_values = true,
        value_parser = one_of::<ImageFormat>(ImageFormat::all().map(ImageFormat::name)))]
    format: Option<ImageFormat>,

    /// What stands between this machine and the appliance that changes file systems: a process (User-Mode Linux), which starts
    /// faster, or a virtual machine (QEMU). By default a process where one can do it
    #[arg(long, value_name = "auto|process|vm", default_value = "auto", hide_possible_values = true, value_parser = isolation())]
    isolate: Isolation,

    /// What the images need beside themselves.
    #[command(flatten)]
    disk: DiskOptions,

    /// Read verbs from FILE instead of standard input
    #[arg(short = 'f', long, value_name = "FILE")]
    file: Option<PathBuf>,

    /// Images up to the first verb, and then verbs with their words, separated by ' : '
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "WORD")]
    words: Vec<OsString>,
}

/// Options again, which follow an image.
#[derive(Parser, Debug)]
#[command(name = "inarch shell", disable_help_flag = true)]
struct More {
    #[command(flatten)]
    arguments: ShellArguments,
}

/// The drives, and what the user set for this shell.
pub struct Shell {
    session: Session,
    /// How drives are added, unless a verb says otherwise.
    defaults: DriveOptions,
    /// What `setenv` and `unsetenv` did, for commands of the host.
    variables: Vec<(OsString, Option<OsString>)>,
    /// Whether the lines come from a terminal.
    is_interactive: bool,
    /// Set by Ctrl-C while a verb runs.
    interrupted: Arc<AtomicBool>,
    /// Whether a verb ended the shell.
    has_ended: bool,
}

/// Runs a shell.
pub fn run(arguments: ShellArguments) -> anyhow::Result<ExitCode> {
    let mut arguments = arguments;
    let words = split(&mut arguments)?;
    let ShellArguments { add, inspector, mount, ro, format, isolate, disk, file, .. } = arguments;
    let commands = run::commands(&words)?;
    let is_interactive = commands.is_empty() && file.is_none() && io::stdin().is_terminal();
    let mut shell = Shell::new(
        DriveOptions { read_only: ro, format, isolation: isolate, keys: disk.keys()?, with: disk.with },
        is_interactive,
    );
    for image in add.iter().chain(&disk.also) {
        shell.session.add(image, shell.defaults.clone())?;
    }
    let mounted = shell.mount_first(inspector, &mount)?;
    shell.note();
    if is_interactive {
        return prompt::talk(shell, &mounted);
    }
    let done = match (commands.is_empty(), file) {
        (false, _) => shell.run_all(commands),
        (true, None) => shell.script(io::stdin().lock()),
        (true, Some(path)) => {
            let file = File::open(&path).with_context(|| format!("{}: cannot open it", shown(&path)))?;
            shell.script(BufReader::new(file))
        }
    };
    shell.session.settle()?;
    done
}

/// Takes the images from the words up to the first verb, and options among them. Returns the words from the first verb on.
fn split(arguments: &mut ShellArguments) -> anyhow::Result<Vec<OsString>> {
    loop {
        let words = std::mem::take(&mut arguments.words);
        let is_verb = |word: &OsString| {
            let name = word.to_str().unwrap_or_default();
            Verb::is_known(name.strip_prefix('-').unwrap_or(name))
        };
        let Some(at) = words.iter().position(|word| is_verb(word) || word.as_bytes().starts_with(b"-")) else {
            take_images(arguments, words)?;
            return Ok(Vec::new());
        };
        let (images, rest) = words.split_at_checked(at).unwrap_or_default();
        take_images(arguments, images.to_vec())?;
        if rest.first().is_some_and(is_verb) {
            return Ok(rest.to_vec());
        }
        if rest.first().is_some_and(|word| word == "--help" || word == "-h") {
            bail!("'inarch help shell' says more");
        }
        let parsed = More::try_parse_from([OsString::from("inarch shell")].into_iter().chain(rest.iter().cloned()));
        let More { arguments: more } = parsed.map_err(|error| anyhow!(told(&error)))?;
        // What is no option is taken for a word.
        if more.words == rest {
            let word = rest.first().map(|word| shown(Path::new(word))).unwrap_or_default();
            bail!("{word}: there is no such option; --help says more");
        }
        arguments.add.extend(more.add);
        arguments.inspector |= more.inspector;
        arguments.mount.extend(more.mount);
        arguments.ro |= more.ro;
        arguments.format = more.format.or(arguments.format);
        arguments.disk.with.extend(more.disk.with);
        arguments.disk.also.extend(more.disk.also);
        arguments.disk.key.extend(more.disk.key);
        arguments.file = more.file.or(arguments.file.take());
        arguments.words = more.words;
    }
}

/// A word that names no file is more likely a verb with a mistake.
fn take_images(arguments: &mut ShellArguments, words: Vec<OsString>) -> anyhow::Result<()> {
    for word in words {
        let path = PathBuf::from(word);
        if !path.exists() && path.components().count() == 1 {
            let hint = verbs::hint(&path.to_string_lossy());
            bail!("{}: there is no such file, and no such verb{hint}", shown(&path));
        }
        arguments.add.push(path);
    }
    Ok(())
}

/// The first line of what clap says.
fn told(error: &clap::Error) -> String {
    let text = error.render().to_string();
    let first = text.split("\n\n").next().unwrap_or_default();
    let words: Vec<&str> = first.trim_start_matches("error:").split_whitespace().collect();
    format!("{}; --help says more", words.join(" "))
}

impl Shell {
    /// Without drives.
    fn new(defaults: DriveOptions, is_interactive: bool) -> Shell {
        let (session, interrupted) = (Session::new(), Arc::default());
        Shell { session, defaults, variables: Vec::new(), is_interactive, interrupted, has_ended: false }
    }

    /// Mounts what the command line names. Returns the lines that a prompt shows first: the operating system and the mounts.
    fn mount_first(&mut self, inspector: bool, mounts: &[OsString]) -> anyhow::Result<Vec<String>> {
        let mut lines = Vec::new();
        if inspector {
            let found = self.session.mount_system()?;
            let name = found.system.name.as_deref().or(found.system.kind).unwrap_or("unknown");
            lines.push(format!("Operating system: {}", shown(Path::new(name))));
        }
        for mount in mounts {
            let text = mount.to_str().ok_or_else(|| anyhow!("{}: no name of a device", shown(Path::new(mount))))?;
            let (kind, rest) = text.strip_prefix("btrfsvol:").map_or(("", text), |rest| ("btrfsvol:", rest));
            let mut parts = rest.splitn(3, ':');
            let device = format!("{kind}{}", parts.next().unwrap_or_default());
            let directory = parts.next().filter(|directory| !directory.is_empty()).unwrap_or("/");
            self.session.mount(&device, Path::new(directory), parts.next().unwrap_or_default())?;
        }
        let mounted = self.session.mounts();
        lines.extend(mounted.iter().map(|mount| format!("{} mounted on {}", mount.device, shown(&mount.at))));
        Ok(lines)
    }

    /// Prints what the session noted.
    fn note(&mut self) {
        self.session.take_notes().iter().for_each(|note| complain(shown(Path::new(note))));
    }
}
