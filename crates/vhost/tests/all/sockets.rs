//! A guest's connections to the host carry every byte in order, buffer a bounded number of them, and end when either
//! side ends. An invalid packet ends at most one connection.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::Duration;

use crate::common::*;
use inarch_vhost::vsock::{RECEIVE_QUEUE, SEND_QUEUE, VsockServer};
use vhost::VhostBackend;

const REQUEST: u16 = 1;
const RESPONSE: u16 = 2;
const RST: u16 = 3;
const SHUTDOWN: u16 = 4;
const RW: u16 = 5;
const CREDIT_UPDATE: u16 = 6;
const CREDIT_REQUEST: u16 = 7;

/// The context identifiers of guest and host.
const GUEST: u64 = 3;
const HOST: u64 = 2;

/// The guest's port of most connections, and the host's port at which they are accepted.
const FROM: u32 = 1234;
const TO: u32 = 564;

const HEADER: u32 = 44;
const SENT: u64 = BUFFERS;
const RECEIVED: u64 = BUFFERS + (1 << 20);

/// A moment in which an error would show.
const MOMENT: Duration = Duration::from_millis(50);

/// The size of the guest's buffer that it announces.
const ROOM: u32 = 1 << 18;

#[derive(Clone, Debug, PartialEq, Eq)]
struct Packet {
    from: (u64, u32),
    to: (u64, u32),
    kind: u16,
    op: u16,
    flags: u32,
    room: u32,
    taken: u32,
    data: Vec<u8>,
}

/// A packet of the guest's default connection.
fn packet(op: u16, data: &[u8]) -> Packet {
    Packet { from: (GUEST, FROM), to: (HOST, TO), kind: 1, op, flags: 0, room: ROOM, taken: 0, data: data.to_vec() }
}

impl Packet {
    fn header(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        bytes.extend(self.from.0.to_le_bytes());
        bytes.extend(self.to.0.to_le_bytes());
        bytes.extend(self.from.1.to_le_bytes());
        bytes.extend(self.to.1.to_le_bytes());
        bytes.extend((self.data.len() as u32).to_le_bytes());
        bytes.extend(self.kind.to_le_bytes());
        bytes.extend(self.op.to_le_bytes());
        for field in [self.flags, self.room, self.taken] {
            bytes.extend(field.to_le_bytes());
        }
        assert_eq!(bytes.len(), HEADER as usize);
        bytes
    }

    fn parse(bytes: &[u8]) -> Packet {
        let four = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap());
        let eight = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
        let data = bytes[HEADER as usize..].to_vec();
        assert_eq!(four(24) as usize, data.len());
        Packet {
            from: (eight(0), four(16)),
            to: (eight(8), four(20)),
            kind: four(28) as u16,
            op: (four(28) >> 16) as u16,
            flags: four(32),
            room: four(36),
            taken: four(40),
            data,
        }
    }
}

/// A guest with a device, and the host's ends of its connections.
struct Guest {
    front_end: FrontEnd,
    ends: Receiver<UnixStream>,
    server: thread::JoinHandle<Result<(), inarch_vhost::ServeError>>,
    /// Bytes of its receive buffer, and whether the device has it.
    buffer: u32,
    is_offered: bool,
}

impl Guest {
    /// A guest whose connections to port 564 are accepted.
    fn new() -> Guest {
        let (sender, ends) = mpsc::channel();
        let server = VsockServer::new(move |port| {
            let (ours, theirs) = UnixStream::pair().ok().filter(|_| port == TO)?;
            sender.send(ours).ok()?;
            Some(theirs.into())
        });
        let (front, back) = UnixStream::pair().unwrap();
        let server = thread::spawn(move || server.serve_stream(back));
        let features = VERSION_1 | EVENT_IDX | INDIRECT_DESC | PROTOCOL_FEATURES;
        let front_end = FrontEnd::start(front, features, 2, 64);
        Guest { front_end, ends, server, buffer: 4096, is_offered: false }
    }

    /// A guest with its default connection, and the host's end of that.
    fn connected() -> (Guest, UnixStream) {
        let mut guest = Guest::new();
        let end = guest.connect();
        (guest, end)
    }

