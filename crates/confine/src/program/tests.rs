//! What an enclosed program sees and may do.

use std::fs;
use std::os::fd::AsFd;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::WaitStatus;

use super::*;

/// Starts a shell that is enclosed with what it needs to start, in a thread of its own, and does `meanwhile` with it.
/// Returns what it wrote to its standard error, and its status. `None` if something encloses this process already.
fn shell(script: &str, inherited: &[BorrowedFd<'_>], sockets: Vec<OwnedFd>) -> Option<(String, WaitStatus)> {
    enclosed(Path::new("/bin/sh"), &["-c", script], inherited, sockets)
}

/// The same with another program. The first of its arguments may be a file.
fn enclosed(
    program: &Path,
    arguments: &[&str],
    inherited: &[BorrowedFd<'_>],
    sockets: Vec<OwnedFd>,
) -> Option<(String, WaitStatus)> {
    let path = program.canonicalize().unwrap();
    let mut enclosure = Enclosure::default().grant(&path, Access::Run).unwrap();
    for place in ["/lib", "/lib64", "/usr/lib", "/etc/ld.so.cache", arguments[0]].map(Path::new) {
        if place.exists() {
            enclosure = enclosure.grant(place, Access::Run).unwrap();
        }
    }
    let arguments: Vec<OsString> = arguments.iter().map(OsString::from).collect();
    let environment = [("NAME", OsString::from("value"))];
    let program = Program { path: &path, arguments: &arguments, environment: &environment, inherited };
    thread::scope(|scope| {
        let (sender, receiver) = mpsc::channel();
        let keeper = scope.spawn(move || match enclosure.start(&program) {
            Ok(Enclosed { pid, errors, door, .. }) => {
                sender.send((errors, door)).unwrap();
                Some(waitpid(Some(pid), WaitOptions::empty()).unwrap().unwrap().1)
            }
            Err(error) if error.kind() == io::ErrorKind::ResourceBusy => None,
            Err(error) => panic!("{error}"),
        });
        let told = receiver.recv().ok().map(|(errors, door)| {
            scope.spawn(move || door.serve(sockets));
            let mut told = String::new();
            File::from(errors).read_to_string(&mut told).unwrap();
            told
        });
        let status = keeper.join().unwrap();
        if status.is_none() {
            println!(
                "skipped: {}: another process listens to this one's calls",
                thread::current().name().unwrap_or_default()
            );
        }
        told.zip(status)
    })
}

#[test]
fn an_enclosed_program_sees_nothing_but_what_it_was_given() {
    // Numbers of one digit: sh takes no others. A test that runs at the same time may have taken the lowest ones.
    let low = || {
        let opened = (0..1000).find_map(|_| {
            let file = File::open("/dev/null").unwrap();
            let is_low = file.as_raw_fd() < 10;
            if !is_low {
                drop(file);
                thread::sleep(Duration::from_millis(10));
                return None;
            }
            Some(file)
        });
        opened.expect("a descriptor of one digit")
    };
    let (kept, other) = (low(), low());
    // That it lacks FD_CLOEXEC must not give it to the program.
    rustix::io::fcntl_setfd(&other, rustix::io::FdFlags::empty()).unwrap();
    let script = format!(
        "echo pid $$ >&2; echo $NAME,$HOME >&2
        for file in /etc/passwd /proc/1/status /dev/null; do {{ read line < $file; }} 2> /dev/fd/2 || echo no $file >&2; done
        {{ echo x > /tmp/inarch-enclosed; }} || echo no writing >&2
        true <&{} && echo has it >&2; true <&{} || echo has no other >&2
        ulimit -c >&2; exit 7",
        kept.as_raw_fd(),
        other.as_raw_fd()
    );
    let Some((told, status)) = shell(&script, &[kept.as_fd()], Vec::new()) else { return };
    assert_eq!(status.exit_status(), Some(7), "{told}");
    for part in
        ["pid 1\n", "value,\n", "no /etc/passwd", "no /proc/1/status", "no writing", "has it", "has no other", "\n0\n"]
    {
        assert!(told.contains(part), "{part}: {told}");
    }
    assert!(!Path::new("/tmp/inarch-enclosed").exists());
}

/// Each of these would reach out of the enclosure, or keep a kernel from its end.
#[test]
fn an_enclosed_program_changes_nothing_and_stays_bound() {
    let dir = tempfile::tempdir().unwrap();
    let file = File::create(dir.path().join("file")).unwrap();
    let script = r#"
        use Socket; use Fcntl;
        sub told { print STDERR "$_[0] ", ($_[1] ? "works" : "fails"), "\n" }
        open(my $file, '>&=', $ENV{NAME} eq 'value' && NUMBER) or die;
        told 'chmod', chmod(04777, $file);
        told 'datagrams', socketpair(my $a, my $b, AF_UNIX, SOCK_DGRAM, 0);
        told 'streams', socketpair(my $c, my $d, AF_UNIX, SOCK_STREAM, 0);
        told 'lease', fcntl($file, 1024, 0);
        my $lock = pack('s s l l i', F_RDLCK, 0, 0, 0, 0) . "\0" x 32;
        told 'lock', fcntl($file, F_SETLK, $lock);
        told 'flags', fcntl($file, F_GETFL, 0);
        told 'orphan', syscall(157, 1, 0, 0, 0, 0) == 0;
        told 'child', syscall(157, 1, 9, 0, 0, 0) == 0;
        told 'abort', kill('ABRT', $$);
        told 'terminate', kill(0, $$);
    "#;
    let script = script.replace("NUMBER", &file.as_raw_fd().to_string());
    let path = dir.path().join("script");
    fs::write(&path, script).unwrap();
    let words = [path.to_str().unwrap()];
    let enclosed = enclosed(Path::new("/usr/bin/perl"), &words, &[file.as_fd()], Vec::new());
    let Some((told, status)) = enclosed else { return };
    let expected = "chmod works\ndatagrams fails\nstreams works\nlease fails\nlock fails\nflags works\norphan fails\nchild works\n\
                    abort fails\nterminate works\n";
    assert_eq!((&*told, status.exit_status()), (expected, Some(0)));
    // It was told so, but nothing was done.
    let mode = std::os::unix::fs::MetadataExt::mode(&file.metadata().unwrap());
    assert_eq!(mode & 0o7777, 0o644, "{mode:o}");
}

#[test]
fn what_cannot_be_started_is_an_error() {
    let start = || {
        let enclosure = Enclosure::default();
        let program = Program { path: Path::new("/nonexistent"), arguments: &[], environment: &[], inherited: &[] };
        enclosure.start(&program).map(drop)
    };
    let error = thread::spawn(start).join().unwrap().unwrap_err();
    assert!(
        [libc::ENOENT, libc::EACCES, libc::EBUSY].contains(&error.raw_os_error().unwrap_or(libc::EBUSY)),
        "{error}"
    );
}

/// What runs in the session that the process began.
fn running(group: i32) -> usize {
    let entries = fs::read_dir("/proc").unwrap().flatten();
    let stats = entries.filter_map(|entry| fs::read_to_string(entry.path().join("stat")).ok());
    let of_group = |stat: &String| {
        let mut words = stat.rsplit(')').next().unwrap_or_default().split_whitespace();
        let state = words.next().unwrap_or("Z");
        words.nth(1).and_then(|word| word.parse().ok()) == Some(group) && !["Z", "X"].contains(&state)
    };
    stats.filter(of_group).count()
}

#[test]
fn its_processes_end_with_the_thread_that_started_it() {
    let ((sender, receiver), (end, ended)) = (mpsc::channel(), mpsc::channel::<()>());
    // The thread starts it and ends without a wait.
    let keeper = thread::spawn(move || {
        let path = Path::new("/bin/sh").canonicalize().unwrap();
        // What runs beside a shell reads from it.
        let enclosure = Enclosure::default().grant(Path::new("/dev/null"), Access::Device).unwrap();
        let mut enclosure = enclosure.grant(&path, Access::Run).unwrap();
        for place in ["/lib", "/lib64", "/usr/lib"].map(Path::new).into_iter().filter(|place| place.exists()) {
            enclosure = enclosure.grant(place, Access::Run).unwrap();
        }
        let script = "(while :; do :; done) & (while :; do :; done) & echo up >&2; wait";
        let arguments = ["-c", script].map(OsString::from);
        let program = Program { path: &path, arguments: &arguments, environment: &[], inherited: &[] };
        let started = match enclosure.start(&program) {
            Err(error) if error.kind() == io::ErrorKind::ResourceBusy => return,
            started => started.unwrap(),
        };
        let mut line = [0; 3];
        File::from(started.errors).read_exact(&mut line).unwrap();
        sender.send(started.pid).unwrap();
        // The other end is gone when its processes were seen.
        let _ = ended.recv();
    });
    let Ok(pid) = receiver.recv() else {
        keeper.join().unwrap();
        println!(
            "skipped: its_processes_end_with_the_thread_that_started_it: another process listens to this one's calls"
        );
        return;
    };
    assert_eq!(running(pid.as_raw_nonzero().get()), 3);
    drop(end);
    keeper.join().unwrap();
    let deadline = Instant::now() + Duration::from_secs(60);
    while running(pid.as_raw_nonzero().get()) > 0 {
        assert!(Instant::now() < deadline, "its processes still run");
        thread::sleep(Duration::from_millis(10));
    }
    let _ = waitpid(Some(pid), WaitOptions::empty());
}
