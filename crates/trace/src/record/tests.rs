//! The lines of `mount --record`.

use inarch_tree::Timestamp;
use inarch_vfs::{Context, MemoryFiles, NodeId};

use super::*;

const PLAIN: Access<'static> = Access {
    kind: AccessKind::Absent,
    path: b"a/\"b\"",
    nameless: false,
    to: None,
    detail: None,
    identity: None,
    error: None,
    process: None,
};

fn request(file: &Path) -> RecordRequest {
    RecordRequest { file: file.to_owned(), level: RecordLevel::Command }
}

#[test]
fn every_access_is_a_line() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("record");
    let mut lines = Lines(BufWriter::new(File::create(&path).unwrap()));
    let mtime = Timestamp { seconds: -1, nanoseconds: 999_999_999 };
    let identity = Some(inarch_vfs::Identity { inode: u64::MAX, mode: 0o100_644, size: 3, mtime });
    for access in [
        PLAIN,
        Access { kind: AccessKind::Rename, path: b"\xff", to: Some(b"x\n"), process: Some(0), ..PLAIN },
        Access { kind: AccessKind::OpenRead, path: b"f", nameless: true, identity, process: Some(7), ..PLAIN },
        Access { kind: AccessKind::GetXattr, path: b"", detail: Some(b"user.x"), error: Some(Errno::NODATA), ..PLAIN },
        Access { kind: AccessKind::ReadLink, path: b"l", detail: Some(b"../t"), ..PLAIN },
        Access { kind: AccessKind::Write, path: b"f", error: Some(Errno::from_raw_os_error(4000)), ..PLAIN },
    ] {
        lines.record(&access).unwrap();
    }
    lines.caught_up().unwrap();
    let expected = r#"{"access":"absent","path":"a/\"b\""}
{"access":"rename","path":[255],"to":"x\n","pid":0}
{"access":"open-read","path":"f","nameless":true,"inode":18446744073709551615,"mode":33188,"size":3,"mtime":[-1,999999999],"pid":7}
{"access":"get-xattr","path":"","attribute":"user.x","error":"ENODATA"}
{"access":"read-link","path":"l","target":"../t"}
{"access":"write","path":"f","error":"4000"}
"#;
    assert_eq!(std::fs::read_to_string(&path).unwrap(), expected);
    // In the background the working directory is another one by the time that something fails.
    let to_root: std::path::PathBuf = std::env::current_dir().unwrap().components().skip(1).map(|_| "..").collect();
    let relative = to_root.join(path.strip_prefix("/").unwrap());
    assert!(NewRecord::create(&request(&relative)).unwrap().path.is_absolute());
}

#[test]
fn only_a_whole_record_says_that_it_is() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("record");
    let record = NewRecord::create(&request(&path)).unwrap();
    let layer = record.over(Arc::new(MemoryFiles::new(1 << 20)));
    for name in [b"a", b"b", b"a"] {
        layer.lookup(&Context::SERVER, NodeId::ROOT, name).unwrap_err();
    }
    record.start(|failed| panic!("{failed}")).unwrap().finish().unwrap();
    let expected = r#"{"start":true,"level":"command"}
{"access":"absent","path":"a"}
{"access":"absent","path":"b"}
{"end":true,"accesses":2}
"#;
    assert_eq!(std::fs::read_to_string(&path).unwrap(), expected);
    for (path, why) in [("/proc/nothing/here", "No such file"), ("/dev/full", "No space left")] {
        let error = NewRecord::create(&request(Path::new(path))).err().unwrap().to_string();
        assert!(error.contains("cannot record there") && error.contains(why), "{error}");
    }
}
