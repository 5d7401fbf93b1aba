//! The order of inodes, which is that of the inode table, of inode numbers, and of content.

use inarch_tree::{FileType, InodeId, Tree};

/// Inode numbers, from 1. A directory follows its content, so that everything in a listing has its place before the
/// listing is made. It comes right after its files, so that few metadata blocks hold them.
#[derive(Debug, Default)]
pub(crate) struct Numbers {
    order: Vec<InodeId>,
    numbers: Vec<u32>,
}

/// A step of the walk: `.0` is to be entered, or has had its subdirectories numbered.
enum Step {
    Enter(InodeId),
    Leave(InodeId),
}

impl Numbers {
    pub(crate) fn new(tree: &Tree) -> Numbers {
        let count = tree.inode_count() as usize;
        let mut numbers = Numbers { order: Vec::with_capacity(count), numbers: vec![0; count] };
        let mut steps = vec![Step::Enter(InodeId::ROOT)];
        while let Some(step) = steps.pop() {
            match step {
                Step::Enter(directory) => {
                    steps.push(Step::Leave(directory));
                    let first = steps.len();
                    let inodes = tree.entries(directory).map(|entry| entry.inode);
                    steps.extend(inodes.filter(|inode| is_directory(tree, *inode)).map(Step::Enter));
                    if let Some(pushed) = steps.get_mut(first..) {
                        pushed.reverse();
                    }
                }
                Step::Leave(directory) => {
                    tree.entries(directory).for_each(|entry| numbers.push(entry.inode));
                    numbers.push(directory);
                }
            }
        }
        numbers
    }

    /// Gives an inode the next number, if it has none: a file of several names has it from the first.
    fn push(&mut self, inode: InodeId) {
        if let Some(number @ 0) = self.numbers.get_mut(inode.index()) {
            self.order.push(inode);
            *number = self.order.len() as u32;
        }
    }

    /// An inode's number.
    pub(crate) fn of(&self, inode: InodeId) -> u32 {
        self.numbers.get(inode.index()).copied().unwrap_or(0)
    }

    /// The inodes in the order of their numbers.
    pub(crate) fn order(&self) -> &[InodeId] {
        &self.order
    }

    /// How many inodes there are.
    pub(crate) fn count(&self) -> u32 {
        self.order.len() as u32
    }
}

fn is_directory(tree: &Tree, inode: InodeId) -> bool {
    tree.inode(inode).file_type() == FileType::Directory
}
