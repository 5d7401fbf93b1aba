//! `inarch disk`.

mod change;
mod check;
mod compare;
pub mod copy_in;
mod create;
mod edit;
pub mod files;
mod format;
mod inspect;
pub mod machine;
mod partition;
mod picture;
mod registry;
mod trees;
mod usage;
mod xml;

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, Subcommand};
use inarch_jobs::examine::{
    Above, ExamineRequest, Examined, ExaminedDisk, Kind, ListedSubvolume, Part, Signature, Table, examine,
};
use inarch_jobs::shown;
use inarch_jobs::source::{DiskFile, DiskNeeds, ImageFormat, Source, SourceError, Which, in_use};
use serde_json::{Value, json};

pub use change::mode;
pub use files::with_options_of_find;

use crate::columns::columns;
use crate::disk_options::{DiskOptions, FormatOption};
use crate::output::{answer, complain};
use crate::size;

/// Options of `inarch disk`.
#[derive(Args, Debug)]
pub struct DiskArguments {
    /// What to do
    #[command(subcommand)]
    pub command: DiskCommand,
}

/// What to do with disk images.
#[derive(Subcommand, Debug)]
pub enum DiskCommand {
    /// List the partitions and volumes of disk images, and what they hold
    List(ListArguments),

    /// List a directory in an image
    Ls(files::LsArguments),

    /// Print files of an image
    Cat(files::CatArguments),

    /// Search for files in an image
    Find(files::FindArguments),

    /// Show the attributes of files in an image
    Stat(files::StatArguments),

    /// Copy a file or a directory out of an image, or into one
    Cp(files::CpArguments),

    /// Write a directory of an image as a tar archive
    TarOut(trees::TarOutArguments),

    /// Print digests of the files in an image, as sha256sum does
    Checksum(trees::ChecksumArguments),

    /// Compare the files of two images, archives or directories
    Diff(trees::DiffArguments),

    /// Write a file of an image, from standard input
    Write(change::WriteArguments),

    /// Edit a file of an image by $EDITOR
    Edit(edit::EditArguments),

    /// Remove files or directories from an image
    Rm(change::RmArguments),

    /// Make directories in an image
    Mkdir(change::MkdirArguments),

    /// Check the file systems of an image by this machine's tools, and repair them
    Fsck(check::FsckArguments),

    /// Make a volume of an image longer or shorter, with its file system
    Resize(check::ResizeArguments),

    /// Show how full the file systems of a disk image are
    Df(usage::DfArguments),

    /// Show which operating system a disk image holds
    Inspect(inspect::InspectArguments),

    /// Create an empty disk image of any size
    Create(create::CreateArguments),

    /// Write a partition table into a disk image
    Partition(partition::PartitionArguments),

    /// Make a file system on a partition of a disk image, or put a tree there
    Format(Box<format::FormatArguments>),

    /// Compare the tools that make file systems, over sizes of disks
    CompareMkfs(compare::CompareArguments),

    /// Read the registry of a Windows machine
    Reg(registry::RegistryArguments),
}

/// Options of `inarch disk list`.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  inarch disk list guest.qcow2
  inarch disk list --json guest.img | jq -r '.partitions[] | select(.format == \"ext4\") | .start'
  inarch disk list snapshot.qcow2 --with base.qcow2
  inarch disk list --key key.txt encrypted.img
  inarch disk list libvirt:guest

Volumes are those of LVM, RAID arrays of MD, and LUKS volumes. Name all images that they lie on.

The images are raw, qcow2, VDI, VHD, VHDX or VMDK. Nothing is written to them, and neither root nor a mount is needed.")]
pub struct ListArguments {
    /// The disk images; or IMAGE:VOLUME for one volume, or libvirt:DOMAIN
    #[arg(required = true, value_name = "IMAGE")]
    pub images: Vec<OsString>,

    #[command(flatten)]
    pub format: FormatOption,

