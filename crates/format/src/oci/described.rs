//! Parses the documents that a registry sends for an image: an index, then a manifest. Each says what to fetch next, so one
//! document is parsed at a time.

use inarch_confine::Parsing;

use super::digest::Digest;
use super::document::{Descriptor, DocumentKind, Index, Manifest, document_kind};
use super::malformed;
use super::select::{check_count, choose, config_of, layer_of};
use super::store::parse;
use crate::ReadError;
use crate::notes::Notes;

/// Refers to content that is not fetched yet: a descriptor of the image specification.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Described {
    /// Its type.
    pub media_type: String,
    /// Its digest.
    pub digest: Digest,
    /// Its bytes.
    pub size: u64,
}

impl Described {
    /// Checks the digest.
    pub(super) fn new(descriptor: Descriptor) -> Result<Described, ReadError> {
        let Descriptor { media_type, digest, size, .. } = descriptor;
        Ok(Described { digest: Digest::parse(&digest)?, media_type, size })
    }
}

/// Where a document leads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Document {
    /// An index leads to the image for one machine: another document.
    Index(Described),
    /// A manifest leads to an image's configuration and layers, lowest first.
    Manifest {
        /// The configuration.
        config: Described,
        /// The layers.
        layers: Vec<Described>,
    },
}

/// Reads a document of that type, called `name` in messages. Returns where it leads to for `machine`, an architecture as images name it, and what the user should know.
///
/// # Errors
/// It makes no sense, there is no image for the machine, or there are too many layers.
pub fn read_document(
    _: Parsing,
    name: &str,
    media_type: &str,
    bytes: &[u8],
    machine: &str,
) -> Result<(Document, Vec<String>), ReadError> {
    let mut notes = Notes::default();
    let document = match document_kind(media_type) {
        Some(DocumentKind::Manifest) => {
            let manifest: Manifest = parse(name, bytes)?;
            check_count(manifest.layers.len())?;
            let config = config_of(manifest.config, name)?;
            let layers = manifest.layers.into_iter().map(layer_of).collect::<Result<_, _>>()?;
            Document::Manifest { config, layers }
        }
        Some(DocumentKind::Index) => {
            Document::Index(Described::new(choose(parse::<Index>(name, bytes)?.manifests, machine, &mut notes)?)?)
        }
        None => {
            let kind = media_type.escape_debug();
            return Err(malformed(format!("{} is no container image, but '{kind}'", name.escape_debug())));
        }
    };
    Ok((document, notes.into_lines()))
}

/// Everything that a document leads to, for all machines, so that the caller knows what is still needed.
///
/// # Errors
/// It makes no sense.
pub fn leads_to(_: Parsing, name: &str, media_type: &str, bytes: &[u8]) -> Result<Vec<Document>, ReadError> {
    match document_kind(media_type) {
        Some(DocumentKind::Index) => {
            let index: Index = parse(name, bytes)?;
            let of = |descriptor| Ok(Document::Index(Described::new(descriptor)?));
            index.manifests.into_iter().map(of).collect()
        }
        _ => {
            let Manifest { config, layers } = parse(name, bytes)?;
            let layers = layers.into_iter().map(Described::new).collect::<Result<_, _>>()?;
            Ok(vec![Document::Manifest { config: Described::new(config)?, layers }])
        }
    }
}
