//! Completion: verbs, and then what the verb's usage names: devices, paths in the guest, files of this machine.

use std::fs;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;

use inarch_jobs::shown;
use inarch_tree::FileType;

use super::Shell;
use super::lex::{escape, quoted, typed};
use super::verbs::Verb;

/// The most names of a directory that are looked at.
const MOST: usize = 20_000;

/// What could be typed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Candidate {
    /// As it is shown.
    pub shown: String,
    /// As it is typed.
    pub typed: String,
}

/// A word that fits, and whether more of it follows, as after a directory.
struct Fitting {
    word: Vec<u8>,
    goes_on: bool,
}

impl Fitting {
    fn word(word: impl AsRef<str>) -> Fitting {
        Fitting { word: word.as_ref().as_bytes().to_vec(), goes_on: false }
    }
}

/// What may follow a line: the place where the word begins, and the words that it can become.
pub fn complete(shell: &mut Shell, line: &str) -> (usize, Vec<Candidate>) {
    let Some(typed) = typed(line) else { return (line.len(), Vec::new()) };
    let mut fitting = words(shell, &typed.before, &typed.text);
    fitting.retain(|fitting| fitting.word.starts_with(&typed.text));
    fitting.sort_by(|one, other| one.word.cmp(&other.word));
    fitting.dedup_by(|one, other| one.word == other.word);
    // All of them are quoted if one is, so that they have a beginning in common.
    let text = |fitting: &Fitting| quoted(&fitting.word).starts_with('"');
    let are_quoted = typed.is_quoted || fitting.iter().any(text);
    let candidate = |fitting: Fitting| {
        let name = fitting.word.strip_suffix(b"/").unwrap_or(&fitting.word);
        let name = name.rsplit(|byte| *byte == b'/').next().filter(|_| fitting.word.starts_with(b"/"));
        let shown_word = shown(Path::new(std::ffi::OsStr::from_bytes(name.unwrap_or(&fitting.word))));
        let end = if fitting.goes_on { "/" } else { "" };
        let word = escape(&fitting.word);
        let typed = match (are_quoted, fitting.goes_on) {
            (true, true) => format!("\"{word}/"),
            (true, false) => format!("\"{word}\" "),
            (false, true) => format!("{word}/"),
            (false, false) => format!("{word} "),
        };
        Candidate { shown: shown_word + end, typed }
    };
    (typed.start, fitting.into_iter().map(candidate).collect())
}

fn words(shell: &mut Shell, before: &[std::ffi::OsString], text: &[u8]) -> Vec<Fitting> {
    // Verbs that run verbs have the inner one's words.
    let runs_others = |word: &std::ffi::OsString| ["time", "glob", "not"].iter().any(|name| word == name);
    let outer = before.iter().take_while(|word| runs_others(word)).count();
    let Some((name, words)) = before.get(outer..).unwrap_or_default().split_first() else {
        return Verb::all().flat_map(Verb::names).map(Fitting::word).collect();
    };
    let Some(verb) = name.to_str().and_then(Verb::named) else { return Vec::new() };
    let wanted = verb.words_at(words.len());
    let mut found = Vec::new();
    for kind in wanted.into_iter().flat_map(|wanted| wanted.split("-OR-")) {
        match kind {
            "DEVICE" | "PARTITION" | "ROOT" => found.extend(devices(shell, kind)),
            "PATH" | "DIR" | "PATTERN" => found.extend(of_guest(shell, text, kind == "DIR")),
            "IMAGE" | "LOCAL" | "LOCALDIR" => found.extend(of_host(text, kind == "LOCALDIR")),
            "VERB" => found.extend(Verb::all().flat_map(Verb::names).map(Fitting::word)),
            "TYPE" => found.extend(inarch_jobs::make_disk::tools::MAKERS.iter().map(|maker| Fitting::word(maker.format))),
            "GROUP" => found.extend(shell.session.groups().unwrap_or_default().iter().map(Fitting::word)),
            kind if kind.contains('|') => found.extend(kind.split('|').map(Fitting::word)),
            _ => {}
        }
    }
    found
}

/// Devices. What cannot be read has none.
fn devices(shell: &mut Shell, kind: &str) -> Vec<Fitting> {
    let session = &mut shell.session;
    let mut names = Vec::new();
    if kind == "ROOT" {
        names.extend(session.systems().unwrap_or_default().iter().map(|system| system.root.clone()));
    } else {
        names.extend(session.partitions().unwrap_or_default());
        if kind == "DEVICE" {
            names.extend(session.devices());
            for arrays in [true, false] {
                names.extend(session.above(arrays).unwrap_or_default().into_iter().map(|(name, _)| name));
            }
        }
    }
    names.iter().map(Fitting::word).collect()
}

/// The directory of a path that is typed: what comes up to its last slash.
fn directory(text: &[u8]) -> &[u8] {
    let end = text.iter().rposition(|byte| *byte == b'/').map_or(0, |at| at + 1);
    text.get(..end).unwrap_or_default()
}

/// Paths in what is mounted.
fn of_guest(shell: &Shell, text: &[u8], only_directories: bool) -> Vec<Fitting> {
    let above = directory(text);
    let Ok(guest) = shell.session.guest() else { return Vec::new() };
    if above.is_empty() {
        return vec![Fitting { word: Vec::new(), goes_on: true }];
    }
    let names = guest.names(Path::new(std::ffi::OsStr::from_bytes(above)), MOST).unwrap_or_default();
    let fits = |(name, _): &(Vec<u8>, _)| [above, &**name].concat().starts_with(text);
    let mut found = Vec::new();
    for (name, kind) in names.into_iter().filter(fits) {
        let word = [above, &*name].concat();
        // A link may lead to a directory.
        let leads_to = || {
            let path = Path::new(std::ffi::OsStr::from_bytes(&word));
            guest.look(path, inarch_volume::Last::Followed).ok().flatten()?.attributes.file_type()
        };
        let kind = if kind == Some(FileType::Symlink) { leads_to() } else { kind };
        let goes_on = kind == Some(FileType::Directory);
        if goes_on || !only_directories {
            found.push(Fitting { word, goes_on });
        }
    }
    found
}

/// Files of this machine.
fn of_host(text: &[u8], only_directories: bool) -> Vec<Fitting> {
    let above = directory(text);
    let path = Path::new(std::ffi::OsStr::from_bytes(above));
    let path = if above.is_empty() { Path::new(".") } else { path };
    let entries = fs::read_dir(path).into_iter().flatten().flatten().take(MOST);
    let fitting = |entry: fs::DirEntry| {
        let goes_on = entry.path().is_dir();
        let word = [above, &*entry.file_name().into_vec()].concat();
        (goes_on || !only_directories).then_some(Fitting { word, goes_on })
    };
    entries.filter_map(fitting).collect()
}
