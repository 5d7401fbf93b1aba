//! A 9P client sends anything, from its first byte to its last.

#![no_main]

use std::io::{self, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, OnceLock};
use std::thread;

use arbitrary::Arbitrary;
use inarch_ninep::wire::{Reply, Request};
use inarch_ninep::{NinepOptions, NinepServer};
use inarch_server::Pending;
use inarch_vfs::{FileSystem, HostDirectory, HostOptions};
use libfuzzer_sys::fuzz_target;

/// Messages with a valid header, and random bytes.
#[derive(Arbitrary, Debug)]
enum Message {
    Version { msize: u32 },
    Attach { fid: u8, uid: bool },
    Walk { fid: u8, new_fid: u8, up: bool, names: Vec<u8> },
    Any { kind: u8, tag: u8, body: Vec<u8> },
    Raw(Vec<u8>),
}

fn frame(kind: u8, tag: u16, body: &[u8]) -> Vec<u8> {
    [&(body.len() as u32 + 7).to_le_bytes()[..], &[kind], &tag.to_le_bytes(), body].concat()
}

impl Message {
    fn bytes(&self) -> Vec<u8> {
        match self {
            Message::Version { msize } => frame(100, 0xffff, &[&msize.to_le_bytes()[..], b"\x08\09P2000.L"].concat()),
            Message::Attach { fid, uid } => {
                frame(104, 1, &[&[*fid, 0, 0, 0, 255, 255, 255, 255, 0, 0, 0, 0][..], &[u8::from(*uid), 0, 0, 0]].concat())
            }
            Message::Walk { fid, new_fid, up, names } => {
                let names: Vec<u8> = names
                    .iter()
                    .take(16)
                    .flat_map(|name| if *up { vec![2, 0, b'.', b'.'] } else { vec![1, 0, b'a' + name % 3] })
                    .collect();
                let count = (names.len() / if *up { 4 } else { 3 }) as u16;
                frame(110, 2, &[&[*fid, 0, 0, 0, *new_fid, 0, 0, 0][..], &count.to_le_bytes(), &names].concat())
            }
            Message::Any { kind, tag, body } => frame(*kind, (*tag).into(), body),
            Message::Raw(bytes) => bytes.clone(),
        }
    }
}

/// One server of an empty directory that is read-only, so that one input leaves nothing to the next.
fn server() -> &'static NinepServer {
    static SERVER: OnceLock<NinepServer> = OnceLock::new();
    SERVER.get_or_init(|| {
        let path = std::env::temp_dir().join(format!("inarch-ninep-frames-{}", std::process::id()));
        for name in ["a/b/c", "b/a", "c"] {
            std::fs::create_dir_all(path.join(name)).unwrap();
        }
        std::fs::write(path.join("a/a"), b"content").unwrap();
        let options = HostOptions { read_only: true, locks: true, ..HostOptions::default() };
        let directory: Arc<dyn FileSystem> = Arc::new(HostDirectory::new(&path, options).unwrap());
        NinepServer::new(Arc::new(Pending::ready(Arc::new(directory))), NinepOptions::default())
    })
}

fuzz_target!(|messages: Vec<Message>| {
    let said: Vec<u8> = messages.iter().flat_map(Message::bytes).collect();
    // A decoded request encodes to the same bytes.
    if let [_, _, _, _, kind, _, _, body @ ..] = &said[..] {
        if let Ok(request) = Request::decode(*kind, body) {
            let mut again = Vec::new();
            request.encode(1, &mut again);
            assert_eq!(Request::decode(again[4], &again[7..]), Ok(request));
        }
        let _ = Reply::decode(*kind, body);
    }
    let (mut ours, theirs) = UnixStream::pair().unwrap();
    let mut listening = ours.try_clone().unwrap();
    let listener = thread::spawn(move || io::copy(&mut listening, &mut io::sink()));
    let speaker = thread::spawn(move || {
        // The server may disconnect first.
        let _ = ours.write_all(&said);
        let _ = ours.shutdown(Shutdown::Write);
    });
    // A connection may end in any way, but without a panic.
    let ended = server().serve_stream(theirs);
    assert!(!matches!(ended, Err(inarch_ninep::ConnectionError::Panicked)));
    speaker.join().unwrap();
    let _ = listener.join().unwrap();
});
