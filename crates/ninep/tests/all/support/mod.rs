//! A client that sends what a test wants, and the server it talks to.

#![allow(dead_code, reason = "each test uses its part of it")]

use std::fs;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use inarch_ninep::wire::{
    Header, LockRange, NO_FID, NO_TAG, Names, Qid, Reply, Request, SetattrBody, StatBody, VERSION, lock,
};
use inarch_ninep::{ConnectionError, NinepOptions, NinepServer};
use inarch_server::Pending;
use inarch_vfs::{FileSystem, HostDirectory, HostOptions};
use tempfile::TempDir;
use zerocopy::{FromBytes, IntoBytes};

/// A timeout for a reply.
const PATIENCE: Duration = Duration::from_secs(60);

/// A server of a new, empty directory of this host.
pub struct Served {
    pub directory: TempDir,
    pub server: Arc<NinepServer>,
}

impl Served {
    pub fn new() -> Served {
        Served::with(NinepOptions::default())
    }

    pub fn with(options: NinepOptions) -> Served {
        Served::of(HostOptions { locks: true, ..HostOptions::default() }, options)
    }

    pub fn of_host(host: HostOptions) -> Served {
        Served::of(host, NinepOptions::default())
    }

    fn of(host: HostOptions, options: NinepOptions) -> Served {
        let directory = tempfile::tempdir().unwrap();
        let file_system = HostDirectory::new(directory.path(), host).unwrap();
        Served { server: Arc::new(server_of(Arc::new(file_system), options)), directory }
    }

    pub fn path(&self, name: &str) -> std::path::PathBuf {
        self.directory.path().join(name)
    }

    pub fn write(&self, name: &str, content: &[u8]) {
        fs::write(self.path(name), content).unwrap();
    }

    pub fn make_directory(&self, name: &str) {
        fs::create_dir_all(self.path(name)).unwrap();
    }

    /// A client that has sent its version and attached as root with fid 0.
    pub fn client(&self) -> Client {
        let mut client = self.raw_client();
        client.version(1 << 20);
        client.attach(0, 0);
        client
    }

    /// A client that has sent nothing.
    pub fn raw_client(&self) -> Client {
        Client::of(&self.server)
    }
}

pub fn server_of(file_system: Arc<dyn FileSystem>, options: NinepOptions) -> NinepServer {
    NinepServer::new(Arc::new(Pending::ready(Arc::new(file_system))), options)
}

/// One end of a connection.
pub struct Client {
    pub stream: UnixStream,
    pub server: Option<JoinHandle<Result<(), ConnectionError>>>,
    next_tag: u16,
}

/// A complete reply.
#[derive(Clone, PartialEq, Eq)]
pub struct Message {
    pub kind: u8,
    pub tag: u16,
    pub body: Vec<u8>,
}

impl Message {
    pub fn reply(&self) -> Reply<'_> {
        Reply::decode(self.kind, &self.body).unwrap_or_else(|error| panic!("{self:?}: {error}"))
    }

    /// The error, if it is one.
    pub fn errno(&self) -> Option<i32> {
        match self.reply() {
            Reply::Lerror { errno } => Some(errno as i32),
            _ => None,
        }
    }
}

impl std::fmt::Debug for Message {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match Reply::decode(self.kind, &self.body) {
            Ok(reply) => write!(f, "tag {}: {reply:?}", self.tag),
            Err(_) => write!(f, "tag {}: kind {} of {} bytes", self.tag, self.kind, self.body.len()),
        }
    }
}

/// An entry of a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    pub qid: Qid,
    pub next: u64,
    pub file_type: u8,
    pub name: Vec<u8>,
}

impl Client {
    pub fn of(server: &Arc<NinepServer>) -> Client {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let server = Arc::clone(server);
        let server = thread::spawn(move || server.serve_stream(theirs));
        Client { server: Some(server), ..Client::on(ours) }
    }

    /// A client of a server elsewhere.
    pub fn on(stream: UnixStream) -> Client {
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        Client { stream, server: None, next_tag: 0 }
    }

    /// Sends bytes; the server may have disconnected.
    pub fn send_raw(&mut self, bytes: &[u8]) {
        let _ = self.stream.write_all(bytes);
    }