    fn connect(&mut self) -> UnixStream {
        self.send(&packet(REQUEST, b""));
        let answer = self.receive();
        assert_eq!((answer.op, answer.from, answer.to, answer.kind), (RESPONSE, (HOST, TO), (GUEST, FROM), 1));
        let end = self.ends.try_recv().unwrap();
        end.set_read_timeout(Some(PATIENCE)).unwrap();
        end
    }

    fn send(&mut self, packet: &Packet) {
        self.front_end.put(SENT, &packet.header());
        self.front_end.put(SENT + 0x100, &packet.data);
        let mut chain = vec![readable(SENT, HEADER)];
        chain.extend((!packet.data.is_empty()).then(|| readable(SENT + 0x100, packet.data.len() as u32)));
        assert_eq!(self.front_end.queues[usize::from(SEND_QUEUE)].run_chain(&chain), 0);
    }

    /// The next packet, if one comes in time.
    fn try_receive(&mut self, patience: Duration) -> Option<Packet> {
        let queue = &mut self.front_end.queues[usize::from(RECEIVE_QUEUE)];
        if !self.is_offered {
            // As in Linux: memory for the header, and more.
            queue.put_chain(queue.table(), 0, &[writable(RECEIVED, HEADER), writable(RECEIVED + 64, self.buffer)]);
            queue.offer(0);
            queue.kick();
            self.is_offered = true;
        }
        let (_, length) = queue.try_take_used(patience)?;
        self.is_offered = false;
        let mut bytes = self.front_end.get(RECEIVED, HEADER as usize);
        bytes.extend(self.front_end.get(RECEIVED + 64, (length - HEADER) as usize));
        Some(Packet::parse(&bytes))
    }

    fn receive(&mut self) -> Packet {
        self.try_receive(PATIENCE).expect("nothing came")
    }

    fn nothing_comes(&mut self) {
        assert_eq!(self.try_receive(MOMENT), None);
    }

    /// Checks that the next packet resets its default connection.
    fn is_refused(&mut self) {
        let answer = self.receive();
        assert_eq!((answer.op, answer.from, answer.to), (RST, (HOST, TO), (GUEST, FROM)));
    }

    /// Checks that the server's connection ends with the front end's.
    fn end(self) {
        let Guest { front_end, server, .. } = self;
        drop(front_end);
        server.join().unwrap().unwrap();
    }
}

/// Bytes that differ from place to place.
fn pattern(length: usize, seed: usize) -> Vec<u8> {
    (0..length).map(|at| ((at * 31 + at / 251 + seed) % 253) as u8).collect()
}

#[test]
fn bytes_go_both_ways_in_order() {
    let (mut guest, mut end) = Guest::connected();
    let mut taken = 0;
    for round in 0..40 {
        let there = pattern(round * 1000 + 1, round);
        guest.send(&Packet { taken, ..packet(RW, &there) });
        let mut got = vec![0; there.len()];
        end.read_exact(&mut got).unwrap();
        assert!(got == there, "round {round}");
        let back = pattern(40_000 - round * 1000, round + 7);
        end.write_all(&back).unwrap();
        let mut got = Vec::new();
        while got.len() < back.len() {
            let part = guest.receive();
            // There may be a credit update, too.
            if part.op == RW {
                taken += part.data.len() as u32;
                got.extend(part.data);
                guest.send(&Packet { taken, ..packet(CREDIT_UPDATE, b"") });
            }
        }
        assert!(got == back, "round {round}");
    }
    guest.end();
}

#[test]
fn what_nobody_reads_is_kept_until_the_room_is_used_up() {
    let (mut guest, mut end) = Guest::connected();
    let mut sent = Vec::new();
    let mut told = 0;
    // Far more than a socket takes.
    loop {
        let is_full = |sent: usize, told: usize| sent + 50_000 > told + (256 << 10);
        // On a busy machine the server takes its time to give more room.
        while let Some(answer) =
            guest.try_receive(Duration::from_millis(if is_full(sent.len(), told) { 2000 } else { 1 }))
        {
            assert_eq!(answer.op, CREDIT_UPDATE);
            told = answer.taken as usize;
        }
        if is_full(sent.len(), told) {
            break;
        }
        let more = pattern(50_000, sent.len());
        guest.send(&packet(RW, &more));
        sent.extend(more);
    }
    assert!((300_000..1_000_000).contains(&sent.len()), "{}", sent.len());
    let mut got = vec![0; sent.len()];
    end.read_exact(&mut got).unwrap();
    assert!(got == sent);
    // There is room again, and the guest learns it.
    let answer = guest.receive();
    assert_eq!((answer.op, answer.room), (CREDIT_UPDATE, 256 << 10));
    assert!(answer.taken as usize > told);
    guest.end();
}

