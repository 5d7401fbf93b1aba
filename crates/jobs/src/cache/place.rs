//! [`CachePlace`]: where a cache is, from its scope and its name.
//!
//! A cache that one project can fill and another one reads is a way into the other one: a changed package in it runs there. So a cache belongs to a project
//! unless its user says otherwise.

use std::fmt;
use std::fs;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use super::CacheError;
use crate::lifecycle::new_file::NewFile;
use crate::lifecycle::state;
use crate::lifecycle::trust;
use crate::path_error::PathError;
use crate::text::shown;

/// The name of a project's file with options of its runs.
pub const PROJECT_FILE: &str = "inarch.toml";

/// The file with a scope's text, in its directory.
const NOTE: &str = ".scope";
const LONGEST: usize = 60;

/// Whose a cache is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Scope {
    /// A project's: that of the directory.
    Project(PathBuf),
    /// Everything that this user runs.
    User,
    /// What this user calls so.
    Named(String),
}

impl Scope {
    /// The scope of the project that contains `directory`: the innermost directory at or above it that has a `.git`; else the innermost that has an
    /// `inarch.toml`; else `directory`.
    pub fn of_project(directory: &Path) -> Scope {
        let directory = directory.canonicalize().unwrap_or_else(|_| directory.to_owned());
        Scope::Project(project(&directory).to_owned())
    }

    /// What `scope=` of a command line means: `project`, `user` or a name.
    ///
    /// # Errors
    /// It cannot be a name.
    pub fn parse(text: &str, directory: &Path) -> Result<Scope, CacheError> {
        match text {
            "project" => Ok(Scope::of_project(directory)),
            "user" => Ok(Scope::User),
            name => check(name).map(|()| Scope::Named(name.to_owned())),
        }
    }

    /// The name of its directory.
    pub(super) fn directory(&self) -> String {
        match self {
            Scope::Project(path) => {
                let digest = blake3::hash(path.as_os_str().as_bytes()).to_hex();
                let name: String = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
                let plain = |c: char| if c.is_ascii_alphanumeric() || "-_.".contains(c) { c } else { '_' };
                let name: String = name.chars().take(40).map(plain).collect();
                format!("project-{name}-{}", digest.get(..16).unwrap_or_default())
            }
            Scope::User => "user".to_owned(),
            Scope::Named(name) => format!("named-{name}"),
        }
    }

    /// The scope whose directory `path` is; `None` if it is none.
    pub(super) fn stored(path: &Path) -> Option<Scope> {
        let name = path.file_name()?.to_str()?;
        let scope = match name.split_once('-') {
            None => Scope::User,
            Some(("named", name)) => Scope::Named(name.to_owned()),
            Some(_) => Scope::Project(PathBuf::from(std::ffi::OsStr::from_bytes(&trust::read(&path.join(NOTE)).ok()?))),
        };
        (scope.directory() == name).then_some(scope)
    }
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Scope::Project(path) => f.write_str(&shown(path)),
            Scope::User => f.write_str("user"),
            Scope::Named(name) => f.write_str(name),
        }
    }
}

/// The project's directory; `directory` must be canonical.
fn project(directory: &Path) -> &Path {
    let with = |name: &str| directory.ancestors().find(|path| path.join(name).exists());
    with(".git").or_else(|| with(PROJECT_FILE)).unwrap_or(directory)
}

/// Where a cache is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CachePlace {
    /// The directory of all caches.
    pub(super) home: PathBuf,
    /// Whose it is.
    pub scope: Scope,
    /// Its name.
    pub name: String,
    scope_directory: String,
}

impl CachePlace {
    /// The cache `name` of a scope, in this user's directory of state.
    ///
    /// # Errors
    /// It cannot be a name, or there is no such directory.
    pub fn of_user(scope: Scope, name: &str) -> Result<CachePlace, CacheError> {
        CachePlace::new(&home()?, scope, name)
    }

    pub(crate) fn new(home: &Path, scope: Scope, name: &str) -> Result<CachePlace, CacheError> {
        check(name)?;
        let scope_directory = scope.directory();
        Ok(CachePlace { home: home.to_owned(), scope, name: name.to_owned(), scope_directory })
    }

    /// The directories below [`CachePlace::home`].
    pub(super) fn names(&self) -> [&str; 2] {
        [&self.scope_directory, &self.name]
    }

    /// The cache's directory.
    pub fn directory(&self) -> PathBuf {
        self.home.join(&self.scope_directory).join(&self.name)
    }

    /// Writes down which project a scope's directory belongs to.
    pub(super) fn note_scope(&self) -> Result<(), PathError> {
        let Scope::Project(project) = &self.scope else { return Ok(()) };
        let path = self.home.join(&self.scope_directory).join(NOTE);
        if path.exists() {
            return Ok(());
        }
        let fail = |error: io::Error| PathError::new(&path, "cannot write it", error);
        let mut new = NewFile::create(&path, || {})?;
        io::Write::write_all(&mut new.file, project.as_os_str().as_bytes()).map_err(fail)?;
        new.commit()
    }

    /// Removes the cache.
    pub(crate) fn remove(&self) -> Result<(), PathError> {
        let directory = self.directory();
        let gone = directory.with_file_name(format!(".removed-{}-{}", std::process::id(), self.name));
        let fail = |error: io::Error| PathError::new(&directory, "cannot remove the cache", error);
        fs::rename(&directory, &gone).and_then(|()| fs::remove_dir_all(&gone)).map_err(fail)?;
        let scope = self.home.join(&self.scope_directory);
        let is_empty = fs::read_dir(&scope).is_ok_and(|all| all.flatten().all(|entry| entry.file_name() == NOTE));
        if is_empty {
            // Another cache of the scope may be made just now.
            let _ = fs::remove_file(scope.join(NOTE)).and_then(|()| fs::remove_dir(&scope));
        }
        Ok(())
    }
}

/// The directory of all caches of this user.
pub(crate) fn home() -> Result<PathBuf, CacheError> {
    state::home().map(|home| home.join("caches")).ok_or(CacheError::NoPlace)
}

fn check(name: &str) -> Result<(), CacheError> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    let is_name =
        !name.is_empty() && name.len() <= LONGEST && name.bytes().all(is_plain) && !name.starts_with(['.', '-']);
    is_name.then_some(()).ok_or_else(|| CacheError::Name(name.to_owned()))
}
