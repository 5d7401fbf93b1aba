//! [`Cache`]: the directory of a cache, with its locks.
//!
//! **Readers** open the current generation's file, lock it (shared), and check that it still has a name; then they open its packs.
//! **Publishers** hold the cache's lock. They sync the pack and name it, then the generation, then replace `current`. If they are killed
//! before that last step, the cache is as it was. The next publication removes files that nothing refers to, except generations that a
//! reader has locked and their packs.

mod locked;

use std::collections::HashMap;
use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use inarch_block::{BackedFiles, Backing, BackingFile, Content};
use inarch_lifecycle::new_file::NewFile;
use inarch_lifecycle::trust::{self, Missing, Owner};
use inarch_lifecycle::{FileLock, PathError};
use inarch_tree::{Attributes, Builder, Tree};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use super::chunks::Lists;
use super::error::Damage;
use super::far::Far;
use super::generation::{Body, Generation};
use super::lazy::{self, LazyPack};
use super::pack::{NewPack, is_pack};
use super::pack_chunks::Chunks;
use super::place::CachePlace;
use super::stored::{Digest, Stored, is_remote_name};
use super::synced::Synced;
use super::{CacheError, Scope};
pub use locked::Locked;

const CURRENT: &str = "current";
const GENERATIONS: &str = "generations";
const PACKS: &str = "packs";
const LOCK: &str = "lock";
/// Empty; its mtime is when a guest last had the cache.
const USED: &str = "used";

/// The directory of a cache.
#[derive(Clone, Debug)]
pub struct Cache {
    place: CachePlace,
    dir: PathBuf,
    /// Where bytes that are not here come from.
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
    /// The shared lock on the generation's file. It is `None` while the cache has no generation, and after [`Snapshot::release`].
    lock: Mutex<Option<FileLock>>,
}

impl std::fmt::Debug for Snapshot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Snapshot").field("body", &self.generation.body).finish_non_exhaustive()
    }
}

impl Snapshot {
    /// The snapshot of a cache without generations.
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
        let open = |(name, number): (&String, u32)| match is_remote_name(name) {
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

/// Whether an open file is still the one at this path.
fn is_at(file: &File, path: &Path) -> bool {
    let id = |found: fs::Metadata| (found.dev(), found.ino());
    file.metadata().is_ok_and(|file| fs::symlink_metadata(path).is_ok_and(|there| id(there) == id(file)))
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
mod tests;
