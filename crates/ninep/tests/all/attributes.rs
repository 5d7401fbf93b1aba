//! `Tgetattr`, `Tsetattr` and `Tstatfs`.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::time::{SystemTime, UNIX_EPOCH};

use crate::support::{Client, Served};
use inarch_ninep::wire::{Reply, Request, SetattrBody, V9FS_MAGIC, attribute, set};
use rustix::io::Errno;

const INVAL: i32 = Errno::INVAL.raw_os_error();
const PERM: i32 = Errno::PERM.raw_os_error();
const ACCES: i32 = Errno::ACCESS.raw_os_error();

/// A body with these valid bits, and distinct numbers.
fn body(valid: u32) -> SetattrBody {
    SetattrBody {
        valid: valid.into(),
        mode: 0o640.into(),
        uid: 12.into(),
        gid: 34.into(),
        size: 5.into(),
        atime: 1_000_000_001.into(),
        atime_nanoseconds: 1.into(),
        mtime: 1_000_000_002.into(),
        mtime_nanoseconds: 999_999_999.into(),
    }
}

fn setattr(client: &mut Client, fid: u32, set: SetattrBody) -> Option<i32> {
    client.ask(&Request::Setattr { fid, set }).errno()
}

fn now() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs() as i64
}

#[test]
fn several_attributes_are_set_at_once_and_times_last() {
    if !crate::support::is_root() {
        return println!("skipped: several_attributes_are_set_at_once_and_times_last: only root gives files away");
    }
    let served = Served::new();
    served.write("file", b"0123456789");
    let mut client = served.client();
    client.walk(0, 1, "file");
    // With CTIME, as Linux sends it; a change of size or owner would have changed the mtime.
    client.setattr(1, body(set::ALL));
    let found = fs::metadata(served.path("file")).unwrap();
    assert_eq!((found.mode() & 0o7777, found.uid(), found.gid(), found.len()), (0o640, 12, 34, 5));
    assert_eq!((found.atime(), found.atime_nsec()), (1_000_000_001, 1));
    assert_eq!((found.mtime(), found.mtime_nsec()), (1_000_000_002, 999_999_999));
    let told = client.getattr(1);
    assert_eq!((told.atime.get(), told.mtime_nanoseconds.get()), (1_000_000_001, 999_999_999));
}

#[test]
fn a_time_is_now_unless_it_is_given() {
    let served = Served::new();
    served.write("file", b"x");
    let mut client = served.client();
    client.walk(0, 1, "file");
    client.setattr(1, body(set::ATIME | set::ATIME_SET | set::MTIME | set::MTIME_SET));
    let earliest = now();
    client.setattr(1, body(set::MTIME));
    let found = fs::metadata(served.path("file")).unwrap();
    assert_eq!(found.atime(), 1_000_000_001, "nobody asked for the time of last read");
    assert!(found.mtime() >= earliest, "{}", found.mtime());
    // The bits for explicit times mean nothing without the time itself.
    client.setattr(1, body(set::ATIME_SET | set::MTIME_SET));
    assert_eq!(fs::metadata(served.path("file")).unwrap().atime(), 1_000_000_001);
    // Before 1970.
    let early = SetattrBody { mtime: (-5i64 as u64).into(), ..body(set::MTIME | set::MTIME_SET) };
    client.setattr(1, early);
    assert_eq!(fs::metadata(served.path("file")).unwrap().mtime(), -5);
    assert_eq!(client.getattr(1).mtime.get() as i64, -5);
}

