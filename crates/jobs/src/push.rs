//! `inarch push SRC docker://NAME`: puts a tree into a registry, as a container image of one layer.
//!
//! 1. The source is opened, and planned as a tar archive: names, attributes and sizes are known, and what a layer cannot hold.
//! 2. The archive is compressed into a nameless file, and hashed before and after. If the source is foreign, a confined thread does this.
//! 3. Layer and configuration are put unless the repository has them, by their digests.
//! 4. The manifest is put as the tag. Killed before that, the registry has blobs that nothing refers to, which it clears away itself.

use std::fs::File;
use std::io::{self, BufWriter, Seek, Write};

use inarch_block::{ImageSource, WriteError, stream_parts};
use inarch_cache::fetching;
use inarch_format::oci::{Digest, Hasher, ImageConfig, machine};
use inarch_format::{ImageOptions, Layout, Planned, format_by_name};
use inarch_lifecycle::confinement::{Confinement, Work};
use inarch_lifecycle::descriptors;
use inarch_lifecycle::shown;
use inarch_remote::Limits;
use inarch_remote::registry::{ImageName, MOST_DOCUMENT, Pick, Registry, RegistryError, credentials};
use inarch_source::{Opened, Source, open, spool_directory};
use inarch_tree::select::Selection;
use serde_json::json;

use crate::JobError;
use crate::image::StreamParts;

/// How the layer is compressed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LayerCompression {
    /// By gzip, which every program reads.
    #[default]
    Gzip,
    /// By zstd, which is faster to unpack.
    Zstd,
    /// Not at all: bytes are read where they lie in the layer.
    None,
}

impl LayerCompression {
    /// The type of such a layer (the image specification's layer.md).
    fn media_type(self) -> &'static str {
        match self {
            LayerCompression::Gzip => "application/vnd.oci.image.layer.v1.tar+gzip",
            LayerCompression::Zstd => "application/vnd.oci.image.layer.v1.tar+zstd",
            LayerCompression::None => "application/vnd.oci.image.layer.v1.tar",
        }
    }
}

const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const CONFIG: &str = "application/vnd.oci.image.config.v1+json";

/// What to push, and where.
#[derive(Clone, Debug)]
pub struct PushRequest {
    /// The source of the tree.
    pub source: Source,
    /// What to take of it.
    pub selection: Selection,
    /// The image; it must have a tag.
    pub name: ImageName,
    /// How its layer is compressed.
    pub compression: LayerCompression,
    /// The architecture that its programs are for, as images name it; `None`: that of a source that is a container image, else this machine's.
    pub machine: Option<String>,
    /// The command; `None`: that of a source that is a container image.
    pub command: Option<Vec<String>>,
}

/// What was pushed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PushedImage {
    /// The digest of the manifest.
    pub digest: String,
    /// Bytes of the layer.
    pub bytes: u64,
    /// Whether the repository had the layer.
    pub had_layer: bool,
    /// What the user should know: what was left out, and what a layer cannot hold.
    pub notes: Vec<String>,
}

/// Why nothing was pushed.
#[derive(Debug, thiserror::Error)]
pub enum PushError {
    /// A digest cannot be chosen.
    #[error("{0}: a push needs a tag; the digest follows from the content")]
    NoTag(String),
    /// The registry does not take it.
    #[error("{name}: {error}")]
    Registry {
        /// The image.
        name: String,
        /// Why not.
        error: RegistryError,
    },
    /// A file has changed.
    #[error("{path}: {reason}; nothing was pushed")]
    Changed {
        /// The file.
        path: String,
        /// How.
        reason: String,
    },
    /// The layer cannot be made.
    #[error("{from}: no layer can be made of it: {reason}")]
    Layer {
        /// The source.
        from: String,
        /// Why not.
        reason: String,
    },
}

/// The bytes of a layer, complete.
struct Layer {
    file: File,
    /// The digest of the archive.
    plain: Digest,
    /// That of the file.
    digest: Digest,
    size: u64,
}

