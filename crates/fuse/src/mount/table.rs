//! What is mounted where: `/proc/self/mountinfo` (Linux's Documentation/filesystems/proc.rst, section 3.5).

use std::ffi::OsString;
use std::fmt;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::str::FromStr;

/// A mounted file system's number: no two that are mounted at a time have the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceNumber {
    major: u32,
    minor: u32,
}

impl From<u64> for DeviceNumber {
    /// Of one as stat(2) gives it.
    fn from(device: u64) -> DeviceNumber {
        DeviceNumber { major: rustix::fs::major(device), minor: rustix::fs::minor(device) }
    }
}

impl DeviceNumber {
    /// Whether it is this one.
    pub(super) fn is(self, major: Option<u32>, minor: Option<u32>) -> bool {
        (Some(self.major), Some(self.minor)) == (major, minor)
    }
}

impl fmt::Display for DeviceNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.major, self.minor)
    }
}

impl FromStr for DeviceNumber {
    type Err = std::num::ParseIntError;

    fn from_str(text: &str) -> Result<DeviceNumber, Self::Err> {
        let (major, minor) = text.split_once(':').unwrap_or((text, ""));
        Ok(DeviceNumber { major: major.parse()?, minor: minor.parse()? })
    }
}

/// A mount, as the table has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// What tells it from other mounts of the same file system; not used again while it is there.
    pub id: u64,
    /// Of the file system.
    pub device: DeviceNumber,
    /// Type of the file system.
    pub kind: String,
    /// What is mounted, as whoever mounted it says.
    pub source: PathBuf,
    /// Of FUSE: the user who mounted it.
    pub user: Option<u32>,
}

/// What is mounted at `point`, an absolute path, above all else there. Asks nothing of the file system, whose server may be
/// dead.
pub fn mounted(point: &Path) -> Option<Entry> {
    let table = std::fs::read("/proc/self/mountinfo").ok()?;
    // The last one covers those before.
    table.split(|byte| *byte == b'\n').rev().find_map(|line| parse(line, point.as_os_str().as_bytes()))
}

/// A place where a file system is mounted once more: bound to it, or in another mount namespace, which had a copy of the table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Copy {
    /// Of the mount.
    pub id: u64,
    /// Where it is.
    pub point: PathBuf,
    /// A process in the mount namespace, if that is another than this one's.
    pub process: Option<u32>,
}

/// Where else than at `mount` the same file system is mounted, as far as this user may look. Asks nothing of it.
pub fn copies(mount: &Entry) -> Vec<Copy> {
    let namespace = |process: &str| std::fs::read_link(format!("/proc/{process}/ns/mnt"));
    let beside = |process: &str, number| {
        let table = std::fs::read(format!("/proc/{process}/mountinfo")).unwrap_or_default();
        let entries = table.split(|byte| *byte == b'\n').filter_map(parse_line);
        let same = entries.filter(|(_, entry)| entry.device == mount.device && entry.id != mount.id);
        let copy = |(point, entry): (Vec<u8>, Entry)| Copy {
            id: entry.id,
            point: OsString::from_vec(point).into(),
            process: number,
        };
        same.map(copy).collect::<Vec<_>>()
    };
    let mut copies = beside("self", None);
    let mut seen: Vec<PathBuf> = namespace("self").into_iter().collect();
    for entry in std::fs::read_dir("/proc").into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let (Ok(number), Ok(namespace)) = (name.parse(), namespace(&name)) else { continue };
        if !seen.contains(&namespace) {
            seen.push(namespace);
            copies.extend(beside(&name, Some(number)));
        }
    }
    copies
}

/// Whether the file system with this number is mounted at `point`, be it beneath another.
pub(super) fn is_mounted_beneath(point: &Path, device: DeviceNumber) -> bool {
    let table = std::fs::read("/proc/self/mountinfo").unwrap_or_default();
    let mut entries = table.split(|byte| *byte == b'\n').filter_map(|line| parse(line, point.as_os_str().as_bytes()));
    entries.any(|entry| entry.device == device)
}

/// Where something is mounted beneath `directory`, an absolute path without symbolic links: each place once. Asks nothing of what is
/// mounted.
pub fn mount_points_beneath(directory: &Path) -> Vec<PathBuf> {
    let table = std::fs::read("/proc/self/mountinfo").unwrap_or_default();
    let point =
        |line: &[u8]| Some(PathBuf::from(OsString::from_vec(unescape(line.split(|byte| *byte == b' ').nth(4)?))));
    let mut points: Vec<PathBuf> = table.split(|byte| *byte == b'\n').filter_map(point).collect();
    points.retain(|point| point != directory && point.starts_with(directory));
    points.sort();
    points.dedup();
    points
}

/// The mount on this line of the table, if it is at `point`.
fn parse(line: &[u8], point: &[u8]) -> Option<Entry> {
    parse_line(line).filter(|(place, _)| place == point).map(|(_, entry)| entry)
}

/// The mount on this line of the table, and where it is.
fn parse_line(line: &[u8]) -> Option<(Vec<u8>, Entry)> {
    let text = |word| std::str::from_utf8(word).ok();
    let mut words = line.split(|byte| *byte == b' ');
    let id = text(words.next()?)?.parse().ok()?;
    let device = text(words.nth(1)?)?.parse().ok()?;
    let point = unescape(words.nth(1)?);
    // Optional words end with a dash.
    words.find(|word| *word == b"-")?;
    let kind = String::from_utf8_lossy(words.next()?).into_owned();
    let source = PathBuf::from(OsString::from_vec(unescape(words.next()?)));
    let mut options = words.next().unwrap_or_default().split(|byte| *byte == b',');
    let user = options.find_map(|option| text(option.strip_prefix(b"user_id=")?)?.parse().ok());
    Some((point, Entry { id, device, kind, source, user }))
}

/// Blanks, line breaks and backslashes are written as octal numbers.
fn unescape(word: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(word.len());
    let mut rest = word;
    while let Some((first, behind)) = rest.split_first() {
        let number = behind.get(..3).and_then(|digits| std::str::from_utf8(digits).ok());
        match number.and_then(|digits| u8::from_str_radix(digits, 8).ok()).filter(|_| *first == b'\\') {
            Some(byte) => {
                out.push(byte);
                rest = behind.get(3..).unwrap_or_default();
            }
            None => {
                out.push(*first);
                rest = behind;
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_of_the_table_is_understood() {
        let line =
            br"98 35 0:47 / /tmp/a\040b\134 rw,nosuid shared:42 - fuse.inarch /a\040tree rw,user_id=7,group_id=0";
        let found = parse(line, br"/tmp/a b\").unwrap();
        assert_eq!((found.id, found.device.to_string().as_str(), found.kind.as_str()), (98, "0:47", "fuse.inarch"));
        assert_eq!((found.source.to_str(), found.user), (Some("/a tree"), Some(7)));
        assert_eq!(parse(b"1 0 0:2 / /sys rw - sysfs none rw", b"/sys").unwrap().user, None);
        assert!(parse(line, b"/tmp/a").is_none());
        assert!(parse(b"98 35 0:47", b"/tmp/a").is_none());
    }

    #[test]
    fn the_roots_mount_is_found() {
        assert!(mounted(Path::new("/")).is_some());
        assert!(mounted(Path::new("/no such mount")).is_none());
        assert!(mount_points_beneath(Path::new("/")).contains(&PathBuf::from("/proc")));
        assert!(mount_points_beneath(Path::new("/pro")).is_empty());
    }
}
