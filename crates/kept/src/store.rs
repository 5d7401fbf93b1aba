//! The store of kept runs: a folder for each, with a lock.
//!
//! | file | content |
//! |---|---|
//! | `lock` | locked by the process that uses the run; contains its number |
//! | `run.json` | the [`Record`] |
//! | `N.*` | the data of disk N, see [`DiskFiles`] |
//!
//! A folder is created under its final name, and is a run once it has a record. To discard a run, its folder is
//! renamed to a name that no run can have. So there is never half a run.
//!
//! Record and layer determine what `apply` writes to the host, and where. So nothing is used that another user could
//! have written ([`trust`]).

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use inarch_lifecycle::trust::{self, Missing, Obstacle, Owner};
use inarch_lifecycle::{FileLock, state};
use inarch_tree::layer::Layer;
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use super::durable::replace;
use super::files::DiskFiles;
use super::limits::{LONGEST_NAME, VERSION};
use super::record::{KeptTree, Record};
use super::volume::VolumeId;
use crate::KeptError;

/// The prefix of a discarded run's folder until it is deleted.
const DISCARDED: &str = ".discarded-";

/// All kept runs of a user.
#[derive(Clone, Debug)]
pub struct Store {
    /// `inarch` in the directory of state: a tree that holds it leaves it out.
    home: PathBuf,
}

/// A kept run that this process has for itself.
#[derive(Debug)]
pub struct KeptRun {
    name: String,
    folder: PathBuf,
    /// Its record; `None` for a new run.
    pub record: Option<Record>,
    /// Held until the end.
    _lock: FileLock,
}

impl Store {
    /// The store in [`state::home`].
    pub fn of_user() -> Result<Store, KeptError> {
        Ok(Store { home: state::home().ok_or(KeptError::NoPlace)? })
    }

    /// A store in another directory.
    #[cfg(test)]
    pub fn at(home: &Path) -> Store {
        Store { home: home.to_owned() }
    }

    /// Everything of this program's that is kept, the runs among it.
    pub fn home(&self) -> &Path {
        &self.home
    }

    /// The folder of the run with this name, if it is there or is made now.
    fn folder(&self, name: &str, missing: Missing) -> Result<Option<PathBuf>, Obstacle> {
        let is_there = trust::directory(&self.home, &["runs", name], missing, Owner::User)?;
        Ok(is_there.then(|| self.home.join("runs").join(name)))
    }

    fn existing_folder(&self, name: &str) -> Result<Option<PathBuf>, KeptError> {
        check_name(name)?;
        self.folder(name, Missing::Leave).map_err(unusable)
    }

