//! [`RegistrySource`]: a container image of a registry as a source of a tree.

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use inarch_cache::{ImageName, KeptImage, pull};
use inarch_format::oci::machine;
use inarch_lifecycle::Events;

use super::{ArchivePart, OpenError, Source, SourceError, SourceEvent};

/// An image of a registry. It is fetched at most once for this value and its clones.
#[derive(Clone, Debug)]
pub struct RegistrySource {
    name: ImageName,
    /// For messages.
    shown: PathBuf,
    machine: String,
    fetched: Arc<OnceLock<KeptImage>>,
    events: Events<SourceEvent>,
}

/// Two are equal if they name the same image.
impl PartialEq for RegistrySource {
    fn eq(&self, other: &RegistrySource) -> bool {
        (&self.name, &self.machine) == (&other.name, &other.machine)
    }
}

impl Eq for RegistrySource {}

impl RegistrySource {
    /// The image with this name, for machines like this one. Nothing is fetched yet.
    pub fn new(name: ImageName) -> RegistrySource {
        let shown = PathBuf::from(name.to_string());
        RegistrySource {
            name,
            shown,
            machine: machine().to_owned(),
            fetched: Arc::default(),
            events: Events::ignored(),
        }
    }

    /// The same, which tells what happens while it is fetched.
    pub(crate) fn telling(self, events: Events<SourceEvent>) -> RegistrySource {
        RegistrySource { events, ..self }
    }

    /// The same for machines of this architecture, by its name in images.
    pub fn for_machine(self, machine: &str) -> RegistrySource {
        RegistrySource { machine: machine.to_owned(), fetched: Arc::default(), ..self }
    }

    /// The architecture of the machines that it is for.
    pub(crate) fn machine(&self) -> &str {
        &self.machine
    }

    /// As messages name it.
    pub(crate) fn path(&self) -> &Path {
        &self.shown
    }

    /// Fetches it, unless it is here. The first call cannot come from a confined thread: it starts threads that make
    /// connections, and perhaps a program that has credentials.
    ///
    /// # Errors
    /// It cannot be fetched.
    pub fn fetch(&self) -> Result<&KeptImage, OpenError> {
        if let Some(fetched) = self.fetched.get() {
            return Ok(fetched);
        }
        let tell = |event| self.events.emit(SourceEvent::Pull(event));
        let fetched = pull(&self.name, &self.machine, &tell).map_err(|error| OpenError::Registry(Box::new(error)))?;
        // Another thread may have fetched it meanwhile.
        Ok(self.fetched.get_or_init(|| fetched))
    }
}

/// The image that `docker://NAME` names.
pub(super) fn source(text: &str) -> Result<Source, SourceError> {
    let name = ImageName::parse(text).map_err(|error| SourceError::Image(Box::new(error)))?;
    Ok(Source::Registry(Box::new(RegistrySource::new(name))))
}

impl Source {
    /// The same for machines of this architecture, by its name in images (`arm64`): that decides which image is taken of one for several.
    pub fn for_machine(self, machine: &str) -> Source {
        match self {
            Source::Registry(image) => Source::Registry(Box::new(image.for_machine(machine))),
            Source::Oci { path, reference, .. } => Source::Oci { path, reference, machine: machine.to_owned() },
            Source::File { path, kind, part } => {
                Source::File { path, kind, part: Box::new(ArchivePart { machine: machine.to_owned(), ..*part }) }
            }
            other => other,
        }
    }

    /// Fetches a source that is fetched as a whole, which is an image of a registry, before anything waits for it.
    ///
    /// # Errors
    /// It cannot be fetched.
    pub fn fetch(&self) -> Result<(), OpenError> {
        match self {
            Source::Registry(image) => image.fetch().map(drop),
            _ => Ok(()),
        }
    }
}
