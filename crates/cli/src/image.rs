//! `inarch image`: writes a tree as a file system image or an archive.

use std::ffi::OsString;
use std::io::{ErrorKind, IsTerminal, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::Context;
use clap::Args;
use inarch_format::{Algorithm, Compression, ImageOptions};
use inarch_jobs::image::{self, ImageError, ImageEvent, ImageReport, ImageRequest, Stage};
use inarch_jobs::{Events, JobError, counted};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressState, ProgressStyle};

use crate::output::answer;
use crate::signals::TidyingSignals;
use crate::size;
use crate::source::{SRC_HELP, SourceArguments};

/// Options of `inarch image`.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  inarch image ~/src -o src.erofs
  inarch image /usr -o usr.ext4 --size 16G --label usr --exclude '*.pyc'
  inarch image rootfs -o - --format cpio | zstd > initramfs.img

The same tree gives the same bytes.")]
pub struct ImageArguments {
    /// The tree: a directory, an archive or an image
    #[arg(value_name = "SRC", help = SRC_HELP)]
    pub source: OsString,

    /// The image: a file, which is replaced when the image is complete; a block device; or - for standard output
    #[arg(short, long, value_name = "OUT")]
    pub output: PathBuf,

    /// Format of the image; by default from the end of OUT's name
    #[arg(long, value_name = "ext4|erofs|squashfs|tar|cpio")]
    pub format: Option<String>,

    /// Label of the file system
    #[arg(long, value_name = "TEXT", default_value = "")]
    pub label: String,

    /// UUID of the file system; by default always the same one
    #[arg(long, value_name = "UUID", value_parser = parse_uuid)]
    pub uuid: Option<[u8; 16]>,

    /// Size of the whole image (512M, 4G); by default the smallest possible
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    pub size: Option<u64>,

    /// Free space in a writable file system
    #[arg(long, value_name = "SIZE", value_parser = size::parse, conflicts_with = "size", default_value = "0")]
    pub free: u64,

    /// Compress content by gzip, lz4, xz or zstd, at this level
    #[arg(long, value_name = "ALG[:LEVEL]", value_parser = parse_compression, add = crate::completions::compressions())]
    pub compress: Option<Compression>,

    /// Bytes of a data block, in a format that lets you choose
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    pub block_size: Option<u64>,

    /// Read the image back and compare it with the tree
    #[arg(long)]
    pub verify: bool,

    /// Wait until the image is on stable storage
    #[arg(long)]
    pub sync: bool,

    /// Print errors only
    #[arg(short, long)]
    pub quiet: bool,

    /// Print JSON
    #[arg(long)]
    pub json: bool,

    /// What to take of the source.
    #[command(flatten)]
    pub filters: SourceArguments,
}

/// Writes an image and reports what it is.
pub fn run(arguments: ImageArguments) -> anyhow::Result<ExitCode> {
    let block_size = arguments.block_size.map(u32::try_from).transpose().context("--block-size is too large")?;
    let selection = arguments.filters.reproducible_selection()?;
    let epoch = selection.epoch;
    let request = ImageRequest {
        source: arguments.filters.disk.source(&arguments.source)?,
        selection,
        output: arguments.output,
        format: arguments.format,
        options: ImageOptions {
            label: arguments.label,
            uuid: arguments.uuid,
            epoch,
            size: arguments.size,
            free_bytes: arguments.free,
            compression: arguments.compress,
            block_size,
            ..ImageOptions::default()
        },
        verify: arguments.verify,
        sync: arguments.sync,
    };
    write(request, arguments.quiet, arguments.json)
}

/// Writes an image, with a progress bar, and reports what it is.
pub fn write(request: ImageRequest, quiet: bool, json: bool) -> anyhow::Result<ExitCode> {
    let to_stdout = request.output.as_os_str() == "-";
    anyhow::ensure!(!(to_stdout && json), "standard output cannot take both the image and --json");
    anyhow::ensure!(
        !(to_stdout && std::io::stdout().is_terminal()),
        "standard output is a terminal; redirect it (> FILE), or name a file"
    );
    let bar = Bar::new(quiet);
    let signals = TidyingSignals::default();
    let (watching, catching) = (bar.clone(), signals.clone());
    let making = image::start(
        request,
        Events::new(move |event| match event {
            ImageEvent::Stage { stage, bytes, files } => watching.start(stage, bytes, files),
            ImageEvent::Advanced { bytes, files } => watching.advance(bytes, files),
            ImageEvent::Named => catching.catch(),
        }),
    )?;
    signals.lead_to(making.stopper());
    let report = making.wait();
    bar.bar.finish_and_clear();
    if let Err(JobError::Image(ImageError::Stopped)) = report {
        signals.end_as_they_would();
    }
    // The reader of standard output has gone (`| head`), as it meant to.
    if to_stdout
        && let Err(JobError::Image(ImageError::Write { error, .. })) = &report
        && error.kind() == ErrorKind::BrokenPipe
    {
        return Ok(ExitCode::from(crate::EXIT_FAILED));
    }
    let report = report?;
    if json {
        answer(serde_json::to_string_pretty(&report)? + "\n")?;
    } else if !quiet {
        // On standard error, because standard output may be the image. A failure to print does not fail the image.
        let _ = std::io::stderr().write_all(summary(&report).as_bytes());
    }
    Ok(ExitCode::SUCCESS)
}

