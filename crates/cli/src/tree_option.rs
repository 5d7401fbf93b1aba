//! Parses `--tree SRC[:DST][,OPT]...`: one tree of a run.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;

use inarch_jobs::cache::{ImageName, Location};
use inarch_jobs::run::{Way, WireOptions};
use inarch_jobs::share::{Changes, Refused};
use inarch_tree::select::OwnerMap;

use crate::size;

/// A parsed `--tree`.
#[derive(Clone, Debug)]
pub struct TreeOption {
    /// The source, as text.
    pub source: OsString,
    /// The guest's path; the same path if `None`.
    pub destination: Option<PathBuf>,
    /// `ro`: the guest cannot write; otherwise its writes go to an overlay.
    pub read_only: bool,
    /// `rw`: the guest's writes reach the directory itself.
    pub write_through: bool,
    /// `nosuid`, `nodev`: what the guest cannot leave in the directory.
    pub refused: Refused,
    /// `-v`: share the directory live.
    pub live: bool,
    /// `via=`; the run's own if `None`.
    pub via: Option<Way>,
    /// `msize=`, `queues=`: how requests travel.
    pub wire: WireOptions,
    /// `changes=`: who may change a live directory.
    pub changes: Option<Changes>,
    /// `writeback`: the guest's kernel collects writes before it sends them.
    pub writeback: bool,
    /// `hold`: files are held, so that the host's changes do not matter.
    pub hold: bool,
    /// `owner=`; the run's own if `None`.
    pub owner: Option<OwnerMap>,
    /// `exclude=GLOB`, repeatable.
    pub exclude: Vec<String>,
}

/// Parses `SRC[:DST][,OPT]...`; `\:`, `\,` and `\\` are the characters themselves.
pub fn parse(text: &OsStr) -> Result<TreeOption, String> {
    let shown = text.to_string_lossy();
    let mut parts = split(text.as_bytes(), b',').into_iter();
    let paths = parts.next().unwrap_or_default();
    let mut paths: Vec<OsString> =
        split(&paths, b':').into_iter().map(|path| OsString::from_vec(unescape(path))).collect();
    let source = source(&mut paths).ok_or_else(|| format!("'{shown}' names no source; write SRC[:DST][,OPT]"))?;
    let mut paths = paths.into_iter().map(PathBuf::from);
    let destination = paths.next();
    // As for other programs: SRC:DST:ro, SRC:DST:nosuid,nodev.
    let access = paths.next().map(|word| word.into_os_string());
    let is_known = |word: &OsString| ["ro", "read-only", "rw", "nosuid", "nodev"].iter().any(|known| word == known);
    if let Some(word) = access.as_ref().filter(|word| !is_known(word) && !word.as_bytes().contains(&b'/')) {
        let word = word.display();
        return Err(format!(
            "'{shown}': '{word}' is none of ro, rw, nosuid and nodev; write '\\:' for a ':' that belongs to a path"
        ));
    }
    if paths.next().is_some() || access.as_ref().is_some_and(|word| !is_known(word)) {
        return Err(format!("'{shown}' has more than one ':'; write '\\:' for one that belongs to a path"));
    }
    if let Some(destination) = &destination
        && !destination.is_absolute()
    {
        return Err(format!("'{}' is not an absolute path to mount a tree at", destination.display()));
    }
    let mut option = TreeOption {
        source,
        destination,
        read_only: false,
        write_through: false,
        refused: Refused::default(),
        live: false,
        via: None,
        wire: WireOptions::default(),
        changes: None,
        writeback: false,
        hold: false,
        owner: None,
        exclude: Vec::new(),
    };
    let mut said: Option<String> = None;
    for part in access.map(OsString::into_vec).into_iter().chain(parts) {
        let part = String::from_utf8(unescape(part)).map_err(|_| format!("an option in '{shown}' is not UTF-8"))?;
        let writes = |part: &str| part == "rw";
        if ["ro", "read-only", "rw"].contains(&&part[..])
            && let Some(other) = said.replace(part.clone()).filter(|other| writes(other) != writes(&part))
        {
            return Err(format!("'{other}' and '{part}' in '{shown}' exclude each other: take one of them"));
        }
        match part.split_once('=') {
            None if part == "ro" || part == "read-only" => (option.read_only, option.write_through) = (true, false),
            None if part == "overlay" => (option.read_only, option.write_through) = (false, false),
            None if part == "rw" => (option.read_only, option.write_through) = (false, true),
            None if part == "nosuid" => option.refused.privileges = true,
            None if part == "nodev" => option.refused.devices = true,
            None if part == "writeback" => option.writeback = true,
            None if part == "hold" => option.hold = true,
            Some(("via", way)) => option.via = Some(via(way)?),
            Some(("msize" | "queues", _)) => wire_option(&part)?.set(&mut option.wire),
            Some(("changes", by)) => option.changes = Some(changes(by)?),
            Some(("owner", map)) => option.owner = Some(map.parse().map_err(|error| format!("{error}"))?),
            Some(("exclude", glob)) => option.exclude.push(glob.to_owned()),
            _ => {
                return Err(format!(
                    "'{part}' in '{shown}' is not an option of a tree: ro, overlay, rw, nosuid, nodev, via=, msize=, queues=, \
                     changes=, writeback, hold, owner=, exclude="
                ));
            }
        }
    }
    Ok(option)
}

