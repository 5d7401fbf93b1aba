//! Promise: output, input, signals, terminal, user, directory, environment and exit status pass through.

use crate::support;
use std::io::{Read, Write};
use std::path::Path;
use std::process::{Command, Stdio};

use crate::support::{
    INARCH, LONG, any_machine, assert_status, host, run_script, run_script_in, scratch, stderr, stdout, within,
};

#[test]
fn streams_stay_apart_and_byte_exact() {
    let dir = scratch();
    let every_byte: Vec<u8> = (0..=255).cycle().take(20_000_000).map(|b: u32| b as u8).collect();
    let output = run_script(dir.path(), &[], "cat; echo on the other >&2; exit 7", &every_byte);
    assert_status(&output, 7);
    assert!(output.stdout == every_byte, "standard input did not come back byte for byte");
    assert_eq!(stderr(&output), "on the other\n");
}

#[test]
fn place_and_person_are_the_callers() {
    let dir = scratch();
    let output = run_script(
        dir.path(),
        &["-e", "ANSWER=forty two", "-e", "PATH"],
        "pwd; id -u; id -G; echo $ANSWER; echo $HOME; ulimit -n; date +%s; touch written && echo can write;
         cat /proc/sys/kernel/tainted",
        b"",
    );
    assert_status(&output, 0);
    let text = stdout(&output);
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines[0], dir.path().to_str().unwrap());
    assert_eq!(lines[1], host("id", &["-u"], dir.path()).trim());
    assert_eq!(lines[2], host("id", &["-G"], dir.path()).trim());
    assert_eq!(lines[3], "forty two");
    assert_eq!(lines[4], std::env::var("HOME").unwrap_or_default());
    assert!(lines[5].parse::<u64>().is_ok_and(|n| n >= 1024), "ulimit -n is {}", lines[5]);
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
    assert!(lines[6].parse::<u64>().is_ok_and(|t| t.abs_diff(now) < 60), "the guest's clock says {}", lines[6]);
    assert_eq!(lines[7], "can write");
    // How modules are loaded may taint the kernel by their missing signatures (bit 13), but its log has no warning of it (bit 9).
    assert!(lines[8].parse::<u64>().is_ok_and(|bits| bits & !(1 << 13) == 0), "the kernel is tainted: {}", lines[8]);
    assert!(!dir.path().join("written").exists(), "the host tree was written");
}

#[test]
fn another_user_another_directory() {
    let dir = scratch();
    let script = "id -u; id -g; pwd; touch /usr/no 2>/dev/null || echo cannot write";
    let output = run_script_in(any_machine(), dir.path(), &["-u", "nobody", "-w", "/usr/share"], script, b"");
    assert_status(&output, 0);
    assert_eq!(stdout(&output), "65534\n65534\n/usr/share\ncannot write\n");
    let output = run_script_in(any_machine(), dir.path(), &["-u", "1234:5678"], "id -u; id -g", b"");
    assert_status(&output, 0);
    assert_eq!(stdout(&output), "1234\n5678\n");
    let output = run_script_in(any_machine(), dir.path(), &["-u", "who-is-this"], "true", b"");
    support::assert_one_line(&output, &["who-is-this"]);
    let output = run_script_in(any_machine(), dir.path(), &["-w", "/no/such/directory"], "true", b"");
    support::assert_one_line(&output, &["/no/such/directory"]);
}

#[test]
fn statuses_are_a_shells() {
    let dir = scratch();
    let run = |machine: &str, command: &[&str]| {
        let all = [&["run", "--quiet", machine, "--"], command].concat();
        Command::new(INARCH).args(all).current_dir(dir.path()).stdin(Stdio::null()).output().unwrap()
    };
    assert_status(&run(any_machine(), &["true"]), 0);
    assert_status(&run("--accel=tcg", &["sh", "-c", "kill -9 $$"]), 137);
    let missing = run(any_machine(), &["no-such-command"]);
    assert_status(&missing, 127);
    assert!(stderr(&missing).contains("no-such-command"), "{}", stderr(&missing));
    assert_status(&run(any_machine(), &["/etc/passwd"]), 126);
}

#[test]
fn time_limits_end_the_command_with_124() {
    let dir = scratch();
    let output = run_script_in(any_machine(), dir.path(), &["--timeout", "1"], "echo begun; sleep 100000", b"");
    assert_status(&output, 124);
    assert_eq!(stdout(&output), "begun\n");
    assert_eq!(stderr(&output), "inarch: the command ran longer than 1s and was ended (status 124)\n");
}

