//! The options that say which part of a source is taken, alike for every command.

use std::ffi::OsString;

use clap::Args;
use inarch_tree::scan::{Filter, OwnerMap, ScanOptions};

/// Filters and owners.
#[derive(Args, Debug, Clone)]
#[command(next_help_heading = "What is taken")]
pub struct SourceArguments {
    /// Leave out names or paths that match GLOB (a pattern with a slash is anchored at the tree's root)
    #[arg(long, value_name = "GLOB")]
    pub exclude: Vec<String>,

    /// Take what matches GLOB even where an --exclude matches
    #[arg(long, value_name = "GLOB")]
    pub include: Vec<String>,

    /// Honour ignore files of this NAME in every directory, with the rules of .gitignore
    #[arg(long, value_name = "NAME")]
    pub ignore_file: Vec<OsString>,

    /// Go on into other file systems that are mounted below
    #[arg(long)]
    pub cross: bool,

    /// Owners as the guest sees them: host (unchanged), map (yours become root's), squash (all root's), or UID:GID
    #[arg(long, value_name = "MAP")]
    pub owner: Option<OwnerMap>,
}

impl SourceArguments {
    /// What to scan, and how; `exclude` adds to the globs left out.
    pub fn scan_options(&self, exclude: &[String]) -> anyhow::Result<ScanOptions> {
        // The first rule that matches decides: what is included goes before what is left out.
        let filter = Filter::builder();
        let filter = self.include.iter().fold(filter, |filter, glob| filter.include(glob));
        let filter = self.exclude.iter().chain(exclude).fold(filter, |filter, glob| filter.exclude(glob));
        let filter = self.ignore_file.iter().fold(filter, |filter, name| filter.ignore_file(name));
        Ok(ScanOptions {
            cross: self.cross,
            owner: self.owner.unwrap_or(OwnerMap::Host),
            filter: filter.build()?,
            ..ScanOptions::default()
        })
    }
}
