//! The handshake (`doc/proto.md`, fixed newstyle negotiation): agrees with a client on the export and its features.

use std::sync::Arc;

use inarch_server::{BlockDevice, ConnectionError, Receiver, Sender};
use zerocopy::{FromZeros, IntoBytes};

use crate::server::NbdOptions;
use crate::wire::option::{
    BASE_ALLOCATION, ClientOption, ContextRequest, InfoRequest, OptionError, OptionHeader, OptionReply,
    export_name_reply,
};
use crate::wire::{FLAG_FIXED_NEWSTYLE, FLAG_NO_ZEROES, Greeting, INIT_MAGIC, OPTION_MAGIC, export_flag};

/// The most bytes of data that an option may have to be parsed.
const MAX_OPTION_DATA: u32 = 64 << 10;

/// The most bytes of data that are skipped to answer that an option has too many.
const MAX_SKIPPED_DATA: u32 = 1 << 20;

/// The most options of one client. Known clients send about ten.
const MAX_OPTIONS: usize = 256;

/// The preferred size of a request: a page of the overlay and of the source's files.
const PREFERRED_BLOCK: u32 = 4096;

/// The most bytes in a read or write: the limit that a client must assume without being told one.
pub const MAX_PAYLOAD: u32 = 32 << 20;

/// The number of the metadata context `base:allocation`.
pub const BASE_ALLOCATION_ID: u32 = 1;

/// What both sides agreed on.
pub struct Agreement<D> {
    /// The export.
    pub device: Arc<D>,
    /// Its bytes.
    pub size: u64,
    /// Whether reads are answered in chunks.
    pub structured: bool,
    /// Whether block status may be asked for.
    pub block_status: bool,
}

/// The negotiation with one client.
pub struct Negotiation<'n, 's, D> {
    /// The client's messages.
    pub receiver: &'n mut Receiver<'s>,
    /// The answers.
    pub sender: &'n Sender<'s>,
    /// The export.
    pub options: &'n NbdOptions,
    /// Waits for the device; an error says why there will be none.
    pub device: &'n dyn Fn() -> Result<Arc<D>, String>,
    /// Whether the client asked to leave the padding out.
    no_zeroes: bool,
    structured: bool,
    block_status: bool,
}

/// What happens after an option.
enum Next<D> {
    Option,
    Transmission(Agreement<D>),
    End,
}

impl<'n, 's, D: BlockDevice> Negotiation<'n, 's, D> {
    /// A negotiation that has not begun.
    pub fn new(
        receiver: &'n mut Receiver<'s>,
        sender: &'n Sender<'s>,
        options: &'n NbdOptions,
        device: &'n dyn Fn() -> Result<Arc<D>, String>,
    ) -> Negotiation<'n, 's, D> {
        Negotiation { receiver, sender, options, device, no_zeroes: false, structured: false, block_status: false }
    }

    /// Negotiates until the client has chosen the export; `None` if the client left before.
    pub fn run(mut self) -> Result<Option<Agreement<D>>, ConnectionError> {
        let greeting = Greeting {
            init_magic: INIT_MAGIC.into(),
            option_magic: OPTION_MAGIC.into(),
            flags: (FLAG_FIXED_NEWSTYLE | FLAG_NO_ZEROES).into(),
        };
        self.sender.send(&[greeting.as_bytes()]);
        let mut flags = [0; 4];
        if !self.receiver.begin(&mut flags)? {
            return Ok(None);
        }
        let flags = u32::from_be_bytes(flags);
        if flags & !u32::from(FLAG_FIXED_NEWSTYLE | FLAG_NO_ZEROES) != 0 {
            return Err(ConnectionError::Protocol("its flags ask for what was not offered"));
        }
        self.no_zeroes = flags & u32::from(FLAG_NO_ZEROES) != 0;
        for _ in 0..MAX_OPTIONS {
            match self.option()? {
                Next::Option => {}
                Next::Transmission(agreement) => {
                    self.receiver.end_negotiation()?;
                    return Ok(Some(agreement));
                }
                Next::End => return Ok(None),
            }
        }
        Err(ConnectionError::Protocol("it sends options without end"))
    }

    /// Receives an option and answers it.
    fn option(&mut self) -> Result<Next<D>, ConnectionError> {
        let mut header = OptionHeader::new_zeroed();
        if !self.receiver.begin(header.as_mut_bytes())? {
            return Ok(Next::End);
        }
        if !header.is_valid() {
            return Err(ConnectionError::Protocol("an option does not begin with its magic number"));
        }
        let (number, length) = (header.option.get(), header.length.get());
        if length > MAX_SKIPPED_DATA {
            return Err(ConnectionError::Protocol("an option's data is too long"));
        }
        if length > MAX_OPTION_DATA {
            self.receiver.skip(length.into())?;
            self.refuse(number, OptionError::TooBig);
            return Ok(Next::Option);
        }
        let mut data = vec![0; length as usize];
        self.receiver.receive(&mut data)?;
        let result = ClientOption::parse(number, &data).map(|option| self.answer(number, option));
        Ok(result.unwrap_or_else(|error| {
            self.refuse(number, error);
            Next::Option
        }))
    }

