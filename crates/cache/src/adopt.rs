//! [`adopt`]: makes the current generation of a remote the current one here. Names and digests come at once, the bytes of files when they are read.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use inarch_tree::InodeId;
use inarch_tree::select::without;

use super::CacheError;
use super::error::Damage;
use super::far::{Far, Head};
use super::generation::Generation;
use super::pack_chunks::Chunks;
use super::store::{Cache, Next, Snapshot};
use super::stored::{Digest, Stored, is_remote_name};
use super::synced::Synced;

/// What became of a remote's generation.
pub enum Adopted {
    /// There is none, or it is here already.
    Nothing,
    /// It is the generation with this number here.
    Copy(u64),
    /// This cache has a publication of its own.
    Differs {
        /// What the remote says of its current generation.
        head: Head,
        /// That generation.
        there: Box<Generation>,
        /// The generation here that both sides went on from.
        base: Box<Snapshot>,
    },
}

/// Makes a remote's current generation the current one here, unless something was published here since the last sync. With `is_copy`,
/// always: this is only a copy of the remote.
pub fn adopt(cache: &Cache, far: &Far, is_copy: bool) -> Result<Adopted, CacheError> {
    let Some(current) = far.current()? else { return Ok(Adopted::Nothing) };
    let base = cache.snapshot()?;
    let number = base.generation.body.number;
    let synced = Synced::load(cache.dir(), far.location()).filter(|_| number > 0);
    if synced.as_ref().is_some_and(|synced| synced.there == current.head.generation) {
        return Ok(Adopted::Nothing);
    }
    let there = far.generation(&current.head)?;
    if !is_copy && number > 0 && synced.is_none_or(|synced| synced.here != Some(number)) {
        return Ok(Adopted::Differs { head: current.head, there: Box::new(there), base: Box::new(base) });
    }
    let time = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
    let published = cache.lock()?.publish(cache.new_pack()?, (&there.body.made_by, time), &base, |now, _| {
        if now.body.number != number {
            return Ok(None);
        }
        make_packs(cache, &there)?;
        let (files, lists) = (places(now, &there), (*there.lists).clone());
        Ok(Some(Next { tree: Arc::clone(&there.tree), files, lists, drops: true }))
    })?;
    // Otherwise another process has published meanwhile: most likely the same.
    let Some(number) = published else { return Ok(Adopted::Nothing) };
    let location = far.location().to_string();
    Synced { location, there: current.head.generation, here: Some(number) }.store(cache.dir())?;
    Ok(Adopted::Copy(number))
}

/// Where the files of a remote's generation are: those whose bytes this machine has published itself stay in its own packs. The remote may have lost
/// them, or be out of reach.
fn places(now: &Generation, there: &Generation) -> Vec<Option<(String, u64, Digest)>> {
    let own = |(id, stored): (InodeId, Stored)| {
        let name = now.body.packs.get(stored.pack as usize).filter(|name| !is_remote_name(name))?;
        // The size, too: a remote may say what it likes of a file with this digest.
        Some(((stored.digest, now.tree.inode(id).size()), (name, stored.at)))
    };
    let stored = |generation: &Generation, id: InodeId| generation.files.get(id.index()).copied().flatten();
    let all = now.tree.inodes().filter_map(|(id, _)| Some((id, stored(now, id)?)));
    let own: HashMap<(Digest, u64), (&String, u64)> = all.filter_map(own).collect();
    let mut places = there.places();
    for ((_, inode), place) in there.tree.inodes().zip(&mut places) {
        if let Some((name, at, digest)) = place
            && let Some((own, own_at)) = own.get(&(*digest, inode.size()))
        {
            (*name, *at) = ((*own).clone(), *own_at);
        }
    }
    places
}

/// Makes the files of a remote's packs. The cache is locked, so that a concurrent sweep does not remove them as unused.
pub fn make_packs(cache: &Cache, there: &Generation) -> Result<(), CacheError> {
    for (name, number) in there.body.packs.iter().zip(0..) {
        let chunks = Chunks::of(there, number).map_err(|damage: Damage| CacheError::Disk(damage.to_string()))?;
        cache.make_lazy_pack(name, chunks.end())?;
    }
    Ok(())
}