#[test]
fn signals_reach_the_command() {
    let dir = scratch();
    for (signal, number, machine) in
        [("-INT", 2, any_machine()), ("-TERM", 15, "--accel=tcg"), ("-HUP", 1, any_machine())]
    {
        let name = &signal[1..];
        let script =
            format!("trap 'echo got {name}; exit {}' {name}; echo ready; while :; do sleep 0.1; done", 40 + number);
        let mut child = Command::new(INARCH)
            .args(["run", "--quiet", machine, "--", "sh", "-c", &script])
            .current_dir(dir.path())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut out = child.stdout.take().unwrap();
        let mut ready = [0; 6];
        out.read_exact(&mut ready).unwrap();
        host("kill", &[signal, &child.id().to_string()], dir.path());
        let mut rest = String::new();
        out.read_to_string(&mut rest).unwrap();
        assert_eq!(rest, format!("got {name}\n"));
        assert_eq!(child.wait().unwrap().code(), Some(40 + number));
    }
}

#[test]
fn a_terminal_is_a_terminal() {
    let dir = scratch();
    // script(1) gives the command a terminal of its own, 77 columns wide.
    let command = format!(
        "stty cols 77 rows 33; {INARCH} run --quiet --accel=tcg -t -- sh -c 'test -t 0 && test -t 1 && stty size && tty'"
    );
    let output = host("script", &["-qec", &command, "/dev/null"], dir.path());
    assert!(output.contains("33 77"), "{output}");
    assert!(output.contains("/dev/pts/"), "{output}");
}

#[test]
fn a_reader_that_leaves_ends_the_run() {
    let dir = scratch();
    let mut child = Command::new(INARCH)
        .args(["run", "--quiet", any_machine(), "--", "yes"])
        .current_dir(dir.path())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut some = [0; 4096];
    child.stdout.as_mut().unwrap().read_exact(&mut some).unwrap();
    drop(child.stdout.take());
    assert!(within(LONG, || child.try_wait().unwrap().is_some()), "yes goes on for ever");
}

#[test]
fn background_processes_do_not_hold_the_run() {
    let dir = scratch();
    let output = run_script_in(any_machine(), dir.path(), &[], "sleep 100000 & echo done", b"");
    assert_status(&output, 0);
    assert_eq!(stdout(&output), "done\n");
}

#[test]
fn trees_appear_where_they_are_wanted() {
    let dir = scratch();
    std::fs::create_dir_all(dir.path().join("a/sub")).unwrap();
    std::fs::write(dir.path().join("a/sub/file"), "from a").unwrap();
    std::fs::write(dir.path().join("a/noise.o"), "object").unwrap();
    let tree = format!("{}/a:/new/mount/point,exclude=*.o", dir.path().display());
    let read_only = format!("{}/a:/mnt,ro", dir.path().display());
    let script = "cat /new/mount/point/sub/file; ls /new/mount/point; echo x > /new/mount/point/x && cat /new/mount/point/x; \
                  echo x 2>/dev/null > /mnt/x || echo read-only; cat /mnt/noise.o";
    let output = run_script_in(any_machine(), dir.path(), &["--tree", &tree, "--tree", &read_only], script, b"");
    assert_status(&output, 0);
    assert_eq!(stdout(&output), "from asub\nx\nread-only\nobject");
    assert!(!dir.path().join("a/x").exists());

    // Below /tmp, which is the guest's own, the current directory is brought along.
    let tmp = tempfile::Builder::new().prefix("inarch-test.").tempdir_in("/tmp").unwrap();
    std::fs::write(tmp.path().join("here"), "brought along").unwrap();
    let output = run_script_in(any_machine(), tmp.path(), &[], "cat here; pwd", b"");
    assert_eq!(stdout(&output), format!("brought along{}\n", tmp.path().display()));
}

/// No `--`, and words that docker's users have in their fingers.
#[test]
fn habitual_words_do_what_they_do_elsewhere() {
    let dir = scratch();
    for name in ["written", "read"] {
        std::fs::create_dir(dir.path().join(name)).unwrap();
    }
    std::fs::write(dir.path().join("read/file"), "from the host").unwrap();
    let at = |name: &str, place: &str| format!("{}/{name}:{place}", dir.path().display());
    let script = "cat /media/file; echo x >/mnt/new; (echo x >/media/new) 2>/dev/null || echo refused
                  (echo x >/root-file) 2>/dev/null || echo read-only; echo $0 $*";
    let output = Command::new(INARCH)
        .args(["run", "-q", any_machine(), "-m", "512M", "--rm", "--read-only", "--timeout", "2m"])
        .args(["-v", &at("written", "/mnt"), "--volume", &at("read", "/media:ro")])
        .args(["sh", "-c", script, "-q", "--", "--net"])
        .current_dir(dir.path())
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert_status(&output, 0);
    assert_eq!(stdout(&output), "from the hostrefused\nread-only\n-q -- --net\n");
    assert_eq!(std::fs::read(dir.path().join("written/new")).unwrap(), b"x\n");
    assert!(!dir.path().join("read/new").exists());
}

