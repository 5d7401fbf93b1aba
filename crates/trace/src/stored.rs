//! Reads a trace that was written as lines of JSON. The file may come from anywhere.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::ffi::OsString;
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use inarch_kept::Bytes;
use inarch_lifecycle::PathError;
use serde::Deserialize;

use super::LineError;
use super::content::Content;
use super::lines::VERSION;
use crate::record::Identity;

/// The longest line, in bytes: one with the names in a directory.
const LONGEST_LINE: u64 = 64 << 20;

/// A trace that was read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoredTrace {
    /// The command's, if no signal and no limit of time ended it.
    pub status: Option<i32>,
    /// The signal that ended it.
    pub signal: Option<i32>,
    /// Whether `--timeout` ended it.
    pub timed_out: bool,
    /// What the command needed, by absolute path.
    pub inputs: BTreeMap<PathBuf, StoredInput>,
    /// What it changed, by absolute path.
    pub outputs: BTreeMap<PathBuf, StoredOutput>,
    /// The processes, if they were recorded, by number: one for each process that had it.
    pub processes: BTreeMap<u32, Vec<StoredProcess>>,
    /// What was not recorded.
    pub outside: Vec<PathBuf>,
}

/// A process of a trace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoredProcess {
    /// The number of its parent; 0 if unknown.
    pub parent: u32,
    /// What it was when it was first seen, and the commands that it executed since: program and arguments.
    pub commands: Vec<Vec<OsString>>,
}

/// An input of a trace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoredInput {
    /// The words for what it was used for.
    pub uses: Vec<String>,
    /// What a symbolic link leads to.
    pub target: Option<PathBuf>,
    /// The error of the first operation that failed.
    pub error: Option<String>,
    /// The processes that used it, if they were recorded.
    pub processes: Vec<u32>,
    pub(super) names: Option<Vec<Vec<u8>>>,
    pub(super) identity: Option<Identity>,
    pub(super) content: Content,
}

/// An output of a trace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoredOutput {
    /// The word for what became of it.
    pub change: String,
    /// The processes that changed it, if they were recorded.
    pub processes: Vec<u32>,
    pub(super) content: Content,
}

/// A line: the fields of all kinds of lines. Those of later versions are passed over.
#[derive(Deserialize)]
struct Line {
    trace: Option<u32>,
    status: Option<i32>,
    signal: Option<i32>,
    #[serde(default)]
    timed_out: bool,
    input: Option<Bytes>,
    #[serde(default)]
    uses: Vec<String>,
    target: Option<Bytes>,
    names: Option<Vec<Bytes>>,
    inode: Option<u64>,
    mode: Option<u32>,
    size: Option<u64>,
    mtime: Option<(i64, u32)>,
    #[serde(flatten)]
    content: Content,
    error: Option<String>,
    output: Option<Bytes>,
    #[serde(default)]
    change: String,
    process: Option<u32>,
    #[serde(default)]
    parent: u32,
    #[serde(default)]
    commands: Vec<Vec<Bytes>>,
    #[serde(default)]
    pids: Vec<u32>,
    outside: Option<Bytes>,
    end: Option<bool>,
}

impl StoredInput {
    /// Whether it was there.
    pub fn was_there(&self) -> bool {
        self.identity.is_some()
    }

    /// Bytes, of what was there.
    pub fn size(&self) -> Option<u64> {
        self.identity.map(|identity| identity.size)
    }

    pub(super) fn is_used_for(&self, word: &str) -> bool {
        self.uses.iter().any(|used| used == word)
    }

    pub(super) fn is(&self, kind: u32) -> bool {
        self.identity.is_some_and(|identity| identity.mode & libc::S_IFMT == kind)
    }
}

impl StoredTrace {
    /// Reads a trace.
    ///
    /// # Errors
    /// The file cannot be read, a line is none of a trace's, or the end is missing.
    pub fn read(path: &Path) -> Result<StoredTrace, LineError> {
        let file = File::open(path).map_err(|error| PathError::new(path, "cannot read it", error))?;
        StoredTrace::parse(BufReader::new(file), path)
    }

