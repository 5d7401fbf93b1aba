//! `Tlink`, `Trename`, `Trenameat`, `Tunlinkat`, `Tremove`, `Tmkdir`, and the owners of new files.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};

use crate::support::{Served, walk};
use inarch_ninep::wire::{Request, unlink};
use rustix::io::Errno;

const ACCES: i32 = Errno::ACCESS.raw_os_error();
const INVAL: i32 = Errno::INVAL.raw_os_error();
const NOENT: i32 = Errno::NOENT.raw_os_error();
const PERM: i32 = Errno::PERM.raw_os_error();

fn renameat<'a>(old_directory: u32, old_name: &'a [u8], new_directory: u32, new_name: &'a [u8]) -> Request<'a> {
    Request::Renameat { old_directory, old_name, new_directory, new_name }
}

fn link(fid: u32, name: &[u8]) -> Request<'_> {
    Request::Link { directory: 0, fid, name }
}

fn remove(name: &[u8], flags: u32) -> Request<'_> {
    Request::Unlinkat { directory: 0, name, flags }
}

#[test]
fn what_has_no_name_left_gets_none_again() {
    let served = Served::new();
    served.write("closed", b"");
    served.write("open", b"");
    let mut client = served.client();
    client.walk(0, 1, "closed");
    client.walk(0, 2, "open");
    client.open(2, 2);
    for (fid, name) in [(1, &b"closed"[..]), (2, b"open")] {
        client.ok(&remove(name, 0));
        let errno = client.fails(&link(fid, b"again"));
        assert!([Errno::NOENT, Errno::STALE].map(Errno::raw_os_error).contains(&errno), "{errno}");
        assert!(!served.path("again").exists());
    }
}

#[test]
fn files_and_links_get_further_names_and_directories_none() {
    let served = Served::new();
    served.write("file", b"content");
    served.make_directory("directory");
    symlink("file", served.path("symlink")).unwrap();
    let mut client = served.client();
    client.walk(0, 1, "file");
    client.ok(&link(1, b"second"));
    assert_eq!(fs::metadata(served.path("second")).unwrap().nlink(), 2);
    assert_eq!(client.getattr(1).links.get(), 2);
    assert_eq!(client.fails(&link(1, b"second")), Errno::EXIST.raw_os_error());
    client.walk(0, 2, "symlink");
    client.ok(&link(2, b"symlink2"));
    assert_eq!(fs::read_link(served.path("symlink2")).unwrap().as_os_str(), "file");
    client.walk(0, 3, "directory");
    assert_eq!(client.fails(&link(3, b"directory2")), PERM);
    assert_eq!(client.fails(&Request::Link { directory: 1, fid: 2, name: b"x" }), Errno::NOTDIR.raw_os_error());
    for name in [&b""[..], b".", b"..", b"a/b", b"/x", b"a\0"] {
        assert_eq!(client.fails(&link(1, name)), INVAL, "{name:?}");
    }
}

#[test]
fn a_directory_is_not_moved_into_itself() {
    let served = Served::new();
    served.make_directory("a/b/c");
    let mut client = served.client();
    client.walk(0, 1, "a");
    client.walk(0, 2, "a/b/c");
    for target in [1, 2] {
        assert_eq!(client.fails(&renameat(0, b"a", target, b"x")), INVAL);
        assert_eq!(client.fails(&Request::Rename { fid: 1, directory: target, name: b"x" }), INVAL);
    }
    assert_eq!(client.fails(&renameat(2, b"..", 0, b"x")), INVAL);
    assert!(served.path("a/b/c").is_dir());
    // The fids still refer to the same files.
    assert_eq!(client.walk(1, 3, "b/c")[1].path, client.getattr(2).qid.path);
}

#[test]
fn what_is_renamed_over_something_is_of_its_kind() {
    let served = Served::new();
    for name in ["file", "other", "third"] {
        served.write(name, name.as_bytes());
    }
    served.make_directory("full/x");
    served.make_directory("empty");
    served.make_directory("moved");
    let mut client = served.client();
    client.walk(0, 1, "other");
    client.open(1, 0);
    client.ok(&renameat(0, b"file", 0, b"other"));
    assert_eq!((client.read(1, 0, 100), client.getattr(1).links.get()), (b"other".to_vec(), 0));
    assert_eq!(fs::read(served.path("other")).unwrap(), b"file");
    client.ok(&renameat(0, b"third", 0, b"third"));
    for (from, to, errno) in [
        (&b"other"[..], &b"full"[..], Errno::ISDIR),
        (b"full", b"other", Errno::NOTDIR),
        (b"moved", b"full", Errno::NOTEMPTY),
        (b"absent", b"x", Errno::NOENT),
    ] {
        assert_eq!(client.fails(&renameat(0, from, 0, to)), errno.raw_os_error());
    }
    client.walk(0, 2, "full/x");
    client.ok(&renameat(0, b"full", 0, b"empty"));
    // Its content follows.
    fs::write(served.path("empty/x/new"), b"").unwrap();
    client.walk(2, 3, "new");
    client.walk(0, 4, "moved");
    client.ok(&Request::Rename { fid: 4, directory: 2, name: b"deep" });
    assert!(served.path("empty/x/deep").is_dir());
}

