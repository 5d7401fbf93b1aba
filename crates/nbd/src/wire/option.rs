//! The messages of the negotiation: a client's options and the server's replies.

use zerocopy::big_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::OPTION_MAGIC;

/// Starts an answer to an option.
pub const REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;

/// The longest name of an export, or query of a metadata context, in bytes.
pub const MAX_STRING: usize = 4096;

/// The only metadata context offered: which extents are allocated, and which read as zeros.
pub const BASE_ALLOCATION: &[u8] = b"base:allocation";

/// The header of an option; `length` bytes of data follow.
#[derive(Clone, Copy, Debug, FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
#[repr(C)]
pub struct OptionHeader {
    /// [`OPTION_MAGIC`].
    pub magic: U64,
    /// Which one.
    pub option: U32,
    /// Bytes of data.
    pub length: U32,
}

impl OptionHeader {
    /// Bytes of it.
    pub const SIZE: usize = size_of::<OptionHeader>();

    /// Whether the magic number is right.
    pub fn is_valid(&self) -> bool {
        self.magic.get() == OPTION_MAGIC
    }
}

/// Options by number.
pub mod number {
    /// Choose an export, the old way: the only error reply is to disconnect.
    pub const EXPORT_NAME: u32 = 1;
    /// End the negotiation.
    pub const ABORT: u32 = 2;
    /// List the exports.
    pub const LIST: u32 = 3;
    /// Describe an export.
    pub const INFO: u32 = 6;
    /// Choose an export.
    pub const GO: u32 = 7;
    /// Agree on structured replies.
    pub const STRUCTURED_REPLY: u32 = 8;
    /// List metadata contexts.
    pub const LIST_META_CONTEXT: u32 = 9;
    /// Choose metadata contexts.
    pub const SET_META_CONTEXT: u32 = 10;
}