#[test]
fn who_sends_more_than_there_is_room_for_is_cut_off() {
    let (mut guest, mut end) = Guest::connected();
    let mut sent = 0;
    let refused = loop {
        guest.send(&packet(RW, &[b'x'; 60_000]));
        sent += 60_000;
        assert!(sent < 10_000_000);
        match guest.try_receive(Duration::from_millis(1)) {
            Some(answer) if answer.op == RST => break answer,
            Some(answer) => assert_eq!(answer.op, CREDIT_UPDATE),
            None => {}
        }
    };
    assert_eq!(refused.to, (GUEST, FROM));
    let mut got = Vec::new();
    end.read_to_end(&mut got).unwrap();
    assert!(got.len() < sent && got.iter().all(|byte| *byte == b'x'));
    // Only that connection ended. What was sent after its end is refused, too.
    guest.send(&packet(REQUEST, b""));
    let answer = std::iter::repeat_with(|| guest.receive()).find(|answer| answer.op != RST).unwrap();
    assert_eq!((answer.op, answer.to), (RESPONSE, (GUEST, FROM)));
    guest.end();
}

#[test]
fn the_guest_gets_no_more_than_it_has_room_for() {
    let mut guest = Guest::new();
    guest.send(&Packet { room: 10, ..packet(REQUEST, b"") });
    assert_eq!(guest.receive().op, RESPONSE);
    let mut end = guest.ends.try_recv().unwrap();
    end.write_all(&pattern(100, 0)).unwrap();
    assert_eq!(guest.receive().data, pattern(100, 0)[..10]);
    guest.nothing_comes();
    // Still none, because nothing was taken.
    guest.send(&Packet { room: 10, ..packet(CREDIT_UPDATE, b"") });
    guest.nothing_comes();
    guest.send(&Packet { room: 10, taken: 4, ..packet(CREDIT_UPDATE, b"") });
    assert_eq!(guest.receive().data, pattern(100, 0)[10..14]);
    // A guest that has taken more than was sent contradicts itself.
    guest.send(&Packet { room: 10, taken: 5000, ..packet(CREDIT_UPDATE, b"") });
    guest.nothing_comes();
    guest.send(&Packet { room: 1000, taken: 14, ..packet(CREDIT_UPDATE, b"") });
    assert_eq!(guest.receive().data, pattern(100, 0)[14..]);
    guest.end();
}

#[test]
fn data_that_does_not_fit_the_guests_buffer_comes_in_parts() {
    let (mut guest, mut end) = Guest::connected();
    guest.buffer = 7;
    end.write_all(&pattern(40, 3)).unwrap();
    let mut got = Vec::new();
    for _ in 0..6 {
        let part = guest.receive();
        assert_eq!((part.op, part.data.len()), (RW, if got.len() == 35 { 5 } else { 7 }));
        got.extend(part.data);
    }
    assert_eq!(got, pattern(40, 3));
    guest.end();
}

#[test]
fn buffers_without_room_come_back_empty_and_nothing_is_lost() {
    let (mut guest, mut end) = Guest::connected();
    end.write_all(b"kept").unwrap();
    let queue = &mut guest.front_end.queues[usize::from(RECEIVE_QUEUE)];
    for chain in
        [vec![writable(RECEIVED, HEADER - 1)], vec![writable(RECEIVED, HEADER)], vec![readable(RECEIVED, 4096)]]
    {
        queue.put_chain(queue.table(), 0, &chain);
        assert_eq!(queue.run(0), 0, "{chain:?}");
    }
    assert_eq!(guest.receive().data, b"kept");
    guest.end();
}

