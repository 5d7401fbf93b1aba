//! The options of `inarch cache`.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand};

use crate::disk_options::DiskOptions;
use crate::{duration, size};

/// Options of `inarch cache`.
#[derive(Args, Debug)]
pub struct CacheArguments {
    /// What to do.
    #[command(subcommand)]
    pub command: CacheCommand,
}

/// A cache, or those of a tool.
#[derive(Args, Debug)]
pub struct Chosen {
    /// The cache's name, or a tool's
    #[arg(add = crate::completions::cache_names())]
    pub name: String,

    /// Whose it is: the current directory's project, the branch that is checked out there (or branch:NAME), all of this
    /// user's, or another name
    #[arg(long, value_name = "project|branch|user|NAME", default_value = "project")]
    pub scope: String,
}

/// A source of files.
#[derive(Args, Debug)]
pub struct From {
    /// A directory, archive, image, or another cache (cache:NAME)
    pub src: OsString,

    /// Options of disk images.
    #[command(flatten)]
    pub disk: DiskOptions,
}

/// The commands.
#[derive(Subcommand, Debug)]
pub enum CacheCommand {
    /// List all caches: files, size, what they take on the disk, and when a guest last had them
    #[command(visible_alias = "ls", after_help = "Example:\n  inarch cache list --json | jq '.[].name'")]
    List {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Show what is known of a cache
    #[command(after_help = "Examples:\n  inarch cache show maven\n  inarch cache show go-mod --scope user")]
    Show {
        /// Which.
        #[command(flatten)]
        cache: Chosen,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// List the tools whose caches have a name, with the place of each and what is kept
    #[command(after_help = "Example:\n  inarch cache tools")]
    Tools {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Add the files of a directory or archive to a cache
    #[command(
        visible_alias = "import",
        after_help = "\
Examples:
  inarch cache warm maven ~/.m2/repository   with what this machine has
  inarch cache warm npm npm.tar              what 'image cache:npm' wrote

Files that the cache has under the same name stay, unless a newer one is to win ('inarch cache tools')."
    )]
    Warm {
        /// Which.
        #[command(flatten)]
        cache: Chosen,
        /// From where.
        #[command(flatten)]
        src: From,
    },
    /// Publish what a guest that another program runs wrote to a cache's disk
    #[command(after_help = "\
Examples:
  inarch serve blk cache:maven --overlay o --socket s   and a machine with it
  inarch cache publish maven --from o                   when both have ended

The overlay is of the generation that the server had. If the cache has another one by then, it is refused.")]
    Publish {
        /// Which.
        #[command(flatten)]
        cache: Chosen,
        /// The overlay of 'inarch serve blk cache:NAME --overlay FILE', which has ended
        #[arg(long, value_name = "FILE")]
        from: PathBuf,
    },
    /// Read every file of a cache, and compare it with its digest
    #[command(
        after_help = "Example:\n  inarch cache verify npm\n\nExit status: 0 all is well; 1 something is damaged; 125 it cannot be read."
    )]
    Verify {
        /// Which.
        #[command(flatten)]
        cache: Chosen,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Push a cache to a remote, where other machines find it
    #[command(after_help = "\
Examples:
  inarch cache push maven s3://builds/caches
  inarch cache push maven file:///mnt/nas/caches --scope team")]
    Push {
        /// Which.
        #[command(flatten)]
        cache: Chosen,
        /// s3://BUCKET/PREFIX, gs://, az:// or file:///DIR; INARCH_CACHE_REMOTE is the default
        #[arg(value_name = "URL")]
        remote: Option<String>,
    },
    /// Take what is newer at a remote; the bytes of files come when they are read
    #[command(after_help = "\
Examples:
  inarch cache pull maven s3://builds/caches
  inarch cache pull maven https://caches.example/builds")]
    Pull {
        /// Which.
        #[command(flatten)]
        cache: Chosen,
        /// s3://BUCKET/PREFIX, gs://, az://, https:// or file:///DIR; INARCH_CACHE_REMOTE is the default
        #[arg(value_name = "URL")]
        remote: Option<String>,
    },
    /// Free what no cache needs any more, and remove caches that are old or too large
    #[command(after_help = "Examples:\n  inarch cache prune --older-than 720h\n  inarch cache prune --max-size 20G")]
    Prune {
        /// Remove caches that no guest used for TIME
        #[arg(long, value_name = "TIME", value_parser = duration::parse)]
        older_than: Option<Duration>,
        /// Remove those used longest ago, until all together take no more
        #[arg(long, value_name = "SIZE", value_parser = size::parse)]
        max_size: Option<u64>,
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Remove a cache
    #[command(visible_alias = "rm", after_help = "Example:\n  inarch cache remove maven")]
    Remove {
        /// Which.
        #[command(flatten)]
        cache: Chosen,
    },
}