    /// Reads a trace from `text`; `path` is its name in errors.
    ///
    /// # Errors
    /// As of [`StoredTrace::read`].
    pub fn parse(mut text: impl BufRead, path: &Path) -> Result<StoredTrace, LineError> {
        let mut trace = StoredTrace::default();
        let mut line = Vec::new();
        for number in 1.. {
            line.clear();
            let length = (&mut text).take(LONGEST_LINE + 1).read_until(b'\n', &mut line);
            let length = length.map_err(|error| PathError::new(path, "cannot read it", error))?;
            let fail = |reason: String| LineError::new(path, number, reason);
            if length == 0 {
                return Err(LineError::new(path, 0, "it has no end: it is not complete, or no trace".to_owned()));
            }
            if length as u64 > LONGEST_LINE {
                return Err(fail(format!("longer than {} MiB", LONGEST_LINE >> 20)));
            }
            let line: Line = serde_json::from_slice(&line).map_err(|error| fail(reason(&error)))?;
            match (number, line.trace) {
                (1, Some(VERSION)) => {
                    (trace.status, trace.signal, trace.timed_out) = (line.status, line.signal, line.timed_out);
                }
                (1, Some(other)) => {
                    return Err(fail(format!("version {other} of a trace; this program knows {VERSION}")));
                }
                (1, None) => return Err(fail("not the first line of a trace".to_owned())),
                _ if line.end == Some(true) => {
                    let rest = text.fill_buf().map_err(|error| PathError::new(path, "cannot read it", error))?;
                    return if rest.is_empty() {
                        Ok(trace)
                    } else {
                        Err(fail("more follows the end of the trace".to_owned()))
                    };
                }
                _ => trace.add(line).map_err(fail)?,
            }
        }
        unreachable!("a file has no more lines than there are numbers")
    }

    fn add(&mut self, line: Line) -> Result<(), String> {
        let identity = match (line.inode, line.mode, line.size, line.mtime) {
            (Some(inode), Some(mode), Some(size), Some(mtime)) => Some(Identity { inode, mode, size, mtime }),
            (None, None, None, None) => None,
            _ => return Err("only some of inode, mode, size and mtime".to_owned()),
        };
        if let Some(path) = line.input {
            let input = StoredInput {
                uses: line.uses,
                target: line.target.map(|target| target.to_path()),
                error: line.error,
                names: line
                    .names
                    .map(|names| names.iter().map(|name| name.to_os_string().as_bytes().to_vec()).collect()),
                processes: line.pids,
                identity,
                content: line.content,
            };
            insert(&mut self.inputs, path.to_path(), input)
        } else if let Some(path) = line.output {
            insert(
                &mut self.outputs,
                path.to_path(),
                StoredOutput { change: line.change, processes: line.pids, content: line.content },
            )
        } else if let Some(number) = line.process {
            let words = |command: Vec<Bytes>| command.iter().map(Bytes::to_os_string).collect();
            let process =
                StoredProcess { parent: line.parent, commands: line.commands.into_iter().map(words).collect() };
            self.processes.entry(number).or_default().push(process);
            Ok(())
        } else {
            self.outside.extend(line.outside.map(|path| path.to_path()));
            Ok(())
        }
    }

    /// The paths that the command used as they were before, as a list of what to take of a tree to run it there: files, symbolic
    /// links, and directories that lead to none of the others.
    pub fn files(&self) -> Vec<&Path> {
        let used: Vec<&Path> =
            self.inputs.iter().filter(|(_, input)| input.was_there()).map(|(path, _)| &**path).collect();
        // Sorted by component: what is beneath a directory follows it.
        let leads_on = |(place, path): &(usize, &Path)| used.get(place + 1).is_some_and(|next| next.starts_with(path));
        used.iter().copied().enumerate().filter(|one| !leads_on(one)).map(|(_, path)| path).collect()
    }
}

fn insert<T>(paths: &mut BTreeMap<PathBuf, T>, path: PathBuf, value: T) -> Result<(), String> {
    if !path.is_absolute() {
        return Err("the path is not absolute".to_owned());
    }
    match paths.entry(path) {
        Entry::Vacant(place) => drop(place.insert(value)),
        Entry::Occupied(_) => return Err("the path is there twice".to_owned()),
    }
    Ok(())
}

