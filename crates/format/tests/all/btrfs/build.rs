//! Small Btrfs images, made here without any tool: for tests with damage of every kind, and for the fuzz target, which
//! includes this file.
//!
//! Logical addresses are bytes of the image. Blocks of trees have 4 KiB.

/// Bytes of a block of a tree, and of a sector.
pub const NODE: usize = 4096;
/// Where the superblock is.
pub const SUPERBLOCK: usize = 64 << 10;
const GENERATION: u64 = 7;
const FSID: [u8; 16] = [0xf5; 16];
/// Bytes of a block's header, of an item's entry in a leaf, and of a pointer in a node.
const HEADER: usize = 101;
const ITEM: usize = 25;
const POINTER: usize = 33;

/// Objectid, type and offset.
pub type Key = (u64, u8, u64);
pub type Items = Vec<(Key, Vec<u8>)>;

/// Types of keys.
pub mod kind {
    pub const INODE: u8 = 1;
    pub const INODE_REF: u8 = 12;
    pub const XATTR: u8 = 24;
    pub const DIR_ITEM: u8 = 84;
    pub const DIR_INDEX: u8 = 96;
    pub const EXTENT: u8 = 108;
    pub const ROOT: u8 = 132;
    pub const ROOT_BACKREF: u8 = 144;
    pub const ROOT_REF: u8 = 156;
    pub const CHUNK: u8 = 228;
}

fn bytes_of(key: Key) -> Vec<u8> {
    [&key.0.to_le_bytes()[..], &[key.1], &key.2.to_le_bytes()].concat()
}

pub fn name_hash(name: &[u8]) -> u64 {
    u64::from(!crc32c::crc32c_append(1, name))
}

/// An inode's item.
pub fn inode(mode: u32, size: u64, device: u64) -> Vec<u8> {
    let mut item = vec![0; 160];
    item[..8].copy_from_slice(&GENERATION.to_le_bytes());
    item[16..24].copy_from_slice(&size.to_le_bytes());
    item[24..32].copy_from_slice(&size.to_le_bytes());
    item[40..44].copy_from_slice(&1u32.to_le_bytes());
    item[44..48].copy_from_slice(&1000u32.to_le_bytes());
    item[52..56].copy_from_slice(&mode.to_le_bytes());
    item[56..64].copy_from_slice(&device.to_le_bytes());
    for at in [112, 124, 136, 148] {
        item[at..at + 8].copy_from_slice(&1_600_000_000u64.to_le_bytes());
    }
    item
}

/// A name in a directory, or an extended attribute.
pub fn named(location: Key, file_type: u8, name: &[u8], value: &[u8]) -> Vec<u8> {
    let lengths = [(value.len() as u16).to_le_bytes(), (name.len() as u16).to_le_bytes()].concat();
    [&bytes_of(location)[..], &GENERATION.to_le_bytes(), &lengths, &[file_type], name, value].concat()
}

/// The head of an extent: its decompressed bytes, compression and kind.
fn extent_head(unpacked: u64, compression: u8, kind: u8) -> Vec<u8> {
    [&GENERATION.to_le_bytes()[..], &unpacked.to_le_bytes(), &[compression, 0, 0, 0, kind]].concat()
}

/// An extent in a leaf.
pub fn inline(unpacked: u64, compression: u8, bytes: &[u8]) -> Vec<u8> {
    [&extent_head(unpacked, compression, 0)[..], bytes].concat()
}

/// Any other extent: where all of it is, which part of it the file has, its decompressed size and compression, and its kind.
pub fn extent(at: u64, stored: u64, offset: u64, length: u64, unpacked: u64, compression: u8, kind: u8) -> Vec<u8> {
    let body: Vec<u8> = [at, stored, offset, length].iter().flat_map(|number| number.to_le_bytes()).collect();
    [extent_head(unpacked, compression, kind), body].concat()
}

/// The item of a tree in the root tree.
pub fn root_item((address, level): (u64, u8)) -> Vec<u8> {
    let mut item = [inode(0o040_755, 3, 0), vec![0; 279]].concat();
    item[160..168].copy_from_slice(&GENERATION.to_le_bytes());
    item[168..176].copy_from_slice(&256u64.to_le_bytes());
    item[176..184].copy_from_slice(&address.to_le_bytes());
    item[216..220].copy_from_slice(&1u32.to_le_bytes());
    item[238] = level;
    item
}

