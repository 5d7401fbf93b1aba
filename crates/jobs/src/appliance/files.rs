//! What an appliance does with files. Paths begin at the mounted root, and symbolic links are followed within it.

use std::ffi::{OsStr, OsString};
use std::io::{self, Read};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use inarch_volume::{TARGET_MAX, is_name};

use super::wire::{self, Ask, Bytes, Entry, Found};
use super::{Appliance, ApplianceError};

/// Attributes that a file is given. What is not named here stays as it is; a new file has the mode 644, root as its owner, and no others.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NewAttributes {
    /// Its permissions.
    pub mode: Option<u32>,
    /// Its user and group.
    pub owner: Option<(u32, u32)>,
    /// When its content last changed: seconds since 1970, and nanoseconds.
    pub modified: Option<(i64, u32)>,
    /// Names and values of extended attributes; together [`NewAttributes::XATTRS_MOST`] bytes at most.
    pub xattrs: Vec<(OsString, Vec<u8>)>,
    /// Whether they are those of a copied file. Then it is no error that a file system has no owners, permissions or times; and a
    /// capability or an ACL of a file that is replaced does not stay.
    pub copied: bool,
}

impl NewAttributes {
    /// The most bytes of extended attributes, names included: they have to fit into a message.
    pub const XATTRS_MOST: usize = 8 << 10;

    fn on_wire(&self) -> wire::NewAttributes {
        let xattrs = self.xattrs.iter().map(|(name, value)| (Bytes(name.as_bytes().to_vec()), Bytes(value.clone())));
        let NewAttributes { mode, owner, modified, copied, .. } = *self;
        wire::NewAttributes { mode, owner, modified, xattrs: xattrs.collect(), copied }
    }

    /// Returns the extended attributes that the guest reports as not set. Names that the host did not send are ignored.
    fn lost(&self, named: &[Bytes]) -> Vec<OsString> {
        let names = self.xattrs.iter().map(|(name, _)| name);
        names.filter(|name| named.iter().any(|lost| lost.0 == name.as_bytes())).cloned().collect()
    }
}

/// What a new file is like.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NewFileOptions {
    /// Its attributes. Those of a file that is there already stay, as far as none are named.
    pub attributes: NewAttributes,
    /// Fail if there is a file already.
    pub only_new: bool,
}

/// A file that was written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Written {
    /// Bytes of content.
    pub bytes: u64,
    /// The names of extended attributes that its file system did not take.
    pub lost: Vec<OsString>,
}

/// A file's attributes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileAttributes {
    /// Its name in its directory.
    pub name: OsString,
    /// Its type and permissions, as `st_mode`.
    pub mode: u32,
    /// Its user.
    pub uid: u32,
    /// Its group.
    pub gid: u32,
    /// Bytes.
    pub size: u64,
    /// How many names it has.
    pub links: u64,
    /// Its inode number.
    pub inode: u64,
    /// Of a device: major and minor number.
    pub device: (u32, u32),
    /// When its content last changed: seconds since 1970, and nanoseconds.
    pub modified: (i64, u32),
    /// What it leads to, if it is a symbolic link.
    pub target: Option<PathBuf>,
}

impl FileAttributes {
    /// Attributes from an entry of a directory; `None` if its name or target is invalid, and could lead out of the place that files are
    /// copied to.
    pub(super) fn of(entry: Entry) -> Option<FileAttributes> {
        let Entry { name, mode, uid, gid, size, links, inode, device, modified, target } = entry;
        let is_target = |target: &Bytes| target.0.len() <= TARGET_MAX && !target.0.contains(&0);
        if !is_name(&name.0) || !target.as_ref().is_none_or(is_target) {
            return None;
        }
        let target = target.map(|target| PathBuf::from(OsString::from_vec(target.0)));
        let name = OsString::from_vec(name.0);
        Some(FileAttributes { name, mode, uid, gid, size, links, inode, device, modified, target })
    }

    /// Bytes of memory that the texts take.
    fn bytes(&self) -> usize {
        self.name.len() + self.target.as_ref().map_or(0, |target| target.as_os_str().len())
    }
}

fn bytes(path: &Path) -> Bytes {
    Bytes(path.as_os_str().as_bytes().to_vec())
}

impl Appliance {
    /// Writes a file. It gets its name when it is complete and on the disk; until then a file that was there has its old
    /// content.
    ///
    /// # Errors
    /// `from` fails, or the file cannot be written. The old file is as it was then.
    pub fn write(
        &mut self,
        path: &Path,
        options: &NewFileOptions,
        from: &mut dyn Read,
    ) -> Result<Written, ApplianceError> {
        let NewFileOptions { attributes, only_new } = options;
        let ask = Ask::Write { path: bytes(path), attributes: attributes.on_wire(), only_new: *only_new };
        let found = self.ask_with(&ask, from)?;
        Ok(Written { bytes: found.bytes, lost: attributes.lost(&found.lost) })
    }

