//! [`push`]: takes the current generation of a cache to a remote.
//!
//! 1. The remote's current generation is read. Files whose digests it has are not sent again.
//! 2. The others go into one new pack, whose name follows from their digests. Their bytes are checked while they are read.
//! 3. If both were the same the last time, the remote gets this generation as it is. Otherwise this one is merged over the remote's.
//! 4. The new generation is put, and then the head, if it is still the one that was read. If not, all begins again, with the pack that is there already.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use inarch_block::{BLOCK_SIZE, Content, read_content};
use inarch_cache::{
    Body, CHUNK, Cache, CacheError, Digest, Far, Generation, Lists, MOST_PACKS, Next, Rules, Synced, empty, has_bytes,
    of_part, with_names,
};
use inarch_confine::Parse;
use inarch_kept::now;
use inarch_source::of_owner;
use inarch_tree::{InodeId, Tree};

use super::pull::ByDigest;
use super::{Change, Newer, Published};

/// How often a push begins again because another machine has pushed.
const ATTEMPTS: u32 = 10;
const BLOCK: u64 = BLOCK_SIZE as u64;

/// What was pushed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pushed {
    /// The number of the new generation there; `None` if the remote had all.
    pub generation: Option<u64>,
    /// How many different files were sent.
    pub files: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// A tree with the digests of its files.
pub(crate) struct Local<'a> {
    pub tree: &'a Arc<Tree>,
    pub content: &'a dyn Content,
    /// For each inode.
    pub digests: Vec<Option<Digest>>,
    /// Whether the content comes from an image or an archive, whose bytes are not trusted: then a thread that is confined to parsing reads it.
    pub is_foreign: bool,
}

impl Local<'_> {
    /// Whether a generation has the same names, attributes and bytes.
    fn is_the_same(&self, there: &Generation) -> bool {
        let digests = there.files.iter().map(|stored| stored.map(|stored| stored.digest));
        digests.eq(self.digests.iter().copied()) && there.tree.store() == self.tree.store()
    }
}

/// Pushes the current generation of a cache.
pub(crate) fn push(cache: &Cache, far: &Far) -> Result<Pushed, CacheError> {
    far.must_take()?;
    let snapshot = cache.snapshot()?;
    let (here, number) = (&snapshot.generation, snapshot.generation.body.number);
    if number == 0 {
        return Ok(Pushed::default());
    }
    let content = snapshot.content();
    let digests = here.files.iter().map(|stored| stored.map(|stored| stored.digest)).collect();
    let local = Local { tree: &here.tree, content: &*content, digests, is_foreign: false };
    let rules = Rules::of(&cache.place().name);
    let mut sent = Sent::default();
    for attempt in 0..ATTEMPTS {
        let current = far.current()?;
        let synced = Synced::load(cache.dir(), far.location());
        let is_same = |synced: &Synced| current.as_ref().is_some_and(|current| current.head.generation == synced.there);
        if synced.as_ref().is_some_and(|synced| is_same(synced) && synced.here == Some(number)) {
            return Ok(Pushed::default());
        }
        let there = current.as_ref().map_or_else(empty, |current| far.generation(&current.head))?;
        // Where this machine lacks some of what is there, nothing is noted, and the next pull brings it.
        let has_all = current.is_none() || synced.as_ref().is_some_and(is_same);
        let is_exact = has_all && (current.is_none() || synced.as_ref().is_some_and(|synced| synced.here.is_some()));
        let at = sent.send(&local, &there, far)?;
        let next = if is_exact { at.all(&local)? } else { at.merged(here, &there, &rules)? };
        let Some(next) = next else { return Ok(Pushed::default()) };
        let body =
            Body { number: there.body.number + 1, time: now(), made_by: here.body.made_by.clone(), packs: Vec::new() };
        let generation = with_names(body, next, &there.lists);
        let Some(head) = far.publish(&generation, current.as_ref())? else {
            std::thread::sleep(Duration::from_millis(50 << attempt.min(5)));
            continue;
        };
        if has_all {
            let location = far.location().to_string();
            let synced = Synced { location, there: head.generation, here: is_exact.then_some(number) };
            synced.store(cache.dir())?;
        }
        return Ok(Pushed { generation: Some(head.number), ..sent.pushed });
    }
    Err(CacheError::Contended(far.location().to_string()))
}

/// Pushes a tree, which replaces the one that is there. If that is the same, it stays.
pub(crate) fn push_tree(local: &Local<'_>, far: &Far, made_by: &str) -> Result<Pushed, CacheError> {
    far.must_take()?;
    let mut sent = Sent::default();
    for attempt in 0..ATTEMPTS {
        let current = far.current()?;
        let there = current.as_ref().map_or_else(empty, |current| far.generation(&current.head))?;
        if current.is_some() && local.is_the_same(&there) {
            return Ok(Pushed::default());
        }
        let at = sent.send(local, &there, far)?;
        let Some(next) = at.all(local)? else { return Ok(Pushed::default()) };
        let body = Body { number: there.body.number + 1, time: now(), made_by: made_by.to_owned(), packs: Vec::new() };
        let generation = with_names(body, next, &there.lists);
        if let Some(head) = far.publish(&generation, current.as_ref())? {
            return Ok(Pushed { generation: Some(head.number), ..sent.pushed });
        }
        std::thread::sleep(Duration::from_millis(50 << attempt.min(5)));
    }
    Err(CacheError::Contended(far.location().to_string()))
}