    /// What a disk image needs beside itself.
    #[command(flatten)]
    pub disk: DiskOptions,

    /// Print JSON: numbers in bytes
    #[arg(long)]
    pub json: bool,
}

/// Looks at disk images, and makes them.
pub fn run(arguments: DiskArguments) -> anyhow::Result<ExitCode> {
    match arguments.command {
        DiskCommand::List(arguments) => list(arguments),
        DiskCommand::Ls(arguments) => files::ls(&arguments),
        DiskCommand::Cat(arguments) => files::cat(arguments),
        DiskCommand::Find(arguments) => files::find(&arguments),
        DiskCommand::Stat(arguments) => files::stat(arguments),
        DiskCommand::Cp(arguments) => files::cp(arguments),
        DiskCommand::TarOut(arguments) => trees::tar_out(arguments),
        DiskCommand::Checksum(arguments) => trees::checksum(&arguments),
        DiskCommand::Diff(arguments) => trees::diff(&arguments),
        DiskCommand::Df(arguments) => usage::df(&arguments),
        DiskCommand::Inspect(arguments) => inspect::inspect_disk(&arguments),
        DiskCommand::Write(arguments) => change::write(&arguments),
        DiskCommand::Edit(arguments) => edit::edit(&arguments),
        DiskCommand::Resize(arguments) => check::resize(&arguments),
        DiskCommand::Fsck(arguments) => check::fsck(&arguments),
        DiskCommand::Rm(arguments) => change::rm(&arguments),
        DiskCommand::Mkdir(arguments) => change::mkdir(&arguments),
        DiskCommand::Reg(arguments) => registry::run(&arguments),
        DiskCommand::Create(arguments) => create::run(arguments),
        DiskCommand::Partition(arguments) => partition::run(arguments),
        DiskCommand::Format(arguments) => format::run(*arguments),
        DiskCommand::CompareMkfs(arguments) => compare::run(arguments),
    }
}

/// Which images are looked at.
fn request(images: Vec<OsString>, format: Option<ImageFormat>, disk: &DiskOptions) -> anyhow::Result<ExamineRequest> {
    let (mut files, mut named) = (Vec::new(), None);
    let is_single = images.len() == 1;
    let with = DiskNeeds { with: disk.with.clone(), ..DiskNeeds::default() };
    for image in images {
        let path = PathBuf::from(&image);
        if path.exists() || !image.as_bytes().contains(&b':') {
            files.push(DiskFile { path, format, with: disk.with.clone() });
            continue;
        }
        let Source::Disk { path, part } = Source::parse_with(&image, &with)? else {
            anyhow::bail!("{}: it is no disk image", shown(Path::new(&image)));
        };
        part.domain.iter().flat_map(|domain| &domain.notes).for_each(complain);
        if let Which::Named(name) = &part.which {
            anyhow::ensure!(is_single, "{}: name one volume, or several images", shown(Path::new(&image)));
            named = Some(name.clone());
        }
        files.extend(part.files(&path).into_iter().map(|file| DiskFile { format: format.or(file.format), ..file }));
    }
    files.extend(disk.also.iter().map(|path| DiskFile { path: path.clone(), format, with: disk.with.clone() }));
    Ok(ExamineRequest { images: files, named, keys: disk.keys()? })
}

