//! What happens to clients when the server is told to end.

use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use crate::support::{Client, Served, lock_request, lock_status, range};
use inarch_ninep::Listener;
use inarch_ninep::wire::{Request, lock};
use inarch_server::{Clients, StopHandle};

/// How long a server may take to end.
const PATIENCE: Duration = Duration::from_secs(60);

#[test]
fn what_was_answered_is_done_and_nobody_is_left_waiting() {
    let served = Served::new();
    served.write("file", b"");
    let socket = served.path("socket");
    let listener = Listener::Unix(UnixListener::bind(&socket).unwrap());
    let stop = StopHandle::new().unwrap();
    let (server, ending) = (Arc::clone(&served.server), stop.clone());
    let (ended, has_ended) = mpsc::channel();
    let serving = thread::spawn(move || {
        let result = server.serve_listener(&listener, &ending);
        ended.send(()).unwrap();
        result
    });
    let connect = || {
        let mut client = Client::on(UnixStream::connect(&socket).unwrap());
        client.version(1 << 20);
        client.attach(0, 0);
        client.walk(0, 1, "file");
        client.open(1, 2);
        client
    };
    // One has a lock, a second waits for it, a third is idle, a fourth is in the middle of a message, a fifth writes.
    let mut first = connect();
    first.ok(&lock_request(1, range(lock::EXCLUSIVE, 0, 0, 1), false));
    let mut second = connect();
    second.send(9, &lock_request(1, range(lock::EXCLUSIVE, 0, 0, 2), true));
    let mut third = connect();
    let mut fourth = connect();
    fourth.send_raw(&[100, 0, 0, 0, 118, 1, 0, 1, 0]);
    let mut writer = connect();
    let writing = thread::spawn(move || {
        for number in 0..u64::MAX {
            let mut bytes = Vec::new();
            Request::Write { fid: 1, offset: number * 8, data: &number.to_le_bytes() }.encode(1, &mut bytes);
            writer.send_raw(&bytes);
            if writer.receive().is_none() {
                return number;
            }
        }
        u64::MAX
    });
    let begun = Instant::now();
    while fs::metadata(served.path("file")).unwrap().len() < 800 {
        assert!(begun.elapsed() < PATIENCE, "nothing is written");
        thread::yield_now();
    }
    stop.stop();
    has_ended.recv_timeout(PATIENCE).expect("the server does not end");
    serving.join().unwrap().unwrap();
    let answered = writing.join().unwrap();
    let written = fs::read(served.path("file")).unwrap();
    assert!(answered > 0);
    for number in 0..answered {
        let at = number as usize * 8;
        assert_eq!(written[at..at + 8], number.to_le_bytes(), "{number} of {answered}");
    }
    for client in [&mut first, &mut second, &mut third, &mut fourth] {
        assert!(client.receive().is_none());
    }
    // Locks are released, and the file is closed everywhere.
    let file = served.path("file");
    let links = fs::read_dir("/proc/self/fd").unwrap().flatten().filter_map(|fd| fs::read_link(fd.path()).ok());
    assert_eq!(links.filter(|link| *link == file).count(), 0);
}

#[test]
fn a_lock_that_the_servers_end_made_free_is_given_to_nobody() {
    let served = Served::new();
    served.write("file", b"");
    let stopped = Arc::new(AtomicBool::new(false));
    let connect = || {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let (server, stopped) = (Arc::clone(&served.server), Arc::clone(&stopped));
        let serve =
            move || server.serve(&OwnedFd::from(theirs), &|| stopped.load(Ordering::Acquire), &AtomicUsize::new(0));
        let mut client = Client::on(ours);
        client.server = Some(thread::spawn(serve));
        client.version(1 << 20);
        client.attach(0, 0);
        client.walk(0, 1, "file");
        client.open(1, 2);
        client
    };
    let (mut first, mut second, mut third) = (connect(), connect(), connect());
    first.ok(&lock_request(1, range(lock::EXCLUSIVE, 0, 0, 1), false));
    second.send(9, &lock_request(1, range(lock::EXCLUSIVE, 0, 0, 2), true));
    // Connections are ended one after the other; here the owner of the lock is the first.
    stopped.store(true, Ordering::Release);
    first.end().unwrap();
    assert!(second.is_silent());
    let asked = third.ok(&lock_request(1, range(lock::SHARED, 0, 0, 3), false));
    assert_eq!(lock_status(&asked), lock::BLOCKED);
    second.end().unwrap();
    third.end().unwrap();
}
