//! What was acknowledged is kept: a flush that returned survives kill -9, and an overlay belongs to its device.

#[path = "all/common/mod.rs"]
mod common;

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use common::*;
use inarch_block::{Device, Overlay, OverlayError};
use rustix::fs::inotify;

const BLOCKS: u64 = 40_000;
const ID: [u8; 32] = [7; 32];
/// Set in the child of the kill test: the directory it works in.
const CHILD: &str = "INARCH_TEST_KEPT_OVERLAY";

fn open(path: &Path) -> Result<Overlay, OverlayError> {
    Overlay::open_or_create(path, BLOCKS, ID, 0)
}

/// A device over an empty directory: zeros but for two blocks of metadata.
fn device_over(dir: &Path, overlay: Overlay) -> Device {
    let root = dir.join("root");
    fs::create_dir_all(&root).unwrap();
    device_of(&scan(&root), &root, 64, Some(overlay), BLOCKS)
}

/// The block that write `i` of `round` goes to, and what it holds afterwards.
fn planned(round: u64, i: u64) -> (u64, Vec<u8>) {
    let mut random = Random(round * 1000 + i + 1);
    // 50 blocks close together and 50 spread over all chunks.
    let block = match random.below(100) {
        near @ 0..50 => near,
        far => far * 397,
    };
    let discarded = random.below(4) == 0;
    let content = if discarded { vec![0; 4096] } else { pattern(round * 1_000_003 + block, 4096) };
    (block, content)
}

/// Not a test of its own: the process that is killed. Writes rounds, flushes each, and reports it.
#[test]
fn child_that_is_killed() {
    let Some(dir) = std::env::var_os(CHILD).map(PathBuf::from) else { return };
    let device = device_over(&dir, open(&dir.join("kept")).unwrap());
    let mut out = std::io::stdout();
    for round in 1.. {
        for (block, content) in (0..30).map(|i| planned(round, i)) {
            if content == [0; 4096] {
                device.discard(block * BLOCK, BLOCK).unwrap();
            } else {
                write(&device, block * BLOCK, &content).unwrap();
            }
        }
        device.flush().unwrap();
        writeln!(out, "flushed {round}").unwrap();
        out.flush().unwrap();
    }
}

#[test]
fn kill_minus_nine_loses_nothing_that_was_flushed() {
    for attempt in 0..6u64 {
        let dir = tempfile::tempdir().unwrap();
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "child_that_is_killed", "--nocapture"])
            .env(CHILD, dir.path())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut rounds = lines
            .map_while(Result::ok)
            .filter_map(|line| line.rsplit_once("flushed ").and_then(|(_, round)| round.parse::<u64>().ok()));
        let mut last = rounds.nth(3 + attempt as usize).expect("the child flushes");
        std::thread::sleep(Duration::from_micros(700 * attempt));
        child.kill().unwrap();
        child.wait().unwrap();
        last = rounds.last().unwrap_or(last);

        let device = device_over(dir.path(), open(&dir.path().join("kept")).unwrap());
        let below = |block: u64| if block < 2 { (block + 1).to_le_bytes().repeat(512) } else { vec![0; 4096] };
        for block in (0..50).chain((50..100).map(|far| far * 397)) {
            let writes = |round| (0..30).map(move |i| planned(round, i)).filter(move |(to, _)| *to == block);
            let flushed = (1..=last).flat_map(writes).last().map_or(below(block), |(_, content)| content);
            // The interrupted round may be there in part.
            let unflushed: Vec<_> = (last + 1..last + 3).flat_map(writes).map(|(_, content)| content).collect();
            let found = read(&device, block * BLOCK, 4096).unwrap();
            for at in (0..4096).step_by(512) {
                let sector = at..at + 512;
                let allowed =
                    std::iter::once(&flushed).chain(&unflushed).any(|c| c[sector.clone()] == found[sector.clone()]);
                assert!(allowed, "block {block} after round {last} of attempt {attempt}");
            }
        }
    }
}

#[test]
fn an_overlay_refuses_another_tree_and_another_size() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("kept");
    drop(open(&path).unwrap());
    let other = Overlay::open_or_create(&path, BLOCKS, [8; 32], 0).unwrap_err();
    assert!(matches!(other, OverlayError::Identity(_)), "{other}");
    let larger = Overlay::open_or_create(&path, BLOCKS + 1, ID, 0).unwrap_err();
    assert!(matches!(larger, OverlayError::Capacity { found: BLOCKS, .. }), "{larger}");
    open(&path).unwrap();
}

#[test]
fn a_note_stays_as_it_was_made() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("kept");
    assert_eq!(Overlay::note(&path).unwrap(), None);
    let first = Overlay::open_or_create(&path, BLOCKS, ID, 9).unwrap();
    assert_eq!(Overlay::note(&path).unwrap(), Some(9), "also while it is in use");
    drop(first);
    drop(Overlay::open_or_create(&path, BLOCKS, ID, 10).unwrap());
    assert_eq!(Overlay::note(&path).unwrap(), Some(9));
    std::fs::write(&path, "something else").unwrap();
    assert!(matches!(Overlay::note(&path), Err(OverlayError::NotAnOverlay(_))));
}

