//! Parses a message of the kernel.

use rustix::io::Errno;
use zerocopy::FromBytes;

use super::extension;
use super::opcode;
pub use super::operation::{BatchForget, Operation};
use super::structs::{InHeader, WriteIn};

/// A request: the caller, the node and the operation.
#[derive(Debug)]
pub struct Request<'a> {
    /// The caller, the node, and the number that the answer must have.
    pub header: InHeader,
    /// A supplementary group of the caller, where it matters.
    pub supplementary_group: Option<u32>,
    /// The operation.
    pub operation: Operation<'a>,
}

/// How many bytes at the start of a message of `length` bytes must be copied to parse it: all of them, except the
/// data of a write.
pub fn head_length(header: &InHeader, length: usize) -> usize {
    if header.opcode == opcode::WRITE { length.min(size_of::<InHeader>() + size_of::<WriteIn>()) } else { length }
}

impl<'a> Request<'a> {
    /// Parses a message of `length` bytes from its `head`. `long_setxattr` says that
    /// [`SETXATTR_EXT`](super::init_flag::SETXATTR_EXT) was negotiated.
    ///
    /// # Errors
    /// `EINVAL` if it is cut short or inconsistent, `EIO` if even its length is wrong, `ENOSYS` if the opcode is not
    /// supported.
    pub fn parse(head: &'a [u8], length: usize, long_setxattr: bool) -> Result<Request<'a>, Errno> {
        let (header, body) = InHeader::read_from_prefix(head).map_err(|_| Errno::IO)?;
        if header.len as usize != length || head.len() != head_length(&header, length) {
            return Err(Errno::IO);
        }
        let extensions = usize::from(header.total_extlen) * 8;
        if header.opcode == opcode::WRITE {
            let (write, _) = WriteIn::read_from_prefix(body).map_err(|_| Errno::INVAL)?;
            let data = length.checked_sub(head.len() + extensions);
            if data.is_none_or(|data| data < write.size as usize) {
                return Err(Errno::INVAL);
            }
            return Ok(Request { header, supplementary_group: None, operation: Operation::Write(write) });
        }
        let end = body.len().checked_sub(extensions);
        let (body, extensions) = end.and_then(|end| body.split_at_checked(end)).ok_or(Errno::INVAL)?;
        let supplementary_group = extension::supplementary_group(extensions).ok_or(Errno::INVAL)?;
        let operation = Operation::parse(header.opcode, body, long_setxattr)?;
        Ok(Request { header, supplementary_group, operation })
    }
}

#[cfg(test)]
mod tests {
    use zerocopy::IntoBytes;

    use super::*;

    fn message(opcode: u32, body: &[u8]) -> Vec<u8> {
        let len = (size_of::<InHeader>() + body.len()) as u32;
        let header = InHeader { len, opcode, unique: 2, nodeid: 1, ..InHeader::default() };
        [header.as_bytes(), body].concat()
    }

    #[test]
    fn a_write_is_as_long_as_it_says() {
        let write = WriteIn { offset: 512, size: 3, ..WriteIn::default() };
        let whole = message(opcode::WRITE, &[write.as_bytes(), b"abc"].concat());
        let request = Request::parse(&whole[..80], 83, false).unwrap();
        assert!(matches!(request.operation, Operation::Write(WriteIn { offset: 512, .. })));
        let short = message(opcode::WRITE, &[write.as_bytes(), b"ab"].concat());
        assert_eq!(Request::parse(&short[..80], 82, false).unwrap_err(), Errno::INVAL);
        for end in 0..whole.len() {
            assert!(Request::parse(&whole[..end.min(80)], end, false).is_err(), "cut at {end}");
        }
    }

    #[test]
    fn extensions_are_apart_from_the_body() {
        let group: Vec<u8> = [16u32, 32, 1, 99].iter().flat_map(|word| word.to_ne_bytes()).collect();
        let mut whole = message(opcode::UNLINK, &[b"name\0", &group[..]].concat());
        let length = whole.len();
        assert!(Request::parse(&whole, length, false).is_err());
        // The field total_extlen, in 8 bytes.
        whole[36] = 2;
        let request = Request::parse(&whole, length, false).unwrap();
        assert_eq!(request.supplementary_group, Some(99));
        assert!(matches!(request.operation, Operation::Unlink(b"name")));
        whole[36] = 200;
        assert!(Request::parse(&whole, length, false).is_err());
    }
}
