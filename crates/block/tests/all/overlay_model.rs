//! A device with an overlay behaves like a plain array of bytes.

use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::common::*;
use inarch_block::{Device, Overlay, write_image};
use proptest::prelude::*;

/// Two chunks of the overlay's states (64 MiB each) and a part of a third.
const CAPACITY: u64 = (128 << 20) + 40 * BLOCK;

#[derive(Clone, Debug)]
enum Step {
    Read { at: u64, length: u64, slice: usize },
    Write { at: u64, length: u64, slice: usize, seed: u64 },
    Discard { at: u64, length: u64 },
    WriteZeroes { at: u64, length: u64, unmap: bool },
    Flush,
}

/// Offsets about the files, the borders of chunks, and the end.
fn offset() -> impl Strategy<Value = u64> {
    let anchor = prop_oneof![Just(0), Just((64 << 20) - 20_000), Just((128 << 20) - 20_000), Just(CAPACITY - 50_000)];
    let unit = prop_oneof![Just(1u64), Just(512), Just(BLOCK)];
    (anchor, 0u64..50_000, unit).prop_map(|(anchor, offset, unit)| (anchor + offset) / unit * unit)
}

fn length() -> impl Strategy<Value = u64> {
    prop_oneof![1u64..20_000, (1u64..6).prop_map(|blocks| blocks * BLOCK), Just(512)]
}

fn wide() -> impl Strategy<Value = u64> {
    prop_oneof![4 => length(), 1 => 1u64..(100 << 20)]
}

fn step() -> impl Strategy<Value = Step> {
    let slice = prop_oneof![Just(1usize << 20), Just(4096), 100usize..5000];
    prop_oneof![
        3 => (offset(), length(), slice.clone()).prop_map(|(at, length, slice)| Step::Read { at, length, slice }),
        4 => (offset(), length(), slice, any::<u64>())
            .prop_map(|(at, length, slice, seed)| Step::Write { at, length, slice, seed }),
        2 => (offset(), wide()).prop_map(|(at, length)| Step::Discard { at, length }),
        1 => (offset(), wide(), any::<bool>()).prop_map(|(at, length, unmap)| Step::WriteZeroes { at, length, unmap }),
        1 => Just(Step::Flush),
    ]
}

/// A directory of a few files, and what its device holds.
fn base() -> (tempfile::TempDir, Vec<u8>) {
    let dir = tempfile::tempdir().unwrap();
    for (i, size) in [3000, 4096, 30_000, 10].into_iter().enumerate() {
        fs::write(dir.path().join(format!("f{i}")), pattern(i as u64, size)).unwrap();
    }
    let (_, device) = device(dir.path());
    let mut model = read(&device, 0, device.capacity() as usize).unwrap();
    model.resize(CAPACITY as usize, 0);
    (dir, model)
}

fn under(root: &Path, overlay: Overlay) -> Device {
    device_of(&scan(root), root, 64, Some(overlay), CAPACITY / BLOCK)
}

fn apply(device: &Device, model: &mut [u8], step: &Step) -> Result<(), TestCaseError> {
    let part = |at: u64, length: u64| at as usize..(at + length).min(CAPACITY) as usize;
    match *step {
        Step::Read { at, length, slice } => {
            let range = part(at, length);
            let mut out = vec![0xee; range.len()];
            device.read_at(at, &slices(&mut out, slice)).unwrap();
            prop_assert!(out == model[range], "{step:?}");
        }
        Step::Write { at, length, slice, seed } => {
            let range = part(at, length);
            let mut data = pattern(seed, range.len());
            device.write_at(at, &slices(&mut data, slice)).unwrap();
            model[range].copy_from_slice(&data);
        }
        Step::Discard { at, length } => {
            let range = part(at, length);
            device.discard(at, range.len() as u64).unwrap();
            model[range].fill(0);
        }
        Step::WriteZeroes { at, length, unmap } => {
            let range = part(at, length);
            device.write_zeroes(at, range.len() as u64, unmap).unwrap();
            model[range].fill(0);
        }
        Step::Flush => device.flush().unwrap(),
    }
    Ok(())
}

