//! Walks the names of a tree in archive order.

use inarch_tree::{Entries, InodeId, Tree};

use crate::{FormatError, ImageOptions};

/// A walk: each directory before its content, siblings sorted by name.
pub(crate) struct Walk<'t> {
    tree: &'t Tree,
    /// The open directories, and the length of each one's path.
    open: Vec<(Entries<'t>, usize)>,
    path: Vec<u8>,
}

impl<'t> Walk<'t> {
    /// At the first name below the root; paths begin with `prefix`.
    pub(crate) fn new(tree: &'t Tree, prefix: &[u8]) -> Walk<'t> {
        Walk { tree, open: vec![(tree.entries(InodeId::ROOT), prefix.len())], path: prefix.to_owned() }
    }

    /// The next name: its path, and what it names.
    pub(crate) fn next(&mut self) -> Option<(&[u8], InodeId)> {
        loop {
            let (entries, length) = self.open.last_mut()?;
            self.path.truncate(*length);
            match entries.next() {
                Some(entry) => {
                    self.path.extend_from_slice(entry.name);
                    let length = self.path.len();
                    let below = self.tree.entries(entry.inode);
                    if below.len() > 0 {
                        self.path.push(b'/');
                        self.open.push((below, length + 1));
                    }
                    return Some((self.path.get(..length).unwrap_or_default(), entry.inode));
                }
                None => {
                    self.open.pop();
                }
            }
        }
    }
}

/// Refuses image options that archives cannot have.
pub(crate) fn refuse_options(format: &'static str, options: &ImageOptions) -> Result<(), FormatError> {
    let refused = [
        (!options.label.is_empty(), "it has no label; leave the label out"),
        (options.uuid.is_some(), "it has no UUID; leave the UUID out"),
        (options.size.is_some(), "its size follows from its content; leave the size out"),
        (options.free_bytes > 0, "it has no free space; leave the free space out"),
        (options.block_size.is_some(), "it has no choice of a block size; leave the block size out"),
        (
            options.compression.is_some(),
            "it cannot be compressed here; leave --compress out, and pass the archive through a program that compresses",
        ),
    ];
    match refused.iter().find(|(given, _)| *given) {
        Some((_, reason)) => Err(FormatError { format, reason: (*reason).to_owned() }),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use inarch_tree::{Attributes, Builder};

    use super::*;

    #[test]
    fn parents_come_before_their_children_and_siblings_by_name() {
        let directory = Attributes { mode: 0o040755, ..Attributes::default() };
        let mut builder = Builder::new(&directory).unwrap();
        builder.list(InodeId::ROOT).unwrap();
        let a = builder.add(b"a", &directory).unwrap();
        let b = builder.add(b"a.b", &directory).unwrap();
        builder.add(b"z", &directory).unwrap();
        for dir in [a, b] {
            builder.list(dir).unwrap();
            builder.add(b"x", &directory).unwrap();
            builder.add(b"y", &directory).unwrap();
        }
        let tree = builder.finish().unwrap();
        let mut walk = Walk::new(&tree, b"./");
        let mut paths = Vec::new();
        while let Some((path, inode)) = walk.next() {
            assert_eq!(tree.lookup(path.strip_prefix(b"./").unwrap()), Some(inode));
            paths.push(String::from_utf8(path.to_owned()).unwrap());
        }
        assert_eq!(paths, ["./a", "./a/x", "./a/y", "./a.b", "./a.b/x", "./a.b/y", "./z"]);
    }
}
