//! `inarch cache`: the caches that `inarch run --cache` keeps.

mod arguments;

use std::process::ExitCode;

use anyhow::Context;
use inarch_jobs::JobError;
use inarch_jobs::cache::{CachePlace, CacheRemote, Scope, TOOLS, images};
use inarch_jobs::caches::{self, CacheReport, Limits, OF_REGISTRIES, Published, Pushed};
use inarch_jobs::{counted, shown};
use inarch_tree::select::Selection;

pub use arguments::CacheArguments;
use arguments::{CacheCommand, Chosen};

use crate::cache_option;
use crate::columns::columns;
use crate::duration::ago;
use crate::output::{answer, complain};
use crate::size::show;

/// What the check of a cache found wrong.
const DAMAGED: u8 = 1;

/// Does what was asked.
pub fn run(arguments: CacheArguments) -> anyhow::Result<ExitCode> {
    match arguments.command {
        CacheCommand::List { json } => list(json)?,
        CacheCommand::Show { cache, json } => {
            for place in cache.kept()? {
                let report = caches::show(&place)?;
                answer(if json { serde_json::to_string_pretty(&report)? + "\n" } else { page(&report) })?;
            }
        }
        CacheCommand::Tools { json } => tools(json)?,
        CacheCommand::Warm { cache, src } => {
            let source = src.disk.source(&src.src)?;
            let selection: Selection = Selection::default();
            let place = cache.place()?;
            let published = caches::warm(&place, &source, &selection)?;
            tell_published(&place, &published, &source);
        }
        CacheCommand::Publish { cache, from } => {
            let place = cache.place()?;
            let published = caches::publish_from(&place, &from)?;
            tell_published(&place, &published, &shown(&from));
        }
        CacheCommand::Verify { cache, json } => return verify(&cache, json),
        CacheCommand::Push { cache, remote } => {
            for (place, remote) in cache.at_remote(remote.as_deref(), true)? {
                let pushed = caches::push_to(&place, &remote)?;
                tell_pushed(format_args!("cache {}", place.name), &pushed);
            }
        }
        CacheCommand::Pull { cache, remote } => {
            for (place, remote) in cache.at_remote(remote.as_deref(), false)? {
                match caches::pull_from(&place, &remote)? {
                    None => complain(format_args!("cache {}: the remote has nothing new", place.name)),
                    Some(number) => complain(format_args!("cache {}: generation {number} is here", place.name)),
                }
            }
        }
        CacheCommand::Prune { older_than, max_size, json } => prune(Limits { older_than, max_size }, json)?,
        CacheCommand::Remove { cache } => {
            for place in cache.kept()? {
                caches::remove(&place)?;
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Says what was published of what `from` has.
fn tell_published(place: &CachePlace, published: &Published, from: &dyn std::fmt::Display) {
    let name = &place.name;
    match published.generation {
        None => complain(format_args!("cache {name}: it has all of {from} already")),
        Some(number) => complain(format_args!(
            "cache {name}: {} published, {} new (generation {number})",
            counted(published.files, "file", "files"),
            show(published.bytes)
        )),
    }
}

/// Says what a push has done.
pub fn tell_pushed(what: impl std::fmt::Display, pushed: &Pushed) {
    match pushed.generation {
        None => complain(format_args!("{what}: the remote has all of it")),
        Some(number) => complain(format_args!(
            "{what}: {} sent, {} (generation {number} there)",
            counted(pushed.files, "file", "files"),
            show(pushed.bytes)
        )),
    }
}

impl Chosen {
    /// The cache that is meant, where it can be one only.
    fn place(&self) -> anyhow::Result<CachePlace> {
        let mut places = self.places()?;
        let names: Vec<&str> = places.iter().map(|place| &place.name[..]).collect();
        anyhow::ensure!(names.len() == 1, "{}: these are {}; name one of them", self.name, names.join(" and "));
        Ok(places.remove(0))
    }

    /// The caches that are meant, each with its place at the remote.
    fn at_remote(&self, url: Option<&str>, puts: bool) -> anyhow::Result<Vec<(CachePlace, CacheRemote)>> {
        let remote = cache_option::remote(url)?;
        let remote =
            remote.context("no remote is named: write its URL behind the cache, or set INARCH_CACHE_REMOTE")?;
        let at = |place: CachePlace| {
            let there = CacheRemote::of(&remote, &place, puts)?;
            there.0.on_line(|line| complain(line));
            Ok((place, there))
        };
        self.places()?.into_iter().map(at).collect()
    }

    /// The caches that are meant, also what is kept of a tree at a remote, whose scope is a URL.
    fn kept(&self) -> anyhow::Result<Vec<CachePlace>> {
        if !self.scope.contains("://") {
            return self.places();
        }
        let mut all = caches::all_places()?;
        all.retain(|place| place.name == self.name && place.scope.to_string() == self.scope);
        anyhow::ensure!(!all.is_empty(), "no '{}' of {} is kept; 'inarch cache list' has all", self.name, self.scope);
        Ok(all)
    }

    /// The caches that are meant.
    fn places(&self) -> anyhow::Result<Vec<CachePlace>> {
        let here = std::env::current_dir().context("the current directory cannot be found")?;
        let scope = Scope::parse(&self.scope, &here)?;
        Ok(caches::places(&scope, &self.name)?)
    }
}

fn list(json: bool) -> anyhow::Result<()> {
    let (reports, images) = (caches::list()?, images().map_err(JobError::from)?);
    if json {
        let caches = reports.iter().map(serde_json::to_value);
        let all = caches.chain(images.iter().map(serde_json::to_value)).collect::<Result<Vec<_>, _>>()?;
        return answer(serde_json::to_string_pretty(&all)? + "\n");
    }
    if reports.is_empty() && images.is_empty() {
        complain("there are no caches; inarch run --cache NAME makes one ('inarch cache tools' lists names)");
        return Ok(());
    }
    reports.iter().filter_map(|report| report.damage.as_ref()).for_each(complain);
    let mut rows = vec![["NAME", "FILES", "SIZE", "ON DISK", "USED", "SCOPE"].map(str::to_owned).to_vec()];
    rows.extend(reports.iter().map(|report| {
        let CacheReport { name, files, bytes, stored, used, scope, damage, .. } = report;
        let (files, bytes) = match damage {
            None => (files.to_string(), show(*bytes)),
            Some(_) => ("damaged".to_owned(), "-".to_owned()),
        };
        vec![name.clone(), files, bytes, show(*stored), ago(*used), scope.clone()]
    }));
    rows.extend(images.iter().map(|image| {
        let [name, none] = [&image.name[..], "-"].map(str::to_owned);
        vec![name, none.clone(), none, show(image.stored), ago(image.used), OF_REGISTRIES.to_owned()]
    }));
    answer(columns(&rows, &[1, 2, 3]))
}

/// What is known of one, a line each.
fn page(report: &CacheReport) -> String {
    let CacheReport { name, scope, generation, files, bytes, stored, published, used, made_by, directory, damage: _ } =
        report;
    let rows: Vec<Vec<String>> = [
        ("name", name.clone()),
        ("scope", scope.clone()),
        ("generation", generation.to_string()),
        ("files", files.to_string()),
        ("size", show(*bytes)),
        ("on disk", show(*stored)),
        ("published", if *generation == 0 { "never".to_owned() } else { format!("{} by {made_by}", ago(*published)) }),
        ("used", ago(*used)),
        ("directory", shown(directory.as_ref())),
    ]
    .into_iter()
    .map(|(name, value)| vec![name.to_owned(), value])
    .collect();
    columns(&rows, &[])
}

fn tools(json: bool) -> anyhow::Result<()> {
    if json {
        let all: Vec<_> = TOOLS
            .iter()
            .map(|tool| serde_json::json!({ "name": tool.name, "place": tool.place, "variable": tool.variable, "note": tool.note }))
            .collect();
        return answer(serde_json::to_string_pretty(&all)? + "\n");
    }
    let mut rows = vec![["NAME", "PLACE", "VARIABLE", "NOTE"].map(str::to_owned).to_vec()];
    rows.extend(TOOLS.iter().map(|tool| {
        let place = if tool.place.starts_with('/') { tool.place.to_owned() } else { format!("~/{}", tool.place) };
        vec![tool.name.to_owned(), place, tool.variable.unwrap_or("-").to_owned(), tool.note.to_owned()]
    }));
    answer(columns(&rows, &[]))
}

fn verify(cache: &Chosen, json: bool) -> anyhow::Result<ExitCode> {
    let mut is_damaged = false;
    for place in cache.kept()? {
        let verified = caches::verify(&place)?;
        is_damaged |= !verified.damaged.is_empty();
        if json {
            answer(serde_json::to_string_pretty(&verified)? + "\n")?;
            continue;
        }
        for path in &verified.damaged {
            complain(format_args!(
                "cache {}: {}: its bytes are not those that were published",
                place.name,
                shown(path.as_ref())
            ));
        }
        let good = verified.files - verified.damaged.len() as u64;
        answer(format!(
            "cache {}: {} as published, {} read\n",
            place.name,
            counted(good, "file is", "files are"),
            show(verified.bytes)
        ))?;
        if verified.absent > 0 {
            let files = counted(verified.absent, "file is", "files are");
            answer(format!("cache {}: {files} only at the remote, and not read\n", place.name))?;
        }
    }
    Ok(if is_damaged { DAMAGED.into() } else { ExitCode::SUCCESS })
}

fn prune(limits: Limits, json: bool) -> anyhow::Result<()> {
    let pruned = caches::prune_all(limits)?;
    if json {
        return answer(serde_json::to_string_pretty(&pruned)? + "\n");
    }
    for (scope, name) in &pruned.removed {
        answer(format!("removed {name} of {scope}\n"))?;
    }
    pruned.damaged.iter().for_each(complain);
    if pruned.images_in_use {
        complain("images of registries stay: another program fetches one or has one open");
    }
    answer(format!("{} freed, {} stay\n", show(pruned.before.saturating_sub(pruned.after)), show(pruned.after)))
}
