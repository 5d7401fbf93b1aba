//! `inarch image`: writes a tree in some format.
//!
//! 1. The source is opened: a tree and its content.
//! 2. The format plans the image, and reports what it cannot hold. Nothing is written before.
//! 3. The output is opened: a nameless file, a block device, or a pipe (`output`).
//! 4. All processors write the plan. A file of the tree that changes meanwhile ends the job.
//! 5. With `verify`, the image is read back and compared.
//! 6. The file gets its name.

mod error;
mod event;
mod handle;
mod output;
mod write;

pub(crate) use write::StreamParts;

use std::io;
use std::num::NonZero;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Instant;

use inarch_block::{BLOCK_SIZE, Content, WriteError, usual_threads};
use inarch_format::{Format, ImageOptions, Layout, Planned, format_by_extension, format_by_name, formats};
use inarch_lifecycle::confinement::{Confinement, Work};
use inarch_lifecycle::descriptors;
use inarch_lifecycle::shown;
use inarch_source::{Opened, Source, open};
use inarch_tree::select::Selection;
use inarch_tree::{FileType, InodeId, Tree};
use serde::Serialize;

use crate::JobError;
pub use error::ImageError;
pub use event::{ImageEvent, Stage};
pub(crate) use handle::make_of;
use handle::{Duty, DutyProgress};
pub use handle::{ImageHandle, make, start};
use output::Output;
use write::Job;

/// What to write, and where.
#[derive(Clone, Debug)]
pub struct ImageRequest {
    /// The source of its tree.
    pub source: Source,
    /// What to take of the source.
    pub selection: Selection,
    /// Where the image goes; `-` is standard output.
    pub output: PathBuf,
    /// The format's name; by default from the output's extension.
    pub format: Option<String>,
    /// The properties of the image.
    pub options: ImageOptions,
    /// Read the image back and compare it with the source.
    pub verify: bool,
    /// Wait until the image is on stable storage.
    pub sync: bool,
}

impl ImageRequest {
    /// A request for all of `source`, in the format that the name of `output` implies.
    pub fn new(source: Source, output: PathBuf) -> ImageRequest {
        let (selection, options) = (Selection::default(), ImageOptions::default());
        ImageRequest { source, selection, output, format: None, options, verify: false, sync: false }
    }
}

/// The result of a job.
#[derive(Clone, Debug, Serialize)]
pub struct ImageReport {
    /// The source.
    pub source: String,
    /// The image.
    pub output: String,
    /// Its format.
    pub format: &'static str,
    /// Names below the root.
    pub entries: u64,
    /// Regular files with content.
    pub files: u64,
    /// Bytes of their content, without holes.
    pub content_bytes: u64,
    /// Bytes of the image, holes included.
    pub image_bytes: u64,
    /// Bytes of it that were written.
    pub written_bytes: u64,
    /// Bytes of it that are shared with the source's files.
    pub shared_bytes: u64,
    /// Whether it was read back and compared.
    pub verified: bool,
    /// Seconds that it took.
    pub seconds: f64,
    /// What the user should know: what was left out, and what the format cannot hold.
    pub notes: Vec<String>,
}

/// Writes an image of the request's source, or of `opened` if that is a part of it which is open.
fn write(request: &ImageRequest, opened: Option<Opened>, duty: &Duty) -> Result<ImageReport, JobError> {
    descriptors::make_room();
    let started = Instant::now();
    if request.output.is_dir() {
        return Err(ImageError::Directory { output: request.output.clone() }.into());
    }
    let format = choose(request)?;
    let is_listed = request.selection.only.is_some();
    if !is_listed {
        refuse_output_in_source(request)?;
    }
    let opened = match opened {
        Some(opened) => opened,
        None => open(&request.source, &request.selection)?,
    };
    if is_listed && has_output(request, &opened.tree) {
        refuse_output_in_source(request)?;
    }
    let Opened { tree, content, report, notes: source_notes, .. } = opened;
    // An image is complete or does not exist, so a file that changes does no more harm within metadata.
    let mut options = ImageOptions { inline_files: true, ..request.options.clone() };
    if options.threads == 0 {
        // The writing threads may be confined and unable to find out.
        options.threads = thread::available_parallelism().map_or(1, NonZero::get);
    }
    let Planned { layout, notes } =
        format.plan(&tree, &options).map_err(|error| JobError::Format { from: request.source.clone(), error })?;
    let (files, content_bytes) = stored_bytes(&tree, 1);
    // A file system stores files in whole blocks.
    let unit = if matches!(layout, Layout::Blocks(_)) { BLOCK_SIZE as u64 } else { 1 };
    let (_, work) = stored_bytes(&tree, unit);
    let output = Output::open(&request.output, &duty.events)?;
    let threads = if request.options.threads == 0 { usual_threads() } else { request.options.threads };
    let confinement = request.source.is_foreign().then(|| Confinement::new(Work::Image));
    let job = Job {
        layout: &layout,
        content: &*content,
        progress: &DutyProgress(duty),
        threads,
        confinement: confinement.as_ref(),
    };
    duty.events.emit(ImageEvent::Stage { stage: Stage::Writing, bytes: work, files });
    let done = job.write(&output).and_then(|done| {
        if request.sync || matches!(output, Output::Device { .. }) {
            output.sync().map_err(|error| WriteError::Output { offset: 0, error })?;
        }
        if request.verify {
            duty.events.emit(ImageEvent::Stage { stage: Stage::Verifying, bytes: work, files });
            job.verify(&output, done.length)?;
        }
        Ok(done)
    });
    let done = match done {
        Ok(done) => done,
        Err(WriteError::Cancelled) => return Err(ImageError::Stopped.into()),
        Err(error) => return Err(explain(request, &*content, error).into()),
    };
    if duty.stop.is_stopped() {
        return Err(ImageError::Stopped.into());
    }
    output.finish()?;
    Ok(ImageReport {
        source: request.source.to_string(),
        output: shown(&request.output),
        format: format.name(),
        entries: u64::from(tree.entry_count()),
        files,
        content_bytes,
        image_bytes: done.length,
        written_bytes: done.written.copied,
        shared_bytes: done.written.shared,
        verified: request.verify,
        seconds: started.elapsed().as_secs_f64(),
        notes: crate::plan::left_out(&report)
            .into_iter()
            .chain(request.source.named(&source_notes))
            .chain(notes)
            .collect(),
    })
}