#[test]
fn what_makes_no_sense_is_refused_and_changes_nothing() {
    let served = Served::new();
    served.write("file", b"0123456789");
    fs::set_permissions(served.path("file"), fs::Permissions::from_mode(0o600)).unwrap();
    let mut client = served.client();
    client.walk(0, 1, "file");
    let refused = [
        SetattrBody { size: u64::MAX.into(), ..body(set::MODE | set::SIZE) },
        SetattrBody { size: (1 << 63).into(), ..body(set::MODE | set::SIZE) },
        SetattrBody { mtime_nanoseconds: 1_000_000_000.into(), ..body(set::MODE | set::MTIME | set::MTIME_SET) },
        SetattrBody { atime_nanoseconds: u64::MAX.into(), ..body(set::MODE | set::ATIME | set::ATIME_SET) },
        SetattrBody { uid: u32::MAX.into(), ..body(set::UID) },
        SetattrBody { gid: u32::MAX.into(), ..body(set::GID) },
        body(1 << 9 | set::MODE),
        body(1 << 31 | set::MODE),
    ];
    for set in refused {
        assert_eq!(setattr(&mut client, 1, set), Some(INVAL), "{set:?}");
    }
    let found = fs::metadata(served.path("file")).unwrap();
    assert_eq!((found.mode() & 0o7777, found.len()), (0o600, 10));
    // The client cannot change the type.
    client.setattr(1, SetattrBody { mode: 0o040_711.into(), ..body(set::MODE) });
    assert_eq!(fs::metadata(served.path("file")).unwrap().mode(), 0o100_711);
    assert_eq!(setattr(&mut client, 99, body(set::MODE)), Some(Errno::BADF.raw_os_error()));
    // Nothing is requested: succeeds if the fid exists.
    assert_eq!(setattr(&mut client, 1, body(0)), None);
    assert_eq!(setattr(&mut client, 99, body(0)), Some(Errno::BADF.raw_os_error()));
}

#[test]
fn only_files_have_a_size_to_set() {
    let served = Served::new();
    served.make_directory("directory");
    std::os::unix::fs::symlink("/etc/passwd", served.path("link")).unwrap();
    rustix::fs::mkfifoat(rustix::fs::CWD, served.path("fifo"), 0o666.into()).unwrap();
    let mut client = served.client();
    for (fid, name) in [(1, "directory"), (2, "link"), (3, "fifo")] {
        client.walk(0, fid, name);
        let errno = setattr(&mut client, fid, body(set::SIZE));
        let expected = if name == "directory" { Errno::ISDIR.raw_os_error() } else { INVAL };
        assert_eq!(errno, Some(expected), "{name}");
    }
    // A link has times of its own, but no permissions.
    client.setattr(2, body(set::MTIME | set::MTIME_SET));
    assert_eq!(fs::symlink_metadata(served.path("link")).unwrap().mtime(), 1_000_000_002);
    assert_eq!(setattr(&mut client, 2, body(set::MODE)), Some(Errno::OPNOTSUPP.raw_os_error()));
}

#[test]
fn who_may_set_what_is_as_the_kernel_has_it() {
    if !crate::support::is_root() {
        return println!("skipped: who_may_set_what_is_as_the_kernel_has_it: only root can be several users");
    }
    let served = Served::new();
    served.write("file", b"content");
    fs::set_permissions(served.path("file"), fs::Permissions::from_mode(0o4666)).unwrap();
    std::os::unix::fs::chown(served.path("file"), Some(1000), Some(1000)).unwrap();
    let mut client = served.client();
    for (fid, uid) in [(1000, 1000), (2000, 2000)] {
        client.attach(fid, uid);
        client.walk(fid, fid + 1, "file");
    }
    let (owner, other) = (1001, 2001);
    assert_eq!(setattr(&mut client, other, body(set::MODE)), Some(PERM));
    assert_eq!(setattr(&mut client, other, body(set::GID)), Some(PERM));
    assert_eq!(setattr(&mut client, other, body(set::UID)), Some(PERM));
    assert_eq!(setattr(&mut client, owner, body(set::UID)), Some(PERM));
    assert_eq!(setattr(&mut client, other, body(set::MTIME | set::MTIME_SET)), Some(PERM));
    // A user who may write the file may set its times to now, and truncate it; that clears its set-user-ID bit.
    assert_eq!(setattr(&mut client, other, body(set::MTIME)), None);
    assert_eq!(setattr(&mut client, other, body(set::SIZE)), None);
    let found = fs::metadata(served.path("file")).unwrap();
    assert_eq!((found.mode() & 0o7777, found.len()), (0o666, 5));
    // Linux's client does so too, in the same request or before it writes.
    for (valid, before, wanted, errno) in [
        (set::SIZE | set::MODE, 0o6666, 0o666, None),
        (set::MODE, 0o2666, 0o666, None),
        (set::SIZE | set::MODE, 0o4666, 0o664, Some(PERM)),
        (set::SIZE | set::MODE, 0o666, 0o4666, Some(PERM)),
        (set::MODE, 0o4644, 0o644, Some(PERM)),
    ] {
        fs::set_permissions(served.path("file"), fs::Permissions::from_mode(before)).unwrap();
        let asked = SetattrBody { mode: wanted.into(), ..body(valid) };
        assert_eq!(setattr(&mut client, other, asked), errno, "{before:o} to {wanted:o}");
        let mode = if errno.is_none() { wanted } else { before };
        assert_eq!(fs::metadata(served.path("file")).unwrap().mode() & 0o7777, mode);
    }
    assert_eq!(setattr(&mut client, owner, SetattrBody { mode: 0o400.into(), ..body(set::MODE) }), None);
    assert_eq!(setattr(&mut client, other, body(set::MTIME)), Some(ACCES));
    assert_eq!(setattr(&mut client, other, body(set::SIZE)), Some(ACCES));
    assert_eq!(setattr(&mut client, owner, body(set::MTIME | set::MTIME_SET)), None);
}

