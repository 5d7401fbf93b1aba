//! [`Change`]: how a tree differs from a cache's generation, and the merge of both.

use std::collections::HashMap;
use std::sync::Arc;

use inarch_block::Content;
use inarch_cache::{Cache, CacheError, Digest, Generation, Lists, NewPack, Next, Rules, Snapshot, has_bytes};
use inarch_kept::now;
use inarch_source::of_owner;
use inarch_tree::compare::{Difference, Lineage, MOST_PATHS, differences_but_deep};
use inarch_tree::layer::{Bytes, Facts, Holder, Identity, Layer, Lender, Origin, Part, Place, merge};
use inarch_tree::{FileType, InodeId, Tree};

/// A directory that the file system itself makes.
const LOST_AND_FOUND: &[u8] = b"lost+found";

/// What was added to a cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Published {
    /// The number of the new generation; `None` if nothing changed.
    pub generation: Option<u64>,
    /// How many files are new or changed.
    pub files: u64,
    /// How many of their bytes were not in the cache.
    pub bytes: u64,
    /// How many changes were dropped, because a newer generation has the path and the cache's rules keep its version.
    pub lost: u64,
}

/// A tree that is newer than a generation.
pub(crate) struct Newer<'a> {
    pub tree: &'a Arc<Tree>,
    pub content: &'a dyn Content,
    /// How it came from the generation.
    pub lineage: &'a (dyn Lineage + Sync),
    /// The generation's file that has the bytes of one of its files, if that is known without reading.
    pub same: &'a (dyn Fn(InodeId) -> Option<InodeId> + Sync),
    /// Where the bytes of one of its files are, if that is known without reading: the name of a pack (empty for the new one), and where they begin there.
    pub stored: &'a (dyn Fn(InodeId) -> Option<(String, u64, Digest)> + Sync),
    /// The chunks of its files.
    pub lists: Option<&'a Lists>,
    /// Whether a missing file was removed.
    pub removes: bool,
}

impl<'a> Newer<'a> {
    /// A tree that may lack files of the generation, and whose files have to be read.
    pub fn new(tree: &'a Arc<Tree>, content: &'a dyn Content, lineage: &'a (dyn Lineage + Sync)) -> Newer<'a> {
        Newer { tree, content, lineage, same: &|_| None, stored: &|_| None, lists: None, removes: false }
    }
}

/// Where the bytes of a file are: the name of a pack (empty for the new one), and where they begin there.
type At = (String, u64);

/// What a guest changed of a generation, as far as the rules take it.
pub(crate) struct Change<'a> {
    base: &'a Generation,
    lists: Lists,
    guest: Arc<Tree>,
    found: Vec<Difference>,
    /// For files of `guest`.
    places: HashMap<InodeId, At>,
    digests: HashMap<At, Digest>,
    /// The bytes of files that were not in the cache.
    new_bytes: u64,
}

