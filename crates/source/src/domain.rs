//! `libvirt:DOMAIN[:VOLUME][:/PATH]`: the disks of a virtual machine that libvirt knows, by its description in XML.
//!
//! 1. `virsh dumpxml` gives the description. Where there is no virsh, or it knows no such domain, libvirt's own files are read: those of the user,
//!    then those of the system.
//! 2. A confined thread reads it. Entities and document types are refused, and nothing in it is expanded.
//! 3. Disks that are files or block devices are taken, with the format that the description says, which is `raw` if it says none, as for libvirt.

use std::ffi::OsStr;
use std::fs::File;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use inarch_lifecycle::shown;
use roxmltree::{Document, Node, ParsingOptions};

use super::{Container, DiskFile, DiskPart, ImageFormat, Source, SourceError, disk, parse};

/// The most bytes of a description.
const MOST_BYTES: u64 = 4 << 20;
/// The most nodes of it.
const MOST_NODES: u32 = 200_000;
/// The most attributes and namespace declarations in it. Each is compared with others, so many of them would take
/// hours.
const MOST_ATTRIBUTES: usize = 20_000;
const MOST_NAMESPACES: usize = 64;
/// The most disks of a domain.
const MOST_DISKS: usize = 256;
/// The most images above each other.
const MOST_BACKING: usize = 32;
/// Where libvirt describes the domains of the system.
const OF_THE_SYSTEM: &str = "/etc/libvirt/qemu";

/// A virtual machine that libvirt knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Domain {
    /// Its name.
    pub name: String,
    /// Lines about it that the user should read: what of it is not read, and why.
    pub notes: Vec<String>,
}

/// What a description says.
#[derive(Debug, PartialEq, Eq)]
struct Described {
    is_running: bool,
    /// The disks in the order of the guest's names for them.
    disks: Vec<DiskFile>,
    /// The disks that are not read.
    left_out: Vec<String>,
}

/// The source that follows `libvirt:`.
pub(super) fn source(text: &[u8]) -> Result<Source, SourceError> {
    let (name, rest) = text
        .iter()
        .position(|byte| *byte == b':')
        .map_or((text, None), |colon| (text.get(..colon).unwrap_or_default(), text.get(colon + 1..)));
    let name = String::from_utf8_lossy(name).into_owned();
    let fail = |reason: String| SourceError::Domain { name: name.clone(), reason };
    if name.is_empty() || name.contains(['/', '\0']) || name.starts_with('.') {
        return Err(fail("it is no name of a domain".to_owned()));
    }
    let xml = description(&name).map_err(fail)?;
    let described = parse(|_| describe(&xml)).map_err(Box::new)?.map_err(fail)?;
    let Described { is_running, disks, left_out: mut notes } = described;
    if is_running {
        notes.insert(
            0,
            "the domain is running, so what is read may be of different times; a snapshot is not".to_owned(),
        );
    }
    let mut disks = disks.into_iter();
    let Some(DiskFile { path, format, with }) = disks.next() else {
        let why = notes.first().map_or_else(String::new, |first| format!(": {first}"));
        return Err(fail(format!("it has no disk that can be read{why}")));
    };
    let (which, within) = rest.map_or_else(|| (super::Which::Auto, PathBuf::new()), disk::parts);
    let domain = Some(Domain { name, notes });
    let part = DiskPart { which, within, format, with, others: disks.collect(), domain, ..DiskPart::default() };
    Ok(Source::Disk { path, part: Box::new(part) })
}

/// The description of a domain; the error says where it was looked for.
fn description(name: &str) -> Result<String, String> {
    let by_virsh = virsh(name);
    if let Ok(Some(text)) = by_virsh {
        return Ok(text);
    }
    let home = std::env::var_os("HOME").filter(|home| !home.is_empty()).map(|home| Path::new(&home).join(".config"));
    let configured = std::env::var_os("XDG_CONFIG_HOME").map(PathBuf::from).filter(|path| path.is_absolute());
    let of_the_user = configured.or(home).map(|configured| configured.join("libvirt/qemu"));
    let directories = of_the_user.into_iter().chain([PathBuf::from(OF_THE_SYSTEM)]);
    let mut looked = Vec::new();
    for directory in directories {
        let path = directory.join(format!("{name}.xml"));
        match File::open(&path) {
            Ok(file) => return text(file).map_err(|error| format!("{}: {error}", shown(&path))),
            Err(error) => looked.push(format!("{}: {error}", shown(&path))),
        }
    }
    let by_virsh = match by_virsh {
        Err(said) => format!("virsh: {said}"),
        Ok(_) => "there is no virsh".to_owned(),
    };
    Err(format!("its description is not found: {by_virsh}; {}", looked.join("; ")))
}

fn text(file: impl Read) -> Result<String, String> {
    let mut bytes = Vec::new();
    file.take(MOST_BYTES + 1).read_to_end(&mut bytes).map_err(|error| error.to_string())?;
    if bytes.len() as u64 > MOST_BYTES {
        return Err("it is longer than any description of a domain".to_owned());
    }
    String::from_utf8(bytes).map_err(|_| "it is no text in UTF-8".to_owned())
}

