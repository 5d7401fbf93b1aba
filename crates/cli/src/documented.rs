//! Checks that the program parses each command in README.md and docs/.

use std::fs;
use std::path::Path;

use clap::Parser;
use clap::error::ErrorKind;

use crate::arguments::Arguments;

/// The commands of this program in a document: in code, until something that belongs to the shell.
fn commands(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut is_fenced = false;
    for line in text.lines() {
        is_fenced ^= line.starts_with("```");
        let is_block = is_fenced || line.starts_with("    ");
        // In a table a pipe is escaped.
        let line = line.replace("\\|", "|");
        let pieces: Vec<&str> = if is_block { vec![line.trim()] } else { line.split('`').skip(1).step_by(2).collect() };
        for piece in pieces {
            let piece = piece.trim_start_matches("$ ").trim_start_matches("# ");
            if piece.starts_with("inarch ") {
                found.push(piece.to_owned());
            }
        }
    }
    found
}

/// The words of a command up to the end of its pipeline's first part; nothing if it has a word that only a reader understands.
fn words(command: &str) -> Option<Vec<String>> {
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

#[test]
fn every_command_of_the_documents_is_understood() {
    let top = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut documents: Vec<_> = fs::read_dir(top.join("docs")).unwrap().map(|entry| entry.unwrap().path()).collect();
    documents.push(top.join("README.md"));
    let (mut checked, mut wrong) = (0, Vec::new());
    for document in documents.iter().filter(|path| path.extension().is_some_and(|extension| extension == "md")) {
        for command in commands(&fs::read_to_string(document).unwrap()) {
            let Some(words) = words(&command) else { continue };
            // The name of a command, perhaps with names of what it takes: `inarch mount DIR`.
            let is_name = words.iter().all(|word| !word.contains(['.', '/', ':', '~', '=']));
            checked += usize::from(!is_name);
            match Arguments::try_parse_from(words) {
                Ok(_) => {}
                Err(error) if matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) => {}
                Err(_) if is_name => {}
                Err(error) => {
                    let name = document.file_name().unwrap().display();
                    let reason = error.to_string();
                    wrong.push(format!("{name}: {command}: {}", reason.lines().next().unwrap_or_default()));
                }
            }
        }
    }
    assert!(checked > 150, "{checked}");
    assert!(wrong.is_empty(), "{} of {checked}:\n{}", wrong.len(), wrong.join("\n"));
}
