//! `inarch disk checksum`, `diff` and `tar-out`: whole trees of an image.

use std::ffi::{OsStr, OsString};
use std::io::{self, IsTerminal, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, ValueEnum};
use inarch_jobs::guest::{Algorithm, DifferenceRequest, GuestError, diff as compare};
use inarch_jobs::image::{ImageRequest, compressor};
use inarch_jobs::{shell_word, shown};
use inarch_tree::compare::Aspects;
use serde_json::json;

use super::files::{ImageArguments, lost};
use crate::arguments::one_of;
use crate::diff::line;
use crate::disk_options::{DiskOptions, FormatOption};
use crate::image;
use crate::output::{answer, answer_with, complain};

/// Options of `inarch disk checksum`.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  inarch disk checksum guest.img /etc/passwd /etc/group
  diff <(inarch disk checksum old.qcow2) <(inarch disk checksum new.qcow2)
  inarch disk checksum guest.img --algorithm md5 /usr/bin/dpkg

The lines are those of sha256sum(1), in the order of paths.")]
pub struct ChecksumArguments {
    #[command(flatten)]
    image: ImageArguments,

    /// Files, or directories with everything below them
    #[arg(default_value = "/")]
    paths: Vec<PathBuf>,

    /// The function
    #[arg(long, value_name = "md5|sha1|sha224|sha256|sha384|sha512", default_value = "sha256", hide_possible_values = true,
        hide_default_value = true, value_parser = one_of::<Algorithm>(Algorithm::all().into_iter().skip(1).map(Algorithm::name)))]
    algorithm: Algorithm,

    /// Print JSON, an object on each line
    #[arg(long)]
    json: bool,
}

/// Options of `inarch disk diff`.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  inarch disk diff before.qcow2 after.qcow2
  inarch disk diff --ignore mtime guest.img:2:/etc ./etc-of-guest
  inarch disk diff rootfs.tar root.erofs --exit-code

A line for each path: A added, M changed, D deleted, P only attributes (permissions, owner, time, extended attributes). Files of one size are \
read and compared. A renamed file is one that was deleted and one that was added.")]
pub struct DiffArguments {
    /// The older state: a disk image, a volume or directory of one (IMAGE:VOLUME:/PATH), an archive or a directory
    #[arg(value_name = "OLD")]
    old: OsString,

    /// The newer state
    #[arg(value_name = "NEW")]
    new: OsString,

    #[command(flatten)]
    format: FormatOption,

    /// What the disk images need beside themselves.
    #[command(flatten)]
    disk: DiskOptions,

    /// What does not count, comma-separated
    #[arg(long, value_name = "mtime|owner|mode|xattrs", value_delimiter = ',', hide_possible_values = true)]
    ignore: Vec<Ignored>,

    /// Read what can be read of damaged images, and report the rest
    #[arg(long)]
    salvage: bool,

    /// End with status 1 if they differ
    #[arg(long)]
    exit_code: bool,

    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// An aspect of a file that does not count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Ignored {
    /// The time of the last change of content
    Mtime,
    /// User and group
    Owner,
    /// Permissions
    Mode,
    /// Extended attributes and ACLs
    Xattrs,
}

/// Options of `inarch disk tar-out`.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  inarch disk tar-out guest.qcow2 /etc etc.tar
  inarch disk tar-out guest.img / - | zstd > guest.tar.zst

Owners, permissions, times, hard links, holes, ACLs and other extended attributes are in the archive. It is 'inarch image IMAGE -o FILE.tar', \
which can also choose files and change owners.")]
pub struct TarOutArguments {
    #[command(flatten)]
    image: ImageArguments,

    /// The directory in the image
    path: PathBuf,

    /// The archive, which is replaced when it is complete; - for standard output
    #[arg(value_name = "FILE")]
    output: PathBuf,
}

