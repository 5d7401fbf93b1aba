//! `inarch disk ls`, `cat`, `find`, `stat` and `cp`: files in an image.

use std::ffi::{OsStr, OsString};
use std::fs::Metadata;
use std::io::{self, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, ValueEnum};
use globset::GlobBuilder;
use inarch_jobs::appliance::{ApplianceRequest, Isolation, Target, look};
use inarch_jobs::guest::{Entry, Guest, GuestError};
use inarch_jobs::source::{FileKind, Source, SourceError};
use inarch_jobs::{Events, counted, shown};
use inarch_tree::{FileType, Timestamp};
use inarch_volume::Attributes;
use serde_json::{Value, json};

use super::machine::{isolation, tell};
use crate::columns::columns;
use crate::disk_options::{DiskOptions, FormatOption};
use crate::output::{answer, answer_with, complain};
use crate::say::time::{exact_moment, moment};
use crate::size;

/// What IMAGE may be, for the commands that look at disks.
macro_rules! disk_help {
    () => {
        "A disk image, or IMAGE:VOLUME, a volume of one: its number (2), device (/dev/sda2, /dev/vda2), LABEL=, UUID=, PARTLABEL= or PARTUUID=. VOLUME@SUBVOL is a Btrfs subvolume. libvirt:DOMAIN has all disks of a domain. Without a volume, the whole guest as its fstab has it."
    };
}

/// What IMAGE may be, for commands about whole disks.
pub const DISK_HELP: &str = disk_help!();
/// What IMAGE may be, for commands about files.
pub const IMAGE_HELP: &str = concat!(disk_help!(), " An archive will do too.");

/// Which image.
#[derive(Args, Debug)]
pub struct ImageArguments {
    /// The image
    #[arg(value_name = "IMAGE[:VOLUME]", help = IMAGE_HELP)]
    pub image: OsString,

    #[command(flatten)]
    pub format: FormatOption,

    /// What a disk image needs beside itself.
    #[command(flatten)]
    pub disk: DiskOptions,

    /// Read what can be read of a damaged image, and report the rest
    #[arg(long)]
    pub salvage: bool,
}

impl ImageArguments {
    /// What is named.
    pub fn source(&self) -> anyhow::Result<Source> {
        self.disk.source_in(&self.image, self.format)
    }

    /// The image's file system as a kernel mounts it, if this program has no reader of it.
    fn by_appliance(&self) -> anyhow::Result<Option<Guest>> {
        let Ok(Target { image, which, path }) = Target::parse(&self.image) else { return Ok(None) };
        if !path.as_os_str().is_empty() {
            return Ok(None);
        }
        let mut request = ApplianceRequest { with: self.disk.with.clone(), ..ApplianceRequest::new(image, which) };
        request.image.format = self.format.format;
        Ok(look(&request, Events::new(tell))?)
    }

    /// Opens it to read all of a directory, and says what is not there.
    pub fn open_all(&self) -> anyhow::Result<Guest> {
        let guest = self.open()?;
        self.tell(guest.notes());
        Ok(guest)
    }

    /// Opens it to read single files.
    pub fn open(&self) -> anyhow::Result<Guest> {
        let opened = self.source().and_then(|source| Ok(Guest::open(&source, self.salvage)?));
        let guest = match opened {
            Ok(guest) => guest,
            Err(error) => self.by_appliance()?.ok_or(error)?,
        };
        self.tell(guest.warnings());
        Ok(guest)
    }

    /// Tells what is not there, where something was not found.
    fn explain(&self, guest: &Guest, status: ExitCode) {
        if status != ExitCode::SUCCESS {
            self.tell(guest.notes());
        }
    }

    fn tell(&self, lines: &[String]) {
        lines.iter().for_each(|line| complain(format_args!("{}: {line}", shown(Path::new(&self.image)))));
    }
}

/// Options of `inarch disk ls`.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  inarch disk ls -l guest.img /etc
  inarch disk ls guest.qcow2:LABEL=home
  inarch disk find -l guest.img /etc            everything below a directory")]
#[command(disable_help_flag = true)]
pub struct LsArguments {
    #[command(flatten)]
    image: ImageArguments,

    /// Directories and files
    #[arg(value_name = "PATH", default_value = "/")]
    paths: Vec<PathBuf>,

    /// Show the type, permissions, owners, size and time of each
    #[arg(short)]
    long: bool,

    /// With -l, print sizes with units
    #[arg(short = 'h', conflicts_with = "json")]
    units: bool,

