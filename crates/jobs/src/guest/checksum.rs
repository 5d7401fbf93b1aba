//! `checksum`: digests of the files in an image, as sha256sum(1) and its like print them.

use std::collections::HashMap;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::str::FromStr;

use inarch_tree::FileType;
use inarch_volume::{Last, Node, Volume, VolumeError};
use md5::Md5;
use sha1::Sha1;
use sha2::{Digest, Sha256, Sha512};

use super::copy::{Piece, pieces};
use super::list::{named, search};
use super::{Guest, GuestError};

/// The most files of several names whose digests are remembered.
const REMEMBERED: usize = 1 << 16;

/// A function that digests bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Algorithm {
    /// SHA-256.
    #[default]
    Sha256,
    /// SHA-512.
    Sha512,
    /// SHA-1, which can be forged.
    Sha1,
    /// MD5, which can be forged: what Debian's packages list of their files.
    Md5,
}

impl Algorithm {
    /// All of them.
    pub fn all() -> [Algorithm; 4] {
        [Algorithm::Sha256, Algorithm::Sha512, Algorithm::Sha1, Algorithm::Md5]
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Algorithm::Sha256 => "sha256",
            Algorithm::Sha512 => "sha512",
            Algorithm::Sha1 => "sha1",
            Algorithm::Md5 => "md5",
        }
    }

    fn digest(self, volume: &dyn Volume, node: Node, size: u64) -> Result<String, VolumeError> {
        match self {
            Algorithm::Sha256 => digest::<Sha256>(volume, node, size),
            Algorithm::Sha512 => digest::<Sha512>(volume, node, size),
            Algorithm::Sha1 => digest::<Sha1>(volume, node, size),
            Algorithm::Md5 => digest::<Md5>(volume, node, size),
        }
    }
}

impl FromStr for Algorithm {
    type Err = String;

    fn from_str(text: &str) -> Result<Algorithm, String> {
        Algorithm::all().into_iter().find(|algorithm| algorithm.name() == text).ok_or_else(|| {
            format!("'{text}' is no digest; these are: {}", Algorithm::all().map(Algorithm::name).join(", "))
        })
    }
}

/// The digest of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Summed {
    /// The path that was asked for, and the path below it.
    pub path: Vec<u8>,
    /// The digest, in hexadecimal digits.
    pub digest: String,
}

impl Guest {
    /// Digests a file, or every regular file below a directory, in the order of their names. `take` gets a line for what cannot be read.
    ///
    /// # Errors
    /// There is no such file, it is neither a regular file nor a directory, or `take` failed.
    pub fn checksum(
        &self,
        path: &Path,
        algorithm: Algorithm,
        take: impl FnMut(Result<Summed, String>) -> Result<(), GuestError>,
    ) -> Result<(), GuestError> {
        let (node, attributes) = self.find_node(path, Last::Followed)?;
        let top = path.as_os_str().as_bytes();
        match attributes.file_type() {
            Some(FileType::Regular) => self.stream(
                path,
                |volume, send| {
                    let digest = algorithm.digest(volume, node, attributes.size)?;
                    send(Ok(Summed { path: top.to_vec(), digest }));
                    Ok(())
                },
                take,
            ),
            Some(FileType::Directory) => {
                self.stream(path, |volume, send| below(volume, (node, top), algorithm, send), take)
            }
            _ => Err(self.wrong_type(path, "it is no regular file and no directory")),
        }
    }
}

/// Digests every regular file below a directory; a file of several names is read once.
fn below(
    volume: &dyn Volume,
    (top, prefix): (Node, &[u8]),
    algorithm: Algorithm,
    send: &mut dyn FnMut(Result<Summed, String>) -> bool,
) -> Result<(), VolumeError> {
    let prefix = prefix.strip_suffix(b"/").unwrap_or(prefix);
    let mut linked: HashMap<Node, String> = HashMap::new();
    let is_regular =
        |_: &[u8], attributes: &inarch_volume::Attributes| attributes.file_type() == Some(FileType::Regular);
    search(volume, top, &is_regular, &mut |found| {
        let entry = match found {
            Ok(entry) => entry,
            Err(line) => return send(Err(line)),
        };
        let path = [prefix, b"/", &*entry.path].concat();
        let known = linked.get(&entry.node).cloned();
        let digest = known.map_or_else(|| algorithm.digest(volume, entry.node, entry.attributes.size), Ok);
        if let (Ok(digest), true) = (&digest, entry.attributes.links > 1 && linked.len() < REMEMBERED) {
            linked.insert(entry.node, digest.clone());
        }
        let summed = digest.map_err(|error| named(&path, &error.to_string()));
        send(summed.map(|digest| Summed { path, digest }))
    })
}

fn digest<D: Digest>(volume: &dyn Volume, node: Node, size: u64) -> Result<String, VolumeError> {
    const ZEROS: &[u8] = &[0; 64 << 10];
    let mut hash = D::new();
    pieces(volume, node, size, &mut |piece| {
        match piece {
            Piece::Data(bytes) => hash.update(bytes),
            Piece::Hole(mut length) => {
                while length > 0 {
                    let count = length.min(ZEROS.len() as u64);
                    hash.update(&ZEROS[..count as usize]);
                    length -= count;
                }
            }
        }
        true
    })?;
    Ok(hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
}
