//! [`Far`]: the place of one cache, or tree, at a remote.
//!
//! | object | content |
//! |---|---|
//! | `head` | which generation is the current one ([`Head`]); the only object that changes |
//! | `generations/DIGEST` | a generation, compressed: names, attributes, digests, chunks. DIGEST is that of the object |
//! | `packs/NAME` | the bytes of the files that one push added, laid out as in a pack of this machine |
//!
//! A push puts a pack first, then the generation, then the head, if that is still the one that it read. A push that is killed before the last step
//! changes nothing that a reader sees. Nothing is removed, so a reader of an older generation can go on.
//!
//! Nothing of a remote is trusted. We check the head's size and form, the generation's length and digest against the head, each list of
//! chunks against its file's digest, and each chunk against its own. A thread confined to parsing unpacks and reads the generation.

mod head;

use std::ops::Range;
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use inarch_confine::Parse;
use inarch_lifecycle::PathError;
use inarch_lifecycle::confinement::{Access, Confinement, Grants, Work};
use inarch_remote::{Found, Limits, Location, Remote, RemoteError, Version};

use super::error::Damage;
use super::generation::Generation;
use super::pack_chunks::Chunks;
use super::stored::is_remote_name;
use super::{CacheError, CachePlace};
pub(crate) use head::Head;

/// The most lines about chunks that could not be fetched.
const MOST_LINES: u32 = 5;

/// Takes a line for the user.
type Tell = Arc<dyn Fn(&str) + Send + Sync>;

/// The place of a cache, or tree, at a remote.
pub struct Far {
    remote: Remote,
    /// What the place is of, for messages.
    what: String,
    tell: Mutex<Option<Tell>>,
    lines: AtomicU32,
    /// Whether it was found out of reach.
    is_lost: AtomicBool,
}

impl std::fmt::Debug for Far {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Far").field(&self.what).field(self.remote.location()).finish()
    }
}

/// A remote with which caches are synced, and the thread that speaks with it.
#[derive(Clone, Debug)]
pub struct CacheRemote(pub Arc<Far>);

/// Two are the same if they are at the same place.
impl PartialEq for CacheRemote {
    fn eq(&self, other: &CacheRemote) -> bool {
        self.0.location() == other.0.location()
    }
}

impl Eq for CacheRemote {}

impl CacheRemote {
    /// The place of a cache at a remote, to which something will be pushed if `puts`. Nothing is asked for yet.
    ///
    /// # Errors
    /// No thread can be started.
    pub fn of(location: &Location, place: &CachePlace, puts: bool) -> Result<CacheRemote, CacheError> {
        let names = place.scope.remote_names();
        let location = location.below(&[&names, &place.name])?;
        Ok(CacheRemote(Arc::new(Far::start(location, format!("cache {}", place.name), puts)?)))
    }
}

/// The current generation at a remote.
pub struct Current {
    pub head: Head,
    pub version: Version,
}

impl Far {
    /// Starts the thread that speaks with the remote, and confines it. Nothing is asked for yet. A directory is made if something will be put there.
    pub fn start(location: Location, what: String, puts: bool) -> Result<Far, CacheError> {
        if puts {
            // If it cannot be made, nothing can be put there, and that is told then.
            let _ = location.make_directory();
        }
        let confinement = fetching(location.directory().as_deref())?;
        let remote = Remote::start(location, Limits::default(), move || drop(confinement.enter()));
        let remote = remote.map_err(|error| far_error(&what, error))?;
        Ok(Far { remote, what, tell: Mutex::default(), lines: AtomicU32::new(0), is_lost: AtomicBool::new(false) })
    }

    /// Where it is.
    pub fn location(&self) -> &Location {
        self.remote.location()
    }

    /// Notes that it is out of reach: readers do without the files whose bytes only it has.
    pub fn lose(&self) {
        self.is_lost.store(true, Ordering::Relaxed);
    }

    /// Whether it was found out of reach.
    pub fn is_lost(&self) -> bool {
        self.is_lost.load(Ordering::Relaxed)
    }

    /// Whether nothing can be put there.
    pub fn is_read_only(&self) -> bool {
        self.location().is_read_only()
    }