/// Pushes an image.
///
/// # Errors
/// The source cannot be read, or the registry does not take the image.
pub fn push(request: &PushRequest) -> Result<PushedImage, JobError> {
    let Pick::Tag(tag) = request.name.pick() else {
        return Err(PushError::NoTag(request.name.to_string()).into());
    };
    descriptors::make_room();
    let opened = open(&request.source, &request.selection)?;
    let (layer, mut notes) = layer(request, &opened)?;
    let Opened { report, notes: of_source, image, .. } = opened;
    notes = crate::plan::left_out(&report).into_iter().chain(request.source.named(&of_source)).chain(notes).collect();
    let config = configuration(request, image.unwrap_or_default(), &layer);
    let config_digest = Digest::of(&config);
    let descriptor = |kind: &str, digest: &Digest, size: u64| json!({ "mediaType": kind, "digest": digest.to_string(), "size": size });
    let manifest = json!({
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "config": descriptor(CONFIG, &config_digest, config.len() as u64),
        "layers": [descriptor(request.compression.media_type(), &layer.digest, layer.size)],
    });
    let manifest = manifest.to_string().into_bytes();
    if config.len().max(manifest.len()) as u64 > MOST_DOCUMENT {
        let reason = format!("the image's configuration has more than {MOST_DOCUMENT} bytes");
        return Err(PushError::Layer { from: request.source.to_string(), reason }.into());
    }
    let digest = Digest::of(&manifest).to_string();
    let fail = |error| PushError::Registry { name: request.name.to_string(), error };
    let confinement = fetching(None)?;
    let found = credentials::find(&request.name);
    let registry = Registry::start(&request.name, found, true, Limits::default(), move || drop(confinement.enter()));
    let registry = registry.map_err(fail)?;
    let layer_digest = layer.digest.to_string();
    let had_layer = registry.has_blob(&layer_digest).map_err(fail)?;
    if !had_layer {
        registry.put_blob(&layer_digest, layer.size, &layer.file).map_err(fail)?;
    }
    let config_digest = config_digest.to_string();
    if !registry.has_blob(&config_digest).map_err(fail)? {
        registry.put_blob(&config_digest, config.len() as u64, &config[..]).map_err(fail)?;
    }
    registry.put_manifest(tag, MANIFEST, manifest).map_err(fail)?;
    Ok(PushedImage { digest, bytes: layer.size, had_layer, notes })
}

/// Makes the layer. Returns what the user should know of it, too.
fn layer(request: &PushRequest, opened: &Opened) -> Result<(Layer, Vec<String>), JobError> {
    let from = || request.source.to_string();
    let no_layer = |reason: String| PushError::Layer { from: from(), reason };
    let format = format_by_name("tar").ok_or_else(|| no_layer("there is no format 'tar'".to_owned()))?;
    let options = ImageOptions { epoch: request.selection.epoch, ..ImageOptions::default() };
    let Planned { layout, notes } = format
        .plan(&opened.tree, &options)
        .map_err(|error| JobError::Format { from: request.source.clone(), error })?;
    let Layout::Stream(stream) = layout else { return Err(no_layer("a tar archive is no stream".to_owned()).into()) };
    let directory = spool_directory();
    let file = tempfile::tempfile_in(&directory)
        .map_err(|error| JobError::path(&directory, "cannot make a temporary file there", error))?;
    let write = || -> Result<(Digest, Digest, u64), WriteError> {
        let source = ImageSource { map: None, content: &*opened.content };
        let output = Hashed::new(BufWriter::with_capacity(1 << 20, &file));
        let mut compressor = Compressor::new(request.compression, output).map_err(of_output)?;
        stream_parts(StreamParts::new(&*stream), stream.length(), source, &mut compressor, &())?;
        let (plain, Hashed { hasher, count, .. }) = compressor.finish().map_err(of_output)?;
        Ok((plain, hasher.into(), count))
    };
    let written = if request.source.is_foreign() {
        Confinement::new(Work::Image).run(write, || {}).map_err(|error| no_layer(error.to_string()))?
    } else {
        write()
    };
    let (plain, digest, size) = written.map_err(|error| explain(request, opened, &error))?;
    let mut layer = Layer { file, plain, digest, size };
    layer.file.rewind().map_err(|error| JobError::path(&directory, "cannot read the layer there", error))?;
    Ok((layer, notes))
}

fn of_output(error: io::Error) -> WriteError {
    WriteError::Output { offset: 0, error }
}