    /// The names of all runs, sorted.
    pub fn names(&self) -> Result<Vec<String>, KeptError> {
        let runs = self.home.join("runs");
        let fail = |error| KeptError::path(&runs, "cannot list the kept runs", error);
        if !trust::directory(&self.home, &["runs"], Missing::Leave, Owner::User).map_err(unusable)? {
            return Ok(Vec::new());
        }
        let entries = match fs::read_dir(&runs) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(fail(error)),
        };
        let mut names = Vec::new();
        for entry in entries {
            let entry = entry.map_err(fail)?;
            let name = entry.file_name().into_string().ok().filter(|name| check_name(name).is_ok());
            names.extend(name.filter(|_| entry.path().join(RECORD).exists()));
        }
        names.sort();
        Ok(names)
    }

    /// The run with this name, made if it is not there, for this process alone.
    pub fn open_or_create(&self, name: &str) -> Result<KeptRun, KeptError> {
        check_name(name)?;
        for tries_left in (0..10).rev() {
            let folder = match self.folder(name, Missing::Make) {
                Ok(folder) => folder,
                // Whoever discarded the last run has just removed the common folder.
                Err(obstacle) if obstacle.error.kind() == io::ErrorKind::NotFound && tries_left > 0 => continue,
                Err(obstacle) => return Err(unusable(obstacle)),
            };
            if let Some(folder) = folder
                && let Some(run) = self.lock(name, &folder)?
            {
                return Ok(run);
            }
        }
        Err(KeptError::Discarded(name.to_owned()))
    }

    /// The run with this name, for this process alone.
    pub fn open(&self, name: &str) -> Result<KeptRun, KeptError> {
        let run = match self.existing_folder(name)?.filter(|folder| folder.join(RECORD).exists()) {
            Some(folder) => self.lock(name, &folder)?,
            None => None,
        };
        run.filter(|run| run.record.is_some()).ok_or_else(|| KeptError::Missing(name.to_owned()))
    }

    /// A run's record, and whether another process uses the run; `None` if it is gone.
    pub fn look(&self, name: &str) -> Result<Option<(Record, bool)>, KeptError> {
        let Some(folder) = self.existing_folder(name)? else { return Ok(None) };
        let Some(record) = load_record(&folder)? else { return Ok(None) };
        let path = folder.join("lock");
        let lock = match trust::open(&path, OpenOptions::new().read(true)) {
            Ok(lock) => lock,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(KeptError::path(&path, "cannot open the kept run's lock", error)),
        };
        let locked = flock(&lock, FlockOperation::NonBlockingLockShared);
        let _lock = FileLock::of(lock);
        Ok(Some((record, locked == Err(Errno::WOULDBLOCK))))
    }

    /// What is kept of disk `ordinal` of the run with this name.
    pub fn files(&self, name: &str, ordinal: u8) -> DiskFiles {
        DiskFiles::new(&self.home.join("runs").join(name), ordinal)
    }

    /// Locks a folder; `None` if it was discarded meanwhile.
    fn lock(&self, name: &str, folder: &Path) -> Result<Option<KeptRun>, KeptError> {
        let path = folder.join("lock");
        let opened = trust::open(&path, OpenOptions::new().read(true).write(true).create(true).mode(0o600));
        let mut lock = match opened {
            Ok(lock) => lock,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(KeptError::path(&path, "cannot open the kept run's lock", error)),
        };
        if !try_lock(&lock).map_err(|error| KeptError::path(&path, "cannot lock the kept run", error))? {
            let mut owner = String::new();
            // Only to help the user find the process.
            let _ = Read::by_ref(&mut lock).take(20).read_to_string(&mut owner);
            return Err(KeptError::InUse { name: name.to_owned(), owner });
        }
        let ours = lock.metadata().map_err(|error| KeptError::path(&path, "cannot examine the lock", error))?;
        if !fs::metadata(&path).is_ok_and(|there| (there.dev(), there.ino()) == (ours.dev(), ours.ino())) {
            return Ok(None);
        }
        let written = lock.set_len(0).and_then(|()| lock.rewind());
        written
            .and_then(|()| write!(lock, "{}", std::process::id()))
            .map_err(|error| KeptError::path(&path, "cannot write the kept run's lock", error))?;
        let record = load_record(folder)?;
        Ok(Some(KeptRun { name: name.to_owned(), folder: folder.to_owned(), record, _lock: FileLock::of(lock) }))
    }

    /// Takes a run away, with all that its guest wrote; after the last one the store's folder too.
    pub fn discard(&self, run: KeptRun) -> Result<(), KeptError> {
        let runs = self.home.join("runs");
        let gone = runs.join(format!("{DISCARDED}{}-{}", std::process::id(), run.name));
        fs::rename(&run.folder, &gone)
            .map_err(|error| KeptError::path(&run.folder, "cannot discard the kept run", error))?;
        fs::remove_dir_all(&gone).map_err(|error| KeptError::path(&gone, "cannot remove the discarded run", error))?;
        // Folders whose deletion was interrupted.
        for entry in fs::read_dir(&runs).into_iter().flatten().flatten() {
            if entry.file_name().to_string_lossy().starts_with(DISCARDED) {
                let _ = fs::remove_dir_all(entry.path());
            }
        }
        // They stay where anything is in them.
        let _ = fs::remove_dir(&runs).and_then(|()| fs::remove_dir(&self.home));
        Ok(())
    }
}

const RECORD: &str = "run.json";

fn unusable(obstacle: Obstacle) -> KeptError {
    KeptError::Unusable { obstacle }
}

impl KeptRun {
    /// Its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// What is kept of disk `ordinal`.
    pub fn files(&self, ordinal: u8) -> DiskFiles {
        DiskFiles::new(&self.folder, ordinal)
    }

    /// Makes `record` what is known of the run, whole or not at all.
    pub fn save(&mut self, record: Record) -> Result<(), KeptError> {
        let path = self.folder.join(RECORD);
        let text = serde_json::to_string_pretty(&record).map_err(KeptError::Encode)?;
        replace(&path, text.as_bytes()).map_err(|error| KeptError::path(&path, "cannot write the record", error))?;
        self.record = Some(record);
        Ok(())
    }

