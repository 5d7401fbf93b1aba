//! Reads extended attributes in the cheapest way that the kernel supports, and shares equal sets.

use std::collections::HashMap;
use std::ffi::{CStr, CString};
use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::io::Errno;

use super::access::Acl;
use super::syscall;
use crate::Xattr;
use crate::select::OwnerMap;

/// `XATTR_LIST_MAX` and `XATTR_SIZE_MAX` of `include/uapi/linux/limits.h`.
const SIZE_MAX: usize = 65536;

/// The usual size of a list of names or a value. The kernel allocates and clears as many bytes as it is offered, so the
/// whole buffer is offered only if these are too few.
const SIZE_USUAL: usize = 256;

/// How to read the attributes of a name in a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Method {
    /// `listxattrat` and `getxattrat`, since Linux 6.13.
    At,
    /// `fchdir` to the directory, in threads with a working directory of their own, then `llistxattr`: about half a
    /// microsecond more for each entry.
    WorkingDirectory,
    /// Through `/proc/self/fd`, if a sandbox forbids the others: twice as expensive again.
    Proc,
    /// They are not read.
    None,
}

impl Method {
    /// The cheapest method that works for `root`, an open directory.
    pub(super) fn choose(root: BorrowedFd<'_>) -> Method {
        match syscall::listxattrat(root, c".", &mut []) {
            // A sandbox that does not know the call may answer EPERM.
            Err(Errno::NOSYS | Errno::PERM) => Method::WorkingDirectory,
            _ => Method::At,
        }
    }
}

/// Reads the attributes of one worker's inodes.
pub(super) struct Reader {
    method: Method,
    owner: OwnerMap,
    /// Whether the working directory is the directory being read.
    entered: bool,
    /// Devices whose file systems have no extended attributes.
    without: Vec<u64>,
    list: Vec<u8>,
    value: Vec<u8>,
    key: Vec<u8>,
    sets: Vec<Vec<Xattr>>,
    index: HashMap<Box<[u8]>, u32>,
}

/// What [`Reader::read`] found.
#[derive(Clone, Copy, Debug)]
pub(super) struct Found {
    /// Index of the set in [`Reader::into_sets`].
    pub(super) set: u32,
    /// Whether an access ACL may be among them.
    pub(super) acl: Acl,
}

impl Found {
    /// The result for a file whose attributes are not read.
    pub(super) fn nothing() -> Found {
        Found { set: 0, acl: Acl::Possible }
    }
}

impl Reader {
    /// A reader for the calling thread. The thread gets a working directory of its own if `method` needs one.
    pub(super) fn new(method: Method, owner: OwnerMap) -> Reader {
        let method = match method {
            Method::WorkingDirectory if syscall::own_working_directory().is_err() => Method::Proc,
            method => method,
        };
        Reader {
            method,
            owner,
            entered: false,
            without: Vec::new(),
            list: vec![0; SIZE_MAX],
            value: vec![0; SIZE_MAX],
            key: Vec::new(),
            sets: vec![Vec::new()],
            index: HashMap::new(),
        }
    }

    /// The sets found, by index.
    pub(super) fn into_sets(self) -> Vec<Vec<Xattr>> {
        self.sets
    }

    /// Enters a directory; must be called before the first [`Reader::read`] in it.
    pub(super) fn enter(&mut self, dir: BorrowedFd<'_>) {
        if self.method == Method::WorkingDirectory {
            self.entered = rustix::process::fchdir(dir).is_ok();
        }
    }

    /// The attributes of `name` in `dir`, which is on `device`. Unreadable ones are left out.
    pub(super) fn read(&mut self, dir: BorrowedFd<'_>, name: &CStr, device: u64) -> Found {
        if self.method == Method::None {
            return Found::nothing();
        }
        if self.without.contains(&device) {
            return Found { set: 0, acl: Acl::Absent };
        }
        match self.list(dir, name) {
            Ok(0) => Found { set: 0, acl: Acl::Absent },
            Ok(length) => self.read_listed(dir, name, length),
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => {
                self.without.push(device);
                Found { set: 0, acl: Acl::Absent }
            }
            Err(_) => Found::nothing(),
        }
    }

    fn read_listed(&mut self, dir: BorrowedFd<'_>, name: &CStr, length: usize) -> Found {
        let list = self.list.get(..length).unwrap_or_default().to_owned();
        let mut set = Vec::new();
        let mut acl = Acl::Absent;
        for attribute in list.split_inclusive(|byte| *byte == 0) {
            let Ok(attribute) = CStr::from_bytes_with_nul(attribute) else { continue };
            let full_name = attribute.to_bytes();
            if full_name == b"system.posix_acl_access" {
                acl = Acl::Possible;
            }
            if !is_portable(full_name) {
                continue;
            }
            // Trusted attributes are listed but unreadable without privilege, and any attribute may vanish in between.
            let Ok(size) = self.value(dir, name, attribute) else { continue };
            let mut value = self.value.get(..size).unwrap_or_default().to_owned();
            if full_name.starts_with(b"system.posix_acl_") {
                self.owner.acl(&mut value);
            }
            set.push(Xattr { name: full_name.into(), value: value.into() });
        }
        set.sort();
        set.dedup_by(|b, a| a.name == b.name);
        Found { set: self.intern(set), acl }
    }

