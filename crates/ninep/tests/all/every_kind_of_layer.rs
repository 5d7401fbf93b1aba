//! Every kind of file system (a directory, an overlay, files in memory, a tree) refuses with the same errors, and its
//! locks exclude the same clients.

use std::fs;
use std::path::Path;
use std::sync::Arc;

use crate::support::{Client, lock_request, lock_status, range, server_of, walk};
use inarch_block::HostFiles;
use inarch_ninep::wire::{LockRange, Reply, Request, SetattrBody, lock};
use inarch_ninep::{ConnectionError, NinepOptions, NinepServer};
use inarch_tree::scan;
use inarch_tree::select::Owners;
use inarch_vfs::{
    Changes, Context, FileSystem, HostDirectory, HostOptions, MappedOwners, MemoryFiles, NewNode, NodeId, Overlay,
    Refused, VolumeFiles,
};
use rustix::io::Errno;
use tempfile::TempDir;
use vm_memory::VolatileSlice;

/// A file system of some kind, and its directories.
struct Layer {
    name: &'static str,
    server: Arc<NinepServer>,
    is_writable: bool,
    directory: TempDir,
}

impl Layer {
    fn client(&self) -> Client {
        let mut client = Client::of(&self.server);
        client.version(1 << 20);
        client.attach(0, 0);
        client
    }
}

/// `d` with `file` and the empty `e`, and a symbolic link.
fn fill(directory: &Path) {
    fs::create_dir_all(directory.join("d/e")).unwrap();
    fs::write(directory.join("d/file"), "content").unwrap();
    std::os::unix::fs::symlink("d/file", directory.join("link")).unwrap();
}

fn fill_memory(files: &MemoryFiles) {
    let me = &Context::SERVER;
    let new = |mode| NewNode { mode, umask: 0, device: 0 };
    let d = files.make_directory(me, NodeId::ROOT, b"d", &new(0o040_755)).unwrap().node;
    files.make_directory(me, d, b"e", &new(0o040_755)).unwrap();
    let flags = 0o2 | rustix::fs::OFlags::EXCL.bits();
    let (file, opened) = files.create(me, d, b"file", &new(0o100_644), flags).unwrap();
    let mut content = *b"content";
    let data = [VolatileSlice::from(&mut content[..])];
    files.write(me, file.node, opened.handle, 0, &data, Default::default()).unwrap();
    files.release(file.node, opened.handle, None);
    files.make_symlink(me, NodeId::ROOT, b"link", b"d/file").unwrap();
}

fn host(directory: &Path, options: HostOptions) -> Arc<dyn FileSystem> {
    Arc::new(HostDirectory::new(directory, options).unwrap())
}

