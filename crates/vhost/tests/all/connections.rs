//! What front ends may do with their connections, and servers with their sockets.

use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, mpsc};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::common::disk::{MemoryDisk, sector};
use crate::common::*;
use inarch_vhost::blk::{BlkOptions, BlkServer, StopHandle};
use inarch_vhost::{Pending, ServeError};
use rustix::net::sockopt::set_socket_linger;
use vhost::VhostBackend;
use vhost::vhost_user::VhostUserFrontend;
use vmm_sys_util::eventfd::{EFD_NONBLOCK, EventFd};

const HEADER: u64 = BUFFERS;
const STATUS: u64 = BUFFERS + 0x100;
const DATA: u64 = BUFFERS + 0x1000;

/// A moment in which an error would show.
const MOMENT: Duration = Duration::from_millis(50);

/// Puts a read of sector `number` into descriptors 0 to 2 of queue 0.
fn prepare_read(front_end: &mut FrontEnd, number: u64) {
    front_end.put_header(HEADER, 0, number);
    front_end.put(STATUS, &[0xee]);
    let queue = &front_end.queues[0];
    queue.put_chain(queue.table(), 0, &[readable(HEADER, 16), writable(DATA, 512), writable(STATUS, 1)]);
}

fn read(front_end: &mut FrontEnd, number: u64) {
    prepare_read(front_end, number);
    assert_eq!(front_end.queues[0].run(0), 513);
    assert_eq!(front_end.get(DATA, 512), sector(number));
    assert_eq!(front_end.byte(STATUS), 0);
}

fn numbered() -> Arc<MemoryDisk> {
    Arc::new(MemoryDisk::numbered(64))
}

fn socket_path() -> (tempfile::TempDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("socket");
    (directory, path)
}

#[test]
fn a_machine_can_boot_while_the_device_is_in_the_making() {
    let disk = numbered();
    let pending = Arc::new(Pending::new());
    let served = serve(Arc::clone(&pending), BlkOptions { capacity: 1 << 40, ..disk.options() });
    let mut front_end = FrontEnd::start(served.stream, DRIVER_FEATURES, 1, 64);
    assert_eq!(front_end.config(0, 8), (1u64 << 31).to_le_bytes());
    prepare_read(&mut front_end, 5);
    let queue = &mut front_end.queues[0];
    queue.offer(0);
    queue.kick();
    assert_eq!(queue.try_take_used(MOMENT), None);
    pending.set(Ok(disk));
    assert_eq!(queue.take_used(), (0, 513));
    assert_eq!(front_end.get(DATA, 512), sector(5));
}

#[test]
fn requests_fail_when_there_will_be_no_device() {
    let pending = Arc::new(Pending::<MemoryDisk>::new());
    let served = serve(Arc::clone(&pending), numbered().options());
    let mut front_end = FrontEnd::start(served.stream, DRIVER_FEATURES, 1, 64);
    prepare_read(&mut front_end, 5);
    let queue = &mut front_end.queues[0];
    queue.offer(0);
    queue.kick();
    pending.set(Err("the tree vanished".into()));
    assert_eq!(queue.take_used(), (0, 1));
    assert_eq!(front_end.byte(STATUS), 1);
    assert_eq!(pending.wait().err().as_deref(), Some("the tree vanished"));
}

#[test]
fn a_front_end_may_leave_while_its_request_waits_for_the_device() {
    let served = serve(Arc::new(Pending::<MemoryDisk>::new()), numbered().options());
    let mut front_end = FrontEnd::start(served.stream, DRIVER_FEATURES, 1, 64);
    prepare_read(&mut front_end, 5);
    front_end.queues[0].offer(0);
    front_end.queues[0].kick();
    thread::sleep(MOMENT);
    drop(front_end);
    served.thread.join().unwrap().unwrap();
}

#[test]
fn a_request_that_waits_when_its_queue_is_stopped_is_handled_when_it_starts_again() {
    let disk = numbered();
    let pending = Arc::new(Pending::new());
    let served = serve(Arc::clone(&pending), disk.options());
    let mut front_end = FrontEnd::start(served.stream, DRIVER_FEATURES, 1, 64);
    prepare_read(&mut front_end, 6);
    front_end.queues[0].offer(0);
    front_end.queues[0].kick();
    thread::sleep(MOMENT);
    assert_eq!(front_end.control.get_vring_base(0).unwrap(), 0);
    pending.set(Ok(disk));
    front_end.start_queue(0, 0);
    assert_eq!(front_end.queues[0].take_used(), (0, 513));
    assert_eq!(front_end.get(DATA, 512), sector(6));
}