    pub fn send(&mut self, tag: u16, request: &Request<'_>) {
        let mut bytes = Vec::new();
        request.encode(tag, &mut bytes);
        self.stream.write_all(&bytes).unwrap();
    }

    /// The next reply; `None` if the server has disconnected.
    pub fn receive(&mut self) -> Option<Message> {
        let mut header = [0; Header::SIZE];
        self.stream.read_exact(&mut header).ok()?;
        let header = Header::read_from_bytes(&header).unwrap();
        let mut body = vec![0; header.size.get() as usize - Header::SIZE];
        self.stream.read_exact(&mut body).unwrap();
        Some(Message { kind: header.kind, tag: header.tag.get(), body })
    }

    /// Whether no reply comes for a while.
    pub fn is_silent(&mut self) -> bool {
        self.stream.set_read_timeout(Some(Duration::from_millis(150))).unwrap();
        let silent = self.stream.read(&mut [0]).is_err();
        self.stream.set_read_timeout(Some(PATIENCE)).unwrap();
        silent
    }

    /// Sends a request, and returns the reply.
    pub fn ask(&mut self, request: &Request<'_>) -> Message {
        self.next_tag = (self.next_tag + 1) % 1000;
        let tag = self.next_tag;
        self.send(tag, request);
        let message = self.receive().expect("the server has hung up");
        assert_eq!(message.tag, tag, "{message:?}");
        message
    }

    /// Sends a request that must succeed.
    #[track_caller]
    pub fn ok(&mut self, request: &Request<'_>) -> Message {
        let message = self.ask(request);
        assert_eq!(message.errno(), None, "{request:?}");
        message
    }

    /// Sends a request that must fail; returns the error.
    #[track_caller]
    pub fn fails(&mut self, request: &Request<'_>) -> i32 {
        let message = self.ask(request);
        message.errno().unwrap_or_else(|| panic!("{request:?} gave {message:?}"))
    }

    pub fn version(&mut self, msize: u32) -> (u32, Vec<u8>) {
        self.send(NO_TAG, &Request::Version { msize, version: VERSION });
        let message = self.receive().expect("the server has hung up");
        assert_eq!(message.tag, NO_TAG);
        match message.reply() {
            Reply::Version { msize, version } => (msize, version.to_owned()),
            other => panic!("{other:?}"),
        }
    }

    pub fn attach(&mut self, fid: u32, uid: u32) -> Qid {
        match self.ok(&Request::Attach { fid, afid: NO_FID, uname: b"", aname: b"", uid }).reply() {
            Reply::Attach { qid } => qid,
            other => panic!("{other:?}"),
        }
    }

    /// Walks the names of `path`; returns their qids.
    #[track_caller]
    pub fn walk(&mut self, fid: u32, new_fid: u32, path: &str) -> Vec<Qid> {
        let names: Vec<&[u8]> = path.split('/').filter(|name| !name.is_empty()).map(str::as_bytes).collect();
        let message = self.ok(&walk(fid, new_fid, &names));
        match message.reply() {
            Reply::Walk { qids, count } => {
                assert_eq!(count, names.len(), "walk to {path}");
                qids[..count].to_vec()
            }
            other => panic!("{other:?}"),
        }
    }

    #[track_caller]
    pub fn open(&mut self, fid: u32, flags: u32) -> Qid {
        match self.ok(&Request::Lopen { fid, flags }).reply() {
            Reply::Lopen { qid, .. } => qid,
            other => panic!("{other:?}"),
        }
    }

    /// Makes a file in the directory of `fid`, which becomes the file's, open for reading and writing.
    #[track_caller]
    pub fn create(&mut self, fid: u32, name: &str) -> Qid {
        let name = name.as_bytes();
        match self.ok(&Request::Lcreate { fid, name, flags: 0o302, mode: 0o644, gid: 0 }).reply() {
            Reply::Lcreate { qid, .. } => qid,
            other => panic!("{other:?}"),
        }
    }

    #[track_caller]
    pub fn read(&mut self, fid: u32, offset: u64, count: u32) -> Vec<u8> {
        match self.ok(&Request::Read { fid, offset, count }).reply() {
            Reply::Read { data } => data.to_owned(),
            other => panic!("{other:?}"),
        }
    }

