//! A written image has, byte for byte, the content of the device of the same map; so has one written to a pipe. Holes
//! stay holes.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use crate::common::{BLOCK, Numbered, Random, scan};
use inarch_block::{
    BLOCK_SIZE, BlockMap, Content, Cursor, Device, FileExtent, FileSink, HostFiles, ImageSource, Inlay, MapParts,
    Metadata, Part, Placed, Progress, Sink, Verifier, WriteError, stream_parts, write_parts,
};
use inarch_tree::{FileType, InodeId, Tree};
use vm_memory::VolatileSlice;

/// Bytes and files reported.
#[derive(Default)]
struct Told(AtomicU64, AtomicU64);

impl Progress for Told {
    fn advance(&self, bytes: u64, files: u64) {
        self.0.fetch_add(bytes, Ordering::Relaxed);
        self.1.fetch_add(files, Ordering::Relaxed);
    }
}

/// A directory with files of the given sizes.
fn directory(random: &mut Random, sizes: &[u64]) -> tempfile::TempDir {
    let dir = tempfile::tempdir_in("/var/tmp").unwrap();
    for (number, size) in sizes.iter().enumerate() {
        let bytes: Vec<u8> = (0..*size).map(|_| random.below(256) as u8).collect();
        fs::write(dir.path().join(format!("{number:03}")), bytes).unwrap();
    }
    dir
}

fn content(dir: &Path, tree: &Arc<Tree>) -> Arc<HostFiles> {
    Arc::new(HostFiles::new(File::open(dir).unwrap().into(), Arc::clone(tree), 8))
}

/// A map of metadata, gaps and files in random order; some files have two extents.
fn map(random: &mut Random, tree: &Tree) -> BlockMap {
    let (mut at, mut metadata, mut files) = (random.below(3), Vec::new(), Vec::new());
    for (inode, attributes) in tree.inodes().filter(|(_, inode)| inode.file_type() == FileType::Regular) {
        if random.below(3) == 0 {
            let length = 1 + random.below(400);
            metadata.push(at..at + length);
            at += length;
        }
        let blocks = attributes.size().div_ceil(BLOCK);
        let first = random.below(blocks + 1);
        for (from, to) in [(0, first), (first, blocks)].into_iter().filter(|(from, to)| from < to) {
            at += [0, 0, 1, 300][random.below(4) as usize];
            files.push(FileExtent { start: at, blocks: (to - from) as u32, first: from as u32, inode });
            at += to - from;
        }
    }
    BlockMap::new(at + random.below(500), metadata, files, Arc::new(Numbered)).unwrap()
}

fn whole(device: &Device) -> Vec<u8> {
    let mut bytes = vec![0; device.capacity() as usize];
    device.read_at(0, &[VolatileSlice::from(&mut bytes[..])]).unwrap();
    bytes
}

/// A sink in memory without a file, like a block device.
struct Memory(Mutex<Vec<u8>>);

impl Sink for Memory {
    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.0.lock().unwrap()[offset as usize..][..bytes.len()].copy_from_slice(bytes);
        Ok(())
    }

    fn zero(&self, offset: u64, length: u64) -> io::Result<()> {
        self.0.lock().unwrap()[offset as usize..][..length as usize].fill(0);
        Ok(())
    }
}

#[test]
fn every_way_to_write_a_map_gives_the_same_bytes() {
    for round in 0..12 {
        let mut random = Random(round * 7 + 1);
        let sizes: Vec<u64> =
            (0..30).map(|_| [0, 1, 4096, 4097, 100_000, 300_000, 1_200_000][random.below(7) as usize]).collect();
        let dir = directory(&mut random, &sizes);
        let tree = scan(dir.path());
        let content = content(dir.path(), &tree);
        let map = map(&mut random, &tree);
        let length = map.blocks() * BLOCK;
        let source = ImageSource { map: Some(&map), content: &*content };

        let image = tempfile::NamedTempFile::new_in("/var/tmp").unwrap();
        image.as_file().set_len(length).unwrap();
        let told = Told::default();
        let sink = FileSink::new(image.as_file());
        let written = write_parts(MapParts::new(&map), length, source, &sink, &told, 3).unwrap();
        let bytes = fs::read(image.path()).unwrap();

        let used: u64 = map.files().iter().map(|file| u64::from(file.blocks)).sum::<u64>() * BLOCK;
        let metadata: u64 = map.metadata().iter().map(|range| range.end - range.start).sum::<u64>() * BLOCK;
        assert_eq!(written.copied + written.shared, used + metadata);
        assert_eq!(told.0.load(Ordering::Relaxed), used);
        assert_eq!(told.1.load(Ordering::Relaxed), sizes.iter().filter(|size| **size > 0).count() as u64);
        let taken = image.as_file().metadata().unwrap().blocks() * 512;
        assert!(taken <= used + metadata + (64 << 10), "{taken} bytes are taken for {}", used + metadata);
        write_parts(MapParts::new(&map), length, source, &Verifier(image.as_file()), &(), 0).unwrap();

        let memory = Memory(Mutex::new(vec![0xAA; length as usize]));
        write_parts(MapParts::new(&map), length, source, &memory, &(), 2).unwrap();
        assert!(memory.0.into_inner().unwrap() == bytes);
        let mut piped = Vec::new();
        stream_parts(MapParts::new(&map), length, source, &mut piped, &()).unwrap();
        assert!(piped == bytes);
        let device = Device::new(map, content, None, length / BLOCK);
        assert!(whole(&device) == bytes, "round {round}");
    }
}

