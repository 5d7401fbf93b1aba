//! Promise: programs that demand much of a file system work in a mount, and in a guest's shared directory, as on a
//! disk: git, SQLite with a write-ahead log and several processes, cargo, dpkg, fio with verification.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use crate::support::mounted::WAYS;
use crate::support::{INARCH, any_machine, assert_status, host, run_script_in, scratch, stdout};

/// Does the work of the programs `$2`... in the current directory, with the package `$1`; names each that has passed. git has `$FILES` files a
/// commit, SQLite writes `$ROWS` rows by each of four processes.
const WORK: &str = r#"set -e
package=$1
shift
export HOME="${HOME:-/root}" GIT_CONFIG_GLOBAL=/dev/null GIT_AUTHOR_NAME=n GIT_AUTHOR_EMAIL=n@example.org
export GIT_COMMITTER_NAME=n GIT_COMMITTER_EMAIL=n@example.org

work_git() {
    git init -q --initial-branch=main origin
    for commit in 1 2 3; do
        mkdir -p origin/d$commit
        for n in $(seq $FILES); do seq $((commit * n)) $((commit * n + 300)) > origin/d$commit/f$n; done
        git -C origin add -A
        git -C origin commit -qm $commit
    done
    git clone -q --no-local origin clone
    git -C clone mv d1 moved
    git -C clone commit -qm moved
    git -C clone gc -q --prune=now
    git -C clone fsck --strict --no-dangling
    git -C clone push -q origin main:pushed
    git -C origin fsck --strict
    test -z "$(git -C clone status --porcelain)"
}

work_sqlite() {
/usr/bin/python3 - <<'PYTHON'
import multiprocessing, os, sqlite3
rows = int(os.environ['ROWS'])
def connect():
    return sqlite3.connect('base', timeout=60, isolation_level=None)
def work(number):
    base = connect()
    for row in range(rows):
        base.execute('begin immediate')
        base.execute('insert into t values (?, ?, ?)', (number, row, 'x' * 500))
        base.execute('update c set n = n + 1')
        base.execute('commit')
        if row % 5 == number:
            base.execute('pragma wal_checkpoint(passive)')
        (seen,), (there,) = base.execute('select n from c').fetchone(), base.execute('select count(*) from t').fetchone()
        assert seen <= there
base = connect()
assert base.execute('pragma journal_mode=wal').fetchone() == ('wal',)
base.execute('create table t (a, b, c)')
base.execute('create table c (n)')
base.execute('insert into c values (0)')
workers = [multiprocessing.Process(target=work, args=(n,)) for n in range(4)]
for worker in workers: worker.start()
for worker in workers: worker.join()
assert all(worker.exitcode == 0 for worker in workers)
assert base.execute('select count(*), count(distinct a * 1000 + b) from t').fetchone() == (4 * rows, 4 * rows)
assert base.execute('select n from c').fetchone() == (4 * rows,)
assert base.execute('pragma integrity_check').fetchone() == ('ok',)
PYTHON
}

work_cargo() {
    mkdir -p crate/src
    cd crate
    printf '[package]\nname = "small"\nversion = "0.1.0"\nedition = "2021"\n[workspace]\n' > Cargo.toml
    printf 'mod part;\nfn main() { println!("{}", part::text()); }\n' > src/main.rs
    printf 'pub fn text() -> &%sstatic str { "built" }\n' "'" > src/part.rs
    export CARGO_TARGET_DIR="$PWD/target"
    cargo build -q --offline
    test "$(target/debug/small)" = built
    sed -i s/built/rebuilt/ src/part.rs
    cargo build -q --offline
    test "$(target/debug/small)" = rebuilt
    test -z "$(cargo build --offline 2>&1 | grep Compiling)"
    cd ..
    unset CARGO_TARGET_DIR
}

work_dpkg() {
    mkdir -p root/var/lib/dpkg/info root/var/lib/dpkg/updates root/var/lib/dpkg/triggers root/tmp
    : > root/var/lib/dpkg/status
    dpkg --root="$PWD/root" --log=/dev/null --force-depends --force-script-chrootless --unpack "$package" > /dev/null
    dpkg --root="$PWD/root" --log=/dev/null --force-depends --force-script-chrootless --unpack "$package" > /dev/null
    test -z "$(dpkg --root="$PWD/root" --verify)"
    test -x root/usr/bin/diff
    mkdir extracted
    dpkg-deb -x "$package" extracted
    diff -r --no-dereference extracted root -x var -x tmp -x '*.dpkg-new'
}

