//! Promise: the files that are there now decide what a user of a mount or share may do, not those that a kernel remembers: a change on the
//! host gives no user access to another user's files.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use crate::support::mounted::{Server, WAYS};
use crate::support::{any_machine, assert_status, host, run_script_in, scratch, stdout};

const PROGRAM: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/promises/support/two_users.py");

/// Checks the `parts` of `two_users.py` in a mount with these options.
fn users_stay_apart(test: &str, options: &[&str], parts: &[&str]) {
    if !rustix::process::geteuid().is_root() {
        println!("skipped: {test}: another user can only be had as root");
        return;
    }
    // Where everybody comes.
    let dir = tempfile::tempdir_in("/tmp").unwrap();
    fs::create_dir(dir.path().join("source")).unwrap();
    for (path, mode) in [("", 0o755), ("source", 0o777)] {
        fs::set_permissions(dir.path().join(path), fs::Permissions::from_mode(mode)).unwrap();
    }
    let mut server = Server::start(dir.path(), "source", options);
    let arguments = [[PROGRAM, "source", "point"].as_slice(), parts].concat();
    let wrong = host("/usr/bin/python3", &arguments, dir.path());
    assert_eq!(server.end("-TERM"), Some(0));
    assert_eq!(wrong.trim(), "", "with {options:?}");
}

#[test]
fn where_writes_go_through() {
    let parts = ["absences", "names", "nodes", "permissions", "directories"];
    for via in WAYS {
        users_stay_apart("where_writes_go_through", &["--via", via], &parts);
    }
}

#[test]
fn over_an_upper_layer() {
    let parts = ["absences", "names", "nodes", "permissions", "directories", "over"];
    // The kernel's overlayfs does not see what is changed below it, as docs/mount.md says.
    for options in [["--overlay", "upper"].as_slice(), &["--ephemeral"], &["--ephemeral", "--in-memory", "64M"]] {
        users_stay_apart("over_an_upper_layer", &[options, &["--changes", "host"]].concat(), &parts);
    }
}

#[test]
fn where_owners_are_mapped() {
    // Root and the users that take part are who they are; everybody else is another one.
    let options = ["--map-uid", "0:0:1000", "--map-uid", "65534:65534:1", "--map-uid", "1000:100000:1000"];
    let parts = ["absences", "names", "nodes", "permissions", "directories"];
    users_stay_apart("where_owners_are_mapped", &options, &parts);
}

#[test]
fn where_the_kernel_never_looks_again_by_itself() {
    // With `--changes guest` the kernel remembers an owner for a day: a change by the host is not seen before.
    let parts = ["absences", "names", "nodes"];
    users_stay_apart("where_the_kernel_never_looks_again_by_itself", &["--changes", "guest", "--via", "fuse"], &parts);
}

/// The same among the users of a guest that shares a directory in each of these ways; gives what went wrong, the way before it.
/// A second share of the same directory, which the guest's kernel does not cache, makes the changes that the host would make.
fn wrong_in_a_guest(ways: &[(&str, &str)]) -> String {
    let dir = scratch();
    fs::copy(PROGRAM, dir.path().join("two_users.py")).unwrap();
    let mut options = Vec::new();
    let mut script = String::new();
    for (number, (way, parts)) in ways.iter().enumerate() {
        let source = dir.path().join(format!("source-{number}"));
        fs::create_dir(&source).unwrap();
        fs::set_permissions(&source, fs::Permissions::from_mode(0o777)).unwrap();
        options.push(format!("--tree={}:/source-{number},rw,via=9p", source.display()));
        options.push(format!("--tree={}:/point-{number},rw,{way}", source.display()));
        script += &format!("python3 two_users.py /source-{number} /point-{number} {parts} | sed 's/^./{way}: &/'; ");
    }
    let output =
        run_script_in(any_machine(), dir.path(), &options.iter().map(String::as_str).collect::<Vec<_>>(), &script, b"");
    assert_status(&output, 0);
    stdout(&output).lines().filter(|line| !line.is_empty()).map(|line| format!("{line}\n")).collect()
}

#[test]
fn in_a_guest() {
    if !rustix::process::geteuid().is_root() {
        return println!("skipped: in_a_guest: only root's server makes files for several users");
    }
    let wrong = wrong_in_a_guest(&[
        ("via=virtiofs", "absences names nodes permissions directories"),
        ("via=9p", "absences names nodes permissions directories"),
        // With `--changes guest` the kernel remembers an owner for a day: a change by the host is not seen before.
        ("via=virtiofs,changes=guest", "absences names nodes"),
        ("via=9p,changes=guest", "absences names nodes"),
    ]);
    // Where the kernel does not ask to open a file, it learns of another in its place when it reads or writes.
    let late = ["read", "write"]
        .map(|act| format!("via=virtiofs,changes=guest: open to {act}: ESTALE, not EPERM or EACCES\n"));
    // A virtiofs server cannot have the kernel look at a working directory again: it refuses until the TTL has run out.
    let is_too_early = |line: &str| {
        let Some(what) = line.strip_prefix("via=virtiofs: ") else { return false };
        what.ends_with(": ESTALE, not EACCES") && what.contains(" in . of ")
            || what == "create where all may: ESTALE, not None"
    };
    let wrong: String = wrong.lines().filter(|line| !is_too_early(line)).map(|line| format!("{line}\n")).collect();
    assert_eq!(wrong, late.concat());
}
