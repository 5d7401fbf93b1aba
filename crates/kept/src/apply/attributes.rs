//! Sets owner, permissions, extended attributes and times of what an apply makes or changes.

use std::os::fd::BorrowedFd;

use inarch_lifecycle::counted;
use inarch_tree::compare::Aspects;
use inarch_tree::{FileType, Inode, InodeId, Tree, Xattr};
use rustix::fs::{
    AtFlags, CWD, Gid, Mode, RawMode, Stat, Timespec, Timestamps, UTIME_OMIT, Uid, XattrFlags, chmod, chownat, fchmod,
    fchown, fgetxattr, fremovexattr, fsetxattr, fstatvfs, futimens, getxattr, removexattr, setxattr, utimensat,
};
use rustix::io::Errno;

use super::error::{MakeError, host};
use super::host::path_of;
use super::host::{Directory, mtime};
use super::seen::Identity;
use crate::OwnersBack;

/// The attributes that something on the host is to get.
pub(super) struct Wanted<'a> {
    pub tree: &'a Tree,
    pub inode: InodeId,
    pub uid: u32,
    pub gid: u32,
    /// Whether the guest's owner or group maps to none of the host's, so that `uid` and `gid` are somebody else's.
    pub is_foreign: bool,
    pub back: &'a OwnersBack,
    /// Extended attributes that are to go.
    pub unwanted: Vec<Box<[u8]>>,
}

/// The number of attributes that could not be set, for want of privilege or support. The rest is applied nevertheless.
#[derive(Clone, Debug, Default)]
pub(super) struct Lost {
    pub owners: u64,
    /// Owners that are outside of every range of ids.
    pub foreign: u64,
    /// Files that came without set-ID bits or capabilities, because their owner is another one.
    pub privileges: u64,
    pub xattrs: u64,
}

impl Lost {
    pub fn join(&mut self, other: &Lost) {
        self.owners += other.owners;
        self.foreign += other.foreign;
        self.privileges += other.privileges;
        self.xattrs += other.xattrs;
    }

    /// A line for each kind that was lost.
    pub fn lines(&self) -> Vec<String> {
        let files = |count| counted(count, "file", "files");
        let line = |count: u64, text: String| (count > 0).then_some(text);
        let owners = files(self.owners);
        let owners = line(self.owners, format!("the owners of {owners} could not be set, for want of privilege"));
        let foreign = files(self.foreign);
        let reason = "are outside of every range of --map-uid and --map-gid, and were not set";
        let foreign = line(self.foreign, format!("the owners of {foreign} {reason}"));
        let privileges = files(self.privileges);
        let reason = "since a file of another owner has none of them";
        let privileges = line(
            self.privileges,
            format!("{privileges} came without set-user-ID, set-group-ID or capabilities, {reason}"),
        );
        let xattrs = counted(self.xattrs, "extended attribute", "extended attributes");
        let xattrs = line(self.xattrs, format!("{xattrs} could not be set, for want of privilege or support"));
        [owners, foreign, privileges, xattrs].into_iter().flatten().collect()
    }
}

/// Set-user-ID and set-group-ID.
const SET_ID: u32 = 0o6000;

const ACCESS_ACL: &[u8] = b"system.posix_acl_access";
const CAPABILITIES: &[u8] = b"security.capability";
/// Bytes of extended attributes that every file system gives a file: an ext4 has one block for them, of 1 KiB at least.
const ALWAYS_FITS: usize = 512;
/// A file system with as many bytes free is not full.
const ENOUGH: u64 = 1 << 20;

/// Of SELinux.
const LABEL: &[u8] = b"security.selinux";

/// An object on the host that gets attributes.
#[derive(Clone, Copy)]
pub(super) enum Target<'a> {
    /// A file that is open.
    Open(BorrowedFd<'a>, &'a Directory),
    /// Anything, by a descriptor that opens nothing (`O_PATH`), with what it was when it was checked.
    Held(BorrowedFd<'a>, &'a Directory, &'a Stat),
}