impl<'a> Change<'a> {
    /// Compares a tree with the generation, and adds new bytes to `pack`.
    ///
    /// # Errors
    /// The files cannot be read, or the pack cannot be written.
    pub fn find(
        newer: &Newer<'_>,
        base: &'a Generation,
        rules: &Rules,
        mut pack: Option<&mut NewPack>,
    ) -> Result<Change<'a>, CacheError> {
        if let Some(pack) = &mut pack {
            pack.limit_zeros();
        }
        let guest = Arc::clone(newer.tree);
        let old = &base.tree;
        let (found, _) = differences_but_deep(old, &guest, newer.lineage, MOST_PATHS);
        let removes = newer.removes && rules.deletes();
        let found = taken(found, (old, &guest), rules, removes);
        let known = base.by_digest();
        let name = |pack: u32| base.body.packs.get(pack as usize).cloned().unwrap_or_default();
        let (mut places, mut digests, mut new_bytes) = (HashMap::new(), HashMap::new(), 0);
        let files = found.iter().filter_map(|difference| difference.new).filter(|new| has_bytes(&guest, *new));
        for new in files {
            if places.contains_key(&new) {
                continue;
            }
            let kept = (newer.same)(new).and_then(|old| base.files.get(old.index()).copied().flatten());
            if let Some((pack, at, digest)) = (newer.stored)(new).filter(|_| kept.is_none()) {
                let is_new = pack.is_empty();
                if digests.insert((pack.clone(), at), digest).is_none() && is_new {
                    new_bytes += guest.inode(new).size();
                }
                places.insert(new, (pack, at));
                continue;
            }
            let (stored, is_new) = match (kept, &mut pack) {
                (Some(stored), _) => (stored, false),
                (None, Some(pack)) => {
                    let file = (newer.content, new, guest.inode(new).size());
                    pack.add(file, |digest| known.get(digest).copied())?
                }
                (None, None) => return Err(CacheError::Disk("a file's bytes have no place".to_owned())),
            };
            let at = if is_new { (String::new(), stored.at) } else { (name(stored.pack), stored.at) };
            if digests.insert(at.clone(), stored.digest).is_none() && is_new {
                new_bytes += guest.inode(new).size();
            }
            places.insert(new, at);
        }
        Ok(Change { base, lists: newer.lists.cloned().unwrap_or_default(), guest, found, places, digests, new_bytes })
    }

    /// Whether nothing was changed.
    pub fn is_nothing(&self) -> bool {
        self.found.is_empty()
    }

    /// Publishes it. `owner`, if given, owns all files; `pack` has the new bytes.
    ///
    /// # Errors
    /// The store cannot be written: then the cache is as it was.
    pub fn publish(
        self,
        (store, base): (&Cache, &Snapshot),
        pack: NewPack,
        rules: &Rules,
        owner: Option<(u32, u32)>,
        made_by: &str,
    ) -> Result<Published, CacheError> {
        let mut published = Published { bytes: self.new_bytes, ..Published::default() };
        if self.found.is_empty() {
            return Ok(published);
        }
        pack.sync()?;
        let locked = store.lock()?;
        published.generation = locked.publish(pack, (made_by, now()), base, |current, new_pack| {
            let current = match owner {
                Some(owner) => &of_owner(current, owner)?,
                None => current,
            };
            self.merged(current, new_pack, rules, &mut published)
        })?;
        Ok(published)
    }

    /// What it makes of the current generation; `None` if that stays as it is.
    pub fn merged(
        mut self,
        current: &Generation,
        new_pack: &str,
        rules: &Rules,
        published: &mut Published,
    ) -> Result<Option<Next>, CacheError> {
        let base = self.base;
        if current.body.number != base.body.number && !rules.mixes() {
            published.lost = self.found.len() as u64;
            return Ok(None);
        }
        if current.body.number != base.body.number {
            let before = self.found.len();
            self.found.retain(|difference| {
                rules.last_wins(&difference.path) || !is_changed(&base.tree, &current.tree, difference)
            });
            published.lost = (before - self.found.len()) as u64;
            if self.found.is_empty() {
                return Ok(None);
            }
        }
        let is_file = |difference: &&Difference| {
            difference.new.is_some_and(|new| self.guest.inode(new).file_type() != FileType::Directory)
        };
        published.files = self.found.iter().filter(is_file).count() as u64;
        let drops = self.found.iter().any(|difference| difference.old.is_some());
        let mut facts = Places { guest: &self.guest, places: &self.places };
        let layer = Layer::new(&base.tree, &self.guest, &self.found, &mut facts)?;
        let merged = merge(&current.tree, &layer)?;
        let of_layer = |upper: InodeId| {
            let extent = layer.extents().of(upper).first()?;
            let Some(Place::File(_, name)) = layer.place(extent.backing) else { return None };
            // The new pack has no name before; a file name is never empty.
            let at = (if name == NEW { String::new() } else { name.to_owned() }, extent.at);
            let digest = *self.digests.get(&at)?;
            Some((if name == NEW { new_pack.to_owned() } else { at.0 }, at.1, digest))
        };
        let of_current = |lower: InodeId| {
            let stored = current.files.get(lower.index()).copied().flatten()?;
            Some((current.body.packs.get(stored.pack as usize)?.clone(), stored.at, stored.digest))
        };
        let mut files = Vec::with_capacity(merged.origins.len());
        for (at, origin) in merged.origins.iter().enumerate() {
            let file = match *origin {
                Origin::Upper(upper) => of_layer(upper),
                Origin::Lower(lower) => of_current(lower),
            };
            let id = InodeId(at as u32);
            if file.is_none() && has_bytes(&merged.tree, id) {
                return Err(CacheError::Disk("a file's bytes have no place".to_owned()));
            }
            files.push(file.filter(|_| has_bytes(&merged.tree, id)));
        }
        Ok(Some(Next { tree: Arc::new(merged.tree), files, lists: std::mem::take(&mut self.lists), drops }))
    }
}

