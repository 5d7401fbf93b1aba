//! [`pull`]: takes the current generation of a remote into a cache. Names and digests come at once, the bytes of files when they are read.

use inarch_cache::{Adopted, Cache, CacheError, Far, Generation, Rules, Snapshot, Synced, adopt, make_packs};
use inarch_kept::now;
use inarch_source::of_owner;
use inarch_tree::InodeId;
use inarch_tree::compare::Lineage;

use super::{Change, Newer};

/// Two generations whose files have digests.
pub(super) struct ByDigest<'a> {
    pub old: &'a Generation,
    pub new: &'a Generation,
}

impl Lineage for ByDigest<'_> {
    fn origin(&self, _new: InodeId) -> Option<InodeId> {
        None
    }

    fn same_content(&self, old: InodeId, new: InodeId) -> bool {
        let digest = |generation: &Generation, id: InodeId| {
            generation.files.get(id.index()).copied().flatten().map(|stored| stored.digest)
        };
        digest(self.old, old) == digest(self.new, new)
    }
}

/// Takes the current generation of a remote. If nothing was published here since both were the same, it becomes the current one here as it
/// is. Otherwise it is merged, as if it were published here just now. Returns the number of the new generation here; `None` if the remote has nothing
/// new.
pub(crate) fn pull(cache: &Cache, far: &Far) -> Result<Option<u64>, CacheError> {
    match adopt(cache, far, false)? {
        Adopted::Nothing => Ok(None),
        Adopted::Copy(number) => Ok(Some(number)),
        Adopted::Differs { head, there, base } => {
            let published = merge(cache, &base, &there)?;
            let location = far.location().to_string();
            Synced { location, there: head.generation, here: None }.store(cache.dir())?;
            Ok(published)
        }
    }
}

fn merge(cache: &Cache, base: &Snapshot, there: &Generation) -> Result<Option<u64>, CacheError> {
    let (old, new) = (of_owner(&base.generation, (0, 0))?, of_owner(there, (0, 0))?);
    let rules = Rules::of(&cache.place().name);
    let (of_new, content) = (new.places(), base.content());
    let lineage = ByDigest { old: &old, new: &new };
    let newer = Newer {
        stored: &|id| of_new.get(id.index()).cloned().flatten(),
        lists: Some(&there.lists),
        ..Newer::new(&new.tree, &*content, &lineage)
    };
    let change = Change::find(&newer, &old, &rules, None)?;
    if change.is_nothing() {
        return Ok(None);
    }
    let mut published = super::Published::default();
    let made_by = &there.body.made_by;
    cache.lock()?.publish(cache.new_pack()?, (made_by, now()), base, |current, _| {
        make_packs(cache, there)?;
        change.merged(&of_owner(current, (0, 0))?, "", &rules, &mut published)
    })
}
