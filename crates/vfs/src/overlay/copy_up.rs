//! Bringing up what is to be changed: first the directories above it, then itself, whole and in one step.
//!
//! A regular file is copied into one without a name, changed as was asked for where that can be done already, and then
//! given its name: so a change of what is below is one step, and nothing is held meanwhile but that file's turn
//! ([`copying`](super::copying)). All else takes a few calls in the work directory.
//!
//! A file that has content is made durable before it gets its name. It hides the one below from then on, which is durable
//! since long ago: if the power fails before the host's kernel has written the copy, its name would lead to an
//! empty file. To do so when the program asks for it (fsync) would be too late, for it need not: it may never ask, or append a
//! line and lose all that was there before. What is thrown away at the end needs none of it.

use rustix::fs::RenameFlags;
use rustix::io::Errno;

use super::attributes::{copy_attributes, permissions};
use super::closed::Directory;
use super::content::{Copied, Open};
use super::copying::{Halfway, Turn};
use super::table::MADE_ABOVE;
use super::work::is_directory;
use super::{ME, Overlay, hold};
use crate::{Attributes, Context, Entry, HandleId, NewNode, NodeId, SetAttributes, SetTime};

/// Does with the node of a file above, before it has a name, what is to be changed.
pub(super) type Change<'a> = &'a mut dyn FnMut(NodeId) -> Result<(), Errno>;

/// A whole copy without a name.
struct Copy {
    entry: Entry,
    handle: HandleId,
    /// The inode number that it is shown under, if that is not the one of what it is a copy of.
    inode: Option<u64>,
}

impl Overlay {
    /// The node of the upper layer behind `node`, brought up if it is not there yet.
    pub(super) fn bring_up(&self, context: &Context<'_>, node: NodeId) -> Result<NodeId, Errno> {
        self.bring_up_changed(context, node, u64::MAX, &mut |_| Ok(())).map(|(upper, _)| upper)
    }

    /// The same with the first `length` bytes of a file's content, and changed by `change` in the same step. Whether that was
    /// done: what was there already is as it was.
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

    /// Opens a file below, in the name of who has it brought up: so that layer sees first whether what it has told of the file
    /// still holds. None if it is no regular file.
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

    /// Brings up what is no regular file, for who makes changes already.
    ///
    /// # Errors
    /// `EAGAIN` for a regular file: it takes time.
    pub(super) fn bring_up_held(&self, node: NodeId) -> Result<NodeId, Errno> {
        // From the first directory that is above down to the node.
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

    /// Brings up a node into its directory above.
    fn bring_one_up(&self, node: NodeId, parent: NodeId) -> Result<NodeId, Errno> {
        let lower = self.layers(node)?.lower.ok_or(Errno::STALE)?;
        let name = hold(&self.table).place(node)?.1;
        let attributes = self.lower.attributes(&ME, lower, None)?;
        if is_regular(&attributes) {
            return Err(Errno::AGAIN);
        }
        hold(&self.table).brought_up_with(node, permissions(&attributes));
        let (work, temporary) = (self.work(), self.temporary());
        let made = self.make_like(lower, &attributes, (work, &temporary));
        let put = made.and_then(|made| {
            // Before it has permissions that keep its owner out.
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

    /// Makes what is of the same kind and owner as something below, for nobody else to use yet.
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
        let turn = self.copying.begin(context, node)?;
        // Whom we waited for may have done it.
        if let Some(upper) = self.layers(node)?.upper {
            return Ok((upper, false));
        }
        let source = self.lower.attributes(&ME, lower.0, Some(lower.1))?;
        hold(&self.table).brought_up_with(node, permissions(&source));
        let copy = self.copy_file(context, &turn, (lower, source), length)?;
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

    /// Copies a file, or the rest of one that somebody began to copy, into one without a name.
    fn copy_file(
        &self,
        context: &Context<'_>,
        turn: &Turn<'_>,
        (lower, source): (Open, Attributes),
        length: u64,
    ) -> Result<Copy, Errno> {
        let length = length.min(source.size);
        let is_same = |begun: &Halfway| {
            let of = |attributes: &Attributes| (attributes.size, attributes.mtime, attributes.ctime);
            of(&begun.source) == of(&source) && begun.at <= length
        };
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
                // Before it has permissions that keep its owner out.
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

    /// See the module's text.
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

    /// Gives a copy the name of what it is of. If that is gone by now, so is the copy when nobody knows it any more.
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
        // The table has one lookup of it.
        self.upper.forget(named.node, 1);
        hold(&self.table).set_upper(node, upper, None, copy.inode)?;
        self.upper.release(upper, copy.handle, None);
        Ok(())
    }

    /// Does in a directory of the upper layer what changes nothing of what is seen there: it keeps its times.
    fn unseen_in<T>(&self, directory: NodeId, act: impl FnOnce() -> Result<T, Errno>) -> Result<T, Errno> {
        let before = self.upper.attributes(&ME, directory, None)?;
        let done = act()?;
        let set = SetAttributes {
            atime: Some(SetTime::To(before.atime)),
            mtime: Some(SetTime::To(before.mtime)),
            ..SetAttributes::default()
        };
        // What was to be done is done, whether they can be kept or not.
        let _ = self.upper.set_attributes(&ME, directory, None, &set);
        Ok(done)
    }

    /// Writes down the inode number of what was brought up, so that it is the same when it is looked up anew; of a directory,
    /// whose it was.
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
            // A symbolic link or a device of a user's has no attributes.
            Err(Errno::OPNOTSUPP | Errno::PERM | Errno::NOSYS) => Ok(()),
            set => set,
        }
    }
}

/// Whether what is brought up parts from other names that it has below. Those keep the inode number: two files of one number and several
/// links are one file to tar and cp.
fn parts(below: &Attributes) -> bool {
    !is_directory(below) && below.links != 1
}

/// The inode number that what parts from its other names has from then on, which is that of a later lookup.
fn number_above(below: &Attributes, upper: &Entry) -> Option<u64> {
    parts(below).then_some(upper.attributes.inode | MADE_ABOVE)
}

fn is_regular(attributes: &Attributes) -> bool {
    attributes.mode & libc::S_IFMT == libc::S_IFREG
}
