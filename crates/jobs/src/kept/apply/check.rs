//! Which paths of the host may be changed: those that are as they were scanned.

use std::collections::HashSet;
use std::path::PathBuf;

use inarch_tree::compare::Difference;
use inarch_tree::{FileType, Inode, InodeId, Xattr};
use rustix::fs::{Stat, lgetxattr};
use rustix::io::Errno;

use super::host::{Host, file_type, is_as_scanned, is_beneath, mtime};
use super::{ApplyReport, ApplyRequest, Earlier, host_path};
use crate::kept::diff::TreeDiff;

/// The longest value of an extended attribute in bytes (include/uapi/linux/limits.h).
const XATTR_SIZE_MAX: usize = 65536;

/// Why a file is not copied whose bytes another file has too.
const OVERLAPS: &str = "its blocks on the guest's disk are those of another file too: the file system is damaged";

/// Why a path is left alone that the host had changed before the last command of the run began.
const BOTH: &str = "it changed on the host, too";

/// What is to be done about the differences of a tree.
pub(super) struct Check<'a> {
    pub tree: &'a TreeDiff,
    /// For each difference, whether it is to be applied.
    pub verdicts: Vec<Verdict>,
}

/// What is to be done about a difference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It was not asked for.
    Left,
    /// The host has it as the guest has.
    Done,
    /// It is to be applied.
    Wanted,
    /// It is to be made where the host has nothing.
    Absent,
    /// The host has something else.
    Conflict,
}

