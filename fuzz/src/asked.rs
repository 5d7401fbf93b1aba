//! Images that are changed, opened, walked and asked.

use std::sync::Arc;

use inarch_block::{Cursor, read_content};
use inarch_confine::Parsing;
use inarch_format::{Damage, TreeAndContent, readers};
use inarch_volume::{Item, Node, Volume};
use vm_memory::VolatileSlice;

use crate::image::{Memory, replace};

/// Bytes to be replaced: where, as a fraction of the image's size, and by what.
pub type Patches<'a> = Vec<(u16, u16, &'a [u8])>;

/// Changes an image, and reads what can be read of it.
pub fn survive(reader: &str, mut image: Vec<u8>, patches: &Patches<'_>) {
    for (sector, within, bytes) in patches {
        let at = usize::from(*sector) * 512 % image.len() + usize::from(*within) % 512;
        replace(&mut image, at, &bytes[..bytes.len().min(4096)]);
    }
    let reader = readers().iter().find(|known| known.name == reader).expect("it is registered");
    let size = image.len();
    let image = Arc::new(Memory(image));
    let Ok(volume) = reader.open(Parsing::unconfined(), image, Damage::Salvaged) else { return };
    ask(&*volume, size);
    let Ok(opened) = TreeAndContent::walk(Parsing::unconfined(), volume, Damage::Salvaged) else { return };
    let mut buffer = vec![0; 5000];
    for (id, inode) in opened.tree.inodes().take(1000) {
        let count = inode.size().min(5000) as usize;
        let _ = read_content(&*opened.content, id, inode.size() - count as u64, &mut buffer[..count]);
    }
}

fn ask(volume: &dyn Volume, size: usize) {
    let mut nodes = vec![volume.root(), Node(0), Node(1000)];
    let mut next = 0;
    while let Some(node) = nodes.get(next).copied() {
        next += 1;
        let _ = (volume.attributes(node), volume.target(node), volume.parent(node), volume.lookup(node, b"none"));
        let mut count = 0;
        let _ = volume.list(node, 0, &mut |item| {
            count += 1;
            if let Item::Entry(entry) = item
                && nodes.len() < 300
                && !nodes.contains(&entry.node)
            {
                nodes.push(entry.node);
            }
            true
        });
        assert!(count <= size / 8 + 100, "{count} entries in {size} bytes");
        let mut buffer = [0; 2000];
        let slices = [VolatileSlice::from(&mut buffer[..])];
        let _ = volume.read(node, 700, 2000, &mut Cursor::new(&slices));
        let _ = volume.extents(node, 0, u64::MAX);
    }
}
