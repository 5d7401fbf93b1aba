//! Hives of the Windows registry, read on demand.
//!
//! A hive is one file: a header, then cells that point to each other. [`Hive::open`] reads the header and replays the transaction logs
//! beside it in memory, so that a hive of a machine that was not shut down reads as Windows would read it. The file is not changed.
//! Everything else is read when it is asked for, so the size of a hive does not matter.
//!
//! The layout is that of msuhanov's "Windows registry file format specification" (github.com/msuhanov/regf); comments name its sections.
//!
//! Hives are hostile: a cell is checked each time it is read, what is allocated is in the file, and a [`Walk`] ends after as many keys and
//! bytes as the file has room for, whatever its lists say.
//!
//! ```no_run
//! use std::sync::Arc;
//!
//! use inarch_block::Backing;
//! use inarch_confine::Parsing;
//! use inarch_hive::{Hive, HiveError};
//!
//! /// How many programs are installed for all users of a Windows, by its hive `SOFTWARE`.
//! fn programs(confined: Parsing, software: Arc<dyn Backing>) -> Result<usize, HiveError> {
//!     let hive = Hive::open(confined, software, &[])?;
//!     let key = hive.find(["Microsoft", "Windows", "CurrentVersion", "Uninstall"])?;
//!     key.map_or(Ok(0), |key| Ok(hive.subkeys(&key)?.len()))
//! }
//! ```

#![forbid(unsafe_code)]

mod base;
mod cells;
mod error;
mod export;
mod key;
mod log;
mod marvin;
mod name;
#[cfg(test)]
mod tests;
mod value;
mod walk;

use std::sync::Arc;

use inarch_block::Backing;
use inarch_confine::Parsing;

use base::Base;
use cells::Cells;
pub use error::HiveError;
pub use export::{HEAD, export_key};
pub use key::Key;
pub use name::Name;
pub use value::{Shown, Value, type_name};
pub use walk::{Visited, Walk};

/// An open hive.
pub struct Hive {
    cells: Cells,
    base: Base,
    notes: Vec<String>,
}

impl Hive {
    /// Opens a hive, with the transaction logs that lie beside it (`.LOG1`, `.LOG2`, `.LOG`). Logs are used only if the hive was not
    /// written back completely.
    ///
    /// # Errors
    /// The file is no hive, or cannot be read.
    pub fn open(_: Parsing, file: Arc<dyn Backing>, logs: &[Arc<dyn Backing>]) -> Result<Hive, HiveError> {
        let mut head = [0; base::LENGTH];
        let length = head.len().min(usize::try_from(file.size()).unwrap_or(usize::MAX));
        let read = head.get_mut(..length).unwrap_or_default();
        inarch_block::read_backing(&*file, 0, read).map_err(|error| HiveError::Io { offset: 0, error })?;
        let mut notes = Vec::new();
        let (base, pages) = log::replayed(base::parse(&head)?, &file, logs, &mut notes)?;
        let hive = Hive { cells: Cells::new(file, pages, base.length), base, notes };
        hive.root()?;
        Ok(hive)
    }

    /// What was found about the hive as a whole: a line each.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// The key that has all others below it.
    ///
    /// # Errors
    /// It is damaged.
    pub fn root(&self) -> Result<Key, HiveError> {
        key::read(&self.cells, self.base.root)
    }

    /// The key at a path below the root; `None` if there is none. Names are compared without case, as Windows does.
    ///
    /// # Errors
    /// A key on the way is damaged.
    pub fn find<'a>(&self, path: impl IntoIterator<Item = &'a str>) -> Result<Option<Key>, HiveError> {
        let mut key = self.root()?;
        for name in path {
            let Some(next) = self.subkey(&key, name)? else { return Ok(None) };
            key = next;
        }
        Ok(Some(key))
    }

    /// The key of that name below `key`.
    ///
    /// # Errors
    /// A list or a key in it is damaged.
    pub fn subkey(&self, key: &Key, name: &str) -> Result<Option<Key>, HiveError> {
        for at in key::list(&self.cells, key)?.keys {
            let found = key::read(&self.cells, at)?;
            if found.name.is(name) {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }

    /// The keys below `key`, in the hive's order, which is that of their names.
    ///
    /// # Errors
    /// A list or a key in it is damaged.
    pub fn subkeys(&self, key: &Key) -> Result<Vec<Key>, HiveError> {
        let (mut keys, mut room) = (Vec::new(), 0);
        for at in key::list(&self.cells, key)?.keys {
            let found = key::read(&self.cells, at)?;
            room += found.room();
            if room > u64::from(self.cells.length()) {
                return Err(HiveError::Circle("keys"));
            }
            keys.push(found);
        }
        Ok(keys)
    }

    /// The values of `key`, without their data, in the order in which they were made.
    ///
    /// # Errors
    /// A list or a value in it is damaged.
    pub fn values(&self, key: &Key) -> Result<Vec<Value>, HiveError> {
        value::list(&self.cells, key)
    }

    /// The values of a key with their data.
    ///
    /// # Errors
    /// As [`Hive::values`] and [`Hive::data`]; several values share more data than the hive has.
    pub fn values_with_data(&self, key: &Key) -> Result<Vec<(Value, Vec<u8>)>, HiveError> {
        let values = self.values(key)?;
        if values.iter().map(Value::stored).sum::<u64>() > u64::from(self.cells.length()) {
            return Err(HiveError::Circle("bytes of data"));
        }
        values.into_iter().map(|value| Ok((value.clone(), self.data(&value)?))).collect()
    }

    /// The data of a value, as it is stored.
    ///
    /// # Errors
    /// It is damaged.
    pub fn data(&self, value: &Value) -> Result<Vec<u8>, HiveError> {
        value::data(&self.cells, value)
    }

    /// Which control set the machine booted with last: `ControlSet001` for `CurrentControlSet`, which exists only while Windows runs
    /// (value `Current` of the key `Select`). `None` if this is no hive of SYSTEM.
    ///
    /// # Errors
    /// The key or the value is damaged.
    pub fn current_control_set(&self) -> Result<Option<String>, HiveError> {
        let Some(select) = self.find(["Select"])? else { return Ok(None) };
        let values = self.values(&select)?;
        let Some(current) = values.iter().find(|value| value.name.is("Current")) else { return Ok(None) };
        let number = self.data(current)?.first_chunk().copied().map(u32::from_le_bytes);
        Ok(number.map(|number| format!("ControlSet{number:03}")))
    }

    /// All keys at and below `key`, parents first.
    pub fn walk(&self, key: Key) -> Walk<'_> {
        Walk::new(self, key)
    }
}
