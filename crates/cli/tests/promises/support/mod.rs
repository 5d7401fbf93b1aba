//! Shared by the promises' tests: the built command, and trees for it.

#![allow(dead_code, reason = "each test file uses its own part")]

pub mod bare_guest;
pub mod debian;
pub mod documented;
pub mod drawings;
pub mod listing;
pub mod mounted;
pub mod registry;
pub mod s3;
pub mod served;
pub mod web;

pub mod kept;

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

/// The built `inarch`.
pub const INARCH: &str = env!("CARGO_BIN_EXE_inarch");

/// How long what must come may take, on a busy machine too.
pub const LONG: Duration = Duration::from_secs(120);

/// Runs `inarch` with `arguments` and empty standard input.
pub fn inarch<A: AsRef<OsStr>>(arguments: impl IntoIterator<Item = A>) -> Output {
    Command::new(INARCH).args(arguments).stdin(Stdio::null()).output().expect("inarch starts")
}

/// For a shell script: the function `lvm VERB ...`, which is lvm2 with the devices `$first` and `$second` alone, and without the device mapper.
pub const LVM: &str = "
        cat > config <<END
devices { filter=[\"a|^$first\\$|\",\"a|^$second\\$|\",\"r|.*|\"] use_devicesfile=0 obtain_device_list_from_udev=0 }
global { locking_dir=\"$PWD/lock\" use_lvmpolld=0 } backup { backup=0 archive=0 } activation { monitoring=0 udev_sync=0 udev_rules=0 }
END
        lvm() { word=$1; shift; command lvm $word --config \"$(cat config)\" --driverloaded n \"$@\" 2>> log; }
";

/// Runs `inarch run --quiet --accel=tcg OPTIONS -- sh -c SCRIPT` in `dir`, with `input` on standard input.
pub fn run_script(dir: &Path, options: &[&str], script: &str, input: &[u8]) -> Output {
    run_script_in("--accel=tcg", dir, options, script, input)
}

/// The same in the machine that this word gives, [`any_machine`] for one.
pub fn run_script_in(machine: &str, dir: &Path, options: &[&str], script: &str, input: &[u8]) -> Output {
    let mut child = Command::new(INARCH)
        .args(["run", "--quiet", machine])
        .args(options)
        .args(["--", "sh", "-c", script])
        .current_dir(dir)
        .env("PATH", programs())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("inarch starts");
    let mut stdin = child.stdin.take().expect("piped");
    let input = input.to_vec();
    let writer = std::thread::spawn(move || {
        // A command that does not read its input is no failure of the writer's.
        let _ = stdin.write_all(&input);
    });
    let output = child.wait_with_output().expect("inarch ends");
    writer.join().expect("the writer ends");
    output
}

/// The word that gives a run the machine which starts fastest, for tests that hold for each: User-Mode Linux, or TCG where it is not installed
/// or `INARCH_ALL_MACHINES` is set, as in scripts/soak.
pub fn any_machine() -> &'static str {
    static WORD: std::sync::OnceLock<&str> = std::sync::OnceLock::new();
    let is_wanted = || std::env::var_os("INARCH_ALL_MACHINES").is_none();
    let is_there = || Command::new("linux.uml").arg("--version").output().is_ok();
    WORD.get_or_init(|| if is_wanted() && is_there() { "--vmm=uml" } else { "--accel=tcg" })
}

/// A directory on the root file system (not /tmp: that is the guest's own), removed at the end.
pub fn scratch() -> tempfile::TempDir {
    tempfile::Builder::new().prefix("inarch-test.").tempdir_in("/var/tmp").expect("a directory in /var/tmp")
}

/// Standard output as text.
pub fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Standard error as text.
pub fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Asserts a status, showing both streams if it is another.
#[track_caller]
pub fn assert_status(output: &Output, status: i32) {
    assert_eq!(output.status.code(), Some(status), "\n--- stdout\n{}\n--- stderr\n{}", stdout(output), stderr(output));
}

/// Asserts that the output is a failure of inarch's own, told in exactly one line that holds `parts`.
#[track_caller]
pub fn assert_one_line(output: &Output, parts: &[&str]) {
    assert_one_line_and(output, 125, parts);
}

/// The same with another status.
#[track_caller]
pub fn assert_one_line_and(output: &Output, status: i32, parts: &[&str]) {
    assert_status(output, status);
    let text = stderr(output);
    assert_eq!(text.trim_end().lines().count(), 1, "more than one line: {text}");
    assert!(text.starts_with("inarch: "), "{text}");
    for part in parts {
        assert!(text.to_lowercase().contains(&part.to_lowercase()), "'{part}' is not in: {text}");
    }
}

/// Waits until `condition` holds; false if it does not within `limit`.
pub fn within(limit: Duration, mut condition: impl FnMut() -> bool) -> bool {
    let deadline = Instant::now() + limit;
    while !condition() {
        if Instant::now() > deadline {
            return false;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    true
}

/// Makes a file that can be executed, of what a command of the shell prints.
///
/// Another process writes it. What this one has open for writing is inherited by the programs that other tests start meanwhile, until they are
/// executed, and such a file cannot be executed (`ETXTBSY`, execve(2)).
fn make_executable(path: &Path, script: &str, input: &[u8]) {
    let mut command = Command::new("sh");
    command.args(["-c", &format!("{script} > \"$0\" && chmod 755 \"$0\"")]).arg(path).stdin(Stdio::piped());
    let mut child = command.spawn().expect("sh starts");
    child.stdin.take().unwrap().write_all(input).unwrap();
    assert!(child.wait().unwrap().success(), "{} was not made", path.display());
}

/// A copy of the command: the built one may lie where only root can go.
pub fn copy_command(path: &Path) {
    make_executable(path, &format!("cat '{INARCH}'"), b"");
}

/// A script as a program.
pub fn script_program(path: &Path, text: &str) {
    make_executable(path, "cat", text.as_bytes());
}

/// Whether a process has a file in a directory open, one without a name too.
pub fn has_open_in(process: u32, dir: &Path) -> bool {
    let open = std::fs::read_dir(format!("/proc/{process}/fd")).into_iter().flatten().flatten();
    open.filter_map(|entry| std::fs::read_link(entry.path()).ok()).any(|file| file.parent() == Some(dir))
}

/// Where programs are looked for: first those of `bin` beside this file. The umount there waits, and python3 is the system's own: that of a
/// version manager takes ten seconds to start in a guest.
pub fn programs() -> OsString {
    let mut path = OsString::from(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/promises/support/bin:"));
    path.push(std::env::var_os("PATH").unwrap_or_default());
    path
}

/// Runs a host command that must succeed; its standard output.
#[track_caller]
pub fn host(program: &str, arguments: &[&str], dir: &Path) -> String {
    let mut command = Command::new(program);
    let output = command.args(arguments).current_dir(dir).env("PATH", programs()).output();
    let output = output.unwrap_or_else(|error| panic!("{program}: {error}"));
    assert!(output.status.success(), "{program} {arguments:?}: {}", stderr(&output));
    stdout(&output)
}

/// A Python program that prints one line for each name below the directory it is given: everything a snapshot must
/// keep. Hard links of one inode share the first name's line number as their group.
pub const MANIFEST: &str = r#"
import hashlib, os, stat, sys
top = os.fsencode(sys.argv[1])
groups = {}
def line(path):
    s = os.lstat(path)
    kind = stat.S_IFMT(s.st_mode)
    name = os.path.relpath(path, top)
    fields = [ascii(name), oct(s.st_mode), s.st_uid, s.st_gid, s.st_mtime_ns, s.st_ctime_ns]
    if kind == stat.S_IFREG:
        fields += [s.st_size, hashlib.md5(open(path, 'rb').read()).hexdigest()]
    if kind == stat.S_IFLNK:
        fields += [ascii(os.readlink(path))]
    if kind in (stat.S_IFCHR, stat.S_IFBLK):
        fields += [os.major(s.st_rdev), os.minor(s.st_rdev)]
    if kind != stat.S_IFDIR:
        fields += ['links', s.st_nlink, groups.setdefault(s.st_ino, ascii(name))]
    for attribute in sorted(os.listxattr(path, follow_symlinks=False)):
        fields += [attribute, os.getxattr(path, attribute, follow_symlinks=False).hex()]
    print(*fields)
def walk(path):
    line(path)
    if stat.S_ISDIR(os.lstat(path).st_mode):
        for name in sorted(os.listdir(path)):
            if name != b'lost+found':
                walk(os.path.join(path, name))
walk(top)
"#;

/// A 9P client in Python: `NinepClient(path)`, with a method for each kind of message that the tests send.
pub const NINEP_CLIENT: &str = include_str!("ninep.py");

/// A path of this test's own that holds the manifest program.
pub fn manifest_program(dir: &Path) -> PathBuf {
    let path = dir.join("manifest.py");
    std::fs::write(&path, MANIFEST).expect("a file in the scratch directory");
    path
}

/// The lines of a trace that have this key.
pub fn trace_lines(file: &Path, key: &str) -> Vec<Value> {
    let text = fs::read_to_string(file).unwrap();
    let lines = text.lines().map(|line| serde_json::from_str(line).unwrap());
    lines.filter(|line: &Value| line.get(key).is_some()).collect()
}
