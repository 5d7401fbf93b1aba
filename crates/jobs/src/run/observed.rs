//! The processes of a guest, as its agent reports them.
//!
//! A request for a file has the number of a thread. The agent's report of that thread may come a moment after the request, so
//! numbers that are not known yet are remembered, and resolved at the end. All that comes from a guest is bounded.

use std::collections::{HashMap, HashSet};
use std::ffi::OsString;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use inarch_vm::protocol::ProcessEvent;

use inarch_trace::TracedProcess;

/// The most processes that are remembered.
const MOST: usize = 1 << 20;
/// The most bytes of all their commands.
const MOST_BYTES: usize = 256 << 20;

/// See the module. All clones are the same one.
#[derive(Clone, Debug, Default)]
pub(crate) struct Observed(Arc<Mutex<Table>>);

#[derive(Debug, Default)]
struct Table {
    /// The processes of those threads whose number is not their process's, while they exist.
    threads: HashMap<u32, u32>,
    /// The present process of each number.
    current: HashMap<u32, usize>,
    processes: Vec<TracedProcess>,
    bytes: usize,
    /// Numbers in requests that belong to no known process.
    unknown: HashSet<u32>,
    /// The threads among these numbers, as far as they were found out, and their processes.
    found: HashMap<u32, u32>,
    lacks: bool,
}

/// What is known at the end.
pub(crate) struct Processes {
    /// In the order of their start.
    pub processes: Vec<TracedProcess>,
    /// Threads that requests were recorded of, and their processes.
    pub threads: HashMap<u32, u32>,
    /// Whether something is missing.
    pub lacks: bool,
}

impl Observed {
    fn hold(&self) -> MutexGuard<'_, Table> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The process of a thread; the thread itself if unknown.
    pub fn process_of(&self, thread: u32) -> u32 {
        let mut table = self.hold();
        match table.threads.get(&thread) {
            Some(process) => *process,
            None => {
                if thread != 0 && !table.current.contains_key(&thread) && table.unknown.len() < MOST {
                    table.unknown.insert(thread);
                }
                thread
            }
        }
    }

    /// The agent reports events, in order.
    pub fn happened(&self, events: Vec<ProcessEvent>) {
        let mut table = self.hold();
        events.into_iter().for_each(|event| table.take(event));
    }

    /// What is known now. Forgets it.
    pub fn finish(&self) -> Processes {
        let Table { processes, found, lacks, .. } = std::mem::take(&mut *self.hold());
        Processes { processes, threads: found, lacks }
    }
}

/// The bytes of a command in memory: an empty word takes some, too.
fn size(command: &Vec<OsString>) -> usize {
    command.iter().map(|word| word.len() + size_of_val(word)).sum::<usize>() + size_of_val(command)
}

impl Table {
    fn take(&mut self, event: ProcessEvent) {
        match event {
            ProcessEvent::Started { by, thread, process } if thread == process => self.starts(process, by),
            ProcessEvent::Started { thread, process, .. } => {
                if self.unknown.remove(&thread) {
                    self.found.insert(thread, process);
                }
                if self.threads.len() < MOST {
                    self.threads.insert(thread, process);
                } else {
                    self.lacks = true;
                }
            }
            ProcessEvent::Executed { process, command } => {
                if !self.current.contains_key(&process) {
                    self.starts(process, 0);
                }
                let size = size(&command);
                // It was gone before its words could be read.
                self.lacks |= command.is_empty();
                let at = self.current.get(&process).copied();
                match at.and_then(|at| self.processes.get_mut(at)) {
                    Some(life) if self.bytes + size <= MOST_BYTES => {
                        life.commands.push(command);
                        self.bytes += size;
                    }
                    _ => self.lacks = true,
                }
            }
            ProcessEvent::Ended { thread, process, status } if thread == process => {
                let at = self.current.remove(&process);
                if let Some(life) = at.and_then(|at| self.processes.get_mut(at)) {
                    life.status = Some(ExitStatus::from_raw(status));
                }
            }
            ProcessEvent::Ended { thread, .. } => drop(self.threads.remove(&thread)),
            ProcessEvent::Lost => self.lacks = true,
        }
    }

