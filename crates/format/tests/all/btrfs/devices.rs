//! One device of several.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use inarch_format::btrfs::Root;

use super::build::text;
use super::opened;
use crate::common::Scratch;
use crate::common::compare::{assert_facts, facts_of_directory, facts_of_tree};
use crate::common::mount::unmount;
use crate::ext4_read::made::{can_mount, run, scratch};

/// Files as block devices; detached when dropped.
struct Loops(Vec<String>);

impl Loops {
    fn new(images: &[PathBuf]) -> Loops {
        let attach = |image: &PathBuf| {
            let output = Command::new("losetup").args(["-f", "--show"]).arg(image).output().unwrap();
            assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
            String::from_utf8(output.stdout).unwrap().trim().to_owned()
        };
        Loops(images.iter().map(attach).collect())
    }
}

impl Drop for Loops {
    fn drop(&mut self) {
        for device in &self.0 {
            let _ = Command::new("losetup").args(["-d", device]).output();
        }
    }
}

/// Makes a file system on several devices, calls `fill` with where it is mounted, and gives the devices' images.
fn make(scratch: &Scratch, count: usize, profiles: &[&str], fill: &dyn Fn(&Path)) -> Vec<PathBuf> {
    let images: Vec<_> = (0..count).map(|number| scratch.path(&format!("device-{number}"))).collect();
    for image in &images {
        File::create(image).unwrap().set_len(300 << 20).unwrap();
    }
    let loops = Loops::new(&images);
    run(Command::new("mkfs.btrfs").args(["-q", "-f"]).args(profiles).args(&loops.0));
    let at = scratch.path("mounted");
    fs::create_dir_all(&at).unwrap();
    let devices: Vec<_> = loops.0.iter().map(|device| format!("device={device}")).collect();
    run(Command::new("mount").args(["-o", &devices.join(","), &loops.0[0]]).arg(&at));
    fill(&at);
    assert!(unmount(&at));
    images
}

fn files(at: &Path) {
    fs::write(at.join("small"), "in its leaf").unwrap();
    fs::write(at.join("large"), text(3_000_000)).unwrap();
    for number in 0..500 {
        fs::write(at.join(format!("{number}")), text(number * 10)).unwrap();
    }
}

#[test]
fn each_device_of_a_raid1_has_everything() {
    if !can_mount() {
        return;
    }
    let scratch = scratch();
    let copy = scratch.path("copy");
    fs::create_dir(&copy).unwrap();
    files(&copy);
    for (count, profiles) in [(2, ["-d", "raid1", "-m", "raid1"]), (3, ["-d", "raid1c3", "-m", "raid1c3"])] {
        for image in
            make(&scratch, count, &profiles, &|at| run(Command::new("cp").arg("-a").arg(copy.join(".")).arg(at)))
        {
            let opened = opened(&image, Root::Default).unwrap();
            assert_facts(&facts_of_tree(&opened), &facts_of_directory(&copy));
            assert!(opened.notes.iter().any(|note| note.contains("other device")), "{:?}", opened.notes);
        }
    }
}

#[test]
fn what_is_on_other_devices_is_told() {
    if !can_mount() {
        return;
    }
    let scratch = scratch();
    // Metadata is everywhere, data is not: small files are in the metadata.
    for (profiles, says) in [
        (["-d", "raid0", "-m", "raid1"], "needs the other devices"),
        (["-d", "single", "-m", "raid1"], "needs the other devices"),
        (["-d", "raid5", "-m", "raid1"], "RAID5"),
    ] {
        let count = if profiles[1] == "raid5" { 3 } else { 2 };
        let images = make(&scratch, count, &profiles, &files);
        let opened: Vec<_> = images.iter().filter_map(|image| opened(image, Root::Default).ok()).collect();
        assert!(!opened.is_empty());
        let notes: Vec<_> = opened.iter().flat_map(|opened| &opened.notes).collect();
        assert!(notes.iter().any(|note| note.contains("\"large\"") && note.contains(says)), "{profiles:?}: {notes:?}");
        for opened in &opened {
            let small = opened.tree.lookup(b"small").unwrap();
            let mut bytes = [0; 11];
            inarch_block::read_content(&*opened.content, small, 0, &mut bytes).unwrap();
            assert_eq!(&bytes, b"in its leaf");
        }
    }
    // Nor is metadata: nothing can be read.
    let images = make(&scratch, 4, &["-d", "raid10", "-m", "raid0"], &files);
    let errors: Vec<_> = images.iter().filter_map(|image| opened(image, Root::Default).err()).collect();
    assert!(errors.iter().any(|error| error.to_string().contains("needs the other devices")), "{errors:?}");
}
