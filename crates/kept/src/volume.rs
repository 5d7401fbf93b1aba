//! Identifies the file system of a host tree, in a way that survives a reboot.
//!
//! The inode number of a mount's root says little: on every ext4 it is 2. A device number changes on reboot. The file
//! system's own ID (`f_fsid` of statfs(2)) is derived from its UUID on ext4, Btrfs, tmpfs, overlayfs, ZFS and others.
//! XFS, F2FS and the FAT family use their device number as ID (`huge_encode_dev` in include/linux/kdev_t.h); there
//! the creation time of the tree's root directory is used instead. FUSE and NFS have no ID, so their file systems are
//! not distinguished.

use std::os::fd::AsFd;
use std::path::Path;

use rustix::fs::{AtFlags, CWD, StatxFlags, fstat, fstatvfs, major, minor, statx};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};

/// What tells a file system from others, also after another start of the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum VolumeId {
    /// Its own ID.
    Id(u64),
    /// When the tree's root directory was made in it: seconds since 1970, and nanoseconds.
    Born(i64, u32),
}

impl VolumeId {
    /// The file system of a tree's root directory; `None` if it cannot be identified.
    pub fn of(root: impl AsFd) -> Result<Option<VolumeId>, Errno> {
        let root = root.as_fd();
        let id = fstatvfs(root)?.f_fsid;
        let born = statx(root, c"", AtFlags::EMPTY_PATH, StatxFlags::BTIME);
        let born = born.ok().filter(|found| found.stx_mask & StatxFlags::BTIME.bits() != 0);
        let born = born.map(|found| (found.stx_btime.tv_sec, found.stx_btime.tv_nsec));
        Ok(VolumeId::from(id, fstat(root)?.st_dev, born))
    }

    fn from(id: u64, device: u64, born: Option<(i64, u32)>) -> Option<VolumeId> {
        match id {
            id if id == encoded(device) => born.map(|(seconds, nanoseconds)| VolumeId::Born(seconds, nanoseconds)),
            // No ID, or the device number below an overlayfs, whose directories get a new creation time when written
            // to.
            id if id <= u32::MAX.into() => None,
            id => Some(VolumeId::Id(id)),
        }
    }

    /// Whether the recorded file system is not the one there now. A record of an older version has none, and fits all.
    pub fn is_another(then: Option<VolumeId>, now: Option<VolumeId>) -> bool {
        then.is_some_and(|then| now != Some(then))
    }
}

/// A device number as the kernel writes it into an ID: 32 bits.
fn encoded(device: u64) -> u64 {
    let (major, minor) = (u64::from(major(device)), u64::from(minor(device)));
    minor & 0xff | major << 8 | (minor & !0xff) << 12
}

