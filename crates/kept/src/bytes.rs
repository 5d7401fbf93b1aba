//! Paths and arguments in JSON: text if they are UTF-8, otherwise a list of bytes.

use std::ffi::OsString;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// A name of Unix as JSON holds it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Bytes {
    /// UTF-8.
    Text(String),
    /// Anything else.
    Raw(Vec<u8>),
}

impl Bytes {
    /// Text if the bytes are UTF-8.
    pub fn new(bytes: &[u8]) -> Bytes {
        match std::str::from_utf8(bytes) {
            Ok(text) => Bytes::Text(text.to_owned()),
            Err(_) => Bytes::Raw(bytes.to_owned()),
        }
    }

    /// The same of a path.
    pub fn path(path: &Path) -> Bytes {
        Bytes::new(path.as_os_str().as_bytes())
    }

    /// The bytes, as names of the system are.
    pub fn to_os_string(&self) -> OsString {
        match self {
            Bytes::Text(text) => text.into(),
            Bytes::Raw(bytes) => OsString::from_vec(bytes.clone()),
        }
    }

    /// The bytes, as a path.
    pub fn to_path(&self) -> PathBuf {
        self.to_os_string().into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_name_survives_json() {
        for name in [&b"plain"[..], b"\xff\xfe", b"", b"new\nline \"q\""] {
            let text = serde_json::to_string(&Bytes::new(name)).unwrap();
            let back: Bytes = serde_json::from_str(&text).unwrap();
            assert_eq!(back.to_os_string().as_bytes(), name);
        }
    }
}
