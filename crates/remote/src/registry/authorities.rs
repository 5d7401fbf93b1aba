//! Certificate authorities that are trusted for one registry: `certs.d/HOST[:PORT]/*.crt`, where docker and podman have them (containers-certs.d(5)).

use std::env;
use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};

use super::ImageName;

/// The most bytes of a file, and the most files.
const MOST: u64 = 1 << 20;
const MOST_FILES: usize = 32;

/// Where such directories are, beside the user's own.
const PLACES: [&str; 2] = ["/etc/containers/certs.d", "/etc/docker/certs.d"];

/// A file with certificates.
#[derive(Clone, Debug)]
pub(super) struct Authority {
    pub path: PathBuf,
    pub pem: Vec<u8>,
}

/// Those for the registry of an image. What cannot be read is left out: then a connection says what it lacks.
pub(super) fn find(name: &ImageName) -> Vec<Authority> {
    let own = env::var_os("HOME").map(|home| PathBuf::from(home).join(".config/containers/certs.d"));
    let places = own.into_iter().chain(PLACES.map(PathBuf::from));
    // The name has no slash, and does not begin with a point.
    let mut all: Vec<Authority> = places.flat_map(|place| within(&place.join(name.registry()))).collect();
    all.truncate(MOST_FILES);
    all
}

fn within(directory: &Path) -> Vec<Authority> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let mut paths: Vec<PathBuf> = entries.map(|entry| entry.path()).collect();
    paths.retain(|path| path.extension().is_some_and(|end| end == "crt"));
    paths.sort();
    paths.truncate(MOST_FILES);
    let read = |path: PathBuf| {
        let mut pem = Vec::new();
        File::open(&path).ok()?.take(MOST).read_to_end(&mut pem).ok()?;
        Some(Authority { path, pem })
    };
    paths.into_iter().filter_map(read).collect()
}