    /// An error if nothing can be put there.
    pub fn must_take(&self) -> Result<(), CacheError> {
        if self.is_read_only() { Err(self.fail(RemoteError::ReadOnly)) } else { Ok(()) }
    }

    /// Sends lines for the user to `tell` from now on.
    pub fn on_line(&self, tell: impl Fn(&str) + Send + Sync + 'static) {
        *self.tell.lock().unwrap_or_else(PoisonError::into_inner) = Some(Arc::new(tell));
    }

    /// Tells the user.
    pub fn tell(&self, line: &str) {
        let tell = self.tell.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Some(tell) = tell {
            tell(&format!("{}: {line}", self.what));
        }
    }

    /// Tells that a chunk cannot be fetched.
    pub fn tell_wrong(&self, path: &str, offset: u64, length: u32, why: &str) {
        let path = inarch_lifecycle::shown(path.as_ref());
        let place = format!("{path}: {length} bytes from {offset} are an I/O error");
        match self.lines.fetch_add(1, Ordering::Relaxed) {
            lines if lines < MOST_LINES => self.tell(&format!("{place}: {}: {why}", self.location())),
            MOST_LINES => self.tell("further errors like these are not listed"),
            _ => {}
        }
    }

    fn fail(&self, error: RemoteError) -> CacheError {
        far_error(&self.location().to_string(), error)
    }

    fn damaged(&self, object: &str, damage: &Damage) -> CacheError {
        CacheError::Remote { place: format!("{}/{object}", self.location()), reason: damage.to_string() }
    }

    /// Whether a pack is there, with all of its first `end` bytes.
    pub fn has_pack(&self, name: &str, end: u64) -> Result<bool, CacheError> {
        let size = self.remote.size(&format!("packs/{name}")).map_err(|error| self.fail(error))?;
        Ok(size.is_some_and(|size| size >= end))
    }

    /// A part of a pack.
    pub fn bytes(&self, pack: &str, range: Range<u64>) -> Result<Vec<u8>, RemoteError> {
        self.remote.get_range(&format!("packs/{pack}"), range)
    }

    /// Which generation is the current one; `None` before the first.
    pub fn current(&self) -> Result<Option<Current>, CacheError> {
        match self.remote.get(HEAD, Head::MOST) {
            Ok(Found { bytes, version }) => {
                let head = Head::decode(&bytes).map_err(|damage| self.damaged(HEAD, &damage))?;
                Ok(Some(Current { head, version }))
            }
            Err(RemoteError::Missing) => Ok(None),
            Err(error) => Err(self.fail(error)),
        }
    }

    /// The generation that a head names.
    pub fn generation(&self, head: &Head) -> Result<Generation, CacheError> {
        let object = format!("generations/{}", head.generation);
        let Found { bytes, .. } = self.remote.get(&object, head.bytes).map_err(|error| self.fail(error))?;
        let generation = Parse::new().run(|_| decode(head, &bytes), || {})?;
        generation.map_err(|damage| self.damaged(&object, &damage))
    }

    /// Puts a pack; `next` gives its bytes.
    pub fn put_pack(
        &self,
        name: &str,
        next: impl FnMut() -> std::io::Result<Option<Vec<u8>>>,
    ) -> Result<(), CacheError> {
        self.remote.put(&format!("packs/{name}"), next).map_err(|error| self.fail(error))
    }

    /// Puts a generation, and makes it the current one if `replaced` still is. Returns its head; `None` if another one is current.
    pub fn publish(&self, generation: &Generation, replaced: Option<&Current>) -> Result<Option<Head>, CacheError> {
        let plain = generation.encode();
        let bytes = zstd::bulk::compress(&plain, LEVEL)?;
        let head = Head {
            generation: blake3::hash(&bytes).to_hex().to_string(),
            bytes: bytes.len() as u64,
            plain: plain.len() as u64,
            number: generation.body.number,
        };
        let mut pieces = bytes.chunks(1 << 20);
        let put =
            self.remote.put(&format!("generations/{}", head.generation), || Ok(pieces.next().map(<[u8]>::to_vec)));
        put.map_err(|error| self.fail(error))?;
        let expected = replaced.map(|current| &current.version);
        let is_ours = self.remote.put_if(HEAD, head.encode(), expected, Head::MOST);
        Ok(is_ours.map_err(|error| self.fail(error))?.then_some(head))
    }
}

