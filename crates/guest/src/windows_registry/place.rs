//! Where the hives of a Windows system are: in a directory of the host, or in a volume of a disk image. Names are found there
//! whatever their case is.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use inarch_block::{Backing, BackingFile, ChangedFile, Cursor};
use inarch_confine::Parsing;
use inarch_disk::guest;
use inarch_format::Damage;
use inarch_source::{DiskImage, DiskPart, file_system, volumes};
use inarch_volume::{Item, Node, Volume};

/// Where the machine's hives are. Windows 2000 has another name for the directory.
const CONFIG: [[&str; 3]; 2] = [["Windows", "System32", "config"], ["WINNT", "system32", "config"]];
/// The machine's hives.
const HIVES: [&str; 5] = ["SYSTEM", "SOFTWARE", "SAM", "SECURITY", "DEFAULT"];
/// Where users' directories are; the second since Windows 2000, the first since Vista.
const USERS: [&str; 2] = ["Users", "Documents and Settings"];
/// What follows a hive's name in those of its logs.
const LOGS: [&str; 3] = [".LOG1", ".LOG2", ".LOG"];

/// A hive.
pub struct Found {
    /// Its file's name, or its user's.
    pub name: String,
    /// Whether it is a user's.
    pub is_user: bool,
    /// Where it is in the system.
    pub path: PathBuf,
    /// It.
    pub file: Arc<dyn Backing>,
    /// Its logs.
    pub logs: Vec<Arc<dyn Backing>>,
}

/// A file or a directory. Symbolic links are neither.
#[derive(Clone)]
pub enum Place {
    /// On the host.
    Host(PathBuf),
    /// In a volume.
    Volume(Arc<dyn Volume>, Node),
}

impl Place {
    /// The names in a directory, with what they name; none if it cannot be read.
    fn list(&self) -> Vec<(String, Place)> {
        let mut found = Vec::new();
        match self {
            Place::Host(path) => {
                for entry in fs::read_dir(path).into_iter().flatten().flatten() {
                    let name = entry.file_name().to_string_lossy().into_owned();
                    if entry.file_type().is_ok_and(|kind| kind.is_file() || kind.is_dir()) {
                        found.push((name, Place::Host(entry.path())));
                    }
                }
            }
            Place::Volume(volume, node) => {
                // What could be listed before an error is there.
                let _ = volume.list(*node, 0, &mut |item| {
                    if let Item::Entry(entry) = item {
                        let name = String::from_utf8_lossy(entry.name).into_owned();
                        found.push((name, Place::Volume(volume.clone(), entry.node)));
                    }
                    true
                });
            }
        }
        found
    }

    /// What is at the end of a path. The first of several names that differ in case counts.
    pub fn find(&self, path: &[&str]) -> Option<Place> {
        let mut place = self.clone();
        for part in path {
            let named = |(name, _): &(String, Place)| name.eq_ignore_ascii_case(part);
            place = place.list().into_iter().find(named)?.1;
        }
        Some(place)
    }

    /// The file's bytes; none if it is no regular file, or cannot be opened.
    fn open(&self) -> Option<Arc<dyn Backing>> {
        match self {
            Place::Host(path) => {
                let file = File::open(path).ok().filter(|file| file.metadata().is_ok_and(|about| about.is_file()))?;
                Some(Arc::new(BackingFile::new(file, path.clone()).ok()?))
            }
            Place::Volume(volume, node) => {
                let about = volume.attributes(*node).ok()?;
                let is_file = about.mode & libc::S_IFMT == libc::S_IFREG;
                is_file.then(|| Arc::new(InVolume { volume: volume.clone(), node: *node, size: about.size }) as _)
            }
        }
    }
}

/// A file of a volume.
struct InVolume {
    volume: Arc<dyn Volume>,
    node: Node,
    size: u64,
}

impl Backing for InVolume {
    fn size(&self) -> u64 {
        self.size
    }

    fn read(&self, offset: u64, count: u64, out: &mut Cursor<'_, '_>) -> io::Result<()> {
        if offset.checked_add(count).is_none_or(|end| end > self.size) {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(self.volume.read(self.node, offset, count, out)?)
    }

    fn changed(&self) -> Option<ChangedFile> {
        self.volume.changed()
    }
}

/// A hive and its logs.
type WithLogs = (Arc<dyn Backing>, Vec<Arc<dyn Backing>>);

/// The hive of that name in a directory, with its logs.
fn hive(listed: &[(String, Place)], name: &str) -> Option<WithLogs> {
    let named = |wanted: String| listed.iter().find(|(name, _)| name.eq_ignore_ascii_case(&wanted));
    let file = named(name.to_owned())?.1.open()?;
    let logs = LOGS.iter().filter_map(|log| named(format!("{name}{log}"))?.1.open()).collect();
    Some((file, logs))
}

/// The logs beside a hive of the host.
pub fn host_logs(path: &Path) -> Vec<Arc<dyn Backing>> {
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    let listed = Place::Host(directory.to_owned()).list();
    let named = |wanted: String| listed.iter().find(|(name, _)| name.eq_ignore_ascii_case(&wanted));
    LOGS.iter().filter_map(|log| named(format!("{name}{log}"))?.1.open()).collect()
}

/// The hives of the system whose root directory is `root`.
pub fn hives(root: &Place) -> Result<Vec<Found>, String> {
    let Some((config, path)) = CONFIG.iter().find_map(|path| Some((root.find(path)?, path))) else {
        return Err("it has no Windows/System32/config, so no registry".to_owned());
    };
    let mut found = Vec::new();
    let listed = config.list();
    for name in HIVES {
        let path = path.iter().collect::<PathBuf>().join(name);
        let hive = hive(&listed, name);
        found.extend(hive.map(|(file, logs)| Found { name: name.to_owned(), is_user: false, path, file, logs }));
    }
    for users in USERS {
        for (name, place) in root.find(&[users]).map(|users| users.list()).unwrap_or_default() {
            let path = Path::new(users).join(&name).join("NTUSER.DAT");
            let hive = hive(&place.list(), "NTUSER.DAT");
            found.extend(hive.map(|(file, logs)| Found { name, is_user: true, path, file, logs }));
        }
    }
    Ok(found)
}

/// The hives of the first Windows system on a guest's disks, or on the volume that is meant.
pub fn hives_in_image(parsing: Parsing, images: Vec<DiskImage>, part: &DiskPart) -> Result<Vec<Found>, String> {
    let mut reason = "no hive, and no disk image with a file system that can be read".to_owned();
    let volumes = volumes(parsing, images, &part.keys).map_err(|error| error.to_string())?;
    for volume in guest::meant(&volumes, &part.which).map_err(|error| error.to_string())? {
        match file_system(parsing, volume, Damage::Salvaged) {
            Ok(Some(files)) => {
                let root = files.root();
                match hives(&Place::Volume(files, root)) {
                    Ok(found) => return Ok(found),
                    Err(error) => reason = error,
                }
            }
            Ok(None) => {}
            Err(error) => reason = error.to_string(),
        }
    }
    Err(reason)
}
