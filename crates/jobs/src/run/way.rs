//! [`Way`]: how a tree reaches a guest.

use inarch_format::disk::DiskFormat;

/// The transport of a tree.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// As a disk with this file system: a snapshot.
    Disk(DiskFormat),
    /// As the directory itself, live, by virtiofs.
    Virtiofs,
    /// As the directory itself, live, by 9P.
    Ninep,
    /// As an archive that the guest unpacks, into its memory or onto a disk: a snapshot.
    Tar,
    /// The best that the guest's kernel supports, given where writes must go.
    Auto,
}

impl Way {
    /// Its name, as in `--via`.
    pub fn name(self) -> &'static str {
        match self {
            Way::Disk(format) => format.name(),
            Way::Virtiofs => "virtiofs",
            Way::Ninep => "9p",
            Way::Tar => "tar",
            Way::Auto => "auto",
        }
    }

    /// Whether the guest sees the directory itself, not a snapshot.
    pub fn is_live(self) -> bool {
        matches!(self, Way::Virtiofs | Way::Ninep)
    }
}