fn list(ListArguments { images, format, disk, json }: ListArguments) -> anyhow::Result<ExitCode> {
    let request = request(images, format.format, &disk)?;
    let Examined { disks, volumes, subvolumes } = examine(&request)?;
    let images: Vec<_> = request.images.iter().map(|image| image.path.clone()).collect();
    for (image, ExaminedDisk { disk, .. }) in images.iter().zip(&disks) {
        let notes = disk.notes.iter().cloned().chain(in_use::note(image));
        notes.for_each(|note| complain(format_args!("{}: {note}", shown(image))));
    }
    volumes.notes.iter().for_each(complain);
    // A key was given, and did not open everything.
    let is_locked = volumes.list.iter().any(|volume| volume.kind == Kind::Luks && volume.bytes.is_err());
    let status = if is_locked && !request.keys.is_empty() { ExitCode::FAILURE } else { ExitCode::SUCCESS };
    if json {
        let listed = subvolumes.iter().flat_map(|(on, list)| list.iter().map(move |one| subvolume_as_json(on, one)));
        let listed = listed.collect::<Vec<_>>().into();
        let above = volumes.list.iter().map(volume_as_json).collect::<Vec<_>>();
        let told = images.iter().zip(&disks).map(|(image, disk)| as_json(image, disk)).collect::<Vec<_>>();
        let whole = match <[Value; 1]>::try_from(told) {
            Ok([mut single]) => {
                single["volumes"] = above.into();
                single["subvolumes"] = listed;
                single
            }
            Err(several) => json!({ "images": several, "volumes": above, "subvolumes": listed }),
        };
        answer(serde_json::to_string_pretty(&whole)? + "\n")?;
        return Ok(status);
    }
    let mut text = String::new();
    for (image, disk) in images.iter().zip(&disks) {
        if images.len() > 1 {
            text += &format!("{}: ", shown(image));
        }
        text += &table(disk);
    }
    if !volumes.list.is_empty() {
        text += "\n";
        let heads = VOLUME_HEADS.map(str::to_owned).to_vec();
        let rows: Vec<_> = [heads].into_iter().chain(volumes.list.iter().map(volume_row)).collect();
        text += &columns(&rows, &[]);
    }
    if !subvolumes.is_empty() {
        text += "\n";
        let heads = SUBVOLUME_HEADS.map(str::to_owned).to_vec();
        let rows = subvolumes.iter().flat_map(|(on, list)| list.iter().map(move |one| subvolume_row(on, one)));
        text += &columns(&[heads].into_iter().chain(rows).collect::<Vec<_>>(), &[]);
    }
    answer(text)?;
    for (image, ExaminedDisk { disk, .. }) in images.iter().zip(&disks) {
        // It may be known, as what is no disk: a compressed image, for one.
        if disk.table.is_none()
            && disk.content.is_none()
            && let Err(error @ SourceError::NotRead { .. }) = Source::parse(image.as_os_str())
        {
            complain(error);
        }
    }
    for volume in &volumes.list {
        if let Err(why) = &volume.bytes {
            complain(format_args!("{} cannot be read: {why}", volume.name));
        }
    }
    Ok(status)
}

const SUBVOLUME_HEADS: [&str; 4] = ["SUBVOLUME", "ON", "ID", "KIND"];

fn subvolume_row(on: &str, subvolume: &ListedSubvolume) -> Vec<String> {
    let words =
        [(subvolume.is_default, "default"), (subvolume.is_snapshot, "snapshot"), (subvolume.is_read_only, "read-only")];
    let words: Vec<_> = words.iter().filter(|(is, _)| *is).map(|(_, word)| *word).collect();
    let kind = if words.is_empty() { "-".to_owned() } else { words.join(", ") };
    vec![shown(Path::new(OsStr::from_bytes(&subvolume.path))), on.to_owned(), subvolume.id.to_string(), kind]
}

fn subvolume_as_json(on: &str, subvolume: &ListedSubvolume) -> Value {
    json!({
        "path": String::from_utf8_lossy(&subvolume.path),
        "on": on,
        "id": subvolume.id,
        "default": subvolume.is_default,
        "snapshot": subvolume.is_snapshot,
        "read_only": subvolume.is_read_only,
    })
}

fn volume_as_json(volume: &Above) -> Value {
    let content = volume.content.as_ref();
    json!({
        "name": volume.name,
        "size": volume.size,
        "layout": volume.layout,
        "id": volume.id,
        "on": volume.on,
        "format": content.map(|content| content.format),
        "label": content.and_then(|content| content.label.as_ref()),
        "uuid": content.and_then(|content| content.uuid.as_ref()),
        "unread": volume.bytes.as_ref().err(),
    })
}