/// A file system's name, whether it is writable, and how it is made of the directories `tree`, which is filled, and
/// `upper`.
type Kind = (&'static str, bool, fn(&Path) -> Arc<dyn FileSystem>);

fn layers() -> Vec<Layer> {
    let kinds: [Kind; 8] = [
        ("directory", true, |path| host(&path.join("tree"), HostOptions { locks: true, ..HostOptions::default() })),
        ("directory that nobody changes", false, |path| {
            let options =
                HostOptions { locks: true, read_only: true, changes: Changes::None, ..HostOptions::default() };
            host(&path.join("tree"), options)
        }),
        ("directory without privileges and devices", true, |path| {
            let refused = Refused { privileges: true, devices: true };
            host(&path.join("tree"), HostOptions { locks: true, refused, ..HostOptions::default() })
        }),
        ("directory of other owners", true, |path| {
            let below = host(&path.join("tree"), HostOptions { locks: true, ..HostOptions::default() });
            let owners = Owners { map: "squash".parse().unwrap(), users: Vec::new(), groups: Vec::new() };
            let (uid, gid) = (rustix::process::geteuid(), rustix::process::getegid());
            MappedOwners::over(below, &owners, (uid.as_raw(), gid.as_raw()))
        }),
        ("overlay of directories", true, |path| {
            let options = HostOptions { read_only: true, ..HostOptions::default() };
            let (lower, upper) = (host(&path.join("tree"), options), host(&path.join("upper"), HostOptions::default()));
            Arc::new(Overlay::new(lower, upper, true).unwrap())
        }),
        ("overlay in memory", true, |path| {
            let options = HostOptions { read_only: true, ..HostOptions::default() };
            let upper = Arc::new(MemoryFiles::new(1 << 20));
            Arc::new(Overlay::new(host(&path.join("tree"), options), upper, true).unwrap())
        }),
        ("memory", true, |_| {
            let files = MemoryFiles::new(1 << 20);
            fill_memory(&files);
            Arc::new(files)
        }),
        ("tree", false, |path| {
            let scan = scan::scan(&path.join("tree"), &scan::ScanOptions::default()).unwrap();
            let tree = Arc::new(scan.tree);
            let content = HostFiles::new(scan.root, Arc::clone(&tree), 16);
            Arc::new(VolumeFiles::of_tree(tree, Arc::new(content), Box::new(|_| {})))
        }),
    ];
    let layer = |(name, is_writable, make): Kind| {
        let directory = tempfile::tempdir().unwrap();
        fill(&directory.path().join("tree"));
        fs::create_dir(directory.path().join("upper")).unwrap();
        let server = Arc::new(server_of(make(directory.path()), NinepOptions::default()));
        Layer { name, server, is_writable, directory }
    };
    kinds.into_iter().map(layer).collect()
}

/// Fids of a client: 0 is the root, 1 the open file, 2 the open directory, 3 to 6 the directory, the file, the empty directory
/// and the link, none of them open.
fn ready(layer: &Layer) -> Client {
    let mut client = layer.client();
    for (fid, path) in [(1, "d/file"), (2, "d"), (3, "d"), (4, "d/file"), (5, "d/e"), (6, "link")] {
        client.walk(0, fid, path);
    }
    client.open(1, 0);
    client.open(2, 0);
    client
}

/// Requests that every file system refuses with the same error.
fn refused_anywhere() -> Vec<(Request<'static>, Errno)> {
    let whole = |kind| range(kind, 0, 0, 7);
    let mut refused = vec![
        (walk(0, 9, &[b"missing"]), Errno::NOENT),
        (walk(4, 9, &[b"x"]), Errno::NOTDIR),
        (walk(6, 9, &[b"x"]), Errno::NOTDIR),
        (walk(0, 9, &[b"d/file"]), Errno::INVAL),
        (walk(0, 9, &[b""]), Errno::INVAL),
        (walk(0, 3, &[]), Errno::BADF),
        (Request::Attach { fid: 0, afid: !0, uname: b"", aname: b"", uid: 0 }, Errno::BADF),
        (Request::Attach { fid: 9, afid: !0, uname: b"", aname: b"elsewhere", uid: 0 }, Errno::NOENT),
        (Request::Auth { afid: 9, uname: b"", aname: b"", uid: 0 }, Errno::NOENT),
        (Request::Lopen { fid: 1, flags: 0 }, Errno::BUSY),
        (Request::Lopen { fid: 3, flags: 1 }, Errno::ISDIR),
        (Request::Lopen { fid: 3, flags: 0o1000 }, Errno::ISDIR),
        (Request::Lopen { fid: 4, flags: 0o200_000 }, Errno::NOTDIR),
        (Request::Lopen { fid: 4, flags: 3 }, Errno::INVAL),
        (Request::Lopen { fid: 6, flags: 0 }, Errno::LOOP),
        (Request::Lcreate { fid: 2, name: b"new", flags: 2, mode: 0o644, gid: 0 }, Errno::BUSY),
        (Request::Lcreate { fid: 3, name: b"..", flags: 2, mode: 0o644, gid: 0 }, Errno::INVAL),
        (Request::Lcreate { fid: 3, name: b"a/b", flags: 2, mode: 0o644, gid: 0 }, Errno::INVAL),
        (Request::Read { fid: 2, offset: 0, count: 9 }, Errno::ISDIR),
        (Request::Read { fid: 4, offset: 0, count: 9 }, Errno::BADF),
        (Request::Read { fid: 1, offset: u64::MAX, count: 9 }, Errno::INVAL),
        (Request::Read { fid: 1, offset: i64::MAX as u64, count: 9 }, Errno::INVAL),
        (Request::Write { fid: 1, offset: 0, data: b"x" }, Errno::BADF),
        (Request::Write { fid: 2, offset: 0, data: b"x" }, Errno::BADF),
        (Request::Write { fid: 4, offset: 0, data: b"x" }, Errno::BADF),
        (Request::Readdir { fid: 1, offset: 0, count: 1000 }, Errno::NOTDIR),
        (Request::Readdir { fid: 3, offset: 0, count: 1000 }, Errno::BADF),
        (Request::Readdir { fid: 2, offset: 0, count: 3 }, Errno::INVAL),
        (Request::Fsync { fid: 4, data_only: false }, Errno::BADF),
        (Request::Readlink { fid: 4 }, Errno::INVAL),
        (Request::Readlink { fid: 3 }, Errno::INVAL),
        (Request::Link { directory: 0, fid: 3, name: b"hard" }, Errno::PERM),
        (Request::Link { directory: 0, fid: 4, name: b"." }, Errno::INVAL),
        (Request::Symlink { directory: 0, name: b"new", target: b"", gid: 0 }, Errno::NOENT),
        (Request::Symlink { directory: 0, name: b"new", target: b"a\0b", gid: 0 }, Errno::INVAL),
        (Request::Mknod { directory: 0, name: b"new", mode: 0o040_755, major: 0, minor: 0, gid: 0 }, Errno::PERM),
        (Request::Mkdir { directory: 4, name: b"new", mode: 0o755, gid: 0 }, Errno::NOTDIR),
        (Request::Mkdir { directory: 0, name: b"a\0", mode: 0o755, gid: 0 }, Errno::INVAL),
        (Request::Unlinkat { directory: 0, name: b"d", flags: 1 }, Errno::INVAL),
        (Request::Unlinkat { directory: 0, name: b"..", flags: 0x200 }, Errno::INVAL),
        (Request::Unlinkat { directory: 4, name: b"x", flags: 0 }, Errno::NOTDIR),
        (Request::Rename { fid: 0, directory: 3, name: b"root" }, Errno::BUSY),
        (Request::Rename { fid: 4, directory: 0, name: b"../up" }, Errno::INVAL),
        (Request::Rename { fid: 3, directory: 4, name: b"x" }, Errno::NOTDIR),
        (size(3, 0), Errno::ISDIR),
        (size(4, u64::MAX), Errno::INVAL),
        (Request::Xattrwalk { fid: 4, new_fid: 3, name: b"" }, Errno::BADF),
        (Request::Xattrcreate { fid: 1, name: b"user.a", size: 1, flags: 0 }, Errno::BUSY),
        (Request::Xattrcreate { fid: 4, name: b"user.a", size: 1, flags: 8 }, Errno::INVAL),
        (Request::Xattrcreate { fid: 4, name: b"user.a", size: 1 << 20, flags: 0 }, Errno::TOOBIG),
        (Request::Xattrcreate { fid: 4, name: b"", size: 1, flags: 0 }, Errno::INVAL),
        (lock_request(4, whole(lock::SHARED), false), Errno::BADF),
        (lock_request(2, whole(lock::SHARED), false), Errno::BADF),
        (lock_request(1, whole(9), false), Errno::INVAL),
        (lock_request(1, range(lock::SHARED, u64::MAX, 1, 7), false), Errno::INVAL),
        (Request::Lock { fid: 1, range: whole(lock::SHARED), flags: 99 }, Errno::INVAL),
        (Request::Getlock { fid: 4, range: whole(lock::SHARED) }, Errno::BADF),
        (Request::Getlock { fid: 1, range: whole(9) }, Errno::INVAL),
    ];
    refused.extend(with_fid(77).into_iter().map(|request| (request, Errno::BADF)));
    refused
}

/// Requests with a fid that does not exist.
fn with_fid(fid: u32) -> Vec<Request<'static>> {
    let range = LockRange { kind: 0, start: 0, length: 1, process: 1, client: b"guest" };
    let (name, directory) = (&b"name"[..], fid);
    vec![
        walk(fid, 9, &[b"d"]),
        Request::Lopen { fid, flags: 0 },
        Request::Lcreate { fid, name, flags: 2, mode: 0o644, gid: 0 },
        Request::Read { fid, offset: 0, count: 1 },
        Request::Write { fid, offset: 0, data: b"x" },
        Request::Readdir { fid, offset: 0, count: 1000 },
        Request::Statfs { fid },
        Request::Symlink { directory, name, target: b"target", gid: 0 },
        Request::Mknod { directory, name, mode: 0o100_644, major: 0, minor: 0, gid: 0 },
        Request::Rename { fid, directory: 0, name },
        Request::Rename { fid: 4, directory, name },
        Request::Readlink { fid },
        Request::Getattr { fid, mask: !0 },
        Request::Setattr { fid, set: SetattrBody::default() },
        Request::Xattrwalk { fid, new_fid: 9, name: b"" },
        Request::Xattrcreate { fid, name: b"user.a", size: 1, flags: 0 },
        Request::Fsync { fid, data_only: false },
        Request::Lock { fid, range, flags: 0 },
        Request::Getlock { fid, range },
        Request::Link { directory, fid: 4, name },
        Request::Link { directory: 0, fid, name },
        Request::Mkdir { directory, name, mode: 0o755, gid: 0 },
        Request::Renameat { old_directory: directory, old_name: name, new_directory: 0, new_name: name },
        Request::Renameat { old_directory: 0, old_name: name, new_directory: directory, new_name: name },
        Request::Unlinkat { directory, name, flags: 0 },
        Request::Remove { fid },
        Request::Clunk { fid },
    ]
}

