//! Checks that the program parses each command in README.md and docs/.

#[path = "../tests/promises/support/documented.rs"]
mod found;

use std::fs;
use std::path::Path;

use clap::Parser;
use clap::error::ErrorKind;

use crate::arguments::Arguments;
use found::{commands, documents, is_name, words};

#[test]
fn every_command_of_the_documents_is_understood() {
    let top = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let (mut checked, mut wrong) = (0, Vec::new());
    for document in documents(&top) {
        for command in commands(&fs::read_to_string(&document).unwrap()) {
            let Some(words) = words(&command.text) else { continue };
            let is_name = is_name(&words);
            checked += usize::from(!is_name);
            match Arguments::try_parse_from(words) {
                Ok(_) => {}
                Err(error) if matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) => {}
                Err(_) if is_name => {}
                Err(error) => {
                    let name = document.file_name().unwrap().display();
                    let reason = error.to_string();
                    wrong.push(format!(
                        "{name}:{}: {}: {}",
                        command.line,
                        command.text,
                        reason.lines().next().unwrap_or_default()
                    ));
                }
            }
        }
    }
    assert!(checked > 150, "{checked}");
    assert!(wrong.is_empty(), "{} of {checked}:\n{}", wrong.len(), wrong.join("\n"));
}
