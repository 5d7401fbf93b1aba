//! `Tflush`, `Tlock` and `Tgetlock`: which request waits for which.

use std::fs::{self, File};
use std::sync::{Arc, Condvar, Mutex};

use crate::support::{Client, Served, lock_request, lock_status, range, server_of};
use inarch_ninep::NinepOptions;
use inarch_ninep::wire::{LockRange, Reply, Request, lock};
use inarch_vfs::{
    Changes, Context, FileSystem, HandleId, HostDirectory, HostOptions, MemoryFiles, NodeId, Overlay, not_supported,
    passes_on,
};
use rustix::fs::{FlockOperation, fcntl_lock};
use rustix::io::Errno;
use vm_memory::VolatileSlice;

/// Two clients that have a file open.
fn two(served: &Served) -> (Client, Client) {
    served.write("file", b"content");
    let mut both = [served.client(), served.client()];
    for client in &mut both {
        client.walk(0, 1, "file");
        client.open(1, 2);
    }
    let [first, second] = both;
    (first, second)
}

fn all(process: u32) -> LockRange<'static> {
    range(lock::EXCLUSIVE, 0, 0, process)
}

fn unlock(process: u32) -> LockRange<'static> {
    range(lock::UNLOCK, 0, 0, process)
}

#[test]
fn a_flush_of_nothing_is_answered_at_once() {
    let served = Served::new();
    let mut client = served.client();
    client.getattr(0);
    for old_tag in [1, 55, 0xffff] {
        client.send(60, &Request::Flush { old_tag });
        assert_eq!(client.receive().unwrap().reply(), Reply::Flush);
    }
    // Of itself.
    client.send(60, &Request::Flush { old_tag: 60 });
    assert_eq!(client.receive().unwrap().reply(), Reply::Flush);
}

#[test]
fn one_who_waits_for_a_lock_gets_it_when_it_is_free() {
    let served = Served::new();
    let (mut first, mut second) = two(&served);
    assert_eq!(lock_status(&first.ok(&lock_request(1, all(7), false))), lock::SUCCESS);
    assert_eq!(lock_status(&second.ok(&lock_request(1, all(7), false))), lock::BLOCKED);
    second.send(40, &lock_request(1, all(7), true));
    assert!(second.is_silent());
    // Its connection continues meanwhile.
    second.getattr(1);
    first.ok(&lock_request(1, unlock(7), false));
    let message = second.receive().unwrap();
    assert_eq!((message.tag, lock_status(&message)), (40, lock::SUCCESS));
}

#[test]
fn a_flushed_lock_is_never_taken_and_its_tag_is_free() {
    let served = Served::new();
    let (mut first, mut second) = two(&served);
    first.ok(&lock_request(1, all(7), false));
    for _ in 0..50 {
        second.send(40, &lock_request(1, all(8), true));
        second.send(41, &Request::Flush { old_tag: 40 });
        assert_eq!(second.receive().unwrap().tag, 41);
        second.send(40, &Request::Getattr { fid: 1, mask: 0 });
        let message = second.receive().unwrap();
        assert!(matches!((message.tag, message.reply()), (40, Reply::Getattr(_))));
    }
    first.ok(&lock_request(1, unlock(7), false));
    assert!(second.is_silent());
    assert_eq!(lock_status(&first.ok(&lock_request(1, all(9), false))), lock::SUCCESS);
}

#[test]
fn flushes_of_flushes_and_several_of_one_are_answered_in_order() {
    let served = Served::new();
    let (mut first, mut second) = two(&served);
    first.ok(&lock_request(1, all(7), false));
    second.send(40, &lock_request(1, all(8), true));
    assert!(second.is_silent());
    for (tag, old_tag) in [(41, 40), (42, 41), (43, 40), (44, 42)] {
        second.send(tag, &Request::Flush { old_tag });
        assert_eq!(second.receive().unwrap().tag, tag);
    }
    // Whichever ends first, the request or its flush, the reply to the flush never comes first.
    for round in 0..200u16 {
        second.send(1, &Request::Read { fid: 1, offset: 0, count: 100 });
        second.send(2, &Request::Flush { old_tag: 1 });
        let tags = [second.receive().unwrap().tag, second.receive().unwrap().tag];
        assert_eq!(tags, [1, 2], "round {round}");
    }
}

#[test]
fn a_tag_in_use_is_not_used_again() {
    let served = Served::new();
    let (mut first, mut second) = two(&served);
    first.ok(&lock_request(1, all(7), false));
    second.send(40, &lock_request(1, all(8), true));
    second.send(40, &Request::Getattr { fid: 1, mask: 0 });
    assert_eq!(second.receive(), None);
}

