//! Any documents and layers as a container image.

#![no_main]

use std::sync::Arc;

use arbitrary::Arbitrary;
use inarch_confine::Parsing;
use inarch_format::{Damage, ThisHost, oci};
use inarch_fuzz::{archive, image};
use libfuzzer_sys::fuzz_target;
use serde_json::json;
use sha2::{Digest, Sha256};

#[derive(Arbitrary, Debug)]
struct Input<'a> {
    docker: bool,
    index: Option<&'a str>,
    manifest: Option<&'a str>,
    config: Option<&'a str>,
    layers: Vec<archive::Archive<'a>>,
    media_type: u8,
    reference: Option<&'a str>,
    /// A byte that is changed at the end.
    damage: Option<(u16, u8)>,
    /// Whether damage is salvaged.
    salvaged: bool,
}

const LAYER_TYPES: [&str; 4] = [
    "application/vnd.oci.image.layer.v1.tar",
    "application/vnd.oci.image.layer.v1.tar+gzip",
    "application/vnd.docker.image.rootfs.diff.tar.gzip",
    "application/vnd.oci.image.layer.v1.tar+encrypted",
];

fn digest(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Adds a blob; returns its descriptor.
fn blob(out: &mut Vec<u8>, bytes: &[u8], media_type: &str) -> serde_json::Value {
    let digest = digest(bytes);
    archive::add_file(out, &format!("blobs/sha256/{digest}"), bytes);
    json!({ "mediaType": media_type, "digest": format!("sha256:{digest}"), "size": bytes.len() })
}

fn archive(input: &Input<'_>) -> Vec<u8> {
    let mut out = Vec::new();
    let layer_type = LAYER_TYPES[usize::from(input.media_type % 4)];
    let layers: Vec<Vec<u8>> = input.layers.iter().take(4).map(archive::Archive::bytes).collect();
    let diff_ids: Vec<String> = layers.iter().map(|layer| format!("sha256:{}", digest(layer))).collect();
    let config = json!({ "architecture": "amd64", "os": "linux", "rootfs": { "diff_ids": diff_ids } }).to_string();
    let config = input.config.unwrap_or(&config).as_bytes();
    if input.docker {
        let names: Vec<String> = (0..layers.len()).map(|number| format!("{number}/layer.tar")).collect();
        for (name, layer) in names.iter().zip(&layers) {
            archive::add_file(&mut out, name, layer);
        }
        archive::add_file(&mut out, "config.json", config);
        let manifest = json!([{ "Config": "config.json", "RepoTags": ["a:b"], "Layers": names }]).to_string();
        archive::add_file(&mut out, "manifest.json", input.manifest.unwrap_or(&manifest).as_bytes());
    } else {
        let layers: Vec<_> = layers.iter().map(|layer| blob(&mut out, layer, layer_type)).collect();
        let config = blob(&mut out, config, "application/vnd.oci.image.config.v1+json");
        let manifest = json!({ "schemaVersion": 2, "config": config, "layers": layers }).to_string();
        let manifest = input.manifest.unwrap_or(&manifest).as_bytes();
        let manifest = blob(&mut out, manifest, "application/vnd.oci.image.manifest.v1+json");
        let index = json!({ "schemaVersion": 2, "manifests": [manifest] }).to_string();
        archive::add_file(&mut out, "index.json", input.index.unwrap_or(&index).as_bytes());
    }
    out.resize(out.len() + 1024, 0);
    if let Some((at, byte)) = input.damage {
        let at = usize::from(at) % out.len();
        out[at] ^= byte;
    }
    out
}

fuzz_target!(|input: Input<'_>| {
    let backing = Arc::new(image::Memory(archive(&input)));
    let damage = if input.salvaged { Damage::Salvaged } else { Damage::Refused };
    let host = ThisHost::new(&std::env::temp_dir());
    if let Ok(opened) = oci::open_archive(Parsing::unconfined(), backing, oci::Wanted { reference: input.reference, ..oci::Wanted::default() }, &host, damage) {
        archive::look(opened);
    }
});
