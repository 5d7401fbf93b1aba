//! Copies nodes to the upper layer before a change (copy-up): first the parent directories, then the node itself,
//! whole and in one step.
//!
//! A regular file is copied into a file without a name, changed as requested where possible, and then given its name.
//! So the change is one step, and nothing but this file waits meanwhile ([`copying`](super::copying)). Other nodes
//! take a few calls in the work directory.
//!
//! A copy with content is synced before it gets its name. From then on it hides the lower file, which has long been
//! on disk. If the power failed before the copy was written, its name would lead to an empty file. Waiting for the
//! program's fsync would be too late: a program may never call it, or append one line and lose everything before. A
//! temporary upper layer needs no sync.
//!
//! A copy is of one version: a file that the host wrote meanwhile is copied again.

use rustix::fs::RenameFlags;
use rustix::io::Errno;

use super::attributes::copy_attributes;
use super::closed::Directory;
use super::content::{Copied, Open};
use super::copying::{Halfway, Turn};
use super::table::MADE_ABOVE;
use super::work::is_directory;
use super::{ME, Overlay, hold};
use crate::{Attributes, Context, Entry, HandleId, NewNode, NodeId, SetAttributes, SetTime};

/// Changes the node of a copy before it has a name.
pub(super) type Change<'a> = &'a mut dyn FnMut(NodeId) -> Result<(), Errno>;

/// How often a file is copied again that the host writes meanwhile, before the request fails (`ETXTBSY`).
const REPETITIONS: u32 = 2;

/// A complete copy without a name.
struct Copy {
    entry: Entry,
    handle: HandleId,
    /// The inode number to show, if it is not the original's.
    inode: Option<u64>,
}

impl Overlay {
    /// The upper node of `node`, copied up if necessary.
    pub(super) fn bring_up(&self, context: &Context<'_>, node: NodeId) -> Result<NodeId, Errno> {
        self.bring_up_changed(context, node, u64::MAX, &mut |_| Ok(())).map(|(upper, _)| upper)
    }

    /// The same with the first `length` bytes of a file's content, changed by `change` in the same step. Returns
    /// whether that happened: a file that was in the upper layer already is unchanged.
    pub(super) fn bring_up_changed(
        &self,
        context: &Context<'_>,
        node: NodeId,
        length: u64,
        change: Change<'_>,
    ) -> Result<(NodeId, bool), Errno> {
        let layers = self.layers(node)?;
        if let Some(upper) = layers.upper {
            return Ok((upper, false));
        }
        let lower = layers.lower.ok_or(Errno::STALE)?;
        let source = if layers.is_directory { None } else { self.open_source(context, lower)? };
        let Some(source) = source else {
            let _changing = hold(&self.changing);
            return self.bring_up_held(node).map(|upper| (upper, false));
        };
        let brought_up = self.bring_file_up(context, node, (source, length), change);
        if source.1 != HandleId::default() {
            self.lower.release(source.0, source.1, None);
        }
        brought_up
    }

    /// Opens a lower file in the caller's name, so that the lower layer first checks whether the caller's view is
    /// current. `None` if it is not a regular file.
    fn open_source(&self, context: &Context<'_>, lower: NodeId) -> Result<Option<Open>, Errno> {
        match self.lower.open(context, lower, libc::O_RDONLY as u32) {
            Ok(opened) => Ok(Some((lower, opened.handle))),
            Err(Errno::NOSYS) => {
                let attributes = self.lower.attributes(&ME, lower, None)?;
                Ok(is_regular(&attributes).then_some((lower, HandleId::default())))
            }
            Err(Errno::LOOP | Errno::NXIO) => Ok(None),
            Err(errno) => Err(errno),
        }
    }

    /// Copies up what is not a regular file, for a caller that holds the lock for changes.
    ///
    /// # Errors
    /// `EAGAIN` for a regular file, which takes time.
    pub(super) fn bring_up_held(&self, node: NodeId) -> Result<NodeId, Errno> {
        // From the first directory in the upper layer down to the node.
        let mut chain = vec![node];
        let mut upper = loop {
            let last = chain.last().copied().ok_or(Errno::IO)?;
            if let Some(upper) = self.layers(last)?.upper {
                chain.pop();
                break upper;
            }
            chain.push(hold(&self.table).place(last)?.0);
        };
        while let Some(next) = chain.pop() {
            upper = self.bring_one_up(next, upper)?;
        }
        Ok(upper)
    }