/// The format that was named, or that the output's name implies.
fn choose(request: &ImageRequest) -> Result<&'static dyn Format, ImageError> {
    let names: Vec<_> = formats().iter().map(|format| format.name()).collect();
    let known = names.join(", ");
    let output = &request.output;
    let named = match &request.format {
        Some(name) => {
            Some(format_by_name(name).ok_or_else(|| ImageError::Format { name: name.clone(), known: known.clone() })?)
        }
        None => None,
    };
    if let Some(program) = compressor(output) {
        let inner = named.or_else(|| format_by_extension(Path::new(output.file_stem().unwrap_or_default())));
        let format = inner.map_or("tar", |format| format.name());
        return Err(ImageError::Compressed { output: output.clone(), format, program });
    }
    named.or_else(|| format_by_extension(output)).ok_or_else(|| match output {
        output if output == Path::new("-") => ImageError::NoFormatOfOutput { known },
        output => ImageError::NoFormat { output: output.clone(), known },
    })
}

/// The program that makes the kind of compressed file that the output's name implies. Inarch writes no such file: that program
/// compresses a pipe. Inarch also writes no uncompressed file of such a name, because programs would fail to open it.
pub fn compressor(output: &Path) -> Option<&'static str> {
    const PROGRAMS: [(&str, &[&str]); 10] = [
        ("gzip", &["gz", "tgz", "taz"]),
        ("zstd", &["zst", "tzst", "zstd"]),
        ("xz", &["xz", "txz"]),
        ("bzip2", &["bz2", "tbz", "tbz2", "tz2"]),
        ("lz4", &["lz4"]),
        ("xz --format=lzma", &["lzma", "tlz"]),
        ("lzip", &["lz"]),
        ("lzop", &["lzo"]),
        ("compress", &["Z"]),
        ("brotli", &["br"]),
    ];
    let extension = output.extension()?;
    let is_of = |names: &[&str]| names.iter().any(|name| extension.eq_ignore_ascii_case(name));
    PROGRAMS.into_iter().find(|(_, names)| is_of(names)).map(|(program, _)| program)
}

/// An image within its own source would change the source, and be part of the next image.
fn refuse_output_in_source(request: &ImageRequest) -> Result<(), ImageError> {
    let output = &request.output;
    // The target of a symlink is what would be replaced.
    let target = if output.is_symlink() { output.canonicalize().ok() } else { None };
    let target = target.as_deref().unwrap_or(output);
    if output == Path::new("-") || !request.source.takes_in(target, request.selection.cross) {
        return Ok(());
    }
    let what = match request.source {
        Source::Directory(_) => "lies in the source, and would change it",
        _ => "is the source",
    };
    Err(ImageError::InSource { output: output.clone(), what })
}

/// Whether the output is in a tree that was taken by a list; an output that the list leaves out may lie in the source.
fn has_output(request: &ImageRequest, tree: &Tree) -> bool {
    let Source::Directory(source) = &request.source else { return true };
    let (Ok(output), Ok(source)) = (request.output.canonicalize(), source.canonicalize()) else { return false };
    output.strip_prefix(source).is_ok_and(|below| tree.lookup(below.as_os_str().as_bytes()).is_some())
}

/// How many files of a tree have content, and their bytes rounded up to multiples of `unit`.
pub(crate) fn stored_bytes(tree: &Tree, unit: u64) -> (u64, u64) {
    let whole = |length: u64| length.next_multiple_of(unit);
    let bytes = |id: InodeId, size| match tree.sparse_ranges(id) {
        Some(ranges) => ranges.iter().map(|range| whole(range.length)).sum(),
        None => whole(size),
    };
    let files = tree.inodes().filter(|(_, inode)| inode.file_type() == FileType::Regular);
    let bytes = files.map(|(id, inode)| bytes(id, inode.size())).filter(|bytes| *bytes > 0);
    bytes.fold((0, 0), |(files, sum), bytes| (files + 1, sum + bytes))
}

/// The error that ended the job.
fn explain(request: &ImageRequest, content: &dyn Content, error: WriteError) -> ImageError {
    let output = request.output.clone();
    let changed = content.changed();
    if let (WriteError::Content { .. }, Some(file)) = (&error, changed.named.first()) {
        let (path, reason) = (request.source.name_of(&file.path), file.reason.clone());
        return ImageError::Changed { path, reason };
    }
    if content.out_of_descriptors() > 0 {
        return ImageError::Descriptors;
    }
    match error {
        WriteError::Output { error, .. } if error.kind() == io::ErrorKind::StorageFull => ImageError::Full { output },
        WriteError::Output { error, .. } if error.kind() == io::ErrorKind::InvalidData => {
            ImageError::Unusable { output, error }
        }
        WriteError::Output { offset, error } => ImageError::Write { output, offset, error },
        error => ImageError::Failed { output, error },
    }
}
