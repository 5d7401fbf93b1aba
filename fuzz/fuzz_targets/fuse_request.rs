//! A client sends anything as requests, in pieces of any size, with any room for the reply.
//!
//! The file system checks that names are valid and sizes are bounded; the target checks that replies are
//! well-formed.

#![no_main]

use std::sync::Arc;
use std::time::Duration;

use arbitrary::Arbitrary;
use inarch_fuse::{ConnectionOptions, Dispatcher, MAX_DATA, Scratch};
use inarch_tree::Timestamp;
use inarch_vfs::{
    Attributes, Context, DirectoryEntry, DirectorySink, Entry, FileSystem, HandleId, NewNode, NodeId, OpenHandle,
    SetAttributes, WriteKind, check_name, not_supported,
};
use libfuzzer_sys::fuzz_target;
use rustix::io::Errno;
use vm_memory::VolatileSlice;

#[derive(Arbitrary, Debug)]
struct Message {
    opcode: u8,
    node: u64,
    unique: u64,
    extension: u16,
    /// The length in the header, if it differs from the message's.
    length: Option<u32>,
    body: Vec<u8>,
    piece: u8,
    room: u16,
}

#[derive(Arbitrary, Debug)]
struct Input {
    start: bool,
    messages: Vec<Message>,
}

/// A file system that stores nothing and checks everything.
struct Checked;

const TIME: Timestamp = Timestamp { seconds: 0, nanoseconds: 0 };

fn attributes_of(node: NodeId) -> Attributes {
    Attributes {
        inode: node.0,
        mode: 0o100_644,
        links: 1,
        uid: 0,
        gid: 0,
        device: 0,
        size: 0,
        blocks: 0,
        block_size: 4096,
        atime: TIME,
        mtime: TIME,
        ctime: TIME,
        birth: None,
        version: 0,
        valid: Duration::ZERO,
        is_submount: false,
    }
}

fn entry_of(name: &[u8]) -> Entry {
    assert_eq!(check_name(name), Ok(()));
    let node = NodeId(name.len() as u64 + 1);
    Entry { node, generation: 0, attributes: attributes_of(node), valid: Duration::ZERO }
}

