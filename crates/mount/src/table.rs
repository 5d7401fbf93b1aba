//! Reads the mount table, `/proc/self/mountinfo` (Linux's Documentation/filesystems/proc.rst, section 3.5).

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::os::fd::BorrowedFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{AtFlags, StatxFlags, statx};
use rustix::io::Errno;
use rustix::mount::MountAttrFlags;

use super::identity::{DeviceNumber, MountId};

/// A mount, as the table has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// What tells it from other mounts of the same file system; not used again while it is there.
    pub id: u64,
    /// The mount that it is mounted in.
    pub parent: u64,
    /// Of the file system.
    pub device: DeviceNumber,
    /// Type of the file system.
    pub kind: String,
    /// The source, as given to mount(2).
    pub source: PathBuf,
    /// For FUSE, the user who mounted it.
    pub user: Option<u32>,
}

/// This process's table. If there is no descriptor or memory to read it, retries for some seconds: without the table,
/// mounts would seem to be gone.
fn own_table() -> std::io::Result<Vec<u8>> {
    const PAUSE: Duration = Duration::from_millis(20);
    for _ in 0..200 {
        match std::fs::read("/proc/self/mountinfo") {
            Err(error) if is_passing(&error) => std::thread::sleep(PAUSE),
            table => return table,
        }
    }
    std::fs::read("/proc/self/mountinfo")
}

/// Whether the error is a shortage that ends when other programs release something.
fn is_passing(error: &std::io::Error) -> bool {
    let errno = error.raw_os_error().map(Errno::from_raw_os_error);
    matches!(errno, Some(Errno::MFILE | Errno::NFILE | Errno::NOMEM | Errno::INTR))
}

/// Whether nothing is mounted at `directory`, an absolute path without symbolic links, or beneath it. False if there is no telling.
pub fn is_free_of_mounts(directory: &Path) -> bool {
    let Ok(table) = own_table() else { return false };
    let points = table.split(|byte| *byte == b'\n').filter_map(parse_line);
    points.map(|(point, _)| PathBuf::from(OsString::from_vec(point))).all(|point| !point.starts_with(directory))
}

/// The topmost mount at `point`, an absolute path. Does not contact the file system, whose server may be dead.
pub fn mounted(point: &Path) -> Option<Entry> {
    let table = std::fs::read("/proc/self/mountinfo").ok()?;
    // The last entry covers those before.
    table.split(|byte| *byte == b'\n').rev().find_map(|line| parse(line, point.as_os_str().as_bytes()))
}

/// A mount, and where it is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// Its mount point.
    pub point: PathBuf,
    /// What is mounted there.
    pub entry: Entry,
    /// The mount that hides it: one over it, or over a directory above it.
    pub cover: Option<(PathBuf, Entry)>,
}

/// All that is mounted at `point`, an absolute path, in the order of the table.
pub fn mounts_at(point: &Path) -> Vec<Place> {
    places(|place, _| place == point)
}

/// The current place of a mount, whose parent directories may have been renamed; `None` if it is gone.
pub fn place_of(mount: &MountId) -> Option<Place> {
    // Another mount may have its numbers.
    let found = || {
        let found = places(|_, entry| mount.is(entry)).pop()?;
        (found.cover.is_some() || mount.may_be_at(&found.point)).then_some(found)
    };
    // A mount may have come to cover it between the table and the look at its place; a second table has both.
    found().or_else(found)
}

fn places(is_meant: impl Fn(&Path, &Entry) -> bool) -> Vec<Place> {
    let table = own_table().unwrap_or_default();
    let line = |line| parse_line(line).map(|(point, entry)| (PathBuf::from(OsString::from_vec(point)), entry));
    let mounts: Vec<(PathBuf, Entry)> = table.split(|byte| *byte == b'\n').filter_map(line).collect();
    let meant = mounts.iter().filter(|(point, entry)| is_meant(point, entry));
    let place = |(point, entry): &(PathBuf, Entry)| {
        let cover = seen_at(&mounts, point).filter(|(_, seen)| seen.id != entry.id);
        Place { point: point.clone(), entry: entry.clone(), cover: cover.cloned() }
    };
    meant.map(place).collect()
}

/// The mount in which a path to `point` ends: each step may enter a mount that lies in the one before.
fn seen_at<'m>(mounts: &'m [(PathBuf, Entry)], point: &Path) -> Option<&'m (PathBuf, Entry)> {
    let has_parent =
        |mount: &Entry| mounts.iter().any(|(_, other)| other.id == mount.parent && mount.id != mount.parent);
    let mut inside = mounts.iter().map(|(_, mount)| mount).find(|mount| !has_parent(mount))?.parent;
    let mut steps: Vec<&Path> = point.ancestors().collect();
    let mut seen = None;
    while let Some(step) = steps.last() {
        match mounts.iter().find(|(place, mount)| mount.parent == inside && mount.id != inside && place == step) {
            Some(found) => (inside, seen) = (found.1.id, Some(found)),
            None => drop(steps.pop()),
        }
    }
    seen
}

