//! Decodes numbers and strings from a message's body.

/// A message ends before its fields do, or has extra bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the message's length does not match its fields")]
pub struct Malformed;

/// The rest of a body.
pub(super) struct Fields<'a> {
    rest: &'a [u8],
}

impl<'a> Fields<'a> {
    /// All of `body`.
    pub fn of(body: &'a [u8]) -> Fields<'a> {
        Fields { rest: body }
    }

    /// The next `count` bytes.
    pub fn bytes(&mut self, count: usize) -> Result<&'a [u8], Malformed> {
        let (taken, rest) = self.rest.split_at_checked(count).ok_or(Malformed)?;
        self.rest = rest;
        Ok(taken)
    }

    fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let (taken, rest) = self.rest.split_first_chunk().ok_or(Malformed)?;
        self.rest = rest;
        Ok(*taken)
    }

    /// A number of one byte.
    pub fn u8(&mut self) -> Result<u8, Malformed> {
        self.array().map(u8::from_le_bytes)
    }

    /// A number of two bytes.
    pub fn u16(&mut self) -> Result<u16, Malformed> {
        self.array().map(u16::from_le_bytes)
    }

    /// A number of four bytes.
    pub fn u32(&mut self) -> Result<u32, Malformed> {
        self.array().map(u32::from_le_bytes)
    }

    /// A number of eight bytes.
    pub fn u64(&mut self) -> Result<u64, Malformed> {
        self.array().map(u64::from_le_bytes)
    }

    /// A string: a length of two bytes, and the bytes.
    pub fn string(&mut self) -> Result<&'a [u8], Malformed> {
        let length = self.u16()?;
        self.bytes(length.into())
    }

    /// A fixed structure.
    pub fn structure<T: zerocopy::FromBytes + zerocopy::Immutable + zerocopy::KnownLayout>(
        &mut self,
    ) -> Result<T, Malformed> {
        let (structure, rest) = T::read_from_prefix(self.rest).map_err(|_| Malformed)?;
        self.rest = rest;
        Ok(structure)
    }

    /// Whether nothing is left.
    pub fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    /// Fails if bytes are left.
    pub fn end(self) -> Result<(), Malformed> {
        if self.rest.is_empty() { Ok(()) } else { Err(Malformed) }
    }
}

/// Adds a string, truncated to 65535 bytes.
pub(super) fn put_string(out: &mut Vec<u8>, string: &[u8]) {
    let length = string.len().min(u16::MAX.into());
    out.extend_from_slice(&(length as u16).to_le_bytes());
    out.extend_from_slice(string.get(..length).unwrap_or_default());
}
