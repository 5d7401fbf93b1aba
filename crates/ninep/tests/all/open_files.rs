//! `Tlopen`, `Tlcreate`, `Tread`, `Twrite`, `Tclunk` and `Tfsync`.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};

use crate::support::{Served, frame, walk};
use inarch_ninep::wire::{Request, SetattrBody, kind, set};
use rustix::io::Errno;

const BADF: i32 = Errno::BADF.raw_os_error();
const BUSY: i32 = Errno::BUSY.raw_os_error();
const INVAL: i32 = Errno::INVAL.raw_os_error();

fn create(fid: u32, name: &[u8], flags: u32, mode: u32) -> Request<'_> {
    Request::Lcreate { fid, name, flags, mode, gid: 0 }
}

#[test]
fn what_is_written_is_there_and_can_be_read() {
    let served = Served::new();
    let mut client = served.client();
    client.walk(0, 1, "");
    client.create(1, "new");
    let data: Vec<u8> = (0..1_000_000u32).map(|n| (n % 251) as u8).collect();
    assert_eq!(client.write(1, 0, &data), data.len() as u32);
    assert_eq!(client.read(1, 0, 1 << 20), data);
    assert_eq!(client.read(1, 999_990, 100), data[999_990..]);
    assert_eq!(client.read(1, 5_000_000, 100), b"");
    assert_eq!(fs::read(served.path("new")).unwrap(), data);
    for offset in [u64::MAX, u64::MAX - 3, i64::MAX as u64] {
        assert_eq!(client.fails(&Request::Read { fid: 1, offset, count: 10 }), INVAL);
        assert_eq!(client.fails(&Request::Write { fid: 1, offset, data: b"12345678901" }), INVAL);
    }
}

#[test]
fn flags_are_the_protocols_and_only_those_that_concern_the_file() {
    let served = Served::new();
    served.write("file", b"0123456789");
    let mut client = served.client();
    client.walk(0, 1, "file");
    // Create, exclusive, no controlling terminal, non-blocking, signals, direct, large, no access time, close on exec.
    client.open(1, 0o2 | 0o100 | 0o200 | 0o400 | 0o4000 | 0o20000 | 0o40000 | 0o100_000 | 0o1_000_000 | 0o2_000_000);
    assert_eq!(client.read(1, 1, 3), b"123");
    assert_eq!(client.write(1, 1, b"x"), 1);
    client.walk(0, 2, "file");
    client.open(2, 0o1 | 0o2000);
    client.write(2, 0, b"end");
    assert_eq!(fs::read(served.path("file")).unwrap(), b"0x23456789end");
    client.walk(0, 3, "file");
    client.open(3, 0o1 | 0o1000);
    assert_eq!(fs::read(served.path("file")).unwrap(), b"");
    client.walk(0, 4, "file");
    assert_eq!(client.fails(&Request::Lopen { fid: 4, flags: 0o200_000 }), Errno::NOTDIR.raw_os_error());
    assert_eq!(client.fails(&Request::Lopen { fid: 4, flags: 3 }), INVAL);
    client.walk(0, 5, "");
    assert_eq!(client.fails(&Request::Lopen { fid: 5, flags: 1 }), Errno::ISDIR.raw_os_error());
    client.open(5, 0o200_000);
    assert_eq!(client.fails(&Request::Read { fid: 5, offset: 0, count: 1 }), Errno::ISDIR.raw_os_error());
}

#[test]
fn a_fid_is_open_once_and_as_it_was_asked_for() {
    let served = Served::new();
    served.write("file", b"x");
    let mut client = served.client();
    client.walk(0, 1, "file");
    assert_eq!(client.fails(&Request::Read { fid: 1, offset: 0, count: 1 }), BADF);
    client.open(1, 0);
    assert_eq!(client.fails(&Request::Lopen { fid: 1, flags: 0 }), BUSY);
    assert_eq!(client.fails(&create(1, b"y", 0, 0o644)), BUSY);
    assert_eq!(client.fails(&Request::Write { fid: 1, offset: 0, data: b"y" }), BADF);
    client.walk(0, 2, "file");
    client.open(2, 1);
    assert_eq!(client.fails(&Request::Read { fid: 2, offset: 0, count: 1 }), BADF);
    client.clunk(2);
    assert_eq!(client.fails(&Request::Clunk { fid: 2 }), BADF);
}

