//! Records what was at a path (absent, refused, or its attributes and digest), and compares it with what is there now.

use std::collections::BTreeSet;
use std::fs::Metadata;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

use inarch_kept::Bytes;
use rustix::fs::{lgetxattr, llistxattr};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

use super::hashed::{Digest, Stamp, hash_file};

/// What is at a path.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Fact {
    /// Nothing.
    Absent,
    /// This user may not know.
    Refused,
    /// Something.
    There(Box<There>),
}

/// Something at a path, as far as it counts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct There {
    /// Type and permissions.
    pub mode: u32,
    /// User and group.
    pub owner: (u32, u32),
    /// Of a regular file that was looked at only: its size and its time of last write.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub looked: Option<(u64, (i64, i64))>,
    /// Of a regular file's content.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sha256: Option<Digest>,
    /// While it is the same, so is the content. Without a digest it must be the same.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stamp: Option<Stamp>,
    /// Of a symbolic link.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<Bytes>,
    /// In a directory, and the type of each.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub names: Option<Vec<(Bytes, char)>>,
    /// Of all extended attributes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub xattrs: Option<Digest>,
}

/// What `lstat` says.
pub enum Seen {
    Absent,
    Refused,
    There(Metadata),
}

/// Looks at a path.
///
/// # Errors
/// What is there cannot be found out.
pub fn look(path: &Path) -> io::Result<Seen> {
    match path.symlink_metadata() {
        Ok(metadata) => Ok(Seen::There(metadata)),
        Err(error) => match Errno::from_io_error(&error) {
            Some(Errno::NOENT | Errno::NOTDIR | Errno::NAMETOOLONG) => Ok(Seen::Absent),
            Some(Errno::ACCESS) => Ok(Seen::Refused),
            _ => Err(error),
        },
    }
}

impl There {
    /// The type, permissions and owner, and a link's target.
    ///
    /// # Errors
    /// The link cannot be read.
    pub fn new(path: &Path, metadata: &Metadata) -> io::Result<There> {
        let target = metadata.is_symlink().then(|| path.read_link()).transpose()?;
        let (mode, owner) = (metadata.mode(), (metadata.uid(), metadata.gid()));
        Ok(There { mode, owner, target: target.map(|target| Bytes::path(&target)), ..There::default() })
    }

    pub fn is(&self, kind: u32) -> bool {
        self.mode & libc::S_IFMT == kind
    }

    /// What is different now; `None` if nothing that counts. Names are compared without those that `is_left_out` says.
    fn difference(&self, path: &Path, now: &Metadata, is_left_out: &dyn Fn(&Path) -> bool) -> io::Result<Option<&str>> {
        if self.mode & libc::S_IFMT != now.mode() & libc::S_IFMT {
            return Ok(Some("type"));
        }
        if self.mode != now.mode() {
            return Ok(Some("mode"));
        }
        if self.owner != (now.uid(), now.gid()) {
            return Ok(Some("owner"));
        }
        if self.looked.is_some_and(|looked| looked != looked_at(now)) {
            return Ok(Some("size or time"));
        }
        let is_known = self.stamp == Some(Stamp::of(now));
        match &self.sha256 {
            Some(sha256) if !is_known && hash_file(path, &mut io::sink())?.sha256 != *sha256 => {
                return Ok(Some("content"));
            }
            None if self.stamp.is_some() && !is_known => return Ok(Some("content")),
            _ => {}
        }
        if let Some(target) = &self.target
            && path.read_link()? != target.to_path()
        {
            return Ok(Some("target"));
        }
        if let Some(names) = &self.names
            && names_in(path, is_left_out)? != names.iter().map(|(name, kind)| (bytes(name), *kind)).collect()
        {
            return Ok(Some("names"));
        }
        if let Some(xattrs) = &self.xattrs
            && xattrs_of(path)?.0 != *xattrs
        {
            return Ok(Some("extended attributes"));
        }
        Ok(None)
    }
}

/// The size and the time of last write.
pub fn looked_at(file: &Metadata) -> (u64, (i64, i64)) {
    (file.size(), (file.mtime(), file.mtime_nsec()))
}

fn bytes(name: &Bytes) -> Vec<u8> {
    name.to_os_string().as_bytes().to_vec()
}

impl Fact {
    /// What is different now; `None` if nothing that counts.
    pub fn difference(&self, path: &Path, is_left_out: &dyn Fn(&Path) -> bool) -> Option<String> {
        let seen = match look(path) {
            Ok(seen) => seen,
            Err(error) => return Some(error.to_string()),
        };
        let different = match (self, &seen) {
            (Fact::Absent, Seen::Absent) | (Fact::Refused, Seen::Refused) => None,
            (Fact::There(there), Seen::There(now)) => {
                return match there.difference(path, now, is_left_out) {
                    Ok(different) => different.map(str::to_owned),
                    Err(error) => Some(error.to_string()),
                };
            }
            (_, Seen::Absent) => Some("missing"),
            (_, Seen::Refused) => Some("not accessible"),
            (_, Seen::There(_)) => Some("new"),
        };
        different.map(str::to_owned)
    }
}

