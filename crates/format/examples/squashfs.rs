//! Scans a directory and writes it as a squashfs image without compression: `squashfs DIR IMAGE`.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;

use inarch_block::{Device, HostFiles, write_image};
use inarch_format::squashfs::Squashfs;
use inarch_format::{Format, ImageOptions, Layout};
use inarch_tree::scan::{ScanOptions, scan};

type Error = Box<dyn std::error::Error>;

fn main() -> Result<(), Error> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [directory, image] = arguments.as_slice() else { return Err("usage: squashfs DIR IMAGE".into()) };
    let begin = Instant::now();
    let scanned = scan(Path::new(directory), &ScanOptions::default())?;
    println!("scan  {:9.2} ms", milliseconds(begin));
    let tree = Arc::new(scanned.tree);
    let begin = Instant::now();
    let planned = Squashfs.plan(&tree, &ImageOptions::default())?;
    println!("plan  {:9.2} ms, {} inodes", milliseconds(begin), tree.inode_count());
    planned.notes.iter().for_each(|note| println!("{note}"));
    let content = Arc::new(HostFiles::new(scanned.root, tree, HostFiles::default_max_open()));
    let begin = Instant::now();
    if let Layout::Blocks(map) = planned.layout {
        let blocks = map.blocks();
        write_image(&Device::new(map, content, None, blocks), &File::create(image)?)?;
    }
    println!("write {:9.2} ms", milliseconds(begin));
    Ok(())
}

fn milliseconds(since: Instant) -> f64 {
    since.elapsed().as_secs_f64() * 1000.0
}
