//! Changes of names that a dry run keeps in mind instead of making them.
//!
//! Before an apply plans, it puts in order what an interrupted one left under names of ours. A dry run is to plan the same and to
//! change nothing: it sees the host as it would be then.

use std::borrow::Cow;
use std::collections::HashMap;

use rustix::fs::Stat;
use rustix::io::Errno;

use super::host::{Directory, Host};
use super::sides::{inside, parent};

/// For each path that leads elsewhere: where to; `None`: nowhere.
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
    /// From now on the changes of names that this module makes are only seen, by its looks.
    pub fn pretend(&mut self) {
        self.pretended = Some(Pretended::default());
    }

    /// The directory that `path` is in, and its name there. Nothing is put in order in a directory that was moved itself.
    ///
    /// # Errors
    /// Those of reaching it; `ENOENT` if something else would have been done with it.
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

    /// Gives what is at `from` the path `to`, which nothing has.
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

    /// Lets what is at two paths change places; `away` is a name that nothing has.
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
