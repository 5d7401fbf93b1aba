//! The negotiation follows the protocol's text.

use std::io::{ErrorKind, Read, Write};
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use crate::support::*;
use inarch_nbd::{ConnectionError, NbdOptions};
use inarch_server::Pending;

const HAS_FLAGS: u16 = 1;
const READ_ONLY: u16 = 2;
const MULTI_CONN: u16 = 1 << 8;
const SEND_DF: u16 = 1 << 7;
const WRITABLE: u16 = 1 << 3 | 1 << 5 | 1 << 6 | 1 << 11;

fn export_info(replies: &[(u32, Vec<u8>)]) -> (u64, u16) {
    let info = replies.iter().find(|(kind, data)| *kind == REP_INFO && data[..2] == [0, 0]).expect("export info");
    (u64::from_be_bytes(info.1[2..10].try_into().unwrap()), u16::from_be_bytes(info.1[10..12].try_into().unwrap()))
}

#[test]
fn an_export_is_listed_and_described_and_chosen() {
    let disk = Arc::new(Disk::new());
    let mut client = Client::connect(&disk, 3);
    let listed = client.option(OPT_LIST, b"");
    assert_eq!(listed, [(REP_SERVER, b"\0\0\0\x04disk".to_vec()), (REP_ACK, vec![])]);
    let described = client.option(OPT_INFO, b"\0\0\0\x04disk\0\x03\0\x01\0\x02\0\x03");
    assert_eq!(described[0], (REP_INFO, b"\0\x01disk".to_vec()));
    assert_eq!(described[1], (REP_INFO, b"\0\x02a test".to_vec()));
    assert_eq!(described[2], (REP_INFO, b"\0\x03\0\0\0\x01\0\0\x10\0\x02\0\0\0".to_vec()));
    let (size, flags) = export_info(&described);
    assert_eq!(size, SIZE as u64, "the content's size, not the capacity");
    assert_eq!(flags & (HAS_FLAGS | READ_ONLY | MULTI_CONN | WRITABLE), HAS_FLAGS | MULTI_CONN | WRITABLE);
    assert_eq!(flags & SEND_DF, 0, "no structured replies yet");
    assert_eq!(client.option(OPT_STRUCTURED_REPLY, b""), [(REP_ACK, vec![])]);
    let chosen = client.option(OPT_GO, b"\0\0\0\0\0\0");
    assert_eq!(export_info(&chosen).1 & SEND_DF, SEND_DF);
    client.request(0, DISC, 0, 0, 0);
    assert!(client.is_cut());
    client.end().unwrap();
}

#[test]
fn a_read_only_export_says_so() {
    let disk = Arc::new(Disk { read_only: true, ..Disk::new() });
    let mut client = Client::connect(&disk, 3);
    let (_, flags) = export_info(&client.option(OPT_GO, b"\0\0\0\0\0\0"));
    assert_eq!(flags & (READ_ONLY | WRITABLE), READ_ONLY);
    client.end().unwrap();
}

#[test]
fn the_old_way_to_choose_has_its_padding_unless_it_is_not_wanted() {
    let disk = Arc::new(Disk::new());
    for (flags, padding) in [(1, 124), (3, 0)] {
        let mut client = Client::connect(&disk, flags);
        client.put(&option(OPT_EXPORT_NAME, b"disk"));
        assert_eq!(client.take_u64(), SIZE as u64);
        assert_eq!(client.take_u16() & HAS_FLAGS, HAS_FLAGS);
        assert_eq!(client.take(padding), vec![0; padding]);
        assert_eq!(client.simply(0, FLUSH, 0, 0), 0);
        client.end().unwrap();
    }
    let mut client = Client::connect(&disk, 3);
    client.put(&option(OPT_EXPORT_NAME, b"another"));
    assert!(client.is_cut(), "there is no other way to say no");
    client.end().unwrap();
}

#[test]
fn what_makes_no_sense_is_answered_by_the_right_error() {
    let disk = Arc::new(Disk::new());
    let mut client = Client::connect(&disk, 3);
    let error = |client: &mut Client, number, data: &[u8]| client.option(number, data).last().unwrap().0;
    assert_eq!(error(&mut client, OPT_STARTTLS, b""), ERR_UNSUP);
    assert_eq!(error(&mut client, 11, b""), ERR_UNSUP);
    assert_eq!(error(&mut client, 0xffff_ffff, b"what?"), ERR_UNSUP);
    assert_eq!(error(&mut client, OPT_LIST, b"x"), ERR_INVALID);
    assert_eq!(error(&mut client, OPT_GO, b"\0\0\0\x05other\0\0"), ERR_UNKNOWN);
    assert_eq!(error(&mut client, OPT_INFO, b"\0\0\0\x04dis"), ERR_INVALID);
    assert_eq!(error(&mut client, OPT_STRUCTURED_REPLY, b"x"), ERR_INVALID);
    let contexts = context("disk", &["base:allocation"]);
    assert_eq!(error(&mut client, OPT_SET_META_CONTEXT, &contexts), ERR_INVALID, "structured replies come first");
    assert_eq!(error(&mut client, OPT_GO, &vec![0; 65 << 10]), ERR_TOO_BIG);
    // After all that it still works.
    assert_eq!(error(&mut client, OPT_GO, b"\0\0\0\0\0\0"), REP_ACK);
    client.end().unwrap();
}

