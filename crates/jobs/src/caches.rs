//! `inarch cache`: lists, checks, prunes and publishes the caches that guests use, and exchanges them with remotes.

mod change;
mod prune;
mod publish;
mod pull;
mod push;
mod verify;

use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;
use std::time::SystemTime;

use inarch_block::Content;
use inarch_cache::{
    Cache, CacheError, CachePlace, CacheRemote, Far, Location, Rules, Scope, Snapshot, all, content_digest, has_bytes,
    home,
};
use inarch_kept::same::{Side, have_same_bytes};
use inarch_source::{Source, open, parse};
use inarch_tree::compare::Lineage;
use inarch_tree::select::{OwnerMap, Selection};
use inarch_tree::{InodeId, Tree};
use serde::Serialize;

use crate::JobError;
pub use change::Published;
pub(crate) use change::{Change, Newer};
pub use prune::{Limits, OF_REGISTRIES, Pruned, prune, prune_all};
pub use publish::publish_from;
pub(crate) use pull::pull;
pub use push::Pushed;
pub(crate) use push::push;
pub use verify::{Verified, verify};

/// What is known of a cache.
#[derive(Clone, Debug, Serialize)]
pub struct CacheReport {
    /// Its name.
    pub name: String,
    /// Whose it is: a project's directory, `user`, or a name.
    pub scope: String,
    /// The number of its current generation; 0 before the first.
    pub generation: u64,
    /// How many regular files it has.
    pub files: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Bytes on the disk.
    pub stored: u64,
    /// When its generation was published, in seconds since 1970.
    pub published: u64,
    /// When a guest last had it, in seconds since 1970.
    pub used: u64,
    /// The command that published its generation.
    pub made_by: String,
    /// Its directory.
    pub directory: String,
    /// What is wrong with it; then its generation, files and their bytes are not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub damage: Option<String>,
}

/// All caches of this user, by scope and name.
///
/// # Errors
/// They cannot be listed.
pub fn list() -> Result<Vec<CacheReport>, JobError> {
    // One that was removed just now is left out.
    let report_anyway = |place: &CachePlace| report(place).or_else(|error| of_damaged(place, &error)).ok();
    Ok(all(&home()?)?.iter().filter_map(report_anyway).collect())
}

/// The places of all caches of this user.
///
/// # Errors
/// They cannot be listed.
pub fn all_places() -> Result<Vec<CachePlace>, JobError> {
    Ok(all(&home()?)?)
}

/// What is known of one.
///
/// # Errors
/// There is none, or it is damaged.
pub fn show(place: &CachePlace) -> Result<CacheReport, JobError> {
    Ok(report(place)?)
}

fn report(place: &CachePlace) -> Result<CacheReport, CacheError> {
    let cache = Cache::existing(place)?;
    let Snapshot { generation, .. } = &cache.snapshot()?;
    let (files, bytes) = generation.totals();
    Ok(CacheReport {
        generation: generation.body.number,
        files,
        bytes,
        published: generation.body.time,
        made_by: generation.body.made_by.clone(),
        ..of_directory(place, &cache)
    })
}

/// What is known of a cache whose generation cannot be read.
fn of_damaged(place: &CachePlace, damage: &CacheError) -> Result<CacheReport, CacheError> {
    let known = of_directory(place, &Cache::existing(place)?);
    Ok(CacheReport { damage: Some(damage.to_string()), ..known })
}

/// What its directory tells.
fn of_directory(place: &CachePlace, cache: &Cache) -> CacheReport {
    let used = cache.used().and_then(|used| used.duration_since(SystemTime::UNIX_EPOCH).ok());
    CacheReport {
        name: place.name.clone(),
        scope: place.scope.to_string(),
        generation: 0,
        files: 0,
        bytes: 0,
        stored: disk_bytes(cache.dir()),
        published: 0,
        used: used.map_or(0, |used| used.as_secs()),
        made_by: String::new(),
        directory: cache.dir().to_string_lossy().into_owned(),
        damage: None,
    }
}

/// Bytes that the files of a cache take on the disk.
fn disk_bytes(directory: &Path) -> u64 {
    let of = |entry: std::fs::DirEntry| match entry.metadata() {
        Ok(metadata) if metadata.is_dir() => disk_bytes(&entry.path()),
        // st_blocks counts 512 bytes.
        Ok(metadata) => metadata.blocks() * 512,
        Err(_) => 0,
    };
    std::fs::read_dir(directory).into_iter().flatten().flatten().map(of).sum()
}

/// Removes a cache.
///
/// # Errors
/// There is none, or it cannot be removed.
pub fn remove(place: &CachePlace) -> Result<(), JobError> {
    let cache = Cache::existing(place)?;
    let _locked = cache.lock()?;
    let _closed = cache.close(true)?.map_err(|by| CacheError::InUse { name: place.name.clone(), by })?;
    Ok(place.remove().map_err(CacheError::from)?)
}

