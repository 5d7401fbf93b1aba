//! Comparing an opened archive with a directory that holds the same.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;

use inarch_block::read_content;
use inarch_format::TreeAndContent;
use inarch_tree::{FileType, InodeId, Tree};

use super::mount::xattrs;

/// What is compared of a name: type, permissions, owner, times, size, target, device, extended attributes, a hash of
/// the content, and the first name of the same inode.
pub type Facts = BTreeMap<Vec<u8>, Vec<String>>;

/// Fails unless `opened` is what the directory `expected` holds.
pub fn assert_same(opened: &TreeAndContent, expected: &Path) {
    assert_facts(&facts_of_tree(opened), &facts_of_directory(expected));
}

/// Fails where two sets of facts differ, with the names that do.
pub fn assert_facts(found: &Facts, expected: &Facts) {
    let mut differences = Vec::new();
    for name in found.keys().chain(expected.keys()).collect::<BTreeSet<_>>() {
        let (found, expected) = (found.get(name), expected.get(name));
        if found != expected {
            differences.push(format!("{}: found {found:?}, expected {expected:?}", name.escape_ascii()));
        }
    }
    assert!(differences.is_empty(), "{:#?}", &differences[..differences.len().min(20)]);
}

/// The facts of every name of a tree.
pub fn facts_of_tree(opened: &TreeAndContent) -> Facts {
    let tree = &opened.tree;
    let mut facts = Facts::new();
    let mut first = HashMap::new();
    let mut names = vec![(Vec::new(), InodeId::ROOT)];
    collect(tree, InodeId::ROOT, b"", &mut names);
    names.sort();
    for (path, id) in names {
        let inode = tree.inode(id);
        let is_directory = inode.file_type() == FileType::Directory;
        let same: &Vec<u8> = first.entry(id).or_insert_with(|| path.clone());
        let mut list = vec![
            format!("{:o}", inode.mode()),
            format!("{}:{}", inode.uid(), inode.gid()),
            format!("{}.{:09}", inode.mtime().seconds, inode.mtime().nanoseconds),
            format!("target {}", tree.symlink_target(id).escape_ascii()),
            format!("device {:?}", inode.device()),
            format!("same as {}", if is_directory { String::new() } else { same.escape_ascii().to_string() }),
        ];
        for xattr in tree.xattrs(inode.xattrs()) {
            list.push(format!("{}={}", xattr.name.escape_ascii(), xattr.value.escape_ascii()));
        }
        if inode.file_type() == FileType::Regular {
            let mut bytes = vec![0; inode.size() as usize];
            read_content(&*opened.content, id, 0, &mut bytes).unwrap();
            list.push(format!("{} bytes {:x}", bytes.len(), crc32c::crc32c(&bytes)));
        }
        facts.insert(path, list);
    }
    facts
}

fn collect(tree: &Tree, dir: InodeId, prefix: &[u8], out: &mut Vec<(Vec<u8>, InodeId)>) {
    for entry in tree.entries(dir) {
        let path = [prefix, entry.name].concat();
        collect(tree, entry.inode, &[&path, &b"/"[..]].concat(), out);
        out.push((path, entry.inode));
    }
}

/// The facts of every name of a directory of this host.
pub fn facts_of_directory(root: &Path) -> Facts {
    let mut facts = Facts::new();
    let mut first = HashMap::new();
    let mut names = vec![Vec::new()];
    walk(root, b"", &mut names);
    names.sort();
    for name in names {
        let path = root.join(std::ffi::OsStr::from_bytes(&name));
        let stat = fs::symlink_metadata(&path).unwrap();
        let same = first.entry((stat.dev(), stat.ino())).or_insert_with(|| name.clone());
        let is_device = stat.file_type().is_char_device() || stat.file_type().is_block_device();
        let device = if is_device { stat.rdev() } else { 0 };
        let target = fs::read_link(&path).map(|target| target.as_os_str().as_bytes().to_vec()).unwrap_or_default();
        let mut list = vec![
            format!("{:o}", stat.mode()),
            format!("{}:{}", stat.uid(), stat.gid()),
            format!("{}.{:09}", stat.mtime(), stat.mtime_nsec()),
            format!("target {}", target.escape_ascii()),
            format!("device {:?}", (rustix::fs::major(device), rustix::fs::minor(device))),
            format!("same as {}", if stat.is_dir() { String::new() } else { same.escape_ascii().to_string() }),
        ];
        for xattr in xattrs(&path) {
            list.push(format!("{}={}", xattr.name.escape_ascii(), xattr.value.escape_ascii()));
        }
        if stat.is_file() {
            let bytes = fs::read(&path).unwrap();
            list.push(format!("{} bytes {:x}", bytes.len(), crc32c::crc32c(&bytes)));
        }
        facts.insert(name, list);
    }
    facts
}

fn walk(root: &Path, prefix: &[u8], out: &mut Vec<Vec<u8>>) {
    let path = root.join(std::ffi::OsStr::from_bytes(prefix));
    for entry in fs::read_dir(path).unwrap() {
        let entry = entry.unwrap();
        let name = [prefix, entry.file_name().as_bytes()].concat();
        if entry.file_type().unwrap().is_dir() {
            walk(root, &[&name, &b"/"[..]].concat(), out);
        }
        out.push(name);
    }
}

/// Opens a file; for archives.
pub fn open(path: &Path) -> File {
    File::open(path).unwrap_or_else(|error| panic!("{path:?}: {error}"))
}
