//! Bringing up what is to be changed: first the directories above it, then itself, whole and in one step.

use rustix::fs::copy_file_range;
use rustix::io::Errno;
use vm_memory::VolatileSlice;

use super::{Overlay, hold, is_own};
use crate::{Attributes, Context, HandleId, NewNode, NodeId, SetAttributes, SetTime, WriteKind};

/// Bytes of content that are copied at once.
const PIECE: usize = 1 << 20;

const ME: Context<'static> = Context::SERVER;

impl Overlay {
    /// The node of the upper layer behind `node`, brought up if it is not there yet; of a file's content the first
    /// `length` bytes.
    pub(super) fn bring_up(&self, node: NodeId, length: u64) -> Result<NodeId, Errno> {
        if let Some(upper) = self.layers(node)?.upper {
            return Ok(upper);
        }
        let _changing = hold(&self.changing);
        self.bring_up_held(node, length)
    }

    /// The same for who makes changes already.
    pub(super) fn bring_up_held(&self, node: NodeId, length: u64) -> Result<NodeId, Errno> {
        let layers = self.layers(node)?;
        if layers.upper.is_none() && !layers.is_directory && hold(&self.table).place(node).is_err() {
            return self.bring_nameless_up(node, length);
        }
        // From the first directory that is above down to the node.
        let mut chain = vec![node];
        while let Some(last) = chain.last().copied()
            && self.layers(last)?.upper.is_none()
        {
            chain.push(hold(&self.table).place(last)?.0);
        }
        let mut upper = chain.pop().map(|top| self.layers(top)).transpose()?.and_then(|layers| layers.upper);
        while let Some(next) = chain.pop() {
            upper = Some(self.bring_one_up(next, upper.ok_or(Errno::IO)?, length)?);
        }
        upper.ok_or(Errno::IO)
    }

    /// Brings up a node into its directory above.
    fn bring_one_up(&self, node: NodeId, parent: NodeId, length: u64) -> Result<NodeId, Errno> {
        let lower = self.layers(node)?.lower.ok_or(Errno::STALE)?;
        let name = hold(&self.table).place(node)?.1;
        let attributes = self.lower.attributes(&ME, lower, None)?;
        // Of whom it was it is from the start.
        let owner = Context { uid: attributes.uid, gid: attributes.gid, ..ME };
        let new = NewNode { mode: attributes.mode, umask: 0, device: attributes.device };
        let upper = match attributes.mode & libc::S_IFMT {
            libc::S_IFREG => return self.bring_file_up(node, lower, &attributes, (parent, Some(&name)), length),
            libc::S_IFDIR => self.upper.make_directory(&owner, parent, &name, &new)?.node,
            libc::S_IFLNK => {
                let target = self.lower.read_link(&ME, lower)?;
                self.upper.make_symlink(&owner, parent, &name, &target)?.node
            }
            _ => self.upper.make_node(&owner, parent, &name, &new)?.node,
        };
        self.copy_attributes(lower, upper, &attributes)?;
        self.settle(node, upper, None)
    }

    /// Brings up a file that is used after its name is gone; it goes when nobody knows it any more.
    fn bring_nameless_up(&self, node: NodeId, length: u64) -> Result<NodeId, Errno> {
        let lower = self.layers(node)?.lower.ok_or(Errno::STALE)?;
        let attributes = self.lower.attributes(&ME, lower, None)?;
        if attributes.mode & libc::S_IFMT != libc::S_IFREG {
            return Err(Errno::STALE);
        }
        // Its directory may be gone as well.
        self.bring_file_up(node, lower, &attributes, (NodeId::ROOT, None), length)
    }

    /// The node lies above from now on.
    fn settle(&self, node: NodeId, upper: NodeId, nameless: Option<HandleId>) -> Result<NodeId, Errno> {
        let settled = hold(&self.table).set_upper(node, upper, nameless);
        settled.inspect_err(|_| self.give_back_above(upper, nameless))?;
        Ok(upper)
    }

    fn bring_file_up(
        &self,
        node: NodeId,
        lower: NodeId,
        attributes: &Attributes,
        (directory, name): (NodeId, Option<&[u8]>),
        length: u64,
    ) -> Result<NodeId, Errno> {
        let owner = Context { uid: attributes.uid, gid: attributes.gid, ..ME };
        let new = NewNode { mode: libc::S_IFREG | 0o600, umask: 0, device: 0 };
        let (entry, opened) = self.upper.create_unnamed(&owner, directory, &new, libc::O_RDWR as u32)?;
        let upper = entry.node;
        let length = length.min(attributes.size);
        let copied = self
            .copy_content(lower, (upper, opened.handle), length)
            .and_then(|()| self.copy_attributes(lower, upper, attributes))
            .and_then(|()| name.map(|name| self.upper.link(&ME, upper, directory, name)).transpose());
        match copied {
            Ok(Some(named)) => {
                // The table has one lookup of it.
                self.upper.forget(named.node, 1);
                self.upper.release(upper, opened.handle, None);
                self.settle(node, upper, None)
            }
            Ok(None) => self.settle(node, upper, Some(opened.handle)),
            Err(errno) => {
                self.give_back_above(upper, Some(opened.handle));
                Err(errno)
            }
        }
    }

