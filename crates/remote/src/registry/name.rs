//! [`ImageName`]: what `docker://NAME` means, by the rules that docker has (github.com/distribution/reference).

use std::fmt;

/// The registry that is meant where none is named.
const USUAL: &str = "docker.io";
/// The host that speaks for it.
const USUAL_HOST: &str = "registry-1.docker.io";
/// What stands before a single word there.
const USUAL_PREFIX: &str = "library/";
/// The longest name of a registry and a repository, in bytes.
const LONGEST: usize = 255;
/// The longest tag.
const LONGEST_TAG: usize = 128;

/// An image at a registry.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ImageName {
    /// `HOST[:PORT]`; `docker.io` stands for another host.
    registry: String,
    repository: String,
    pick: Pick,
    /// Whether it was said that the registry speaks HTTP without TLS.
    plain: bool,
}

/// Which image of a repository.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Pick {
    /// What this name stands for at the time.
    Tag(String),
    /// This one: `sha256:` or `sha512:` and hexadecimal digits.
    Digest(String),
}

/// Why a text is no name of an image.
#[derive(Clone, Debug, thiserror::Error, PartialEq, Eq)]
#[error("'{text}' names no image of a registry: {reason}; write docker://[REGISTRY/]NAME[:TAG|@DIGEST]")]
pub struct NameError {
    /// The text, without what could change a terminal.
    text: String,
    reason: &'static str,
}

/// The schemes of such names: by TLS, and without.
const SCHEMES: [(&str, bool); 2] = [("docker://", false), ("docker+http://", true)];

impl ImageName {
    /// Whether a text looks like one: it begins with `docker://` or `docker+http://`.
    pub fn is_one(text: &str) -> bool {
        SCHEMES.iter().any(|(scheme, _)| text.starts_with(scheme))
    }

    /// The image that a text names.
    ///
    /// # Errors
    /// It names none.
    pub fn parse(text: &str) -> Result<ImageName, NameError> {
        let fail = |reason| NameError {
            text: text.chars().map(|c| if c.is_control() { '?' } else { c }).take(200).collect(),
            reason,
        };
        let scheme = SCHEMES.iter().find_map(|(scheme, plain)| Some((text.strip_prefix(scheme)?, *plain)));
        let (rest, plain) = scheme.ok_or_else(|| fail("it does not begin with docker://"))?;
        let (rest, digest) = match rest.split_once('@') {
            Some((_, digest)) if !is_digest(digest) => {
                return Err(fail("a digest is sha256: and 64 lower-case hexadecimal digits (or sha512: and 128)"));
            }
            Some((rest, digest)) => (rest, Some(digest)),
            None => (rest, None),
        };
        let (first, others) = rest.split_once('/').unwrap_or(("", rest));
        let is_registry = |word: &str| {
            word.contains(['.', ':']) || word == "localhost" || word.bytes().any(|byte| byte.is_ascii_uppercase())
        };
        let (registry, path) = if is_registry(first) { (first, others) } else { (USUAL, rest) };
        if !is_host(registry) {
            return Err(fail("a registry is HOST[:PORT]"));
        }
        let registry = if ["index.docker.io", USUAL_HOST].contains(&registry) { USUAL } else { registry };
        let (path, tag) = match path.rsplit_once(':') {
            Some((path, tag)) => (path, Some(tag)),
            None => (path, None),
        };
        if tag.is_some_and(|tag| !is_tag(tag)) {
            return Err(fail("a tag has letters, digits, '_', '-' and '.', at most 128"));
        }
        if path.bytes().any(|byte| byte.is_ascii_uppercase()) {
            return Err(fail("names have no upper-case letters"));
        }
        if path.is_empty() || !path.split('/').all(is_component) {
            return Err(fail("names have lower-case letters and digits, with '.', '_' or '-' between them"));
        }
        if registry.len() + path.len() > LONGEST {
            return Err(fail("it is longer than 255 bytes"));
        }
        let prefix = if registry == USUAL && !path.contains('/') { USUAL_PREFIX } else { "" };
        let pick = match digest {
            Some(digest) => Pick::Digest(digest.to_owned()),
            None => Pick::Tag(tag.unwrap_or("latest").to_owned()),
        };
        Ok(ImageName { registry: registry.to_owned(), repository: format!("{prefix}{path}"), pick, plain })
    }

    /// The registry, as users know it: `HOST[:PORT]`.
    pub fn registry(&self) -> &str {
        &self.registry
    }

    /// The repository.
    pub fn repository(&self) -> &str {
        &self.repository
    }

    /// Which of its images.
    pub fn pick(&self) -> &Pick {
        &self.pick
    }

    /// The tag or the digest.
    pub fn reference(&self) -> &str {
        match &self.pick {
            Pick::Tag(text) | Pick::Digest(text) => text,
        }
    }

    /// `HOST[:PORT]` to connect with.
    pub(super) fn host(&self) -> &str {
        if self.registry == USUAL { USUAL_HOST } else { &self.registry }
    }

    /// Whether the user says that there is no TLS.
    pub(super) fn is_plain(&self) -> bool {
        self.plain
    }

    /// Whether it is this machine, where a registry may be without TLS.
    pub(super) fn is_loopback(&self) -> bool {
        is_loopback(without_port(&self.registry))
    }
}

