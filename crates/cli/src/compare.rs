//! `inarch compare`: measures which way is the fastest for a command: transports to a guest, or this machine without one.

mod chart;
mod host;
mod page;
mod table;

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Arg, Args, ValueEnum};
use inarch_jobs::compare::{self, CompareRequest, HostWay, PackageCaches, PageCache};
use inarch_jobs::run::{Root, Way, WireOptions};
use inarch_jobs::{DiskFormat, Events, WholeFile};

use crate::output::{answer, complain};
use crate::run::{RunArguments, ViaWord, request_of};

/// Options of `inarch run` that are for a single run.
const SINGLE: [&str; 11] = [
    "keep",
    "trace",
    "by_process",
    "report",
    "stats",
    "profile",
    "timings",
    "dry_run",
    "tty",
    "interactive",
    "verbose",
];

/// Options of `inarch run` that only guests heed.
const OF_GUESTS: [&str; 19] = [
    "MachineArguments",
    "SourceArguments",
    "root",
    "tree",
    "volume",
    "rw",
    "ro",
    "disk",
    "cache",
    "cache_remote",
    "rm",
    "no_hold",
    "no_project",
    "via",
    "entrypoint",
    "environment",
    "workdir",
    "user",
    "timeout",
];

/// Leaves these out of the help, and says what is not as in a run.
fn of_comparison(argument: Arg) -> Arg {
    match argument.get_id().as_str() {
        "command" => argument.help("The command and its arguments"),
        "via" => argument.hide_default_value(true).help(
            "The ways to compare, separated by commas: ext4, erofs, squashfs, virtiofs, 9p, tar; by default all that the sources can go. Options follow their way: \
             9p,9p,msize=128K,virtiofs,queues=4",
        ),
        id if SINGLE.contains(&id) => argument.hide(true),
        _ => argument,
    }
}

/// Options of `inarch compare`.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  inarch compare make check
  inarch compare --via ext4,virtiofs --runs 5 -- ninja check-llvm
  inarch compare --root oci:app --svg chart.svg -- ./tests
  inarch compare --peer 'virtme-ng=vng -r -- make check' make check
  inarch compare --host -- sh -c 'make clean; make'
  inarch compare --cache npm --net --package-cache both npm ci
  inarch compare --json make check | jq '.best'

Every way has a turn in each round. A way that fails is named, and the others go on. The whole run counts: preparation, boot, command, and the machine's end. The \
command's writes in a guest are thrown away, except those to a directory that is shared by -v or rw.

Exit status: 0 if at least one way was measured, else 125.")]
#[command(mut_args(of_comparison))]
pub struct CompareArguments {
    /// How many times each way is measured, in each state of the page cache
    #[arg(long, value_name = "N", default_value = "3", value_parser = clap::value_parser!(u32).range(1..=1000),
        help_heading = "Comparison")]
    runs: u32,

    /// Without guests: the command by itself (native), in a mount of the current directory (mount), under 'inarch trace' (trace), and
    /// under strace where that is installed. Its writes stay
    #[arg(long, conflicts_with_all = OF_GUESTS, help_heading = "Comparison")]
    host: bool,

    /// Also measure a command line of this machine, by a shell: another program's way to do the same work. Its writes stay
    /// (repeatable)
    #[arg(long, value_name = "NAME=CMD", value_parser = host::named, help_heading = "Comparison")]
    peer: Vec<HostWay>,

    /// This machine's page cache before each run: empty (only root can empty it), warm (filled by a run that is not
    /// measured), or both in turn
    #[arg(
        long,
        value_name = "empty|warm|both",
        default_value = "warm",
        value_enum,
        hide_possible_values = true,
        help_heading = "Comparison"
    )]
    page_cache: States,

    /// The caches of --cache before each run: empty (and what a run adds is thrown away), filled as the runs before left them, or both,
    /// each with its turns
    #[arg(
        long,
        value_name = "empty|filled|both",
        value_enum,
        hide_possible_values = true,
        help_heading = "Comparison"
    )]
    package_cache: Option<Fillings>,

    /// Print JSON, with every run
    #[arg(long, conflicts_with_all = ["csv", "markdown"], help_heading = "Comparison")]
    json: bool,

    /// Print CSV, a line for each run
    #[arg(long, conflicts_with = "markdown", help_heading = "Comparison")]
    csv: bool,

    /// Print a table in Markdown
    #[arg(long, help_heading = "Comparison")]
    markdown: bool,

    /// Draw a chart into FILE, as an SVG picture
    #[arg(long, value_name = "FILE", help_heading = "Comparison")]
    svg: Option<PathBuf>,

    /// Write the chart, the table and each run to FILE, as a page for a browser
    #[arg(long, value_name = "FILE", help_heading = "Comparison")]
    html: Option<PathBuf>,

    /// What is run.
    #[command(flatten)]
    run: RunArguments,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum States {
    Empty,
    Warm,
    Both,
}

