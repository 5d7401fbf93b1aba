//! `inarch disk inspect`: which operating systems are on a disk.

use std::ffi::OsString;
use std::process::ExitCode;

use clap::Args;
use inarch_jobs::guest::{Database, Inspection, Mount, Package, Subvolume, inspect};
use inarch_jobs::{shell_word, shown};
use serde_json::{Value, json};

use super::files::DISK_HELP;
use super::xml;
use crate::columns::columns;
use crate::disk_options::{DiskOptions, FormatOption};
use crate::output::{answer, complain};

/// Options of `inarch disk inspect`.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  inarch disk inspect guest.img
  inarch disk inspect --json guest.img | jq -r '.[0].packages[].name'
  eval guestfish --ro $(inarch disk inspect --options guest.img)

What is read: os-release, fstab, hostname, the databases of dpkg, apk and pacman, and the registry of Windows. Nothing of the guest is run.")]
pub struct InspectArguments {
    /// The image
    #[arg(value_name = "IMAGE[:VOLUME]", help = DISK_HELP)]
    image: OsString,

    #[command(flatten)]
    format: FormatOption,

    /// What a disk image needs beside itself.
    #[command(flatten)]
    disk: DiskOptions,

    /// List the packages too
    #[arg(long)]
    packages: bool,

    /// Print JSON, with all packages
    #[arg(long)]
    json: bool,

    /// Print XML in the manner of virt-inspector, with all packages
    #[arg(long, conflicts_with = "json")]
    xml: bool,

    /// Print the words of -a and -m that name the disk and its mount points, for 'inarch shell' and guestfish
    #[arg(long, conflicts_with_all = ["json", "xml", "packages"])]
    options: bool,
}

