//! Promise: a guest sees a directory live over 9P, and changes it only if that is allowed.

use std::fs;

use crate::support::{assert_status, copy_command, inarch, scratch, stdout};

/// What a guest does with each directory; it prints what it found.
const WORK: &str = r#"
    cat /live/file /thrown/file
    echo guest > /live/made; echo more >> /live/file; mv /live/dir/old /live/dir/new; ln -s file /live/link
    echo guest > /thrown/made; rm /thrown/file; ls /thrown
    touch /kept/x 2>/dev/null || echo refused
    flock /live/file true && echo locked
    grep -c '^vsock:.* 9p ' /proc/mounts
    /usr/bin/python3 -c "$0""#;

/// What somebody in the guest gets who would reach the directories past their mounts.
const PAST_THE_MOUNTS: &str = "
import socket
for port in 564, 565, 566, 1024:
    stream = socket.socket(socket.AF_VSOCK, socket.SOCK_STREAM)
    try:
        stream.connect((2, port))
    except OSError as error:
        print(error.strerror)";

#[test]
fn live_thrown_away_and_read_only() {
    let place = scratch();
    let directory = |name: &str| {
        let path = place.path().join(name);
        fs::create_dir_all(path.join("dir")).unwrap();
        fs::write(path.join("file"), format!("{name}\n")).unwrap();
        fs::write(path.join("dir/old"), b"").unwrap();
        path
    };
    let [live, thrown, kept] = ["live", "thrown", "kept"].map(directory);
    let tree = |path: &std::path::Path, option: &str| format!("{}:/{option}", path.display());
    let (live_tree, thrown_tree, kept_tree) =
        (tree(&live, "live,rw,via=9p"), tree(&thrown, "thrown,via=9p"), tree(&kept, "kept,ro,via=9p"));
    let arguments = ["run", "-q", "--tree", &live_tree, "--tree", &thrown_tree, "--tree", &kept_tree, "--"];
    let run = inarch(arguments.into_iter().chain(["sh", "-c", WORK, PAST_THE_MOUNTS]));
    assert_status(&run, 0);
    assert_eq!(
        stdout(&run),
        "live\nthrown\ndir\nmade\nrefused\nlocked\n2\n".to_owned() + &"Connection reset by peer\n".repeat(4)
    );
    assert_eq!(fs::read(live.join("made")).unwrap(), b"guest\n");
    assert_eq!(fs::read(live.join("file")).unwrap(), b"live\nmore\n");
    assert!(live.join("dir/new").exists() && !live.join("dir/old").exists());
    assert_eq!(fs::read_link(live.join("link")).unwrap(), std::path::Path::new("file"));
    assert_eq!(fs::read(thrown.join("file")).unwrap(), b"thrown\n");
    assert!(!thrown.join("made").exists() && !kept.join("x").exists());
}

/// Serves `/var/tmp/.../shared` on a vsock port, connects to it, and mounts it by the connection, as a guest's helper does.
const BY_VSOCK: &str = r#"
import ctypes, os, socket, subprocess, sys, time
subprocess.run('modprobe -a vsock_loopback 9p 9pnet_fd', shell=True, check=True)
server = subprocess.Popen([sys.argv[1], 'serve', '9p', sys.argv[2], '--vsock', '5640'], stderr=subprocess.DEVNULL)
for attempt in range(900):
    try:
        stream = socket.socket(socket.AF_VSOCK, socket.SOCK_STREAM)
        stream.connect((1, 5640))
        break
    except OSError:
        time.sleep(0.1)
libc = ctypes.CDLL(None, use_errno=True)
os.mkdir('/tmp/mounted')
number = stream.fileno()
options = f'trans=fd,rfdno={number},wfdno={number},version=9p2000.L,msize=1048576,cache=mmap'
assert libc.mount(b'none', b'/tmp/mounted', b'9p', 0, options.encode()) == 0, os.strerror(ctypes.get_errno())
print(open('/tmp/mounted/file').read())
with open('/tmp/mounted/made', 'w') as made:
    made.write('x' * 3000000)
print(os.stat(sys.argv[2] + '/made').st_size)
libc.umount(b'/tmp/mounted')
stream.close()
server.terminate()
print(server.wait())
"#;

#[test]
fn it_is_served_on_vsock() {
    // A guest's kernel has the loopback that many hosts lack.
    let place = scratch();
    let shared = place.path().join("shared");
    fs::create_dir(&shared).unwrap();
    fs::write(shared.join("file"), "by vsock").unwrap();
    let script = place.path().join("script.py");
    fs::write(&script, BY_VSOCK).unwrap();
    let (script, shared) = (script.display().to_string(), shared.display().to_string());
    // Wherever it was built, the guest has what lies here.
    let server = place.path().join("inarch").display().to_string();
    copy_command(server.as_ref());
    let program = ["/usr/bin/python3", &script, &server, &shared];
    let run = inarch(["run", "-q", "-u", "root", "--"].into_iter().chain(program));
    assert_status(&run, 0);
    assert_eq!(stdout(&run), "by vsock\n3000000\n0\n");
}