    /// As it is kept, whatever this process knew of it.
    #[cfg(test)]
    pub fn reload(&mut self) {
        self.record = load_record(&self.folder).unwrap();
    }

    /// Refuses to continue over a tree that is now on another file system, if the run changed it.
    pub fn refuse_another_volume(&self, tree: &KeptTree) -> Result<(), KeptError> {
        let then = self.record.iter().flat_map(|record| &record.trees).find(|then| then.ordinal == tree.ordinal);
        let is_another = then.is_some_and(|then| VolumeId::is_another(then.volume, tree.volume));
        if !is_another || self.files(tree.ordinal).load_layer()?.is_none_or(|layer| layer.is_empty()) {
            return Ok(());
        }
        Err(KeptError::OtherVolume { tree: tree.source(), name: self.name.clone() })
    }

    /// Takes away what the guest wrote: the next run begins with the trees as they are then.
    pub fn start_anew(&self) -> Result<(), KeptError> {
        let trees = self.record.iter().flat_map(|record| &record.trees);
        for tree in trees.filter(|tree| !tree.read_only) {
            let files = self.files(tree.ordinal);
            if files.is_kept()? {
                files.save_layer(&Layer::empty())?;
            }
        }
        Ok(())
    }
}

fn load_record(folder: &Path) -> Result<Option<Record>, KeptError> {
    let path = folder.join(RECORD);
    let text = match trust::read(&path) {
        Ok(text) => text,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(KeptError::path(&path, "cannot read the record", error)),
    };
    let record: Record = match serde_json::from_slice(&text) {
        Ok(record) => record,
        Err(error) => return Err(KeptError::DamagedRecord { path, error }),
    };
    if record.version != VERSION {
        return Err(KeptError::OtherVersion { path, version: record.version });
    }
    Ok(Some(record))
}

/// Tries to take a lock. Retries for a moment, because [`Store::look`] holds it for one.
fn try_lock(file: &File) -> Result<bool, Errno> {
    for _ in 0..10 {
        match flock(file, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK) => thread::sleep(Duration::from_millis(10)),
            result => return result.map(|()| true),
        }
    }
    Ok(false)
}

