//! Files that are ranges of a backing file are read correctly, and a backing that changes is an error.

use std::fs::File;
use std::io::Write;
use std::sync::Arc;

use inarch_block::{BackedFiles, Backing, BackingFile, ChangeReason, Content, Lent, Renumbered, read_content};
use inarch_tree::{Attributes, Builder, Extent, Extents, InodeId};

const BYTES: &[u8] = b"0123456789abcdefghij";

/// `/f`: 16 bytes, of them 3 to 7 from byte 2 and 7 to 11 from byte 12 of the backing; the rest a hole.
fn files(backing: &std::path::Path) -> BackedFiles {
    let directory = Attributes { mode: 0o040755, ..Attributes::default() };
    let mut builder = Builder::new(&directory).unwrap();
    builder.list(InodeId::ROOT).unwrap();
    let file = builder.add(b"f", &Attributes { mode: 0o100644, size: 16, ..Attributes::default() }).unwrap();
    let tree = Arc::new(builder.finish().unwrap());
    let extents = vec![
        (file, Extent { offset: 7, length: 4, at: 12, backing: 0 }),
        (file, Extent { offset: 3, length: 4, at: 2, backing: 0 }),
    ];
    let extents = Extents::new(tree.inode_count(), extents).unwrap();
    let backing = BackingFile::new(File::open(backing).unwrap(), backing.to_owned()).unwrap();
    BackedFiles::new(tree, extents, vec![Arc::new(backing) as Arc<dyn Backing>])
}

fn backing() -> tempfile::NamedTempFile {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    file.write_all(BYTES).unwrap();
    file
}

const FILE: InodeId = InodeId(1);

#[test]
fn every_range_of_a_file_is_its_extents_and_zeros() {
    let backing = backing();
    let files = files(backing.path());
    let mut whole = *b"\0\0\x0023456789\0\0\0\0\0\0";
    whole[7..11].copy_from_slice(&BYTES[12..16]);
    whole[3..7].copy_from_slice(&BYTES[2..6]);
    for start in 0..20 {
        for end in start..20 {
            let mut out = vec![0xff; end - start];
            read_content(&files, FILE, start as u64, &mut out).unwrap();
            let expected: Vec<u8> = (start..end).map(|at| whole.get(at).copied().unwrap_or(0)).collect();
            assert_eq!(out, expected, "{start}..{end}");
        }
    }
}

#[test]
fn extents_are_lent_with_their_place_in_the_backing() {
    let backing = backing();
    let files = files(backing.path());
    let mut lent = Vec::new();
    assert!(
        files
            .lend(FILE, 5, 5, &mut |_, part| {
                lent.push(part);
                Ok(())
            })
            .unwrap()
    );
    assert_eq!(lent, [Lent { offset: 5, at: 4, length: 2 }, Lent { offset: 7, at: 12, length: 3 }]);
}

#[test]
fn a_backing_that_changes_is_an_error_and_is_named() {
    let mut backing = backing();
    let files = files(backing.path());
    backing.write_all(b"more").unwrap();
    let mut out = [0xff; 16];
    assert!(read_content(&files, FILE, 0, &mut out).is_err());
    assert_eq!(out, [0; 16]);
    let changed = files.changed();
    assert_eq!(changed.named[0].path, backing.path());
    assert_eq!(changed.named[0].reason, ChangeReason::Size { was: 20, now: 24 });
    assert!(files.lend(FILE, 0, 16, &mut |_, _| Ok(())).is_err());
}

#[test]
fn a_renumbered_tree_reads_the_files_of_the_old_one() {
    let backing = backing();
    let renumbered = Renumbered::new(Arc::new(files(backing.path())), vec![InodeId::ROOT, InodeId::ROOT, FILE]);
    let mut out = [0; 4];
    read_content(&renumbered, InodeId(2), 3, &mut out).unwrap();
    assert_eq!(&out, b"2345");
    assert!(read_content(&renumbered, InodeId(3), 3, &mut out).is_err());
    assert_eq!(out, [0; 4]);
}