/// The mount with this number, and where it is.
pub(super) fn entry_of(id: u64) -> Option<(PathBuf, Entry)> {
    let found = places(|_, entry| entry.id == id).pop()?;
    Some((found.point, found.entry))
}

/// Whether the table was read and does not have this mount.
pub(super) fn is_gone(mount: &Entry) -> bool {
    let Ok(table) = std::fs::read("/proc/self/mountinfo") else { return false };
    table.split(|byte| *byte == b'\n').filter_map(parse_line).all(|(_, entry)| entry.id != mount.id)
}

/// The mount that an open file was opened through, unless it is of another mount namespace.
pub(super) fn entry_of_file(file: BorrowedFd<'_>) -> Option<Entry> {
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    let told = statx(file, "", flags, StatxFlags::MNT_ID).ok()?;
    entry_of(told.stx_mnt_id).map(|(_, entry)| entry)
}

/// All mounts within `mount`, at any depth, the one mounted last first.
pub fn mounts_within(mount: &MountId) -> Vec<(PathBuf, Entry)> {
    let table = own_table().unwrap_or_default();
    let mounts: Vec<_> = table.split(|byte| *byte == b'\n').filter_map(parse_line).collect();
    let mut parents: Vec<u64> = mounts.iter().filter(|(_, entry)| mount.is(entry)).map(|(_, entry)| entry.id).collect();
    let mut within = Vec::new();
    // Mounts inside others come later in the table, unless they were moved.
    while let Some(parent) = parents.pop() {
        for (point, entry) in mounts.iter().filter(|(_, entry)| entry.parent == parent && entry.id != parent) {
            parents.push(entry.id);
            within.push((PathBuf::from(OsString::from_vec(point.clone())), entry.clone()));
        }
    }
    within.reverse();
    within
}

/// A process in another mount namespace in which FUSE of ours is mounted at `point`, as far as this user may look.
pub fn process_that_sees(point: &Path) -> Option<u32> {
    let own = std::fs::read("/proc/self/mountinfo").ok()?;
    let mut processes: Vec<u32> = std::fs::read_dir("/proc").ok()?.flatten().filter_map(number).collect();
    processes.sort_unstable();
    processes.into_iter().find(|process| {
        let table = std::fs::read(format!("/proc/{process}/mountinfo")).unwrap_or_default();
        let mut found = table.split(|byte| *byte == b'\n').filter_map(|line| parse(line, point.as_os_str().as_bytes()));
        table != own && found.any(|entry| entry.is_fuse())
    })
}

/// The process that an entry of /proc is of.
fn number(entry: std::fs::DirEntry) -> Option<u32> {
    entry.file_name().to_str()?.parse().ok()
}

/// Another place where a file system is mounted: a bind mount, or a mount in another mount namespace, which began with
/// a copy of the table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Copy {
    /// Of the mount.
    pub id: u64,
    /// Where it is.
    pub point: PathBuf,
    /// A process in the mount namespace, if that is another than this one's.
    pub process: Option<u32>,
}

/// The other places where the same file system is mounted, as far as this user may see them. Does not contact it.
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

/// The mount points beneath `directory`, an absolute path without symbolic links, and the topmost mount at each, by path. Does not
/// contact any of the mounted file systems.
pub fn topmost_beneath(directory: &Path) -> BTreeMap<PathBuf, Entry> {
    let table = own_table().unwrap_or_default();
    // The last mount at a point covers those before.
    let mounts = table.split(|byte| *byte == b'\n').filter_map(parse_line);
    let mounts = mounts.map(|(point, entry)| (PathBuf::from(OsString::from_vec(point)), entry));
    mounts.filter(|(point, _)| point != directory && point.starts_with(directory)).collect()
}

/// The mount points beneath `directory`, an absolute path without symbolic links, each once. Does not contact any of
/// the mounted file systems.
pub fn mount_points_beneath(directory: &Path) -> Vec<PathBuf> {
    let table = own_table().unwrap_or_default();
    let point =
        |line: &[u8]| Some(PathBuf::from(OsString::from_vec(unescape(line.split(|byte| *byte == b' ').nth(4)?))));
    let mut points: Vec<PathBuf> = table.split(|byte| *byte == b'\n').filter_map(point).collect();
    points.retain(|point| point != directory && point.starts_with(directory));
    points.sort();
    points.dedup();
    points
}

/// The mounts at or beneath `directory`, an absolute path without symbolic links, that forbid something, and what they
/// forbid: writes, set-user-ID programs, devices, execution, symbolic links. Outer mounts come first. Does not contact
/// any of the mounted file systems.
pub fn restrictions_beneath(directory: &Path) -> Vec<(PathBuf, MountAttrFlags)> {
    let table = own_table().unwrap_or_default();
    // The last mount at a point covers those before.
    let points: BTreeMap<PathBuf, MountAttrFlags> =
        table.split(|byte| *byte == b'\n').filter_map(restrictions).collect();
    points.into_iter().filter(|(point, flags)| point.starts_with(directory) && !flags.is_empty()).collect()
}

