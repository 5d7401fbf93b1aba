//! Compares two looks at an object of the host: whether it is the same object, and whether it has the same content.

use rustix::fs::Stat;

/// What a look saw of an object, from which a later look tells whether it is the same with the same content.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Seen {
    pub ino: u64,
    pub size: u64,
    pub kind: u32,
    pub mtime: (i64, u64),
    pub ctime: (i64, u64),
}

impl Seen {
    pub fn of(stat: &Stat) -> Seen {
        Seen {
            ino: stat.st_ino,
            size: stat.st_size as u64,
            kind: stat.st_mode & 0o170000,
            mtime: (stat.st_mtime, stat.st_mtime_nsec),
            ctime: (stat.st_ctime, stat.st_ctime_nsec),
        }
    }

    /// Whether it is the same object with the same content. Attributes and names may differ.
    pub fn is_still(&self, other: &Seen) -> bool {
        Seen { ctime: other.ctime, ..*self } == *other
    }
}

/// Tells an object from all others that exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Identity {
    device: u64,
    ino: u64,
    kind: u32,
}

impl Identity {
    pub fn of(stat: &Stat) -> Identity {
        Identity { device: stat.st_dev, ino: stat.st_ino, kind: stat.st_mode & 0o170000 }
    }
}

/// Whether two looks saw one object that was at most renamed, linked or given attributes.
pub(super) fn is_same(one: &Stat, other: &Stat) -> bool {
    Identity::of(one) == Identity::of(other) && Seen::of(one).is_still(&Seen::of(other))
}
