//! Adds an archive's members to an assembly.

use std::collections::BTreeMap;
use std::sync::Arc;

use inarch_block::Backing;
use inarch_tree::Xattr;

use super::extended::StoredAttributes;
use super::member::{Member, Members, Type};
use super::users::Users;
use super::window::Window;
use crate::assemble::{self, Assembly, Bytes, Facts, Kind, Refusal};
use crate::notes::Notes;
use crate::tar::spec::{BLOCK_BYTES, acl};
use crate::{Damage, Host, ReadError};

/// How names that begin with `.wh.` are treated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Whiteouts {
    /// Like any other name.
    Names,
    /// As whiteouts of the layers below (the image specification's layer.md).
    Removals,
}

const ACCESS_LIST: &[u8] = b"system.posix_acl_access";

/// Bytes that GNU tar writes at least: 20 blocks.
const RECORD_BYTES: u64 = 20 * BLOCK_BYTES;

const WHITEOUT: &[u8] = b".wh.";
const OPAQUE: &[u8] = b".wh..wh..opq";

/// An archive: `length` bytes of a backing, from byte `start`.
#[derive(Clone, Copy)]
pub(crate) struct Archive<'a> {
    pub(crate) backing: &'a dyn Backing,
    /// The backing's number in the assembly.
    pub(crate) number: u32,
    pub(crate) start: u64,
    pub(crate) length: u64,
}

impl<'a> Archive<'a> {
    /// A whole backing, which is the only one.
    pub(crate) fn whole(backing: &'a dyn Backing) -> Archive<'a> {
        Archive { backing, number: 0, start: 0, length: backing.size() }
    }
}

/// Adds the members of an archive to an assembly; returns whether there was a header. Only a layer may have none.
pub(crate) fn index(
    archive: Archive<'_>,
    whiteouts: Whiteouts,
    (host, damage): (&dyn Host, Damage),
    assembly: &mut Assembly,
    notes: &mut Notes,
) -> Result<bool, ReadError> {
    let mut members = Members::new(Window::new(archive), damage);
    let mut attributes = AttributeReader::new(host);
    while let Some(member) = members.next()? {
        if !member.is_known {
            notes.add(&member.path, "its type is unknown, it is taken for a regular file");
        }
        if member.path.starts_with(b"/") {
            notes.add(&member.path, "its path is taken from the archive's root, without the leading slash");
        }
        match whiteout(&member.path) {
            Some((_, _)) if whiteouts == Whiteouts::Names => {
                notes.add(&member.path, "is a file here: it removes another only in a layer of an OCI image");
            }
            Some((directory, name)) => {
                if let Err(refusal) = remove(directory, name, assembly) {
                    notes.add(&member.path, &refusal.to_string());
                }
                continue;
            }
            None => {}
        }
        let path = member.path.clone();
        if let Err(refusal) = add(member, archive, assembly, &mut attributes, notes) {
            notes.add(&path, &refusal);
        }
    }
    let is_layer = whiteouts == Whiteouts::Removals;
    match () {
        () if is_layer => {}
        () if !members.any && !members.lost.is_empty() => {
            let reason = "there is no header of a tar archive in it".to_owned();
            return Err(ReadError::Format { format: "tar", reason });
        }
        () if !members.any && is_empty(archive.length) => {}
        () if !members.any => {
            let zeros = "it holds nothing but zeros: no archive, and no partitions or file system of a disk";
            let reason = if archive.length == 0 { "it is empty" } else { zeros };
            members.lost.push(damage.or_refuse("tar", reason.to_owned())?);
        }
        () if !members.is_ended => {
            notes.tell("it ends without the zeros that end an archive: files that came last may be missing".to_owned());
        }
        () => {}
    }
    members.lost.into_iter().for_each(|reason| notes.tell(reason));
    Ok(members.any)
}

/// Whether zeros of this length are an archive without members: two blocks, or more up to the record of GNU tar.
fn is_empty(length: u64) -> bool {
    (2 * BLOCK_BYTES..=RECORD_BYTES).contains(&length) && length.is_multiple_of(BLOCK_BYTES)
}

/// The directory and last name of a whiteout's path.
fn whiteout(path: &[u8]) -> Option<(&[u8], &[u8])> {
    let end = path.iter().rposition(|byte| *byte != b'/').map_or(0, |last| last + 1);
    let path = path.get(..end)?;
    let cut = path.iter().rposition(|byte| *byte == b'/').map_or(0, |slash| slash + 1);
    let (directory, name) = path.split_at_checked(cut)?;
    name.starts_with(WHITEOUT).then_some((directory, name))
}

fn remove(directory: &[u8], name: &[u8], assembly: &mut Assembly) -> Result<(), Refusal> {
    if name == OPAQUE {
        return assembly.clear(directory);
    }
    match name.strip_prefix(WHITEOUT) {
        // AUFS has files of its own with such names; they remove nothing.
        None | Some([] | [b'.'] | [b'.', b'.']) => Ok(()),
        Some(name) if name.starts_with(WHITEOUT) => Ok(()),
        Some(name) => assembly.remove(&[directory, name].concat()),
    }
}

fn add(
    member: Member,
    archive: Archive<'_>,
    assembly: &mut Assembly,
    attributes: &mut AttributeReader<'_>,
    notes: &mut Notes,
) -> Result<(), String> {
    let Member { path, kind, link, size, at, .. } = &member;
    let (size, at, backing) = (*size, archive.start + at, archive.number);
    let kind = match kind {
        Type::HardLink => return assembly.link(path, link).map_err(|refusal| refusal.to_string()),
        Type::Continued => return Err("it is left out, as it began on another volume".to_owned()),
        Type::Regular => {
            let ranges = member.sparse.as_ref().filter(|ranges| !is_whole(ranges, size));
            let bytes = match ranges {
                Some(ranges) => Bytes::Sparse { at, backing, ranges: ranges[..].into() },
                None => Bytes::Whole { at, backing },
            };
            Kind::Regular { size, bytes }
        }
        Type::Directory => Kind::Directory,
        Type::Symlink => Kind::Symlink { target: link },
        Type::CharDevice => Kind::CharDevice { major: member.device.0, minor: member.device.1 },
        Type::BlockDevice => Kind::BlockDevice { major: member.device.0, minor: member.device.1 },
        Type::Fifo => Kind::Fifo,
    };
    let (xattrs, permissions) = attributes.of(&member, notes);
    let facts = Facts { permissions, uid: member.uid, gid: member.gid, mtime: member.mtime, xattrs };
    assembly.add(path, kind, facts).map_err(|refusal| refusal.to_string())
}

/// Whether the parts of a sparse file leave no hole.
fn is_whole(parts: &[inarch_tree::DataRange], size: u64) -> bool {
    match parts {
        [] => size == 0,
        [part] => part.offset == 0 && part.length == size,
        _ => false,
    }
}

/// Reads attributes; those that members share are read once.
struct AttributeReader<'h> {
    users: Users<'h>,
    /// Those of the last member that had any.
    recent: Option<TreeAttributes>,
}

