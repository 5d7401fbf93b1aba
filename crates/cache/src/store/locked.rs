//! [`Locked`]: a cache that this process changes. It publishes generations, and removes unused generations, packs and bytes.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use inarch_block::{BLOCK_SIZE, BackedFiles};
use inarch_lifecycle::new_file::NewFile;
use inarch_lifecycle::trust;
use inarch_lifecycle::{FileLock, PathError};
use rustix::fs::{FallocateFlags, FlockOperation, fallocate, flock};
use rustix::io::Errno;

use super::{CURRENT, Cache, GENERATIONS, Next, PACKS, Snapshot, entries, name_of, with_names};
use crate::CacheError;
use crate::chunks::Lists;
use crate::error::Damage;
use crate::generation::{Body, Generation};
use crate::pack::NewPack;
use crate::pack_chunks::Chunks;
use crate::stored::{Digest, is_remote_name};

/// More packs than these are put together: a reader has each of them open.
const MOST_PACKS: usize = 32;
/// How many then stay as they are, the largest ones.
const LARGE_PACKS: usize = 8;
const BLOCK: u64 = BLOCK_SIZE as u64;

/// A cache that this process alone changes.
pub struct Locked<'a> {
    pub(super) cache: &'a Cache,
    pub(super) _lock: FileLock,
}

impl Locked<'_> {
    /// Publishes what `make` makes of the current generation; `make` gets that and the name of the new pack. Returns
    /// the new generation's number; `None` if `make` makes nothing. `pack` must be durable. `base` is what the caller
    /// has read; it must not be read any more.
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
        // Removed while they are locked: a process that waits for such a lock to read the generation finds that it is
        // gone. A generation with the new one's name was left by an unfinished publication, and is replaced.
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

    /// Checks the chunks of `generation` against those of generations that have readers. Packs of two remotes, or of two times, can have the same name.
    /// Within a generation, overlapping chunks are an error of the remote; across generations, readers of one would get the bytes of the other.
    /// Returns the generations without readers, under exclusive locks. No reader can open them, so their chunks may differ.
    fn must_agree(&self, generation: &Generation) -> Result<Vec<(PathBuf, FileLock)>, CacheError> {
        let mut unread = Vec::new();
        let of_remotes = |generation: &Generation| {
            let names = generation.body.packs.iter().cloned().zip(0..);
            names.filter(|(name, _)| is_remote_name(name)).collect::<BTreeMap<String, u32>>()
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
        if generation.body.packs.iter().filter(|name| !is_remote_name(name)).count() <= MOST_PACKS {
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
        let is_here = |pack: &&usize| generation.body.packs.get(**pack).is_some_and(|name| !is_remote_name(name));
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

    /// Removes generations without readers, and packs that no generation refers to. Returns the paths of the remaining generations.
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

fn sync_directory(path: &Path) -> Result<(), PathError> {
    let synced = File::open(path).and_then(|directory| directory.sync_all());
    synced.map_err(|error| PathError::new(path, "cannot make it durable", error))
}
