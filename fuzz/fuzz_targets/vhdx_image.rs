//! Any VHDX is opened or refused, and what it says lies within it. An input is a small one with bytes replaced and checksums made right again, closed or
//! with a log; or an image itself.

#![no_main]

use std::sync::LazyLock;

use arbitrary::{Arbitrary, Unstructured};
use inarch_disk::container::Container;
use inarch_fuzz::container::{open_and_read, read};
use inarch_fuzz::vhdx::{Patch, base, change, seal, tear};
use libfuzzer_sys::fuzz_target;

#[derive(Arbitrary, Debug)]
struct Input<'a> {
    has_log: bool,
    is_torn: bool,
    length: Option<u16>,
    patches: Vec<Patch<'a>>,
}

/// Without a log, and with one.
static BASES: LazyLock<[Vec<u8>; 2]> = LazyLock::new(|| {
    let bases = [base(false), base(true)];
    // What is refused as it is would hide what its changes do.
    assert!(bases.iter().all(|base| read(Container::Vhdx, base.clone())));
    bases
});

fuzz_target!(|bytes: &[u8]| {
    if bytes.starts_with(b"vhdxfile") {
        open_and_read(Container::Vhdx, bytes);
    } else if let Ok(input) = Input::arbitrary_take_rest(Unstructured::new(bytes)) {
        let mut image = BASES[usize::from(input.has_log)].clone();
        change(&mut image, &input.patches);
        seal(&mut image);
        if input.is_torn {
            tear(&mut image);
        }
        image.truncate(input.length.map_or(image.len(), |length| usize::from(length) * 16));
        read(Container::Vhdx, image);
    }
});