#[test]
fn what_cannot_be_connected_is_refused() {
    let (mut guest, _end) = Guest::connected();
    let other = |port| Packet { from: (GUEST, port), ..packet(REQUEST, b"") };
    for request in [
        // Nobody listens at the port; the socket type is different; the connection exists already.
        Packet { to: (HOST, TO + 1), ..other(1) },
        Packet { kind: 2, ..other(2) },
        Packet { kind: 0, ..other(3) },
        Packet { from: (GUEST, u32::MAX), to: (HOST, u32::MAX), ..other(4) },
        packet(REQUEST, b""),
    ] {
        guest.send(&request);
        let answer = guest.receive();
        assert_eq!((answer.op, answer.from, answer.to), (RST, request.to, request.from));
    }
    // For another host, or from another guest: ignored.
    for request in [Packet { to: (7, TO), ..other(5) }, Packet { from: (HOST, 6), ..other(6) }] {
        guest.send(&request);
        guest.nothing_comes();
    }
    guest.end();
}

#[test]
fn packets_of_no_connection_are_refused_but_for_refusals() {
    let mut guest = Guest::new();
    for op in [RESPONSE, SHUTDOWN, RW, CREDIT_UPDATE, CREDIT_REQUEST, 0, 8, u16::MAX] {
        guest.send(&packet(op, b"data"));
        guest.is_refused();
    }
    guest.send(&packet(RST, b""));
    guest.nothing_comes();
    // Some operations are invalid within a connection.
    for op in [RESPONSE, 0, 8] {
        let mut end = guest.connect();
        guest.send(&packet(op, b""));
        guest.is_refused();
        assert_eq!(end.read(&mut [0; 9]).unwrap(), 0);
    }
    guest.end();
}

#[test]
fn packets_that_are_cut_short_or_too_long_end_their_connection() {
    let (mut guest, mut end) = Guest::connected();
    for (says, has) in [(65_537, 100), (1, 0), (300_000, 300_000)] {
        let bytes = Packet { data: vec![0; says], ..packet(RW, b"") }.header();
        guest.front_end.put(SENT, &bytes);
        let mut chain = vec![readable(SENT, HEADER)];
        chain.extend((has > 0).then(|| readable(SENT + 0x100, has)));
        assert_eq!(guest.front_end.queues[usize::from(SEND_QUEUE)].run_chain(&chain), 0);
        guest.is_refused();
        assert_eq!(end.read(&mut [0; 9]).unwrap(), 0);
        end = guest.connect();
    }
    guest.end();
}

#[test]
fn what_is_no_packet_is_passed_over() {
    let (mut guest, mut end) = Guest::connected();
    let whole = Packet { data: vec![0; 100], ..packet(RW, b"") };
    guest.front_end.put(SENT, &whole.header());
    let queue = &mut guest.front_end.queues[usize::from(SEND_QUEUE)];
    for chain in [
        vec![readable(SENT, HEADER - 1)],
        vec![readable(SENT, HEADER), readable(u64::MAX - 100, 50)],
        vec![writable(SENT, HEADER), readable(SENT + 0x100, 100)],
    ] {
        assert_eq!(queue.run_chain(&chain), 0, "{chain:?}");
    }
    guest.send(&packet(RW, b"whole"));
    let mut got = [0; 5];
    end.read_exact(&mut got).unwrap();
    assert_eq!(&got, b"whole");
    guest.nothing_comes();
    guest.end();
}

#[test]
fn the_hosts_end_is_told_after_all_its_data() {
    let (mut guest, mut end) = Guest::connected();
    end.write_all(&pattern(10_000, 1)).unwrap();
    drop(end);
    let mut got = Vec::new();
    let last = loop {
        let part = guest.receive();
        if part.op != RW {
            break part;
        }
        got.extend(part.data);
    };
    assert_eq!((last.op, last.flags, got), (SHUTDOWN, 3, pattern(10_000, 1)));
    // The connection no longer exists.
    guest.send(&packet(RW, b"late"));
    guest.is_refused();
    guest.end();
}

