//! Selects one image in a store, and lists its layers.

use std::collections::{BTreeMap, BTreeSet};

use super::config::ImageConfig;
use super::described::Described;
use super::digest::Digest;
use super::document::{
    Config, Descriptor, DockerImage, DocumentKind, Index, LayoutFile, Manifest, document_kind, is_image_config,
    is_layer, machine,
};
use super::store::{Store, parse};
use super::{document_type, malformed};
use crate::ReadError;
use crate::notes::Notes;

/// The deepest nesting of indexes.
const MAX_NESTING: usize = 4;

/// The most layers of an image; Docker builds at most 127.
const MAX_LAYERS: usize = 1024;

/// The most names that a message lists.
const MAX_LISTED: usize = 20;

/// The annotation by which an index names an image.
const NAME: &str = "org.opencontainers.image.ref.name";

/// The same with the repository, as containerd and Docker write it.
const FULL_NAME: &str = "io.containerd.image.name";

/// A layer, and what its bytes must be.
#[derive(Debug)]
pub(super) struct Layer {
    /// Its name in the store.
    pub(super) name: String,
    /// Its size in bytes, if known.
    pub(super) size: Option<u64>,
    /// The digest of the stored layer.
    pub(super) digest: Option<Digest>,
    /// The digest of the unpacked layer.
    pub(super) diff_id: Option<Digest>,
}

/// An image.
pub(super) struct Image {
    /// Lowest first.
    pub(super) layers: Vec<Layer>,
    pub(super) config: ImageConfig,
}

/// Which of several images is taken.
#[derive(Clone, Copy, Debug)]
pub struct Wanted<'a> {
    /// Its name in the OCI layout's index, its `NAME:TAG` in a Docker archive, or its manifest's digest. Without one there must be one image.
    pub reference: Option<&'a str>,
    /// The architecture, as images name it (`arm64`), that is taken of an image for several.
    pub machine: &'a str,
}

/// The only image, for this machine.
impl Default for Wanted<'_> {
    fn default() -> Self {
        Wanted { reference: None, machine: machine() }
    }
}

/// The image that is wanted.
pub(super) fn image(store: &Store<'_>, wanted: Wanted<'_>, notes: &mut Notes) -> Result<Image, ReadError> {
    if let Some(layout) = store.document::<LayoutFile>("oci-layout")?
        && !layout.image_layout_version.starts_with("1.")
    {
        let version = layout.image_layout_version.escape_debug();
        return Err(malformed(format!("oci-layout: version {version} is not supported; 1.0.0 is")));
    }
    if let Some(index) = store.document::<Index>("index.json")? {
        return oci_image(store, index, wanted, notes);
    }
    if let Some(images) = store.document::<Vec<DockerImage>>("manifest.json")? {
        return docker_image(store, images, wanted, notes);
    }
    Err(malformed("neither an OCI image layout, which has an index.json, nor a Docker archive, with a manifest.json"))
}

fn oci_image(store: &Store<'_>, index: Index, wanted: Wanted<'_>, notes: &mut Notes) -> Result<Image, ReadError> {
    let Wanted { reference, machine } = wanted;
    let mut list = index.manifests;
    if let Some(reference) = reference {
        let names = names(&list);
        list.retain(|descriptor| is_named(descriptor, reference));
        if list.is_empty() {
            return Err(malformed(format!("it has no image '{}'; it has {names}", reference.escape_debug())));
        }
    } else if distinct_images(&list) > 1 {
        return Err(malformed(format!("it has several images, choose one of {} by oci:PATH:NAME", names(&list))));
    }
    let descriptor = choose(list, machine, notes)?;
    follow(store, descriptor, machine, notes)
}

/// The image of a store without an `index.json`, to which `root` leads: a manifest, or an index that has one for `machine`.
pub(super) fn image_at(
    store: &Store<'_>,
    root: &Described,
    machine: &str,
    notes: &mut Notes,
) -> Result<Image, ReadError> {
    let Described { media_type, digest, size } = root;
    let descriptor = Descriptor {
        media_type: media_type.clone(),
        digest: digest.to_string(),
        size: *size,
        platform: None,
        annotations: BTreeMap::new(),
    };
    follow(store, descriptor, machine, notes)
}

