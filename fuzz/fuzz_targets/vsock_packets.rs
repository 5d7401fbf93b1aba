//! A guest sends any packets by a virtio socket device, and receives with any buffers, while the host's ends of its connections
//! are read, written and closed.
//!
//! The target checks that every chain is returned, that each connection's bytes arrive in order in both directions, and that the
//! guest gets no more than its credit.

#![no_main]

use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex};

use arbitrary::Arbitrary;
use inarch_vhost::vsock::{RECEIVE_QUEUE, SEND_QUEUE, VirtioVsock};
use inarch_vhost::{GuestMemory, Served, Stop, VirtioDevice, process_available};
use libfuzzer_sys::fuzz_target;
use virtio_queue::{Queue, QueueT};
use vm_memory::{Bytes, GuestAddress, GuestRegionMmap};

const MEMORY: u64 = 1 << 18;
const QUEUES: [u64; 2] = [0, 0x4000];
const BUFFERS: u64 = 0x8000;
const RECEIVED: u64 = 0x20000;
const HEADER: u32 = 44;
const SIZE: u16 = 16;

#[derive(Arbitrary, Debug)]
enum Step {
    /// A packet: ports of few, so that connections meet; `cut` is what it says to have more data than there is.
    Send {
        from: u8,
        to: u8,
        op: u16,
        kind: u8,
        flags: u8,
        room: u16,
        taken: u32,
        data: u16,
        cut: u8,
        strange_cid: bool,
    },
    /// The guest has taken all that it got, and has so much room.
    Take {
        from: u8,
        room: u16,
    },
    Receive {
        buffers: [u16; 2],
    },
    Write {
        from: u8,
        bytes: u16,
    },
    Read {
        from: u8,
        bytes: u16,
    },
    Close {
        from: u8,
    },
}

/// The state of a connection since it was accepted.
#[derive(Default)]
struct Known {
    /// Bytes that the guest has sent, that the host has read, that the host has written, and that the guest got.
    there: [usize; 2],
    back: [usize; 2],
    /// Whether the guest knows that it is there: what it gets before that is the rest of an earlier one.
    granted: bool,
    /// Up to which byte the guest has ever had room.
    most: i64,
    end: Option<UnixStream>,
}

/// Up to which byte a guest that says this has room, where so many were sent at most. To have taken more is a contradiction, which
/// is no room at all; it counts modulo 2^32, so that it may also have taken less than nothing.
fn limit(sent: usize, room: u16, taken: u32) -> i64 {
    let taken = i64::from(taken as i32);
    if taken <= sent as i64 { taken + i64::from(room) } else { 0 }
}

struct Rig {
    memory: GuestMemory,
    queues: [Queue; 2],
    offered: [u16; 2],
    device: VirtioVsock,
    ends: Arc<Mutex<Vec<UnixStream>>>,
}

fn byte(at: usize) -> u8 {
    (at % 251) as u8
}

fn rig() -> Rig {
    let region = GuestRegionMmap::from_range(GuestAddress(0), MEMORY as usize, None).unwrap();
    let memory = GuestMemory::from_regions(vec![region.into()]).unwrap();
    let queues = QUEUES.map(|base| {
        let mut queue = Queue::new(SIZE).unwrap();
        queue.try_set_desc_table_address(GuestAddress(base)).unwrap();
        queue.try_set_avail_ring_address(GuestAddress(base + 0x1000)).unwrap();
        queue.try_set_used_ring_address(GuestAddress(base + 0x2000)).unwrap();
        queue.set_ready(true);
        queue
    });
    let ends = Arc::new(Mutex::new(Vec::new()));
    let open = {
        let ends = Arc::clone(&ends);
        move |port| {
            let (ours, theirs) = UnixStream::pair().ok().filter(|_| port < 2)?;
            ours.set_nonblocking(true).unwrap();
            ends.lock().unwrap().push(ours);
            Some(theirs.into())
        }
    };
    Rig { memory, queues, offered: [0; 2], device: VirtioVsock::new(Arc::new(open)).unwrap(), ends }
}

