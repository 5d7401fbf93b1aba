//! What a client may send without harm to anything but itself: the classes of mistakes that servers of this protocol have
//! had.

mod support;

use std::collections::BTreeSet;
use std::fs;
use std::mem::offset_of;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use inarch_fuse::wire::structs::{
    BatchForgetIn, CopyFileRangeIn, CreateIn, FallocateIn, ForgetIn, ForgetOne, GetXattrIn, InHeader, LinkIn, LkIn,
    LseekIn, MkdirIn, MknodIn, OpenIn, ReadIn, Rename2In, RenameIn, SetAttrIn, SetXattrExtIn, SetXattrIn, WriteIn,
    WriteOut,
};
use inarch_fuse::wire::{opcode, set_attribute};
use inarch_fuse::{ConnectionOptions, MAX_DATA};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use support::{Client, ROOT, message, strings, with};
use tempfile::TempDir;
use zerocopy::{FromBytes, IntoBytes};

/// Most bytes of a file that this process's requests may make: a fallocate(2) whose length is flipped would take all of
/// the disk, and its space away from the tests beside this one.
const LARGEST_FILE: u64 = 64 << 20;

/// An unprivileged user's id.
const USER: u32 = 65534;

const EIO: i32 = 5;
const EBADF: i32 = 9;
const EEXIST: i32 = 17;
const EINVAL: i32 = 22;
const ENAMETOOLONG: i32 = 36;
const ENOSYS: i32 = 38;
const ESTALE: i32 = 116;

/// A directory that is offered, in one that is not.
struct Rig {
    outside: tempfile::TempDir,
    client: Client,
}

fn rig() -> Rig {
    // Caught, what exceeds the limit is an error like any other; else it would end the process.
    signal_hook::flag::register(libc::SIGXFSZ, Arc::default()).unwrap();
    setrlimit(Resource::Fsize, Rlimit { current: Some(LARGEST_FILE), ..getrlimit(Resource::Fsize) }).unwrap();
    let outside = tempfile::tempdir().unwrap();
    let offered = outside.path().join("offered");
    fs::create_dir_all(offered.join("directory")).unwrap();
    fs::write(outside.path().join("secret"), "secret").unwrap();
    fs::write(offered.join("file"), "content").unwrap();
    symlink("../secret", offered.join("link")).unwrap();
    let client = Client::new(&offered);
    Rig { outside, client }
}

impl Rig {
    /// Everything that there is.
    fn paths(&self) -> BTreeSet<PathBuf> {
        fn walk(path: &Path, found: &mut BTreeSet<PathBuf>) {
            for entry in fs::read_dir(path).unwrap().map(Result::unwrap) {
                found.insert(entry.path());
                if entry.file_type().unwrap().is_dir() {
                    walk(&entry.path(), found);
                }
            }
        }
        let mut found = BTreeSet::new();
        walk(self.outside.path(), &mut found);
        found
    }

    fn check_works(&mut self) {
        let file = self.client.lookup(ROOT, "file").unwrap().nodeid;
        let fh = self.client.open(file, libc::O_RDONLY).unwrap();
        let read = ReadIn { fh, size: 100, ..ReadIn::default() };
        assert_eq!(self.client.call(opcode::READ, file, read.as_bytes()).body, b"content");
    }
}

/// A request of each kind that names something, with `name` for that.
fn requests_with(name: &[u8], node: u64) -> Vec<(u32, Vec<u8>)> {
    let one = strings(&[name]);
    let (create, mkdir) =
        (CreateIn { flags: libc::O_RDWR as u32, mode: 0o100_644, ..CreateIn::default() }, MkdirIn::default());
    vec![
        (opcode::LOOKUP, one.clone()),
        (opcode::UNLINK, one.clone()),
        (opcode::RMDIR, one.clone()),
        (opcode::MKDIR, with(&mkdir, &one)),
        (opcode::MKNOD, with(&MknodIn { mode: 0o100_644, ..MknodIn::default() }, &one)),
        (opcode::CREATE, with(&create, &one)),
        (opcode::LINK, with(&LinkIn { oldnodeid: node }, &one)),
        (opcode::SYMLINK, strings(&[name, b"target"])),
        (opcode::RENAME, with(&RenameIn { newdir: ROOT }, &strings(&[name, b"new"]))),
        (opcode::RENAME, with(&RenameIn { newdir: ROOT }, &strings(&[b"file", name]))),
        (opcode::RENAME2, with(&Rename2In { newdir: ROOT, flags: 1, padding: 0 }, &strings(&[b"file", name]))),
    ]
}

