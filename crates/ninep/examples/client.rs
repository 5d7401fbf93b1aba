//! A client that sends requests as fast as it can, to measure any 9P2000.L server on a Unix socket.
//!
//! `client SOCKET ANAME MSIZE files DIRECTORY SECONDS DEPTH` repeats walk, getattr, open, read and clunk for each file
//! in DIRECTORY, with DEPTH requests in flight, and prints requests a second.
//!
//! `client SOCKET ANAME MSIZE fids COUNT DIRECTORY SECONDS` repeats walk, getattr and clunk for each file in DIRECTORY
//! while COUNT other fids exist, and prints requests a second.

use std::io::{self, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use inarch_ninep::wire::{Header, NO_FID, NO_TAG, Names, Qid, Reply, Request, VERSION};
use zerocopy::FromBytes;

struct Client {
    stream: UnixStream,
    reader: BufReader<UnixStream>,
    out: Vec<u8>,
    body: Vec<u8>,
}

impl Client {
    fn connect(path: &str) -> io::Result<Client> {
        let stream = UnixStream::connect(path)?;
        let reader = BufReader::with_capacity(256 << 10, stream.try_clone()?);
        Ok(Client { stream, reader, out: Vec::new(), body: Vec::new() })
    }

    fn queue(&mut self, tag: u16, request: &Request<'_>) {
        request.encode(tag, &mut self.out);
    }

    fn send(&mut self) -> io::Result<()> {
        self.stream.write_all(&self.out)?;
        self.out.clear();
        Ok(())
    }

    /// The next reply, which must not be an error.
    fn receive(&mut self) -> io::Result<(u16, Reply<'_>)> {
        let mut header = [0; Header::SIZE];
        self.reader.read_exact(&mut header)?;
        let header = Header::read_from_bytes(&header).map_err(|_| io::ErrorKind::InvalidData)?;
        self.body.resize((header.size.get() as usize).saturating_sub(Header::SIZE), 0);
        self.reader.read_exact(&mut self.body)?;
        match Reply::decode(header.kind, &self.body).map_err(io::Error::other)? {
            Reply::Lerror { errno } => Err(io::Error::from_raw_os_error(errno as i32)),
            reply => Ok((header.tag.get(), reply)),
        }
    }

    fn ask(&mut self, tag: u16, request: &Request<'_>) -> io::Result<Reply<'_>> {
        self.queue(tag, request);
        self.send()?;
        Ok(self.receive()?.1)
    }

    fn walk(&mut self, fid: u32, new_fid: u32, path: &str) -> io::Result<()> {
        let names: Vec<&[u8]> = path.split('/').filter(|name| !name.is_empty()).map(str::as_bytes).collect();
        self.ask(1, &Request::Walk { fid, new_fid, names: Names::new(&names).ok_or(io::ErrorKind::InvalidInput)? })?;
        Ok(())
    }

    /// Names of the regular files in the directory of `fid`.
    fn files(&mut self, fid: u32) -> io::Result<Vec<Vec<u8>>> {
        self.ask(1, &Request::Lopen { fid, flags: 0 })?;
        let (mut offset, mut files) = (0, Vec::new());
        loop {
            let before = offset;
            if let Reply::Readdir { mut data } = self.ask(1, &Request::Readdir { fid, offset, count: 8000 })? {
                while let Ok((qid, rest)) = Qid::read_from_prefix(data) {
                    let length = usize::from(u16::from_le_bytes([rest[9], rest[10]]));
                    offset = u64::from_le_bytes(rest[..8].try_into().map_err(io::Error::other)?);
                    if qid.kind == Qid::FILE {
                        files.push(rest[11..11 + length].to_vec());
                    }
                    data = &rest[11 + length..];
                }
            }
            if offset == before {
                return Ok(files);
            }
        }
    }
}

const DIRECTORY: u32 = 1;

fn main() -> io::Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let number = |text: &String| text.parse::<u64>().map_err(io::Error::other);
    let [socket, aname, msize, mode, rest @ ..] = &words[..] else {
        return Err(io::Error::other("say socket, aname, msize and what to do"));
    };
    let mut client = Client::connect(socket)?;
    client.ask(NO_TAG, &Request::Version { msize: number(msize)? as u32, version: VERSION })?;
    let aname = aname.as_bytes();
    client.ask(1, &Request::Attach { fid: 0, afid: NO_FID, uname: b"root", aname, uid: 0 })?;
    match (&**mode, rest) {
        ("files", [directory, seconds, depth]) => {
            client.walk(0, DIRECTORY, directory)?;
            client.walk(DIRECTORY, 2, "")?;
            let files = client.files(2)?;
            let rate = drive(&mut client, &files, number(seconds)?, number(depth)? as u16, true)?;
            println!("{rate:.0}");
        }
        ("fids", [count, directory, seconds]) => {
            client.walk(0, DIRECTORY, directory)?;
            client.walk(DIRECTORY, 2, "")?;
            let files = client.files(2)?;
            hold(&mut client, number(count)?, &files)?;
            println!("{:.0}", drive(&mut client, &files, number(seconds)?, 1, false)?);
        }
        _ => return Err(io::Error::other("files DIRECTORY SECONDS DEPTH, or fids COUNT DIRECTORY SECONDS")),
    }
    Ok(())
}

/// Makes `count` fids of the files in turn.
fn hold(client: &mut Client, count: u64, files: &[Vec<u8>]) -> io::Result<()> {
    /// Requests in flight.
    const BATCH: u64 = 64;
    let mut made = 0;
    while made < count {
        let now = BATCH.min(count - made);
        for n in made..made + now {
            let names = Names::new(&[&files[n as usize % files.len()]]).ok_or(io::ErrorKind::InvalidInput)?;
            client.queue((n - made) as u16, &Request::Walk { fid: DIRECTORY, new_fid: 1_000_000 + n as u32, names });
        }
        client.send()?;
        for _ in 0..now {
            client.receive()?;
        }
        made += now;
    }
    Ok(())
}

/// The requests of a lane for its file, in order.
const STEPS: [u8; 5] = [b'w', b'g', b'o', b'r', b'c'];

/// Repeats all files in `depth` lanes; returns requests a second.
fn drive(client: &mut Client, files: &[Vec<u8>], seconds: u64, depth: u16, whole: bool) -> io::Result<f64> {
    let steps: Vec<u8> = STEPS.into_iter().filter(|step| whole || !b"or".contains(step)).collect();
    let mut lanes = vec![(0usize, 0usize); usize::from(depth)];
    let mut next_file = 0;
    let mut asked = |client: &mut Client, lane: u16, lanes: &mut [(usize, usize)]| {
        let (step, file) = &mut lanes[usize::from(lane)];
        if *step == 0 {
            *file = next_file % files.len();
            next_file += 1;
        }
        let fid = 100 + u32::from(lane);
        match steps[*step] {
            b'w' => {
                let names = Names::new(&[&files[*file]]).expect("one name");
                client.queue(lane, &Request::Walk { fid: DIRECTORY, new_fid: fid, names });
            }
            b'g' => client.queue(lane, &Request::Getattr { fid, mask: 0x7ff }),
            b'o' => client.queue(lane, &Request::Lopen { fid, flags: 0 }),
            b'r' => client.queue(lane, &Request::Read { fid, offset: 0, count: 4096 }),
            _ => client.queue(lane, &Request::Clunk { fid }),
        }
        *step = (*step + 1) % steps.len();
    };
    let (started, patience) = (Instant::now(), Duration::from_secs(seconds));
    for lane in 0..depth {
        asked(client, lane, &mut lanes);
    }
    client.send()?;
    let mut done = 0u64;
    while started.elapsed() < patience {
        let lane = client.receive()?.0;
        asked(client, lane, &mut lanes);
        done += 1;
        // Replies to everything that has arrived are sent together.
        if client.reader.buffer().is_empty() {
            client.send()?;
        }
    }
    Ok(done as f64 / started.elapsed().as_secs_f64())
}