    fn intern(&mut self, set: Vec<Xattr>) -> u32 {
        if set.is_empty() {
            return 0;
        }
        self.key.clear();
        for xattr in &set {
            self.key.extend_from_slice(&xattr.name);
            self.key.push(0);
            self.key.extend_from_slice(&xattr.value.len().to_le_bytes());
            self.key.extend_from_slice(&xattr.value);
        }
        if let Some(index) = self.index.get(&self.key[..]) {
            return *index;
        }
        // At most one set for each inode, and inode numbers have 32 bits.
        let index = self.sets.len() as u32;
        self.sets.push(set);
        self.index.insert(self.key[..].into(), index);
        index
    }

    fn list(&mut self, dir: BorrowedFd<'_>, name: &CStr) -> Result<usize, Errno> {
        let (method, entered) = (self.method, self.entered);
        filled(&mut self.list, |list| match method {
            Method::At => syscall::listxattrat(dir, name, list),
            Method::WorkingDirectory if entered => rustix::fs::llistxattr(name, list),
            Method::WorkingDirectory | Method::Proc => rustix::fs::llistxattr(proc_path(dir, name), list),
            Method::None => Ok(0),
        })
    }

    fn value(&mut self, dir: BorrowedFd<'_>, name: &CStr, attribute: &CStr) -> Result<usize, Errno> {
        let (method, entered) = (self.method, self.entered);
        filled(&mut self.value, |value| match method {
            Method::At => syscall::getxattrat(dir, name, attribute, value),
            Method::WorkingDirectory if entered => rustix::fs::lgetxattr(name, attribute, value),
            Method::WorkingDirectory | Method::Proc => rustix::fs::lgetxattr(proc_path(dir, name), attribute, value),
            Method::None => Ok(0),
        })
    }
}

/// Calls `read` with the start of `buffer`, and with all of it if that was too short.
fn filled(buffer: &mut [u8], read: impl Fn(&mut [u8]) -> Result<usize, Errno>) -> Result<usize, Errno> {
    match read(&mut buffer[..SIZE_USUAL]) {
        Err(Errno::RANGE) => read(buffer),
        result => result,
    }
}

/// Whether an extended attribute has a meaning away from its file system.
pub fn is_portable(name: &[u8]) -> bool {
    let namespaces: [&[u8]; 3] = [b"user.", b"security.", b"trusted."];
    namespaces.iter().any(|namespace| name.starts_with(namespace))
        || matches!(name, b"system.posix_acl_access" | b"system.posix_acl_default")
}

fn proc_path(dir: BorrowedFd<'_>, name: &CStr) -> CString {
    let mut path = format!("/proc/self/fd/{}/", dir.as_raw_fd()).into_bytes();
    path.extend_from_slice(name.to_bytes());
    // A CStr holds no NUL.
    CString::new(path).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::ffi::CString;
    use std::os::fd::AsFd;

    use rustix::fs::XattrFlags;

    use super::*;

    /// Every method that this kernel supports gives the same sets.
    #[test]
    fn methods_agree() {
        let root = tempfile::tempdir().unwrap();
        let set = |name: &str, attribute: &str, value: &[u8]| {
            let flags = XattrFlags::empty();
            rustix::fs::lsetxattr(root.path().join(name), attribute, value, flags).unwrap();
        };
        for name in ["none", "one", "many"] {
            std::fs::write(root.path().join(name), "").unwrap();
        }
        set("one", "user.long", &[7; 1000]);
        for i in 0..30 {
            set("many", &format!("user.a-name-long-enough-that-thirty-fill-the-list-{i}"), &[i]);
        }
        let dir = std::fs::File::open(root.path()).unwrap();
        let read = |method| {
            std::thread::scope(|scope| {
                let thread = scope.spawn(|| {
                    let mut reader = Reader::new(method, OwnerMap::Host);
                    reader.enter(dir.as_fd());
                    let found = [c"none", c"one", c"many", c"one", c"gone"];
                    let found = found.map(|name: &CStr| reader.read(dir.as_fd(), name, 1).set);
                    (found, reader.into_sets())
                });
                thread.join().unwrap()
            })
        };
        let expected = read(Method::Proc);
        assert_eq!(expected.0, [0, 1, 2, 1, 0]);
        assert_eq!((expected.1[1].len(), expected.1[2].len()), (1, 30));
        assert_eq!(read(Method::WorkingDirectory), expected);
        if Method::choose(dir.as_fd()) == Method::At {
            assert_eq!(read(Method::At), expected);
        } else {
            eprintln!("skipped: methods_agree: listxattrat: it came with Linux 6.13");
        }
        let unmoved = std::env::current_dir().unwrap();
        assert_ne!(unmoved, root.path(), "the working directory of other threads");
    }

    #[test]
    fn only_attributes_that_mean_something_elsewhere_are_kept() {
        for name in ["user.x", "security.selinux", "trusted.x", "system.posix_acl_access", "system.posix_acl_default"] {
            assert!(is_portable(name.as_bytes()), "{name}");
        }
        for name in ["system.nfs4_acl", "btrfs.compression", "system.posix_acl_accessx", "userx"] {
            assert!(!is_portable(name.as_bytes()), "{name}");
        }
    }

    #[test]
    fn a_path_through_proc_names_the_entry() {
        let dir = std::fs::File::open("/").unwrap();
        let path = proc_path(dir.as_fd(), c"a b");
        assert_eq!(path, CString::new(format!("/proc/self/fd/{}/a b", dir.as_fd().as_raw_fd())).unwrap());
    }
}