fn compare(device: &Device, model: &[u8], what: &str) -> Result<(), TestCaseError> {
    for (i, expected) in model.chunks(1 << 20).enumerate() {
        let out = read(device, (i as u64) << 20, expected.len()).unwrap();
        prop_assert!(out == expected, "{what}: MiB {i} differs");
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn an_overlaid_device_is_an_array_of_bytes(steps in prop::collection::vec(step(), 1..60)) {
        let (dir, mut model) = base();
        let device = under(dir.path(), Overlay::ephemeral(&std::env::temp_dir(), CAPACITY / BLOCK).unwrap());
        for step in &steps {
            apply(&device, &mut model, step)?;
        }
        compare(&device, &model, "at the end")?;
    }

    #[test]
    fn a_kept_overlay_is_the_same_when_opened_again(
        steps in prop::collection::vec(prop::collection::vec(step(), 1..20), 1..4),
    ) {
        let (dir, mut model) = base();
        let place = tempfile::tempdir().unwrap();
        let open = || Overlay::open_or_create(&place.path().join("kept"), CAPACITY / BLOCK, [7; 32], 0).unwrap();
        let mut written = 0;
        for steps in &steps {
            let device = under(dir.path(), open());
            prop_assert_eq!(device.events().overlay_bytes, written);
            for step in steps {
                apply(&device, &mut model, step)?;
            }
            device.flush().unwrap();
            written = device.events().overlay_bytes;
        }
        compare(&under(dir.path(), open()), &model, "opened again")?;
    }
}

#[test]
fn an_image_of_the_device_holds_the_same_bytes() {
    let (dir, mut model) = base();
    let device = under(dir.path(), Overlay::ephemeral(&std::env::temp_dir(), CAPACITY / BLOCK).unwrap());
    for step in [
        Step::Write { at: (64 << 20) - 3000, length: 7000, slice: 4096, seed: 5 },
        Step::Discard { at: 5000, length: 9000 },
    ] {
        apply(&device, &mut model, &step).unwrap();
    }
    let image = dir.path().join("image");
    write_image(&device, &fs::File::create(&image).unwrap()).unwrap();
    assert!(fs::read(&image).unwrap() == model);
    let blocks = std::os::unix::fs::MetadataExt::blocks(&fs::metadata(&image).unwrap());
    assert!(blocks * 512 < 1 << 20, "zeros take no space, but {blocks} sectors are taken");
}

/// Each thread has every fourth sector, so that they share every cluster.
#[test]
fn writers_of_one_cluster_do_not_lose_each_others_sectors() {
    const THREADS: u64 = 4;
    const SECTORS: u64 = 800;
    let (dir, model) = base();
    for round in 0..5u64 {
        let device = under(dir.path(), Overlay::ephemeral(&std::env::temp_dir(), CAPACITY / BLOCK).unwrap());
        let ends: Vec<Vec<(u64, Vec<u8>)>> = std::thread::scope(|scope| {
            let run = |thread: u64| {
                let device = &device;
                let mut random = Random(round * 100 + thread + 1);
                let mut own: Vec<_> = (thread..SECTORS)
                    .step_by(THREADS as usize)
                    .map(|sector| (sector * 512, model[sector as usize * 512..][..512].to_vec()))
                    .collect();
                move || {
                    for _ in 0..1500 {
                        let at = random.below(own.len() as u64) as usize;
                        let (offset, content) = &mut own[at];
                        match random.below(6) {
                            0 | 1 => {
                                *content = pattern(random.below(u64::MAX), 512);
                                write(device, *offset, content).unwrap();
                            }
                            2 => {
                                content.fill(0);
                                device.write_zeroes(*offset, 512, random.below(2) == 0).unwrap();
                            }
                            _ => assert!(read(device, *offset, 512).unwrap() == *content, "sector at {offset}"),
                        }
                    }
                    own
                }
            };
            let threads: Vec<_> = (0..THREADS).map(|thread| scope.spawn(run(thread))).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        for (offset, content) in ends.concat() {
            assert!(read(&device, offset, 512).unwrap() == content, "sector at {offset} in the end");
        }
    }
}

/// One thread zeroes whole clusters and chunks, others write and read beside it.
#[test]
fn discards_and_writes_of_other_clusters_do_not_meet() {
    let (dir, _) = base();
    let device = under(dir.path(), Overlay::ephemeral(&std::env::temp_dir(), CAPACITY / BLOCK).unwrap());
    let chunk = 64 << 20;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for _ in 0..300 {
                device.discard(chunk, chunk).unwrap();
                assert!(read(&device, chunk, 8192).unwrap().iter().all(|byte| *byte == 0));
                write(&device, chunk + 4096, &[1; 4096]).unwrap();
                assert_eq!(read(&device, chunk + 4096, 4096).unwrap(), [1; 4096]);
            }
        });
        for thread in 0..2u64 {
            let device = &device;
            scope.spawn(move || {
                for i in 0..300 {
                    // The last clusters of the previous chunk, which share no word or page with the next.
                    let offset = chunk - (thread + 1) * 40_960 + i % 9 * BLOCK;
                    let data = pattern(i, 4096);
                    write(device, offset, &data).unwrap();
                    assert!(read(device, offset, 4096).unwrap() == data);
                    if i % 3 == 0 {
                        device.discard(offset, 4096).unwrap();
                        assert!(read(device, offset, 4096).unwrap() == [0; 4096]);
                    }
                }
            });
        }
    });
}