fn size(of: u32, bytes: u64) -> Request<'static> {
    Request::Setattr { fid: of, set: SetattrBody { valid: 8.into(), size: bytes.into(), ..SetattrBody::default() } }
}

fn renameat(old: (u32, &'static [u8]), new: (u32, &'static [u8])) -> Request<'static> {
    Request::Renameat { old_directory: old.0, old_name: old.1, new_directory: new.0, new_name: new.1 }
}

/// Changes that a writable file system refuses; a read-only one refuses them because it is read-only.
fn refused_changes() -> Vec<(Request<'static>, Errno)> {
    vec![
        (Request::Lcreate { fid: 3, name: b"file", flags: 0o302, mode: 0o644, gid: 0 }, Errno::EXIST),
        (Request::Mkdir { directory: 3, name: b"file", mode: 0o755, gid: 0 }, Errno::EXIST),
        (Request::Mkdir { directory: 3, name: b"e", mode: 0o755, gid: 0 }, Errno::EXIST),
        (Request::Symlink { directory: 3, name: b"file", target: b"x", gid: 0 }, Errno::EXIST),
        (Request::Mknod { directory: 3, name: b"e", mode: 0o010_644, major: 0, minor: 0, gid: 0 }, Errno::EXIST),
        (Request::Link { directory: 3, fid: 4, name: b"e" }, Errno::EXIST),
        (Request::Unlinkat { directory: 3, name: b"e", flags: 0 }, Errno::ISDIR),
        (Request::Unlinkat { directory: 3, name: b"file", flags: 0x200 }, Errno::NOTDIR),
        (Request::Unlinkat { directory: 0, name: b"d", flags: 0x200 }, Errno::NOTEMPTY),
        (Request::Unlinkat { directory: 0, name: b"missing", flags: 0 }, Errno::NOENT),
        (Request::Unlinkat { directory: 0, name: b"missing", flags: 0x200 }, Errno::NOENT),
        (renameat((0, b"missing"), (0, b"x")), Errno::NOENT),
        (renameat((0, b"d"), (5, b"x")), Errno::INVAL),
        (renameat((3, b"file"), (3, b"e")), Errno::ISDIR),
        (renameat((3, b"e"), (3, b"file")), Errno::NOTDIR),
        (renameat((3, b"e"), (0, b"d")), Errno::NOTEMPTY),
    ]
}