/// Parses `SRC:DST[:ro|:rw]` like docker's `-v`: the directory itself, live.
pub fn volume(text: &OsStr) -> Result<TreeOption, String> {
    let shown = text.to_string_lossy();
    let option = parse(text)?;
    if option.destination.is_none() {
        return Err(format!("'{shown}' does not say where the guest sees it; write SRC:DST[:ro]"));
    }
    if option.via.is_some_and(|via| !via.is_live()) {
        return Err(format!("'{shown}': a volume is the directory itself, and no disk; use --tree for a snapshot"));
    }
    Ok(TreeOption { live: true, write_through: !option.read_only, ..option })
}

/// The names of all transports.
pub const WAYS: [&str; 7] = ["auto", "ext4", "erofs", "squashfs", "virtiofs", "9p", "tar"];

/// Parses a transport: a file system's name, or `auto`.
pub fn via(text: &str) -> Result<Way, String> {
    let known = WAYS.join(", ");
    match text {
        "auto" => Ok(Way::Auto),
        "virtiofs" => Ok(Way::Virtiofs),
        "9p" => Ok(Way::Ninep),
        "tar" => Ok(Way::Tar),
        text => {
            text.parse().map(Way::Disk).map_err(|_| format!("'{text}' is not a transport of trees; these are: {known}"))
        }
    }
}

/// An option of how requests travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WireOption {
    /// `msize=BYTES`, of 9P.
    Msize(u32),
    /// `queues=N`, of virtiofs.
    Queues(u16),
}

impl WireOption {
    /// Sets it.
    pub fn set(self, options: &mut WireOptions) {
        match self {
            WireOption::Msize(bytes) => options.msize = Some(bytes),
            WireOption::Queues(count) => options.queues = Some(count),
        }
    }
}

/// Parses `msize=BYTES` or `queues=N`, with the limits that `serve 9p` and `serve virtiofs` have.
pub fn wire_option(text: &str) -> Result<WireOption, String> {
    match text.split_once('=') {
        Some(("msize", bytes)) => match u32::try_from(size::parse(bytes)?) {
            Ok(bytes @ 4096..=0x10_0000) => Ok(WireOption::Msize(bytes)),
            _ => Err(format!("'{bytes}': a message of 9P has 4096 to 1048576 bytes")),
        },
        Some(("queues", count)) => match count.parse() {
            Ok(count @ 1..=64) => Ok(WireOption::Queues(count)),
            _ => Err(format!("'{count}': virtiofs has 1 to 64 request queues")),
        },
        _ => Err(format!("'{text}' is not an option of a way; these are: msize=BYTES of 9p, queues=N of virtiofs")),
    }
}

/// Parses who may change a live directory.
fn changes(text: &str) -> Result<Changes, String> {
    match text {
        "guest" => Ok(Changes::Guest),
        "host" => Ok(Changes::Host),
        "none" => Ok(Changes::None),
        _ => Err(format!("'{text}' may not change a tree; say changes=guest, changes=host or changes=none")),
    }
}

/// Takes the source off the front of the parts between colons. The source of a container image, `oci:PATH[:REFERENCE]`,
/// has up to three parts; the slash distinguishes a destination from a reference. So does a URL, which may have a port. The destination follows it
/// behind a colon or, as it has colons itself, behind '='.
fn source(parts: &mut Vec<OsString>) -> Option<OsString> {
    let is_reference = |part: &OsString| !part.as_bytes().starts_with(b"/");
    let count = match &parts[..] {
        // A port, a tag and a digest have colons; only a destination begins with a slash.
        [first, second, rest @ ..] if is_image(first, second) => {
            2 + rest.iter().take_while(|part| is_reference(part)).count()
        }
        [first, _, third, ..] if first == "oci" && is_reference(third) => 3,
        [first, _, ..] if first == "oci" => 2,
        [first, second, third, ..] if is_url(first, second) && is_reference(third) => 3,
        [first, second, ..] if is_url(first, second) => 2,
        _ => 1,
    };
    let mut source = parts.drain(..count.min(parts.len())).collect::<Vec<_>>().join(OsStr::new(":"));
    if let Some((url, destination)) = source
        .to_str()
        .filter(|text| Location::is_one(text) || ImageName::is_one(text))
        .and_then(|text| text.rsplit_once("=/"))
    {
        parts.insert(0, format!("/{destination}").into());
        source = url.into();
    }
    Some(source).filter(|source| !source.is_empty())
}