#[test]
fn an_overlay_is_open_once() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("kept");
    let first = open(&path).unwrap();
    let second = open(&path).unwrap_err();
    assert!(matches!(second, OverlayError::InUse(_)), "{second}");
    drop(first);
    open(&path).unwrap();
}

#[test]
fn nothing_is_left_beside_the_overlay() {
    let dir = tempfile::tempdir().unwrap();
    drop(open(&dir.path().join("kept")).unwrap());
    drop(Overlay::ephemeral(dir.path(), BLOCKS).unwrap());
    let names: Vec<_> = fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(names, ["kept"]);
}

#[test]
fn no_name_but_its_own_is_seen_while_an_overlay_is_made() {
    // tmpfs supports nameless files on every kernel.
    let dir = tempfile::tempdir_in("/dev/shm").unwrap();
    let watch = inotify::init(inotify::CreateFlags::NONBLOCK).unwrap();
    let wanted = inotify::WatchFlags::CREATE | inotify::WatchFlags::MOVED_FROM | inotify::WatchFlags::MOVED_TO;
    inotify::add_watch(&watch, dir.path(), wanted).unwrap();
    drop(open(&dir.path().join("kept")).unwrap());
    drop(Overlay::ephemeral(dir.path(), BLOCKS).unwrap());
    let mut buffer = [std::mem::MaybeUninit::uninit(); 4096];
    let mut events = inotify::Reader::new(&watch, &mut buffer);
    let mut seen = Vec::new();
    while let Ok(event) = events.next() {
        seen.push((event.events(), event.file_name().unwrap().to_owned()));
    }
    assert_eq!(seen, [(inotify::ReadFlags::CREATE, c"kept".to_owned())]);
}

/// The error of opening a good overlay after `damage`.
fn error_after(damage: impl Fn(&File)) -> String {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("kept");
    let device = device_over(dir.path(), open(&path).unwrap());
    write(&device, 8192, &[1; 4096]).unwrap();
    device.flush().unwrap();
    drop(device);
    damage(&File::options().write(true).read(true).open(&path).unwrap());
    let error = open(&path).unwrap_err().to_string();
    assert!(error.contains("kept") && !error.contains('\n'), "{error}");
    error
}

#[test]
fn a_damaged_or_unknown_overlay_is_refused_with_a_reason() {
    let overwrite = |at: u64, bytes: &'static [u8]| move |file: &File| file.write_all_at(bytes, at).unwrap();
    assert!(error_after(overwrite(0, b"NOTMAGIC")).contains("not an overlay"));
    assert!(error_after(overwrite(8, b"\x09\0\0\0")).contains("format version 9; this program knows version 2"));
    assert!(error_after(overwrite(16, b"\x07")).contains("checksum"));
    assert!(error_after(overwrite(40, b"x")).contains("checksum"));
    assert!(error_after(overwrite(4096 + 100, &[0xff])).contains("unknown state"));
    assert!(error_after(|file| file.set_len(0).unwrap()).contains("not an overlay"));
    assert!(error_after(|file| file.set_len(30).unwrap()).contains("header is cut short"));
    assert!(error_after(|file| file.set_len(4096).unwrap()).contains("cut short"));
    let length = |file: &File| file.metadata().unwrap().len();
    assert!(error_after(|file| file.set_len(length(file) - 1).unwrap()).contains("cut short"));
}

#[test]
fn something_else_at_the_overlays_path_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    assert!(matches!(open(dir.path()).unwrap_err(), OverlayError::Io { .. }));
    assert!(matches!(open(&dir.path().join("no/such/kept")).unwrap_err(), OverlayError::Io { .. }));
    let link = dir.path().join("link");
    std::os::unix::fs::symlink(dir.path().join("target"), &link).unwrap();
    assert!(matches!(open(&link).unwrap_err(), OverlayError::Io { .. }));
    let text = dir.path().join("text");
    fs::write(&text, [b'x'; 10_000]).unwrap();
    assert!(matches!(open(&text).unwrap_err(), OverlayError::NotAnOverlay(_)));
    assert_eq!(fs::read(&text).unwrap(), [b'x'; 10_000]);
}

#[test]
fn a_huge_discard_costs_no_memory_per_cluster() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("root");
    fs::create_dir(&root).unwrap();
    // 8 TiB: 2^31 clusters.
    let blocks = 1u64 << 31;
    let resident = || {
        let statm = fs::read_to_string("/proc/self/statm").unwrap();
        statm.split(' ').nth(1).unwrap().parse::<u64>().unwrap() * 4096
    };
    let overlay = Overlay::ephemeral(dir.path(), blocks).unwrap();
    let device = device_of(&scan(&root), &root, 64, Some(overlay), blocks);
    let before = resident();
    device.discard(5 * BLOCK, blocks * BLOCK - 9 * BLOCK).unwrap();
    let grown = resident().saturating_sub(before);
    assert!(grown < 64 << 20, "{grown} bytes more");
    write(&device, blocks / 2 * BLOCK + 4096, &[3; 4096]).unwrap();
    assert_eq!(read(&device, blocks / 2 * BLOCK + 4096, 4096).unwrap(), [3; 4096]);
    assert_eq!(read(&device, blocks / 2 * BLOCK, 4096).unwrap(), [0; 4096]);
    assert_eq!(device.events().overlay_bytes, 4096);
}