#[test]
fn every_refusal_has_its_error() {
    let mut wrong = Vec::new();
    for layer in layers() {
        let mut client = ready(&layer);
        let mut check = |request: &Request<'_>, expected: Errno| {
            let got = client.ask(request);
            if got.errno() != Some(expected.raw_os_error()) {
                wrong.push(format!("{}: {request:?}: {got:?}, not {expected:?}", layer.name));
            }
        };
        for (request, errno) in refused_anywhere() {
            check(&request, errno);
        }
        for (request, errno) in refused_changes() {
            // An overlay does not move files of its lower layer.
            let is_below = layer.name.starts_with("overlay") && errno == Errno::INVAL;
            check(
                &request,
                if is_below {
                    Errno::XDEV
                } else if layer.is_writable {
                    errno
                } else {
                    Errno::ROFS
                },
            );
        }
        if layer.name.contains("devices") {
            let device = |mode| Request::Mknod { directory: 0, name: b"new", mode, major: 1, minor: 3, gid: 0 };
            check(&device(0o020_644), Errno::PERM);
            check(&device(0o060_644), Errno::PERM);
        }
        if !layer.is_writable {
            for flags in [1, 2, 0o1000] {
                check(&Request::Lopen { fid: 4, flags }, Errno::ROFS);
            }
            check(&size(4, 3), Errno::ROFS);
            check(&Request::Mkdir { directory: 0, name: b"new", mode: 0o755, gid: 0 }, Errno::ROFS);
            check(&Request::Lcreate { fid: 3, name: b"new", flags: 2, mode: 0o644, gid: 0 }, Errno::ROFS);
            check(&renameat((3, b"file"), (0, b"moved")), Errno::ROFS);
            check(&Request::Unlinkat { directory: 3, name: b"file", flags: 0 }, Errno::ROFS);
        }
        // None of them has changed anything, and all still works.
        assert_eq!(client.read(1, 0, 100), b"content", "{}", layer.name);
        let mut names: Vec<String> = crate::support::names(&client.list(2, 0, 4096));
        names.sort();
        assert_eq!(names, [".", "..", "e", "file"], "{}", layer.name);
        let ended = client.end();
        assert!(!matches!(ended, Err(ConnectionError::Panicked)), "{}: {ended:?}", layer.name);
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn attributes_that_are_not_there_are_told_as_such() {
    for layer in layers() {
        let mut client = ready(&layer);
        let got = client.fails(&Request::Xattrwalk { fid: 4, new_fid: 9, name: b"user.missing" });
        let expected = [Errno::NODATA, Errno::OPNOTSUPP].map(Errno::raw_os_error);
        assert!(expected.contains(&got), "{}: {got}", layer.name);
    }
}

#[test]
fn locks_exclude_clients_of_every_layer() {
    for layer in layers() {
        let mut clients = [(); 2].map(|()| {
            let mut client = layer.client();
            client.walk(0, 1, "d/file");
            client.open(1, if layer.is_writable { 2 } else { 0 });
            client
        });
        let [first, second] = &mut clients;
        let status = |client: &mut Client, range| lock_status(&client.ok(&lock_request(1, range, false)));
        assert_eq!(status(first, range(lock::EXCLUSIVE, 10, 10, 7)), lock::SUCCESS, "{}", layer.name);
        assert_eq!(status(first, range(lock::UNLOCK, 13, 2, 7)), lock::SUCCESS, "{}", layer.name);
        for (start, length, expected) in [(0, 10, 0), (0, 11, 1), (13, 2, 0), (12, 1, 1), (15, 1, 1), (20, 0, 0)] {
            assert_eq!(status(second, range(lock::SHARED, start, length, 7)), expected, "{} {start}", layer.name);
            assert_eq!(status(second, range(lock::UNLOCK, 0, 0, 7)), lock::SUCCESS, "{}", layer.name);
        }
        // Another process of the same machine.
        assert_eq!(status(first, range(lock::SHARED, 10, 1, 8)), lock::BLOCKED, "{}", layer.name);
        let found = second.ok(&Request::Getlock { fid: 1, range: range(lock::SHARED, 0, 0, 7) });
        let Reply::Getlock(found) = found.reply() else { panic!("{found:?}") };
        assert_eq!((found.kind, found.start, found.length), (lock::EXCLUSIVE, 10, 3), "{}", layer.name);
        // A waiting client gets the lock when it is free: at the latest when the file is closed.
        second.send(40, &lock_request(1, range(lock::EXCLUSIVE, 0, 0, 7), true));
        first.clunk(1);
        assert_eq!(lock_status(&second.receive().unwrap()), lock::SUCCESS, "{}", layer.name);
        first.walk(0, 1, "d/file");
        first.open(1, 0);
        assert_eq!(status(first, range(lock::SHARED, 0, 1, 7)), lock::BLOCKED, "{}", layer.name);
        // Together with its client.
        let [mut first, second] = clients;
        second.end().unwrap();
        first.send(41, &lock_request(1, range(lock::SHARED, 0, 1, 7), true));
        assert_eq!(lock_status(&first.receive().unwrap()), lock::SUCCESS, "{}", layer.name);
    }
}

/// A file that is locked for reading is not opened for writing: it may be a running program.
#[test]
fn who_locks_a_program_for_reading_does_not_keep_it_from_being_run() {
    let layer = layers().remove(0);
    let program = layer.directory.path().join("tree/program");
    fs::copy("/bin/true", &program).unwrap();
    let mut client = layer.client();
    client.walk(0, 1, "program");
    client.open(1, 0);
    let shared = lock_request(1, range(lock::SHARED, 0, 0, 7), false);
    assert_eq!(lock_status(&client.ok(&shared)), lock::SUCCESS);
    assert!(std::process::Command::new(&program).status().unwrap().success());
}
