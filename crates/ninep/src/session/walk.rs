//! `Tattach`, `Twalk`, `Tclunk`: makes and removes fids.

use std::sync::Arc;

use inarch_vfs::{Attributes, Context, NodeId, check_name};
use rustix::io::Errno;

use super::access::{self, EXECUTE};
use super::fids::Fid;
use super::place::Place;
use super::usage::Use;
use super::{Call, Session, attributes};
use crate::wire::{MAX_NAMES, NO_UID, Qid, Reply};

/// The user and group of a client that names none: nobody (`/proc/sys/kernel/overflowuid`).
pub(super) const NOBODY: u32 = 65534;

/// The group of a caller whose user alone is known, for new files that do not inherit their directory's group.
pub(super) fn group_of(uid: u32) -> u32 {
    if uid == 0 { 0 } else { NOBODY }
}

impl Session<'_> {
    /// `Tattach`: there is one tree, named with an empty string or `/`.
    pub(super) fn attach(&self, call: &Call<'_>, fid: u32, aname: &[u8], uid: u32) -> Result<Reply<'static>, Errno> {
        if !matches!(aname, b"" | b"/") {
            return Err(Errno::NOENT);
        }
        self.export.check_room()?;
        let uid = if uid == NO_UID { NOBODY } else { uid };
        let root =
            call.context(uid, group_of(uid), |context| self.file_system().attributes(context, NodeId::ROOT, None))?;
        let place = Place::new(&self.export, NodeId::ROOT, root.mode, None, b"");
        self.fids.insert(fid, Fid::new(place, uid))?;
        Ok(Reply::Attach { qid: attributes::qid(&root) })
    }

    /// `Twalk`: resolves as many names as exist; makes the new fid only if all do.
    pub(super) fn walk(
        &self,
        call: &Call<'_>,
        fid: u32,
        new_fid: u32,
        names: &[&[u8]],
    ) -> Result<Reply<'static>, Errno> {
        let from = self.fids.get(fid)?;
        if is_xattr(&from) || (new_fid != fid && self.fids.contains(new_fid)) {
            return Err(Errno::BADF);
        }
        self.export.check_room()?;
        let mut qids = [Qid::default(); MAX_NAMES];
        let mut place = Arc::clone(&from.place);
        let mut known = None;
        let walked = call.context(from.uid, group_of(from.uid), |context| {
            for (step, (name, qid)) in names.iter().zip(&mut qids).enumerate() {
                match self.step(context, &place, known.as_ref(), name) {
                    Ok((next, attributes)) => {
                        *qid = attributes::qid(&attributes);
                        (place, known) = (next, Some(attributes));
                    }
                    Err(errno) if step == 0 => return Err(errno),
                    Err(_) => return Ok(step),
                }
            }
            Ok(names.len())
        })?;
        if walked == names.len() {
            let new = Fid::new(place, from.uid);
            match (new_fid == fid, names.is_empty()) {
                (true, true) => {}
                (true, false) => self.fids.replace(fid, &from, new)?,
                (false, _) => self.fids.insert(new_fid, new)?,
            }
        }
        Ok(Reply::Walk { qids, count: walked })
    }

    /// Resolves one name; `known` are the attributes of the starting node, if they were just read.
    fn step(
        &self,
        context: &Context<'_>,
        from: &Arc<Place>,
        known: Option<&Attributes>,
        name: &[u8],
    ) -> Result<(Arc<Place>, Attributes), Errno> {
        // Listings contain both, so clients may ask for both; a file system knows neither name.
        if !matches!(name, b"." | b"..") {
            check_name(name)?;
        }
        if !from.is_directory() {
            return Err(Errno::NOTDIR);
        }
        if context.uid != 0 {
            let directory = match known {
                Some(attributes) => *attributes,
                None => self.file_system().attributes(context, from.node, None)?,
            };
            access::check(context.uid, &directory, EXECUTE)?;
        }
        if name == b".." {
            return self.step_up(context, from);
        }
        if name == b"." {
            let attributes = match known {
                Some(attributes) => *attributes,
                None => self.file_system().attributes(context, from.node, None)?,
            };
            return Ok((Arc::clone(from), attributes));
        }
        let entry = self.file_system().lookup(context, from.node, name)?;
        let place = Place::new(&self.export, entry.node, entry.attributes.mode, Some(from), name);
        Ok((place, entry.attributes))
    }

    /// Resolves `..`; the root's parent is the root.
    fn step_up(&self, context: &Context<'_>, from: &Arc<Place>) -> Result<(Arc<Place>, Attributes), Errno> {
        if from.node == NodeId::ROOT {
            return Ok((Arc::clone(from), self.file_system().attributes(context, NodeId::ROOT, None)?));
        }
        let entry = self.file_system().parent(context, from.node)?;
        let above = Place::new(&self.export, entry.node, entry.attributes.mode, None, b"");
        // If the way here is still the way back, the parent's own name is known as well.
        let place = match &from.parent {
            Some(parent) if parent.node == entry.node => Arc::clone(parent),
            _ => above,
        };
        Ok((place, entry.attributes))
    }

    /// `Tclunk`: the fid ends, whatever the reply is.
    pub(super) fn clunk(&self, call: &Call<'_>, fid: u32) -> Result<Reply<'static>, Errno> {
        let fid = self.fids.remove(fid)?;
        let closed = match fid.usage.as_deref() {
            Some(Use::File(file)) => {
                file.unlock_all();
                if file.writable { self.flush_file(call, &fid, file) } else { Ok(()) }
            }
            Some(Use::NewValue(value)) => self.set_value(call, &fid, value),
            _ => Ok(()),
        };
        closed.map(|()| Reply::Clunk)
    }
}

/// Whether the fid refers to an extended attribute.
pub(super) fn is_xattr(fid: &Fid) -> bool {
    matches!(fid.usage.as_deref(), Some(Use::Value(_) | Use::NewValue(_)))
}
