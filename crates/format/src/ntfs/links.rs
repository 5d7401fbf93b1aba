//! Targets of symbolic links and junctions. A path of Windows that leads to something in the volume becomes a relative path with
//! the names as they are there, as in ntfs-3g; all others keep their text, with slashes.

use inarch_volume::{Node, TARGET_MAX, VolumeError};

use super::damaged;
use super::index::{FileName, Index};
use super::kinds::{Kind, Target};
use super::names::to_bytes;
use super::spec::{NUMBER, kind, record};
use super::volume::NtfsVolume;

/// The most components of a path that are looked up, and the deepest directory that a link is made relative to.
const MAX_COMPONENTS: usize = 100;

const SLASH: u16 = b'/' as u16;
const BACKSLASH: u16 = b'\\' as u16;

/// A path of Windows, taken apart.
#[derive(Debug, PartialEq, Eq)]
struct WindowsPath<'a> {
    /// From the volume's root on, not from the link's directory.
    from_root: bool,
    /// `C:`, `//server`, or nothing: what cannot be looked up.
    prefix: Vec<u16>,
    components: Vec<&'a [u16]>,
}

impl<'a> WindowsPath<'a> {
    fn new(path: &'a [u16], is_relative: bool) -> WindowsPath<'a> {
        let starts = |path: &[u16], text: &str| {
            let mut units = path.iter().copied();
            text.encode_utf16().all(|unit| units.next() == Some(unit))
        };
        let is_separator = |unit: &u16| matches!(*unit, SLASH | BACKSLASH);
        let (mut rest, mut prefix) = (path, Vec::new());
        if !is_relative {
            // Names of the kernel's and of the system's own namespace.
            let is_full = starts(rest, r"\??\") || starts(rest, r"\\?\");
            if is_full {
                rest = rest.get(4..).unwrap_or_default();
            }
            let is_shared = !is_full && starts(rest, r"\\");
            if is_full && starts(rest, r"UNC\") {
                rest = rest.get(4..).unwrap_or_default();
                prefix = "//".encode_utf16().collect();
            } else if is_shared {
                prefix = "//".encode_utf16().collect();
            } else if is_full && starts(rest, "Volume{") {
                prefix = "//?/".encode_utf16().collect();
            } else if let [letter, colon, ..] = rest
                && *colon == u16::from(b':')
            {
                prefix = vec![*letter, *colon];
                rest = rest.get(2..).unwrap_or_default();
            }
        }
        let from_root = !is_relative || rest.first().is_some_and(is_separator);
        let components = rest.split(|unit| is_separator(unit)).filter(|component| !component.is_empty()).collect();
        WindowsPath { from_root, prefix, components }
    }

    /// Whether its components may be in this volume.
    fn is_local(&self) -> bool {
        self.from_root && matches!(self.prefix.len(), 0 | 2) && !self.prefix.contains(&SLASH)
    }

    /// The path as it is, with slashes.
    fn text(&self) -> Vec<u8> {
        let components = self.components.iter().map(|component| to_bytes(component.iter().copied()));
        let path = components.collect::<Vec<_>>().join(&b'/');
        let prefix = to_bytes(self.prefix.iter().copied());
        let root = if self.from_root && !prefix.ends_with(b"/") { &b"/"[..] } else { b"" };
        [&prefix, root, &path].concat()
    }
}

impl NtfsVolume {
    /// The target of a symbolic link.
    pub(super) fn target_of(&self, link: Node, target: &Target) -> Result<Vec<u8>, VolumeError> {
        let path = match target {
            Target::Unix(path) => path.clone(),
            Target::Windows(path, is_relative) => {
                let path = WindowsPath::new(path, *is_relative);
                match self.resolved(link, &path) {
                    Ok(Some(found)) => found,
                    Ok(None) | Err(VolumeError::Damaged(_) | VolumeError::WrongType) => path.text(),
                    Err(error) => return Err(error),
                }
            }
        };
        match (1..=TARGET_MAX).contains(&path.len()) && !path.contains(&0) {
            true => Ok(path),
            false => Err(damaged("is a symlink whose target is not 1 to 4095 bytes without NUL")),
        }
    }

    /// The path relative to the link's directory, with the names of the volume; `None` if it leads out or to nothing.
    fn resolved(&self, link: Node, path: &WindowsPath<'_>) -> Result<Option<Vec<u8>>, VolumeError> {
        if path.components.len() > MAX_COMPONENTS || (path.from_root && !path.is_local()) {
            return Ok(None);
        }
        let inode = self.inode(link)?;
        let Some(directory) = self.parent_of(&inode)? else { return Ok(None) };
        let mut found: Vec<Vec<u8>> = Vec::new();
        let mut at = Some(directory);
        if path.from_root {
            let Some(depth) = self.depth(directory)? else { return Ok(None) };
            found.resize(depth, b"..".to_vec());
            at = Some(Node(record::ROOT));
        }
        for component in &path.components {
            let name = to_bytes(component.iter().copied());
            if name == b"." {
                continue;
            }
            let Some(place) = at.filter(|_| name != b"..") else {
                at = match at.filter(|place| *place != Node(record::ROOT)) {
                    Some(place) => self.parent_of(&self.inode(place)?)?,
                    None => at,
                };
                found.push(name);
                continue;
            };
            let inode = self.inode(place)?;
            if self.kind(&inode)? != Kind::Directory {
                // Behind another link, the reader that follows both decides what names mean.
                at = None;
                found.push(name);
                continue;
            }
            let index = Index::open(&self.mft, &inode)?;
            let upcase = self.upcase()?;
            let exact = index.find(upcase, component, true)?.filter(|name| !name.is_short);
            let Some(entry) = exact.map_or_else(|| index.find(upcase, component, false), |name| Ok(Some(name)))? else {
                return Ok(None);
            };
            let node = Node(entry.reference);
            let own_name = match entry.is_short {
                true => self.long_name(node, place)?,
                false => None,
            };
            found.push(to_bytes(super::names::units(own_name.as_deref().unwrap_or(&entry.name))));
            at = Some(node);
        }
        Ok(Some(if found.is_empty() { b".".to_vec() } else { found.join(&b'/') }))
    }

    /// How many directories lie below the root on the way to this one, itself included; `None` if that cannot be told.
    fn depth(&self, directory: Node) -> Result<Option<usize>, VolumeError> {
        let mut at = directory;
        for depth in 0..MAX_COMPONENTS {
            if at == Node(record::ROOT) {
                return Ok(Some(depth));
            }
            let Some(parent) = self.parent_of(&self.inode(at)?)? else { return Ok(None) };
            at = parent;
        }
        Ok(None)
    }

    /// The long name that a file with a short one has in a directory.
    fn long_name(&self, node: Node, directory: Node) -> Result<Option<Vec<u8>>, VolumeError> {
        let mut found = None;
        let inode = self.inode(node)?;
        inode.each(&self.mft, kind::FILE_NAME, &mut |attribute| {
            let name = attribute.resident().and_then(FileName::parse);
            let name = name.filter(|name| !name.is_short() && name.parent & NUMBER == directory.0 & NUMBER);
            found = name.map(|name| name.name.to_vec());
            Ok(found.is_none())
        })?;
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_of_windows_are_taken_apart() {
        for (path, is_relative, is_local, text) in [
            (r"\??\C:\Users\Public", false, true, "C:/Users/Public"),
            (r"\??\C:\", false, true, "C:/"),
            (r"C:\a/b\\c", false, true, "C:/a/b/c"),
            (r"\Users", false, true, "/Users"),
            (r"\Users", true, true, "/Users"),
            (r"..\a\.\b", true, false, "../a/./b"),
            (r"\??\UNC\server\share\x", false, false, "//server/share/x"),
            (r"\\server\share", false, false, "//server/share"),
            (r"\??\Volume{1-2}\x", false, false, "//?/Volume{1-2}/x"),
            ("", false, true, "/"),
        ] {
            let units: Vec<u16> = path.encode_utf16().collect();
            let found = WindowsPath::new(&units, is_relative);
            assert_eq!(
                (found.is_local(), String::from_utf8(found.text()).unwrap()),
                (is_local, text.to_owned()),
                "{path}"
            );
        }
    }
}
