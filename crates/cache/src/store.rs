//! [`Cache`]: the directory of a cache, with its locks.
//!
//! **Readers** open the current generation's file, lock it (shared), and check that it still has a name; then they open its packs.
//! **Publishers** hold the cache's lock. They sync the pack and name it, then the generation, then replace `current`. If they are killed
//! before that last step, the cache is as it was. The next publication removes files that nothing refers to, except generations that a
//! reader has locked and their packs.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use inarch_block::{BLOCK_SIZE, BackedFiles, Backing, BackingFile, Content};
use inarch_lifecycle::new_file::NewFile;
use inarch_lifecycle::trust::{self, Missing, Owner};
use inarch_lifecycle::{FileLock, PathError};
use inarch_tree::{Attributes, Builder, Tree};
use rustix::fs::{FallocateFlags, FlockOperation, fallocate, flock};
use rustix::io::Errno;

use super::chunks::Lists;
use super::error::Damage;
use super::far::Far;
use super::generation::{Body, Generation, Stored};
use super::lazy::{self, Chunks, LazyPack};
use super::pack::{Digest, NewPack, is_pack};
use super::place::CachePlace;
use super::synced::Synced;
use super::{CacheError, Scope};

const CURRENT: &str = "current";
const GENERATIONS: &str = "generations";
const PACKS: &str = "packs";
const LOCK: &str = "lock";
/// Empty; its mtime is when a guest last had the cache.
const USED: &str = "used";
/// More packs than these are put together: a reader has each of them open.
const MOST_PACKS: usize = 32;
/// How many then stay as they are, the largest ones.
const LARGE_PACKS: usize = 8;
const BLOCK: u64 = BLOCK_SIZE as u64;

/// The directory of a cache.
#[derive(Clone, Debug)]
pub struct Cache {
    place: CachePlace,
    dir: PathBuf,
    /// Where bytes come from that are not here.
    far: Option<Arc<Far>>,
}

/// A generation that stays as long as this does.
pub struct Snapshot {
    /// The generation.
    pub generation: Generation,
    /// In the order of [`Body::packs`].
    packs: Vec<Arc<dyn Backing>>,
    /// Whether it is another cache's, with which this one begins.
    pub is_parent_s: bool,
    /// Of its file, shared; `None` for a cache that has no generation yet, and when nobody reads the snapshot any more.
    lock: Mutex<Option<FileLock>>,
}

impl std::fmt::Debug for Snapshot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Snapshot").field("body", &self.generation.body).finish_non_exhaustive()
    }
}

impl Snapshot {
    /// That of a cache without generations.
    pub(super) fn empty() -> Result<Snapshot, CacheError> {
        Ok(Snapshot { generation: empty()?, packs: Vec::new(), is_parent_s: false, lock: Mutex::default() })
    }

    /// Whether it is of the cache that is at its place now.
    fn is_of(&self, cache: &Cache) -> bool {
        let number = self.generation.body.number;
        let path = cache.dir.join(GENERATIONS).join(format!("{number:08}"));
        let lock = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        number == 0 || lock.as_ref().is_some_and(|lock| is_at(lock, &path))
    }

    /// Lets it be removed: nothing of it is read any more.
    pub fn release(&self) {
        *self.lock.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// The bytes of its files.
    pub fn content(&self) -> Arc<dyn Content> {
        self.content_of(&self.generation)
    }

    /// The bytes of the files of a generation that was made of this one, and has the same packs.
    pub fn content_of(&self, generation: &Generation) -> Arc<dyn Content> {
        Arc::new(BackedFiles::new(Arc::clone(&generation.tree), generation.extents(), self.packs.clone()))
    }
}

/// What a publication makes of the current generation.
pub struct Next {
    /// Names and attributes.
    pub tree: Arc<Tree>,
    /// For each inode the name of its pack, where its bytes begin there, and what they are.
    pub files: Vec<Option<(String, u64, Digest)>>,
    /// The chunks of files in packs of a remote, those of the current generation aside.
    pub lists: Lists,
    /// Whether files of the current generation are not in it.
    pub drops: bool,
}

impl Cache {
    /// The cache at a place, which is made if it is missing.
    pub fn make(place: &CachePlace) -> Result<Cache, CacheError> {
        let [scope, name] = place.names();
        for below in [GENERATIONS, PACKS] {
            trust::directory(&place.home, &[scope, name, below], Missing::Make, Owner::User)?;
        }
        let cache = Cache { place: place.clone(), dir: place.directory(), far: None };
        cache.place.note_scope()?;
        Ok(cache)
    }

