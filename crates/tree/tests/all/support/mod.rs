//! Shared by the tests of the scan: trees to scan, and a plain walk with the standard library to compare with.

#![allow(dead_code, reason = "each test uses a part of it")]

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

use inarch_tree::{FileType, InodeId, Tree};

/// All attributes of one path.
#[derive(Debug, PartialEq, Eq)]
pub struct Node {
    pub mode: u32,
    pub owner: (u32, u32),
    pub size: u64,
    pub mtime: (i64, u32),
    pub ctime: (i64, u32),
    pub ino: u64,
    pub device: (u32, u32),
    pub target: Vec<u8>,
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    pub links: u32,
}

/// Path to node, the root under the empty path.
pub type Nodes = BTreeMap<Vec<u8>, Node>;

/// All paths of a tree, in the order in which its directories list them.
pub fn paths(tree: &Tree) -> Vec<Vec<u8>> {
    let mut found = Vec::new();
    let mut stack = vec![(Vec::new(), InodeId::ROOT)];
    while let Some((path, dir)) = stack.pop() {
        for entry in tree.entries(dir) {
            let below = join(&path, entry.name);
            found.push(below.clone());
            if tree.inode(entry.inode).file_type() == FileType::Directory {
                stack.push((below, entry.inode));
            }
        }
    }
    found
}

/// The same as text, for failures that can be read.
pub fn names(tree: &Tree) -> Vec<String> {
    let mut names: Vec<String> = paths(tree).iter().map(|path| path.escape_ascii().to_string()).collect();
    names.sort();
    names
}

/// The attributes of each path in `tree`.
pub fn nodes_of(tree: &Tree) -> Nodes {
    let mut nodes = Nodes::new();
    for path in paths(tree).into_iter().chain([Vec::new()]) {
        let id = tree.lookup(&path).unwrap_or_else(|| panic!("{} is listed and not found", path.escape_ascii()));
        let inode = tree.inode(id);
        let xattrs = tree.xattrs(inode.xattrs()).iter().map(|x| (x.name.to_vec(), x.value.to_vec())).collect();
        let time = |time: inarch_tree::Timestamp| (time.seconds, time.nanoseconds);
        let node = Node {
            mode: inode.mode(),
            owner: (inode.uid(), inode.gid()),
            size: inode.size(),
            mtime: time(inode.mtime()),
            ctime: time(inode.ctime()),
            ino: inode.source_ino(),
            device: inode.device(),
            target: tree.symlink_target(id).to_vec(),
            xattrs,
            links: inode.links(),
        };
        nodes.insert(path, node);
    }
    nodes
}

/// The attributes of each path below `root`, by `std::fs`, `llistxattr` and `lgetxattr`.
pub fn nodes_on_host(root: &Path) -> Nodes {
    let mut nodes = Nodes::new();
    let mut stack = vec![Vec::new()];
    while let Some(path) = stack.pop() {
        let host = root.join(OsStr::from_bytes(&path));
        let stat = fs::symlink_metadata(&host).unwrap();
        let kind = stat.file_type();
        if kind.is_dir() {
            for entry in fs::read_dir(&host).unwrap() {
                stack.push(join(&path, entry.unwrap().file_name().as_bytes()));
            }
        }
        let is_device = kind.is_char_device() || kind.is_block_device();
        let rdev = (rustix::fs::major(stat.rdev()), rustix::fs::minor(stat.rdev()));
        let node = Node {
            mode: stat.mode(),
            owner: (stat.uid(), stat.gid()),
            size: if kind.is_file() { stat.size() } else { 0 },
            mtime: (stat.mtime(), stat.mtime_nsec() as u32),
            ctime: (stat.ctime(), stat.ctime_nsec() as u32),
            ino: stat.ino(),
            device: if is_device { rdev } else { (0, 0) },
            target: if kind.is_symlink() {
                fs::read_link(&host).unwrap().as_os_str().as_bytes().to_vec()
            } else {
                vec![]
            },
            xattrs: host_xattrs(&host),
            links: 0,
        };
        nodes.insert(path, node);
    }
    count_links(&mut nodes);
    nodes
}

/// Counts links as a tree does: names within it.
fn count_links(nodes: &mut Nodes) {
    let mut names_of: BTreeMap<u64, u32> = BTreeMap::new();
    let mut directories_in: BTreeMap<Vec<u8>, u32> = BTreeMap::new();
    for (path, node) in nodes.iter() {
        *names_of.entry(node.ino).or_default() += 1;
        if node.mode & 0o170000 == 0o040000 && !path.is_empty() {
            let parent = path.iter().rposition(|byte| *byte == b'/').map_or(&[][..], |slash| &path[..slash]);
            *directories_in.entry(parent.to_vec()).or_default() += 1;
        }
    }
    for (path, node) in nodes.iter_mut() {
        node.links = match node.mode & 0o170000 {
            0o040000 => 2 + directories_in.get(path).copied().unwrap_or(0),
            _ => names_of[&node.ino],
        };
    }
}

fn host_xattrs(path: &Path) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let mut list = vec![0; 65536];
    let length = rustix::fs::llistxattr(path, &mut list[..]).unwrap_or(0);
    let mut found = BTreeMap::new();
    for name in list[..length].split(|byte| *byte == 0).filter(|name| !name.is_empty()) {
        let mut value = vec![0; 65536];
        let length = rustix::fs::lgetxattr(path, name, &mut value[..]).unwrap();
        found.insert(name.to_vec(), value[..length].to_vec());
    }
    found
}

/// Sets an extended attribute of a path, not following symlinks.
pub fn set_xattr(path: &Path, name: &str, value: &[u8]) {
    rustix::fs::lsetxattr(path, name, value, rustix::fs::XattrFlags::empty())
        .unwrap_or_else(|error| panic!("{name} of {}: {error}", path.display()));
}

/// Whether the test runs as root, which device nodes, mounts and foreign owners need; if not, prints what is not
/// tested.
pub fn is_root(untested: &str) -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        let test = std::thread::current();
        eprintln!("skipped: {}: {untested}: that takes root", test.name().unwrap_or("a test"));
    }
    root
}

fn join(path: &[u8], name: &[u8]) -> Vec<u8> {
    if path.is_empty() { name.to_vec() } else { [path, name].join(&b'/') }
}
