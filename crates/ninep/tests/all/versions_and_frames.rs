//! The version exchange, and the framing of messages.

use std::io::Write;

use crate::support::{Served, frame, walk};
use inarch_ninep::ConnectionError;
use inarch_ninep::wire::{Header, NO_FID, NO_TAG, Reply, Request, kind};
use rustix::io::Errno;

#[test]
fn the_size_of_messages_is_the_smaller_of_both_wishes() {
    let served = Served::new();
    for (asked, agreed) in [(8192, 8192), (4096, 4096), (1 << 20, 1 << 20), (u32::MAX, 1 << 20)] {
        let (msize, version) = served.raw_client().version(asked);
        assert_eq!((msize, &*version), (agreed, &b"9P2000.L"[..]));
    }
}

#[test]
fn other_versions_and_messages_too_small_are_unknown() {
    let served = Served::new();
    for (msize, version) in
        [(8192, &b"9P2000"[..]), (8192, b"9P2000.u"), (8192, b""), (4095, b"9P2000.L"), (0, b"9P2000.L")]
    {
        let mut client = served.raw_client();
        client.send(NO_TAG, &Request::Version { msize, version });
        let message = client.receive().unwrap();
        assert!(matches!(message.reply(), Reply::Version { version: b"unknown", .. }), "{message:?}");
        // The client may try again.
        assert_eq!(client.version(8192).0, 8192);
    }
}

#[test]
fn nothing_works_before_a_version_is_agreed_on() {
    let served = Served::new();
    let mut client = served.raw_client();
    let attach = Request::Attach { fid: 0, afid: NO_FID, uname: b"", aname: b"", uid: 0 };
    assert_eq!(client.fails(&attach), Errno::PROTO.raw_os_error());
}

#[test]
fn a_second_version_drops_fids_and_locks() {
    let served = Served::new();
    served.write("file", b"");
    let (mut first, mut second) = (served.client(), served.client());
    for client in [&mut first, &mut second] {
        client.walk(0, 1, "file");
        client.open(1, 2);
    }
    let lock = crate::support::lock_request(1, crate::support::range(1, 0, 0, 7), false);
    assert_eq!(crate::support::lock_status(&first.ok(&lock)), 0);
    assert_eq!(crate::support::lock_status(&second.ok(&lock)), 1);
    first.version(8192);
    assert_eq!(first.fails(&Request::Clunk { fid: 1 }), Errno::BADF.raw_os_error());
    assert_eq!(crate::support::lock_status(&second.ok(&lock)), 0);
}

#[test]
fn no_answer_is_longer_than_agreed_on() {
    let served = Served::new();
    served.write("file", &vec![b'x'; 100_000]);
    let mut client = served.raw_client();
    client.version(4096);
    client.attach(0, 0);
    client.walk(0, 1, "file");
    client.open(1, 0);
    for count in [4096, 5000, u32::MAX, u32::MAX - 24, u32::MAX - 11] {
        let data = client.read(1, 0, count);
        assert!(data.len() + Header::SIZE + 4 < 4096 && data.len() >= 4000, "{}", data.len());
    }
}

#[test]
fn messages_may_come_byte_by_byte_or_many_at_once() {
    let served = Served::new();
    let mut client = served.client();
    let mut bytes = Vec::new();
    walk(0, 1, &[]).encode(5, &mut bytes);
    for byte in &bytes {
        client.stream.write_all(&[*byte]).unwrap();
    }
    assert_eq!(client.receive().unwrap().errno(), None);
    bytes.clear();
    for tag in 0..200 {
        Request::Getattr { fid: 0, mask: !0 }.encode(tag, &mut bytes);
    }
    client.stream.write_all(&bytes).unwrap();
    let mut tags: Vec<u16> = (0..200).map(|_| client.receive().unwrap().tag).collect();
    tags.sort_unstable();
    assert_eq!(tags, (0..200).collect::<Vec<_>>());
}