#[test]
fn a_fid_renamed_by_another_is_found_by_its_new_name_or_not_at_all() {
    let served = Served::new();
    served.write("file", b"content");
    let mut client = served.client();
    client.walk(0, 1, "file");
    client.walk(0, 2, "file");
    client.ok(&Request::Rename { fid: 1, directory: 0, name: b"renamed" });
    // The other name leads to nothing: no other file is renamed or removed by it.
    fs::write(served.path("file"), b"another").unwrap();
    assert_eq!(client.fails(&Request::Rename { fid: 2, directory: 0, name: b"x" }), Errno::STALE.raw_os_error());
    assert_eq!(client.fails(&Request::Remove { fid: 2 }), Errno::STALE.raw_os_error());
    assert_eq!(fs::read(served.path("file")).unwrap(), b"another");
    client.ok(&Request::Remove { fid: 1 });
    assert!(!served.path("renamed").exists());
    assert_eq!(client.fails(&Request::Remove { fid: 0 }), Errno::BUSY.raw_os_error());
    assert_eq!(client.fails(&Request::Getattr { fid: 0, mask: 0 }), Errno::BADF.raw_os_error());
}

#[test]
fn removing_says_what_is_removed() {
    let served = Served::new();
    served.write("file", b"");
    served.make_directory("directory/x");
    let mut client = served.client();
    assert_eq!(client.fails(&remove(b"directory", 0)), Errno::ISDIR.raw_os_error());
    assert_eq!(client.fails(&remove(b"file", unlink::REMOVE_DIRECTORY)), Errno::NOTDIR.raw_os_error());
    assert_eq!(client.fails(&remove(b"directory", unlink::REMOVE_DIRECTORY)), Errno::NOTEMPTY.raw_os_error());
    for flags in [1, 0x100, 0x201, u32::MAX] {
        assert_eq!(client.fails(&remove(b"file", flags)), INVAL, "{flags:#x}");
    }
    for name in [&b"."[..], b"..", b"", b"directory/x"] {
        assert_eq!(client.fails(&remove(name, unlink::REMOVE_DIRECTORY)), INVAL, "{name:?}");
    }
    client.walk(0, 1, "directory");
    assert_eq!(client.fails(&Request::Remove { fid: 1 }), Errno::NOTEMPTY.raw_os_error());
    assert_eq!(client.fails(&Request::Clunk { fid: 1 }), Errno::BADF.raw_os_error());
    client.ok(&remove(b"file", 0));
    assert_eq!(client.fails(&remove(b"file", 0)), NOENT);
}

#[test]
fn a_directory_that_gives_its_group_gives_it() {
    if !crate::support::is_root() {
        return println!("skipped: a_directory_that_gives_its_group_gives_it: only root can be several users");
    }
    let served = Served::new();
    served.make_directory("shared");
    chown(served.path("shared"), Some(0), Some(77)).unwrap();
    fs::set_permissions(served.path("shared"), fs::Permissions::from_mode(0o2777)).unwrap();
    let mut client = served.client();
    client.attach(100, 1000);
    client.walk(100, 101, "shared");
    client.ok(&Request::Mkdir { directory: 101, name: b"directory", mode: 0o755, gid: 77 });
    client.ok(&Request::Symlink { directory: 101, name: b"symlink", target: b"x", gid: 77 });
    client.ok(&Request::Mknod { directory: 101, name: b"fifo", mode: 0o010_644, major: 0, minor: 0, gid: 77 });
    // Whatever group a client names; and a new file gets no set-group-ID bit for a group that its user is not in.
    client.walk(101, 102, "");
    client.ok(&Request::Lcreate { fid: 102, name: b"file", flags: 0o302, mode: 0o2755, gid: 1000 });
    for name in ["directory", "symlink", "fifo", "file"] {
        let found = fs::symlink_metadata(served.path("shared").join(name)).unwrap();
        assert_eq!((found.uid(), found.gid()), (1000, 77), "{name}");
        assert_eq!(found.mode() & 0o2000 != 0, name == "directory", "{name}: {:o}", found.mode());
    }
}

