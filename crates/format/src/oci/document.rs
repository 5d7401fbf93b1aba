//! The JSON documents of container images, with the fields that we need.

use std::collections::BTreeMap;

use serde::Deserialize;

/// The most bytes of a document; registries accept at most 4 MiB.
pub(super) const MAX_DOCUMENT: u64 = 8 << 20;

/// Refers to content by its digest.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Descriptor {
    #[serde(default)]
    pub(super) media_type: String,
    pub(super) digest: String,
    pub(super) size: u64,
    pub(super) platform: Option<Platform>,
    #[serde(default)]
    pub(super) annotations: BTreeMap<String, String>,
}

/// The platform of an image.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct Platform {
    #[serde(default)]
    pub(super) architecture: String,
    #[serde(default)]
    pub(super) os: String,
}

/// `index.json`, or the index of an image for several platforms.
#[derive(Debug, Deserialize)]
pub(super) struct Index {
    #[serde(default)]
    pub(super) manifests: Vec<Descriptor>,
}

/// The manifest of an image for one platform.
#[derive(Debug, Deserialize)]
pub(super) struct Manifest {
    pub(super) config: Descriptor,
    #[serde(default)]
    pub(super) layers: Vec<Descriptor>,
}

/// An image's configuration.
#[derive(Debug, Deserialize)]
pub(super) struct Config {
    #[serde(default)]
    pub(super) architecture: String,
    #[serde(default)]
    pub(super) os: String,
    pub(super) rootfs: RootFs,
    pub(super) config: Option<Execution>,
}

/// How a container is started; any field may be missing or `null`.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct Execution {
    pub(super) user: Option<String>,
    pub(super) env: Option<Vec<String>>,
    pub(super) entrypoint: Option<Vec<String>>,
    pub(super) cmd: Option<Vec<String>>,
    pub(super) working_dir: Option<String>,
}

/// The digests of the unpacked layers, lowest first.
#[derive(Debug, Deserialize)]
pub(super) struct RootFs {
    #[serde(default)]
    pub(super) diff_ids: Vec<String>,
}

/// The file `oci-layout`.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct LayoutFile {
    pub(super) image_layout_version: String,
}

/// An image in the `manifest.json` of a Docker archive; paths are within the archive.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "PascalCase")]
pub(super) struct DockerImage {
    pub(super) config: String,
    pub(super) repo_tags: Option<Vec<String>>,
    pub(super) layers: Vec<String>,
}

/// The kind of a manifest or index.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DocumentKind {
    Index,
    Manifest,
}

/// The kind of document of a media type.
pub(super) fn document_kind(media_type: &str) -> Option<DocumentKind> {
    match media_type {
        "application/vnd.oci.image.index.v1+json" | "application/vnd.docker.distribution.manifest.list.v2+json" => {
            Some(DocumentKind::Index)
        }
        "application/vnd.oci.image.manifest.v1+json" | "application/vnd.docker.distribution.manifest.v2+json" => {
            Some(DocumentKind::Manifest)
        }
        _ => None,
    }
}

/// Whether a media type is an image configuration's; artifacts have others.
pub(super) fn is_image_config(media_type: &str) -> bool {
    matches!(media_type, "application/vnd.oci.image.config.v1+json" | "application/vnd.docker.container.image.v1+json")
}

/// Whether a media type is that of a layer in tar format, plain or compressed; its first bytes show the compression.
pub(super) fn is_layer(media_type: &str) -> bool {
    let (name, compression) = media_type.split_once('+').unwrap_or((media_type, ""));
    match name {
        "application/vnd.oci.image.layer.v1.tar" | "application/vnd.oci.image.layer.nondistributable.v1.tar" => {
            matches!(compression, "" | "gzip" | "zstd")
        }
        "application/vnd.docker.image.rootfs.diff.tar"
        | "application/vnd.docker.image.rootfs.diff.tar.gzip"
        | "application/vnd.docker.image.rootfs.diff.tar.zstd"
        | "application/vnd.docker.image.rootfs.foreign.diff.tar"
        | "application/vnd.docker.image.rootfs.foreign.diff.tar.gzip" => compression.is_empty(),
        _ => false,
    }
}

/// This machine's architecture, as images name it.
pub fn machine() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "x86" => "386",
        "aarch64" => "arm64",
        "powerpc64" if cfg!(target_endian = "little") => "ppc64le",
        "powerpc64" => "ppc64",
        "loongarch64" => "loong64",
        other => other,
    }
}
