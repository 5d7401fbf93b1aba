//! `Txattrwalk`, `Txattrcreate` and `Treaddir`.

use std::fs;

use crate::support::{Client, Served, names};
use inarch_ninep::NinepOptions;
use inarch_ninep::wire::{Reply, Request};
use rustix::io::Errno;

const INVAL: i32 = Errno::INVAL.raw_os_error();

fn set(client: &mut Client, name: &[u8], value: &[u8], flags: u32) -> Option<i32> {
    client.walk(0, 50, "file");
    client.ok(&Request::Xattrcreate { fid: 50, name, size: value.len() as u64, flags });
    if !value.is_empty() {
        client.write(50, 0, value);
    }
    let answer = client.ask(&Request::Clunk { fid: 50 }).errno();
    assert_eq!(client.fails(&Request::Clunk { fid: 50 }), Errno::BADF.raw_os_error());
    answer
}

fn get(client: &mut Client, name: &[u8]) -> Result<Vec<u8>, i32> {
    client.walk(0, 50, "file");
    let message = client.ask(&Request::Xattrwalk { fid: 50, new_fid: 51, name });
    client.clunk(50);
    match message.reply() {
        Reply::Xattrwalk { size } => {
            let value = client.read(51, 0, 1 << 19);
            assert_eq!(value.len() as u64, size);
            assert_eq!(client.read(51, size, 10), b"");
            assert_eq!(client.read(51, u64::MAX, 10), b"");
            assert_eq!(client.read(51, 1, 2), value.get(1..).map_or(&b""[..], |rest| &rest[..rest.len().min(2)]));
            client.clunk(51);
            Ok(value)
        }
        Reply::Lerror { errno } => Err(errno as i32),
        other => panic!("{other:?}"),
    }
}

#[test]
fn attributes_are_set_read_listed_and_removed() {
    let served = Served::new();
    served.write("file", b"");
    let mut client = served.client();
    assert_eq!(set(&mut client, b"user.a", b"value", 0), None);
    assert_eq!(set(&mut client, b"user.a", b"other", 1), Some(Errno::EXIST.raw_os_error()));
    assert_eq!(set(&mut client, b"user.b", b"other", 2), Some(Errno::NODATA.raw_os_error()));
    assert_eq!(set(&mut client, b"user.a", b"other value", 2), None);
    assert_eq!(get(&mut client, b"user.a").unwrap(), b"other value");
    assert_eq!(set(&mut client, b"user.empty", b"", 0), None);
    assert_eq!(get(&mut client, b"user.empty").unwrap(), b"");
    let list = get(&mut client, b"").unwrap();
    let mut listed: Vec<&[u8]> = list.split(|byte| *byte == 0).filter(|name| name.starts_with(b"user.")).collect();
    listed.sort();
    assert_eq!(listed, [&b"user.a"[..], b"user.empty"]);
    // Linux removes an attribute by replacing it with nothing.
    assert_eq!(set(&mut client, b"user.a", b"", 2), None);
    assert_eq!(get(&mut client, b"user.a"), Err(Errno::NODATA.raw_os_error()));
}

#[test]
fn a_value_is_set_only_as_it_was_announced() {
    let served = Served::new();
    served.write("file", b"");
    let mut client = served.client();
    client.walk(0, 1, "file");
    client.ok(&Request::Xattrcreate { fid: 1, name: b"user.a", size: 10, flags: 0 });
    for (offset, data) in [(1, &b"x"[..]), (0, b"12345678901"), (u64::MAX, b"x"), (10, b"x")] {
        assert_eq!(client.fails(&Request::Write { fid: 1, offset, data }), INVAL);
    }
    client.write(1, 0, b"12345");
    assert_eq!(client.fails(&Request::Write { fid: 1, offset: 5, data: b"123456" }), INVAL);
    assert_eq!(client.fails(&Request::Write { fid: 1, offset: 0, data: b"1" }), INVAL);
    // A value that is being written cannot be read.
    assert_eq!(client.fails(&Request::Read { fid: 1, offset: 0, count: 10 }), Errno::BADF.raw_os_error());
    assert_eq!(client.fails(&Request::Clunk { fid: 1 }), INVAL);
    assert_eq!(get(&mut client, b"user.a"), Err(Errno::NODATA.raw_os_error()));
    client.walk(0, 2, "file");
    let too_big = Request::Xattrcreate { fid: 2, name: b"user.a", size: 65537, flags: 0 };
    assert_eq!(client.fails(&too_big), Errno::TOOBIG.raw_os_error());
    assert_eq!(client.fails(&Request::Xattrcreate { fid: 2, name: b"user.a", size: u64::MAX, flags: 0 }), 7);
    assert_eq!(client.fails(&Request::Xattrcreate { fid: 2, name: b"", size: 1, flags: 0 }), INVAL);
    assert_eq!(client.fails(&Request::Xattrcreate { fid: 2, name: b"user.a", size: 1, flags: 3 }), INVAL);
}

