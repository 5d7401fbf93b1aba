//! `inarch run`: a command in a virtual machine.

use std::ffi::{OsStr, OsString};
use std::fmt::Display;
use std::io::IsTerminal;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use anyhow::Context;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, Parser, ValueEnum};
use inarch_jobs::run::{self, Keep, PublishedPort, Root, RunRequest, TreeMount, Way};
use inarch_jobs::share::Changes;
use inarch_jobs::source::Source;
use inarch_vm::accel::AccelChoice;

use crate::arguments::one_of;
use crate::output::answer;
use crate::source::SourceArguments;
use crate::tree_option::TreeOption;
use crate::{duration, publish, size, tree_option};

/// Options of `inarch run`.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  inarch run make check                  test this directory in a VM; all it writes is thrown away
  inarch run -t                          a shell in a VM over your own files
  inarch run --tree ~/x:/x,ro ls -l /x   another directory, at another path, read-only
  inarch run -v ~/out:/out make install  a directory live: what the guest writes there is written
  inarch run --root ./bookworm --net apt-get update
  inarch run --root oci:app              what a container image says it runs
  inarch run --keep try make             keep what it writes; then inarch diff try, inarch apply try

What follows CMD is the command's own; '--' before it is for a CMD that begins with '-'.

Exit status: the command's own; 124 timed out; 125 inarch or the VM failed; 126 the command cannot be run; 127 not found.")]
pub struct RunArguments {
    /// The command and its arguments; what a container image runs, or else your shell, where none is given
    #[arg(trailing_var_arg = true, value_name = "CMD")]
    pub command: Vec<OsString>,

    /// What the guest has as its root: this machine's own ('host'), a directory, archive or image, or nothing but the trees ('none')
    #[arg(long, value_name = "host|SRC|none", default_value = "host")]
    pub root: OsString,

    /// Another tree: SRC[:DST][,ro|overlay|rw][,nosuid][,nodev][,via=WAY][,changes=WHO][,writeback][,hold][,owner=MAP][,exclude=GLOB]; DST is the same path where
    /// none is given; with rw the guest's writes reach the directory itself
    #[arg(long, value_name = "SRC[:DST][,OPT]")]
    pub tree: Vec<OsString>,

    /// A directory live, as docker has it: what the guest writes there reaches SRC, unless :ro is given. The same as --tree SRC:DST,rw
    #[arg(short = 'v', long, value_name = "SRC:DST[:ro|:nosuid,nodev]")]
    pub volume: Vec<OsString>,

    /// The current directory live: what the guest writes there is written. The same as --tree .,rw
    #[arg(long, conflicts_with = "ro")]
    pub rw: bool,

    /// Refuse writes to the root, and to the current directory where that is brought along
    #[arg(long, visible_alias = "read-only")]
    pub ro: bool,

    /// Keep what the guest writes under NAME, and go on from there the next time (inarch diff, apply and discard NAME)
    #[arg(long, value_name = "NAME", visible_alias = "name")]
    pub keep: Option<String>,

    /// Leave nothing behind; always done unless --keep is given, accepted for habit's sake
    #[arg(long, conflicts_with = "keep")]
    pub rm: bool,

    /// Do not hold the files of the current directory's project: one that is edited meanwhile reads as an I/O error
    #[arg(long)]
    pub no_hold: bool,

