//! `inarch disk format`: makes a file system in an image.

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use inarch_jobs::make_disk::format::{FormatRequest, Formatted, Tree, format};
use inarch_jobs::make_disk::tools::{GONE, MAKERS, Maker};
use inarch_jobs::shown;
use serde_json::json;

use crate::output::{answer, complain};
use crate::size;
use crate::source::SourceArguments;

/// Options of `inarch disk format`.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  inarch disk format guest.img ext4 --partition 1 --label root
  inarch disk format guest.img ext4 --partition 2 --from rootfs/ --exclude '*.o'
  inarch disk format guest.img xfs -p 1 -- -m reflink=0

The host's tools make the file system in a sparse file beside the image, and its data are moved to their place. Neither root nor a loop device is needed.")]
pub struct FormatArguments {
    /// The disk image
    pub image: PathBuf,

    /// ext2, ext3, ext4, xfs, jfs, reiserfs, nilfs2, ntfs, msdos, vfat, exfat, btrfs, f2fs, hfs, hfsplus, gfs2 or swap
    #[arg(value_name = "FS", value_parser = maker)]
    pub maker: &'static Maker,

    /// The partition's number; an image without partitions has none
    #[arg(short, long, value_name = "NR")]
    pub partition: Option<u32>,

    /// Label of the file system
    #[arg(short = 'L', long, value_name = "TEXT", default_value = "")]
    pub label: String,

    /// Put this tree into it: a directory, an archive or an image; for ext4
    #[arg(long, value_name = "SRC")]
    pub from: Option<OsString>,

    /// Overwrite what the partition holds
    #[arg(long)]
    pub force: bool,

    /// Print JSON: numbers in bytes
    #[arg(long)]
    pub json: bool,

    /// More options for the tool that makes the file system
    #[arg(last = true, value_name = "OPTION", conflicts_with = "from")]
    pub options: Vec<OsString>,

    /// What to take of the tree.
    #[command(flatten)]
    pub filters: SourceArguments,
}

/// The file system of this name.
pub fn maker(name: &str) -> Result<&'static Maker, String> {
    if let Some((_, reason)) = GONE.iter().find(|(gone, _)| *gone == name) {
        return Err(format!("{name} cannot be made: {reason}"));
    }
    Maker::named(name).ok_or_else(|| {
        let known: Vec<_> = MAKERS.iter().map(|maker| maker.format).collect();
        format!("'{name}' is not a file system that can be made; these are: {}", known.join(", "))
    })
}

/// Makes a file system.
pub fn run(arguments: FormatArguments) -> anyhow::Result<ExitCode> {
    let FormatArguments { image, maker, partition, label, from, force, json, options, filters } = arguments;
    anyhow::ensure!(
        from.is_some() || filters.is_all(),
        "options for what is taken need a tree to take it from: --from SRC"
    );
    let tree = match from {
        Some(from) => Some(Tree { source: filters.disk.source(&from)?, selection: filters.reproducible_selection()? }),
        None => None,
    };
    let request = FormatRequest { image: image.clone(), partition, maker, label, options, tree, force };
    let Formatted { size, stored, space, tree } = format(&request)?;
    if let Some(space) = space.filter(|space| space.covered < size - size / 100) {
        let (covered, all) = (size::show(space.covered), size::show(size));
        complain(format_args!("{}: {} uses only {covered} of {all}", shown(&image), maker.format));
    }
    for note in tree.iter().flat_map(|tree| &tree.notes) {
        complain(format_args!("{}: {note}", shown(&image)));
    }
    if json {
        let told = json!({
            "image": shown(&image), "partition": partition, "format": maker.format, "size": size, "stored": stored,
            "covered": space.map(|space| space.covered), "free": space.and_then(|space| space.free), "tree": tree,
        });
        answer(serde_json::to_string_pretty(&told)? + "\n")?;
    }
    Ok(ExitCode::SUCCESS)
}
