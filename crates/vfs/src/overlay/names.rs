//! Looks up names in both layers, creates them in the upper one, and covers lower ones with whiteouts.
//!
//! Each visible change is one step. A covered lower name never reappears, neither between two steps nor when a step
//! fails.

use rustix::io::Errno;

use super::attributes::optional;
use super::closed::Directory;
use super::table::{Layers, MADE_ABOVE};
use super::work::{Made, is_directory};
use super::{ME, Overlay, hold, is_whiteout};
use crate::{Context, Entry, FileSystem, NodeId, check_name};

/// The nodes of a name in both layers. Each has a look-up that must be dropped.
pub(super) struct There {
    pub upper: Option<Entry>,
    pub lower: Option<Entry>,
}

impl Overlay {
    pub(super) fn look_up(&self, context: &Context<'_>, parent: NodeId, name: &[u8]) -> Result<Entry, Errno> {
        check_name(name)?;
        let there = self.find(context, parent, name)?;
        let origin = self.origin_of(&there).inspect_err(|_| self.forget_there(&there))?;
        self.enter(Some((parent, name)), there, origin)
    }

    /// Looks for a name in the upper layer, and in the lower one unless it is hidden.
    pub(super) fn find(&self, context: &Context<'_>, parent: NodeId, name: &[u8]) -> Result<There, Errno> {
        let layers = self.layers(parent)?;
        if !layers.is_directory {
            return Err(Errno::NOTDIR);
        }
        if hold(&self.table).is_removed(parent) {
            return Err(Errno::NOENT);
        }
        let steps = self.steps_so_far();
        let upper = match layers.upper.map(|upper| self.upper.lookup(context, upper, name)) {
            Some(Err(Errno::NOENT)) | None => None,
            Some(found) => Some(found?),
        };
        if let Some(upper) = upper {
            if is_whiteout(&upper.attributes) {
                self.upper.forget(upper.node, 1);
                return Err(Errno::NOENT);
            }
            self.refuse_what_lies_elsewhere(&upper).inspect_err(|_| self.upper.forget(upper.node, 1))?;
            if !is_directory(&upper.attributes) {
                return Ok(There { upper: Some(upper), lower: None });
            }
        }
        // In the overlay's own name: the overlay tracks what clients saw of the directory.
        let lower = match layers.lower.map(|lower| self.lower.lookup(&ME, lower, name)) {
            Some(Err(Errno::NOENT)) | None => None,
            Some(found) => Some(found.inspect_err(|_| self.forget_there(&There { upper, lower: None }))?),
        };
        let there = There { upper, lower };
        let hides = match (upper, lower) {
            (None, None) => return Err(Errno::NOENT),
            (Some(_), Some(below)) if !is_directory(&below.attributes) => true,
            (Some(above), Some(below)) => self.hides(&above, &below).inspect_err(|_| self.forget_there(&there))?,
            _ => false,
        };
        let upper = upper
            .map(|entry| self.at_rest(context, entry, steps))
            .transpose()
            .inspect_err(|_| self.forget_there(&there))?;
        let there = There { upper, lower };
        if hides {
            self.forget_there(&There { upper: None, lower });
            return Ok(There { upper, lower: None });
        }
        Ok(there)
    }

    /// Waits until an upper node found since the count was `steps` is in its normal state, not made writable by a
    /// step.
    fn at_rest(&self, context: &Context<'_>, found: Entry, steps: u64) -> Result<Entry, Errno> {
        if !is_directory(&found.attributes) || self.is_quiet_since(steps) {
            return Ok(found);
        }
        let attributes = self.outside_of_steps(|| self.upper.attributes(context, found.node, None))?;
        Ok(Entry { attributes, ..found })
    }

    /// Whether an upper directory hides the lower one.
    fn hides(&self, above: &Entry, below: &Entry) -> Result<bool, Errno> {
        Ok(self.is_opaque(above.node)? || self.is_anothers(above.node, below.attributes.uid)?)
    }

    /// Whether an upper directory is a copy of a directory of another user than the lower one's. Merged, it would
    /// show that user's files with the copy's permissions.
    fn is_anothers(&self, upper: NodeId, below: u32) -> Result<bool, Errno> {
        let value = optional(self.upper.get_xattr(&ME, upper, self.owner))?;
        Ok(value.is_some_and(|value| value != below.to_string().as_bytes()))
    }

    /// Whether an upper directory is opaque. Not knowing is an error, because hidden files would reappear.
    fn is_opaque(&self, upper: NodeId) -> Result<bool, Errno> {
        let value = optional(self.upper.get_xattr(&ME, upper, self.opaque))?;
        Ok(value.is_some_and(|value| value == b"y"))
    }