/// Where a subvolume is linked.
pub fn root_reference(directory: u64, name: &[u8]) -> Vec<u8> {
    [&directory.to_le_bytes()[..], &2u64.to_le_bytes(), &(name.len() as u16).to_le_bytes(), name].concat()
}

/// A chunk of one stripe, all on device 1.
pub fn chunk(length: u64, stripe: u64) -> Vec<u8> {
    let mut item: Vec<u8> = [length, 2, 64 << 10, 7].iter().flat_map(|number: &u64| number.to_le_bytes()).collect();
    item.extend([4096u32; 3].iter().flat_map(|number| number.to_le_bytes()));
    item.extend([1, 0, 1, 0]);
    item.extend(1u64.to_le_bytes());
    item.extend(stripe.to_le_bytes());
    item.extend([0; 16]);
    item
}

/// An image that is being made.
pub struct Builder {
    pub image: Vec<u8>,
    next: usize,
    /// Where blocks of trees are.
    pub blocks: Vec<usize>,
}

impl Builder {
    /// Of so many bytes.
    pub fn new(size: usize) -> Builder {
        Builder { image: vec![0; size], next: 128 << 10, blocks: Vec::new() }
    }

    /// To change an image that is made.
    pub fn of(made: Made) -> Builder {
        Builder { next: made.image.len(), image: made.image, blocks: made.blocks }
    }

    fn place(&mut self, length: usize) -> usize {
        let at = self.next;
        self.next = (at + length).next_multiple_of(NODE);
        assert!(self.next <= self.image.len(), "the image is too small");
        at
    }

    /// Puts data into sectors of its own, and gives its address.
    pub fn data(&mut self, bytes: &[u8]) -> u64 {
        let at = self.place(bytes.len());
        self.image[at..at + bytes.len()].copy_from_slice(bytes);
        at as u64
    }

    /// Reserves a block.
    pub fn reserve(&mut self) -> u64 {
        let at = self.place(NODE);
        self.blocks.push(at);
        at as u64
    }

    fn header(&mut self, at: u64, level: u8, items: usize) {
        let block = &mut self.image[at as usize..at as usize + NODE];
        block[32..48].copy_from_slice(&FSID);
        block[48..56].copy_from_slice(&at.to_le_bytes());
        block[80..88].copy_from_slice(&GENERATION.to_le_bytes());
        block[88..96].copy_from_slice(&5u64.to_le_bytes());
        block[96..100].copy_from_slice(&(items as u32).to_le_bytes());
        block[100] = level;
    }

    /// Fills a reserved block as a leaf.
    pub fn leaf(&mut self, at: u64, items: &[(Key, Vec<u8>)]) {
        self.header(at, 0, items.len());
        let block = &mut self.image[at as usize..at as usize + NODE];
        let mut end = NODE;
        for (slot, (key, data)) in items.iter().enumerate() {
            end -= data.len();
            let entry = [
                bytes_of(*key),
                ((end - HEADER) as u32).to_le_bytes().to_vec(),
                (data.len() as u32).to_le_bytes().to_vec(),
            ];
            let from = HEADER + slot * ITEM;
            block[from..from + ITEM].copy_from_slice(&entry.concat());
            block[end..end + data.len()].copy_from_slice(data);
        }
    }

    /// Fills a reserved block as a node above others.
    pub fn node(&mut self, at: u64, level: u8, below: &[(Key, u64)]) {
        self.header(at, level, below.len());
        let block = &mut self.image[at as usize..at as usize + NODE];
        for (slot, (key, address)) in below.iter().enumerate() {
            let entry = [&bytes_of(*key)[..], &address.to_le_bytes(), &GENERATION.to_le_bytes()].concat();
            let from = HEADER + slot * POINTER;
            block[from..from + POINTER].copy_from_slice(&entry);
        }
    }

    /// Makes a tree; gives the address and level of its root.
    pub fn tree(&mut self, items: &[(Key, Vec<u8>)]) -> (u64, u8) {
        let mut leaves: Vec<&[(Key, Vec<u8>)]> = Vec::new();
        let (mut start, mut used) = (0, HEADER);
        for (at, (_, data)) in items.iter().enumerate() {
            let size = ITEM + data.len();
            if used + size > NODE {
                leaves.push(&items[start..at]);
                (start, used) = (at, HEADER);
            }
            used += size;
        }
        leaves.push(&items[start..]);
        let mut level = 0;
        let mut below = Vec::new();
        for leaf in leaves {
            let at = self.reserve();
            self.leaf(at, leaf);
            below.push((leaf.first().map_or((0, 0, 0), |(key, _)| *key), at));
        }
        while below.len() > 1 {
            level += 1;
            let mut above = Vec::new();
            for part in below.chunks((NODE - HEADER) / POINTER) {
                let at = self.reserve();
                self.node(at, level, part);
                above.push((part[0].0, at));
            }
            below = above;
        }
        (below[0].1, level)
    }