    /// How trees reach the guest: as a disk with ext4, or with erofs or squashfs and an overlayfs on top; live, by virtiofs or
    /// 9P, with an overlayfs on top; or as an archive that the guest unpacks into its memory, or onto a disk if that is too
    /// small. 'auto' takes the first that the guest's kernel can mount
    #[arg(long, value_name = "auto|ext4|erofs|squashfs|virtiofs|9p|tar", default_value = "auto", hide_possible_values = true,
        value_parser = one_of_ways())]
    pub via: Way,

    /// Run WORD with the command's words after it, in place of a container image's Entrypoint and Cmd; '' is no entry point
    #[arg(long, value_name = "WORD")]
    pub entrypoint: Option<OsString>,

    /// Set a variable in the command's environment, or pass on your own (repeatable)
    #[arg(short = 'e', long = "env", value_name = "KEY[=VALUE]")]
    pub environment: Vec<OsString>,

    /// Working directory in the guest; the current one where the root is this machine's, a container image's own
    #[arg(short = 'w', long, value_name = "DIR")]
    pub workdir: Option<PathBuf>,

    /// User in the guest, by name or number; yourself where the root is this machine's, a container image's own, else root
    #[arg(short = 'u', long, value_name = "USER[:GROUP]")]
    pub user: Option<String>,

    /// Give the command a terminal
    #[arg(short = 't', long)]
    pub tty: bool,

    /// Stream standard input to the command; always done, accepted for habit's sake
    #[arg(short = 'i', long)]
    pub interactive: bool,

    /// End the command when it has run for so long (30, 90s, 10m, 2h), with status 124
    #[arg(long, value_name = "TIME", value_parser = duration::parse)]
    pub timeout: Option<Duration>,

    /// Do nothing; print the QEMU command line
    #[arg(long)]
    pub dry_run: bool,

    /// Print nothing of our own but errors, and why the command failed where that was not its own doing
    #[arg(short = 'q', long)]
    pub quiet: bool,

    /// Say how each tree goes, and what runs the guest, even where that is as usual
    #[arg(long, conflicts_with = "quiet")]
    pub verbose: bool,

    /// The virtual machine.
    #[command(flatten)]
    pub machine: MachineArguments,

    /// What is taken.
    #[command(flatten)]
    pub source: SourceArguments,
}

/// Options that shape the virtual machine.
#[derive(Args, Debug)]
#[command(next_help_heading = "The machine")]
pub struct MachineArguments {
    /// The guest's kernel; the newest of /boot where none is given
    #[arg(long, value_name = "FILE")]
    pub kernel: Option<PathBuf>,

    /// The kernel's modules; /lib/modules/VERSION where none is given
    #[arg(long, value_name = "DIR")]
    pub modules: Option<PathBuf>,

    /// How the guest's instructions run
    #[arg(long, value_name = "auto|kvm|tcg", default_value = "auto", hide_possible_values = true,
        value_parser = one_of::<AccelChoice>(["auto", "kvm", "tcg"]))]
    pub accel: AccelChoice,

    /// Virtual processors; as many as this machine has where not given
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=255))]
    pub cpus: Option<u32>,

    /// Memory of the guest; half of this machine's, 2 GiB at most, where not given
    #[arg(short = 'm', long, value_name = "SIZE", visible_alias = "mem", value_parser = size::parse)]
    pub memory: Option<u64>,

    /// Give the guest a network: user (it gets out, nobody gets in but by -p), which --net alone means, or none, as without
    #[arg(long, visible_alias = "network", value_enum, value_name = "user|none", hide_possible_values = true,
        num_args = 0..=1, require_equals = true, default_missing_value = "user")]
    pub net: Option<NetworkArgument>,

    /// Lead a port of this machine to one of the guest's; gives it a network as well. Of this machine's own address 127.0.0.1 alone where
    /// none is given (repeatable)
    #[arg(short = 'p', long, value_name = "[ADDR:]HOST:GUEST[/udp]", value_parser = publish::parse)]
    pub publish: Vec<PublishedPort>,

    /// More words for the kernel's command line (repeatable)
    #[arg(long, value_name = "WORDS", allow_hyphen_values = true)]
    pub append: Vec<String>,

    /// One more argument for QEMU, after all others (repeatable)
    #[arg(long, value_name = "ARG", allow_hyphen_values = true)]
    pub qemu_arg: Vec<OsString>,

    /// Write down in FILE all that the guest's kernel prints
    #[arg(long, value_name = "FILE")]
    pub console: Option<PathBuf>,

    /// Where the guest's writes are kept while it runs; its free space is the guest's
    #[arg(long, value_name = "DIR", default_value = "/var/tmp")]
    pub overlay_dir: PathBuf,

    /// Fail if the guest has not spoken after so long
    #[arg(long, value_name = "TIME", default_value = "60s", value_parser = duration::parse)]
    pub boot_timeout: Duration,
}