/// The kinds of attributes that are set, and the extended attributes before.
#[derive(Clone, Copy)]
pub(super) struct Changed<'a> {
    pub aspects: Aspects,
    pub had: &'a [Xattr],
}

impl Changed<'_> {
    /// All, of a new object.
    pub const ALL: Changed<'static> = Changed {
        aspects: Aspects {
            mode: true,
            owner: true,
            mtime: true,
            xattrs: true,
            file_type: false,
            content: false,
            inode: false,
        },
        had: &[],
    };
}

/// Sets owner, permissions, extended attributes and mtime, as far as they are `changed` and differ from what is
/// `wanted`. The others stay the host's. `inherits`: the target may have got an ACL when it was made. Returns the
/// target's identity.
///
/// The order is such that no call undoes another. The owner comes first, while the file has no set-ID bits: at no
/// moment may it act in the name of another owner.
pub(super) fn set_attributes(
    target: Target<'_>,
    inherits: bool,
    changed: Changed<'_>,
    wanted: &Wanted<'_>,
    lost: &mut Lost,
) -> Result<Identity, MakeError> {
    let Changed { aspects, had } = changed;
    let inode = wanted.tree.inode(wanted.inode);
    let there = target.stat().map_err(host("look at"))?;
    let mut is_owned = !wanted.is_foreign;
    lost.foreign += u64::from(wanted.is_foreign && aspects.owner);
    let owner_differs = (there.st_uid, there.st_gid) != (wanted.uid, wanted.gid);
    let mut bits = there.st_mode & 0o7777;
    if owner_differs && !aspects.owner {
        is_owned = false;
    } else if owner_differs {
        // chown(2) itself clears them, but not on every file system, and not a set-group-ID bit without the group's
        // execute bit.
        if bits & SET_ID != 0 && inode.file_type() != FileType::Directory {
            bits &= !SET_ID;
            target.chmod(bits).map_err(host("set the permissions of"))?;
        }
        match target.chown(wanted.uid, wanted.gid) {
            // The latter in a user namespace that does not map it.
            Err(Errno::PERM | Errno::INVAL) => {
                lost.owners += 1;
                is_owned = false;
            }
            result => result.map_err(host("set the owner of"))?,
        }
    }
    let has_mode = if aspects.mode { inode.mode() } else { there.st_mode };
    let inherited = [ACCESS_ACL, b"system.posix_acl_default"].into_iter().filter(|_| inherits);
    let unwanted = wanted.unwanted.iter().map(|name| &name[..]).filter(|_| aspects.xattrs);
    let narrowed = remove_xattrs(target, unwanted.chain(inherited), (bits, has_mode), lost)?;
    // A file of another owner gets no set-ID bits.
    let is_another = if aspects.mode { !is_owned } else { owner_differs && aspects.owner };
    let is_denied = is_another && inode.file_type() != FileType::Directory;
    let denied = if is_denied { has_mode & SET_ID } else { 0 };
    let mode = has_mode & 0o7777 & !denied;
    let xattrs = if aspects.xattrs { wanted.tree.xattrs(inode.xattrs()) } else { &[] };
    let is_new = |xattr: &&Xattr| !had.contains(xattr);
    let list = xattrs.iter().filter(is_new).find(|xattr| *xattr.name == *ACCESS_ACL);
    // Until the ACL is set, and if it cannot be set, the group has no more than the ACL gives it.
    let mode = list.filter(|_| aspects.mode).map_or(mode, |list| without_mask(mode, &list.value));
    // The change of the owner, or the removal of an ACL, may have changed them.
    let mode_differs = (there.st_mode ^ mode) & 0o7777 != 0;
    let is_capable = is_owned && xattrs.iter().filter(is_new).any(|xattr| *xattr.name == *CAPABILITIES);
    // Until a file has its owner and its bits, its owner or the previous one may write to it, unless it has no name.
    let gives_rights = (mode & SET_ID != 0 || is_capable) && inode.file_type() == FileType::Regular;
    if gives_rights && !target.is_unwritten(&there)? {
        return Err(MakeError::Changed);
    }
    let is_changed = mode_differs || narrowed || (owner_differs && aspects.owner) || inherits;
    if inode.file_type() != FileType::Symlink && is_changed {
        target.chmod(mode).map_err(host("set the permissions of"))?;
    }
    // From here on a write clears the bits; see write(2).
    if gives_rights && !target.is_unwritten(&there)? {
        target.chmod(mode & !SET_ID).map_err(host("set the permissions of"))?;
        return Err(MakeError::Changed);
    }
    let mut without = denied != 0;
    for xattr in xattrs.iter().filter(is_new) {
        let mut value = xattr.value.to_vec();
        if *xattr.name == *CAPABILITIES && !is_owned {
            without = true;
            let _ = target.remove_xattr(&xattr.name);
            continue;
        }
        if xattr.name.starts_with(b"system.posix_acl_") && !wanted.back.acl(&mut value) {
            lost.foreign += 1;
            continue;
        }
        match target.set_xattr(&xattr.name, &value) {
            Err(Errno::PERM | Errno::OPNOTSUPP | Errno::ACCESS) => lost.xattrs += 1,
            Err(Errno::NOSPC | Errno::TOOBIG) if target.can_never_have(xattrs) => lost.xattrs += 1,
            result => result.map_err(host("set the extended attributes of"))?,
        }
    }
    // From here on a write removes the capabilities, too.
    if is_capable && gives_rights && !target.is_unwritten(&there)? {
        match target.remove_xattr(CAPABILITIES) {
            Err(Errno::NODATA) => {}
            removed => removed.map_err(host("take the capabilities of"))?,
        }
        target.chmod(mode & !SET_ID).map_err(host("set the permissions of"))?;
        return Err(MakeError::Changed);
    }
    lost.privileges += u64::from(without);
    if aspects.mtime {
        set_time(target, inode, &there)?;
    }
    Ok(Identity::of(&there))
}