#[test]
fn what_is_no_file_is_never_opened() {
    let served = Served::new();
    std::os::unix::fs::symlink("/etc/passwd", served.path("link")).unwrap();
    rustix::fs::mkfifoat(rustix::fs::CWD, served.path("fifo"), 0o666.into()).unwrap();
    let _listener = std::os::unix::net::UnixListener::bind(served.path("socket")).unwrap();
    let mut client = served.client();
    let mut names = vec![(1, "link", Errno::LOOP), (2, "fifo", Errno::NXIO), (3, "socket", Errno::NXIO)];
    // Only root makes devices.
    let (kind, zero) = (rustix::fs::FileType::CharacterDevice, rustix::fs::makedev(1, 5));
    if rustix::fs::mknodat(rustix::fs::CWD, served.path("zero"), kind, 0o666.into(), zero).is_ok() {
        names.push((4, "zero", Errno::NXIO));
    }
    for (fid, name, errno) in names {
        client.walk(0, fid, name);
        for flags in [0, 1, 2, 0o1001] {
            assert_eq!(client.fails(&Request::Lopen { fid, flags }), errno.raw_os_error(), "{name}");
        }
        client.walk(0, 10, "");
        assert_eq!(client.fails(&create(10, name.as_bytes(), 2, 0o644)), errno.raw_os_error());
        client.clunk(10);
    }
}

#[test]
fn a_file_is_made_with_the_mode_that_was_asked_for() {
    let served = Served::new();
    let mut client = served.client();
    for (fid, mode) in [(1, 0o644), (2, 0o4755), (3, 0o1777), (4, 0o000), (5, 0o777)] {
        client.walk(0, fid, "");
        let name = format!("f{mode:o}");
        client.ok(&create(fid, name.as_bytes(), 0o302, mode));
        client.write(fid, 0, b"x");
        assert_eq!(fs::metadata(served.path(&name)).unwrap().mode() & 0o7777, mode & 0o7777, "{name}");
    }
    client.walk(0, 6, "");
    assert_eq!(client.fails(&create(6, b"f644", 0o302, 0o644)), Errno::EXIST.raw_os_error());
    // Without the exclusive flag, an existing file is opened.
    client.ok(&create(6, b"f644", 0o102, 0o600));
    assert_eq!(client.read(6, 0, 10), b"x");
    assert_eq!(fs::metadata(served.path("f644")).unwrap().mode() & 0o7777, 0o644);
    for name in [&b""[..], b".", b"..", b"a/b", b"/x"] {
        client.walk(0, 7, "");
        assert_eq!(client.fails(&create(7, name, 0o302, 0o644)), INVAL);
        client.clunk(7);
    }
}

#[test]
fn a_made_file_can_be_renamed_and_removed_by_its_fid() {
    let served = Served::new();
    let mut client = served.client();
    client.walk(0, 1, "");
    client.create(1, "first");
    client.write(1, 0, b"content");
    client.ok(&Request::Rename { fid: 1, directory: 0, name: b"second" });
    assert_eq!(fs::read(served.path("second")).unwrap(), b"content");
    client.ok(&Request::Rename { fid: 1, directory: 0, name: b"third" });
    assert_eq!(client.read(1, 0, 100), b"content");
    client.ok(&Request::Remove { fid: 1 });
    assert!(!served.path("third").exists());
    assert_eq!(client.fails(&Request::Clunk { fid: 1 }), BADF);
}

#[test]
fn a_file_without_a_name_stays_usable() {
    let served = Served::new();
    let mut client = served.client();
    for replaced in [false, true] {
        client.walk(0, 1, "");
        client.create(1, "open");
        client.write(1, 0, b"content");
        if replaced {
            served.write("other", b"other");
            let (old_name, new_name) = (b"other", b"open");
            client.ok(&Request::Renameat { old_directory: 0, old_name, new_directory: 0, new_name });
        } else {
            client.ok(&Request::Unlinkat { directory: 0, name: b"open", flags: 0 });
        }
        assert_eq!(client.getattr(1).links.get(), 0);
        assert_eq!(client.read(1, 0, 100), b"content");
        client.write(1, 7, b" and more");
        let size = SetattrBody { valid: set::SIZE.into(), size: 9.into(), ..SetattrBody::default() };
        client.setattr(1, size);
        assert_eq!(client.getattr(1).size.get(), 9);
        assert_eq!(client.read(1, 0, 100), b"content a");
        client.ok(&Request::Fsync { fid: 1, data_only: false });
        client.clunk(1);
        assert_eq!(served.path("open").exists(), replaced);
        fs::write(served.path("open"), b"").unwrap();
        fs::remove_file(served.path("open")).unwrap();
    }
}