/// Two blocks of metadata; in the second, the ends of three files.
struct WithEnds;

const ENDS: [Inlay; 3] = [
    Inlay { at: 0, inode: InodeId(1), offset: 0, length: 5 },
    Inlay { at: 100, inode: InodeId(2), offset: 4096, length: 904 },
    Inlay { at: 4000, inode: InodeId(3), offset: 0, length: 96 },
];

impl Metadata for WithEnds {
    fn render(&self, block: u64, out: &mut [u8; BLOCK_SIZE]) {
        Numbered.render(block, out);
    }

    fn inlays(&self, block: u64) -> Vec<Inlay> {
        if block == 1 { ENDS.to_vec() } else { Vec::new() }
    }
}

#[test]
fn ranges_of_files_among_metadata_are_read_and_watched() {
    let mut random = Random(17);
    let dir = directory(&mut random, &[5, 5000, 96]);
    let tree = scan(dir.path());
    let content = content(dir.path(), &tree);
    let files = vec![FileExtent { start: 3, blocks: 1, first: 0, inode: InodeId(2) }];
    let map = || BlockMap::new(4, std::iter::once(0..2).collect(), files.clone(), Arc::new(WithEnds)).unwrap();
    let mut expected = vec![0; 4 * BLOCK_SIZE];
    for (number, block) in expected.chunks_exact_mut(BLOCK_SIZE).enumerate().take(2) {
        block.chunks_exact_mut(8).for_each(|word| word.copy_from_slice(&(number as u64 + 1).to_le_bytes()));
    }
    for (place, end) in ENDS.iter().enumerate() {
        let bytes = fs::read(dir.path().join(format!("{place:03}"))).unwrap();
        expected[BLOCK_SIZE + end.at..][..end.length].copy_from_slice(&bytes[end.offset as usize..]);
        if end.offset > 0 {
            expected[3 * BLOCK_SIZE..].copy_from_slice(&bytes[..BLOCK_SIZE]);
        }
    }

    let device = Device::new(map(), content.clone(), None, 4);
    assert!(whole(&device) == expected);
    assert_eq!(device.events().file_bytes_read, 4096 + 5 + 904 + 96);
    let (map, told) = (map(), Told::default());
    let source = ImageSource { map: Some(&map), content: &*content };
    let memory = Memory(Mutex::new(vec![0xAA; expected.len()]));
    write_parts(MapParts::new(&map), 4 * BLOCK, source, &memory, &told, 1).unwrap();
    assert!(memory.0.into_inner().unwrap() == expected);
    // A block for each range, and the three files once.
    assert_eq!((told.0.into_inner(), told.1.into_inner()), (4 * BLOCK, 3));
    let mut piped = Vec::new();
    stream_parts(MapParts::new(&map), 4 * BLOCK, source, &mut piped, &()).unwrap();
    assert!(piped == expected);

    fs::write(dir.path().join("002"), "another").unwrap();
    let mut block = [0; BLOCK_SIZE];
    device.read_at(0, &[VolatileSlice::from(&mut block[..])]).unwrap();
    let error = device.read_at(BLOCK + 50, &[VolatileSlice::from(&mut block[..10])]).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::EIO));
    assert_eq!(content.changed().named[0].path, Path::new("002"));
    let memory = Memory(Mutex::new(vec![0; expected.len()]));
    let written = write_parts(MapParts::new(&map), 4 * BLOCK, source, &memory, &(), 1);
    assert!(matches!(written, Err(WriteError::Content { inode: Some(InodeId(3)), .. })), "{written:?}");
}