    /// Makes the chunk tree and the superblock, and seals everything.
    pub fn finish(mut self, root: (u64, u8)) -> Made {
        let size = self.image.len() as u64;
        let chunks = self.tree(&[((256, kind::CHUNK, 0), chunk(size, 0))]);
        let superblock = &mut self.image[SUPERBLOCK..SUPERBLOCK + 4096];
        let mut put = |at: usize, bytes: &[u8]| superblock[at..at + bytes.len()].copy_from_slice(bytes);
        put(32, &FSID);
        put(48, &(SUPERBLOCK as u64).to_le_bytes());
        put(64, b"_BHRfS_M");
        put(72, &GENERATION.to_le_bytes());
        put(80, &root.0.to_le_bytes());
        put(88, &chunks.0.to_le_bytes());
        put(0x70, &size.to_le_bytes());
        put(0x80, &6u64.to_le_bytes());
        put(0x88, &1u64.to_le_bytes());
        put(0x90, &4096u32.to_le_bytes());
        put(0x94, &(NODE as u32).to_le_bytes());
        put(0xa4, &GENERATION.to_le_bytes());
        // For btrfs-progs: bytes in use, the sizes of a leaf and a stripe, the device's size and file system.
        put(0x78, &(200u64 << 10).to_le_bytes());
        put(0x98, &(NODE as u32).to_le_bytes());
        put(0x9c, &4096u32.to_le_bytes());
        put(0xd1, &size.to_le_bytes());
        put(0xc9 + 82, &FSID);
        put(0xc6, &[root.1, chunks.1]);
        put(0xc9, &1u64.to_le_bytes());
        let array = [bytes_of((256, kind::CHUNK, 0)), chunk(size, 0)].concat();
        put(0xa0, &(array.len() as u32).to_le_bytes());
        put(0x32b, &array);
        let mut made = Made { image: self.image, blocks: self.blocks };
        made.seal();
        made
    }
}

/// An image, and where its blocks are.
#[derive(Clone)]
pub struct Made {
    pub image: Vec<u8>,
    pub blocks: Vec<usize>,
}

impl Made {
    /// Gives the superblock and every block the right checksum.
    pub fn seal(&mut self) {
        for at in self.blocks.iter().copied().chain([SUPERBLOCK]) {
            if let Some(block) = self.image.get_mut(at..at + NODE) {
                let sum = crc32c::crc32c(&block[32..]).to_le_bytes();
                block[..4].copy_from_slice(&sum);
            }
        }
    }
}

/// A directory's items while they are made: of the directory itself, and of what it names.
pub struct Directory {
    number: u64,
    index: u64,
    pub items: Items,
}

impl Directory {
    pub fn new(number: u64, parent: u64) -> Directory {
        let own = ((number, kind::INODE, 0), inode(0o040_755, 0, 0));
        let reference = ((number, kind::INODE_REF, parent), [&2u64.to_le_bytes()[..], &[2, 0], b".."].concat());
        Directory { number, index: 2, items: vec![own, reference] }
    }

    /// Adds a name.
    pub fn name(&mut self, name: &[u8], location: Key, file_type: u8) {
        let item = named(location, file_type, name, b"");
        self.items.push(((self.number, kind::DIR_ITEM, name_hash(name)), item.clone()));
        self.items.push(((self.number, kind::DIR_INDEX, self.index), item));
        self.index += 1;
    }

    /// Adds an inode with its items, and a name for it.
    pub fn add(&mut self, name: &[u8], number: u64, file_type: u8, items: Vec<(u8, u64, Vec<u8>)>) {
        self.name(name, (number, kind::INODE, 0), file_type);
        let reference = [&self.index.to_le_bytes()[..], &(name.len() as u16).to_le_bytes(), name].concat();
        self.items.push(((number, kind::INODE_REF, self.number), reference));
        self.items.extend(items.into_iter().map(|(kind, offset, data)| ((number, kind, offset), data)));
    }
}

/// Sorted by their keys, as a tree has them.
pub fn sorted(mut items: Items) -> Items {
    items.sort_by_key(|(key, _)| *key);
    items
}

/// Bytes that compress.
pub fn text(length: usize) -> Vec<u8> {
    (0..length).map(|at| b"some text, again and again. "[at / 3 % 28]).collect()
}

