//! The image's bytes: its superblock, ranges, and decompressed blocks.

use std::sync::{Arc, Mutex, PoisonError};

use inarch_block::{Backing, read_backing};
use zerocopy::{FromBytes, IntoBytes};

use crate::squashfs::codec::{Corrupt, Decoder, algorithm};
use crate::squashfs::spec::superblock::{MAGIC, Superblock};
use crate::squashfs::spec::{MAX_BLOCK_SIZE, MIN_BLOCK_SIZE, NO_TABLE};
use inarch_volume::VolumeError;

use crate::Algorithm;

/// An opened image.
pub(super) struct Image {
    pub(super) backing: Arc<dyn Backing>,
    pub(super) superblock: Superblock,
    algorithm: Algorithm,
    /// Decoders that nobody uses at the moment; never more than there were threads that read at once.
    idle: Mutex<Vec<Worker>>,
}

/// A decoder, and room for a block as it is on disk.
struct Worker {
    decoder: Decoder,
    input: Vec<u8>,
}

/// An inconsistent image: what was found, where, and what was expected.
pub(super) fn wrong(reason: impl Into<String>) -> VolumeError {
    VolumeError::Damaged(reason.into())
}

impl Image {
    /// Reads and checks the superblock.
    pub(super) fn open(backing: Arc<dyn Backing>) -> Result<Image, VolumeError> {
        let size = backing.size();
        if size < size_of::<Superblock>() as u64 {
            return Err(wrong(format!("{size} bytes are too few for a superblock")));
        }
        let mut superblock = Superblock::new(0, MIN_BLOCK_SIZE);
        read_backing(&*backing, 0, superblock.as_mut_bytes()).map_err(|error| VolumeError::Io { offset: 0, error })?;
        check(&superblock, size)?;
        let algorithm = algorithm(superblock.compressor.get()).map_err(|name| {
            wrong(format!("the image is compressed with {name}, which is not supported; gzip, lz4, xz and zstd are"))
        })?;
        Ok(Image { backing, superblock, algorithm, idle: Mutex::default() })
    }

    pub(super) fn block_size(&self) -> u32 {
        self.superblock.block_size.get()
    }

    /// Bytes of the image in use; everything is below this.
    pub(super) fn bytes_used(&self) -> u64 {
        self.superblock.bytes_used.get()
    }

    /// Whether `length` bytes from `offset` are in the image.
    pub(super) fn contains(&self, offset: u64, length: u64) -> bool {
        offset.checked_add(length).is_some_and(|end| end <= self.bytes_used())
    }

    /// Fills `out` from `offset`.
    pub(super) fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), VolumeError> {
        if !self.contains(offset, out.len() as u64) {
            return Err(wrong(format!("{} bytes at byte {offset} reach beyond the end of the image", out.len())));
        }
        read_backing(&*self.backing, offset, out).map_err(|error| VolumeError::Io { offset, error })
    }

    /// A structure at `offset`.
    pub(super) fn read_struct<T: FromBytes + IntoBytes>(&self, offset: u64) -> Result<T, VolumeError> {
        let mut value = T::new_zeroed();
        self.read(offset, value.as_mut_bytes())?;
        Ok(value)
    }

    /// `count` little-endian 64-bit numbers from `offset`.
    pub(super) fn read_offsets(&self, offset: u64, count: usize) -> Result<Vec<u64>, VolumeError> {
        // Checked before it is allocated.
        if !self.contains(offset, count as u64 * 8) {
            return Err(wrong(format!(
                "a table of {count} offsets at byte {offset} reaches beyond the end of the image"
            )));
        }
        let mut bytes = vec![0; count * 8];
        self.read(offset, &mut bytes)?;
        Ok(bytes.as_chunks::<8>().0.iter().map(|number| u64::from_le_bytes(*number)).collect())
    }

    /// Decompresses `length` bytes at `offset` into `out`; returns how many bytes came out, or an inner `Corrupt` if
    /// they are not valid.
    pub(super) fn decode(
        &self,
        offset: u64,
        length: usize,
        out: &mut [u8],
    ) -> Result<Result<usize, Corrupt>, VolumeError> {
        let idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let mut worker = match idle {
            Some(worker) => worker,
            None => {
                let decoder = Decoder::new(self.algorithm).map_err(|error| VolumeError::Io { offset, error })?;
                Worker { decoder, input: Vec::new() }
            }
        };
        worker.input.resize(length, 0);
        let read = self.read(offset, &mut worker.input);
        let result = read.map(|()| worker.decoder.decode(&worker.input, out));
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).push(worker);
        result
    }
}

/// Whether a superblock can be that of an image of `size` bytes.
fn check(superblock: &Superblock, size: u64) -> Result<(), VolumeError> {
    let magic = superblock.magic.get();
    if magic == MAGIC.swap_bytes() {
        return Err(wrong("the image is big-endian, of a version before 4; make it anew with mksquashfs 4"));
    }
    if magic != MAGIC {
        return Err(wrong(format!("found the magic number {magic:#010x} at byte 0, expected {MAGIC:#010x}")));
    }
    let version = (superblock.major.get(), superblock.minor.get());
    if version != (4, 0) {
        return Err(wrong(format!("version {}.{} is not supported; 4.0 is", version.0, version.1)));
    }
    let block_size = superblock.block_size.get();
    let in_range = (MIN_BLOCK_SIZE..=MAX_BLOCK_SIZE).contains(&block_size) && block_size.is_power_of_two();
    if !in_range || u32::from(superblock.block_log.get()) != block_size.trailing_zeros() {
        let log = superblock.block_log.get();
        return Err(wrong(format!(
            "a block size of {block_size} bytes (log {log}) is no power of two from 4096 to 1048576"
        )));
    }
    let used = superblock.bytes_used.get();
    if used > size {
        return Err(wrong(format!("the image was cut off: it has {size} bytes of {used}")));
    }
    let tables = [
        ("inode", superblock.inode_table.get(), false),
        ("directory", superblock.directory_table.get(), false),
        ("id", superblock.id_table.get(), false),
        ("fragment", superblock.fragment_table.get(), true),
        ("xattr", superblock.xattr_table.get(), true),
    ];
    for (name, start, optional) in tables {
        if start >= used && !(optional && (start == NO_TABLE || superblock.fragments.get() == 0)) {
            return Err(wrong(format!("the {name} table starts at byte {start}, beyond the image's end at {used}")));
        }
    }
    if superblock.inode_table.get() >= superblock.directory_table.get() {
        return Err(wrong("the directory table starts before the inode table"));
    }
    Ok(())
}
