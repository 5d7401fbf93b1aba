//! Boots a real kernel of this machine in QEMU under TCG.

use std::io::{ErrorKind, Read};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use inarch_vm::accel::probe::probe;
use inarch_vm::kernel::cache::Cache;
use inarch_vm::kernel::discover::Boot;
use inarch_vm::kernel::{Entry, Kernel};
use inarch_vm::process::{GuestFailure, Process, Symptom};
use inarch_vm::qemu::Qemu;
use inarch_vm::{Accel, Arch, Endpoint, Machine};

/// What a test needs; `None`, with the reason printed, if it is missing.
fn machine(test: &str) -> Option<(Qemu, Kernel, tempfile::TempDir)> {
    let Ok(qemu) = Qemu::find(Arch::host()) else {
        println!("skipped: {test}: no QEMU");
        return None;
    };
    if Boot::of_this_machine().best().is_err() {
        println!("skipped: {test}: no kernel that can be read");
        return None;
    }
    let directory = tempfile::tempdir().unwrap();
    let kernel = Kernel::find(&Cache::at(directory.path())).unwrap();
    Some((qemu, kernel, directory))
}

fn pair() -> (Endpoint, OwnedFd) {
    let (theirs, ours) = UnixStream::pair().unwrap();
    (Endpoint::Descriptor(theirs.into()), ours.into())
}

fn start(qemu: &Qemu, kernel: &Kernel, parameters: &[&str]) -> (Process, UnixStream) {
    let (console_end, console) = std::io::pipe().unwrap();
    let console = Endpoint::Descriptor(console.into());
    let (agent, agent_end) = pair();
    let machine = Machine {
        parameters: parameters.iter().map(|word| (*word).to_owned()).collect(),
        agent: Some(agent),
        ..Machine::bare(kernel.clone(), Accel::Tcg, 1, 256 << 20, console)
    };
    (Process::spawn(machine.command(qemu), console_end.into(), None).unwrap(), agent_end.into())
}

#[test]
fn kernel_boots_until_it_misses_its_root_and_the_panic_is_reported() {
    let Some((qemu, kernel, _directory)) = machine("kernel_boots_until_it_misses_its_root_and_the_panic_is_reported")
    else {
        return;
    };
    assert_eq!(kernel.entry, Entry::Pvh, "{kernel:?}");
    let (process, mut agent) = start(&qemu, &kernel, &[]);
    agent.set_read_timeout(Some(Duration::from_secs(120))).unwrap();
    assert_eq!(agent.read(&mut [0; 1]).unwrap(), 0);
    let failure = process.explain(Symptom::Closed);
    assert!(matches!(&failure, GuestFailure::Panic { message, .. } if message.contains("VFS")), "{failure}");
}

#[test]
fn probe_tells_a_kernel_that_comes_up_from_one_that_does_not() {
    let Some((qemu, kernel, _directory)) = machine("probe_tells_a_kernel_that_comes_up_from_one_that_does_not") else {
        return;
    };
    probe(&qemu, &kernel, Accel::Tcg, Duration::from_secs(120)).unwrap();
    let error = probe(&qemu, &kernel, Accel::Tcg, Duration::from_millis(50)).unwrap_err().to_string();
    assert!(error.starts_with("the guest did not answer within 0 s"), "{error}");
}

#[test]
fn kernel_is_unpacked_once_even_by_concurrent_runs() {
    let Some((_, first, directory)) = machine("kernel_is_unpacked_once_even_by_concurrent_runs") else { return };
    let path = directory.path();
    let found: Vec<Kernel> = std::thread::scope(|scope| {
        let finders: Vec<_> = (0..4).map(|_| scope.spawn(|| Kernel::find(&Cache::at(path)).unwrap())).collect();
        finders.into_iter().map(|finder| finder.join().unwrap()).collect()
    });
    assert!(found.iter().all(|kernel| *kernel == first));
    assert_eq!(std::fs::read_dir(path).unwrap().count(), 2);
    // The unpacked file gives the same result.
    let unpacked = Kernel::open(&first.image, Arch::host(), &Cache::at(Path::new("/nonexistent"))).unwrap();
    assert_eq!((unpacked.release, unpacked.modules), (first.release, first.modules));
}

#[test]
fn refused_option_is_reported_in_the_words_of_qemu() {
    let Some((qemu, mut kernel, _directory)) = machine("refused_option_is_reported_in_the_words_of_qemu") else {
        return;
    };
    kernel.image = "/nonexistent/vmlinux".into();
    let (process, mut agent) = start(&qemu, &kernel, &[]);
    agent.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    assert_eq!(agent.read(&mut [0; 1]).unwrap(), 0);
    let message = process.explain(Symptom::Closed).to_string();
    assert!(message.starts_with("QEMU failed (exit status 1): "), "{message}");
    assert!(message.contains("/nonexistent/vmlinux"), "{message}");
}

#[test]
fn killing_the_starter_leaves_no_machine() {
    const CHILD: &str = "INARCH_TEST_START_AND_WAIT";
    if std::env::var_os(CHILD).is_some() {
        let Some((qemu, kernel, _directory)) = machine("killing_the_starter_leaves_no_machine") else { return };
        let (process, _agent) = start(&qemu, &kernel, &["panic=0"]);
        println!("spawned");
        process.wait(Duration::from_secs(120));
        return;
    }
    if machine("killing_the_starter_leaves_no_machine").is_none() {
        return;
    }
    let mut starter = std::process::Command::new(std::env::current_exe().unwrap())
        .args(["boot::killing_the_starter_leaves_no_machine", "--exact", "--nocapture"])
        .env(CHILD, "1")
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    let mut said = String::new();
    let mut output = starter.stdout.take().unwrap();
    while !said.contains("spawned") {
        let mut byte = [0];
        assert_eq!(output.read(&mut byte).unwrap(), 1, "the starter ended: {said}");
        said.push(char::from(byte[0]));
    }
    let machines = children_of(starter.id());
    assert_eq!(machines.len(), 1);
    starter.kill().unwrap();
    starter.wait().unwrap();
    let deadline = Instant::now() + Duration::from_secs(60);
    while machines.iter().any(|&pid| runs(pid)) {
        assert!(Instant::now() < deadline, "QEMU outlived its starter");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// The state and the parent in /proc/PID/stat, which follow the name in parentheses.
fn state_and_parent(pid: u32) -> Option<(String, u32)> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat"));
    let stat = match stat {
        Err(error) if error.kind() == ErrorKind::NotFound => return None,
        stat => stat.ok()?,
    };
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    Some((fields.next()?.to_owned(), fields.next()?.parse().ok()?))
}

fn runs(pid: u32) -> bool {
    state_and_parent(pid).is_some_and(|(state, _)| state != "Z")
}

fn children_of(parent: u32) -> Vec<u32> {
    let processes =
        std::fs::read_dir("/proc").unwrap().filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    processes.filter(|&pid| state_and_parent(pid).is_some_and(|(_, of)| of == parent)).collect()
}