    /// Reads a regular file, piece by piece.
    ///
    /// # Errors
    /// There is none, it cannot be read, or `take` failed.
    pub fn read(&mut self, path: &Path, take: impl FnMut(&[u8]) -> io::Result<()>) -> Result<u64, ApplianceError> {
        self.read_range(path, 0, u64::MAX, take)
    }

    /// The same for `count` bytes from `offset`; fewer at the file's end.
    ///
    /// # Errors
    /// As [`Appliance::read`].
    pub fn read_range(
        &mut self,
        path: &Path,
        offset: u64,
        count: u64,
        mut take: impl FnMut(&[u8]) -> io::Result<()>,
    ) -> Result<u64, ApplianceError> {
        self.running.tell(&Ask::Read { path: bytes(path), offset, count })?;
        Ok(self.answer(&mut |piece| take(&piece).map_err(ApplianceError::Output))?.bytes)
    }

    /// The files of a directory, in the order of their names; or the file itself if it is no directory.
    ///
    /// # Errors
    /// It is not there, or cannot be read.
    pub fn list(&mut self, path: &Path) -> Result<Vec<FileAttributes>, ApplianceError> {
        self.entries(path, false, true)
    }

    /// The attributes of a file. A symbolic link is not followed.
    ///
    /// # Errors
    /// It is not there.
    pub fn attributes(&mut self, path: &Path) -> Result<FileAttributes, ApplianceError> {
        self.entries(path, true, false)?.pop().ok_or(ApplianceError::Protocol)
    }

