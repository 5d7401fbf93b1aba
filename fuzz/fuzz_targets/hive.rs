//! Any hive and its logs are read or refused, and a walk ends. An input is a small hive and its logs with bytes replaced and checksums made right again; or
//! a hive itself.

#![no_main]

use std::sync::{Arc, LazyLock};

use arbitrary::{Arbitrary, Unstructured};
use inarch_block::Backing;
use inarch_confine::Parsing;
use inarch_fuzz::hives::build::{self, HEADER, SECTOR};
use inarch_fuzz::hives::{SAMPLE, change};
use inarch_fuzz::image::{Memory, replace};
use inarch_hive::{Hive, HiveError, Shown, export_key};
use libfuzzer_sys::fuzz_target;

#[derive(Arbitrary, Debug)]
struct Input<'a> {
    /// Whether the hive was not written back completely: only then are logs read.
    is_dirty: bool,
    /// Whether the checksum of its header stays wrong.
    is_torn: bool,
    length: Option<u16>,
    /// Bytes to be replaced in its header, and in its cells.
    header: Vec<(u8, &'a [u8])>,
    cells: Vec<(u16, &'a [u8])>,
    logs: Vec<Log<'a>>,
}

#[derive(Arbitrary, Debug)]
enum Log<'a> {
    /// An entry for each sector of the hive that is to have bytes replaced; then bytes of the log are.
    Entries {
        first: u8,
        sectors: Vec<(u8, u16, &'a [u8])>,
        patches: Vec<(u16, &'a [u8])>,
    },
    /// A bit for each sector of the hive, and the first bytes of those whose bits are set.
    Bits {
        bits: &'a [u8],
        start: &'a [u8],
        patches: Vec<(u16, &'a [u8])>,
    },
    Raw(&'a [u8]),
}

impl Log<'_> {
    fn bytes(&self) -> Vec<u8> {
        match self {
            Log::Entries { first, sectors, patches } => {
                let page = |(sector, within, bytes): &(u8, u16, &[u8])| {
                    let at = usize::from(*sector) % ((SAMPLE.len() - HEADER) / SECTOR) * SECTOR;
                    let mut page = SAMPLE[HEADER + at..HEADER + at + SECTOR].to_vec();
                    replace(&mut page, usize::from(*within) % SECTOR, bytes);
                    (at as u32, page)
                };
                let pages: Vec<(u32, Vec<u8>)> = sectors.iter().take(16).map(page).collect();
                // The hive waits for the entry with the number 1.
                let mut log = build::log(&SAMPLE, u32::from(*first % 4), &pages);
                patched(&mut log, patches);
                build::seal_log(&mut log);
                log
            }
            Log::Bits { bits, start, patches } => {
                let mut log = build::old_log(&SAMPLE, bits, start);
                patched(&mut log, patches);
                build::seal(&mut log);
                log
            }
            Log::Raw(bytes) => bytes.to_vec(),
        }
    }
}

fn patched(log: &mut [u8], patches: &[(u16, &[u8])]) {
    for (at, bytes) in patches {
        replace(log, usize::from(*at) % log.len(), &bytes[..bytes.len().min(64)]);
    }
}

/// Reads all of a hive. Returns how many keys a walk finds.
fn read(hive: Vec<u8>, logs: Vec<Vec<u8>>) -> Result<usize, HiveError> {
    // A log can have sectors that the hive lacks.
    let size = hive.len() + logs.iter().map(Vec::len).sum::<usize>();
    let logs: Vec<Arc<dyn Backing>> = logs.into_iter().map(|log| Arc::new(Memory(log)) as Arc<dyn Backing>).collect();
    let hive = Hive::open(Parsing::unconfined(), Arc::new(Memory(hive)), &logs)?;
    assert!(hive.notes().len() < 10);
    let _ = hive.current_control_set();
    let root = hive.root()?;
    for key in hive.subkeys(&root).unwrap_or_default() {
        for (value, data) in hive.values_with_data(&key).unwrap_or_default() {
            let _ = Shown::new(value.kind, data).to_string();
        }
    }
    let (mut walk, mut count) = (hive.walk(root), 0);
    while let Some(visited) = walk.next_key()? {
        export_key("HKEY", &visited, &mut |_| {});
        count += 1;
        // A key takes 80 bytes at least, and no more are found than there is room for.
        assert!(count <= size / 80, "{count} keys in {size} bytes");
    }
    Ok(count)
}

/// What is refused as it is would hide what its changes do.
static WHOLE: LazyLock<()> = LazyLock::new(|| assert_eq!(read(SAMPLE.clone(), Vec::new()).ok(), Some(15)));

fuzz_target!(|bytes: &[u8]| {
    LazyLock::force(&WHOLE);
    if bytes.starts_with(b"regf") {
        drop(read(bytes.to_vec(), Vec::new()));
    } else if let Ok(input) = Input::arbitrary_take_rest(Unstructured::new(bytes)) {
        let mut hive = SAMPLE.clone();
        if input.is_dirty {
            build::soil(&mut hive);
        }
        change(&mut hive, &input.header, &input.cells);
        if input.is_torn {
            hive[508] ^= 1;
        }
        hive.truncate(input.length.map_or(hive.len(), usize::from));
        let logs = input.logs.iter().take(3).map(Log::bytes).collect();
        drop(read(hive, logs));
    }
});