#[test]
fn an_answer_does_not_wait_for_a_request_of_which_only_a_part_has_come() {
    let served = Served::new();
    let mut client = served.client();
    let mut bytes = Vec::new();
    for tag in 1..=3 {
        Request::Getattr { fid: 0, mask: !0 }.encode(tag, &mut bytes);
    }
    // The last one lacks one byte, then all bytes but one, then no header is complete.
    let whole = bytes.len() / 3;
    for there in [2 * whole + whole - 1, whole + 8, whole + 3] {
        let (now, later) = bytes.split_at(there);
        client.send_raw(now);
        let (before, behind) = (there / whole, 3 - there / whole);
        for tag in 1..=before {
            assert_eq!(client.receive().unwrap().tag, tag as u16);
        }
        client.send_raw(later);
        for tag in 1..=behind {
            assert_eq!(client.receive().unwrap().tag, (before + tag) as u16);
        }
    }
}

#[test]
fn bodies_of_another_length_are_refused_and_the_connection_goes_on() {
    let served = Served::new();
    let mut client = served.client();
    for (number, body) in [
        (kind::WALK, &b"\0\0\0\0\x01\0\0\0\x01\0\xff\xff"[..]),
        (kind::WALK, b"\0\0\0\0\x01\0\0\0\x11\0"),
        (kind::GETATTR, b"\0\0\0\0"),
        (kind::GETATTR, b"\0\0\0\0\0\0\0\0\0\0\0\0\0"),
        (kind::WRITE, b"\0\0\0\0\0\0\0\0\0\0\0\0\xff\xff\xff\xff"),
        (kind::CLUNK, b""),
    ] {
        client.send_raw(&frame(number, 3, body));
        assert_eq!(client.receive().unwrap().errno(), Some(Errno::INVAL.raw_os_error()), "{number} {body:?}");
    }
    // Replies are not requests, nor are numbers of other dialects.
    for number in [kind::WALK + 1, kind::RLERROR, kind::RLERROR - 1, 0, 255, 112, 124] {
        client.send_raw(&frame(number, 3, b""));
        assert_eq!(client.receive().unwrap().errno(), Some(Errno::OPNOTSUPP.raw_os_error()), "{number}");
    }
    client.getattr(0);
}

#[test]
fn sizes_that_cannot_be_end_the_connection() {
    for size in [0u32, 6, (1 << 20) + 1, u32::MAX] {
        let served = Served::new();
        let mut client = served.client();
        let mut bytes = frame(kind::CLUNK, 1, b"\0\0\0\0");
        bytes[..4].copy_from_slice(&size.to_le_bytes());
        client.send_raw(&bytes);
        assert_eq!(client.receive(), None);
        assert!(matches!(client.end(), Err(ConnectionError::Protocol(_))));
    }
    // A client that has sent nothing needs no long message.
    let served = Served::new();
    let mut client = served.raw_client();
    client.send_raw(&100_000u32.to_le_bytes());
    client.send_raw(&[100, 0, 0]);
    assert_eq!(client.receive(), None);
}

#[test]
fn names_are_bytes() {
    let served = Served::new();
    let mut client = served.client();
    let name = b"\xff\xfe latin \xe4\n";
    client.ok(&Request::Mkdir { directory: 0, name, mode: 0o755, gid: 0 });
    client.ok(&walk(0, 1, &[name]));
    client.ok(&walk(0, 2, &[]));
    client.open(2, 0);
    assert!(client.list(2, 0, 8192).iter().any(|entry| entry.name == name));
}

