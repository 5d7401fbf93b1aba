//! Copies a generation of one cache as the first of another: a branch's cache begins with the default branch's.
//!
//! Each file's bytes are read and compared with their digest on the way, and nothing is shared: what is removed from one cache afterwards stays in the other.

use std::sync::Arc;

use super::CacheError;
use super::chunks::Lists;
use super::generation::Generation;
use super::store::{Cache, Next, Snapshot};
use super::stored::Digest;

impl Cache {
    /// Makes a copy of another cache's generation the first one of this cache. Returns false if there is one already.
    pub fn begin_with(&self, other: &Snapshot, (made_by, time): (&str, u64)) -> Result<bool, CacheError> {
        if !self.is_new()? {
            return Ok(false);
        }
        let Generation { tree, files: stored, .. } = &other.generation;
        let (content, mut pack) = (other.content(), self.new_pack()?);
        let mut files = Vec::with_capacity(stored.len());
        for (id, inode) in tree.inodes() {
            let Some(stored) = stored.get(id.index()).copied().flatten() else {
                files.push(None);
                continue;
            };
            let (copied, _) = pack.add((&*content, id, inode.size()), |_| None)?;
            if copied.digest != stored.digest {
                let path = String::from_utf8_lossy(&tree.path(id)).into_owned();
                return Err(CacheError::Disk(format!("{path} of the default branch's cache is damaged")));
            }
            files.push(Some((copied.at, copied.digest)));
        }
        pack.sync()?;
        let published = self.lock()?.publish(pack, (made_by, time), &Snapshot::empty()?, |current, name| {
            let place = |file: Option<(u64, Digest)>| file.map(|(at, digest)| (name.to_owned(), at, digest));
            let next = || Next {
                tree: Arc::clone(tree),
                files: files.into_iter().map(place).collect(),
                lists: Lists::new(),
                drops: false,
            };
            Ok((current.body.number == 0).then(next))
        })?;
        Ok(published.is_some())
    }
}
