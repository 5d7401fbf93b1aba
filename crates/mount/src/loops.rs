//! Makes read-only loop devices of open files, tells one from another later, and detaches them from their file, so that later reads fail
//! (Linux's include/uapi/linux/loop.h).

#![allow(unsafe_code, reason = "the ioctls of loop devices, which no library wraps")]

use std::fmt::{self, Display, Formatter};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::str::FromStr;

use rustix::fs::{MemfdFlags, memfd_create};

/// Bytes of a sector, and of a device's blocks.
const SECTOR: u32 = 512;

const LOOP_SET_STATUS64: libc::Ioctl = 0x4C04;
const LOOP_GET_STATUS64: libc::Ioctl = 0x4C05;
const LOOP_CHANGE_FD: libc::Ioctl = 0x4C06;
const LOOP_CONFIGURE: libc::Ioctl = 0x4C0A;
const LOOP_CTL_GET_FREE: libc::Ioctl = 0x4C82;

const LO_FLAGS_READ_ONLY: u32 = 1;
const LO_FLAGS_AUTOCLEAR: u32 = 4;

/// `struct loop_info64`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Info {
    device: u64,
    inode: u64,
    rdevice: u64,
    offset: u64,
    size_limit: u64,
    number: u32,
    encrypt_type: u32,
    encrypt_key_size: u32,
    flags: u32,
    file_name: [u8; 64],
    crypt_name: [u8; 64],
    encrypt_key: [u8; 32],
    init: [u64; 2],
}

const NO_INFO: Info = Info {
    device: 0,
    inode: 0,
    rdevice: 0,
    offset: 0,
    size_limit: 0,
    number: 0,
    encrypt_type: 0,
    encrypt_key_size: 0,
    flags: 0,
    file_name: [0; 64],
    crypt_name: [0; 64],
    encrypt_key: [0; 32],
    init: [0; 2],
};

/// `struct loop_config`.
#[repr(C)]
struct Config {
    file: u32,
    block_size: u32,
    info: Info,
    reserved: [u64; 8],
}

const _: () = assert!(size_of::<Info>() == 232 && size_of::<Config>() == 304);

/// A read-only block device of a file's bytes. The kernel removes it when it is no longer open or mounted.
#[derive(Debug)]
pub struct Loop {
    device: File,
    path: PathBuf,
}

impl Loop {
    /// Sets up a free loop device, which keeps the open file (not only the inode) as long as it exists.
    ///
    /// # Errors
    /// There is no free one (the module `loop` is missing), or this process lacks the permission.
    pub fn of(file: BorrowedFd<'_>) -> io::Result<Loop> {
        /// Others may take the one that was free.
        const ATTEMPTS: u32 = 100;
        let control = OpenOptions::new().read(true).write(true).open("/dev/loop-control")?;
        let mut last = io::Error::from(io::ErrorKind::ResourceBusy);
        for _ in 0..ATTEMPTS {
            // SAFETY: it takes no argument, and gives a number.
            let number = unsafe { libc::ioctl(control.as_raw_fd(), LOOP_CTL_GET_FREE) };
            if number < 0 {
                return Err(io::Error::last_os_error());
            }
            let path = PathBuf::from(format!("/dev/loop{number}"));
            let device = File::open(&path)?;
            let info = Info { flags: LO_FLAGS_READ_ONLY | LO_FLAGS_AUTOCLEAR, ..NO_INFO };
            let file = file.as_raw_fd().unsigned_abs();
            let config = Config { file, block_size: SECTOR, info, reserved: [0; 8] };
            // SAFETY: the kernel reads a structure of this layout, and changes nothing of it.
            if unsafe { libc::ioctl(device.as_raw_fd(), LOOP_CONFIGURE, &raw const config) } == 0 {
                return Ok(Loop { device, path });
            }
            last = io::Error::last_os_error();
            if last.raw_os_error() != Some(libc::EBUSY) {
                break;
            }
        }
        Err(last)
    }

    /// What tells it from another device that has its path later.
    ///
    /// # Errors
    /// Those of the device.
    pub fn id(&self) -> io::Result<LoopId> {
        let info = self.info()?;
        Ok(LoopId { path: self.path.clone(), device: info.device, inode: info.inode })
    }