#[test]
fn names_that_are_no_names_reach_nothing() {
    let mut rig = rig();
    let before = rig.paths();
    let file = rig.client.lookup(ROOT, "file").unwrap().nodeid;
    let absolute = rig.outside.path().join("new");
    let too_long = [b'x'; 256];
    let names: [&[u8]; 9] = [
        absolute.as_os_str().as_bytes(),
        b"../secret",
        b"directory/../../secret",
        b"directory/new",
        b"/",
        b"..",
        b".",
        b"",
        &too_long,
    ];
    for name in names {
        for (kind, body) in requests_with(name, file) {
            let errno = rig.client.call(kind, ROOT, &body).errno;
            let expected = if name.len() > 255 { ENAMETOOLONG } else { EINVAL };
            assert_eq!(errno, expected, "opcode {kind}, name {:?}", String::from_utf8_lossy(name));
        }
    }
    assert_eq!(rig.paths(), before);
    rig.check_works();
}

#[test]
fn names_without_an_end_or_with_two_are_refused() {
    let mut rig = rig();
    let before = rig.paths();
    let file = rig.client.lookup(ROOT, "file").unwrap().nodeid;
    for (kind, body) in requests_with(b"new", file) {
        let (without_end, twice) = (&body[..body.len() - 1], [&body[..], b"x\0"].concat());
        assert_eq!(rig.client.call(kind, ROOT, without_end).errno, EINVAL, "opcode {kind}");
        assert_eq!(rig.client.call(kind, ROOT, &twice).errno, EINVAL, "opcode {kind}");
    }
    assert_eq!(rig.paths(), before);
}

/// Requests that are in order, of all kinds that have a body.
fn in_order(file: u64, fh: u64) -> Vec<Vec<u8>> {
    let names = requests_with(b"other", file).into_iter().map(|(kind, body)| message(kind, ROOT, &body));
    let set = SetXattrIn { size: 5, flags: 0 };
    let set = with(&set, &with(&SetXattrExtIn::default(), b"user.a\0value"));
    let forget = BatchForgetIn { count: 2, dummy: 0 };
    let one = ForgetOne { nodeid: file, nlookup: 1 };
    let bodies: Vec<(u32, Vec<u8>)> = vec![
        (opcode::WRITE, with(&WriteIn { fh, size: 3, ..WriteIn::default() }, b"abc")),
        (opcode::READ, ReadIn { fh, size: 10, ..ReadIn::default() }.as_bytes().to_vec()),
        (opcode::SETATTR, SetAttrIn::default().as_bytes().to_vec()),
        (opcode::SETXATTR, set),
        (opcode::GETXATTR, with(&GetXattrIn { size: 10, padding: 0 }, b"user.a\0")),
        (opcode::LISTXATTR, GetXattrIn { size: 10, padding: 0 }.as_bytes().to_vec()),
        (opcode::REMOVEXATTR, b"user.a\0".to_vec()),
        (opcode::FALLOCATE, FallocateIn { fh, length: 1, ..FallocateIn::default() }.as_bytes().to_vec()),
        (opcode::LSEEK, LseekIn { fh, whence: 3, ..LseekIn::default() }.as_bytes().to_vec()),
        (opcode::GETLK, LkIn { fh, ..LkIn::default() }.as_bytes().to_vec()),
        (opcode::SETLK, LkIn { fh, ..LkIn::default() }.as_bytes().to_vec()),
        (opcode::OPEN, OpenIn::default().as_bytes().to_vec()),
        (opcode::BATCH_FORGET, with(&forget, &[one.as_bytes(), one.as_bytes()].concat())),
    ];
    names.chain(bodies.into_iter().map(|(kind, body)| message(kind, file, &body))).collect()
}

