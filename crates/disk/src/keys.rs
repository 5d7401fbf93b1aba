//! [`Keys`]: passphrases and key files that the user gives for encrypted volumes.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use zeroize::Zeroizing;

use crate::Names;

/// A passphrase or the content of a key file. It is zeroed when the last copy of it is dropped, and is not printed.
#[derive(Clone)]
pub struct Key {
    /// The volume that it is for, by a name of it; all volumes otherwise.
    pub volume: Option<String>,
    /// Its bytes.
    pub bytes: Arc<Zeroizing<Vec<u8>>>,
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Key").field("volume", &self.volume).finish_non_exhaustive()
    }
}

impl PartialEq for Key {
    fn eq(&self, other: &Key) -> bool {
        self.volume == other.volume && self.bytes == other.bytes
    }
}

impl Eq for Key {}

/// Keys to be tried.
#[derive(Clone, Debug, Default)]
pub struct Keys {
    keys: Vec<Key>,
    /// Whether one of them opened a volume.
    is_used: Arc<AtomicBool>,
}

impl PartialEq for Keys {
    fn eq(&self, other: &Keys) -> bool {
        self.keys == other.keys
    }
}

impl Eq for Keys {}

impl Keys {
    /// Keys in the order in which they are tried.
    pub fn new(keys: Vec<Key>) -> Keys {
        Keys { keys, is_used: Arc::default() }
    }

    /// Whether the list has no keys.
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    /// Whether one of them opened a volume.
    pub fn are_used(&self) -> bool {
        self.is_used.load(Ordering::Relaxed)
    }

    /// The bytes to try on a volume. A key that ends with a line break, as editors and `echo` leave it, is tried without it first.
    pub(crate) fn of(&self, names: &Names) -> impl Iterator<Item = &[u8]> {
        let is_of = |key: &&Key| key.volume.as_ref().is_none_or(|volume| names.answer_to(volume));
        self.keys.iter().filter(is_of).flat_map(|key| {
            let whole = key.bytes.as_slice();
            [whole.strip_suffix(b"\n"), Some(whole)].into_iter().flatten()
        })
    }

    pub(crate) fn note_use(&self) {
        self.is_used.store(true, Ordering::Relaxed);
    }
}
