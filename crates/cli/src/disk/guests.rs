//! `inarch disk df` and `inarch disk inspect`: what is on a guest's disk as a whole.

use std::ffi::OsString;
use std::process::ExitCode;

use clap::Args;
use inarch_jobs::guest::{Inspection, Usage, inspect, usage};
use inarch_jobs::shown;
use serde_json::{Value, json};

use super::files::IMAGE_HELP;
use crate::columns::columns;
use crate::disk_options::DiskOptions;
use crate::output::answer;
use crate::size;

/// Options of `inarch disk df`.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  inarch disk df guest.qcow2
  inarch disk df --json guest.img | jq '.[].free'")]
pub struct DfArguments {
    /// The image
    #[arg(value_name = "IMAGE[:VOLUME]", help = IMAGE_HELP)]
    image: OsString,

    /// What a disk image needs beside itself.
    #[command(flatten)]
    disk: DiskOptions,

    /// Print JSON: numbers in bytes
    #[arg(long)]
    json: bool,
}

/// Options of `inarch disk inspect`.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  inarch disk inspect guest.img
  inarch disk inspect --json guest.img | jq -r '.[0].packages[].name'

What is read: os-release, fstab, hostname, and the databases of dpkg, apk and pacman. Nothing of the guest is run.")]
pub struct InspectArguments {
    /// The image
    #[arg(value_name = "IMAGE[:VOLUME]", help = IMAGE_HELP)]
    image: OsString,

    /// What a disk image needs beside itself.
    #[command(flatten)]
    disk: DiskOptions,

    /// List the packages too
    #[arg(long)]
    packages: bool,

    /// Print JSON, with all packages
    #[arg(long)]
    json: bool,
}

/// `inarch disk df`.
pub fn df(arguments: &DfArguments) -> anyhow::Result<ExitCode> {
    let all = usage(&arguments.disk.source(&arguments.image)?)?;
    answer(if arguments.json {
        serde_json::to_string_pretty(&all.iter().map(usage_json).collect::<Vec<_>>())? + "\n"
    } else {
        let heads = ["VOLUME", "FORMAT", "LABEL", "SIZE", "USED", "FREE", "USE%", "INODES", "IUSED"].map(str::to_owned);
        let rows: Vec<_> = [heads.to_vec()].into_iter().chain(all.iter().map(usage_row)).collect();
        columns(&rows, &[3, 4, 5, 6, 7, 8])
    })?;
    Ok(ExitCode::SUCCESS)
}

/// Bytes of the file system, and free ones.
fn bytes(usage: &Usage) -> Option<(u64, u64)> {
    let numbers = usage.numbers.as_ref()?.as_ref().ok()?;
    let of = |blocks: u64| blocks.saturating_mul(numbers.block_size.into());
    Some((of(numbers.blocks), of(numbers.free_blocks)))
}

fn usage_row(usage: &Usage) -> Vec<String> {
    let none = || "-".to_owned();
    let label = usage.label.as_ref().map_or_else(none, |label| shown(label.as_ref()));
    let mut row = vec![usage.name.clone(), usage.format.map_or_else(none, str::to_owned), label];
    match (&usage.numbers, bytes(usage)) {
        (Some(Ok(numbers)), Some((size, free))) => {
            let used = size.saturating_sub(free);
            let percent = used.saturating_mul(100).div_ceil(size.max(1));
            row.extend([size::show(size), size::show(used), size::show(free), format!("{percent}%")]);
            let inodes = numbers.inodes.saturating_sub(numbers.free_inodes);
            row.extend(if numbers.inodes == 0 {
                [none(), none()]
            } else {
                [numbers.inodes, inodes].map(|n| n.to_string())
            });
        }
        (Some(Err(error)), _) => row.extend([size::show(usage.size), error.clone()]),
        _ => row.push(size::show(usage.size)),
    }
    row
}

fn usage_json(usage: &Usage) -> Value {
    let numbers = usage.numbers.as_ref().and_then(|numbers| numbers.as_ref().ok());
    json!({
        "volume": usage.name,
        "format": usage.format,
        "label": usage.label,
        "volume_size": usage.size,
        "size": bytes(usage).map(|(size, _)| size),
        "free": bytes(usage).map(|(_, free)| free),
        "inodes": numbers.map(|numbers| numbers.inodes),
        "free_inodes": numbers.map(|numbers| numbers.free_inodes),
        "error": usage.numbers.as_ref().and_then(|numbers| numbers.as_ref().err()),
    })
}

/// `inarch disk inspect`.
pub fn inspect_disk(arguments: &InspectArguments) -> anyhow::Result<ExitCode> {
    let found = inspect(&arguments.disk.source(&arguments.image)?)?;
    if arguments.json {
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
    let mut text = columns(&rows, &[]);
    if !found.mounts.is_empty() {
        let heads = ["MOUNT POINT", "DEVICE", "VOLUME", "FORMAT"].map(str::to_owned).to_vec();
        let mount = |(mount, volume): &(inarch_jobs::guest::Mount, Option<String>)| {
            let volume = volume.clone().unwrap_or_else(|| "not on this disk".to_owned());
            vec![shown(mount.directory.as_ref()), shown(mount.device.as_ref()), volume, shown(mount.format.as_ref())]
        };
        let rows: Vec<_> = [heads].into_iter().chain(found.mounts.iter().map(mount)).collect();
        text += &format!("\n{}", columns(&rows, &[]));
    }
    if with_packages {
        let row = |package: &inarch_jobs::guest::Package| {
            let arch = package.arch.as_deref().unwrap_or("-");
            [&*package.name, &package.version, arch].map(|cell| shown(cell.as_ref())).to_vec()
        };
        let rows: Vec<_> = system.packages.iter().flatten().map(row).collect();
        text += &format!("\n{}", columns(&rows, &[]));
    }
    text
}

fn inspection_json(found: &Inspection) -> Value {
    let system = &found.system;
    let packages = system.packages.as_ref().map(|packages| {
        let package = |package: &inarch_jobs::guest::Package| {
            json!({ "name": package.name, "version": package.version, "arch": package.arch })
        };
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
    json!({
        "root": found.root,
        "kind": system.kind,
        "distribution": system.distribution,
        "name": system.name,
        "version": system.version,
        "arch": system.arch,
        "hostname": system.hostname,
        "mounts": mounts.collect::<Vec<_>>(),
        "packaging": system.packaging.map(inarch_jobs::guest::Database::name),
        "packages": packages,
    })
}
