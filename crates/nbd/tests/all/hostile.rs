//! Hostile clients get errors or the end of the connection, never a panic, a hang or unbounded memory.

use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::support::*;
use inarch_nbd::{ConnectionError, Event, Listener, NbdOptions, NbdServer};
use inarch_server::{Pending, StopHandle};

/// All messages of a well-behaved client, from its first byte.
fn conversation() -> Vec<u8> {
    [
        3u32.to_be_bytes().to_vec(),
        option(OPT_LIST, b""),
        option(OPT_STRUCTURED_REPLY, b""),
        option(OPT_SET_META_CONTEXT, &context("disk", &["base:allocation"])),
        option(OPT_GO, b"\0\0\0\x04disk\0\x01\0\x03"),
        request(0, READ, 1, 0, 4096),
        request(FUA, WRITE, 2, 8192, 5),
        b"bytes".to_vec(),
        request(0, BLOCK_STATUS, 3, 0, 1 << 20),
        request(0, WRITE_ZEROES, 4, 0, 4096),
        request(0, TRIM, 5, 4096, 4096),
        request(0, CACHE, 6, 0, 4096),
        request(0, FLUSH, 7, 0, 0),
        request(0, DISC, 8, 0, 0),
    ]
    .concat()
}

/// Sends `bytes`, closes that direction, and reads to the end.
fn say(disk: &Arc<Disk>, bytes: &[u8]) -> Result<(), ConnectionError> {
    let (mut ours, theirs) = UnixStream::pair().unwrap();
    let options = NbdOptions { name: "disk".into(), ..NbdOptions::default() };
    let server = NbdServer::new(Arc::new(Pending::ready(Arc::clone(disk))), options);
    let served = thread::spawn(move || server.serve_stream(theirs));
    // The server may hang up in the middle of what we say.
    let _ = ours.write_all(bytes);
    let _ = ours.shutdown(Shutdown::Write);
    ours.set_read_timeout(Some(LONG)).unwrap();
    let _ = std::io::copy(&mut ours, &mut std::io::sink());
    served.join().expect("no panic")
}

#[test]
fn a_conversation_cut_anywhere_ends() {
    let disk = Arc::new(Disk::new());
    let whole = conversation();
    say(&disk, &whole).unwrap();
    for end in 0..whole.len() {
        match say(&disk, &whole[..end]) {
            Ok(()) | Err(ConnectionError::Cut) => {}
            Err(error) => panic!("cut at {end}: {error}"),
        }
    }
}

#[test]
fn every_byte_may_be_another() {
    let disk = Arc::new(Disk::new());
    let whole = conversation();
    for at in 0..whole.len() {
        for flip in [0x01, 0x80, 0xff] {
            let mut bytes = whole.clone();
            bytes[at] ^= flip;
            // Whatever the result, it ends.
            let _ = say(&disk, &bytes);
        }
    }
}

#[test]
fn lengths_are_not_believed() {
    let disk = Arc::new(Disk::new());
    let header = |number: u32, length: u32| {
        [&3u32.to_be_bytes()[..], b"IHAVEOPT", &number.to_be_bytes(), &length.to_be_bytes()].concat()
    };
    for number in [OPT_EXPORT_NAME, OPT_LIST, OPT_GO, OPT_SET_META_CONTEXT, 12345] {
        let ended = say(&disk, &header(number, u32::MAX));
        assert!(matches!(ended, Err(ConnectionError::Protocol(_))), "{ended:?}");
        let ended = say(&disk, &header(number, 1 << 20));
        assert!(matches!(ended, Err(ConnectionError::Cut)), "{ended:?}");
    }
    // A write of 4 GiB of which a little comes.
    let write = [request(0, WRITE, 1, 0, u32::MAX), vec![1; 100_000]].concat();
    let bytes = [&3u32.to_be_bytes()[..], &option(OPT_GO, b"\0\0\0\0\0\0"), &write].concat();
    assert!(matches!(say(&disk, &bytes), Err(ConnectionError::Cut)));
}

