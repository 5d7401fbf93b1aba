//! A planned or built image, mounted by the kernel of this host.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use inarch_block::BLOCK_SIZE;
use inarch_tree::{InodeId, Tree, Xattr};

/// A mounted image; unmounted when dropped.
pub struct Mount(pub PathBuf);

impl Mount {
    /// Mounts `image` beside itself; `None`, with the reason printed, where only root could.
    pub fn new(image: &Path, options: &str) -> Option<Mount> {
        if !rustix::process::geteuid().is_root() {
            eprintln!(
                "skipped: {}: mounting an image: it needs root",
                std::thread::current().name().unwrap_or("a test")
            );
            return None;
        }
        let at = image.with_extension("mount");
        fs::create_dir_all(&at).unwrap();
        let output = Command::new("mount").args(["-o", options]).arg(image).arg(&at).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        Some(Mount(at))
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let unmounted = unmount(&self.0);
        assert!(std::thread::panicking() || unmounted, "{:?} cannot be unmounted", self.0);
    }
}

/// Runs umount(8), more than once: a process that another test starts has our descriptors until it runs its program.
pub fn unmount(at: &Path) -> bool {
    (0..50).any(|attempt| {
        std::thread::sleep(std::time::Duration::from_millis(attempt * 4));
        Command::new("umount").arg(at).output().is_ok_and(|output| output.status.success())
    })
}

/// The extended attributes of what `path` names, itself and not what it may point at, sorted by name.
pub fn xattrs(path: &Path) -> Vec<Xattr> {
    let mut names = vec![0; 65_536];
    let length = rustix::fs::llistxattr(path, &mut names).unwrap();
    let mut list = Vec::new();
    for name in names[..length].split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
        let mut value = vec![0; 65_536];
        let got = rustix::fs::lgetxattr(path, OsStr::from_bytes(name), &mut value);
        let length = got.unwrap_or_else(|error| panic!("{path:?} {}: {error}", String::from_utf8_lossy(name)));
        list.push(Xattr { name: name.into(), value: value[..length].into() });
    }
    list.sort();
    list
}

/// Reads the content of a scanned directory's files, for [`dump`](super::dump).
pub fn host_content<'a>(source: &'a Path, tree: &'a Tree) -> impl FnMut(InodeId, u64, &mut [u8]) + 'a {
    let mut open: Option<(InodeId, File)> = None;
    move |inode, block, out| {
        if open.as_ref().is_none_or(|(id, _)| *id != inode) {
            open = Some((inode, File::open(source.join(OsStr::from_bytes(&tree.path(inode)))).unwrap()));
        }
        let Some((_, file)) = &open else { return };
        let mut filled = 0;
        while let Ok(read @ 1..) = file.read_at(&mut out[filled..], block * BLOCK_SIZE as u64 + filled as u64) {
            filled += read;
        }
    }
}