impl<'a> Check<'a> {
    /// Looks at every difference of `tree` on the host.
    pub fn all(
        tree: &'a TreeDiff,
        host: &mut Host,
        request: &ApplyRequest,
        earlier: Option<&Earlier>,
        report: &mut ApplyReport,
    ) -> Check<'a> {
        let chosen = chosen(tree, request);
        let (overlapping, conflicting) = (tree.disk.overlapping(), tree.disk.conflicting());
        let mut check = Check { tree, verdicts: Vec::with_capacity(tree.differences.len()) };
        // The last directory that cannot be made, and the last that is to be made: what is in it comes next.
        let (mut blocked, mut absent): (Option<&[u8]>, Option<&[u8]>) = (None, None);
        for (difference, chosen) in tree.differences.iter().zip(chosen) {
            let path = &difference.path[..];
            let is_within = |top: Option<&[u8]>| top.is_some_and(|top| is_beneath(path, top));
            let verdict = if !chosen {
                Verdict::Left
            } else if is_within(blocked) {
                // Named by the directory that cannot be made.
                Verdict::Conflict
            } else if difference.old.is_none() && is_within(absent) {
                Verdict::Absent
            } else {
                let begun = earlier.is_some_and(|earlier| earlier.had_begun(&tree.in_guest(path)));
                let overlaps = difference.new.is_some_and(|id| overlapping.contains(&id));
                let found = match overlaps {
                    true => Err(OVERLAPS.to_owned()),
                    false if !begun && conflicting.contains(path) => Err(BOTH.to_owned()),
                    false => check.one(host, difference, begun),
                };
                match found {
                    Ok(verdict) => verdict,
                    Err(_) if request.force && !overlaps => Verdict::Wanted,
                    Err(reason) => {
                        report.conflicts.push((host_path(tree, path), reason));
                        if is_directory(tree, difference) {
                            blocked = Some(path);
                        }
                        Verdict::Conflict
                    }
                }
            };
            if verdict == Verdict::Absent && is_directory(tree, difference) && !is_within(absent) {
                absent = Some(path);
            }
            report.already += u64::from(verdict == Verdict::Done);
            check.verdicts.push(verdict);
        }
        check
    }

    /// The differences that are to be applied, and whether the host has nothing there.
    pub fn wanted(&self) -> impl Iterator<Item = (&'a Difference, bool)> {
        let differences: &'a [Difference] = &self.tree.differences;
        differences.iter().zip(&self.verdicts).filter_map(|(difference, verdict)| match verdict {
            Verdict::Wanted => Some((difference, false)),
            Verdict::Absent => Some((difference, true)),
            Verdict::Left | Verdict::Done | Verdict::Conflict => None,
        })
    }

    /// The first difference that the host does not have as the guest has. Attributes of directories are not looked at.
    pub fn first_missing(&self) -> Option<&'a Difference> {
        let differences: &'a [Difference] = &self.tree.differences;
        let is_applied = |difference: &Difference, verdict: Verdict| {
            verdict == Verdict::Done || (verdict == Verdict::Wanted && is_directory(self.tree, difference))
        };
        let mut all = differences.iter().zip(&self.verdicts);
        all.find(|(difference, verdict)| !is_applied(difference, **verdict)).map(|(difference, _)| difference)
    }

    /// Paths in the guest that are left alone for a conflict.
    pub fn conflicts(&self) -> impl Iterator<Item = PathBuf> {
        let conflicts = self.tree.differences.iter().zip(&self.verdicts);
        conflicts
            .filter(|(_, verdict)| **verdict == Verdict::Conflict)
            .map(|(difference, _)| self.tree.in_guest(&difference.path))
    }

    /// What is to be done about one difference, or why it is a conflict. `begun`: an apply that was interrupted may
    /// have been in the midst of it.
    fn one(&self, host: &mut Host, difference: &Difference, begun: bool) -> Result<Verdict, String> {
        let there = match host.parent(&difference.path).and_then(|(directory, name)| directory.stat(name)) {
            Ok(there) => there,
            // The directory it is in is not there, or something else is: it is still to be made, or gone.
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => None,
            Err(errno) => return Err(std::io::Error::from(errno).to_string()),
        };
        let (base, guest) = (&self.tree.disk.base, &self.tree.disk.guest);
        let was = difference.old.map(|id| base.inode(id));
        let is = difference.new.map(|id| guest.inode(id));
        match (there, was, is) {
            (None, _, None) => Ok(Verdict::Done),
            (None, None, Some(_)) => Ok(Verdict::Absent),
            (None, Some(_), Some(_)) if begun => Ok(Verdict::Wanted),
            (None, Some(_), Some(_)) => Err("it is gone on the host".to_owned()),
            (Some(stat), Some(was), Some(is)) if is_as_scanned(&stat, was, !begun) => {
                let is_directory = is.file_type() == FileType::Directory && was.file_type() == FileType::Directory;
                let same = is_directory
                    && mtime(&stat) == is.mtime()
                    && self.has_attributes_of(difference, &stat, is)
                    && self.has_xattrs_of(host, difference);
                Ok(if same { Verdict::Done } else { Verdict::Wanted })
            }
            (Some(stat), Some(was), None) if is_as_scanned(&stat, was, !begun) => Ok(Verdict::Wanted),
            (Some(stat), _, Some(is)) => self.compare_with_guest(host, difference, (&stat, is), begun),
            (Some(_), _, None) => Err("it changed on the host".to_owned()),
        }
    }

    /// What is on the host is not what was scanned: it may be what the guest has.
    fn compare_with_guest(
        &self,
        host: &mut Host,
        difference: &Difference,
        (stat, is): (&Stat, &Inode),
        begun: bool,
    ) -> Result<Verdict, String> {
        let added = difference.old.is_none();
        if is.file_type() == FileType::Directory && file_type(stat) == Some(FileType::Directory) {
            // Its names are looked at one by one.
            return match (begun, added) {
                (true, _) => Ok(Verdict::Wanted),
                (false, true) => Ok(Verdict::Done),
                (false, false) => Err("it is another directory on the host".to_owned()),
            };
        }
        let same_content = has_content_of(host, self.tree, difference, stat, is);
        if (begun && same_content) || is_torn(stat, is) {
            return Ok(Verdict::Wanted);
        }
        if same_content && self.has_attributes_of(difference, stat, is) && self.has_xattrs_of(host, difference) {
            return Ok(Verdict::Done);
        }
        if begun && self.is_linked_from_the_base(difference, stat) {
            return Ok(Verdict::Wanted);
        }
        Err(if added { "it is there on the host, and differs" } else { "it changed on the host" }.to_owned())
    }

    /// Whether what is on the host has the guest's permissions and owner.
    fn has_attributes_of(&self, difference: &Difference, stat: &Stat, is: &Inode) -> bool {
        let same_mode = is.file_type() == FileType::Symlink || (stat.st_mode ^ is.mode()) & 0o7777 == 0;
        let back = &self.tree.tree.owners;
        let same_owner = (stat.st_uid, stat.st_gid) == (back.uid(is.uid()), back.gid(is.gid()));
        same_mode && (same_owner || !difference.aspects.owner)
    }

    /// Whether what is on the host has the guest's extended attributes, where they differ from what they were.
    fn has_xattrs_of(&self, host: &mut Host, difference: &Difference) -> bool {
        let disk = &self.tree.disk;
        let Some(new) = difference.new.filter(|_| difference.aspects.xattrs) else { return true };
        let Ok((directory, name)) = host.parent(&difference.path) else { return false };
        let path = directory.path_to(name);
        let mut value = vec![0; XATTR_SIZE_MAX];
        let wanted = disk.guest.xattrs(disk.guest.inode(new).xattrs());
        let is_set = |xattr: &Xattr| {
            let mut expected = xattr.value.to_vec();
            if xattr.name.starts_with(b"system.posix_acl_") {
                self.tree.tree.owners.acl(&mut expected);
            }
            let length = lgetxattr(&path[..], &*xattr.name, &mut value[..]);
            length.is_ok_and(|length| value.get(..length) == Some(&expected))
        };
        let had = difference.old.map(|old| disk.base.xattrs(disk.base.inode(old).xattrs())).unwrap_or_default();
        let mut gone = had.iter().filter(|xattr| wanted.iter().all(|other| other.name != xattr.name));
        wanted.iter().all(is_set)
            && gone.all(|xattr| lgetxattr(&path[..], &*xattr.name, &mut [0u8; 0]) == Err(Errno::NODATA))
    }

    /// Whether the host has there the file that the guest gave another name, with attributes still to be set.
    fn is_linked_from_the_base(&self, difference: &Difference, stat: &Stat) -> bool {
        use inarch_tree::compare::Lineage;
        let origin = difference.new.and_then(|id| self.tree.disk.origin(id));
        origin.is_some_and(|id| self.tree.disk.base.inode(id).source_ino() == stat.st_ino)
    }
}

