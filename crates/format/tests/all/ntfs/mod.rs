//! What the tests of NTFS share: volumes of mkntfs, filled by ntfs-3g, and the records in them.
#![allow(dead_code, reason = "each test file uses a part")]

use std::ffi::OsStr;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use inarch_block::BackingFile;
use inarch_confine::Parsing;
use inarch_format::{Damage, ReadError, TreeAndContent};
use inarch_volume::Volume;

use crate::common::archive::run;
use crate::common::mount::unmount;
use crate::common::reader;

/// Makes a volume of so many MiB.
pub fn mkntfs(image: &Path, mib: u64, arguments: &[&str]) {
    File::create(image).unwrap().set_len(mib << 20).unwrap();
    let mut all: Vec<&OsStr> = ["--force", "--quick", "--quiet", "--with-uuid"].iter().map(OsStr::new).collect();
    all.extend(arguments.iter().map(OsStr::new));
    all.push(image.as_os_str());
    run("/sbin/mkntfs", &all);
}

/// Whether this user may mount with FUSE; prints that a test is skipped if not.
pub fn can_mount() -> bool {
    let can = rustix::process::geteuid().is_root() && Path::new("/dev/fuse").exists();
    if !can {
        let test = std::thread::current();
        eprintln!("skipped: {}: a mount of ntfs-3g: it needs root and /dev/fuse", test.name().unwrap_or("a test"));
    }
    can
}

/// A volume mounted by ntfs-3g; unmounted when dropped.
pub struct Mounted(pub PathBuf);

impl Mounted {
    pub fn new(image: &Path, options: &str) -> Mounted {
        let at = image.with_extension("mount");
        fs::create_dir_all(&at).unwrap();
        run("/bin/ntfs-3g", &["-o".as_ref(), options.as_ref(), image.as_os_str(), at.as_os_str()]);
        Mounted(at)
    }

    /// To be written to.
    pub fn writable(image: &Path) -> Mounted {
        Mounted::new(image, "streams_interface=xattr,compression")
    }

    /// As our reader shows it.
    pub fn shown(image: &Path) -> Mounted {
        Mounted::new(image, "ro,streams_interface=xattr,uid=0,gid=0,fmask=0133,dmask=0022")
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let unmounted = unmount(&self.0);
        assert!(std::thread::panicking() || unmounted, "{:?} cannot be unmounted", self.0);
        // The server writes until it has ended, which the unmounting does not wait for.
        let name = self.0.with_extension("");
        for _ in 0..500 {
            let arguments = fs::read_dir("/proc").unwrap().filter_map(|process| {
                fs::read(process.ok()?.path().join("cmdline")).ok().filter(|line| line.starts_with(b"/bin/ntfs-3g\0"))
            });
            let name = name.file_stem().unwrap().as_encoded_bytes().to_vec();
            let directory = self.0.parent().unwrap().as_os_str().as_encoded_bytes().to_vec();
            let is_ours = |line: &Vec<u8>| {
                let has = |bytes: &[u8]| line.windows(bytes.len()).any(|window| window == bytes);
                has(&name) && has(&directory)
            };
            if !arguments.into_iter().any(|line| is_ours(&line)) {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
    }
}

/// Opens a volume of a file.
pub fn open_volume(image: &Path, damage: Damage) -> Result<Arc<dyn Volume>, ReadError> {
    let backing = BackingFile::new(File::open(image).unwrap(), image.to_owned()).unwrap();
    reader("ntfs").open(Parsing::unconfined(), Arc::new(backing), damage)
}

/// Opens a volume and walks it.
pub fn try_open(image: &Path) -> Result<TreeAndContent, ReadError> {
    TreeAndContent::walk(Parsing::unconfined(), open_volume(image, Damage::Refused)?, Damage::Refused)
}

/// Bytes that compress to about half.
pub fn noise(seed: u64, length: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut step = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        b'a' + (state % 16) as u8
    };
    (0..length).map(|_| step()).collect()
}

/// The little-endian number of so many bytes.
pub fn number(image: &[u8], at: usize, bytes: usize) -> u64 {
    let mut all = [0; 8];
    all[..bytes].copy_from_slice(&image[at..at + bytes]);
    u64::from_le_bytes(all)
}

/// Where an MFT record is, in a volume whose MFT is in one piece.
pub fn record(image: &[u8], number_of: u64) -> usize {
    let cluster = number(image, 11, 2) * number(image, 13, 1);
    (number(image, 48, 8) * cluster) as usize + number_of as usize * 1024
}

/// Where the first attribute of a type is, of a record that begins there.
pub fn attribute(image: &[u8], record: usize, kind: u32) -> usize {
    let mut at = record + number(image, record + 20, 2) as usize;
    while number(image, at, 4) != u64::from(kind) {
        assert!(number(image, at, 4) < u64::from(kind), "there is no attribute {kind:#x}");
        at += number(image, at + 4, 4) as usize;
    }
    at
}
