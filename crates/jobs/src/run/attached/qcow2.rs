//! [`Qcow2Image`]: a qcow2 image that QEMU's own tool writes to. This process has it locked, and the tool opens no other file, whatever the image
//! names.

use std::ffi::OsString;
use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::process::{Command, Stdio};

use inarch_lifecycle::PathError;
use inarch_vm::image_disk;
use serde_json::{Value, json};

use super::{AttachError, AttachedDisk, OpenDisk, Purpose};

/// Bytes that one line of the tool's map has at most; an entry has about 130.
const LONGEST_LINE: u64 = 4096;

/// A part of a disk, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    pub start: u64,
    pub length: u64,
}

/// A qcow2 image that names no other file, locked for writing.
#[derive(Debug)]
pub(crate) struct Qcow2Image {
    disk: OpenDisk,
}

impl Qcow2Image {
    /// Opens the image at `path`.
    ///
    /// # Errors
    /// Its name or its bytes do not say that it is one, it names another file, another process uses it, or the tool is missing.
    pub(crate) fn open(path: &Path) -> Result<Qcow2Image, AttachError> {
        // A lack of the tool must not show when the image is half changed.
        run(Command::new("qemu-img").arg("--version"))
            .map_err(|error| PathError::new(path, "cannot be written to", error))?;
        let wanted = AttachedDisk { path: path.to_owned(), read_only: false, format: None, sector: None, seen: None };
        let disk = OpenDisk::open(&wanted, &[], 1, Purpose::Use)?;
        match disk.chain.first() {
            Some(top) if top.format == image_disk::ImageFormat::Qcow2 => Ok(Qcow2Image { disk }),
            _ => Err(AttachError::NoQcow2 { path: path.to_owned(), why: "it was one a moment ago" }),
        }
    }

    /// Whether anything is stored there, be it zeros.
    pub(crate) fn stores(&self, part: Part) -> io::Result<bool> {
        let (name, _files) = self.disk.of_machine(false)?.for_tool();
        let words = ["--output=json".to_owned(), format!("--start-offset={}", part.start)];
        let mut command = tool("map");
        command.args(words).arg(format!("--max-length={}", part.length)).arg(name);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::null()).spawn().map_err(missing)?;
        let mut found = Ok(false);
        if let Some(output) = child.stdout.take() {
            let mut output = BufReader::new(output);
            let mut line = Vec::new();
            // The map of an old image has millions of lines; the first one with data is enough.
            while let Ok(false) = found {
                line.clear();
                found = match io::Read::take(&mut output, LONGEST_LINE).read_until(b'\n', &mut line) {
                    Ok(0) => break,
                    Ok(_) => Ok(String::from_utf8_lossy(&line).contains("\"data\": true")),
                    Err(error) => Err(error),
                };
            }
        }
        if !matches!(found, Ok(false)) {
            let _ = child.kill();
        }
        let status = child.wait()?;
        match found {
            Ok(false) if !status.success() => Err(io::Error::other("qemu-img map cannot read it")),
            found => found,
        }
    }

    /// Makes a part read as zeros.
    pub(crate) fn clear(&self, part: Part) -> io::Result<()> {
        if part.length == 0 || !self.stores(part)? {
            return Ok(());
        }
        let zeros = json!({ "driver": "null-co", "size": part.length, "read-zeroes": true });
        self.convert(&zeros, part, &[])
    }

    /// Writes `part` of a file to `at`, its zeros and holes too.
    pub(crate) fn put(&self, file: &File, part: Part, at: u64) -> io::Result<()> {
        self.convert(&part_of(file, part), Part { start: at, length: part.length }, &[])
    }

    /// The same where all is zeros: those of the file are left out.
    pub(crate) fn fill(&self, file: &File, part: Part, at: u64) -> io::Result<()> {
        self.convert(&part_of(file, part), Part { start: at, length: part.length }, &["--target-is-zero"])
    }

    /// The image's file.
    pub(crate) fn file(&self) -> io::Result<File> {
        match self.disk.chain.first() {
            Some(top) => top.image.file.try_clone(),
            None => Err(io::ErrorKind::NotFound.into()),
        }
    }

    fn convert(&self, source: &Value, to: Part, options: &[&str]) -> io::Result<()> {
        let (name, _files) = self.disk.of_machine(false)?.for_tool();
        let image: Value = serde_json::from_str(name.trim_start_matches("json:"))?;
        let target = json!({ "driver": "raw", "offset": to.start, "size": to.length, "file": image });
        // As it is, the tool would not wait for the host's disk.
        let words = ["-q", "-n", "-t", "writeback"].iter().chain(options).map(OsString::from);
        let ends = [source, &target].map(|node| OsString::from(format!("json:{node}")));
        run(tool("convert").args(words).args(ends))
    }

    /// Makes the disk longer.
    pub(super) fn lengthen(disk: &OpenDisk, bytes: u64) -> io::Result<()> {
        let (name, _files) = disk.of_machine(false)?.for_tool();
        run(tool("resize").args(["-q", &name, &bytes.to_string()]))
    }
}

fn part_of(file: &File, part: Part) -> Value {
    let path = format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd());
    let file = json!({ "driver": "file", "filename": path, "read-only": true });
    json!({ "driver": "raw", "offset": part.start, "size": part.length, "file": file })
}

fn tool(verb: &str) -> Command {
    let mut command = Command::new("qemu-img");
    command.arg(verb).current_dir("/").stdin(Stdio::null());
    command
}

fn missing(error: io::Error) -> io::Error {
    match error.kind() {
        io::ErrorKind::NotFound => io::Error::other("qemu-img is missing: apt-get install qemu-utils"),
        _ => error,
    }
}

fn run(command: &mut Command) -> io::Result<()> {
    let output = command.output().map_err(missing)?;
    if output.status.success() {
        return Ok(());
    }
    let words = String::from_utf8_lossy(&output.stderr);
    let words = words.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("it did not say why");
    let words: String = words.trim().chars().map(|letter| if letter.is_control() { ' ' } else { letter }).collect();
    Err(io::Error::other(format!("qemu-img: {}", words.trim_start_matches("qemu-img: "))))
}
