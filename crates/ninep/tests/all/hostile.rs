//! Hostile clients get errors or the end of the connection.

use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use crate::support::{Client, Served, frame, walk};
use inarch_ninep::wire::{LockRange, NO_FID, Names, Request, SetattrBody};
use inarch_ninep::{ConnectionError, NinepOptions};
use rustix::io::Errno;

/// One of each request, on existing fids.
fn one_of_each() -> Vec<Request<'static>> {
    let range = LockRange { kind: 0, start: 0, length: 1, process: 1, client: b"guest" };
    vec![
        Request::Auth { afid: 9, uname: b"root", aname: b"", uid: 0 },
        Request::Attach { fid: 9, afid: NO_FID, uname: b"root", aname: b"/", uid: 0 },
        Request::Flush { old_tag: 500 },
        Request::Walk { fid: 0, new_fid: 8, names: Names::new(&[b"d", b"file"]).unwrap() },
        Request::Lopen { fid: 3, flags: 2 },
        Request::Lcreate { fid: 4, name: b"new", flags: 0o302, mode: 0o644, gid: 0 },
        Request::Read { fid: 1, offset: 0, count: 100 },
        Request::Write { fid: 1, offset: 0, data: b"data" },
        Request::Readdir { fid: 2, offset: 0, count: 1000 },
        Request::Statfs { fid: 0 },
        Request::Symlink { directory: 0, name: b"link", target: b"target", gid: 0 },
        Request::Mknod { directory: 0, name: b"fifo", mode: 0o010_644, major: 0, minor: 0, gid: 0 },
        Request::Rename { fid: 3, directory: 0, name: b"renamed" },
        Request::Readlink { fid: 0 },
        Request::Getattr { fid: 0, mask: !0 },
        Request::Setattr { fid: 1, set: SetattrBody { valid: 8.into(), size: 7.into(), ..SetattrBody::default() } },
        Request::Xattrwalk { fid: 0, new_fid: 7, name: b"" },
        Request::Xattrcreate { fid: 5, name: b"user.a", size: 4, flags: 0 },
        Request::Fsync { fid: 1, data_only: true },
        Request::Lock { fid: 1, range, flags: 0 },
        Request::Getlock { fid: 1, range },
        Request::Link { directory: 0, fid: 1, name: b"second" },
        Request::Mkdir { directory: 0, name: b"made", mode: 0o755, gid: 0 },
        Request::Renameat { old_directory: 0, old_name: b"made", new_directory: 0, new_name: b"moved" },
        Request::Unlinkat { directory: 0, name: b"moved", flags: 0x200 },
        Request::Remove { fid: 5 },
        Request::Clunk { fid: 8 },
    ]
}

/// A client with an open file, an open directory, and fids to spare.
fn ready(served: &Served) -> Client {
    served.make_directory("d");
    served.write("d/file", b"content");
    let mut client = served.client();
    client.walk(0, 1, "d/file");
    client.open(1, 2);
    client.walk(0, 2, "d");
    client.open(2, 0);
    for fid in 3..6 {
        client.walk(0, fid, "d");
    }
    client
}

fn bytes_of(request: &Request<'_>) -> Vec<u8> {
    let mut bytes = Vec::new();
    request.encode(77, &mut bytes);
    bytes
}

/// Checks that the connection of a client that sent nonsense ended so, and not by a panic.
fn ends_well(client: Client) {
    let ended = client.end();
    assert!(!matches!(ended, Err(ConnectionError::Panicked)), "{ended:?}");
}

#[test]
fn every_message_may_be_cut_anywhere() {
    let served = Served::new();
    for request in one_of_each() {
        let bytes = bytes_of(&request);
        let mut client = ready(&served);
        // Complete messages with shorter bodies: each gets a reply.
        for length in 7..bytes.len() {
            let body = &bytes[7..length];
            client.send_raw(&frame(bytes[4], 77, body));
            assert_eq!(client.receive().unwrap().tag, 77, "{request:?} cut to {length}");
        }
        // An incomplete message.
        client.send_raw(&bytes[..bytes.len() - 1]);
        ends_well(client);
    }
}

#[test]
fn every_byte_of_every_message_may_be_any() {
    let served = Served::new();
    for request in one_of_each() {
        let bytes = bytes_of(&request);
        let mut client = ready(&served);
        for at in 4..bytes.len() {
            for change in [1u8, 0x80, 0xff] {
                let mut bytes = bytes.clone();
                bytes[at] ^= change;
                client.send_raw(&bytes);
                if client.receive().is_none() {
                    client = ready(&served);
                }
            }
        }
        ends_well(client);
    }
}

