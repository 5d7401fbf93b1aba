//! Chooses the transport of a tree if the user does not.

use inarch_format::disk::DiskFormat;
use inarch_vm::initramfs::SOCKET_MODULE;

use super::Way;

/// What a tree needs of its transport.
#[derive(Clone, Copy, Debug)]
pub(super) struct Needs {
    /// The guest's writes must reach the tree.
    pub write_through: bool,
    /// It must be live, not a snapshot.
    pub live: bool,
    /// The guest can write, without reaching the tree.
    pub overlay: bool,
    /// It is a directory of this host, which can be shared.
    pub directory: bool,
}

/// A transport, and the reason for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Choice {
    pub way: Way,
    pub reason: &'static str,
    /// Whether a guest with every driver gets this transport.
    pub is_usual: bool,
}

/// The best transport that a kernel supports; `has` checks for a module. If it supports none, returns the usual
/// transport, and loading the modules reports what is missing.
pub(super) fn choose(has: impl Fn(&str) -> bool, needs: Needs) -> Choice {
    let disk = |format: DiskFormat| has("virtio_blk") && has(format.name());
    let writable = !needs.overlay || has("overlay");
    let virtiofs = has("virtiofs") && writable;
    let ninep = has("9p") && has("9pnet_fd") && (has(SOCKET_MODULE) || has("virtio_net")) && writable;
    let usual = |way, reason| Choice { way, reason, is_usual: true };
    let instead = |way, reason| Choice { way, reason, is_usual: false };
    if needs.write_through || needs.live {
        let (reason, without_virtiofs) = match needs.write_through {
            true => {
                ("writes reach the directory", "writes reach the directory, and the guest's kernel has no virtiofs")
            }
            false => ("live, as asked for", "live, as asked for; the guest's kernel has no virtiofs"),
        };
        return match has("virtiofs") || !ninep {
            true => usual(Way::Virtiofs, reason),
            false => instead(Way::Ninep, without_virtiofs),
        };
    }
    if disk(DiskFormat::Ext4) {
        usual(Way::Disk(DiskFormat::Ext4), "a snapshot that is read like a local disk")
    } else if disk(DiskFormat::Erofs) && writable {
        instead(Way::Disk(DiskFormat::Erofs), "a snapshot; the guest's kernel has no ext4")
    } else if disk(DiskFormat::Squashfs) && writable {
        instead(Way::Disk(DiskFormat::Squashfs), "a snapshot; the guest's kernel has neither ext4 nor EROFS")
    } else if virtiofs && needs.directory {
        instead(Way::Virtiofs, "live; the guest's kernel has no disks with a file system of ours")
    } else if ninep && needs.directory {
        instead(Way::Ninep, "live; the guest's kernel has neither disks with a file system of ours nor virtiofs")
    } else {
        instead(Way::Tar, "unpacked in the guest, whose kernel can mount nothing of ours")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [&str; 8] = ["virtio_blk", "ext4", "erofs", "squashfs", "overlay", "virtiofs", "9p", "9pnet_fd"];

    fn without(missing: &[&str], needs: Needs) -> Choice {
        choose(|name| (ALL.contains(&name) || name == "virtio_net") && !missing.contains(&name), needs)
    }

    #[test]
    fn the_best_that_the_kernel_can_take_is_chosen() {
        let needs = Needs { write_through: false, live: false, overlay: true, directory: true };
        let mut missing = Vec::new();
        for (way, next) in [
            (Way::Disk(DiskFormat::Ext4), "ext4"),
            (Way::Disk(DiskFormat::Erofs), "erofs"),
            (Way::Disk(DiskFormat::Squashfs), "virtio_blk"),
            (Way::Virtiofs, "virtiofs"),
            (Way::Ninep, "9pnet_fd"),
            (Way::Tar, "9p"),
        ] {
            let choice = without(&missing, needs);
            assert_eq!((choice.way, choice.is_usual), (way, missing.is_empty()));
            missing.push(next);
        }
    }

    #[test]
    fn what_can_be_written_needs_an_overlay() {
        let needs = Needs { write_through: false, live: false, overlay: true, directory: true };
        assert_eq!(without(&["ext4", "overlay"], needs).way, Way::Tar);
        assert_eq!(without(&["ext4", "overlay"], Needs { overlay: false, ..needs }).way, Way::Disk(DiskFormat::Erofs));
    }

    #[test]
    fn only_directories_are_shared_live() {
        let needs = Needs { write_through: false, live: false, overlay: false, directory: false };
        assert_eq!(without(&["virtio_blk"], needs).way, Way::Tar);
    }

    #[test]
    fn what_is_written_reaches_the_tree_where_that_was_asked_for() {
        let needs = Needs { write_through: true, live: true, overlay: false, directory: true };
        assert_eq!(without(&[], needs).way, Way::Virtiofs);
        assert_eq!(without(&["virtiofs"], needs).way, Way::Ninep);
        assert_eq!(without(&["virtiofs", "9p"], needs).way, Way::Virtiofs);
    }
}
