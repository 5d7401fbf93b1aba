//! Promise: what a user of a mount may do is decided by what is there, never by what was there before: a host that changes
//! beneath a mount lets nobody in.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use crate::support::host;
use crate::support::mounted::Server;

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
    let program = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/promises/support/two_users.py");
    let arguments = [[program.to_str().unwrap(), "source", "point"].as_slice(), parts].concat();
    let wrong = host("/usr/bin/python3", &arguments, dir.path());
    assert_eq!(server.end("-TERM"), Some(0));
    assert_eq!(wrong.trim(), "", "with {options:?}");
}

#[test]
fn where_writes_go_through() {
    let parts = ["absences", "names", "nodes", "permissions"];
    users_stay_apart("where_writes_go_through", &[], &parts);
}

#[test]
fn where_the_kernel_never_looks_again_by_itself() {
    // What was given away in place is not known before a day has gone: nobody else was to change anything.
    let parts = ["absences", "names", "nodes"];
    users_stay_apart("where_the_kernel_never_looks_again_by_itself", &["--changes", "guest"], &parts);
}
