//! Measures `Device::read_at` over many small files in the page cache.
//!
//! `cargo run --release --example read_at -- [FILES [BYTES]]` makes FILES (20000) files of BYTES (6000) in a temporary
//! directory and reads them by requests of several sizes; then the same blocks from one image file, for comparison.

use std::fs::{self, File};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use inarch_block::{BLOCK_SIZE, BlockMap, Device, FileExtent, HostFiles, Metadata, write_image};
use inarch_tree::{Attributes, Builder, FileType, InodeId, Timestamp, Tree};

const PER_DIRECTORY: usize = 500;

struct NoMetadata;

impl Metadata for NoMetadata {
    fn render(&self, _block: u64, _out: &mut [u8; BLOCK_SIZE]) {}
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let files = arguments.next().map_or(Ok(20_000), |text| text.parse::<usize>())?;
    let bytes = arguments.next().map_or(Ok(6000), |text| text.parse::<usize>())?;
    let dir = tempfile::tempdir()?;
    let tree = Arc::new(make_tree(dir.path(), files, bytes)?);
    let map = lay_out(&tree)?;
    let blocks = map.blocks();
    let host = HostFiles::new(File::open(dir.path())?.into(), tree, HostFiles::default_max_open());
    let device = Device::new(map, Arc::new(host), None, blocks);
    let image = tempfile::tempfile()?;
    write_image(&device, &image)?;
    println!("{files} files of {bytes} bytes, {} MiB", device.capacity() >> 20);
    for size in [4096, 8192, 16_384, 32_768, 65_536, 131_072] {
        let run = |threads, order, read: &(dyn Fn(u64, &mut [u8]) -> io::Result<()> + Sync)| {
            measure(device.capacity(), size, threads, order, read)
        };
        let from_device = |offset, out: &mut [u8]| device.read_at(offset, &[out.into()]);
        let from_image = |offset, out: &mut [u8]| image.read_exact_at(out, offset);
        println!("requests of {:>3} KiB", size >> 10);
        for (order, name) in [(Order::Ascending, "ascending"), (Order::Scattered, "scattered")] {
            run(1, order, &from_device)?.print(name, "device, 1 thread");
            run(2, order, &from_device)?.print(name, "device, 2 threads");
            run(1, order, &from_image)?.print(name, "image file, 1 thread");
        }
    }
    Ok(())
}

#[derive(Clone, Copy)]
enum Order {
    Ascending,
    Scattered,
}

struct Measured {
    wall: Duration,
    bytes: u64,
    /// Of each request, ascending.
    latencies: Vec<Duration>,
}

impl Measured {
    fn print(&self, order: &str, what: &str) {
        let at = |percent: usize| self.latencies.get(self.latencies.len() * percent / 100).copied().unwrap_or_default();
        println!(
            "  {order:<9}  {what:<20}  {:>6.0} MiB/s  {:>7.0} requests/s  median {:>6.1} us  99 % {:>6.1} us",
            self.bytes as f64 / self.wall.as_secs_f64() / (1 << 20) as f64,
            self.latencies.len() as f64 / self.wall.as_secs_f64(),
            at(50).as_secs_f64() * 1e6,
            at(99).as_secs_f64() * 1e6,
        );
    }
}

/// Reads everything once by requests of `size` bytes, shared among `threads`.
fn measure(
    capacity: u64,
    size: u64,
    threads: u64,
    order: Order,
    read: &(dyn Fn(u64, &mut [u8]) -> io::Result<()> + Sync),
) -> io::Result<Measured> {
    let requests = capacity / size;
    // A step that has no divisor in common with the number of requests visits each once.
    let step = match order {
        Order::Ascending => 1,
        Order::Scattered => (requests * 5 / 8..).find(|step| gcd(*step, requests) == 1).unwrap_or(1),
    };
    let one_thread = |thread: u64| -> io::Result<Vec<Duration>> {
        let mut out = vec![0; size as usize];
        let mine = (thread..requests).step_by(threads as usize);
        mine.map(|request| {
            let start = Instant::now();
            read(request * step % requests * size, &mut out)?;
            Ok(start.elapsed())
        })
        .collect()
    };
    let start = Instant::now();
    let results: Vec<_> = std::thread::scope(|scope| {
        let running: Vec<_> = (0..threads).map(|thread| scope.spawn(move || one_thread(thread))).collect();
        running.into_iter().map(|thread| thread.join().unwrap_or_else(|_| Err(io::Error::other("panicked")))).collect()
    });
    let wall = start.elapsed();
    let mut latencies = results.into_iter().collect::<io::Result<Vec<_>>>()?.concat();
    latencies.sort();
    Ok(Measured { wall, bytes: latencies.len() as u64 * size, latencies })
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

fn make_tree(root: &Path, files: usize, bytes: usize) -> Result<Tree, Box<dyn std::error::Error>> {
    let mut builder = Builder::new(&attributes(&fs::metadata(root)?))?;
    let directories: Vec<_> = (0..files.div_ceil(PER_DIRECTORY)).map(|i| root.join(format!("d{i:06}"))).collect();
    directories.iter().try_for_each(fs::create_dir)?;
    builder.list(InodeId::ROOT)?;
    let mut ids = Vec::new();
    for path in &directories {
        let name = path.file_name().unwrap_or_default().as_bytes();
        ids.push(builder.add(name, &attributes(&fs::metadata(path)?))?);
    }
    for (i, (path, id)) in directories.iter().zip(ids).enumerate() {
        builder.list(id)?;
        for file in (0..PER_DIRECTORY).take(files - i * PER_DIRECTORY) {
            let name = format!("f{file:03}");
            fs::write(path.join(&name), vec![file as u8 | 1; bytes])?;
            builder.add(name.as_bytes(), &attributes(&fs::metadata(path.join(&name))?))?;
        }
    }
    Ok(builder.finish()?)
}

fn attributes(metadata: &fs::Metadata) -> Attributes {
    Attributes {
        mode: metadata.mode(),
        size: if metadata.is_file() { metadata.size() } else { 0 },
        mtime: Timestamp { seconds: metadata.mtime(), nanoseconds: metadata.mtime_nsec() as u32 },
        ctime: Timestamp { seconds: metadata.ctime(), nanoseconds: metadata.ctime_nsec() as u32 },
        source_ino: metadata.ino(),
        ..Attributes::default()
    }
}

/// Every file at the next block.
fn lay_out(tree: &Tree) -> Result<BlockMap, Box<dyn std::error::Error>> {
    let mut start = 0;
    let mut files = Vec::new();
    for (inode, attributes) in tree.inodes().filter(|(_, inode)| inode.file_type() == FileType::Regular) {
        let blocks = attributes.size().div_ceil(BLOCK_SIZE as u64);
        files.push(FileExtent { start, blocks: u32::try_from(blocks)?, first: 0, inode });
        start += blocks;
    }
    Ok(BlockMap::new(start, vec![], files, Arc::new(NoMetadata))?)
}
