//! If the host has no space for the overlay, writes fail with that error, and everything else is unchanged.

use std::fs;
use std::io::ErrorKind;
use std::path::Path;
use std::process::Command;

use crate::common::*;
use inarch_block::Overlay;

/// A small tmpfs, unmounted when dropped.
struct SmallDisk(tempfile::TempDir);

impl SmallDisk {
    /// `None`, with the reason printed, where mounting is not allowed.
    fn mount(test: &str, size: &str) -> Option<SmallDisk> {
        let dir = tempfile::tempdir().unwrap();
        let options = format!("size={size}");
        let mounted = Command::new("mount").args(["-t", "tmpfs", "-o", &options, "none"]).arg(dir.path()).output();
        match mounted {
            Ok(output) if output.status.success() => Some(SmallDisk(dir)),
            result => {
                eprintln!("skipped: {test}: a tmpfs cannot be mounted here: {result:?}");
                None
            }
        }
    }

    fn path(&self) -> &Path {
        self.0.path()
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("--lazy").arg(self.0.path()).status();
    }
}

const BLOCKS: u64 = 10_000;

fn check_full(overlay: Overlay) {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("f"), pattern(1, 3_000_000)).unwrap();
    let device = device_of(&scan(dir.path()), dir.path(), 64, Some(overlay), BLOCKS);
    let mut model = read(&device, 0, (BLOCKS * BLOCK) as usize).unwrap();
    let (mut at, mut failures) = (FIRST_FILE * BLOCK + 100, 0);
    for seed in 0..200 {
        let data = pattern(seed, 20_000);
        match write(&device, at, &data) {
            Ok(()) => model[at as usize..][..data.len()].copy_from_slice(&data),
            Err(error) => {
                assert!(matches!(error.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded), "{error}");
                failures += 1;
            }
        }
        at += 30_000;
    }
    assert!(failures > 10 && failures < 200, "{failures} writes failed");
    assert!(device.events().overlay_out_of_space);
    // Old bytes where writes failed (none of these clusters was in the overlay), new ones elsewhere. A failing write
    // does not change a cluster that it shares with another.
    assert!(read(&device, 0, model.len()).unwrap() == model);
    // Zeroing needs no space, and gives some back.
    device.discard(0, 3_000_000).unwrap();
    model[..3_000_000].fill(0);
    let data = pattern(7, 300_000);
    write(&device, 1_000_000, &data).unwrap();
    model[1_000_000..1_300_000].copy_from_slice(&data);
    assert!(read(&device, 0, model.len()).unwrap() == model);
}

#[test]
fn a_full_host_fails_writes_and_damages_nothing() {
    let Some(disk) = SmallDisk::mount("a_full_host_fails_writes_and_damages_nothing", "2m") else { return };
    check_full(Overlay::ephemeral(disk.path(), BLOCKS).unwrap());
}

#[test]
fn a_full_host_does_not_damage_a_kept_overlay() {
    let Some(disk) = SmallDisk::mount("a_full_host_does_not_damage_a_kept_overlay", "2m") else { return };
    check_full(Overlay::open_or_create(&disk.path().join("kept"), BLOCKS, [1; 32], 0).unwrap());
}