fn length(slices: &[VolatileSlice<'_>]) -> usize {
    slices.iter().map(|slice| slice.len()).sum()
}

impl FileSystem for Checked {
    fn lookup(&self, _: &Context<'_>, _: NodeId, name: &[u8]) -> Result<Entry, Errno> {
        let entry = entry_of(name);
        if name.len().is_multiple_of(2) { Err(Errno::NOENT) } else { Ok(entry) }
    }

    fn absence_valid(&self, parent: NodeId) -> Duration {
        Duration::from_secs(parent.0 % 2)
    }

    fn attributes(&self, _: &Context<'_>, node: NodeId, _: Option<HandleId>) -> Result<Attributes, Errno> {
        Ok(attributes_of(node))
    }

    fn peek_attributes(&self, _: &Context<'_>, node: NodeId, _: Option<HandleId>) -> Result<Attributes, Errno> {
        Ok(attributes_of(node))
    }

    fn is_contested(&self, node: NodeId) -> bool {
        node.0.is_multiple_of(3)
    }

    fn set_attributes(
        &self,
        _: &Context<'_>,
        node: NodeId,
        _: Option<HandleId>,
        _: &SetAttributes,
    ) -> Result<Attributes, Errno> {
        Ok(attributes_of(node))
    }

    fn make_node(&self, _: &Context<'_>, _: NodeId, name: &[u8], _: &NewNode) -> Result<Entry, Errno> {
        Ok(entry_of(name))
    }

    fn make_directory(&self, _: &Context<'_>, _: NodeId, name: &[u8], _: &NewNode) -> Result<Entry, Errno> {
        Ok(entry_of(name))
    }

    fn make_symlink(&self, _: &Context<'_>, _: NodeId, name: &[u8], target: &[u8]) -> Result<Entry, Errno> {
        assert!(!target.is_empty() && target.len() < 4096 && !target.contains(&0));
        Ok(entry_of(name))
    }

    fn link(&self, _: &Context<'_>, _: NodeId, _: NodeId, name: &[u8]) -> Result<Entry, Errno> {
        Ok(entry_of(name))
    }

    fn unlink(&self, _: &Context<'_>, _: NodeId, name: &[u8]) -> Result<(), Errno> {
        check_name(name)
    }

    fn rename(&self, _: &Context<'_>, _: NodeId, name: &[u8], _: NodeId, new: &[u8], _: u32) -> Result<(), Errno> {
        entry_of(name);
        entry_of(new);
        Ok(())
    }

    fn open(&self, _: &Context<'_>, node: NodeId, _: u32) -> Result<OpenHandle, Errno> {
        Ok(OpenHandle { handle: HandleId(node.0), ..OpenHandle::default() })
    }

    fn create(&self, _: &Context<'_>, _: NodeId, name: &[u8], _: &NewNode, _: u32) -> Result<(Entry, OpenHandle), Errno> {
        Ok((entry_of(name), OpenHandle::default()))
    }

    fn read(&self, _: &Context<'_>, _: NodeId, _: HandleId, _: u64, out: &[VolatileSlice<'_>]) -> Result<usize, Errno> {
        assert!(length(out) <= MAX_DATA as usize);
        Ok(length(out))
    }

    fn write(
        &self,
        _: &Context<'_>,
        _: NodeId,
        _: HandleId,
        _: u64,
        data: &[VolatileSlice<'_>],
        _: WriteKind,
    ) -> Result<usize, Errno> {
        assert!(length(data) <= MAX_DATA as usize);
        Ok(length(data))
    }

    fn read_directory(
        &self,
        _: &Context<'_>,
        _: NodeId,
        _: HandleId,
        offset: u64,
        sink: &mut dyn DirectorySink,
    ) -> Result<(), Errno> {
        let entry = sink.wants_entries().then(|| entry_of(b"name"));
        for next in offset..offset.saturating_add(1 << 16) {
            if !sink.push(&DirectoryEntry { inode: 1, next, mode: 0o100_644, name: b"name", entry }) {
                break;
            }
        }
        Ok(())
    }

    fn get_xattr(&self, _: &Context<'_>, _: NodeId, name: &[u8]) -> Result<Vec<u8>, Errno> {
        assert!(!name.is_empty() && name.len() <= 255 && !name.contains(&0));
        Ok(name.to_vec())
    }

    fn set_xattr(&self, _: &Context<'_>, _: NodeId, name: &[u8], value: &[u8], _: u32, _: bool) -> Result<(), Errno> {
        assert!(!name.is_empty() && name.len() <= 255 && value.len() <= 65536);
        Ok(())
    }

    not_supported! {
        parent, forget, disconnected, read_link, remove_directory, create_unnamed, copy_range, flush, fsync, sync,
        fallocate, seek, release, open_directory, release_directory, list_xattrs, remove_xattr, test_lock,
        set_lock, statistics, host_file, interrupted
    }
}

/// `struct fuse_in_header` and what follows.
fn encode(message: &Message, length: u32) -> Vec<u8> {
    let opcode = u32::from(message.opcode % 56);
    let mut bytes = [length.to_ne_bytes(), opcode.to_ne_bytes()].concat();
    bytes.extend(message.unique.to_ne_bytes());
    bytes.extend(message.node.to_ne_bytes());
    bytes.extend([0; 12]);
    bytes.extend(message.extension.to_ne_bytes());
    bytes.extend([0; 2]);
    bytes.extend(&message.body);
    bytes
}

fuzz_target!(|input: Input| {
    let dispatcher = Dispatcher::new(Arc::new(Checked), ConnectionOptions::default(), 1);
    let mut scratch = Scratch::default();
    let start = Message {
        opcode: 26,
        node: 0,
        unique: 1,
        extension: 0,
        length: None,
        body: [7u32, 45, 0, u32::MAX, u32::MAX].iter().flat_map(|word| word.to_ne_bytes()).collect(),
        piece: 255,
        room: 4096,
    };
    for message in input.start.then_some(&start).into_iter().chain(&input.messages) {
        let length = message.length.unwrap_or(40 + message.body.len() as u32);
        let mut bytes = encode(message, length);
        let mut out = vec![0; usize::from(message.room)];
        let piece = usize::from(message.piece).max(1);
        let written = {
            let message: Vec<_> = bytes.chunks_mut(piece).map(VolatileSlice::from).collect();
            let out: Vec<_> = out.chunks_mut(piece).map(VolatileSlice::from).collect();
            dispatcher.execute(0, &message, &out, &mut scratch)
        };
        assert!(written == 0 || (16..=out.len()).contains(&written));
        if written > 0 {
            assert_eq!(out[..4], (written as u32).to_ne_bytes());
            assert_eq!(out[8..16], message.unique.to_ne_bytes());
        }
    }
});
