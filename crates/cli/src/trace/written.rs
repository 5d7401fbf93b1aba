//! Writes files about a trace: each gets its name when it is complete.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use anyhow::{anyhow, ensure};
use inarch_jobs::trace::{self, Dependencies, TraceReport};
use inarch_jobs::{WholeFile, shown};

use crate::output::complain;

/// Writes a trace as lines of JSON, with digests if so wanted.
pub fn write_lines(report: &TraceReport, digests: bool, file: WholeFile) -> anyhow::Result<()> {
    write(file, false, |out| trace::lines(report, digests, out)).map(drop).map_err(not_written)
}

fn not_written(error: anyhow::Error) -> anyhow::Error {
    anyhow!("the trace: {error}")
}

/// The names in a state of the files that are written about a run.
const DEPFILE: &str = "depfile";
const JSON: &str = "json";

/// The files that are written about a run. They are opened before it: what cannot be written is known then.
pub struct Files {
    depfile: Option<NamedFile>,
    target: Option<PathBuf>,
    json: Option<NamedFile>,
    /// Whether digests are in the JSON.
    hash: bool,
}

/// A file, its path as it was given, and as an absolute one.
struct NamedFile {
    file: WholeFile,
    path: PathBuf,
    absolute: PathBuf,
}

impl Files {
    pub fn create(
        depfile: Option<PathBuf>,
        target: Option<PathBuf>,
        json: Option<PathBuf>,
        hash: bool,
        base: &Path,
    ) -> anyhow::Result<Files> {
        for (option, path) in [("-o", &depfile), ("--json", &json)] {
            let is_dash = path.as_ref().is_some_and(|path| path == Path::new("-"));
            ensure!(!is_dash, "{option} -: standard output is the command's; name a file (./- for one of that name)");
        }
        if let (Some(depfile), Some(json)) = (&depfile, &json) {
            let depfile = base.join(depfile);
            ensure!(depfile != base.join(json), "{}: -o and --json need a file each", shown(&depfile));
        }
        let open = |path: PathBuf| -> anyhow::Result<NamedFile> {
            Ok(NamedFile { file: WholeFile::create(&path)?, absolute: base.join(&path), path })
        };
        let (depfile, json) = (depfile.map(open).transpose()?, json.map(open).transpose()?);
        Ok(Files { depfile, target, json, hash })
    }

    /// Their absolute paths.
    pub fn paths(&self) -> Vec<PathBuf> {
        [&self.depfile, &self.json].into_iter().flatten().map(|named| named.absolute.clone()).collect()
    }

    /// Writes them; the dependency file only if the command succeeded. Returns the names that a state has for them, and their contents
    /// if they are kept.
    pub fn write(
        self,
        report: &TraceReport,
        base: &Path,
        is_kept: bool,
    ) -> anyhow::Result<Vec<(&'static str, Vec<u8>)>> {
        let mut contents = Vec::new();
        // A command that failed may not have come to all that it needs: what is known of the last success holds.
        if let Some(NamedFile { file, path, .. }) = self.depfile.filter(|_| report.status.success()) {
            let (target, output) = (self.target.as_deref(), trace::standard_output());
            let found = Dependencies::of(&report.touched, &report.inherited, target, output.as_deref(), base);
            if found.has_no_target() {
                let path = shown(&path);
                complain(format_args!("{path}: no target, as the command made nothing; --target PATH names one"));
            }
            let content = write(file, is_kept, |out| trace::depfile(&found, out))
                .map_err(|error| anyhow!("{}: cannot write the dependency file: {error}", shown(&path)))?;
            contents.push((DEPFILE, content));
        }
        if let Some(NamedFile { file, path, .. }) = self.json {
            let content = write(file, is_kept, |out| trace::lines(report, self.hash, out))
                .map_err(|error| anyhow!("{}: cannot write the trace: {error}", shown(&path)))?;
            contents.push((JSON, content));
        }
        Ok(contents)
    }

    /// Writes them as an earlier run did.
    pub fn write_again(self, earlier: &trace::Earlier) -> anyhow::Result<()> {
        for (named, name) in [(self.depfile, DEPFILE), (self.json, JSON)] {
            let content = earlier.files.iter().find(|(other, _)| other == name);
            if let (Some(NamedFile { file, .. }), Some((_, content))) = (named, content) {
                write(file, false, |out| out.write_all(content))
                    .map_err(|error| anyhow!("the {name} file: {error}"))?;
            }
        }
        Ok(())
    }
}

/// A file, and all that was written to it if it is to be kept.
struct Written<'f> {
    file: BufWriter<&'f File>,
    kept: Option<Vec<u8>>,
}

impl Write for Written<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write_all(bytes)?;
        self.kept.iter_mut().for_each(|kept| kept.extend_from_slice(bytes));
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.file.flush()
    }
}

/// Writes a file that gets its name when it is complete, or stays as it was. Returns its content if it is kept: it can be long.
fn write(
    file: WholeFile,
    is_kept: bool,
    make: impl FnOnce(&mut dyn Write) -> io::Result<()>,
) -> anyhow::Result<Vec<u8>> {
    let mut written = Written { file: BufWriter::new(file.file()), kept: is_kept.then(Vec::new) };
    make(&mut written)?;
    written.flush()?;
    let kept = written.kept.take().unwrap_or_default();
    drop(written);
    file.commit()?;
    Ok(kept)
}
