//! Open files, each in the layer where it was opened.

use std::collections::HashMap;
use std::collections::hash_map::Entry;

use rustix::io::Errno;

use super::closed::Directory;
use super::table::Layers;
use super::work::Made;
use super::{Overlay, hold};
use crate::slab::Slab;
use crate::{
    self as vfs, Caching, Changes, Context, FileSystem, HandleId, LockOwner, NewNode, NodeId, OpenHandle, check_name,
};

/// Files that may be open at a time.
const MOST_OPEN: usize = 1 << 20;

/// An open file: a node of a layer, and the layer's handle.
#[derive(Clone, Copy, Debug)]
enum Behind {
    Upper(NodeId, HandleId),
    /// Read-only. Without a handle if the lower layer needs none.
    Lower(NodeId, Option<HandleId>),
}

/// All that is open.
#[derive(Debug, Default)]
pub(super) struct OpenFiles {
    files: Slab<(NodeId, Behind)>,
    /// The number of open files in the lower layer, for each node.
    below: HashMap<NodeId, usize>,
}

impl OpenFiles {
    fn place(&self, node: NodeId, handle: HandleId) -> Result<u32, Errno> {
        let place = self.files.place(handle.0).ok_or(Errno::BADF)?;
        self.files.get(place).filter(|file| file.0 == node).map(|_| place).ok_or(Errno::BADF)
    }

    fn get(&self, node: NodeId, handle: HandleId) -> Result<Behind, Errno> {
        self.files.get(self.place(node, handle)?).map(|file| file.1).ok_or(Errno::BADF)
    }

    fn insert(&mut self, node: NodeId, behind: Behind) -> Option<HandleId> {
        let place = if self.files.len() < MOST_OPEN { self.files.insert((node, behind)) } else { None }?;
        if let Behind::Lower(..) = behind {
            *self.below.entry(node).or_default() += 1;
        }
        Some(HandleId(self.files.number(place)))
    }

    fn remove(&mut self, node: NodeId, handle: HandleId) -> Option<Behind> {
        let place = self.place(node, handle).ok()?;
        let behind = self.files.remove(place)?.1;
        if let Behind::Lower(..) = behind {
            self.one_less_below(node);
        }
        Some(behind)
    }

    /// Replaces a lower open file by an upper one; returns what must be closed.
    fn lift(&mut self, node: NodeId, handle: HandleId, above: Behind) -> Result<Behind, Errno> {
        let place = self.place(node, handle)?;
        let file = self.files.get_mut(place).ok_or(Errno::BADF)?;
        if let Behind::Upper(..) = file.1 {
            // Another thread was faster.
            return Ok(above);
        }
        let old = std::mem::replace(&mut file.1, above);
        self.one_less_below(node);
        Ok(old)
    }

    fn one_less_below(&mut self, node: NodeId) {
        if let Entry::Occupied(mut count) = self.below.entry(node) {
            *count.get_mut() -= 1;
            if *count.get() == 0 {
                count.remove();
            }
        }
    }

    /// The handles of a node that are open in the lower layer.
    fn open_below(&self, node: NodeId) -> Vec<HandleId> {
        if !self.below.contains_key(&node) {
            return Vec::new();
        }
        let is_below = |place: &u32| matches!(self.files.get(*place), Some((of, Behind::Lower(..))) if *of == node);
        let places = self.files.occupied().into_iter().filter(is_below);
        places.map(|place| HandleId(self.files.number(place))).collect()
    }
}

impl Overlay {
    fn insert(&self, node: NodeId, behind: Behind, opened: OpenHandle) -> Result<OpenHandle, Errno> {
        // The lower layer knows whether its file changed. What is above may have been copied up from a file that had changed.
        let caching = match (opened.caching, &behind) {
            (Caching::Keep, Behind::Upper(..)) if self.changes == Changes::Host => Caching::Fresh,
            (caching, _) => caching,
        };
        if !self.opens_files {
            return Ok(OpenHandle { handle: HandleId::default(), caching, ..opened });
        }
        let handle = hold(&self.open).insert(node, behind);
        let Some(handle) = handle else {
            self.release_behind(Some(behind), None);
            return Err(Errno::NFILE);
        };
        Ok(OpenHandle { handle, caching, ..opened })
    }

