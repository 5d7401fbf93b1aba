//! Processes a piece of a file: reads it, finds zeros, hashes and compresses blocks.

use std::io;

use inarch_block::{Content, Progress, read_content};
use inarch_tree::InodeId;
use sha2::{Digest, Sha256};

use super::duplicates::Duplicates;
use super::jobs::Piece;
use crate::squashfs::codec::{Encoder, Settings};
use crate::squashfs::spec::BLOCK_STORED;

/// A hash of a block's content.
pub(super) type Hash = [u8; 32];

/// A piece of a file, ready to be written.
pub(super) struct Done {
    pub(super) inode: InodeId,
    /// Blocks without data ahead of all others.
    pub(super) holes: u64,
    /// The sizes of the other blocks, as in the list of blocks.
    pub(super) sizes: Vec<u32>,
    /// Their bytes on disk, one after another.
    pub(super) bytes: Vec<u8>,
    /// The file's end, for a fragment: less than a block.
    pub(super) tail: Vec<u8>,
    /// Whether there may be another file of the same content.
    pub(super) hashed: bool,
    /// If so, the hashes of blocks and end, without those of `holes`. A block of zeros has one of zeros.
    pub(super) hashes: Vec<Hash>,
    /// Whether the file ends here.
    pub(super) last: bool,
}

/// A block in its stored form.
pub(super) struct Packed {
    /// As in the list of blocks.
    pub(super) size: u32,
    pub(super) bytes: Vec<u8>,
}

/// What all threads share.
#[derive(Clone, Copy)]
pub(super) struct Shared<'a> {
    pub(super) content: &'a dyn Content,
    pub(super) progress: &'a dyn Progress,
    pub(super) duplicates: &'a Duplicates,
    pub(super) settings: &'a Settings,
    pub(super) block_size: u32,
}

/// One thread's memory.
pub(super) struct Worker<'a> {
    shared: Shared<'a>,
    encoder: Encoder,
    buffer: Vec<u8>,
}

impl<'a> Worker<'a> {
    pub(super) fn new(shared: Shared<'a>) -> io::Result<Worker<'a>> {
        Ok(Worker { shared, encoder: Encoder::new(shared.settings)?, buffer: Vec::new() })
    }

    pub(super) fn run(&mut self, piece: &Piece) -> io::Result<Done> {
        let block_size = u64::from(self.shared.block_size);
        let mut done = Done {
            inode: piece.inode,
            holes: 0,
            sizes: Vec::new(),
            bytes: Vec::new(),
            tail: Vec::new(),
            hashed: self.shared.duplicates.may_have(piece.inode),
            hashes: Vec::new(),
            last: piece.last,
        };
        if piece.hole {
            done.holes = piece.length.div_ceil(block_size);
        } else {
            self.buffer.resize(piece.length as usize, 0);
            read_content(self.shared.content, piece.inode, piece.offset, &mut self.buffer)?;
            for block in self.buffer.chunks(block_size as usize) {
                let zeros = is_zeros(block);
                if done.hashed {
                    done.hashes.push(if zeros { [0; 32] } else { Sha256::digest(block).into() });
                }
                if zeros {
                    done.sizes.push(0);
                } else if block.len() < block_size as usize {
                    done.tail = block.to_vec();
                } else {
                    push_block(&mut self.encoder, block, &mut done)?;
                }
            }
        }
        self.shared.progress.advance(piece.length, 0);
        Ok(done)
    }

    /// Compresses a block of its own.
    pub(super) fn pack(&mut self, block: &[u8]) -> io::Result<Packed> {
        Ok(match self.encoder.encode(block)? {
            Some(encoded) => Packed { size: encoded.len() as u32, bytes: encoded.to_vec() },
            None => Packed { size: BLOCK_STORED | block.len() as u32, bytes: block.to_vec() },
        })
    }
}

fn push_block(encoder: &mut Encoder, block: &[u8], done: &mut Done) -> io::Result<()> {
    let encoded = encoder.encode(block)?;
    let bytes = encoded.unwrap_or(block);
    done.bytes.extend_from_slice(bytes);
    done.sizes.push(bytes.len() as u32 | if encoded.is_some() { 0 } else { BLOCK_STORED });
    Ok(())
}

fn is_zeros(block: &[u8]) -> bool {
    let (chunks, rest) = block.as_chunks::<64>();
    chunks.iter().all(|chunk| *chunk == [0; 64]) && rest.iter().all(|byte| *byte == 0)
}
