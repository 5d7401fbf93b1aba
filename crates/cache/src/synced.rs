//! [`Synced`]: which generation of a cache is the same as one at a remote.

use std::io::Write;
use std::path::Path;

use inarch_lifecycle::PathError;
use inarch_lifecycle::new_file::NewFile;
use inarch_lifecycle::trust;
use inarch_remote::Location;
use serde::{Deserialize, Serialize};

/// Which generation of a cache is the same as one at a remote. Where it is lost or wrong, both are merged once more.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Synced {
    /// The remote's URL.
    pub location: String,
    /// The generation there.
    pub there: String,
    /// The number of the equal generation here; `None`: this cache has all that the remote has, and may have more.
    pub here: Option<u64>,
}

const NAME: &str = "synced";

impl Synced {
    /// What is known of a cache in `directory` and this remote.
    pub fn load(directory: &Path, location: &Location) -> Option<Synced> {
        let synced: Synced = serde_json::from_slice(&trust::read(&directory.join(NAME)).ok()?).ok()?;
        (synced.location == location.to_string()).then_some(synced)
    }

    /// Writes it down.
    pub fn store(&self, directory: &Path) -> Result<(), PathError> {
        let path = directory.join(NAME);
        let mut new = NewFile::create(&path, || {})?;
        let bytes = serde_json::to_vec(self).unwrap_or_default();
        new.file.write_all(&bytes).map_err(|error| PathError::new(&path, "cannot write it", error))?;
        new.commit()
    }
}
