//! Promise: the guest sees the host's tree: content, owners, modes, times, extended attributes, hard links.

use crate::support;
use std::os::unix::fs::{FileExt, symlink};
use std::path::Path;

use crate::support::{any_machine, assert_status, host, manifest_program, run_script_in, scratch, stdout};

/// One of everything that a file system can hold.
fn odd_tree(tree: &Path) {
    let script = r#"
set -eu
mkdir plain empty 'sp ace' "$(printf 'latin\351')" deep sticky
chmod 1777 sticky; chmod 2750 empty; chown 12:34 plain
d=deep; for i in $(seq 60); do d=$d/level-$i; done; mkdir -p "$d"; echo bottom > "$d/file"
echo content > plain/file; chmod 4755 plain/file; chown 1000:100 plain/file
echo old > plain/old; touch -d '1950-01-02 03:04:05.678901234' plain/old
echo future > plain/future; touch -d '2400-05-06 07:08:09.000000001' plain/future
: > plain/zero; head -c 4096 /dev/urandom > plain/block; head -c 4097 /dev/urandom > plain/block-and-one
head -c 3000000 /dev/urandom > plain/large
ln plain/file plain/hard-link; ln plain/file empty/another-name
ln -s target plain/short-link; ln -s "$(printf 'x%.0s' $(seq 1000))" plain/long-link; ln -s /nowhere plain/dangling
mkfifo plain/fifo; mknod plain/char c 1 3; mknod plain/block-device b 259 70000
truncate -s 10M plain/only-hole; truncate -s 20M plain/holes
touch "plain/$(printf 'n%.0s' $(seq 255))"; touch 'plain/new
line' "plain/back\\slash"
mkdir many; (cd many; seq -f 'file-%g' 5000 | xargs touch)
mkdir subdirs; (cd subdirs; seq 300 | xargs mkdir)
setfattr -n user.small -v value plain/zero
setfattr -n user.large -v "$(head -c 2000 /dev/zero | tr '\0' L)" plain/block
setfattr -n trusted.secret -v hidden plain/block
setcap cap_net_raw+ep plain/block-and-one 2>/dev/null || setfattr -n security.capability -v 0x0100000200200000000000000000000000000000 plain/block-and-one
setfacl -m u:1234:rw,g:5678:r plain/large; setfacl -d -m u:42:rwx empty
"#;
    host("sh", &["-c", script], tree);
    let holes = std::fs::OpenOptions::new().write(true).open(tree.join("plain/holes")).unwrap();
    for at in [0u64, 5 << 20, (5 << 20) + 8192, (20 << 20) - 1] {
        holes.write_all_at(b"data", at).unwrap();
    }
    symlink(std::ffi::OsStr::new("sp ace/missing"), tree.join("relative")).unwrap();
    drop(std::os::unix::net::UnixListener::bind(tree.join("plain/socket")).unwrap());
}

#[test]
fn every_odd_node_is_the_same_in_the_guest() {
    let dir = scratch();
    let tree = dir.path().join("tree");
    std::fs::create_dir(&tree).unwrap();
    odd_tree(&tree);
    let program = manifest_program(dir.path());
    let on_host = host("python3", &[program.to_str().unwrap(), "."], &tree);
    assert!(on_host.lines().count() > 5300, "the odd tree was not made");

    let option = format!("{}:/mnt,ro", tree.display());
    // The first mount is the root's own; the second is the tree as a disk of its own.
    let script = format!("python3 {0} {1} > own; python3 {0} /mnt; cat own >&2", program.display(), tree.display());
    let output = run_script_in(any_machine(), dir.path(), &["--tree", &option], &script, b"");
    assert_status(&output, 0);
    compare(&on_host, &stdout(&output), "as a tree of its own");
    compare(&on_host, &support::stderr(&output), "as a part of the root");
}

#[track_caller]
fn compare(host: &str, guest: &str, what: &str) {
    for (host, guest) in host.lines().zip(guest.lines()) {
        assert_eq!(host, guest, "{what}");
    }
    assert_eq!(host.lines().count(), guest.lines().count(), "{what}");
}
