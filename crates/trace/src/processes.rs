//! Who the processes of a trace are: their parents, the commands that they executed, and how they ended.
//!
//! A process that asks for a file waits for the answer, so it can be looked at meanwhile. That is done by a thread of its own,
//! because the threads that answer are confined. They wait for it when a process is new, and after it has executed something.

use std::collections::HashMap;
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::sync::mpsc::{self, Receiver, Sender, SyncSender};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

use inarch_confine::exit_status;
use inarch_vfs::AccessKind;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::view::VIEW_ARGUMENT;

/// The most bytes of a command that are kept.
const LONGEST_COMMAND: u64 = 64 << 10;

/// The most processes whose end is awaited. Beyond that, ended processes are dropped without their status. The limit is
/// reached only if the kernel does not report statuses (before Linux 6.15), or if parents do not reap their children.
const MOST_AWAITED: usize = 512;

/// A process that used files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TracedProcess {
    /// Its number. The kernel gives a number again when the process is gone.
    pub number: u32,
    /// That of the process that started it, or that took over when that one had ended. 0 if unknown.
    pub parent: u32,
    /// What it was when it was first seen, and each command that it executed since and used a file in: program and arguments. Of
    /// a long one only the beginning.
    pub commands: Vec<Vec<OsString>>,
    /// How it ended, if that is known.
    pub status: Option<ExitStatus>,
}

/// Processes that were seen, and whether one may be executing something since.
type Seen = Arc<Mutex<HashMap<u32, bool>>>;

/// A process to be looked at; the answer is whether it has another command than before. `None` is the end.
type Question = Option<(u32, SyncSender<bool>)>;

/// Observes processes.
pub(super) struct Observer {
    seen: Seen,
    questions: Sender<Question>,
    thread: JoinHandle<Vec<TracedProcess>>,
}

/// The place where processes are seen.
#[derive(Clone)]
pub(super) struct Sight {
    seen: Seen,
    questions: Sender<Question>,
}

fn hold(seen: &Seen) -> MutexGuard<'_, HashMap<u32, bool>> {
    seen.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Observer {
    /// Observes nothing yet.
    ///
    /// # Errors
    /// There can be no more threads.
    pub fn start() -> io::Result<Observer> {
        let seen = Seen::default();
        let (questions, asked) = mpsc::channel();
        let forgotten = Arc::clone(&seen);
        let thread = thread::Builder::new().name("processes".into()).spawn(move || observe(&asked, &forgotten))?;
        Ok(Observer { seen, questions, thread })
    }

    /// Where processes are seen.
    pub fn sight(&self) -> Sight {
        Sight { seen: Arc::clone(&self.seen), questions: self.questions.clone() }
    }

    /// The processes, in the order in which they were first seen. Those that are seen from now on are not recorded.
    pub fn finish(self) -> Vec<TracedProcess> {
        let Observer { questions, thread, .. } = self;
        // It fails only if the thread is gone.
        let _ = questions.send(None);
        thread.join().unwrap_or_default()
    }
}

impl Sight {
    /// A process accesses something, and waits.
    pub fn sees(&self, process: u32, kind: AccessKind) {
        // 0 is the kernel.
        if process == 0 {
            return;
        }
        // None: it is new.
        let before = hold(&self.seen).insert(process, kind == AccessKind::Execute);
        if before == Some(false) {
            return;
        }
        let (reply, answer) = mpsc::sync_channel(1);
        let is_asked = self.questions.send(Some((process, reply))).is_ok();
        let is_changed = is_asked && answer.recv().unwrap_or(true);
        // Until its new command is seen, each access may be the first one of it.
        if before == Some(true) && !is_changed {
            hold(&self.seen).insert(process, true);
        }
    }
}

/// A process, and its pidfd until its end is known.
struct Life {
    process: TracedProcess,
    handle: Option<OwnedFd>,
}

/// The main function of the thread.
fn observe(asked: &Receiver<Question>, seen: &Seen) -> Vec<TracedProcess> {
    let mut lives: Vec<Life> = Vec::new();
    let mut current: HashMap<u32, usize> = HashMap::new();
    let mut awaited: Vec<usize> = Vec::new();
    while let Ok(Some((number, reply))) = asked.recv() {
        collect(&mut lives, &mut awaited, |number| {
            current.remove(&number);
            hold(seen).remove(&number);
        });
        let command = command(number);
        let is_changed = match current.get(&number).and_then(|at| lives.get_mut(*at)) {
            Some(life) if command.is_empty() || life.process.commands.last() == Some(&command) => false,
            Some(life) => {
                life.process.commands.push(command);
                true
            }
            None => {
                let commands = if command.is_empty() { Vec::new() } else { vec![command] };
                let process = TracedProcess { number, parent: parent(number), commands, status: None };
                current.insert(number, lives.len());
                awaited.push(lives.len());
                lives.push(Life { process, handle: handle(number) });
                true
            }
        };
        // A request that is gone needs no answer.
        let _ = reply.send(is_changed);
    }
    collect(&mut lives, &mut awaited, |_| {});
    lives.into_iter().map(|life| life.process).collect()
}

