//! Files in memory, as a volume.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use inarch_block::{Content, Cursor};
use inarch_tree::{Attributes, Builder, InodeId};
use inarch_volume::{TreeVolume, Volume, is_name};

/// What is at a path.
pub enum File {
    /// A regular file, and what it holds.
    Regular(Vec<u8>),
    /// A symbolic link, and what it leads to.
    Link(String),
    /// A directory, whatever is in it.
    Directory,
}

/// The names of a directory.
type Names = BTreeMap<Vec<u8>, Place>;

enum Place {
    Directory(Names),
    Regular(Vec<u8>),
    Link(String),
}

/// What regular files hold.
struct Contents(BTreeMap<InodeId, Vec<u8>>);

impl Content for Contents {
    fn read(&self, inode: InodeId, offset: u64, count: u64, out: &mut Cursor<'_, '_>) -> io::Result<()> {
        let bytes = self.0.get(&inode).map(Vec::as_slice).unwrap_or_default();
        let rest = bytes.get(offset as usize..).unwrap_or_default();
        let there = &rest[..rest.len().min(count as usize)];
        out.copy_from(there);
        out.fill_zeros(count - there.len() as u64);
        Ok(())
    }
}

/// Files by their paths, in directories that are made as needed. Of two that need the same name, the first counts; what no file system can name is left
/// out.
pub fn volume(files: impl IntoIterator<Item = (Vec<u8>, File)>) -> Arc<dyn Volume> {
    let mut root = Names::new();
    for (path, file) in files {
        put(&mut root, &path, file);
    }
    let mut builder = Builder::new(&attributes(0o040_755, 0)).expect("the root is a directory");
    let mut contents = BTreeMap::new();
    list(&mut builder, &mut contents, InodeId::ROOT, root);
    let tree = builder.finish().expect("every link leads somewhere");
    Arc::new(TreeVolume::new(Arc::new(tree), Arc::new(Contents(contents))))
}

fn attributes(mode: u32, size: u64) -> Attributes {
    Attributes { mode, size, ..Attributes::default() }
}

fn put(root: &mut Names, path: &[u8], file: File) {
    let mut parts: Vec<&[u8]> = path.split(|byte| *byte == b'/').collect();
    if !parts.iter().all(|part| is_name(part)) {
        return;
    }
    let Some(last) = parts.pop() else { return };
    let mut here = root;
    for part in parts {
        here = match here.entry(part.to_vec()).or_insert_with(|| Place::Directory(Names::new())) {
            Place::Directory(below) => below,
            Place::Regular(_) | Place::Link(_) => return,
        };
    }
    here.entry(last.to_vec()).or_insert(match file {
        File::Regular(bytes) => Place::Regular(bytes),
        File::Link(target) => Place::Link(target),
        File::Directory => Place::Directory(Names::new()),
    });
}

fn list(builder: &mut Builder, contents: &mut BTreeMap<InodeId, Vec<u8>>, at: InodeId, names: Names) {
    builder.list(at).expect("it is a directory that was not listed yet");
    let mut directories = Vec::new();
    for (name, place) in names {
        let mut add = |mode, size| builder.add(&name, &attributes(mode, size)).expect("the names are sorted");
        match place {
            Place::Directory(below) => directories.push((add(0o040_755, 0), below)),
            Place::Regular(bytes) => {
                let id = add(0o100_644, bytes.len() as u64);
                contents.insert(id, bytes);
            }
            Place::Link(target) => {
                let id = add(0o120_777, 0);
                builder.set_target(id, target.as_bytes()).expect("it leads somewhere");
            }
        }
    }
    for (id, below) in directories {
        list(builder, contents, id, below);
    }
}
