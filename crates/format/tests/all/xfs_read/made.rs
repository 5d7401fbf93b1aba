//! Makes file systems, and asks our reader about them.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use inarch_block::{Backing, BackingFile, Cursor};
use inarch_confine::Parsing;
use inarch_format::{Damage, TreeAndContent, xfs};
use inarch_tree::{FileType, InodeId, Tree};
use inarch_volume::{Item, Node};

use crate::ext4_read::made::run;

/// Makes a file system of `megabytes`, with some options of mkfs.xfs.
pub fn mkfs(image: &Path, megabytes: u64, options: &[&str]) {
    File::create(image).unwrap().set_len(megabytes << 20).unwrap();
    let mut command = Command::new("mkfs.xfs");
    command.env("PATH", "/usr/sbin:/sbin:/usr/bin:/bin");
    // So it also makes small ones, as for the tests of XFS itself.
    command.envs([("TEST_DIR", "x"), ("TEST_DEV", "x"), ("QA_CHECK_FS", "x")]);
    run(command.arg("-q").args(options).arg(image));
}

fn backing(image: &Path) -> Arc<dyn Backing> {
    Arc::new(BackingFile::new(File::open(image).unwrap(), image.into()).unwrap())
}

/// Opens and walks an image.
pub fn open(image: &Path) -> TreeAndContent {
    xfs::open(Parsing::unconfined(), backing(image)).unwrap()
}

/// Asks on demand for what is in a tree that was walked.
pub fn questions(image: &Path, tree: &Tree) {
    let volume = xfs::open_volume(Parsing::unconfined(), backing(image), Damage::Refused).unwrap();
    let mut pending = vec![(InodeId::ROOT, volume.root())];
    while let Some((id, node)) = pending.pop() {
        let mut listed = BTreeMap::new();
        let mut from = 0;
        // A few at a time, from where the last ones ended.
        loop {
            let mut count = 0;
            volume
                .list(node, from, &mut |item| {
                    let Item::Entry(entry) = item else { panic!("{item:?}") };
                    assert!(listed.insert(entry.name.to_vec(), entry.node).is_none());
                    (from, count) = (entry.next, count + 1);
                    count < 1000
                })
                .unwrap();
            if count < 1000 {
                break;
            }
        }
        assert_eq!(listed.len(), tree.entries(id).len());
        for entry in tree.entries(id) {
            let child = listed[entry.name];
            let inode = tree.inode(entry.inode);
            assert_eq!(child, Node(inode.source_ino()));
            assert_eq!(volume.lookup(node, entry.name).unwrap(), Some(child));
            if inode.file_type() == FileType::Directory {
                assert_eq!(volume.parent(child).unwrap(), Some(node));
                pending.push((entry.inode, child));
            }
        }
        assert_eq!(volume.lookup(node, b"no such name").unwrap(), None);
    }
}

/// An image in memory: its blocks of 4 KiB that are not zeros, with some replaced.
#[derive(Clone)]
pub struct Sparse {
    pub blocks: BTreeMap<u64, Arc<Vec<u8>>>,
    pub size: u64,
}

const BLOCK: u64 = 4096;

impl Sparse {
    pub fn read(path: &Path) -> Sparse {
        let (mut file, mut blocks, mut number) = (File::open(path).unwrap(), BTreeMap::new(), 0);
        let mut block = vec![0; BLOCK as usize];
        while file.read_exact(&mut block).is_ok() {
            if block.iter().any(|byte| *byte != 0) {
                blocks.insert(number, Arc::new(block.clone()));
            }
            number += 1;
        }
        Sparse { blocks, size: number * BLOCK }
    }

    pub fn bytes(&self, at: u64, length: usize) -> Vec<u8> {
        (at..at + length as u64)
            .map(|at| self.blocks.get(&(at / BLOCK)).map_or(0, |block| block[(at % BLOCK) as usize]))
            .collect()
    }

    pub fn put(&mut self, at: u64, bytes: &[u8]) {
        for (at, byte) in (at..).zip(bytes) {
            let block = self.blocks.entry(at / BLOCK).or_insert_with(|| Arc::new(vec![0; BLOCK as usize]));
            Arc::make_mut(block)[(at % BLOCK) as usize] = *byte;
        }
    }

    /// Writes the checksum of `length` bytes at `at`, whose place in them is `checksum`.
    pub fn seal(&mut self, at: u64, length: usize, checksum: usize) {
        self.put(at + checksum as u64, &[0; 4]);
        let crc = crc32c::crc32c(&self.bytes(at, length));
        self.put(at + checksum as u64, &crc.to_le_bytes());
    }

    /// Makes the checksums of a block right again, whatever is in it; version 4 has none.
    pub fn seal_block(&mut self, number: u64, block_size: u64, inode_size: u64) {
        if self.bytes(100, 2)[1] & 0xF != 5 {
            return;
        }
        for at in (number * BLOCK..(number + 1) * BLOCK).step_by(block_size as usize) {
            let head = self.bytes(at, 12);
            match (&head[..4], &head[8..10]) {
                (b"XFSB", _) => self.seal(at, 512, 224),
                ([b'I', b'N', ..], _) => {
                    (0..block_size / inode_size).for_each(|i| self.seal(at + i * inode_size, inode_size as usize, 100));
                }
                (b"XDB3" | b"XDD3", _) => self.seal(at, block_size as usize, 4),
                (b"BMA3", _) => self.seal(at, block_size as usize, 64),
                (b"XARM" | b"XSLM", _) | (_, [0x3E | 0x3D | 0x3B, 0xBE | 0xF1 | 0xFF | 0xEE]) => {
                    self.seal(at, block_size as usize, 12);
                }
                _ => {}
            }
        }
    }
}

impl Backing for Sparse {
    fn size(&self) -> u64 {
        self.size
    }

    fn read(&self, offset: u64, count: u64, out: &mut Cursor<'_, '_>) -> io::Result<()> {
        let end = offset.checked_add(count).filter(|end| *end <= self.size).ok_or(io::ErrorKind::UnexpectedEof)?;
        let mut at = offset;
        while at < end {
            let within = (at % BLOCK) as usize;
            let now = (BLOCK as usize - within).min((end - at) as usize);
            match self.blocks.get(&(at / BLOCK)) {
                Some(bytes) => out.copy_from(&bytes[within..within + now]),
                None => out.fill_zeros(now as u64),
            }
            at += now as u64;
        }
        Ok(())
    }
}