    /// The cache at a place.
    pub fn existing(place: &CachePlace) -> Result<Cache, CacheError> {
        let [scope, name] = place.names();
        let is_there = trust::directory(&place.home, &[scope, name, PACKS], Missing::Leave, Owner::User)?;
        let dir = place.directory();
        if !is_there || !dir.join(GENERATIONS).is_dir() {
            // What cannot be listed is no help.
            let others = all(&place.home).unwrap_or_default().into_iter().filter(|other| other.name == place.name);
            let elsewhere = others.map(|other| other.scope.to_string()).collect();
            return Err(CacheError::Missing { name: name.to_owned(), scope: place.scope.to_string(), elsewhere });
        }
        Ok(Cache { place: place.clone(), dir, far: None })
    }

    /// The same, where bytes that are not here come from a remote.
    pub fn with_far(self, far: Option<Arc<Far>>) -> Cache {
        Cache { far, ..self }
    }

    /// Where it is.
    pub fn place(&self) -> &CachePlace {
        &self.place
    }

    /// Its directory.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    fn removed(&self) -> CacheError {
        CacheError::Removed { name: self.place.name.clone() }
    }

    fn damaged(&self, path: &Path, damage: &Damage) -> CacheError {
        let name = self.place.name.clone();
        CacheError::Damaged { path: path.to_owned(), reason: damage.to_string(), name }
    }

    /// The path of the current generation; `None` before the first.
    fn current(&self) -> Result<Option<PathBuf>, CacheError> {
        let path = self.dir.join(CURRENT);
        let fail = |error| PathError::new(&path, "cannot find the current generation", error);
        match fs::read_link(&path) {
            Ok(target) => {
                let number = target.strip_prefix(GENERATIONS).ok().and_then(|name| name.to_str());
                let is_number = |name: &&str| !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_digit());
                let number = number.filter(is_number);
                let number = number.ok_or_else(|| self.damaged(&path, &Damage::Table("it leads elsewhere")))?;
                Ok(Some(self.dir.join(GENERATIONS).join(number)))
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(fail(error).into()),
        }
    }

    /// The current generation, which stays as long as the snapshot does; an empty one before the first.
    pub fn snapshot(&self) -> Result<Snapshot, CacheError> {
        loop {
            let Some(path) = self.current()? else {
                return Snapshot::empty();
            };
            let fail = |error| PathError::new(&path, "cannot read the generation", error);
            let file = match trust::open(&path, OpenOptions::new().read(true)) {
                Ok(file) => file,
                // It was replaced just now.
                Err(error) if error.kind() == io::ErrorKind::NotFound && self.current()? != Some(path.clone()) => {
                    continue;
                }
                Err(error) => return Err(fail(error).into()),
            };
            wait_for(&file, FlockOperation::LockShared).map_err(fail)?;
            if file.metadata().map_err(fail)?.nlink() == 0 {
                continue;
            }
            return self.load(&path, file);
        }
    }

    /// Loads a generation that is locked.
    fn load(&self, path: &Path, mut file: File) -> Result<Snapshot, CacheError> {
        let mut bytes = Vec::new();
        file.read_to_end(&mut bytes).map_err(|error| PathError::new(path, "cannot read the generation", error))?;
        let generation = Generation::decode(&bytes).map_err(|damage| self.damaged(path, &damage))?;
        let packs = self.packs(&generation)?;
        Ok(Snapshot { generation, packs, is_parent_s: false, lock: Mutex::new(Some(FileLock::of(file))) })
    }

    fn packs(&self, generation: &Generation) -> Result<Vec<Arc<dyn Backing>>, CacheError> {
        let open = |(name, number): (&String, u32)| match lazy::is_name(name) {
            true => self.lazy_pack(name, number, generation),
            false => self.pack(name),
        };
        generation.body.packs.iter().zip(0..).map(open).collect()
    }

