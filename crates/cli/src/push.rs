//! `inarch push`: publishes a tree at a remote, where other machines read it.

use std::ffi::OsString;
use std::process::ExitCode;

use clap::Args;
use inarch_jobs::cache::Location;
use inarch_jobs::caches;

use crate::cache::tell_pushed;
use crate::source::{SRC_HELP, SourceArguments};

/// Options of `inarch push`.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  inarch push target s3://builds/llvm
  inarch push rootfs.tar.zst file:///mnt/nas/rootfs
  inarch run --tree s3://builds/llvm=/opt/llvm make check")]
pub struct PushArguments {
    /// The tree: a directory, an archive or an image
    #[arg(value_name = "SRC", help = SRC_HELP)]
    pub source: OsString,

    /// Where: s3://BUCKET/PREFIX, gs://, az:// or file:///DIR. It replaces the tree that is there
    #[arg(value_name = "URL")]
    pub remote: String,

    /// What to take of the source.
    #[command(flatten)]
    pub filters: SourceArguments,
}

/// Pushes it.
pub fn run(arguments: PushArguments) -> anyhow::Result<ExitCode> {
    let location = Location::parse(&arguments.remote)?;
    let source = arguments.filters.disk.source(&arguments.source)?;
    let selection = arguments.filters.reproducible_selection()?;
    let pushed = caches::push_source(&source, &selection, &location, &format!("inarch push {source}"))?;
    tell_pushed(&location, &pushed);
    Ok(ExitCode::SUCCESS)
}
