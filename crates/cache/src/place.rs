//! [`CachePlace`]: where a cache is, from its scope and its name.
//!
//! If one project fills a cache that another reads, it can attack the other: a package that it changed runs there. So a cache belongs to a
//! project unless its user says otherwise.

use std::fmt;
use std::fs;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use inarch_lifecycle::PathError;
use inarch_lifecycle::new_file::NewFile;
use inarch_lifecycle::shown;
use inarch_lifecycle::state;
use inarch_lifecycle::trust;

use rustix::fs::{CWD, Mode, OFlags, openat};

use super::CacheError;
use super::branch::{self, Branches};

/// The name of a project's file with options of its runs.
pub const PROJECT_FILE: &str = "inarch.toml";

/// The file with a scope's text, in its directory.
const NOTE: &str = ".scope";
const LONGEST: usize = 60;
/// How the name of a cache's directory begins while it is removed.
const REMOVED: &str = ".removed-";
/// The directory that guests share live.
pub(super) const LIVE: &str = "live";

/// Whose a cache is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Scope {
    /// A project's: that of the directory.
    Project(PathBuf),
    /// A branch's of a project that git manages.
    Branch {
        /// The project.
        project: PathBuf,
        /// The branch.
        branch: String,
        /// The branch whose cache one without its own begins with; not known of a stored one.
        default: Option<String>,
    },
    /// Everything that this user runs.
    User,
    /// The one that this user gave this name.
    Named(String),
    /// A tree at a remote, by its URL: what was read of it.
    Remote(String),
}

impl Scope {
    /// The scope of the project that contains `directory`: the innermost directory at or above it that has a `.git`; else the innermost that has an
    /// `inarch.toml`; else `directory`.
    pub fn of_project(directory: &Path) -> Scope {
        let directory = directory.canonicalize().unwrap_or_else(|_| directory.to_owned());
        Scope::Project(project(&directory).to_owned())
    }

    /// What `scope=` of a command line means: `project`, `branch`, `branch:NAME`, `user` or a name.
    ///
    /// # Errors
    /// It cannot be a name, or there is no branch.
    pub fn parse(text: &str, directory: &Path) -> Result<Scope, CacheError> {
        match text {
            "project" => Ok(Scope::of_project(directory)),
            "user" => Ok(Scope::User),
            "branch" => Scope::of_branch(directory, None),
            name => match name.strip_prefix("branch:") {
                Some(branch) => Scope::of_branch(directory, Some(branch)),
                None => check(name).map(|()| Scope::Named(name.to_owned())),
            },
        }
    }

    /// The scope of a branch of the project that contains `directory`; of the one that is checked out, if none is named.
    fn of_branch(directory: &Path, named: Option<&str>) -> Result<Scope, CacheError> {
        let Scope::Project(project) = Scope::of_project(directory) else { return Ok(Scope::User) };
        let branches = Branches::of(&project)?;
        let branch = match named {
            Some(name) if branch::is_name(name) => name.to_owned(),
            Some(_) => return Err(CacheError::Branch { project, reason: "that cannot be the name of a branch" }),
            None => branches.current(&project)?,
        };
        Ok(Scope::Branch { project, branch, default: branches.default })
    }

    /// The name of its directory.
    pub(super) fn directory(&self) -> String {
        match self {
            Scope::Project(path) => format!("project-{}", with_digest(&name_of(path), path.as_os_str().as_bytes())),
            Scope::Branch { project, branch, .. } => {
                let name = format!("{}-{}", plain(&name_of(project)), branch);
                format!("branch-{}", with_digest(&name, &noted(project, branch)))
            }
            Scope::User => "user".to_owned(),
            Scope::Named(name) => format!("named-{name}"),
            Scope::Remote(url) => {
                let digest = blake3::hash(url.as_bytes()).to_hex();
                format!("remote-{}", digest.get(..32).unwrap_or_default())
            }
        }
    }