    /// Opens a pack of a remote.
    fn lazy_pack(&self, name: &str, number: u32, generation: &Generation) -> Result<Arc<dyn Backing>, CacheError> {
        let path = self.dir.join(PACKS).join(name);
        let file = self.open_pack(&path, OpenOptions::new().read(true).write(true))?;
        let chunks = Chunks::of(generation, number).map_err(|damage| self.damaged(&path, &damage))?;
        Ok(Arc::new(LazyPack::new(name, file, chunks, Arc::clone(&generation.tree), self.far.clone())))
    }

    fn open_pack(&self, path: &Path, options: &mut OpenOptions) -> Result<File, CacheError> {
        trust::open(path, options).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => self.damaged(path, &Damage::Table("this pack of it is missing")),
            _ => PathError::new(path, "cannot open a pack of the cache", error).into(),
        })
    }

    /// Makes the file of a remote's pack, if it is not there. It gets its bytes when they are read.
    pub fn make_lazy_pack(&self, name: &str, end: u64) -> Result<(), CacheError> {
        let path = self.dir.join(PACKS).join(name);
        if path.exists() {
            return Ok(());
        }
        let fail = |error| PathError::new(&path, "cannot make a pack of the cache", error);
        let new = NewFile::create(&path, || {})?;
        new.file.set_permissions(Permissions::from_mode(0o600)).map_err(fail)?;
        new.file.set_len(end).map_err(fail)?;
        Ok(new.commit()?)
    }

    /// Whether the bytes of a file seem to be here. For one in a remote's pack they are not read.
    pub fn has(&self, generation: &Generation, stored: &Stored, size: u64) -> bool {
        let name = name_of(&generation.body, *stored);
        let file = trust::open(&self.dir.join(PACKS).join(name), OpenOptions::new().read(true));
        file.is_ok_and(|file| lazy::has(&file, stored.at..stored.at + size))
    }

    fn pack(&self, name: &str) -> Result<Arc<dyn Backing>, CacheError> {
        let path = self.dir.join(PACKS).join(name);
        if !is_pack_name(name) {
            return Err(self.damaged(&path, &Damage::Table("it is not a pack's name")));
        }
        let fail = |error| PathError::new(&path, "cannot open a pack of the cache", error);
        let file = self.open_pack(&path, OpenOptions::new().read(true))?;
        if !is_pack(&file).map_err(fail)? {
            return Err(self.damaged(&path, &Damage::Table("it is no pack")));
        }
        Ok(Arc::new(BackingFile::new(file, path.clone()).map_err(fail)?))
    }

    /// Whether a remote had the current generation the last time.
    pub fn is_pushed(&self, far: &Far) -> Result<bool, CacheError> {
        let number = self.snapshot()?.generation.body.number;
        let synced = Synced::load(&self.dir, far.location());
        Ok(number == 0 || synced.is_some_and(|synced| synced.here == Some(number)))
    }

    /// Notes that a guest has it now.
    pub fn use_now(&self) -> Result<(), PathError> {
        let path = self.dir.join(USED);
        let fail = |error| PathError::new(&path, "cannot note that the cache is used", error);
        let options = &mut OpenOptions::new();
        let file = trust::open(&path, options.append(true).create(true).mode(0o600)).map_err(fail)?;
        file.set_modified(SystemTime::now()).map_err(fail)
    }

    /// When a guest last had it; `None` if that is not known.
    pub fn used(&self) -> Option<SystemTime> {
        let of = |path: PathBuf| fs::metadata(path).and_then(|metadata| metadata.modified()).ok();
        of(self.dir.join(USED)).or_else(|| of(self.current().ok()??))
    }

    /// Whether guests have files in the directory that they share live.
    pub fn has_live_files(&self) -> bool {
        fs::read_dir(self.place.live_directory()).is_ok_and(|mut entries| entries.next().is_some())
    }

    /// Opens the file of the current generation, if there is any. It may be damaged.
    pub(super) fn open_current(&self) -> Result<Option<File>, CacheError> {
        let Ok(Some(path)) = self.current() else { return Ok(None) };
        match trust::open(&path, OpenOptions::new().read(true)) {
            Ok(file) => Ok(Some(file)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(PathError::new(&path, "cannot read the generation", error).into()),
        }
    }

    /// A pack for what is to be published.
    pub fn new_pack(&self) -> Result<NewPack, CacheError> {
        Ok(NewPack::create(&self.dir.join(PACKS))?)
    }

    /// Whether nothing was published yet.
    pub fn is_new(&self) -> Result<bool, CacheError> {
        Ok(self.current()?.is_none())
    }

    /// Locks the cache against others that change it.
    ///
    /// # Errors
    /// [`CacheError::Removed`]: while this waited, the cache was removed. What has its name now is another one.
    pub fn lock(&self) -> Result<Locked<'_>, CacheError> {
        let path = self.dir.join(LOCK);
        let fail = |error| PathError::new(&path, "cannot lock the cache", error);
        let lock =
            trust::open(&path, OpenOptions::new().read(true).append(true).create(true).mode(0o600)).map_err(fail)?;
        wait_for(&lock, FlockOperation::LockExclusive).map_err(fail)?;
        if !is_at(&lock, &path) {
            return Err(self.removed());
        }
        Ok(Locked { cache: self, _lock: FileLock::of(lock) })
    }
}

