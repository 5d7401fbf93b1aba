//! `inarch.toml` gives a run the options of its project; the command line wins; what another user could write is refused.

use std::fs;
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

use crate::support::{INARCH, assert_one_line, assert_status, programs, scratch, stderr, stdout};

/// A project in a directory of its own.
struct Project {
    place: tempfile::TempDir,
}

impl Project {
    fn new(file: &str) -> Project {
        let place = scratch();
        for name in ["p/sub", "p/out", "p/lib", "p/.git"] {
            fs::create_dir_all(place.path().join(name)).unwrap();
        }
        let project = Project { place };
        project.write(file);
        project
    }

    fn at(&self, path: &str) -> PathBuf {
        self.place.path().canonicalize().unwrap().join(path)
    }

    fn write(&self, file: &str) {
        let path = self.at("p/inarch.toml");
        let _ = fs::remove_file(&path);
        fs::write(path, file).unwrap();
    }

    fn run_in(&self, directory: &Path, words: &[&str]) -> Output {
        self.inarch_in(directory, &[&["run", "--accel", "tcg"], words].concat())
    }

    fn inarch_in(&self, directory: &Path, words: &[&str]) -> Output {
        Command::new(INARCH)
            .args(words)
            .current_dir(directory)
            .env("XDG_STATE_HOME", self.at("state"))
            .env("PATH", programs())
            .stdin(Stdio::null())
            .output()
            .unwrap()
    }

    fn run(&self, words: &[&str]) -> Output {
        self.run_in(&self.at("p/sub"), words)
    }
}

#[test]
fn a_guest_has_what_the_project_says() {
    let project = Project::new(
        r#"
[run]
memory = "400M"
cpus = 2
caches = ["own=/srv/own"]
trees = ["lib:/srv/lib,ro", "out:/srv/out,rw"]
environment = { OF_FILE = "file's", OF_BOTH = "file's" }
timeout = "10m"
"#,
    );
    fs::write(project.at("p/lib/text"), "in the library\n").unwrap();
    let script = "cat /srv/lib/text; echo written > /srv/out/file; echo $OF_FILE $OF_BOTH; nproc
        test $(awk '/MemTotal/ { print $2 }' /proc/meminfo) -lt 420000 && echo small; echo cached > /srv/own/file";
    let output = project.run(&["--verbose", "--cpus", "1", "-e", "OF_BOTH=line's", "sh", "-c", script]);
    assert_status(&output, 0);
    assert_eq!(stdout(&output), "in the library\nfile's line's\n1\nsmall\n");
    let said = stderr(&output);
    let line = said.lines().find(|line| line.contains("inarch.toml")).unwrap_or_else(|| panic!("{said}"));
    assert!(line.contains("gives the guest writes to") && line.contains("/p/out"), "{line}");
    assert_eq!(fs::read_to_string(project.at("p/out/file")).unwrap(), "written\n");
    // The next run has what was cached. A run with --no-project has no cache.
    let output = project.run(&["-q", "cat", "/srv/own/file"]);
    assert_eq!((assert_status(&output, 0), stdout(&output).as_str()), ((), "cached\n"));
    let output = project.run(&["-q", "--no-project", "test", "-e", "/srv/own"]);
    assert_status(&output, 1);
}