#[test]
fn a_value_does_not_change_while_it_is_read() {
    let served = Served::new();
    served.write("file", b"");
    let mut client = served.client();
    set(&mut client, b"user.a", &[b'x'; 1000], 0);
    client.walk(0, 1, "file");
    client.ok(&Request::Xattrwalk { fid: 1, new_fid: 2, name: b"user.a" });
    let first = client.read(2, 0, 500);
    set(&mut client, b"user.a", b"short", 0);
    assert_eq!([first, client.read(2, 500, 5000)].concat(), [b'x'; 1000]);
    assert_eq!(client.fails(&crate::support::walk(2, 3, &[])), Errno::BADF.raw_os_error());
    assert_eq!(client.fails(&Request::Getattr { fid: 2, mask: 0 }), Errno::BADF.raw_os_error());
}

#[test]
fn memory_for_values_is_bounded() {
    let served = Served::with(NinepOptions { xattr_bytes: 200_000, ..NinepOptions::default() });
    served.write("file", b"");
    let mut client = served.client();
    let create = |client: &mut Client, fid| {
        client.walk(0, fid, "file");
        client.ask(&Request::Xattrcreate { fid, name: b"user.a", size: 60_000, flags: 0 }).errno()
    };
    for fid in 1..=3 {
        assert_eq!(create(&mut client, fid), None);
    }
    assert_eq!(create(&mut client, 4), Some(Errno::NOBUFS.raw_os_error()));
    client.ask(&Request::Clunk { fid: 1 });
    assert_eq!(create(&mut client, 5), None);
}

#[test]
fn every_entry_is_listed_once_whatever_the_portions() {
    let served = Served::new();
    let expected: Vec<String> = (0..3000).map(|n| format!("name-{n:0width$}", width = 1 + n % 60)).collect();
    expected.iter().for_each(|name| crate::support::touch(&served.path(name)));
    let mut expected = [expected, vec![".".into(), "..".into()]].concat();
    expected.sort();
    expected.dedup();
    let mut client = served.client();
    client.walk(0, 1, "");
    client.open(1, 0);
    for count in [120, 1000, 4096, 1 << 20] {
        assert_eq!(names(&client.list(1, 0, count)), expected, "{count}");
    }
    // From any cookie, in any order, and twice.
    let all = client.list(1, 0, 8192);
    for at in [0, 1, 500, 1500, all.len() - 2, 10] {
        assert_eq!(client.list(1, all[at].next, 4096), all[at + 1..]);
    }
    assert_eq!(client.readdir(1, all.last().unwrap().next, 4096), []);
}

#[test]
fn room_for_no_entry_is_an_error_and_no_end() {
    let served = Served::new();
    crate::support::touch(&served.path(&"x".repeat(255)));
    let mut client = served.client();
    client.walk(0, 1, "");
    client.open(1, 0);
    for count in [0, 1, 24] {
        assert_eq!(client.fails(&Request::Readdir { fid: 1, offset: 0, count }), INVAL);
    }
    let long = client.list(1, 0, 279).into_iter().find(|entry| entry.name.len() == 255);
    assert!(long.is_some());
}

#[test]
fn types_and_numbers_agree_with_attributes() {
    let served = Served::new();
    served.make_directory("directory");
    served.write("file", b"");
    std::os::unix::fs::symlink("x", served.path("link")).unwrap();
    let mut client = served.client();
    client.walk(0, 1, "");
    client.open(1, 0);
    for (fid, entry) in (10..).zip(client.list(1, 0, 8192)) {
        if entry.name.starts_with(b".") {
            continue;
        }
        let name = String::from_utf8(entry.name).unwrap();
        let [qid] = client.walk(0, fid, &name)[..] else { panic!() };
        let body = client.getattr(fid);
        assert_eq!((qid.path, qid.kind), (entry.qid.path, entry.qid.kind), "{name}");
        assert_eq!(body.qid.path, qid.path);
        assert_eq!(u32::from(entry.file_type) << 12, body.mode.get() & 0o170_000);
    }
}