#[test]
fn a_stopped_queue_goes_on_where_it_was() {
    let disk = numbered();
    let served = serve(Arc::new(Pending::ready(Arc::clone(&disk))), disk.options());
    let mut front_end = FrontEnd::start(served.stream, DRIVER_FEATURES, 1, 64);
    for number in 0..10 {
        read(&mut front_end, number);
        let base = front_end.control.get_vring_base(0).unwrap();
        assert_eq!(base, number as u32 + 1);
        // The driver kicks while the ring is stopped: the request is found without the kick.
        front_end.start_queue(0, base as u16);
    }
}

#[test]
fn a_disabled_queue_is_not_served_until_it_is_enabled() {
    let disk = numbered();
    let served = serve(Arc::new(Pending::ready(Arc::clone(&disk))), disk.options());
    let mut front_end = FrontEnd::start(served.stream, DRIVER_FEATURES, 1, 64);
    front_end.control.set_vring_enable(0, false).unwrap();
    prepare_read(&mut front_end, 1);
    front_end.queues[0].offer(0);
    front_end.queues[0].kick();
    assert_eq!(front_end.queues[0].try_take_used(MOMENT), None);
    front_end.control.set_vring_enable(0, true).unwrap();
    assert_eq!(front_end.queues[0].take_used(), (0, 513));
}

#[test]
fn the_interrupt_of_a_running_queue_can_be_replaced() {
    let disk = numbered();
    let served = serve(Arc::new(Pending::ready(Arc::clone(&disk))), disk.options());
    let mut front_end = FrontEnd::start(served.stream, DRIVER_FEATURES & !EVENT_IDX, 1, 64);
    let call = EventFd::new(EFD_NONBLOCK).unwrap();
    front_end.control.set_vring_call(0, &call).unwrap();
    read(&mut front_end, 1);
    wait_for_interrupt(&call);
    assert!(front_end.queues[0].call.read().is_err());
}

/// A front end that unmasks an interrupt may have looked at the masked descriptor before the interrupt came to it.
#[test]
fn an_interrupt_that_went_to_the_replaced_descriptor_is_repeated() {
    let disk = numbered();
    let served = serve(Arc::new(Pending::ready(Arc::clone(&disk))), disk.options());
    let mut front_end = FrontEnd::start(served.stream, DRIVER_FEATURES & !EVENT_IDX, 1, 64);
    let [unused, masked, unmasked] = [(), (), ()].map(|()| EventFd::new(EFD_NONBLOCK).unwrap());
    for call in [&unused, &masked] {
        front_end.control.set_vring_call(0, call).unwrap();
    }
    read(&mut front_end, 1);
    wait_for_interrupt(&masked);
    front_end.control.set_vring_call(0, &unmasked).unwrap();
    wait_for_interrupt(&unmasked);
    // Where none came, none is repeated.
    assert!(unused.read().is_err());
}