/// Tests parts as in an archive: of any length, with gaps smaller than a block between them, across every boundary.
#[test]
fn small_gaps_between_parts_are_zeros_wherever_they_fall() {
    let dir = directory(&mut Random(3), &[1]);
    let content = content(dir.path(), &scan(dir.path()));
    let mut random = Random(11);
    let (mut parts, mut at) = (Vec::new(), 0);
    while at < 40 << 20 {
        let length = 1 + random.below(200_000);
        parts.push(Placed { at, part: Part::Bytes(vec![0xBB; length as usize]) });
        at = (at + length).next_multiple_of(4096 - random.below(3) * 1024);
    }
    let mut expected = vec![0; at as usize];
    for placed in &parts {
        expected[placed.at as usize..][..placed.part.length() as usize].fill(0xBB);
    }
    let source = ImageSource { map: None, content: &*content };
    let memory = Memory(Mutex::new(vec![0xAA; at as usize]));
    write_parts(parts.iter().cloned(), at, source, &memory, &(), 2).unwrap();
    assert!(memory.0.into_inner().unwrap() == expected);
    let mut piped = Vec::new();
    stream_parts(parts.into_iter(), at, source, &mut piped, &()).unwrap();
    assert!(piped == expected);
}

/// Larger than what is written only through the page cache.
#[test]
fn a_large_image_is_the_same_past_the_page_cache() {
    let mut random = Random(5);
    let dir = tempfile::tempdir_in("/var/tmp").unwrap();
    let chunk: Vec<u8> = (0..1 << 20).map(|_| random.below(256) as u8).collect();
    for (number, size) in [150u64 << 20, 70 << 20, 123_457, 5 << 20].into_iter().enumerate() {
        let file = File::create(dir.path().join(format!("{number}"))).unwrap();
        (0..size).step_by(1 << 20).for_each(|at| file.write_all_at(&chunk, at).unwrap());
        file.set_len(size).unwrap();
    }
    let tree = scan(dir.path());
    let content = content(dir.path(), &tree);
    // Archives start files anywhere: 512 bytes before each, as in tar.
    let mut at = 0;
    let mut parts = Vec::new();
    for (inode, attributes) in tree.inodes().filter(|(_, inode)| inode.file_type() == FileType::Regular) {
        parts.push(Placed { at, part: Part::Bytes(vec![inode.0 as u8; 512]) });
        let part = Part::File { inode, offset: 0, length: attributes.size() };
        parts.push(Placed { at: at + 512, part });
        at = (at + 512 + attributes.size()).next_multiple_of(512);
    }
    let length = at + 10_000;
    let source = ImageSource { map: None, content: &*content };
    let mut piped = Vec::new();
    stream_parts(parts.iter().cloned(), length, source, &mut piped, &()).unwrap();
    for filled in [false, true] {
        let image = tempfile::NamedTempFile::new_in("/var/tmp").unwrap();
        image.as_file().set_len(length).unwrap();
        let sink = FileSink::new(image.as_file()).filled(filled);
        write_parts(parts.iter().cloned(), length, source, &sink, &(), 0).unwrap();
        assert!(fs::read(image.path()).unwrap() == piped, "filled: {filled}");
    }
}