    /// Returns `EOPNOTSUPP` for a file whose content overlayfs left in the lower layer (`metacopy`), and for a
    /// directory merged with one of another name (`redirect_dir`): without following those attributes they would show
    /// zeros or an empty directory. Only root's overlayfs sets them (Linux's Documentation/filesystems/overlayfs.rst,
    /// "userxattr").
    fn refuse_what_lies_elsewhere(&self, upper: &Entry) -> Result<(), Errno> {
        let name: &[u8] = match upper.attributes.mode & libc::S_IFMT {
            _ if !self.as_root => return Ok(()),
            libc::S_IFREG => b"trusted.overlay.metacopy",
            libc::S_IFDIR => b"trusted.overlay.redirect",
            _ => return Ok(()),
        };
        match optional(self.upper.get_xattr(&ME, upper.node, name))? {
            Some(_) => Err(Errno::OPNOTSUPP),
            None => Ok(()),
        }
    }

    pub(super) fn forget_there(&self, there: &There) {
        self.give_back(vec![Layers {
            upper: there.upper.map(|entry| entry.node),
            lower: there.lower.map(|entry| entry.node),
            is_directory: false,
            nameless: None,
            inode: 0,
        }]);
    }

    /// Creates a node for what was found, or counts a look-up of a known one.
    fn enter(&self, place: Option<(NodeId, &[u8])>, there: There, origin: Option<u64>) -> Result<Entry, Errno> {
        let entry = there.upper.or(there.lower).ok_or(Errno::NOENT)?;
        let inode = match there.lower {
            // A merged directory keeps the number it had before its copy-up.
            Some(lower) => lower.attributes.inode,
            None => origin.unwrap_or(entry.attributes.inode | MADE_ABOVE),
        };
        let layers = Layers {
            upper: there.upper.map(|entry| entry.node),
            lower: there.lower.map(|entry| entry.node),
            is_directory: is_directory(&entry.attributes),
            nameless: None,
            inode,
        };
        let found = hold(&self.table).found(place, layers);
        let (node, surplus, mut gone) = found.inspect_err(|_| self.forget_there(&there))?;
        gone.push(surplus);
        self.give_back(gone);
        let attributes = self.shown(&self.layers(node)?, entry.attributes);
        let valid = there.lower.map_or(entry.valid, |lower| lower.valid.min(entry.valid)).min(self.changes.valid());
        Ok(Entry { node, generation: 0, attributes, valid })
    }

    /// The inode number of a copy's original, if it must be read.
    fn origin_of(&self, there: &There) -> Result<Option<u64>, Errno> {
        let Some(upper) = there.upper else { return Ok(None) };
        // A known node's number is known too.
        if is_directory(&upper.attributes) || hold(&self.table).of_upper(upper.node).is_some() {
            return Ok(None);
        }
        let number = match self.upper.get_xattr(&ME, upper.node, self.origin) {
            // An ordinary user's server may not read the attribute of a file that the user may not read; such a file
            // gets another number.
            Err(Errno::ACCESS) => None,
            number => optional(number)?,
        };
        Ok(number.and_then(|number| str::from_utf8(&number).ok()?.parse().ok()))
    }

    /// Registers what was just created in the upper layer.
    pub(super) fn enter_made(&self, place: Option<(NodeId, &[u8])>, made: Entry) -> Result<Entry, Errno> {
        self.enter(place, There { upper: Some(made), lower: None }, None)
    }

    /// Whether the lower layer has the name, whatever the upper one has.
    pub(super) fn is_below(&self, parent: NodeId, name: &[u8]) -> Result<bool, Errno> {
        let Some(lower) = self.layers(parent)?.lower else { return Ok(false) };
        match self.lower.lookup(&ME, lower, name) {
            Ok(entry) => {
                self.lower.forget(entry.node, 1);
                Ok(true)
            }
            Err(Errno::NOENT) => Ok(false),
            Err(errno) => Err(errno),
        }
    }

    /// Creates something with a new name by `make`, which gets a directory of the upper layer and a name in it.
    pub(super) fn make(
        &self,
        context: &Context<'_>,
        parent: NodeId,
        name: &[u8],
        make: impl Fn(NodeId, &[u8]) -> Result<Made, Errno>,
    ) -> Result<Made, Errno> {
        check_name(name)?;
        let _changing = hold(&self.changing);
        self.require_told(context, parent)?;
        match self.find(context, parent, name) {
            Ok(there) => {
                self.forget_there(&there);
                return Err(Errno::EXIST);
            }
            Err(Errno::NOENT) if hold(&self.table).is_removed(parent) => return Err(Errno::NOENT),
            Err(Errno::NOENT) => {}
            Err(errno) => return Err(errno),
        }
        let directory = self.bring_up_held(parent)?;
        let made = self.make_above(directory, name, make)?;
        self.changed(parent);
        let entry = self.enter_made(Some((parent, name)), made.entry)?;
        Ok(Made { entry, ..made })
    }

    /// The same for what is not opened.
    pub(super) fn make_unopened(
        &self,
        context: &Context<'_>,
        parent: NodeId,
        name: &[u8],
        make: impl Fn(NodeId, &[u8]) -> Result<Entry, Errno>,
    ) -> Result<Entry, Errno> {
        let make = |directory, name: &[u8]| make(directory, name).map(|entry| Made { entry, opened: None });
        self.make(context, parent, name, make).map(|made| made.entry)
    }

