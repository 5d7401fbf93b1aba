//! Makes a file system and its partition longer or shorter.
//!
//! The partition grows first, and shrinks last. So whenever this is killed, the file system lies within its partition.

use std::path::Path;

use super::Host;
use super::devices::load_driver;
use super::failure::Failure;
use super::mounts::{Mounted, ROOT};
use super::tools::{Tool, with_name};
use crate::appliance::wire::{AttachedVolume, Device, Found, Grown};

const SFDISK: Tool = Tool { program: "sfdisk", package: "fdisk" };
const PARTX: Tool = Tool { program: "partx", package: "util-linux" };
const E2FSCK: Tool = Tool { program: "e2fsck", package: "e2fsprogs" };
const RESIZE2FS: Tool = Tool { program: "resize2fs", package: "e2fsprogs" };
const XFS_GROWFS: Tool = Tool { program: "xfs_growfs", package: "xfsprogs" };
const BTRFS: Tool = Tool { program: "btrfs", package: "btrfs-progs" };
const NTFSRESIZE: Tool = Tool { program: "ntfsresize", package: "ntfs-3g" };

/// Resizes the first volume.
pub(super) fn resize(
    volumes: &Mounted,
    volume: &AttachedVolume,
    wanted: &Grown,
    host: &mut Host,
) -> Result<Found, Failure> {
    let Some((name, device, format)) = volumes.devices.first() else { return Err(Failure::new("there is no volume")) };
    let work = Work { volume, name, device, format };
    find_tools(format)?;
    if wanted.grows {
        work.set_partition(wanted)?;
        work.resize_files(None, host)?;
    } else {
        work.resize_files(Some(wanted.bytes), host)?;
        work.set_partition(wanted)?;
    }
    Ok(Found { bytes: wanted.bytes, ..Found::default() })
}

/// Everything that will be needed is there before anything is changed.
fn find_tools(format: &str) -> Result<(), Failure> {
    let tools: &[Tool] = match format {
        "ext2" | "ext3" | "ext4" => &[E2FSCK, RESIZE2FS],
        "xfs" => &[XFS_GROWFS],
        "btrfs" => &[BTRFS],
        "ntfs" => &[NTFSRESIZE],
        _ => &[],
    };
    tools.iter().chain(&[SFDISK, PARTX]).try_for_each(|tool| tool.find().map(drop))
}

struct Work<'a> {
    volume: &'a AttachedVolume,
    name: &'a str,
    device: &'a Path,
    format: &'a str,
}

impl Work<'_> {
    /// Runs a tool, and explains its failure.
    fn must(&self, tool: Tool, words: &[&str]) -> Result<(), Failure> {
        let done = tool.must(words);
        done.map(drop).map_err(|failure| Failure { text: with_name(&failure.text, self.device, self.name), ..failure })
    }

    /// Writes the partition's new length into the table.
    fn set_partition(&self, wanted: &Grown) -> Result<(), Failure> {
        let Device::Disk { part: Some(part), .. } = self.volume.device else { return Ok(()) };
        let disk = disk_of(self.device)?;
        let number = part.to_string();
        if wanted.moves_table {
            // The second copy of a GPT belongs to the disk's end, which is another one now.
            self.must(SFDISK, &["--quiet", "--no-tell-kernel", "--no-reread", "--relocate", "gpt-bak-std", &disk])?;
        }
        let line = format!("size={}KiB\n", wanted.bytes / 1024);
        let words = ["--quiet", "--no-tell-kernel", "--no-reread", "--force", "-N", &number, &disk];
        let ended = SFDISK.feed(words, &line, &mut |_| {})?;
        if ended.status != 0 {
            return Err(SFDISK.failed(&ended));
        }
        self.must(PARTX, &["--update", "--nr", &number, &disk])
    }

    /// Makes the file system this long, or as long as its partition.
    fn resize_files(&self, bytes: Option<u64>, host: &mut Host) -> Result<(), Failure> {
        let device = &*self.device.to_string_lossy();
        match self.format {
            "ext2" | "ext3" | "ext4" => {
                let ended = E2FSCK.run(["-f", "-p", device], &mut |_| {})?;
                if ended.status > 1 {
                    let failure = E2FSCK.failed(&ended);
                    return Err(Failure { text: with_name(&failure.text, self.device, self.name), ..failure });
                }
                let size = bytes.map(|bytes| format!("{}K", bytes / 1024));
                let words: Vec<&str> = [device].into_iter().chain(size.as_deref()).collect();
                self.must(RESIZE2FS, &words)
            }
            "xfs" => self.while_mounted(|| self.must(XFS_GROWFS, &["-d", ROOT])),
            "btrfs" => {
                let size = bytes.map_or_else(|| "max".to_owned(), |bytes| bytes.to_string());
                self.while_mounted(|| self.must(BTRFS, &["filesystem", "resize", &size, ROOT]))
            }
            "ntfs" => {
                let size = bytes.map(|bytes| bytes.to_string());
                let size: Vec<&str> = size.iter().flat_map(|size| ["--size", size]).collect();
                let trial = [&["--force", "--no-action"][..], &size, &[device]].concat();
                self.must(NTFSRESIZE, &trial)?;
                host.note("Windows will check the volume when it starts next");
                self.must(NTFSRESIZE, &[&["--force", "--force"][..], &size, &[device]].concat())
            }
            other => Err(Failure::new(format!("{}: {other} cannot be resized", self.name))),
        }
    }

    /// Does something while the volume is mounted.
    fn while_mounted(&self, work: impl FnOnce() -> Result<(), Failure>) -> Result<(), Failure> {
        load_driver(self.format)?;
        let mut mounted = Mounted::new(&[]);
        mounted.mount(&AttachedVolume { subvolume: None, ..self.volume.clone() }, self.device, self.format, false)?;
        let done = work();
        mounted.unmount()?;
        done
    }
}

/// The disk of a partition's device: `/dev/vdb` of `/dev/vdb2`.
fn disk_of(device: &Path) -> Result<String, Failure> {
    let text = device.to_string_lossy();
    let disk = text.trim_end_matches(|c: char| c.is_ascii_digit());
    if Path::new(disk).exists() { Ok(disk.to_owned()) } else { Err(Failure::new(format!("{text} is no partition"))) }
}