/// The name by which a layer knows the new pack.
const NEW: &str = "new";

/// Where a layer finds the bytes of the guest's files.
struct Places<'a> {
    guest: &'a Tree,
    places: &'a HashMap<InodeId, At>,
}

impl Facts for Places<'_> {
    fn origin(&self, _new: InodeId) -> Option<Lender> {
        None
    }

    fn bytes(&mut self, new: InodeId) -> std::io::Result<Bytes> {
        let length = self.guest.inode(new).size();
        let part = self.places.get(&new).map(|(name, at)| {
            let name = if name.is_empty() { NEW.to_owned() } else { name.clone() };
            Part { offset: 0, length, at: *at, holder: Holder::File(name) }
        });
        Ok(Bytes::Parts(part.into_iter().collect()))
    }

    fn was(&self, _path: &[u8]) -> Option<Option<Identity>> {
        None
    }
}

/// Whether the current generation has something else at the path of a difference than the base had.
fn is_changed(base: &Tree, current: &Tree, difference: &Difference) -> bool {
    let now = current.lookup(&difference.path);
    match (difference.old, now) {
        (None, None) => false,
        (Some(old), Some(now)) => !Identity::of(base, old).is(current, now),
        // Several runs make the same directories.
        (None, Some(now)) => {
            let both = difference.new.is_some() && current.inode(now).file_type() == FileType::Directory;
            !both
        }
        (Some(_), None) => true,
    }
}

/// Of the differences those that the rules take.
fn taken(found: Vec<Difference>, (old, guest): (&Tree, &Tree), rules: &Rules, removes: bool) -> Vec<Difference> {
    let kind = |tree: &Tree, id: Option<InodeId>| id.map(|id| tree.inode(id).file_type());
    let mut above_out: Option<Vec<u8>> = None;
    let mut is_taken = |difference: &Difference| {
        let path = &difference.path;
        let is_below = |above: &Vec<u8>| path.starts_with(above) && path.get(above.len()) == Some(&b'/');
        if above_out.as_ref().is_some_and(is_below) {
            return false;
        }
        let (was, is) = (kind(old, difference.old), kind(guest, difference.new));
        if path.is_empty() || rules.leaves_out(path) {
            return false;
        }
        match (was, is) {
            (None, Some(FileType::Directory)) if path == LOST_AND_FOUND => {
                above_out = Some(path.clone());
                false
            }
            // Times of directories change with the names in them.
            (Some(FileType::Directory), Some(FileType::Directory)) => false,
            (_, Some(FileType::Regular | FileType::Directory | FileType::Symlink)) => {
                let aspects = difference.aspects;
                let only_time = was.is_some() && !aspects.beyond_attributes() && !aspects.inode && !aspects.mode;
                // A tool that removes files looks at their times.
                rules.deletes() || !only_time
            }
            // Sockets, FIFOs and devices.
            (_, Some(_)) => false,
            (_, None) => removes,
        }
    };
    found.into_iter().filter(&mut is_taken).collect()
}

#[cfg(test)]
mod tests;
