//! Names: found in both layers, made above, and covered by whiteouts where they also lie below.

use rustix::fs::RenameFlags;
use rustix::io::Errno;

use super::table::Layers;
use super::{Overlay, hold, is_whiteout};
use crate::{Attributes, Context, Entry, NewNode, NodeId, check_name};

const ME: Context<'static> = Context::SERVER;

/// A name that is gone.
const WHITEOUT: NewNode = NewNode { mode: libc::S_IFCHR, umask: 0, device: 0 };

/// What is at a name in both layers. Each node that is named here has a lookup that is to be given back.
struct There {
    upper: Option<Entry>,
    lower: Option<Entry>,
}

impl Overlay {
    pub(super) fn look_up(&self, context: &Context<'_>, parent: NodeId, name: &[u8]) -> Result<Entry, Errno> {
        check_name(name)?;
        let there = self.find(context, parent, name)?;
        self.enter(Some((parent, name)), there)
    }

    /// Looks for a name above, and, where that does not hide it, below.
    fn find(&self, context: &Context<'_>, parent: NodeId, name: &[u8]) -> Result<There, Errno> {
        let layers = self.layers(parent)?;
        if !layers.is_directory {
            return Err(Errno::NOTDIR);
        }
        let upper = match layers.upper.map(|upper| self.upper.lookup(context, upper, name)) {
            Some(Err(Errno::NOENT)) | None => None,
            Some(found) => Some(found?),
        };
        if let Some(upper) = upper {
            if is_whiteout(&upper.attributes) {
                self.upper.forget(upper.node, 1);
                return Err(Errno::NOENT);
            }
            if !is_directory(&upper.attributes) {
                return Ok(There { upper: Some(upper), lower: None });
            }
        }
        let lower = match layers.lower.map(|lower| self.lower.lookup(context, lower, name)) {
            Some(Err(Errno::NOENT)) | None => None,
            Some(found) => Some(found.inspect_err(|_| self.forget_there(&There { upper, lower: None }))?),
        };
        let There { upper, lower } = match (upper, lower) {
            (None, None) => return Err(Errno::NOENT),
            (Some(above), Some(below)) if !is_directory(&below.attributes) || self.is_opaque(above.node) => {
                self.lower.forget(below.node, 1);
                There { upper, lower: None }
            }
            (upper, lower) => There { upper, lower },
        };
        Ok(There { upper, lower })
    }

    fn is_opaque(&self, upper: NodeId) -> bool {
        self.upper.get_xattr(&ME, upper, self.opaque).is_ok_and(|value| value == b"y")
    }

    fn forget_there(&self, there: &There) {
        self.give_back(vec![Layers {
            upper: there.upper.map(|entry| entry.node),
            lower: there.lower.map(|entry| entry.node),
            is_directory: false,
            nameless: None,
            inode: 0,
        }]);
    }

    /// Makes a node of what was found, or counts a lookup of the one that is known.
    fn enter(&self, place: Option<(NodeId, &[u8])>, there: There) -> Result<Entry, Errno> {
        let entry = there.upper.or(there.lower).ok_or(Errno::NOENT)?;
        let layers = Layers {
            upper: there.upper.map(|entry| entry.node),
            lower: there.lower.map(|entry| entry.node),
            is_directory: is_directory(&entry.attributes),
            nameless: None,
            // A directory of both layers keeps the number that it had before it was brought up.
            inode: there.lower.unwrap_or(entry).attributes.inode,
        };
        let found = hold(&self.table).found(place, layers);
        let (node, surplus, mut gone) = found.inspect_err(|_| self.forget_there(&there))?;
        gone.push(surplus);
        self.give_back(gone);
        let attributes = self.shown(&self.layers(node)?, entry.attributes);
        let valid = there.lower.map_or(entry.valid, |lower| lower.valid.min(entry.valid)).min(self.changes.valid());
        Ok(Entry { node, generation: 0, attributes, valid })
    }

    /// Enters what was just made above.
    pub(super) fn enter_made(&self, place: Option<(NodeId, &[u8])>, made: Entry) -> Result<Entry, Errno> {
        self.enter(place, There { upper: Some(made), lower: None })
    }

