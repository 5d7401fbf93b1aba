//! The packet header (virtio 1.2, section 5.10.6; `struct virtio_vsock_hdr` of Linux's
//! include/uapi/linux/virtio_vsock.h).

use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// The host's context identifier.
pub const HOST_CID: u64 = 2;

/// The only socket type offered: a stream.
pub const TYPE_STREAM: u16 = 1;

/// What a packet is for.
pub mod op {
    /// Requests a connection.
    pub const REQUEST: u16 = 1;
    /// Accepts a connection.
    pub const RESPONSE: u16 = 2;
    /// Resets or refuses a connection.
    pub const RST: u16 = 3;
    /// Will not receive, or will not send, any more.
    pub const SHUTDOWN: u16 = 4;
    /// Carries data.
    pub const RW: u16 = 5;
    /// Tells the sender's credit.
    pub const CREDIT_UPDATE: u16 = 6;
    /// Asks for a credit update.
    pub const CREDIT_REQUEST: u16 = 7;
}

/// Flag of [`op::SHUTDOWN`]: the sender will receive nothing any more.
pub const SHUTDOWN_RECEIVE: u32 = 1;

/// Flag of [`op::SHUTDOWN`]: the sender will send nothing any more.
pub const SHUTDOWN_SEND: u32 = 2;

/// A packet's header; all fields as on the wire.
#[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
#[repr(C)]
pub struct Header {
    pub src_cid: U64,
    pub dst_cid: U64,
    pub src_port: U32,
    pub dst_port: U32,
    /// Bytes of data after the header.
    pub len: U32,
    pub socket_type: U16,
    pub op: U16,
    pub flags: U32,
    /// Bytes of data that the sender can buffer.
    pub buf_alloc: U32,
    /// Bytes of data that the sender's program has taken since the connection began, modulo 2^32.
    pub fwd_cnt: U32,
}

/// Bytes of a header.
pub const HEADER: usize = size_of::<Header>();

/// A connection: the guest's port and ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ports {
    pub guest: u32,
    pub host: u32,
}

impl Header {
    /// The connection to which a packet from the guest belongs.
    pub fn ports(&self) -> Ports {
        Ports { guest: self.src_port.get(), host: self.dst_port.get() }
    }

    /// The header of a packet to the guest.
    pub fn to_guest(cid: u64, ports: Ports, op: u16) -> Header {
        Header {
            src_cid: U64::new(HOST_CID),
            dst_cid: U64::new(cid),
            src_port: U32::new(ports.host),
            dst_port: U32::new(ports.guest),
            socket_type: U16::new(TYPE_STREAM),
            op: U16::new(op),
            ..Header::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_lie_where_the_specification_puts_them() {
        let mut header = Header::to_guest(3, Ports { guest: 0x0a0b, host: 564 }, op::RW);
        header.len = U32::new(5);
        header.flags = U32::new(6);
        header.buf_alloc = U32::new(7);
        header.fwd_cnt = U32::new(8);
        let bytes = header.as_bytes();
        assert_eq!(bytes.len(), 44);
        assert_eq!((bytes[0], bytes[8], bytes[24], bytes[32], bytes[36], bytes[40]), (2, 3, 5, 6, 7, 8));
        assert_eq!(bytes[16..24], [0x34, 2, 0, 0, 0x0b, 0x0a, 0, 0]);
        assert_eq!(bytes[28..32], [1, 0, 5, 0]);
    }
}
