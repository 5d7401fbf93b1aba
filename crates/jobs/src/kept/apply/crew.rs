//! The steps that have nothing to do with each other, taken by a few threads.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use super::steps::{Applier, Step};
use crate::kept::diff::TreeDiff;

/// The most threads. More of them wait for the file system's own locks.
const THREADS: usize = 4;
/// The most files that a thread takes at once, and the bytes after which it takes no more.
const FILES: usize = 256;
const BYTES: u64 = 4 << 20;

/// Puts all of `steps`, each of which stands alone.
pub(super) fn put_all(applier: &mut Applier<'_, '_>, steps: &[Step<'_>]) {
    let task = applier.task;
    let pieces = pieces(task.tree, steps);
    let threads = thread::available_parallelism().map_or(1, usize::from).min(THREADS).min(pieces.len());
    let next = AtomicUsize::new(0);
    let work = |applier: &mut Applier<'_, '_>| {
        while let Some(piece) = pieces.get(next.fetch_add(1, Ordering::Relaxed)) {
            for step in steps.get(piece.clone()).unwrap_or_default() {
                applier.attempt(step, Applier::put);
            }
        }
    };
    thread::scope(|scope| {
        // Without a descriptor for one more there are fewer.
        let hosts = (1..threads).map_while(|_| applier.host.another().ok());
        let others: Vec<_> = hosts
            .map(|mut host| {
                scope.spawn(move || {
                    let mut other = Applier::new(task, &mut host);
                    work(&mut other);
                    other.outcome
                })
            })
            .collect();
        work(applier);
        for other in others {
            applier.outcome.join(other.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        }
    });
}

/// Cuts the steps into pieces of one directory each, as far as they are sorted: two threads in one directory wait for
/// each other. Those with large files come first.
fn pieces(tree: &TreeDiff, steps: &[Step<'_>]) -> Vec<Range<usize>> {
    let mut pieces: Vec<(Range<usize>, u64)> = Vec::new();
    let mut last: Option<&[u8]> = None;
    for (at, step) in steps.iter().enumerate() {
        let path = &step.difference.path;
        let directory = &path[..path.iter().rposition(|byte| *byte == b'/').unwrap_or(0)];
        let size = step.difference.new.map_or(0, |id| tree.disk.guest.inode(id).size());
        match pieces.last_mut() {
            Some((piece, bytes)) if last == Some(directory) && piece.len() < FILES && *bytes + size <= BYTES => {
                piece.end = at + 1;
                *bytes += size;
            }
            _ => pieces.push((at..at + 1, size)),
        }
        last = Some(directory);
    }
    pieces.sort_by_key(|(_, bytes)| *bytes <= BYTES);
    pieces.into_iter().map(|(piece, _)| piece).collect()
}
