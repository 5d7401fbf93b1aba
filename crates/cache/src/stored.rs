//! [`Stored`]: where the bytes of a file lie in a pack, and their digest.

/// A BLAKE3 digest of a file's bytes.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Digest(pub [u8; 32]);

impl std::fmt::Debug for Digest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(blake3::Hash::from(self.0).to_hex().as_str())
    }
}

/// Where the bytes of a file lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stored {
    /// An index into [`Body::packs`](crate::Body::packs).
    pub pack: u32,
    /// The first byte in the pack.
    pub at: u64,
    /// Their digest.
    pub digest: Digest,
}

/// Whether a name is that of a remote's pack or generation: 64 hexadecimal digits. This machine's own have other names.
pub(crate) fn is_remote_name(name: &str) -> bool {
    name.len() == 64 && name.bytes().all(|byte| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte))
}