fn wait_for_interrupt(call: &EventFd) {
    let deadline = Instant::now() + PATIENCE;
    while call.read().is_err() {
        assert!(Instant::now() < deadline, "no interrupt came");
        thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn memory_can_be_added_and_removed_while_a_queue_runs() {
    let disk = numbered();
    let served = serve(Arc::new(Pending::ready(Arc::clone(&disk))), disk.options());
    let mut front_end = FrontEnd::start(served.stream, DRIVER_FEATURES, 1, 64);
    assert!(front_end.control.get_max_mem_slots().unwrap() >= 32);
    let upper = &regions(&front_end.memory)[1];
    front_end.control.remove_mem_region(upper).unwrap();
    front_end.put_header(HEADER, 0, 2);
    let chain = [readable(HEADER, 16), writable(REGION, 512), writable(STATUS, 1)];
    assert_eq!(front_end.queues[0].run_chain(&chain), 1);
    front_end.control.add_mem_region(upper).unwrap();
    assert_eq!(front_end.queues[0].run_chain(&chain), 513);
    assert_eq!(front_end.get(REGION, 512), sector(2));
}

/// A server of numbered sectors that accepts front ends.
struct Listening {
    _directory: tempfile::TempDir,
    path: PathBuf,
    stop: StopHandle,
    serving: JoinHandle<Result<(), ServeError>>,
}

impl Listening {
    fn start(queues: u16) -> Listening {
        let (directory, path) = socket_path();
        let listener = UnixListener::bind(&path).unwrap();
        let disk = numbered();
        let options = BlkOptions { queues, ..disk.options() };
        let server = BlkServer::new(Arc::new(Pending::ready(disk)), options);
        let stop = StopHandle::new().unwrap();
        let handle = stop.clone();
        let serving = thread::spawn(move || server.serve_listener(listener, &handle));
        Listening { _directory: directory, path, stop, serving }
    }

    fn connect(&self) -> UnixStream {
        UnixStream::connect(&self.path).unwrap()
    }

    fn end(self) {
        self.stop.stop();
        self.serving.join().unwrap().unwrap();
    }
}

/// Closing a socket takes as long as its owner wants.
#[test]
fn a_connection_that_cannot_be_freed_does_not_keep_a_server() {
    let server = Listening::start(1);
    let front_end = server.connect();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let mut lingering = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
    let (unread, _) = listener.accept().unwrap();
    lingering.set_nonblocking(true).unwrap();
    while lingering.write(&[0; 65536]).is_ok() {}
    lingering.set_nonblocking(false).unwrap();
    set_socket_linger(&lingering, Some(Duration::from_secs(30_000))).unwrap();
    // SET_VRING_CALL of queue 0, of version 1, with 8 bytes of payload. The server gets the last copy.
    let message: Vec<u8> = [13, 1, 8, 0, 0].iter().flat_map(|word: &u32| word.to_ne_bytes()).collect();
    send_raw(&front_end, &message, &[lingering.as_fd()]);
    // If the server has closed its copy already, this one is the last.
    let dropping = thread::spawn(move || drop(lingering));
    thread::sleep(MOMENT);
    server.end();
    // Closing the socket no longer blocks.
    drop(unread);
    dropping.join().unwrap();
}

#[test]
fn front_ends_come_and_go() {
    let server = Listening::start(2);
    for number in 0..5 {
        read(&mut FrontEnd::start(server.connect(), DRIVER_FEATURES, 2, 64), number);
    }
    server.end();
}

#[test]
fn stopping_ends_the_connection_that_is_served() {
    let server = Listening::start(1);
    let mut front_end = FrontEnd::start(server.connect(), DRIVER_FEATURES, 1, 64);
    read(&mut front_end, 1);
    server.end();
    assert!(front_end.control.get_features().is_err());
}

#[test]
fn stopping_ends_a_server_that_nobody_has_connected_to() {
    let (_directory, path) = socket_path();
    let disk = numbered();
    let server = BlkServer::new(Arc::new(Pending::ready(Arc::clone(&disk))), disk.options());
    for once in [false, true] {
        let listener = UnixListener::bind(path.with_extension(once.to_string())).unwrap();
        let stop = StopHandle::new().unwrap();
        thread::scope(|scope| {
            let serving = scope.spawn(|| match once {
                true => server.serve_one(listener, &stop),
                false => server.serve_listener(listener, &stop),
            });
            thread::sleep(MOMENT);
            stop.stop();
            serving.join().unwrap().unwrap();
        });
    }
}

#[test]
fn a_server_of_one_machine_ends_with_it() {
    let (_directory, path) = socket_path();
    let listener = UnixListener::bind(&path).unwrap();
    let disk = numbered();
    let server = BlkServer::new(Arc::new(Pending::ready(Arc::clone(&disk))), disk.options());
    let serving = thread::spawn(move || server.serve_one(listener, &StopHandle::new().unwrap()));
    let mut front_end = FrontEnd::start(UnixStream::connect(&path).unwrap(), DRIVER_FEATURES, 1, 64);
    read(&mut front_end, 1);
    drop(front_end);
    serving.join().unwrap().unwrap();
}

#[test]
fn a_front_end_that_talks_nonsense_is_disconnected_and_the_next_one_served() {
    let (_directory, path) = socket_path();
    let listener = UnixListener::bind(&path).unwrap();
    let disk = numbered();
    let (events, reports) = mpsc::channel();
    let events = Mutex::new(events);
    let server = BlkServer::new(Arc::new(Pending::ready(Arc::clone(&disk))), disk.options())
        .on_event(move |event| events.lock().unwrap().send(event.to_string()).unwrap());
    let stop = StopHandle::new().unwrap();
    let handle = stop.clone();
    let serving = thread::spawn(move || server.serve_listener(listener, &handle));
    let mut nonsense = UnixStream::connect(&path).unwrap();
    nonsense.write_all(&[0xff; 64]).unwrap();
    assert!(reports.recv_timeout(PATIENCE).unwrap().starts_with("a front end was disconnected"));
    read(&mut FrontEnd::start(UnixStream::connect(&path).unwrap(), DRIVER_FEATURES, 1, 64), 4);
    stop.stop();
    serving.join().unwrap().unwrap();
}

#[test]
fn what_goes_wrong_is_reported() {
    let disk = Arc::new(MemoryDisk { bad_offset: Some(0), panic_offset: Some(512), ..MemoryDisk::numbered(64) });
    let (events, reports) = mpsc::channel();
    let events = Mutex::new(events);
    let options = disk.options();
    let served = serve_with_events(Arc::new(Pending::ready(disk)), options, move |event| {
        events.lock().unwrap().send(event.to_string()).unwrap();
    });
    let mut front_end = FrontEnd::start(served.stream, DRIVER_FEATURES, 1, 64);
    for (number, report) in [(0, "read of 512 bytes at 0: a bad sector"), (1, "a request on queue 0 panicked")] {
        prepare_read(&mut front_end, number);
        assert_eq!(front_end.queues[0].run(0), 1);
        let event = reports.recv_timeout(PATIENCE).unwrap();
        assert!(event.starts_with(report), "{event}");
    }
    front_end.queues[0].set_avail_index(1000);
    front_end.queues[0].kick();
    assert!(reports.recv_timeout(PATIENCE).unwrap().starts_with("queue 0 is stopped"));
}

#[test]
fn rings_outside_of_memory_are_refused() {
    let disk = numbered();
    let served = serve(Arc::new(Pending::ready(Arc::clone(&disk))), disk.options());
    let front_end = FrontEnd::negotiate(served.stream, DRIVER_FEATURES);
    let config = vhost::VringConfigData {
        queue_max_size: 64,
        queue_size: 64,
        flags: 0,
        desc_table_addr: 0x1000,
        used_ring_addr: 0x2000,
        avail_ring_addr: 0x3000,
        log_addr: None,
    };
    assert!(front_end.control.set_vring_addr(0, &config).is_err());
    assert!(matches!(served.thread.join().unwrap(), Err(ServeError::Protocol(_))));
}

/// Front ends ask for the sizes that they have: QEMU for up to 1024, crosvm for 32768.
#[test]
fn a_queue_has_any_size_that_virtio_allows() {
    let disk = numbered();
    let served = serve(Arc::new(Pending::ready(Arc::clone(&disk))), disk.options());
    let front_end = FrontEnd::negotiate(served.stream, DRIVER_FEATURES);
    for bits in 0..16 {
        front_end.control.set_vring_num(0, 1 << bits).unwrap();
    }
}

#[test]
fn queues_that_are_not_there_and_sizes_that_are_none_are_refused() {
    type Setup = fn(&FrontEnd) -> bool;
    let setups: [Setup; 3] = [
        |front_end| front_end.control.set_vring_num(1, 64).is_err(),
        |front_end| front_end.control.set_vring_num(0, 63).is_err(),
        |front_end| front_end.control.set_vring_kick(9, &EventFd::new(0).unwrap()).is_err(),
    ];
    for setup in setups {
        let disk = numbered();
        let served = serve(Arc::new(Pending::ready(Arc::clone(&disk))), disk.options());
        assert!(setup(&FrontEnd::negotiate(served.stream, DRIVER_FEATURES)));
        assert!(matches!(served.thread.join().unwrap(), Err(ServeError::Protocol(_))));
    }
}
