//! Makes one archive of packages that are unpacked, and not yet configured: their files, and dpkg's own about them, as `dpkg
//! --unpack` would leave them. The architecture does not matter, as nothing of them runs.

use std::collections::{BTreeMap, HashSet};
use std::fs::File;
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use inarch_lifecycle::PathError;

use super::DebianError;
use super::member::{BLOCK, Member, each, pad};

/// Where dpkg has its files, below the root.
const ADMIN: &str = "var/lib/dpkg";

/// The most bytes of a control file, and of a configuration file.
const FILE_MAX: u64 = 64 << 20;

/// Directories that became links into /usr. Packages of Debian 12 still have files by these names, and none the links.
const MERGED: [&str; 7] = ["bin", "sbin", "lib", "lib32", "lib64", "libo32", "libx32"];

/// Writes the archive of the packages in `debs` to `to`, with these files in addition: path, mode and content.
///
/// # Errors
/// A package cannot be unpacked, or the archive not be written.
pub(super) fn write(debs: &[PathBuf], more: &[(&str, u32, Vec<u8>)], to: &Path) -> Result<(), DebianError> {
    let fail = |error: io::Error| PathError::new(to, "cannot write it", error);
    let mut stage = Stage {
        archive: BufWriter::with_capacity(1 << 20, File::create_new(to).map_err(fail)?),
        there: HashSet::new(),
        status: Vec::new(),
        time: 0,
        triggers: BTreeMap::new(),
    };
    for deb in debs {
        let unpack = |error: io::Error| DebianError::Unpack {
            package: deb.file_name().unwrap_or_default().to_string_lossy().into_owned(),
            reason: error.to_string(),
        };
        stage.add(deb).map_err(unpack)?;
    }
    stage.finish(more).map_err(fail)?;
    Ok(())
}

struct Stage {
    archive: BufWriter<File>,
    /// Directories and links that are written.
    there: HashSet<Vec<u8>>,
    /// dpkg's file of that name.
    status: Vec<u8>,
    /// The latest time of a file, which what is made here gets too.
    time: u64,
    /// dpkg's files of triggers, by name: the packages to be told.
    triggers: BTreeMap<String, String>,
}

impl Stage {
    fn add(&mut self, deb: &Path) -> io::Result<()> {
        let mut control: BTreeMap<String, (Vec<u8>, u32)> = BTreeMap::new();
        of_package(deb, "--ctrl-tarfile", |member, content| {
            if member.is_file() {
                let mode = if has_mode_of_program(&member) { 0o755 } else { 0o644 };
                control.insert(String::from_utf8_lossy(&member.name).into_owned(), (bounded(content)?, mode));
            }
            Ok(())
        })?;
        let (fields, _) = control.remove("control").ok_or_else(|| io::Error::other("it has no control file"))?;
        let fields = String::from_utf8_lossy(&fields).trim_end().to_owned();
        let field =
            |name: &str| fields.lines().find_map(|line| Some(line.strip_prefix(name)?.strip_prefix(':')?.trim()));
        let package = field("Package").ok_or_else(|| io::Error::other("it names no package"))?;
        let architecture = field("Architecture").unwrap_or("all");
        // dpkg's names of files, format 1 (its lib/dpkg/db-ctrl-access.c).
        let qualified =
            if field("Multi-Arch") == Some("same") { format!("{package}:{architecture}") } else { package.to_owned() };
        let conffiles = control.get("conffiles").map(|(text, _)| String::from_utf8_lossy(text).into_owned());
        let conffiles: Vec<String> = conffiles
            .iter()
            .flat_map(|text| text.lines())
            .filter(|line| line.starts_with('/'))
            .map(str::to_owned)
            .collect();
        let mut list = String::from("/.\n");
        of_package(deb, "--fsys-tarfile", |member, content| {
            if !member.name.is_empty() {
                list.push_str(&format!("/{}\n", String::from_utf8_lossy(&member.name)));
            }
            let is_conffile = || conffiles.iter().any(|path| path.as_bytes().get(1..) == Some(&member.name[..]));
            if member.is_file() && is_conffile() {
                // As dpkg leaves it, which compares both when it configures the package; and by its own name too, for
                // other packages.
                let bytes = bounded(content)?;
                let unconfigured = [&member.name[..], b".dpkg-new"].concat();
                self.put(member.renamed(unconfigured, Vec::new()), &mut bytes.as_slice())?;
                return self.put(member, &mut bytes.as_slice());
            }
            self.put(member, content)
        })?;
        control.insert("list".to_owned(), (list.into_bytes(), 0o644));
        for (name, (bytes, mode)) in &control {
            if name == "triggers" {
                self.take_triggers(&String::from_utf8_lossy(bytes), &qualified);
            }
            self.file(&format!("{ADMIN}/info/{qualified}.{name}"), *mode, bytes)?;
        }
        self.take_status(&fields, &conffiles);
        Ok(())
    }

