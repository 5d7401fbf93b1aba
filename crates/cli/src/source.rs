//! SRC, and the options for what to take of it: the same for every command.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::disk_options::DiskOptions;
use anyhow::Context;
use clap::Args;
use inarch_jobs::share::Submounts;
use inarch_tree::select::{FileContexts, Filter, IdRange, OwnerMap, Owners, PathList, Selection};

/// What SRC may be, for every command's help.
pub const SRC_HELP: &str = "\
A directory; a tar archive (plain, .gz, .zst, .xz; '-' reads one from standard input), or a container image in one, as \
'docker save' writes them; oci:DIR[:TAG] for an OCI image layout, or oci:FILE:TAG for one of several images; \
docker://[REGISTRY/]NAME[:TAG|@DIGEST] for a container image of a registry; s3://BUCKET/PREFIX, gs://, az://, https:// or file:///DIR for a tree that \
'inarch push' has published there; cache:NAME for a cache; \
a disk image with a file system that inarch reads; or IMAGE[:VOLUME][:/PATH], a volume of a disk (1, /dev/sda1, LABEL=root, UUID=...; by default the \
whole guest as its fstab has it; VOLUME@SUBVOL is a Btrfs subvolume of it) and a directory in it; libvirt:DOMAIN for all disks of a virtual machine of libvirt. Files are told apart by their content.";

/// Filters, owners, times and labels.
#[derive(Args, Debug, Clone, Default, PartialEq)]
#[command(next_help_heading = "What is taken")]
pub struct SourceArguments {
    /// Leave out names or paths that match GLOB (a pattern with a slash is anchored at the tree's root)
    #[arg(long, value_name = "GLOB")]
    pub exclude: Vec<String>,

    /// Take what matches GLOB even if an --exclude matches
    #[arg(long, value_name = "GLOB")]
    pub include: Vec<String>,

    /// Leave out what the patterns in FILE match, one on each line, with the rules of .gitignore
    #[arg(long, value_name = "FILE")]
    pub exclude_from: Vec<PathBuf>,

    /// Leave out every path in which the regular expression RE is found ('^usr/share/doc/')
    #[arg(long, value_name = "RE")]
    pub exclude_regex: Vec<String>,

    /// Apply ignore files of this NAME in every directory, with the rules of .gitignore
    #[arg(long, value_name = "NAME")]
    pub ignore_file: Vec<OsString>,

    /// Take only the paths listed in FILE, one on each line, and the directories that they are in
    #[arg(long, value_name = "FILE")]
    pub only: Option<PathBuf>,

    /// Descend into file systems that are mounted below a directory
    #[arg(long)]
    pub cross: bool,

    /// How owners are mapped.
    #[command(flatten)]
    pub owners: OwnerArguments,

    /// Change later times to this one: seconds since 1970
    #[arg(long, value_name = "SECONDS", allow_negative_numbers = true, value_parser = seconds)]
    pub epoch: Option<i64>,

    /// Take what can be read of a damaged archive or image, and report the rest
    #[arg(long)]
    pub salvage: bool,

    /// What a disk image needs beside itself.
    #[command(flatten)]
    pub disk: DiskOptions,

    /// Label files (security.selinux) by the rules of FILE, a policy's file_contexts
    #[arg(long, value_name = "FILE")]
    pub selinux_contexts: Option<PathBuf>,
}

/// How owners are mapped, for snapshots and live trees.
#[derive(Args, Debug, Clone, Default, PartialEq)]
pub struct OwnerArguments {
    /// Owners as they are shown: host (unchanged), map (yours become root's), squash (all root's), or UID:GID
    #[arg(long, value_name = "MAP")]
    pub owner: Option<OwnerMap>,

    /// Map COUNT user ids from FROM on to those from TO on; takes precedence over --owner
    #[arg(long, value_name = "FROM:TO:COUNT")]
    pub map_uid: Vec<IdRange>,

    /// The same for group ids
    #[arg(long, value_name = "FROM:TO:COUNT")]
    pub map_gid: Vec<IdRange>,
}