    pub(super) fn open_file(&self, context: &Context<'_>, node: NodeId, flags: u32) -> Result<OpenHandle, Errno> {
        let writes = flags & libc::O_ACCMODE as u32 != libc::O_RDONLY as u32;
        let truncates = flags & libc::O_TRUNC as u32 != 0;
        if self.layers(node)?.is_directory {
            return Err(Errno::ISDIR);
        }
        self.require_told(context, node)?;
        let (behind, opened) = if writes || truncates {
            self.open_above(context, node, flags, truncates)?
        } else {
            self.open_where_it_is(context, node, flags)?
        };
        let opened = self.insert(node, behind, opened)?;
        if let Behind::Lower(..) = behind
            && self.layers(node)?.upper.is_some()
        {
            // It was copied up meanwhile: a thread that removes it may not know of this reader.
            let lifted = self.lift_reader(context, node, opened.handle);
            lifted.inspect_err(|_| self.close_file(node, opened.handle, None))?;
        }
        Ok(opened)
    }

    /// Opens a file in the upper layer, copied up if necessary.
    fn open_above(
        &self,
        context: &Context<'_>,
        node: NodeId,
        flags: u32,
        truncates: bool,
    ) -> Result<(Behind, OpenHandle), Errno> {
        // Truncated bytes need no copy; the truncation is part of the step that makes the copy visible.
        let mut early = None;
        let mut open = |upper| {
            early = Some((upper, self.upper.open(context, upper, flags)?));
            Ok(())
        };
        let mut keep = |_| Ok(());
        let brought_up = match truncates {
            true => self.bring_up_changed(context, node, 0, &mut open),
            false => self.bring_up_changed(context, node, u64::MAX, &mut keep),
        };
        let upper = match (brought_up, early) {
            (Ok(_), Some((upper, opened))) => return Ok((Behind::Upper(upper, opened.handle), opened)),
            (Err(errno), Some((upper, opened))) => {
                self.upper.release(upper, opened.handle, None);
                return Err(errno);
            }
            (brought_up, None) => brought_up?.0,
        };
        let opened = self.upper.open(context, upper, flags)?;
        Ok((Behind::Upper(upper, opened.handle), opened))
    }

    /// Opens a file for reading, in its layer.
    fn open_where_it_is(&self, context: &Context<'_>, node: NodeId, flags: u32) -> Result<(Behind, OpenHandle), Errno> {
        let layers = self.layers(node)?;
        match (layers.upper, layers.lower) {
            (Some(upper), _) => {
                let opened = self.upper.open(context, upper, flags)?;
                Ok((Behind::Upper(upper, opened.handle), opened))
            }
            (None, Some(lower)) => match self.lower.open(context, lower, flags) {
                Ok(opened) => Ok((Behind::Lower(lower, Some(opened.handle)), opened)),
                Err(Errno::NOSYS) => {
                    Ok((Behind::Lower(lower, None), OpenHandle { caching: Caching::Keep, ..OpenHandle::default() }))
                }
                Err(errno) => Err(errno),
            },
            (None, None) => Err(Errno::STALE),
        }
    }

    pub(super) fn create_file(
        &self,
        context: &Context<'_>,
        parent: NodeId,
        name: &[u8],
        new: &NewNode,
        flags: u32,
    ) -> Result<(vfs::Entry, OpenHandle), Errno> {
        check_name(name)?;
        let made = self.make(context, parent, name, |directory, name| {
            let (entry, opened) = self.upper.create(context, directory, name, new, flags)?;
            Ok(Made { entry, opened: Some(opened) })
        });
        self.insert_made(made?)
    }

    /// Registers a newly created upper file as open.
    fn insert_made(&self, Made { entry, opened }: Made) -> Result<(vfs::Entry, OpenHandle), Errno> {
        let inserted = self.layers(entry.node).and_then(|layers| {
            let (upper, opened) = layers.upper.zip(opened).ok_or(Errno::IO)?;
            self.insert(entry.node, Behind::Upper(upper, opened.handle), opened)
        });
        let opened = inserted.inspect_err(|_| self.forget(entry.node, 1))?;
        Ok((entry, opened))
    }

    pub(super) fn create_nameless_file(
        &self,
        context: &Context<'_>,
        parent: NodeId,
        new: &NewNode,
        flags: u32,
    ) -> Result<(vfs::Entry, OpenHandle), Errno> {
        self.require_told(context, parent)?;
        let upper = self.bring_up(context, parent)?;
        let (made, opened) = {
            let _changing = hold(&self.changing);
            let step = || self.upper.create_unnamed(context, upper, new, flags);
            self.with_rights(&[Directory::At(upper)], step)?
        };
        let entry = self.enter_made(None, made)?;
        self.insert_made(Made { entry, opened: Some(opened) })
    }

