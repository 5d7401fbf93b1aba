//! A kept run: opens it, gives its disks kept overlays, and stores the guest's changes at the end.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use inarch_block::OverlayError;
use inarch_kept::disk_space::require;
use inarch_kept::{
    Bytes, FoldNote, KeptBase, KeptError, KeptRun, KeptTree, OwnersBack, Record, Store, fold, now, settle,
};
use inarch_lifecycle::Events;
use inarch_lifecycle::shown;
use inarch_source::Source;

use super::live_disk::LiveDisk;
use super::request::{Keep, RunRequest};
use super::trees::{Disk, Trees};
use super::{RunError, RunEvent};
use crate::JobError;
use crate::device::Writes;

/// The words with which the kept run `name` began, and the directory in which they were given; `None` if there is no
/// such run.
///
/// # Errors
/// A tree of it no longer exists on this machine.
pub fn kept_words(name: &str) -> Result<Option<(Vec<OsString>, PathBuf)>, JobError> {
    let record = Store::of_user()?.look(name)?.map(|(record, _)| record);
    if let Some(gone) = record.iter().flat_map(|record| &record.trees).find(|tree| tree.is_gone()) {
        return Err(RunError::TreeGone { name: name.to_owned(), tree: gone.source() }.into());
    }
    Ok(record.map(|record| (record.words.iter().map(Bytes::to_os_string).collect(), record.directory.to_path())))
}

/// A kept run in progress.
pub(super) struct Kept {
    store: Store,
    run: KeptRun,
    /// Its record before this command.
    before: Option<Record>,
}

impl Kept {
    /// Opens and locks the run.
    pub fn open(keep: &Keep, events: &Events<RunEvent>) -> Result<Kept, JobError> {
        let store = Store::of_user()?;
        let mut run = store.open_or_create(&keep.name)?;
        if run.record.as_ref().is_some_and(|record| record.applying.is_some()) {
            return Err(KeptError::Applying { name: keep.name.clone(), more: "" }.into());
        }
        settle(&mut run)?;
        // Folds the changes of a command that was killed.
        fold(&run)?.into_iter().for_each(|note| events.emit(RunEvent::Kept(note)));
        let before = run.record.clone();
        Ok(Kept { store, run, before })
    }

    /// The directory in which the run began; its tree may have been brought along.
    pub fn place(&self) -> Option<PathBuf> {
        self.run.record.as_ref().and_then(|record| record.place.as_ref()).map(Bytes::to_path)
    }

    /// Gives the disks kept overlays. Refuses trees that are not the run's.
    pub fn take(&self, disks: &mut [Disk]) -> Result<(), JobError> {
        let trees = disks.iter().map(tree).collect::<Result<Vec<_>, _>>()?;
        let is_like = |record: &Record| {
            record.trees.len() == trees.len() && record.trees.iter().zip(&trees).all(|(then, now)| then.is_like(now))
        };
        if let Some(record) = &self.run.record
            && !is_like(record)
        {
            let words: Vec<String> = record.words.iter().map(|word| shown(Path::new(&word.to_os_string()))).collect();
            let words = if words.is_empty() { "none".to_owned() } else { words.join(" ") };
            return Err(RunError::OtherTrees { name: self.run.name().to_owned(), words }.into());
        }
        trees.iter().try_for_each(|tree| self.run.refuse_another_volume(tree))?;
        if disks.iter().any(|disk| !disk.read_only) {
            require(self.store.home())?;
        }
        for disk in disks {
            if !disk.read_only {
                let files = self.run.files(disk.recipe.ordinal);
                disk.recipe.writes = Writes::Kept(files.next_overlay()?);
                let destination = disk.destination.clone().unwrap_or_default();
                disk.recipe.kept = Some(KeptBase { run: self.run.name().to_owned(), destination, files });
            }
            leave_out(self.store.home(), disk);
        }
        Ok(())
    }

    /// Records that the command is about to run.
    pub fn begin(
        &mut self,
        request: &RunRequest,
        keep: &Keep,
        trees: &Trees,
        place: Option<&Path>,
    ) -> Result<(), JobError> {
        let shares = trees.shares.iter().map(|tree| &tree.destination);
        let beside =
            shares.chain(trees.unpacked.iter().map(|tree| &tree.destination)).map(|path| Bytes::path(path)).collect();
        let command = request.command.iter().map(|word| Bytes::new(word.as_bytes())).collect();
        let disks = trees.disks.iter().map(tree).collect::<Result<_, _>>()?;
        let record = match self.run.record.clone() {
            Some(record) => Record { command, trees: disks, status: None, used: now(), beside, ..record },
            None => Record {
                command,
                trees: disks,
                beside,
                words: keep.words.iter().map(|word| Bytes::new(word.as_bytes())).collect(),
                directory: Bytes::path(&keep.directory),
                place: place.map(Bytes::path),
                ..Record::begun()
            },
        };
        Ok(self.run.save(record)?)
    }

    /// Discards a run that never began.
    pub fn refuse(self) {
        if self.before.is_none() {
            // The refusal is what the user must read; an empty directory is not a run.
            let _ = self.store.discard(self.run);
        }
    }