fn summary(report: &ImageReport) -> String {
    use std::fmt::Write;
    let mut text = String::new();
    let shared = match report.shared_bytes {
        0 => String::new(),
        bytes => format!(", {} of it shared with the source", size::show(bytes)),
    };
    let _ = writeln!(
        text,
        "{}: {}, {}{shared}: {}, {} of content in {}, in {:.2} s",
        report.output,
        report.format,
        size::show(report.image_bytes),
        counted(report.entries, "entry", "entries"),
        size::show(report.content_bytes),
        counted(report.files, "file", "files"),
        report.seconds
    );
    for note in &report.notes {
        let _ = writeln!(text, "  {note}");
    }
    text
}

fn parse_uuid(text: &str) -> Result<[u8; 16], String> {
    let wrong = || format!("'{text}' is not a UUID; write it as 12345678-9abc-def0-1234-56789abcdef0");
    let digits: Vec<u8> = text.bytes().filter(|byte| *byte != b'-').collect();
    let dashes = [8, 13, 18, 23].iter().all(|at| text.as_bytes().get(*at) == Some(&b'-'));
    if text.len() != 36 || !dashes || digits.len() != 32 {
        return Err(wrong());
    }
    let mut uuid = [0; 16];
    for (byte, pair) in uuid.iter_mut().zip(digits.chunks_exact(2)) {
        let pair = std::str::from_utf8(pair).map_err(|_| wrong())?;
        *byte = u8::from_str_radix(pair, 16).map_err(|_| wrong())?;
    }
    Ok(uuid)
}

/// What images are compressed by.
pub const COMPRESSIONS: [Algorithm; 4] = [Algorithm::Gzip, Algorithm::Lz4, Algorithm::Xz, Algorithm::Zstd];

fn parse_compression(text: &str) -> Result<Compression, String> {
    let (name, level) = match text.split_once(':') {
        Some((name, level)) => {
            let level = level.parse().map_err(|_| format!("'{level}' is not a compression level"))?;
            (name, Some(level))
        }
        None => (text, None),
    };
    let Some(algorithm) = COMPRESSIONS.into_iter().find(|algorithm| algorithm.name() == name) else {
        let known = COMPRESSIONS.map(Algorithm::name).join(", ");
        return Err(format!("'{name}' is not a compression; these are: {known}"));
    };
    Ok(Compression { algorithm, level })
}

/// A progress bar on a terminal; nothing elsewhere.
#[derive(Clone)]
struct Bar {
    bar: ProgressBar,
    files: Arc<AtomicU64>,
}

impl Bar {
    fn new(quiet: bool) -> Bar {
        let shown = !quiet && std::io::stderr().is_terminal();
        let target = if shown { ProgressDrawTarget::stderr() } else { ProgressDrawTarget::hidden() };
        Bar { bar: ProgressBar::with_draw_target(None, target), files: Arc::default() }
    }

    /// A stage begins.
    fn start(&self, stage: Stage, bytes: u64, files: u64) {
        if self.bar.is_hidden() {
            return;
        }
        let stage = match stage {
            Stage::Writing => "writing",
            Stage::Verifying => "reading back",
        };
        let template =
            format!("{stage} {{wide_bar}} {{bytes}} of {{total_bytes}}, {{files}} of {files} files, {{eta}}");
        self.files.store(0, Ordering::Relaxed);
        if let Ok(style) = ProgressStyle::with_template(&template) {
            let done = Arc::clone(&self.files);
            let write = move |_: &ProgressState, out: &mut dyn std::fmt::Write| {
                // A failure to draw is ignored.
                let _ = write!(out, "{}", done.load(Ordering::Relaxed));
            };
            self.bar.set_style(style.with_key("files", write));
        }
        self.bar.reset();
        self.bar.set_length(bytes);
        self.bar.enable_steady_tick(Duration::from_millis(100));
    }

    /// So much more of it is done.
    fn advance(&self, bytes: u64, files: u64) {
        self.files.fetch_add(files, Ordering::Relaxed);
        self.bar.inc(bytes);
    }
}