/// Removes extended attributes, which may not be there, of what has the permissions `bits` and is to have `mode`. Before
/// an ACL goes, the group loses the bits that `mode` does not have: without an ACL the bits of its mask are the group's.
/// Returns whether it lost any.
fn remove_xattrs<'n>(
    target: Target<'_>,
    names: impl Iterator<Item = &'n [u8]>,
    (bits, mode): (u32, u32),
    lost: &mut Lost,
) -> Result<bool, MakeError> {
    let common = bits & (mode | !0o070);
    let mut narrowed = false;
    for name in names {
        // No symlink has an ACL.
        if name == ACCESS_ACL && common != bits && target.has_xattr(name) {
            target.chmod(common).map_err(host("set the permissions of"))?;
            narrowed = true;
        }
        match target.remove_xattr(name) {
            Ok(()) | Err(Errno::NODATA | Errno::OPNOTSUPP) => {}
            // The kernel refuses before it looks. A label is never removed.
            Err(Errno::PERM | Errno::ACCESS) if name == LABEL || !target.has_xattr(name) => {}
            Err(Errno::PERM | Errno::ACCESS) => lost.xattrs += 1,
            Err(errno) => return Err(MakeError::Host("remove the extended attributes of", errno)),
        }
    }
    Ok(narrowed)
}

/// A mode without the mask of an ACL (`include/uapi/linux/posix_acl_xattr.h`): the group has what both grant it.
fn without_mask(mode: u32, list: &[u8]) -> u32 {
    const GROUP_OBJ: u16 = 0x04;
    let entries = list.get(4..).unwrap_or_default().as_chunks::<8>().0;
    let group = entries.iter().find_map(|[t0, t1, p0, p1, ..]| {
        (u16::from_le_bytes([*t0, *t1]) == GROUP_OBJ).then(|| u32::from(u16::from_le_bytes([*p0, *p1])))
    });
    mode & (!0o070 | (group.unwrap_or(0) & 7) << 3)
}