#[test]
fn locks_end_with_their_fid_and_with_their_connection() {
    let served = Served::new();
    let (mut first, mut second) = two(&served);
    first.ok(&lock_request(1, all(7), false));
    second.send(40, &lock_request(1, all(8), true));
    assert!(second.is_silent());
    first.clunk(1);
    assert_eq!(lock_status(&second.receive().unwrap()), lock::SUCCESS);
    first.walk(0, 1, "file");
    first.open(1, 2);
    first.send(40, &lock_request(1, all(7), true));
    assert!(first.is_silent());
    second.end().unwrap();
    assert_eq!(lock_status(&first.receive().unwrap()), lock::SUCCESS);
}

#[test]
fn locks_are_of_ranges_and_of_processes() {
    let served = Served::new();
    let (mut first, mut second) = two(&served);
    first.ok(&lock_request(1, range(lock::EXCLUSIVE, 10, 10, 7), false));
    first.ok(&lock_request(1, range(lock::UNLOCK, 13, 2, 7), false));
    for (start, length, status) in [(0, 10, 0), (0, 11, 1), (13, 2, 0), (12, 1, 1), (15, 1, 1), (20, 0, 0), (19, 0, 1)]
    {
        let wanted = range(lock::SHARED, start, length, 7);
        assert_eq!(lock_status(&second.ok(&lock_request(1, wanted, false))), status, "{start} {length}");
        second.ok(&lock_request(1, unlock(7), false));
    }
    // Another process of the same machine.
    assert_eq!(lock_status(&first.ok(&lock_request(1, range(lock::SHARED, 10, 1, 8), false))), lock::BLOCKED);
    let found = second.ok(&Request::Getlock { fid: 1, range: range(lock::SHARED, 0, 0, 7) });
    let Reply::Getlock(found) = found.reply() else { panic!("{found:?}") };
    assert_eq!((found.kind, found.start, found.length), (lock::EXCLUSIVE, 10, 3));
    // Linux sends the kind "none" when it means any.
    let any = second.ok(&Request::Getlock { fid: 1, range: range(lock::UNLOCK, 0, 0, 7) });
    assert!(matches!(any.reply(), Reply::Getlock(LockRange { kind: lock::EXCLUSIVE, start: 10, length: 3, .. })));
    let none = second.ok(&Request::Getlock { fid: 1, range: range(lock::UNLOCK, 100, 1, 7) });
    assert!(matches!(none.reply(), Reply::Getlock(LockRange { kind: lock::UNLOCK, start: 100, length: 1, .. })));
    let none = second.ok(&Request::Getlock { fid: 1, range: range(lock::EXCLUSIVE, 100, 1, 7) });
    assert!(matches!(none.reply(), Reply::Getlock(LockRange { kind: lock::UNLOCK, .. })));
}

#[test]
fn who_only_reads_keeps_no_program_of_the_host_from_reading() {
    for changes in [Changes::Host, Changes::Guest] {
        let served = Served::of_host(HostOptions { locks: true, changes, ..HostOptions::default() });
        served.write("file", b"content");
        let mut client = served.client();
        let host = File::options().read(true).write(true).open(served.path("file")).unwrap();
        for (flags, host_reads) in [(0, true), (2, false)] {
            client.walk(0, 1, "file");
            client.open(1, flags);
            assert_eq!(lock_status(&client.ok(&lock_request(1, all(7), false))), lock::SUCCESS);
            let reads = fcntl_lock(&host, FlockOperation::NonBlockingLockShared);
            assert_eq!(reads.is_ok(), host_reads, "{changes:?} {flags}");
            fcntl_lock(&host, FlockOperation::Unlock).unwrap();
            fcntl_lock(&host, FlockOperation::NonBlockingLockExclusive).unwrap_err();
            client.clunk(1);
            fcntl_lock(&host, FlockOperation::NonBlockingLockExclusive).unwrap();
            fcntl_lock(&host, FlockOperation::Unlock).unwrap();
        }
    }
}

#[test]
fn locks_that_make_no_sense_are_refused() {
    let served = Served::new();
    let (mut client, _other) = two(&served);
    let invalid = Errno::INVAL.raw_os_error();
    for wanted in [
        range(3, 0, 0, 1),
        range(lock::SHARED, u64::MAX, 1, 1),
        range(lock::SHARED, 5, u64::MAX, 1),
        range(lock::SHARED, 1 << 63, 0, 1),
    ] {
        assert_eq!(client.fails(&lock_request(1, wanted, false)), invalid, "{wanted:?}");
    }
    assert_eq!(client.fails(&Request::Lock { fid: 1, range: all(1), flags: 8 }), invalid);
    assert_eq!(client.fails(&lock_request(0, all(1), false)), Errno::BADF.raw_os_error());
}

