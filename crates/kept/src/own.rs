//! Drops from a guest's differences what the run itself created in the tree: empty mount points, and the agent's
//! `/etc/resolv.conf`. The command in the guest did not change these.

use std::collections::HashSet;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use inarch_block::{Content, read_content};
use inarch_tree::compare::Difference;
use inarch_tree::{FileType, InodeId, Tree};
use inarch_vm::protocol::Network;

use super::{Bytes, KeptTree, Record};

/// The directories that the run creates in a tree if they are missing: mount points and their parents.
pub(super) fn mount_points(tree: &KeptTree, record: &Record) -> HashSet<Vec<u8>> {
    let beside = record.beside.iter().map(Bytes::to_path);
    mount_points_in(&tree.destination(), record.trees.iter().map(KeptTree::destination).chain(beside))
}

/// The same of the tree at `here`, in a guest with trees at `others`.
pub fn mount_points_in(here: &Path, others: impl Iterator<Item = PathBuf>) -> HashSet<Vec<u8>> {
    /// What the agent mounts in every guest: `agent/mounts.c`, and `/tmp` by the session.
    const OF_EVERY_GUEST: [&str; 5] = ["/dev", "/proc", "/sys", "/run", "/tmp"];
    let mut points = HashSet::new();
    for other in others.chain(OF_EVERY_GUEST.map(PathBuf::from)) {
        let Ok(below) = other.strip_prefix(here) else { continue };
        points.extend(
            below.ancestors().filter(|path| *path != Path::new("")).map(|path| path.as_os_str().as_bytes().to_owned()),
        );
    }
    points
}

/// Removes the run's own creations from the differences: empty mount points, and the name server's file.
pub(super) fn leave_out_own(
    found: &mut Vec<Difference>,
    (guest, content): (&Tree, &dyn Content),
    mount_points: &HashSet<Vec<u8>>,
) {
    // A directory precedes its content, so the reverse order shows whether it has other content.
    let mut kept_parents: HashSet<Vec<u8>> = HashSet::new();
    let mut keep = vec![true; found.len()];
    for (difference, keep) in found.iter().zip(&mut keep).rev() {
        let added = difference.old.is_none().then_some(difference.new).flatten();
        let own = added.is_some_and(|id| match guest.inode(id).file_type() {
            FileType::Directory => mount_points.contains(&difference.path) && !kept_parents.contains(&difference.path),
            FileType::Regular => difference.path == b"etc/resolv.conf" && is_resolver_file(guest, content, id),
            _ => false,
        });
        *keep = !own;
        if !own && let Some(slash) = difference.path.iter().rposition(|byte| *byte == b'/') {
            kept_parents.insert(difference.path[..slash].to_owned());
        }
    }
    let mut keep = keep.into_iter();
    found.retain(|_| keep.next().unwrap_or(true));
}

/// Whether a file is what the agent writes where a guest with a network has no `/etc/resolv.conf`.
fn is_resolver_file(guest: &Tree, guest_content: &dyn Content, id: InodeId) -> bool {
    let expected = format!("nameserver {}\n", Network::QEMU_USER.name_server);
    let mut content = vec![0; expected.len()];
    guest.inode(id).size() == expected.len() as u64
        && read_content(guest_content, id, 0, &mut content).is_ok()
        && content == expected.as_bytes()
}
