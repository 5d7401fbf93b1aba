//! Turns the options of `inarch run` into a request.

use std::ffi::{OsStr, OsString};
use std::fmt::Display;
use std::io::{self, IsTerminal};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use anyhow::Context;
use inarch_jobs::run::{Root, RunRequest, Streams, TreeMount, Way, WireOptions};
use inarch_jobs::share::Changes;
use inarch_jobs::source::Source;

use super::arguments::{NetworkArgument, RunArguments};
use crate::signals::Signals;
use crate::source::SourceArguments;
use crate::telling::telling;
use crate::tree_option::{self, TreeOption};
use crate::{cache_option, disk_option, publish};

/// The request of these options, without what happens at its end.
pub fn request(arguments: RunArguments) -> anyhow::Result<RunRequest> {
    let (way, wire) = arguments.way()?;
    let root = match arguments.root.to_str() {
        Some("host") => Root::Host,
        Some("none") => Root::None,
        _ => Root::Source(arguments.source.disk.source(&arguments.root)?.for_machine(arguments.machine.arch.debian())),
    };
    anyhow::ensure!(
        !way.is_live() || arguments.source.is_whole(),
        "--via virtiofs or 9p: a live directory is shared whole; what leaves something out or changes times takes a disk"
    );
    // Only an interactive shell gets a terminal: a terminal would change the bytes that an image's command writes to a
    // pipe.
    let is_interactive = std::io::stdin().is_terminal() && std::io::stdout().is_terminal();
    let terminal = arguments.tty || (arguments.command.is_empty() && is_interactive);
    let trees = trees(&arguments)?;
    let disks =
        arguments.disk.iter().map(|text| disk_option::parse(text).map_err(|error| anyhow::anyhow!("--disk: {error}")));
    let disks = disks.collect::<anyhow::Result<_>>()?;
    let net = match (arguments.machine.net, arguments.machine.publish.is_empty()) {
        (Some(NetworkArgument::None), false) => {
            anyhow::bail!("-p leads into the guest's network, and --net=none gives it none")
        }
        (net, is_private) => net.map_or(!is_private, |net| net == NetworkArgument::User),
    };
    if let Some(word) = arguments.machine.qemu_arg.iter().find(|word| is_two_words(word)) {
        let word = word.to_string_lossy();
        anyhow::bail!("--qemu-arg: '{word}' is one word to QEMU; give it each word by a --qemu-arg of its own");
    }
    publish::check(&arguments.machine.publish).map_err(anyhow::Error::msg)?;
    let mut caches =
        arguments.cache.iter().map(|text| cache_option::parse(text)).collect::<anyhow::Result<Vec<_>>>()?;
    if !caches.is_empty() {
        let remote = cache_option::remote(arguments.cache_remote.as_deref())?;
        caches.iter_mut().for_each(|caches| caches.remote.clone_from(&remote));
    }
    anyhow::ensure!(
        caches.is_empty() || arguments.keep.is_none(),
        "--cache and --keep: a kept run keeps the guest's writes by itself; leave one of them out"
    );
    let mut request = RunRequest {
        root,
        root_via: way,
        root_wire: wire,
        root_read_only: arguments.ro,
        root_selection: arguments.source.selection(&[])?,
        hold: !arguments.no_hold,
        trees,
        disks,
        with: arguments.source.disk.with.clone(),
        entrypoint: arguments.entrypoint,
        environment: arguments.environment.iter().map(|e| variable(e)).collect::<anyhow::Result<_>>()?,
        working_directory: arguments.workdir,
        user: arguments.user,
        terminal,
        shell: std::io::stdin().is_terminal() || std::io::stdout().is_terminal(),
        signals: Some(Signals::watch),
        timeout: arguments.timeout,
        arch: arguments.machine.arch,
        kernel: arguments.machine.kernel,
        modules: arguments.machine.modules,
        firmware: arguments.machine.firmware,
        vmm: arguments.machine.vmm,
        raid: !arguments.disk.is_empty(),
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
        measures: arguments.stats,
        ..RunRequest::new(arguments.command, Streams::of_process().context("a standard stream cannot be used")?)
    };
    caches.iter().try_for_each(|caches| caches.add_to(&mut request))?;
    Ok(request)
}

