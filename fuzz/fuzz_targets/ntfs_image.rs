//! Any NTFS volume is opened or refused, and all of it is read, in bounded time and memory.
//!
//! An input is a volume of mkntfs and ntfscp (the package ntfs-3g) with bytes replaced; or the bytes of a volume themselves.

#![no_main]

use std::fs::{self, File};
use std::path::PathBuf;
use std::process::Command;
use std::sync::{Arc, LazyLock};

use arbitrary::Arbitrary;
use inarch_block::{Cursor, read_content};
use inarch_confine::Parsing;
use inarch_format::{Damage, TreeAndContent, ntfs};
use inarch_fuzz::image::{self, Memory};
use inarch_volume::Item;
use libfuzzer_sys::fuzz_target;
use vm_memory::VolatileSlice;

#[derive(Arbitrary, Debug)]
enum Input<'a> {
    Changed { salvaged: bool, patches: Vec<Patch<'a>>, length: Option<u32>, lookups: Vec<&'a [u8]> },
    Raw(&'a [u8]),
}

/// Bytes to be replaced: in an MFT record, in a block of an index, or anywhere.
#[derive(Arbitrary, Debug)]
enum Patch<'a> {
    Record(u8, u16, &'a [u8]),
    Block(u8, u16, &'a [u8]),
    Anywhere(u32, &'a [u8]),
}

/// A volume with so many files that its root has blocks of an index, and where these are.
static BASE: LazyLock<(Vec<u8>, Vec<usize>)> = LazyLock::new(|| {
    let path = |name: &str| -> PathBuf { std::env::temp_dir().join(format!("fuzz-ntfs-{}-{name}", std::process::id())) };
    let (volume, content) = (path("volume"), path("content"));
    File::create(&volume).expect("a file can be made").set_len(2 << 20).expect("it can have a size");
    fs::write(&content, [b'x'; 3000]).expect("a file can be written");
    let run = |command: &mut Command| assert!(command.status().expect("ntfs-3g is installed").success());
    run(Command::new("/sbin/mkntfs").args(["--force", "--quick", "--quiet"]).arg(&volume));
    for number in 0..60 {
        let name = format!("a file with a name of some length {number:03}");
        run(Command::new("/sbin/ntfscp").args(["--force", "--quiet"]).arg(&volume).arg(&content).arg(name));
    }
    let bytes = fs::read(&volume).expect("it is there");
    let _ = (fs::remove_file(volume), fs::remove_file(content));
    let blocks = (0..bytes.len()).step_by(512).filter(|at| bytes[*at..].starts_with(b"INDX")).collect();
    (bytes, blocks)
});

/// Where mkntfs puts the MFT.
const MFT: usize = 4 * 4096;

fn read_all(image: Vec<u8>, damage: Damage, lookups: &[&[u8]]) {
    let size = image.len();
    let Ok(volume) = ntfs::open_volume(Parsing::unconfined(), Arc::new(Memory(image)), damage) else { return };
    for name in lookups.iter().take(16) {
        let Ok(Some(node)) = volume.lookup(volume.root(), name) else { continue };
        let mut buffer = vec![0; 5000];
        let slices = [VolatileSlice::from(&mut buffer[..])];
        let _ = volume.read(node, 100, 5000, &mut Cursor::new(&slices));
        let (mut count, _) = (0, volume.data(node, 0));
        let _ = volume.list(node, 0, &mut |item| {
            count += 1;
            if let Item::Entry(entry) = item {
                assert!(inarch_volume::is_name(entry.name) && entry.next < 1 << 62);
            }
            true
        });
        assert!(count <= size / 8 + 100, "{count} entries in {size} bytes");
    }
    let Ok(opened) = TreeAndContent::walk(Parsing::unconfined(), volume, damage) else { return };
    let mut buffer = vec![0; 20_000];
    for (id, inode) in opened.tree.inodes().take(500) {
        for offset in [0, inode.size() / 2, inode.size().saturating_sub(9000)] {
            let _ = read_content(&*opened.content, id, offset, &mut buffer);
        }
        let _ = opened.content.lend(id, 0, inode.size().min(1 << 20), &mut |_, _| Ok(()));
    }
}

fuzz_target!(|input: Input<'_>| match input {
    Input::Raw(bytes) => read_all(bytes.to_vec(), Damage::Salvaged, &[]),
    Input::Changed { salvaged, patches, length, lookups } => {
        let (base, blocks) = &*BASE;
        let mut image = base.clone();
        for patch in patches.iter().take(64) {
            let (at, bytes) = match patch {
                Patch::Record(number, offset, bytes) => {
                    (MFT + usize::from(*number) % 128 * 1024 + usize::from(*offset) % 1024, bytes)
                }
                Patch::Block(number, offset, bytes) => match blocks.get(usize::from(*number) % blocks.len().max(1)) {
                    Some(block) => (block + usize::from(*offset) % 4096, bytes),
                    None => continue,
                },
                Patch::Anywhere(at, bytes) => (*at as usize, bytes),
            };
            image::replace(&mut image, at, bytes.get(..1024).unwrap_or(bytes));
        }
        image.truncate(length.map_or(image.len(), |length| length as usize));
        read_all(image, if salvaged { Damage::Salvaged } else { Damage::Refused }, &lookups);
    }
});
