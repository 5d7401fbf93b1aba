//! Scans a directory, plans an EROFS image of it, and prints what that took: `plan_erofs DIR [IMAGE]`. With a second
//! argument the image is written.

use std::fs::File;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use inarch_block::{BLOCK_SIZE, Device, HostFiles, write_image};
use inarch_format::erofs::Erofs;
use inarch_format::{Format, ImageOptions, Layout};
use inarch_tree::scan::{ScanOptions, scan};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args_os().skip(1).map(PathBuf::from);
    let directory = args.next().ok_or("usage: plan_erofs DIR [IMAGE]")?;
    let begin = Instant::now();
    let tree = Arc::new(scan(&directory, &ScanOptions::default())?.tree);
    println!("scan   {:9.2} ms, {} entries", milliseconds(begin), tree.entry_count());
    let begin = Instant::now();
    let planned = Erofs.plan(&tree, &ImageOptions::default())?;
    println!("plan   {:9.2} ms", milliseconds(begin));
    let Layout::Blocks(map) = planned.layout else { return Err("not a map of blocks".into()) };
    let mut block = [0; BLOCK_SIZE];
    let begin = Instant::now();
    let metadata = map.metadata().iter().flat_map(Clone::clone);
    let count = metadata.map(|number| map.render(number, &mut block)).count();
    println!("render {:9.2} ms, {count} blocks", milliseconds(begin));
    if let Some(image) = args.next() {
        let begin = Instant::now();
        let blocks = map.blocks();
        let content = Arc::new(HostFiles::new(File::open(&directory)?.into(), tree, 256));
        write_image(&Device::new(map, content, None, blocks), &File::create(image)?)?;
        println!("write  {:9.2} ms, {blocks} blocks", milliseconds(begin));
    }
    Ok(())
}

fn milliseconds(since: Instant) -> f64 {
    since.elapsed().as_secs_f64() * 1000.0
}
