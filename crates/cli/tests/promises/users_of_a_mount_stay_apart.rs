//! Promise: the files that are there now decide what a user of a mount or share may do, not those that a kernel remembers: a change on the
//! host gives no user access to another user's files.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::Output;

use crate::support::mounted::{Server, WAYS};
use crate::support::served::Served;
use crate::support::{
    INARCH, any_machine, assert_status, copy_command, host, run_script, run_script_in, scratch, stderr, stdout,
};

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
    assert_eq!(without_early_refusals(&wrong), late.concat());
}

/// A virtiofs server cannot have the kernel look at a working directory again: it refuses until the TTL has run out.
fn without_early_refusals(wrong: &str) -> String {
    let is_too_early = |line: &&str| {
        let Some((_, what)) = line.split_once("via=virtiofs: ") else { return false };
        what.ends_with(": ESTALE, not EACCES") && what.contains(" in . of ")
            || what == "create where all may: ESTALE, not None"
    };
    wrong.lines().filter(|line| !line.is_empty() && !is_too_early(line)).map(|line| format!("{line}\n")).collect()
}

/// In a guest: checks `$PARTS` in the share that is mounted on `/point-$name`, and in the same directory without a share.
const CHECK: &str =
    "check() { python3 two_users.py $1 /point-$name $PARTS over | sed \"s/^./via=$2: &/\"; echo $name; }";

/// A place for a guest's script that is to check a share of `source`.
fn place_with_source() -> tempfile::TempDir {
    let dir = scratch();
    fs::copy(PROGRAM, dir.path().join("two_users.py")).unwrap();
    let source = dir.path().join("source");
    fs::create_dir(&source).unwrap();
    fs::set_permissions(&source, fs::Permissions::from_mode(0o777)).unwrap();
    dir
}

/// The layers of these names have been checked, and nothing was wrong.
fn assert_all_right(output: &Output, names: &str) {
    assert_status(output, 0);
    assert_eq!(without_early_refusals(&stdout(output)), names, "{}", stderr(output));
}

#[test]
fn over_an_upper_layer_in_a_guest_by_virtiofs() {
    if !rustix::process::geteuid().is_root() {
        return println!(
            "skipped: over_an_upper_layer_in_a_guest_by_virtiofs: only root makes files for several users"
        );
    }
    let dir = place_with_source();
    let mut words = vec!["serve", "virtiofs", "source", "--socket", "socket", "--tag", "kept", "--overlay", "upper"];
    let server = Served::start(dir.path(), &words);
    words.extend(["--print-qemu-args", "--qemu-memory", "none"]);
    let device = host(INARCH, &words, dir.path());
    let mut options: Vec<String> = device.split_whitespace().map(|word| format!("--qemu-arg={word}")).collect();
    options.push("--user=root".to_owned());
    // A share that the guest's kernel does not cache makes the changes that the host would make.
    options.push(format!("--tree={}:/source,rw,via=9p", dir.path().join("source").display()));
    // The machine's memory is shared if one of its own devices needs that.
    options.push(format!("--tree={}:/unused,ro,via=virtiofs", dir.path().display()));
    let script = format!(
        "{CHECK}\nPARTS='absences names nodes' name=kept; mkdir /point-kept; mount -t virtiofs kept /point-kept && check /source virtiofs"
    );
    let words: Vec<&str> = options.iter().map(String::as_str).collect();
    assert_all_right(&run_script(dir.path(), &words, &script, b""), "kept\n");
    server.end();
}

/// In a guest: serves a directory of the guest by 9P with these options, mounts it and checks it.
const SERVED_IN_THE_GUEST: &str = "by_9p() { name=$1; shift; socket=/tmp/$name.socket; cp -rp source $name
    ./inarch serve 9p $name --socket $socket \"$@\" 2>/dev/null & server=$!
    until [ -S $socket ]; do sleep 0.1; done
    mkdir /point-$name; mount -t 9p -o trans=unix,version=9p2000.L,cache=mmap $socket /point-$name && check $name 9p
    umount /point-$name; kill $server; wait $server; }";

#[test]
fn over_an_upper_layer_in_a_guest_by_9p() {
    let dir = place_with_source();
    copy_command(&dir.path().join("inarch"));
    let work = "PARTS='absences names nodes permissions directories'; by_9p kept --overlay upper
        PARTS='absences names nodes'; by_9p memory --ephemeral --in-memory 64M";
    let script = format!("{CHECK}\n{SERVED_IN_THE_GUEST}\n{work}");
    let output = run_script_in(any_machine(), dir.path(), &["--user=root"], &script, b"");
    assert_all_right(&output, "kept\nmemory\n");
}
