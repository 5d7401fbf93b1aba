//! [`pull`]: fetches a registry's image.
//!
//! 1. A name with a digest whose image is here needs no network. For a tag, we ask the registry which digest it stands for; if that image
//!    is here, we ask for nothing else.
//! 2. The documents lead, by an index for several machines, to the manifest for one. Each is fetched unless it is here.
//! 3. Configuration and layers that are not here are fetched, several at once.
//! 4. The name is noted.
//!
//! If the registry does not answer, we warn and use the image that is here, even if the tag has moved on.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::thread;

use inarch_confine::Parse;
use inarch_format::oci::{DOCUMENT_TYPES, Described, Digest, Document, document_type};
use inarch_remote::Limits;
use inarch_remote::registry::{Answer, ImageName, Pick, Registry, RegistryError, credentials};

use super::PullError;
use super::store::{Images, KeptImage, Known, read};
use crate::far::fetching;

/// The deepest nesting of indexes.
const MAX_NESTING: usize = 4;

/// How many blobs are fetched at once.
const AT_ONCE: usize = 4;

/// What happens while an image is fetched.
#[derive(Clone, Debug)]
pub enum PullEvent {
    /// Blobs of it are fetched.
    Fetching {
        /// Its name.
        name: String,
        /// How many.
        blobs: usize,
        /// Their bytes.
        bytes: u64,
    },
    /// The registry does not answer, and what is here is used.
    Kept {
        /// Its name.
        name: String,
        /// Why.
        reason: String,
        /// When the registry was last asked, in seconds since 1970.
        asked: u64,
    },
}

/// Fetches an image, unless it is here; `tell` gets what happens. `machine` is the architecture, in OCI's words, if it has several.
///
/// # Errors
/// It is not here, and cannot be fetched.
pub fn pull(name: &ImageName, machine: &str, tell: &(dyn Fn(PullEvent) + Sync)) -> Result<KeptImage, PullError> {
    let images = Images::open()?;
    let pull = Pull { images: &images, name, text: name.to_string(), machine, registry: OnceLock::new(), tell };
    let root = pull.all()?;
    images.use_now(name);
    Ok(KeptImage::new(images, root))
}

struct Pull<'a> {
    images: &'a Images,
    name: &'a ImageName,
    text: String,
    machine: &'a str,
    registry: OnceLock<Registry>,
    tell: &'a (dyn Fn(PullEvent) + Sync),
}

/// What an image consists of.
struct Parts {
    config: Described,
    layers: Vec<Described>,
}

impl Parts {
    /// Its blobs, each once.
    fn blobs(&self) -> Vec<&Described> {
        let mut blobs: Vec<&Described> = Vec::new();
        for blob in self.layers.iter().chain([&self.config]) {
            if !blobs.iter().any(|other| other.digest == blob.digest) {
                blobs.push(blob);
            }
        }
        blobs
    }
}