#[test]
fn only_so_many_wait_for_locks() {
    let served = Served::with(NinepOptions { waiting_locks: 3, ..NinepOptions::default() });
    let (mut first, mut second) = two(&served);
    first.ok(&lock_request(1, all(7), false));
    for tag in 1..=4 {
        second.send(tag, &lock_request(1, all(tag.into()), true));
    }
    // They run in parallel, so any may be the one for which there is no room.
    assert_eq!(lock_status(&second.receive().unwrap()), lock::BLOCKED);
    assert!(second.is_silent());
    // A client that disconnects while others of its requests wait leaves nothing.
    second.end().unwrap();
    first.ok(&lock_request(1, unlock(7), false));
}

#[test]
fn one_flushed_among_a_hundred_leaves_the_others() {
    let served = Served::new();
    served.write("file", &[b'x'; 4096]);
    let mut client = served.client();
    client.walk(0, 1, "file");
    client.open(1, 0);
    for round in 0..20u16 {
        let flushed = 1 + round * 5;
        let mut bytes = Vec::new();
        for tag in 1..=100 {
            Request::Read { fid: 1, offset: 0, count: 4096 }.encode(tag, &mut bytes);
        }
        Request::Flush { old_tag: flushed }.encode(200, &mut bytes);
        client.send_raw(&bytes);
        let mut seen = Vec::new();
        while !seen.contains(&200) || seen.len() < 100 {
            seen.push(client.receive().unwrap().tag);
        }
        // Its reply, if any, came before that of its flush.
        if let Some(answered) = seen.iter().position(|tag| *tag == flushed) {
            assert!(answered < seen.iter().position(|tag| *tag == 200).unwrap(), "{seen:?}");
        }
        if seen.len() == 100 && !seen.contains(&flushed) {
            assert!((1..=100).filter(|tag| *tag != flushed).all(|tag| seen.contains(&tag)), "{seen:?}");
        } else if seen.len() == 100 {
            seen.push(client.receive().unwrap().tag);
        }
        seen.sort_unstable();
        seen.dedup();
        assert!(seen.len() >= 100, "{seen:?}");
    }
}

/// A file system whose content can be read when the gate is open.
struct Gated {
    below: HostDirectory,
    gate: Arc<Gate>,
}

/// A gate that holds up reads until it is open.
#[derive(Default)]
struct Gate {
    /// `(has_reader, is_open)`
    state: Mutex<(bool, bool)>,
    changed: Condvar,
}

impl Gate {
    fn change(&self, change: impl FnOnce(&mut (bool, bool))) {
        change(&mut self.state.lock().unwrap());
        self.changed.notify_all();
    }

    fn wait(&self, until: impl Fn((bool, bool)) -> bool) {
        drop(self.changed.wait_while(self.state.lock().unwrap(), |state| !until(*state)).unwrap());
    }
}

impl FileSystem for Gated {
    fn read(
        &self,
        context: &Context<'_>,
        node: NodeId,
        handle: HandleId,
        offset: u64,
        out: &[VolatileSlice<'_>],
    ) -> Result<usize, Errno> {
        self.gate.change(|state| state.0 = true);
        self.gate.wait(|(_, is_open)| is_open);
        self.below.read(context, node, handle, offset, out)
    }

    not_supported! { host_file }
    passes_on! {
        below: lookup, absence_valid, is_contested, parent, forget, disconnected, attributes, peek_attributes, set_attributes,
        read_link, make_node, make_directory, make_symlink, link, unlink, remove_directory, rename, open, create,
        create_unnamed, write, copy_range, flush, fsync, sync, fallocate, seek, release, open_directory, read_directory,
        release_directory, get_xattr, list_xattrs, set_xattr, remove_xattr, test_lock, set_lock, statistics, interrupted
    }
}

#[test]
fn a_copy_to_the_upper_layer_holds_up_no_other_request() {
    for request in [Request::Lopen { fid: 1, flags: 2 }, Request::Link { directory: 0, fid: 1, name: b"link" }] {
        let directory = tempfile::tempdir().unwrap();
        fs::write(directory.path().join("file"), vec![b'x'; 3 << 20]).unwrap();
        let gate = Arc::new(Gate::default());
        let below = HostDirectory::new(directory.path(), HostOptions::default()).unwrap();
        let lower = Gated { below, gate: Arc::clone(&gate) };
        let overlay = Overlay::new(Arc::new(lower), Arc::new(MemoryFiles::new(16 << 20)), true).unwrap();
        let options = NinepOptions { copies_up: true, ..NinepOptions::default() };
        let server = Arc::new(server_of(Arc::new(overlay), options));
        let mut client = Client::of(&server);
        client.version(1 << 20);
        client.attach(0, 0);
        client.walk(0, 1, "file");
        client.send(40, &request);
        gate.wait(|(has_reader, _)| has_reader);
        client.getattr(0);
        // The flush is read, and ends the copy after a piece.
        client.send(41, &Request::Flush { old_tag: 40 });
        client.getattr(0);
        gate.change(|state| state.1 = true);
        while client.receive().unwrap().tag != 41 {}
        client.getattr(1);
    }
}