/// A generation without the files whose bytes are only at a remote, and how many those are.
pub fn without_absent(cache: &Cache, generation: &Generation) -> Result<(Generation, u64), CacheError> {
    let is_absent =
        |(id, stored): &(InodeId, Stored)| !cache.has(generation, stored, generation.tree.inode(*id).size());
    let absent: BTreeSet<InodeId> = generation.remote_files().filter(is_absent).map(|(id, _)| id).collect();
    if absent.is_empty() {
        return Ok((generation.clone(), 0));
    }
    let selected = without(&generation.tree, &|id| absent.contains(&id))?;
    let files = selected.origins.iter().map(|id| generation.files.get(id.index()).copied().flatten()).collect();
    Ok((Generation { tree: Arc::new(selected.tree), files, ..generation.clone() }, absent.len() as u64))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use inarch_block::{BackedFiles, read_content};
    use inarch_remote::Location;
    use inarch_tree::{Attributes, Builder};

    use super::*;
    use crate::{Body, CachePlace, Lists, Scope};

    const PACK: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

    /// A generation of one file, that lies in the pack from `at`.
    fn generation(number: u64, at: u64, content: &[u8]) -> Generation {
        let directory = Attributes { mode: 0o040_755, ..Attributes::default() };
        let mut builder = Builder::new(&directory).unwrap();
        let file = Attributes { mode: 0o100_644, size: content.len() as u64, ..Attributes::default() };
        builder.list(InodeId::ROOT).unwrap();
        builder.add(b"file", &file).unwrap();
        let tree = Arc::new(builder.finish().unwrap());
        let digest = Digest(*blake3::hash(content).as_bytes());
        let stored = |id| super::super::has_bytes(&tree, id).then_some(Stored { pack: 0, at, digest });
        let files = tree.inodes().map(|(id, _)| stored(id)).collect();
        let body = Body { number, packs: vec![PACK.to_owned()], ..Body::default() };
        Generation { body, tree: Arc::clone(&tree), files, lists: Arc::new(Lists::new()) }
    }

    fn read(snapshot: &Snapshot) -> Vec<u8> {
        let tree = &snapshot.generation.tree;
        let (id, inode) = tree.inodes().find(|(id, _)| super::super::has_bytes(tree, *id)).unwrap();
        let mut bytes = vec![0; inode.size() as usize];
        read_content(&*snapshot.content(), id, 0, &mut bytes).unwrap();
        bytes
    }

    /// Of a remote that is not to be trusted: the packs that a generation names are those of another one.
    #[test]
    fn a_pack_with_other_bytes_than_before_changes_nothing() {
        let home = tempfile::tempdir().unwrap();
        let location = |name: &str| Location::parse(&format!("file://{}", home.path().join(name).display())).unwrap();
        let put = |name: &str, generation: &Generation, at: u64, content: &[u8]| {
            let _ = fs::remove_dir_all(home.path().join(name));
            let far = Far::start(location(name), name.to_owned(), true).unwrap();
            let mut pieces = Some([&vec![0; at as usize], content].concat());
            far.put_pack(PACK, || Ok(pieces.take())).unwrap();
            far.publish(generation, None).unwrap().unwrap();
            Arc::new(far)
        };
        let cache = |far: &Arc<Far>| {
            let place = CachePlace::new(&home.path().join("caches"), Scope::User, "own").unwrap();
            Cache::make(&place).unwrap().with_far(Some(Arc::clone(far)))
        };
        let far = put("there", &generation(1, 4096, b"first"), 4096, b"first");
        assert!(matches!(adopt(&cache(&far), &far, true).unwrap(), Adopted::Copy(1)));
        let snapshot = cache(&far).snapshot().unwrap();
        assert_eq!(read(&snapshot), b"first");
        // The same place, a place in between, and more than there was: all of them hold bytes of the first one.
        for (at, content) in [(4096, "other"), (4098, "other"), (4096, "first, and more")] {
            let hostile = put("there", &generation(2, at, content.as_bytes()), at, content.as_bytes());
            let refused = adopt(&cache(&hostile), &hostile, true).err().unwrap();
            assert!(matches!(&refused, CacheError::Conflict { pack, .. } if pack == PACK), "{refused}");
            assert_eq!(read(&cache(&far).snapshot().unwrap()), b"first");
        }
        assert_eq!(read(&snapshot), b"first");
        // Other files of the pack, and the same one, are no conflict.
        let far = put("there", &generation(2, 8192, b"second"), 8192, b"second");
        assert!(matches!(adopt(&cache(&far), &far, true).unwrap(), Adopted::Copy(2)));
        assert_eq!(read(&cache(&far).snapshot().unwrap()), b"second");
        assert_eq!(read(&snapshot), b"first");
        // Without readers, the remote's new generation replaces all old ones.
        drop(snapshot);
        let far = put("there", &generation(3, 4096, b"third"), 4096, b"third");
        assert!(matches!(adopt(&cache(&far), &far, true).unwrap(), Adopted::Copy(3)));
        assert_eq!(read(&cache(&far).snapshot().unwrap()), b"third");
        assert_eq!(fs::read_dir(cache(&far).dir().join("generations")).unwrap().count(), 1);
    }

    /// Of a remote that has lost the bytes which this machine sent there.
    #[test]
    fn what_this_machine_has_itself_stays_here() {
        let home = tempfile::tempdir().unwrap();
        let location = Location::parse(&format!("file://{}", home.path().join("there").display())).unwrap();
        let far = Arc::new(Far::start(location, "there".to_owned(), true).unwrap());
        let place = CachePlace::new(&home.path().join("caches"), Scope::User, "own").unwrap();
        let cache = Cache::make(&place).unwrap().with_far(Some(Arc::clone(&far)));
        let there = generation(1, 4096, b"content");
        let base = Snapshot::empty().unwrap();
        let mut pack = cache.new_pack().unwrap();
        let content = BackedFiles::new(Arc::clone(&there.tree), there.extents(), vec![memory(4096, b"content")]);
        let (id, inode) = there.tree.inodes().find(|(id, _)| super::super::has_bytes(&there.tree, *id)).unwrap();
        let (stored, _) = pack.add((&content, id, inode.size()), |_| None).unwrap();
        pack.sync().unwrap();
        let own = |_: &Generation, name: &str| {
            let place = |of: &Option<Stored>| of.map(|_| (name.to_owned(), stored.at, stored.digest));
            let files = there.files.iter().map(place).collect();
            Ok(Some(Next { tree: Arc::clone(&there.tree), files, lists: Lists::new(), drops: false }))
        };
        cache.lock().unwrap().publish(pack, ("a test", 0), &base, own).unwrap().unwrap();
        far.publish(&there, None).unwrap().unwrap();
        assert!(matches!(adopt(&cache, &far, true).unwrap(), Adopted::Copy(2)));
        assert_eq!(read(&cache.snapshot().unwrap()), b"content");
    }

    fn memory(at: usize, content: &[u8]) -> Arc<dyn inarch_block::Backing> {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), [&vec![0; at], content].concat()).unwrap();
        let path = file.path().to_owned();
        Arc::new(inarch_block::BackingFile::new(file.into_file(), path).unwrap())
    }
}