fn check_name(name: &str) -> Result<(), KeptError> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_' | '+' | '@');
    if name.is_empty() || name.len() > LONGEST_NAME || !name.chars().all(allowed) || name.starts_with(['.', '-']) {
        return Err(KeptError::Name(name.to_owned()));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{chown, symlink};

    use super::*;

    fn store() -> (tempfile::TempDir, Store) {
        let dir = tempfile::tempdir().unwrap();
        let store = Store { home: dir.path().join("inarch") };
        (dir, store)
    }

    fn record() -> Record {
        Record { status: Some(3), ..Record::begun() }
    }

    #[test]
    fn a_run_is_there_once_it_has_a_record() {
        let (_dir, store) = store();
        assert_eq!(store.names().unwrap(), [""; 0]);
        assert!(store.open("x").unwrap_err().to_string().contains("no kept run 'x'"));
        let mut run = store.open_or_create("x").unwrap();
        assert_eq!(store.names().unwrap(), [""; 0]);
        run.save(record()).unwrap();
        drop(run);
        assert_eq!(store.names().unwrap(), ["x"]);
        assert_eq!(store.open("x").unwrap().record.unwrap().status, Some(3));
    }

    #[test]
    fn one_has_it_at_a_time() {
        let (_dir, store) = store();
        let mut run = store.open_or_create("x").unwrap();
        run.save(record()).unwrap();
        let refusal = store.open("x").unwrap_err().to_string();
        assert!(refusal.contains(&format!("in use (process {})", std::process::id())), "{refusal}");
        assert!(store.look("x").unwrap().unwrap().1);
        drop(run);
        assert!(!store.look("x").unwrap().unwrap().1);
        store.open("x").unwrap();
    }

    #[test]
    fn a_discarded_run_is_gone_and_its_name_is_free() {
        let (_dir, store) = store();
        let mut run = store.open_or_create("x").unwrap();
        run.save(record()).unwrap();
        fs::create_dir(store.home.join("runs").join(format!("{DISCARDED}1-y"))).unwrap();
        store.discard(run).unwrap();
        assert!(!store.home.exists(), "nothing is left");
        assert!(store.look("x").unwrap().is_none());
        assert!(store.open_or_create("x").unwrap().record.is_none());
    }

    #[test]
    fn names_cannot_lead_elsewhere() {
        let (_dir, store) = store();
        for name in ["", ".", "..", "a/b", "/x", "-x", ".x", "a b", "ü", "a\n", &"x".repeat(101)] {
            assert!(store.open_or_create(name).is_err(), "{name:?}");
            assert!(store.open(name).is_err() && store.look(name).is_err(), "{name:?}");
        }
    }

    #[test]
    fn a_damaged_record_is_told() {
        let (_dir, store) = store();
        let mut run = store.open_or_create("x").unwrap();
        run.save(record()).unwrap();
        drop(run);
        let path = store.home.join("runs/x/run.json");
        fs::write(&path, "{").unwrap();
        assert!(store.open("x").unwrap_err().to_string().contains("damaged"));
        fs::write(&path, serde_json::to_string(&Record { version: 9, ..record() }).unwrap()).unwrap();
        assert!(store.open("x").unwrap_err().to_string().contains("version 9"));
    }

    #[test]
    fn a_run_that_leads_elsewhere_is_not_used() {
        let (dir, store) = store();
        let mut run = store.open_or_create("x").unwrap();
        run.save(record()).unwrap();
        let (victim, missing) = (dir.path().join("victim"), dir.path().join("missing"));
        fs::write(&victim, "content").unwrap();
        let folder = store.home.join("runs/x");
        // A new file replaces a link.
        symlink(&victim, folder.join("run.new")).unwrap();
        run.save(Record { status: Some(4), ..record() }).unwrap();
        assert!(folder.join(RECORD).symlink_metadata().unwrap().is_file());
        drop(run);
        let refused = |part: &str| {
            for refused in [store.open("x").map(drop), store.open_or_create("x").map(drop)] {
                let line = refused.unwrap_err().to_string();
                assert!(line.contains(part) && line.contains("inarch") && line.lines().count() == 1, "{line}");
            }
        };
        let lock = folder.join("lock");
        for target in [&victim, &missing] {
            fs::remove_file(&lock).unwrap();
            symlink(target, &lock).unwrap();
            refused("symbolic link");
            assert!(store.look("x").is_err());
        }
        fs::remove_file(&lock).unwrap();
        fs::hard_link(&victim, &lock).unwrap();
        refused("another name");
        fs::remove_file(&lock).unwrap();
        fs::rename(folder.join(RECORD), dir.path().join("record")).unwrap();
        symlink(dir.path().join("record"), folder.join(RECORD)).unwrap();
        refused("symbolic link");
        fs::rename(&folder, dir.path().join("elsewhere")).unwrap();
        symlink(dir.path().join("elsewhere"), &folder).unwrap();
        refused("symbolic link");
        assert_eq!((fs::read_to_string(&victim).unwrap(), missing.exists()), ("content".to_owned(), false));
    }

    #[test]
    fn another_users_run_is_not_used() {
        if !rustix::process::geteuid().is_root() {
            eprintln!("skipped: another_users_run_is_not_used: not root");
            return;
        }
        let (dir, store) = store();
        store.open_or_create("x").unwrap().save(record()).unwrap();
        let folder = store.home.join("runs/x");
        for place in [dir.path(), &store.home, &store.home.join("runs"), &folder, &folder.join(RECORD)] {
            chown(place, Some(65_534), None).unwrap();
            let line = store.open("x").unwrap_err().to_string();
            assert!(line.contains("another user's") && line.contains(place.to_str().unwrap()), "{line}");
            if !place.is_file() {
                assert!(line.contains("set XDG_STATE_HOME") && line.contains("sudo -H"), "{line}");
                assert!(place == folder || store.names().is_err(), "{}", place.display());
            }
            assert!(store.look("x").is_err() && store.open_or_create("x").is_err());
            chown(place, Some(0), None).unwrap();
        }
        let files = store.files("x", 0);
        fs::write(files.overlay(1), "").unwrap();
        chown(files.overlay(1), Some(65_534), None).unwrap();
        assert!(files.unfolded().unwrap_err().to_string().contains("another user's"));
    }
}