#[test]
fn a_file_that_is_wrong_or_not_trusted_gets_one_line() {
    let project = Project::new("[run]\nmemroy = \"1G\"\n");
    let refused = |parts: &[&str]| assert_one_line(&project.run(&["true"]), parts);
    refused(&["p/inarch.toml:2:", "'memroy'", "did you mean 'memory'?"]);
    project.write("[run]\n\nqemu-arg = \"-s\"\n");
    refused(&["p/inarch.toml:3:", "give --qemu-arg on the command line"]);
    project.write("[run]\nmemory = \"much\"\n");
    refused(&["p/inarch.toml:2: memory:", "much"]);
    project.write("[run\n");
    refused(&["p/inarch.toml:1:"]);
    project.write("[run]\nvolumes = [\"/etc:/etc\"]\n");
    refused(&["p/inarch.toml:2: volumes: /etc", "on the command line"]);
    // A link that leads out of the project.
    symlink("/etc", project.at("p/link")).unwrap();
    project.write("[run]\ntrees = [\"link:/x,rw\"]\n");
    refused(&["p/inarch.toml:2: trees:", "below its own directory"]);
    project.write("[run]\ncaches = [\"npm,scope=user\"]\n");
    refused(&["p/inarch.toml:2: caches:", "add ro"]);
    let path = project.at("p/inarch.toml");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o666)).unwrap();
    refused(&["other users may write to it", "chmod go-w", "--no-project"]);
    fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
    chown(&path, Some(4242), None).unwrap();
    refused(&["it belongs to user 4242", "--no-project"]);
    fs::remove_file(&path).unwrap();
    symlink("/etc/passwd", &path).unwrap();
    refused(&["symbolic link"]);
    fs::remove_file(&path).unwrap();
    fs::write(&path, "#".repeat(70_000)).unwrap();
    refused(&["longer than 64 KiB"]);
    // None of these is read where it is told so: the line is another one.
    assert_one_line(&project.run(&["--no-project", "--memory=5", "true"]), &["MiB"]);
    // Above a repository no file is read.
    fs::create_dir(project.at("p/sub/.git")).unwrap();
    assert_one_line(&project.run(&["--memory=5", "true"]), &["MiB"]);
}

#[test]
fn the_machine_is_as_the_file_and_the_line_say() {
    let project = Project::new("[run]\nmemory = \"300M\"\ncpus = 3\nnet = true\n");
    let line = |words: &[&str]| {
        let output = project.run(&[&["--dry-run"], words, &["true"]].concat());
        assert_status(&output, 0);
        (stdout(&output), stderr(&output))
    };
    let (machine, told) = line(&[]);
    assert!(
        machine.contains("-m 314572800B") && machine.contains("-smp 3") && machine.contains("-netdev"),
        "{machine}"
    );
    assert!(told.contains("inarch.toml: gives the guest a network"), "{told}");
    let (machine, told) = line(&["--memory", "500M", "--net=none", "-q"]);
    assert!(
        machine.contains("-m 524288000B") && machine.contains("-smp 3") && !machine.contains("-netdev"),
        "{machine}"
    );
    assert_eq!(told, "");
}

#[test]
fn what_a_projects_file_says_does_nothing_to_a_terminal() {
    for text in ["caches = [\"a\\u001b[31mX\"]", "\"\\u001b[31mX\" = 1", "volumes = [\"\\u001b[31mX\"]"] {
        let output = Project::new(&format!("[run]\n{text}\n")).run(&["--dry-run", "true"]);
        assert_status(&output, 125);
        assert_one_line(&output, &["\\u{1b}[31mX"]);
        let line = stderr(&output);
        assert!(line.contains("\\u{1b}[31mX") && !line.contains('\u{1b}'), "{line}");
    }
}

#[test]
fn another_user_does_not_put_projects_together() {
    if !rustix::process::geteuid().is_root() {
        eprintln!(
            "skipped: another_user_does_not_put_projects_together: it takes root to make another user's directory"
        );
        return;
    }
    let project = Project::new("");
    for name in ["common/a", "common/b", "common/.git"] {
        fs::create_dir_all(project.at(name)).unwrap();
    }
    let scope = || {
        let output = project.inarch_in(&project.at("common/a"), &["cache", "show", "own"]);
        stderr(&output)
    };
    assert!(scope().contains("/common'"), "{}", scope());
    chown(project.at("common/.git"), Some(4242), None).unwrap();
    assert!(scope().contains("/common/a'"), "{}", scope());
}