    /// Show names that begin with a dot, too; the default, accepted out of habit
    #[arg(short)]
    all: bool,

    /// Print JSON, an object on each line
    #[arg(long)]
    json: bool,

    /// Print help
    #[arg(long, action = clap::ArgAction::Help)]
    help: Option<bool>,
}

/// Options of `inarch disk cat`.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  inarch disk cat guest.img /etc/os-release
  inarch disk cat guest.qcow2:2 var/log/syslog | less
  inarch disk cat guest.img:/etc/os-release")]
pub struct CatArguments {
    #[command(flatten)]
    image: ImageArguments,

    /// The files; none if the image is IMAGE:/PATH
    #[arg(value_name = "PATH")]
    files: Vec<PathBuf>,
}

/// Options of `inarch disk find`.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  inarch disk find guest.img /etc --name '*.conf'
  inarch disk find guest.img --type f --size-above 100M -l")]
pub struct FindArguments {
    #[command(flatten)]
    image: ImageArguments,

    /// The directory to search
    #[arg(default_value = "/")]
    path: PathBuf,

    /// Only names that match GLOB
    #[arg(long, value_name = "GLOB")]
    name: Option<String>,

    /// Only files of this type
    #[arg(long = "type", value_name = "TYPE")]
    kind: Option<Kind>,

    /// Only files of more than SIZE bytes (4K, 100M)
    #[arg(long, value_name = "SIZE", value_parser = size::parse)]
    size_above: Option<u64>,

    /// Show the type, permissions, owners, size and time of each
    #[arg(short)]
    long: bool,

    /// End each path with a NUL, for xargs -0
    #[arg(short = '0', long, conflicts_with_all = ["long", "json"])]
    print0: bool,

    /// Print JSON, an object on each line
    #[arg(long)]
    json: bool,
}

/// A type of files, by find(1)'s letter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
#[value(rename_all = "lower")]
enum Kind {
    /// Regular file
    F,
    /// Directory
    D,
    /// Symbolic link
    L,
    /// Block device
    B,
    /// Character device
    C,
    /// FIFO
    P,
    /// Socket
    S,
}

/// Options of `inarch disk stat`.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  inarch disk stat guest.img /etc/passwd
  inarch disk stat --json guest.img /bin/su | jq .mode")]
pub struct StatArguments {
    #[command(flatten)]
    image: ImageArguments,

    /// The files; none if the image is IMAGE:/PATH
    #[arg(value_name = "PATH")]
    files: Vec<PathBuf>,

    /// Print JSON, an object on each line
    #[arg(long)]
    json: bool,
}

/// Options of `inarch disk cp`.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  inarch disk cp guest.img /etc/fstab .
  inarch disk cp guest.qcow2:LABEL=home /user ./user-of-guest
  inarch disk cp guest.img:/etc/fstab .         the same in the manner of docker cp
  inarch disk cp guest.img /etc/fstab /home/user copies/
  inarch disk cp site.conf guest.img:/etc       into the image

A directory is copied with everything in it: permissions, times, hard links, holes and extended attributes, and as root owners. Device files are copied \
out of an image only, by root. On this machine, what exists is not written over; in an image, a file of the same name is replaced.")]
pub struct CpArguments {
    #[command(flatten)]
    image: ImageArguments,

    /// Files and directories in the image, and at the end where they go: a directory, or for one of them a new name. After
    /// FILEs of this machine: IMAGE:/PATH, where they go
    #[arg(value_name = "PATH", required = true)]
    paths: Vec<PathBuf>,

    /// What stands between an image that is copied into and this machine: a process, or a virtual machine
    #[arg(long, value_name = "auto|process|vm", default_value = "auto", hide_possible_values = true, value_parser = isolation())]
    isolate: Isolation,
}