impl States {
    fn list(self) -> Vec<PageCache> {
        match self {
            States::Empty => vec![PageCache::Empty],
            States::Warm => vec![PageCache::Warm],
            States::Both => vec![PageCache::Empty, PageCache::Warm],
        }
    }
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Fillings {
    Empty,
    Filled,
    Both,
}

impl Fillings {
    fn list(self) -> Vec<PackageCaches> {
        match self {
            Fillings::Empty => vec![PackageCaches::Empty],
            Fillings::Filled => vec![PackageCaches::Filled],
            Fillings::Both => vec![PackageCaches::Filled, PackageCaches::Empty],
        }
    }
}

/// Measures, and prints what was found.
pub fn run(arguments: CompareArguments) -> anyhow::Result<ExitCode> {
    let CompareArguments { runs, host, peer, page_cache, package_cache, json, csv, markdown, svg, html, mut run } =
        arguments;
    for (is_given, option) in [
        (run.keep.is_some(), "--keep"),
        (run.trace.is_some(), "--trace"),
        (run.report.is_some(), "--report"),
        (run.stats, "--stats"),
        (run.profile.is_given(), "--profile"),
        (run.timings.is_some(), "--timings"),
        (run.dry_run, "--dry-run"),
        (run.tty, "--tty"),
    ] {
        anyhow::ensure!(!is_given, "{option} is for a single run; 'inarch compare' makes several");
    }
    anyhow::ensure!(!run.command.is_empty(), "say which command to compare: inarch compare CMD...");
    let (quiet, is_whole) = (run.quiet, run.source.is_whole());
    let asked = run.ways()?;
    run.via = vec![ViaWord::Way(Way::Auto)];
    // What a project fixes is for guests.
    run.no_project |= host;
    // The ways are compared, whichever one the project fixes.
    let request = request_of(run, &["via"])?;
    let ways = if host { Vec::new() } else { ways(asked, &request.root, is_whole)? };
    let mut host_ways = if host { host::ways(&request.command)? } else { Vec::new() };
    host_ways.extend(peer);
    host::check(&ways, &host_ways)?;
    let chart = svg.as_deref().map(WholeFile::create).transpose()?;
    let page = html.as_deref().map(WholeFile::create).transpose()?;
    let events = Events::new(move |event| {
        if !quiet || matches!(event, compare::CompareEvent::CommandFailed { .. }) {
            complain(event);
        }
    });
    let package_caches = package_cache.map(Fillings::list).unwrap_or_default();
    anyhow::ensure!(
        package_cache.is_none() || !request.caches.is_empty(),
        "--package-cache: the guest gets no cache; --cache NAME gives it one"
    );
    let live = request.caches.iter().find(|cache| cache.live).filter(|_| package_cache.is_some());
    if let Some(cache) = live {
        let name = &cache.place.name;
        anyhow::bail!(
            "--package-cache: the guest writes to cache {name} itself, by virtiofs; compare it without via=virtiofs"
        );
    }
    let request =
        CompareRequest { run: request, ways, host_ways, runs, page_caches: page_cache.list(), package_caches };
    let report = compare::start(request, events)?.wait()?;
    let native = report.results.iter().find(|one| host && one.way == host::NATIVE);
    if let Some(failure) = native.and_then(|native| native.failure.as_deref()) {
        anyhow::bail!("{failure}");
    }
    if !quiet {
        report.machine.warnings.iter().for_each(complain);
    }
    if let Some(chart) = chart {
        chart.file().write_all(chart::svg(&report).as_bytes())?;
        chart.commit()?;
    }
    if let Some(page) = page {
        page.file().write_all(page::html(&report).as_bytes())?;
        page.commit()?;
    }
    answer(match (json, csv, markdown) {
        (true, ..) => serde_json::to_string_pretty(&report)? + "\n",
        (_, true, _) => table::csv(&report),
        (_, _, true) => table::markdown(&report),
        _ => table::text(&report),
    })?;
    Ok(if report.has_figures() { ExitCode::SUCCESS } else { ExitCode::from(125) })
}

/// The ways to compare: those asked for, or all that the sources can go.
fn ways(asked: Vec<(Way, WireOptions)>, root: &Root, is_whole: bool) -> anyhow::Result<Vec<(Way, WireOptions)>> {
    let formats = DiskFormat::ALL.map(Way::Disk);
    let usual = WireOptions::default();
    let is_asked = asked != [(Way::Auto, usual)];
    let mut ways = match is_asked {
        true => without_repeats(asked),
        false => formats.into_iter().chain([Way::Virtiofs, Way::Ninep, Way::Tar]).map(|way| (way, usual)).collect(),
    };
    anyhow::ensure!(
        !ways.iter().any(|(way, _)| *way == Way::Auto),
        "--via: 'auto' is one of the others; name those to compare"
    );
    if !is_asked {
        // A live directory is shared whole; and to unpack all of a machine's files takes longer than anybody waits.
        ways.retain(|(way, _)| (is_whole || !way.is_live()) && (*way != Way::Tar || *root != Root::Host));
    }
    anyhow::ensure!(
        is_whole || !ways.iter().any(|(way, _)| way.is_live()),
        "--via virtiofs or 9p: a live directory is shared whole; what leaves something out or changes times takes a disk"
    );
    Ok(ways)
}

/// Each of them once, in their order.
fn without_repeats(all: Vec<(Way, WireOptions)>) -> Vec<(Way, WireOptions)> {
    let mut ways = Vec::new();
    for way in all {
        if !ways.contains(&way) {
            ways.push(way);
        }
    }
    ways
}