    /// Whether there is a directory, or a symbolic link to one.
    ///
    /// # Errors
    /// It cannot be looked at.
    pub fn is_directory(&mut self, path: &Path) -> Result<bool, ApplianceError> {
        match self.entries(path, true, true) {
            Ok(found) => Ok(found.first().is_some_and(|is| is.mode & 0o170_000 == 0o040_000)),
            Err(error) if error.is_absent() => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn entries(&mut self, path: &Path, itself: bool, followed: bool) -> Result<Vec<FileAttributes>, ApplianceError> {
        /// A directory with more entries, or with longer ones, is not listed.
        const MOST: usize = 4_000_000;
        const MOST_BYTES: usize = 256 << 20;
        let (mut entries, mut bytes_of_all) = (Vec::new(), 0);
        self.running.tell(&Ask::List { path: bytes(path), itself, followed })?;
        self.answer(&mut |piece| {
            let mut entry: Entry = wire::decode(&piece).map_err(ApplianceError::Stream)?;
            if itself {
                // What was asked for; the root has no name.
                entry.name = Bytes(path.file_name().unwrap_or(OsStr::new("root")).as_bytes().to_vec());
            }
            let found = FileAttributes::of(entry).ok_or(ApplianceError::Protocol)?;
            bytes_of_all += found.bytes();
            if entries.len() == MOST || bytes_of_all > MOST_BYTES {
                return Err(ApplianceError::Protocol);
            }
            entries.push(found);
            Ok(())
        })?;
        entries.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(entries)
    }

    /// Removes a file or an empty directory; with `recursive`, a directory with all that is in it, but nothing of a volume
    /// that is mounted there.
    ///
    /// # Errors
    /// It is not there ([`ApplianceError::is_absent`]), or cannot be removed.
    pub fn remove(&mut self, path: &Path, recursive: bool) -> Result<(), ApplianceError> {
        self.ask(&Ask::Remove { path: bytes(path), recursive }).map(drop)
    }

    /// Makes a directory, of mode 755 by default; with `parents` also those that it is in, and it may be there already.
    ///
    /// # Errors
    /// It is there already, or cannot be made.
    pub fn make_directory(&mut self, path: &Path, parents: bool, mode: Option<u32>) -> Result<(), ApplianceError> {
        self.ask(&Ask::MakeDirectory { path: bytes(path), parents, mode, copied: false }).map(drop)
    }

    /// Makes a directory for copied files, and its missing parents. Until [`Appliance::change`] sets its attributes, only root can enter
    /// it. It inherits no ACL. A directory that exists stays as it is.
    ///
    /// # Errors
    /// It cannot be made.
    pub fn make_copied_directory(&mut self, path: &Path) -> Result<(), ApplianceError> {
        self.ask(&Ask::MakeDirectory { path: bytes(path), parents: true, mode: None, copied: true }).map(drop)
    }

    /// Begins a copy: what is written and linked as `copied` from now on does not replace what was copied since. Each file is complete when it
    /// gets its name; all names are on the disk after [`Appliance::sync`].
    ///
    /// # Errors
    /// The machine failed.
    pub fn begin_copy(&mut self) -> Result<(), ApplianceError> {
        self.ask(&Ask::BeginCopy).map(drop)
    }

    /// Gives a file another name, in place of another file that has it.
    ///
    /// # Errors
    /// As rename(2).
    pub fn rename(&mut self, from: &Path, to: &Path) -> Result<(), ApplianceError> {
        self.ask(&Ask::Rename { from: bytes(from), to: bytes(to) }).map(drop)
    }

    /// Gives the regular file `from` another name, in place of a regular file that has it: a hard link.
    ///
    /// # Errors
    /// As link(2).
    pub fn link(&mut self, from: &Path, to: &Path) -> Result<(), ApplianceError> {
        self.ask(&Ask::Link { from: bytes(from), to: bytes(to), copied: false }).map(drop)
    }

    /// As [`Appliance::link`], of files that are copied.
    ///
    /// # Errors
    /// As there, or `to` was copied before.
    pub fn link_copied(&mut self, from: &Path, to: &Path) -> Result<(), ApplianceError> {
        self.ask(&Ask::Link { from: bytes(from), to: bytes(to), copied: true }).map(drop)
    }

    /// Makes a symbolic link at `path`.
    ///
    /// # Errors
    /// As symlink(2).
    pub fn symlink(&mut self, target: &Path, path: &Path) -> Result<(), ApplianceError> {
        let (target, path, attributes) = (bytes(target), bytes(path), wire::NewAttributes::default());
        self.ask(&Ask::Symlink { target, path, attributes, replaces: false }).map(drop)
    }

    /// Makes a symbolic link of this owner and time, in place of a file that is there unless that is a directory.
    ///
    /// # Errors
    /// As symlink(2) and rename(2).
    pub fn write_symlink(
        &mut self,
        target: &Path,
        path: &Path,
        attributes: &NewAttributes,
    ) -> Result<(), ApplianceError> {
        let (target, path, attributes) = (bytes(target), bytes(path), attributes.on_wire());
        self.ask(&Ask::Symlink { target, path, attributes, replaces: true }).map(drop)
    }

    /// Makes a FIFO, a socket or a device of these attributes, in place of a file that is there unless that is a directory. `kind` is its
    /// `st_mode`, `device` a device's major and minor number.
    ///
    /// # Errors
    /// As mknod(2) and rename(2).
    pub fn write_node(
        &mut self,
        path: &Path,
        kind: u32,
        device: (u32, u32),
        attributes: &NewAttributes,
    ) -> Result<(), ApplianceError> {
        self.ask(&Ask::Node { path: bytes(path), kind, device, attributes: attributes.on_wire() }).map(drop)
    }

    /// Changes attributes; with permissions, those of what a symbolic link leads to. Returns the extended attributes that the file system
    /// did not take.
    ///
    /// # Errors
    /// As chmod(2), chown(2) and utimensat(2).
    pub fn change(&mut self, path: &Path, attributes: &NewAttributes) -> Result<Vec<OsString>, ApplianceError> {
        let found = self.ask(&Ask::Change { path: bytes(path), attributes: attributes.on_wire() })?;
        Ok(attributes.lost(&found.lost))
    }

    /// Returns when all that was written is on the disk.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn sync(&mut self) -> Result<(), ApplianceError> {
        self.ask(&Ask::Sync).map(drop)
    }

    /// Checks the file systems by the tools that the host has for them, which say what they find as notes. With `repair`
    /// they correct it. Only for volumes that are not mounted. Returns whether there were errors, and whether there
    /// still are.
    ///
    /// # Errors
    /// A tool is missing or fails.
    pub fn check(&mut self, repair: bool) -> Result<Checked, ApplianceError> {
        let Found { was, is, .. } = self.ask(&Ask::Check { repair })?;
        Ok(Checked { had_errors: was, has_errors: is })
    }
}

/// What a check found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Checked {
    /// Whether there were errors.
    pub had_errors: bool,
    /// Whether there still are.
    pub has_errors: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(name: &[u8], target: Option<&[u8]>) -> Entry {
        let target = target.map(|target| Bytes(target.to_vec()));
        let (mode, device, modified) = (0o100_644, (0, 0), (0, 0));
        Entry {
            name: Bytes(name.to_vec()),
            mode,
            uid: 0,
            gid: 0,
            size: 0,
            links: 1,
            inode: 1,
            device,
            modified,
            target,
        }
    }

    #[test]
    fn a_guest_names_no_file_outside_its_directory() {
        for name in [&b"/etc/cron.d/job"[..], b"../job", b"..", b".", b"", b"a/b", b"a\0b", &[b'a'; 5000]] {
            assert_eq!(FileAttributes::of(entry(name, None)), None, "{name:?}");
        }
        for target in [&b"a\0b"[..], &[b'a'; 5000]] {
            assert_eq!(FileAttributes::of(entry(b"link", Some(target))), None);
        }
        let found = FileAttributes::of(entry(b"..a\n\xff", Some(b"/etc/shadow"))).unwrap();
        assert_eq!((found.name.as_bytes(), found.target), (&b"..a\n\xff"[..], Some("/etc/shadow".into())));
    }
}