fn set_time(target: Target<'_>, inode: &Inode, there: &Stat) -> Result<(), MakeError> {
    if mtime(there) == inode.mtime() {
        return Ok(());
    }
    let time = inode.mtime();
    let times = Timestamps {
        last_access: Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
        last_modification: Timespec { tv_sec: time.seconds, tv_nsec: time.nanoseconds.into() },
    };
    target.set_times(&times).map_err(host("set the time of"))
}

impl Target<'_> {
    fn stat(self) -> Result<Stat, Errno> {
        match self {
            Target::Open(file, directory) => directory.stat_of(file),
            Target::Held(_, _, stat) => Ok(*stat),
        }
    }

    /// Whether nothing was written to it since it was looked at.
    fn is_unwritten(self, there: &Stat) -> Result<bool, MakeError> {
        let (Target::Open(file, directory) | Target::Held(file, directory, _)) = self;
        let is = directory.stat_of(file).map_err(host("look at"))?;
        Ok(is.st_size == there.st_size && mtime(&is) == mtime(there))
    }

    fn call(self) -> Result<(), Errno> {
        let (Target::Open(_, directory) | Target::Held(_, directory, _)) = self;
        directory.call()
    }

    fn chown(self, uid: u32, gid: u32) -> Result<(), Errno> {
        self.call()?;
        let (uid, gid) = (Some(Uid::from_raw(uid)), Some(Gid::from_raw(gid)));
        match self {
            Target::Open(file, _) => fchown(file, uid, gid),
            Target::Held(file, ..) => chownat(file, c"", uid, gid, AtFlags::EMPTY_PATH),
        }
    }

    /// Sets permissions of what is no symlink.
    fn chmod(self, mode: u32) -> Result<(), Errno> {
        self.call()?;
        let mode = Mode::from_raw_mode(mode as RawMode);
        match self {
            Target::Open(file, _) => fchmod(file, mode),
            Target::Held(file, ..) => chmod(path_of(file), mode),
        }
    }

    fn set_xattr(self, attribute: &[u8], value: &[u8]) -> Result<(), Errno> {
        self.call()?;
        match self {
            Target::Open(file, _) => fsetxattr(file, attribute, value, XattrFlags::empty()),
            Target::Held(file, ..) => setxattr(path_of(file), attribute, value, XattrFlags::empty()),
        }
    }

    /// Whether the file system limits the extended attributes of a file, and refused these although it has space.
    fn can_never_have(self, xattrs: &[Xattr]) -> bool {
        let (Target::Open(file, _) | Target::Held(file, ..)) = self;
        let bytes: usize = xattrs.iter().map(|xattr| xattr.name.len() + xattr.value.len()).sum();
        let free = fstatvfs(file).map_or(0, |room| room.f_bavail.saturating_mul(room.f_frsize));
        bytes > ALWAYS_FITS && free > ENOUGH
    }

    /// Whether it has an extended attribute.
    fn has_xattr(self, attribute: &[u8]) -> bool {
        match self {
            Target::Open(file, _) => fgetxattr(file, attribute, &mut [0; 0]).is_ok(),
            Target::Held(file, ..) => getxattr(path_of(file), attribute, &mut [0; 0]).is_ok(),
        }
    }

    fn remove_xattr(self, attribute: &[u8]) -> Result<(), Errno> {
        self.call()?;
        match self {
            Target::Open(file, _) => fremovexattr(file, attribute),
            Target::Held(file, ..) => removexattr(path_of(file), attribute),
        }
    }

    fn set_times(self, times: &Timestamps) -> Result<(), Errno> {
        self.call()?;
        match self {
            Target::Open(file, _) => futimens(file, times),
            // utimensat(2) takes such a descriptor itself since Linux 5.8.
            Target::Held(file, ..) => utimensat(CWD, path_of(file), times, AtFlags::empty()),
        }
    }
}
