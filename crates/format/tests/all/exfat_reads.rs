//! exFATs that mkfs.exfat made, and that exfat-fuse or this file wrote to.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use inarch_confine::Parsing;
use inarch_format::{Damage, TreeAndContent, exfat};
use inarch_tree::Timestamp;

use crate::common::Scratch;
use crate::common::mount::unmount;
use crate::erofs::Bytes;
use crate::ext4_read::made::run;
use crate::fat_reads::{backing, seen};

fn number(image: &[u8], at: usize) -> usize {
    u32::from_le_bytes(image[at..at + 4].try_into().unwrap()) as usize
}

/// An image whose entries are written here: a volume of mkfs.exfat with clusters of 4 KiB.
pub struct Made {
    pub image: Vec<u8>,
    heap: usize,
    table: usize,
    /// The next free entry of the root.
    entry: usize,
    /// The next free cluster.
    cluster: u32,
}

/// What an entry says.
pub struct Entry {
    pub name: Vec<u16>,
    pub attributes: u16,
    pub is_contiguous: bool,
    pub valid: u64,
    pub length: u64,
    pub first: u32,
}

impl Made {
    pub fn new() -> Made {
        let scratch = Scratch::new();
        let path = scratch.path("image");
        File::create(&path).unwrap().set_len(4 << 20).unwrap();
        run(Command::new("mkfs.exfat").args(["-c", "4K", "-L", "Label"]).arg(&path));
        let image = fs::read(&path).unwrap();
        let sector = 1 << image[108];
        let [table, heap, root] = [80, 88, 96].map(|at| number(&image, at));
        let (table, heap) = (table * sector, heap * sector);
        let start = heap + (root - 2) * 4096;
        let used = (start..start + 4096).step_by(32).take_while(|at| image[*at] != 0).count();
        Made { image, heap, table, entry: start + used * 32, cluster: root as u32 + 10 }
    }

    pub fn at(&self, cluster: u32) -> usize {
        self.heap + (cluster as usize - 2) * 4096
    }

    pub fn link(&mut self, cluster: u32, next: u32) {
        let at = self.table + cluster as usize * 4;
        self.image[at..at + 4].copy_from_slice(&next.to_le_bytes());
    }

    /// Clusters that are free, one after the other.
    pub fn take(&mut self, count: u32) -> u32 {
        self.cluster += count;
        self.cluster - count
    }

    /// Writes a set of entries at a place of the image; gives the place after it.
    pub fn put_at(&mut self, place: usize, entry: &Entry) -> usize {
        let parts = entry.name.len().div_ceil(15);
        let mut set = vec![0u8; 32 * (2 + parts)];
        (set[0], set[1], set[32]) = (0x85, 1 + parts as u8, 0xC0);
        set[4..6].copy_from_slice(&entry.attributes.to_le_bytes());
        // 2024-07-04 12:34:56, and half a second; created an hour before that; 5:30 hours ahead of UTC.
        let stamp = ((44u32 << 9) | (7 << 5) | 4) << 16 | (12 << 11) | (34 << 5) | 28;
        set[8..12].copy_from_slice(&(stamp - (1 << 11)).to_le_bytes());
        set[12..16].copy_from_slice(&stamp.to_le_bytes());
        set[16..20].copy_from_slice(&stamp.to_le_bytes());
        set[21] = 50;
        set[22..25].fill(0x80 | 22);
        set[33] = 1 | if entry.is_contiguous { 2 } else { 0 };
        set[35] = entry.name.len() as u8;
        set[40..48].copy_from_slice(&entry.valid.to_le_bytes());
        set[52..56].copy_from_slice(&entry.first.to_le_bytes());
        set[56..64].copy_from_slice(&entry.length.to_le_bytes());
        for (number, units) in entry.name.chunks(15).enumerate() {
            let at = 64 + 32 * number;
            set[at] = 0xC1;
            for (place, unit) in units.iter().enumerate() {
                set[at + 2 + 2 * place..at + 4 + 2 * place].copy_from_slice(&unit.to_le_bytes());
            }
        }
        let counted = set.iter().enumerate().filter(|(at, _)| !matches!(at, 2 | 3));
        let sum = counted.fold(0u16, |sum, (_, byte)| sum.rotate_right(1).wrapping_add(u16::from(*byte)));
        set[2..4].copy_from_slice(&sum.to_le_bytes());
        self.image[place..place + set.len()].copy_from_slice(&set);
        place + set.len()
    }