/// An image with a bit of everything: files in leaves, in extents, sparse and compressed, a symlink, attributes, a directory of
/// several leaves, a subvolume, and a snapshot of all that, in which the subvolume is missing. `packed` are the bytes of
/// [`text`] of 128 KiB, with the numbers of their methods.
pub fn sample(packed: &[(u8, Vec<u8>)]) -> Made {
    const FILE: u32 = 0o100_644;
    let mut b = Builder::new(1 << 20);
    let plain = b.data(&text(10_000));
    let packed: Vec<_> = packed.iter().map(|(method, bytes)| (*method, b.data(bytes), bytes.len() as u64)).collect();
    let mut root = Directory::new(256, 256);
    let file = |size| (kind::INODE, 0, inode(FILE, size, 0));
    root.add(b"a", 257, 1, vec![file(5), (kind::EXTENT, 0, inline(5, 0, b"bytes"))]);
    let xattrs = [(&b"user.shared"[..], &[1; 40][..]), (b"trusted.own", b"2")];
    let xattrs = xattrs.map(|(name, value)| (kind::XATTR, name_hash(name), named((0, 0, 0), 8, name, value)));
    let regular = extent(plain, 12_288, 0, 12_288, 12_288, 0, 1);
    root.add(b"regular", 258, 1, [vec![file(10_000), (kind::EXTENT, 0, regular)], xattrs.to_vec()].concat());
    let parts =
        [(8192, extent(plain, 12_288, 4096, 4096, 12_288, 0, 1)), (16_384, extent(plain, 12_288, 0, 8192, 0, 0, 2))];
    let parts = parts.map(|(offset, item)| (kind::EXTENT, offset, item));
    root.add(b"sparse", 259, 1, [vec![file(400_000)], parts.to_vec()].concat());
    let target = vec![(kind::INODE, 0, inode(0o120_777, 7, 0)), (kind::EXTENT, 0, inline(7, 0, b"regular"))];
    root.add(b"link", 260, 7, target);
    root.add(b"null", 261, 3, vec![(kind::INODE, 0, inode(0o020_666, 0, 1 << 20 | 3))]);
    root.add(b"dir", 262, 2, vec![]);
    for (number, (method, at, stored)) in packed.into_iter().enumerate() {
        let stored = (stored as usize).next_multiple_of(NODE) as u64;
        let item = extent(at, stored, 0, 128 << 10, 128 << 10, method, 1);
        let name = format!("packed {method}");
        root.add(name.as_bytes(), 270 + number as u64, 1, vec![file(128 << 10), (kind::EXTENT, 0, item)]);
    }
    root.name(b"below", (256, kind::ROOT, u64::MAX), 2);
    root.name(b"snapshot", (257, kind::ROOT, u64::MAX), 2);
    let mut dir = Directory::new(262, 256);
    for number in 0..300 {
        dir.add(format!("a name of some length {number:03}").as_bytes(), 1000 + number, 1, vec![file(0)]);
    }
    // The reference of `dir` itself came with its name.
    let dir = dir.items.into_iter().filter(|(key, _)| *key != (262, kind::INODE_REF, 256));
    let items = sorted(root.items.into_iter().chain(dir).collect());
    let top = b.tree(&items);
    let mut below = Directory::new(256, 256);
    below.add(b"inner", 257, 1, vec![file(5), (kind::EXTENT, 0, inline(5, 0, b"inner"))]);
    let below = b.tree(&sorted(below.items));
    // btrfs-progs want a tree of devices.
    let devices = b.tree(&[]);
    let roots = vec![
        ((4, kind::ROOT, 0), root_item(devices)),
        ((5, kind::ROOT, 0), root_item(top)),
        ((5, kind::ROOT_REF, 256), root_reference(256, b"below")),
        ((5, kind::ROOT_REF, 257), root_reference(256, b"snapshot")),
        ((6, kind::DIR_ITEM, name_hash(b"default")), named((5, kind::ROOT, u64::MAX), 2, b"default", b"")),
        ((256, kind::ROOT, 0), root_item(below)),
        ((256, kind::ROOT_BACKREF, 5), root_reference(256, b"below")),
        // The snapshot's tree is the original's.
        ((257, kind::ROOT, 7), root_item(top)),
        ((257, kind::ROOT_BACKREF, 5), root_reference(256, b"snapshot")),
    ];
    let roots = b.tree(&sorted(roots));
    b.finish(roots)
}
