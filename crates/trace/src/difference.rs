//! Compares two traces.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use inarch_kept::Bytes;
use serde::Serialize;

use super::stored::{StoredInput, StoredOutput, StoredTrace};
use super::touched::Change;

/// What differs between two traces at one path, or of the commands.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Difference {
    /// The path, unless it is the command that differs.
    #[serde(serialize_with = "as_bytes", skip_serializing_if = "Option::is_none")]
    pub path: Option<PathBuf>,
    /// `input` or `output`; `status` of the commands.
    pub what: &'static str,
    /// `a` or `b` if only that trace has it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub only: Option<char>,
    /// What it was used for or what became of it, if only one has it; otherwise what differs.
    pub details: Vec<String>,
}

fn as_bytes<S: serde::Serializer>(path: &Option<PathBuf>, serializer: S) -> Result<S::Ok, S::Error> {
    path.as_deref().map(Bytes::path).serialize(serializer)
}

/// What differs between `a` and `b`: how the commands ended, then inputs and outputs, by path. A file that one command made and removed, and the other never
/// touched, is left out: such files have other names in each run.
pub fn differences(a: &StoredTrace, b: &StoredTrace) -> Vec<Difference> {
    let [was, is] = [a, b].map(|trace| match (trace.timed_out, trace.signal, trace.status) {
        (true, ..) => "timed out".to_owned(),
        (false, Some(signal), _) => format!("signal {signal}"),
        (false, None, status) => status.map_or("none".to_owned(), |status| status.to_string()),
    });
    let ends = (was != is).then(|| Difference {
        path: None,
        what: "status",
        only: None,
        details: vec![format!("{was} -> {is}")],
    });
    let mut found = compare("input", &a.inputs, &b.inputs, |input| input.uses.clone(), of_inputs);
    found.extend(compare("output", &a.outputs, &b.outputs, |output| vec![output.change.clone()], of_outputs));
    found.retain(|difference| {
        let (own, other) = match difference.only {
            Some('a') => (a, b),
            Some(_) => (b, a),
            None => return true,
        };
        difference.path.as_ref().is_none_or(|path| !is_temporary(own, path) || is_known(other, path))
    });
    ends.into_iter().chain(found).collect()
}

/// Whether the command made what is there, and it is gone again.
fn is_temporary(trace: &StoredTrace, path: &Path) -> bool {
    trace.outputs.get(path).is_some_and(|output| output.change == Change::Temporary.name())
        && trace.inputs.get(path).is_none_or(|input| !input.was_there())
}

fn is_known(trace: &StoredTrace, path: &Path) -> bool {
    trace.inputs.contains_key(path) || trace.outputs.contains_key(path)
}

fn compare<T>(
    what: &'static str,
    a: &BTreeMap<PathBuf, T>,
    b: &BTreeMap<PathBuf, T>,
    alone: impl Fn(&T) -> Vec<String>,
    both: impl Fn(&T, &T) -> Vec<String>,
) -> Vec<Difference> {
    let paths: BTreeSet<&PathBuf> = a.keys().chain(b.keys()).collect();
    let difference = |path: &PathBuf| {
        let (only, details) = match (a.get(path), b.get(path)) {
            (Some(own), None) => (Some('a'), alone(own)),
            (None, Some(own)) => (Some('b'), alone(own)),
            (Some(a), Some(b)) => (None, both(a, b)),
            (None, None) => return None,
        };
        let is_one = only.is_some() || !details.is_empty();
        is_one.then(|| Difference { path: Some(path.clone()), what, only, details })
    };
    paths.into_iter().filter_map(difference).collect()
}

fn of_inputs(a: &StoredInput, b: &StoredInput) -> Vec<String> {
    let mut details = Vec::new();
    let mut text = |what: &str, a: String, b: String| {
        if a != b {
            details.push(format!("{what} {a} -> {b}"));
        }
    };
    let uses = |input: &StoredInput| if input.uses.is_empty() { "none".to_owned() } else { input.uses.join(",") };
    text("uses", uses(a), uses(b));
    let error = |input: &StoredInput| input.error.clone().unwrap_or_else(|| "none".to_owned());
    text("error", error(a), error(b));
    let (Some(was), Some(is)) = (a.identity, b.identity) else { return details };
    text("mode", format!("{:o}", was.mode), format!("{:o}", is.mode));
    if let (Some(a), Some(b)) = (&a.target, &b.target) {
        text("target", inarch_lifecycle::shown(a), inarch_lifecycle::shown(b));
    }
    // Whoever adds a name to a directory changes its size and time, too.
    let is_directory = a.is(libc::S_IFDIR) && b.is(libc::S_IFDIR);
    match (&a.names, &b.names) {
        (Some(a), Some(b)) if is_directory => details.extend(of_names(a, b)),
        _ if is_directory && !(a.is_used_for("listed") && b.is_used_for("listed")) => {}
        _ => match (&a.content.sha256, &b.content.sha256) {
            (Some(a), Some(b)) if a == b => {}
            (Some(_), Some(_)) => details.push("content".to_owned()),
            _ => {
                text("size", was.size.to_string(), is.size.to_string());
                if was.mtime != is.mtime {
                    details.push("time".to_owned());
                }
                if was.inode != is.inode {
                    details.push("inode".to_owned());
                }
            }
        },
    }
    details
}