/// What one push has sent so far.
#[derive(Default)]
struct Sent {
    pushed: Pushed,
    /// The packs that were put, each with the chunks of its files.
    packs: HashMap<String, Lists>,
}

/// Where the files of a tree are at a remote.
struct At {
    places: HashMap<Digest, (String, u64)>,
    lists: Lists,
    /// The packs of its generation that it lacks.
    missing: HashSet<String>,
}

impl Sent {
    /// Sends what the remote lacks.
    fn send(&mut self, local: &Local<'_>, there: &Generation, far: &Far) -> Result<At, CacheError> {
        let mut places: HashMap<Digest, (String, u64)> = HashMap::new();
        let many = there.body.packs.len() >= MOST_PACKS / 2;
        let mut keeps = if many { largest(there) } else { vec![true; there.body.packs.len()] };
        let missing = missing(there, far)?;
        for (name, keep) in there.body.packs.iter().zip(&mut keeps) {
            *keep &= !missing.contains(name);
        }
        for stored in there.files.iter().flatten().filter(|stored| keeps.get(stored.pack as usize) == Some(&true)) {
            let name = there.body.packs.get(stored.pack as usize).cloned().unwrap_or_default();
            places.insert(stored.digest, (name, stored.at));
        }
        let mut list = Vec::new();
        let (mut name, mut end) = (blake3::Hasher::new(), BLOCK);
        let files = local.tree.inodes().filter(|(id, _)| has_bytes(local.tree, *id));
        for (id, inode) in files {
            let digest = local.digests.get(id.index()).copied().flatten();
            let digest = digest.ok_or_else(|| CacheError::Disk("a file has no digest".to_owned()))?;
            if places.contains_key(&digest) {
                continue;
            }
            places.insert(digest, (String::new(), end));
            list.push(ToSend { id, size: inode.size(), digest, at: end });
            name.update(&digest.0).update(&inode.size().to_le_bytes());
            end = (end + inode.size()).next_multiple_of(BLOCK);
        }
        let name = name.finalize().to_hex().to_string();
        places.values_mut().filter(|(pack, _)| pack.is_empty()).for_each(|(pack, _)| pack.clone_from(&name));
        let lists = match self.packs.get(&name) {
            _ if list.is_empty() => Lists::new(),
            Some(lists) => lists.clone(),
            None => {
                self.pushed.files += list.len() as u64;
                self.pushed.bytes += list.iter().map(|file| file.size).sum::<u64>();
                let lists = PackBytes::new(local, list).put(far, &name)?;
                self.packs.insert(name, lists.clone());
                lists
            }
        };
        Ok(At { places, lists, missing })
    }
}

/// The packs that a remote's generation names and the remote does not have, or has only in part. An expiry rule or a user may delete them.
fn missing(there: &Generation, far: &Far) -> Result<HashSet<String>, CacheError> {
    let mut ends = vec![0u64; there.body.packs.len()];
    for (id, stored) in there.remote_files() {
        let end = stored.at.saturating_add(there.tree.inode(id).size());
        ends.get_mut(stored.pack as usize).into_iter().for_each(|known| *known = end.max(*known));
    }
    let mut missing = HashSet::new();
    for (name, end) in there.body.packs.iter().zip(ends) {
        if !far.has_pack(name, end)? {
            missing.insert(name.clone());
        }
    }
    Ok(missing)
}

/// Which packs of a remote stay as they are when it has many: the files of the smaller half are put into the new one.
fn largest(there: &Generation) -> Vec<bool> {
    let mut used = vec![0u64; there.body.packs.len()];
    for (id, stored) in there.remote_files() {
        used.get_mut(stored.pack as usize).into_iter().for_each(|used| *used += there.tree.inode(id).size());
    }
    let mut order: Vec<usize> = (0..used.len()).collect();
    order.sort_by_key(|pack| std::cmp::Reverse(used.get(*pack).copied()));
    let mut keeps = vec![false; used.len()];
    order.iter().take(used.len() / 2).for_each(|pack| keeps.get_mut(*pack).into_iter().for_each(|keep| *keep = true));
    keeps
}

impl At {
    /// The tree as it is.
    fn all(self, local: &Local<'_>) -> Result<Option<Next>, CacheError> {
        let place = |digest: &Option<Digest>| {
            let digest = (*digest)?;
            let (name, at) = self.places.get(&digest)?;
            Some((name.clone(), *at, digest))
        };
        let files = local.digests.iter().map(place).collect();
        Ok(Some(Next { tree: Arc::clone(local.tree), files, lists: self.lists, drops: true }))
    }

