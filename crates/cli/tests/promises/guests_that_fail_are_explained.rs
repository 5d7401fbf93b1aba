//! Promise: a guest that panics, never speaks, or has no space left is explained in a line, and nothing hangs.

use std::fs::File;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;

use crate::support::mounted::unmount;
use crate::support::{
    INARCH, any_machine, assert_one_line, assert_status, host, inarch, run_script_in, scratch, script_program, stderr,
    stdout,
};

#[test]
fn a_panic_is_the_runs_failure() {
    let dir = scratch();
    for machine in ["--accel=tcg", any_machine()] {
        let script = "echo before; sleep 0.2; echo c > /proc/sysrq-trigger; sleep 100";
        let output = run_script_in(machine, dir.path(), &["-u", "root"], script, b"");
        assert_one_line(&output, &["Kernel panic", "sysrq"]);
        assert_eq!(stdout(&output), "before\n");
    }
}

/// A process has files of this machine for its own start only, and no guest reaches them.
#[test]
fn a_guest_mounts_nothing_of_the_host() {
    let dir = scratch();
    let script = "mkdir /h; mount -t hostfs none /h -o / 2>/dev/null || echo refused; ls /h";
    let output = run_script_in(any_machine(), dir.path(), &["-u", "root"], script, b"");
    assert_status(&output, 0);
    assert_eq!(stdout(&output), "refused\n");
}

/// A kernel by all appearances, which does nothing for ever.
fn silent_kernel(dir: &Path) -> String {
    let release = std::fs::read_dir("/lib/modules").unwrap().next().unwrap().unwrap().file_name();
    let source = format!(
        ".section .note.pvh, \"a\", @note\n.balign 4\n.long 4, 4, 18\n.asciz \"Xen\"\n.long entry\n\
         .text\n.code32\n.globl entry\nentry: jmp entry\n.section .rodata\n.asciz \"Linux version {} (nobody)\"\n",
        release.to_str().unwrap()
    );
    std::fs::write(dir.join("silent.S"), source).unwrap();
    let link = [
        "-nostdlib",
        "-static",
        "-no-pie",
        "-Wl,-Ttext=0x1000000,-e,entry,--build-id=none",
        "-o",
        "silent",
        "silent.S",
    ];
    host("gcc", &link, dir);
    dir.join("silent").to_str().unwrap().to_owned()
}

#[test]
fn a_guest_that_never_speaks_is_given_up() {
    let dir = scratch();
    let kernel = silent_kernel(dir.path());
    let output = inarch(["run", "--quiet", "--accel=tcg", "--boot-timeout=2", "--kernel", &kernel, "--", "true"]);
    assert_one_line(&output, &["did not answer within 2 s"]);
}

/// QEMU's first guest hangs in its kernel, or QEMU crashes.
#[test]
fn a_guest_that_does_not_speak_is_started_once_more() {
    for (first, line) in [
        ("exec qemu-system-x86_64 -S \"$@\"", "did not answer within 30 s; it is started once more"),
        ("kill -ABRT $$", "QEMU crashed while the guest booted (signal 6); it is started once more"),
    ] {
        let dir = scratch();
        let (qemu, begun) = (dir.path().join("qemu"), dir.path().join("begun"));
        let script = "#!/bin/sh\n[ -e BEGUN ] && exec qemu-system-x86_64 \"$@\"\n: > BEGUN\n";
        std::fs::write(&qemu, script.replace("BEGUN", begun.to_str().unwrap()) + first).unwrap();
        host("chmod", &["755", "qemu"], dir.path());
        std::fs::write(dir.path().join("file"), "of the tree\n").unwrap();
        let tree = format!("--tree={}:/mnt/tree", dir.path().display());
        // The first start has half of that.
        let output = Command::new(INARCH)
            .args(["run", "--accel=tcg", "--boot-timeout=60", &tree, "--", "sh", "-c", "cat /mnt/tree/file -"])
            .env("INARCH_QEMU", &qemu)
            .stdin(File::open(&qemu).unwrap())
            .output()
            .unwrap();
        assert_status(&output, 0);
        let whole = format!("of the tree\n{}", std::fs::read_to_string(&qemu).unwrap());
        assert_eq!(stdout(&output), whole);
        assert!(stderr(&output).contains(line), "{}", stderr(&output));
    }
}