/// `inarch disk inspect`.
pub fn inspect_disk(arguments: &InspectArguments) -> anyhow::Result<ExitCode> {
    let source = arguments.disk.source_in(&arguments.image, arguments.format)?;
    let found = inspect(&source)?;
    source.named(&source.notes()).iter().for_each(complain);
    if arguments.xml {
        answer(xml::inspections(&found))?;
    } else if arguments.options {
        let words = found.iter().map(|found| words(arguments, found) + "\n");
        answer(words.collect::<String>())?;
    } else if arguments.json {
        answer(serde_json::to_string_pretty(&found.iter().map(inspection_json).collect::<Vec<_>>())? + "\n")?;
    } else if found.is_empty() {
        answer("no operating system was found\n")?;
    } else {
        let texts: Vec<_> = found.iter().map(|found| inspected(found, arguments.packages)).collect();
        answer(texts.join("\n"))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn inspected(found: &Inspection, with_packages: bool) -> String {
    let system = &found.system;
    let known = |text: Option<&str>| text.map_or_else(|| "unknown".to_owned(), |text| shown(text.as_ref()));
    let packages = match (&system.packages, system.packaging) {
        (Some(packages), Some(kind)) => format!("{} ({})", packages.len(), kind.name()),
        (None, Some(kind)) => format!("unknown; the database of {} is not read", kind.name()),
        _ => "unknown".to_owned(),
    };
    let row = |name: &str, value: String| vec![name.to_owned(), value];
    let rows = [
        row("root", found.root.clone()),
        row("system", known(system.name.as_deref().or(system.kind))),
        row("distribution", known(system.distribution.as_deref())),
        row("version", known(system.version.as_deref())),
        row("architecture", known(system.arch)),
        row("host name", known(system.hostname.as_deref())),
        row("packages", packages),
    ];
    let optional = [("variant", &system.variant), ("build", &system.build)];
    let optional = optional.into_iter().filter_map(|(name, value)| Some(row(name, shown(value.as_ref()?.as_ref()))));
    let rows: Vec<_> = rows.into_iter().chain(optional).collect();
    let mut text = columns(&rows, &[]);
    if !found.drives.is_empty() {
        let drive = |(letter, volume): &inarch_jobs::guest::Drive| {
            vec![format!("{letter}:"), volume.clone().unwrap_or_else(|| "not on this disk".to_owned())]
        };
        let heads = ["DRIVE", "VOLUME"].map(str::to_owned).to_vec();
        let rows: Vec<_> = [heads].into_iter().chain(found.drives.iter().map(drive)).collect();
        text += &format!("\n{}", columns(&rows, &[]));
    }
    if !found.mounts.is_empty() {
        let heads = ["MOUNT POINT", "DEVICE", "VOLUME", "FORMAT"].map(str::to_owned).to_vec();
        let mount = |(mount, volume): &(Mount, Option<String>)| {
            let volume = volume.clone().unwrap_or_else(|| "not on this disk".to_owned());
            vec![shown(mount.directory.as_ref()), shown(mount.device.as_ref()), volume, shown(mount.format.as_ref())]
        };
        let rows: Vec<_> = [heads].into_iter().chain(found.mounts.iter().map(mount)).collect();
        text += &format!("\n{}", columns(&rows, &[]));
    }
    if with_packages {
        let row = |package: &Package| {
            let arch = package.arch.as_deref().unwrap_or("-");
            [&*package.name, &package.version, arch].map(|cell| shown(cell.as_ref())).to_vec()
        };
        let rows: Vec<_> = system.packages.iter().flatten().map(row).collect();
        text += &format!("\n{}", columns(&rows, &[]));
    }
    text
}

/// The words of `-a` and `-m`, quoted for a shell. A format that was given comes before: what it is for would guess as well.
fn words(arguments: &InspectArguments, found: &Inspection) -> String {
    let image = arguments.image.to_string_lossy();
    let image =
        image.rsplit_once(':').filter(|_| !std::path::Path::new(&*image).exists()).map_or(&*image, |(image, _)| image);
    let mut words: Vec<String> =
        arguments.format.format.iter().map(|format| format!("--format={}", format.name())).collect();
    let others = arguments.disk.also.iter().map(|other| other.to_string_lossy().into_owned());
    words.extend([image.to_owned()].into_iter().chain(others).flat_map(|image| ["-a".to_owned(), image]));
    // What would say something else to a terminal, or to guestfish, is left out.
    let is_said = |text: &str| !text.contains(':') && !text.chars().any(char::is_control);
    // guestfish takes a subvolume as an option of the mount.
    let place = |directory: &str, subvolume: Option<Subvolume>| {
        let subvolume = subvolume.map(|subvolume| subvolume.to_string()).unwrap_or_default();
        let is_usual = is_said(directory) && is_said(&subvolume);
        let colon = if subvolume.is_empty() { "" } else { ":" };
        is_usual.then(|| format!("{directory}{colon}{subvolume}"))
    };
    let root = place("/", found.root_subvolume.clone()).map(|place| (found.root.clone(), place)).into_iter();
    let below = found.mounts.iter().filter(|(mount, _)| mount.directory != "/" && mount.is_automatic());
    let below =
        below.filter_map(|(mount, volume)| Some((volume.clone()?, place(&mount.directory, mount.subvolume().ok()?)?)));
    words.extend(root.chain(below).flat_map(|(volume, place)| ["-m".to_owned(), format!("{volume}:{place}")]));
    words.iter().map(|word| shell_word(word.as_ref())).collect::<Vec<_>>().join(" ")
}

fn inspection_json(found: &Inspection) -> Value {
    let system = &found.system;
    let packages = system.packages.as_ref().map(|packages| {
        let package =
            |package: &Package| json!({ "name": package.name, "version": package.version, "arch": package.arch });
        packages.iter().map(package).collect::<Vec<_>>()
    });
    let mounts = found.mounts.iter().map(|(mount, volume)| {
        json!({
            "directory": mount.directory,
            "device": mount.device,
            "volume": volume,
            "format": mount.format,
            "options": mount.options,
        })
    });
    let drives = found.drives.iter().map(|(letter, volume)| (letter.to_string(), json!(volume)));
    json!({
        "root": found.root,
        "root_subvolume": found.root_subvolume.as_ref().map(|subvolume| subvolume.to_string()),
        "kind": system.kind,
        "variant": system.variant,
        "build": system.build,
        "distribution": system.distribution,
        "name": system.name,
        "version": system.version,
        "arch": system.arch,
        "hostname": system.hostname,
        "mounts": mounts.collect::<Vec<_>>(),
        "drives": drives.collect::<serde_json::Map<_, _>>(),
        "packaging": system.packaging.map(Database::name),
        "packages": packages,
    })
}
