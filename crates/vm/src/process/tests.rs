//! How a machine's process ends, and how its end is explained.

use std::ffi::OsString;
use std::fs;
use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;

use super::*;

/// A shell in place of QEMU, with `descriptors` inherited, and the other end of its console.
fn shell(script: &str, descriptors: Vec<OwnedFd>) -> (Process, UnixStream) {
    let (console, far) = UnixStream::pair().unwrap();
    let arguments = ["-c", script].map(OsString::from).to_vec();
    let command = MachineCommand { program: "/bin/sh".into(), arguments, descriptors, enclosed: None };
    (Process::spawn(command, console.into(), None).unwrap(), far)
}

const LONG: Duration = Duration::from_secs(60);

#[test]
fn early_end_is_explained_by_the_last_line_of_its_errors() {
    let (process, far) = shell("echo first >&2; echo 'qemu: no such machine' >&2; exit 1", vec![]);
    drop(far);
    let failure = process.explain(Symptom::Closed);
    assert_eq!(failure.to_string(), "QEMU failed (exit status 1): qemu: no such machine");
    assert_eq!(failure.tail(), ["first"]);
}

#[test]
fn panic_on_the_console_is_the_reason() {
    let (process, mut far) = shell("exit 0", vec![]);
    far.write_all(b"[    0.5] Kernel panic - not syncing: VFS: no root\r\n[    0.6] ---[ end ]---\r\n").unwrap();
    drop(far);
    let failure = process.explain(Symptom::Closed);
    assert_eq!(failure.to_string(), "the guest's kernel stopped: Kernel panic - not syncing: VFS: no root");
}

#[test]
fn silence_kills_and_shows_the_console() {
    let (process, mut far) = shell("exec sleep 1000", vec![]);
    far.write_all(b"booting \x1b[31mnow\n").unwrap();
    drop(far);
    let failure = process.explain(Symptom::Silence(Duration::from_secs(3)));
    assert_eq!(failure.to_string(), "the guest did not answer within 3 s; its last line was: booting [31mnow");
    assert_eq!(process.wait(Duration::ZERO).unwrap().signal(), Some(9));
}

#[test]
fn end_without_a_word_is_a_power_off() {
    let (process, far) = shell("exit 0", vec![]);
    drop(far);
    assert_eq!(process.explain(Symptom::Closed), GuestFailure::PoweredOff { tail: vec![] });
}

#[test]
fn only_named_descriptors_are_inherited() {
    // Recognised by its file, not its number: the other process may open something else at that number.
    let stray = tempfile::NamedTempFile::new().unwrap();
    rustix::io::fcntl_setfd(stray.as_file(), rustix::io::FdFlags::empty()).unwrap();
    let (mut far_named, named) = io::pipe().unwrap();
    let number = named.as_raw_fd();
    // By its path: `>&` takes numbers of one digit only, in some shells.
    let (process, _far) = shell(&format!("ls -l /proc/$$/fd >/proc/$$/fd/{number}"), vec![named.into()]);
    process.wait(LONG).unwrap();
    drop(process);
    let mut listing = String::new();
    far_named.read_to_string(&mut listing).unwrap();
    assert!(listing.lines().any(|line| line.contains(&format!(" {number} -> pipe:"))), "{listing}");
    assert!(!listing.contains(&*stray.path().to_string_lossy()), "{listing}");
}

#[test]
fn its_time_is_told_while_it_runs() {
    // A child that has ended counts, too.
    let (process, _far) = shell("(i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done) & wait; exec sleep 1000", vec![]);
    let end = std::time::Instant::now() + LONG;
    while process.cpu().is_some_and(|cpu| cpu.is_zero()) && std::time::Instant::now() < end {
        thread::sleep(Duration::from_millis(10));
    }
    assert!(process.cpu().is_some_and(|cpu| !cpu.is_zero()));
    process.kill();
    assert_eq!(process.cpu(), None);
}

#[test]
fn dropping_kills() {
    let (process, _far) = shell("exec sleep 1000", vec![]);
    let pidfd = process.pidfd().try_clone_to_owned().unwrap();
    drop(process);
    assert!(rustix::process::pidfd_send_signal(&pidfd, Signal::KILL).is_err());
}

#[test]
fn missing_program_is_named() {
    let (console, _far) = UnixStream::pair().unwrap();
    let command =
        MachineCommand { program: "/nonexistent/qemu".into(), arguments: vec![], descriptors: vec![], enclosed: None };
    let error = Process::spawn(command, console.into(), None).unwrap_err();
    assert!(error.to_string().starts_with("cannot start /nonexistent/qemu: "), "{error}");
}

#[test]
fn output_is_bounded() {
    let (process, mut far) = shell("exec sleep 1000", vec![]);
    far.write_all(&vec![b'x'; TAIL * 3]).unwrap();
    far.write_all(b"\nend\n").unwrap();
    drop(far);
    assert_eq!(process.console.lines().last().unwrap(), "end");
    assert_eq!(process.console.bytes().len(), TAIL);
}

#[test]
fn log_has_the_whole_console_or_says_why_not() {
    let logged = |log: fs::File| {
        let (console, mut far) = UnixStream::pair().unwrap();
        let arguments = ["-c", "exec sleep 1000"].map(OsString::from).to_vec();
        let command = MachineCommand { program: "/bin/sh".into(), arguments, descriptors: Vec::new(), enclosed: None };
        let process = Process::spawn(command, console.into(), Some(log)).unwrap();
        far.write_all(&b"a line\n".repeat(20_000)).unwrap();
        drop(far);
        process.log_error().map(|error| error.kind())
    };
    let file = tempfile::NamedTempFile::new().unwrap();
    assert_eq!(logged(file.reopen().unwrap()), None);
    assert_eq!(fs::read(file.path()).unwrap(), b"a line\n".repeat(20_000));
    let full = fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    assert_eq!(logged(full), Some(io::ErrorKind::StorageFull));
}