impl Rig {
    /// Has the device handle one chain of these buffers; false if it is not ready for it, and keeps it.
    fn run(&mut self, queue: u16, chain: &[(u64, u32, bool)], offer: bool) -> bool {
        let index = usize::from(queue);
        let base = QUEUES[index];
        for (i, (address, length, writable)) in chain.iter().enumerate() {
            let at = base + 16 * i as u64;
            let flags = u16::from(i + 1 < chain.len()) | if *writable { 2 } else { 0 };
            self.memory.write_obj(*address, GuestAddress(at)).unwrap();
            self.memory.write_obj(*length, GuestAddress(at + 8)).unwrap();
            self.memory.write_obj(flags, GuestAddress(at + 12)).unwrap();
            self.memory.write_obj(i as u16 + 1, GuestAddress(at + 14)).unwrap();
        }
        if offer {
            let slot = base + 0x1004 + 2 * u64::from(self.offered[index] % SIZE);
            self.memory.write_obj(0u16, GuestAddress(slot)).unwrap();
            self.offered[index] = self.offered[index].wrapping_add(1);
            self.memory.write_obj(self.offered[index], GuestAddress(base + 0x1002)).unwrap();
        }
        let stop = Stop::new().unwrap();
        for _ in 0..2 {
            let served = process_available(queue, &mut self.queues[index], &self.memory, &self.device, &stop, || {});
            if served.unwrap() == Served::All {
                assert_eq!(self.queues[index].next_used(), self.queues[index].next_avail());
                return true;
            }
            // Looks what is ready, and does not wait.
            let looks = Stop::new().unwrap();
            looks.set();
            self.device.wait_until_ready(queue, &looks);
        }
        false
    }

    /// The length of what was received last.
    fn received(&self) -> u32 {
        let slot = u64::from(self.queues[0].next_used().wrapping_sub(1) % SIZE);
        self.memory.read_obj(GuestAddress(QUEUES[0] + 0x2004 + 8 * slot + 4)).unwrap()
    }
}