const HEAD: &str = "head";
/// The zstd level: a higher one makes names and digests no smaller.
const LEVEL: i32 = 3;

fn far_error(place: &str, error: RemoteError) -> CacheError {
    CacheError::Remote { place: place.to_owned(), reason: error.to_string() }
}

/// Reads what a remote answers, as a pull does: a head, and a generation that is unpacked already. Returns how many files the generation has. For fuzz
/// targets: any bytes are safe.
///
/// # Errors
/// They are neither.
pub fn read_remote(head: &[u8], generation: &[u8]) -> Result<u64, String> {
    let line = |damage: Damage| damage.to_string();
    Head::decode(head).map_err(line)?;
    let generation = Generation::decode(generation).and_then(check).map_err(line)?;
    Ok(generation.totals().0)
}

/// Reads a generation as a remote has it. Any bytes are safe: the result is an error, or a generation all of whose files have checked chunks.
pub fn decode(head: &Head, bytes: &[u8]) -> Result<Generation, Damage> {
    if bytes.len() as u64 != head.bytes || blake3::hash(bytes).to_hex().as_str() != head.generation {
        return Err(Damage::Digest);
    }
    let length = usize::try_from(head.plain).map_err(|_| Damage::Table("it is too long"))?;
    let plain = zstd::bulk::decompress(bytes, length).map_err(|_| Damage::Table("it cannot be unpacked"))?;
    check(Generation::decode(&plain)?)
}

/// Checks what only a remote's generation must be.
fn check(mut generation: Generation) -> Result<Generation, Damage> {
    if !generation.body.packs.iter().all(|name| is_remote_name(name)) || generation.body.packs.len() > MOST_PACKS {
        return Err(Damage::Table("a pack has another name"));
    }
    if generation.body.number > MOST_GENERATIONS {
        return Err(Damage::Table("its number is too large"));
    }
    for pack in 0..generation.body.packs.len() as u32 {
        if Chunks::of(&generation, pack)?.end() > LARGEST_PACK {
            return Err(Damage::Table("a pack is too large"));
        }
    }
    // People read it.
    generation.body.made_by = inarch_lifecycle::shown(generation.body.made_by.as_ref()).chars().take(200).collect();
    Ok(generation)
}

/// The highest number of a generation: more than one each nanosecond for a hundred years.
const MOST_GENERATIONS: u64 = 1 << 62;
/// The most bytes of a pack: half of what a file on ext4 can have.
const LARGEST_PACK: u64 = 1 << 43;

/// A reader has a descriptor for each.
pub const MOST_PACKS: usize = 256;

/// What is read to find a server's address, and to know whether its certificate is good.
const OF_NETWORK: [&str; 6] = [
    "/etc",
    "/usr/share/ca-certificates",
    "/usr/local/share/ca-certificates",
    "/usr/lib/ssl",
    "/run/systemd/resolve",
    "/var/lib/ca-certificates",
];
/// Variables that name files with credentials or certificates.
const NAMING_FILES: [&str; 5] = [
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AZURE_FEDERATED_TOKEN_FILE",
    "GOOGLE_APPLICATION_CREDENTIALS",
];

/// The confinement of a thread that speaks with a remote or a registry: it keeps connections and the files that these
/// need, or the remote's directory.
pub fn fetching(directory: Option<&Path>) -> Result<Confinement, PathError> {
    let mut confinement = Confinement::new(Work::Fetch);
    if let Some(directory) = directory {
        return confinement.granted_if_there(directory, Access::Read);
    }
    for place in OF_NETWORK {
        confinement = confinement.granted_if_there(place.as_ref(), Access::Read)?;
    }
    for name in NAMING_FILES {
        if let Some(path) = std::env::var_os(name) {
            confinement = confinement.granted_if_there(path.as_ref(), Access::Read)?;
        }
    }
    Ok(confinement)
}
