//! Promise: `--owner`, `--map-uid` and `--map-gid` decide which owners a live tree shows; new files and chown are
//! mapped back to the host's owner.

use std::fs;
use std::os::unix::fs::{MetadataExt, chown};
use std::path::Path;

use crate::support::mounted::Server;
use crate::support::{any_machine, assert_status, host, run_script_in, scratch, stdout};

fn owner(path: &Path) -> (u32, u32) {
    let metadata = fs::symlink_metadata(path).unwrap();
    (metadata.uid(), metadata.gid())
}

/// Whether only a part of this can be tested here.
fn is_user() -> bool {
    let is_user = !rustix::process::geteuid().is_root();
    if is_user {
        println!("skipped: {}: only root has files of others", std::thread::current().name().unwrap_or("a test"));
    }
    is_user
}

#[test]
fn a_mount_shows_containers_files_as_their_users() {
    if is_user() {
        return;
    }
    let dir = scratch();
    let tree = dir.path().join("tree");
    fs::create_dir(&tree).unwrap();
    fs::write(tree.join("file"), "x").unwrap();
    for path in [&tree, &tree.join("file")] {
        chown(path, Some(100_000), Some(100_000)).unwrap();
    }
    for overlay in [&[][..], &["--overlay", "upper"]] {
        let maps = [&["--map-uid", "100000:0:65536", "--map-gid", "100000:0:65536"], overlay].concat();
        let mut server = Server::start(dir.path(), "tree", &maps);
        let script = "set -e; cd point; test \"$(stat -c %u:%g . file)\" = '0:0
0:0'
            mkdir d; chmod 777 d; touch a; chown 33:44 a; setfacl -m u:55:r,g:66:rw a
            test \"$(getfacl -n a | grep -E '55|66' | tr '\\n' ' ')\" = 'user:55:r-- group:66:rw- '
            setpriv --reuid 5 --regid 6 --clear-groups touch d/b; test \"$(stat -c %u:%g d/b)\" = 5:6
            if chown 100001 a 2> refused; then exit 1; fi; grep -q 'too large' refused; rm refused";
        host("sh", &["-c", script], dir.path());
        server.end("-TERM");
        let kept = if overlay.is_empty() { tree.clone() } else { dir.path().join("upper/upper") };
        assert_eq!((owner(&kept.join("a")), owner(&kept.join("d/b"))), ((100_033, 100_044), (100_005, 100_006)));
        let list = host("getfacl", &["-n", &kept.join("a").display().to_string()], dir.path());
        assert!(list.contains("user:100055:r--") && list.contains("group:100066:rw-"), "{list}");
        fs::remove_file(kept.join("a")).unwrap();
        fs::remove_dir_all(kept.join("d")).unwrap();
    }
}

#[test]
fn a_guest_sees_whose_files_it_is_told() {
    if is_user() {
        return;
    }
    let dir = scratch();
    for name in ["virtiofs", "9p", "over"] {
        let tree = dir.path().join(name);
        fs::create_dir(&tree).unwrap();
        fs::write(tree.join("file"), "x").unwrap();
        chown(tree.join("file"), Some(1000), Some(1000)).unwrap();
    }
    let at = |name: &str, options: &str| format!("--tree={}:/{name},{options}", dir.path().join(name).display());
    let options =
        [at("virtiofs", "rw,owner=12:34"), at("9p", "rw,via=9p,owner=12:34"), at("over", "via=virtiofs,owner=squash")];
    let script = "for t in /virtiofs /9p; do touch $t/new; stat -c '%n %u:%g' $t/file $t/new; \
                  chown 5 $t/file 2>/dev/null && echo given; done; stat -c '%n %u:%g' /over/file; true";
    let output = run_script_in(any_machine(), dir.path(), &options.each_ref().map(String::as_str), script, b"");
    assert_status(&output, 0);
    let expected = "/virtiofs/file 12:34\n/virtiofs/new 12:34\n/9p/file 12:34\n/9p/new 12:34\n/over/file 0:0\n";
    assert_eq!(stdout(&output), expected);
    for name in ["virtiofs", "9p"] {
        assert_eq!(owner(&dir.path().join(name).join("file")), (1000, 1000));
        assert_eq!(owner(&dir.path().join(name).join("new")), (0, 0));
    }
}
