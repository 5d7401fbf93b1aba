//! Any LUKS header is understood or refused, and what it opens is within what it lies on. Checksums are right.

#![no_main]

#[path = "../../crates/disk/src/luks/build.rs"]
mod build;

use std::sync::Arc;

use arbitrary::Arbitrary;
use inarch_block::read_backing;
use inarch_confine::Parsing;
use inarch_disk::{Key, Keys, Names, Piece, above};
use inarch_fuzz::image::{Memory, replace};
use libfuzzer_sys::fuzz_target;

#[derive(Arbitrary, Debug)]
enum Input<'a> {
    /// Bytes to be replaced in a header of version 1.
    First(Vec<(u16, &'a [u8])>),
    /// The same in one of version 2, whose JSON area is given or the usual one.
    Second(Vec<(u16, &'a [u8])>, Option<&'a str>),
    /// A part of the JSON area by another.
    Replaced(&'a str, &'a str),
}

/// Derivations with many iterations are refused, but those below the limit would take the fuzzer's time.
fn is_slow(image: &[u8]) -> bool {
    let number = |at: usize| image.get(at..at + 4).map(|bytes| u32::from_be_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]));
    let is_first = image.get(7) == Some(&1);
    let slots = (0..8).map(|slot| 212 + 48 * slot);
    if is_first {
        return slots.chain([164]).any(|at| number(at).is_some_and(|number| number > 1000));
    }
    let text = String::from_utf8_lossy(image);
    let mut digits = text.split(|c: char| !c.is_ascii_digit());
    digits.any(|digits| digits.len() > 3 && !["32768", "33280", "12288"].contains(&digits))
}

fuzz_target!(|input: Input<'_>| {
    let mut image = match &input {
        Input::First(_) => build::first(),
        Input::Second(_, json) => build::second(json.unwrap_or(&build::json(build::CRYPT))),
        Input::Replaced(from, to) if !from.is_empty() => build::second(&build::json(build::CRYPT).replacen(from, to, 1)),
        Input::Replaced(..) => return,
    };
    if let Input::First(patches) | Input::Second(patches, _) = &input {
        for (at, bytes) in patches {
            replace(&mut image, usize::from(*at) % 0x4000, &bytes[..bytes.len().min(64)]);
        }
    }
    if !matches!(input, Input::First(_)) {
        build::seal(&mut image);
    }
    if is_slow(&image) {
        return;
    }
    let key = Key { volume: None, bytes: Arc::new(b"secret".to_vec().into()) };
    let piece = Piece { name: "p".to_owned(), names: Names::default(), backing: Arc::new(Memory(image)) };
    let Ok(found) = above(Parsing::unconfined(), &[piece], &Keys::new(vec![key])) else { return };
    for bytes in found.list.iter().filter_map(|volume| volume.bytes.as_ref().ok()) {
        let last = bytes.size().checked_sub(1).expect("no volume is empty");
        read_backing(&**bytes, last, &mut [0]).expect("it is within what it lies on");
        read_backing(&**bytes, 0, &mut vec![0; bytes.size().min(64 << 10) as usize])
            .expect("it is within what it lies on");
    }
});