#[test]
fn ports_kernel_words_and_devices_are_the_guests() {
    let dir = scratch();
    // The test fails if another program takes the port meanwhile.
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let server = "import socket; s = socket.create_server(('', 8000)); print('listening', flush=True); \
                  c = s.accept()[0]; c.sendall(b'from the guest'); c.close()";
    // The last line: the PCI driver maps the devices' registers before the second processor starts, because QEMU 7.2 loses
    // a processor's writes to its interrupt controller while another one changes this map. Such a guest hangs.
    let script = "nproc; grep -o 'my.word=[^ ]*' /proc/cmdline; grep -c 0x1005 /sys/bus/pci/devices/*/device | grep -c ':1'; \
                  dmesg | grep -o 'virtio-pci .*: enabling device\\|smpboot: Booting' | grep -o '^[a-z]*' | uniq | xargs; \
                  exec /usr/bin/python3 -c \"$0\"";
    let mut child = Command::new(INARCH)
        .args(["run", "-q", "--accel=tcg", "--cpus=3", "-p", &format!("{}:8000", free.port()), "--console", "log"])
        .args(["--append", "my.word=a my.word=b", "--qemu-arg", "-device", "--qemu-arg=virtio-rng-pci"])
        .args(["sh", "-c", script, server])
        .current_dir(dir.path())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    // One such device is there always.
    let expected = "3\nmy.word=a\nmy.word=b\n2\nvirtio smpboot\nlistening\n";
    let mut said = vec![0; expected.len()];
    child.stdout.as_mut().unwrap().read_exact(&mut said).unwrap();
    assert_eq!(String::from_utf8_lossy(&said), expected);
    let mut heard = String::new();
    std::net::TcpStream::connect(free).unwrap().read_to_string(&mut heard).unwrap();
    assert_eq!(heard, "from the guest");
    assert!(child.wait().unwrap().success());
    let log = std::fs::read_to_string(dir.path().join("log")).unwrap();
    assert!(log.contains("Linux version"), "{log}");
}

#[test]
fn a_limit_of_processors_that_the_user_gives_the_kernel_stays() {
    let output = support::inarch(["run", "-q", "--accel=tcg", "--cpus=3", "--append", "maxcpus=2", "nproc"]);
    assert_status(&output, 0);
    assert_eq!(stdout(&output), "2\n");
}

#[test]
fn input_from_a_slow_writer_is_streamed() {
    let dir = scratch();
    let mut child = Command::new(INARCH)
        .args(["run", "--quiet", "--accel=tcg", "--", "cat"])
        .current_dir(dir.path())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let (mut to, mut from) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
    for word in [b"one\n", b"two\n", b"six\n"] {
        to.write_all(word).unwrap();
        let mut back = [0; 4];
        from.read_exact(&mut back).unwrap();
        assert_eq!(&back, word);
    }
    drop(to);
    assert_eq!(child.wait().unwrap().code(), Some(0));
}

#[test]
fn output_that_cannot_be_written_is_said() {
    let dir = scratch();
    let full = std::fs::OpenOptions::new().write(true).open("/dev/full").unwrap();
    let output = Command::new(INARCH)
        .args(["run", "--quiet", any_machine(), "--", "echo", "text"])
        .current_dir(dir.path())
        .stdin(Stdio::null())
        .stdout(full)
        .output()
        .unwrap();
    support::assert_one_line(&output, &["standard output", "No space left on device"]);
    // A stream that was closed is nobody's business: the command's status counts.
    let closed = format!("{INARCH} run --quiet {} -- sh -c 'echo text; exit 3' >&-", any_machine());
    let output = Command::new("sh").args(["-c", &closed]).current_dir(dir.path()).output().unwrap();
    assert_status(&output, 3);
}

#[test]
fn a_bind_mount_is_a_directory_to_work_in() {
    let dir = scratch();
    let (from, to) = (dir.path().join("from"), dir.path().join("to"));
    for place in [&from, &to] {
        std::fs::create_dir(place).unwrap();
    }
    std::fs::write(from.join("file"), "from behind the mount").unwrap();
    let (from, to) = (from.to_str().unwrap(), to.to_str().unwrap());
    support::host("mount", &["--bind", from, to], dir.path());
    let output = run_script_in(any_machine(), Path::new(to), &[], "cat file; pwd", b"");
    support::mounted::unmount(Path::new(to));
    assert_status(&output, 0);
    assert_eq!(stdout(&output), format!("from behind the mount{to}\n"));
}
