//! Any bytes from a guest in place of its agent's frames: the session ends with an outcome or an error, and never panics.

#![no_main]

use std::io::Write;
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use inarch_vm::protocol::{Decoder, PROTOCOL_VERSION, SessionRequest};
use inarch_vm::session::{Session, SessionOptions, Streams};
use libfuzzer_sys::fuzz_target;

/// HELLO of the version that is spoken, so that most inputs get past the greeting.
const HELLO: [u8; 9] = {
    let [a, b, c, d] = PROTOCOL_VERSION.to_le_bytes();
    [1, 4, 0, 0, 0, a, b, c, d]
};

fuzz_target!(|bytes: &[u8]| {
    let mut decoder = Decoder::new();
    for piece in bytes.chunks(1000) {
        decoder.push(piece);
        while let Ok(Some(_)) = decoder.next() {}
    }

    // No more than fits into the socket's buffer, so that nothing blocks.
    let (ours, mut guest) = UnixStream::pair().expect("a pair of sockets");
    guest.set_nonblocking(true).expect("a socket that does not block");
    let _ = guest.write_all(&HELLO).and_then(|()| guest.write_all(bytes));
    guest.shutdown(Shutdown::Write).expect("an end of the stream");
    let null = || std::fs::OpenOptions::new().read(true).write(true).open("/dev/null").expect("/dev/null").into();
    let streams = Streams { input: Some(null()), output: null(), error: null() };
    let session = Session::greet(ours, Duration::from_secs(5)).expect("HELLO comes first");
    let _ = session.run(&SessionRequest::default(), streams, &SessionOptions::default());
});
