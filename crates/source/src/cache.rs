//! [`CacheSource`]: a cache as a source of a tree.

use std::sync::{Arc, OnceLock};

use inarch_cache::{
    Cache, CacheError, CachePlace, CacheRemote, Far, Generation, Location, Scope, Snapshot, adopt, home, without_absent,
};
use inarch_lifecycle::counted;
use inarch_tree::InodeId;
use inarch_tree::select::{OwnerMap, Selection, select};

use super::{OpenError, Opened, Source};

/// A cache. Its tree is the current generation.
#[derive(Clone, Debug)]
pub struct CacheSource {
    /// Where it is.
    pub place: CachePlace,
    /// The user and group to whom all of it belongs; as it is stored if `None`.
    pub owner: Option<(u32, u32)>,
    /// Whether a cache that is not there is an empty tree.
    pub may_be_missing: bool,
    /// Where bytes that are not here come from.
    remote: Option<CacheRemote>,
    /// The generation that was opened, and how many files were left out of it.
    opened: Arc<OnceLock<(Arc<Snapshot>, u64)>>,
}

/// Two are equal if they name the same cache.
impl PartialEq for CacheSource {
    fn eq(&self, other: &CacheSource) -> bool {
        (&self.place, self.owner, self.may_be_missing) == (&other.place, other.owner, other.may_be_missing)
    }
}

impl Eq for CacheSource {}

impl CacheSource {
    /// Nothing is opened yet.
    pub fn new(place: CachePlace, owner: Option<(u32, u32)>, may_be_missing: bool) -> CacheSource {
        CacheSource { place, owner, may_be_missing, remote: None, opened: Arc::default() }
    }

    /// The same, where bytes that are not here come from a remote.
    pub fn with_remote(self, remote: Option<CacheRemote>) -> CacheSource {
        CacheSource { remote, ..self }
    }

    /// Whether it is a tree at a remote, and no cache.
    pub fn is_tree(&self) -> bool {
        matches!(self.place.scope, Scope::Remote(_))
    }

    /// Where bytes come from that are not here.
    pub fn far(&self) -> Option<&Arc<Far>> {
        self.remote.as_ref().map(|remote| &remote.0)
    }

    /// The generation that was opened; `None` if none was.
    pub fn snapshot(&self) -> Option<&Arc<Snapshot>> {
        self.opened.get().map(|(snapshot, _)| snapshot)
    }

    /// Takes the current generation or, with a remote, the newest one there. That changes files of the cache, which a
    /// thread that is confined to making a disk cannot do. Later calls keep what the first one took.
    ///
    /// # Errors
    /// There is none, or it cannot be read or fetched.
    pub fn take(&self) -> Result<(), OpenError> {
        if self.opened.get().is_none() {
            let (snapshot, absent) = self.read().map_err(|error| {
                // Its local copy, if it was made just now, is of no use.
                let _ = self.forget_new();
                OpenError::Cache(Box::new(error))
            })?;
            // Another thread may have opened it meanwhile.
            let _ = self.opened.set((Arc::new(snapshot), absent));
        }
        Ok(())
    }

    /// Opens the current generation. Later calls keep what the first one opened.
    pub(super) fn open(&self, selection: &Selection) -> Result<Opened, OpenError> {
        self.take()?;
        let (snapshot, absent) = self.opened.get().ok_or(OpenError::NoThread(std::io::ErrorKind::Other.into()))?;
        let (tree, content) = (Arc::clone(&snapshot.generation.tree), snapshot.content());
        let mut opened = Opened::of(tree, content);
        if *absent > 0 {
            let files = counted(*absent, "file is", "files are");
            opened.notes.push(format!("cache {}: {files} left out: the bytes are only at its remote", self.place.name));
        }
        // An overlay of one generation does not fit another one, in which a file of the same size and time may have
        // other bytes.
        opened.stamp = snapshot.generation.content_stamp();
        opened.select(&Source::Cache(Box::new(self.clone())), selection)
    }

