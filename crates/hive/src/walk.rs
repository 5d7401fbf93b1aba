//! [`Walk`]: visits a key and all keys below it.

use crate::key::{self, Key};
use crate::value::Value;
use crate::{Hive, HiveError};

/// The deepest that Windows nests keys.
const DEEPEST: usize = 512;

/// Visits a key and all below it, parents first, in the hive's order. It ends with an error when lists lead to more keys, values or data than
/// the hive has room for: lists that lead in circles, or cells that many keys share.
pub struct Walk<'a> {
    hive: &'a Hive,
    /// The keys that are still to be visited on each level, the next one last.
    levels: Vec<Vec<u32>>,
    names: Vec<String>,
    first: Option<Key>,
    /// Bytes of the hive that the visited keys and their lists take, their values, and the data of those.
    keys: u64,
    values: u64,
    bytes: u64,
}

/// A key on the way.
pub struct Visited {
    /// The names that lead to it from where the walk began, which is not among them.
    pub path: Vec<String>,
    /// It.
    pub key: Key,
    /// Its values, with their data.
    pub values: Vec<(Value, Vec<u8>)>,
}

impl<'a> Walk<'a> {
    pub(crate) fn new(hive: &'a Hive, key: Key) -> Walk<'a> {
        Walk { hive, levels: Vec::new(), names: Vec::new(), first: Some(key), keys: 0, values: 0, bytes: 0 }
    }

    /// The next key; `None` after the last.
    ///
    /// # Errors
    /// A key, list or value is damaged, or there are too many.
    pub fn next_key(&mut self) -> Result<Option<Visited>, HiveError> {
        let key = match self.first.take() {
            Some(key) => key,
            None => {
                let Some(at) = self.next_cell() else { return Ok(None) };
                let key = key::read(&self.hive.cells, at)?;
                self.names.push(key.name.to_string());
                key
            }
        };
        let length = u64::from(self.hive.cells.length());
        self.keys += key.room();
        if self.keys > length || self.levels.len() > DEEPEST {
            return Err(HiveError::Circle("keys"));
        }
        let mut values = Vec::new();
        let listed = self.hive.values(&key)?;
        self.values += listed.iter().map(Value::room).sum::<u64>();
        if self.values > length {
            return Err(HiveError::Circle("values"));
        }
        for value in listed {
            self.bytes += value.stored();
            if self.bytes > length {
                return Err(HiveError::Circle("bytes of data"));
            }
            let data = self.hive.data(&value)?;
            values.push((value, data));
        }
        let key::List { keys: mut below, room } = key::list(&self.hive.cells, &key)?;
        self.keys += room;
        if self.keys > length {
            return Err(HiveError::Circle("keys"));
        }
        below.reverse();
        self.levels.push(below);
        Ok(Some(Visited { path: self.names.clone(), key, values }))
    }

    fn next_cell(&mut self) -> Option<u32> {
        loop {
            // When the next key of a level is taken, only the names above that level remain.
            let level = self.levels.last_mut()?;
            let next = level.pop();
            self.names.truncate(self.levels.len() - 1);
            match next {
                Some(at) => return Some(at),
                None => drop(self.levels.pop()),
            }
        }
    }
}