    /// Makes the guest's writes durable, records how the command ended, and folds the guest's changes into the layer.
    /// If no guest booted, it is as if there had been no command.
    pub fn end(mut self, disks: Vec<LiveDisk>, status: Option<u8>, events: &Events<RunEvent>) -> Result<(), JobError> {
        if status.is_none() && disks.iter().all(LiveDisk::is_untouched) {
            let trees = self.run.record.iter().flat_map(|record| &record.trees);
            for tree in trees.filter(|tree| !tree.read_only) {
                self.run.files(tree.ordinal).drop_unfolded()?;
            }
            match self.before {
                Some(before) => self.run.save(before)?,
                None => self.store.discard(self.run)?,
            }
            return Ok(());
        }
        for disk in &disks {
            disk.flush()?;
        }
        if let Some(record) = self.run.record.clone() {
            self.run.save(Record { status, used: now(), ..record })?;
        }
        // The servers' threads release the overlays after the machine has ended.
        drop(disks);
        let notes = fold_released(self.run.name(), RELEASE_PATIENCE, || fold(&self.run))?;
        notes.into_iter().for_each(|note| events.emit(RunEvent::Kept(note)));
        Ok(())
    }
}

/// How long the servers' threads may take to end after their machine.
const RELEASE_PATIENCE: Duration = Duration::from_secs(10);

/// Folds a command's writes once its overlays are closed everywhere. Returns what could not be kept, and the overlay that stays in use for
/// longer than `patience`; the run's next use folds that.
fn fold_released(
    name: &str,
    patience: Duration,
    mut fold: impl FnMut() -> Result<Vec<FoldNote>, KeptError>,
) -> Result<Vec<FoldNote>, KeptError> {
    const INTERVAL: Duration = Duration::from_millis(20);
    let until = Instant::now() + patience;
    loop {
        match fold() {
            Err(KeptError::Overlay(OverlayError::InUse(path))) if Instant::now() >= until => {
                return Ok(vec![FoldNote::InUse { overlay: path, run: name.to_owned() }]);
            }
            Err(KeptError::Overlay(OverlayError::InUse(_))) => thread::sleep(INTERVAL),
            folded => return folded,
        }
    }
}

fn tree(disk: &Disk) -> Result<KeptTree, JobError> {
    let source = disk.recipe.source.path();
    let Some(destination) = disk.destination.as_ref().filter(|_| !disk.overlaid) else {
        return Err(RunError::NotKept { destination: None, more: "" }.into());
    };
    if disk.recipe.selection.epoch.is_some() && !disk.read_only {
        return Err(RunError::Epoch.into());
    }
    if !matches!(disk.recipe.source, Source::Directory(_)) && !disk.read_only {
        return Err(RunError::Archive { tree: source.to_owned() }.into());
    }
    let source = source.canonicalize().map_err(|error| JobError::path(source, "cannot be used as a tree", error))?;
    let owners = OwnersBack::new(&disk.recipe.selection.owners);
    let tree =
        KeptTree::new(&source, destination, disk.read_only, disk.recipe.ordinal, owners, disk.recipe.selection.cross);
    if disk.read_only { Ok(tree) } else { Ok(tree.with_volume()?) }
}

/// Excludes the store of kept runs from a tree that contains it: otherwise keeping a run would change its tree.
fn leave_out(store: &Path, disk: &mut Disk) {
    let Source::Directory(source) = &disk.recipe.source else { return };
    let (Ok(store), Ok(source)) = (store.canonicalize(), source.canonicalize()) else { return };
    if let Ok(below) = store.strip_prefix(&source)
        && below != Path::new("")
    {
        disk.recipe.selection.leave_out.push(below.as_os_str().as_bytes().to_owned());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn in_use() -> Result<Vec<FoldNote>, KeptError> {
        Err(KeptError::Overlay(OverlayError::InUse("0.1.overlay".into())))
    }

    #[test]
    fn an_overlay_that_is_released_late_is_folded() {
        let mut tries = 0;
        let folded = fold_released("x", Duration::from_secs(600), || {
            tries += 1;
            if tries < 4 {
                in_use()
            } else {
                Ok(vec![FoldNote::MoreTooDeep { destination: "/".into(), directories: 1 }])
            }
        });
        assert!(matches!(folded.unwrap()[..], [FoldNote::MoreTooDeep { .. }]) && tries == 4);
    }

    #[test]
    fn an_overlay_that_stays_in_use_is_said() {
        let notes = fold_released("x", Duration::ZERO, in_use).unwrap();
        let lines: Vec<String> = notes.iter().map(FoldNote::to_string).collect();
        assert!(lines.len() == 1 && lines[0].contains("0.1.overlay: is still in use"), "{lines:?}");
        assert!(lines[0].contains("not counted yet") && lines[0].contains("inarch diff x"), "{lines:?}");
        let failed = fold_released("x", Duration::from_secs(600), || Err(KeptError::Missing("another".into())));
        assert!(matches!(failed, Err(KeptError::Missing(_))));
    }
}