#[test]
fn messages_that_are_cut_or_flipped_are_answered() {
    let mut rig = rig();
    let file = rig.client.lookup(ROOT, "file").unwrap().nodeid;
    let fh = rig.client.open(file, libc::O_RDWR).unwrap();
    for whole in in_order(file, fh) {
        for end in 0..whole.len() {
            // As it came, and as if its sender had meant it.
            let cut = &whole[..end];
            if let Some(answer) = rig.client.send(cut, 7, 4096) {
                assert_eq!(answer.errno, EIO, "cut at {end}");
            }
            let mut meant = cut.to_vec();
            if let Some(length) = meant.get_mut(..4) {
                length.copy_from_slice(&(end as u32).to_ne_bytes());
            }
            rig.client.send(&meant, 7, 4096);
        }
        for at in (0..whole.len()).filter(|at| !(8..16).contains(at)) {
            for bit in [0, 3, 7] {
                let mut flipped = whole.clone();
                flipped[at] ^= 1 << bit;
                rig.client.send(&flipped, 1 << 10, 4096);
            }
        }
    }
    let offered = rig.outside.path().join("offered");
    for path in rig.paths() {
        assert!(fs::symlink_metadata(&path).unwrap().blocks() * 512 <= LARGEST_FILE, "{path:?}");
    }
    let outside: Vec<_> = rig.paths().into_iter().filter(|path| !path.starts_with(&offered)).collect();
    assert_eq!(outside, [rig.outside.path().join("secret")]);
    fs::remove_dir_all(&offered).unwrap();
}

#[test]
fn sizes_and_offsets_at_their_extremes_are_answered() {
    let mut rig = rig();
    let client = &mut rig.client;
    let file = client.lookup(ROOT, "file").unwrap().nodeid;
    let fh = client.open(file, libc::O_RDWR).unwrap();
    for number in [0, 1, i64::MAX as u64, i64::MAX as u64 + 1, u64::MAX - 4096, u64::MAX] {
        let read = ReadIn { fh, offset: number, size: u32::MAX, ..ReadIn::default() };
        assert!(client.call(opcode::READ, file, read.as_bytes()).body.len() <= MAX_DATA as usize);
        let write = WriteIn { fh, offset: number, size: u32::MAX, ..WriteIn::default() };
        assert_eq!(client.call(opcode::WRITE, file, &with(&write, b"abc")).errno, EINVAL);
        let fallocate = FallocateIn { fh, offset: number, length: number, mode: 0, padding: 0 };
        let allocated = client.call(opcode::FALLOCATE, file, fallocate.as_bytes());
        assert!(allocated.errno != 0 || number <= 1, "{number}");
        let seek = LseekIn { fh, offset: number, whence: 4, padding: 0 };
        client.call(opcode::LSEEK, file, seek.as_bytes());
        let copy = CopyFileRangeIn {
            fh_in: fh,
            off_in: number,
            nodeid_out: file,
            fh_out: fh,
            off_out: number,
            len: u64::MAX,
            flags: 0,
        };
        client.call(opcode::COPY_FILE_RANGE, file, copy.as_bytes());
        client.call(opcode::READDIR, ROOT, read.as_bytes());
    }
    for size in [8, 65537, u32::MAX] {
        let set = with(&SetXattrIn { size, flags: 0 }, &with(&SetXattrExtIn::default(), b"user.a\0value"));
        assert_eq!(client.call(opcode::SETXATTR, file, &set).errno, EINVAL);
        let get = with(&GetXattrIn { size, padding: 0 }, b"user.none\0");
        assert_ne!(client.call(opcode::GETXATTR, file, &get).errno, 0);
    }
    let value = vec![b'x'; 65537];
    let set = with(&SetXattrIn { size: 65537, flags: 0 }, &with(&SetXattrExtIn::default(), b"user.a\0"));
    assert_eq!(client.call(opcode::SETXATTR, file, &[set, value].concat()).errno, libc::E2BIG);
    let name = strings(&[&[b'x'; 256]]);
    assert_eq!(client.call(opcode::REMOVEXATTR, file, &name).errno, libc::ERANGE);
    for count in [1, 2, u32::MAX] {
        assert_eq!(
            client.send(&message(opcode::BATCH_FORGET, 0, BatchForgetIn { count, dummy: 0 }.as_bytes()), 64, 64),
            None
        );
    }
    let target = vec![b'x'; 5000];
    assert_eq!(client.call(opcode::SYMLINK, ROOT, &strings(&[b"long", &target])).errno, ENAMETOOLONG);
}

