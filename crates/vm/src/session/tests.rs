//! Tests of sessions with the agent as an ordinary process: everything except the machine.

mod users;

use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::{Arc, LazyLock, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use std::{fs, io, thread};

use rustix::pty::{OpenptFlags, grantpt, ioctl_tiocgptpeer, openpt, unlockpt};
use rustix::termios::{LocalModes, tcgetattr};

use super::streams::window_size;
use super::*;
use crate::agent::AGENT;
use crate::protocol::{User, WindowSize};

/// The agent as an executable file; closed after writing, because a file that is open for writing cannot be executed.
static AGENT_FILE: LazyLock<PathBuf> = LazyLock::new(|| {
    let path = std::env::temp_dir().join(format!("inarch-agent-{}", std::process::id()));
    fs::write(&path, AGENT).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).unwrap();
    path
});

/// A timeout for what must happen.
const LONG: Duration = Duration::from_secs(60);

/// Waits until `condition` holds.
#[track_caller]
fn wait_for(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + LONG;
    while !condition() {
        assert!(Instant::now() < deadline, "{what}");
        thread::sleep(Duration::from_millis(5));
    }
}

struct Agent {
    process: Child,
    socket: UnixStream,
}

impl Agent {
    fn start() -> Self {
        Self::start_by(Command::new(&*AGENT_FILE))
    }

    /// An agent that is the program, or the last program, of `command`.
    fn start_by(mut command: Command) -> Self {
        let (socket, theirs) = UnixStream::pair().unwrap();
        let theirs = OwnedFd::from(theirs);
        command.arg("--session").arg("0").stdin(theirs).process_group(0);
        Self { process: command.spawn().unwrap(), socket }
    }

    /// An agent with these files as `/etc/passwd` and `/etc/group`.
    fn start_among(passwd: &Path, group: &Path) -> Self {
        let script = "mount --bind \"$0\" /etc/passwd && mount --bind \"$1\" /etc/group && shift && exec \"$@\"";
        let mut command = Command::new("unshare");
        command.args(["--mount", "--propagation", "slave", "--", "sh", "-c", script]).args([
            passwd,
            group,
            &AGENT_FILE,
        ]);
        Self::start_by(command)
    }
}

struct Finished {
    report: Result<Report, SessionError>,
    stdout: Vec<u8>,
    stderr: Vec<u8>,
}

impl Finished {
    fn outcome(&self) -> Outcome {
        self.report.as_ref().unwrap().outcome.clone()
    }
}

fn collect(mut from: impl Read + Send + 'static) -> JoinHandle<Vec<u8>> {
    thread::spawn(move || {
        let mut bytes = Vec::new();
        from.read_to_end(&mut bytes).unwrap();
        bytes
    })
}

fn request(words: &[&str]) -> SessionRequest {
    SessionRequest {
        command: words.iter().map(Into::into).collect(),
        environment: vec![("PATH".into(), "/usr/bin:/bin".into())],
        ..Default::default()
    }
}

fn run_with(request: &SessionRequest, input: Option<OwnedFd>, options: &SessionOptions<'_>) -> Finished {
    run_by(Agent::start(), request, input, options)
}

fn run_by(
    mut agent: Agent,
    request: &SessionRequest,
    input: Option<OwnedFd>,
    options: &SessionOptions<'_>,
) -> Finished {
    let (stdout, output) = io::pipe().unwrap();
    let (stderr, error) = io::pipe().unwrap();
    let (stdout, stderr) = (collect(stdout), collect(stderr));
    let streams = Streams { input, output: output.into(), error: error.into() };
    let session = Session::greet(agent.socket, LONG).unwrap();
    let report = session.run(request, streams, options);
    agent.process.wait().unwrap();
    Finished { report, stdout: stdout.join().unwrap(), stderr: stderr.join().unwrap() }
}

fn run(words: &[&str]) -> Finished {
    run_with(&request(words), None, &SessionOptions::default())
}

fn shell(script: &str) -> Finished {
    run(&["sh", "-c", script])
}

#[test]
fn the_exit_status_is_the_commands() {
    assert_eq!(shell("exit 0").outcome(), Outcome::Exited(0));
    assert_eq!(shell("exit 255").outcome(), Outcome::Exited(255));
    assert_eq!(shell("kill -SEGV $$").outcome(), Outcome::Signaled(11));
}