#[test]
fn the_guests_end_is_told_after_all_its_data() {
    let (mut guest, mut end) = Guest::connected();
    guest.send(&packet(RW, b"last"));
    guest.send(&Packet { flags: 2, ..packet(SHUTDOWN, b"") });
    let mut got = Vec::new();
    end.read_to_end(&mut got).unwrap();
    assert_eq!(got, b"last");
    // The other direction continues.
    end.write_all(b"answer").unwrap();
    assert_eq!(guest.receive().data, b"answer");
    guest.send(&packet(RW, b"more"));
    guest.is_refused();

    let mut end = guest.connect();
    guest.send(&Packet { flags: 3, ..packet(SHUTDOWN, b"") });
    // Linux waits for that, or for some seconds.
    guest.is_refused();
    assert_eq!(end.read(&mut [0; 9]).unwrap(), 0);

    // Includes what the socket has not accepted yet.
    let mut end = guest.connect();
    for round in 0..4 {
        guest.send(&packet(RW, &pattern(60_000, round)));
    }
    guest.send(&Packet { flags: 3, ..packet(SHUTDOWN, b"") });
    while let Some(answer) = guest.try_receive(MOMENT) {
        assert_eq!(answer.op, CREDIT_UPDATE);
    }
    let mut got = Vec::new();
    end.read_to_end(&mut got).unwrap();
    assert!(got == (0..4).flat_map(|round| pattern(60_000, round)).collect::<Vec<_>>());
    guest.is_refused();

    let mut end = guest.connect();
    guest.send(&packet(RST, b""));
    assert_eq!(end.read(&mut [0; 9]).unwrap(), 0);
    guest.nothing_comes();
    guest.end();
}

#[test]
fn the_host_may_end_one_way_only() {
    let (mut guest, mut end) = Guest::connected();
    end.write_all(b"all of it").unwrap();
    end.shutdown(std::net::Shutdown::Write).unwrap();
    assert_eq!(guest.receive().data, b"all of it");
    let last = guest.receive();
    assert_eq!((last.op, last.flags, last.room), (SHUTDOWN, 2, 256 << 10));
    guest.send(&packet(RW, b"and back"));
    let mut got = [0; 8];
    end.read_exact(&mut got).unwrap();
    assert_eq!(&got, b"and back");
    guest.nothing_comes();
    guest.send(&Packet { flags: 2, ..packet(SHUTDOWN, b"") });
    guest.is_refused();
    assert_eq!(end.read(&mut got).unwrap(), 0);
    guest.end();
}

#[test]
fn a_guest_that_receives_nothing_any_more_learns_that_the_host_is_gone() {
    let (mut guest, end) = Guest::connected();
    guest.send(&Packet { flags: 1, ..packet(SHUTDOWN, b"") });
    guest.send(&packet(RW, b"some"));
    guest.nothing_comes();
    drop(end);
    guest.is_refused();
    guest.end();
}

#[test]
fn the_last_bytes_arrive_though_the_guest_waits_no_longer() {
    let (mut guest, mut end) = Guest::connected();
    let mut sent = Vec::new();
    for round in 0..4 {
        guest.send(&packet(RW, &pattern(60_000, round)));
        sent.extend(pattern(60_000, round));
    }
    guest.send(&Packet { flags: 3, ..packet(SHUTDOWN, b"") });
    guest.send(&packet(RST, b""));
    while let Some(answer) = guest.try_receive(MOMENT) {
        assert_eq!(answer.op, CREDIT_UPDATE);
    }
    let mut got = Vec::new();
    end.read_to_end(&mut got).unwrap();
    assert!(got == sent);
    // The ports are free again.
    let _end = guest.connect();
    guest.end();
}

#[test]
fn who_has_much_to_say_does_not_keep_others_waiting() {
    let (mut guest, mut endless) = Guest::connected();
    let other = Packet { from: (GUEST, FROM + 1), ..packet(REQUEST, b"") };
    guest.send(&other);
    assert_eq!(guest.receive().op, RESPONSE);
    let mut end = guest.ends.try_recv().unwrap();
    guest.send(&Packet { room: u32::MAX, ..packet(CREDIT_UPDATE, b"") });
    thread::spawn(move || while endless.write_all(&[0; 65_536]).is_ok() {});
    (0..50).for_each(|_| drop(guest.receive()));
    end.write_all(b"at last").unwrap();
    let waited = (0..100).position(|_| guest.receive().data == b"at last");
    assert!(waited.is_some());
    guest.end();
}