/// `inarch disk ls`.
pub fn ls(arguments: &LsArguments) -> anyhow::Result<ExitCode> {
    let guest = arguments.image.open()?;
    let (mut status, mut is_explained, mut is_first) = (ExitCode::SUCCESS, false, true);
    let mut paths: Vec<_> = arguments.paths.iter().collect();
    // As of ls(1): what is no directory stands before the first heading.
    if paths.len() > 1 && !arguments.json {
        paths.sort_by_cached_key(|path| guest.is_directory(path).is_ok_and(|is| is));
    }
    for path in paths {
        let mut entries = Vec::new();
        let listed = guest.list(path, |found| {
            match found {
                Ok(entry) => entries.push(entry),
                Err(line) => status = lost(&line),
            }
            Ok(())
        });
        // It may be where a file system is mounted that is not on the disk.
        if entries.is_empty() && !std::mem::replace(&mut is_explained, true) {
            arguments.image.tell(guest.notes());
        }
        if let Err(error) = listed {
            status = missing(error)?;
            continue;
        }
        // Which directory they are in: ls(1) has headings, and the paths of JSON are whole.
        if arguments.paths.len() > 1 && guest.is_directory(path)? {
            if arguments.json {
                for entry in &mut entries {
                    entry.path = path.join(OsStr::from_bytes(&entry.path)).into_os_string().into_vec();
                }
            } else {
                let gap = if is_first { "" } else { "\n" };
                answer(format!("{gap}{}:\n", shown(path)))?;
            }
        }
        is_first = false;
        match (arguments.json, arguments.long) {
            (true, _) => answer(entries.iter().map(|entry| as_json(entry).to_string() + "\n").collect::<String>())?,
            (false, true) => {
                let lines = entries.iter().map(|entry| line_of(entry, arguments.units));
                answer(columns(&lines.collect::<Vec<_>>(), &LONG_RIGHT))?;
            }
            (false, false) => answer(entries.iter().map(|entry| text(&entry.path) + "\n").collect::<String>())?,
        }
    }
    Ok(status)
}

/// The files that are named: by themselves, or with the image as IMAGE:/PATH.
fn named_files(image: &mut ImageArguments, files: &mut Vec<PathBuf>, verb: &str) -> anyhow::Result<()> {
    if files.is_empty() {
        let Some((own, path)) = split_path(&image.image) else {
            anyhow::bail!("no file is named: inarch disk {verb} {} PATH", shown(Path::new(&image.image)));
        };
        image.image = own;
        files.push(path);
    }
    Ok(())
}

/// `inarch disk cat`. A file that cannot be read is reported, and the others are printed.
pub fn cat(mut arguments: CatArguments) -> anyhow::Result<ExitCode> {
    named_files(&mut arguments.image, &mut arguments.files, "cat")?;
    let guest = arguments.image.open()?;
    let mut status = ExitCode::SUCCESS;
    for file in &arguments.files {
        let mut out = io::stdout().lock();
        match guest.read(file, |bytes| out.write_all(bytes)) {
            Ok(()) => {}
            // The reader has gone (`| head`), as it meant to.
            Err(GuestError::Output(error)) if error.kind() == io::ErrorKind::BrokenPipe => return Ok(status),
            Err(error @ GuestError::Output(_)) => return Err(error.into()),
            Err(error) => status = lost(&error.to_string()),
        }
    }
    arguments.image.explain(&guest, status);
    Ok(status)
}

/// The words of a command line, with the options of find(1) as `inarch disk find` has them: `-name` is `--name`.
pub fn with_options_of_find(mut words: Vec<OsString>) -> Vec<OsString> {
    const SAME: [&str; 3] = ["-name", "-type", "-print0"];
    if words.len() > 3 && words[1] == "disk" && words[2] == "find" {
        for word in words[3..].iter_mut().take_while(|word| *word != "--") {
            if let Some(option) = SAME.iter().find(|option| *word == **option) {
                *word = format!("-{option}").into();
            }
        }
    }
    words
}

/// `inarch disk find`.
pub fn find(arguments: &FindArguments) -> anyhow::Result<ExitCode> {
    let glob = |glob: &String| GlobBuilder::new(glob).build().map(|glob| glob.compile_matcher());
    let glob = arguments.name.as_ref().map(glob).transpose()?;
    let wanted = |path: &[u8], attributes: &Attributes| {
        let name = path.rsplit(|byte| *byte == b'/').next().unwrap_or(path);
        glob.as_ref().is_none_or(|glob| glob.is_match(std::ffi::OsStr::from_bytes(name)))
            && arguments.kind.is_none_or(|kind| attributes.file_type() == Some(kind.into()))
            && arguments.size_above.is_none_or(|size| attributes.size > size)
    };
    let guest = arguments.image.open_all()?;
    let mut status = ExitCode::SUCCESS;
    let mut searched = Ok(());
    let above = arguments.path.as_os_str().as_bytes();
    let above = above.strip_suffix(b"/").unwrap_or(above);
    answer_with(|out| {
        searched = guest.find(&arguments.path, &wanted, |found| {
            let mut entry = match found {
                Ok(entry) => entry,
                Err(line) => {
                    status = lost(&line);
                    return Ok(());
                }
            };
            entry.path = [above, b"/", &*entry.path].concat();
            let printed = if arguments.print0 {
                out.write_all(&entry.path).and_then(|()| out.write_all(b"\0"))
            } else if arguments.json {
                writeln!(out, "{}", as_json(&entry))
            } else if arguments.long {
                writeln!(out, "{}", long(&entry).join("  "))
            } else {
                writeln!(out, "{}", text(&entry.path))
            };
            printed.map_err(GuestError::Output)
        });
        // A reader that has gone (`| head`) is answered as usual.
        match std::mem::replace(&mut searched, Ok(())) {
            Err(GuestError::Output(error)) => Err(error),
            other => {
                searched = other;
                Ok(())
            }
        }
    })?;
    searched.map_or_else(missing, |()| Ok(status))
}

