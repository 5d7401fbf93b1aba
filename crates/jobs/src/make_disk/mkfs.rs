//! Runs a tool that makes a file system on a sparse file.

use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use inarch_lifecycle::PathError;
use inarch_lifecycle::scratch::Scratch;

use super::MakeError;
use super::tools::{Maker, Wish};

/// The most bytes of what a tool says that are read.
const MOST_SAID: u64 = 64 << 10;
/// How often a tool's end is looked for: often at first, as most take a few milliseconds.
const SHORT: Duration = Duration::from_micros(500);
const LONG: Duration = Duration::from_millis(20);

/// How far a tool may go.
#[derive(Clone, Copy, Debug)]
pub(super) struct Limits {
    pub time: Duration,
    /// Bytes that the file may really take.
    pub bytes: u64,
}

impl Limits {
    pub const NONE: Limits = Limits { time: Duration::MAX, bytes: u64::MAX };
}

/// How a tool ended.
#[derive(Debug)]
pub(super) enum Ended {
    Well {
        time: Duration,
    },
    /// With what it said.
    Badly(String),
    Stopped(&'static str),
}

/// Runs the tool of `maker` on `volume`, a file in `scratch`.
pub(super) fn run(
    maker: &Maker,
    wish: &Wish,
    scratch: &Scratch,
    volume: &Path,
    limits: Limits,
) -> Result<Ended, MakeError> {
    let program = maker.find()?;
    let words = maker.words(wish)?;
    let said = scratch.path().join("said");
    let fail = |error: io::Error| PathError::new(&program, "cannot be run", error);
    let output = File::create(&said).map_err(fail)?;
    let second = output.try_clone().map_err(fail)?;
    let mut command = Command::new(&program);
    command.args(words).arg(volume).stdin(Stdio::null()).stdout(output).stderr(second);
    // hformat remembers its volume there; messages are looked at.
    command.env("HOME", scratch.path()).env("LC_ALL", "C.UTF-8");
    let started = Instant::now();
    let mut child = command.spawn().map_err(fail)?;
    let mut pause = SHORT;
    loop {
        if let Some(status) = child.try_wait().map_err(fail)? {
            let time = started.elapsed();
            let reason = || match failure(&said).replace(&*volume.to_string_lossy(), "the volume") {
                text if text.is_empty() => format!("{status}"),
                text => text,
            };
            return Ok(if status.success() { Ended::Well { time } } else { Ended::Badly(reason()) });
        }
        let taken = fs::metadata(volume).map_or(0, |metadata| metadata.blocks().saturating_mul(512));
        let stopped = match (started.elapsed() > limits.time, taken > limits.bytes) {
            (true, _) => Some("it took too long"),
            (_, true) => Some("it took too much room"),
            _ => None,
        };
        if let Some(why) = stopped {
            // It may have ended just now, which comes to the same.
            let _ = child.kill();
            child.wait().map_err(fail)?;
            return Ok(Ended::Stopped(why));
        }
        thread::sleep(pause);
        pause = (pause * 2).min(LONG);
    }
}

/// What a tool said of its failure: the first line that names one, or else the last line. Usage may follow.
fn failure(said: &Path) -> String {
    let mut bytes = Vec::new();
    // Without its output there is its status.
    let _ = File::open(said).and_then(|file| file.take(MOST_SAID).read_to_end(&mut bytes));
    let text = String::from_utf8_lossy(&bytes);
    let lines: Vec<&str> = text.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
    let names_error = |line: &&&str| {
        let line = line.to_lowercase();
        ["error", "cannot", "too ", "must ", "fail", "not ", "minimum", "maximum"]
            .iter()
            .any(|word| line.contains(word))
    };
    let line = lines.iter().find(names_error).or(lines.last()).copied().unwrap_or_default();
    inarch_lifecycle::shown(Path::new(line.trim_end_matches('.')))
}
