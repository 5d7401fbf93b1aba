//! Makes the disk of a kept run again, without a machine.

use std::path::Path;
use std::sync::Arc;

use inarch_block::{BLOCK_SIZE, Device, Overlay};
use inarch_format::disk::{ANNOUNCED_BYTES, uuid};
use inarch_format::ext4;
use inarch_source::Opened;
use inarch_source::identity::identity;

use super::KeptError;
use super::guest_disk::WrittenDisk;
use super::layered::KeptBase;
use crate::disk_space::DiskSpace;

/// Makes the disk of a kept run again from the stored host tree, the run's earlier changes, and the overlay `file`.
/// Does not look at the host's current tree.
pub(super) fn remake(source: &Path, kept: &KeptBase, file: &Path, ordinal: u8) -> Result<WrittenDisk, KeptError> {
    let laid = kept.lay_over(Opened::at(source, kept.files.load_base()?)?)?;
    let gone = || KeptError::path(file, "cannot open the overlay of the kept run", std::io::ErrorKind::NotFound);
    let options = DiskSpace::noted(Overlay::note(file)?.ok_or_else(gone)?).options(uuid(ordinal));
    let plan = ext4::plan(Arc::clone(&laid.opened.tree), &options)
        .map_err(|error| KeptError::Plan { source_path: source.to_owned(), error })?;
    let overlay = Overlay::open(file, plan.map.blocks(), identity(&laid.opened, &options))?;
    let device = Device::new(plan.map, laid.opened.content, Some(overlay), ANNOUNCED_BYTES / BLOCK_SIZE as u64);
    Ok(WrittenDisk { layered: laid.layered, host: laid.host, device: Arc::new(device), numbering: plan.numbering })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use inarch_tree::scan::{ScanOptions, scan};

    use super::super::files::DiskFiles;
    use super::*;

    #[test]
    fn an_overlay_of_another_tree_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let [folder, host, other] = ["folder", "host", "other"].map(|name| dir.path().join(name));
        [&folder, &host, &other].into_iter().for_each(|path| fs::create_dir(path).unwrap());
        fs::write(host.join("file"), "the host's").unwrap();
        fs::write(other.join("file"), "another's!").unwrap();
        let files = DiskFiles::new(&folder, 0);
        let tree = |root: &Path| scan(root, &ScanOptions { threads: 1, ..ScanOptions::default() }).unwrap().tree;
        let room = DiskSpace::noted(32);
        // An overlay as a command of the run makes it, over this tree.
        let overlay = |root: &Path, number: u64| {
            let opened = Opened::at(root, tree(root)).unwrap();
            let options = room.options(uuid(0));
            let plan = ext4::plan(Arc::clone(&opened.tree), &options).unwrap();
            let path = files.overlay(number);
            drop(Overlay::open_or_create(&path, plan.map.blocks(), identity(&opened, &options), room.note()).unwrap());
            (path, plan.map.blocks())
        };
        let ((own, blocks), (foreign, of_other)) = (overlay(&host, 1), overlay(&other, 2));
        assert_eq!(blocks, of_other, "the size does not tell them apart");
        files.keep_base(&tree(&host)).unwrap();
        let kept = KeptBase { run: "run".to_owned(), destination: "/".into(), files };
        assert!(remake(&host, &kept, &own, 0).is_ok());
        let error = remake(&host, &kept, &foreign, 0).err().unwrap().to_string();
        assert!(error.contains("2.overlay") && error.contains("another state of the tree"), "{error}");
    }
}