#[test]
fn a_read_beside_the_first_write_gives_the_old_bytes_or_the_new() {
    const WRITES: u64 = 200;
    const LENGTH: u64 = 64 * BLOCK;
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("f"), vec![b'o'; (WRITES * LENGTH) as usize]).unwrap();
    let device = under(dir.path(), Overlay::ephemeral(&std::env::temp_dir(), CAPACITY / BLOCK).unwrap());
    let start = |write: u64| FIRST_FILE * BLOCK + write * LENGTH;
    // The reader follows the writer, always at the end of what is being written.
    let current = AtomicU64::new(0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for i in 0..WRITES {
                current.store(i, Ordering::Release);
                write(&device, start(i), &[b'n'; LENGTH as usize]).unwrap();
            }
            current.store(WRITES, Ordering::Release);
        });
        let mut followed = 0;
        while followed < WRITES {
            let found = read(&device, start(followed + 1) - BLOCK, 4096).unwrap();
            assert!(found.iter().all(|byte| matches!(byte, b'o' | b'n')), "neither the old bytes nor the new");
            followed = current.load(Ordering::Acquire);
        }
    });
}

#[test]
fn two_first_writes_to_a_cluster_at_once_both_stay() {
    const CLUSTERS: u64 = 2000;
    let (dir, _) = base();
    let device = under(dir.path(), Overlay::ephemeral(&std::env::temp_dir(), CAPACITY / BLOCK).unwrap());
    // Threads that wait for each other in a loop, not asleep, start closely together.
    let arrived = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for thread in 0..2u64 {
            let (device, arrived) = (&device, &arrived);
            scope.spawn(move || {
                for cluster in 0..CLUSTERS {
                    arrived.fetch_add(1, Ordering::AcqRel);
                    while arrived.load(Ordering::Acquire) < (cluster + 1) * 2 {
                        std::thread::yield_now();
                    }
                    write(device, cluster * BLOCK + thread * 512, &[thread as u8 + 1; 512]).unwrap();
                }
            });
        }
    });
    for cluster in 0..CLUSTERS {
        let found = read(&device, cluster * BLOCK, 1024).unwrap();
        assert!(found == [[1; 512], [2; 512]].concat(), "cluster {cluster}");
    }
}