/// Whether what is on the host has the guest's content, as far as size and times tell.
pub(super) fn has_content_of(
    host: &mut Host,
    tree: &TreeDiff,
    difference: &Difference,
    stat: &Stat,
    is: &Inode,
) -> bool {
    let Some(id) = difference.new else { return false };
    if file_type(stat) != Some(is.file_type()) {
        return false;
    }
    match is.file_type() {
        FileType::Regular => stat.st_size as u64 == is.size() && mtime(stat) == is.mtime(),
        FileType::Symlink => {
            let target = host.parent(&difference.path).and_then(|(directory, name)| directory.read_link(name));
            target.is_ok_and(|target| target == tree.disk.guest.symlink_target(id))
        }
        FileType::CharDevice | FileType::BlockDevice => {
            (rustix::fs::major(stat.st_rdev), rustix::fs::minor(stat.st_rdev)) == is.device()
        }
        FileType::Directory | FileType::Fifo | FileType::Socket => true,
    }
}

/// Whether what is on the host is a file of which the machine lost content when it went down: an apply had set its time
/// before, which is that of the guest's file to the nanosecond.
pub(super) fn is_torn(stat: &Stat, is: &Inode) -> bool {
    let is_file = is.file_type() == FileType::Regular && file_type(stat) == Some(FileType::Regular);
    is_file && (stat.st_size as u64) < is.size() && mtime(stat) == is.mtime()
}

fn is_directory(tree: &TreeDiff, difference: &Difference) -> bool {
    let directory = |id: InodeId| tree.disk.guest.inode(id).file_type() == FileType::Directory;
    difference.new.is_some_and(directory)
}

/// For each difference whether it was asked for: with a file that was renamed both of its names are, and with anything
/// new the directories that it is in.
fn chosen(tree: &TreeDiff, request: &ApplyRequest) -> Vec<bool> {
    let is_named = |path: &[u8]| {
        let path = tree.in_guest(path);
        request.paths.is_empty() || request.paths.iter().any(|top| path.starts_with(top))
    };
    let mut names: HashSet<&[u8]> =
        tree.differences.iter().map(|difference| &difference.path[..]).filter(|path| is_named(path)).collect();
    for change in &tree.changes {
        let Some(from) = change.from.as_deref() else { continue };
        if names.contains(&change.path[..]) || names.contains(from) {
            names.extend([&change.path[..], from]);
        }
    }
    let mut above = HashSet::new();
    for path in &names {
        above.extend(path.iter().enumerate().filter(|(_, byte)| **byte == b'/').map(|(at, _)| &path[..at]));
    }
    let is_new = |difference: &Difference| difference.old.is_none() && above.contains(&difference.path[..]);
    tree.differences.iter().map(|difference| names.contains(&difference.path[..]) || is_new(difference)).collect()
}