/// The trees other than the root.
fn trees(arguments: &RunArguments) -> anyhow::Result<Vec<TreeMount>> {
    let way = arguments.way()?;
    let parsed = |name: &str, parse: fn(&OsStr) -> Result<TreeOption, String>, text: &OsStr| {
        let option = parse(text).map_err(|error| anyhow::anyhow!("{name}: {error}"))?;
        let mut tree = tree(format_args!("{name} {}", text.display()), option, &arguments.source, way)?;
        tree.source = tree.source.for_machine(arguments.machine.arch.debian());
        Ok(tree)
    };
    let trees = arguments.tree.iter().map(|text| parsed("--tree", tree_option::parse, text));
    let volumes = arguments.volume.iter().map(|text| parsed("--volume", tree_option::volume, text));
    let here = arguments.rw.then(|| parsed("--rw", tree_option::parse, OsStr::new(".,rw")));
    trees.chain(volumes).chain(here).collect()
}

/// `shown` is the option as the user gave it.
fn tree(
    shown: impl Display,
    option: TreeOption,
    source: &SourceArguments,
    (via, wire): (Way, WireOptions),
) -> anyhow::Result<TreeMount> {
    let live = option.live || option.write_through;
    // Writes can reach only a live directory.
    let (via, wire) = match option.via {
        Some(via) => (via, option.wire),
        None if live => (Way::Auto, option.wire),
        None => (via, if option.wire == WireOptions::default() { wire } else { option.wire }),
    };
    if let Some(useless) = wire.useless_for(via) {
        let of = if useless == "msize" { "via=9p" } else { "via=virtiofs" };
        anyhow::bail!("{shown}: {useless}= is for {of}");
    }
    if via.is_live() || (via == Way::Auto && live) {
        anyhow::ensure!(
            source.is_whole() && option.exclude.is_empty(),
            "{shown}: a live directory is shared whole; what leaves something out or changes times takes a disk \
             (via=ext4)"
        );
        anyhow::ensure!(
            !(option.write_through && option.changes == Some(Changes::None)),
            "{shown}: rw allows writes, but changes=none says that nobody writes; leave one of them out"
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
    if live {
        ensure_directory(&shown, Path::new(&option.source))?;
    }
    let source = telling(Source::parse(&option.source)?);
    anyhow::ensure!(
        !option.hold || (!via.is_live() && !live && matches!(source, Source::Directory(_))),
        "{shown}: hold is for a directory that goes as a snapshot (via=ext4): only its files are read as they were"
    );
    Ok(TreeMount {
        destination: option.destination,
        source,
        read_only: option.read_only,
        via,
        wire,
        changes: option.changes.unwrap_or_default(),
        writeback: option.writeback,
        write_through: option.write_through,
        refused: option.refused,
        live,
        hold: option.hold,
        selection,
    })
}

/// Refuses what cannot be shared live. Docker, whose -v this is, shares files as well, and makes directories that are not there.
fn ensure_directory(shown: &impl Display, path: &Path) -> anyhow::Result<()> {
    match path.metadata() {
        Ok(metadata) if !metadata.is_dir() => anyhow::bail!(
            "{shown}: only a directory is shared live: share the one that this file is in. An archive or an image is a --tree"
        ),
        // Words with a colon are other sources.
        Err(error) if error.kind() == io::ErrorKind::NotFound && !path.as_os_str().as_bytes().contains(&b':') => {
            let place = inarch_jobs::shown(path);
            anyhow::bail!("{shown}: there is no directory {place}; make it first")
        }
        _ => Ok(()),
    }
}

/// Parses `KEY=VALUE`, or `KEY` for our own value.
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

/// Whether an argument for QEMU is an option and its value, separated by a space.
fn is_two_words(word: &OsStr) -> bool {
    word.as_bytes().starts_with(b"-") && word.as_bytes().contains(&b' ')
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::time::Duration;

    use clap::Parser;

    use super::super::keep::{FirstWords, parse};
    use super::*;

    #[test]
    fn habitual_words_are_understood() {
        for words in [["-m", "1G"], ["--mem", "1G"], ["--memory", "1024M"], ["--ram", "1G"]] {
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
        assert_eq!(parse(&["--smp", "2", "--cwd", "/x"]).workdir.as_deref(), Some(Path::new("/x")));
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
