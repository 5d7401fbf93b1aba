//! Lets a dry run see changes of names that it does not make.
//!
//! Before an apply plans, it puts the leftovers of earlier applies in order. A dry run has to make the same plan
//! without a change to the host. So it keeps these changes in mind, and its looks see the host as it would be after
//! them.

use std::borrow::Cow;
use std::collections::HashMap;

use rustix::fs::Stat;
use rustix::io::Errno;

use super::super::paths::{inside, parent};
use super::{Directory, Host};

/// Where each path that was changed leads to. `None`: nowhere.
#[derive(Default)]
pub(super) struct Pretended(HashMap<Vec<u8>, Option<Vec<u8>>>);

impl Pretended {
    /// Where a path leads to.
    fn real<'p>(&self, path: &'p [u8]) -> Option<Cow<'p, [u8]>> {
        match self.0.get(path) {
            Some(real) => real.clone().map(Cow::Owned),
            None => Some(Cow::Borrowed(path)),
        }
    }

    fn set(&mut self, path: &[u8], real: Option<Cow<'_, [u8]>>) {
        self.0.insert(path.to_owned(), real.map(Cow::into_owned));
    }
}

impl Host {
    /// From now on changes of names by the methods below are not made, but its looks see them.
    pub fn pretend(&mut self) {
        self.pretended = Some(Pretended::default());
    }

    /// Whether it is a dry run's.
    pub fn pretends(&self) -> bool {
        self.pretended.is_some()
    }

    /// The directory that `path` is in, and the name there. No directory with leftovers is moved itself.
    ///
    /// # Errors
    /// Those of reaching it; `ENOENT` if it would have been moved or removed.
    pub fn seen<'p>(&mut self, path: &'p [u8]) -> Result<(Directory, Cow<'p, [u8]>), Errno> {
        match self.pretended.as_ref().map(|pretended| pretended.real(path)) {
            None | Some(Some(Cow::Borrowed(_))) => {
                self.parent(path).map(|(directory, name)| (directory, Cow::Borrowed(name)))
            }
            Some(None) => Err(Errno::NOENT),
            Some(Some(Cow::Owned(real))) => {
                let (directory, name) = self.parent(&real)?;
                Ok((directory, Cow::Owned(name.to_owned())))
            }
        }
    }

    /// What is at a path.
    ///
    /// # Errors
    /// Those of reaching it; nothing if it, or the directory that it is in, is not there.
    pub fn stat(&mut self, path: &[u8]) -> Result<Option<Stat>, Errno> {
        match self.seen(path).and_then(|(directory, name)| directory.stat(&name)) {
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => Ok(None),
            result => result,
        }
    }

    /// The names in the directory at a path.
    ///
    /// # Errors
    /// Those of reading it.
    pub fn names_in(&mut self, path: &[u8]) -> Result<Vec<Vec<u8>>, Errno> {
        let mut names = self.parent(&inside(path))?.0.names()?;
        for (moved, real) in self.pretended.iter().flat_map(|pretended| &pretended.0) {
            if parent(moved) != path {
                continue;
            }
            let name = moved.get(path.len()..).unwrap_or_default();
            let name = name.strip_prefix(b"/").unwrap_or(name);
            names.retain(|other| other != name);
            names.extend(real.is_some().then(|| name.to_owned()));
        }
        Ok(names)
    }

    /// Renames what is at `from` to `to`, which is free.
    ///
    /// # Errors
    /// Those of rename(2).
    pub fn rename(&mut self, from: &[u8], to: &[u8]) -> Result<(), Errno> {
        let Some(pretended) = self.pretended.as_ref() else {
            let (place, name) = self.parent(from)?;
            let (directory, other) = self.parent(to)?;
            return place.rename_new(name, &directory, other);
        };
        let real = pretended.real(from).map(|real| real.into_owned());
        match (self.stat(from)?, self.stat(to)?) {
            (None, _) => return Err(Errno::NOENT),
            (_, Some(_)) => return Err(Errno::EXIST),
            (Some(_), None) => {}
        }
        if let Some(pretended) = &mut self.pretended {
            pretended.set(to, real.map(Cow::Owned));
            pretended.set(from, None);
        }
        Ok(())
    }

    /// Exchanges what is at two paths. `away` is a free name.
    ///
    /// # Errors
    /// Those of rename(2).
    pub fn swap(&mut self, one: &[u8], other: &[u8], away: &[u8]) -> Result<(), Errno> {
        let Some(pretended) = &mut self.pretended else {
            let (place, name) = self.parent(one)?;
            let (directory, with) = self.parent(other)?;
            return place.exchange(name, &directory, with, away);
        };
        let (first, second) = (pretended.real(one), pretended.real(other));
        pretended.set(one, second);
        pretended.set(other, first);
        Ok(())
    }

    /// Removes what is at a path, if it is no directory or an empty one.
    ///
    /// # Errors
    /// Those of unlink(2) and rmdir(2).
    pub fn remove(&mut self, path: &[u8]) -> Result<(), Errno> {
        if let Some(pretended) = &mut self.pretended {
            pretended.set(path, None);
            return Ok(());
        }
        let (directory, name) = self.parent(path)?;
        directory.remove(name).or_else(|_| directory.remove_directory(name))
    }
}
