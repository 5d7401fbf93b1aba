//! What the user should know when a device is no longer used.

use std::path::Path;

use inarch_block::Device;

/// How many changed files are named; the rest are counted.
const NAMED: usize = 20;

/// One line for each file of `source` that changed while `device` was served, and for an overlay that ran full.
pub(crate) fn notes(device: &Device, source: &Path) -> Vec<String> {
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
    if events.overlay_out_of_space {
        lines.push("the disk that keeps the guest's writes was full: some failed; use --overlay-dir".to_owned());
    }
    lines
}