/// Whether a host is this machine by its name.
pub(super) fn is_loopback(host: &str) -> bool {
    let host = host.trim_start_matches('[').trim_end_matches(']');
    host == "localhost" || host.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback())
}

/// With all that is left out by default. It can be parsed again.
impl fmt::Display for ImageName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.plain { "docker+http" } else { "docker" };
        let separator = if matches!(self.pick, Pick::Digest(_)) { '@' } else { ':' };
        write!(f, "{scheme}://{}/{}{separator}{}", self.registry, self.repository, self.reference())
    }
}

fn without_port(registry: &str) -> &str {
    match registry.rsplit_once(':') {
        Some((host, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => host,
        _ => registry,
    }
}

fn is_host(registry: &str) -> bool {
    let (host, port) = match registry.rsplit_once(':') {
        Some((host, port)) if !registry.ends_with(']') => (host, port),
        _ => (registry, "1"),
    };
    if port.len() > 5 || !port.bytes().all(|byte| byte.is_ascii_digit()) || port.parse::<u16>().is_err() {
        return false;
    }
    if let Some(address) = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')) {
        return address.parse::<std::net::Ipv6Addr>().is_ok();
    }
    let is_part = |part: &str| {
        !part.is_empty()
            && !part.starts_with('-')
            && !part.ends_with('-')
            && part.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
    };
    host.split('.').all(is_part)
}

/// Whether a part of a repository's name is one: letters and digits, with `.`, `_`, `__` or any number of `-` between them.
fn is_component(part: &str) -> bool {
    let is_plain = |byte: &u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let bytes = part.as_bytes();
    if !(bytes.first().is_some_and(is_plain) && bytes.last().is_some_and(is_plain)) {
        return false;
    }
    let separators = bytes.split(is_plain).filter(|separator| !separator.is_empty());
    separators
        .into_iter()
        .all(|separator| matches!(separator, b"." | b"_" | b"__") || separator.iter().all(|byte| *byte == b'-'))
}

fn is_tag(tag: &str) -> bool {
    let is_word = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    tag.len() <= LONGEST_TAG
        && tag.bytes().next().is_some_and(is_word)
        && tag.bytes().all(|byte| is_word(byte) || byte == b'.' || byte == b'-')
}

fn is_digest(text: &str) -> bool {
    let is_hex = |text: &str| text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
    match text.split_once(':') {
        Some(("sha256", hex)) => hex.len() == 64 && is_hex(hex),
        Some(("sha512", hex)) => hex.len() == 128 && is_hex(hex),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DIGEST: &str = "sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";

    #[test]
    fn what_is_left_out_is_as_docker_has_it() {
        for (text, full, host) in [
            ("docker://debian", "docker://docker.io/library/debian:latest", "registry-1.docker.io"),
            ("docker://debian:12", "docker://docker.io/library/debian:12", "registry-1.docker.io"),
            ("docker://index.docker.io/debian", "docker://docker.io/library/debian:latest", "registry-1.docker.io"),
            ("docker://a/b", "docker://docker.io/a/b:latest", "registry-1.docker.io"),
            ("docker://localhost/b", "docker://localhost/b:latest", "localhost"),
            ("docker://localhost:5000/a/b:x.Y", "docker://localhost:5000/a/b:x.Y", "localhost:5000"),
            ("docker://[::1]:5000/b", "docker://[::1]:5000/b:latest", "[::1]:5000"),
            ("docker://Host/b", "docker://Host/b:latest", "Host"),
            ("docker+http://ghcr.io/a/b__c--d.e:1", "docker+http://ghcr.io/a/b__c--d.e:1", "ghcr.io"),
        ] {
            assert!(ImageName::is_one(text));
            let name = ImageName::parse(text).unwrap();
            assert_eq!((name.to_string().as_str(), name.host()), (full, host), "{text}");
            assert_eq!(ImageName::parse(full).unwrap(), name);
        }
        // The digest decides.
        let name = ImageName::parse(&format!("docker://debian:12@{DIGEST}")).unwrap();
        assert_eq!(name.to_string(), format!("docker://docker.io/library/debian@{DIGEST}"));
        for (text, is) in [
            ("localhost:1", true),
            ("127.0.0.1", true),
            ("127.9.9.9:5", true),
            ("[::1]:2", true),
            ("localhost.x", false),
            ("10.0.0.1", false),
        ] {
            assert_eq!(ImageName::parse(&format!("docker://{text}/x")).unwrap().is_loopback(), is, "{text}");
        }
    }

    #[test]
    fn what_is_no_name_leads_nowhere() {
        let long = format!("docker://{}", "a".repeat(300));
        for text in [
            "debian",
            "docker://",
            "docker:///x",
            "docker://x/",
            "docker://x//y",
            "docker://../x",
            "docker://localhost/../x",
            "docker://localhost:99999/x",
            "docker://localhost:/x",
            "docker://u@h.example/x",
            "docker://h.example/x?y",
            "docker://h.example/X",
            "docker://x:",
            "docker://x:.y",
            "docker://x:a/b",
            "docker://x@sha256:abc",
            "docker://x@md5:abc",
            "docker://x_",
            "docker://x___y",
            "docker://x%2e",
            "docker://x y",
            "docker://[::1/x",
            "docker://-h.example/x",
            "docker://\u{1b}[0m",
            &long,
        ] {
            let line = ImageName::parse(text).unwrap_err().to_string();
            assert!(!line.contains(char::is_control), "{line}");
        }
    }
}
