//! The type of a document of a container image. One digest must not stand for two images, as one reader or another takes the document
//! (CVE-2021-41190), so a document whose type is not certain is refused.

use inarch_confine::Parsing;
use serde::Deserialize;

use super::document::document_kind;
use super::malformed;
use super::store::parse;
use crate::ReadError;

/// The types of documents that lead to images, for a request of one (`Accept`).
pub const DOCUMENT_TYPES: [&str; 4] = [
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
    "application/vnd.docker.distribution.manifest.v2+json",
];

/// What a document says of its own type.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Shape {
    schema_version: Option<u64>,
    media_type: Option<String>,
    manifests: Option<serde::de::IgnoredAny>,
    layers: Option<serde::de::IgnoredAny>,
}

/// The type of the document in `bytes`: what came with it (`said`), or what it says itself, or what it looks like.
///
/// # Errors
/// It leads to no image.
pub fn document_type(_: Parsing, name: &str, said: &str, bytes: &[u8]) -> Result<String, ReadError> {
    of_document(name, said, bytes)
}

/// The same, in a thread that parses already.
pub(super) fn of_document(name: &str, said: &str, bytes: &[u8]) -> Result<String, ReadError> {
    let shape: Shape = parse(name, bytes)?;
    let said = said.split(';').next().unwrap_or_default().trim();
    let own = shape.media_type.as_deref();
    let differs = own.is_some_and(|own| {
        document_kind(own).is_some() && document_kind(said).is_some_and(|kind| document_kind(own) != Some(kind))
    });
    if differs || (shape.manifests.is_some() && shape.layers.is_some()) {
        return Err(malformed(format!("{} is both an index and a manifest", name.escape_debug())));
    }
    if let Some(known) = own.into_iter().chain([said]).find(|kind| document_kind(kind).is_some()) {
        return Ok(known.to_owned());
    }
    let name = name.escape_debug();
    if shape.schema_version == Some(1) {
        return Err(malformed(format!("{name} is in the format of Docker before 2016 (schema 1), which is not read")));
    }
    match (shape.manifests, shape.layers, own) {
        (Some(_), None, None) => Ok(DOCUMENT_TYPES[0].to_owned()),
        (None, Some(_), None) => Ok(DOCUMENT_TYPES[1].to_owned()),
        _ => {
            let kind = own.unwrap_or(said).escape_debug();
            Err(malformed(format!("{name} is no container image, but '{kind}'")))
        }
    }
}
