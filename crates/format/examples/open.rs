//! Opens a file system in an image, reads everything that has a name, and prints what that took: `open FORMAT IMAGE [TIMES]`.

use std::fs::File;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Instant;

use inarch_block::BackingFile;
use inarch_confine::Parsing;
use inarch_format::{Damage, readers};

type Error = Box<dyn std::error::Error>;

fn main() -> Result<(), Error> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [format, image, rest @ ..] = arguments.as_slice() else {
        return Err("usage: open FORMAT IMAGE [TIMES]".into());
    };
    let reader = readers().iter().find(|reader| reader.name == format).ok_or("there is no reader of that name")?;
    let path = PathBuf::from(image);
    for _ in 0..rest.first().map_or(Ok(1), |times| times.parse())? {
        let backing = Arc::new(BackingFile::new(File::open(&path)?, path.clone())?);
        let begin = Instant::now();
        let opened = reader.walk(Parsing::unconfined(), backing, Damage::Refused)?;
        let took = begin.elapsed().as_secs_f64() * 1000.0;
        println!("{took:9.2} ms: {} inodes, {} names", opened.tree.inode_count(), opened.tree.entry_count());
        println!("{:9} KiB in the tree, {} KiB resident at most", opened.tree.memory_bytes() >> 10, peak_kib());
        opened.notes.iter().for_each(|note| println!("{note}"));
    }
    Ok(())
}

/// `VmHWM` of proc_pid_status(5); 0 if there is no /proc.
fn peak_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    line.and_then(|line| line.trim().trim_end_matches(" kB").parse().ok()).unwrap_or(0)
}
