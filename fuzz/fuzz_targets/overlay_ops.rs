//! Any sequence of requests to a device: it behaves like an array of bytes, and hostile ranges are errors.

#![no_main]

use std::collections::HashMap;
use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use arbitrary::Arbitrary;
use inarch_block::{BLOCK_SIZE, BlockMap, Device, HostFiles, Metadata, Overlay};
use inarch_tree::{Attributes, Builder};
use libfuzzer_sys::fuzz_target;

/// Three chunks of the overlay's states and a bit.
const BLOCKS: u64 = 3 * 16_384 + 5;
const BLOCK: u64 = BLOCK_SIZE as u64;
/// Blocks that are not zeros below the overlay.
const METADATA: u64 = 8;

#[derive(Arbitrary, Debug)]
enum Step {
    Read { at: Place, length: u16 },
    Write { at: Place, length: u16, fill: u8 },
    Discard { at: Place, length: u32 },
    WriteZeroes { at: Place, length: u32, unmap: bool },
    HostileRead { offset: u64 },
    HostileWrite { offset: u64 },
    HostileDiscard { offset: u64, length: u64 },
    Flush,
    Reopen,
}

/// Near a boundary of chunks, so that small inputs overlap.
#[derive(Arbitrary, Clone, Copy, Debug)]
struct Place {
    chunk: u8,
    before: bool,
    distance: u16,
}

impl Place {
    fn offset(self) -> u64 {
        let border = u64::from(self.chunk % 4) * 16_384 * BLOCK;
        let distance = u64::from(self.distance);
        if self.before { border.saturating_sub(distance) } else { border + distance }.min(BLOCKS * BLOCK - 1)
    }
}

struct Numbered;

impl Metadata for Numbered {
    fn render(&self, block: u64, out: &mut [u8; BLOCK_SIZE]) {
        out.fill(block as u8 + 1);
    }
}

/// Blocks that the overlay has changed.
#[derive(Default)]
struct Model(HashMap<u64, [u8; BLOCK_SIZE]>);

impl Model {
    fn below(block: u64) -> [u8; BLOCK_SIZE] {
        [if block < METADATA { block as u8 + 1 } else { 0 }; BLOCK_SIZE]
    }

    fn get(&self, block: u64) -> [u8; BLOCK_SIZE] {
        self.0.get(&block).copied().unwrap_or_else(|| Model::below(block))
    }

    fn fill(&mut self, offset: u64, length: u64, value: u8) {
        let end = offset + length;
        let blocks = offset / BLOCK..end.div_ceil(BLOCK);
        // Zeroing touches only blocks that are not zeros already.
        let touched: Vec<u64> = match value {
            0 => self.0.keys().copied().chain(0..METADATA).filter(|block| blocks.contains(block)).collect(),
            _ => blocks.collect(),
        };
        for block in touched {
            let content = self.0.entry(block).or_insert_with(|| Model::below(block));
            let start = offset.max(block * BLOCK) - block * BLOCK;
            let stop = end.min((block + 1) * BLOCK) - block * BLOCK;
            content[start as usize..stop as usize].fill(value);
        }
    }
}

fn open(kept: Option<&Path>, dir: &Path) -> Device {
    let overlay = match kept {
        Some(path) => Overlay::open_or_create(path, BLOCKS, [3; 32], 0),
        None => Overlay::ephemeral(dir, BLOCKS),
    };
    let root = Attributes { mode: 0o040755, ..Attributes::default() };
    let tree = Arc::new(Builder::new(&root).and_then(Builder::finish).expect("a tree of a root"));
    let files = HostFiles::new(File::open(dir).expect("the directory is there").into(), tree, 4);
    let map = BlockMap::new(METADATA, vec![0..3, 3..METADATA], vec![], Arc::new(Numbered)).expect("a good map");
    Device::new(map, Arc::new(files), Some(overlay.expect("an overlay")), BLOCKS)
}

fn read(device: &Device, offset: u64, length: usize) -> std::io::Result<Vec<u8>> {
    let mut out = vec![0xee; length];
    let (first, second) = out.split_at_mut(length / 3);
    device.read_at(offset, &[first.into(), second.into()])?;
    Ok(out)
}

fn check(device: &Device, model: &Model, offset: u64, length: u64) {
    let length = length.min(BLOCKS * BLOCK - offset);
    let found = read(device, offset, length as usize).expect("a read within the device");
    let mut at = offset;
    let mut rest = found.as_slice();
    while !rest.is_empty() {
        let within = (at % BLOCK) as usize;
        let (part, after) = rest.split_at(rest.len().min(BLOCK_SIZE - within));
        assert!(part == &model.get(at / BLOCK)[within..within + part.len()], "{} bytes at {at}", part.len());
        at += part.len() as u64;
        rest = after;
    }
}

fn apply(device: &Device, model: &mut Model, step: &Step) {
    let within = |offset: u64, length: u64| length.min(BLOCKS * BLOCK - offset);
    match *step {
        Step::Read { at, length } => check(device, model, at.offset(), u64::from(length)),
        Step::Write { at, length, fill } => {
            let length = within(at.offset(), u64::from(length));
            let mut data = vec![fill; length as usize];
            let (first, second) = data.split_at_mut(length as usize / 2);
            device.write_at(at.offset(), &[first.into(), second.into()]).expect("a write within the device");
            model.fill(at.offset(), length, fill);
        }
        Step::Discard { at, length } => {
            let length = within(at.offset(), u64::from(length));
            device.discard(at.offset(), length).expect("a discard within the device");
            model.fill(at.offset(), length, 0);
        }
        Step::WriteZeroes { at, length, unmap } => {
            let length = within(at.offset(), u64::from(length));
            device.write_zeroes(at.offset(), length, unmap).expect("zeroing within the device");
            model.fill(at.offset(), length, 0);
        }
        Step::HostileRead { offset } => {
            let beyond = offset.checked_add(10).is_none_or(|end| end > BLOCKS * BLOCK);
            assert_eq!(read(device, offset, 10).is_err(), beyond);
        }
        Step::HostileWrite { offset } if offset > BLOCKS * BLOCK - 7 => {
            device.write_at(offset, &[[1; 7].as_mut_slice().into()]).expect_err("a write beyond the device");
        }
        Step::HostileDiscard { offset, length }
            if offset.checked_add(length).is_none_or(|end| end > BLOCKS * BLOCK) =>
        {
            device.discard(offset, length).expect_err("a discard beyond the device");
        }
        Step::HostileWrite { .. } | Step::HostileDiscard { .. } => {}
        Step::Flush | Step::Reopen => device.flush().expect("a flush"),
    }
}

fuzz_target!(|input: (bool, Vec<Step>)| {
    let (keep, steps) = input;
    let base = if Path::new("/dev/shm").is_dir() { "/dev/shm".into() } else { std::env::temp_dir() };
    let dir = base.join(format!("inarch-fuzz-overlay-{}", std::process::id()));
    std::fs::create_dir_all(&dir).expect("a directory for the overlay");
    let path = dir.join("kept");
    let _ = std::fs::remove_file(&path);
    let kept = keep.then_some(path.as_path());
    let mut device = open(kept, &dir);
    let mut model = Model::default();
    for step in steps.iter().take(50) {
        apply(&device, &mut model, step);
        if keep && matches!(step, Step::Reopen) {
            drop(device);
            device = open(kept, &dir);
        }
    }
    for border in [0, 1, 2, 3u64] {
        let offset = (border * 16_384 * BLOCK).saturating_sub(5 * BLOCK);
        check(&device, &model, offset, 10 * BLOCK);
    }
});
