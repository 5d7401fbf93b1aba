//! What happens to clients when the server is told to end.

use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use crate::support::{Client, Served, lock_request, lock_status, range};
use inarch_ninep::wire::{Request, lock};
use inarch_ninep::{Event, Listener, NinepOptions};
use inarch_server::{Clients, Seat, StopHandle};

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
        let serve = move || server.serve(&OwnedFd::from(theirs), &|| stopped.load(Ordering::Acquire), &Seat::alone());
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

/// A server on a Unix socket, and what it says of its clients.
struct Crowd {
    served: Served,
    socket: std::path::PathBuf,
    stop: StopHandle,
    turned_away: Arc<AtomicUsize>,
    lost: Arc<AtomicUsize>,
    serving: thread::JoinHandle<std::io::Result<()>>,
}

impl Crowd {
    fn new(connections: usize, negotiation: Duration) -> Crowd {
        let mut served = Served::with(NinepOptions { connections, negotiation, ..NinepOptions::default() });
        let counters = [Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0))];
        let [turned_away, lost] = counters.clone();
        let server = Arc::into_inner(served.server).unwrap().on_event(move |event| {
            let counter = if matches!(event, Event::TooManyClients(_)) { &turned_away } else { &lost };
            counter.fetch_add(1, Ordering::AcqRel);
        });
        served.server = Arc::new(server);
        let socket = served.path("socket");
        let listener = Listener::Unix(UnixListener::bind(&socket).unwrap());
        let stop = StopHandle::new().unwrap();
        let (server, ending) = (Arc::clone(&served.server), stop.clone());
        let serving = thread::spawn(move || server.serve_listener(&listener, &ending));
        let [turned_away, lost] = counters;
        Crowd { served, socket, stop, turned_away, lost, serving }
    }

    fn connect(&self) -> Client {
        Client::on(UnixStream::connect(&self.socket).unwrap())
    }

    /// Waits for the report of a lost connection. It comes after the client has seen the end of its socket, and not at
    /// all once the server is stopped.
    fn wait_for_a_loss(&self) {
        let begun = Instant::now();
        while self.lost.load(Ordering::Acquire) == 0 {
            assert!(begun.elapsed() < PATIENCE, "no lost connection is reported");
            thread::sleep(Duration::from_millis(10));
        }
    }

    fn end(self) {
        self.stop.stop();
        self.serving.join().unwrap().unwrap();
        drop(self.served);
    }
}

#[test]
fn a_client_may_be_silent_without_limit_before_its_first_byte() {
    let crowd = Crowd::new(4, Duration::from_secs(1));
    let mut client = crowd.connect();
    // Longer than a client may take once it has begun.
    assert!((0..8).all(|_| client.is_silent()));
    client.version(1 << 20);
    client.attach(0, 0);
    // One that has begun may not stop in the middle of its first message.
    let mut begun = crowd.connect();
    begun.send_raw(&[19, 0, 0]);
    assert!(begun.receive().is_none());
    crowd.wait_for_a_loss();
    client.walk(0, 1, "");
    let (turned_away, lost) = (Arc::clone(&crowd.turned_away), Arc::clone(&crowd.lost));
    drop(client);
    crowd.end();
    assert_eq!((turned_away.load(Ordering::Acquire), lost.load(Ordering::Acquire)), (0, 1));
}

#[test]
fn silent_clients_take_nobody_elses_place() {
    const PLACES: usize = 3;
    let crowd = Crowd::new(PLACES, PATIENCE);
    let mut first = crowd.connect();
    first.version(1 << 20);
    first.attach(0, 0);
    let mut silent: Vec<Client> = (0..200).map(|_| crowd.connect()).collect();
    let mut last = crowd.connect();
    last.version(1 << 20);
    last.attach(0, 0);
    // The oldest had to go; the newest still has its place beside the two that have spoken.
    let newest = silent.pop().unwrap();
    for mut gone in silent {
        assert!(gone.receive().is_none());
    }
    assert_eq!(crowd.turned_away.load(Ordering::Acquire), 200 - 1);
    // Those that have spoken keep their places.
    let mut newest = newest;
    newest.version(1 << 20);
    assert!(crowd.connect().receive().is_none());
    first.walk(0, 1, "");
    last.walk(0, 1, "");
    assert_eq!(crowd.lost.load(Ordering::Acquire), 0);
    crowd.end();
}
