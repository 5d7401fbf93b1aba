//! Promise: `run --vmm uml` runs a command as under QEMU, with its streams, trees, disks and kept writes; what it cannot do is
//! refused in one line; and nothing of it is left, however it ends.

use std::collections::{BTreeSet, HashSet};
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::support::{INARCH, LONG, assert_one_line, assert_status, host, scratch, stderr, stdout, within};

/// The built command with these words, in `dir`.
fn uml(dir: &Path, words: &[&str]) -> Command {
    let mut command = Command::new(INARCH);
    command.args(["run", "--quiet", "--vmm=uml"]).args(words).current_dir(dir);
    command
}

fn run(dir: &Path, words: &[&str]) -> Output {
    uml(dir, words).stdin(Stdio::null()).output().unwrap()
}

#[test]
fn streams_place_person_and_status_are_the_commands_own() {
    let dir = scratch();
    let every_byte: Vec<u8> = (0..=255).cycle().take(3_000_000).map(|b: u32| b as u8).collect();
    fs::write(dir.path().join("input"), &every_byte).unwrap();
    let script =
        "cat; echo on the other >&2; { pwd; id -u; echo $ANSWER; uname -m; date +%s; } >&2; echo x > written && exit 7";
    let input = fs::File::open(dir.path().join("input")).unwrap();
    let output = uml(dir.path(), &["-e", "ANSWER=forty two", "sh", "-c", script]).stdin(input).output().unwrap();
    assert_status(&output, 7);
    assert!(output.stdout == every_byte, "standard input did not come back byte for byte");
    let told = stderr(&output);
    let lines: Vec<&str> = told.lines().collect();
    assert_eq!(lines[0], "on the other");
    assert_eq!(lines[1], dir.path().to_str().unwrap());
    assert_eq!(lines[2], host("id", &["-u"], dir.path()).trim());
    assert_eq!(&lines[3..5], ["forty two", "x86_64"]);
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
    assert!(lines[5].parse::<u64>().is_ok_and(|t| t.abs_diff(now) < 60), "the guest's clock says {}", lines[5]);
    assert!(!dir.path().join("written").exists(), "the host tree was written");
    assert_status(&run(dir.path(), &["sh", "-c", "kill -9 $$"]), 137);
    // Its kernel's modules are where modprobe(8) looks.
    assert_status(&run(dir.path(), &["-u", "root", "modprobe", "loop"]), 0);
    // A terminal, of the command's own.
    let output = run(dir.path(), &["-t", "sh", "-c", "tty; stty size"]);
    assert!(stdout(&output).starts_with("/dev/pts/"), "{}{}", stdout(&output), stderr(&output));
}

#[test]
fn trees_disks_and_kept_writes_work_as_in_a_machine() {
    let dir = scratch();
    let dir = dir.path();
    for tree in ["one", "two", "three", "four", "live", "project"] {
        fs::create_dir(dir.join(tree)).unwrap();
        fs::write(dir.join(tree).join("name"), tree).unwrap();
    }
    fs::write(dir.join("disk.img"), "").unwrap();
    fs::File::options().write(true).open(dir.join("disk.img")).unwrap().set_len(32 << 20).unwrap();
    let at = |tree: &str| format!("{}:/t/{tree},via=", dir.join(tree).display());
    let trees = [at("one") + "erofs", at("two") + "tar", at("three") + "virtiofs", at("four") + "9p"];
    let live = format!("{}:/t/live", dir.join("live").display());
    let mut words = vec!["-u", "root", "-v", &live, "--disk", "disk.img"];
    trees.iter().for_each(|tree| words.extend(["--tree", tree]));
    let script = "cat /t/*/name; echo back > /t/live/back; echo gone > /t/three/gone && echo gone > /t/one/gone
        mkfs.ext4 -q $INARCH_DISK_1 && mount $INARCH_DISK_1 /mnt && echo on the disk > /mnt/file && umount /mnt && sync";
    words.extend(["sh", "-ec", script]);
    let output = run(dir, &words);
    assert_status(&output, 0);
    assert_eq!(stdout(&output), "fourlivethreeonetwo".replace("threeonetwo", "onethreetwo"));
    assert_eq!(fs::read_to_string(dir.join("live/back")).unwrap(), "back\n");
    assert!(!dir.join("three/gone").exists() && !dir.join("one/gone").exists());
    let file = host("debugfs", &["-R", "cat /file", "disk.img"], dir);
    assert_eq!(file, "on the disk\n");
    host("e2fsck", &["-fn", "disk.img"], dir);
    // An image is given to one machine at a time, whichever it is.
    let mut first = uml(dir, &["--disk", "disk.img", "sh", "-c", "echo up; sleep 1000"]);
    let mut first = first.stdout(Stdio::piped()).stdin(Stdio::null()).spawn().unwrap();
    let mut said = String::new();
    BufReader::new(first.stdout.as_mut().unwrap()).read_line(&mut said).unwrap();
    assert_eq!(said, "up\n");
    assert_one_line(&run(dir, &["--disk", "disk.img", "true"]), &["disk.img", "another process uses it"]);
    first.kill().unwrap();
    first.wait().unwrap();
    // Kept writes go on under either machine.
    let state = dir.join("state");
    let kept = |vmm: &str, script: &str| {
        let mut command = Command::new(INARCH);
        command.args(["run", "--quiet", vmm, "--accel=auto", "--keep", "try", "sh", "-c", script]);
        let output = command.current_dir(dir.join("project")).env("XDG_STATE_HOME", &state).output().unwrap();
        assert_status(&output, 0);
        stdout(&output)
    };
    kept("--vmm=uml", "echo kept > file; rm name");
    assert_eq!(kept("--vmm=qemu", "cat file; ls; echo more >> file"), "kept\nfile\n");
    assert_eq!(kept("--vmm=uml", "cat file"), "kept\nmore\n");
    let diff = Command::new(INARCH).args(["diff", "try"]).env("XDG_STATE_HOME", &state).output().unwrap();
    let told = stdout(&diff);
    assert!(told.contains("A  ") && told.contains("project/file") && told.contains("project/name"), "{told}");
}