#[test]
fn names_in_a_sticky_directory_are_their_owners() {
    if !crate::support::is_root() {
        return println!("skipped: names_in_a_sticky_directory_are_their_owners: only root can be several users");
    }
    let served = Served::new();
    served.make_directory("tmp");
    fs::set_permissions(served.path("tmp"), fs::Permissions::from_mode(0o1777)).unwrap();
    let mut client = served.client();
    for (root, uid, name) in [(100, 1000, "first"), (200, 2000, "second")] {
        client.attach(root, uid);
        client.walk(root, root + 1, "tmp");
        client.walk(root, root + 2, "tmp");
        client.create(root + 2, name);
        assert_eq!(fs::metadata(served.path("tmp").join(name)).unwrap().uid(), uid);
    }
    let unlink = |directory, name| Request::Unlinkat { directory, name, flags: 0 };
    assert_eq!(client.fails(&unlink(201, b"first")), PERM);
    assert_eq!(client.fails(&renameat(201, b"first", 201, b"taken")), PERM);
    assert_eq!(client.fails(&renameat(201, b"second", 201, b"first")), PERM);
    client.walk(201, 203, "first");
    assert_eq!(client.fails(&Request::Rename { fid: 203, directory: 201, name: b"taken" }), PERM);
    assert_eq!(client.fails(&Request::Remove { fid: 203 }), PERM);
    client.ok(&renameat(201, b"second", 201, b"mine"));
    client.ok(&unlink(201, b"mine"));
    client.ok(&unlink(101, b"first"));
    // Root may; and a missing name is missing for everybody.
    client.walk(0, 1, "tmp");
    fs::write(served.path("tmp/roots"), b"").unwrap();
    assert_eq!(client.fails(&unlink(201, b"absent")), NOENT);
    client.ok(&unlink(1, b"roots"));
}

#[test]
fn every_user_has_its_own_rights_on_one_connection() {
    if !crate::support::is_root() {
        return println!("skipped: every_user_has_its_own_rights_on_one_connection: only root can be several users");
    }
    let served = Served::new();
    served.make_directory("private");
    served.write("private/file", b"secret");
    chown(served.path("private"), Some(1000), Some(1000)).unwrap();
    fs::set_permissions(served.path("private"), fs::Permissions::from_mode(0o700)).unwrap();
    let mut client = served.client();
    client.attach(100, 1000);
    client.attach(200, 2000);
    // A client that names no user is nobody, not root.
    client.attach(300, u32::MAX);
    for (fid, allowed) in [(0, true), (100, true), (200, false), (300, false)] {
        let walked = client.ask(&walk(fid, fid + 1, &[b"private", b"file"]));
        match allowed {
            true => client.clunk(fid + 1),
            // The first name is found, the second is out of reach.
            false => {
                assert_eq!(client.fails(&Request::Clunk { fid: fid + 1 }), Errno::BADF.raw_os_error(), "{walked:?}")
            }
        }
        client.walk(fid, fid + 2, "private");
        let opened = client.ask(&Request::Lopen { fid: fid + 2, flags: 0 }).errno();
        assert_eq!(opened, (!allowed).then_some(ACCES), "{fid}");
        let name = format!("d{fid}");
        let made = Request::Mkdir { directory: fid + 2, name: name.as_bytes(), mode: 0o755, gid: 0 };
        assert_eq!(client.ask(&made).errno(), (!allowed).then_some(ACCES), "{fid}");
    }
    assert_eq!(fs::metadata(served.path("private/d100")).unwrap().uid(), 1000);
    // One user's fid cannot be opened by another user through a copy.
    client.walk(0, 10, "private/file");
    client.walk(10, 11, "");
    client.open(11, 0);
    // In parallel, by many.
    std::thread::scope(|scope| {
        for uid in 0..16u32 {
            let served = &served;
            scope.spawn(move || {
                let mut client = served.client();
                for fid in 1..65 {
                    client.attach(fid, uid * 100 + fid);
                    client.walk(fid, fid + 1000, "");
                    client.clunk(fid);
                }
            });
        }
    });
}

