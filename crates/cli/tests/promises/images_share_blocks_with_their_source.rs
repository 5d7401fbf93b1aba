//! Promise: if the file system can share blocks between files (XFS, btrfs), an image shares its source's blocks, and is
//! the same image byte for byte, whatever happens to the source afterwards.

use std::path::{Path, PathBuf};

use crate::support::listing::Mount;
use crate::support::{assert_status, host, inarch, scratch, stdout};

/// Files with and without a tail, around the size from which blocks are shared, a sparse one, and one of two names.
const SOURCE: &str = "
    mkdir -p source/dir; cd source
    for size in 1 4096 61440 65535 65536 65537 69632 1000000 1048576 5000001; do head -c $size /dev/urandom > of-$size; done
    truncate -s 3M sparse; head -c 200000 /dev/urandom | dd of=sparse bs=4096 seek=100 conv=notrunc status=none
    ln of-1000000 dir/hard; sync -f .";

/// Bytes of the source that lie in whole blocks of files, or of parts between holes, of at least 64 KiB.
const SHARED: u64 = 65_536 + 65_536 + 69_632 + 999_424 + 1_048_576 + 4_997_120 + 200_704;

/// Holes around the sparse file's data that are no whole blocks of 128 KiB, as squashfs has them.
const AROUND: u64 = 2 * 131_072 - 200_704;

/// The part of `filefrag -v` that says which extents others have too.
fn shared_extents(file: &Path) -> usize {
    let said = host("filefrag", &["-v", file.to_str().unwrap()], Path::new("/"));
    said.lines().filter(|line| line.contains("shared")).count()
}

#[test]
fn until_one_of_them_changes() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: until_one_of_them_changes: making and mounting file systems: it needs root");
        return;
    }
    for system in ["xfs", "btrfs"] {
        // In memory: an unmount waits until everything is on its disk.
        let memory = tempfile::tempdir_in("/dev/shm").unwrap();
        let disk = memory.path().join("disk");
        host("truncate", &["-s", "400M", disk.to_str().unwrap()], Path::new("/"));
        host(&format!("mkfs.{system}"), &["-q", disk.to_str().unwrap()], Path::new("/"));
        let place = scratch();
        let mount = Mount::writable(&disk, place.path().join("mount"));
        host("sh", &["-euc", SOURCE], &mount.0);
        let source = mount.0.join("source");
        let make = |format: &str, output: &Path| {
            let made = inarch([
                "image",
                source.to_str().unwrap(),
                "-o",
                output.to_str().unwrap(),
                "--format",
                format,
                "--json",
                "--verify",
                "--sync",
            ]);
            assert_status(&made, 0);
            let text = stdout(&made);
            let shared = text.lines().find_map(|line| line.trim().strip_prefix("\"shared_bytes\": "));
            shared.and_then(|number| number.trim_end_matches(',').parse::<u64>().ok()).expect("it says it")
        };
        let mut images: Vec<(PathBuf, PathBuf)> = Vec::new();
        // Archives share what lies at a multiple of a block's size by chance.
        let formats = [("ext4", Some(SHARED)), ("erofs", Some(SHARED)), ("squashfs", Some(SHARED + AROUND))];
        for (format, expected) in formats.into_iter().chain([("tar", None), ("cpio", None)]) {
            let (here, elsewhere) = (mount.0.join(format), memory.path().join(format));
            let shared = make(format, &here);
            assert!(expected.is_none_or(|expected| expected == shared), "{shared}, {format} on {system}");
            assert_eq!(shared_extents(&here) > 0, shared > 0, "{format} on {system}");
            assert_eq!(make(format, &elsewhere), 0, "{format} beside {system}");
            images.push((here, elsewhere));
        }
        let changes = "printf changed | dd of=of-1000000 conv=notrunc status=none; truncate -s 70000 of-5000001
            head -c 1048576 /dev/zero > of-1048576; rm of-65537 sparse; echo more >> of-65536; sync -f .";
        host("sh", &["-euc", changes], &source);
        for (here, elsewhere) in &images {
            host("cmp", &[here.to_str().unwrap(), elsewhere.to_str().unwrap()], Path::new("/"));
        }
    }
}