/// What a guest reaches.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum NetworkArgument {
    /// What this machine's user reaches
    User,
    /// Nothing
    None,
}

fn one_of_ways() -> impl TypedValueParser<Value = Way> {
    PossibleValuesParser::new(tree_option::WAYS).try_map(|word| tree_option::via(&word))
}

/// Runs the command; the status is the command's own.
pub fn run(mut arguments: RunArguments) -> anyhow::Result<ExitCode> {
    let dry_run = arguments.dry_run;
    let keep = arguments.keep.clone().map(|name| keep(name, &mut arguments)).transpose()?;
    let request = RunRequest { keep, ..request(arguments)? };
    if dry_run {
        answer(run::dry_run(&request)? + "\n")?;
        return Ok(ExitCode::SUCCESS);
    }
    Ok(ExitCode::from(run::run(&request)?))
}

fn request(arguments: RunArguments) -> anyhow::Result<RunRequest> {
    let root = match arguments.root.to_str() {
        Some("host") => Root::Host,
        Some("none") => Root::None,
        _ => Root::Source(Source::parse(&arguments.root)?),
    };
    anyhow::ensure!(
        !arguments.via.is_live() || arguments.source.is_whole(),
        "--via virtiofs or 9p: a live directory is shared whole; what leaves something out or changes times takes a disk"
    );
    // Only a shell that a person types to gets a terminal: a terminal would change the bytes that an image's command writes to a pipe.
    let is_interactive = std::io::stdin().is_terminal() && std::io::stdout().is_terminal();
    let terminal = arguments.tty || (arguments.command.is_empty() && is_interactive);
    let trees = trees(&arguments)?;
    let net = match (arguments.machine.net, arguments.machine.publish.is_empty()) {
        (Some(NetworkArgument::None), false) => {
            anyhow::bail!("-p leads into the guest's network, and --net=none gives it none")
        }
        (net, is_private) => net.map_or(!is_private, |net| net == NetworkArgument::User),
    };
    Ok(RunRequest {
        root,
        root_via: arguments.via,
        root_read_only: arguments.ro,
        root_selection: arguments.source.selection(&[])?,
        hold: !arguments.no_hold,
        trees,
        command: arguments.command,
        entrypoint: arguments.entrypoint,
        environment: arguments.environment.iter().map(|e| variable(e)).collect::<anyhow::Result<_>>()?,
        working_directory: arguments.workdir,
        user: arguments.user,
        terminal,
        timeout: arguments.timeout,
        quiet: arguments.quiet,
        verbose: arguments.verbose,
        kernel: arguments.machine.kernel,
        modules: arguments.machine.modules,
        accel: arguments.machine.accel,
        cpus: arguments.machine.cpus,
        memory: arguments.machine.memory,
        net,
        published: arguments.machine.publish,
        kernel_parameters: arguments.machine.append,
        qemu_arguments: arguments.machine.qemu_arg,
        console: arguments.machine.console,
        overlay_dir: arguments.machine.overlay_dir,
        boot_timeout: arguments.machine.boot_timeout,
        keep: None,
    })
}

/// The trees besides the root.
fn trees(arguments: &RunArguments) -> anyhow::Result<Vec<TreeMount>> {
    let parsed = |name: &str, parse: fn(&OsStr) -> Result<TreeOption, String>, text: &OsStr| {
        let option = parse(text).map_err(|error| anyhow::anyhow!("{name}: {error}"))?;
        tree(format_args!("{name} {}", text.display()), option, &arguments.source, arguments.via)
    };
    let trees = arguments.tree.iter().map(|text| parsed("--tree", tree_option::parse, text));
    let volumes = arguments.volume.iter().map(|text| parsed("--volume", tree_option::volume, text));
    let here = arguments.rw.then(|| parsed("--rw", tree_option::parse, OsStr::new(".,rw")));
    trees.chain(volumes).chain(here).collect()
}