#[test]
fn queues_that_are_stopped_and_started_go_on() {
    let (mut guest, mut end) = Guest::connected();
    guest.buffer = 3;
    end.write_all(b"abcdefgh").unwrap();
    assert_eq!(guest.receive().data, b"abc");
    for queue in [RECEIVE_QUEUE, SEND_QUEUE] {
        guest.front_end.control.get_vring_base(queue.into()).unwrap();
        guest.front_end.reset_queue(queue.into());
    }
    assert_eq!(guest.receive().data, b"def");
    // While it waits for a packet, too.
    guest.buffer = 4096;
    assert_eq!(guest.receive().data, b"gh");
    guest.nothing_comes();
    guest.front_end.control.get_vring_base(RECEIVE_QUEUE.into()).unwrap();
    guest.front_end.reset_queue(RECEIVE_QUEUE.into());
    guest.is_offered = false;
    end.write_all(b"more").unwrap();
    assert_eq!(guest.receive().data, b"more");
    guest.end();
}

#[test]
fn a_guest_that_asks_is_told_of_room() {
    let (mut guest, mut end) = Guest::connected();
    guest.send(&packet(RW, b"seven b"));
    end.read_exact(&mut [0; 7]).unwrap();
    guest.send(&packet(CREDIT_REQUEST, b""));
    let answer = guest.receive();
    assert_eq!((answer.op, answer.room, answer.taken), (CREDIT_UPDATE, 256 << 10, 7));
    // The credit in that packet counts.
    guest.send(&Packet { room: 0, ..packet(CREDIT_UPDATE, b"") });
    end.write_all(b"x").unwrap();
    guest.nothing_comes();
    guest.send(&Packet { room: 1, ..packet(CREDIT_REQUEST, b"") });
    let mut ops = [guest.receive().op, guest.receive().op];
    ops.sort();
    assert_eq!(ops, [RW, CREDIT_UPDATE]);
    guest.end();
}

#[test]
fn a_guest_that_receives_nothing_is_not_listened_to_for_ever() {
    let mut guest = Guest::new();
    guest.front_end.put(SENT, &packet(CREDIT_REQUEST, b"").header());
    let queue = &mut guest.front_end.queues[usize::from(SEND_QUEUE)];
    queue.put_chain(queue.table(), 0, &[readable(SENT, HEADER)]);
    let mut taken = 0;
    loop {
        queue.offer(0);
        queue.kick();
        if queue.try_take_used(MOMENT).is_none() {
            break;
        }
        taken += 1;
        assert!(taken < 10_000);
    }
    assert!(taken >= 100);
    for _ in 0..taken {
        guest.is_refused();
    }
    // Then it is refused again.
    guest.is_refused();
    guest.nothing_comes();
    guest.end();
}

#[test]
fn connections_beyond_a_bound_are_refused_until_others_end() {
    let mut guest = Guest::new();
    let mut ends = Vec::new();
    let request = |port| Packet { from: (GUEST, port), ..packet(REQUEST, b"") };
    let refused = loop {
        let port = ends.len() as u32;
        guest.send(&request(port));
        match guest.receive().op {
            RESPONSE => ends.push(guest.ends.try_recv().unwrap()),
            RST => break port,
            op => panic!("{op}"),
        }
        assert!(ends.len() < 1000);
    };
    assert!(refused >= 32);
    guest.send(&Packet { op: RST, ..request(0) });
    guest.send(&request(refused));
    assert_eq!(guest.receive().op, RESPONSE);
    guest.end();
}

#[test]
fn all_ends_with_the_machine() {
    let (guest, mut end) = Guest::connected();
    // Both threads wait, one for a packet and one for its driver.
    thread::sleep(MOMENT);
    guest.end();
    assert_eq!(end.read(&mut [0; 9]).unwrap(), 0);
}

#[test]
fn the_guest_learns_its_address() {
    let mut guest = Guest::new();
    assert_eq!(guest.front_end.config(0, 8), GUEST.to_le_bytes());
    guest.end();
}
