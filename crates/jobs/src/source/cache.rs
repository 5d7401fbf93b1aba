//! [`CacheSource`]: a cache as a source of a tree.

use std::sync::{Arc, OnceLock};

use inarch_tree::InodeId;
use inarch_tree::select::{OwnerMap, Selection, select};

use super::{OpenError, Opened, Source};
use crate::cache::{Cache, CacheError, CachePlace, Generation, Scope, Snapshot};

/// A cache, the tree of which is its current generation.
#[derive(Clone, Debug)]
pub struct CacheSource {
    /// Where it is.
    pub place: CachePlace,
    /// The user and group to whom all of it belongs; as it is stored if `None`.
    pub owner: Option<(u32, u32)>,
    /// Whether a cache that is not there is an empty tree.
    pub may_be_missing: bool,
    /// The generation that was opened.
    opened: Arc<OnceLock<Arc<Snapshot>>>,
}

/// Two are the same if they name the same.
impl PartialEq for CacheSource {
    fn eq(&self, other: &CacheSource) -> bool {
        (&self.place, self.owner, self.may_be_missing) == (&other.place, other.owner, other.may_be_missing)
    }
}

impl Eq for CacheSource {}

impl CacheSource {
    /// Nothing is opened yet.
    pub fn new(place: CachePlace, owner: Option<(u32, u32)>, may_be_missing: bool) -> CacheSource {
        CacheSource { place, owner, may_be_missing, opened: Arc::default() }
    }

    /// The generation that was opened; `None` if none was.
    pub(crate) fn snapshot(&self) -> Option<&Arc<Snapshot>> {
        self.opened.get()
    }

    /// Opens the current generation. What is opened first stays.
    pub(super) fn open(&self, selection: &Selection) -> Result<Opened, OpenError> {
        if self.opened.get().is_none() {
            let snapshot = self.read().map_err(|error| OpenError::Cache(Box::new(error)))?;
            // Another thread may have opened it meanwhile.
            let _ = self.opened.set(Arc::new(snapshot));
        }
        let snapshot = self.opened.get().ok_or(OpenError::NoThread(std::io::ErrorKind::Other.into()))?;
        let (tree, content) = (Arc::clone(&snapshot.generation.tree), snapshot.content());
        Opened::of(tree, content).select(&Source::Cache(Box::new(self.clone())), selection)
    }

    /// The cache that this one begins with, if that has anything.
    fn parent(&self) -> Result<Option<Cache>, CacheError> {
        let Some(place) = self.place.parent() else { return Ok(None) };
        match Cache::existing(&place) {
            Err(CacheError::Missing { .. }) => Ok(None),
            Err(error) => Err(error),
            Ok(cache) => Ok((!cache.is_new()?).then_some(cache)),
        }
    }

    fn read(&self) -> Result<Snapshot, CacheError> {
        let cache = if self.may_be_missing { Cache::make(&self.place)? } else { Cache::existing(&self.place)? };
        if self.may_be_missing {
            cache.use_now()?;
        }
        let parent = if cache.is_new()? { self.parent()? } else { None };
        let mut snapshot = parent.as_ref().unwrap_or(&cache).snapshot()?;
        snapshot.is_parent_s = parent.is_some();
        if let Some(owner) = self.owner {
            snapshot.generation = of_owner(&snapshot.generation, owner)?;
        }
        Ok(snapshot)
    }
}

/// What follows `cache:`: the name of a cache of the current directory's project, or `SCOPE/NAME`.
pub(super) fn source(text: &[u8]) -> Result<Source, CacheError> {
    let text = String::from_utf8_lossy(text);
    let here = std::env::current_dir()?;
    let (scope, name) = text.split_once('/').unwrap_or(("project", &text));
    let place = CachePlace::of_user(Scope::parse(scope, &here)?, name)?;
    Ok(Source::Cache(Box::new(CacheSource::new(place, None, false))))
}

/// The generation with all files belonging to one user and group.
pub(crate) fn of_owner(generation: &Generation, (uid, gid): (u32, u32)) -> Result<Generation, CacheError> {
    let selection = Selection { owners: OwnerMap::Fixed { uid, gid }.into(), ..Selection::default() };
    let selected = select(&generation.tree, &selection, &|_, _| None)?;
    let file = |id: &InodeId| generation.files.get(id.index()).copied().flatten();
    let files = selected.origins.iter().map(file).collect();
    Ok(Generation { body: generation.body.clone(), tree: Arc::new(selected.tree), files })
}