#[test]
fn a_message_longer_than_any_is_refused() {
    let mut rig = rig();
    let huge = vec![b'x'; 3 << 20];
    for kind in [opcode::LOOKUP, opcode::WRITE, opcode::BATCH_FORGET, opcode::SETXATTR] {
        let answer = rig.client.send(&message(kind, ROOT, &huge), 1 << 16, 4096);
        assert!(answer.is_none_or(|answer| answer.errno != 0), "{kind}");
    }
    rig.check_works();
}

#[test]
fn more_is_forgotten_than_was_known() {
    let mut rig = rig();
    let file = rig.client.lookup(ROOT, "file").unwrap().nodeid;
    for node in [ROOT, file, file, 0, 2, u64::MAX] {
        let forget = ForgetIn { nlookup: u64::MAX };
        assert_eq!(rig.client.send(&message(opcode::FORGET, node, forget.as_bytes()), 64, 4096), None);
    }
    let gone = rig.client.call(opcode::GETATTR, file, &[0; 16]).errno;
    assert_eq!(gone, ESTALE);
    for node in [0, 2, 1 << 40, u64::MAX] {
        assert_eq!(rig.client.call(opcode::GETATTR, node, &[0; 16]).errno, ESTALE, "{node}");
        assert_eq!(rig.client.lookup(node, "file").unwrap_err(), ESTALE, "{node}");
    }
    rig.check_works();
}

#[test]
fn handles_that_nobody_has_are_refused() {
    let mut rig = rig();
    let file = rig.client.lookup(ROOT, "file").unwrap().nodeid;
    let own = rig.client.open(file, libc::O_RDONLY).unwrap();
    for fh in [own + 1, own ^ (1 << 40), 1 << 33, u64::MAX] {
        let read = ReadIn { fh, size: 10, ..ReadIn::default() };
        assert_eq!(rig.client.call(opcode::READ, file, read.as_bytes()).errno, EBADF, "{fh}");
        let write = WriteIn { fh, size: 3, ..WriteIn::default() };
        assert_eq!(rig.client.call(opcode::WRITE, file, &with(&write, b"abc")).errno, EBADF, "{fh}");
    }
    let write = WriteIn { fh: own, size: 3, ..WriteIn::default() };
    assert_eq!(rig.client.call(opcode::WRITE, file, &with(&write, b"abc")).errno, EBADF);
    rig.check_works();
}