/// `inarch disk stat`.
pub fn stat(mut arguments: StatArguments) -> anyhow::Result<ExitCode> {
    named_files(&mut arguments.image, &mut arguments.files, "stat")?;
    let guest = arguments.image.open()?;
    let (mut printed, mut status) = (Vec::new(), ExitCode::SUCCESS);
    for file in &arguments.files {
        match guest.stat(file) {
            Ok(entry) if arguments.json => printed.push(as_json(&entry).to_string() + "\n"),
            Ok(entry) => printed.push(stated(&entry)),
            Err(error) => status = lost(&error.to_string()),
        }
    }
    answer(printed.join(if arguments.json { "" } else { "\n" }))?;
    arguments.image.explain(&guest, status);
    Ok(status)
}

/// `inarch disk cp`.
pub fn cp(mut arguments: CpArguments) -> anyhow::Result<ExitCode> {
    let is_in_image = |word: &OsStr| split_path(word).is_some();
    let Some(to) = arguments.paths.pop() else { anyhow::bail!("one place is missing") };
    let (first, mut paths) = (&*arguments.image.image, std::mem::take(&mut arguments.paths));
    if is_in_image(to.as_os_str()) {
        let files: Vec<_> = std::iter::once(first).chain(paths.iter().map(|path| path.as_os_str())).collect();
        // Of several files the first may be an image that is meant to be copied out of: the others lie in it then, not here.
        let is_from_image = files.iter().any(|file| is_in_image(file))
            || (paths.iter().any(|path| path.is_absolute()) && is_image(Path::new(first)));
        if is_from_image {
            anyhow::bail!(
                "{}: cp copies from an image to this machine or the other way; from image to image it takes two steps (to copy \
                 the file {} itself, name it alone)",
                shown(&to),
                shown(Path::new(first))
            );
        }
        let files: Vec<_> = files.into_iter().map(Path::new).collect();
        let CpArguments { image, isolate, .. } = &arguments;
        return super::copy_in::copy(&files, to.as_os_str(), image.format.format, &image.disk.with, *isolate);
    }
    if paths.is_empty() {
        // As with `docker cp`: IMAGE:/PATH TO.
        let Some((image, path)) = split_path(first) else {
            let (from, path) = (shown(Path::new(first)), shown(&to));
            anyhow::bail!(
                "one place is missing: 'inarch disk cp {from} {path} TO' copies out of {from}, 'inarch disk cp {from} {path}:/PATH' into {path}"
            );
        };
        arguments.image.image = image;
        paths.push(path);
    }
    if to == Path::new("-") {
        let (image, path) = (shown(Path::new(&arguments.image.image)), shown(&paths[0]));
        anyhow::bail!(
            "cp writes files: 'inarch disk cat {image} {path}' prints a file, 'inarch disk tar-out {image} {path} -' writes a \
             directory as an archive; ./- names a file"
        );
    }
    anyhow::ensure!(
        paths.len() == 1 || to.is_dir(),
        "{}: there is no such directory, as several files need",
        shown(&to)
    );
    let guest = arguments.image.open_all()?;
    let (mut files, mut bytes, mut status) = (0, 0, ExitCode::SUCCESS);
    for path in &paths {
        let report = match guest.copy_out(path, &to) {
            Ok(report) => report,
            Err(error @ GuestError::Exists { .. }) if paths.len() > 1 => {
                status = lost(&error.to_string());
                continue;
            }
            Err(error) => {
                status = missing(error)?;
                continue;
            }
        };
        for line in &report.lost {
            status = lost(line);
        }
        if report.more > 0 {
            complain(format_args!("{} more lines like these", report.more));
        }
        (files, bytes) = (files + report.files, bytes + report.bytes);
    }
    if files > 0 {
        answer(format!("{}, {} of content\n", counted(files, "file", "files"), size::show(bytes)))?;
    }
    Ok(status)
}

