//! Finds the processes that use a mount, through /proc (proc(5)), without contacting its server.

use std::fs;
use std::path::{Path, PathBuf};

use rustix::fd::AsRawFd;
use rustix::fs::{CWD, Mode, OFlags, openat};

use super::table::Entry;

/// A process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct User {
    /// Its number.
    pub process: u32,
    /// Its name, of which the kernel stores 15 bytes.
    pub name: String,
}

/// The processes that have files of the mount open or mapped, or whose working directory, root or program is there,
/// as far as this user may see them.
pub fn users(mount: &Entry) -> Vec<User> {
    let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
    let number = |entry: fs::DirEntry| entry.file_name().to_str()?.parse::<u32>().ok();
    let mut numbers: Vec<u32> = processes.filter_map(number).collect();
    numbers.sort_unstable();
    let user = |process: u32| {
        let place = PathBuf::from(format!("/proc/{process}"));
        uses(&place, mount).then(|| User { process, name: name(&place) })
    };
    numbers.into_iter().filter_map(user).collect()
}

fn name(process: &Path) -> String {
    fs::read_to_string(process.join("comm")).unwrap_or_default().trim_end().to_owned()
}

fn uses(process: &Path, mount: &Entry) -> bool {
    ["cwd", "root", "exe"].iter().any(|link| mount_of_link(&process.join(link)) == Some(mount.id))
        || has_open(process, mount)
        || has_mapped(process, mount)
}

/// The mount that a link of /proc leads to.
fn mount_of_link(link: &Path) -> Option<u64> {
    // Following the link sends no request to the file system, and an `O_PATH` descriptor does not open the file.
    let there = openat(CWD, link, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).ok()?;
    mount_of_descriptor(Path::new("/proc/self"), &there.as_raw_fd().to_string())
}

/// The mount that a process's descriptor is of.
fn mount_of_descriptor(process: &Path, number: &str) -> Option<u64> {
    let text = fs::read_to_string(process.join("fdinfo").join(number)).ok()?;
    text.lines().find_map(|line| line.strip_prefix("mnt_id:")?.trim().parse().ok())
}

fn has_open(process: &Path, mount: &Entry) -> bool {
    let numbers = fs::read_dir(process.join("fdinfo")).into_iter().flatten().flatten();
    let mut numbers = numbers.filter_map(|entry| entry.file_name().into_string().ok());
    numbers.any(|number| mount_of_descriptor(process, &number) == Some(mount.id))
}

/// /proc/PID/maps names a mapping's file system. If that may be mounted elsewhere too, we look up the mapping's mount.
fn has_mapped(process: &Path, mount: &Entry) -> bool {
    let maps = fs::read(process.join("maps")).unwrap_or_default();
    maps.split(|byte| *byte == b'\n').any(|line| {
        let mut words = line.split(|byte| *byte == b' ').map(|word| std::str::from_utf8(word).ok());
        let range = words.next().flatten().unwrap_or_default();
        let numbers = words.nth(2).flatten().and_then(|text| text.split_once(':'));
        let number = |text| u32::from_str_radix(text, 16).ok();
        numbers.is_some_and(|(major, minor)| mount.device.is(number(major), number(minor)))
            && (mount.is_fuse() || mount_of_link(&process.join("map_files").join(range)) == Some(mount.id))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mounted;

    #[test]
    fn this_process_uses_what_it_has_for_its_root() {
        let root = mounted(Path::new("/")).unwrap();
        let own = std::process::id();
        let found = users(&root).into_iter().find(|user| user.process == own).unwrap();
        assert_eq!(found.name, name(Path::new("/proc/self")));
        let proc = mounted(Path::new("/proc")).unwrap();
        assert!(!uses(Path::new("/proc/self"), &Entry { id: u64::MAX, ..proc.clone() }));
        let _open = fs::File::open("/proc/version").unwrap();
        assert!(uses(Path::new("/proc/self"), &proc));
    }
}