/// A cache that this process alone changes.
pub struct Locked<'a> {
    cache: &'a Cache,
    _lock: FileLock,
}

impl Locked<'_> {
    /// Publishes what `make` makes of the current generation; it gets that and the name of the new pack. Returns the new
    /// generation's number; `None` if `make` makes nothing. `pack` must be durable. `base` is what the caller read, and reads no more.
    ///
    /// # Errors
    /// [`CacheError::Removed`]: the cache that `base` is of was removed. Packs of the one that has its name now have other files.
    pub fn publish(
        &self,
        pack: NewPack,
        (made_by, time): (&str, u64),
        base: &Snapshot,
        make: impl FnOnce(&Generation, &str) -> Result<Option<Next>, CacheError>,
    ) -> Result<Option<u64>, CacheError> {
        let cache = self.cache;
        if !base.is_of(cache) {
            return Err(cache.removed());
        }
        let current = cache.snapshot()?;
        let number = current.generation.body.number + 1;
        let name = format!("{number:08}");
        let Some(next) = make(&current.generation, &name)? else { return Ok(None) };
        let drops = next.drops;
        if !pack.is_empty() {
            pack.finish(&name)?;
        }
        let body = Body { number, time, made_by: made_by.to_owned(), packs: Vec::new() };
        let generation = self.put_together(with_names(body, next, &current.generation.lists))?;
        drop(current);
        base.release();
        let unread = self.must_agree(&generation)?;
        sync_directory(&cache.dir.join(PACKS))?;
        let path = cache.dir.join(GENERATIONS).join(&name);
        let mut new = NewFile::create(&path, || {})?;
        let fail = |error| PathError::new(&path, "cannot write the generation", error);
        new.file.set_permissions(Permissions::from_mode(0o600)).map_err(fail)?;
        new.file.write_all(&generation.encode()).and_then(|()| new.file.sync_all()).map_err(fail)?;
        new.commit()?;
        sync_directory(&cache.dir.join(GENERATIONS))?;
        self.make_current(&name)?;
        // Before their locks end: one who waits to read such a generation finds that it is gone.
        // One of the new generation's name was left by a publication that did not end, and is replaced.
        for (old, _lock) in unread.iter().filter(|(old, _)| *old != path) {
            fs::remove_file(old).map_err(|error| PathError::new(old, "cannot remove an old generation", error))?;
        }
        drop(unread);
        self.sweep()?;
        if drops {
            self.punch()?;
        }
        Ok(Some(number))
    }

    /// A remote's pack may have the name of another remote's pack, or of an older one. If two packs overlapped within a generation, it
    /// could not be read; if one overlapped another generation's, readers of that would get the bytes of this one. Returns the generations
    /// that nobody reads, and keeps them from being read: with them nothing has to agree.
    fn must_agree(&self, generation: &Generation) -> Result<Vec<(PathBuf, FileLock)>, CacheError> {
        let mut unread = Vec::new();
        let of_remotes = |generation: &Generation| {
            let names = generation.body.packs.iter().cloned().zip(0..);
            names.filter(|(name, _)| lazy::is_name(name)).collect::<BTreeMap<String, u32>>()
        };
        let conflict = |pack: &str, reason: String| CacheError::Conflict { pack: pack.to_owned(), reason };
        let mut new = BTreeMap::new();
        for (name, number) in of_remotes(generation) {
            let chunks = Chunks::of(generation, number).map_err(|damage| conflict(&name, damage.to_string()))?;
            new.insert(name, chunks);
        }
        if new.is_empty() {
            return Ok(unread);
        }
        for path in entries(&self.cache.dir.join(GENERATIONS))? {
            let fail = |error| PathError::new(&path, "cannot read a generation", error);
            let file = trust::open(&path, OpenOptions::new().read(true)).map_err(fail)?;
            let is_free = flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok();
            let file = FileLock::of(file);
            // It may be damaged.
            if is_free {
                unread.push((path, file));
                continue;
            }
            let mut bytes = Vec::new();
            (&*file).read_to_end(&mut bytes).map_err(fail)?;
            let old = Generation::decode(&bytes).map_err(|damage| self.cache.damaged(&path, &damage))?;
            for (name, number) in of_remotes(&old) {
                let Some(chunks) = new.get(&name) else { continue };
                let there = Chunks::of(&old, number).map_err(|damage| self.cache.damaged(&path, &damage))?;
                if !chunks.agrees(&there) {
                    return Err(conflict(&name, "it has other bytes than before".to_owned()));
                }
            }
        }
        Ok(unread)
    }

    fn make_current(&self, name: &str) -> Result<(), PathError> {
        let (path, new) = (self.cache.dir.join(CURRENT), self.cache.dir.join(".current"));
        let fail = |error| PathError::new(&path, "cannot make a generation the current one", error);
        match fs::remove_file(&new) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(fail(error)),
            _ => {}
        }
        symlink(Path::new(GENERATIONS).join(name), &new).and_then(|()| fs::rename(&new, &path)).map_err(fail)?;
        sync_directory(&self.cache.dir)
    }

    /// Where there are too many packs, copies what is used of the smaller ones into one.
    fn put_together(&self, mut generation: Generation) -> Result<Generation, CacheError> {
        if generation.body.packs.iter().filter(|name| !lazy::is_name(name)).count() <= MOST_PACKS {
            return Ok(generation);
        }
        let mut used = vec![0u64; generation.body.packs.len()];
        for (id, inode) in generation.tree.inodes() {
            if let Some(Some(stored)) = generation.files.get(id.index()) {
                used.get_mut(stored.pack as usize).into_iter().for_each(|used| *used += inode.size());
            }
        }
        let mut order: Vec<usize> = (0..used.len()).collect();
        order.sort_by_key(|pack| std::cmp::Reverse(used.get(*pack).copied()));
        // What is at a remote stays there.
        let is_here = |pack: &&usize| generation.body.packs.get(**pack).is_some_and(|name| !lazy::is_name(name));
        let here = order.iter().filter(is_here).skip(LARGE_PACKS);
        let small: BTreeSet<u32> = here.filter_map(|pack| u32::try_from(*pack).ok()).collect();
        let packs = self.cache.packs(&generation)?;
        let content = BackedFiles::new(Arc::clone(&generation.tree), generation.extents(), packs);
        let mut pack = self.cache.new_pack()?;
        let name = format!("{:08}-{}", generation.body.number, small.len());
        let path = self.cache.dir.join(PACKS).join(&name);
        let fail = |error| PathError::new(&path, "cannot write a pack of the cache", error);
        let mut files: Vec<Option<(String, u64, Digest)>> = Vec::with_capacity(generation.files.len());
        for (id, inode) in generation.tree.inodes() {
            let Some(stored) = generation.files.get(id.index()).copied().flatten() else {
                files.push(None);
                continue;
            };
            if small.contains(&stored.pack) {
                let (moved, _) = pack.add((&content, id, inode.size()), |_| None).map_err(fail)?;
                if moved.digest != stored.digest {
                    let old = self.cache.dir.join(PACKS).join(name_of(&generation.body, stored));
                    return Err(self.cache.damaged(&old, &Damage::Digest));
                }
                files.push(Some((name.clone(), moved.at, moved.digest)));
            } else {
                files.push(Some((name_of(&generation.body, stored).to_owned(), stored.at, stored.digest)));
            }
        }
        pack.sync().map_err(fail)?;
        pack.finish(&name)?;
        let next = Next { tree: Arc::clone(&generation.tree), files, lists: Lists::new(), drops: false };
        generation = with_names(generation.body, next, &generation.lists);
        Ok(generation)
    }

    /// Removes generations that nobody reads, and packs that no generation refers to. Returns the names of the generations that stay.
    pub fn sweep(&self) -> Result<Vec<PathBuf>, CacheError> {
        for directory in [GENERATIONS, PACKS] {
            remove_unfinished(&self.cache.dir.join(directory))?;
        }
        let current = self.cache.current()?;
        let mut stay = Vec::new();
        let mut packs = BTreeSet::new();
        for path in entries(&self.cache.dir.join(GENERATIONS))? {
            let fail = |error| PathError::new(&path, "cannot examine a generation", error);
            let mut file = match trust::open(&path, OpenOptions::new().read(true)) {
                Ok(file) => file,
                Err(error) => return Err(fail(error).into()),
            };
            let is_current = current.as_ref() == Some(&path);
            if !is_current && flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok() {
                fs::remove_file(&path)
                    .map_err(|error| PathError::new(&path, "cannot remove an old generation", error))?;
                continue;
            }
            let mut bytes = Vec::new();
            file.read_to_end(&mut bytes).map_err(fail)?;
            let generation = Generation::decode(&bytes).map_err(|damage| self.cache.damaged(&path, &damage))?;
            packs.extend(generation.body.packs);
            stay.push(path);
        }
        for path in entries(&self.cache.dir.join(PACKS))? {
            let is_needed = path.file_name().and_then(|name| name.to_str()).is_some_and(|name| packs.contains(name));
            if !is_needed {
                fs::remove_file(&path).map_err(|error| PathError::new(&path, "cannot remove an old pack", error))?;
            }
        }
        Ok(stay)
    }

    /// Punches holes into packs where no generation needs the bytes. A cache that is being read stays as it is, because readers refuse a changed pack.
    pub fn punch(&self) -> Result<(), CacheError> {
        let stay = self.sweep()?;
        let [path] = stay.as_slice() else { return Ok(()) };
        let fail = |error| PathError::new(path, "cannot read the generation", error);
        let file = trust::open(path, OpenOptions::new().read(true)).map_err(fail)?;
        if flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
            return Ok(());
        }
        let Snapshot { generation, lock: _lock, .. } = self.cache.load(path, file)?;
        let mut used: Vec<Vec<(u64, u64)>> = vec![Vec::new(); generation.body.packs.len()];
        for (id, inode) in generation.tree.inodes() {
            if let Some(Some(stored)) = generation.files.get(id.index())
                && let Some(used) = used.get_mut(stored.pack as usize)
            {
                let end = stored.at.saturating_add(inode.size());
                used.push((stored.at, end.checked_next_multiple_of(BLOCK).unwrap_or(u64::MAX)));
            }
        }
        for (name, used) in generation.body.packs.iter().zip(&mut used) {
            let path = self.cache.dir.join(PACKS).join(name);
            let fail = |error| PathError::new(&path, "cannot free what is not needed of a pack", error);
            let pack = trust::open(&path, OpenOptions::new().read(true).write(true)).map_err(fail)?;
            let size = pack.metadata().map_err(fail)?.len();
            used.sort_unstable();
            let mut end = BLOCK;
            for (start, stop) in used.iter().copied().chain([(size, size)]) {
                let start = start.min(size);
                if start > end {
                    match fallocate(&pack, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, end, start - end) {
                        // The bytes stay, on a file system without holes.
                        Ok(()) | Err(Errno::OPNOTSUPP) => {}
                        Err(errno) => return Err(fail(errno.into()).into()),
                    }
                }
                end = end.max(stop);
            }
        }
        Ok(())
    }
}

