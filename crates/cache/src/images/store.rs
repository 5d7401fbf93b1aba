//! [`Images`]: the directory of images that came from registries.

use std::collections::HashSet;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use inarch_confine::Parse;
use inarch_format::oci::{Described, Digest, Document, leads_to, read_document};
use inarch_lifecycle::new_file::NewFile;
use inarch_lifecycle::state;
use inarch_lifecycle::trust::{self, Missing, Owner};
use inarch_lifecycle::{FileLock, PathError};
use inarch_remote::registry::ImageName;
use rustix::fs::{FlockOperation, flock};
use serde::{Deserialize, Serialize};

use super::PullError;

/// The directory in the cache directory.
const DIRECTORY: &str = "images";
const NAMES: &str = "names";
const LOCK: &str = "lock";
/// The directories of blobs, by algorithm.
const ALGORITHMS: [&str; 2] = ["sha256", "sha512"];

/// The most bytes of a document: what a registry may answer.
const MOST_DOCUMENT: u64 = inarch_remote::registry::MOST_DOCUMENT;

/// What an image's name stood for.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct Known {
    /// The name.
    pub name: String,
    /// The type of the manifest or index.
    pub media_type: String,
    /// Its digest.
    pub digest: String,
    /// Its bytes.
    pub size: u64,
    /// When the registry said so, in seconds since 1970.
    pub asked: u64,
}

impl Known {
    /// What it stood for; `None` if the file is damaged.
    pub fn root(&self) -> Option<Described> {
        let digest = Digest::parse(&self.digest).ok()?;
        Some(Described { media_type: self.media_type.clone(), digest, size: self.size })
    }
}

/// The directory, locked (shared): `prune` leaves it alone while this value lives.
#[derive(Clone, Debug)]
pub(super) struct Images {
    place: PathBuf,
    _lock: Arc<FileLock>,
}

/// A complete image. It stays complete while this value lives.
#[derive(Clone, Debug)]
pub struct KeptImage {
    images: Images,
    /// Its manifest, or an index that leads to it.
    pub root: Described,
}

impl KeptImage {
    pub(super) fn new(images: Images, root: Described) -> KeptImage {
        KeptImage { images, root }
    }

    /// Removes what of it is damaged, by a crash or a disk. Returns how many blobs that were.
    pub fn discard_damaged(&self) -> Result<usize, PullError> {
        let mut count = 0;
        for blob in self.images.needed(&self.root)? {
            let fail = |error| PathError::new(&self.images.blob(&blob.digest), "cannot remove what is damaged", error);
            count += usize::from(self.images.discard_damaged(&blob).map_err(fail)?);
        }
        Ok(count)
    }

    /// The directory beneath which its blobs lie.
    pub fn place(&self) -> &Path {
        &self.images.place
    }
}

impl Images {
    /// Opens the directory; makes it if it is missing.
    pub fn open() -> Result<Images, PullError> {
        let home = state::cache().ok_or(PullError::NoPlace)?;
        for algorithm in ALGORITHMS {
            trust::directory(&home, &[DIRECTORY, "blobs", algorithm], Missing::Make, Owner::User)?;
        }
        trust::directory(&home, &[DIRECTORY, NAMES], Missing::Make, Owner::User)?;
        let place = home.join(DIRECTORY);
        let lock = lock(&place, FlockOperation::LockShared)?;
        Ok(Images { place, _lock: Arc::new(FileLock::of(lock)) })
    }

    /// The directory.
    pub fn place(&self) -> &Path {
        &self.place
    }

    /// Where a blob is, or will be.
    fn blob(&self, digest: &Digest) -> PathBuf {
        self.place.join(digest.path())
    }

    /// Whether a blob is here, with the size that it must have.
    pub fn has(&self, blob: &Described) -> bool {
        let found = self.blob(&blob.digest).symlink_metadata();
        found.is_ok_and(|found| found.is_file() && found.len() == blob.size)
    }

    /// A document that is here, and is not damaged.
    pub fn document(&self, document: &Described) -> Option<Vec<u8>> {
        if !self.has(document) || document.size > MOST_DOCUMENT {
            return None;
        }
        let bytes = trust::read(&self.blob(&document.digest)).ok()?;
        let mut hasher = document.digest.hasher();
        hasher.update(&bytes);
        document.digest.check(hasher, "").ok().map(|()| bytes)
    }