impl OwnerArguments {
    /// The owner map.
    pub fn owners(&self) -> Owners {
        Owners { map: self.owner.unwrap_or_default(), users: self.map_uid.clone(), groups: self.map_gid.clone() }
    }
}

/// `--cross` for a live directory.
#[derive(Args, Clone, Copy, Debug)]
pub struct CrossArgument {
    /// Show mounts below SRC; without this, a mount point is an empty directory
    #[arg(long)]
    cross: bool,
}

impl From<CrossArgument> for Submounts {
    fn from(argument: CrossArgument) -> Submounts {
        if argument.cross { Submounts::Separate } else { Submounts::Empty }
    }
}

impl SourceArguments {
    /// Whether no option was given.
    pub fn is_all(&self) -> bool {
        *self == SourceArguments::default()
    }

    /// Whether only options were given that a live directory supports too.
    pub fn is_whole(&self) -> bool {
        SourceArguments {
            owners: OwnerArguments::default(),
            cross: false,
            salvage: false,
            disk: DiskOptions::default(),
            ..self.clone()
        }
        .is_all()
    }

    /// The selection; `exclude` adds globs to leave out.
    pub fn selection(&self, exclude: &[String]) -> anyhow::Result<Selection> {
        Ok(Selection {
            filter: self.filter(exclude)?,
            cross: self.cross,
            leave_out: Vec::new(),
            owners: self.owners.owners(),
            only: self
                .only
                .as_deref()
                .map(|file| Ok::<_, anyhow::Error>(PathList::parse(&read(file)?)))
                .transpose()?
                .map(Arc::new),
            epoch: self.epoch,
            salvage: self.salvage,
            contexts: self.selinux_contexts.as_deref().map(contexts).transpose()?.map(Arc::new),
        })
    }

    /// Like [`SourceArguments::selection`], but `SOURCE_DATE_EPOCH` applies if `--epoch` is not given. For output that
    /// stays. Not for a guest: development shells set that variable to 1980, and a build in the guest would see wrong
    /// times.
    pub fn reproducible_selection(&self) -> anyhow::Result<Selection> {
        let mut selection = self.selection(&[])?;
        if let (None, Some(text)) = (selection.epoch, std::env::var_os("SOURCE_DATE_EPOCH").filter(|t| !t.is_empty())) {
            let seconds = text.to_str().and_then(|text| text.parse().ok());
            selection.epoch = Some(seconds.with_context(|| {
                format!("SOURCE_DATE_EPOCH is '{}', which is not a number of seconds since 1970", text.display())
            })?);
        }
        Ok(selection)
    }

    fn filter(&self, exclude: &[String]) -> anyhow::Result<Filter> {
        // The first rule that matches decides, so includes come before excludes.
        let filter = Filter::builder();
        let filter = self.include.iter().fold(filter, |filter, glob| filter.include(glob));
        let filter = self.exclude.iter().chain(exclude).fold(filter, |filter, glob| filter.exclude(glob));
        let filter = self.exclude_regex.iter().fold(filter, |filter, regex| filter.exclude_regex(regex));
        let mut filter = self.ignore_file.iter().fold(filter, |filter, name| filter.ignore_file(name));
        for file in &self.exclude_from {
            filter = filter.exclude_list(&read(file)?);
        }
        Ok(filter.build()?)
    }
}

/// Parses seconds since 1970.
fn seconds(text: &str) -> Result<i64, String> {
    text.parse().map_err(|_| "not a number of seconds since 1970; date +%s -d TIME gives it".to_owned())
}

fn contexts(file: &Path) -> anyhow::Result<FileContexts> {
    let text = String::from_utf8(read(file)?).with_context(|| format!("{}: is not UTF-8 text", file.display()))?;
    FileContexts::parse(&text).map_err(|error| anyhow::anyhow!("{}: {error}", file.display()))
}

fn read(file: &Path) -> anyhow::Result<Vec<u8>> {
    fs::read(file).map_err(|error| anyhow::anyhow!("{}: cannot read it: {error}", file.display()))
}
