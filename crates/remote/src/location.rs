//! [`Location`]: what the URL of a remote means.

use std::fmt;
use std::path::{Path, PathBuf};

use crate::RemoteError;
use crate::directory::Root;

/// The longest URL, and the longest name of an object below it, in bytes. S3 has keys of at most 1,024 bytes.
const LONGEST: usize = 700;

/// Where a remote is: a store, and a prefix of names in it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Location {
    pub(crate) store: Store,
    /// Plain names, joined by `/`; empty for the whole store.
    pub(crate) prefix: String,
}

/// A kind of store, and which one of the kind.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Store {
    /// `s3://BUCKET`
    S3(String),
    /// `gs://BUCKET`
    Google(String),
    /// `az://CONTAINER`
    Azure(String),
    /// `https://HOST[:PORT]`, or `http://` of this machine.
    Web { scheme: &'static str, host: String },
    /// `file:///DIR`. What the user writes is all in it; only what is below that is a prefix.
    Directory(PathBuf),
}

/// Why a text is no location of a remote.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
#[error("'{text}': {reason}")]
pub struct LocationError {
    /// The text, without what could change a terminal.
    text: String,
    reason: &'static str,
}

impl Location {
    /// Whether a text looks like the URL of a remote: it begins with a scheme that this program knows.
    pub fn is_one(text: &str) -> bool {
        ["s3://", "gs://", "az://", "https://", "http://", "file://"].iter().any(|scheme| text.starts_with(scheme))
    }

    /// The location that a URL names.
    ///
    /// # Errors
    /// It is no URL of a remote, or has a name that is not plain.
    pub fn parse(text: &str) -> Result<Location, LocationError> {
        let fail = |reason| LocationError { text: shown(text), reason };
        let (scheme, rest) = text.split_once("://").ok_or_else(|| fail(EXPECTED))?;
        if text.len() > LONGEST {
            return Err(fail("it is longer than 700 bytes"));
        }
        if scheme == "file" {
            let path = Path::new(rest);
            if !path.is_absolute() || rest.contains('\0') || path.components().any(|part| part.as_os_str() == "..") {
                return Err(fail("write file:// and an absolute path without '..'"));
            }
            return Ok(Location { store: Store::Directory(path.to_owned()), prefix: String::new() });
        }
        let (host, prefix) = rest.split_once('/').unwrap_or((rest, ""));
        let is_of_host = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
        let (name, port) = host.split_once(':').unwrap_or((host, "0"));
        let store = match scheme {
            "http" | "https" if name.is_empty() || !name.bytes().all(is_of_host) || port.parse::<u16>().is_err() => {
                return Err(fail("write https://HOST[:PORT]/PREFIX"));
            }
            "https" => Store::Web { scheme: "https", host: host.to_owned() },
            // Anybody on the way could answer, and the head is not signed.
            "http" if !["localhost", "127.0.0.1"].contains(&name) => {
                return Err(fail("http:// is taken of this machine only (localhost); use https://"));
            }
            "http" => Store::Web { scheme: "http", host: host.to_owned() },
            "s3" | "gs" | "az" if host.is_empty() || !host.bytes().all(is_of_host) => {
                return Err(fail("the name of the bucket has other characters than letters, digits, '-', '_' and '.'"));
            }
            "s3" => Store::S3(host.to_owned()),
            "gs" => Store::Google(host.to_owned()),
            "az" => Store::Azure(host.to_owned()),
            _ => return Err(fail(EXPECTED)),
        };
        let prefix = prefix.strip_suffix('/').unwrap_or(prefix);
        if !prefix.is_empty() && !prefix.split('/').all(is_plain) {
            return Err(fail(
                "its names have other characters than letters, digits, '-', '_' and '.', or begin with '.'",
            ));
        }
        Ok(Location { store, prefix: prefix.to_owned() })
    }

    /// The location of what is below these names.
    ///
    /// # Errors
    /// A name is not plain: it could lead elsewhere.
    pub fn below(&self, names: &[&str]) -> Result<Location, LocationError> {
        let mut location = self.clone();
        for name in names {
            if !is_plain(name) {
                return Err(LocationError { text: shown(name), reason: "it is no plain name" });
            }
            if !location.prefix.is_empty() {
                location.prefix.push('/');
            }
            location.prefix.push_str(name);
        }
        Ok(location)
    }

    /// Whether nothing can be put there.
    pub fn is_read_only(&self) -> bool {
        matches!(self.store, Store::Web { .. })
    }

    /// The directory, if it is one of this machine.
    pub fn directory(&self) -> Option<PathBuf> {
        self.root().map(|root| root.base.join(root.prefix))
    }

    /// Makes the directory, if it is one of this machine.
    ///
    /// # Errors
    /// It cannot be made.
    pub fn make_directory(&self) -> Result<(), RemoteError> {
        self.root().map_or(Ok(()), |root| root.make())
    }

    pub(crate) fn root(&self) -> Option<Root> {
        let Store::Directory(base) = &self.store else { return None };
        Some(Root { base: base.clone(), prefix: self.prefix.clone() })
    }
}

const EXPECTED: &str = "write s3://BUCKET/PREFIX, gs://, az://, https:// (which is only read) or file:///DIRECTORY";

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.store {
            Store::S3(bucket) => write!(f, "s3://{bucket}")?,
            Store::Google(bucket) => write!(f, "gs://{bucket}")?,
            Store::Azure(container) => write!(f, "az://{container}")?,
            Store::Web { scheme, host } => write!(f, "{scheme}://{host}")?,
            Store::Directory(path) => write!(f, "file://{}", shown(path.to_string_lossy().trim_end_matches('/')))?,
        }
        if self.prefix.is_empty() { Ok(()) } else { write!(f, "/{}", self.prefix) }
    }
}

/// Whether a name is one component that no store and no file system takes for anything else.
pub(crate) fn is_plain(name: &str) -> bool {
    !name.is_empty()
        && name.len() <= 200
        && !name.starts_with('.')
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte))
}

fn shown(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '?' } else { c }).take(200).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_name_stores_and_prefixes() {
        for text in [
            "s3://bucket/a/b",
            "gs://bucket",
            "az://container/x",
            "https://host.example:8443/caches",
            "http://127.0.0.1:8000/x",
            "file:///srv/caches",
        ] {
            assert!(Location::is_one(text));
            assert_eq!(Location::parse(text).unwrap().to_string(), text);
        }
        let below = Location::parse("s3://bucket/a/").unwrap().below(&["user", "maven"]).unwrap();
        assert_eq!(below.to_string(), "s3://bucket/a/user/maven");
        assert_eq!(Location::parse("file:///x").unwrap().below(&["y"]).unwrap().to_string(), "file:///x/y");
    }

    #[test]
    fn nothing_leads_out_of_a_location() {
        for text in [
            "bucket",
            "ftp://x",
            "s3://",
            "s3:///x",
            "s3://b/../x",
            "s3://b/a//b",
            "s3://b/.x",
            "s3://u:p@h/x",
            "https://u@h/",
            "https://h:99999/",
            "http://example.com/x",
            "file://x",
            "file:///a/../b",
            "s3://b/%2e%2e",
            "s3://b/a?x",
            "s3://b/\u{1b}[0m",
        ] {
            let line = Location::parse(text).unwrap_err().to_string();
            assert!(!line.contains(char::is_control), "{line}");
        }
        let location = Location::parse("s3://b/a").unwrap();
        for name in ["", "..", ".", "a/b", "/", "a\0", ".x", "\u{e4}"] {
            assert!(location.below(&[name]).is_err(), "{name}");
        }
    }
}