#[test]
fn metadata_contexts_are_listed_and_chosen() {
    let disk = Arc::new(Disk::new());
    let mut client = Client::connect(&disk, 3);
    client.option(OPT_STRUCTURED_REPLY, b"");
    let ours = (REP_META_CONTEXT, b"\0\0\0\x01base:allocation".to_vec());
    let all = [ours, (REP_ACK, vec![])];
    for queries in [&[][..], &["base:"], &["x:y", "base:allocation"]] {
        assert_eq!(client.option(OPT_LIST_META_CONTEXT, &context("disk", queries)), all);
    }
    assert_eq!(client.option(OPT_LIST_META_CONTEXT, &context("disk", &["x:"])), all[1..]);
    assert_eq!(client.option(OPT_SET_META_CONTEXT, &context("disk", &["x:y", "base:allocation"])), all);
    assert_eq!(client.option(OPT_SET_META_CONTEXT, &context("disk", &[])), all[1..], "the last choice counts");
    assert_eq!(client.option(OPT_SET_META_CONTEXT, &context("no", &["base:allocation"])), [(ERR_UNKNOWN, vec![])]);
    client.option(OPT_GO, b"\0\0\0\0\0\0");
    let chunks = client.chunks(0, BLOCK_STATUS, 0, 4096);
    assert_eq!((chunks.len(), chunks[0].kind), (1, 0x8001), "nothing was chosen");
    client.end().unwrap();
}

#[test]
fn an_abort_is_acknowledged() {
    let mut client = Client::connect(&Arc::new(Disk::new()), 3);
    assert_eq!(client.option(OPT_ABORT, b""), [(REP_ACK, vec![])]);
    assert!(client.is_cut());
    client.end().unwrap();
}

#[test]
fn whoever_wants_to_know_the_size_waits_for_the_device() {
    let pending = Arc::new(Pending::new());
    let mut client = Client::connect_pending(Arc::clone(&pending), 3);
    assert_eq!(client.option(OPT_LIST, b"").last(), Some(&(REP_ACK, vec![])), "names are known");
    let maker = thread::spawn({
        let pending = Arc::clone(&pending);
        move || {
            thread::sleep(Duration::from_millis(100));
            assert!(pending.get().is_none());
            pending.set(Ok(Arc::new(Disk::new())));
        }
    });
    assert_eq!(export_info(&client.option(OPT_GO, b"\0\0\0\0\0\0")).0, SIZE as u64);
    assert!(pending.get().is_some());
    maker.join().unwrap();
    client.end().unwrap();

    let pending = Arc::new(Pending::new());
    pending.set(Err("there is nothing".to_owned()));
    let mut client = Client::connect_pending(pending, 3);
    assert_eq!(client.option(OPT_GO, b"\0\0\0\0\0\0"), [(ERR_SHUTDOWN, vec![])]);
    client.end().unwrap();
}

#[test]
fn a_client_that_chooses_nothing_is_disconnected_in_time() {
    let device = Arc::new(Pending::ready(Arc::new(Disk::new())));
    let options = NbdOptions { name: "disk".into(), negotiation: Duration::from_millis(200), ..NbdOptions::default() };
    let mut client = Client::connect_with(device, options, 3);
    // A byte now and then is no choice: the end comes while they go on, of data that is long enough for all the time there is.
    client.stream.set_read_timeout(Some(Duration::from_millis(30))).unwrap();
    client.put(&option(OPT_LIST, &[0; 4096])[..16]);
    let mut sent = 0;
    let end = loop {
        assert!(sent < 4000, "it is still listened to");
        // What comes after the end has nowhere to go.
        let _ = client.stream.write_all(&[0]);
        sent += 1;
        match client.stream.read(&mut [0]) {
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
            end => break end,
        }
    };
    assert!(
        matches!(&end, Ok(0)) || end.as_ref().is_err_and(|error| error.kind() == ErrorKind::ConnectionReset),
        "{end:?}"
    );
    assert!(matches!(client.end(), Err(ConnectionError::Stalled(_))));
}