#[test]
fn what_is_no_file_is_not_opened() {
    let mut rig = rig();
    let offered = rig.outside.path().join("offered");
    rustix::fs::mknodat(rustix::fs::CWD, offered.join("fifo"), rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
    let _socket = std::os::unix::net::UnixListener::bind(offered.join("socket")).unwrap();
    // A fifo without a reader would let its opener wait for ever; a link leads to what is not offered. Only root makes devices.
    let mut names = vec!["fifo", "socket", "link"];
    let zero = rustix::fs::makedev(1, 5);
    let kind = rustix::fs::FileType::CharacterDevice;
    if rustix::fs::mknodat(rustix::fs::CWD, offered.join("zero"), kind, 0o666.into(), zero).is_ok() {
        names.push("zero");
    }
    for name in names {
        let node = rig.client.lookup(ROOT, name).unwrap().nodeid;
        for flags in [libc::O_RDONLY, libc::O_WRONLY, libc::O_RDWR | libc::O_TRUNC] {
            assert!(rig.client.open(node, flags).is_err(), "{name}");
        }
    }
    assert_eq!(fs::read(rig.outside.path().join("secret")).unwrap(), b"secret");
}

#[test]
fn unknown_requests_are_no_system_call() {
    let mut rig = rig();
    for kind in [0, 7, 19, 34, 37, 39, 40, 41, 48, 49, 54, 100, 4096, u32::MAX] {
        assert_eq!(rig.client.call(kind, ROOT, &[0; 200]).errno, ENOSYS, "{kind}");
    }
    rig.check_works();
}

#[test]
fn an_answer_without_enough_room_is_an_error_or_none() {
    let mut rig = rig();
    let lookup = message(opcode::LOOKUP, ROOT, b"file\0");
    for room in 0..300 {
        match rig.client.send(&lookup, 5, room) {
            None => assert!(room < 16, "{room}"),
            Some(answer) => assert_eq!(answer.errno == 0, room >= 16 + 128, "{room}"),
        }
    }
    let file = rig.client.lookup(ROOT, "file").unwrap().nodeid;
    let fh = rig.client.open(file, libc::O_RDONLY).unwrap();
    let read = message(opcode::READ, file, ReadIn { fh, size: 100, ..ReadIn::default() }.as_bytes());
    assert_eq!(rig.client.send(&read, 3, 20).unwrap().body, b"cont");
}

#[test]
fn how_a_message_is_cut_into_pieces_makes_no_difference() {
    let mut rig = rig();
    let file = rig.client.lookup(ROOT, "file").unwrap().nodeid;
    let fh = rig.client.open(file, libc::O_RDWR).unwrap();
    for piece in [1, 2, 3, 16, 39, 40, 41, 80, 81, 1000] {
        let data: Vec<u8> = (0..500).map(|i| (i + piece) as u8).collect();
        let write = WriteIn { fh, size: 500, ..WriteIn::default() };
        let answer = rig.client.send(&message(opcode::WRITE, file, &with(&write, &data)), piece, 4096).unwrap();
        assert_eq!(WriteOut::read_from_bytes(&answer.body).unwrap().size, 500);
        let read = message(opcode::READ, file, ReadIn { fh, size: 1000, ..ReadIn::default() }.as_bytes());
        assert_eq!(rig.client.send(&read, piece, 4096).unwrap().body, data);
    }
}

#[test]
fn nothing_is_done_before_the_start_and_a_new_start_forgets() {
    let outside = tempfile::tempdir().unwrap();
    fs::write(outside.path().join("file"), "content").unwrap();
    let mut client = Client::silent(outside.path(), ConnectionOptions::default());
    assert_eq!(client.lookup(ROOT, "file").unwrap_err(), EIO);
    assert_eq!(client.init().errno, 0);
    let file = client.lookup(ROOT, "file").unwrap().nodeid;
    let fh = client.open(file, libc::O_RDONLY).unwrap();
    assert_eq!(client.init().errno, 0);
    assert_eq!(client.call(opcode::GETATTR, file, &[0; 16]).errno, ESTALE);
    let read = ReadIn { fh, size: 10, ..ReadIn::default() };
    assert_ne!(client.call(opcode::READ, file, read.as_bytes()).errno, 0);
    assert!(client.lookup(ROOT, "file").is_ok());
    assert_eq!(client.call(opcode::DESTROY, 0, &[]).errno, 0);
    assert_eq!(client.lookup(ROOT, "file").unwrap_err(), EIO);
}

#[test]
fn extensions_that_lie_about_their_size_are_refused() {
    let mut rig = rig();
    let before = rig.paths();
    let body = with(&MkdirIn { mode: 0o755, umask: 0 }, b"new\0");
    for (words, count) in
        [(&[0u32, 32, 1, 0][..], 2u16), (&[u32::MAX, 32, 1, 0], 2), (&[16, 32, 1, 0], 3), (&[16, 32, 1, 0], u16::MAX)]
    {
        let extension: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        let mut whole = message(opcode::MKDIR, ROOT, &[&body[..], &extension].concat());
        let (header, _) = InHeader::mut_from_prefix(&mut whole).unwrap();
        header.total_extlen = count;
        assert_eq!(rig.client.send(&whole, 64, 4096).unwrap().errno, EINVAL);
    }
    assert_eq!(rig.paths(), before);
}

/// The error of a user's request.
fn as_user(client: &mut Client, opcode: u32, node: u64, body: &[u8]) -> i32 {
    by(USER, client, opcode, node, body)
}

fn by(user: u32, client: &mut Client, opcode: u32, node: u64, body: &[u8]) -> i32 {
    let mut message = message(opcode, node, body);
    let at = offset_of!(InHeader, uid);
    message[at..at + 4].copy_from_slice(&user.to_ne_bytes());
    client.send(&message, usize::MAX, 4096).expect("an answer").errno
}

/// A file that belongs to the user, its path and node, and a client. `None` if the tests do not run as root.
fn users_file(test: &str) -> Option<(TempDir, PathBuf, Client, u64)> {
    if !rustix::process::geteuid().is_root() {
        println!("skipped: {test}: only root gives files to others");
        return None;
    }
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("file");
    fs::write(&path, "content").unwrap();
    chown(&path, Some(USER), Some(USER)).unwrap();
    let mut client = Client::new(directory.path());
    let file = client.lookup(ROOT, "file").unwrap().nodeid;
    Some((directory, path, client, file))
}

#[test]
fn who_was_the_owner_is_told_by_the_server_where_the_kernel_drops_an_answer() {
    let test = "who_was_the_owner_is_told_by_the_server_where_the_kernel_drops_an_answer";
    let Some((_directory, path, mut client, file)) = users_file(test) else { return };
    let mode = SetAttrIn { valid: set_attribute::MODE, mode: 0o4755, ..SetAttrIn::default() };
    let open = OpenIn { flags: libc::O_RDONLY as u32, ..OpenIn::default() };
    let set = with(&SetXattrIn { size: 1, flags: 0 }, &[SetXattrExtIn::default().as_bytes(), b"user.x\0v"].concat());
    let requests = [
        (opcode::SETATTR, file, mode.as_bytes().to_vec()),
        (opcode::OPEN, file, open.as_bytes().to_vec()),
        (opcode::LINK, ROOT, with(&LinkIn { oldnodeid: file }, b"link\0")),
        (opcode::SETXATTR, file, set.clone()),
        (opcode::GETXATTR, file, with(&GetXattrIn { size: 10, padding: 0 }, b"user.x\0")),
        (opcode::REMOVEXATTR, file, b"user.x\0".to_vec()),
    ];
    for (opcode, node, body) in &requests {
        assert_eq!(as_user(&mut client, *opcode, *node, body), 0, "{opcode}");
    }
    assert_eq!(as_user(&mut client, opcode::UNLINK, ROOT, b"link\0"), 0);
    assert_eq!(as_user(&mut client, opcode::SETXATTR, file, &set), 0);
    chown(&path, Some(0), Some(0)).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    // The server cannot know that a kernel drops this answer.
    assert_eq!(client.call(opcode::GETATTR, file, &[0; 16]).errno, 0);
    for (opcode, node, body) in &requests {
        assert_eq!(as_user(&mut client, *opcode, *node, body), ESTALE, "{opcode}");
    }
    assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, 0o600);
    assert_eq!(client.call(opcode::OPEN, file, open.as_bytes()).errno, 0, "root may");
}