#[test]
fn a_command_that_cannot_start_says_why() {
    let status = |finished: Finished| match finished.outcome() {
        Outcome::Failed { status, message } => (status, message),
        other => panic!("{other:?}"),
    };
    let (code, message) = status(run(&["no-such-command"]));
    assert!(code == 127 && message.contains("no-such-command: command not found"), "{code} {message}");
    assert_eq!(status(run(&["/etc/passwd"])).0, 126);
    assert_eq!(status(run(&["/no/such/file"])).0, 127);
    let lost = SessionRequest { directory: Some("/no/such/folder".into()), ..request(&["true"]) };
    let (code, message) = status(run_with(&lost, None, &SessionOptions::default()));
    assert!(code == 125 && message.contains("/no/such/folder"), "{code} {message}");
    let nobody = SessionRequest { user: Some(User::Name("no-such-user".into())), ..request(&["true"]) };
    let (code, message) = status(run_with(&nobody, None, &SessionOptions::default()));
    assert!(code == 125 && message.contains("no-such-user"), "{code} {message}");
}

#[test]
fn outputs_are_apart_and_every_byte_arrives() {
    let script = "i=0; while [ $i -lt 256 ]; do printf \"\\\\$(printf %03o $i)\"; i=$((i+1)); done; echo wrong >&2";
    let finished = shell(script);
    assert_eq!(finished.stdout, (0..=255).collect::<Vec<u8>>());
    assert_eq!(finished.stderr, b"wrong\n");
    let long = shell("head -c 20000000 /dev/zero | tr '\\0' x; head -c 3000000 /dev/zero >&2");
    assert!(long.stdout.len() == 20_000_000 && long.stdout.iter().all(|byte| *byte == b'x'));
    assert_eq!(long.stderr.len(), 3_000_000);
}