#[test]
fn no_authentication_is_needed() {
    let served = Served::new();
    let mut client = served.client();
    let auth = Request::Auth { afid: 9, uname: b"", aname: b"", uid: 0 };
    assert_eq!(client.fails(&auth), Errno::NOENT.raw_os_error());
    for aname in [&b"/etc"[..], b"..", b"/..", b"x", b"//"] {
        let attach = Request::Attach { fid: 5, afid: NO_FID, uname: b"", aname, uid: 0 };
        assert_eq!(client.fails(&attach), Errno::NOENT.raw_os_error());
    }
    // Any number of times, each fid once.
    client.ok(&Request::Attach { fid: 5, afid: NO_FID, uname: b"", aname: b"/", uid: 0 });
    let again = Request::Attach { fid: 5, afid: NO_FID, uname: b"", aname: b"/", uid: 0 };
    assert_eq!(client.fails(&again), Errno::BADF.raw_os_error());
}

#[test]
fn a_version_in_the_middle_ends_what_was_begun_and_takes_every_fid() {
    let served = Served::new();
    served.write("file", &[b'x'; 1 << 16]);
    let mut first = served.client();
    let mut client = served.client();
    for client in [&mut first, &mut client] {
        client.walk(0, 1, "file");
        client.open(1, 2);
    }
    let lock = |tag| crate::support::lock_request(1, crate::support::range(1, 0, 0, tag), true);
    first.ok(&lock(1));
    for round in 0..50 {
        // Waiting for a lock, reading and writing: each gets its reply before the version, or never.
        let mut bytes = Vec::new();
        lock(7).encode(1, &mut bytes);
        for tag in 2..10 {
            Request::Read { fid: 1, offset: 0, count: 1 << 16 }.encode(tag, &mut bytes);
            Request::Write { fid: 1, offset: 0, data: &[b'y'; 100] }.encode(tag + 100, &mut bytes);
        }
        Request::Version { msize: 1 << 17, version: b"9P2000.L" }.encode(NO_TAG, &mut bytes);
        client.send_raw(&bytes);
        loop {
            let message = client.receive().unwrap();
            if message.tag == NO_TAG {
                break;
            }
            assert!(message.tag != 1, "round {round}: {message:?}");
        }
        for fid in 0..3 {
            assert_eq!(client.fails(&Request::Clunk { fid }), Errno::BADF.raw_os_error());
        }
        // Tags and fids are free again.
        client.attach(0, 0);
        client.walk(0, 1, "file");
        client.open(1, 2);
        client.send(1, &Request::Getattr { fid: 1, mask: 0 });
        assert_eq!(client.receive().unwrap().tag, 1);
    }
    let unlock = crate::support::lock_request(1, crate::support::range(2, 0, 0, 1), false);
    first.ok(&unlock);
    assert_eq!(crate::support::lock_status(&first.ok(&lock(1))), 0, "a lock was taken by a request that was ended");
}

#[test]
fn a_fid_is_free_once_its_end_was_answered() {
    let served = Served::new();
    served.make_directory("d");
    served.write("a", b"of a");
    served.write("b", b"of b");
    let mut client = served.client();
    for round in 0..200 {
        let (name, content) = if round % 2 == 0 { ("a", b"of a") } else { ("b", b"of b") };
        client.walk(0, 1, name);
        client.open(1, 0);
        assert_eq!(client.read(1, 0, 10), content);
        match round % 3 {
            0 => client.clunk(1),
            1 => {
                // Gone as well where the removal fails.
                client.walk(0, 2, "d");
                std::fs::write(served.path("d/x"), b"").unwrap();
                client.fails(&Request::Remove { fid: 2 });
                client.walk(0, 2, name);
                client.clunk(2);
                client.clunk(1);
            }
            // The read came before the same client's clunk, and reads the file it asked for.
            _ => {
                let mut bytes = Vec::new();
                Request::Read { fid: 1, offset: 0, count: 10 }.encode(1, &mut bytes);
                Request::Clunk { fid: 1 }.encode(2, &mut bytes);
                client.send_raw(&bytes);
                for _ in 0..2 {
                    let message = client.receive().unwrap();
                    if let (1, Reply::Read { data }) = (message.tag, message.reply()) {
                        assert_eq!(data, content);
                    }
                }
            }
        }
        assert_eq!(client.fails(&Request::Clunk { fid: 1 }), Errno::BADF.raw_os_error());
    }
}
