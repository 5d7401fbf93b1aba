//! Opens an ext4 image and prints what that took: `ext4_read [--times N] IMAGE`.

use std::fs::File;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use inarch_block::BackingFile;
use inarch_confine::Parsing;
use inarch_format::ext4::{ReadOptions, open_image};

type Error = Box<dyn std::error::Error>;

fn main() -> Result<(), Error> {
    let mut args = std::env::args().skip(1);
    let (mut image, mut times) = (None, 1);
    while let Some(arg) = args.next() {
        match arg.as_str() {
            "--times" => times = args.next().ok_or("a value is missing")?.parse()?,
            _ => image = Some(PathBuf::from(arg)),
        }
    }
    let path = image.ok_or("usage: ext4_read [--times N] IMAGE")?;
    for _ in 0..times {
        let backing = Arc::new(BackingFile::new(File::open(&path)?, path.clone())?);
        let begin = Instant::now();
        let image = open_image(Parsing::unconfined(), backing, &ReadOptions::default())?;
        let took = begin.elapsed().as_secs_f64() * 1000.0;
        let tree = &image.opened.tree;
        println!("{took:9.2} ms: {} inodes, {} names", tree.inode_count(), tree.entry_count());
        println!("{:9} KiB in the tree, {} KiB resident at most", tree.memory_bytes() >> 10, peak_kib());
        for note in &image.opened.notes {
            println!("{note}");
        }
    }
    Ok(())
}

fn peak_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    line.and_then(|line| line.trim().trim_end_matches(" kB").parse().ok()).unwrap_or(0)
}