#[test]
fn standard_input_is_streamed_to_its_end() {
    let (reader, mut writer) = io::pipe().unwrap();
    let bytes: Vec<u8> = (0..5_000_000u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let sent = bytes.clone();
    let sender = thread::spawn(move || writer.write_all(&sent).unwrap());
    let finished = run_with(&request(&["cat"]), Some(reader.into()), &SessionOptions::default());
    sender.join().unwrap();
    assert!(finished.stdout == bytes, "{} bytes came back", finished.stdout.len());
}

#[test]
fn a_file_and_dev_null_are_inputs() {
    let file = File::open("/etc/passwd").unwrap();
    let finished = run_with(&request(&["cat"]), Some(file.into()), &SessionOptions::default());
    assert_eq!(finished.stdout, fs::read("/etc/passwd").unwrap());
    let null = File::open("/dev/null").unwrap();
    assert_eq!(run_with(&request(&["cat"]), Some(null.into()), &SessionOptions::default()).stdout, b"");
}

#[test]
fn input_that_nobody_reads_holds_up_nothing() {
    let (reader, mut writer) = io::pipe().unwrap();
    thread::spawn(move || while writer.write_all(&[b'y'; 4096]).is_ok() {});
    let options = SessionOptions { timeout: Some(Duration::from_millis(300)), ..Default::default() };
    let finished = run_with(&request(&["sleep", "600"]), Some(reader.into()), &options);
    assert_eq!(finished.outcome(), Outcome::TimedOut);
}

#[test]
fn a_command_that_ignores_sigterm_is_killed() {
    let options = SessionOptions {
        // Time enough for the shell to ignore the signal.
        timeout: Some(Duration::from_secs(1)),
        kill_grace: Duration::from_millis(200),
        ..Default::default()
    };
    let stubborn = request(&["sh", "-c", "trap '' TERM; while :; do sleep 60; done"]);
    assert_eq!(run_with(&stubborn, None, &options).outcome(), Outcome::TimedOut);
}

#[test]
fn a_background_process_does_not_hold_up_the_end() {
    // Longer than the test's timeout.
    let waiting = thread::spawn(|| shell("sleep 180 & echo done; exit 4"));
    wait_for("the end waits for a background process", || waiting.is_finished());
    let finished = waiting.join().unwrap();
    assert_eq!((finished.outcome(), &finished.stdout[..]), (Outcome::Exited(4), &b"done\n"[..]));
    let noisy = shell("yes & exit 5");
    assert_eq!(noisy.outcome(), Outcome::Exited(5));
}

#[test]
fn a_reader_that_leaves_ends_the_command_by_sigpipe() {
    let agent = Agent::start();
    let (reader, output) = io::pipe().unwrap();
    let (_stderr, error) = io::pipe().unwrap();
    let streams = Streams { input: None, output: output.into(), error: error.into() };
    let reader = thread::spawn(move || {
        let mut reader = reader;
        reader.read_exact(&mut [0; 10]).unwrap();
    });
    let session = Session::greet(agent.socket, LONG).unwrap();
    let report = session.run(&request(&["yes"]), streams, &SessionOptions::default()).unwrap();
    reader.join().unwrap();
    assert_eq!(report.outcome, Outcome::Signaled(13));
}

#[test]
fn a_slow_reader_stops_the_command() {
    let agent = Agent::start();
    let (mut reader, output) = io::pipe().unwrap();
    let (_stderr, error) = io::pipe().unwrap();
    let streams = Streams { input: None, output: output.into(), error: error.into() };
    let counter = tempfile::NamedTempFile::new().unwrap();
    let script = format!(
        "i=0; while [ $i -lt 200 ]; do head -c 100000 /dev/zero; i=$((i+1)); echo $i > {}; done",
        counter.path().display()
    );
    let session = Session::greet(agent.socket, LONG).unwrap();
    let running = thread::spawn(move || {
        session.run(&request(&["sh", "-c", &script]), streams, &SessionOptions::default()).unwrap()
    });
    // None while the file is written.
    let blocks = || fs::read_to_string(counter.path()).unwrap().trim().parse::<u32>().ok();
    wait_for("nothing was written", || blocks().is_some());
    // That something does not happen can only be observed for a while.
    for _ in 0..100 {
        thread::sleep(Duration::from_millis(8));
        let blocks = blocks().unwrap_or(0);
        assert!(blocks < 40, "{blocks} blocks of 100 kB were written though nobody reads");
    }
    let mut bytes = Vec::new();
    reader.read_to_end(&mut bytes).unwrap();
    assert_eq!(bytes.len(), 20_000_000);
    assert_eq!(running.join().unwrap().outcome, Outcome::Exited(0));
}

#[test]
fn a_terminal_has_its_size_and_is_one() {
    let size = WindowSize { rows: 33, columns: 101 };
    let words = ["sh", "-c", "test -t 0 && test -t 1 && test -t 2 && stty size; echo err >&2"];
    let terminal = SessionRequest { terminal: Some(size), ..request(&words) };
    let finished = run_with(&terminal, None, &SessionOptions::default());
    assert_eq!(
        (finished.outcome(), String::from_utf8_lossy(&finished.stdout)),
        (Outcome::Exited(0), "33 101\r\nerr\r\n".into())
    );
    let (reader, mut writer) = io::pipe().unwrap();
    writer.write_all(b"hello\n").unwrap();
    drop(writer);
    let cat = SessionRequest { terminal: Some(size), ..request(&["cat"]) };
    let finished = run_with(&cat, Some(reader.into()), &SessionOptions::default());
    assert_eq!(finished.outcome(), Outcome::Exited(0));
    assert!(finished.stdout.ends_with(b"hello\r\n"), "{:?}", String::from_utf8_lossy(&finished.stdout));
}

/// A serial console, or a terminal that a program made, often has no size.
#[test]
fn a_terminal_without_a_size_is_raw_while_the_command_runs() {
    let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
    grantpt(&master).unwrap();
    unlockpt(&master).unwrap();
    let terminal = ioctl_tiocgptpeer(&master, OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
    let ours = terminal.try_clone().unwrap();
    let echoes = move || tcgetattr(&ours).unwrap().local_modes.contains(LocalModes::ECHO);
    assert!(window_size(&terminal).is_none() && echoes());
    let read = SessionRequest {
        terminal: Some(WindowSize { rows: 24, columns: 80 }),
        ..request(&["sh", "-c", "read line; echo got $line"])
    };
    let running = thread::spawn(move || run_with(&read, Some(terminal), &SessionOptions::default()));
    wait_for("the terminal is not raw", || !echoes());
    rustix::io::write(&master, b"typed\n").unwrap();
    let finished = running.join().unwrap();
    assert_eq!(finished.outcome(), Outcome::Exited(0));
    assert!(finished.stdout.ends_with(b"got typed\r\n"), "{:?}", String::from_utf8_lossy(&finished.stdout));
    assert!(echoes(), "the terminal is as it was");
}

#[test]
fn the_environment_limits_and_mask_are_those_asked_for() {
    let mut wanted = request(&["sh", "-c", "echo $A; umask; ulimit -n; ulimit -Hn; pwd; echo $HOME; id -u"]);
    wanted.environment.push(("A".into(), "b c=d".into()));
    wanted.umask = Some(0o027);
    wanted.open_files = Some((512, 600));
    wanted.directory = Some("/usr".into());
    wanted.user = Some(User::Name("root".into()));
    let finished = run_with(&wanted, None, &SessionOptions::default());
    assert_eq!(String::from_utf8_lossy(&finished.stdout), "b c=d\n0027\n512\n600\n/usr\n/root\n0\n");
}

#[test]
fn a_working_directory_is_made_if_that_is_asked_for() {
    let scratch = tempfile::tempdir().unwrap();
    let path = scratch.path().join("a/b/c");
    let wanted = SessionRequest { directory: Some(path.clone()), make_directory: true, ..request(&["pwd"]) };
    let finished = run_with(&wanted, None, &SessionOptions::default());
    assert_eq!(String::from_utf8_lossy(&finished.stdout).trim_end(), path.display().to_string());
    assert_eq!(path.metadata().unwrap().permissions().mode() & 0o7777, 0o755);

    fs::write(scratch.path().join("file"), "").unwrap();
    for missing in ["file", "file/below"] {
        let directory = scratch.path().join(missing);
        let wanted = SessionRequest { directory: Some(directory.clone()), ..wanted.clone() };
        match run_with(&wanted, None, &SessionOptions::default()).outcome() {
            Outcome::Failed { status: 125, message } => assert!(
                message.contains(&format!("directory {} cannot be made", directory.display()))
                    && message.contains("Not a directory"),
                "{message}"
            ),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_guest_that_does_not_speak_or_dies_is_told_apart() {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let silent = Session::greet(ours, Duration::from_millis(50)).unwrap_err();
    assert!(matches!(silent, SessionError::NoHello { .. }));
    drop(theirs);
    let (ours, theirs) = UnixStream::pair().unwrap();
    drop(theirs);
    assert!(matches!(Session::greet(ours, LONG), Err(SessionError::Closed)));

    let mut agent = Agent::start();
    let session = Session::greet(agent.socket, LONG).unwrap();
    let directory = tempfile::tempdir().unwrap();
    let runs = directory.path().join("runs");
    let script = format!("echo > {}; exec sleep 180", runs.display());
    let killer = thread::spawn(move || {
        wait_for("the command does not begin", || runs.exists());
        agent.process.kill().unwrap();
        agent.process.wait().unwrap();
    });
    let (_stdout, output) = io::pipe().unwrap();
    let (_stderr, error) = io::pipe().unwrap();
    let streams = Streams { input: None, output: output.into(), error: error.into() };
    let report = session.run(&request(&["sh", "-c", &script]), streams, &SessionOptions::default()).unwrap();
    killer.join().unwrap();
    assert_eq!(report.outcome, Outcome::GuestDied);
}

#[test]
fn an_incomplete_line_on_a_terminal_comes_to_its_end() {
    let size = WindowSize { rows: 24, columns: 80 };
    let cat = SessionRequest { terminal: Some(size), ..request(&["cat"]) };
    let options = SessionOptions { timeout: Some(LONG), ..Default::default() };
    for (input, expected) in [("abc", "abc"), ("abc\n", "abc\r\n"), ("", "")] {
        let (reader, mut writer) = io::pipe().unwrap();
        writer.write_all(input.as_bytes()).unwrap();
        drop(writer);
        let finished = run_with(&cat, Some(reader.into()), &options);
        assert_eq!(finished.outcome(), Outcome::Exited(0), "{input:?}");
        assert!(finished.stdout.ends_with(expected.as_bytes()), "{:?}", String::from_utf8_lossy(&finished.stdout));
    }
}

#[test]
fn output_of_a_filter_that_ends_after_the_command_is_kept() {
    let finished = shell("{ sleep 0.01; echo late; } & echo early; exit 3");
    assert_eq!(finished.outcome(), Outcome::Exited(3));
    assert_eq!(String::from_utf8_lossy(&finished.stdout), "early\nlate\n");
}

#[test]
fn a_filter_that_has_work_is_waited_for() {
    let finished = shell("{ timeout 0.2 sh -c 'while :; do :; done'; echo late; } & echo early; exit 3");
    assert_eq!(finished.outcome(), Outcome::Exited(3));
    assert_eq!(String::from_utf8_lossy(&finished.stdout), "early\nlate\n");
}

const HELLO: [u8; 9] = [1, 4, 0, 0, 0, 3, 0, 0, 0];
const STARTED: [u8; 21] = [2, 16, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
const READY: [u8; 5] = [11, 0, 0, 0, 0];
/// Status 0, 2 s in programs and 1 s in the kernel, none without anything to do.
const EXIT: [u8; 45] = [
    7, 40, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x80, 0x84, 0x1e, 0, 0, 0, 0, 0, 0x40, 0x42, 0x0f, 0, 0, 0, 0, 0, 0, 0, 0,
    0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
];

/// Runs a session with a guest that sends these bytes, whatever it receives; its outputs are never read.
fn with_guest_that_says(
    frames: Vec<u8>,
    request: &SessionRequest,
    options: &SessionOptions<'_>,
) -> Result<Report, SessionError> {
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    let guest = thread::spawn(move || {
        // Fails when the session has ended.
        let _ = theirs.write_all(&frames);
        theirs
    });
    let session = Session::greet(ours, LONG).unwrap();
    let (_stdout, output) = io::pipe().unwrap();
    let (_stderr, error) = io::pipe().unwrap();
    let streams = Streams { input: None, output: output.into(), error: error.into() };
    let report = session.run(request, streams, options);
    guest.join().unwrap();
    report
}

#[test]
fn a_guest_that_does_not_keep_to_the_order_is_refused() {
    let output = [3, 1, 0, 0, 0, b'x'];
    let failed = [8, 4, 0, 0, 0, 1, 0, 0, 0];
    let unmounted = [10, 0, 0, 0, 0];
    let mut much = vec![3, 0, 0x80, 0, 0];
    much.resize(5 + 0x8000, 0);
    for (frames, what) in [
        ([&HELLO[..], &HELLO].concat(), "HELLO twice"),
        ([&HELLO[..], &STARTED, &STARTED].concat(), "STARTED twice"),
        ([&HELLO[..], &EXIT, &EXIT].concat(), "after the command's end"),
        ([&HELLO[..], &EXIT, &failed].concat(), "after the command's end"),
        ([&HELLO[..], &EXIT, &output].concat(), "after the command's end"),
        ([&HELLO[..], &EXIT, &unmounted].concat(), "after the command's end"),
        ([&HELLO[..], &unmounted].concat(), "UNMOUNTED before"),
        ([&HELLO[..], &READY, &READY].concat(), "READY twice"),
        ([&HELLO[..], &STARTED, &READY].concat(), "READY twice, or after STARTED"),
        ([&HELLO[..], &much.repeat(33)].concat(), "more output than it may"),
    ] {
        let error = with_guest_that_says(frames, &request(&["true"]), &SessionOptions::default()).unwrap_err();
        assert!(
            matches!(error, SessionError::Conversation(_)) && error.to_string().contains(what),
            "{error}, not {what}"
        );
    }
}

#[test]
fn the_time_limit_holds_though_nobody_reads_the_output() {
    let mut output = vec![3, 0, 0x80, 0, 0];
    output.resize(5 + 0x8000, b'y');
    let flood = [&HELLO[..], &STARTED, &output.repeat(32)].concat();
    let options = SessionOptions {
        timeout: Some(Duration::from_millis(100)),
        kill_grace: Duration::from_millis(100),
        ..Default::default()
    };
    for frames in [flood.clone(), [&flood[..], &EXIT].concat()] {
        let report = with_guest_that_says(frames, &request(&["yes"]), &options).unwrap();
        assert_eq!(report.outcome, Outcome::TimedOut);
    }
}

/// As of `inarch run ... 2>&1 | sleep 1000`, with the real agent.
#[test]
fn the_time_limit_holds_with_both_outputs_in_a_pipe_that_nobody_reads() {
    let mut agent = Agent::start();
    let (_reader, output) = io::pipe().unwrap();
    let error = output.try_clone().unwrap();
    let streams = Streams { input: None, output: output.into(), error: error.into() };
    let options = SessionOptions {
        timeout: Some(Duration::from_millis(300)),
        kill_grace: Duration::from_millis(100),
        ..Default::default()
    };
    let session = Session::greet(agent.socket, LONG).unwrap();
    let report = session.run(&request(&["sh", "-c", "yes & yes >&2"]), streams, &options).unwrap();
    assert_eq!(report.outcome, Outcome::TimedOut);
    agent.process.kill().unwrap();
    agent.process.wait().unwrap();
}

/// With a slow reader, a line of the command's output is not interrupted by a warning.
#[test]
fn warnings_come_after_the_output_before_them() {
    const OUTPUT: [u8; 5] = [3, 0, 0x80, 0, 0];
    let frames = [&OUTPUT[..], &[b'x'; 0x8000]].concat().repeat(6);
    let warning = [9, 4, 0, 0, 0, b'w', b'a', b'r', b'n'];
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    let guest = thread::spawn(move || {
        theirs.write_all(&[&HELLO[..], &STARTED, &frames, &warning, &EXIT].concat()).unwrap();
        theirs
    });
    let (mut stdout, output) = io::pipe().unwrap();
    let (_stderr, error) = io::pipe().unwrap();
    let read = Arc::new(Mutex::new(0));
    let count = Arc::clone(&read);
    let reader = thread::spawn(move || {
        thread::sleep(Duration::from_millis(200));
        let mut piece = [0; 0x8000];
        while let Ok(length @ 1..) = stdout.read(&mut piece) {
            *count.lock().unwrap() += length;
        }
    });
    let warned_at = Mutex::new(None);
    let warn = |text: &str| *warned_at.lock().unwrap() = Some((text.to_owned(), *read.lock().unwrap()));
    let options = SessionOptions { warn: &warn, ..Default::default() };
    let session = Session::greet(ours, LONG).unwrap();
    let streams = Streams { input: None, output: output.into(), error: error.into() };
    assert_eq!(session.run(&request(&["true"]), streams, &options).unwrap().outcome, Outcome::Exited(0));
    guest.join().unwrap();
    reader.join().unwrap();
    let (text, at) = warned_at.into_inner().unwrap().unwrap();
    // The pipe holds 64 KiB that are written and not read, and the thread has a piece that is not counted yet.
    assert!(text == "warn" && at >= 6 * 0x8000 - 0x1_0000 - 0x8000, "{text} after {at} bytes");
}

#[test]
fn the_time_limit_begins_with_the_command() {
    // A busy machine takes its time between the frames that start and end the command.
    let limit = Duration::from_secs(3);
    let (ours, mut theirs) = UnixStream::pair().unwrap();
    let guest = thread::spawn(move || {
        theirs.write_all(&HELLO).unwrap();
        // It mounts what is slow to mount.
        thread::sleep(limit + limit / 10);
        theirs.write_all(&[&STARTED[..], &EXIT].concat()).unwrap();
        theirs
    });
    let session = Session::greet(ours, LONG).unwrap();
    let (_stdout, output) = io::pipe().unwrap();
    let (_stderr, error) = io::pipe().unwrap();
    let streams = Streams { input: None, output: output.into(), error: error.into() };
    let options = SessionOptions { timeout: Some(limit), ..Default::default() };
    let report = session.run(&request(&["true"]), streams, &options).unwrap();
    guest.join().unwrap();
    assert_eq!(report.outcome, Outcome::Exited(0));
}

#[test]
fn a_guest_that_never_starts_the_command_is_given_up() {
    let options = SessionOptions {
        start: Some(Duration::from_millis(50)),
        timeout: Some(Duration::from_secs(1000)),
        ..Default::default()
    };
    let error = with_guest_that_says(HELLO.to_vec(), &request(&["true"]), &options).unwrap_err();
    assert!(matches!(error, SessionError::NotStarted { .. }), "{error}");
}

#[test]
fn a_guest_that_is_ready_starts_the_command_or_is_given_up() {
    let soon = Duration::from_millis(50);
    let said = |frames: &[&[u8]], start| {
        let options = SessionOptions { start, start_when_ready: soon, ..Default::default() };
        with_guest_that_says(frames.concat(), &request(&["true"]), &options)
    };
    for start in [None, Some(LONG)] {
        let error = said(&[&HELLO, &READY], start).unwrap_err();
        assert!(matches!(error, SessionError::NotStartedThoughReady { waited } if waited == soon), "{error}");
        assert!(error.to_string().contains("--console FILE"), "{error}");
    }
    let error = said(&[&HELLO, &READY], Some(Duration::ZERO)).unwrap_err();
    assert!(matches!(error, SessionError::NotStarted { .. }), "{error}");
    assert_eq!(said(&[&HELLO, &READY, &STARTED, &EXIT], None).unwrap().outcome, Outcome::Exited(0));
    // The agent reports it.
    let mut agent = Agent::start();
    let mut first = vec![0; HELLO.len()];
    agent.socket.read_exact(&mut first).unwrap();
    agent.socket.write_all(&request(&["true"]).encode().unwrap()).unwrap();
    let mut next = [0; 5];
    agent.socket.read_exact(&mut next).unwrap();
    assert_eq!(next, READY);
    agent.process.kill().unwrap();
    agent.process.wait().unwrap();
}

#[test]
fn a_guest_that_reads_nothing_after_its_end_is_not_waited_for() {
    // More than the socket holds.
    let long = request(&["a".repeat(100_000).as_str(); 20]);
    let report = with_guest_that_says([&HELLO[..], &EXIT].concat(), &long, &SessionOptions::default()).unwrap();
    assert_eq!(report.outcome, Outcome::Exited(0));
}

/// Signals that a test sends, a byte each.
struct Sent(UnixStream);

impl AsFd for Sent {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl SignalSource for Sent {
    fn pending(&mut self) -> Vec<i32> {
        let mut bytes = [0; 16];
        let length = self.0.read(&mut bytes).unwrap();
        bytes[..length].iter().map(|byte| i32::from(*byte)).collect()
    }
}

#[test]
fn the_first_signal_to_end_ends_a_session_without_a_command() {
    for signal in [2, 15, 1, 3] {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        theirs.write_all(&HELLO).unwrap();
        let session = Session::greet(ours, LONG).unwrap();
        let (_stdout, output) = io::pipe().unwrap();
        let (_stderr, error) = io::pipe().unwrap();
        let streams = Streams { input: None, output: output.into(), error: error.into() };
        let (mut sender, source) = UnixStream::pair().unwrap();
        let running = thread::spawn(move || {
            let catch = || Ok(Box::new(Sent(source.try_clone()?)) as Box<dyn SignalSource>);
            let options = SessionOptions { signals: Some(&catch), ..Default::default() };
            session.run(&request(&["true"]), streams, &options).unwrap()
        });
        sender.write_all(&[signal]).unwrap();
        wait_for("the session goes on", || running.is_finished());
        let report = running.join().unwrap();
        assert_eq!(report, Report { outcome: Outcome::Signaled(signal), started: None, ended: None });
    }
}

#[test]
fn signals_are_passed_on() {
    let (mut reader, output) = io::pipe().unwrap();
    let (_stderr, error) = io::pipe().unwrap();
    let streams = Streams { input: None, output: output.into(), error: error.into() };
    let mut agent = Agent::start();
    let session = Session::greet(agent.socket, LONG).unwrap();
    let script = "trap 'echo got' USR1; echo ready; while :; do sleep 0.01; done";
    let (mut sender, source) = UnixStream::pair().unwrap();
    let running = thread::spawn(move || {
        let catch = || Ok(Box::new(Sent(source.try_clone()?)) as Box<dyn SignalSource>);
        let timeout = Some(LONG);
        let options = SessionOptions { signals: Some(&catch), timeout, ..Default::default() };
        session.run(&request(&["sh", "-c", script]), streams, &options).unwrap()
    });
    let mut line = |expected: &[u8]| {
        let mut bytes = vec![0; expected.len()];
        reader.read_exact(&mut bytes).unwrap();
        assert_eq!(bytes, expected);
    };
    line(b"ready\n");
    sender.write_all(&[libc::SIGUSR1 as u8]).unwrap();
    line(b"got\n");
    sender.write_all(&[libc::SIGALRM as u8]).unwrap();
    assert_eq!(running.join().unwrap().outcome, Outcome::Signaled(14));
    agent.process.wait().unwrap();
}