/// The description that virsh prints, without the right to change anything; `None` if there is no virsh.
fn virsh(name: &str) -> Result<Option<String>, String> {
    let mut command = Command::new("virsh");
    command.args(["--readonly", "--quiet", "dumpxml"]).arg(format!("--domain={name}"));
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let Ok(mut child) = command.spawn() else { return Ok(None) };
    // While one pipe is read, no more than a line is written to the other.
    let said = child.stdout.take().map_or_else(|| Ok(String::new()), text);
    let complaint = child.stderr.take().map_or_else(|| Ok(String::new()), text).unwrap_or_default();
    let ended = child.wait().map_err(|error| error.to_string())?;
    if ended.success() {
        return said.map(Some);
    }
    let line = complaint.lines().find(|line| !line.trim().is_empty()).unwrap_or("it failed");
    Err(line.trim().trim_start_matches("error: ").escape_debug().to_string())
}

/// Reads a description.
fn describe(xml: &str) -> Result<Described, String> {
    let has_many = |what: &str, most| xml.match_indices(what).nth(most).is_some();
    if has_many("=", MOST_ATTRIBUTES) || has_many("xmlns", MOST_NAMESPACES) {
        return Err("its description has more attributes than any of a domain".to_owned());
    }
    let options = ParsingOptions { allow_dtd: false, nodes_limit: MOST_NODES, ..ParsingOptions::default() };
    let document = Document::parse_with_options(xml, options)
        .map_err(|error| format!("its description cannot be understood: {error}"))?;
    let domain = document.root_element();
    if !domain.has_tag_name("domain") {
        return Err("its description is none of a domain".to_owned());
    }
    let is_running = domain.attribute("id").is_some_and(|id| id.parse::<i64>().is_ok_and(|id| id >= 0));
    let devices = child(domain, "devices").into_iter().flat_map(|devices| devices.children());
    let (mut disks, mut left_out) = (Vec::new(), Vec::new());
    for disk in devices.filter(|node| node.has_tag_name("disk")) {
        let device = child(disk, "target").and_then(|target| target.attribute("dev")).unwrap_or("disk");
        // Discs and floppies are no part of the guest.
        if matches!(disk.attribute("device"), Some("cdrom" | "floppy")) {
            continue;
        }
        if disks.len() >= MOST_DISKS {
            return Err(format!("it has more than {MOST_DISKS} disks"));
        }
        match of_disk(disk) {
            Ok(file) => disks.push((device, file)),
            Err(why) => left_out.push(format!("its disk {} is left out: {why}", shown(Path::new(device)))),
        }
    }
    disks.sort_by_key(|(device, _)| (device.len(), *device));
    Ok(Described { is_running, disks: disks.into_iter().map(|(_, file)| file).collect(), left_out })
}

/// Reads a description as `libvirt:DOMAIN` does, for tests with arbitrary text. Returns how many of its disks can be
/// read.
///
/// # Errors
/// It does not describe a domain.
pub fn read_description(xml: &str) -> Result<usize, String> {
    describe(xml).map(|described| described.disks.len())
}

fn child<'a, 'b>(node: Node<'a, 'b>, name: &str) -> Option<Node<'a, 'b>> {
    node.children().find(|child| child.has_tag_name(name))
}

/// The file of a disk, and its backing files; the error says why it cannot be read.
fn of_disk(disk: Node<'_, '_>) -> Result<DiskFile, String> {
    let path = file_of(disk)?;
    let format = child(disk, "driver").and_then(|driver| driver.attribute("type"));
    let mut with = Vec::new();
    let mut below = child(disk, "backingStore");
    while let Some(store) = below.filter(|_| with.len() < MOST_BACKING) {
        // The last one is empty.
        let Some(file) = child(store, "source").map(|_| file_of(store)) else { break };
        with.push(file.map_err(|why| format!("an image that it is a difference to cannot be read: {why}"))?);
        below = child(store, "backingStore");
    }
    Ok(DiskFile { path, format: Some(format_of(format.unwrap_or("raw"))?), with })
}

/// The file or the device in the source of a disk or of what is below one.
fn file_of(node: Node<'_, '_>) -> Result<PathBuf, String> {
    let source = child(node, "source");
    let of = |name: &str| source.and_then(|source| source.attribute(name)).filter(|value| !value.is_empty());
    let path = match node.attribute("type") {
        Some("file") => of("file"),
        Some("block") => of("dev"),
        Some("network") => {
            let (protocol, name) = (of("protocol").unwrap_or("a network"), of("name").unwrap_or_default());
            return Err(format!(
                "it is on {} ({name:?}), and only files and block devices are read",
                protocol.escape_debug()
            ));
        }
        Some("volume") => {
            let (pool, volume) = (of("pool").unwrap_or_default(), of("volume").unwrap_or_default());
            return Err(format!(
                "it is the volume {volume:?} of the storage pool {pool:?}; 'virsh vol-path' tells its file, which can be named"
            ));
        }
        other => return Err(format!("disks of the type {:?} are not read", other.unwrap_or_default())),
    };
    let path = path.map(|path| Path::new(OsStr::from_bytes(path.as_bytes()))).ok_or("it names no file")?;
    if path.is_absolute() { Ok(path.to_owned()) } else { Err(format!("{:?} is no whole path", path)) }
}

/// The format that QEMU has a name for.
fn format_of(name: &str) -> Result<ImageFormat, String> {
    match name {
        // The name of VHD from when Virtual PC had it.
        "vpc" => Ok(ImageFormat::Container(Container::Vhd)),
        name => name.parse(),
    }
}

#[cfg(test)]
mod tests;