#[test]
fn whom_an_acl_shuts_out_is_told_by_the_server_where_the_kernel_keeps_no_acls() {
    let test = "whom_an_acl_shuts_out_is_told_by_the_server_where_the_kernel_keeps_no_acls";
    let Some((_directory, _path, mut client, file)) = users_file(test) else { return };
    let open = OpenIn { flags: libc::O_RDONLY as u32, ..OpenIn::default() };
    assert_eq!(by(USER - 1, &mut client, opcode::OPEN, file, open.as_bytes()), 0);
    // For the owner all, for a user and all others nothing.
    let entry = |tag: u8, permissions: u8, id: u32| [&[tag, 0, permissions, 0][..], &id.to_le_bytes()].concat();
    let entries = [entry(1, 7, !0), entry(2, 0, 7), entry(4, 0, !0), entry(16, 0, !0), entry(32, 0, !0)].concat();
    let list = [&[2, 0, 0, 0][..], &entries].concat();
    let asked = SetXattrIn { size: list.len() as u32, flags: 0 };
    let set = with(&asked, &[SetXattrExtIn::default().as_bytes(), b"system.posix_acl_access\0", &list].concat());
    match as_user(&mut client, opcode::SETXATTR, file, &set) {
        libc::EOPNOTSUPP => {
            println!(
                "skipped: whom_an_acl_shuts_out_is_told_by_the_server_where_the_kernel_keeps_no_acls: no ACLs here"
            );
        }
        set => {
            assert_eq!(set, 0);
            assert_eq!(by(USER - 1, &mut client, opcode::OPEN, file, open.as_bytes()), ESTALE);
            assert_eq!(as_user(&mut client, opcode::OPEN, file, open.as_bytes()), 0, "the owner may");
        }
    }
}

