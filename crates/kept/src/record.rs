//! The record of a kept run, besides its disks: `run.json`.

use std::collections::HashMap;
use std::fs::{self, File};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::bytes::Bytes;
use super::clock::now;
use super::limits::VERSION;
use super::owners::OwnersBack;
use super::volume::VolumeId;
use crate::KeptError;

/// A kept run, as `run.json` holds it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Record {
    /// The version of this format.
    pub version: u32,
    /// Seconds since 1970.
    pub created: u64,
    /// When it was last used, in seconds since 1970.
    pub used: u64,
    /// The last command.
    pub command: Vec<Bytes>,
    /// How it ended, as a shell would say it; nothing while it runs and where the run was killed.
    pub status: Option<u8>,
    /// The trees, the root's first.
    pub trees: Vec<KeptTree>,
    /// Where the guest of the last command had trees that are not kept.
    #[serde(default)]
    pub beside: Vec<Bytes>,
    /// The words of the command line that created the run, for its trees.
    pub words: Vec<Bytes>,
    /// The directory in which those words were given.
    pub directory: Bytes,
    /// The directory that the command was run in, as far as the trees follow from it.
    pub place: Option<Bytes>,
    /// An apply that began and has not ended.
    pub applying: Option<Applying>,
    /// Everything was applied: the next command begins with the trees as they are then.
    #[serde(default)]
    pub applied: Option<Applied>,
    /// What applies of this run made on the host.
    #[serde(default)]
    pub made: Option<Made>,
}

impl Record {
    /// A run that has just begun, of nothing yet.
    pub fn begun() -> Record {
        Record {
            version: VERSION,
            created: now(),
            used: now(),
            command: Vec::new(),
            status: None,
            trees: Vec::new(),
            beside: Vec::new(),
            words: Vec::new(),
            directory: Bytes::new(b"/"),
            place: None,
            applying: None,
            applied: None,
            made: None,
        }
    }
}

impl Record {
    /// The record after a failed sync: what applies made may be torn, as after a reboot.
    pub fn in_doubt(self) -> Record {
        let applied = self.applied.map(|applied| Applied { boot: UNKNOWN_BOOT.to_owned(), ..applied });
        let made = self.made.map(|made| Made { boot: UNKNOWN_BOOT.to_owned(), ..made });
        Record { applied, made, ..self }
    }
}

/// A boot ID that no boot has.
pub(super) const UNKNOWN_BOOT: &str = "";

/// A tree of a kept run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct KeptTree {
    source: Bytes,
    destination: Bytes,
    /// The guest cannot write to it: it has neither overlay nor base.
    pub read_only: bool,
    /// The disk's number in the run.
    pub ordinal: u8,
    /// Maps owners in the guest back to owners on the host.
    pub owners: OwnersBack,
    /// Whether it includes mounts below.
    pub cross: bool,
    /// The file system that it is on, if known.
    #[serde(default)]
    pub volume: Option<VolumeId>,
}

/// An apply that began and has not ended.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Applying {
    /// Makes its temporary names unique.
    pub token: String,
    /// Paths in the guest that it leaves alone.
    pub conflicts: Vec<Bytes>,
    /// Paths in the guest that it was asked for; everything if there are none.
    pub paths: Vec<Bytes>,
    /// What the host had where force was to replace it.
    #[serde(default)]
    pub forced: Vec<TouchedFile>,
}

/// An apply after which nothing was left to be applied.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Applied {
    /// The start of the machine that it happened after, as `/proc/sys/kernel/random/boot_id` names it.
    pub boot: String,
    /// The mounts that it wrote to ([`mount_of`](super::volume::mount_of)): the tree's ordinal, a path in the tree that is
    /// on the mount, and its number.
    #[serde(default)]
    pub mounts: Vec<(u8, Bytes, u64)>,
}