/// Notes the status of those that have ended, and calls `gone` with their numbers.
fn collect(lives: &mut [Life], awaited: &mut Vec<usize>, mut gone: impl FnMut(u32)) {
    let is_full = awaited.len() > MOST_AWAITED;
    awaited.retain(|at| {
        let Some(life) = lives.get_mut(*at) else { return false };
        let Some(handle) = &life.handle else { return false };
        let status = exit_status(handle.as_fd());
        life.process.status = status.map(ExitStatus::from_raw);
        let is_over = status.is_some() || is_full && has_ended(handle);
        if is_over {
            life.handle = None;
            gone(life.process.number);
        }
        !is_over
    });
}

fn has_ended(handle: &OwnedFd) -> bool {
    let mut polled = [PollFd::new(handle, PollFlags::IN)];
    poll(&mut polled, Some(&Timespec::default())).is_ok_and(|ready| ready > 0)
}

fn handle(number: u32) -> Option<OwnedFd> {
    let pid = Pid::from_raw(i32::try_from(number).ok()?)?;
    pidfd_open(pid, PidfdFlags::empty()).ok()
}

/// The words of a process's command; none of the process that becomes the traced one.
fn command(number: u32) -> Vec<OsString> {
    let mut bytes = Vec::new();
    let file = File::open(format!("/proc/{number}/cmdline"));
    // One that cannot be read has no words.
    let _ = file.and_then(|file| file.take(LONGEST_COMMAND).read_to_end(&mut bytes));
    let bytes = bytes.strip_suffix(b"\0").unwrap_or(&bytes);
    let words = bytes.split(|byte| *byte == 0).map(|word| OsStr::from_bytes(word).to_owned());
    let is_ours = bytes.split(|byte| *byte == 0).nth(1) == Some(VIEW_ARGUMENT.as_bytes());
    if bytes.is_empty() || is_ours { Vec::new() } else { words.collect() }
}

/// The parent of a process; 0 if unknown.
pub(super) fn parent(number: u32) -> u32 {
    let status = fs::read_to_string(format!("/proc/{number}/status")).unwrap_or_default();
    let parent = status.lines().find_map(|line| line.strip_prefix("PPid:"));
    parent.and_then(|parent| parent.trim().parse().ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn a_process_is_seen_with_its_commands_and_its_end() {
        let observer = Observer::start().unwrap();
        let sight = observer.sight();
        let script = "read line; exec cat";
        let mut child =
            Command::new("sh").args(["-c", script]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let number = child.id();
        let shell: Vec<OsString> = ["sh", "-c", script].map(OsString::from).to_vec();
        while command(number) != shell {
            thread::yield_now();
        }
        sight.sees(number, AccessKind::Found);
        sight.sees(number, AccessKind::Found);
        sight.sees(number, AccessKind::Execute);
        // It has not executed it yet.
        sight.sees(number, AccessKind::Found);
        let mut input = child.stdin.take().unwrap();
        input.write_all(b"go\nmore\n").unwrap();
        // It is empty in between.
        while command(number) != ["cat"] {
            thread::yield_now();
        }
        sight.sees(number, AccessKind::OpenRead);
        drop(input);
        assert!(child.wait().unwrap().success());
        sight.sees(0, AccessKind::Found);
        // It is seen that it has gone when another one comes; this one has no number that is in use.
        sight.sees(u32::MAX, AccessKind::Found);
        let processes = observer.finish();
        // Nobody waits for a thread that has ended.
        sight.sees(number, AccessKind::Execute);
        let [process, unknown] = &processes[..] else { panic!("{processes:?}") };
        assert_eq!((process.number, process.parent), (number, std::process::id()));
        assert_eq!(process.commands, [shell, vec!["cat".into()]]);
        // Before Linux 6.15 it is not known.
        assert!(process.status.is_none_or(|status| status.success()), "{process:?}");
        let nobody = TracedProcess { number: u32::MAX, parent: 0, commands: Vec::new(), status: None };
        assert_eq!(*unknown, nobody);
    }
}
