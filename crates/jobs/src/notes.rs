//! What the user should know when a device is no longer used.

mod lines;

use std::fmt::Display;
use std::io::Write;
use std::path::Path;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime};

use inarch_block::{ChangedFiles, Device};

use crate::source::Source;
use crate::state;
use lines::Writer;
pub use lines::limited;

/// How many changed files are named; the rest are counted.
const NAMED: usize = 20;

/// Free space may seem used up to the guest while this much is left: a mounted ext4 holds back up to 16 MiB for its own
/// growth, and its metadata is not all written yet.
const HELD_BACK: u64 = 20 << 20;

/// One line for each file of `source` that changed while `device` was served, and for an overlay that ran full.
///
/// `writable` is how many bytes the guest could write, where that is bounded.
pub(crate) fn notes(device: &Device, source: &Source, writable: Option<u64>) -> Vec<String> {
    let events = device.events();
    let changed = &events.changed;
    let mut lines: Vec<String> = (changed.named.iter().take(NAMED))
        .map(|file| {
            format!("{} read as an I/O error in the guest: {}", shown(&source.name_of(&file.path)), file.reason)
        })
        .collect();
    if changed.count > lines.len() as u64 {
        lines.push(format!("so did {} more files that changed on the host", changed.count - lines.len() as u64));
    }
    lines.extend(held(&events.held, source));
    if events.out_of_descriptors > 0 {
        let count = events.out_of_descriptors;
        lines.push(format!("{count} reads failed in the guest for want of file descriptors here; raise ulimit -n"));
    }
    let nearly = |bytes: u64| bytes - HELD_BACK.max(bytes / 16).min(bytes / 2);
    if events.overlay_out_of_space {
        lines.push(
            "the disk that keeps the guest's writes was full: some failed; free some, or use --overlay-dir, or for a \
             kept run another XDG_STATE_HOME"
                .to_owned(),
        );
    } else if let Some(writable) = writable.filter(|bytes| events.overlay_bytes >= nearly(*bytes)) {
        let mib = writable >> 20;
        lines.push(format!(
            "the guest wrote all of its {mib} MiB of free space; free more on the host, or use --overlay-dir, or for a \
             kept run another XDG_STATE_HOME"
        ));
    }
    lines
}

/// The line for files that changed, and that the guest read as they were.
fn held(held: &ChangedFiles, source: &Source) -> Option<String> {
    /// How many are named.
    const NAMED: usize = 3;
    let names = held.named.iter().take(NAMED).map(|file| shown(&source.name_of(&file.path)));
    let names = names.collect::<Vec<_>>().join(", ");
    let who = match held.count.saturating_sub(NAMED as u64) {
        0 => names,
        more => format!("{names} and {more} more"),
    };
    let what = if held.count == 1 { "it as it was" } else { "them as they were" };
    (held.count > 0).then(|| format!("{who} changed on the host; the guest read {what} when the run began"))
}

/// A number of things: `1 file`, `2 files`.
pub fn counted(number: impl Into<u64>, one: &str, many: &str) -> String {
    let number = number.into();
    format!("{number} {}", if number == 1 { one } else { many })
}

/// A path as it is safe to print: names in a tree may hold line breaks and a terminal's control sequences.
pub fn shown(path: &Path) -> String {
    let text = path.to_string_lossy();
    text.chars().map(|c| if c.is_control() { c.escape_default().to_string() } else { c.to_string() }).collect()
}

/// Whether standard error is a log, whose reader asks when a line was said, and by which process.
static IS_LOG: AtomicBool = AtomicBool::new(false);

/// Says a line on standard error. If nobody can hear it, it is not worth a failure.
pub fn say(line: impl Display) {
    let who = match IS_LOG.load(Ordering::Relaxed) {
        true => format!("{} inarch[{}]", state::time(SystemTime::now()), std::process::id()),
        false => "inarch".to_owned(),
    };
    // At once, for others may write to the same file.
    let line = format!("{who}: {line}\n").into_bytes();
    match WRITER.get() {
        Some(writer) => writer.write(line),
        None => drop(std::io::stderr().write_all(&line)),
    }
}

/// Writes lines where nobody's reading is waited for.
static WRITER: OnceLock<Writer> = OnceLock::new();

/// How long a line waits for its reader, where a time limit holds.
const PATIENCE: Duration = Duration::from_secs(3);

/// From now on a line that nobody reads holds up nothing: a pipe may stay full for ever, and a time limit must hold.
pub fn wait_for_no_reader() {
    if let Ok(writer) = Writer::start(std::io::stderr(), PATIENCE) {
        // One is enough.
        let _ = WRITER.set(writer);
    }
}

/// From now on standard error is a log.
pub(crate) fn say_in_log() {
    IS_LOG.store(true, Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_cannot_play_tricks_with_a_terminal() {
        assert_eq!(shown(Path::new("/a b/ü\u{1b}]0;x\u{7}\n")), "/a b/ü\\u{1b}]0;x\\u{7}\\n");
    }
}