    fn info(&self) -> io::Result<Info> {
        let mut info = NO_INFO;
        // SAFETY: the kernel writes a structure of this layout.
        match unsafe { libc::ioctl(self.device.as_raw_fd(), LOOP_GET_STATUS64, &raw mut info) } {
            0 => Ok(info),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// The device.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Truncates the device to one sector. Reads of the rest that begin later fail. Reads that were checked against the old size may
    /// still run: the kernel drains the queue before it changes the size (`loop_set_status` of Linux's drivers/block/loop.c).
    ///
    /// # Errors
    /// Those of the device.
    fn cut(&self) -> io::Result<()> {
        let info = Info { size_limit: SECTOR.into(), ..self.info()? };
        // SAFETY: the kernel reads a structure of this layout.
        match unsafe { libc::ioctl(self.device.as_raw_fd(), LOOP_SET_STATUS64, &raw const info) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }

    /// Has the device read no more of the file: it is truncated to one sector, and an empty file takes the place of the open one. When
    /// this returns, reads in progress are done, and later ones fail. If nothing else holds the open file, its lease has ended.
    ///
    /// # Errors
    /// Those of the device. It may be truncated all the same.
    pub fn let_go(&self) -> io::Result<()> {
        self.cut()?;
        // It takes a file only in the place of one of the same size.
        let instead = memfd_create("inarch-nothing", MemfdFlags::CLOEXEC)?;
        rustix::fs::ftruncate(&instead, SECTOR.into())?;
        // SAFETY: the command takes a descriptor, of which the kernel keeps a reference.
        match unsafe { libc::ioctl(self.device.as_raw_fd(), LOOP_CHANGE_FD, instead.as_raw_fd()) } {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

/// A loop device as another process finds it: its path, and the file that it shows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoopId {
    path: PathBuf,
    device: u64,
    inode: u64,
}

impl LoopId {
    /// The device; while this is there no other one has its path.
    ///
    /// # Errors
    /// It is gone, or shows another file by now.
    pub fn open(&self) -> io::Result<Loop> {
        let found = Loop { device: File::open(&self.path)?, path: self.path.clone() };
        let info = found.info()?;
        match (info.device, info.inode) == (self.device, self.inode) {
            true => Ok(found),
            false => Err(io::ErrorKind::NotFound.into()),
        }
    }
}

impl Display for LoopId {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}:{}", self.device, self.inode, self.path.display())
    }
}

impl FromStr for LoopId {
    type Err = ();

    fn from_str(text: &str) -> Result<LoopId, ()> {
        let (file, path) = text.split_once(':').ok_or(())?;
        let (device, inode) = file.split_once('/').ok_or(())?;
        let number = |text: &str| text.parse().map_err(|_| ());
        Ok(LoopId { path: path.into(), device: number(device)?, inode: number(inode)? })
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::AsFd;
    use std::os::unix::fs::{FileExt, OpenOptionsExt};
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::thread;
    use std::time::Duration;

    use super::*;

    const PIECE: usize = 64 << 10;
    const PIECES: u64 = 64;

    /// What O_DIRECT reads into.
    #[repr(align(4096))]
    struct Buffer([u8; PIECE]);

    /// Reads the device past the page cache until `stop`, without its first sector. Returns whether it saw a new byte.
    fn read_all_the_time(device: &Path, begin: u64, stop: &AtomicBool) -> bool {
        let device = OpenOptions::new().read(true).custom_flags(libc::O_DIRECT).open(device).unwrap();
        let mut buffer = Box::new(Buffer([0; PIECE]));
        let mut is_new = false;
        for piece in (1..PIECES).cycle().skip(begin as usize) {
            if stop.load(Ordering::Relaxed) {
                break;
            }
            let read = device.read_at(&mut buffer.0, piece * PIECE as u64).unwrap_or(0);
            is_new |= buffer.0[..read].contains(&b'N');
        }
        is_new
    }

    /// Reads that wait while the kernel changes the device come after the change.
    #[test]
    fn a_device_that_let_its_file_go_shows_nothing_that_is_written_later() {
        if !rustix::process::geteuid().is_root() || !Path::new("/dev/loop-control").exists() {
            eprintln!(
                "skipped: a_device_that_let_its_file_go_shows_nothing_that_is_written_later: it needs root and loop devices"
            );
            return;
        }
        let directory = tempfile::tempdir_in("/var/tmp").unwrap();
        let path = directory.path().join("file");
        let [old, new] = [b'o', b'N'].map(|byte| vec![byte; PIECE * PIECES as usize]);
        for _ in 0..20 {
            std::fs::write(&path, &old).unwrap();
            let file = OpenOptions::new().write(true).open(&path).unwrap();
            let device = Loop::of(File::open(&path).unwrap().as_fd()).unwrap();
            let stop = AtomicBool::new(false);
            thread::scope(|scope| {
                let readers: Vec<_> = (0..6)
                    .map(|reader| {
                        let (device, stop) = (device.path(), &stop);
                        scope.spawn(move || read_all_the_time(device, reader * 10, stop))
                    })
                    .collect();
                thread::sleep(Duration::from_millis(5));
                device.let_go().unwrap();
                file.write_all_at(&new, 0).unwrap();
                thread::sleep(Duration::from_millis(20));
                stop.store(true, Ordering::Relaxed);
                assert!(readers.into_iter().all(|reader| !reader.join().unwrap()), "it shows new bytes");
            });
        }
    }
}
