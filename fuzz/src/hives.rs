//! A small hive of the registry, of which every part can be changed, and its logs: as the tests of the hives' reader make them.

#[path = "../../crates/hive/src/tests/build.rs"]
pub mod build;
#[path = "../../crates/hive/src/marvin.rs"]
mod marvin;

use std::sync::LazyLock;

/// A hive that was written back completely.
pub static SAMPLE: LazyLock<Vec<u8>> = LazyLock::new(build::sample);

/// Replaces bytes of a hive's cells, and of its header up to where the root and the length are. The header's checksum is right afterwards.
pub fn change(hive: &mut [u8], header: &[(u8, &[u8])], cells: &[(u16, &[u8])]) {
    for (at, bytes) in header {
        crate::image::replace(hive, usize::from(*at) % 48, &bytes[..bytes.len().min(48)]);
    }
    let cells_end = hive.len().saturating_sub(build::STRUCTURES).max(1);
    for (at, bytes) in cells {
        crate::image::replace(hive, build::STRUCTURES + usize::from(*at) % cells_end, &bytes[..bytes.len().min(512)]);
    }
    build::seal(hive);
}