fuzz_target!(|steps: Vec<Step>| {
    let mut rig = rig();
    let mut known: BTreeMap<(u32, u32), Known> = BTreeMap::new();
    let (mut sends_wait, mut receives_wait) = (false, false);
    for step in steps.into_iter().take(200) {
        match step {
            Step::Send { from, to, op, kind, flags, room, taken, data, cut, strange_cid } if !sends_wait => {
                let ports = (u32::from(from % 2), u32::from(to % 3));
                let (op, data) = (op % 9, if op % 9 == 5 { u32::from(data) } else { 0 });
                let sent = known.get(&ports).map_or(0, |known| known.there[0]);
                let bytes: Vec<u8> = (sent..sent + data as usize).map(byte).collect();
                let mut header = Vec::new();
                header.extend((if strange_cid { 9u64 } else { 3 }).to_le_bytes());
                header.extend(2u64.to_le_bytes());
                for field in [ports.0, ports.1, data + u32::from(cut % 2)] {
                    header.extend(field.to_le_bytes());
                }
                header.extend((if kind == 7 { 2u16 } else { 1 }).to_le_bytes());
                header.extend(op.to_le_bytes());
                for field in [u32::from(flags % 4), u32::from(room), taken] {
                    header.extend(field.to_le_bytes());
                }
                rig.memory.write_slice(&header, GuestAddress(BUFFERS)).unwrap();
                rig.memory.write_slice(&bytes, GuestAddress(BUFFERS + 64)).unwrap();
                let mut chain = vec![(BUFFERS, HEADER, false)];
                if data > 0 {
                    chain.push((BUFFERS + 64, data, false));
                }
                sends_wait = !rig.run(SEND_QUEUE, &chain, true);
                if sends_wait || strange_cid || cut % 2 == 1 {
                    // Not taken, or not yet: what is known of the connection ends here.
                    if sends_wait {
                        known.remove(&ports);
                    }
                    continue;
                }
                if let Some(end) = rig.ends.lock().unwrap().pop() {
                    let most = limit(0, room, taken);
                    known.insert(ports, Known { end: Some(end), most, ..Known::default() });
                } else if let Some(known) = known.get_mut(&ports) {
                    known.there[0] += data as usize;
                    known.most = known.most.max(limit(known.back[0], room, taken));
                }
            }
            Step::Take { from, room } if !sends_wait => {
                let Some((ports, known)) = known.iter_mut().find(|(ports, _)| ports.0 == u32::from(from % 2)) else {
                    continue;
                };
                let taken = known.back[1] as u32;
                known.most = known.most.max(limit(known.back[0], room, taken));
                let mut header = Vec::new();
                header.extend(3u64.to_le_bytes());
                header.extend(2u64.to_le_bytes());
                for field in [ports.0, ports.1, 0, 1 | 6 << 16, 0, u32::from(room), taken] {
                    header.extend(field.to_le_bytes());
                }
                rig.memory.write_slice(&header, GuestAddress(BUFFERS)).unwrap();
                sends_wait = !rig.run(SEND_QUEUE, &[(BUFFERS, HEADER, false)], true);
            }
            Step::Receive { buffers } => {
                let chain =
                    [(RECEIVED, u32::from(buffers[0]), true), (RECEIVED + 0x10000, u32::from(buffers[1]), true)];
                receives_wait = !rig.run(RECEIVE_QUEUE, &chain, !receives_wait);
                let length = rig.received();
                if receives_wait || length == 0 {
                    continue;
                }
                assert!((HEADER..=u32::from(buffers[0]) + u32::from(buffers[1])).contains(&length));
                let mut packet = vec![0; u32::from(buffers[0]).min(length) as usize];
                rig.memory.read_slice(&mut packet, GuestAddress(RECEIVED)).unwrap();
                let mut rest = vec![0; length as usize - packet.len()];
                rig.memory.read_slice(&mut rest, GuestAddress(RECEIVED + 0x10000)).unwrap();
                packet.extend(rest);
                let four = |at: usize| u32::from_le_bytes(packet[at..at + 4].try_into().unwrap());
                assert_eq!((packet[0], packet[8], four(24)), (2, 3, length - HEADER));
                let ports = (four(20), four(16));
                let op = four(28) >> 16;
                if op == 3 || op == 4 {
                    known.remove(&ports);
                } else if let (2, Some(known)) = (op, known.get_mut(&ports)) {
                    known.granted = true;
                } else if op == 5
                    && let Some(known) = known.get_mut(&ports).filter(|known| known.granted)
                {
                    for byte_of in &packet[HEADER as usize..] {
                        assert_eq!(*byte_of, byte(known.back[1]));
                        known.back[1] += 1;
                    }
                    assert!(known.back[1] <= known.back[0] && known.back[1] as i64 <= known.most);
                }
                // The queue of packets may have moved on.
                if sends_wait {
                    sends_wait = !rig.run(SEND_QUEUE, &[], false);
                    rig.ends.lock().unwrap().clear();
                }
            }
            Step::Write { from, bytes } => {
                let Some(known) = known.values_mut().nth(usize::from(from % 4)) else { continue };
                let data: Vec<u8> = (known.back[0]..known.back[0] + usize::from(bytes)).map(byte).collect();
                if let Some(Ok(written)) = known.end.as_mut().map(|end| end.write(&data)) {
                    known.back[0] += written;
                }
            }
            Step::Read { from, bytes } => {
                let Some(known) = known.values_mut().nth(usize::from(from % 4)) else { continue };
                let mut data = vec![0; usize::from(bytes)];
                let read = known.end.as_mut().and_then(|end| end.read(&mut data).ok()).unwrap_or(0);
                for byte_of in &data[..read] {
                    assert_eq!(*byte_of, byte(known.there[1]));
                    known.there[1] += 1;
                }
                assert!(known.there[1] <= known.there[0]);
            }
            Step::Close { from } => {
                if let Some(known) = known.values_mut().nth(usize::from(from % 4)) {
                    known.end = None;
                }
            }
            _ => {}
        }
    }
});
