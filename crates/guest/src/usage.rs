//! `df`: how full the file systems of a disk are, without a mount.

use inarch_disk::DiskVolume;
use inarch_format::Damage;
use inarch_source::{OpenError, Source};
use inarch_volume::Statistics;

/// How full a file system is.
#[derive(Clone, Debug)]
pub struct Usage {
    /// The name of its volume.
    pub name: String,
    /// Bytes of the volume.
    pub size: u64,
    /// Its format, if that is known.
    pub format: Option<&'static str>,
    /// Its label.
    pub label: Option<String>,
    /// The numbers, or why they cannot be read; `None` for what is no file system that inarch reads.
    pub numbers: Option<Result<Statistics, String>>,
}

/// The volumes of a disk image, and how full their file systems are. For an image of one file system, that.
///
/// # Errors
/// The image cannot be opened.
pub fn usage(source: &Source) -> Result<Vec<Usage>, OpenError> {
    let of = |volume: &DiskVolume, numbers| Usage {
        name: volume.name(),
        size: volume.backing.size(),
        format: volume.content().map(|content| content.format),
        label: volume.content().and_then(|content| content.label.clone()),
        numbers,
    };
    inarch_source::with_volumes(source, |parsing, volumes, named| {
        let usage = |volume: &DiskVolume| {
            let opened = inarch_source::file_system(parsing, volume, Damage::Salvaged).transpose();
            of(volume, opened.map(|opened| opened.map(|volume| volume.statistics()).map_err(|error| error.to_string())))
        };
        volumes.iter().filter(|volume| named(volume)).map(usage).collect()
    })
}