fn name_of(body: &Body, stored: Stored) -> &str {
    body.packs.get(stored.pack as usize).map_or("", String::as_str)
}

/// Numbers the packs that a generation needs.
pub fn with_names(body: Body, next: Next, known: &Arc<Lists>) -> Generation {
    let mut packs: Vec<String> = Vec::new();
    let mut numbers: HashMap<String, u32> = HashMap::new();
    let mut number = |name: String| {
        *numbers.entry(name).or_insert_with_key(|name| {
            packs.push(name.clone());
            packs.len() as u32 - 1
        })
    };
    let place = |place: Option<(String, u64, Digest)>| {
        let (name, at, digest) = place?;
        Some(Stored { pack: number(name), at, digest })
    };
    let files = next.files.into_iter().map(place).collect();
    let mut lists = Arc::clone(known);
    if !next.lists.is_empty() {
        Arc::make_mut(&mut lists).extend(next.lists);
    }
    Generation { body: Body { packs, ..body }, tree: next.tree, files, lists }
}

/// A generation without files.
pub fn empty() -> Result<Generation, CacheError> {
    let root = Attributes { mode: 0o040_755, ..Attributes::default() };
    let tree = Arc::new(Builder::new(&root)?.finish()?);
    Ok(Generation { body: Body::default(), tree, files: vec![None], lists: Arc::default() })
}