#[test]
fn lengths_and_numbers_may_be_extreme() {
    let served = Served::new();
    for request in one_of_each() {
        let bytes = bytes_of(&request);
        let mut client = ready(&served);
        for at in 7..bytes.len() {
            for width in [2, 4, 8] {
                let Some(field) = bytes.get(at..at + width) else { continue };
                assert_eq!(field.len(), width);
                for value in [0u8, 0xff, 0x7f] {
                    let mut bytes = bytes.clone();
                    bytes[at..at + width].fill(value);
                    client.send_raw(&bytes);
                    assert!(client.receive().is_some(), "{request:?} at {at}");
                }
            }
        }
        ends_well(client);
    }
}

#[test]
fn only_so_many_fids_are_kept() {
    let served = Served::with(NinepOptions { fids: 100, ..NinepOptions::default() });
    let mut client = served.client();
    for fid in 1..100 {
        client.walk(0, fid, "");
    }
    assert_eq!(client.fails(&walk(0, 100, &[])), Errno::NFILE.raw_os_error());
    client.clunk(1);
    client.walk(0, 100, "");
}

/// Walks with new fids until that is refused; returns how many there are, and the error.
fn walk_on(client: &mut Client, names: &[&[u8]]) -> (u32, i32) {
    let mut fids = 0;
    loop {
        match client.ask(&walk(0, fids + 1, names)).errno() {
            None => fids += 1,
            Some(errno) => return (fids, errno),
        }
    }
}

#[test]
fn only_so_many_bytes_of_names_are_kept() {
    const BYTES: usize = 1 << 20;
    let served = Served::with(NinepOptions { fid_bytes: BYTES, ..NinepOptions::default() });
    let name = "n".repeat(250);
    served.make_directory(&vec![&name[..]; 15].join("/"));
    let mut client = served.client();
    let names = vec![name.as_bytes(); 15];
    let (fids, errno) = walk_on(&mut client, &names);
    assert_eq!(errno, Errno::NFILE.raw_os_error());
    let bytes = fids as usize * 15 * 250;
    assert!(bytes <= BYTES + 15 * 250, "{fids} fids name {bytes} bytes");
    assert!(bytes > BYTES / 2, "{fids} fids");
    // Nothing else that takes room is created either; existing fids can be used and released.
    assert_eq!(client.fails(&Request::Lopen { fid: 1, flags: 0 }), errno);
    client.getattr(1);
    for fid in 1..=fids {
        client.clunk(fid);
    }
    client.walk(0, 1, "");
    client.open(1, 0);
    // Another client has its own limits.
    let mut other = served.client();
    other.ok(&walk(0, 1, &names));
}

#[test]
fn one_who_names_much_leaves_others_some() {
    const BYTES: usize = 1 << 20;
    let options = NinepOptions { all_fid_bytes: BYTES, connections: 4, ..NinepOptions::default() };
    let served = Served::with(options);
    let name = "n".repeat(250);
    served.make_directory(&vec![&name[..]; 15].join("/"));
    let names = vec![name.as_bytes(); 15];
    let mut clients = [(); 3].map(|()| served.client());
    let many = clients.each_mut().map(|client| walk_on(client, &names));
    let bytes = many.map(|(fids, errno)| {
        assert_eq!(errno, Errno::NFILE.raw_os_error());
        fids as usize * 15 * 250
    });
    assert!(bytes[0] > BYTES / 2 && bytes[1..].iter().all(|bytes| *bytes > 0), "{bytes:?}");
    assert!(bytes.iter().sum::<usize>() <= BYTES + 3 * 15 * 250, "{bytes:?}");
    // What one gives back is there for the others.
    (1..=many[0].0).for_each(|fid| clients[0].clunk(fid));
    clients[1].ok(&walk(0, many[1].0 + 1, &names));
}

#[test]
fn one_who_opens_many_files_leaves_others_some() {
    let served = Served::with(NinepOptions { open_files: 64, connections: 2, ..NinepOptions::default() });
    served.write("file", b"content");
    let (mut greedy, mut other) = (served.client(), served.client());
    let opens = |client: &mut Client| {
        (1..).find(|fid| {
            client.walk(0, *fid, "file");
            client.ask(&Request::Lopen { fid: *fid, flags: 0 }).errno() == Some(Errno::NFILE.raw_os_error())
        })
    };
    assert_eq!(opens(&mut greedy), Some(63));
    assert_eq!(opens(&mut other), Some(3));
    greedy.clunk(1);
    other.open(3, 0);
}