/// The reader of the console is slow: it begins when the guest has written all.
#[test]
fn what_the_guest_prints_is_whole() {
    let dir = scratch();
    let console = dir.path().join("console");
    host("mkfifo", &["console"], dir.path());
    // To open a FIFO for reading and writing does not block.
    let mut fifo = File::options().read(true).write(true).open(&console).unwrap();
    let script = "dmesg -n 1; i=0; while [ $i -lt 4500 ]; do i=$((i+1)); echo \"console line $i\"; done > /dev/ttyS0; echo written";
    let mut child = Command::new(INARCH)
        .args(["run", "-q", "--accel=tcg", "--console"])
        .arg(&console)
        .args(["--", "sh", "-c", script])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = String::new();
    BufReader::new(child.stdout.take().unwrap()).read_line(&mut said).unwrap();
    assert_eq!(said, "written\n");
    let mut reader = fifo.try_clone().unwrap();
    let read = thread::spawn(move || {
        let (mut all, mut piece) = (Vec::new(), [0; 4096]);
        while !all.ends_with(b"the end\n") {
            let count = reader.read(&mut piece).unwrap();
            all.extend_from_slice(&piece[..count]);
        }
        String::from_utf8_lossy(&all).replace('\r', "")
    });
    assert!(child.wait().unwrap().success());
    fifo.write_all(b"the end\n").unwrap();
    let (read, lines) = (read.join().unwrap(), (1..=4500).map(|i| format!("console line {i}\n")).collect::<String>());
    assert!(read.contains(&lines), "{} of {} lines", read.matches("console line").count(), 4500);
}

#[test]
fn a_full_disk_is_the_guests_enospc_and_is_told() {
    let dir = scratch();
    let small = dir.path().join("small");
    std::fs::create_dir(&small).unwrap();
    host("mount", &["-t", "tmpfs", "-o", "size=64m", "tmpfs", small.to_str().unwrap()], dir.path());
    let tree = dir.path().join("tree");
    std::fs::create_dir(&tree).unwrap();
    std::fs::write(tree.join("kept"), "content").unwrap();
    let script = "dd if=/dev/zero of=big bs=1M count=100; sync; rm big; cat kept; dd if=/dev/zero of=other bs=1M count=4 && echo again";
    let output = Command::new(INARCH)
        .args(["run", any_machine(), "--overlay-dir"])
        .arg(&small)
        .args(["--", "sh", "-c", script])
        .current_dir(&tree)
        .stdin(Stdio::null())
        .output()
        .unwrap();
    unmount(&small);
    assert_status(&output, 0);
    assert!(stderr(&output).contains("No space left on device"), "{}", stderr(&output));
    assert!(stdout(&output).ends_with("contentagain\n"), "{}", stdout(&output));
    let told = stderr(&output).lines().any(|line| line.starts_with("inarch: ") && line.contains("--overlay-dir"));
    assert!(told, "{}", stderr(&output));
}

#[test]
fn acceleration_is_what_works_and_is_said_once() {
    let dir = scratch();
    // All that is said.
    let run = |option: &str| {
        let output = Command::new(INARCH)
            .args(["run", option, "echo", "works"])
            .current_dir("/usr")
            .env("XDG_CACHE_HOME", dir.path())
            .stdin(Stdio::null())
            .output()
            .unwrap();
        assert_status(&output, 0);
        assert_eq!(stdout(&output), "works\n");
        stderr(&output).lines().map(str::to_owned).collect::<Vec<_>>()
    };
    // Nor does a run whose QEMU failed: its message stands alone.
    for _ in 0..2 {
        let mut bad = Command::new(INARCH);
        bad.args(["run", "--qemu-arg=-no-such-word", "true"]).current_dir("/usr").env("XDG_CACHE_HOME", dir.path());
        assert_one_line(&bad.stdin(Stdio::null()).output().unwrap(), &["QEMU failed", "-no-such-word"]);
    }
    // A quiet run has told nobody.
    assert!(run("--quiet").is_empty());
    let first = run("--rm");
    assert!(first.len() <= 1 && first.iter().all(|line| line.contains("TCG") && line.len() < 120), "{first:?}");
    assert!(run("--rm").is_empty(), "said twice");
    // With --verbose it is said again.
    let again = run("--verbose");
    assert_eq!(again.iter().filter(|line| line.contains("TCG")).count(), first.len(), "{again:?}");
    // Whichever it was, the second run knew: there is a verdict, or there is no /dev/kvm to have one about.
    let verdict = dir.path().join("inarch/kvm-verdicts").exists();
    assert_eq!(verdict, Path::new("/dev/kvm").exists());
}

