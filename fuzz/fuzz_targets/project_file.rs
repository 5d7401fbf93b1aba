//! Any text as a project's file of options: it is read or refused in one line, within bounded time and memory.

#![no_main]

use inarch_jobs::run::ProjectFile;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &[u8]| {
    let in_table = [b"[run]\n", text].concat();
    for text in [text, &in_table] {
        match ProjectFile::parse("inarch.toml".into(), text) {
            Ok(file) => assert!(file.settings.iter().all(|setting| setting.line <= text.len() + 1)),
            Err(error) => assert_eq!(error.to_string().lines().count(), 1, "{error}"),
        }
    }
});
