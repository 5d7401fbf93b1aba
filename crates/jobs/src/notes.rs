//! Reports, when serving ends, the host's files that changed and an overlay that filled up.

use inarch_block::{ChangedFiles, Device};
use inarch_lifecycle::{counted, shown};
use inarch_source::Source;

/// How many changed files are named; the rest are counted.
const NAMED: usize = 20;

/// The guest may see a full disk while this much is free: a mounted ext4 reserves up to 16 MiB for its own growth,
/// and its metadata is not completely written yet.
const HELD_BACK: u64 = 20 << 20;

/// One line for each file of `source` that changed while `device` was served, and one for a full overlay.
///
/// `writable` is the number of bytes that the guest could write, if bounded.
pub(crate) fn notes(device: &Device, source: &Source, writable: Option<u64>) -> Vec<String> {
    let events = device.events();
    let changed = &events.changed;
    let mut lines: Vec<String> = (changed.named.iter().take(NAMED))
        .map(|file| {
            format!("{} read as an I/O error in the guest: {}", shown(&source.name_of(&file.path)), file.reason)
        })
        .collect();
    if changed.count > lines.len() as u64 {
        lines.push(format!(
            "so did {} that changed on the host",
            counted(changed.count - lines.len() as u64, "more file", "more files")
        ));
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