/// The names that only one directory has.
fn of_names(a: &[Vec<u8>], b: &[Vec<u8>]) -> Option<String> {
    let [was, is] = [a, b].map(|names| names.iter().collect::<BTreeSet<_>>());
    let (gone, new) = (was.difference(&is).count(), is.difference(&was).count());
    (gone + new > 0).then(|| format!("names -{gone} +{new}"))
}

fn of_outputs(a: &StoredOutput, b: &StoredOutput) -> Vec<String> {
    let mut details = Vec::new();
    if a.change != b.change {
        details.push(format!("{} -> {}", a.change, b.change));
    }
    if let (Some(a), Some(b)) = (&a.content.sha256, &b.content.sha256)
        && a != b
    {
        details.push("content".to_owned());
    }
    details
}

#[cfg(test)]
mod tests {
    use super::super::content::Content;
    use super::*;
    use crate::record::Identity;

    fn file(mode: u32, size: u64, sha256: Option<&str>) -> StoredInput {
        StoredInput {
            uses: vec!["read".to_owned()],
            identity: Some(Identity { inode: size, mode, size, mtime: (size as i64, 0) }),
            content: Content { sha256: sha256.map(str::to_owned), changed: false },
            ..StoredInput::default()
        }
    }

    fn details(a: StoredInput, b: StoredInput) -> Vec<String> {
        of_inputs(&a, &b)
    }

    #[test]
    fn a_digest_counts_more_than_a_time() {
        let (regular, directory) = (libc::S_IFREG | 0o644, libc::S_IFDIR | 0o755);
        assert_eq!(details(file(regular, 1, None), file(regular, 2, None)), ["size 1 -> 2", "time", "inode"]);
        assert_eq!(details(file(regular, 1, Some("0")), file(regular, 2, Some("0"))), [""; 0]);
        assert_eq!(details(file(regular, 1, Some("0")), file(regular, 1, Some("1"))), ["content"]);
        assert_eq!(details(file(regular, 1, None), file(regular | 0o111, 1, None)), ["mode 100644 -> 100755"]);
        let named = |size, names: &[&[u8]]| StoredInput {
            names: Some(names.iter().map(|name| name.to_vec()).collect()),
            ..file(directory, size, None)
        };
        assert_eq!(details(named(1, &[b"a", b"b"]), named(2, &[b"a", b"c"])), ["names -1 +1"]);
        assert_eq!(details(named(1, &[b"a", b"b"]), named(2, &[b"b", b"a"])), [""; 0]);
        assert_eq!(details(file(directory, 1, None), file(directory, 2, None)), [""; 0]);
    }

    #[test]
    fn what_only_one_has_is_told() {
        let (mut a, mut b) = (StoredTrace::default(), StoredTrace::default());
        let absent = StoredInput { uses: vec!["absent".to_owned()], ..StoredInput::default() };
        for (path, input) in [("/both", file(libc::S_IFREG, 1, None)), ("/a", absent.clone()), ("/new", absent)] {
            a.inputs.insert(path.into(), input);
        }
        b.inputs.insert("/both".into(), file(libc::S_IFREG, 1, None));
        b.inputs.insert("/new".into(), file(libc::S_IFREG, 1, None));
        b.outputs.insert("/b".into(), StoredOutput { change: "made".to_owned(), ..StoredOutput::default() });
        let told = |path: &str, what, only, details: &[&str]| Difference {
            path: Some(path.into()),
            what,
            only,
            details: details.iter().map(|detail| (*detail).to_owned()).collect(),
        };
        let expected = [
            told("/a", "input", Some('a'), &["absent"]),
            told("/new", "input", None, &["uses absent -> read"]),
            told("/b", "output", Some('b'), &["made"]),
        ];
        assert_eq!(differences(&a, &b), expected);
        let failed = StoredTrace { status: Some(1), ..StoredTrace::default() };
        let crashed = StoredTrace { signal: Some(11), ..StoredTrace::default() };
        let killed = StoredTrace { signal: Some(9), ..StoredTrace::default() };
        let late = StoredTrace { timed_out: true, ..StoredTrace::default() };
        for (a, b, text) in [
            (&failed, &crashed, "1 -> signal 11"),
            (&crashed, &killed, "signal 11 -> signal 9"),
            (&killed, &late, "signal 9 -> timed out"),
        ] {
            let status = Difference { path: None, what: "status", only: None, details: vec![text.to_owned()] };
            assert_eq!(differences(a, b), [status]);
            assert_eq!(differences(a, a), []);
        }
        assert_eq!(differences(&a, &a), []);
    }

    #[test]
    fn temporary_files_of_one_run_are_left_out() {
        let (mut a, mut b) = (StoredTrace::default(), StoredTrace::default());
        let temporary = || StoredOutput { change: "temporary".to_owned(), ..StoredOutput::default() };
        let absent = || StoredInput { uses: vec!["absent".to_owned()], ..StoredInput::default() };
        // Looked for before it is made, as with a name at random; there before and removed; looked for by the other one.
        for path in ["/tmp/1", "/was-there", "/looked-for"] {
            a.inputs.insert(path.into(), absent());
            a.outputs.insert(path.into(), temporary());
        }
        a.inputs.insert("/was-there".into(), file(libc::S_IFREG, 1, None));
        b.inputs.insert("/looked-for".into(), absent());
        b.outputs.insert("/tmp/2".into(), temporary());
        let found = differences(&a, &b);
        let told: Vec<_> =
            found.iter().map(|found| (found.path.as_deref().unwrap().to_str().unwrap(), found.what)).collect();
        assert_eq!(told, [("/was-there", "input"), ("/looked-for", "output"), ("/was-there", "output")]);
    }
}