/// The mount that a path is on, by a number that is not used again before the machine's next start (`STATX_MNT_ID_UNIQUE`,
/// Linux 6.8). `None` if nothing is at the path, or the kernel has no such numbers.
pub fn mount_of(path: &Path) -> Option<u64> {
    const MNT_ID_UNIQUE: StatxFlags = StatxFlags::from_bits_retain(0x4000);
    let found = statx(CWD, path, AtFlags::empty(), MNT_ID_UNIQUE).ok()?;
    (found.stx_mask & MNT_ID_UNIQUE.bits() != 0).then_some(found.stx_mnt_id)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::fs;
    use std::process::Command;
    use std::thread;
    use std::time::Duration;

    use super::super::record::Applied;
    use super::super::spent::settle;
    use super::super::staged::Staged;
    use super::super::{KeptTree, OwnersBack};
    use super::*;

    /// A mount that ends when dropped.
    struct Mounted<'p>(&'p Path);

    impl<'p> Mounted<'p> {
        fn new(what: &[&str], at: &'p Path) -> Option<Mounted<'p>> {
            let mounted = Command::new("mount").args(what).arg(at).output().is_ok_and(|done| done.status.success());
            mounted.then_some(Mounted(at))
        }
    }

    impl Drop for Mounted<'_> {
        fn drop(&mut self) {
            // A process that another test starts has our descriptors until it runs its program.
            let ended = (0..50).any(|attempt| {
                thread::sleep(Duration::from_millis(attempt * 4));
                Command::new("umount").arg(self.0).output().is_ok_and(|output| output.status.success())
            });
            assert!(ended || thread::panicking(), "{:?} cannot be unmounted", self.0);
        }
    }

    /// An ext4 image of 8 MiB.
    fn ext4(path: &Path) {
        fs::File::create(path).unwrap().set_len(8 << 20).unwrap();
        let made = Command::new("mke2fs").args(["-q", "-F", "-t", "ext4"]).arg(path).output();
        assert!(made.as_ref().is_ok_and(|made| made.status.success()), "{made:?}");
    }

    /// The change of a run over a volume that is mounted at `at`, which `volumes` have in turn.
    fn check(at: &Path, (first, other): (&[&str], &[&str])) -> bool {
        let guest = at.with_file_name("guest");
        let Some(mounted) = Mounted::new(first, at) else { return false };
        let was = rustix::fs::stat(at).unwrap().st_ino;
        fs::create_dir_all(&guest).unwrap();
        fs::write(guest.join("new"), "of the guest").unwrap();
        let mut staged = Staged::new(at, &guest);
        drop(mounted);
        let mounted = Mounted::new(other, at).unwrap();
        assert_eq!(rustix::fs::stat(at).unwrap().st_ino, was, "the roots are told apart by their numbers");
        let refusal = staged.apply().unwrap_err().to_string();
        assert!(refusal.contains("or another file system, has taken its place"), "{refusal}");
        assert!(!at.join("new").exists(), "nothing is written");
        let tree = |staged: &Staged| -> KeptTree { staged.run.record.as_ref().unwrap().trees[0].clone() };
        let now = tree(&staged).with_volume().unwrap();
        let refusal = staged.run.refuse_another_volume(&now).unwrap_err().to_string();
        assert!(refusal.contains("another file system is mounted there"), "{refusal}");
        drop(mounted);
        // A tmpfs ends with its mount.
        if first.contains(&"loop") {
            let _mounted = Mounted::new(first, at).unwrap();
            let now = tree(&staged).with_volume().unwrap();
            staged.run.refuse_another_volume(&now).unwrap();
            assert!(staged.apply().unwrap().complete);
            assert_eq!(fs::read(at.join("new")).unwrap(), b"of the guest");
        }
        if first.contains(&"loop") && mount_of(at).is_some() {
            let is_empty =
                |staged: &Staged| staged.run.files(0).load_layer().unwrap().is_none_or(|layer| layer.is_empty());
            // The disk was taken away before it was written, and is another one, or nowhere.
            settle(&mut staged.run).unwrap_err();
            let mounted = Mounted::new(other, at).unwrap();
            settle(&mut staged.run).unwrap_err();
            drop(mounted);
            assert!(!is_empty(&staged), "the only copy may be in the run");
            let _mounted = Mounted::new(first, at).unwrap();
            fs::write(at.join("new"), "").unwrap();
            let refusal = settle(&mut staged.run).unwrap_err().to_string();
            assert!(refusal.contains("was mounted again after the kept run"), "{refusal}");
            fs::write(at.join("new"), "of the guest").unwrap();
            settle(&mut staged.run).unwrap();
            assert!(is_empty(&staged));
        }
        true
    }

    #[test]
    fn a_volume_in_the_place_of_another_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let at = dir.path().join("mount");
        fs::create_dir(&at).unwrap();
        let tmpfs = ["-t", "tmpfs", "-o", "size=4m", "tmpfs"];
        let images = ["a", "b"].map(|name| dir.path().join(name));
        images.iter().for_each(|image| ext4(image));
        let [a, b] = images.each_ref().map(|image| ["-o", "loop", image.to_str().unwrap()]);
        if !check(&at, (&tmpfs, &tmpfs)) || !check(&at, (&a, &b)) {
            eprintln!("skipped: a_volume_in_the_place_of_another_is_refused: mounting a file system: it needs root");
        }
    }

    #[test]
    fn a_directory_in_the_place_of_another_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let [at, guest, moved] = ["tree", "guest", "moved"].map(|name| dir.path().join(name));
        fs::create_dir(&at).unwrap();
        fs::create_dir(&guest).unwrap();
        fs::write(guest.join("new"), "of the guest").unwrap();
        let mut staged = Staged::new(&at, &guest);
        fs::rename(&at, &moved).unwrap();
        fs::create_dir(&at).unwrap();
        let refusal = staged.apply().unwrap_err().to_string();
        assert!(refusal.contains("has taken its place"), "{refusal}");
        for directory in [&at, &moved] {
            assert_eq!(fs::read_dir(directory).unwrap().count(), 0, "nothing is written");
        }
        fs::remove_dir(&at).unwrap();
        fs::rename(&moved, &at).unwrap();
        assert!(staged.apply().unwrap().complete);
        assert_eq!(fs::read(at.join("new")).unwrap(), b"of the guest");
    }

    #[test]
    fn an_extended_attribute_that_no_file_there_can_have_keeps_no_apply_from_its_end() {
        let dir = tempfile::tempdir().unwrap();
        let [at, guest, image] = ["mount", "guest", "image"].map(|name| dir.path().join(name));
        fs::create_dir(&at).unwrap();
        fs::create_dir(&guest).unwrap();
        fs::write(guest.join("new"), "of the guest").unwrap();
        let value = [b'x'; 8000];
        let set = rustix::fs::setxattr(guest.join("new"), "user.large", &value, rustix::fs::XattrFlags::empty());
        ext4(&image);
        let mounted = Mounted::new(&["-o", "loop", image.to_str().unwrap()], &at);
        let (Ok(()), Some(_mounted)) = (set, mounted) else {
            let test = "an_extended_attribute_that_no_file_there_can_have_keeps_no_apply_from_its_end";
            return println!(
                "skipped: {test}: mounting an ext4, and a large attribute elsewhere: it needs root and Linux 6.6"
            );
        };
        let mut staged = Staged::new(&at, &guest);
        let report = staged.apply().unwrap();
        assert!(report.failures.is_empty() && report.conflicts.is_empty(), "{report:?}");
        assert!(staged.run.record.as_ref().is_some_and(|record| record.applying.is_none()), "it has ended");
        assert!(report.lost.iter().any(|line| line.contains("1 extended attribute could not be set")), "{report:?}");
        assert_eq!(fs::read(at.join("new")).unwrap(), b"of the guest");
    }

    #[test]
    fn a_volume_beneath_a_tree_that_is_mounted_again_is_noticed() {
        let dir = tempfile::tempdir().unwrap();
        let beneath = dir.path().join("beneath");
        fs::create_dir(&beneath).unwrap();
        let tmpfs = ["-t", "tmpfs", "-o", "size=4m", "tmpfs"];
        let mounted = Mounted::new(&tmpfs, &beneath).filter(|_| mount_of(&beneath).is_some());
        let Some(mounted) = mounted else {
            let test = "a_volume_beneath_a_tree_that_is_mounted_again_is_noticed";
            return println!(
                "skipped: {test}: mounting a file system and telling mounts apart: it needs root and Linux 6.8"
            );
        };
        let tree = |cross| KeptTree::new(dir.path(), Path::new("/"), false, 0, OwnersBack::default(), cross);
        let written = |tree| Applied::now([(tree, HashSet::from([&b"beneath"[..]]))]).unwrap();
        let trees = [false, true].map(tree);
        let applied = trees.each_ref().map(written);
        let is_same = || [0, 1].map(|i| applied[i].is_on_same_mounts(&trees[i..=i]));
        assert_eq!(is_same(), [true, true]);
        drop(mounted);
        let _mounted = Mounted::new(&tmpfs, &beneath).unwrap();
        // A tree without what is beneath it has nothing there.
        assert_eq!(is_same(), [true, false]);
    }

    #[test]
    fn a_run_that_changed_nothing_goes_on_anywhere() {
        let dir = tempfile::tempdir().unwrap();
        let staged = Staged::new(dir.path(), dir.path());
        let record = staged.run.record.as_ref().unwrap();
        let mut elsewhere = record.trees[0].clone();
        elsewhere.volume = Some(VolumeId::Id(7));
        staged.run.refuse_another_volume(&elsewhere).unwrap();
    }

    #[test]
    fn an_id_that_is_a_device_number_is_none() {
        // /dev/vdb1 on XFS, and a device with a large minor number.
        for (major, minor, id) in [(254, 17, 0xfe11), (259, 0x12345, 0x1231_0345)] {
            let device = rustix::fs::makedev(major, minor);
            assert_eq!(VolumeId::from(id, device, Some((7, 8))), Some(VolumeId::Born(7, 8)));
            assert_eq!(VolumeId::from(id, device, None), None);
            assert_eq!(VolumeId::from(id + 1, device, Some((7, 8))), None, "overlayfs on such a file system");
            let of_uuid = id | 1 << 40;
            assert_eq!(VolumeId::from(of_uuid, device, Some((7, 8))), Some(VolumeId::Id(of_uuid)));
        }
        assert_eq!(VolumeId::from(0, rustix::fs::makedev(0, 5), Some((7, 8))), None, "FUSE");
    }

    #[test]
    fn what_is_not_known_fits_all() {
        let (one, other) = (Some(VolumeId::Id(1)), Some(VolumeId::Id(2)));
        assert!(!VolumeId::is_another(one, one) && !VolumeId::is_another(None, one));
        assert!(VolumeId::is_another(one, other) && VolumeId::is_another(one, None));
        assert!(VolumeId::is_another(one, Some(VolumeId::Born(1, 0))));
    }
}
