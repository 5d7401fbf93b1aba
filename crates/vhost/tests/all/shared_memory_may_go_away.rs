//! A front end that shares less memory than it announces, or truncates it while it is served, loses its own connection
//! and no other.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use crate::common::disk::MemoryDisk;
use crate::common::*;
use inarch_vfs::{FileSystem, HostDirectory, HostOptions};
use inarch_vhost::blk::{BlkOptions, BlkServer};
use inarch_vhost::fs::{FsOptions, FsServer};
use inarch_vhost::vsock::VsockServer;
use inarch_vhost::{Pending, ServeError};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use vhost::vhost_user::{VhostUserFrontend, VhostUserProtocolFeatures};
use vhost::{VhostBackend, VhostUserMemoryRegionInfo};
use vm_memory::{GuestMemoryBackend, GuestMemoryRegion};

/// A timeout for the end of a connection.
const LONG: Duration = Duration::from_secs(60);

type Serving = JoinHandle<Result<(), ServeError>>;

/// A device that serves any number of front ends.
trait Device {
    fn serve(&self) -> (UnixStream, Serving);
    fn front_end(&self, stream: UnixStream) -> FrontEnd;
    /// The queue for requests, and the number of queues.
    fn queues(&self) -> (usize, u16);
}

struct Blk(Arc<BlkServer<MemoryDisk>>);

impl Blk {
    fn new() -> Blk {
        let disk = MemoryDisk::numbered(64);
        let options = BlkOptions { queues: 1, ..disk.options() };
        Blk(Arc::new(BlkServer::new(Arc::new(Pending::ready(Arc::new(disk))), options)))
    }
}

impl Device for Blk {
    fn serve(&self) -> (UnixStream, Serving) {
        let server = Arc::clone(&self.0);
        let (stream, ours) = UnixStream::pair().unwrap();
        (stream, thread::spawn(move || server.serve_stream(ours)))
    }

    fn front_end(&self, stream: UnixStream) -> FrontEnd {
        FrontEnd::negotiate(stream, DRIVER_FEATURES)
    }

    fn queues(&self) -> (usize, u16) {
        (0, 1)
    }
}

struct Fs {
    server: Arc<FsServer>,
    _directory: tempfile::TempDir,
}

impl Fs {
    fn new() -> Fs {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().to_owned();
        let open = move || {
            let opened = HostDirectory::new(&path, HostOptions::default());
            opened.map(|opened| Arc::new(opened) as Arc<dyn FileSystem>).map_err(io::Error::other)
        };
        let options = FsOptions::default();
        Fs { server: Arc::new(FsServer::new(open, options)), _directory: directory }
    }
}

impl Device for Fs {
    fn serve(&self) -> (UnixStream, Serving) {
        let server = Arc::clone(&self.server);
        let (stream, ours) = UnixStream::pair().unwrap();
        (stream, thread::spawn(move || server.serve_stream(ours)))
    }

    fn front_end(&self, stream: UnixStream) -> FrontEnd {
        let features = VERSION_1 | EVENT_IDX | INDIRECT_DESC | PROTOCOL_FEATURES;
        FrontEnd::negotiate_protocol(stream, features, VhostUserProtocolFeatures::empty())
    }

    fn queues(&self) -> (usize, u16) {
        (1, 2)
    }
}

struct Vsock(Arc<VsockServer>);

impl Device for Vsock {
    fn serve(&self) -> (UnixStream, Serving) {
        let server = Arc::clone(&self.0);
        let (stream, ours) = UnixStream::pair().unwrap();
        (stream, thread::spawn(move || server.serve_stream(ours)))
    }

    fn front_end(&self, stream: UnixStream) -> FrontEnd {
        FrontEnd::negotiate(stream, VERSION_1 | EVENT_IDX | INDIRECT_DESC | PROTOCOL_FEATURES)
    }

    fn queues(&self) -> (usize, u16) {
        (1, 2)
    }
}

fn every_device(test: impl Fn(&dyn Device)) {
    test(&Blk::new());
    test(&Fs::new());
    test(&Vsock(Arc::new(VsockServer::new(|_| None))));
}

fn ends(serving: Serving) -> Result<(), ServeError> {
    let deadline = Instant::now() + LONG;
    while !serving.is_finished() {
        assert!(Instant::now() < deadline, "the connection did not end");
        thread::sleep(Duration::from_millis(1));
    }
    serving.join().unwrap()
}

fn loses_its_memory(serving: Serving) {
    let ended = ends(serving);
    assert!(matches!(ended, Err(ServeError::MemoryLost)), "{ended:?}");
}

