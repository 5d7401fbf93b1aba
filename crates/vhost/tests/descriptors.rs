//! Alone in its process, so that every open descriptor is the server's or the front end's.

#[path = "all/common/mod.rs"]
mod common;

use std::fs;
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use common::disk::MemoryDisk;
use common::*;
use inarch_vhost::Pending;
use inarch_vhost::blk::{BlkOptions, BlkServer};

fn open_descriptors() -> usize {
    fs::read_dir("/proc/self/fd").unwrap().count()
}

#[test]
fn connections_leave_no_descriptors_behind() {
    let disk = Arc::new(MemoryDisk::numbered(64));
    let options = BlkOptions { queues: 4, ..disk.options() };
    let server = BlkServer::new(Arc::new(Pending::ready(disk)), options);
    let before = open_descriptors();
    for _ in 0..20 {
        let (theirs, ours) = UnixStream::pair().unwrap();
        std::thread::scope(|scope| {
            let serving = scope.spawn(|| server.serve_stream(ours));
            drop(FrontEnd::start(theirs, DRIVER_FEATURES, 4, 64));
            serving.join().unwrap().unwrap();
        });
    }
    assert_eq!(open_descriptors(), before);
}