#[test]
fn one_who_takes_no_answers_harms_only_itself() {
    let served = Served::new();
    served.write("file", &vec![1; 1 << 20]);
    let mut greedy = served.client();
    greedy.walk(0, 1, "file");
    greedy.open(1, 0);
    greedy.stream.set_nonblocking(true).unwrap();
    let mut bytes = Vec::new();
    for tag in 0..1000 {
        bytes.clear();
        Request::Read { fid: 1, offset: 0, count: 1 << 20 }.encode(tag, &mut bytes);
        greedy.send_raw(&bytes);
    }
    let mut other = served.client();
    other.getattr(0);
    greedy.stream.set_nonblocking(false).unwrap();
    greedy.stream.shutdown(std::net::Shutdown::Both).unwrap();
    assert!(!matches!(greedy.server.take().unwrap().join().unwrap(), Err(ConnectionError::Panicked)));
}

/// Repeats `work` until `done`.
fn until(done: &AtomicBool, mut work: impl FnMut()) {
    while !done.load(Ordering::Relaxed) {
        work();
    }
}

#[test]
fn a_directory_that_the_host_swaps_for_a_link_is_never_followed() {
    let served = Served::new();
    let outside = tempfile::tempdir().unwrap();
    fs::write(outside.path().join("secret"), b"secret").unwrap();
    served.make_directory("a");
    served.write("a/secret", b"public");
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            until(&done, || {
                fs::rename(served.path("a"), served.path("b")).unwrap();
                std::os::unix::fs::symlink(outside.path(), served.path("a")).unwrap();
                fs::remove_file(served.path("a")).unwrap();
                fs::rename(served.path("b"), served.path("a")).unwrap();
            });
        });
        let mut client = served.client();
        for _ in 0..3000 {
            let walked = client.ask(&walk(0, 1, &[b"a", b"secret"]));
            if client.ask(&Request::Lopen { fid: 1, flags: 0 }).errno().is_none() {
                assert_eq!(client.read(1, 0, 100), b"public", "{walked:?}");
            }
            client.ask(&Request::Clunk { fid: 1 });
        }
        done.store(true, Ordering::Relaxed);
    });
}

#[test]
fn requests_on_one_fid_may_race() {
    let served = Served::new();
    served.make_directory("d");
    let mut client = served.client();
    for round in 0..1500u32 {
        client.walk(0, 1, "d");
        let name = if round % 2 == 0 { &b"even"[..] } else { b"odd" };
        let mut bytes = Vec::new();
        let racing = [
            Request::Lcreate { fid: 1, name, flags: 0o102, mode: 0o644, gid: 0 },
            walk(1, 2, &[b"even"]),
            Request::Xattrwalk { fid: 1, new_fid: 3, name: b"" },
            Request::Rename { fid: 1, directory: 0, name: b"d" },
            Request::Lopen { fid: 1, flags: 0 },
            Request::Renameat { old_directory: 0, old_name: b"d", new_directory: 0, new_name: b"d" },
            walk(1, 1, &[b".."]),
            Request::Clunk { fid: 1 },
        ];
        for (tag, request) in racing.iter().enumerate() {
            request.encode(tag as u16, &mut bytes);
        }
        client.send_raw(&bytes);
        let mut tags: Vec<u16> = racing.iter().map(|_| client.receive().unwrap().tag).collect();
        tags.sort_unstable();
        assert_eq!(tags, (0..racing.len() as u16).collect::<Vec<_>>());
        for fid in 1..4 {
            client.ask(&Request::Clunk { fid });
        }
    }
    ends_well(client);
}

#[test]
fn walks_and_renames_of_two_clients_may_race() {
    let served = Served::new();
    served.make_directory("a/x/y");
    served.make_directory("b");
    served.write("a/x/y/file", b"content");
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            let mut client = served.client();
            client.walk(0, 1, "a");
            client.walk(0, 2, "b");
            let there = Request::Renameat { old_directory: 1, old_name: b"x", new_directory: 2, new_name: b"x" };
            let back = Request::Renameat { old_directory: 2, old_name: b"x", new_directory: 1, new_name: b"x" };
            until(&done, || {
                client.ok(&there);
                client.ok(&back);
            });
        });
        let mut client = served.client();
        let mut found = 0;
        for _ in 0..3000 {
            client.ask(&walk(0, 1, &[b"a", b"x", b"y", b"file"]));
            if client.ask(&Request::Lopen { fid: 1, flags: 0 }).errno().is_none() {
                assert_eq!(client.read(1, 0, 100), b"content");
                found += 1;
            }
            client.ask(&Request::Clunk { fid: 1 });
        }
        done.store(true, Ordering::Relaxed);
        assert!(found > 0);
    });
}
