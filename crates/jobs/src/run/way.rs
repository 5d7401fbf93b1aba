//! [`Way`]: how a tree reaches a guest.

use std::fmt;

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

/// How the requests to a live tree travel. What is not said is as it suits the guest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WireOptions {
    /// Of 9P: the largest message, in bytes (`msize`).
    pub msize: Option<u32>,
    /// Of virtiofs: how many request queues.
    pub queues: Option<u16>,
}

impl WireOptions {
    /// The first of them that has no effect for trees that go this way.
    pub fn useless_for(self, way: Way) -> Option<&'static str> {
        match way {
            Way::Ninep => self.queues.map(|_| "queues"),
            Way::Virtiofs => self.msize.map(|_| "msize"),
            _ => self.msize.map(|_| "msize").or(self.queues.map(|_| "queues")),
        }
    }
}

/// As they are given: `,msize=131072`. Nothing if all is as it suits the guest.
impl fmt::Display for WireOptions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let WireOptions { msize, queues } = self;
        msize.map_or(Ok(()), |msize| match (msize % 1024, msize / 1024) {
            (0, kib) => write!(f, ",msize={kib}K"),
            _ => write!(f, ",msize={msize}"),
        })?;
        queues.map_or(Ok(()), |queues| write!(f, ",queues={queues}"))
    }
}
