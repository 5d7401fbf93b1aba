//! What the user should know when a device is no longer used.

use std::path::Path;

use inarch_block::Device;

/// How many changed files are named; the rest are counted.
const NAMED: usize = 20;

/// Free space may seem used up to the guest while this much is left: a mounted ext4 holds back up to 16 MiB for its own
/// growth, and its metadata is not all written yet.
const HELD_BACK: u64 = 20 << 20;

/// One line for each file of `source` that changed while `device` was served, and for an overlay that ran full.
///
/// `writable` is how many bytes the guest could write, where that is bounded.
pub(crate) fn notes(device: &Device, source: &Path, writable: Option<u64>) -> Vec<String> {
    let events = device.events();
    let changed = &events.changed;
    let mut lines: Vec<String> = (changed.named.iter().take(NAMED))
        .map(|file| {
            let path = source.join(&file.path);
            format!("{} read as an I/O error in the guest: {}", path.display(), file.reason)
        })
        .collect();
    if changed.count > lines.len() as u64 {
        lines.push(format!("so did {} more files that changed on the host", changed.count - lines.len() as u64));
    }
    let nearly = |bytes: u64| bytes.saturating_sub(HELD_BACK.max(bytes / 16));
    if events.overlay_out_of_space {
        lines.push(
            "the disk that keeps the guest's writes was full: some failed; free some, or use --overlay-dir".to_owned(),
        );
    } else if let Some(writable) = writable.filter(|bytes| events.overlay_bytes >= nearly(*bytes)) {
        let mib = writable >> 20;
        lines.push(format!(
            "the guest wrote all of its {mib} MiB of free space; free more on the host, or use --overlay-dir"
        ));
    }
    lines
}
