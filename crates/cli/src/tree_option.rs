//! `--tree SRC[:DST][,OPT]...`: one tree of a run.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;

use inarch_tree::scan::OwnerMap;

/// A parsed `--tree`.
#[derive(Clone, Debug)]
pub struct TreeOption {
    /// The host directory.
    pub source: PathBuf,
    /// Where the guest sees it; the same path where none was given.
    pub destination: Option<PathBuf>,
    /// The guest cannot write to it (`ro`); otherwise its writes go to an overlay.
    pub read_only: bool,
    /// `owner=`, or `None` for the run's own.
    pub owner: Option<OwnerMap>,
    /// `exclude=GLOB`, any number.
    pub exclude: Vec<String>,
}

/// Parses `SRC[:DST][,OPT]...`; `\:`, `\,` and `\\` stand for the character itself.
pub fn parse(text: &OsStr) -> Result<TreeOption, String> {
    let shown = text.to_string_lossy();
    let mut parts = split(text.as_bytes(), b',').into_iter();
    let paths = parts.next().unwrap_or_default();
    let mut paths = split(&paths, b':').into_iter().map(unescape).map(|path| PathBuf::from(OsString::from_vec(path)));
    let source = paths.next().filter(|path| !path.as_os_str().is_empty());
    let source = source.ok_or_else(|| format!("'{shown}' names no directory; write SRC[:DST][,OPT]"))?;
    let destination = paths.next();
    if paths.next().is_some() {
        return Err(format!("'{shown}' has more than one ':'; write '\\:' for one that belongs to a path"));
    }
    if let Some(destination) = &destination
        && !destination.is_absolute()
    {
        return Err(format!("'{}' is no absolute path to mount a tree at", destination.display()));
    }
    let mut option = TreeOption { source, destination, read_only: false, owner: None, exclude: Vec::new() };
    for part in parts {
        let part = String::from_utf8(unescape(part)).map_err(|_| format!("an option in '{shown}' is not UTF-8"))?;
        match part.split_once('=') {
            None if part == "ro" => option.read_only = true,
            None if part == "overlay" => option.read_only = false,
            Some(("owner", map)) => option.owner = Some(map.parse().map_err(|error| format!("{error}"))?),
            Some(("exclude", glob)) => option.exclude.push(glob.to_owned()),
            _ => {
                return Err(format!("'{part}' in '{shown}' is no option of a tree: ro, overlay, owner=, exclude="));
            }
        }
    }
    Ok(option)
}

/// Splits at every `separator` that no backslash precedes; escapes stay as they are.
fn split(text: &[u8], separator: u8) -> Vec<Vec<u8>> {
    let mut parts = vec![Vec::new()];
    let mut bytes = text.iter().copied();
    while let Some(byte) = bytes.next() {
        let part = parts.last_mut().expect("there is always a part");
        if byte == separator {
            parts.push(Vec::new());
        } else {
            part.push(byte);
            if byte == b'\\' {
                part.extend(bytes.next());
            }
        }
    }
    parts
}

fn unescape(text: Vec<u8>) -> Vec<u8> {
    let mut plain = Vec::with_capacity(text.len());
    let mut bytes = text.into_iter();
    while let Some(byte) = bytes.next() {
        match (byte, bytes.as_slice().first()) {
            (b'\\', Some(next @ (b':' | b',' | b'\\'))) => {
                plain.push(*next);
                bytes.next();
            }
            _ => plain.push(byte),
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tree_is_a_source_a_destination_and_options() {
        let tree = parse(OsStr::new("/a/b:/mnt/c,ro,owner=map,exclude=*.o,exclude=target")).unwrap();
        assert_eq!(tree.source, PathBuf::from("/a/b"));
        assert_eq!(tree.destination, Some(PathBuf::from("/mnt/c")));
        assert!(tree.read_only && tree.owner.is_some());
        assert_eq!(tree.exclude, ["*.o", "target"]);
        assert_eq!(parse(OsStr::new("src")).unwrap().destination, None);
    }

    #[test]
    fn escapes_keep_colons_and_commas_in_paths() {
        let tree = parse(OsStr::new(r"/a\:b\,c\\d:/m")).unwrap();
        assert_eq!(tree.source, PathBuf::from(r"/a:b,c\d"));
    }

    #[test]
    fn wrong_trees_are_refused_with_a_reason() {
        for (text, reason) in [
            ("", "no directory"),
            (":/x", "no directory"),
            ("a:b", "absolute"),
            ("a:/b:/c", "more than one"),
            ("a,rx", "'rx'"),
            ("a,owner=who", "who"),
        ] {
            let error = parse(OsStr::new(text)).unwrap_err();
            assert!(error.contains(reason), "{text}: {error}");
        }
    }
}