/// Under what name the run is kept. One that goes on and says nothing of its trees has those it began with; what its
/// words name is found from where they were given.
fn keep(name: String, arguments: &mut RunArguments) -> anyhow::Result<Keep> {
    let here = std::env::current_dir().context("there is no current directory; go to another")?;
    let says_trees = arguments.root != "host"
        || !(arguments.tree.is_empty() && arguments.volume.is_empty())
        || arguments.rw
        || arguments.ro
        || !arguments.source.is_all();
    let first = if says_trees { None } else { run::kept_words(&name)? };
    let Some((words, directory)) = first else {
        let words = words_before(std::env::args_os().skip(2).collect(), arguments.command.len());
        return Ok(Keep { name, words, directory: here });
    };
    let first = FirstWords::try_parse_from([OsString::from("run")].iter().chain(&words));
    let first = first.context("the kept run was made by another version of inarch")?.arguments;
    (arguments.root, arguments.ro, arguments.rw) = (first.root, first.ro, first.rw);
    (arguments.tree, arguments.volume, arguments.source) = (first.tree, first.volume, first.source);
    if arguments.root == "host" {
        arguments.workdir = Some(here.join(arguments.workdir.take().unwrap_or_default()));
    }
    let machine = &mut arguments.machine;
    for path in [&mut machine.kernel, &mut machine.modules, &mut machine.console]
        .into_iter()
        .flatten()
        .chain([&mut machine.overlay_dir])
    {
        *path = here.join(&*path);
    }
    let gone = || format!("{}: the kept run began there, and it is gone", directory.display());
    std::env::set_current_dir(&directory).with_context(gone)?;
    Ok(Keep { name, words, directory })
}

/// The words of a command line that come before a command of so many.
fn words_before(mut words: Vec<OsString>, command: usize) -> Vec<OsString> {
    words.truncate(words.len().saturating_sub(command));
    words.pop_if(|word| word == "--");
    words
}

/// The words that a kept run began with.
#[derive(Parser, Debug)]
struct FirstWords {
    #[command(flatten)]
    arguments: RunArguments,
}

/// `shown` is how it was asked for.
fn tree(shown: impl Display, option: TreeOption, source: &SourceArguments, via: Way) -> anyhow::Result<TreeMount> {
    let live = option.live || option.write_through;
    // What writes are to reach can only be the directory itself.
    let via = option.via.unwrap_or(if live { Way::Auto } else { via });
    if via.is_live() || (via == Way::Auto && live) {
        anyhow::ensure!(
            source.is_whole() && option.exclude.is_empty(),
            "{shown}: a live directory is shared whole; what leaves something out or changes times takes a disk \
             (via=ext4)"
        );
        anyhow::ensure!(
            !(option.write_through && option.changes == Some(Changes::None)),
            "{shown}: rw is for writing, and changes=none says that nobody does"
        );
    } else {
        anyhow::ensure!(
            !option.write_through && option.changes.is_none(),
            "{shown}: a disk is a snapshot, on which rw and changes= have no effect; share the directory live \
             (via=virtiofs)"
        );
    }
    anyhow::ensure!(
        !option.writeback || (option.write_through && option.changes == Some(Changes::Guest)),
        "{shown}: writeback has the guest keep back what it writes to a directory that it alone changes; say rw and \
         changes=guest"
    );
    anyhow::ensure!(
        !(option.writeback && via == Way::Ninep),
        "{shown}: over 9P every write is sent at once; writeback is for via=virtiofs"
    );
    let mut selection = source.selection(&option.exclude)?;
    if let Some(owner) = option.owner {
        selection.owners = owner.into();
    }
    let source = Source::parse(&option.source)?;
    anyhow::ensure!(
        !option.hold || (!via.is_live() && !live && matches!(source, Source::Directory(_))),
        "{shown}: hold is for a directory that goes as a snapshot (via=ext4): only its files are read as they were"
    );
    Ok(TreeMount {
        destination: option.destination,
        source,
        read_only: option.read_only,
        via,
        changes: option.changes.unwrap_or_default(),
        writeback: option.writeback,
        write_through: option.write_through,
        refused: option.refused,
        live,
        hold: option.hold,
        selection,
    })
}