    pub(super) fn remove(
        &self,
        context: &Context<'_>,
        parent: NodeId,
        name: &[u8],
        directory: bool,
    ) -> Result<(), Errno> {
        check_name(name)?;
        let _changing = hold(&self.changing);
        let known = self.decided_by(context, parent, name);
        self.require_told_of_names(context, [(parent, known)])?;
        let there = self.find(context, parent, name)?;
        let removed = self
            .require_known(context, parent, known, false)
            .and_then(|()| self.require_same(known, &there))
            .and_then(|()| self.remove_there(context, parent, name, directory, &there));
        self.forget_there(&there);
        removed?;
        let gone = hold(&self.table).remove_place(parent, name);
        self.give_back(gone);
        self.changed(parent);
        Ok(())
    }

    /// The node by which the caller's kernel checked whether the name may be removed or moved. `None` for root, who
    /// may do everything.
    pub(super) fn decided_by(&self, context: &Context<'_>, parent: NodeId, name: &[u8]) -> Option<NodeId> {
        if context.is_root() { None } else { hold(&self.table).known_at(parent, name) }
    }

    /// Returns `ESTALE` if the permissions of a directory differ from those that the caller's kernel decided by, or
    /// those of a named node that has a say of its own.
    pub(super) fn require_told_of_names<const N: usize>(
        &self,
        context: &Context<'_>,
        names: [(NodeId, Option<NodeId>); N],
    ) -> Result<(), Errno> {
        names.iter().try_for_each(|(parent, known)| {
            self.require_told(context, *parent)?;
            known.map_or(Ok(()), |known| self.require_told(context, known))
        })
    }

    /// Returns `ESTALE` if a name has a say of its own, because its directory is sticky or it `moves` to another one, and
    /// the client knows nothing by it: the kernel may have dropped the node that it checked, because another thread of
    /// its found something else at the name.
    pub(super) fn require_known(
        &self,
        context: &Context<'_>,
        parent: NodeId,
        known: Option<NodeId>,
        moves: bool,
    ) -> Result<(), Errno> {
        if known.is_some() || !self.may_be_misled(context) {
            return Ok(());
        }
        let has_say = moves || self.peek_attributes(context, parent, None)?.mode & libc::S_ISVTX != 0;
        if has_say { Err(Errno::STALE) } else { Ok(()) }
    }

    /// Returns `ESTALE` if another node has the name by now, so that the kernel looks it up and checks it again.
    fn require_same(&self, known: Option<NodeId>, there: &There) -> Result<(), Errno> {
        let Some(known) = known else { return Ok(()) };
        let known = self.layers(known)?;
        let is_same = match there {
            There { upper: Some(upper), .. } => known.upper == Some(upper.node),
            There { upper: None, lower } => known.upper.is_none() && known.lower == lower.map(|lower| lower.node),
        };
        if is_same { Ok(()) } else { Err(Errno::STALE) }
    }

    fn remove_there(
        &self,
        context: &Context<'_>,
        parent: NodeId,
        name: &[u8],
        directory: bool,
        there: &There,
    ) -> Result<(), Errno> {
        let entry = there.upper.or(there.lower).ok_or(Errno::NOENT)?;
        match (directory, is_directory(&entry.attributes)) {
            (true, false) => return Err(Errno::NOTDIR),
            (false, true) => return Err(Errno::ISDIR),
            (true, true) => {
                self.require_empty(there.upper.map(|entry| entry.node), there.lower.map(|entry| entry.node))?
            }
            (false, false) => {}
        }
        let covers = self.is_below(parent, name)?;
        let above = self.bring_up_held(parent)?;
        let in_directory = [Directory::At(above)];
        let Some(upper) = there.upper else { return self.with_rights(&in_directory, || self.cover(above, name)) };
        // It moves to the work directory, or loses its entries.
        let with_itself = [Directory::At(above), Directory::Named(upper.node, (above, name))];
        if !directory {
            self.lift_readers(upper.node)?;
        }
        match (directory, covers) {
            (_, true) => self.with_rights(&with_itself, || self.replace_by_whiteout(above, name, directory)),
            (true, false) => {
                // They cover nothing.
                self.with_rights(&with_itself[1..], || self.remove_whiteouts(upper.node))?;
                self.with_rights(&in_directory, || self.upper.remove_directory(context, above, name))
            }
            (false, false) => self.with_rights(&in_directory, || self.upper.unlink(context, above, name)),
        }
    }

    /// Refuses a directory that has names.
    pub(super) fn require_empty(&self, upper: Option<NodeId>, lower: Option<NodeId>) -> Result<(), Errno> {
        let names = self.names_in(upper, lower)?;
        if names.iter().all(|name| matches!(&*name.name, b"." | b"..")) { Ok(()) } else { Err(Errno::NOTEMPTY) }
    }

    pub(super) fn is_whiteout_at(&self, upper: NodeId, name: &[u8]) -> Result<bool, Errno> {
        match self.upper.lookup(&ME, upper, name) {
            Ok(entry) => {
                self.upper.forget(entry.node, 1);
                Ok(is_whiteout(&entry.attributes))
            }
            Err(Errno::NOENT) => Ok(false),
            Err(errno) => Err(errno),
        }
    }
}
