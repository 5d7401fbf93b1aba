//! Handles a run whose changes were all applied: its next command starts from the host's trees as they are.
//!
//! What an apply writes is first in the host's page cache, as with any copy. So the guest's writes stay until the
//! data is on the disk: the next command syncs the trees, and then drops the writes. If the machine was rebooted in
//! between, it may have crashed, so every file is compared with what was applied. The same happens if a tree's file
//! system was mounted again, because it may have been taken away, and after a failed sync, because the kernel reports a
//! failed write once and lets the next sync succeed.

use std::collections::HashSet;
use std::iter;

use super::KeptRun;
use super::apply::{first_missing, make_durable};
use super::bytes::Bytes;
use super::clock::boot;
use super::diff::RunDiff;
use super::record::{Applied, KeptTree, Record, UNKNOWN_BOOT};
use super::volume::mount_of;
use crate::KeptError;

impl Applied {
    /// An apply to these trees that ends now, which wrote to these directories in each.
    pub fn now<'d>(written: impl IntoIterator<Item = (&'d KeptTree, HashSet<&'d [u8]>)>) -> Result<Applied, KeptError> {
        let mut mounts = Vec::new();
        for (tree, directories) in written {
            let mut seen = HashSet::new();
            let within = directories.into_iter().filter(|_| tree.cross);
            for path in iter::once(&b""[..]).chain(within) {
                let path = Bytes::new(path);
                let mount = mount_of(&tree.source().join(path.to_path()));
                mounts.extend(mount.filter(|mount| seen.insert(*mount)).map(|mount| (tree.ordinal, path, mount)));
            }
        }
        Ok(Applied { boot: boot()?, mounts })
    }

    /// Whether the trees are on the mounts on which they were. What a file system had not written when it was taken
    /// away is nowhere, and syncing its next mount says nothing of that.
    pub fn is_on_same_mounts(&self, trees: &[KeptTree]) -> bool {
        let is_same = |(ordinal, path, mount): &(u8, Bytes, u64)| {
            let tree = trees.iter().find(|tree| tree.ordinal == *ordinal);
            tree.is_none_or(|tree| mount_of(&tree.source().join(path.to_path())) == Some(*mount))
        };
        self.mounts.iter().all(is_same)
    }
}

/// Drops the guest's writes of a run if everything was applied.
pub fn settle(run: &mut KeptRun) -> Result<(), KeptError> {
    let Some(mut record) = run.record.clone() else { return Ok(()) };
    let Some(applied) = &record.applied else { return Ok(()) };
    if applied.boot == boot()? && !applied.is_on_same_mounts(&record.trees) {
        record = record.in_doubt();
        run.save(record.clone())?;
    }
    let Some(applied) = &record.applied else { return Ok(()) };
    let is_new_boot = applied.boot != boot()?;
    let writable = || record.trees.iter().filter(|tree| !tree.read_only);
    let needs_diff = is_new_boot || writable().any(|tree| tree.cross);
    let diff = needs_diff.then(|| RunDiff::of(run, &record)).transpose()?;
    if let Some(diff) = diff.as_ref().filter(|_| is_new_boot)
        && let Some(path) = first_missing(run, &record, diff)?
    {
        let since = match applied.boot == UNKNOWN_BOOT {
            true => "the disk failed or was mounted again after",
            false => "the machine was started again since",
        };
        return Err(KeptError::Lost { since, name: run.name().to_owned(), path });
    }
    for tree in writable() {
        let of_tree = diff.iter().flat_map(RunDiff::trees).filter(|one| one.tree == *tree);
        let written = of_tree.flat_map(|one| &one.differences).map(|difference| &difference.path[..]);
        if let Err(error) = make_durable(tree, written) {
            run.save(record.in_doubt())?;
            return Err(error);
        }
    }
    run.start_anew()?;
    run.save(Record { applied: None, made: None, ..record })
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::path::Path;

    use super::super::staged::{Staged, tear};
    use super::*;

    const WRITTEN: &[u8] = b"what the guest wrote";

    fn applied(dir: &Path) -> Staged {
        let (host, guest) = (dir.join("host"), dir.join("guest"));
        for side in [&host, &guest] {
            fs::create_dir(side).unwrap();
            fs::write(side.join("untouched"), "as it was").unwrap();
        }
        fs::create_dir(guest.join("below")).unwrap();
        fs::write(guest.join("below/new"), WRITTEN).unwrap();
        let mut staged = Staged::new(&host, &guest);
        let report = staged.apply().unwrap();
        assert!(report.complete, "{report:?}");
        assert_eq!(fs::read(host.join("below/new")).unwrap(), WRITTEN);
        staged
    }

    #[test]
    fn what_a_fall_of_the_machine_tore_is_named_and_brought_again() {
        let dir = tempfile::tempdir().unwrap();
        let mut staged = applied(dir.path());
        let new = dir.path().join("host/below/new");
        staged.start_machine_again();
        tear(&new);
        let refusal = settle(&mut staged.run).unwrap_err().to_string();
        assert!(refusal.contains("the machine was started again since the kept run 'staged' was applied"), "{refusal}");
        assert!(refusal.contains(&*new.to_string_lossy()) && refusal.contains("inarch apply staged"), "{refusal}");
        let report = staged.apply().unwrap();
        assert!(report.complete, "{report:?}");
        assert_eq!(fs::read(&new).unwrap(), WRITTEN);
        settle(&mut staged.run).unwrap();
        assert!(staged.run.files(0).load_layer().unwrap().is_none_or(|layer| layer.is_empty()));
    }

    #[test]
    fn what_is_there_after_another_start_is_let_go_of() {
        let dir = tempfile::tempdir().unwrap();
        let mut staged = applied(dir.path());
        staged.start_machine_again();
        settle(&mut staged.run).unwrap();
        assert_eq!(staged.run.record.as_ref().map(|record| record.applied.is_some()), Some(false));
        assert!(staged.run.files(0).load_layer().unwrap().is_none_or(|layer| layer.is_empty()));
    }

    #[test]
    fn what_changed_within_one_start_is_the_hosts_own_doing() {
        let dir = tempfile::tempdir().unwrap();
        let mut staged = applied(dir.path());
        tear(&dir.path().join("host/below/new"));
        settle(&mut staged.run).unwrap();
        assert!(staged.run.files(0).load_layer().unwrap().is_none_or(|layer| layer.is_empty()));
    }
}