/// Whether a file of this machine is a disk image, or may be one: an archive is none, nor is what is of no known kind.
fn is_image(file: &Path) -> bool {
    let is_file = |is: Metadata| is.is_file() || is.file_type().is_block_device();
    file.metadata().is_ok_and(is_file)
        && !matches!(
            Source::parse(file.as_os_str()),
            Ok(Source::File { kind: FileKind::Tar | FileKind::CompressedTar, .. } | Source::Oci { .. })
                | Err(SourceError::Unknown { .. })
        )
}

/// `IMAGE[:VOLUME]` and the path of `IMAGE[:VOLUME]:/PATH`; nothing if that is no such text, or a file of this machine has this name.
fn split_path(text: &OsStr) -> Option<(OsString, PathBuf)> {
    let bytes = text.as_bytes();
    let place = bytes.windows(2).rposition(|two| two == b":/").filter(|place| *place > 0)?;
    let is_file = Path::new(text).symlink_metadata().is_ok();
    let (image, path) = (OsStr::from_bytes(&bytes[..place]), OsStr::from_bytes(&bytes[place + 1..]));
    (!is_file).then(|| (image.to_owned(), path.into()))
}

/// Reports what cannot be read.
pub fn lost(line: &str) -> ExitCode {
    complain(line);
    ExitCode::FAILURE
}

/// Reports what is not in an image, or cannot be read there. Other errors are those of the whole request.
fn missing(error: GuestError) -> anyhow::Result<ExitCode> {
    match error {
        GuestError::Absent { .. } | GuestError::Type { .. } | GuestError::Volume { .. } => Ok(lost(&error.to_string())),
        other => Err(other.into()),
    }
}

fn text(bytes: &[u8]) -> String {
    shown(Path::new(std::ffi::OsStr::from_bytes(bytes)))
}

impl From<Kind> for FileType {
    fn from(kind: Kind) -> FileType {
        match kind {
            Kind::F => FileType::Regular,
            Kind::D => FileType::Directory,
            Kind::L => FileType::Symlink,
            Kind::B => FileType::BlockDevice,
            Kind::C => FileType::CharDevice,
            Kind::P => FileType::Fifo,
            Kind::S => FileType::Socket,
        }
    }
}

/// The columns of [`long`] that are numbers: links, user, group, size.
pub const LONG_RIGHT: [usize; 4] = [1, 2, 3, 4];

/// As `ls -ln --time-style=iso` has it.
pub fn long(entry: &Entry) -> Vec<String> {
    line_of(entry, false)
}

/// The same, the size with its unit if that is wanted.
fn line_of(entry: &Entry, units: bool) -> Vec<String> {
    let attributes = &entry.attributes;
    let (major, minor) = attributes.device;
    let size = match (is_device(attributes), units) {
        (true, _) => format!("{major}, {minor}"),
        (false, true) => size::show(attributes.size),
        (false, false) => attributes.size.to_string(),
    };
    let target = entry.target.as_ref().map_or_else(String::new, |target| format!(" -> {}", text(target)));
    vec![
        permissions(attributes.mode),
        attributes.links.to_string(),
        attributes.uid.to_string(),
        attributes.gid.to_string(),
        size,
        moment(attributes.mtime.seconds),
        text(&entry.path) + &target,
    ]
}