fn as_json(image: &Path, ExaminedDisk { format: container, disk }: &ExaminedDisk) -> Value {
    let table = disk
        .table
        .as_ref()
        .map(|Table { kind, id, sector }| json!({ "kind": kind.name(), "id": id, "sector": sector }));
    let format = |content: Option<&Signature>| content.map(|content| content.format);
    let partition = |part: &Part| {
        let content = part.content.as_ref();
        json!({
            "number": part.number,
            "start": part.start,
            "size": part.length,
            "type": part.type_id,
            "type_name": part.type_name,
            "name": part.name,
            "id": part.id,
            "boots": part.boots,
            "format": format(content),
            "label": content.and_then(|content| content.label.as_ref()),
            "uuid": content.and_then(|content| content.uuid.as_ref()),
        })
    };
    let content = disk.content.as_ref();
    json!({
        "image": image.to_string_lossy(),
        "container": container.name(),
        "size": disk.size,
        "table": table,
        "partitions": disk.parts.iter().map(partition).collect::<Vec<_>>(),
        "format": format(content),
        "label": content.and_then(|content| content.label.as_ref()),
        "uuid": content.and_then(|content| content.uuid.as_ref()),
    })
}

/// Format, label and UUID.
fn content(content: Option<&Signature>) -> [String; 3] {
    let text = |text: Option<&String>| text.map_or_else(|| "-".to_owned(), |text| shown(Path::new(text)));
    let format = content.map_or("-", |content| content.format).to_owned();
    let of = |field: fn(&Signature) -> Option<&String>| text(content.and_then(field));
    [format, of(|content| content.label.as_ref()), of(|content| content.uuid.as_ref())]
}

const VOLUME_HEADS: [&str; 7] = ["VOLUME", "SIZE", "LAYOUT", "ON", "FORMAT", "LABEL", "UUID"];

fn volume_row(volume: &Above) -> Vec<String> {
    let [format, label, uuid] = content(volume.content.as_ref());
    let on = if volume.on.is_empty() { "-".to_owned() } else { volume.on.join(", ") };
    vec![volume.name.clone(), size::show(volume.size), shown(Path::new(&volume.layout)), on, format, label, uuid]
}

const HEADS: [&str; 8] = ["NR", "START", "SIZE", "TYPE", "NAME", "FORMAT", "LABEL", "UUID"];

fn table(ExaminedDisk { format, disk }: &ExaminedDisk) -> String {
    let mut size = size::show(disk.size);
    if *format != ImageFormat::Raw {
        size += &format!(" in {format}");
    }
    let Some(Table { kind, id, sector }) = &disk.table else {
        return match content(disk.content.as_ref()) {
            [format, label, uuid] if format != "-" => {
                format!("{size}, no partition table: {format}, label {label}, UUID {uuid}\n")
            }
            _ => format!("{size}, no partition table and no known content\n"),
        };
    };
    let row = |part: &Part| {
        let kind = part.type_name.map_or_else(|| part.type_id.clone(), str::to_owned);
        let name = part.name.as_ref().map_or_else(|| "-".to_owned(), |name| shown(Path::new(name)));
        let [format, label, uuid] = content(part.content.as_ref());
        let boots = if part.boots { "*" } else { "" };
        let number = format!("{}{boots}", part.number);
        vec![number, size::show(part.start), size::show(part.length), kind, name, format, label, uuid]
    };
    let heads = HEADS.map(str::to_owned).to_vec();
    let rows: Vec<_> = [heads].into_iter().chain(disk.parts.iter().map(row)).collect();
    format!("{size}, {} {id}, sectors of {sector} bytes\n", kind.name()) + &columns(&rows, &[])
}
