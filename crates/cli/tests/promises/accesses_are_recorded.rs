//! Promise: `inarch mount --record FILE` writes down each name that is looked for, found or not, and what is opened, read and
//! changed, every time and by whom.

use std::fs;

use crate::support::mounted::Server;
use crate::support::{host, scratch};

#[test]
fn what_is_done_in_a_mount_is_written_down() {
    let dir = scratch();
    fs::create_dir_all(dir.path().join("tree/sub")).unwrap();
    fs::write(dir.path().join("tree/sub/large"), vec![7; 1 << 20]).unwrap();
    fs::write(dir.path().join("tree/small"), "small").unwrap();
    let mut server = Server::start(dir.path(), "tree", &["--record", "record"]);
    let script = "cd point; cat sub/large small > /dev/null; for i in 1 2; do test ! -e missing; done; \
                  echo new > sub/new; mv sub/new moved; rm moved; ls sub > /dev/null; \
                  echo 'import os; print(os.getpid()); os.stat(\"missing.py\")' > ../stat.py; \
                  echo 'import os, threading; os.setxattr(\"small\", \"user.x\", b\"x\"); ' > ../thread.py; \
                  echo 'threading.Thread(target=lambda: os.access(\"by-a-thread\", os.F_OK)).start()' >> ../thread.py; \
                  fallocate -l 99 small; \
                  cd ..; (cd point; python3 ../thread.py & echo $!; wait; exec python3 ../stat.py) 2> /dev/null || true";
    let said = host("sh", &["-c", script], dir.path());
    let pids: Vec<u64> = said.lines().map(|pid| pid.parse().unwrap()).collect();
    assert_eq!(server.end("-TERM"), Some(0));
    let text = fs::read_to_string(dir.path().join("record")).unwrap();
    let lines: Vec<serde_json::Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let count = |access: &str, path: &str| lines.iter().filter(|l| l["access"] == access && l["path"] == path).count();
    for (access, path) in [
        ("found", "sub"),
        ("open-read", "sub/large"),
        ("read", "sub/large"),
        ("read", "small"),
        ("create", "sub/new"),
        ("open-write", "sub/new"),
        ("write", "sub/new"),
        ("rename", "sub/new"),
        ("remove", "moved"),
        ("list", "sub"),
        ("write", "small"),
        ("set-attributes", "small"),
    ] {
        assert!(count(access, path) > 0, "{access} {path} is not in:\n{text}");
    }
    // Every time, and large files are read no more secretly than small ones.
    assert_eq!((count("absent", "missing"), count("read", "sub/large")), (2, 1), "{text}");
    // The process, whichever of its threads it was.
    let by = |path: &str| lines.iter().find(|line| line["access"] == "absent" && line["path"] == path)?["pid"].as_u64();
    assert_eq!([by("by-a-thread"), by("missing.py")].map(Option::unwrap).as_slice(), pids, "{text}");
    assert_eq!(lines.last().unwrap()["lost"], 0);
}
