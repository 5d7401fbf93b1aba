//! What takes processor time: the stacks that pprof has noted.

use pprof::{Frames, ProfilerGuard};

use super::OWN;
use super::flame::Frame;

/// The function in which the standard library starts what a thread is for. Its callers are the same for all threads.
const BEGIN: &str = "__rust_begin_short_backtrace";

/// Parts of the names of functions that tell nothing: those that note the stack, and those that catch a panic or call a closure.
const OMITTED: [&str; 9] = [
    "pprof::",
    "backtrace::",
    "_Unwind_Backtrace",
    "__restore_rt",
    "__rust_try",
    "catch_unwind",
    "do_call<",
    "AssertUnwindSafe",
    "FnOnce::call_once",
];

/// What each thread's functions took so far.
///
/// # Errors
/// The samples cannot be read.
pub fn busy(sampler: &ProfilerGuard<'_>) -> pprof::Result<Frame> {
    let report = sampler.report().build()?;
    let mut all = Frame::default();
    let each = 1.0 / f64::from(report.timing.frequency.max(1));
    for (frames, count) in report.data.iter().filter(|(frames, _)| frames.thread_name != OWN) {
        let names = names(frames);
        all.add(names.iter().map(String::as_str), *count as f64 * each);
    }
    Ok(all)
}

/// The thread's name and those of the functions, the calling one first.
fn names(frames: &Frames) -> Vec<String> {
    // pprof lists callees before callers, inlined functions too.
    let functions = frames.frames.iter().flatten().map(|symbol| symbol.name());
    let functions = functions.take_while(|name| !name.contains(BEGIN));
    let mut names: Vec<_> = functions.filter(|name| !OMITTED.iter().any(|part| name.contains(part))).collect();
    if names.is_empty() {
        // In a program that was stripped of them.
        names.push("functions without names".to_owned());
    }
    names.push(frames.thread_name_or_id());
    names.reverse();
    names
}
