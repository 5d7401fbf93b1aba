//! Finds nodes by path and reads small files, for code that inspects a volume.

use std::collections::VecDeque;

use inarch_block::Cursor;
use inarch_tree::FileType;
use vm_memory::VolatileSlice;

use crate::{Item, Node, Volume, VolumeError};

/// The most symbolic links that one path is led through: Linux's `MAXSYMLINKS` (`include/linux/namei.h`).
const MAX_SYMLINKS: usize = 40;
/// The most names of one path, those of its links included. A path of `PATH_MAX` bytes has half as many.
const MAX_NAMES: usize = 1 << 16;

/// Whether the last name of a path is followed if it is a symbolic link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Last {
    /// As stat(2) does.
    Followed,
    /// As lstat(2) does. A path that ends with a slash is followed.
    Taken,
}

/// Finds a node by its path from the root, whether the path begins with a slash or not. Symbolic links stay within the volume, as if
/// its root were the root directory. `None` if there is no such node.
///
/// # Errors
/// Those of [`Volume::lookup`]; [`VolumeError::Damaged`] for links that lead to each other.
pub fn resolve(volume: &dyn Volume, path: &[u8], last: Last) -> Result<Option<Node>, VolumeError> {
    Ok(find(volume, path, last)?.map(|(node, _)| node))
}

/// The absolute path of a node without symbolic links, `.` and `..`, as realpath(3) gives it. `None` if there is no such node.
///
/// # Errors
/// Those of [`resolve`].
pub fn canonical(volume: &dyn Volume, path: &[u8]) -> Result<Option<Vec<u8>>, VolumeError> {
    let Some((_, above)) = find(volume, path, Last::Followed)? else { return Ok(None) };
    let path: Vec<u8> = above.iter().flat_map(|(_, name)| [b"/", &**name].concat()).collect();
    Ok(Some(if path.is_empty() { b"/".to_vec() } else { path }))
}

/// The directories on the way to a node, and the name that leads on from each.
type Way = Vec<(Node, Vec<u8>)>;

fn find(volume: &dyn Volume, path: &[u8], last: Last) -> Result<Option<(Node, Way)>, VolumeError> {
    let mut names: VecDeque<Vec<u8>> = names(path).collect();
    let follows_last = last == Last::Followed || path.ends_with(b"/");
    // For "..".
    let mut above = Way::new();
    let mut here = volume.root();
    let (mut links, mut steps) = (0, 0);
    while let Some(name) = names.pop_front() {
        steps += 1;
        if steps > MAX_NAMES {
            return Err(VolumeError::Damaged("its symbolic links have too many names".to_owned()));
        }
        if name == b".." {
            here = above.pop().map_or_else(|| volume.root(), |(directory, _)| directory);
            continue;
        }
        if volume.attributes(here)?.file_type() != Some(FileType::Directory) {
            return Ok(None);
        }
        let found = volume.lookup(here, &name)?.map(|next| (next, name.clone()));
        let found = if found.is_none() { in_any_case(volume, here, &name)? } else { found };
        let Some((next, name)) = found else { return Ok(None) };
        let is_link = volume.attributes(next)?.file_type() == Some(FileType::Symlink);
        if !is_link || (names.is_empty() && !follows_last) {
            above.push((here, name));
            here = next;
            continue;
        }
        links += 1;
        if links > MAX_SYMLINKS {
            return Err(VolumeError::Damaged("its symbolic links lead to each other".to_owned()));
        }
        let target = volume.target(next)?;
        if target.starts_with(b"/") {
            above.clear();
            here = volume.root();
        }
        for name in self::names(&target).collect::<Vec<_>>().into_iter().rev() {
            names.push_front(name);
        }
    }
    Ok(Some((here, above)))
}

/// If the users of a directory ignore case: its entry whose name equals `name` but for case, with the name as stored. Of several, the one that
/// sorts first.
fn in_any_case(volume: &dyn Volume, directory: Node, name: &[u8]) -> Result<Option<(Node, Vec<u8>)>, VolumeError> {
    if !volume.ignores_case(directory) {
        return Ok(None);
    }
    let letters = |name: &[u8]| String::from_utf8_lossy(name).to_lowercase();
    let wanted = letters(name);
    let mut found: Option<(Node, Vec<u8>)> = None;
    volume.list(directory, 0, &mut |item| {
        if let Item::Entry(entry) = item
            && letters(entry.name) == wanted
            && found.as_ref().is_none_or(|(_, other)| entry.name < &**other)
        {
            found = Some((entry.node, entry.name.to_vec()));
        }
        true
    })?;
    Ok(found)
}

/// The names of a path, without empty ones and `.`.
fn names(path: &[u8]) -> impl Iterator<Item = Vec<u8>> + '_ {
    path.split(|byte| *byte == b'/').filter(|name| !name.is_empty() && *name != b".").map(<[u8]>::to_vec)
}

/// The bytes of a regular file, found by its path. `None` if there is none, or if it has more than `most` bytes.
///
/// # Errors
/// Those of [`resolve`] and [`Volume::read`].
pub fn read_small(volume: &dyn Volume, path: &[u8], most: usize) -> Result<Option<Vec<u8>>, VolumeError> {
    let Some(node) = resolve(volume, path, Last::Followed)? else { return Ok(None) };
    let attributes = volume.attributes(node)?;
    let size = usize::try_from(attributes.size).unwrap_or(usize::MAX);
    if attributes.file_type() != Some(FileType::Regular) || size > most {
        return Ok(None);
    }
    let mut bytes = vec![0; size];
    volume.read(node, 0, attributes.size, &mut Cursor::new(&[VolatileSlice::from(&mut *bytes)]))?;
    Ok(Some(bytes))
}

#[cfg(test)]
pub(crate) mod tests;
