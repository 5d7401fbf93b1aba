//! [`read_answers`]: reads any bytes as the host reads what the appliance's program says.

use super::FileAttributes;
use super::error::one_line;
use super::wire::{Answer, DATA_MOST, Entry, Hello, Kind, decode, receive};

/// Reads what a program says, as the host does, until it ends or makes no sense. Returns how many frames there were. For
/// tests with arbitrary bytes.
pub fn read_answers(mut bytes: &[u8]) -> usize {
    let mut frames = 0;
    while let Ok(Some((kind, content))) = receive(&mut bytes) {
        frames += 1;
        let is_read = match kind {
            Kind::Message => decode::<Hello>(&content).is_ok() || decode::<Answer>(&content).is_ok(),
            Kind::Data => {
                decode::<Entry>(&content).is_ok_and(|entry| FileAttributes::of(entry).is_some())
                    || content.len() <= DATA_MOST
            }
            Kind::Note => !one_line(&content).contains('\u{1b}'),
            Kind::End | Kind::GiveUp => content.is_empty(),
        };
        if !is_read {
            break;
        }
    }
    frames
}