/// Checks that another front end of the device gets its chains back.
fn serves_another(device: &dyn Device) {
    let (stream, serving) = device.serve();
    let (queue, count) = device.queues();
    let mut front_end = device.front_end(stream).with_queues(count, 64);
    // Invalid for all of the devices.
    assert_eq!(front_end.queues[queue].run_chain(&[readable(BUFFERS, 16)]), 0);
    drop(front_end);
    ends(serving).unwrap();
}

fn file(size: u64) -> File {
    let file = memfd_create("guest", MemfdFlags::CLOEXEC).unwrap();
    ftruncate(&file, size).unwrap();
    file.into()
}

/// Truncates the file of the region that begins at `start`.
fn cut(front_end: &FrontEnd, start: u64, size: u64) {
    let region = front_end.memory.iter().find(|region| region.start_addr().0 == start).unwrap();
    region.file_offset().unwrap().file().set_len(size).unwrap();
}

#[test]
fn memory_shorter_than_announced_is_refused() {
    every_device(|device| {
        for (size, offset, announced) in
            [(0, 0, REGION), (REGION - 1, 0, REGION), (REGION, 4096, REGION), (REGION, 1 << 50, 4096)]
        {
            for add in [false, true] {
                let (stream, serving) = device.serve();
                let mut front_end = device.front_end(stream);
                let file = file(size);
                let region = VhostUserMemoryRegionInfo {
                    guest_phys_addr: 1 << 40,
                    memory_size: announced,
                    userspace_addr: 1 << 42,
                    mmap_offset: offset,
                    mmap_handle: file.as_raw_fd(),
                };
                let answer = match add {
                    true => front_end.control.add_mem_region(&region).map(drop),
                    false => front_end.control.set_mem_table(&[region]).map(drop),
                };
                assert!(answer.is_err(), "{announced} bytes at {offset} of {size}");
                let ended = ends(serving).unwrap_err().to_string();
                let reason = format!("a memory region of {announced} bytes at {offset} in a file of {size} bytes");
                assert!(ended.contains(&reason), "{ended}");
            }
        }
        serves_another(device);
    });
}

#[test]
fn a_part_of_a_file_that_is_long_enough_is_taken() {
    every_device(|device| {
        let (stream, serving) = device.serve();
        let mut front_end = device.front_end(stream);
        let file = file(3 * REGION);
        let region = VhostUserMemoryRegionInfo {
            guest_phys_addr: 1 << 40,
            memory_size: REGION,
            userspace_addr: 1 << 42,
            mmap_offset: 2 * REGION,
            mmap_handle: file.as_raw_fd(),
        };
        front_end.control.add_mem_region(&region).unwrap();
        front_end.control.remove_mem_region(&region).unwrap();
        drop(front_end);
        ends(serving).unwrap();
    });
}

#[test]
fn rings_that_go_away_end_the_connection() {
    every_device(|device| {
        let (stream, serving) = device.serve();
        let (_, count) = device.queues();
        let front_end = device.front_end(stream).with_queues(count, 64);
        cut(&front_end, 0, 0);
        for queue in &front_end.queues {
            queue.kick();
        }
        loses_its_memory(serving);
        serves_another(device);
    });
}

#[test]
fn rings_that_are_gone_when_they_are_set_up_end_the_connection() {
    every_device(|device| {
        let (stream, serving) = device.serve();
        let front_end = device.front_end(stream);
        cut(&front_end, 0, 0);
        // Its messages are answered until the server looks for the rings.
        let setting_up = thread::spawn(move || front_end.with_queues(1, 64));
        loses_its_memory(serving);
        assert!(setting_up.join().is_err());
        serves_another(device);
    });
}

#[test]
fn buffers_that_go_away_end_the_connection() {
    // Each part of a request that a device reads by itself, in memory that is half gone.
    every_device(|device| {
        let (stream, serving) = device.serve();
        let (queue, count) = device.queues();
        let mut front_end = device.front_end(stream).with_queues(count, 64);
        cut(&front_end, REGION, REGION / 2);
        let gone = REGION + REGION / 2;
        let driver = &mut front_end.queues[queue];
        driver.put_chain(driver.table(), 0, &[readable(gone, 64), writable(gone + 4096, 4096)]);
        driver.offer(0);
        driver.kick();
        loses_its_memory(serving);
        serves_another(device);
    });
}

#[test]
fn one_front_ends_memory_is_not_anothers() {
    every_device(|device| {
        let (stream, others) = device.serve();
        let (queue, count) = device.queues();
        let mut other = device.front_end(stream).with_queues(count, 64);
        for _ in 0..20 {
            let (stream, serving) = device.serve();
            let front_end = device.front_end(stream).with_queues(count, 64);
            cut(&front_end, 0, 0);
            front_end.queues[queue].kick();
            loses_its_memory(serving);
            assert_eq!(other.queues[queue].run_chain(&[readable(BUFFERS, 16)]), 0);
        }
        drop(other);
        ends(others).unwrap();
    });
}