#[test]
fn what_differs_from_the_plan_is_found() {
    let mut random = Random(9);
    let dir = directory(&mut random, &[5000, 2_000_000]);
    let tree = scan(dir.path());
    let content = content(dir.path(), &tree);
    let files = vec![
        FileExtent { start: 10, blocks: 2, first: 0, inode: InodeId(1) },
        FileExtent { start: 20, blocks: 489, first: 0, inode: InodeId(2) },
    ];
    let map = BlockMap::new(600, vec![0..2, 2..3], files, Arc::new(Numbered)).unwrap();
    let (length, source) = (600 * BLOCK, ImageSource { map: Some(&map), content: &*content });
    let image = tempfile::tempfile().unwrap();
    image.set_len(length).unwrap();
    write_parts(MapParts::new(&map), length, source, &FileSink::new(&image), &(), 0).unwrap();
    let verify = || write_parts(MapParts::new(&map), length, source, &Verifier(&image), &(), 1);
    verify().unwrap();
    // In metadata, in a file, in a tail, in a gap, and in the last byte.
    for at in [4097, 10 * BLOCK + 77, 11 * BLOCK + 4000, 15 * BLOCK, length - 1] {
        let mut byte = [0];
        image.read_exact_at(&mut byte, at).unwrap();
        image.write_all_at(&[byte[0] ^ 1], at).unwrap();
        match verify() {
            Err(WriteError::Output { error, .. }) => {
                assert_eq!(error.kind(), io::ErrorKind::InvalidData);
                assert!(error.to_string().contains(&format!("byte {at} ")), "{error}, for byte {at}");
            }
            other => panic!("byte {at}: {other:?}"),
        }
        image.write_all_at(&byte, at).unwrap();
    }
    verify().unwrap();
    image.set_len(length - BLOCK).unwrap();
    let map = BlockMap::new(600, vec![0..3, 599..600], map.files().to_vec(), Arc::new(Numbered)).unwrap();
    let source = ImageSource { map: Some(&map), content: &*content };
    assert!(write_parts(MapParts::new(&map), length, source, &Verifier(&image), &(), 1).is_err());
}

#[test]
fn a_changed_file_and_a_full_sink_end_it() {
    let mut random = Random(3);
    let dir = directory(&mut random, &[100, 3_000_000, 100]);
    let tree = scan(dir.path());
    let content = content(dir.path(), &tree);
    let map = map(&mut random, &tree);
    let (length, source) = (map.blocks() * BLOCK, ImageSource { map: Some(&map), content: &*content });

    struct Full;
    impl Sink for Full {
        fn write_at(&self, _: u64, _: &[u8]) -> io::Result<()> {
            Err(io::ErrorKind::StorageFull.into())
        }
    }
    let full = write_parts(MapParts::new(&map), length, source, &Full, &(), 2);
    assert!(matches!(full, Err(WriteError::Output { error, .. }) if error.kind() == io::ErrorKind::StorageFull));

    struct Stop;
    impl Progress for Stop {
        fn advance(&self, _: u64, _: u64) {}
        fn cancelled(&self) -> bool {
            true
        }
    }
    let image = tempfile::tempfile().unwrap();
    let stopped = write_parts(MapParts::new(&map), length, source, &FileSink::new(&image), &Stop, 2);
    assert!(matches!(stopped, Err(WriteError::Cancelled)));

    fs::write(dir.path().join("001"), "another").unwrap();
    let changed = write_parts(MapParts::new(&map), length, source, &FileSink::new(&image), &(), 2);
    assert!(matches!(changed, Err(WriteError::Content { inode: Some(InodeId(2)), .. })), "{changed:?}");
    assert_eq!(content.changed().named[0].path, Path::new("001"));
}

/// A content that panics when one file is read, and parts that panic after some.
#[test]
fn a_thread_that_panics_ends_it() {
    struct Panicking(InodeId);
    impl Content for Panicking {
        fn read(&self, inode: InodeId, _: u64, count: u64, out: &mut Cursor<'_, '_>) -> io::Result<()> {
            assert_ne!(inode, self.0, "on purpose");
            out.fill_zeros(count);
            Ok(())
        }
    }
    const FILES: u32 = 60;
    const LENGTH: u64 = 300_000;
    let parts = || {
        (0..FILES).map(|number| Placed {
            at: u64::from(number) * LENGTH,
            part: Part::File { inode: InodeId(number), offset: 0, length: LENGTH },
        })
    };
    let image = tempfile::tempfile().unwrap();
    let write = |parts: &mut (dyn Iterator<Item = Placed> + Send), bad, threads| {
        let source = ImageSource { map: None, content: &Panicking(InodeId(bad)) };
        write_parts(parts, u64::from(FILES) * LENGTH, source, &FileSink::new(&image), &(), threads)
    };
    for threads in [1, 4] {
        for bad in [0, 30, FILES - 1] {
            let written = write(&mut parts(), bad, threads);
            assert!(matches!(written, Err(WriteError::Panicked)), "{bad} {threads}: {written:?}");
        }
        let mut broken = parts().inspect(|placed| assert!(placed.at < 20 * LENGTH, "on purpose"));
        let written = write(&mut broken, FILES, threads);
        assert!(matches!(written, Err(WriteError::Panicked)), "{threads}: {written:?}");
        assert!(write(&mut parts(), FILES, threads).is_ok());
    }
}
