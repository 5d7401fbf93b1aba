//! What is asked of a volume costs what the answer takes, whatever else is in it: bytes that are read of the image are counted.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use inarch_block::{Backing, Content, Cursor, Device};
use inarch_confine::Parsing;
use inarch_format::{Damage, Format, ImageOptions, Layout, TreeAndContent, format_by_name};
use inarch_tree::Tree;
use inarch_vfs::{Context, DirectoryEntry, DirectorySink, FileSystem, HandleId, NodeId, VolumeFiles};
use vm_memory::VolatileSlice;

use crate::common::{builder, directory, file, written_readers};
use crate::squashfs::Pattern;

const DIRECTORIES: usize = 400;
const FILES: usize = 200;

/// Counts what is read.
struct Counting(Arc<dyn Backing>, AtomicU64);

impl Backing for Counting {
    fn size(&self) -> u64 {
        self.0.size()
    }

    fn read(&self, offset: u64, count: u64, out: &mut Cursor<'_, '_>) -> io::Result<()> {
        self.1.fetch_add(count, Ordering::Relaxed);
        self.0.read(offset, count, out)
    }
}

fn tree() -> Tree {
    let mut b = builder();
    let names = (0..DIRECTORIES).map(|number| format!("directory {number:04}"));
    let directories: Vec<_> = names.map(|name| b.add(name.as_bytes(), &directory()).unwrap()).collect();
    for id in directories {
        b.list(id).unwrap();
        for number in 0..FILES {
            b.add(format!("a file of some name {number:04}").as_bytes(), &file(100)).unwrap();
        }
    }
    b.finish().unwrap()
}

fn image(format: &dyn Format, tree: &Arc<Tree>) -> Arc<Counting> {
    let Layout::Blocks(map) = format.plan(tree, &ImageOptions::default()).unwrap().layout else { panic!("no blocks") };
    let blocks = map.blocks();
    let content: Arc<dyn Content> = Arc::new(Pattern::new(tree));
    Arc::new(Counting(Arc::new(Device::new(map, content, None, blocks)), AtomicU64::new(0)))
}

/// Counts entries.
struct Count(usize, u64);

impl DirectorySink for Count {
    fn wants_entries(&self) -> bool {
        true
    }

    fn has_room(&self, _: usize) -> bool {
        true
    }

    fn push(&mut self, entry: &DirectoryEntry<'_>) -> bool {
        (self.0, self.1) = (self.0 + 1, entry.next);
        true
    }
}

#[test]
fn a_question_reads_what_its_answer_takes() {
    const ME: Context<'static> = Context::SERVER;
    let tree = Arc::new(tree());
    for reader in written_readers() {
        let image = image(format_by_name(reader.name).unwrap(), &tree);
        let read = |since: u64| image.1.load(Ordering::Relaxed) - since;
        let volume = reader.open(Parsing::unconfined(), Arc::clone(&image) as _, Damage::Refused).unwrap();
        let opened = read(0);
        assert!(opened < 512 << 10, "{}: {opened} bytes to open it", reader.name);
        let files = VolumeFiles::new(volume, false, Box::new(|line| panic!("{line}")));
        for number in [0, DIRECTORIES / 2, DIRECTORIES - 1] {
            let before = read(0);
            let name = format!("directory {number:04}");
            let directory = files.lookup(&ME, NodeId::ROOT, name.as_bytes()).unwrap().node;
            let mut count = Count(0, 0);
            files.read_directory(&ME, directory, HandleId::default(), 0, &mut count).unwrap();
            assert_eq!(count.0, FILES + 2);
            let file = files.lookup(&ME, directory, b"a file of some name 0007").unwrap();
            let mut bytes = [0; 200];
            let slices = [VolatileSlice::from(&mut bytes[..])];
            assert_eq!(files.read(&ME, file.node, HandleId::default(), 0, &slices), Ok(100));
            let took = read(before);
            assert!(took < 1 << 20, "{}: {took} bytes for one directory and file", reader.name);
        }
        let before = read(0);
        let opened = TreeAndContent::walk(
            Parsing::unconfined(),
            reader.open(Parsing::unconfined(), Arc::clone(&image) as _, Damage::Refused).unwrap(),
            Damage::Refused,
        );
        assert_eq!(opened.unwrap().tree.inode_count() as usize, 1 + DIRECTORIES * (FILES + 1));
        let walked = read(before);
        assert!(walked > 2 << 20, "{}: {walked} bytes for all", reader.name);
    }
}

/// A directory of many names: one of them is found without reading all.
#[test]
fn a_name_of_a_large_directory_is_found_by_its_index() {
    const ME: Context<'static> = Context::SERVER;
    const NAMES: usize = 60_000;
    let mut b = builder();
    for number in 0..NAMES {
        b.add(format!("a file of a name that is not short {number:06}").as_bytes(), &file(0)).unwrap();
    }
    let tree = Arc::new(b.finish().unwrap());
    for reader in written_readers() {
        let image = image(format_by_name(reader.name).unwrap(), &tree);
        let volume = reader.open(Parsing::unconfined(), Arc::clone(&image) as _, Damage::Refused).unwrap();
        let files = VolumeFiles::new(volume, false, Box::new(|line| panic!("{line}")));
        for number in [0, 1, NAMES / 3, NAMES - 1] {
            let before = image.1.load(Ordering::Relaxed);
            let name = format!("a file of a name that is not short {number:06}");
            files.lookup(&ME, NodeId::ROOT, name.as_bytes()).unwrap();
            let absent = files.lookup(&ME, NodeId::ROOT, format!("{name}.").as_bytes());
            assert_eq!(absent.unwrap_err(), rustix::io::Errno::NOENT);
            let took = image.1.load(Ordering::Relaxed) - before;
            // The names alone take 2.5 MB.
            assert!(took < 1200 << 10, "{}: {took} bytes for two names", reader.name);
        }
    }
}
