//! `--profile FILE.svg`: where the time of this program's threads goes while it serves, as a flame graph.
//!
//! Two things are sampled. A timer interrupts whichever thread runs, and its stack of functions is noted (pprof): this shows what takes
//! processor time. A thread of the profile's own looks in `/proc` which of the others wait in a system call, and for which file ([`waits`]).
//! The same thread draws the picture at the end: the others may be confined by then.

mod flame;
mod stacks;
mod waits;

use std::io::Write;
use std::path::PathBuf;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use anyhow::anyhow;
use clap::Args;
use inarch_jobs::{WholeFile, shown};
use pprof::{ProfilerGuard, ProfilerGuardBuilder};

use crate::output::complain;
use waits::Waits;

/// How often the running thread's stack is noted, in samples for each second of processor time. Not in step with other timers.
const STACKS_A_SECOND: i32 = 199;

/// The name of the profile's own thread, which is not in it.
const OWN: &str = "profile";

/// The pause between two looks at the waiting threads.
const PAUSE: Duration = Duration::from_millis(10);

/// Which profile is wanted.
#[derive(Args, Clone, Debug, Default)]
pub struct ProfileArgument {
    /// At the end, draw in FILE which of the functions in Inarch took how much time, and which files they waited for: a flame graph
    #[arg(long, value_name = "FILE.svg")]
    pub profile: Option<PathBuf>,
}

impl ProfileArgument {
    /// Whether one is asked for.
    pub fn is_given(&self) -> bool {
        self.profile.is_some()
    }

    /// Begins, if that is asked for. To be called by a thread that is not confined, before those that are to be seen begin.
    ///
    /// # Errors
    /// The file cannot be written, or there is no timer or thread.
    pub fn begin(self) -> anyhow::Result<Option<Profile>> {
        self.profile.map(Profile::begin).transpose()
    }
}

/// A profile that is being made.
#[derive(Debug)]
pub struct Profile {
    end: Sender<String>,
    thread: JoinHandle<anyhow::Result<String>>,
}

impl Profile {
    fn begin(path: PathBuf) -> anyhow::Result<Profile> {
        let file = WholeFile::create(&path)?;
        // No sample is taken within the unwinder itself, which could wait for its own lock.
        let stacks = ProfilerGuardBuilder::default().frequency(STACKS_A_SECOND).blocklist(&["libgcc_s"]).build();
        let stacks = stacks.map_err(|error| anyhow!("--profile: no stack can be noted: {error}"))?;
        let (end, ends) = mpsc::channel::<String>();
        let sample = move || {
            let began = Instant::now();
            let mut waits = Waits::default();
            let told = loop {
                match ends.recv_timeout(PAUSE) {
                    Err(RecvTimeoutError::Timeout) => waits.look(),
                    Ok(told) => break told,
                    // The profile was dropped: its command failed.
                    Err(RecvTimeoutError::Disconnected) => return Ok(String::new()),
                }
            };
            let (drawn, summary) = drawn(&stacks, waits, began.elapsed(), &told)?;
            drop(stacks);
            let written = file.file().write_all(drawn.as_bytes());
            written.map_err(|error| anyhow!("{}: cannot write the profile: {error}", shown(&path)))?;
            file.commit()?;
            Ok(format!("{summary}: {}", shown(&path)))
        };
        let thread = thread::Builder::new().name(OWN.to_owned()).spawn(sample);
        let thread = thread.map_err(|error| anyhow!("--profile: no thread can be started: {error}"))?;
        Ok(Profile { end, thread })
    }

    /// Ends it, and draws it with the lines `told` below.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn end(self, told: String) -> anyhow::Result<()> {
        let ended = self.end.send(told);
        let drawn = self.thread.join().ok().filter(|_| ended.is_ok());
        complain(drawn.ok_or_else(|| anyhow!("--profile: its thread has ended"))??);
        Ok(())
    }
}

/// The picture, and what it shows in half a sentence.
fn drawn(stacks: &ProfilerGuard<'_>, waits: Waits, took: Duration, told: &str) -> anyhow::Result<(String, String)> {
    let busy = stacks::busy(stacks).map_err(|error| anyhow!("--profile: {error}"))?;
    let waiting = waits.into_frames();
    let summary = format!(
        "profile of {:.1} s: {:.2} s of processor time, {:.2} s waited for files",
        took.as_secs_f64(),
        busy.seconds,
        waiting.seconds
    );
    let panels = [
        ("Processor time: threads, and functions that call each other", &busy),
        ("Waiting: threads, system calls, and files", &waiting),
    ];
    Ok((flame::drawn(&summary, &panels, told), summary))
}
