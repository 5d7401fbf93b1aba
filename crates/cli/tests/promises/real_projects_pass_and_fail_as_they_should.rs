//! Promise: one of Debian's C projects (two where `INARCH_ALL_PROGRAMS` is set, as in scripts/soak) is built and tested in the guest, with
//! the right status for a pass and, continued in the kept run, for a failure; and the host's files are unchanged.

use std::path::Path;
use std::process::Command;

use crate::support::debian::source;
use crate::support::{INARCH, any_machine, assert_status, host, scratch, stderr, stdout};

fn checksums(dir: &Path) -> String {
    let script =
        "find . -type f -print0 | sort -z | xargs -0 sha256sum; find . -printf '%p %m %U %G %s %T@ %C@\\n' | sort";
    host("sh", &["-c", script], dir)
}

/// Builds (a target of make) and tests a project in the guest as it is, and goes on from there with a mistake put into it.
fn passes_and_fails(project: &Path, build: &str, test: &str, passed: &str, mistake: &str) {
    // What is tested is the status, not the compiler: the guest is done in half the time without the optimiser and these checks.
    host("sh", &["-c", "CFLAGS=-O0 ./configure"], project);
    let before = checksums(project);
    let state = scratch();
    // Elsewhere on this machine files change all the time.
    let run = |script: &str| {
        let mut command = Command::new(INARCH);
        command.args(["run", "--quiet", any_machine(), "--keep", "project", "--", "sh", "-c", script]);
        command.current_dir(project).env("XDG_STATE_HOME", state.path());
        command.output().expect("inarch starts")
    };
    let make = format!("make -j2 {build} >&2 && {test}");
    let good = run(&make);
    assert_status(&good, 0);
    assert!(stdout(&good).contains(passed), "{}", stdout(&good));

    let bad = run(&format!("{mistake} && {make}"));
    assert_eq!(bad.status.code(), Some(2), "make's own status\n{}\n{}", stdout(&bad), stderr(&bad));
    assert!(before == checksums(project), "the host's files changed");
}

#[test]
fn in_a_guest() {
    zlib();
    if std::env::var_os("INARCH_ALL_PROGRAMS").is_some() {
        mawk();
    }
}

fn zlib() {
    let dir = scratch();
    passes_and_fails(
        &source("zlib", dir.path()),
        // Without the shared library, which is the same code once more.
        "static",
        "make teststatic",
        "*** zlib test OK ***",
        "sed -i 's/return err == Z_STREAM_END ? Z_OK : err;/return Z_BUF_ERROR;/' compress.c",
    );
}

fn mawk() {
    let dir = scratch();
    passes_and_fails(
        &source("mawk", dir.path()),
        "",
        "make check",
        "general stress test OK",
        "sed -i 's/sp->dval = (double) len;/sp->dval = (double) len + 1;/' bi_funct.c",
    );
}
