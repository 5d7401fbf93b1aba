//! Any bytes from a guest, in pieces of any size: the decoder of the agent's frames returns frames or an error, independent of
//! the pieces, and buffers at most one frame.

#![no_main]

use inarch_vm::protocol::Decoder;
use libfuzzer_sys::fuzz_target;

/// The frames and the end of a stream that comes in pieces of `size` bytes.
fn decode(bytes: &[u8], size: usize) -> Vec<String> {
    let mut decoder = Decoder::new();
    let mut frames = Vec::new();
    for piece in bytes.chunks(size) {
        decoder.push(piece);
        loop {
            match decoder.next() {
                Ok(Some(frame)) => frames.push(format!("{frame:?}")),
                Ok(None) => break,
                Err(error) => {
                    frames.push(error.to_string());
                    return frames;
                }
            }
        }
    }
    frames
}

fuzz_target!(|bytes: &[u8]| {
    let whole = decode(bytes, bytes.len().max(1));
    for size in [1, 3, 7, 1000] {
        assert_eq!(decode(bytes, size), whole);
    }
});