/// `KEY=VALUE`, or `KEY` for our own value of it.
fn variable(text: &OsStr) -> anyhow::Result<(OsString, OsString)> {
    use std::os::unix::ffi::OsStrExt;
    let bytes = text.as_bytes();
    let (key, value) = match bytes.iter().position(|b| *b == b'=') {
        Some(at) => (OsStr::from_bytes(&bytes[..at]), OsStr::from_bytes(&bytes[at + 1..]).to_owned()),
        None => {
            let value = std::env::var_os(text);
            (text, value.with_context(|| format!("-e {}: there is no such variable here", text.display()))?)
        }
    };
    anyhow::ensure!(!key.is_empty(), "-e {}: write KEY=VALUE or KEY", text.display());
    Ok((key.to_owned(), value))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(words: &[&str]) -> RunArguments {
        FirstWords::try_parse_from([&["run"], words].concat()).unwrap().arguments
    }

    #[test]
    fn what_follows_the_command_is_its_own() {
        for words in [&["-q", "ls", "-l", "--quiet", "--", "-x"][..], &["-q", "--", "ls", "-l", "--quiet", "--", "-x"]]
        {
            let arguments = parse(words);
            assert!(arguments.quiet && !arguments.verbose);
            assert_eq!(arguments.command, ["ls", "-l", "--quiet", "--", "-x"]);
            assert_eq!(words_before(words.iter().map(OsString::from).collect(), 5), ["-q"]);
        }
        assert_eq!(parse(&["--", "-x"]).command, ["-x"]);
        assert!(parse(&["-t"]).command.is_empty());
        assert!(FirstWords::try_parse_from(["run", "--qiet", "ls"]).is_err());
    }

    #[test]
    fn habitual_words_are_understood() {
        for words in [["-m", "1G"], ["--mem", "1G"], ["--memory", "1024M"]] {
            assert_eq!(parse(&words).machine.memory, Some(1 << 30));
        }
        for words in [&["--net"][..], &["--network"], &["--network=user"], &["--net", "ls"]] {
            assert_eq!(parse(words).machine.net, Some(NetworkArgument::User));
        }
        assert_eq!(parse(&["--network=none"]).machine.net, Some(NetworkArgument::None));
        let net = |words: &[&str]| request(parse(words)).map(|request| request.net);
        assert!(net(&["-p", "80:80"]).unwrap() && !net(&[]).unwrap());
        assert!(net(&["-p", "80:80", "--net=none"]).is_err());
        assert_eq!(parse(&["--qemu-arg", "-s", "--qemu-arg=-S", "ls"]).machine.qemu_arg, ["-s", "-S"]);
        assert_eq!(parse(&["--timeout", "1m"]).timeout, Some(Duration::from_secs(60)));
        assert_eq!(parse(&["--name", "try"]).keep.as_deref(), Some("try"));
        assert!(parse(&["-it", "--rm", "ls"]).tty);
        assert!(parse(&["--read-only"]).ro && parse(&["--rw"]).rw && parse(&["--verbose"]).verbose);
        assert_eq!(parse(&["-v", "a:/b", "--volume", "c:/d:ro"]).volume, ["a:/b", "c:/d:ro"]);
        assert!(FirstWords::try_parse_from(["run", "--rm", "--keep", "x"]).is_err());
    }

    #[test]
    fn volumes_and_the_current_directory_are_live() {
        let trees = trees(&parse(&["-v", "/usr:/b", "-v", "/usr:/c:ro", "--rw", "--tree", "/usr:/d"])).unwrap();
        let told: Vec<_> = trees.iter().map(|tree| (tree.live, tree.write_through, tree.read_only)).collect();
        assert_eq!(told, [(false, false, false), (true, true, false), (true, false, true), (true, true, false)]);
    }
}