    /// Removes the blob if its bytes are not those of its digest. Returns whether it did.
    fn discard_damaged(&self, blob: &Described) -> io::Result<bool> {
        let path = self.blob(&blob.digest);
        let mut file = match trust::open(&path, OpenOptions::new().read(true)) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
            Err(error) => return Err(error),
        };
        let (mut hasher, mut buffer) = (blob.digest.hasher(), vec![0; 256 << 10]);
        loop {
            match file.read(&mut buffer)? {
                0 => break,
                got => hasher.update(buffer.get(..got).unwrap_or_default()),
            }
        }
        let is_damaged = blob.digest.check(hasher, "").is_err();
        if is_damaged {
            fs::remove_file(&path)?;
        }
        Ok(is_damaged)
    }

    /// Keeps a document.
    pub fn keep_document(&self, document: &Described, bytes: &[u8]) -> Result<(), PullError> {
        let fail = |error| PullError::Keep { path: self.blob(&document.digest), error };
        self.keep(document, |file| file.write_all(bytes).map_err(fail), || self.document(document).is_some())
    }

    /// Keeps a blob. `fill` writes its bytes, and must check them.
    pub fn keep_blob(
        &self,
        blob: &Described,
        fill: impl FnOnce(&mut dyn Write) -> Result<(), PullError>,
    ) -> Result<(), PullError> {
        self.keep(blob, fill, || self.has(blob))
    }

    /// Keeps what `fill` writes, unless it is here, as `is_here` tells: another command may have kept it meanwhile, and reads that file by now.
    fn keep(
        &self,
        blob: &Described,
        fill: impl FnOnce(&mut dyn Write) -> Result<(), PullError>,
        is_here: impl Fn() -> bool,
    ) -> Result<(), PullError> {
        let path = self.blob(&blob.digest);
        let new = NewFile::create(&path, || {})?;
        fill(&mut &new.file)?;
        // A name that outlives a loss of power must not lead to other bytes.
        new.file.sync_data().map_err(|error| PullError::Keep { path: path.clone(), error })?;
        // A crash or a disk has damaged it.
        if path.symlink_metadata().is_ok() && !is_here() {
            fs::remove_file(&path).map_err(|error| PathError::new(&path, "cannot remove what is damaged", error))?;
        }
        Ok(new.commit_unless_there()?)
    }

    fn name(&self, name: &ImageName) -> PathBuf {
        let digest = Digest::of(name.to_string().as_bytes()).to_string();
        self.place.join(NAMES).join(digest.trim_start_matches("sha256:"))
    }

    /// What a name stood for when it was last asked for.
    pub fn known(&self, name: &ImageName) -> Option<Known> {
        let known: Known = serde_json::from_slice(&trust::read(&self.name(name)).ok()?).ok()?;
        (known.name == name.to_string()).then_some(known)
    }

    /// Notes what a name stands for: all of it is here.
    pub fn know(&self, name: &ImageName, root: &Described) -> Result<(), PullError> {
        let path = self.name(name);
        let known = Known {
            name: name.to_string(),
            media_type: root.media_type.clone(),
            digest: root.digest.to_string(),
            size: root.size,
            asked: seconds(SystemTime::now()),
        };
        let new = NewFile::create(&path, || {})?;
        let text = serde_json::to_vec(&known).map_err(io::Error::from);
        let written = text.and_then(|text| (&new.file).write_all(&text)).and_then(|()| new.file.sync_data());
        written.map_err(|error| PullError::Keep { path, error })?;
        Ok(new.commit()?)
    }

    /// Notes that an image is used.
    pub fn use_now(&self, name: &ImageName) {
        let file = trust::open(&self.name(name), OpenOptions::new().write(true));
        // Only the order in which images are pruned suffers.
        let _ = file.and_then(|file| file.set_modified(SystemTime::now()));
    }
}

fn lock(place: &Path, how: FlockOperation) -> Result<File, PathError> {
    let path = place.join(LOCK);
    let fail = |error: io::Error| PathError::new(&path, "cannot lock it", error);
    let file = trust::open(&path, OpenOptions::new().append(true).create(true).mode(0o600)).map_err(fail)?;
    flock(&file, how).map_err(|error| fail(error.into()))?;
    Ok(file)
}

