//! Any bytes as a disk image in a container.

use std::io;
use std::sync::Arc;

use inarch_block::{Backing, Cursor, read_backing};
use inarch_confine::Parsing;
use inarch_disk::container::{Container, open, recognise};

use crate::vhdx;

struct Bytes(Vec<u8>);

impl Backing for Bytes {
    fn size(&self) -> u64 {
        self.0.len() as u64
    }

    fn read(&self, offset: u64, count: u64, out: &mut Cursor<'_, '_>) -> io::Result<()> {
        let end = offset.checked_add(count).ok_or(io::ErrorKind::UnexpectedEof)?;
        out.copy_from(self.0.get(offset as usize..end as usize).ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }
}

/// Makes the checksums of a VHD right, or of a VHDX, so that what is behind them is met.
fn seal(kind: Container, bytes: &mut [u8]) {
    let end = bytes.len();
    match kind {
        Container::Vhd => {
            for (start, length, at) in [(end.saturating_sub(512), 512, 64), (0, 512, 64), (512, 1024, 36)] {
                let Some(bytes) = bytes.get_mut(start..start + length) else { continue };
                bytes[at..at + 4].fill(0);
                let sum = !bytes.iter().map(|byte| u32::from(*byte)).sum::<u32>();
                bytes[at..at + 4].copy_from_slice(&sum.to_be_bytes());
            }
        }
        Container::Vhdx => vhdx::seal(bytes),
        _ => {}
    }
}

/// Makes checksums right, and does what [`read`] does.
pub fn open_and_read(kind: Container, bytes: &[u8]) {
    let mut bytes = bytes.to_vec();
    seal(kind, &mut bytes);
    read(kind, bytes);
}

/// Opens the bytes, and gives them for every file that they ask for; reads some of the disk. Returns whether they could be opened.
pub fn read(kind: Container, bytes: Vec<u8>) -> bool {
    let file: Arc<dyn Backing> = Arc::new(Bytes(bytes));
    let _ = recognise(Parsing::unconfined(), &*file);
    let mut asked = 0;
    let again = Arc::clone(&file);
    let mut below = |_: &_| {
        asked += 1;
        (asked < 100).then(|| Arc::clone(&again))
    };
    let Ok(disk) = open(Parsing::unconfined(), kind, file, &mut below) else { return false };
    let size = disk.size();
    for offset in [0, size / 2, size.saturating_sub(10_000)] {
        let mut buffer = vec![0; size.saturating_sub(offset).min(10_000) as usize];
        let _ = read_backing(&*disk, offset, &mut buffer);
        // A disk can have more blocks than can be asked for in a moment.
        disk.lends(offset, (size - offset).min(64 << 20));
    }
    assert!(read_backing(&*disk, size, &mut [0]).is_err());
    true
}
