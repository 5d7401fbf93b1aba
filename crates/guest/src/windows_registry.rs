//! `inarch disk reg`: reads the registry of a Windows machine from its disk, its directory or one hive. Nothing is written to them.
//!
//! [`read`] opens the files, and has a thread that can do nothing else parse them: the hive, and before it the file system that it is in.

mod path;
mod place;

use std::fs::{File, FileType};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use inarch_block::{Backing, BackingFile, read_backing};
use inarch_confine::{Parse, Parsing};
pub use inarch_hive::{HEAD, Hive, HiveError, Key, Shown, Value, Visited, export_key, type_name};
use inarch_lifecycle::PathError;
use inarch_lifecycle::shown;
use inarch_source::{DiskNeeds, DiskPart, FileKind, Source, SourceError};

use path::{Root, Wanted};
pub use place::{Found, Place, hives};

/// Why a registry cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum RegistryError {
    /// A file cannot be opened.
    #[error(transparent)]
    Path(#[from] PathError),
    /// A hive cannot be read.
    #[error("{}: {error}", shown(path))]
    Hive {
        /// Where it was looked for.
        path: PathBuf,
        /// What is wrong with it.
        error: HiveError,
    },
    /// There is nothing of that name, or no way to find it.
    #[error("{}: {reason}", shown(path))]
    Nothing {
        /// Where it was looked for.
        path: PathBuf,
        /// What there is not, and what to do.
        reason: String,
    },
    /// It is no source.
    #[error(transparent)]
    Source(#[from] Box<SourceError>),
    /// No thread could be confined to read it.
    #[error(transparent)]
    Thread(#[from] inarch_source::OpenError),
}

/// What to read.
#[derive(Clone, Debug)]
pub struct RegistryRequest {
    /// A hive, a directory of a Windows system (the one that has `Windows`), a disk image, or a volume of one.
    pub source: PathBuf,
    /// What the image needs beside itself.
    pub needs: DiskNeeds,
    /// A key: `HKLM\SYSTEM\Select`; in a hive also without the names that lead to it.
    pub key: String,
    /// The transaction logs, if the source is a hive; if none are given, those beside it.
    pub logs: Vec<PathBuf>,
}

/// A key that was found, with its hive.
pub struct FoundKey<'a> {
    /// Where the hive was found.
    pub file: PathBuf,
    /// The hive.
    pub hive: &'a Hive,
    /// The key.
    pub key: Key,
    /// Its full path, from `HKEY_LOCAL_MACHINE` or `HKEY_USERS`; `None` if the hive may belong anywhere.
    pub path: Option<String>,
    /// Its path within the hive.
    pub within: Vec<String>,
}

/// Finds a key, and has `look` look at it, in the thread that parses. That thread opens nothing; the calling one does `meanwhile`.
///
/// # Errors
/// See [`RegistryError`]; those of `look` are about the hive.
pub fn read<T: Send>(
    request: &RegistryRequest,
    look: impl FnOnce(FoundKey<'_>) -> Result<T, HiveError> + Send,
    meanwhile: impl FnOnce(),
) -> Result<T, RegistryError> {
    let source = &*request.source;
    let wanted = Wanted::parse(&request.key);
    let kind = source.metadata().map(|metadata| metadata.file_type());
    let is_directory = kind.as_ref().is_ok_and(FileType::is_dir);
    let is_single = kind.is_ok_and(|kind| kind.is_file()) && is_hive(source)?;
    if !is_single && !request.logs.is_empty() {
        let reason = "logs are named for a single hive; those of a machine's hives are found beside them".to_owned();
        return Err(nothing(source, reason));
    }
    if is_directory {
        let found = place::hives(&Place::Host(source.to_owned())).map_err(|error| nothing(source, error))?;
        return parse(|parsing| of_machine(parsing, source, &wanted, &found, look), meanwhile)?;
    }
    if is_single {
        let file = open(source)?;
        let logs = match request.logs.is_empty() {
            false => request.logs.iter().map(|log| open(log)).collect::<Result<Vec<_>, RegistryError>>()?,
            true => place::host_logs(source),
        };
        let read = |parsing| {
            let fail = |error| RegistryError::Hive { path: source.to_owned(), error };
            let hive = Hive::open(parsing, file, &logs).map_err(fail)?;
            let above = wanted.above().or_else(|| path::usual_root(source));
            in_hive(source, &hive, above, wanted.within_hive(), look)
        };
        return parse(read, meanwhile)?;
    }
    let (path, part) = disk(request)?;
    if !part.within.as_os_str().is_empty() {
        let reason = "the hives of an image are found where Windows has them; leave the path out, or copy a hive out ('inarch disk cp')";
        return Err(nothing(source, reason.to_owned()));
    }
    let images = part.open(&path)?;
    let read = |parsing| {
        let found = place::hives_in_image(parsing, images, &part).map_err(|error| nothing(&path, error))?;
        of_machine(parsing, source, &wanted, &found, look)
    };
    parse(read, meanwhile)?
}

/// Whether a file begins as a hive does.
fn is_hive(path: &Path) -> Result<bool, RegistryError> {
    let file = open(path)?;
    let mut magic = [0; 4];
    Ok(parse(|_| read_backing(&*file, 0, &mut magic).is_ok() && magic == *b"regf", || {})?)
}

/// The disk image that is named, and what of it.
fn disk(request: &RegistryRequest) -> Result<(PathBuf, Box<DiskPart>), RegistryError> {
    let none = || nothing(&request.source, "no hive, and no disk image with a file system that can be read".to_owned());
    match Source::parse_with(request.source.as_os_str(), &request.needs) {
        Ok(Source::Disk { path, part }) => Ok((path, part)),
        Ok(Source::File { path, kind: FileKind::Volume(_), .. }) => Ok((path, Box::default())),
        Ok(_) | Err(SourceError::Unknown { .. } | SourceError::NotRead { .. }) => Err(none()),
        Err(error) => Err(Box::new(error).into()),
    }
}

fn parse<T: Send>(
    read: impl FnOnce(Parsing) -> T + Send,
    meanwhile: impl FnOnce(),
) -> Result<T, inarch_source::OpenError> {
    Parse::new().run(read, meanwhile).map_err(inarch_source::OpenError::NoThread)
}

fn open(path: &Path) -> Result<Arc<dyn Backing>, RegistryError> {
    let fail = |error| PathError::new(path, "cannot open it", error);
    let file = File::open(path).map_err(fail)?;
    if !file.metadata().map_err(fail)?.is_file() {
        return Err(nothing(path, "neither a directory nor a regular file, so no hive and no disk image".to_owned()));
    }
    Ok(Arc::new(BackingFile::new(file, path.to_owned()).map_err(fail)?))
}

fn nothing(path: &Path, reason: String) -> RegistryError {
    RegistryError::Nothing { path: path.to_owned(), reason }
}

/// Finds the hive among those of a machine.
fn of_machine<T>(
    parsing: Parsing,
    source: &Path,
    wanted: &Wanted,
    found: &[Found],
    look: impl FnOnce(FoundKey<'_>) -> Result<T, HiveError>,
) -> Result<T, RegistryError> {
    let open = |found: &Found| {
        Hive::open(parsing, found.file.clone(), &found.logs)
            .map_err(|error| RegistryError::Hive { path: source.join(&found.path), error })
    };
    let machine = |name: &str| found.iter().find(|found| !found.is_user && found.name.eq_ignore_ascii_case(name));
    let users = || found.iter().filter(|found| found.is_user);
    let user = |name: &str| users().find(|found| found.name.eq_ignore_ascii_case(name));
    let names = || users().map(|found| &*found.name).collect::<Vec<_>>().join(", ");
    let (hive, name) = match wanted.root() {
        Some(Root::Machine(name)) => (machine(name), name.to_owned()),
        Some(Root::User(name)) if name.eq_ignore_ascii_case(".DEFAULT") => (machine("DEFAULT"), name.to_owned()),
        Some(Root::User(sid)) if sid.get(..4).is_some_and(|start| start.eq_ignore_ascii_case("S-1-")) => {
            let software = machine("SOFTWARE").map(&open).transpose()?;
            let profile = software.map(|software| path::profile(&software, sid)).transpose();
            let profile = profile.map_err(|error| RegistryError::Hive { path: source.to_owned(), error })?.flatten();
            (profile.as_deref().and_then(user), sid.to_owned())
        }
        Some(Root::User(name)) => (user(name), name.to_owned()),
        None => {
            let reason = format!(
                "the key must begin with HKLM\\SYSTEM, HKLM\\SOFTWARE, HKLM\\SAM, HKLM\\SECURITY, HKU\\.DEFAULT, or HKU and the name or SID \
                 of one of its users: {}",
                names()
            );
            return Err(nothing(source, reason));
        }
    };
    let Some(hive) = hive else {
        return Err(nothing(source, format!("it has no hive for {name:?}; its users are: {}", names())));
    };
    in_hive(&source.join(&hive.path), &open(hive)?, wanted.above(), wanted.within_hive(), look)
}

fn in_hive<T>(
    source: &Path,
    hive: &Hive,
    above: Option<String>,
    within: &[String],
    look: impl FnOnce(FoundKey<'_>) -> Result<T, HiveError>,
) -> Result<T, RegistryError> {
    let fail = |error| RegistryError::Hive { path: source.to_owned(), error };
    let within = path::current(hive, within).map_err(fail)?;
    // The names as the hive has them.
    let (mut key, mut names) = (hive.root().map_err(fail)?, Vec::new());
    for name in &within {
        let Some(next) = hive.subkey(&key, name).map_err(fail)? else {
            let at = if names.is_empty() { "at its top".to_owned() } else { format!("in {:?}", names.join("\\")) };
            // What is missing may be in a log that is not there.
            let notes = hive.notes().iter().map(|note| format!("; {note}")).collect::<String>();
            return Err(nothing(source, format!("there is no key {name:?} {at}{notes}")));
        };
        names.push(next.name.to_string());
        key = next;
    }
    let path = above.map(|above| names.iter().fold(above, |path, name| path + "\\" + name));
    look(FoundKey { file: source.to_owned(), hive, key, path, within: names }).map_err(fail)
}