/// What a client asks for.
#[derive(Debug, PartialEq, Eq)]
pub enum ClientOption<'a> {
    /// `NBD_OPT_EXPORT_NAME` of this export.
    ExportName(&'a [u8]),
    /// `NBD_OPT_ABORT`.
    Abort,
    /// `NBD_OPT_LIST`.
    List,
    /// `NBD_OPT_INFO`.
    Info(InfoRequest<'a>),
    /// `NBD_OPT_GO`.
    Go(InfoRequest<'a>),
    /// `NBD_OPT_STRUCTURED_REPLY`.
    StructuredReply,
    /// `NBD_OPT_LIST_META_CONTEXT`.
    ListMetaContext(ContextRequest<'a>),
    /// `NBD_OPT_SET_META_CONTEXT`.
    SetMetaContext(ContextRequest<'a>),
}

/// The data of `NBD_OPT_INFO` and `NBD_OPT_GO`.
#[derive(Debug, PartialEq, Eq)]
pub struct InfoRequest<'a> {
    /// Name of the export; empty for the default one.
    pub export: &'a [u8],
    /// Whether its name is asked for.
    pub name: bool,
    /// Whether its description is asked for.
    pub description: bool,
    /// Whether its block sizes are asked for.
    pub block_size: bool,
}

/// The data of `NBD_OPT_LIST_META_CONTEXT` and `NBD_OPT_SET_META_CONTEXT`.
#[derive(Debug, PartialEq, Eq)]
pub struct ContextRequest<'a> {
    /// Name of the export.
    pub export: &'a [u8],
    /// Whether nothing was asked for.
    pub no_queries: bool,
    /// Whether `base:` was asked for: every context of that name space.
    pub base: bool,
    /// Whether `base:allocation` was asked for.
    pub base_allocation: bool,
}

/// Why an option gets an error reply. The values are the reply types.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum OptionError {
    /// The option is not supported.
    Unsupported = 1 << 31 | 1,
    /// Its data is invalid, or invalid at this point.
    Invalid = 1 << 31 | 3,
    /// There is no such export.
    Unknown = 1 << 31 | 6,
    /// The server is shutting down.
    Shutdown = 1 << 31 | 7,
    /// It has too much data.
    TooBig = 1 << 31 | 9,
}

impl<'a> ClientOption<'a> {
    /// Parses option `option` with `data`.
    pub fn parse(option: u32, data: &'a [u8]) -> Result<ClientOption<'a>, OptionError> {
        let empty = |parsed| if data.is_empty() { Ok(parsed) } else { Err(OptionError::Invalid) };
        match option {
            number::EXPORT_NAME => Ok(ClientOption::ExportName(data)),
            // The negotiation ends whatever its data is.
            number::ABORT => Ok(ClientOption::Abort),
            number::LIST => empty(ClientOption::List),
            number::INFO => InfoRequest::parse(data).map(ClientOption::Info),
            number::GO => InfoRequest::parse(data).map(ClientOption::Go),
            number::STRUCTURED_REPLY => empty(ClientOption::StructuredReply),
            number::LIST_META_CONTEXT => ContextRequest::parse(data).map(ClientOption::ListMetaContext),
            number::SET_META_CONTEXT => ContextRequest::parse(data).map(ClientOption::SetMetaContext),
            _ => Err(OptionError::Unsupported),
        }
    }
}

const INFO_NAME: u16 = 1;
const INFO_DESCRIPTION: u16 = 2;
const INFO_BLOCK_SIZE: u16 = 3;

impl<'a> InfoRequest<'a> {
    fn parse(mut data: &'a [u8]) -> Result<InfoRequest<'a>, OptionError> {
        let export = take_string(&mut data)?;
        let (count, rest) = U16::read_from_prefix(data).map_err(|_| OptionError::Invalid)?;
        if rest.len() != usize::from(count.get()) * size_of::<U16>() {
            return Err(OptionError::Invalid);
        }
        let asked = |info: u16| rest.chunks_exact(2).any(|bytes| bytes == info.to_be_bytes());
        Ok(InfoRequest {
            export,
            name: asked(INFO_NAME),
            description: asked(INFO_DESCRIPTION),
            block_size: asked(INFO_BLOCK_SIZE),
        })
    }
}

impl<'a> ContextRequest<'a> {
    fn parse(mut data: &'a [u8]) -> Result<ContextRequest<'a>, OptionError> {
        let export = take_string(&mut data)?;
        let queries = take_u32(&mut data)?;
        let mut request = ContextRequest { export, no_queries: queries == 0, base: false, base_allocation: false };
        // Each query takes at least 4 bytes of `data`, however many are announced.
        for _ in 0..queries {
            match take_string(&mut data)? {
                b"base:" => request.base = true,
                BASE_ALLOCATION => request.base_allocation = true,
                _ => {}
            }
        }
        if data.is_empty() { Ok(request) } else { Err(OptionError::Invalid) }
    }
}

fn take_u32(data: &mut &[u8]) -> Result<u32, OptionError> {
    let (number, rest) = U32::read_from_prefix(data).map_err(|_| OptionError::Invalid)?;
    *data = rest;
    Ok(number.get())
}

/// Takes a length-prefixed string off the front of `data`.
fn take_string<'a>(data: &mut &'a [u8]) -> Result<&'a [u8], OptionError> {
    let length = take_u32(data)? as usize;
    let (string, rest) = data.split_at_checked(length).ok_or(OptionError::Invalid)?;
    *data = rest;
    if length > MAX_STRING { Err(OptionError::TooBig) } else { Ok(string) }
}

#[derive(IntoBytes, Immutable, Unaligned)]
#[repr(C)]
struct ReplyHeader {
    magic: U64,
    option: U32,
    kind: U32,
    length: U32,
}

/// A server's reply to an option.
#[derive(Debug)]
pub enum OptionReply<'a> {
    /// Done.
    Ack,
    /// There is an export of this name.
    Server(&'a [u8]),
    /// Size in bytes, and [`export_flag`](super::export_flag)s.
    InfoExport(u64, u16),
    /// The export's name.
    InfoName(&'a [u8]),
    /// The export's description.
    InfoDescription(&'a str),
    /// Smallest, preferred and largest number of bytes in a request.
    InfoBlockSize(u32, u32, u32),
    /// A metadata context and its number.
    MetaContext(u32, &'a [u8]),
    /// An error and its reason, for people.
    Error(OptionError, &'a str),
}

impl OptionReply<'_> {
    /// Encodes the reply to `option`.
    pub fn encode(&self, option: u32) -> Vec<u8> {
        const INFO: u32 = 3;
        let (kind, data) = match self {
            OptionReply::Ack => (1, Vec::new()),
            OptionReply::Server(name) => (2, [&(name.len() as u32).to_be_bytes(), *name].concat()),
            OptionReply::InfoExport(size, flags) => {
                (INFO, [&[0; 2][..], &size.to_be_bytes(), &flags.to_be_bytes()].concat())
            }
            OptionReply::InfoName(name) => (INFO, [&INFO_NAME.to_be_bytes(), *name].concat()),
            OptionReply::InfoDescription(text) => (INFO, [&INFO_DESCRIPTION.to_be_bytes(), text.as_bytes()].concat()),
            OptionReply::InfoBlockSize(minimum, preferred, maximum) => {
                let sizes = [*minimum, *preferred, *maximum].map(u32::to_be_bytes);
                (INFO, [&INFO_BLOCK_SIZE.to_be_bytes()[..], sizes.as_flattened()].concat())
            }
            OptionReply::MetaContext(number, name) => (4, [&number.to_be_bytes(), *name].concat()),
            OptionReply::Error(error, text) => (*error as u32, text.as_bytes().to_vec()),
        };
        let header = ReplyHeader {
            magic: REPLY_MAGIC.into(),
            option: option.into(),
            kind: kind.into(),
            length: (data.len() as u32).into(),
        };
        [header.as_bytes(), &data].concat()
    }
}

/// The reply to `NBD_OPT_EXPORT_NAME`; nothing else signals success.
pub fn export_name_reply(size: u64, flags: u16, zeroes: bool) -> Vec<u8> {
    const PADDING: usize = 124;
    let mut bytes = [&size.to_be_bytes()[..], &flags.to_be_bytes()].concat();
    if zeroes {
        bytes.resize(bytes.len() + PADDING, 0);
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_info_request_is_understood() {
        let data = b"\0\0\0\x03abc\0\x02\0\x03\0\x01";
        let request = InfoRequest { export: b"abc", name: true, description: false, block_size: true };
        assert_eq!(ClientOption::parse(number::GO, data), Ok(ClientOption::Go(request)));
    }

    #[test]
    fn every_cut_and_every_surplus_of_a_request_is_refused() {
        let contexts = b"\0\0\0\x01x\0\0\0\x02\0\0\0\x0fbase:allocation\0\0\0\x05base:";
        let info = b"\0\0\0\x03abc\0\x02\0\x03\0\x01";
        for (option, data) in [(number::SET_META_CONTEXT, &contexts[..]), (number::INFO, &info[..])] {
            assert!(ClientOption::parse(option, data).is_ok());
            for end in 0..data.len() {
                assert_eq!(ClientOption::parse(option, &data[..end]), Err(OptionError::Invalid), "cut at {end}");
            }
            assert_eq!(ClientOption::parse(option, &[data, b"x"].concat()), Err(OptionError::Invalid));
        }
    }

    #[test]
    fn announced_counts_and_lengths_are_not_believed() {
        for data in [&b"\xff\xff\xff\xff"[..], b"\0\0\0\0\xff\xff\xff\xff", b"\0\0\0\0\xff\xff"] {
            for option in [number::GO, number::SET_META_CONTEXT] {
                assert_eq!(ClientOption::parse(option, data), Err(OptionError::Invalid));
            }
        }
        let long = [&(MAX_STRING as u32 + 1).to_be_bytes()[..], &[b'x'; MAX_STRING + 1], b"\0\0"].concat();
        assert_eq!(ClientOption::parse(number::GO, &long), Err(OptionError::TooBig));
    }

    #[test]
    fn answers_have_the_protocols_bytes() {
        let ack = OptionReply::Ack.encode(number::GO);
        assert_eq!(ack, b"\x00\x03\xe8\x89\x04\x55\x65\xa9\0\0\0\x07\0\0\0\x01\0\0\0\0");
        let export = OptionReply::InfoExport(0x1000, 0x0103).encode(number::GO);
        assert_eq!(export[12..], *b"\0\0\0\x03\0\0\0\x0c\0\0\0\0\0\0\0\0\x10\0\x01\x03");
        assert_eq!(export_name_reply(1, 2, true).len(), 134);
        assert_eq!(export_name_reply(1, 2, false), [0, 0, 0, 0, 0, 0, 0, 1, 0, 2]);
    }
}