#[test]
fn an_open_file_follows_its_renaming_by_anybody() {
    let served = Served::new();
    served.make_directory("a/b");
    served.write("a/b/file", b"content");
    let mut client = served.client();
    client.walk(0, 1, "a/b/file");
    client.open(1, 2);
    client.walk(0, 2, "a/b");
    client.ok(&Request::Renameat { old_directory: 0, old_name: b"a", new_directory: 0, new_name: b"c" });
    fs::rename(served.path("c/b"), served.path("c/d")).unwrap();
    assert_eq!(client.read(1, 0, 100), b"content");
    let size = SetattrBody { valid: set::SIZE.into(), size: 3.into(), ..SetattrBody::default() };
    client.setattr(1, size);
    assert_eq!(fs::read(served.path("c/d/file")).unwrap(), b"con");
    // A directory that is not open, too.
    client.walk(2, 3, "file");
    client.open(3, 0);
    assert_eq!(client.read(3, 0, 100), b"con");
}

#[test]
fn a_removed_directory_lists_and_takes_nothing() {
    let served = Served::new();
    served.make_directory("a");
    let mut client = served.client();
    client.walk(0, 1, "a");
    client.walk(0, 2, "a");
    client.open(2, 0);
    client.ok(&Request::Unlinkat { directory: 0, name: b"a", flags: 0x200 });
    // As for the host's own directory.
    assert_eq!(client.fails(&Request::Readdir { fid: 2, offset: 0, count: 8192 }), Errno::NOENT.raw_os_error());
    let made = client.fails(&Request::Mkdir { directory: 1, name: b"x", mode: 0o755, gid: 0 });
    assert!([Errno::NOENT, Errno::STALE].map(Errno::raw_os_error).contains(&made), "{made}");
}

#[test]
fn durability_can_be_asked_for_in_both_ways() {
    let served = Served::new();
    let mut client = served.client();
    client.walk(0, 1, "");
    client.create(1, "file");
    client.write(1, 0, b"x");
    for data_only in [false, true] {
        client.ok(&Request::Fsync { fid: 1, data_only });
    }
    // Early clients did not send whether syncing the data is enough.
    client.send_raw(&frame(kind::FSYNC, 9, b"\x01\0\0\0"));
    assert_eq!(client.receive().unwrap().errno(), None);
    client.walk(0, 2, "");
    client.open(2, 0);
    client.ok(&Request::Fsync { fid: 2, data_only: false });
    assert_eq!(client.fails(&Request::Fsync { fid: 0, data_only: false }), BADF);
}

#[test]
fn nothing_is_left_open_by_one_who_hangs_up() {
    let served = Served::new();
    let links = || fs::read_dir("/proc/self/fd").unwrap().flatten().filter_map(|fd| fs::read_link(fd.path()).ok());
    let open = |name: &str| links().filter(|link| *link == served.path(name)).count();
    let mut client = served.client();
    for fid in 1..50 {
        client.walk(0, fid, "");
        client.ok(&create(fid, b"file", 0o102, 0o644));
    }
    assert!(open("file") > 0);
    client.end().unwrap();
    // A cache refers to it without having it open.
    fs::remove_file(served.path("file")).unwrap();
    assert_eq!(open("file"), 0);
    assert_eq!(open("file (deleted)"), 0);
}

#[test]
fn a_walk_over_an_open_file_closes_it() {
    let served = Served::new();
    served.make_directory("d");
    let mut client = served.client();
    client.walk(0, 1, "");
    client.open(1, 0);
    client.ok(&walk(1, 1, &[b"d"]));
    client.open(1, 0);
    assert_eq!(client.list(1, 0, 8192).len(), 2);
}

#[test]
fn who_opened_a_file_goes_on_whatever_its_mode_becomes() {
    if !crate::support::is_root() {
        println!("skipped: who_opened_a_file_goes_on_whatever_its_mode_becomes: only root can be several users");
        return;
    }
    let served = Served::new();
    fs::set_permissions(served.path(""), fs::Permissions::from_mode(0o777)).unwrap();
    let mut client = served.client();
    client.attach(1, 1000);
    client.create(1, "mine");
    fs::set_permissions(served.path("mine"), fs::Permissions::from_mode(0o0)).unwrap();
    client.write(1, 0, b"content");
    assert_eq!(client.read(1, 0, 100), b"content");
    let size = SetattrBody { valid: set::SIZE.into(), size: 3.into(), ..SetattrBody::default() };
    client.setattr(1, size);
}
