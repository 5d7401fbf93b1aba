//! Files that are open, each in the layer that it was opened in.

use rustix::io::Errno;

use super::table::Layers;
use super::{Overlay, hold};
use crate::slab::Slab;
use crate::{Caching, Changes, Context, Entry, FileSystem, HandleId, LockOwner, NewNode, NodeId, Opened, check_name};

/// Files that may be open at a time.
const MOST_OPEN: usize = 1 << 20;

/// Something that is open: a node of a layer, and that layer's handle of it.
#[derive(Clone, Copy, Debug)]
enum Behind {
    Upper(NodeId, HandleId),
    /// For reading only. Without a handle where that layer needs none.
    Lower(NodeId, Option<HandleId>),
}

/// All that is open.
#[derive(Debug, Default)]
pub(super) struct OpenFiles {
    files: Slab<(NodeId, Behind)>,
}

impl OpenFiles {
    fn place(&self, node: NodeId, handle: HandleId) -> Result<u32, Errno> {
        let place = self.files.place(handle.0).ok_or(Errno::BADF)?;
        self.files.get(place).filter(|file| file.0 == node).map(|_| place).ok_or(Errno::BADF)
    }

    fn get(&self, node: NodeId, handle: HandleId) -> Result<Behind, Errno> {
        self.files.get(self.place(node, handle)?).map(|file| file.1).ok_or(Errno::BADF)
    }
}

impl Overlay {
    fn insert(&self, node: NodeId, behind: Behind, opened: Opened) -> Result<Opened, Errno> {
        let caching = match opened.caching {
            Caching::Keep if self.changes == Changes::Host => Caching::Fresh,
            caching => caching,
        };
        if !self.opens_files {
            return Ok(Opened { handle: HandleId::default(), caching, ..opened });
        }
        let mut open = hold(&self.open);
        let place = if open.files.len() < MOST_OPEN { open.files.insert((node, behind)) } else { None };
        let Some(place) = place else {
            drop(open);
            self.release_behind(Some(behind), None);
            return Err(Errno::NFILE);
        };
        Ok(Opened { handle: HandleId(open.files.number(place)), caching, ..opened })
    }

    pub(super) fn open_file(&self, context: &Context<'_>, node: NodeId, flags: u32) -> Result<Opened, Errno> {
        let writes = flags & libc::O_ACCMODE as u32 != libc::O_RDONLY as u32;
        let truncates = flags & libc::O_TRUNC as u32 != 0;
        if writes || truncates {
            // What is no file is refused before anything is copied.
            let kind = self.attributes(context, node, None)?.mode & libc::S_IFMT;
            if kind != libc::S_IFREG {
                return Err(if kind == libc::S_IFDIR { Errno::ISDIR } else { Errno::NXIO });
            }
            self.bring_up(node, if truncates { 0 } else { u64::MAX })?;
        }
        let layers = self.layers(node)?;
        let (behind, opened) = match (layers.upper, layers.lower) {
            (Some(upper), _) => {
                let opened = self.upper.open(context, upper, flags)?;
                (Behind::Upper(upper, opened.handle), opened)
            }
            (None, Some(lower)) => match self.lower.open(context, lower, flags) {
                Ok(opened) => (Behind::Lower(lower, Some(opened.handle)), opened),
                Err(Errno::NOSYS) => {
                    (Behind::Lower(lower, None), Opened { caching: Caching::Keep, ..Opened::default() })
                }
                Err(errno) => return Err(errno),
            },
            (None, None) => return Err(Errno::STALE),
        };
        self.insert(node, behind, opened)
    }

    pub(super) fn create_file(
        &self,
        context: &Context<'_>,
        parent: NodeId,
        name: &[u8],
        new: &NewNode,
        flags: u32,
    ) -> Result<(Entry, Opened), Errno> {
        check_name(name)?;
        let _changing = hold(&self.changing);
        let upper = self.room_for(context, parent, name)?;
        let (made, opened) = self.upper.create(context, upper, name, new, flags)?;
        self.changed(parent);
        let entry = self.enter_made(Some((parent, name)), made)?;
        Ok((entry, self.insert(entry.node, Behind::Upper(made.node, opened.handle), opened)?))
    }

    pub(super) fn create_nameless_file(
        &self,
        context: &Context<'_>,
        parent: NodeId,
        new: &NewNode,
        flags: u32,
    ) -> Result<(Entry, Opened), Errno> {
        let upper = self.bring_up(parent, 0)?;
        let (made, opened) = self.upper.create_unnamed(context, upper, new, flags)?;
        let entry = self.enter_made(None, made)?;
        Ok((entry, self.insert(entry.node, Behind::Upper(made.node, opened.handle), opened)?))
    }

    /// Layer, node and handle to read from. A file that was brought up since it was opened is read above.
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
        let new = self.upper.open(context, upper, libc::O_RDONLY as u32)?.handle;
        // Another thread may have been as fast; its handle is the one that counts.
        let (mine, unused) = {
            let mut open = hold(&self.open);
            let place = open.place(node, handle)?;
            let file = open.files.get_mut(place).ok_or(Errno::BADF)?;
            match file.1 {
                Behind::Upper(_, theirs) => (theirs, Some(Behind::Upper(upper, new))),
                old => {
                    file.1 = Behind::Upper(upper, new);
                    (new, Some(old))
                }
            }
        };
        self.release_behind(unused, None);
        Ok((&*self.upper, upper, mine))
    }

    /// What is open, or, where files need not be opened, what lies behind the node now.
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

    /// Node and handle above, to be written to. What need not be opened is brought up for that.
    pub(super) fn writable(&self, node: NodeId, handle: HandleId) -> Result<(NodeId, HandleId), Errno> {
        match self.behind(node, handle)? {
            Behind::Lower(..) if !self.opens_files => Ok((self.bring_up(node, u64::MAX)?, HandleId::default())),
            Behind::Upper(upper, handle) => Ok((upper, handle)),
            Behind::Lower(..) => Err(Errno::BADF),
        }
    }

    /// Node and handle above, if it is there.
    pub(super) fn above(&self, node: NodeId, handle: HandleId) -> Result<(NodeId, HandleId), Errno> {
        match self.behind(node, handle)? {
            Behind::Upper(upper, handle) => Ok((upper, handle)),
            Behind::Lower(..) => Err(Errno::BADF),
        }
    }

    pub(super) fn close_file(&self, node: NodeId, handle: HandleId, owner: Option<LockOwner>) {
        let mut open = hold(&self.open);
        let Ok(place) = open.place(node, handle) else { return };
        let file = open.files.remove(place);
        drop(open);
        self.release_behind(file.map(|(_, behind)| behind), owner);
    }

    fn release_behind(&self, behind: Option<Behind>, owner: Option<LockOwner>) {
        match behind {
            Some(Behind::Upper(upper, handle)) => self.upper.release(upper, handle, owner),
            Some(Behind::Lower(lower, Some(handle))) => self.lower.release(lower, handle, owner),
            Some(Behind::Lower(_, None)) | None => {}
        }
    }
}