/// What applies of a run made on the host.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Made {
    /// Makes their temporary names unique.
    pub token: String,
    /// The boot ID of the machine when the first unfinished apply began.
    pub boot: String,
    /// The states of the overlays that `durable` is of, by ordinal.
    pub overlays: HashMap<u8, String>,
    /// Files that are durable on the host, whose bytes may be nowhere else.
    pub durable: Vec<DurableFile>,
    /// Files that an apply which failed has linked, and that are otherwise as they were scanned.
    #[serde(default)]
    pub touched: Vec<TouchedFile>,
    /// What stayed under temporary names.
    #[serde(default)]
    pub beside: Vec<BesideFile>,
}

/// Something that stayed under a temporary name when an apply ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BesideFile {
    /// The disk of the run.
    pub ordinal: u8,
    /// The path in the tree.
    pub path: Bytes,
    /// Its identity, as in [`TouchedFile`], if nobody needs it.
    pub useless: Option<FileIdentity>,
}

/// Inode number, size, kind, and seconds and nanoseconds of the last change of content and of attributes.
pub(super) type FileIdentity = (u64, u64, u32, (i64, u64), (i64, u64));

/// A file of the host as an apply left it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TouchedFile {
    /// The disk of the run.
    pub ordinal: u8,
    /// The path in the tree.
    pub path: Bytes,
    pub identity: FileIdentity,
}

/// A file that an apply made and that is on the host's disk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DurableFile {
    /// The disk of the run.
    pub ordinal: u8,
    /// The path in the tree.
    pub path: Bytes,
    /// Inode number, size, and seconds and nanoseconds of the last change of content.
    pub identity: (u64, u64, i64, u64),
}

impl KeptTree {
    /// Whether the host does not have the tree any more.
    pub fn is_gone(&self) -> bool {
        let kind = fs::metadata(self.source()).map_err(|error| error.kind());
        matches!(kind, Err(ErrorKind::NotFound | ErrorKind::NotADirectory))
    }

    /// A tree as a run asked for it: `ordinal` numbers the disks of one run, `cross` says whether it goes into other file systems.
    pub fn new(
        source: &Path,
        destination: &Path,
        read_only: bool,
        ordinal: u8,
        owners: OwnersBack,
        cross: bool,
    ) -> KeptTree {
        let (source, destination) = (Bytes::path(source), Bytes::path(destination));
        KeptTree { source, destination, read_only, ordinal, owners, cross, volume: None }
    }

    /// Records its file system.
    pub fn with_volume(self) -> Result<KeptTree, KeptError> {
        let source = self.source();
        let opened = File::open(&source).and_then(|root| Ok(VolumeId::of(root)?));
        let volume = opened.map_err(|error| KeptError::path(&source, "cannot be used as a tree", error))?;
        Ok(KeptTree { volume, ..self })
    }

    /// Whether it is the same tree, on whatever file system.
    pub fn is_like(&self, other: &KeptTree) -> bool {
        KeptTree { volume: other.volume, ..self.clone() } == *other
    }

    /// The host's directory.
    pub fn source(&self) -> PathBuf {
        self.source.to_path()
    }

    /// Where the guest sees it.
    pub fn destination(&self) -> PathBuf {
        self.destination.to_path()
    }
}

#[cfg(test)]
mod tests {
    use super::super::clock::boot;
    use super::*;

    #[test]
    fn after_a_failed_wait_for_the_disk_nothing_is_known_to_be_there() {
        let now = boot().unwrap();
        let made = Made { token: "t".to_owned(), boot: now.clone(), ..Made::default() };
        let record = Record { applied: Some(Applied::now([]).unwrap()), made: Some(made), ..Record::begun() };
        assert_eq!(record.applied.as_ref().map(|applied| &applied.boot), Some(&now));
        let doubted = record.in_doubt();
        assert!(doubted.applied.is_some_and(|applied| applied.boot != now));
        assert!(doubted.made.is_some_and(|made| made.boot != now && made.token == "t"));
        // What has not begun is in no doubt.
        let fresh = Record::begun().in_doubt();
        assert!(fresh.applied.is_none() && fresh.made.is_none());
    }
}