fn seconds(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// What is known of an image that came from a registry.
#[derive(Clone, Debug, Serialize)]
pub struct ImageReport {
    /// Its name, which is a source.
    pub name: String,
    /// The digest of what the name stood for.
    pub digest: String,
    /// Bytes on the disk of what it needs; images may have some in common.
    pub stored: u64,
    /// When it was last used, in seconds since 1970.
    pub used: u64,
    /// When the registry was last asked, in seconds since 1970.
    pub asked: u64,
}

/// A name in the directory, with the blobs that it needs.
struct Named {
    path: PathBuf,
    known: Known,
    used: SystemTime,
    blobs: HashSet<PathBuf>,
}

impl Images {
    /// All names, those used longest ago first. What is damaged is left out.
    fn all(&self) -> Result<Vec<Named>, PullError> {
        let place = self.place.join(NAMES);
        let fail = |error| PathError::new(&place, "cannot list it", error);
        let mut all = Vec::new();
        for entry in fs::read_dir(&place).map_err(fail)?.flatten() {
            let path = entry.path();
            let known = trust::read(&path).ok().and_then(|text| serde_json::from_slice::<Known>(&text).ok());
            let (Some(known), Ok(metadata)) = (known, entry.metadata()) else { continue };
            let used = metadata.modified().unwrap_or(UNIX_EPOCH);
            let needed = known.root().map(|root| self.needed(&root)).transpose()?.unwrap_or_default();
            let blobs = needed.iter().map(|blob| self.blob(&blob.digest)).collect();
            all.push(Named { path, known, used, blobs });
        }
        all.sort_by(|a, b| (a.used, &a.path).cmp(&(b.used, &b.path)));
        Ok(all)
    }

    /// The blobs that are here of an image, for whatever machines.
    fn needed(&self, root: &Described) -> Result<HashSet<Described>, PullError> {
        let mut found = HashSet::new();
        let mut left = vec![root.clone()];
        while let Some(document) = left.pop() {
            let Some(bytes) = self.document(&document) else { continue };
            if !found.insert(document.clone()) {
                continue;
            }
            let name = document.digest.to_string();
            let leads = |parsing| leads_to(parsing, &name, &document.media_type, &bytes).unwrap_or_default();
            let leads = Parse::new().run(leads, || {}).map_err(PullError::NoThread)?;
            for next in leads {
                match next {
                    Document::Index(document) => left.push(document),
                    Document::Manifest { config, layers } => {
                        let blobs = std::iter::once(config).chain(layers);
                        found.extend(blobs.filter(|blob| self.has(blob)));
                    }
                }
            }
        }
        Ok(found)
    }

    /// All blobs.
    fn blobs(&self) -> Vec<PathBuf> {
        let places = ALGORITHMS.map(|algorithm| self.place.join("blobs").join(algorithm));
        let entries = places.iter().filter_map(|place| fs::read_dir(place).ok()).flatten().flatten();
        entries.map(|entry| entry.path()).collect()
    }
}

/// Bytes on the disk.
fn stored<'a>(blobs: impl IntoIterator<Item = &'a PathBuf>) -> u64 {
    // st_blocks counts 512 bytes.
    blobs.into_iter().filter_map(|path| path.symlink_metadata().ok()).map(|metadata| metadata.blocks() * 512).sum()
}

/// The directory, if it is there.
fn existing() -> Result<Option<Images>, PullError> {
    match state::cache() {
        Some(home) if home.join(DIRECTORY).is_dir() => Images::open().map(Some),
        _ => Ok(None),
    }
}

/// All images that came from registries and are here, those used longest ago first.
///
/// # Errors
/// They cannot be listed.
pub fn images() -> Result<Vec<ImageReport>, PullError> {
    let Some(images) = existing()? else { return Ok(Vec::new()) };
    let report = |named: &Named| ImageReport {
        name: named.known.name.clone(),
        digest: named.known.digest.clone(),
        stored: stored(&named.blobs),
        used: seconds(named.used),
        asked: named.known.asked,
    };
    Ok(images.all()?.iter().map(report).collect())
}