/// `inarch disk checksum`. A file that cannot be read is reported, and the others are printed.
pub fn checksum(arguments: &ChecksumArguments) -> anyhow::Result<ExitCode> {
    let guest = arguments.image.open_all()?;
    let mut status = ExitCode::SUCCESS;
    let is_terminal = io::stdout().is_terminal();
    answer_with(|out| {
        for path in &arguments.paths {
            let done = guest.checksum(path, arguments.algorithm, |summed| {
                let printed = match summed {
                    Err(line) => {
                        status = lost(&line);
                        Ok(())
                    }
                    Ok(summed) if arguments.json => {
                        let name = arguments.algorithm.name();
                        writeln!(
                            out,
                            "{}",
                            json!({ "path": String::from_utf8_lossy(&summed.path), name: summed.digest })
                        )
                    }
                    // What a program reads has names as they are.
                    Ok(summed) if is_terminal => {
                        writeln!(out, "{}  {}", summed.digest, shown(Path::new(OsStr::from_bytes(&summed.path))))
                    }
                    Ok(summed) => write_sum(out, &summed.path, &summed.digest),
                };
                printed.map_err(GuestError::Output)
            });
            match done {
                Err(GuestError::Output(error)) => return Err(error),
                Err(error) => status = lost(&error.to_string()),
                Ok(()) => {}
            }
        }
        Ok(())
    })?;
    Ok(status)
}

/// A line as sha256sum(1) prints it: with a backslash at its start where the path needs some.
fn write_sum(out: &mut dyn Write, path: &[u8], digest: &str) -> io::Result<()> {
    let needs_escapes = path.iter().any(|byte| matches!(byte, b'\n' | b'\r' | b'\\'));
    out.write_all(if needs_escapes { b"\\" } else { b"" })?;
    write!(out, "{digest}  ")?;
    for byte in path {
        match byte {
            b'\n' => out.write_all(b"\\n")?,
            b'\r' => out.write_all(b"\\r")?,
            b'\\' => out.write_all(b"\\\\")?,
            byte => out.write_all(&[*byte])?,
        }
    }
    out.write_all(b"\n")
}

/// `inarch disk diff`.
pub fn diff(arguments: &DiffArguments) -> anyhow::Result<ExitCode> {
    let [old, new] = arguments.disk.sources_in([&arguments.old, &arguments.new], arguments.format)?;
    let ignores = |aspect| arguments.ignore.contains(&aspect);
    let ignored = Aspects {
        mtime: ignores(Ignored::Mtime),
        owner: ignores(Ignored::Owner),
        mode: ignores(Ignored::Mode),
        xattrs: ignores(Ignored::Xattrs),
        ..Aspects::default()
    };
    let found = compare(&DifferenceRequest { old, new, salvage: arguments.salvage, ignored })?;
    found.notes.iter().chain(&found.unread).for_each(complain);
    if arguments.json {
        answer(serde_json::to_string_pretty(&found.changes)? + "\n")?;
    } else {
        answer(found.changes.iter().map(line).collect::<String>())?;
    }
    Ok(match (found.unread.is_empty(), arguments.exit_code && !found.changes.is_empty()) {
        (false, _) => ExitCode::from(crate::EXIT_FAILED),
        (true, true) => ExitCode::FAILURE,
        (true, false) => ExitCode::SUCCESS,
    })
}

/// `inarch disk tar-out`.
pub fn tar_out(arguments: TarOutArguments) -> anyhow::Result<ExitCode> {
    if let Some(program) = compressor(&arguments.output) {
        let (output, word) = (shown(&arguments.output), shell_word(arguments.output.as_os_str()));
        let word = shown(Path::new(&word));
        anyhow::bail!(
            "{output}: tar is written without compression; let a pipe have it, and compress that: - | {program} > {word}"
        );
    }
    let source = arguments.image.source()?.beneath(&arguments.path)?;
    let mut request = ImageRequest::new(source, arguments.output);
    request.format = Some("tar".to_owned());
    request.selection.salvage = arguments.image.salvage;
    image::write(request, false, false)
}