/// The image to which a descriptor leads, by way of indexes.
fn follow(store: &Store<'_>, mut descriptor: Descriptor, machine: &str, notes: &mut Notes) -> Result<Image, ReadError> {
    for _ in 0..MAX_NESTING {
        let bytes = blob(store, &descriptor)?;
        let media_type = document_type::of_document(&descriptor.digest, &descriptor.media_type, &bytes)?;
        match document_kind(&media_type) {
            Some(DocumentKind::Manifest) => {
                return image_of(store, parse(&descriptor.digest, &bytes)?, &descriptor, machine, notes);
            }
            _ => descriptor = choose(parse::<Index>(&descriptor.digest, &bytes)?.manifests, machine, notes)?,
        }
    }
    Err(malformed(format!("more than {MAX_NESTING} indexes lie within each other")))
}

fn is_named(descriptor: &Descriptor, reference: &str) -> bool {
    let full = descriptor.annotations.get(FULL_NAME);
    let ends =
        |full: &String| full.strip_suffix(reference).is_some_and(|front| front.is_empty() || front.ends_with('/'));
    descriptor.annotations.get(NAME).is_some_and(|name| name == reference)
        || full.is_some_and(ends)
        || descriptor.digest == reference
}

fn names(list: &[Descriptor]) -> String {
    let name = |descriptor: &Descriptor| {
        descriptor.annotations.get(NAME).cloned().unwrap_or_else(|| descriptor.digest.clone())
    };
    listed(list.iter().map(name))
}

fn listed(names: impl Iterator<Item = String>) -> String {
    let names: BTreeSet<String> = names.map(|name| name.escape_debug().to_string()).collect();
    let shown: Vec<&str> = names.iter().take(MAX_LISTED).map(String::as_str).collect();
    match (shown.is_empty(), names.len() - shown.len()) {
        (true, _) => "none".to_owned(),
        (false, 0) => shown.join(", "),
        (false, more) => format!("{} and {more} more", shown.join(", ")),
    }
}

/// How many images an index has; an image for several platforms counts once.
fn distinct_images(list: &[Descriptor]) -> usize {
    let named: BTreeSet<_> = list.iter().filter(|d| is_candidate(d)).map(|d| d.annotations.get(NAME)).collect();
    named.len()
}

/// Whether a descriptor is an image's: builders add manifests that only describe a build.
fn is_candidate(descriptor: &Descriptor) -> bool {
    let unknown = descriptor.platform.as_ref().is_some_and(|platform| platform.architecture == "unknown");
    document_kind(&descriptor.media_type).is_some()
        && !unknown
        && !descriptor.annotations.contains_key("vnd.docker.reference.type")
}

/// The first descriptor for `machine`; if there is only one, that one, even for another machine.
pub(super) fn choose(list: Vec<Descriptor>, machine: &str, notes: &mut Notes) -> Result<Descriptor, ReadError> {
    let types = listed(list.iter().map(|descriptor| descriptor.media_type.clone()));
    let candidates: Vec<Descriptor> = list.into_iter().filter(is_candidate).collect();
    let fits = |descriptor: &&Descriptor| {
        descriptor.platform.as_ref().is_some_and(|platform| platform.architecture == machine && platform.os == "linux")
    };
    // One that does not say what it is for may be for any machine.
    let is_open = |descriptor: &&Descriptor| descriptor.platform.is_none();
    if let Some(found) = candidates.iter().find(fits).or_else(|| candidates.iter().find(is_open)) {
        return Ok(found.clone());
    }
    let platform = |descriptor: &Descriptor| match &descriptor.platform {
        Some(platform) => format!("{}/{}", platform.os, platform.architecture),
        None => "any".to_owned(),
    };
    match &candidates[..] {
        [] => Err(malformed(format!("there is no image in the index, only {types}"))),
        [only] => {
            notes.add(b"the image", &is_for(&platform(only), machine));
            Ok(only.clone())
        }
        several => {
            let platforms = listed(several.iter().map(platform));
            Err(malformed(format!("there is no image for linux/{machine}, only for {platforms}")))
        }
    }
}

/// A layer, whose type must be known.
pub(super) fn layer_of(layer: Descriptor) -> Result<Described, ReadError> {
    if !is_layer(&layer.media_type) {
        let kind = layer.media_type.escape_debug();
        return Err(malformed(format!("the layer {} has an unknown type: {kind}", layer.digest.escape_debug())));
    }
    Described::new(layer)
}

/// A configuration, which must be that of a container image.
pub(super) fn config_of(config: Descriptor, of: &str) -> Result<Described, ReadError> {
    if !is_image_config(&config.media_type) {
        let kind = config.media_type.escape_debug();
        return Err(malformed(format!("{} is not a container image: its configuration is {kind}", of.escape_debug())));
    }
    Described::new(config)
}

