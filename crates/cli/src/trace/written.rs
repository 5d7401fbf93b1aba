//! Writes files about a trace: each gets its name when it is complete.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::process::ExitCode;

use anyhow::anyhow;
use inarch_jobs::WholeFile;
use inarch_jobs::trace::{self, TraceReport};

/// Writes a trace as lines of JSON, with digests if so wanted.
pub fn write_lines(report: &TraceReport, digests: bool, file: WholeFile) -> anyhow::Result<()> {
    write(file, false, |out| trace::lines(report, digests, out)).map(drop).map_err(not_written)
}

fn not_written(error: anyhow::Error) -> anyhow::Error {
    anyhow!("the trace: {error}")
}

/// The names in a state of the files that are written about a run.
pub const DEPFILE: &str = "depfile";
pub const JSON: &str = "json";

/// Writes the files about an earlier run.
pub fn written_again(
    earlier: &trace::Earlier,
    depfile: Option<WholeFile>,
    json: Option<WholeFile>,
) -> anyhow::Result<ExitCode> {
    for (file, name) in [(depfile, DEPFILE), (json, JSON)] {
        let content = earlier.files.iter().find(|(other, _)| other == name);
        if let (Some(file), Some((_, content))) = (file, content) {
            write(file, false, |out| out.write_all(content)).map_err(|error| anyhow!("the {name} file: {error}"))?;
        }
    }
    Ok(ExitCode::SUCCESS)
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
pub fn write(
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