impl Pull<'_> {
    /// Makes sure that all of it is here; returns what the name stands for.
    fn all(&self) -> Result<Described, PullError> {
        let known = self.images.known(self.name).and_then(|known| Some((known.root()?, known)));
        if let (Pick::Digest(_), Some((root, _))) = (self.name.pick(), &known)
            && self.is_here(root)
        {
            return Ok(root.clone());
        }
        match self.fetch(known.as_ref().map(|(root, _)| root)) {
            Ok(root) => Ok(root),
            Err(PullError::Registry { error, .. } | PullError::Blob { error, .. }) if error.is_out_of_reach() => {
                let Some((root, Known { asked, .. })) = known.filter(|(root, _)| self.is_here(root)) else {
                    return Err(self.fail(error));
                };
                (self.tell)(PullEvent::Kept { name: self.text.clone(), reason: error.to_string(), asked });
                Ok(root)
            }
            Err(error) => Err(error),
        }
    }

    fn fail(&self, error: RegistryError) -> PullError {
        PullError::Registry { name: self.text.clone(), error }
    }

    fn other(&self, reason: String) -> PullError {
        PullError::Other { name: self.text.clone(), reason }
    }

    /// The registry. Its thread starts at the first request.
    fn registry(&self) -> Result<&Registry, PullError> {
        if self.registry.get().is_none() {
            let confinement = fetching(None)?;
            let found = credentials::find(self.name);
            let enter = move || drop(confinement.enter());
            let registry =
                Registry::start(self.name, found, false, Limits::default(), enter).map_err(|error| self.fail(error))?;
            let _ = self.registry.set(registry);
        }
        self.registry.get().ok_or_else(|| self.fail(RegistryError::Ended))
    }

    /// Fetches what is not here; `known` is what the name stood for.
    fn fetch(&self, known: Option<&Described>) -> Result<Described, PullError> {
        let root = match known {
            Some(known) if self.images.has(known) && self.still_is(known)? => known.clone(),
            _ => self.document(self.name.reference(), None)?,
        };
        let parts = self.parts(&root, true)?;
        let missing: Vec<&Described> = parts.blobs().into_iter().filter(|blob| !self.images.has(blob)).collect();
        if !missing.is_empty() {
            let bytes = missing.iter().fold(0u64, |sum, blob| sum.saturating_add(blob.size));
            (self.tell)(PullEvent::Fetching { name: self.text.clone(), blobs: missing.len(), bytes });
            self.blobs(&missing)?;
        }
        self.images.know(self.name, &root)?;
        Ok(root)
    }

    /// Whether the name stands for `known` still, as far as the registry says.
    fn still_is(&self, known: &Described) -> Result<bool, PullError> {
        if let Pick::Digest(digest) = self.name.pick() {
            return Ok(*digest == known.digest.to_string());
        }
        match self.registry()?.digest(self.name.reference(), &DOCUMENT_TYPES) {
            Ok(said) => Ok(said == Some(known.digest.to_string())),
            // A registry need not answer this question.
            Err(error @ RegistryError::Trouble { .. }) if !error.is_out_of_reach() => Ok(false),
            Err(error) => Err(self.fail(error)),
        }
    }

    /// Whether all of an image is here.
    fn is_here(&self, root: &Described) -> bool {
        let parts = self.images.has(root).then(|| self.parts(root, false));
        matches!(parts, Some(Ok(parts)) if parts.blobs().iter().all(|blob| self.images.has(blob)))
    }

    /// Follows the documents from `root` to a manifest; one that is not here is fetched if `fetches`.
    fn parts(&self, root: &Described, fetches: bool) -> Result<Parts, PullError> {
        let mut document = root.clone();
        for _ in 0..=MAX_NESTING {
            let mut here = self.images.document(&document);
            if here.is_none() && fetches {
                self.document(&document.digest.to_string(), Some(&document))?;
                here = self.images.document(&document);
            }
            let bytes = here.ok_or_else(|| self.other(format!("{} is not here any more", document.digest)))?;
            match read(&self.text, &document, &bytes, self.machine)?.0 {
                Document::Index(next) => document = next,
                Document::Manifest { config, layers } => return Ok(Parts { config, layers }),
            }
        }
        Err(self.other(format!("more than {MAX_NESTING} indexes lie within each other")))
    }

    /// Fetches a manifest or an index, and keeps it. If it is known which one it must be, it must be that.
    fn document(&self, reference: &str, expected: Option<&Described>) -> Result<Described, PullError> {
        if let Some(expected) = expected
            && expected.size > inarch_remote::registry::MOST_DOCUMENT
        {
            return Err(self.other(format!("a manifest of {} bytes", expected.size)));
        }
        let answer = self.registry()?.document(reference, &DOCUMENT_TYPES);
        let Answer { bytes, media_type } = answer.map_err(|error| self.fail(error))?;
        // A document that a digest names must have that digest, by whatever algorithm.
        let digest = match Digest::parse(reference) {
            Ok(digest) => {
                let mut hasher = digest.hasher();
                hasher.update(&bytes);
                digest.check(hasher, reference).map_err(|error| self.answer(error))?;
                digest
            }
            Err(_) => Digest::of(&bytes),
        };
        let text = digest.to_string();
        let media_type = match expected {
            Some(expected) if expected.size != bytes.len() as u64 => {
                let (found, size) = (bytes.len(), expected.size);
                return Err(self.other(format!("{text} has {found} bytes, expected were {size}")));
            }
            Some(expected) => expected.media_type.clone(),
            None => {
                let kind = Parse::new().run(|parsing| document_type(parsing, &text, &media_type, &bytes), || {});
                kind.map_err(PullError::NoThread)?.map_err(|error| self.answer(error))?
            }
        };
        let document = Described { media_type, size: bytes.len() as u64, digest };
        // A document that leads nowhere is not kept.
        read(&self.text, &document, &bytes, self.machine)?;
        self.images.keep_document(&document, &bytes)?;
        Ok(document)
    }

    fn answer(&self, error: inarch_format::ReadError) -> PullError {
        PullError::Answer { name: self.text.clone(), error }
    }

    /// Fetches blobs, several at once. The first error ends the others.
    fn blobs(&self, blobs: &[&Described]) -> Result<(), PullError> {
        let registry = self.registry()?;
        let next = Mutex::new(blobs.iter());
        let failed: Mutex<Option<PullError>> = Mutex::new(None);
        let is_stopped = AtomicBool::new(false);
        let take = || next.lock().unwrap_or_else(PoisonError::into_inner).next();
        thread::scope(|scope| {
            for _ in 0..AT_ONCE.min(blobs.len()) {
                scope.spawn(|| {
                    while let (false, Some(blob)) = (is_stopped.load(Ordering::Relaxed), take()) {
                        let Err(error) = self.blob(registry, blob, &is_stopped) else { continue };
                        is_stopped.store(true, Ordering::Relaxed);
                        failed.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
                    }
                });
            }
        });
        failed.into_inner().unwrap_or_else(PoisonError::into_inner).map_or(Ok(()), Err)
    }

    /// Fetches a blob; its bytes are checked as they come.
    fn blob(&self, registry: &Registry, blob: &Described, is_stopped: &AtomicBool) -> Result<(), PullError> {
        let digest = blob.digest.to_string();
        self.images.keep_blob(blob, |file| {
            let mut hasher = blob.digest.hasher();
            let fetched = registry.blob(&digest, blob.size, |piece| {
                if is_stopped.load(Ordering::Relaxed) {
                    return Err(std::io::ErrorKind::Interrupted.into());
                }
                hasher.update(piece);
                file.write_all(piece)
            });
            fetched.map_err(|error| match error {
                RegistryError::Write(_) if is_stopped.load(Ordering::Relaxed) => PullError::Stopped,
                RegistryError::Write(error) => PullError::Keep { path: self.images.place().to_owned(), error },
                error => PullError::Blob { name: self.text.clone(), blob: digest.clone(), error },
            })?;
            blob.digest.check(hasher, &blob.digest.path()).map_err(|error| self.answer(error))
        })
    }
}
