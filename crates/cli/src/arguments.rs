//! The command line: the list of commands, and what their arguments share.

use std::fmt::Display;
use std::str::FromStr;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Parser, Subcommand};

/// Gives virtual machines file trees without copying them.
#[derive(Parser, Debug)]
#[command(name = "inarch", version = env!("INARCH_VERSION"), max_term_width = 110)]
#[command(after_help = "\
Examples:
  inarch run make check          run a command in a VM over this directory
  inarch run -t                  a shell in a VM over your own files
  inarch mount app.tar.zst /mnt  an archive, image or directory as a mount
  inarch doctor                  what this machine can do

'inarch help COMMAND' explains a command. INARCH_LOG=debug prints each step on standard error.")]
pub struct Arguments {
    /// The command.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands, one page each under docs/.
#[derive(Subcommand, Debug)]
pub enum Command {
    /// Run a command in a virtual machine over this machine's own files; its writes are thrown away
    Run(Box<crate::run::RunArguments>),
    /// Measure which way a command gets its files the fastest: disks of several formats, virtiofs, 9P
    Compare(Box<crate::compare::CompareArguments>),
    /// Report what the disk of a tree would be, and how soon it can be read
    Plan(crate::plan::PlanArguments),
    /// Write a tree as a file system image or an archive
    Image(Box<crate::image::ImageArguments>),
    /// Publish a tree at a remote (a bucket of S3...) or a registry, where it is a SRC for any machine
    Push(Box<crate::push::PushArguments>),
    /// Serve a tree to a virtual machine that you start yourself
    Serve(crate::serve::ServeArguments),
    /// Run a command on this machine, and record what it depends on and what it makes
    Trace(crate::trace::TraceArguments),
    /// List, fill, share, check and remove the caches that 'inarch run --cache' keeps
    Cache(crate::cache::CacheArguments),
    /// Look at disk images, make them, and change what is on them
    Disk(crate::disk::DiskArguments),
    /// Look into guest disks with guestfish's verbs, at a prompt or by a script
    Shell(crate::shell::ShellArguments),
    /// Mount a tree on this machine
    Mount(crate::mount::MountArguments),
    /// Unmount what 'inarch mount' has mounted
    #[command(visible_alias = "unmount")]
    Umount(crate::umount::UmountArguments),
    /// Show what the guest of a kept run changed
    Diff(crate::diff::DiffArguments),
    /// Bring a kept run's changes into this machine's files
    Apply(crate::apply::ApplyArguments),
    /// Delete kept runs and everything their guests wrote
    #[command(visible_alias = "rm")]
    Discard(crate::discard::DiscardArguments),
    /// List kept runs
    #[command(visible_alias = "ps")]
    Runs(crate::runs::RunsArguments),
    /// Report what this machine can do, and what it lacks
    Doctor(crate::doctor::DoctorArguments),
    /// Print a shell's script that completes the words of this command line
    Completions(crate::completions::CompletionsArguments),
    /// Write the manual pages into a directory
    #[command(hide = true)]
    ManPages(crate::man_pages::ManPagesArguments),
}

/// Parses one of `words`, with a suggestion for a misspelled one and shell completion.
pub fn one_of<T>(words: impl IntoIterator<Item = &'static str>) -> impl TypedValueParser<Value = T>
where
    T: FromStr<Err: Display> + Clone + Send + Sync + 'static,
{
    PossibleValuesParser::new(words).try_map(|word| word.parse::<T>().map_err(|error| error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::{Args, CommandFactory};

    /// Every command without subcommands, such as `serve blk`.
    fn leaves(command: clap::Command) -> Vec<clap::Command> {
        let below: Vec<_> = command.get_subcommands().cloned().collect();
        if below.is_empty() { vec![command] } else { below.into_iter().flat_map(leaves).collect() }
    }

    #[test]
    fn every_command_has_help_with_examples() {
        let commands = leaves(Arguments::command());
        assert!(commands.len() > 10);
        for mut command in commands {
            let name = command.get_name().to_owned();
            let help = command.render_long_help().to_string();
            assert!(help.contains("Example"), "{name} has no example");
        }
    }

    #[test]
    fn other_names_lead_to_the_same_command() {
        let command = |words: &[&str]| Arguments::try_parse_from([&["inarch"], words].concat()).unwrap().command;
        assert!(matches!(command(&["ps"]), Command::Runs(_)));
        assert!(matches!(command(&["rm", "name"]), Command::Discard(_)));
        assert!(matches!(command(&["unmount", "/mnt"]), Command::Umount(_)));
    }

    #[test]
    fn a_trace_is_of_a_command_unless_its_first_word_is_one_of_ours() {
        let parse = |words: &[&str]| {
            let words = [&["inarch", "trace"], words].concat();
            match Arguments::try_parse_from(words).map(|arguments| arguments.command) {
                Ok(Command::Trace(arguments)) => arguments,
                other => panic!("{other:?}"),
            }
        };
        for (words, command) in [
            (&["--", "diff", "a", "b"][..], &["diff", "a", "b"][..]),
            (&["make", "diff", "a", "b"], &["make", "diff", "a", "b"]),
            (&["-q", "ls", "--json", "-0"], &["ls", "--json", "-0"]),
            (&["-q", "--", "why"], &["why"]),
        ] {
            let arguments = parse(words);
            assert!(arguments.stored.is_none() && arguments.command == *command, "{words:?}: {arguments:?}");
        }
        for words in [&["diff", "a", "b"][..], &["files", "-0", "a"], &["why", "/x", "a"]] {
            let arguments = parse(words);
            assert!(arguments.stored.is_some() && arguments.command.is_empty(), "{words:?}: {arguments:?}");
        }
        for words in [&[][..], &["-q"], &["diff", "a"], &["--hash", "ls"], &["--strict", "ls"]] {
            let words = [&["inarch", "trace"], words].concat();
            assert!(Arguments::try_parse_from(words.clone()).is_err(), "{words:?}");
        }
    }

    #[test]
    fn every_help_has_one_form() {
        let below = |command: &clap::Command| command.get_subcommands().map(|one| one.get_name().to_owned()).collect();
        let root = Arguments::command();
        let commands: Vec<String> = below(&root);
        let further = ["serve", "trace", "cache"].into_iter().flat_map(|command| {
            let names: Vec<String> = below(root.find_subcommand(command).unwrap());
            names.into_iter().map(move |name| vec![command.to_owned(), name])
        });
        let paths = commands.into_iter().map(|name| vec![name]).chain(further);
        for path in paths.chain([Vec::new()]) {
            let help = |option: &str, width: usize| {
                let words = ["inarch"].into_iter().chain(path.iter().map(String::as_str)).chain([option]);
                let command = Arguments::command().term_width(width);
                command.try_get_matches_from(words).unwrap_err().render().to_string()
            };
            let text = help("--help", 80);
            assert_eq!(text, help("-h", 80), "{path:?} says two things");
            let long = |line: &&str| line.chars().count() > 80 && !line.starts_with("Usage:");
            assert_eq!(text.lines().find(long), None, "{path:?}");
            // Examples are not wrapped, and wrapped text has no line ends of its own.
            let wide = help("--help", 1000);
            let [narrow, wide] =
                [&text, &wide].map(|text| text.split_once("\nExample").map_or("", |(_, examples)| examples));
            let examples = |text: &str| text.split("\n\n").next().unwrap_or_default().to_owned();
            assert_eq!(examples(narrow), examples(wide), "{path:?}");
            let broken = wide.split("\n\n").skip(1).find(|paragraph| paragraph.trim_end().contains('\n'));
            assert_eq!(broken, None, "{path:?}");
        }
    }

    #[test]
    fn what_is_taken_has_a_heading_of_its_own() {
        let taken = crate::source::SourceArguments::augment_args(clap::Command::new("all"));
        for command in leaves(Arguments::command()) {
            let under = command.get_arguments().filter(|one| one.get_help_heading() == Some("What is taken"));
            let strange =
                under.map(|one| one.get_id()).find(|id| !taken.get_arguments().any(|one| one.get_id() == *id));
            assert_eq!(strange, None, "{}", command.get_name());
        }
    }

    #[test]
    fn the_words_of_one_command_mean_the_same_in_others() {
        Arguments::command().debug_assert();
        for command in leaves(Arguments::command()) {
            let find = |name: &str| command.get_arguments().find(|argument| argument.get_id() == name);
            if let Some(ro) = find("ro") {
                let aliases = ro.get_visible_aliases().unwrap_or_default();
                assert!(aliases.contains(&"read-only"), "{}", command.get_name());
                assert!(find("rw").is_some(), "{}", command.get_name());
            }
            if let Some(quiet) = find("quiet") {
                assert_eq!(quiet.get_short(), Some('q'), "{}", command.get_name());
            }
        }
    }

    #[test]
    fn the_version_names_the_commit() {
        let version = env!("INARCH_VERSION");
        let rest = version.strip_prefix(env!("CARGO_PKG_VERSION")).unwrap();
        let top = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
        let git = |words: &[&str]| std::process::Command::new("git").args(["-C", top]).args(words).output();
        let is_repository = std::path::Path::new(top).join(".git").exists()
            && git(&["rev-parse", "HEAD"]).is_ok_and(|output| output.status.success());
        assert_eq!(is_repository, !rest.is_empty(), "{version}");
        if let Some(commit) = rest.strip_prefix(" (").and_then(|rest| rest.split(' ').next()) {
            let kind = git(&["cat-file", "-t", commit]).unwrap();
            assert_eq!(String::from_utf8_lossy(&kind.stdout).trim(), "commit", "{version}");
        }
    }
}