    /// The generation here over that of the remote; `None` if that stays as it is.
    fn merged(self, here: &Generation, there: &Generation, rules: &Rules) -> Result<Option<Next>, CacheError> {
        let (old, new) = (of_owner(there, (0, 0))?, of_owner(here, (0, 0))?);
        let of_new: Vec<Option<(String, u64, Digest)>> = new.places();
        let stored = |id: InodeId| {
            let (_, _, digest) = of_new.get(id.index()).cloned().flatten()?;
            let (name, at) = self.places.get(&digest)?;
            Some((name.clone(), *at, digest))
        };
        let content = inarch_block::BackedFiles::new(Arc::clone(&new.tree), Default::default(), Vec::new());
        let lineage = ByDigest { old: &old, new: &new };
        let newer = Newer { stored: &stored, lists: Some(&self.lists), ..Newer::new(&new.tree, &content, &lineage) };
        let change = Change::find(&newer, &old, rules, None)?;
        if change.is_nothing() {
            return Ok(None);
        }
        let mut next = change.merged(&old, "", rules, &mut Published::default())?;
        for place in next.iter_mut().flat_map(|next| &mut next.files).flatten() {
            // What the remote has lost is in the new pack, if it is here.
            if self.missing.contains(&place.0)
                && let Some((name, at)) = self.places.get(&place.2)
            {
                (place.0, place.1) = (name.clone(), *at);
            }
        }
        Ok(next)
    }
}

/// A file of a new pack.
struct ToSend {
    id: InodeId,
    size: u64,
    digest: Digest,
    /// Where it begins in the pack.
    at: u64,
}

/// The bytes of a new pack, piece by piece.
struct PackBytes<'a> {
    local: &'a Local<'a>,
    files: std::collections::VecDeque<ToSend>,
    /// How much of the pack was given.
    end: u64,
    /// The chunks of the first file so far.
    list: Vec<[u8; 32]>,
    lists: Lists,
}

impl<'a> PackBytes<'a> {
    fn new(local: &'a Local<'a>, files: Vec<ToSend>) -> PackBytes<'a> {
        PackBytes { local, files: files.into(), end: 0, list: Vec::new(), lists: Lists::new() }
    }

    /// Puts the pack. Returns the chunks of its files.
    fn put(mut self, far: &Far, name: &str) -> Result<Lists, CacheError> {
        if !self.local.is_foreign {
            far.put_pack(name, || self.next())?;
            return Ok(self.lists);
        }
        let (sender, receiver) = mpsc::sync_channel(4);
        let mut put = Ok(());
        let read = |_| {
            loop {
                let piece = self.next().transpose();
                let is_end = !matches!(piece, Some(Ok(_)));
                // Nobody receives any more where nothing can be put.
                if piece.is_some_and(|piece| sender.send(piece).is_err()) || is_end {
                    break;
                }
            }
            drop(sender);
            self.lists
        };
        let lists = Parse::new().run(read, || {
            let receiver = receiver;
            put = far.put_pack(name, || receiver.recv().ok().transpose());
        })?;
        put.map(|()| lists)
    }

    /// The next piece: zeros up to the next file, or a chunk of it.
    fn next(&mut self) -> std::io::Result<Option<Vec<u8>>> {
        let Some(file) = self.files.front() else { return Ok(None) };
        if self.end < file.at {
            let mut zeros = vec![0; (file.at - self.end) as usize];
            if let (0, Some(start)) = (self.end, zeros.get_mut(..8)) {
                start.copy_from_slice(b"INARCHPK");
            }
            self.end = file.at;
            return Ok(Some(zeros));
        }
        let offset = self.end - file.at;
        let mut piece = vec![0; (file.size - offset).min(CHUNK) as usize];
        read_content(self.local.content, file.id, offset, &mut piece)?;
        let mut is_right = true;
        if file.size <= CHUNK {
            is_right = *blake3::hash(&piece).as_bytes() == file.digest.0;
        } else {
            self.list.push(of_part(offset, &piece));
        }
        self.end += piece.len() as u64;
        let is_last = self.end == file.at + file.size;
        if is_last && file.size > CHUNK {
            is_right = inarch_cache::is_of(&self.list, file.size, &file.digest);
            self.lists.insert(file.digest, std::mem::take(&mut self.list).into());
        }
        if !is_right {
            let path = String::from_utf8_lossy(&self.local.tree.path(file.id)).into_owned();
            let text =
                format!("{}: its bytes are not those that were published", inarch_lifecycle::shown(path.as_ref()));
            return Err(std::io::Error::new(std::io::ErrorKind::InvalidData, text));
        }
        if is_last {
            self.files.pop_front();
        }
        Ok(Some(piece))
    }
}