    fn answer(&mut self, number: u32, option: ClientOption<'_>) -> Next<D> {
        match option {
            ClientOption::ExportName(name) => return self.export_name(name),
            ClientOption::Abort => {
                self.reply(number, OptionReply::Ack);
                return Next::End;
            }
            ClientOption::List => {
                self.reply(number, OptionReply::Server(self.options.name.as_bytes()));
                self.reply(number, OptionReply::Ack);
            }
            ClientOption::Info(request) => {
                self.describe(number, &request);
            }
            ClientOption::Go(request) => {
                if let Some(agreement) = self.describe(number, &request) {
                    return Next::Transmission(agreement);
                }
            }
            ClientOption::StructuredReply => {
                self.structured = true;
                self.reply(number, OptionReply::Ack);
            }
            ClientOption::ListMetaContext(request) => {
                let wanted = request.no_queries || request.base || request.base_allocation;
                self.contexts(number, &request, wanted);
            }
            ClientOption::SetMetaContext(request) => {
                self.block_status = false;
                if self.contexts(number, &request, request.base_allocation) {
                    self.block_status = request.base_allocation;
                }
            }
        }
        Next::Option
    }

    /// Describes the requested export. Returns `None` if it answered with an error.
    fn describe(&mut self, number: u32, request: &InfoRequest<'_>) -> Option<Agreement<D>> {
        if !self.is_ours(request.export) {
            self.refuse(number, OptionError::Unknown);
            return None;
        }
        let agreement = match self.agree() {
            Ok(agreement) => agreement,
            Err(reason) => {
                self.reply(number, OptionReply::Error(OptionError::Shutdown, &reason));
                return None;
            }
        };
        if request.name {
            self.reply(number, OptionReply::InfoName(self.options.name.as_bytes()));
        }
        if request.description && !self.options.description.is_empty() {
            self.reply(number, OptionReply::InfoDescription(&self.options.description));
        }
        if request.block_size {
            self.reply(number, OptionReply::InfoBlockSize(1, PREFERRED_BLOCK, MAX_PAYLOAD));
        }
        self.reply(number, OptionReply::InfoExport(agreement.size, self.flags(&agreement)));
        self.reply(number, OptionReply::Ack);
        Some(agreement)
    }

    /// Answers `NBD_OPT_EXPORT_NAME`, the old way to choose the export, which has no error reply.
    fn export_name(&mut self, name: &[u8]) -> Next<D> {
        let agreement = if self.is_ours(name) { self.agree().ok() } else { None };
        match agreement {
            Some(agreement) => {
                let flags = self.flags(&agreement);
                self.sender.send(&[&export_name_reply(agreement.size, flags, !self.no_zeroes)]);
                Next::Transmission(agreement)
            }
            None => Next::End,
        }
    }

    /// Sends the metadata contexts if they are `wanted`; returns false if it answered with an error.
    fn contexts(&mut self, number: u32, request: &ContextRequest<'_>, wanted: bool) -> bool {
        if !self.structured {
            self.reply(number, OptionReply::Error(OptionError::Invalid, "ask for structured replies first"));
            return false;
        }
        if !self.is_ours(request.export) {
            self.refuse(number, OptionError::Unknown);
            return false;
        }
        if wanted {
            self.reply(number, OptionReply::MetaContext(BASE_ALLOCATION_ID, BASE_ALLOCATION));
        }
        self.reply(number, OptionReply::Ack);
        true
    }

    /// Whether the name is our export's, or empty for the default export.
    fn is_ours(&self, name: &[u8]) -> bool {
        name.is_empty() || name == self.options.name.as_bytes()
    }

    /// The agreement if the client chooses the export now. Waits for the device, whose size must be known.
    fn agree(&mut self) -> Result<Agreement<D>, String> {
        let device = (self.device)()?;
        self.receiver.restart_negotiation();
        let size = device.content_size();
        Ok(Agreement { device, size, structured: self.structured, block_status: self.block_status })
    }

    fn flags(&self, agreement: &Agreement<D>) -> u16 {
        let of_access = match agreement.device.read_only() {
            true => export_flag::READ_ONLY,
            false => {
                export_flag::SEND_TRIM
                    | export_flag::SEND_WRITE_ZEROES
                    | export_flag::SEND_FAST_ZERO
                    | export_flag::SEND_FUA
            }
        };
        let of_replies = if agreement.structured { export_flag::SEND_DF } else { 0 };
        export_flag::HAS_FLAGS
            | export_flag::SEND_FLUSH
            | export_flag::CAN_MULTI_CONN
            | export_flag::SEND_CACHE
            | of_access
            | of_replies
    }

    fn refuse(&self, number: u32, error: OptionError) {
        let text = match error {
            OptionError::Unsupported => "this server does not know the option",
            OptionError::Invalid => "the option's data makes no sense",
            OptionError::Unknown => "there is no such export",
            OptionError::Shutdown => "the server is ending",
            OptionError::TooBig => "the option has too much data",
        };
        self.reply(number, OptionReply::Error(error, text));
    }

    fn reply(&self, number: u32, reply: OptionReply<'_>) {
        self.sender.send(&[&reply.encode(number)]);
    }
}