/// Names that [`Locked::publish`] gives.
fn is_pack_name(name: &str) -> bool {
    !name.is_empty() && name.len() < 40 && name.bytes().all(|byte| byte.is_ascii_digit() || byte == b'-')
}

/// The paths in a directory that do not begin with a dot.
fn entries(path: &Path) -> Result<Vec<PathBuf>, PathError> {
    let fail = |error| PathError::new(path, "cannot list it", error);
    let mut paths = Vec::new();
    for entry in fs::read_dir(path).map_err(fail)? {
        let entry = entry.map_err(fail)?;
        // One that begins with a dot is another process's file that is not finished.
        if !entry.file_name().as_bytes().starts_with(b".") {
            paths.push(entry.path());
        }
    }
    paths.sort();
    Ok(paths)
}

/// Removes files of a directory that a process began and did not finish, a day ago or earlier: where all files have names, a killed one leaves them.
fn remove_unfinished(path: &Path) -> Result<(), PathError> {
    const OLD: Duration = Duration::from_secs(24 * 3600);
    let fail = |error| PathError::new(path, "cannot list it", error);
    for entry in fs::read_dir(path).map_err(fail)?.flatten() {
        let is_old = || {
            entry.metadata().and_then(|found| found.modified()).is_ok_and(|at| at.elapsed().is_ok_and(|age| age > OLD))
        };
        if entry.file_name().as_bytes().starts_with(b".") && is_old() {
            // Another process may do the same.
            let _ = fs::remove_file(entry.path());
        }
    }
    Ok(())
}