    /// Writes a set into the root.
    pub fn put(&mut self, entry: &Entry) {
        self.entry = self.put_at(self.entry, entry);
    }

    pub fn walk(&self, damage: Damage) -> Result<TreeAndContent, inarch_format::ReadError> {
        let image = Arc::new(Bytes(self.image.clone()));
        let volume = exfat::open_volume(Parsing::unconfined(), image, damage)?;
        TreeAndContent::walk(Parsing::unconfined(), volume, damage)
    }
}

fn units(name: &str) -> Vec<u16> {
    name.encode_utf16().collect()
}

/// A bit of everything.
pub fn made() -> Made {
    let mut made = Made::new();
    let entry =
        |name, first, length| Entry { name, attributes: 0x20, is_contiguous: true, valid: length, length, first };
    // Two clusters that follow one another, and two that do not.
    let first = made.take(2);
    let at = made.at(first);
    made.image[at..at + 5000].fill(b'a');
    made.put(&entry(units("contiguous \u{1F600}"), first, 5000));
    let first = made.take(4);
    let (at, second) = (made.at(first), made.at(first + 3));
    made.image[at..at + 4096].fill(b'b');
    made.image[second..second + 904].fill(b'c');
    made.link(first, first + 3);
    made.link(first + 3, u32::MAX);
    made.put(&Entry { is_contiguous: false, ..entry(units("chain"), first, 5000) });
    let first = made.take(2);
    let at = made.at(first);
    made.image[at..at + 5000].fill(b'd');
    made.put(&Entry { valid: 100, attributes: 0x21, ..entry(units("valid"), first, 5000) });
    made.put(&entry(units("empty"), 0, 0));
    let long = units(&"\u{65E5}".repeat(255));
    made.put(&entry(long, 0, 0));
    made.put(&entry(vec![0x41, 0xD800, u16::from(b'/')], 0, 0));
    // A directory in clusters that follow one another, with a set that crosses from one to the other.
    let first = made.take(2);
    made.put(&Entry { attributes: 0x10, ..entry(units("dir"), first, 8192) });
    let mut place = made.at(first);
    let end = place + 4096;
    while place < end + 500 {
        let name = units(&format!("{:030}", place - (end - 4096)));
        place = made.put_at(place, &entry(name, 0, 0));
    }
    made
}

#[test]
fn what_was_written_here_is_read() {
    let opened = made().walk(Damage::Refused).unwrap();
    assert_eq!(opened.notes.len(), 1, "{:?}", opened.notes);
    assert!(opened.notes[0].contains("none on Linux"), "{:?}", opened.notes);
    let seen = seen(&opened);
    assert_eq!(seen["contiguous \u{1F600}"], (0o100_644, 1_720_076_696, vec![b'a'; 5000]));
    assert_eq!(seen["chain"].2, [vec![b'b'; 4096], vec![b'c'; 904]].concat());
    assert_eq!(seen["valid"], (0o100_444, 1_720_076_696, [vec![b'd'; 100], vec![0; 4900]].concat()));
    assert_eq!(seen["empty"].2, b"");
    assert!(seen.contains_key(&"\u{65E5}".repeat(255)));
    assert_eq!(seen["dir"].0, 0o040_755);
    assert!(seen.keys().any(|name| name.starts_with("A\u{FFFD}\u{FFFD}~")), "{:?}", seen.keys());
    // Four entries a set: 36 sets reach beyond the first cluster's 128 entries.
    assert_eq!(seen.keys().filter(|name| name.starts_with("dir/")).count(), 36);
    let half = opened.tree.inodes().find(|(_, inode)| inode.size() == 5000).unwrap().1.mtime();
    assert_eq!(half, Timestamp { seconds: 1_720_076_696, nanoseconds: 500_000_000 });
}

