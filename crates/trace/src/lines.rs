//! A trace as lines of JSON.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::ExitStatusExt;

use inarch_kept::Bytes;
use serde::Serialize;

use super::TraceReport;
use super::content::{Content, content};
use super::statistics::{Calls, Statistics};
use super::touched::{Change, Input, Output};
use crate::record::{Identity, error_name};

/// The version of this format.
pub(super) const VERSION: u32 = 1;

/// The first line.
#[derive(Serialize)]
struct Start {
    trace: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    signal: Option<i32>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    timed_out: bool,
    accesses: u64,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    lacks_processes: bool,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    lacks_paths: bool,
}

#[derive(Serialize)]
struct InputLine<'l> {
    input: Bytes,
    uses: Vec<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    target: Option<Bytes>,
    #[serde(skip_serializing_if = "Option::is_none")]
    names: Option<Vec<Bytes>>,
    #[serde(flatten)]
    identity: Option<Identity>,
    #[serde(flatten)]
    content: Option<Content>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<&'l str>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pids: Vec<u32>,
}

#[derive(Serialize)]
struct OutputLine {
    output: Bytes,
    change: &'static str,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    directory: bool,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pids: Vec<u32>,
    #[serde(flatten)]
    content: Option<Content>,
}

#[derive(Serialize)]
struct ProcessLine {
    process: u32,
    #[serde(skip_serializing_if = "is_unknown")]
    parent: u32,
    commands: Vec<Vec<Bytes>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    signal: Option<i32>,
}

fn is_unknown(process: &u32) -> bool {
    *process == 0
}

/// Numbers are seconds, calls and bytes.
#[derive(Serialize)]
struct StatisticsLine<'l> {
    requests: BTreeMap<&'l str, u64>,
    #[serde(flatten)]
    calls: Option<Calls>,
    elapsed: f64,
    processor_time: f64,
}

#[derive(Serialize)]
struct TreeLine {
    tree: Bytes,
    way: &'static str,
    recorded: &'static str,
}

#[derive(Serialize)]
struct OutsideLine {
    outside: Bytes,
    #[serde(skip_serializing_if = "Option::is_none")]
    descriptor: Option<u32>,
}

#[derive(Serialize)]
struct End {
    end: bool,
}

/// Writes a line for each input, each output, each process that is known, each tree of a run, and each path whose content was not recorded. The first line has the
/// command's status; the last one says that the trace is complete. With `digests` the files of inputs whose content was used
/// and of outputs that are there are read, and have a SHA-256 digest.
///
/// # Errors
/// Those of `out`.
pub fn lines(report: &TraceReport, digests: bool, out: &mut dyn Write) -> io::Result<()> {
    let timed_out = report.is_timed_out;
    let (status, signal) = if timed_out { (None, None) } else { (report.status.code(), report.status.signal()) };
    let (accesses, lacks_processes, lacks_paths) = (report.accesses, report.lacks_processes, report.touched.lacks());
    line(out, &Start { trace: VERSION, status, signal, timed_out, accesses, lacks_processes, lacks_paths })?;
    for input in report.touched.inputs() {
        let error = input.error.map(error_name);
        let identity = input.identity.map(Identity::from);
        let names = input.names().map(|names| names.map(|name| Bytes::new(name.as_bytes())).collect());
        let pids = input.processes().collect();
        let Input { path, target, .. } = input;
        let uses = input.uses().map(super::Use::name).collect();
        let (input_path, target) = (Bytes::path(path), target.map(Bytes::path));
        // Without an identity the first access to its content changed it.
        let changed = Content { sha256: None, changed: true };
        let known = |recorded| content(path, Some(recorded));
        let content = (digests && input.is_content()).then(|| input.identity.map_or(changed, known));
        let error = error.as_deref();
        line(out, &InputLine { input: input_path, uses, target, names, identity, content, error, pids })?;
    }
    for output in report.touched.outputs() {
        let pids = output.processes().collect();
        let Output { path, change, is_directory: directory, .. } = output;
        let is_file = matches!(change, Change::Made | Change::Written) && !directory;
        let content = (digests && is_file).then(|| content(path, None));
        line(out, &OutputLine { output: Bytes::path(path), change: change.name(), directory, content, pids })?;
    }
    for super::TracedProcess { number, parent, commands, status } in &report.processes {
        let words = |command: &Vec<OsString>| command.iter().map(|word| Bytes::new(word.as_bytes())).collect();
        let (process, parent, commands) = (*number, *parent, commands.iter().map(words).collect());
        let (status, signal) = (status.and_then(|status| status.code()), status.and_then(|status| status.signal()));
        line(out, &ProcessLine { process, parent, commands, status, signal })?;
    }
    let Statistics { requests, calls, elapsed, processor_time } = &report.statistics;
    if !requests.is_empty() {
        let mut by_kind = BTreeMap::new();
        requests.iter().for_each(|(kind, count)| *by_kind.entry(*kind).or_default() += count);
        let (elapsed, processor_time) = (elapsed.as_secs_f64(), processor_time.as_secs_f64());
        line(out, &StatisticsLine { requests: by_kind, calls: *calls, elapsed, processor_time })?;
    }
    for super::TracedTree { destination, way, extent } in &report.trees {
        line(out, &TreeLine { tree: Bytes::path(destination), way, recorded: extent.name() })?;
    }
    for path in &report.outside {
        line(out, &OutsideLine { outside: Bytes::path(path), descriptor: None })?;
    }
    for super::Inherited { descriptor, path, .. } in &report.inherited {
        line(out, &OutsideLine { outside: Bytes::path(path), descriptor: Some(*descriptor) })?;
    }
    line(out, &End { end: true })
}

fn line(out: &mut dyn Write, content: &impl Serialize) -> io::Result<()> {
    serde_json::to_writer(&mut *out, content)?;
    out.write_all(b"\n")
}