    fn copy_content(&self, lower: NodeId, target: (NodeId, HandleId), length: u64) -> Result<(), Errno> {
        let source = match self.lower.open(&ME, lower, libc::O_RDONLY as u32) {
            Ok(opened) => opened.handle,
            Err(Errno::NOSYS) => HandleId::default(),
            Err(errno) => return Err(errno),
        };
        let copied = self.copy_pieces((lower, source), target, length);
        if source != HandleId::default() {
            self.lower.release(lower, source, None);
        }
        copied
    }

    fn copy_pieces(&self, source: (NodeId, HandleId), target: (NodeId, HandleId), length: u64) -> Result<(), Errno> {
        if length == 0 {
            return Ok(());
        }
        if self.copy_by_host(source, target, length)? {
            return Ok(());
        }
        let mut buffer = vec![0; PIECE.min(usize::try_from(length).unwrap_or(PIECE))];
        let mut at = 0;
        while at < length {
            // Holes stay holes.
            at = match self.lower.seek(&ME, source.0, source.1, at, libc::SEEK_DATA as u32) {
                Ok(data) => data,
                Err(Errno::NXIO) => break,
                Err(_) => at,
            };
            let count = usize::try_from(length.saturating_sub(at)).unwrap_or(PIECE).min(buffer.len());
            let piece = buffer.get_mut(..count).unwrap_or_default();
            let count = self.lower.read(&ME, source.0, source.1, at, &[VolatileSlice::from(&mut *piece)])?;
            if count == 0 {
                break;
            }
            let piece = piece.get_mut(..count).unwrap_or_default();
            let slices = [VolatileSlice::from(piece)];
            if self.upper.write(&ME, target.0, target.1, at, &slices, WriteKind::default())? < count {
                return Err(Errno::NOSPC);
            }
            at += count as u64;
        }
        // A hole at the end.
        let set = SetAttributes { size: Some(length), ..SetAttributes::default() };
        self.upper.set_attributes(&ME, target.0, Some(target.1), &set).map(drop)
    }

    /// Has the host's kernel copy, or share, the content, if it has the files of both layers; false if it cannot. Holes stay
    /// holes.
    fn copy_by_host(&self, source: (NodeId, HandleId), target: (NodeId, HandleId), length: u64) -> Result<bool, Errno> {
        let (Some(from), Some(to)) =
            (self.lower.host_file(source.0, source.1), self.upper.host_file(target.0, target.1))
        else {
            return Ok(false);
        };
        let mut at = 0;
        while at < length {
            let data = match self.lower.seek(&ME, source.0, source.1, at, libc::SEEK_DATA as u32) {
                Ok(data) => data,
                Err(Errno::NXIO) => break,
                Err(_) => at,
            };
            let hole = self.lower.seek(&ME, source.0, source.1, data, libc::SEEK_HOLE as u32).unwrap_or(length);
            let (mut read_at, mut write_at) = (data, data);
            let count = usize::try_from(hole.min(length).saturating_sub(data)).unwrap_or(PIECE);
            match copy_file_range(&*from, Some(&mut read_at), &*to, Some(&mut write_at), count) {
                // It became shorter meanwhile.
                Ok(0) => break,
                Ok(copied) => at = data + copied as u64,
                Err(Errno::XDEV | Errno::INVAL | Errno::OPNOTSUPP | Errno::NOSYS | Errno::BADF) => return Ok(false),
                Err(errno) => return Err(errno),
            }
        }
        // A hole at the end.
        let set = SetAttributes { size: Some(length), ..SetAttributes::default() };
        self.upper.set_attributes(&ME, target.0, Some(target.1), &set).map(|_| true)
    }

    /// Gives what was made above the other attributes of what is below; its times last.
    fn copy_attributes(&self, lower: NodeId, upper: NodeId, attributes: &Attributes) -> Result<(), Errno> {
        let names = match self.lower.list_xattrs(&ME, lower) {
            Ok(names) => names,
            Err(Errno::NOSYS | Errno::OPNOTSUPP) => Vec::new(),
            Err(errno) => return Err(errno),
        };
        for name in names.split(|byte| *byte == 0).filter(|name| !name.is_empty() && !is_own(name)) {
            let value = self.lower.get_xattr(&ME, lower, name)?;
            match self.upper.set_xattr(&ME, upper, name, &value, 0, false) {
                // What may not be kept there, a user's overlay does without.
                Err(Errno::OPNOTSUPP | Errno::PERM) => {}
                result => result?,
            }
        }
        let is_link = attributes.mode & libc::S_IFMT == libc::S_IFLNK;
        let set = SetAttributes {
            mode: (!is_link).then_some(attributes.mode & 0o7777),
            atime: Some(SetTime::To(attributes.atime)),
            mtime: Some(SetTime::To(attributes.mtime)),
            ..SetAttributes::default()
        };
        self.upper.set_attributes(&ME, upper, None, &set).map(drop)
    }
}
