//! How long it takes to index a tar archive or to open a container image, and the memory that it takes.
//!
//! Usage: index PATH

use std::fs::File;
use std::path::Path;
use std::time::Instant;

use inarch_confine::Parsing;
use inarch_format::{Damage, ThisHost, oci};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path = std::env::args_os().nth(1).ok_or("usage: index PATH")?;
    let path = Path::new(&path);
    let start = Instant::now();
    let file = File::open(path)?;
    let host = ThisHost::new(&std::env::temp_dir()).with_layout(file.try_clone()?.into(), path.to_owned());
    let opened = if path.is_dir() {
        oci::open_file(Parsing::unconfined(), (file, path), oci::Wanted::default(), &host, Damage::Refused)?
    } else {
        oci::open_tar_file(Parsing::unconfined(), file, path, &host, Damage::Refused)?
    };
    let time = start.elapsed();
    let status = std::fs::read_to_string("/proc/self/status")?;
    let peak = status.lines().find(|line| line.starts_with("VmHWM")).unwrap_or_default();
    println!("{} entries, {} inodes in {time:.3?}; {peak}", opened.tree.entry_count(), opened.tree.inode_count());
    opened.notes.iter().for_each(|note| println!("{note}"));
    Ok(())
}