    /// Layer, node and handle to read from. A file copied up since it was opened is read from the upper layer.
    pub(super) fn readable(
        &self,
        context: &Context<'_>,
        node: NodeId,
        handle: HandleId,
    ) -> Result<(&dyn FileSystem, NodeId, HandleId), Errno> {
        let (lower, below) = match self.behind(node, handle)? {
            Behind::Upper(upper, handle) => return Ok((&*self.upper, upper, handle)),
            Behind::Lower(lower, handle) => (lower, handle),
        };
        let Some(upper) = self.layers(node)?.upper else {
            return Ok((&*self.lower, lower, below.unwrap_or_default()));
        };
        if !self.opens_files {
            return Ok((&*self.upper, upper, HandleId::default()));
        }
        self.lift_reader(context, node, handle)?;
        match self.behind(node, handle)? {
            Behind::Upper(upper, handle) => Ok((&*self.upper, upper, handle)),
            Behind::Lower(..) => Err(Errno::BADF),
        }
    }

    /// Reopens a lower open file in the upper layer, after a copy-up.
    fn lift_reader(&self, context: &Context<'_>, node: NodeId, handle: HandleId) -> Result<(), Errno> {
        let upper = self.layers(node)?.upper.ok_or(Errno::BADF)?;
        let new = self.upper.open(context, upper, libc::O_RDONLY as u32)?.handle;
        let above = Behind::Upper(upper, new);
        let lifted = hold(&self.open).lift(node, handle, above);
        let unused = lifted.inspect_err(|_| self.release_behind(Some(above), None))?;
        self.release_behind(Some(unused), None);
        Ok(())
    }

    /// Reopens all lower open files of an upper file that is about to lose its name, because that name could no
    /// longer be opened later.
    pub(super) fn lift_readers(&self, upper: NodeId) -> Result<(), Errno> {
        let Some(node) = hold(&self.table).of_upper(upper) else { return Ok(()) };
        let readers = hold(&self.open).open_below(node);
        for handle in readers {
            match self.lift_reader(&Context::SERVER, node, handle) {
                // Closed meanwhile.
                Ok(()) | Err(Errno::BADF) => {}
                Err(errno) => return Err(errno),
            }
        }
        Ok(())
    }

    /// The open file, or, where files need no open, the node's current layer.
    fn behind(&self, node: NodeId, handle: HandleId) -> Result<Behind, Errno> {
        let open = hold(&self.open).get(node, handle);
        if open.is_ok() || self.opens_files {
            return open;
        }
        match self.layers(node)? {
            Layers { is_directory: true, .. } => Err(Errno::ISDIR),
            Layers { upper: Some(upper), .. } => Ok(Behind::Upper(upper, HandleId::default())),
            Layers { lower: Some(lower), .. } => Ok(Behind::Lower(lower, None)),
            Layers { lower: None, upper: None, .. } => Err(Errno::STALE),
        }
    }

    /// Upper node and handle to write to. A file that needs no open is copied up.
    pub(super) fn writable(
        &self,
        context: &Context<'_>,
        node: NodeId,
        handle: HandleId,
    ) -> Result<(NodeId, HandleId), Errno> {
        match self.behind(node, handle)? {
            Behind::Lower(..) if !self.opens_files => Ok((self.bring_up(context, node)?, HandleId::default())),
            Behind::Upper(upper, handle) => Ok((upper, handle)),
            Behind::Lower(..) => Err(Errno::BADF),
        }
    }

    /// Upper node and handle, if it is in the upper layer.
    pub(super) fn above(&self, node: NodeId, handle: HandleId) -> Result<(NodeId, HandleId), Errno> {
        match self.behind(node, handle)? {
            Behind::Upper(upper, handle) => Ok((upper, handle)),
            Behind::Lower(..) => Err(Errno::BADF),
        }
    }

    pub(super) fn close_file(&self, node: NodeId, handle: HandleId, owner: Option<LockOwner>) {
        let behind = hold(&self.open).remove(node, handle);
        self.release_behind(behind, owner);
    }

    fn release_behind(&self, behind: Option<Behind>, owner: Option<LockOwner>) {
        match behind {
            Some(Behind::Upper(upper, handle)) => self.upper.release(upper, handle, owner),
            Some(Behind::Lower(lower, Some(handle))) => self.lower.release(lower, handle, owner),
            Some(Behind::Lower(_, None)) | None => {}
        }
    }
}
