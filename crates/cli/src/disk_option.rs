//! Parses `--disk FILE[,ro][,format=raw|qcow2]`: a disk of a guest.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use inarch_jobs::run::AttachedDisk;

use crate::tree_option::{split, unescape};

/// Parses `FILE[,OPT]...`; `\\,` is a comma of the file's name.
pub fn parse(text: &OsStr) -> Result<AttachedDisk, String> {
    let shown = text.to_string_lossy();
    let mut parts = split(text.as_bytes(), b',').into_iter().map(|part| OsString::from_vec(unescape(part)));
    let path = parts.next().filter(|path| !path.is_empty());
    let path = path.ok_or_else(|| format!("'{shown}' names no file; write FILE[,ro][,format=raw|qcow2]"))?;
    let mut disk = AttachedDisk { path: path.into(), read_only: false, format: None, sector: None, seen: None };
    for part in parts {
        let word = part.to_string_lossy();
        match word.split_once('=') {
            None if word == "ro" || word == "read-only" => disk.read_only = true,
            None if word == "rw" => disk.read_only = false,
            Some(("format", format @ ("raw" | "qcow2"))) => disk.format = Some(format.parse()?),
            Some(("format", other)) => {
                return Err(format!("format={other} in '{shown}': a guest's disk is raw or qcow2"));
            }
            _ => return Err(format!("'{word}' in '{shown}' is not an option of a disk: ro, format=raw, format=qcow2")),
        }
    }
    Ok(disk)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_is_a_file_and_options() {
        let disk = parse(OsStr::new("a\\,b.img,ro,format=raw")).unwrap();
        assert_eq!((disk.path.to_str(), disk.read_only), (Some("a,b.img"), true));
        assert_eq!(disk.format.map(|format| format.name()), Some("raw"));
        for (wrong, reason) in [(",ro", "names no file"), ("a,format=vmdk", "raw or qcow2"), ("a,x", "not an option")] {
            assert!(parse(OsStr::new(wrong)).unwrap_err().contains(reason), "{wrong}");
        }
    }
}