    /// Adds the package to dpkg's status.
    fn take_status(&mut self, fields: &str, conffiles: &[String]) {
        let (first, rest) = fields.split_once('\n').unwrap_or((fields, ""));
        let mut text = format!("{first}\nStatus: install ok unpacked\n{rest}");
        if !conffiles.is_empty() {
            text.push_str("\nConffiles:");
            // dpkg's word for a file that was not there before (its `NEWCONFFILEFLAG`).
            conffiles.iter().for_each(|path| text.push_str(&format!("\n {path} newconffile")));
        }
        self.status.extend(text.trim_end().as_bytes());
        self.status.extend(b"\n\n");
    }

    /// Adds what the package wants to be told of (deb-triggers(5)) to dpkg's files for that (its lib/dpkg/trigdeferred.c and
    /// src/main/trigproc.c).
    fn take_triggers(&mut self, text: &str, package: &str) {
        for line in text.lines() {
            let mut words = line.split_whitespace();
            let end = match words.next() {
                Some("interest" | "interest-await") => "",
                Some("interest-noawait") => "/noawait",
                _ => continue,
            };
            match words.next() {
                Some(path) if path.starts_with('/') => {
                    let file = self.triggers.entry("File".to_owned()).or_default();
                    file.push_str(&format!("{path} {package}{end}\n"));
                }
                Some(name) if !name.contains('/') => {
                    self.triggers.entry(name.to_owned()).or_default().push_str(&format!("{package}{end}\n"));
                }
                _ => {}
            }
        }
    }

    fn finish(mut self, more: &[(&str, u32, Vec<u8>)]) -> io::Result<()> {
        for name in MERGED {
            let below = format!("usr/{name}");
            if self.there.contains(below.as_bytes()) && self.there.insert(name.into()) {
                self.put_new(&Member::symlink(name.as_bytes(), below.as_bytes(), self.time), &mut io::empty())?;
            }
        }
        for name in ["updates", "triggers", "alternatives", "parts"] {
            let path = format!("{ADMIN}/{name}");
            self.put(Member::directory(path.as_bytes(), 0o755, self.time), &mut io::empty())?;
        }
        let status = std::mem::take(&mut self.status);
        for (name, bytes) in [
            ("status", &status[..]),
            ("available", b""),
            ("diversions", b""),
            ("statoverride", b""),
            ("info/format", b"1\n"),
        ] {
            self.file(&format!("{ADMIN}/{name}"), 0o644, bytes)?;
        }
        for (name, text) in std::mem::take(&mut self.triggers) {
            self.file(&format!("{ADMIN}/triggers/{name}"), 0o644, text.as_bytes())?;
        }
        for (path, mode, content) in more {
            self.file(path, *mode, content)?;
        }
        self.archive.write_all(&[0; 2 * BLOCK])?;
        self.archive.flush()
    }

    fn file(&mut self, path: &str, mode: u32, mut bytes: &[u8]) -> io::Result<()> {
        self.put_new(&Member::file(path.as_bytes(), mode, bytes.len() as u64, self.time), &mut bytes)
    }

    /// Writes a member of a package, below /usr if its directory is merged into that.
    fn put(&mut self, member: Member, content: &mut dyn Read) -> io::Result<()> {
        let is_link = member.kind() == b'2';
        let is_merged = |name: &[u8]| MERGED.iter().any(|merged| name == merged.as_bytes());
        let merged = |name: &[u8]| {
            let first = name.split(|byte| *byte == b'/').next().unwrap_or_default();
            if is_merged(first) { [b"usr/", name].concat() } else { name.to_owned() }
        };
        let itself = is_link && is_merged(&member.name);
        let name = if itself { member.name.clone() } else { merged(&member.name) };
        let link = if member.kind() == b'1' { merged(&member.link) } else { member.link.clone() };
        self.time = self.time.max(member.time());
        if (member.kind() == b'5' || itself) && !self.there.insert(name.clone()) {
            return Ok(());
        }
        self.put_new(&member.renamed(name, link), content)
    }

    fn put_new(&mut self, member: &Member, content: &mut dyn Read) -> io::Result<()> {
        member.write_header(&mut self.archive)?;
        let written = io::copy(content, &mut self.archive)?;
        if written != member.size {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        pad(written, &mut self.archive)
    }
}

/// Whether dpkg runs it.
fn has_mode_of_program(member: &Member) -> bool {
    [&b"preinst"[..], b"postinst", b"prerm", b"postrm", b"config"].contains(&&member.name[..])
}

fn bounded(content: &mut dyn Read) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    content.take(FILE_MAX + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > FILE_MAX {
        return Err(io::Error::other(format!("a control or configuration file has more than {} MiB", FILE_MAX >> 20)));
    }
    Ok(bytes)
}

/// Reads one of the two archives in a package.
fn of_package(deb: &Path, which: &str, take: impl FnMut(Member, &mut dyn Read) -> io::Result<()>) -> io::Result<()> {
    let mut command = Command::new("dpkg-deb");
    command.arg(which).arg(deb).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut child = command.spawn().map_err(|error| io::Error::new(error.kind(), format!("dpkg-deb: {error}")))?;
    let read = match child.stdout.take() {
        Some(output) => each(&mut BufReader::with_capacity(1 << 18, output), take),
        None => Err(io::ErrorKind::BrokenPipe.into()),
    };
    let status = child.wait()?;
    match read {
        Ok(()) if !status.success() => Err(io::Error::other("dpkg-deb says that it is damaged")),
        read => read,
    }
}
