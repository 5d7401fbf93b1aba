//! Lines on standard error.

mod lines;
pub mod time;

use std::borrow::Cow;
use std::fmt::Display;
use std::io::Write;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use lines::Writer;
pub use lines::limited;
pub use time::time;

/// Whether standard error is a log, whose reader asks when a line was said, and by which process.
static IS_LOG: AtomicBool = AtomicBool::new(false);

/// Prints a line on standard error. Ignores errors of writing.
pub fn say(line: impl Display) {
    let who = match IS_LOG.load(Ordering::Relaxed) {
        true => format!("{} inarch[{}]", time(SystemTime::now()), std::process::id()),
        false => "inarch".to_owned(),
    };
    // At once, for others may write to the same file.
    put(format!("{who}: {}\n", plain(&line.to_string())).into_bytes());
}

/// Prints a table on standard error, in one piece; in a log, line by line. Ignores errors of writing.
pub fn table(text: &str) {
    if IS_LOG.load(Ordering::Relaxed) {
        text.lines().for_each(say);
    } else {
        put(text.as_bytes().to_vec());
    }
}

fn put(bytes: Vec<u8>) {
    match WRITER.get() {
        Some(writer) => writer.write(bytes),
        None => drop(std::io::stderr().write_all(&bytes)),
    }
}

/// A text without what changes a terminal: many texts quote what others wrote, such as a project's file.
fn plain(text: &str) -> Cow<'_, str> {
    let is_wrong = |c: char| c.is_control() && c != '\n' && c != '\t';
    if !text.contains(is_wrong) {
        return text.into();
    }
    let escaped = |c: char| if is_wrong(c) { c.escape_default().to_string() } else { c.to_string() };
    text.chars().map(escaped).collect::<String>().into()
}

/// Writes lines without waiting for a reader.
static WRITER: OnceLock<Writer> = OnceLock::new();

/// How long a line waits for its reader, where a time limit holds.
const PATIENCE: Duration = Duration::from_secs(3);

/// Stops waiting for a reader of standard error: a time limit must hold even if a pipe stays full.
pub fn wait_for_no_reader() {
    if let Ok(writer) = Writer::start(std::io::stderr(), PATIENCE) {
        // One is enough.
        let _ = WRITER.set(writer);
    }
}

/// From now on standard error is a log.
pub fn say_in_log() {
    IS_LOG.store(true, Ordering::Relaxed);
}