/// What pruning images has freed.
#[derive(Clone, Debug, Default, Serialize)]
pub struct PrunedImages {
    /// The names of the removed images.
    pub removed: Vec<String>,
    /// Bytes on the disk before.
    pub before: u64,
    /// Bytes on the disk afterwards.
    pub after: u64,
    /// Whether another program uses images just now, so that nothing was done.
    pub busy: bool,
}

/// Removes images that were not used for `older_than`, and those used longest ago until all together take at most `max_size`; and what no image
/// needs. Nothing is done while another program fetches an image or has one open.
///
/// # Errors
/// They cannot be listed or removed.
pub fn prune_images(older_than: Option<Duration>, max_size: Option<u64>) -> Result<PrunedImages, PullError> {
    let Some(images) = existing()? else { return Ok(PrunedImages::default()) };
    let before = stored(&images.blobs());
    let busy = PrunedImages { before, after: before, busy: true, ..PrunedImages::default() };
    // The shared lock becomes an exclusive one, unless others have theirs.
    if let Err(error) = flock(&**images._lock, FlockOperation::NonBlockingLockExclusive) {
        let path = images.place.join(LOCK);
        return match error {
            rustix::io::Errno::WOULDBLOCK => Ok(busy),
            error => Err(PathError::new(&path, "cannot lock it", error).into()),
        };
    }
    let now = SystemTime::now();
    let mut stay = images.all()?;
    let mut pruned = PrunedImages { before, ..PrunedImages::default() };
    loop {
        let total = stored(stay.iter().flat_map(|named| &named.blobs).collect::<HashSet<_>>());
        let Some(first) = stay.first() else { break };
        let is_old = older_than.is_some_and(|limit| now.duration_since(first.used).is_ok_and(|age| age > limit));
        let is_too_much = max_size.is_some_and(|limit| total > limit);
        if !is_old && !is_too_much {
            break;
        }
        let fail = |error| PathError::new(&first.path, "cannot remove it", error);
        fs::remove_file(&first.path).map_err(fail)?;
        pruned.removed.push(first.known.name.clone());
        stay.remove(0);
    }
    let needed: HashSet<&PathBuf> = stay.iter().flat_map(|named| &named.blobs).collect();
    for blob in images.blobs().iter().filter(|blob| !needed.contains(blob)) {
        fs::remove_file(blob).map_err(|error| PathError::new(blob, "cannot remove it", error))?;
    }
    pruned.after = stored(&images.blobs());
    Ok(pruned)
}

/// Where a document leads for one machine.
pub(super) fn read(
    name: &str,
    document: &Described,
    bytes: &[u8],
    machine: &str,
) -> Result<(Document, Vec<String>), PullError> {
    let text = document.digest.to_string();
    let read = |parsing| read_document(parsing, &text, &document.media_type, bytes, machine);
    let read = Parse::new().run(read, || {}).map_err(PullError::NoThread)?;
    read.map_err(|error| PullError::Answer { name: name.to_owned(), error })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_others_read_is_not_replaced() {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join("blobs/sha256")).unwrap();
        let lock = FileLock::of(lock(dir.path(), FlockOperation::LockShared).unwrap());
        let images = Images { place: dir.path().to_owned(), _lock: Arc::new(lock) };
        let blob = Described { media_type: "layer".to_owned(), digest: Digest::of(b"bytes"), size: 5 };
        let path = images.blob(&blob.digest);
        let stamp = || fs::metadata(&path).map(|is| (is.ino(), is.ctime_nsec())).unwrap();
        let keep =
            || images.keep_blob(&blob, |file| file.write_all(b"bytes").map_err(|error| panic!("{error}"))).unwrap();
        keep();
        let first = stamp();
        keep();
        images.keep_document(&blob, b"bytes").unwrap();
        assert_eq!(stamp(), first);
        // One that was cut off is.
        fs::write(&path, "by").unwrap();
        keep();
        assert_eq!(fs::read(&path).unwrap(), b"bytes");
        // So is a document with other bytes.
        fs::write(&path, "other").unwrap();
        images.keep_document(&blob, b"bytes").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"bytes");
    }
}
