//! The commands in README.md and docs/, for the tests that parse and run them.

use std::fs;
use std::path::{Path, PathBuf};

/// Names of commands as sentences use them: as commands they would need more words.
pub const NAMES: [&str; 13] = [
    "inarch cache pull",
    "inarch cache push",
    "inarch cache show",
    "inarch disk format",
    "inarch disk write",
    "inarch mount --rw",
    "inarch run --stats",
    "inarch run --trace",
    "inarch run --via",
    "inarch serve 9p",
    "inarch serve blk",
    "inarch serve file",
    "inarch trace why",
];

/// Words that stand for what a reader has.
const PLACEHOLDERS: [&str; 15] = [
    "A", "B", "CMD", "COMMAND", "DIR", "DST", "FILE", "IMAGE", "NAME", "OPT", "OTHER", "PATH", "RESULTS", "SRC", "URL",
];

/// A command of a document.
pub struct Documented {
    /// Its line, counted from 1.
    pub line: usize,
    /// As it is written, without its prompt.
    pub text: String,
}

/// The documents in the project's directory.
pub fn documents(top: &Path) -> Vec<PathBuf> {
    let mut documents: Vec<_> = fs::read_dir(top.join("docs")).unwrap().map(|entry| entry.unwrap().path()).collect();
    documents.push(top.join("README.md"));
    documents.retain(|path| path.extension().is_some_and(|extension| extension == "md"));
    documents.sort();
    documents
}

/// The pieces of code in a document: the lines of its blocks, and what stands between backquotes.
pub fn pieces(text: &str) -> Vec<Documented> {
    let mut found = Vec::new();
    let mut is_fenced = false;
    for (at, line) in text.lines().enumerate() {
        is_fenced ^= line.starts_with("```");
        let is_block = is_fenced || line.starts_with("    ");
        // In a table a pipe is escaped.
        let line = line.replace("\\|", "|");
        let pieces: Vec<&str> = if is_block { vec![line.trim()] } else { line.split('`').skip(1).step_by(2).collect() };
        for piece in pieces {
            let text = piece.trim_start_matches("$ ").trim_start_matches("# ").to_owned();
            found.push(Documented { line: at + 1, text });
        }
    }
    found
}

/// The commands of this program in a document: pieces of code that begin with its name.
pub fn commands(text: &str) -> Vec<Documented> {
    let mut found = pieces(text);
    found.retain(|piece| piece.text.starts_with("inarch "));
    found
}

/// The words of a command up to the end of its pipeline's first part; nothing if it has a word that only a reader understands.
pub fn words(command: &str) -> Option<Vec<String>> {
    let (mut words, mut word, mut quote) = (Vec::new(), None::<String>, None);
    let mut letters = command.chars().peekable();
    while let Some(letter) = letters.next() {
        match (quote, letter) {
            (Some(open), letter) if letter == open => quote = None,
            (Some(_), letter) => word.get_or_insert_default().push(letter),
            (None, '\'' | '"') => {
                word.get_or_insert_default();
                quote = Some(letter);
            }
            (None, '\\') => word.get_or_insert_default().extend(letters.next()),
            // A remark follows at some distance.
            (None, ' ') if letters.peek() == Some(&' ') => break,
            (None, ' ') => words.extend(word.take()),
            (None, '|' | '&' | ';' | '>' | '<') => break,
            (None, '#') if word.is_none() => break,
            (None, letter) => word.get_or_insert_default().push(letter),
        }
    }
    words.extend(word);
    let is_for_readers = |word: &String| word.contains("...") || word.contains('[') || word.contains('(');
    (!words.iter().any(is_for_readers)).then_some(words)
}

/// Whether it is no more than the name of a command, perhaps with names of what that takes: `inarch serve blk`, `inarch mount DIR`.
pub fn is_name(words: &[String]) -> bool {
    let is_bare = words.len() < 3 && !words.iter().any(|word| word.starts_with('-'));
    is_bare || NAMES.contains(&words.join(" ").as_str()) || words.iter().any(|word| has_placeholder(word))
}

fn has_placeholder(word: &str) -> bool {
    let is_within = |letter: char| letter.is_ascii_alphanumeric() || "_$-".contains(letter);
    word.split(|letter: char| !is_within(letter)).any(|part| PLACEHOLDERS.contains(&part))
}
