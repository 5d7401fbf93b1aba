//! `inarch push`: publishes a tree where other machines read it: at a remote, or as a container image at a registry.

use std::ffi::OsString;
use std::process::ExitCode;

use clap::{Args, ValueEnum};
use inarch_jobs::cache::{ImageName, Location};
use inarch_jobs::caches;
use inarch_jobs::push::{LayerCompression, PushRequest, PushedImage, push};
use inarch_jobs::shown;
use inarch_vm::Arch;

use crate::cache::tell_pushed;
use crate::output::complain;
use crate::size::show;
use crate::source::{SRC_HELP, SourceArguments};

/// Options of `inarch push`.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  inarch push target s3://builds/llvm
  inarch push rootfs.tar.zst file:///mnt/nas/rootfs
  inarch run --tree s3://builds/llvm=/opt/llvm make check
  inarch push rootfs docker://registry.example/team/root:12 --cmd sh")]
pub struct PushArguments {
    /// The tree: a directory, an archive or an image
    #[arg(value_name = "SRC", help = SRC_HELP)]
    pub source: OsString,

    /// Where it goes.
    #[arg(
        value_name = "URL",
        help = "Where: s3://BUCKET/PREFIX, gs://, az:// or file:///DIR; or docker://[REGISTRY/]NAME[:TAG], a container image. It replaces what is there"
    )]
    pub remote: String,

    /// What only a container image has.
    #[command(flatten)]
    pub image: ImageArguments,

    /// What to take of the source.
    #[command(flatten)]
    pub filters: SourceArguments,
}

/// What only a container image has.
#[derive(Args, Debug, PartialEq)]
#[command(next_help_heading = "Container images")]
pub struct ImageArguments {
    /// Compress the image's layer by gzip (which every program reads), by zstd (faster), or not (none)
    #[arg(long, value_name = "ALG", value_enum, default_value_t, hide_possible_values = true)]
    pub compress: Compress,

    /// The architecture that the image is for; by default that of a source that is a container image, else this machine's
    #[arg(long, value_name = "ARCH")]
    pub arch: Option<Arch>,

    /// A word of the command that the image runs; repeat it for more. By default that of a source that is a container image
    #[arg(long, value_name = "WORD", allow_hyphen_values = true)]
    pub cmd: Vec<String>,
}

/// How a layer is compressed.
#[derive(ValueEnum, Clone, Copy, Debug, Default, PartialEq)]
pub enum Compress {
    /// By gzip, which every program reads
    #[default]
    Gzip,
    /// By zstd, which is faster
    Zstd,
    /// Not at all
    None,
}

impl From<Compress> for LayerCompression {
    fn from(compress: Compress) -> LayerCompression {
        match compress {
            Compress::Gzip => LayerCompression::Gzip,
            Compress::Zstd => LayerCompression::Zstd,
            Compress::None => LayerCompression::None,
        }
    }
}

/// Pushes it.
pub fn run(arguments: PushArguments) -> anyhow::Result<ExitCode> {
    let source = arguments.filters.disk.source(&arguments.source)?;
    if ImageName::is_one(&arguments.remote) {
        return push_image(source, arguments);
    }
    anyhow::ensure!(
        Location::is_one(&arguments.remote),
        "'{}': write s3://BUCKET/PREFIX, gs://, az:// or file:///DIR, or docker://[REGISTRY/]NAME[:TAG] for a container image",
        shown(arguments.remote.as_ref())
    );
    let location = Location::parse(&arguments.remote)?;
    anyhow::ensure!(
        arguments.image == ImageArguments { compress: Compress::Gzip, arch: None, cmd: Vec::new() },
        "--compress, --arch and --cmd are for container images (docker://)"
    );
    let selection = arguments.filters.reproducible_selection()?;
    let pushed = caches::push_source(&source, &selection, &location, &format!("inarch push {source}"))?;
    tell_pushed(&location, &pushed);
    Ok(ExitCode::SUCCESS)
}

fn push_image(source: inarch_jobs::source::Source, arguments: PushArguments) -> anyhow::Result<ExitCode> {
    let ImageArguments { compress, arch, cmd } = arguments.image;
    // What is taken is for these machines, too.
    let source = match arch {
        Some(arch) => source.for_machine(arch.debian()),
        None => source,
    };
    let request = PushRequest {
        source,
        selection: arguments.filters.reproducible_selection()?,
        name: ImageName::parse(&arguments.remote)?,
        compression: compress.into(),
        machine: arch.map(|arch| arch.debian().to_owned()),
        command: (!cmd.is_empty()).then_some(cmd),
    };
    let PushedImage { digest, bytes, had_layer, notes } = push(&request)?;
    notes.iter().for_each(complain);
    let what = if had_layer { "the registry had the layer".to_owned() } else { format!("{} sent", show(bytes)) };
    complain(format_args!("{}: {what}; {digest}", request.name));
    Ok(ExitCode::SUCCESS)
}
