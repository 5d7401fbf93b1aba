//! Makes a small disk with a GPT for tests and fuzzing, and makes the checksums of a damaged one right again (UEFI specification 2.10, section 5.3).

/// Entries of the table.
const ENTRIES: usize = 16;
/// Bytes of an entry.
const ENTRY: usize = 128;
/// Bytes of a header that its checksum covers.
const HEADER: usize = 92;
/// The most bytes of entries that are covered by a checksum here.
const MOST: u64 = 1 << 20;
/// Bytes of the disk.
const SIZE: usize = 160 << 10;
/// The partitions: where each starts, and its bytes. In the first one there is room for the superblock of any file system.
pub const PARTS: [(usize, usize); 3] = [(32 << 10, 80 << 10), (112 << 10, 8 << 10), (120 << 10, 8 << 10)];
/// The type "Linux", and the disk's identifier.
const LINUX: [u8; 16] =
    [0xAF, 0x3D, 0xC6, 0x0F, 0x83, 0x84, 0x72, 0x47, 0x8E, 0x79, 0x3D, 0x69, 0xD8, 0x47, 0x7D, 0xE4];
const DISK: [u8; 16] = [0x22; 16];

/// A disk.
#[derive(Clone)]
pub struct SealedGpt {
    /// Its bytes.
    pub image: Vec<u8>,
    /// Bytes of a logical sector.
    sector: usize,
}

fn put(bytes: &mut [u8], at: usize, new: &[u8]) {
    bytes[at..at + new.len()].copy_from_slice(new);
}

impl SealedGpt {
    /// A disk with sectors of 512 or 4096 bytes, three partitions with nothing in them, and room for more entries.
    pub fn new(sector: usize) -> SealedGpt {
        let mut disk = SealedGpt { image: vec![0; SIZE], sector };
        let sectors = SIZE / sector;
        // The protective entry, of all sectors but the first.
        put(&mut disk.image, 446 + 4, &[0xEE]);
        put(&mut disk.image, 446 + 8, &1_u32.to_le_bytes());
        put(&mut disk.image, 446 + 12, &(sectors as u32 - 1).to_le_bytes());
        put(&mut disk.image, 510, &[0x55, 0xAA]);
        let (headers, entries) = (disk.headers(), disk.entries());
        for copy in 0..2 {
            for (number, (start, length)) in PARTS.iter().enumerate() {
                let at = entries[copy] + number * ENTRY;
                put(&mut disk.image, at, &LINUX);
                put(&mut disk.image, at + 16, &[number as u8 + 1; 16]);
                put(&mut disk.image, at + 32, &((start / sector) as u64).to_le_bytes());
                put(&mut disk.image, at + 40, &(((start + length) / sector - 1) as u64).to_le_bytes());
                // "Legacy BIOS bootable".
                put(&mut disk.image, at + 48, &[if number == 0 { 4 } else { 0 }]);
                put(&mut disk.image, at + 56, b"p\0a\0r\0t\0");
            }
            let at = headers[copy];
            put(&mut disk.image, at, b"EFI PART\0\0\x01\0");
            put(&mut disk.image, at + 12, &(HEADER as u32).to_le_bytes());
            let (own, other, first) = (at / sector, headers[1 - copy] / sector, entries[copy] / sector);
            let usable = [PARTS[0].0 / sector, (PARTS[2].0 + PARTS[2].1) / sector - 1];
            for (place, number) in [(24, own), (32, other), (40, usable[0]), (48, usable[1]), (72, first)] {
                put(&mut disk.image, at + place, &(number as u64).to_le_bytes());
            }
            put(&mut disk.image, at + 56, &DISK);
            put(&mut disk.image, at + 80, &(ENTRIES as u32).to_le_bytes());
            put(&mut disk.image, at + 84, &(ENTRY as u32).to_le_bytes());
            disk.seal(copy);
        }
        disk
    }

    /// Where the header of each copy is.
    pub fn headers(&self) -> [usize; 2] {
        [self.sector, SIZE - self.sector]
    }

    /// Where the entries of each copy are, if no header says otherwise.
    pub fn entries(&self) -> [usize; 2] {
        let bytes = (ENTRIES * ENTRY).next_multiple_of(self.sector);
        [2 * self.sector, SIZE - self.sector - bytes]
    }

    /// Makes the checksums of a copy right: that of the entries where its header says that they are, then that of the header. If the entries would lie in
    /// the header, no checksum is right.
    pub fn seal(&mut self, copy: usize) {
        let at = self.headers()[copy];
        let end = at + self.sector;
        let Some(header) = self.image.get(at..end) else { return };
        let number = |place: usize| header[place..].first_chunk().map_or(0, |bytes| u32::from_le_bytes(*bytes));
        let size = number(12) as usize;
        let (low, high) = (number(72), number(76));
        let entries = (u64::from(high) << 32 | u64::from(low)).checked_mul(self.sector as u64);
        let length = u64::from(number(80)) * u64::from(number(84));
        let range = entries.filter(|_| length <= MOST).and_then(|start| Some((start, start.checked_add(length)?)));
        let covered = range.and_then(|(start, end)| self.image.get(start as usize..end as usize));
        if let Some(sum) = covered.map(crc32fast::hash) {
            put(&mut self.image, at + 88, &sum.to_le_bytes());
        }
        if (HEADER..=self.sector).contains(&size) {
            // The field of the checksum counts as zeros.
            put(&mut self.image, at + 16, &[0; 4]);
            let sum = crc32fast::hash(&self.image[at..at + size]);
            put(&mut self.image, at + 16, &sum.to_le_bytes());
        }
    }
}