#[test]
fn entries_that_stay_are_listed_while_others_come_and_go() {
    let served = Served::new();
    (0..1000).for_each(|n| crate::support::touch(&served.path(&format!("stays{n}"))));
    let mut client = served.client();
    client.walk(0, 1, "");
    client.open(1, 0);
    let (mut listed, mut offset, mut round) = (Vec::new(), 0, 0);
    loop {
        let some = client.readdir(1, offset, 1000);
        let Some(last) = some.last() else { break };
        offset = last.next;
        listed.extend(some);
        crate::support::touch(&served.path(&format!("new{round}")));
        let _ = fs::remove_file(served.path(&format!("new{}", round / 2)));
        round += 1;
        assert!(round < 5000, "the listing does not end");
    }
    let stays = names(&listed).into_iter().filter(|name| name.starts_with("stays")).collect::<Vec<_>>();
    assert_eq!(stays.len(), 1000);
}

#[test]
fn a_hundred_thousand_entries_are_listed_from_any_place() {
    let served = Served::new();
    served.make_directory("many");
    let many = fs::File::open(served.path("many")).unwrap();
    let flags = rustix::fs::OFlags::CREATE | rustix::fs::OFlags::WRONLY | rustix::fs::OFlags::CLOEXEC;
    for number in 0..100_000 {
        rustix::fs::openat(&many, format!("entry-{number:06}"), flags, 0o600.into()).unwrap();
    }
    let mut client = served.client();
    client.walk(0, 1, "many");
    client.open(1, 0);
    let all = client.list(1, 0, 1 << 20);
    let mut found = names(&all);
    found.dedup();
    assert_eq!((found.len(), all.len()), (100_002, 100_002));
    // Offsets are opaque, and may use all 64 bits: forwards, backwards, to the start, and by a second reader.
    client.walk(0, 2, "many");
    client.open(2, 0);
    for at in [50_000, 99_999, 3, 77_777, 0, 100_000] {
        for fid in [1, 2] {
            let some = client.readdir(fid, all[at].next, 2000);
            assert!(!some.is_empty() && some[..] == all[at + 1..][..some.len()], "{at}");
        }
    }
    assert_eq!(client.readdir(1, all[100_001].next, 4096), []);
    assert_eq!(client.readdir(1, 0, 4096)[..], all[..client.readdir(2, 0, 4096).len()]);
    // An offset of no entry may lead anywhere, but the listing ends.
    for offset in [1, 12345, u64::MAX, i64::MAX as u64, 1 << 63] {
        let answer = client.ask(&Request::Readdir { fid: 1, offset, count: 4096 });
        assert!(answer.errno().is_none_or(|errno| errno == INVAL), "{offset}: {answer:?}");
    }
}

#[test]
fn values_of_one_attribute_may_race() {
    let served = Served::new();
    served.write("file", b"");
    let values: [&[u8]; 2] = [&[b'a'; 3000], &[b'b'; 10]];
    set(&mut served.client(), b"user.a", values[0], 0);
    std::thread::scope(|scope| {
        for value in values {
            let served = &served;
            scope.spawn(move || {
                let mut client = served.client();
                (0..300).for_each(|_| assert_eq!(set(&mut client, b"user.a", value, 0), None));
            });
        }
        // Complete, with the size that was announced.
        let mut client = served.client();
        for _ in 0..600 {
            let value = get(&mut client, b"user.a").unwrap();
            assert!(values.contains(&&value[..]), "{} bytes", value.len());
        }
    });
}

#[test]
fn only_one_of_racing_uses_gets_the_fid() {
    let served = Served::new();
    served.write("file", b"");
    let mut client = served.client();
    let create = |name| Request::Xattrcreate { fid: 1, name, size: 4, flags: 0 };
    for _ in 0..500 {
        client.walk(0, 1, "file");
        let mut bytes = Vec::new();
        let racing = [create(b"user.a"), Request::Lopen { fid: 1, flags: 2 }, create(b"user.b")];
        for (tag, request) in (10..).zip(&racing) {
            request.encode(tag, &mut bytes);
        }
        client.send_raw(&bytes);
        let answers: Vec<_> = racing.iter().map(|_| client.receive().unwrap()).collect();
        let taken: Vec<_> = answers.iter().filter(|answer| answer.errno().is_none()).collect();
        let busy = answers.iter().filter(|answer| answer.errno() == Some(Errno::BUSY.raw_os_error())).count();
        assert_eq!((taken.len(), busy), (1, 2), "{answers:?}");
        client.write(1, 0, b"1234");
        let list = Request::Xattrwalk { fid: 1, new_fid: 2, name: b"" };
        // A value that is being written has no attributes of its own.
        assert_eq!(client.ask(&list).errno().is_none(), taken[0].tag == 11);
        client.clunk(1);
        let _ = client.ask(&Request::Clunk { fid: 2 });
    }
}