#[test]
fn what_qemu_says_of_kvm_is_not_shown() {
    if !Path::new("/dev/kvm").exists() {
        return println!("skipped: what_qemu_says_of_kvm_is_not_shown: there is no /dev/kvm");
    }
    let dir = scratch();
    let qemu = dir.path().join("qemu");
    // As QEMU ends on machines whose KVM lacks what it needs.
    script_program(
        &qemu,
        "case \"$*\" in *kvm*) echo 'qemu-system-x86_64: ../target/i386/kvm/kvm.c:3963: kvm_buf_set_msrs: Assertion failed.' >&2
            kill -ABRT $$;; esac; exec qemu-system-x86_64 \"$@\"",
    );
    let run = || {
        let output = Command::new(INARCH)
            .args(["run", "--cpus=1", "echo", "works"])
            .current_dir("/usr")
            .envs([("XDG_CACHE_HOME", dir.path()), ("INARCH_QEMU", &qemu)])
            .stdin(Stdio::null())
            .output()
            .unwrap();
        assert_status(&output, 0);
        assert_eq!(stdout(&output), "works\n");
        stderr(&output)
    };
    let first = run();
    assert!(first.lines().count() <= 1 && !first.contains("Assertion"), "{first}");
    assert_eq!(run(), "");
}

#[test]
fn a_quiet_run_that_runs_out_of_memory_says_so() {
    let hungry = "l = []\nwhile True: l.append(b'x' * (1 << 20))";
    let output = inarch(["run", "-q", any_machine(), "-m", "192M", "--cpus=1", "/usr/bin/python3", "-c", hungry]);
    assert_status(&output, 137);
    let text = stderr(&output);
    let told = text.lines().filter(|line| line.starts_with("inarch: ")).collect::<Vec<_>>();
    assert!(told.len() == 1 && told[0].contains("out of memory") && told[0].contains("--memory"), "{text}");
}

#[test]
fn what_the_guest_has_not_is_said_after_a_failure() {
    let dir = scratch();
    let file = tempfile::NamedTempFile::new_in("/tmp").unwrap();
    let path = file.path().to_str().unwrap();
    let script = "exec 3<>/dev/tcp/192.0.2.1/80 || cat $0";
    let output = Command::new(INARCH)
        .args(["run", any_machine(), "bash", "-c", script, path])
        .current_dir(dir.path())
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert_status(&output, 1);
    let text = stderr(&output);
    let told = |parts: [&str; 2]| {
        let is_told = |line: &str| line.starts_with("inarch: ") && parts.iter().all(|part| line.contains(part));
        assert_eq!(text.lines().filter(|line| is_told(line)).count(), 1, "{parts:?} in {text}");
    };
    told([path, "--tree /tmp"]);
    told(["no network", "--net"]);
    // A name server of this machine's that the guest does not have is the network's; any other port is the command's.
    for (port, is_network) in [(53, true), (9, false)] {
        let script = format!(
            "import socket; s = socket.socket(type=socket.SOCK_DGRAM); s.connect(('127.0.0.1', {port})); s.send(b'?'); s.recv(1)"
        );
        let output = inarch(["run", any_machine(), "/usr/bin/python3", "-c", &script]);
        assert_status(&output, 1);
        let text = stderr(&output);
        assert!(text.contains("ConnectionRefusedError"), "{text}");
        assert_eq!(text.contains("no network"), is_network, "{port}: {text}");
    }
    // A command that succeeds hears of neither.
    let output = Command::new(INARCH)
        .args(["run", "-q", any_machine(), "bash", "-c", "(exec 3<>/dev/tcp/192.0.2.1/80) 2>/dev/null; true", path])
        .current_dir(dir.path())
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert_status(&output, 0);
    assert_eq!(stderr(&output), "");
}
