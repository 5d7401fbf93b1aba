//! Copies files that do not depend on each other with a few threads.

use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use super::error::MakeError;
use super::paths::parent;
use super::plan::How;
use super::sides::Sides;
use super::worker::Worker;

/// The most threads. More of them would wait for the file system's locks.
const THREADS: usize = 4;
/// The most files and bytes that a thread takes at once.
const FILES: usize = 256;
const BYTES: u64 = 4 << 20;

/// A difference, whether it was put in its place at once, and the result.
type Made = (usize, bool, Result<(), MakeError>);

/// Makes all of `copies`: differences, and whether each is put in its place at once.
pub(super) fn make_all(worker: &mut Worker<'_, '_>, copies: &[(usize, bool)]) -> Vec<Made> {
    let task = worker.task;
    let pieces = pieces(task.sides, copies);
    let most = if worker.host.calls.is_in_turn() { 1 } else { THREADS };
    let threads = thread::available_parallelism().map_or(1, usize::from).min(most).min(pieces.len());
    let next = AtomicUsize::new(0);
    let work = |worker: &mut Worker<'_, '_>| {
        let mut made = Vec::new();
        while let Some(piece) = pieces.get(next.fetch_add(1, Ordering::Relaxed)) {
            for (i, at_once) in copies.get(piece.clone()).unwrap_or_default() {
                let result = if *at_once { worker.make_and_place(*i) } else { worker.make(*i, &How::New) };
                made.push((*i, *at_once, result));
            }
        }
        made
    };
    thread::scope(|scope| {
        // Without a descriptor for one more there are fewer.
        let hosts = (1..threads).map_while(|_| worker.host.another().ok());
        let others: Vec<_> = hosts
            .map(|mut host| {
                scope.spawn(move || {
                    let mut other = Worker::new(task, &mut host);
                    let made = work(&mut other);
                    (made, other.lost, other.made_as)
                })
            })
            .collect();
        let mut made = work(worker);
        for other in others {
            let (others, lost, made_as) = other.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            made.extend(others);
            worker.lost.join(&lost);
            worker.made_as.extend(made_as);
        }
        made
    })
}

/// Splits the copies into pieces of one directory each, since two threads in one directory wait for each other. Pieces
/// with large files come first.
fn pieces(sides: &Sides<'_>, copies: &[(usize, bool)]) -> Vec<Range<usize>> {
    let mut pieces: Vec<(Range<usize>, u64)> = Vec::new();
    let mut last: Option<&[u8]> = None;
    for (at, (i, _)) in copies.iter().enumerate() {
        let directory = parent(sides.path(*i));
        let size = sides.new_inode(*i).map_or(0, |(_, inode)| inode.size());
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

#[cfg(test)]
mod tests {
    use super::super::calls::Faults;
    use super::super::world::{Memory, World, fill};

    const DIRECTORIES: [&str; 6] = ["one", "two", "three", "four", "five", "six"];

    #[test]
    fn several_threads_bring_the_same_as_one() {
        let mut world = World::new(|root| {
            for directory in DIRECTORIES {
                fill(
                    root,
                    &[(directory, ""), (&format!("{directory}/old"), "old"), (&format!("{directory}/log"), "log")],
                );
            }
        });
        for directory in DIRECTORIES {
            let path = |name: &str| format!("{directory}/{name}");
            assert!(world.write(&path("old"), directory.as_bytes()) && world.append(&path("log"), b"+more"));
            for name in ["new", "other", "third"] {
                assert!(world.write(&path(name), format!("{name} in {directory}").as_bytes()));
            }
            assert!(world.link(&path("new"), &path("link")) && world.write(&path("taken"), b"the guest's"));
        }
        world.meanwhile = Some(Box::new(|root| {
            for directory in DIRECTORIES {
                fill(&root.join(directory), &[("taken", "the host's")]);
            }
        }));
        let attempt = world.apply(&mut Memory::default(), &[], Faults { is_parallel: true, ..Faults::default() });
        // Each thread tells of its own.
        let mut conflicts: Vec<_> = attempt.outcome.conflicts.iter().map(|(path, _)| path.clone()).collect();
        conflicts.sort();
        let mut expected = DIRECTORIES.map(|directory| format!("{directory}/taken").into_bytes());
        expected.sort();
        assert_eq!(conflicts, expected);
        assert!(attempt.outcome.failures.is_empty(), "{:?}", attempt.outcome.failures);
        let mut guest = world.guest_paths();
        for directory in DIRECTORIES {
            guest.insert(format!("/{directory}/taken"), Some(b"the host's".to_vec()));
        }
        assert_eq!(world.host_paths(), guest);
    }
}