    /// The names below which a remote has the caches of the scope. The user's are those of a user of this name, on any machine.
    pub(crate) fn remote_names(&self) -> String {
        match self {
            Scope::User => {
                let uid = rustix::process::getuid().as_raw();
                format!("user-{}", plain(&user_name(uid).unwrap_or_else(|| uid.to_string())))
            }
            scope => scope.directory(),
        }
    }

    /// The scope whose directory `path` is; `None` if it is none.
    pub(super) fn stored(path: &Path) -> Option<Scope> {
        let name = path.file_name()?.to_str()?;
        let scope = match name.split_once('-') {
            None => Scope::User,
            Some(("named", name)) => Scope::Named(name.to_owned()),
            Some(("remote", _)) => Scope::Remote(String::from_utf8(trust::read(&path.join(NOTE)).ok()?).ok()?),
            Some((kind, _)) => {
                let note = trust::read(&path.join(NOTE)).ok()?;
                let mut parts = note.splitn(2, |byte| *byte == 0);
                let project = PathBuf::from(std::ffi::OsStr::from_bytes(parts.next()?));
                match (kind, parts.next()) {
                    ("branch", Some(branch)) => {
                        let branch = String::from_utf8(branch.to_vec()).ok()?;
                        Scope::Branch { project, branch, default: None }
                    }
                    _ => Scope::Project(project),
                }
            }
        };
        (scope.directory() == name).then_some(scope)
    }
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Scope::Project(path) => f.write_str(&shown(path)),
            Scope::Branch { project, branch, .. } => write!(f, "{} branch {}", shown(project), shown(branch.as_ref())),
            Scope::User => f.write_str("user"),
            Scope::Named(name) | Scope::Remote(name) => f.write_str(name),
        }
    }
}

fn name_of(path: &Path) -> String {
    path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
}

/// At most 40 characters of a name that are plain in a file's name.
fn plain(name: &str) -> String {
    let plain = |c: char| if c.is_ascii_alphanumeric() || "-_.".contains(c) { c } else { '_' };
    name.chars().take(40).map(plain).collect()
}

/// A name for people, with a digest of what it stands for.
fn with_digest(name: &str, of: &[u8]) -> String {
    let digest = blake3::hash(of).to_hex();
    format!("{}-{}", plain(name), digest.get(..16).unwrap_or_default())
}

/// What is written down of a branch's scope.
fn noted(project: &Path, branch: &str) -> Vec<u8> {
    [project.as_os_str().as_bytes(), b"\0", branch.as_bytes()].concat()
}

