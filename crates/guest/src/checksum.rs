//! `checksum`: digests of the files in an image, as sha256sum(1) and its like print them.

use std::collections::HashMap;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::str::FromStr;

use inarch_lifecycle::shown;
use inarch_tree::FileType;
use inarch_volume::{Last, Node, Volume, VolumeError};
use md5::Md5;
use sha1::Sha1;
use sha2::digest::DynDigest;
use sha2::{Sha224, Sha256, Sha384, Sha512};

use super::copy::{Piece, pieces, zeros};
use super::list::{named, search};
use super::{Guest, GuestError};

/// The most files of several names whose digests are remembered.
const REMEMBERED: usize = 1 << 16;

/// A function that digests bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Algorithm {
    /// POSIX's cksum, which is no digest: it finds errors of transmission.
    Crc,
    /// MD5, which can be forged: what Debian's packages list of their files.
    Md5,
    /// SHA-1, which can be forged.
    Sha1,
    /// SHA-224.
    Sha224,
    /// SHA-256.
    #[default]
    Sha256,
    /// SHA-384.
    Sha384,
    /// SHA-512.
    Sha512,
}

impl Algorithm {
    /// All of them, and first the one that is no digest.
    pub fn all() -> [Algorithm; 7] {
        use Algorithm::{Crc, Md5, Sha1, Sha224, Sha256, Sha384, Sha512};
        [Crc, Md5, Sha1, Sha224, Sha256, Sha384, Sha512]
    }

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Algorithm::Crc => "crc",
            Algorithm::Md5 => "md5",
            Algorithm::Sha1 => "sha1",
            Algorithm::Sha224 => "sha224",
            Algorithm::Sha256 => "sha256",
            Algorithm::Sha384 => "sha384",
            Algorithm::Sha512 => "sha512",
        }
    }

    /// Begins with no bytes.
    pub fn start(self) -> Checksum {
        Checksum(match self {
            Algorithm::Crc => Digesting::Crc(CKSUM.digest(), 0),
            Algorithm::Md5 => Digesting::Digest(Box::new(Md5::default())),
            Algorithm::Sha1 => Digesting::Digest(Box::new(Sha1::default())),
            Algorithm::Sha224 => Digesting::Digest(Box::new(Sha224::default())),
            Algorithm::Sha256 => Digesting::Digest(Box::new(Sha256::default())),
            Algorithm::Sha384 => Digesting::Digest(Box::new(Sha384::default())),
            Algorithm::Sha512 => Digesting::Digest(Box::new(Sha512::default())),
        })
    }
}

/// The digest of bytes that come in pieces.
pub struct Checksum(Digesting);

enum Digesting {
    /// The length follows the bytes.
    Crc(crc::Digest<'static, u32>, u64),
    Digest(Box<dyn DynDigest>),
}

static CKSUM: crc::Crc<u32> = crc::Crc::<u32>::new(&crc::CRC_32_CKSUM);

impl Checksum {
    /// Takes a piece.
    pub fn feed(&mut self, piece: &[u8]) {
        match &mut self.0 {
            Digesting::Crc(digest, length) => {
                digest.update(piece);
                *length += piece.len() as u64;
            }
            Digesting::Digest(digest) => digest.update(piece),
        }
    }

    /// As the usual programs print it.
    pub fn finish(self) -> String {
        match self.0 {
            Digesting::Crc(mut digest, length) => {
                let bytes = length.to_le_bytes();
                let used = bytes.len() - length.leading_zeros() as usize / 8;
                digest.update(bytes.get(..used).unwrap_or_default());
                digest.finalize().to_string()
            }
            Digesting::Digest(digest) => digest.finalize().iter().map(|byte| format!("{byte:02x}")).collect(),
        }
    }
}

impl FromStr for Algorithm {
    type Err = String;

    fn from_str(text: &str) -> Result<Algorithm, String> {
        Algorithm::all().into_iter().find(|algorithm| algorithm.name() == text).ok_or_else(|| {
            format!(
                "{}: no checksum that is made; these are: {}",
                shown(Path::new(text)),
                Algorithm::all().map(Algorithm::name).join(", ")
            )
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
                    let digest = digest(volume, node, attributes.size, algorithm)?;
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
        let digest = known.map_or_else(|| digest(volume, entry.node, entry.attributes.size, algorithm), Ok);
        if let (Ok(digest), true) = (&digest, entry.attributes.links > 1 && linked.len() < REMEMBERED) {
            linked.insert(entry.node, digest.clone());
        }
        let summed = digest.map_err(|error| named(&path, &error.to_string()));
        send(summed.map(|digest| Summed { path, digest }))
    })
}

fn digest(volume: &dyn Volume, node: Node, size: u64, algorithm: Algorithm) -> Result<String, VolumeError> {
    let mut sum = algorithm.start();
    pieces(volume, node, size, &mut |piece| {
        match piece {
            Piece::Data(bytes) => sum.feed(&bytes),
            Piece::Hole(length) => zeros(length).for_each(|zeros| sum.feed(zeros)),
        }
        true
    })?;
    Ok(sum.finish())
}