    #[track_caller]
    pub fn write(&mut self, fid: u32, offset: u64, data: &[u8]) -> u32 {
        match self.ok(&Request::Write { fid, offset, data }).reply() {
            Reply::Write { count } => count,
            other => panic!("{other:?}"),
        }
    }

    #[track_caller]
    pub fn clunk(&mut self, fid: u32) {
        self.ok(&Request::Clunk { fid });
    }

    #[track_caller]
    pub fn getattr(&mut self, fid: u32) -> StatBody {
        match self.ok(&Request::Getattr { fid, mask: !0 }).reply() {
            Reply::Getattr(body) => body,
            other => panic!("{other:?}"),
        }
    }

    #[track_caller]
    pub fn setattr(&mut self, fid: u32, set: SetattrBody) {
        self.ok(&Request::Setattr { fid, set });
    }

    /// Entries from `offset` on, as many as `count` bytes hold.
    #[track_caller]
    pub fn readdir(&mut self, fid: u32, offset: u64, count: u32) -> Vec<Listed> {
        match self.ok(&Request::Readdir { fid, offset, count }).reply() {
            Reply::Readdir { data } => {
                assert!(data.len() <= count as usize);
                entries(data)
            }
            other => panic!("{other:?}"),
        }
    }

    /// All entries from `offset` on, in portions of `count` bytes.
    pub fn list(&mut self, fid: u32, mut offset: u64, count: u32) -> Vec<Listed> {
        let mut all = Vec::new();
        loop {
            let some = self.readdir(fid, offset, count);
            let Some(last) = some.last() else { return all };
            offset = last.next;
            all.extend(some);
        }
    }

    /// Disconnects; returns the server's result.
    pub fn end(mut self) -> Result<(), ConnectionError> {
        self.stream.shutdown(std::net::Shutdown::Write).unwrap();
        self.server.take().unwrap().join().unwrap()
    }
}

pub fn walk<'a>(fid: u32, new_fid: u32, names: &[&'a [u8]]) -> Request<'a> {
    Request::Walk { fid, new_fid, names: Names::new(names).unwrap() }
}

/// The entries in the data of a `Rreaddir`.
pub fn entries(mut data: &[u8]) -> Vec<Listed> {
    let mut all = Vec::new();
    while !data.is_empty() {
        let (qid, rest) = Qid::read_from_prefix(data).unwrap();
        let next = u64::from_le_bytes(rest[..8].try_into().unwrap());
        let length = usize::from(u16::from_le_bytes(rest[9..11].try_into().unwrap()));
        all.push(Listed { qid, next, file_type: rest[8], name: rest[11..11 + length].to_vec() });
        data = &rest[11 + length..];
    }
    all
}

pub fn names(listed: &[Listed]) -> Vec<String> {
    let mut names: Vec<_> = listed.iter().map(|entry| String::from_utf8_lossy(&entry.name).into_owned()).collect();
    names.sort();
    names
}

/// A lock of so many bytes by a process.
pub fn range(kind: u8, start: u64, length: u64, process: u32) -> LockRange<'static> {
    LockRange { kind, start, length, process, client: b"guest" }
}

pub fn lock_request(fid: u32, range: LockRange<'_>, wait: bool) -> Request<'_> {
    Request::Lock { fid, range, flags: if wait { lock::BLOCK } else { 0 } }
}

/// The status of a `Rlock`.
#[track_caller]
pub fn lock_status(message: &Message) -> u8 {
    match message.reply() {
        Reply::Lock { status } => status,
        other => panic!("{other:?}"),
    }
}

/// A message's bytes, of whatever kind and body.
pub fn frame(kind: u8, tag: u16, body: &[u8]) -> Vec<u8> {
    let header = Header { size: ((Header::SIZE + body.len()) as u32).into(), kind, tag: tag.into() };
    [header.as_bytes(), body].concat()
}

/// Whether this process is root, and may act as any user.
pub fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Makes an empty file at `path` that everybody may write.
pub fn touch(path: &Path) {
    fs::write(path, b"").unwrap();
}
