//! `ls`, `stat` and `find`.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use inarch_tree::{FileType, Xattr};
use inarch_volume::{Attributes, Item, Last, Node, Volume, VolumeError};

use super::{Guest, GuestError};

/// A file in an image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its path, as far as it was asked for: a name in a directory that was listed, or the path below the directory that was searched.
    pub path: Vec<u8>,
    /// Its attributes.
    pub attributes: Attributes,
    /// A symbolic link's target.
    pub target: Option<Vec<u8>>,
    /// Its extended attributes, where they were asked for.
    pub xattrs: Vec<Xattr>,
    /// Where it is in the volume.
    pub(super) node: Node,
}

/// A finding of [`Guest::find`] or [`Guest::list`].
pub type Found = Result<Entry, String>;

/// Decides which files `find` gives: by the path below the directory that is searched, and the attributes.
pub type Wanted<'a> = dyn Fn(&[u8], &Attributes) -> bool + Sync + 'a;

impl Guest {
    /// A file's attributes, its target and its extended attributes. A symbolic link is not followed.
    ///
    /// # Errors
    /// There is no such file, or it is damaged.
    pub fn stat(&self, path: &Path) -> Result<Entry, GuestError> {
        use std::os::unix::ffi::OsStrExt;
        let (node, _) = self.find_node(path, Last::Taken)?;
        let entry = inarch_source::parse(|_| {
            let mut entry = entry(&*self.volume, node, path.as_os_str().as_bytes().to_vec())?;
            // What cannot be read of them is left out; the file itself is there.
            entry.xattrs = self.volume.xattrs(node, &mut |_| {})?;
            Ok(entry)
        })?;
        entry.map_err(self.fail(path))
    }

    /// Whether it is a directory, or a symbolic link to one.
    ///
    /// # Errors
    /// It is not there, or damaged.
    pub fn is_directory(&self, path: &Path) -> Result<bool, GuestError> {
        let (_, attributes) = self.find_node(path, Last::Followed)?;
        Ok(attributes.file_type() == Some(FileType::Directory))
    }

    /// The entries of a directory by name, or a file by itself. `take` gets a line for what is damaged.
    ///
    /// # Errors
    /// There is no such file, it is damaged, or `take` failed.
    pub fn list(&self, path: &Path, take: impl FnMut(Found) -> Result<(), GuestError>) -> Result<(), GuestError> {
        use std::os::unix::ffi::OsStrExt;
        let (node, attributes) = self.find_node(path, Last::Followed)?;
        let is_directory = attributes.file_type() == Some(FileType::Directory);
        let name = path.as_os_str().as_bytes().to_vec();
        self.stream(
            path,
            move |volume, send| {
                if !is_directory {
                    send(Ok(entry(volume, node, name)?));
                    return Ok(());
                }
                for found in children(volume, node)? {
                    let found = found.map_err(|lost| named(path.as_os_str().as_bytes(), &lost));
                    let found = found.and_then(|(name, node)| {
                        entry(volume, node, name.clone()).map_err(|error| named(&name, &error.to_string()))
                    });
                    if !send(found) {
                        break;
                    }
                }
                Ok(())
            },
            take,
        )
    }

    /// Everything below a directory that is `wanted`, each directory before its content, by name. `take` gets a line for what is damaged.
    ///
    /// # Errors
    /// There is no such directory, it is damaged, or `take` failed.
    pub fn find(
        &self,
        path: &Path,
        wanted: &Wanted<'_>,
        take: impl FnMut(Found) -> Result<(), GuestError>,
    ) -> Result<(), GuestError> {
        let (node, attributes) = self.find_node(path, Last::Followed)?;
        if attributes.file_type() != Some(FileType::Directory) {
            return Err(self.wrong_type(path, "it is no directory"));
        }
        self.stream(path, move |volume, send| search(volume, node, wanted, send), take)
    }
}

pub(super) fn search(
    volume: &dyn Volume,
    top: Node,
    wanted: &Wanted<'_>,
    send: &mut dyn FnMut(Found) -> bool,
) -> Result<(), VolumeError> {
    // An image may have a directory in itself.
    let mut seen = HashSet::from([top]);
    // What is left of each directory, the last name first, with the length of its path.
    let mut open = vec![(reversed(children(volume, top)?), 0)];
    let mut path: Vec<u8> = Vec::new();
    while let Some((rest, length)) = open.last_mut() {
        path.truncate(*length);
        let (name, node) = match rest.pop() {
            None => {
                open.pop();
                continue;
            }
            Some(Err(lost)) => {
                if !send(Err(named(if path.is_empty() { b"." } else { &path }, &lost))) {
                    return Ok(());
                }
                continue;
            }
            Some(Ok(child)) => child,
        };
        if !path.is_empty() {
            path.push(b'/');
        }
        path.extend_from_slice(&name);
        let lost = |error: VolumeError| named(&path, &error.to_string());
        let found = entry(volume, node, path.clone()).map_err(lost);
        let is_directory = found.as_ref().is_ok_and(|e| e.attributes.file_type() == Some(FileType::Directory));
        let is_wanted = found.as_ref().map_or(true, |entry| wanted(&path, &entry.attributes));
        if is_wanted && !send(found) {
            return Ok(());
        }
        if is_directory && seen.insert(node) {
            match children(volume, node) {
                Ok(children) => open.push((reversed(children), path.len())),
                Err(error) => {
                    if !send(Err(lost(error))) {
                        return Ok(());
                    }
                }
            }
        }
    }
    Ok(())
}

/// A name and its node, or what is wrong in a directory.
type Child = Result<(Vec<u8>, Node), String>;

/// The children of a directory by name; what is damaged comes last.
pub(super) fn children(volume: &dyn Volume, directory: Node) -> Result<Vec<Child>, VolumeError> {
    let mut children = Vec::new();
    volume.list(directory, 0, &mut |item| {
        children.push(match item {
            Item::Entry(entry) => Ok((entry.name.to_vec(), entry.node)),
            Item::Lost(loss) => Err(loss.reason),
        });
        true
    })?;
    children.sort();
    Ok(children)
}

fn reversed(mut children: Vec<Child>) -> Vec<Child> {
    children.reverse();
    children
}

/// A line about a path.
pub(super) fn named(path: &[u8], what: &str) -> String {
    use std::os::unix::ffi::OsStringExt;
    let path = PathBuf::from(std::ffi::OsString::from_vec(path.to_vec()));
    format!("{}: {what}", inarch_lifecycle::shown(&path))
}

pub(super) fn entry(volume: &dyn Volume, node: Node, path: Vec<u8>) -> Result<Entry, VolumeError> {
    let attributes = volume.attributes(node)?;
    let is_link = attributes.file_type() == Some(FileType::Symlink);
    let target = if is_link { Some(volume.target(node)?) } else { None };
    Ok(Entry { path, attributes, target, xattrs: Vec::new(), node })
}