#[test]
fn what_has_come_to_a_name_is_checked_anew() {
    const USER: u32 = 1000;
    if !crate::support::is_root() {
        return println!("skipped: what_has_come_to_a_name_is_checked_anew: only root can be several users");
    }
    let served = Served::new();
    // The host makes a file, replacing what is there.
    let make = |name: &str, owner: u32, content: &[u8]| {
        served.write("new", content);
        chown(served.path("new"), Some(owner), Some(owner)).unwrap();
        fs::set_permissions(served.path("new"), fs::Permissions::from_mode(0o600)).unwrap();
        fs::rename(served.path("new"), served.path(name)).unwrap();
    };
    for (name, mode) in [("", 0o777), ("sticky", 0o1777)] {
        served.make_directory(name);
        fs::set_permissions(served.path(name), fs::Permissions::from_mode(mode)).unwrap();
    }
    let mut client = served.client();
    client.attach(10, USER);
    client.walk(10, 11, "sticky");

    // It was absent.
    for (name, flags) in [("read", 0), ("write", 2), ("empty", 0o1002)] {
        assert_eq!(client.fails(&walk(10, 12, &[name.as_bytes()])), NOENT);
        make(name, 0, b"secret");
        client.walk(10, 12, "");
        let create = Request::Lcreate { fid: 12, name: name.as_bytes(), flags: flags | 0o100, mode: 0o644, gid: USER };
        assert_eq!(client.fails(&create), ACCES, "{name}");
        assert_eq!(fs::read(served.path(name)).unwrap(), b"secret");
        client.clunk(12);
    }
    // It was the user's own, and is another user's now.
    fn unlinkat(directory: u32, name: &[u8]) -> Request<'_> {
        Request::Unlinkat { directory, name, flags: 0 }
    }
    make("sticky/file", USER, b"mine");
    make("sticky/other", USER, b"mine");
    client.walk(11, 12, "file");
    make("sticky/file", 0, b"secret");
    assert_eq!(client.fails(&unlinkat(11, b"file")), PERM);
    assert_eq!(client.fails(&renameat(11, b"file", 10, b"moved")), PERM);
    assert_eq!(client.fails(&renameat(11, b"other", 11, b"file")), PERM);
    assert_eq!(client.fails(&Request::Lopen { fid: 12, flags: 0 }), Errno::STALE.raw_os_error());
    assert_eq!(fs::read(served.path("sticky/file")).unwrap(), b"secret");
    // Where all may remove all, the file is removed.
    make("file", USER, b"mine");
    client.walk(10, 13, "file");
    make("file", 0, b"secret");
    client.ok(&renameat(10, b"file", 10, b"moved"));
    client.ok(&unlinkat(10, b"moved"));
}

#[test]
fn a_user_moves_and_links_only_what_a_local_user_could() {
    if !crate::support::is_root() {
        return println!(
            "skipped: a_user_moves_and_links_only_what_a_local_user_could: it takes root to have two users"
        );
    }
    const USER: u32 = 1000;
    let served = Served::new();
    for (name, owner, mode) in [
        ("from", 0, 0o777),
        ("to", 0, 0o1777),
        ("from/theirs", 0, 0o755),
        ("from/open", 0, 0o777),
        ("from/own", USER, 0o755),
    ] {
        served.make_directory(name);
        chown(served.path(name), Some(owner), None).unwrap();
        fs::set_permissions(served.path(name), fs::Permissions::from_mode(mode)).unwrap();
    }
    for (name, owner, mode) in [
        ("secret", 0, 0o644),
        ("shared", 0, 0o666),
        ("set-user-id", 0, 0o4777),
        ("set-group-id", 0, 0o2777),
        ("mine", USER, 0o4700),
    ] {
        served.write(name, b"");
        chown(served.path(name), Some(owner), None).unwrap();
        fs::set_permissions(served.path(name), fs::Permissions::from_mode(mode)).unwrap();
    }
    let mut client = served.client();
    client.attach(1, USER);
    client.walk(1, 2, "from");
    client.walk(1, 3, "to");
    // Moving a directory to another parent changes its `..`.
    assert_eq!(client.fails(&renameat(2, b"theirs", 3, b"theirs")), ACCES);
    client.ok(&renameat(2, b"theirs", 2, b"renamed"));
    client.ok(&renameat(2, b"open", 3, b"open"));
    client.ok(&renameat(2, b"own", 3, b"own"));
    assert!(served.path("from/renamed").exists() && served.path("to/own").exists());
    // Like protected_hardlinks of Linux.
    for (name, expected) in [
        ("secret", Some(PERM)),
        ("shared", None),
        ("set-user-id", Some(PERM)),
        ("set-group-id", Some(PERM)),
        ("mine", None),
    ] {
        client.walk(1, 4, name);
        let link = Request::Link { directory: 2, fid: 4, name: name.as_bytes() };
        assert_eq!(client.ask(&link).errno(), expected, "{name}");
        client.clunk(4);
    }
    client.walk(0, 5, "secret");
    client.ok(&link(5, b"root's"));
}
