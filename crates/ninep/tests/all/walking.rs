//! `Twalk`: resolves names.

use crate::support::{Served, frame, walk};
use inarch_ninep::wire::{MAX_NAMES, Reply, Request, kind};
use rustix::io::Errno;

const BADF: i32 = Errno::BADF.raw_os_error();
const INVAL: i32 = Errno::INVAL.raw_os_error();
const NOENT: i32 = Errno::NOENT.raw_os_error();
const NOTDIR: i32 = Errno::NOTDIR.raw_os_error();

#[test]
fn no_names_make_a_copy() {
    let served = Served::new();
    served.write("file", b"content");
    let mut client = served.client();
    client.walk(0, 1, "file");
    assert!(client.walk(1, 2, "").is_empty());
    client.clunk(1);
    client.open(2, 0);
    assert_eq!(client.read(2, 0, 100), b"content");
    // Onto itself it changes nothing.
    assert!(client.walk(2, 2, "").is_empty());
    assert_eq!(client.read(2, 0, 100), b"content");
}

#[test]
fn a_fid_can_be_moved_and_none_can_be_taken_twice() {
    let served = Served::new();
    served.make_directory("a/b");
    let mut client = served.client();
    client.walk(0, 1, "a");
    let [qid] = client.walk(1, 1, "b")[..] else { panic!() };
    assert_eq!(client.getattr(1).qid.path, qid.path);
    assert_eq!(client.fails(&walk(0, 1, &[])), BADF);
    assert_eq!(client.fails(&walk(0, 1, &[b"a"])), BADF);
    assert_eq!(client.fails(&walk(77, 78, &[])), BADF);
}

#[test]
fn sixteen_names_are_the_most() {
    let served = Served::new();
    served.make_directory(&vec!["d"; 17].join("/"));
    let mut client = served.client();
    assert_eq!(client.walk(0, 1, &vec!["d"; MAX_NAMES].join("/")).len(), 16);
    let names = b"\x01\0d".repeat(17);
    let body = [&0u32.to_le_bytes()[..], &9u32.to_le_bytes(), &17u16.to_le_bytes(), &names].concat();
    client.send_raw(&frame(kind::WALK, 1, &body));
    assert_eq!(client.receive().unwrap().errno(), Some(INVAL));
}

#[test]
fn a_walk_that_ends_early_makes_no_fid() {
    let served = Served::new();
    served.make_directory("a/b");
    served.write("a/file", b"");
    std::os::unix::fs::symlink("/", served.path("a/link")).unwrap();
    let mut client = served.client();
    for names in [[&b"a"[..], b"b", b"absent"], [b"a", b"file", b"x"], [b"a", b"link", b"etc"], [b"a", b"b", b"x/.."]] {
        let message = client.ok(&walk(0, 1, &names));
        assert!(matches!(message.reply(), Reply::Walk { count: 2, .. }), "{message:?}");
        assert_eq!(client.fails(&Request::Clunk { fid: 1 }), BADF);
    }
    assert_eq!(client.fails(&walk(0, 1, &[b"absent", b"a"])), NOENT);
    client.walk(0, 1, "a/file");
    assert_eq!(client.fails(&walk(1, 2, &[b"x"])), NOTDIR);
    assert_eq!(client.fails(&walk(1, 2, &[b".."])), NOTDIR);
    client.walk(0, 3, "a/link");
    assert_eq!(client.fails(&walk(3, 2, &[b"etc"])), NOTDIR);
}

#[test]
fn names_that_are_paths_are_refused() {
    let served = Served::new();
    served.make_directory("a/b");
    let mut client = served.client();
    for name in [&b""[..], b"/", b"a/b", b"/etc", b"a/", b"../..", b"..\0", b"a\0"] {
        assert_eq!(client.fails(&walk(0, 1, &[name])), INVAL, "{name:?}");
    }
    assert_eq!(client.fails(&walk(0, 1, &[&[b'x'; 256]])), Errno::NAMETOOLONG.raw_os_error());
}

#[test]
fn a_directory_is_its_own_dot() {
    let served = Served::new();
    served.make_directory("a/b");
    served.write("a/file", b"");
    let mut client = served.client();
    // Listings contain these names: diod's client walks to what it has listed.
    client.walk(0, 1, "a");
    client.walk(1, 2, "");
    client.open(2, 0);
    for listed in client.list(2, 0, 4096) {
        let qid = match client.ok(&walk(1, 9, &[&listed.name])).reply() {
            Reply::Walk { qids, count: 1 } => qids[0],
            other => panic!("{other:?}"),
        };
        assert_eq!(qid.path, client.getattr(9).qid.path, "{listed:?}");
        client.clunk(9);
    }
    let qids = client.walk(0, 3, "./a/./b/.");
    let paths: Vec<u64> = qids.iter().map(|qid| qid.path.get()).collect();
    assert_eq!(paths[0], client.getattr(0).qid.path.get());
    assert_eq!(paths[1], paths[2]);
    assert_eq!(paths[3], paths[4]);
    assert_eq!(client.getattr(3).qid.path.get(), paths[4]);
    // It is still known under its name.
    client.ok(&Request::Remove { fid: 3 });
    assert!(!served.path("a/b").exists());
    client.walk(0, 4, "a/file");
    assert_eq!(client.fails(&walk(4, 5, &[b"."])), NOTDIR);
    // No request makes or removes such a name.
    for name in [&b"."[..], b".."] {
        assert_eq!(client.fails(&Request::Mkdir { directory: 1, name, mode: 0o755, gid: 0 }), INVAL);
        assert_eq!(client.fails(&Request::Unlinkat { directory: 1, name, flags: 0x200 }), INVAL);
    }
}

#[test]
fn above_the_root_is_the_root() {
    let served = Served::new();
    served.make_directory("a/b");
    let mut client = served.client();
    let root = client.getattr(0).qid.path;
    let qids = client.walk(0, 1, "a/b/../../../..");
    assert_eq!(qids.last().unwrap().path, root);
    assert_eq!(qids[2].path, qids[0].path);
    // A directory that was moved meanwhile is found at its new place.
    client.walk(0, 2, "a/b");
    std::fs::create_dir(served.path("c")).unwrap();
    client.walk(0, 3, "a");
    client.walk(0, 4, "c");
    client.ok(&Request::Renameat { old_directory: 3, old_name: b"b", new_directory: 4, new_name: b"b" });
    assert_eq!(client.walk(2, 5, "..")[0].path, client.getattr(4).qid.path);
}

#[test]
fn an_open_fid_can_be_walked_from_and_moved() {
    let served = Served::new();
    served.make_directory("a/b");
    served.write("a/file", b"content");
    let mut client = served.client();
    client.walk(0, 1, "a");
    client.open(1, 0);
    client.walk(1, 2, "file");
    client.walk(1, 1, "b");
    // It is not open any more.
    assert_eq!(client.fails(&Request::Readdir { fid: 1, offset: 0, count: 1000 }), BADF);
    client.open(1, 0);
}
