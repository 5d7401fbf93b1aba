//! Renames in one step of the upper layer, with whiteouts where needed.

use rustix::fs::RenameFlags;
use rustix::io::Errno;

use super::closed::Directory;
use super::work::is_directory;
use super::{ME, Overlay, hold};
use crate::{Context, Entry, FileSystem, NodeId, check_name};

/// A directory and a name in it.
type Place<'a> = (NodeId, &'a [u8]);

/// A rename: its source, and an existing target.
struct Move<'a> {
    from: Place<'a>,
    to: Place<'a>,
    source: Entry,
    target: Option<Entry>,
    exchange: bool,
    no_replace: bool,
}

/// How a successful attempt ended.
enum Moved {
    Done,
    /// Both are names of one file, and both stay.
    Nothing,
    /// These files must be copied up first.
    Needs(Vec<NodeId>),
}

impl Overlay {
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
        loop {
            let files = {
                let _changing = hold(&self.changing);
                match self.try_move(context, from, to, flags)? {
                    Moved::Done | Moved::Nothing => return Ok(()),
                    Moved::Needs(files) => files,
                }
            };
            // No lock is held during a copy, so everything may have changed afterwards.
            let brought_up = files.iter().try_for_each(|file| self.bring_up(context, *file).map(drop));
            files.iter().for_each(|file| self.forget(*file, 1));
            brought_up?;
        }
    }

    fn try_move(
        &self,
        context: &Context<'_>,
        from: Place<'_>,
        to: Place<'_>,
        flags: RenameFlags,
    ) -> Result<Moved, Errno> {
        let known = [from, to].map(|(parent, name)| self.decided_by(context, parent, name));
        self.require_told_of_names(context, [(from.0, known[0]), (to.0, known[1])])?;
        let source = self.look_up(context, from.0, from.1)?;
        let target = match self.look_up(context, to.0, to.1) {
            Ok(entry) => Ok(Some(entry)),
            Err(Errno::NOENT) if !hold(&self.table).is_removed(to.0) => Ok(None),
            Err(errno) => Err(errno),
        };
        let target = target.inspect_err(|_| self.forget(source.node, 1))?;
        let exchange = flags.contains(RenameFlags::EXCHANGE);
        let no_replace = flags.contains(RenameFlags::NOREPLACE);
        let is_same = |known: Option<NodeId>, found: Option<&Entry>| match (known, found) {
            (Some(known), Some(found)) => known == found.node,
            _ => true,
        };
        // The caller's kernel checked no right to replace what it does not know.
        let is_unknown = known[1].is_none() && target.is_some() && !no_replace && self.may_be_misled(context);
        let moved = if is_same(known[0], Some(&source)) && is_same(known[1], target.as_ref()) && !is_unknown {
            self.require_known(context, from.0, known[0], from.0 != to.0)
                .and_then(|()| self.move_there(context, &Move { from, to, source, target, exchange, no_replace }))
        } else {
            // The caller's kernel decided by something else.
            Err(Errno::STALE)
        };
        if !matches!(moved, Ok(Moved::Needs(_))) {
            self.forget(source.node, 1);
        }
        if let Some(target) = target {
            self.forget(target.node, 1);
        }
        if let Ok(Moved::Done) = moved {
            let gone = hold(&self.table).rename(from, to, exchange);
            self.give_back(gone);
            self.changed(from.0);
            self.changed(to.0);
        }
        moved
    }

    fn move_there(&self, context: &Context<'_>, asked: &Move<'_>) -> Result<Moved, Errno> {
        let Move { from, to, source, target, exchange, no_replace } = asked;
        match target {
            Some(_) if *no_replace => return Err(Errno::EXIST),
            None if *exchange => return Err(Errno::NOENT),
            Some(target) if target.node == source.node => return Ok(Moved::Nothing),
            Some(target) if !exchange => self.require_replaceable(source, target)?,
            _ => {}
        }
        // Checked before any change, so that a refused rename leaves nothing half done.
        let mut files = Vec::new();
        let both = [Some(source), target.as_ref().filter(|_| *exchange)];
        for entry in both.into_iter().flatten() {
            let layers = self.layers(entry.node)?;
            if layers.is_directory && layers.lower.is_some() {
                return Err(Errno::XDEV);
            }
            if layers.upper.is_none() && entry.attributes.mode & libc::S_IFMT == libc::S_IFREG {
                files.push(entry.node);
            }
        }
        if !files.is_empty() {
            return Ok(self.needs(files));
        }
        let above_from = self.bring_up_held(from.0)?;
        let above_to = self.bring_up_held(to.0)?;
        for entry in both.into_iter().flatten() {
            let upper = self.bring_up_held(entry.node)?;
            // At its new place a directory must not be merged with a lower one.
            if is_directory(&entry.attributes) {
                self.make_opaque(upper)?;
            }
        }
        if *exchange {
            let flags = RenameFlags::EXCHANGE.bits();
            let step = || self.upper.rename(context, above_from, from.1, above_to, to.1, flags);
            self.with_rights(&[Directory::At(above_from), Directory::At(above_to)], step)?;
            return Ok(Moved::Done);
        }
        if let Some(target) = target {
            self.make_way(target)?;
        }
        self.move_above(context, asked, above_from, above_to)
    }

    /// Requests copy-ups; the files stay known until these are done.
    fn needs(&self, mut files: Vec<NodeId>) -> Moved {
        files.retain(|file| hold(&self.table).count_lookup(*file).is_ok());
        Moved::Needs(files)
    }

    /// One step: renames in the upper layer, and leaves a whiteout if the lower layer has the old name.
    fn move_above(
        &self,
        context: &Context<'_>,
        asked: &Move<'_>,
        above_from: NodeId,
        above_to: NodeId,
    ) -> Result<Moved, Errno> {
        let Move { from, to, source, .. } = asked;
        let covers = self.is_below(from.0, from.1)?;
        let to_whiteout = self.is_whiteout_at(above_to, to.1)?;
        let flags = match (covers, to_whiteout) {
            // The whiteout is needed at the other place.
            (true, true) => RenameFlags::EXCHANGE,
            (true, false) => RenameFlags::WHITEOUT,
            // A directory can replace only a directory.
            (false, true) if is_directory(&source.attributes) => RenameFlags::EXCHANGE,
            (false, _) => RenameFlags::empty(),
        };
        let step = || self.upper.rename(context, above_from, from.1, above_to, to.1, flags.bits());
        self.with_rights(&[Directory::At(above_from), Directory::At(above_to)], step)?;
        if !covers && flags == RenameFlags::EXCHANGE {
            // It covers nothing there; if it stays, it does no harm.
            let _ = self.with_rights(&[Directory::At(above_from)], || self.upper.unlink(&ME, above_from, from.1));
        }
        Ok(Moved::Done)
    }

    /// Prepares the target for its replacement, without a visible change.
    fn make_way(&self, target: &Entry) -> Result<(), Errno> {
        let layers = self.layers(target.node)?;
        let Some(upper) = layers.upper else { return Ok(()) };
        if !layers.is_directory {
            return self.lift_readers(upper);
        }
        if self.whiteouts_in(upper)?.is_empty() {
            return Ok(());
        }
        if layers.lower.is_some() {
            // It contains only whiteouts. Before they go, it must hide the lower directory as a whole.
            self.make_opaque(upper)?;
            if let Some(lower) = hold(&self.table).part_from_lower(target.node) {
                self.lower.forget(lower, 1);
            }
        }
        self.with_rights(&[Directory::At(upper)], || self.remove_whiteouts(upper))
    }

    /// Makes an upper directory opaque, so that it is merged with nothing.
    fn make_opaque(&self, upper: NodeId) -> Result<(), Errno> {
        let step = || self.upper.set_xattr(&ME, upper, self.opaque, b"y", 0, false);
        self.with_rights(&[Directory::At(upper)], step)
    }

    /// Whether rename(2) lets `source` take the place of `target`.
    fn require_replaceable(&self, source: &Entry, target: &Entry) -> Result<(), Errno> {
        match (is_directory(&source.attributes), is_directory(&target.attributes)) {
            (true, false) => Err(Errno::NOTDIR),
            (false, true) => Err(Errno::ISDIR),
            (false, false) => Ok(()),
            (true, true) => {
                let layers = self.layers(target.node)?;
                self.require_empty(layers.upper, layers.lower)
            }
        }
    }
}