#[test]
fn what_it_cannot_do_is_refused_in_one_line() {
    let dir = scratch();
    let dir = dir.path();
    host("qemu-img", &["create", "-q", "-f", "qcow2", "disk.qcow2", "1M"], dir);
    for words in [
        &["--cpus", "2"][..],
        &["--net"],
        &["-p", "8080:80"],
        &["--qemu-arg=-snapshot"],
        &["--accel", "kvm"],
        &["--accel", "tcg"],
        &["--disk", "disk.qcow2"],
        &["--kernel", "/bin/true"],
        &["--append", &"x".repeat(5000)],
    ] {
        let output = run(dir, &[words, &["true"]].concat());
        assert_status(&output, 125);
        assert_one_line(&output, &["User-Mode Linux"]);
    }
    let line = uml(dir, &["--dry-run", "true"]).output().unwrap();
    assert_status(&line, 0);
    let line = stdout(&line);
    assert!(line.contains("linux.uml mem=") && line.contains("virtio_uml.device=tree0.sock:2"), "{line}");
}

/// The processes below `parent`, and theirs.
fn descendants(parent: u32) -> HashSet<u32> {
    let mut parents = Vec::new();
    for entry in fs::read_dir("/proc").unwrap().flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else { continue };
        let Ok(stat) = fs::read_to_string(entry.path().join("stat")) else { continue };
        let after_name = stat.rsplit(')').next().unwrap();
        parents.push((pid, after_name.split_whitespace().nth(1).unwrap().parse::<u32>().unwrap()));
    }
    let mut found = HashSet::from([parent]);
    while parents.iter().any(|(pid, above)| found.contains(above) && found.insert(*pid)) {}
    found.remove(&parent);
    found
}

/// A process that runs, and has not only not been waited for.
fn runs(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit(')').next().is_some_and(|rest| !rest.is_empty() && !rest.trim_start().starts_with(['Z', 'X']))
}

#[test]
fn nothing_of_the_guest_goes_on_after_it() {
    let dir = scratch();
    let in_memory = || {
        let names = fs::read_dir("/dev/shm").unwrap().flatten().map(|entry| entry.file_name().into_string().unwrap());
        // Other tests have directories there.
        names.filter(|name| name.starts_with("inarch-") && !name.starts_with("inarch-check.")).collect::<BTreeSet<_>>()
    };
    let before = in_memory();
    // The guest's processes are processes of this machine, and must not go on as such: neither if this program is killed, nor
    // if the kernel is.
    for kills_kernel in [false, true] {
        let script = "while :; do :; done & while :; do read x < /proc/uptime; done & echo up; wait";
        let mut command = uml(dir.path(), &["sh", "-c", script]);
        let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).stdin(Stdio::null()).spawn().unwrap();
        let mut said = String::new();
        BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut said).unwrap();
        assert_eq!(said, "up\n");
        let all = descendants(child.id());
        assert!(all.len() > 3, "{all:?}");
        if kills_kernel {
            let is_kernel = |pid: &&u32| {
                let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
                let above = stat.rsplit(')').next().unwrap().split_whitespace().nth(1).unwrap().to_owned();
                above == child.id().to_string()
            };
            let kernel = *all.iter().find(is_kernel).unwrap();
            assert!(host("kill", &["-9", &kernel.to_string()], dir.path()).is_empty());
            within(LONG, || child.try_wait().unwrap().is_some());
            let mut told = String::new();
            std::io::Read::read_to_string(child.stderr.as_mut().unwrap(), &mut told).unwrap();
            assert!(told.contains("User-Mode Linux failed (killed by signal 9)"), "{told}");
        } else {
            child.kill().unwrap();
            child.wait().unwrap();
        }
        let deadline = Instant::now() + LONG;
        while all.iter().any(|pid| runs(*pid)) {
            assert!(
                Instant::now() < deadline,
                "{:?} still run",
                all.iter().filter(|pid| runs(**pid)).collect::<Vec<_>>()
            );
            thread::sleep(Duration::from_millis(20));
        }
    }
    let left = in_memory();
    assert!(left.is_subset(&before), "{left:?}");
}