    /// A process begins as a copy of another one.
    fn starts(&mut self, number: u32, parent: u32) {
        self.unknown.remove(&number);
        // Nothing was heard of the end of the thread that had the number.
        self.threads.remove(&number);
        if self.processes.len() >= MOST {
            self.lacks = true;
            return;
        }
        let copied = self.current.get(&parent).and_then(|at| self.processes.get(*at)?.commands.last());
        let size = copied.map_or(0, size);
        let has_room = self.bytes + size <= MOST_BYTES;
        let commands: Vec<_> = copied.filter(|_| has_room).cloned().into_iter().collect();
        if has_room {
            self.bytes += size;
        } else {
            self.lacks = true;
        }
        self.current.insert(number, self.processes.len());
        self.processes.push(TracedProcess { number, parent, commands, status: None });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(words: &[&str]) -> Vec<OsString> {
        words.iter().map(OsString::from).collect()
    }

    fn started(by: u32, thread: u32, process: u32) -> ProcessEvent {
        ProcessEvent::Started { by, thread, process }
    }

    fn executed(process: u32, command: &[&str]) -> ProcessEvent {
        ProcessEvent::Executed { process, command: words(command) }
    }

    fn ended(number: u32, status: i32) -> ProcessEvent {
        ProcessEvent::Ended { thread: number, process: number, status }
    }

    #[test]
    fn processes_have_their_commands_and_ends() {
        let observed = Observed::default();
        observed.happened(vec![started(1, 20, 20), executed(20, &["sh", "-c", "x"]), started(20, 21, 21)]);
        observed.happened(vec![executed(21, &["cat"]), ended(21, 0x100), started(20, 21, 21), ended(21, 9)]);
        let Processes { processes, lacks, .. } = observed.finish();
        let shell = words(&["sh", "-c", "x"]);
        let process = |number, parent, commands: &[Vec<OsString>], status: Option<i32>| TracedProcess {
            number,
            parent,
            commands: commands.to_vec(),
            status: status.map(ExitStatus::from_raw),
        };
        let expected = [
            process(20, 1, std::slice::from_ref(&shell), None),
            process(21, 20, &[shell.clone(), words(&["cat"])], Some(0x100)),
            process(21, 20, &[shell], Some(9)),
        ];
        assert_eq!(processes, expected);
        assert!(!lacks);
    }

    #[test]
    fn what_a_process_begins_as_takes_room_like_what_it_executes() {
        let observed = Observed::default();
        observed.happened(vec![started(1, 20, 20), executed(20, &[""; 1000])]);
        let once = observed.hold().bytes;
        assert!(once >= 1000 * size_of::<OsString>());
        observed.happened((21..25).map(|number| started(20, number, number)).collect());
        assert_eq!(observed.hold().bytes, 5 * once);
        // No room is left.
        observed.hold().bytes = MOST_BYTES - once + 1;
        observed.happened(vec![started(20, 25, 25)]);
        let Processes { processes, lacks, .. } = observed.finish();
        assert!(lacks && processes.len() == 6);
        assert_eq!(processes.iter().map(|process| process.commands.len()).collect::<Vec<_>>(), [1, 1, 1, 1, 1, 0]);
    }

    #[test]
    fn threads_are_of_their_process_also_if_that_is_heard_later() {
        let observed = Observed::default();
        observed.happened(vec![started(1, 20, 20), started(20, 22, 20)]);
        assert_eq!([0, 20, 22, 23, 24].map(|thread| observed.process_of(thread)), [0, 20, 20, 23, 24]);
        observed.happened(vec![started(20, 23, 20), started(1, 24, 24)]);
        assert_eq!(observed.process_of(23), 20);
        // The number of a thread that has ended is given again.
        observed.happened(vec![ProcessEvent::Ended { thread: 22, process: 20, status: 0 }, started(1, 22, 22)]);
        assert_eq!(observed.process_of(22), 22);
        assert_eq!(observed.finish().threads, HashMap::from([(23, 20)]));
    }

    #[test]
    fn what_is_missing_is_known() {
        for event in [ProcessEvent::Lost, executed(21, &[])] {
            let observed = Observed::default();
            let is_executed = event != ProcessEvent::Lost;
            observed.happened(vec![started(1, 20, 20), executed(20, &["sh"]), started(20, 21, 21), event]);
            let Processes { processes, lacks, .. } = observed.finish();
            assert!(lacks);
            // It executed something else than what it began as.
            let known = processes[1].commands.iter().map(|command| command.len()).collect::<Vec<_>>();
            assert_eq!(known, if is_executed { vec![1, 0] } else { vec![1] });
        }
    }
}
