//! Any bytes as a disk image in a container.

use std::io;
use std::sync::Arc;

use inarch_block::{Backing, Cursor, read_backing};
use inarch_confine::Parsing;
use inarch_disk::container::{Container, open, recognise};

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

/// Opens the bytes, and gives them for every file that they ask for; reads some of the disk.
pub fn open_and_read(kind: Container, bytes: &[u8]) {
    let file: Arc<dyn Backing> = Arc::new(Bytes(bytes.to_vec()));
    let _ = recognise(Parsing::unconfined(), &*file);
    let mut asked = 0;
    let again = Arc::clone(&file);
    let mut below = |_: &_| {
        asked += 1;
        (asked < 100).then(|| Arc::clone(&again))
    };
    let Ok(disk) = open(Parsing::unconfined(), kind, file, &mut below) else { return };
    let size = disk.size();
    for offset in [0, size / 2, size.saturating_sub(10_000)] {
        let mut buffer = vec![0; size.saturating_sub(offset).min(10_000) as usize];
        let _ = read_backing(&*disk, offset, &mut buffer);
        disk.lends(offset, size - offset);
    }
    assert!(read_backing(&*disk, size, &mut [0]).is_err());
}
