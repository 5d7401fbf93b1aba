//! Promise: in an ordinary user's mount or share with `--overlay` or `--ephemeral`, visible permissions decide what
//! programs may do, in directories of mode 0555 as well.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output};

use crate::support::{NINEP_CLIENT, assert_status, copy_command, scratch, stdout};

/// What the user does; each line that it prints is expected below.
const WORK: &str = r#"
set -e
state() { stat -c '%n %a %Y' point point/d point/d/e; }
mounted() {
    : > said
    ./inarch mount source point "$@" 2>> said & server=$!
    # A test that fails leaves no server behind, for whose end it would wait.
    trap "kill $server" EXIT
    while ! grep -q ^mounted said; do kill -0 $server || { cat said; exit 1; }; sleep 0.05; done
}
ended() { kill -TERM $server; wait $server; trap - EXIT; }
work() {
    mounted "$@"
    state > before
    chmod u+w point/d/read-only; echo more >> point/d/read-only; echo more >> point/d/e/file; chmod 750 point/d/e/file
    : > point/d/e/emptied; touch -h -d @1 point/d/link
    state > after; cmp before after
    ! touch point/d/new 2> refused; grep -c 'Permission denied' refused
    ! rm -f point/d/read-only 2> refused; grep -c 'Permission denied' refused
    cat point/d/read-only point/d/e/file
    chmod u+w point/d; touch point/d/new; rm point/d/link; chmod u-w point/d
    ended
}
work --ephemeral --overlay-dir .
work --ephemeral --in-memory 1M
work --overlay over
chmod 700 over; stat -c '%n %a' over/upper/d over/upper/d/e; ls over/work | wc -l
mounted --overlay over
ls point/d; cat point/d/read-only; stat -c %a point/d
ended
find source -newer said; cat source/d/read-only source/d/e/file
"#;

/// Runs a shell script in `dir` as the ordinary user that owns it.
fn as_user(dir: &Path, script: &str) -> Output {
    let mut command = Command::new("setpriv");
    command.args(["--reuid", "65534", "--regid", "65534", "--clear-groups", "sh", "-c", script]).current_dir(dir);
    command.output().unwrap()
}

/// A directory that is the user's, with `source` in it: all of its directories are closed.
fn prepare(dir: &Path) {
    copy_command(&dir.join("inarch"));
    fs::set_permissions(dir, fs::Permissions::from_mode(0o755)).unwrap();
    std::os::unix::fs::chown(dir, Some(65534), Some(65534)).unwrap();
    let made = as_user(
        dir,
        "mkdir -p source/d/e point; cd source; for file in d/read-only d/e/file d/e/emptied; do echo old > $file; done
         ln -s e d/link; chmod 444 d/read-only; chmod 555 d .; chmod 500 d/e; touch -d @1000000000 d/e d .",
    );
    assert_status(&made, 0);
}

#[test]
fn in_a_mount() {
    if !Path::new("/usr/bin/fusermount3").exists() || !rustix::process::geteuid().is_root() {
        return println!("skipped: in_a_mount: that takes fusermount3, and root to be another user");
    }
    let dir = scratch();
    prepare(dir.path());
    let output = as_user(dir.path(), WORK);
    assert_status(&output, 0);
    let once = "1\n1\nold\nmore\nold\nmore\n";
    let kept = "over/upper/d 555\nover/upper/d/e 500\n0\ne\nnew\nread-only\nold\nmore\n555\nold\nold\n";
    assert_eq!(stdout(&output), once.repeat(3) + kept);
}

#[test]
fn by_9p() {
    if !rustix::process::geteuid().is_root() {
        return println!("skipped: by_9p: it takes root to be another user");
    }
    let dir = scratch();
    prepare(dir.path());
    let client = "
client = NinepClient('socket')
for names in (['d', 'e', 'file'], ['d', 'e', 'emptied']):
    fid = client.walk(*names)
    client.open(fid, os.O_RDWR)
    client.write(fid, b'new')
    print(client.read(fid))
directory = client.walk('d')
try:
    client.create_in(directory, 'new')
except OSError as error:
    print(error.strerror)";
    fs::write(dir.path().join("client.py"), format!("{NINEP_CLIENT}{client}")).unwrap();
    let script = "
        ./inarch serve 9p source --ephemeral --overlay-dir . --socket socket 2> said & server=$!
        while [ ! -S socket ]; do kill -0 $server || { cat said; exit 1; }; sleep 0.05; done
        python3 client.py; kill -TERM $server; wait $server && cat source/d/e/file";
    let output = as_user(dir.path(), script);
    assert_status(&output, 0);
    assert_eq!(stdout(&output), "b'new\\n'\nb'new\\n'\nPermission denied\nold\n");
}
