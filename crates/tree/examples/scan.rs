//! Scans a directory and prints how long that took: `scan DIR [THREADS] [no-xattrs]`.

use std::path::Path;
use std::process::ExitCode;

use inarch_tree::scan::{ScanOptions, scan};

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let Some(directory) = arguments.first() else {
        eprintln!("usage: scan DIR [THREADS] [no-xattrs]");
        return ExitCode::from(2);
    };
    let threads = arguments.get(1).and_then(|threads| threads.parse().ok()).unwrap_or(0);
    let xattrs = arguments.get(2).is_none_or(|word| word != "no-xattrs");
    match scan(Path::new(directory), &ScanOptions { threads, xattrs, ..ScanOptions::default() }) {
        Ok(scan) => {
            let usage = peak_rss_kib();
            println!(
                "{} entries, {} inodes; walk {:.1?}, assembly {:.1?}; tree {} KiB, peak RSS {usage} KiB; {} left out",
                scan.tree.entry_count(),
                scan.tree.inode_count(),
                scan.walk_time,
                scan.assembly_time,
                scan.tree.memory_bytes() / 1024,
                scan.report.total(),
            );
            for left_out in scan.report.left_out.iter().take(10) {
                println!("  {left_out}");
            }
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("scan: {error}");
            ExitCode::FAILURE
        }
    }
}

/// `VmHWM` of proc_pid_status(5), in KiB; 0 if there is no /proc.
fn peak_rss_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    line.and_then(|line| line.split_whitespace().next()?.parse().ok()).unwrap_or(0)
}