/// The names in a directory and their types, without those of paths that are left out.
///
/// # Errors
/// It cannot be read.
pub fn names_in(path: &Path, is_left_out: &dyn Fn(&Path) -> bool) -> io::Result<BTreeSet<(Vec<u8>, char)>> {
    let mut names = BTreeSet::new();
    for entry in path.read_dir()? {
        let entry = entry?;
        if is_left_out(&entry.path()) {
            continue;
        }
        let kind = match entry.file_type()? {
            kind if kind.is_file() => 'f',
            kind if kind.is_dir() => 'd',
            kind if kind.is_symlink() => 'l',
            kind if kind.is_fifo() => 'p',
            kind if kind.is_socket() => 's',
            kind if kind.is_char_device() => 'c',
            _ => 'b',
        };
        names.insert((entry.file_name().as_bytes().to_vec(), kind));
    }
    Ok(names)
}

/// The digest of all extended attributes, and whether there are none. A label of SELinux is none that anybody set.
///
/// # Errors
/// They cannot be read.
pub fn xattrs_of(path: &Path) -> io::Result<(Digest, bool)> {
    // The longest list, and the longest value, that Linux has (include/uapi/linux/limits.h).
    let mut buffer = vec![0; 1 << 16];
    let length = match llistxattr(path, &mut buffer[..]) {
        Err(Errno::OPNOTSUPP) => 0,
        length => length?,
    };
    let list = buffer[..length].to_vec();
    let mut names: Vec<&[u8]> = list.split(|byte| *byte == 0).filter(|name| !name.is_empty()).collect();
    names.retain(|name| *name != b"security.selinux");
    names.sort_unstable();
    let mut all = Vec::new();
    for name in &names {
        let length = lgetxattr(path, *name, &mut buffer[..])?;
        for part in [name, &buffer[..length]] {
            all.extend((part.len() as u64).to_le_bytes());
            all.extend(part);
        }
    }
    Ok((Digest::of(&all), names.is_empty()))
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File, Permissions};
    use std::os::unix::fs::{PermissionsExt, symlink};

    use super::*;

    fn nothing(_: &Path) -> bool {
        false
    }

    fn fact(path: &Path, add: impl FnOnce(&mut There, &Metadata)) -> Fact {
        let metadata = path.symlink_metadata().unwrap();
        let mut there = There::new(path, &metadata).unwrap();
        add(&mut there, &metadata);
        Fact::There(Box::new(there))
    }

    #[test]
    fn only_what_counts_is_different() {
        let dir = tempfile::tempdir().unwrap();
        let (file, link, none) = (dir.path().join("file"), dir.path().join("link"), dir.path().join("none"));
        fs::write(&file, "abc").unwrap();
        symlink("file", &link).unwrap();
        let content = fact(&file, |there, _| there.sha256 = Some(Digest::of(b"abc")));
        let stamped = fact(&file, |there, now| there.stamp = Some(Stamp::of(now)));
        let looked = fact(&file, |there, now| there.looked = Some(looked_at(now)));
        let target = fact(&link, |_, _| ());
        let listed = fact(dir.path(), |there, _| {
            there.names = Some(vec![(Bytes::new(b"file"), 'f'), (Bytes::new(b"link"), 'l')]);
        });
        let different = |fact: &Fact, path: &Path| fact.difference(path, &nothing);
        for (fact, path) in [(&content, &file), (&stamped, &file), (&looked, &file), (&target, &link)] {
            assert_eq!(different(fact, path), None, "{fact:?}");
        }
        assert_eq!(different(&listed, dir.path()), None);
        assert_eq!((different(&Fact::Absent, &none), different(&Fact::Absent, &file.join("x"))), (None, None));
        assert_eq!(different(&Fact::Absent, &file), Some("new".to_owned()));
        assert_eq!(different(&content, &none), Some("missing".to_owned()));
        // Only the time.
        File::options().append(true).open(&file).unwrap().set_modified(std::time::UNIX_EPOCH).unwrap();
        assert_eq!(different(&content, &file), None);
        assert_eq!(different(&stamped, &file), Some("content".to_owned()));
        assert_eq!(different(&looked, &file), Some("size or time".to_owned()));
        fs::write(&file, "xyz").unwrap();
        assert_eq!(different(&content, &file), Some("content".to_owned()));
        fs::set_permissions(&file, Permissions::from_mode(0o600)).unwrap();
        assert_eq!(different(&content, &file), Some("mode".to_owned()));
        fs::remove_file(&link).unwrap();
        symlink("other", &link).unwrap();
        assert_eq!(different(&target, &link), Some("target".to_owned()));
        assert_eq!(different(&content, &link), Some("type".to_owned()));
        fs::write(&none, "").unwrap();
        assert_eq!(different(&listed, dir.path()), Some("names".to_owned()));
        assert_eq!(listed.difference(dir.path(), &|path| path == none), None);
    }
}