    /// Whether the layer below has the name, whatever the upper one has.
    fn is_below(&self, context: &Context<'_>, parent: NodeId, name: &[u8]) -> Result<bool, Errno> {
        let Some(lower) = self.layers(parent)?.lower else { return Ok(false) };
        match self.lower.lookup(context, lower, name) {
            Ok(entry) => {
                self.lower.forget(entry.node, 1);
                Ok(true)
            }
            Err(Errno::NOENT) => Ok(false),
            Err(errno) => Err(errno),
        }
    }

    /// Makes something with a new name, by `make`, which gets the directory above.
    pub(super) fn make(
        &self,
        context: &Context<'_>,
        parent: NodeId,
        name: &[u8],
        make: impl FnOnce(NodeId) -> Result<Entry, Errno>,
    ) -> Result<Entry, Errno> {
        check_name(name)?;
        let _changing = hold(&self.changing);
        let upper = self.room_for(context, parent, name)?;
        let covers = self.is_below(context, parent, name)?;
        let made = make(upper)?;
        if covers
            && is_directory(&made.attributes)
            && let Err(errno) = self.upper.set_xattr(&ME, made.node, self.opaque, b"y", 0, false)
        {
            // It would show what is gone.
            self.upper.forget(made.node, 1);
            self.upper.remove_directory(&ME, upper, name)?;
            self.cover(upper, name)?;
            return Err(errno);
        }
        self.changed(parent);
        self.enter_made(Some((parent, name)), made)
    }

    /// The directory above in which `name` is free.
    pub(super) fn room_for(&self, context: &Context<'_>, parent: NodeId, name: &[u8]) -> Result<NodeId, Errno> {
        match self.find(context, parent, name) {
            Ok(there) => {
                self.forget_there(&there);
                return Err(Errno::EXIST);
            }
            Err(Errno::NOENT) => {}
            Err(errno) => return Err(errno),
        }
        let upper = self.bring_up_held(parent, 0)?;
        self.remove_whiteout(upper, name)?;
        Ok(upper)
    }

    fn remove_whiteout(&self, directory: NodeId, name: &[u8]) -> Result<(), Errno> {
        let Ok(there) = self.upper.lookup(&ME, directory, name) else { return Ok(()) };
        self.upper.forget(there.node, 1);
        if is_whiteout(&there.attributes) { self.upper.unlink(&ME, directory, name) } else { Ok(()) }
    }