work_fio() {
    for engine in psync mmap libaio; do
        fio --name=$engine --ioengine=$engine --rw=randrw --rwmixread=30 --size=4M --bs=4k --verify=crc32c --verify_fatal=1 \
            --fsync=50 --end_fsync=1 --fallocate=none --output=/dev/null
    done
    fio --name=appended --rw=write --bs=13k --size=2M --numjobs=2 --verify=xxhash --verify_fatal=1 --output=/dev/null
}

for program in "$@"; do
    work_$program
    echo $program
done
"#;

const ALL: &str = "git sqlite cargo dpkg fio";

/// A package of what is installed of diffutils, `package.deb` in `dir`.
fn make_package(dir: &Path) {
    let script = "mkdir -p package/DEBIAN && dpkg -L diffutils | tar -cPf - --no-recursion -T - | tar -xf - -C package
        printf 'Package: small\\nVersion: 1\\nArchitecture: all\\nMaintainer: n <n@example.org>\\nDescription: x\\n' \
            > package/DEBIAN/control
        dpkg-deb --root-owner-group -b package package.deb";
    host("sh", &["-ec", script], dir);
}

/// Mounts `dir/tree` on `dir/point`, works there, and unmounts.
fn work_in_mount(dir: &Path, options: &[&str]) {
    let mut server = Command::new(INARCH)
        .args(["mount", "tree", "point", "--overlay-dir", "."])
        .args(options)
        .current_dir(dir)
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(server.stderr.take().unwrap()).read_line(&mut line).unwrap();
    assert!(line.starts_with("mounted "), "{line}");
    let package = dir.join("package.deb");
    let work = Command::new("sh")
        .args(["-c", WORK, "work", &package.display().to_string()])
        .args(ALL.split(' '))
        .env("FILES", "30")
        .env("ROWS", "40")
        .current_dir(dir.join("point"))
        .output()
        .unwrap();
    host("kill", &["-TERM", &server.id().to_string()], Path::new("/"));
    assert_eq!(server.wait().unwrap().code(), Some(0), "{options:?}");
    assert_status(&work, 0);
    assert_eq!(stdout(&work), ALL.replace(' ', "\n") + "\n", "{options:?}");
}

#[test]
fn in_a_mount() {
    let kinds = [&["--changes", "host"][..], &["--ephemeral"]];
    for options in WAYS.iter().flat_map(|via| kinds.map(|options| [options, &["--via", via]].concat())) {
        let dir = scratch();
        make_package(dir.path());
        fs::create_dir(dir.path().join("tree")).unwrap();
        fs::create_dir(dir.path().join("point")).unwrap();
        work_in_mount(dir.path(), &options);
        let is_written = dir.path().join("tree/crate/target/debug/small").exists();
        assert_eq!(is_written, options[0] == "--changes", "{options:?}");
    }
}

/// Has the `programs` work in a guest, in a directory that it reaches by `options`; the host finds what they made.
fn work_in_guest(options: &str, programs: &str, (files, rows): (u32, u32)) {
    let dir = scratch();
    make_package(dir.path());
    fs::create_dir(dir.path().join("tree")).unwrap();
    fs::write(dir.path().join("work"), WORK).unwrap();
    let at = dir.path().display();
    let tree = format!("{at}/tree:/shared,{options}");
    let script = format!("cd /shared && export FILES={files} ROWS={rows} && sh {at}/work {at}/package.deb {programs}");
    let output = run_script_in(any_machine(), dir.path(), &["--tree", &tree], &script, b"");
    assert_status(&output, 0);
    assert_eq!(stdout(&output), programs.replace(' ', "\n") + "\n", "{options}");
    // What the guest was told is durable is what the host has.
    let check = "git -C tree/clone fsck --strict && git -C tree/origin fsck --strict && \
                 /usr/bin/python3 -c \"import sqlite3; print(sqlite3.connect('tree/base').execute('pragma integrity_check').fetchone())\"";
    let found = host("sh", &["-ec", check], dir.path());
    assert!(found.ends_with("('ok',)\n"), "{options}: {found}");
}

/// Has the `usual` programs work in a guest; where `INARCH_ALL_PROGRAMS` is set, as in scripts/soak, all of them, which takes
/// minutes without KVM, and also where nobody else may change the directory.
fn work_in_guests(options: &str, usual: &str) {
    if std::env::var_os("INARCH_ALL_PROGRAMS").is_none() {
        return work_in_guest(options, usual, (10, 10));
    }
    work_in_guest(options, ALL, (30, 40));
    work_in_guest(&format!("{options},changes=guest"), ALL, (30, 40));
}

#[test]
fn in_a_guest_by_virtiofs() {
    work_in_guests("rw,via=virtiofs", "git sqlite cargo dpkg");
}

#[test]
fn in_a_guest_by_9p() {
    work_in_guests("rw,via=9p", "git sqlite");
}