/// The caches that a name means: those of a tool, in this order of their names, or the one with this name.
///
/// # Errors
/// It cannot be a name.
pub fn places(scope: &Scope, name: &str) -> Result<Vec<CachePlace>, JobError> {
    let tools = inarch_cache::tool(name);
    let names = if tools.is_empty() { vec![name] } else { tools.iter().map(|tool| tool.name).collect() };
    Ok(names.into_iter().map(|name| CachePlace::of_user(scope.clone(), name)).collect::<Result<_, _>>()?)
}

/// Publishes what `source` has and the cache lacks. Nothing is removed. All files are stored as root's; a run gives them to its user.
///
/// # Errors
/// The source cannot be read, or the cache not be written.
pub fn warm(place: &CachePlace, source: &Source, selection: &Selection) -> Result<Published, JobError> {
    let owner = (0, 0);
    let selection = Selection { owners: OwnerMap::Fixed { uid: owner.0, gid: owner.1 }.into(), ..selection.clone() };
    let opened = open(source, &selection)?;
    let store = Cache::make(place)?;
    let mut base = store.snapshot()?;
    base.generation = inarch_source::of_owner(&base.generation, owner)?;
    let rules = Rules::of(&place.name);
    let mut pack = store.new_pack()?;
    let lineage = Unrelated { old: (&base.generation.tree, &*base.content()), new: (&opened.tree, &*opened.content) };
    let newer = Newer::new(&opened.tree, &*opened.content, &lineage);
    // A directory's files are opened when they are read.
    let change = match source {
        Source::Directory(_) => Change::find(&newer, &base.generation, &rules, Some(&mut pack))?,
        _ => parse(|_| Change::find(&newer, &base.generation, &rules, Some(&mut pack)))??,
    };
    Ok(change.publish(
        (&store, &base),
        pack,
        &rules,
        Some(owner),
        &format!("inarch cache warm {} {source}", place.name),
    )?)
}

/// Pushes the current generation of a cache to a remote.
///
/// # Errors
/// There is no such cache, or the remote does not take it.
pub fn push_to(place: &CachePlace, remote: &CacheRemote) -> Result<Pushed, JobError> {
    let cache = Cache::existing(place)?.with_far(Some(Arc::clone(&remote.0)));
    Ok(push(&cache, &remote.0)?)
}

/// Takes the current generation of a remote. Returns the number of the new generation here; `None` if there is nothing new.
///
/// # Errors
/// The remote cannot be read, or the cache not be written.
pub fn pull_from(place: &CachePlace, remote: &CacheRemote) -> Result<Option<u64>, JobError> {
    let cache = Cache::make(place)?.with_far(Some(Arc::clone(&remote.0)));
    Ok(pull(&cache, &remote.0)?)
}

/// Publishes a tree at a remote, where it replaces the one before. `made_by` is for people.
///
/// # Errors
/// The source cannot be read, or the remote does not take it.
pub fn push_source(
    source: &Source,
    selection: &Selection,
    location: &Location,
    made_by: &str,
) -> Result<Pushed, JobError> {
    let opened = open(source, selection)?;
    let far = Far::start(location.clone(), location.to_string(), true)?;
    let digests = || -> Result<Vec<_>, CacheError> {
        let digest = |(id, inode): (InodeId, &inarch_tree::Inode)| {
            let has = has_bytes(&opened.tree, id);
            Ok(has.then(|| content_digest(&*opened.content, id, inode.size())).transpose()?)
        };
        opened.tree.inodes().map(digest).collect()
    };
    let is_foreign = source.is_foreign();
    let digests = if is_foreign { parse(|_| digests())?? } else { digests()? };
    let local = push::Local { tree: &opened.tree, content: &*opened.content, digests, is_foreign };
    Ok(push::push_tree(&local, &far, made_by)?)
}

/// Two trees; only their bytes are known.
pub(crate) struct Unrelated<'a> {
    /// The tree before, and its content.
    pub old: (&'a Arc<Tree>, &'a dyn Content),
    /// The tree now, and its content.
    pub new: (&'a Arc<Tree>, &'a dyn Content),
}

impl Lineage for Unrelated<'_> {
    fn origin(&self, _new: InodeId) -> Option<InodeId> {
        None
    }

    fn same_content(&self, old: InodeId, new: InodeId) -> bool {
        let was = Side { content: self.old.1, tree: self.old.0, inode: old };
        let is = Side { content: self.new.1, tree: self.new.0, inode: new };
        have_same_bytes(is, was, &[]).unwrap_or(false)
    }
}