/// Whether an open file is still the one at this path.
fn is_at(file: &File, path: &Path) -> bool {
    let id = |found: fs::Metadata| (found.dev(), found.ino());
    file.metadata().is_ok_and(|file| fs::symlink_metadata(path).is_ok_and(|there| id(there) == id(file)))
}

fn sync_directory(path: &Path) -> Result<(), PathError> {
    let synced = File::open(path).and_then(|directory| directory.sync_all());
    synced.map_err(|error| PathError::new(path, "cannot make it durable", error))
}

fn wait_for(file: &File, how: FlockOperation) -> io::Result<()> {
    loop {
        match flock(file, how) {
            Err(Errno::INTR) => {}
            locked => return locked.map_err(io::Error::from),
        }
    }
}

/// The scopes and names of all caches below `home`.
pub fn all(home: &Path) -> Result<Vec<CachePlace>, CacheError> {
    let mut places = Vec::new();
    if !trust::directory(home, &[], Missing::Leave, Owner::User)? {
        return Ok(places);
    }
    for scope in entries(home)? {
        let Some(scope) = Scope::stored(&scope) else { continue };
        for name in entries(&home.join(scope.directory()))? {
            let name = name.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            if let Ok(place) = CachePlace::new(home, scope.clone(), name)
                && place.directory().join(PACKS).is_dir()
            {
                places.push(place);
            }
        }
    }
    Ok(places)
}

#[cfg(test)]
mod tests {
    use super::super::InUse;
    use super::*;

    /// Publishes a generation without files.
    fn publish(cache: &Cache, base: &Snapshot) -> Result<Option<u64>, CacheError> {
        let next = |now: &Generation, _: &str| {
            let (files, lists) = (now.places(), Lists::new());
            Ok(Some(Next { tree: Arc::clone(&now.tree), files, lists, drops: false }))
        };
        cache.lock()?.publish(cache.new_pack()?, ("a test", 0), base, next)
    }