    fn cover(&self, directory: NodeId, name: &[u8]) -> Result<(), Errno> {
        let made = self.upper.make_node(&ME, directory, name, &WHITEOUT)?;
        self.upper.forget(made.node, 1);
        Ok(())
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
        let there = self.find(context, parent, name)?;
        let removed = self.remove_there(context, parent, name, directory, &there);
        self.forget_there(&there);
        removed?;
        let gone = hold(&self.table).remove_place(parent, name);
        self.give_back(gone);
        self.changed(parent);
        Ok(())
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
            _ => {}
        }
        if directory {
            self.require_empty(there)?;
        }
        let covers = self.is_below(context, parent, name)?;
        let above = self.bring_up_held(parent, 0)?;
        if there.upper.is_some() {
            if directory {
                self.upper.remove_directory(context, above, name)
            } else {
                self.upper.unlink(context, above, name)
            }?;
        }
        if covers { self.cover(above, name) } else { Ok(()) }
    }

    /// Refuses a directory that has names; takes the whiteouts of one that has not away.
    fn require_empty(&self, there: &There) -> Result<(), Errno> {
        let (upper, lower) = (there.upper.map(|entry| entry.node), there.lower.map(|entry| entry.node));
        if self.names_in(upper, lower)?.iter().any(|name| !matches!(&*name.name, b"." | b"..")) {
            return Err(Errno::NOTEMPTY);
        }
        let Some(upper) = upper else { return Ok(()) };
        for name in self.whiteouts_in(upper)? {
            self.upper.unlink(&ME, upper, &name)?;
        }
        Ok(())
    }

    pub(super) fn move_name(
        &self,
        context: &Context<'_>,
        from: (NodeId, &[u8]),
        to: (NodeId, &[u8]),
        flags: u32,
    ) -> Result<(), Errno> {
        check_name(from.1)?;
        check_name(to.1)?;
        let flags = RenameFlags::from_bits(flags).filter(|flags| !flags.contains(RenameFlags::WHITEOUT));
        let flags = flags.ok_or(Errno::INVAL)?;
        let _changing = hold(&self.changing);
        let source = self.look_up(context, from.0, from.1)?;
        let target = match self.look_up(context, to.0, to.1) {
            Ok(entry) => Some(entry),
            Err(Errno::NOENT) => None,
            Err(errno) => {
                self.forget_entries(&[Some(source)]);
                return Err(errno);
            }
        };
        let moved = self.move_there(context, (from, &source), (to, target.as_ref()), flags);
        self.forget_entries(&[Some(source), target]);
        if moved? {
            let exchange = flags.contains(RenameFlags::EXCHANGE);
            let gone = hold(&self.table).rename(from, to, exchange);
            self.give_back(gone);
            self.changed(from.0);
            self.changed(to.0);
        }
        Ok(())
    }

    fn forget_entries(&self, entries: &[Option<Entry>]) {
        for entry in entries.iter().flatten() {
            let gone = hold(&self.table).forget(entry.node, 1);
            self.give_back(gone);
        }
    }

    /// Gives whether anything was moved: two names of one file both stay.
    fn move_there(
        &self,
        context: &Context<'_>,
        (from, source): ((NodeId, &[u8]), &Entry),
        (to, target): ((NodeId, &[u8]), Option<&Entry>),
        flags: RenameFlags,
    ) -> Result<bool, Errno> {
        let exchange = flags.contains(RenameFlags::EXCHANGE);
        match target {
            Some(_) if flags.contains(RenameFlags::NOREPLACE) => return Err(Errno::EXIST),
            None if exchange => return Err(Errno::NOENT),
            Some(target) if target.node == source.node => return Ok(false),
            Some(target) if !exchange => self.require_replaceable(source, target)?,
            _ => {}
        }
        let both = [Some(source), target.filter(|_| exchange)];
        for entry in both.into_iter().flatten() {
            let layers = self.layers(entry.node)?;
            if layers.is_directory && layers.lower.is_some() {
                return Err(Errno::XDEV);
            }
            self.bring_up_held(entry.node, u64::MAX)?;
        }
        let (above_from, above_to) = (self.bring_up_held(from.0, 0)?, self.bring_up_held(to.0, 0)?);
        let covers = self.is_below(context, from.0, from.1)?;
        // Wherever a directory comes to lie, it must not be merged with what is below there.
        for entry in both.into_iter().flatten().filter(|entry| is_directory(&entry.attributes)) {
            let upper = self.layers(entry.node)?.upper.ok_or(Errno::IO)?;
            self.upper.set_xattr(&ME, upper, self.opaque, b"y", 0, false)?;
        }
        self.remove_whiteout(above_to, to.1)?;
        let flags = if exchange { RenameFlags::EXCHANGE } else { RenameFlags::empty() };
        self.upper.rename(context, above_from, from.1, above_to, to.1, flags.bits())?;
        if covers && !exchange {
            self.cover(above_from, from.1)?;
        }
        Ok(true)
    }

    /// Whether rename(2) lets `source` take the place of `target`.
    fn require_replaceable(&self, source: &Entry, target: &Entry) -> Result<(), Errno> {
        match (is_directory(&source.attributes), is_directory(&target.attributes)) {
            (true, false) => Err(Errno::NOTDIR),
            (false, true) => Err(Errno::ISDIR),
            (false, false) => Ok(()),
            (true, true) => {
                let layers = self.layers(target.node)?;
                let entry = |node| Entry { node, ..*target };
                self.require_empty(&There { upper: layers.upper.map(entry), lower: layers.lower.map(entry) })
            }
        }
    }
}

fn is_directory(attributes: &Attributes) -> bool {
    attributes.mode & libc::S_IFMT == libc::S_IFDIR
}