#[test]
fn damage_is_named_and_salvaged() {
    type Damaging = fn(&mut Made);
    let cases: [(&str, Damaging); 5] = [
        ("the checksum of its boot region", |made| made.image[100] ^= 1),
        ("its checksum is wrong", |made| made.image[made.entry - 40] ^= 1),
        ("it has no content", |made| {
            let place = made.entry;
            made.image[place] = 0x85;
            let sum = (1..30).fold(0x85u16, |sum, _| sum.rotate_right(1));
            made.image[place + 2..place + 4].copy_from_slice(&sum.to_le_bytes());
        }),
        ("returns to itself after 2 clusters", |made| {
            let first = made.take(2);
            made.link(first, first + 1);
            made.link(first + 1, first);
            let name = units("cycle");
            made.put(&Entry { name, attributes: 0, is_contiguous: false, valid: 99_999, length: 99_999, first });
        }),
        ("not all in the volume", |made| {
            let (name, length) = (units("far"), 1 << 40);
            made.put(&Entry { name, attributes: 0, is_contiguous: true, valid: length, length, first: 5 });
        }),
    ];
    for (reason, damage) in cases {
        let mut made = made();
        damage(&mut made);
        let error = made.walk(Damage::Refused).err().unwrap().to_string();
        assert!(error.contains(reason), "{error}");
        let opened = made.walk(Damage::Salvaged).unwrap();
        assert!(opened.notes.iter().any(|note| note.contains(reason)), "{:?}", opened.notes);
        assert!(seen_names(&opened).contains(&b"chain".to_vec()));
    }
}

fn seen_names(opened: &TreeAndContent) -> Vec<Vec<u8>> {
    opened.tree.inodes().map(|(id, _)| opened.tree.path(id)).collect()
}

/// An image that exfat-fuse has mounted, through a loop device.
struct Mounted {
    device: String,
    at: PathBuf,
}

impl Mounted {
    /// None where that cannot be done.
    fn new(image: &Path, at: &Path) -> Option<Mounted> {
        let looped = Command::new("losetup").args(["-f", "--show"]).arg(image).output().ok()?;
        let device = String::from_utf8(looped.stdout).ok()?.trim().to_owned();
        let mounted = Mounted { device, at: at.to_owned() };
        let made = Command::new("mount.exfat-fuse").arg(&mounted.device).arg(at).output().ok()?;
        made.status.success().then_some(mounted)
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        unmount(&self.at);
        let _ = Command::new("losetup").args(["-d", &self.device]).output();
    }
}

#[test]
fn what_exfat_fuse_wrote_is_read() {
    let scratch = Scratch::new();
    let (image, at) = (scratch.path("image"), scratch.path("at"));
    fs::create_dir(&at).unwrap();
    File::create(&image).unwrap().set_len(16 << 20).unwrap();
    run(Command::new("mkfs.exfat").args(["-c", "4K"]).arg(&image));
    let Some(guard) = Mounted::new(&image, &at) else {
        eprintln!("skipped: what_exfat_fuse_wrote_is_read: exfat-fuse cannot mount a loop device here");
        return;
    };
    fs::create_dir_all(at.join("dir/sub")).unwrap();
    for number in 0..200 {
        let name = format!("dir/a name of some length {number} {}", "\u{E9}".repeat(number % 90));
        fs::write(at.join(name), vec![number as u8; number * 97]).unwrap();
    }
    // Every second one goes, and a large one takes its clusters.
    for number in (0..200).step_by(2) {
        fs::remove_file(at.join(format!("dir/a name of some length {number} {}", "\u{E9}".repeat(number % 90))))
            .unwrap();
    }
    fs::write(at.join("dir/sub/large"), (0..9_000_000).map(|i: u32| (i ^ i >> 8) as u8).collect::<Vec<_>>()).unwrap();
    // The mount has no extended attributes to be asked for; a copy has.
    let copy = scratch.path("copy");
    run(Command::new("cp").arg("-a").arg(&at).arg(&copy));
    let mut expected = crate::common::compare::facts_of_directory(&copy);
    drop(guard);
    let volume = exfat::open_volume(Parsing::unconfined(), backing(&image), Damage::Refused).unwrap();
    let opened = TreeAndContent::walk(Parsing::unconfined(), volume, Damage::Refused).unwrap();
    let mut found = crate::common::compare::facts_of_tree(&opened);
    // The modes are those of the mount; the root has no time.
    for facts in [&mut expected, &mut found] {
        facts.remove(&b""[..]);
        facts.values_mut().for_each(|facts| drop(facts.remove(0)));
    }
    crate::common::compare::assert_facts(&found, &expected);
}