/// The error that ended the making of a layer.
fn explain(request: &PushRequest, opened: &Opened, error: &WriteError) -> JobError {
    let changed = opened.content.changed();
    if let (WriteError::Content { .. }, Some(file)) = (error, changed.named.first()) {
        let path = shown(&request.source.name_of(&file.path));
        return PushError::Changed { path, reason: file.reason.to_string() }.into();
    }
    if let WriteError::Output { error, .. } = error {
        let reason = format!("{}: {error}; TMPDIR names another directory", shown(&spool_directory()));
        return PushError::Layer { from: request.source.to_string(), reason }.into();
    }
    PushError::Layer { from: request.source.to_string(), reason: error.to_string() }.into()
}

/// The image's configuration (the image specification's config.md). It has no times, so that the same tree gives the same image.
fn configuration(request: &PushRequest, of_source: ImageConfig, layer: &Layer) -> Vec<u8> {
    let ImageConfig { user, environment, entrypoint, command, working_directory, architecture } = of_source;
    let of_source = Some(architecture).filter(|text| !text.is_empty());
    let architecture = request.machine.clone().or(of_source).unwrap_or_else(|| machine().to_owned());
    // Another command is no arguments of the entry point.
    let (entrypoint, command) = match &request.command {
        Some(command) => (Vec::new(), command.clone()),
        None => (entrypoint, command),
    };
    let mut config = serde_json::Map::new();
    for (key, words) in [("Env", environment), ("Entrypoint", entrypoint), ("Cmd", command)] {
        if !words.is_empty() {
            config.insert(key.to_owned(), json!(words));
        }
    }
    for (key, word) in [("User", user), ("WorkingDir", working_directory)] {
        if !word.is_empty() {
            config.insert(key.to_owned(), json!(word));
        }
    }
    let document = json!({
        "architecture": architecture,
        "os": "linux",
        "config": config,
        "rootfs": { "type": "layers", "diff_ids": [layer.plain.to_string()] },
        "history": [{ "created_by": "inarch push" }],
    });
    document.to_string().into_bytes()
}

/// Hashes and counts what is written through it.
struct Hashed<W> {
    output: W,
    hasher: Hasher,
    count: u64,
}

impl<W> Hashed<W> {
    fn new(output: W) -> Hashed<W> {
        Hashed { output, hasher: Hasher::default(), count: 0 }
    }
}

impl<W: Write> Write for Hashed<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let count = self.output.write(bytes)?;
        self.hasher.update(bytes.get(..count).unwrap_or_default());
        self.count += count as u64;
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.output.flush()
    }
}

/// What compresses a layer.
enum Encoder<W: Write> {
    Gzip(Box<flate2::write::GzEncoder<W>>),
    Zstd(Box<zstd::Encoder<'static, W>>),
    None(W),
}

/// Hashes an archive and compresses it.
struct Compressor<W: Write> {
    plain: Hasher,
    encoder: Encoder<W>,
}

impl<W: Write> Compressor<W> {
    fn new(how: LayerCompression, output: W) -> io::Result<Compressor<W>> {
        let encoder = match how {
            // Its header has no time.
            LayerCompression::Gzip => {
                Encoder::Gzip(Box::new(flate2::write::GzEncoder::new(output, flate2::Compression::default())))
            }
            LayerCompression::Zstd => {
                Encoder::Zstd(Box::new(zstd::Encoder::new(output, zstd::DEFAULT_COMPRESSION_LEVEL)?))
            }
            LayerCompression::None => Encoder::None(output),
        };
        Ok(Compressor { plain: Hasher::default(), encoder })
    }

    /// Ends the layer; returns the archive's digest, and what it was written to.
    fn finish(self) -> io::Result<(Digest, W)> {
        let mut output = match self.encoder {
            Encoder::Gzip(encoder) => encoder.finish()?,
            Encoder::Zstd(encoder) => encoder.finish()?,
            Encoder::None(output) => output,
        };
        output.flush()?;
        Ok((Digest::from(self.plain), output))
    }
}

impl<W: Write> Write for Compressor<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let count = match &mut self.encoder {
            Encoder::Gzip(encoder) => encoder.write(bytes),
            Encoder::Zstd(encoder) => encoder.write(bytes),
            Encoder::None(output) => output.write(bytes),
        }?;
        self.plain.update(bytes.get(..count).unwrap_or_default());
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        match &mut self.encoder {
            Encoder::Gzip(encoder) => encoder.flush(),
            Encoder::Zstd(encoder) => encoder.flush(),
            Encoder::None(output) => output.flush(),
        }
    }
}
