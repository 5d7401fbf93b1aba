//! `inarch disk create`: makes an empty disk image.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, ValueEnum};
use inarch_jobs::make_disk::create::{CreateRequest, Created, Stored, create};
use inarch_jobs::shown;
use serde_json::json;

use crate::output::{answer, complain};
use crate::size;

/// Options of `inarch disk create`.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  inarch disk create guest.img 20G
  inarch disk create /dev/shm/huge.img 1E

An empty image takes no room. Where the file system cannot hold a file of that size (ext4: 16 TiB), the image is a qcow2 one.")]
pub struct CreateArguments {
    /// The image
    pub file: PathBuf,

    /// Size of the disk: 512M, 20G, 1P, 7E, or bytes
    #[arg(value_parser = size::parse)]
    pub size: u64,

    /// How the image is stored; by default raw where that is possible, and qcow2 if its name says so
    #[arg(long, value_enum)]
    pub format: Option<StoredAs>,

    /// Replace a file that is there
    #[arg(long)]
    pub force: bool,

    /// Print JSON: numbers in bytes
    #[arg(long)]
    pub json: bool,
}

/// How an image is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum StoredAs {
    /// A sparse file of the disk's size
    Raw,
    /// QEMU's format
    Qcow2,
}

/// Creates an image.
pub fn run(arguments: CreateArguments) -> anyhow::Result<ExitCode> {
    let CreateArguments { file, size, format, force, json } = arguments;
    let qcow2 = format.map(|format| format == StoredAs::Qcow2);
    let Created { stored, because } = create(&CreateRequest { image: file.clone(), size, qcow2, force })?;
    let (name, cluster) = match stored {
        Stored::Raw => ("raw", None),
        Stored::Qcow2 { cluster } => ("qcow2", Some(cluster)),
    };
    if let Some(because) = &because {
        complain(format_args!("{}: {because}, so the image is a qcow2 one", shown(&file)));
    }
    if json {
        let told = json!({
            "image": shown(&file), "size": size, "format": name, "cluster": cluster, "because": because,
        });
        answer(serde_json::to_string_pretty(&told)? + "\n")?;
    }
    Ok(ExitCode::SUCCESS)
}