/// Attributes as a tree stores them.
struct TreeAttributes {
    /// What they were read from.
    stored: Arc<StoredAttributes>,
    /// Those that are kept, sorted by name, access control lists among them.
    xattrs: Arc<[Xattr]>,
    /// Access control lists that the permissions follow, one after the other.
    lists: Vec<Vec<u8>>,
    /// The notes.
    notes: Vec<String>,
}

impl<'h> AttributeReader<'h> {
    fn new(host: &'h dyn Host) -> AttributeReader<'h> {
        AttributeReader { users: Users::new(host), recent: None }
    }

    /// The extended attributes of a member, and its permissions, which follow from an access control list.
    fn of(&mut self, member: &Member, notes: &mut Notes) -> (Arc<[Xattr]>, u32) {
        let recent = self.recent.take().filter(|recent| Arc::ptr_eq(&recent.stored, &member.attributes));
        let read = recent.unwrap_or_else(|| TreeAttributes::read(Arc::clone(&member.attributes), &mut self.users));
        read.notes.iter().for_each(|reason| notes.add(&member.path, reason));
        let permissions = read.lists.iter().fold(member.mode, |permissions, list| follow(permissions, list));
        let xattrs = Arc::clone(&read.xattrs);
        self.recent = Some(read);
        (xattrs, permissions)
    }
}

impl TreeAttributes {
    fn read(stored: Arc<StoredAttributes>, users: &mut Users<'_>) -> TreeAttributes {
        let (mut lists, mut notes) = (Vec::new(), Vec::new());
        let mut xattrs = BTreeMap::new();
        for (name, value) in &stored.xattrs {
            if assemble::is_kept(name, value) {
                xattrs.insert(name.clone(), value.clone());
            } else if notes.len() < MOST_NOTES {
                notes.push(format!("its attribute {} is left out", name.escape_ascii()));
            }
        }
        let texts = [(&stored.acl_access, ACCESS_LIST), (&stored.acl_default, b"system.posix_acl_default")];
        for (text, name) in texts {
            let Some(text) = text else { continue };
            match acl::from_text(text, |who, name| users.id(who, name)) {
                Ok(value) if acl::is_mode(&value) && name == ACCESS_LIST => lists.push(value),
                Ok(value) => drop(xattrs.insert(name.into(), value.into())),
                Err(error) => notes.push(error.to_string()),
            }
        }
        lists.extend(xattrs.get(ACCESS_LIST).map(|list| list.to_vec()));
        let xattrs = xattrs.into_iter().map(|(name, value)| Xattr { name, value }).collect();
        TreeAttributes { stored, xattrs, lists, notes }
    }
}

/// Attributes of one member that are named when they are left out.
const MOST_NOTES: usize = 20;

/// The permissions of a mode after an ACL is set.
fn follow(permissions: u32, list: &[u8]) -> u32 {
    acl::permissions(list).map_or(permissions, |bits| permissions & !0o777 | bits)
}