/// The mount point on this line, and what the mount forbids.
fn restrictions(line: &[u8]) -> Option<(PathBuf, MountAttrFlags)> {
    let mut words = line.split(|byte| *byte == b' ');
    let point = PathBuf::from(OsString::from_vec(unescape(words.nth(4)?)));
    let own = words.next()?;
    words.find(|word| *word == b"-")?;
    // Of the file system's own options, only `ro` forbids something.
    let is_read_only = words.nth(2).unwrap_or_default().split(|byte| *byte == b',').any(|option| option == b"ro");
    let mut flags = if is_read_only { MountAttrFlags::MOUNT_ATTR_RDONLY } else { MountAttrFlags::empty() };
    for option in own.split(|byte| *byte == b',') {
        flags |= match option {
            b"ro" => MountAttrFlags::MOUNT_ATTR_RDONLY,
            b"nosuid" => MountAttrFlags::MOUNT_ATTR_NOSUID,
            b"nodev" => MountAttrFlags::MOUNT_ATTR_NODEV,
            b"noexec" => MountAttrFlags::MOUNT_ATTR_NOEXEC,
            b"nosymfollow" => MountAttrFlags::MOUNT_ATTR_NOSYMFOLLOW,
            _ => MountAttrFlags::empty(),
        };
    }
    Some((point, flags))
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
    let parent = text(words.next()?)?.parse().ok()?;
    let device = text(words.next()?)?.parse().ok()?;
    let point = unescape(words.nth(1)?);
    // Optional words end with a dash.
    words.find(|word| *word == b"-")?;
    let kind = String::from_utf8_lossy(words.next()?).into_owned();
    let source = PathBuf::from(OsString::from_vec(unescape(words.next()?)));
    let mut options = words.next().unwrap_or_default().split(|byte| *byte == b',');
    let user = options.find_map(|option| text(option.strip_prefix(b"user_id=")?)?.parse().ok());
    Some((point, Entry { id, parent, device, kind, source, user }))
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
    fn what_is_forbidden_in_a_mount_is_told() {
        let told = |line: &str| restrictions(line.as_bytes()).map(|(point, flags)| (point, flags.bits()));
        let flags =
            MountAttrFlags::MOUNT_ATTR_NOSUID | MountAttrFlags::MOUNT_ATTR_NODEV | MountAttrFlags::MOUNT_ATTR_RDONLY;
        let line = r"98 35 0:47 / /a\040b rw,nosuid,nodev,relatime shared:1 - ext4 /dev/sdb ro,user_id=1";
        assert_eq!(told(line), Some((PathBuf::from("/a b"), flags.bits())));
        assert_eq!(told("1 0 0:2 / / rw,relatime - ext4 /dev/sda rw"), Some((PathBuf::from("/"), 0)));
        let noexec = MountAttrFlags::MOUNT_ATTR_NOEXEC.bits();
        assert_eq!(told("1 0 0:2 / / rw,noexec - ext4 /dev/sda"), Some((PathBuf::from("/"), noexec)));
        assert_eq!(told("1 0 0:2 / /"), None);
    }

    #[test]
    fn a_path_leads_into_what_covers_the_others() {
        let mount =
            |line: &str| parse_line(line.as_bytes()).map(|(point, entry)| (OsString::from_vec(point).into(), entry));
        let mounts: Vec<(PathBuf, Entry)> = [
            "20 1 0:1 / / rw - ext4 disk rw",
            "30 20 0:2 / /a/point rw - fuse.inarch lower rw",
            "31 30 0:3 / /a/point rw - fuse.inarch upper rw",
            "32 31 0:4 / /a/point/in rw - proc within rw",
            "33 20 0:5 / /a/pointless rw - proc beside rw",
            "34 20 0:6 / /b/point rw - fuse.inarch hidden rw",
            "35 20 0:7 / /b rw - tmpfs above rw",
            "36 35 0:8 / /b/point rw - fuse.inarch seen rw",
        ]
        .into_iter()
        .filter_map(mount)
        .collect();
        for (point, seen) in
            [("/", "disk"), ("/a/point", "upper"), ("/a/point/in/x", "within"), ("/b", "above"), ("/b/point", "seen")]
        {
            assert_eq!(seen_at(&mounts, Path::new(point)).unwrap().1.source, Path::new(seen), "{point}");
        }
        // Within a directory that is the root of a process no mount is mounted in another.
        assert_eq!(seen_at(&mounts[4..], Path::new("/b/point")).unwrap().1.source, Path::new("seen"));
        assert!(seen_at(&mounts[4..], Path::new("/")).is_none() && seen_at(&[], Path::new("/")).is_none());
    }

    #[test]
    fn the_roots_mount_is_found() {
        assert!(mounted(Path::new("/")).is_some());
        assert!(mounted(Path::new("/no such mount")).is_none());
        assert!(mount_points_beneath(Path::new("/")).contains(&PathBuf::from("/proc")));
        assert!(mount_points_beneath(Path::new("/pro")).is_empty());
        assert_eq!(topmost_beneath(Path::new("/")).get(Path::new("/proc")).unwrap().kind, "proc");
        assert!(topmost_beneath(Path::new("/pro")).is_empty());
    }
}