/// The project's directory; `directory` must be canonical.
fn project(directory: &Path) -> &Path {
    // In a directory such as `/tmp` anybody can make one, and so put projects of others together.
    let is_theirs = |path: &Path, name: &str| {
        let owner = |path: &Path| fs::symlink_metadata(path).map(|metadata| metadata.uid());
        let user = rustix::process::geteuid().as_raw();
        match (owner(&path.join(name)), owner(path)) {
            (Ok(owner), Ok(of_directory)) => [user, 0, of_directory].contains(&owner),
            _ => false,
        }
    };
    let with = |name: &str| directory.ancestors().find(|path| path.join(name).exists() && is_theirs(path, name));
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

    /// The place of a cache with this name, of this scope.
    ///
    /// # Errors
    /// It is no name of a cache.
    pub fn new(home: &Path, scope: Scope, name: &str) -> Result<CachePlace, CacheError> {
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

    /// The cache that one without generations begins with: of the default branch, if this is another branch's.
    pub fn parent(&self) -> Option<CachePlace> {
        let Scope::Branch { project, branch, default: Some(default) } = &self.scope else { return None };
        let scope = Scope::Branch { project: project.clone(), branch: default.clone(), default: Some(default.clone()) };
        (branch != default).then(|| CachePlace::new(&self.home, scope, &self.name).ok()).flatten()
    }

    /// The directory that guests share live, beside the generations.
    pub fn live_directory(&self) -> PathBuf {
        self.directory().join(LIVE)
    }

    /// Writes down which project a scope's directory belongs to.
    pub(super) fn note_scope(&self) -> Result<(), PathError> {
        let note = match &self.scope {
            Scope::Project(project) => project.as_os_str().as_bytes().to_owned(),
            Scope::Branch { project, branch, .. } => noted(project, branch),
            Scope::Remote(url) => url.as_bytes().to_owned(),
            Scope::User | Scope::Named(_) => return Ok(()),
        };
        let path = self.home.join(&self.scope_directory).join(NOTE);
        if path.exists() {
            return Ok(());
        }
        let fail = |error: io::Error| PathError::new(&path, "cannot write it", error);
        let mut new = NewFile::create(&path, || {})?;
        // It stays as it is once it has its name.
        io::Write::write_all(&mut new.file, &note).and_then(|()| new.file.sync_all()).map_err(fail)?;
        new.commit()
    }

    /// Removes the cache.
    pub fn remove(&self) -> Result<(), PathError> {
        let directory = self.directory();
        let gone = directory.with_file_name(format!("{REMOVED}{}-{}", std::process::id(), self.name));
        let fail = |error: io::Error| PathError::new(&directory, "cannot remove the cache", error);
        fs::rename(&directory, &gone).and_then(|()| remove_all(&gone)).map_err(fail)?;
        let scope = self.home.join(&self.scope_directory);
        let is_empty = fs::read_dir(&scope).is_ok_and(|all| all.flatten().all(|entry| entry.file_name() == NOTE));
        if is_empty {
            // Another cache of the scope may be made just now.
            let _ = fs::remove_file(scope.join(NOTE)).and_then(|()| fs::remove_dir(&scope));
        }
        Ok(())
    }
}

/// Removes a directory of this user's. A guest may have made directories below it that not even their owner can enter.
fn remove_all(directory: &Path) -> io::Result<()> {
    match fs::remove_dir_all(directory) {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            permit_all(directory);
            fs::remove_dir_all(directory)
        }
        removed => removed,
    }
}

/// Lets this user change all directories below one. No link is followed.
fn permit_all(directory: &Path) {
    let mut open = vec![directory.to_owned()];
    while let Some(path) = open.pop() {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        // What stays as it is shows when it is removed.
        let Ok(found) = openat(CWD, &path, flags, Mode::empty()) else { continue };
        // An O_PATH descriptor has no fchmod(2).
        let itself = PathBuf::from(format!("/proc/self/fd/{}", found.as_raw_fd()));
        let _ = fs::set_permissions(&itself, fs::Permissions::from_mode(0o700));
        let below = fs::read_dir(&itself).into_iter().flatten().flatten();
        let directories = below.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
        open.extend(directories.map(|entry| path.join(entry.file_name())));
    }
}

/// Removes what is left of caches whose removal was interrupted.
///
/// # Errors
/// There is no directory of caches.
pub fn sweep_removed() -> Result<(), CacheError> {
    let entries = |directory: &Path| fs::read_dir(directory).into_iter().flatten().flatten();
    for scope in entries(&home()?).filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())) {
        for entry in entries(&scope.path()) {
            if entry.file_name().as_bytes().starts_with(REMOVED.as_bytes()) {
                // The process that removes it may be at it just now.
                let _ = remove_all(&entry.path());
            }
        }
    }
    Ok(())
}

/// By /etc/passwd.
fn user_name(uid: u32) -> Option<String> {
    let text = fs::read("/etc/passwd").ok()?;
    let of_line = |line: &[u8]| {
        let mut fields = line.split(|byte| *byte == b':');
        let name = String::from_utf8(fields.next()?.to_vec()).ok()?;
        (fields.nth(1)? == uid.to_string().as_bytes()).then_some(name)
    };
    text.split(|byte| *byte == b'\n').find_map(of_line)
}

/// The directory of all caches of this user.
pub fn home() -> Result<PathBuf, CacheError> {
    state::home().map(|home| home.join("caches")).ok_or(CacheError::NoPlace)
}

fn check(name: &str) -> Result<(), CacheError> {
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    let is_name =
        !name.is_empty() && name.len() <= LONGEST && name.bytes().all(is_plain) && !name.starts_with(['.', '-']);
    is_name.then_some(()).ok_or_else(|| CacheError::Name(name.to_owned()))
}
