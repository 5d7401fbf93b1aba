//! Takes a `SET_MEM_TABLE` message that is longer than its regions.
//!
//! The kernel of User-Mode Linux always sends room for two regions, and says in the message how many of them there are
//! (`vhost_user_set_mem_table` of arch/um/drivers/virtio_uml.c); the `vhost` crate refuses that. So we look at a
//! message before the crate reads it. If it is padded, this module receives it, and passes its regions to the
//! connection.

use std::fs::File;
use std::io::{self, IoSliceMut, Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::{Mutex, PoisonError};

use rustix::io::Errno;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recv, recvmsg};
use vhost::vhost_user::message::VhostUserMemoryRegion;
use vhost::vhost_user::{Error, Result, VhostUserBackendReqHandlerMut};
use zerocopy::native_endian::{U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

use crate::connection::Connection;
use crate::device::VirtioDevice;

/// `VHOST_USER_SET_MEM_TABLE`.
const SET_MEM_TABLE: u32 = 5;
/// The version of the protocol, in a header's flags, and their other bits.
const VERSION: u32 = 1;
const REPLY: u32 = 1 << 2;
const NEED_REPLY: u32 = 1 << 3;
/// The most regions of a message (docs/interop/vhost-user.rst).
const MOST_REGIONS: usize = 8;
const REGION: usize = size_of::<WireRegion>();

/// A message's header, and the count of regions, which comes first in the payload.
#[derive(Clone, Copy, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
struct Start {
    request: U32,
    flags: U32,
    size: U32,
    regions: U32,
    padding: U32,
}

const HEADER: usize = 12;
const COUNT: usize = size_of::<Start>() - HEADER;

#[derive(FromBytes, Immutable, KnownLayout)]
#[repr(C)]
struct WireRegion {
    guest_address: U64,
    size: U64,
    user_address: U64,
    offset: U64,
}

impl Start {
    /// The number of regions and the bytes of the payload, if this is a message with room for more regions than it has.
    fn padded(&self) -> Option<(usize, usize)> {
        let (regions, size) = (self.regions.get() as usize, self.size.get() as usize);
        let is_it = self.request.get() == SET_MEM_TABLE && self.flags.get() & (VERSION | REPLY) == VERSION;
        let fits = (1..MOST_REGIONS).contains(&regions) && size <= COUNT + MOST_REGIONS * REGION;
        (is_it && fits && size > COUNT + regions * REGION).then_some((regions, size))
    }
}

/// Waits for the next message on `stream`, and handles it if it is a padded one. Returns whether it was.
///
/// # Errors
/// The front end broke the protocol or is gone, or its memory cannot be mapped.
pub(crate) fn take<D: VirtioDevice>(mut stream: &UnixStream, connection: &Mutex<Connection<D>>) -> Result<bool> {
    let Some((start, regions, size)) = look(stream)? else { return Ok(false) };
    let mut payload = vec![0; HEADER + size];
    let files = receive(stream, &mut payload)?;
    let table = payload.get(HEADER + COUNT..).unwrap_or_default();
    let (table, _) = <[WireRegion]>::ref_from_prefix_with_elems(table, regions).map_err(|_| Error::InvalidMessage)?;
    if files.len() != regions || !table.iter().all(WireRegion::is_valid) {
        return Err(Error::InvalidMessage);
    }
    let table: Vec<_> = table.iter().map(WireRegion::decoded).collect();
    let mut connection = connection.lock().unwrap_or_else(PoisonError::into_inner);
    let done = connection.set_mem_table(&table, files, None);
    if start.flags.get() & NEED_REPLY != 0 {
        let header = [SET_MEM_TABLE, VERSION | REPLY, size_of::<u64>() as u32].map(U32::new);
        let failed = U64::new(u64::from(done.is_err()));
        let reply = [header.as_bytes(), failed.as_bytes()].concat();
        stream.write_all(&reply).map_err(Error::SocketBroken)?;
    }
    done.map(|_| true)
}

/// The start of the next message if it is a padded one, with its number of regions and the bytes of its payload.
fn look(stream: &UnixStream) -> Result<Option<(Start, usize, usize)>> {
    let mut bytes = [0; size_of::<Start>()];
    let length = loop {
        // Without room for descriptors, they stay with the message.
        match recv(stream, &mut bytes[..], RecvFlags::PEEK) {
            Err(Errno::INTR) => {}
            other => break other.map_err(|errno| Error::SocketBroken(errno.into()))?.0,
        }
    };
    // A shorter message is another one, or the end; a longer one may arrive in parts, but this one is sent as a whole.
    if length < bytes.len() {
        return Ok(None);
    }
    let start: Start = zerocopy::transmute!(bytes);
    Ok(start.padded().map(|(regions, size)| (start, regions, size)))
}

/// Fills `message`; returns the descriptors that came with it.
fn receive(mut stream: &UnixStream, message: &mut [u8]) -> Result<Vec<File>> {
    let broken = |errno: Errno| Error::SocketBroken(errno.into());
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MOST_REGIONS))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let received = loop {
        match recvmsg(stream, &mut [IoSliceMut::new(message)], &mut control, RecvFlags::CMSG_CLOEXEC) {
            Err(Errno::INTR) => {}
            other => break other.map_err(broken)?.bytes,
        }
    };
    let files = control.drain().filter_map(|message| match message {
        RecvAncillaryMessage::ScmRights(files) => Some(files.map(File::from)),
        _ => None,
    });
    let files = files.flatten().collect();
    let rest = message.get_mut(received..).unwrap_or_default();
    stream.read_exact(rest).map_err(|error| match error.kind() {
        io::ErrorKind::UnexpectedEof => Error::Disconnected,
        _ => Error::SocketBroken(error),
    })?;
    Ok(files)
}

impl WireRegion {
    fn is_valid(&self) -> bool {
        let size = self.size.get();
        let starts = [self.guest_address, self.user_address, self.offset];
        size != 0 && starts.iter().all(|start| start.get().checked_add(size).is_some())
    }

    fn decoded(&self) -> VhostUserMemoryRegion {
        let WireRegion { guest_address, size, user_address, offset } = self;
        VhostUserMemoryRegion::new(guest_address.get(), size.get(), user_address.get(), offset.get())
    }
}