    /// Another cache can have its name by then, with packs and generations of the same names.
    #[test]
    fn nothing_is_put_into_a_cache_that_was_made_anew() {
        let dir = tempfile::tempdir().unwrap();
        let place = CachePlace::new(dir.path(), Scope::User, "things").unwrap();
        let cache = Cache::make(&place).unwrap();
        publish(&cache, &Snapshot::empty().unwrap()).unwrap();
        let base = cache.snapshot().unwrap();
        place.remove().unwrap();
        let anew = Cache::make(&place).unwrap();
        publish(&anew, &Snapshot::empty().unwrap()).unwrap();
        assert!(matches!(publish(&anew, &base), Err(CacheError::Removed { .. })));
        assert_eq!(anew.snapshot().unwrap().generation.body.number, 1);
        let base = anew.snapshot().unwrap();
        assert_eq!(publish(&anew, &base).unwrap(), Some(2));
    }

    #[test]
    fn a_lock_of_a_removed_cache_locks_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let place = CachePlace::new(dir.path(), Scope::User, "things").unwrap();
        let cache = Cache::make(&place).unwrap();
        let (taken, waiting) = (cache.lock().unwrap(), cache.clone());
        let inode = format!(":{} ", fs::metadata(cache.dir().join(LOCK)).unwrap().ino());
        let waiter = std::thread::spawn(move || waiting.lock().map(drop));
        let waits = |line: &str| line.contains("->") && line.contains(&inode);
        while !fs::read_to_string("/proc/locks").unwrap().lines().any(waits) {
            std::thread::sleep(Duration::from_millis(5));
        }
        place.remove().unwrap();
        let anew = Cache::make(&place).unwrap();
        drop(taken);
        assert!(matches!(waiter.join().unwrap(), Err(CacheError::Removed { .. })));
        drop(anew.lock().unwrap());
    }

    #[test]
    fn a_cache_that_a_run_has_is_not_removed() {
        let dir = tempfile::tempdir().unwrap();
        let place = CachePlace::new(dir.path(), Scope::User, "things").unwrap();
        let cache = Cache::make(&place).unwrap();
        publish(&cache, &Snapshot::empty().unwrap()).unwrap();
        let by = |even_if_read| cache.close(even_if_read).unwrap().map(drop);
        let turn = cache.turn("a test", |_| false).unwrap();
        assert_eq!(by(true), Err(InUse::Locked));
        drop(turn);
        let live = cache.take_live().unwrap();
        assert_eq!(by(true), Err(InUse::Live));
        drop(live);
        let reader = cache.snapshot().unwrap();
        assert_eq!((by(false), by(true)), (Err(InUse::Read), Ok(())));
        drop(reader);
        assert_eq!(by(false), Ok(()));
        assert!(cache.used().unwrap().elapsed().unwrap() < Duration::from_secs(600), "a live directory is used, too");
    }

    #[test]
    fn a_pack_that_is_gone_is_damage() {
        let dir = tempfile::tempdir().unwrap();
        let place = CachePlace::new(dir.path(), Scope::User, "things").unwrap();
        let cache = Cache::make(&place).unwrap();
        assert!(matches!(cache.pack("00000001"), Err(CacheError::Damaged { .. })));
    }

    #[test]
    fn what_another_process_has_not_finished_stays_for_a_day() {
        let dir = tempfile::tempdir().unwrap();
        let place = CachePlace::new(dir.path(), Scope::User, "things").unwrap();
        let cache = Cache::make(&place).unwrap();
        for directory in [GENERATIONS, PACKS] {
            for (name, age) in [(".inarch-1-0.tmp", 0), (".inarch-2-0.tmp", 25), ("00000007", 0)] {
                let file = File::create(cache.dir().join(directory).join(name)).unwrap();
                file.set_modified(SystemTime::now() - Duration::from_secs(age * 3600)).unwrap();
            }
        }
        // No generation of this cache: it is damaged, which a sweep says.
        fs::remove_file(cache.dir().join(GENERATIONS).join("00000007")).unwrap();
        cache.lock().unwrap().sweep().unwrap();
        let names = |directory| {
            let mut names: Vec<_> =
                fs::read_dir(cache.dir().join(directory)).unwrap().map(|entry| entry.unwrap().file_name()).collect();
            names.sort();
            names
        };
        assert_eq!(names(PACKS), [".inarch-1-0.tmp"]);
        assert_eq!(names(GENERATIONS), [".inarch-1-0.tmp"]);
    }
}
