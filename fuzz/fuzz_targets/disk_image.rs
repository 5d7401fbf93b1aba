//! Any bytes as a disk image: it is examined or refused, and no partition lies outside of what can be read.

#![no_main]

use std::io;
use std::sync::Arc;

use inarch_block::{Backing, Cursor};
use inarch_confine::Parsing;
use libfuzzer_sys::fuzz_target;

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

fuzz_target!(|bytes: &[u8]| {
    let image: Arc<dyn Backing> = Arc::new(Bytes(bytes.to_vec()));
    for format in ["ext4", "xfs", "btrfs", "jfs", "reiserfs", "nilfs2", "ntfs", "exfat", "vfat", "f2fs", "hfs", "hfsplus", "swap"] {
        let _ = inarch_disk::space(Parsing::unconfined(), &*image, format);
    }
    if let Ok(disk) = inarch_disk::examine(Parsing::unconfined(), &image) {
        for part in disk.parts.iter().filter(|part| part.content.is_some()) {
            assert!(part.start + part.length <= disk.size);
        }
    }
});