    /// Removes the local copy of a remote's tree if it never received anything.
    fn forget_new(&self) -> Result<(), CacheError> {
        if !self.is_tree() {
            return Ok(());
        }
        let cache = Cache::existing(&self.place)?;
        let _locked = cache.lock()?;
        if cache.is_new()? {
            self.place.remove()?;
        }
        Ok(())
    }

    /// The cache whose generation this one begins with, if there is one.
    fn parent(&self) -> Result<Option<Cache>, CacheError> {
        let Some(place) = self.place.parent() else { return Ok(None) };
        match Cache::existing(&place) {
            Err(CacheError::Missing { .. }) => Ok(None),
            Err(error) => Err(error),
            Ok(cache) => Ok((!cache.is_new()?).then_some(cache)),
        }
    }

    fn read(&self) -> Result<(Snapshot, u64), CacheError> {
        let cache = if self.may_be_missing { Cache::make(&self.place)? } else { Cache::existing(&self.place)? };
        if self.may_be_missing {
            cache.use_now()?;
        }
        let far = self.far().filter(|far| !far.is_lost());
        let cache = cache.with_far(far.cloned());
        if let (Scope::Remote(_), Some(far)) = (&self.place.scope, far) {
            adopt(&cache, far, true)?;
        }
        // The remote is the branch's. Of the default branch's cache only what is here is used.
        let parent = if cache.is_new()? { self.parent()? } else { None };
        let read = parent.as_ref().unwrap_or(&cache);
        let mut snapshot = read.snapshot()?;
        let mut absent = 0;
        if far.is_none() || parent.is_some() {
            (snapshot.generation, absent) = without_absent(read, &snapshot.generation)?;
        } else if let (0, Scope::Remote(url)) = (snapshot.generation.body.number, &self.place.scope) {
            return Err(CacheError::Remote { place: url.clone(), reason: "nothing was pushed there".to_owned() });
        }
        snapshot.is_parent_s = parent.is_some();
        if let Some(owner) = self.owner {
            snapshot.generation = of_owner(&snapshot.generation, owner)?;
        }
        Ok((snapshot, absent))
    }
}

/// What follows `cache:`: the name of a cache of the current directory's project, or `SCOPE/NAME`.
pub(super) fn source(text: &[u8]) -> Result<Source, CacheError> {
    let text = String::from_utf8_lossy(text);
    let here = std::env::current_dir()?;
    let (scope, name) = text.split_once('/').unwrap_or(("project", &text));
    let place = CachePlace::of_user(Scope::parse(scope, &here)?, name)?;
    let remote = match std::env::var(REMOTE) {
        Ok(url) if !url.is_empty() => Some(CacheRemote::of(&Location::parse(&url)?, &place, false)?),
        _ => None,
    };
    Ok(Source::Cache(Box::new(CacheSource::new(place, None, false).with_remote(remote))))
}

/// The variable with the URL of the remote of all caches.
pub const REMOTE: &str = "INARCH_CACHE_REMOTE";

/// The name of the local copy of a tree at a remote.
const TREE: &str = "tree";

/// The tree at a remote.
pub(super) fn remote(url: &str) -> Result<Source, CacheError> {
    let location = Location::parse(url)?;
    let place = CachePlace::new(&home()?, Scope::Remote(location.to_string()), TREE)?;
    // Later, a confined thread is granted what is there.
    Cache::make(&place)?;
    let far = CacheRemote(Arc::new(Far::start(location.clone(), location.to_string(), false)?));
    Ok(Source::Cache(Box::new(CacheSource::new(place, None, true).with_remote(Some(far)))))
}

/// The generation with all files belonging to one user and group.
pub fn of_owner(generation: &Generation, (uid, gid): (u32, u32)) -> Result<Generation, CacheError> {
    let selection = Selection { owners: OwnerMap::Fixed { uid, gid }.into(), ..Selection::default() };
    let selected = select(&generation.tree, &selection, &|_, _| None)?;
    let file = |id: &InodeId| generation.files.get(id.index()).copied().flatten();
    let files = selected.origins.iter().map(file).collect();
    Ok(Generation {
        body: generation.body.clone(),
        tree: Arc::new(selected.tree),
        files,
        lists: Arc::clone(&generation.lists),
    })
}