    /// Copies up a node into its parent in the upper layer.
    fn bring_one_up(&self, node: NodeId, parent: NodeId) -> Result<NodeId, Errno> {
        let lower = self.layers(node)?.lower.ok_or(Errno::STALE)?;
        let name = hold(&self.table).place(node)?.1;
        let attributes = self.lower.attributes(&ME, lower, None)?;
        if is_regular(&attributes) {
            return Err(Errno::AGAIN);
        }
        hold(&self.table).brought_up_with(node, (&attributes).into());
        let (work, temporary) = (self.work(), self.temporary());
        let made = self.make_like(lower, &attributes, (work, &temporary));
        let put = made.and_then(|made| {
            // Before its permissions lock its owner out.
            let put = self
                .note_origin(made.node, &attributes)
                .and_then(|()| copy_attributes((&*self.lower, lower), (&*self.upper, &made), &attributes))
                .and_then(|()| {
                    let flags = RenameFlags::NOREPLACE.bits();
                    let taken = [Directory::At(parent), Directory::Named(made.node, (parent, &name))];
                    let step = || self.upper.rename(&ME, work, &temporary, parent, &name, flags);
                    self.unseen_in(parent, || self.with_rights(&taken, step))
                });
            put.inspect_err(|_| self.upper.forget(made.node, 1)).map(|()| made)
        });
        let upper = put.inspect_err(|_| self.discard(work, &temporary))?;
        let settled = hold(&self.table).set_upper(node, upper.node, None, number_above(&attributes, &upper));
        settled.inspect_err(|_| self.give_back_above(upper.node, None))?;
        Ok(upper.node)
    }

    /// Makes a node of the same type and owner as a lower one, accessible to nobody else yet.
    fn make_like(&self, lower: NodeId, attributes: &Attributes, at: (NodeId, &[u8])) -> Result<Entry, Errno> {
        let owner = Context { uid: attributes.uid, gid: attributes.gid, ..ME };
        let kind = attributes.mode & libc::S_IFMT;
        let new = NewNode { mode: kind | 0o600, umask: 0, device: attributes.device };
        match kind {
            libc::S_IFDIR => self.upper.make_directory(&owner, at.0, at.1, &new),
            libc::S_IFLNK => self.upper.make_symlink(&owner, at.0, at.1, &self.lower.read_link(&ME, lower)?),
            _ => self.upper.make_node(&owner, at.0, at.1, &new),
        }
    }

    fn bring_file_up(
        &self,
        context: &Context<'_>,
        node: NodeId,
        (lower, length): (Open, u64),
        change: Change<'_>,
    ) -> Result<(NodeId, bool), Errno> {
        let below = || self.lower.attributes(&ME, lower.0, Some(lower.1));
        // The request was checked against these.
        let before = below()?;
        let turn = self.copying.begin(context, node)?;
        // The request that we waited for may have done it.
        if let Some(upper) = self.layers(node)?.upper {
            let is_as_told = !self.may_be_misled(context) || hold(&self.table).told_permissions(node)?.is_some();
            return if is_as_told { Ok((upper, false)) } else { Err(Errno::STALE) };
        }
        let mut more_attempts = 0..REPETITIONS;
        let copy = loop {
            let source = below()?;
            if self.may_be_misled(context) && !grants_the_same(&before, &source) {
                return Err(Errno::STALE);
            }
            hold(&self.table).brought_up_with(node, (&source).into());
            let copy = self.copy_file(context, &turn, (lower, source), length)?;
            let now = if self.changes_below { below() } else { Ok(source) };
            // The host may restrict a file and then write into it. No copy may have that content with the old permissions.
            let granted = now.and_then(|now| if grants_the_same(&source, &now) { Ok(now) } else { Err(Errno::STALE) });
            let errno = match granted {
                Ok(now) if length.min(source.size) == 0 || is_same_version(&source, &now) => break copy,
                // The copy may be a mixture of two versions.
                Ok(_) => Errno::TXTBSY,
                Err(errno) => errno,
            };
            self.give_back_above(copy.entry.node, Some(copy.handle));
            if errno != Errno::TXTBSY || more_attempts.next().is_none() {
                return Err(errno);
            }
        };
        let upper = copy.entry.node;
        let put = change(upper).and_then(|()| self.make_copy_durable(&copy)).and_then(|()| self.put_file(node, &copy));
        match put {
            Ok(()) => Ok((upper, true)),
            Err(errno) => {
                self.give_back_above(upper, Some(copy.handle));
                Err(errno)
            }
        }
    }

    /// Copies a file into one without a name, or completes a copy that was begun.
    fn copy_file(
        &self,
        context: &Context<'_>,
        turn: &Turn<'_>,
        (lower, source): (Open, Attributes),
        length: u64,
    ) -> Result<Copy, Errno> {
        let length = length.min(source.size);
        let is_same = |begun: &Halfway| is_same_version(&begun.source, &source) && begun.at <= length;
        let begun = match turn.halfway() {
            Some(begun) if is_same(&begun) => begun,
            other => {
                self.give_back_halfway(other);
                let owner = Context { uid: source.uid, gid: source.gid, ..ME };
                let new = NewNode { mode: libc::S_IFREG | 0o600, umask: 0, device: 0 };
                let (entry, opened) = self.upper.create_unnamed(&owner, self.work(), &new, libc::O_RDWR as u32)?;
                Halfway { entry, handle: opened.handle, at: 0, source }
            }
        };
        let Halfway { entry, handle, at, .. } = begun;
        let copied = self.copy_content(context, lower, (entry.node, handle), (at, length)).and_then(|copied| {
            if copied == Copied::Whole {
                // Before its permissions lock its owner out.
                self.note_origin(entry.node, &source)?;
                copy_attributes((&*self.lower, lower.0), (&*self.upper, &entry), &source)?;
            }
            Ok(copied)
        });
        match copied {
            Ok(Copied::Whole) => Ok(Copy { entry, handle, inode: number_above(&source, &entry) }),
            Ok(Copied::UpTo(at)) => {
                self.give_back_halfway(turn.leave(Halfway { at, ..begun }));
                Err(Errno::INTR)
            }
            Err(errno) => {
                self.give_back_above(entry.node, Some(handle));
                Err(errno)
            }
        }
    }