/// Whether the parts around a colon begin a URL of a remote.
fn is_url(scheme: &OsString, rest: &OsString) -> bool {
    let text = [scheme.as_os_str(), rest.as_os_str()].join(OsStr::new(":"));
    text.to_str().is_some_and(Location::is_one)
}

/// Whether the parts around a colon begin the name of an image of a registry.
fn is_image(scheme: &OsString, rest: &OsString) -> bool {
    let text = [scheme.as_os_str(), rest.as_os_str()].join(OsStr::new(":"));
    text.to_str().is_some_and(ImageName::is_one)
}

/// Splits at every `separator` without a backslash before it; escapes are kept.
pub fn split(text: &[u8], separator: u8) -> Vec<Vec<u8>> {
    let mut parts = vec![Vec::new()];
    let mut bytes = text.iter().copied();
    while let Some(byte) = bytes.next() {
        let part = parts.last_mut().expect("there is always a part");
        if byte == separator {
            parts.push(Vec::new());
        } else {
            part.push(byte);
            if byte == b'\\' {
                part.extend(bytes.next());
            }
        }
    }
    parts
}

/// Text without the escapes of `\\:`, `\\,` and `\\\\`.
pub fn unescape(text: Vec<u8>) -> Vec<u8> {
    let mut plain = Vec::with_capacity(text.len());
    let mut bytes = text.into_iter();
    while let Some(byte) = bytes.next() {
        match (byte, bytes.as_slice().first()) {
            (b'\\', Some(next @ (b':' | b',' | b'\\'))) => {
                plain.push(*next);
                bytes.next();
            }
            _ => plain.push(byte),
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tree_is_a_source_a_destination_and_options() {
        let tree = parse(OsStr::new("/a/b:/mnt/c,ro,owner=map,exclude=*.o,exclude=target")).unwrap();
        assert_eq!(tree.source, OsString::from("/a/b"));
        assert_eq!(tree.destination, Some(PathBuf::from("/mnt/c")));
        assert!(tree.read_only && tree.owner.is_some());
        assert_eq!(tree.exclude, ["*.o", "target"]);
        let plain = parse(OsStr::new("src")).unwrap();
        assert!(plain.destination.is_none() && !plain.hold && parse(OsStr::new("src,ro,hold")).unwrap().hold);
        for same in ["src:/x,ro,read-only", "src:/x:read-only", "src,read-only", "src:/x:read-only,ro"] {
            assert!(parse(OsStr::new(same)).unwrap().read_only, "{same}");
        }
        assert!(!volume(OsStr::new("a:/b:read-only")).unwrap().write_through);
        for both in ["src:/x,ro,rw", "src:/x:ro,rw", "src,rw,read-only", "src:/x:read-only,rw"] {
            assert!(parse(OsStr::new(both)).unwrap_err().contains("exclude each other"), "{both}");
        }
    }

    #[test]
    fn a_url_has_colons_of_its_own() {
        for (text, source, destination) in [
            ("s3://b/x:/mnt", "s3://b/x", Some("/mnt")),
            ("s3://b/x=/mnt,ro", "s3://b/x", Some("/mnt")),
            ("https://h:8443/x:/mnt", "https://h:8443/x", Some("/mnt")),
            ("https://h:8443/x=/mnt", "https://h:8443/x", Some("/mnt")),
            ("file:///a/b:/mnt:ro", "file:///a/b", Some("/mnt")),
            ("gs://b", "gs://b", None),
            ("docker://debian:12:/mnt:ro", "docker://debian:12", Some("/mnt")),
            ("docker://localhost:5000/a/b:12=/mnt", "docker://localhost:5000/a/b:12", Some("/mnt")),
            ("docker://[::1]:5000/a@sha256:ab:/mnt", "docker://[::1]:5000/a@sha256:ab", Some("/mnt")),
            ("docker+http://h:1/a:ro", "docker+http://h:1/a:ro", None),
            ("a=/b:/c", "a=/b", Some("/c")),
        ] {
            let tree = parse(OsStr::new(text)).unwrap();
            assert_eq!((tree.source, tree.destination), (source.into(), destination.map(PathBuf::from)), "{text}");
        }
    }

    #[test]
    fn a_live_tree_says_who_changes_it() {
        let tree = parse(OsStr::new("a,rw,via=virtiofs,changes=guest")).unwrap();
        assert!(tree.write_through && !tree.read_only);
        assert_eq!((tree.via, tree.changes), (Some(Way::Virtiofs), Some(Changes::Guest)));
        assert!(!parse(OsStr::new("a,rw,overlay")).unwrap().write_through);
        assert!(parse(OsStr::new("a,rw,changes=guest,writeback")).unwrap().writeback && !tree.writeback);
    }

    #[test]
    fn requests_travel_as_asked() {
        let of = |text: &str| parse(OsStr::new(text)).map(|tree| (tree.wire.msize, tree.wire.queues));
        assert_eq!(of("a,via=9p,msize=128K"), Ok((Some(128 << 10), None)));
        assert_eq!(of("a:/b,via=virtiofs,queues=4"), Ok((None, Some(4))));
        for wrong in ["a,msize=1", "a,msize=2M", "a,msize=x", "a,queues=0", "a,queues=65", "a,queues=-1"] {
            assert!(of(wrong).is_err(), "{wrong}");
        }
        assert!(wire_option("depth=3").unwrap_err().contains("msize=BYTES"));
        assert_eq!(parse(OsStr::new("a,via=9p,msize=5000,queues=2")).unwrap().wire.to_string(), ",msize=5000,queues=2");
    }

    #[test]
    fn what_a_guest_cannot_leave_is_said_as_mounts_have_it() {
        let refused = |text: &str| parse(OsStr::new(text)).map(|tree| (tree.refused.privileges, tree.refused.devices));
        assert_eq!(refused("a,rw"), Ok((false, false)));
        assert_eq!(refused("a,rw,nosuid"), Ok((true, false)));
        assert_eq!(refused("a:/b:nodev,rw"), Ok((false, true)));
        let volume = volume(OsStr::new("a:/b:nosuid,nodev")).unwrap();
        assert!(volume.write_through && volume.refused == Refused { privileges: true, devices: true });
    }

    #[test]
    fn docker_s_words_are_understood() {
        let tree = parse(OsStr::new("a:/b:ro,exclude=x")).unwrap();
        assert!(tree.read_only && !tree.write_through && tree.exclude == ["x"]);
        assert!(parse(OsStr::new("a:/b:rw")).unwrap().write_through);
        let write = volume(OsStr::new("a:/b")).unwrap();
        assert!(write.live && write.write_through && !write.read_only);
        let read = volume(OsStr::new("a:/b:ro")).unwrap();
        assert!(read.live && !read.write_through && read.read_only);
        for wrong in ["a", "a:b", "a:/b:rx", "a:/b:ro:rw", "a:/b,via=ext4"] {
            assert!(volume(OsStr::new(wrong)).is_err(), "{wrong}");
        }
    }

    #[test]
    fn escapes_keep_colons_and_commas_in_paths() {
        let tree = parse(OsStr::new(r"/a\:b\,c\\d:/m")).unwrap();
        assert_eq!(tree.source, OsString::from(r"/a:b,c\d"));
    }

    #[test]
    fn a_container_image_keeps_its_colons() {
        let parse = |text: &str| {
            let tree = parse(OsStr::new(text)).unwrap();
            (tree.source.into_string().unwrap(), tree.destination)
        };
        assert_eq!(parse("oci:dir"), ("oci:dir".to_owned(), None));
        assert_eq!(parse("oci:dir:/d"), ("oci:dir".to_owned(), Some("/d".into())));
        assert_eq!(parse("oci:dir:tag"), ("oci:dir:tag".to_owned(), None));
        assert_eq!(parse("oci:dir:tag:/d,via=erofs"), ("oci:dir:tag".to_owned(), Some("/d".into())));
    }

    #[test]
    fn wrong_trees_are_refused_with_a_reason() {
        for (text, reason) in [
            ("", "no source"),
            (":/x", "no source"),
            ("a:b", "absolute"),
            ("a:/b:/c", "more than one"),
            ("a,rx", "'rx'"),
            ("a,via=nfs", "'nfs'"),
            ("oci:a:b:c:/d", "more than one"),
            ("a,owner=who", "who"),
            ("a,changes=me", "'me'"),
        ] {
            let error = parse(OsStr::new(text)).unwrap_err();
            assert!(error.contains(reason), "{text}: {error}");
        }
    }
}
