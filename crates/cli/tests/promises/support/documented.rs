//! The commands in README.md and docs/, for the tests that parse and run them.

use std::fs;
use std::path::{Path, PathBuf};

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

/// The commands of this program in a document: in code, until something that belongs to the shell.
pub fn commands(text: &str) -> Vec<Documented> {
    let mut found = Vec::new();
    let mut is_fenced = false;
    for (at, line) in text.lines().enumerate() {
        is_fenced ^= line.starts_with("```");
        let is_block = is_fenced || line.starts_with("    ");
        // In a table a pipe is escaped.
        let line = line.replace("\\|", "|");
        let pieces: Vec<&str> = if is_block { vec![line.trim()] } else { line.split('`').skip(1).step_by(2).collect() };
        for piece in pieces {
            let piece = piece.trim_start_matches("$ ").trim_start_matches("# ");
            if piece.starts_with("inarch ") {
                found.push(Documented { line: at + 1, text: piece.to_owned() });
            }
        }
    }
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

/// Whether it is the name of a command, perhaps with names of what that takes: `inarch mount DIR`.
pub fn is_name(words: &[String]) -> bool {
    words.iter().all(|word| !word.contains(['.', '/', ':', '~', '=']))
}
