//! What a trace cost, as `inarch trace --stats` prints it and `--profile` draws it.

use inarch_jobs::counted;
use inarch_jobs::trace::{Calls, Statistics};

use crate::size;

/// Kinds of requests that are named in a line of their own kind; the others are added up.
const NAMED: usize = 6;

/// What a trace cost, in lines.
pub fn lines(statistics: &Statistics) -> Vec<String> {
    let all = statistics.all_requests();
    let mut kinds: Vec<String> =
        statistics.requests.iter().take(NAMED).map(|(kind, count)| format!("{count} {kind}")).collect();
    let others: u64 = statistics.requests.iter().skip(NAMED).map(|(_, count)| count).sum();
    kinds.extend((others > 0).then(|| format!("{others} others")));
    let mut lines = vec![format!("{all} requests: {}", kinds.join(", "))];
    if let Some(Calls { reads, bytes_read, writes, bytes_written }) = statistics.calls {
        for (verb, kind, calls, bytes) in
            [("read", "read", reads, bytes_read), ("wrote", "write", writes, bytes_written)]
        {
            let (times, through) = (counted(calls, "time", "times"), statistics.requests(kind));
            lines.push(format!("the command {verb} {times}, {}; {through} of these came to inarch", size::show(bytes)));
        }
    }
    let (elapsed, own) = (statistics.elapsed.as_secs_f64(), statistics.processor_time.as_secs_f64());
    lines.push(format!("{elapsed:.2} s, of which inarch used {own:.2} s of processor time"));
    lines
}
