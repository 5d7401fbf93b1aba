//! Scans a directory and writes it as a squashfs image: `squashfs DIR IMAGE [gzip|lz4|xz|zstd[:LEVEL] [BLOCK_SIZE
//! [THREADS]]]`.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use inarch_block::{Device, FileSink, HostFiles, write_image};
use inarch_format::squashfs::Squashfs;
use inarch_format::{Algorithm, Compression, Format, ImageOptions, Layout};
use inarch_tree::scan::{ScanOptions, scan};

type Error = Box<dyn std::error::Error>;

fn main() -> Result<(), Error> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [directory, image, rest @ ..] = arguments.as_slice() else {
        return Err("usage: squashfs DIR IMAGE ...".into());
    };
    let options = ImageOptions {
        compression: rest.first().map(|text| compression(text)).transpose()?,
        block_size: rest.get(1).map(|text| text.parse()).transpose()?,
        threads: rest.get(2).map_or(Ok(0), |text| text.parse())?,
        ..ImageOptions::default()
    };
    let begin = Instant::now();
    let scanned = scan(Path::new(directory), &ScanOptions::default())?;
    println!("scan  {:9.2} ms", milliseconds(begin));
    let tree = Arc::new(scanned.tree);
    let begin = Instant::now();
    let planned = Squashfs.plan(&tree, &options)?;
    println!("plan  {:9.2} ms, {} inodes", milliseconds(begin), tree.inode_count());
    planned.notes.iter().for_each(|note| println!("{note}"));
    let content = Arc::new(HostFiles::new(scanned.root, tree, HostFiles::default_max_open()));
    let begin = Instant::now();
    let file = File::create(image)?;
    match planned.layout {
        Layout::Blocks(map) => {
            let blocks = map.blocks();
            write_image(&Device::new(map, content, None, blocks), &file)?;
        }
        Layout::Packed(pack) => file.set_len(pack.pack(&*content, &FileSink::new(&file), &())?)?,
        Layout::Stream(_) => {}
    }
    println!("write {:9.2} ms, {} bytes, peak {} KiB", milliseconds(begin), file.metadata()?.len(), peak_rss_kib());
    Ok(())
}

fn compression(text: &str) -> Result<Compression, Error> {
    let (name, level) = text.split_once(':').map_or((text, None), |(name, level)| (name, Some(level)));
    let algorithm = match name {
        "gzip" => Algorithm::Gzip,
        "lz4" => Algorithm::Lz4,
        "xz" => Algorithm::Xz,
        "zstd" => Algorithm::Zstd,
        _ => return Err(format!("no compressor is called {name}").into()),
    };
    Ok(Compression { algorithm, level: level.map(str::parse).transpose()? })
}

fn milliseconds(since: Instant) -> f64 {
    since.elapsed().as_secs_f64() * 1000.0
}

/// `VmHWM` of proc_pid_status(5), in KiB; 0 if there is no /proc.
fn peak_rss_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    line.and_then(|line| line.split_whitespace().next()?.parse().ok()).unwrap_or(0)
}