#[test]
fn what_is_told_is_what_was_asked_for_and_all_that_stat_tells() {
    let served = Served::new();
    served.write("file", &[1; 5000]);
    let mut client = served.client();
    client.walk(0, 1, "file");
    for mask in [0, attribute::BASIC, attribute::BIRTH, u64::MAX] {
        let message = client.ok(&Request::Getattr { fid: 1, mask });
        let Reply::Getattr(told) = message.reply() else { panic!("{message:?}") };
        let valid = told.valid.get();
        assert_eq!(valid & attribute::BASIC, attribute::BASIC);
        assert_eq!(valid & !(attribute::BASIC | attribute::BIRTH | attribute::DATA_VERSION), 0);
        assert_eq!(valid & !attribute::BASIC & !mask, 0, "{mask:#x}");
        let found = fs::metadata(served.path("file")).unwrap();
        assert_eq!((told.size.get(), told.blocks.get(), told.qid.path.get()), (5000, found.blocks(), found.ino()));
        assert!(told.block_size.get() > 0);
    }
}

#[test]
fn the_version_changes_with_every_change_within_a_second() {
    let served = Served::new();
    served.write("file", b"0");
    let mut client = served.client();
    client.walk(0, 1, "file");
    client.open(1, 2);
    let mut seen = std::collections::HashSet::from([client.getattr(1).qid.version.get()]);
    for round in 0..20u8 {
        // File times advance every few milliseconds: wait until another file would get another time.
        let changed = |name: &str| std::fs::metadata(served.path(name)).unwrap().ctime_nsec();
        loop {
            served.write("probe", &[round]);
            if changed("probe") != changed("file") {
                break;
            }
        }
        client.write(1, 0, &[round]);
        let version = client.getattr(1).qid.version.get();
        assert!(version != 0 && seen.insert(version), "round {round}: {version}");
    }
}

#[test]
fn devices_are_told_with_large_numbers() {
    if !crate::support::is_root() {
        return println!("skipped: devices_are_told_with_large_numbers: only root makes devices");
    }
    let served = Served::new();
    let mut client = served.client();
    let (major, minor) = (250, 0x4_5678);
    let request = Request::Mknod { directory: 0, name: b"device", mode: 0o020_600, major, minor, gid: 0 };
    if client.ask(&request).errno() == Some(PERM) {
        return println!("skipped: devices_are_told_with_large_numbers: this process makes no devices");
    }
    client.walk(0, 1, "device");
    let device = client.getattr(1).device.get();
    assert_eq!((rustix::fs::major(device), rustix::fs::minor(device)), (major, minor));
    assert_eq!(client.fails(&Request::Lopen { fid: 1, flags: 0 }), Errno::NXIO.raw_os_error());
}

#[test]
fn the_file_system_is_told_by_any_fid() {
    let served = Served::new();
    served.write("file", b"");
    let mut client = served.client();
    client.walk(0, 1, "file");
    client.walk(0, 2, "file");
    client.open(2, 0);
    let host = rustix::fs::statvfs(served.path("file")).unwrap();
    for fid in [0, 1, 2] {
        let message = client.ok(&Request::Statfs { fid });
        let Reply::Statfs(told) = message.reply() else { panic!("{message:?}") };
        assert_eq!(told.kind.get(), V9FS_MAGIC);
        assert_eq!((u64::from(told.block_size.get()), told.blocks.get()), (host.f_frsize, host.f_blocks));
        assert_eq!((told.files.get(), u64::from(told.name_max.get())), (host.f_files, host.f_namemax));
        assert!(told.available_blocks.get() <= told.free_blocks.get() && told.free_blocks.get() <= told.blocks.get());
    }
    assert_eq!(client.fails(&Request::Statfs { fid: 9 }), Errno::BADF.raw_os_error());
}