/// The reason alone: each line is a text of its own.
fn reason(error: &serde_json::Error) -> String {
    let text = error.to_string();
    let place = format!(" at line {} column {}", error.line(), error.column());
    let what = text.strip_suffix(&place).unwrap_or(&text);
    format!("no line of a trace: {what} (column {})", error.column())
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;

    use super::*;

    fn parse(text: &str) -> Result<StoredTrace, String> {
        StoredTrace::parse(text.as_bytes(), Path::new("t.json")).map_err(|error| error.to_string())
    }

    const WHOLE: &str = r#"{"trace":1,"status":3,"accesses":9}
{"input":"/","uses":["found"],"inode":2,"mode":16877,"size":4096,"mtime":[1,0]}
{"input":"/a","uses":["found","listed"],"names":["b",[255]],"inode":3,"mode":16877,"size":4096,"mtime":[1,0]}
{"input":"/a/b","uses":["read"],"inode":4,"mode":33188,"size":7,"mtime":[-1,5],"sha256":"00"}
{"input":[47,255],"uses":["failed"],"error":"EACCES"}
{"input":"/link","uses":["followed"],"target":"a","inode":5,"mode":41471,"size":1,"mtime":[1,0]}
{"input":"/empty","uses":["found"],"inode":6,"mode":16877,"size":4096,"mtime":[1,0]}
{"output":"/out","change":"made","directory":true}
{"process":7,"parent":3,"commands":[["make"],["cc","-c",[255]]],"status":0}
{"process":7,"commands":[]}
{"outside":"/proc"}
{"later":"version"}
{"end":true}
"#;

    #[test]
    fn a_trace_is_read() {
        let trace = parse(WHOLE).unwrap();
        assert_eq!((trace.status, trace.inputs.len(), trace.outputs.len()), (Some(3), 6, 1));
        let read = &trace.inputs[Path::new("/a/b")];
        let identity = Identity { inode: 4, mode: 33_188, size: 7, mtime: (-1, 5) };
        assert_eq!((read.identity, read.content.sha256.as_deref()), (Some(identity), Some("00")));
        let names = trace.inputs[Path::new("/a")].names.clone();
        assert_eq!(names, Some(vec![b"b".to_vec(), b"\xff".to_vec()]));
        assert_eq!(trace.outputs[Path::new("/out")].change, "made");
        let made = StoredProcess { parent: 3, commands: trace.processes[&7][0].commands.clone() };
        assert_eq!(trace.processes[&7], [made, StoredProcess::default()]);
        assert_eq!(trace.processes[&7][0].commands[1][2], OsStr::from_bytes(b"\xff"));
        assert_eq!(trace.outside, [PathBuf::from("/proc")]);
        assert_eq!(trace.files(), ["/a/b", "/empty", "/link"].map(Path::new));
    }

    #[test]
    fn what_is_no_trace_is_refused() {
        let start = "{\"trace\":1,\"status\":0}\n";
        for (text, why) in [
            ("", "t.json: it has no end"),
            (start, "t.json: it has no end"),
            ("{\"trace\":1,\"status\":0}\n{\"end\":true}\n{\"end\":true}\n", "line 2: more follows the end"),
            ("{}\n", "line 1: not the first line"),
            ("{\"trace\":2}\n", "line 1: version 2"),
            ("garbage\n", "line 1: no line of a trace: expected value (column 1)"),
            (&format!("{start}{{\"input\":\"a\"}}\n"), "line 2: the path is not absolute"),
            (&format!("{start}{{\"input\":\"/a\"}}\n{{\"input\":\"/a\"}}\n"), "line 3: the path is there twice"),
            (&format!("{start}{{\"input\":\"/a\",\"mode\":1}}\n"), "line 2: only some of"),
            (&format!("{start}{{\"input\":[256]}}\n"), "line 2: no line of a trace"),
            (&format!("{start}{{\"input\":\"/a\",\"uses\":7}}\n"), "line 2: no line of a trace"),
            (&format!("{start}{}\n", "[".repeat(100_000)), "line 2: no line of a trace"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains(why), "{error}");
        }
    }

    #[test]
    fn a_line_without_end_needs_no_memory_without_end() {
        let text = std::io::BufReader::new(b"{\"trace\":1}\n".chain(std::io::repeat(b' ')));
        let error = StoredTrace::parse(text, Path::new("t.json")).unwrap_err().to_string();
        assert!(error.contains("line 2: longer than 64 MiB"), "{error}");
    }

    #[test]
    fn no_cut_and_no_flipped_byte_panics() {
        for at in 0..WHOLE.len() {
            assert!(parse(&WHOLE[..at]).is_err() || at == WHOLE.len() - 1, "{at}");
            let mut bytes = WHOLE.as_bytes().to_vec();
            for other in [b'"', b'{', b'9', 0xff] {
                bytes[at] = other;
                let _ = StoredTrace::parse(&*bytes, Path::new("t.json"));
            }
        }
    }
}
