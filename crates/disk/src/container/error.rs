//! Why a container cannot be opened.

use std::io;

use super::{Container, MAX_CHAIN, Reference};

/// Why a container cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum ContainerError {
    /// The host failed to read it.
    #[error("cannot read the image at byte {offset}: {error}")]
    Io {
        /// Where.
        offset: u64,
        /// Why.
        error: io::Error,
    },
    /// It makes no sense, or uses something unsupported.
    #[error("{kind}: {reason}")]
    Format {
        /// What it is.
        kind: Container,
        /// What was found, where, and what to do.
        reason: String,
    },
    /// It names a file that the user did not name.
    #[error(
        "{kind}: it asks for its {} {}; what an image names is opened only if you name it as well: --with FILE",
        reference.role,
        quoted(&reference.name)
    )]
    NotNamed {
        /// What it is.
        kind: Container,
        /// What it asks for.
        reference: Reference,
    },
    /// Too many images lie on each other.
    #[error("more than {MAX_CHAIN} images lie on each other; commit some of them ('qemu-img commit') first")]
    TooLong,
}

/// Text for a message from an image's bytes: control characters are escaped, and it is cut at 200 characters.
pub(super) fn quoted(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(bytes);
    let shown: String = text.chars().take(200).collect();
    let more = if shown.len() < text.len() { "..." } else { "" };
    let shown = shown.chars().map(|c| if c.is_control() { c.escape_default().to_string() } else { c.to_string() });
    format!("'{}{more}'", shown.collect::<String>())
}