#[test]
fn garbage_ends_the_connection() {
    let disk = Arc::new(Disk::new());
    let go = [&3u32.to_be_bytes()[..], &option(OPT_GO, b"\0\0\0\0\0\0")].concat();
    for bytes in [
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n".to_vec(),
        vec![0xff; 4096],
        [&3u32.to_be_bytes()[..], &[0; 4096]].concat(),
        [&go[..], &[0; 4096]].concat(),
    ] {
        let ended = say(&disk, &bytes);
        assert!(matches!(ended, Err(ConnectionError::Protocol(_))), "{ended:?}");
    }
    let endless = option(OPT_LIST, b"").repeat(10_000);
    assert!(say(&disk, &[&3u32.to_be_bytes()[..], &endless].concat()).is_err(), "options without end");
}

#[test]
fn a_half_closed_client_gets_its_answers() {
    let disk = Arc::new(Disk::with_data(0, SIZE));
    let mut client = Client::ready(&disk);
    for cookie in 0..50 {
        client.request(0, READ, cookie, 0, 65536);
    }
    client.stream.shutdown(Shutdown::Write).unwrap();
    for _ in 0..50 {
        assert_eq!(client.chunk().payload.len(), 65536 + 8);
    }
    assert!(client.is_cut());
    client.end().unwrap();
}

/// A timeout for what must happen.
const LONG: Duration = Duration::from_secs(60);

/// A listening server, and its events.
fn listening(dir: &std::path::Path, connections: usize) -> (StopHandle, Arc<AtomicUsize>, thread::JoinHandle<()>) {
    let listener = Listener::Unix(UnixListener::bind(dir.join("socket")).unwrap());
    let (stop, refused) = (StopHandle::new().unwrap(), Arc::new(AtomicUsize::new(0)));
    let device = Arc::new(Pending::ready(Arc::new(Disk::with_data(0, SIZE))));
    let options = NbdOptions { connections, ..NbdOptions::default() };
    let (count, stopped) = (Arc::clone(&refused), stop.clone());
    let server = NbdServer::new(device, options).on_event(move |event| {
        if matches!(event, Event::TooManyClients(_)) {
            count.fetch_add(1, Ordering::Relaxed);
        }
    });
    let served = thread::spawn(move || server.serve_listener(&listener, &stopped).unwrap());
    (stop, refused, served)
}

#[test]
fn clients_are_counted_and_those_that_stay_silent_do_not_keep_the_server() {
    let dir = tempfile::tempdir().unwrap();
    let (stop, refused, served) = listening(dir.path(), 3);
    let connect = || {
        let mut stream = UnixStream::connect(dir.path().join("socket")).unwrap();
        stream.set_read_timeout(Some(LONG)).unwrap();
        let greeted = stream.read_exact(&mut [0; 18]).is_ok();
        (stream, greeted)
    };
    let go = [&3u32.to_be_bytes()[..], &option(OPT_GO, b"\0\0\0\0\0\0")].concat();
    let choose = |stream: &mut UnixStream| {
        stream.write_all(&go).unwrap();
        stream.read_exact(&mut [0; 20]).unwrap();
    };
    let mut first: Vec<_> = (0..3).map(|_| connect()).collect();
    assert!(first.iter().all(|(_, greeted)| *greeted));
    // The oldest that has chosen nothing has to go for a fourth, but not those that have.
    choose(&mut first[0].0);
    let mut fourth = connect();
    assert!(fourth.1);
    assert_eq!(first[1].0.read(&mut [0]).unwrap(), 0);
    choose(&mut first[2].0);
    choose(&mut fourth.0);
    assert!(!connect().1, "a fifth is turned away");
    assert_eq!(refused.load(Ordering::Relaxed), 2);
    drop((first, fourth));
    let deadline = Instant::now() + LONG;
    let mut stream = loop {
        match connect() {
            (stream, true) => break stream,
            _ => assert!(Instant::now() < deadline, "the places are not given back"),
        }
    };
    // A client that reads no answers, so that its connection is full of them.
    stream.write_all(&go).unwrap();
    stream.set_nonblocking(true).unwrap();
    let reads = request(0, READ, 1, 0, 32 << 20).repeat(1000);
    let _ = stream.write(&reads);
    // It has begun to answer.
    let deadline = Instant::now() + LONG;
    while stream.read(&mut [0; 20]).is_err() {
        assert!(Instant::now() < deadline, "nothing is answered");
        thread::yield_now();
    }
    stop.stop();
    while !served.is_finished() {
        assert!(Instant::now() < deadline, "the end waits for a client");
        thread::sleep(Duration::from_millis(5));
    }
    served.join().unwrap();
}