#[test]
fn only_an_owner_changes_who_may_use_a_file() {
    if !rustix::process::geteuid().is_root() {
        return println!("skipped: only_an_owner_changes_who_may_use_a_file: only root gives files to others");
    }
    let directory = tempfile::tempdir().unwrap();
    for (name, owner) in [("theirs", 0), ("own", USER)] {
        fs::write(directory.path().join(name), "content").unwrap();
        chown(directory.path().join(name), Some(owner), Some(owner)).unwrap();
    }
    // A kernel that keeps no access control lists itself.
    let mut client = Client::new(directory.path());
    let list: Vec<u8> = [[1, 6], [4, 6], [32, 6]]
        .iter()
        .flat_map(|[tag, permissions]| [&[*tag, 0, *permissions, 0][..], &[255; 4]].concat())
        .collect();
    let list = [&[2, 0, 0, 0][..], &list].concat();
    let set = |name: &[u8]| {
        let set = SetXattrIn { size: list.len() as u32, flags: 0 };
        with(&set, &[SetXattrExtIn::default().as_bytes(), name, b"\0", &list].concat())
    };
    for (name, expected) in [("theirs", libc::EPERM), ("own", 0)] {
        let file = client.lookup(ROOT, name).unwrap().nodeid;
        let acl = set(b"system.posix_acl_access");
        assert_eq!(as_user(&mut client, opcode::SETXATTR, file, &acl), expected, "{name}");
        let remove = strings(&[b"system.posix_acl_access"]);
        let removed = as_user(&mut client, opcode::REMOVEXATTR, file, &remove);
        // The list says no more than the mode, so there may be none.
        assert!(removed == expected || expected == 0 && removed == libc::ENODATA, "{name}: {removed}");
    }
    assert_eq!(fs::metadata(directory.path().join("theirs")).unwrap().mode() & 0o777, 0o644);
    assert_eq!(fs::metadata(directory.path().join("own")).unwrap().mode() & 0o777, 0o666);
}

#[test]
fn a_kernel_that_has_not_seen_a_change_is_had_to_look_again() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    let mut client = Client::new(directory.path());
    let create = |client: &mut Client, flags: i32| {
        let asked = CreateIn { flags: flags as u32, mode: 0o100_644, ..CreateIn::default() };
        client.call(opcode::CREATE, ROOT, &with(&asked, &strings(&[b"file"]))).errno
    };
    // It was absent, and has come.
    fs::write(path("file"), "secret").unwrap();
    assert_eq!(create(&mut client, libc::O_RDWR | libc::O_CREAT | libc::O_TRUNC), ESTALE);
    assert_eq!(create(&mut client, libc::O_RDWR | libc::O_CREAT | libc::O_EXCL), EEXIST);
    assert_eq!(fs::read(path("file")).unwrap(), b"secret");
    // It was there, and is another one.
    let old = client.lookup(ROOT, "file").unwrap();
    fs::write(path("new"), "secret").unwrap();
    fs::rename(path("new"), path("file")).unwrap();
    let open = OpenIn { flags: libc::O_RDONLY as u32, ..OpenIn::default() };
    let rename = with(&RenameIn { newdir: ROOT }, &strings(&[b"file", b"other"]));
    for (opcode, node, body) in [
        (opcode::UNLINK, ROOT, strings(&[b"file"])),
        (opcode::RENAME, ROOT, rename),
        (opcode::OPEN, old.nodeid, with(&open, b"")),
    ] {
        assert_eq!(as_user(&mut client, opcode, node, &body), ESTALE, "{opcode}");
    }
    client.lookup(ROOT, "file").unwrap();
    assert_eq!(as_user(&mut client, opcode::UNLINK, ROOT, &strings(&[b"file"])), 0);
}