    pub(super) fn give_back_halfway(&self, halfway: impl IntoIterator<Item = Halfway>) {
        for Halfway { entry, handle, .. } in halfway {
            self.give_back_above(entry.node, Some(handle));
        }
    }

    /// See the module.
    fn make_copy_durable(&self, copy: &Copy) -> Result<(), Errno> {
        let node = copy.entry.node;
        if self.is_thrown_away || self.upper.attributes(&ME, node, Some(copy.handle))?.size == 0 {
            return Ok(());
        }
        match self.upper.fsync(&ME, node, copy.handle, false) {
            Err(Errno::NOSYS) => Ok(()),
            synced => synced,
        }
    }

    /// Gives a copy its name. If the original's name is gone, the copy goes too once nobody knows it.
    fn put_file(&self, node: NodeId, copy: &Copy) -> Result<(), Errno> {
        let upper = copy.entry.node;
        let _changing = hold(&self.changing);
        let place = hold(&self.table).place(node);
        let Ok((parent, name)) = place else {
            return hold(&self.table).set_upper(node, upper, Some(copy.handle), copy.inode);
        };
        let directory = self.bring_up_held(parent)?;
        let step = || self.upper.link(&ME, upper, directory, &name);
        let named = self.unseen_in(directory, || self.with_rights(&[Directory::At(directory)], step))?;
        // The table holds one look-up of it.
        self.upper.forget(named.node, 1);
        hold(&self.table).set_upper(node, upper, None, copy.inode)?;
        self.upper.release(upper, copy.handle, None);
        Ok(())
    }

    /// Does something in a directory of the upper layer that is not visible; the directory keeps its times.
    fn unseen_in<T>(&self, directory: NodeId, act: impl FnOnce() -> Result<T, Errno>) -> Result<T, Errno> {
        let before = self.upper.attributes(&ME, directory, None)?;
        let done = act()?;
        let set = SetAttributes {
            atime: Some(SetTime::To(before.atime)),
            mtime: Some(SetTime::To(before.mtime)),
            ..SetAttributes::default()
        };
        // The action is done, whether the times can be restored or not.
        let _ = self.upper.set_attributes(&ME, directory, None, &set);
        Ok(done)
    }

    /// Stores the original's inode number, so that it stays the same after a new look-up; for a directory also its
    /// owner.
    fn note_origin(&self, upper: NodeId, attributes: &Attributes) -> Result<(), Errno> {
        if parts(attributes) {
            return Ok(());
        }
        let (name, number) = match is_directory(attributes) {
            true => (self.owner, u64::from(attributes.uid)),
            false => (self.origin, attributes.inode),
        };
        let number = number.to_string();
        match self.upper.set_xattr(&ME, upper, name, number.as_bytes(), 0, false) {
            // An ordinary user's symbolic links and devices cannot have attributes.
            Err(Errno::OPNOTSUPP | Errno::PERM | Errno::NOSYS) => Ok(()),
            set => set,
        }
    }
}

/// Whether the copy separates from other hard links in the lower layer. Those keep the inode number: tar and cp would
/// take two files with one number and several links for one file.
fn parts(below: &Attributes) -> bool {
    !is_directory(below) && below.links != 1
}

/// The new inode number of a copy that separates from its other hard links; later look-ups give the same.
fn number_above(below: &Attributes, upper: &Entry) -> Option<u64> {
    parts(below).then_some(upper.attributes.inode | MADE_ABOVE)
}

/// Whether owner, group and mode are the same.
fn grants_the_same(one: &Attributes, other: &Attributes) -> bool {
    let of = |attributes: &Attributes| (attributes.uid, attributes.gid, attributes.mode);
    of(one) == of(other)
}

/// Whether a file was not written in between, as far as its attributes tell.
fn is_same_version(one: &Attributes, other: &Attributes) -> bool {
    let of = |attributes: &Attributes| (attributes.size, attributes.mtime, attributes.ctime);
    of(one) == of(other)
}

fn is_regular(attributes: &Attributes) -> bool {
    attributes.mode & libc::S_IFMT == libc::S_IFREG
}