/// The document of a descriptor, with size and digest verified.
fn blob(store: &Store<'_>, descriptor: &Descriptor) -> Result<Vec<u8>, ReadError> {
    let digest = Digest::parse(&descriptor.digest)?;
    let name = digest.path();
    let bytes = store.get(&name)?.bytes(&name)?;
    if bytes.len() as u64 != descriptor.size {
        let (found, size) = (bytes.len(), descriptor.size);
        return Err(malformed(format!("{name} has {found} bytes, expected were {size}")));
    }
    let mut hasher = digest.hasher();
    hasher.update(&bytes);
    digest.check(hasher, &name)?;
    Ok(bytes)
}

fn image_of(
    store: &Store<'_>,
    manifest: Manifest,
    descriptor: &Descriptor,
    machine: &str,
    notes: &mut Notes,
) -> Result<Image, ReadError> {
    config_of(manifest.config.clone(), &descriptor.digest)?;
    let config: Config = parse(&manifest.config.digest, &blob(store, &manifest.config)?)?;
    if descriptor.platform.is_none() {
        note_machine(&config, machine, notes);
    }
    let config = ImageConfig::new(config, &manifest.config.digest)?;
    check_count(manifest.layers.len())?;
    let layer = |layer: Descriptor| {
        let Described { digest, size, .. } = layer_of(layer)?;
        Ok(Layer { name: digest.path(), size: Some(size), digest: Some(digest), diff_id: None })
    };
    Ok(Image { layers: manifest.layers.into_iter().map(layer).collect::<Result<_, _>>()?, config })
}

fn note_machine(config: &Config, machine: &str, notes: &mut Notes) {
    let (os, architecture) = (&config.os, &config.architecture);
    if !architecture.is_empty() && (architecture != machine || (!os.is_empty() && os != "linux")) {
        notes.add(b"the image", &is_for(&format!("{os}/{architecture}"), machine));
    }
}

/// Half a sentence: for whom an image is, and for whom not.
fn is_for(platform: &str, wanted: &str) -> String {
    let wanted = if wanted == machine() { "this machine".to_owned() } else { format!("linux/{wanted}") };
    format!("is for {}, not for {wanted}", platform.escape_debug())
}

pub(super) fn check_count(layers: usize) -> Result<(), ReadError> {
    if layers > MAX_LAYERS {
        return Err(malformed(format!("the image has {layers} layers; at most {MAX_LAYERS} are read")));
    }
    Ok(())
}

fn docker_image(
    store: &Store<'_>,
    mut images: Vec<DockerImage>,
    wanted: Wanted<'_>,
    notes: &mut Notes,
) -> Result<Image, ReadError> {
    let Wanted { reference, machine } = wanted;
    let tags = |image: &DockerImage| image.repo_tags.clone().unwrap_or_default();
    let names = listed(images.iter().flat_map(tags));
    let ends =
        |tag: &String, name: &str| tag.strip_suffix(name).is_some_and(|front| front.is_empty() || front.ends_with('/'));
    if let Some(reference) = reference {
        images.retain(|image| tags(image).iter().any(|tag| ends(tag, reference)));
    }
    let image = match (images.pop(), reference) {
        (Some(image), _) if images.is_empty() => image,
        (Some(_), _) => {
            return Err(malformed(format!("it has several images, choose one of {names} by oci:PATH:NAME")));
        }
        (None, Some(reference)) => {
            return Err(malformed(format!("it has no image '{}'; it has {names}", reference.escape_debug())));
        }
        (None, None) => return Err(malformed("there is no image in its manifest.json")),
    };
    let config: Config = parse(&image.config, &store.get(&image.config)?.bytes(&image.config)?)?;
    note_machine(&config, machine, notes);
    check_count(image.layers.len())?;
    let diff_ids = config.rootfs.diff_ids.clone();
    if diff_ids.len() != image.layers.len() {
        let (layers, ids) = (image.layers.len(), diff_ids.len());
        return Err(malformed(format!("manifest.json has {layers} layers, {} {ids}", image.config.escape_debug())));
    }
    let layer = |(name, diff_id): (String, String)| {
        Ok(Layer { name, size: None, digest: None, diff_id: Some(Digest::parse(&diff_id)?) })
    };
    let layers = image.layers.into_iter().zip(diff_ids).map(layer).collect::<Result<_, _>>()?;
    Ok(Image { layers, config: ImageConfig::new(config, &image.config)? })
}