fn is_device(attributes: &Attributes) -> bool {
    matches!(attributes.file_type(), Some(FileType::BlockDevice | FileType::CharDevice))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// `-rwxr-xr-x`.
fn permissions(mode: u32) -> String {
    let kind = match FileType::from_mode(mode) {
        Some(FileType::Directory) => 'd',
        Some(FileType::Symlink) => 'l',
        Some(FileType::BlockDevice) => 'b',
        Some(FileType::CharDevice) => 'c',
        Some(FileType::Fifo) => 'p',
        Some(FileType::Socket) => 's',
        Some(FileType::Regular) => '-',
        None => '?',
    };
    let mut text = String::from(kind);
    for (shift, special, letter) in [(6, 0o4000, 's'), (3, 0o2000, 's'), (0, 0o1000, 't')] {
        let bits = mode >> shift;
        text.push(if bits & 4 != 0 { 'r' } else { '-' });
        text.push(if bits & 2 != 0 { 'w' } else { '-' });
        text.push(match (mode & special != 0, bits & 1 != 0) {
            (true, true) => letter,
            (true, false) => letter.to_ascii_uppercase(),
            (false, true) => 'x',
            (false, false) => '-',
        });
    }
    text
}

fn stated(entry: &Entry) -> String {
    let attributes = &entry.attributes;
    let mut rows = vec![
        vec!["path".to_owned(), text(&entry.path)],
        vec!["mode".to_owned(), format!("{} ({:04o})", permissions(attributes.mode), attributes.mode & 0o7777)],
        vec!["owner".to_owned(), format!("{}:{}", attributes.uid, attributes.gid)],
        vec!["size".to_owned(), format!("{} bytes, {} in the image", attributes.size, attributes.allocated)],
        vec!["inode".to_owned(), format!("{}, {}", attributes.inode, counted(attributes.links, "link", "links"))],
    ];
    if is_device(attributes) {
        let (major, minor) = attributes.device;
        rows.push(vec!["device".to_owned(), format!("{major}, {minor}")]);
    }
    let times = [("modified", Some(attributes.mtime)), ("changed", Some(attributes.ctime))];
    let times = times.into_iter().chain([("accessed", attributes.atime), ("born", attributes.birth)]);
    rows.extend(times.filter_map(|(name, at)| {
        let Timestamp { seconds, nanoseconds } = at?;
        Some(vec![name.to_owned(), exact_moment(seconds, nanoseconds)])
    }));
    if let Some(target) = &entry.target {
        rows.push(vec!["target".to_owned(), text(target)]);
    }
    for xattr in &entry.xattrs {
        // As getfattr(1) prints them.
        let value = std::str::from_utf8(&xattr.value)
            .map_or_else(|_| format!("0x{}", hex(&xattr.value)), |_| text(&xattr.value));
        rows.push(vec!["attribute".to_owned(), format!("{}={value}", text(&xattr.name))]);
    }
    columns(&rows, &[])
}

fn as_json(entry: &Entry) -> Value {
    let attributes = &entry.attributes;
    let seconds = |at: Timestamp| json!(at.seconds as f64 + f64::from(at.nanoseconds) / 1e9);
    let bytes = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let mut value = json!({
        "path": bytes(&entry.path),
        "mode": format!("{:06o}", attributes.mode),
        "uid": attributes.uid,
        "gid": attributes.gid,
        "size": attributes.size,
        "allocated": attributes.allocated,
        "inode": attributes.inode,
        "links": attributes.links,
        "mtime": seconds(attributes.mtime),
        "ctime": seconds(attributes.ctime),
    });
    if let Some(object) = value.as_object_mut() {
        let mut add = |name: &str, value: Option<Value>| value.map(|value| object.insert(name.to_owned(), value));
        add("atime", attributes.atime.map(seconds));
        add("birth", attributes.birth.map(seconds));
        // What a number of seconds is too coarse for.
        let times = [("mtime_nsec", Some(attributes.mtime)), ("ctime_nsec", Some(attributes.ctime))];
        for (name, time) in
            times.into_iter().chain([("atime_nsec", attributes.atime), ("birth_nsec", attributes.birth)])
        {
            add(name, time.map(|time| json!(time.nanoseconds)));
        }
        add("device", is_device(attributes).then(|| json!(<[u32; 2]>::from(attributes.device))));
        add("target", entry.target.as_ref().map(|target| json!(bytes(target))));
        // A path that is no UTF-8 has its bytes beside it.
        let is_text = std::str::from_utf8(&entry.path).is_ok();
        add("path_hex", (!is_text).then(|| json!(hex(&entry.path))));
        let xattrs = entry.xattrs.iter().map(|xattr| (bytes(&xattr.name), json!(bytes(&xattr.value)))).collect();
        add("xattrs", (!entry.xattrs.is_empty()).then_some(Value::Object(xattrs)));
        let binary = entry.xattrs.iter().filter(|xattr| std::str::from_utf8(&xattr.value).is_err());
        let binary: serde_json::Map<_, _> =
            binary.map(|xattr| (bytes(&xattr.name), json!(hex(&xattr.value)))).collect();
        add("xattrs_hex", (!binary.is_empty()).then_some(Value::Object(binary)));
    }
    value
}
