//! Makes a small hive and logs of it, for tests and fuzzing: by the specification, without a tool, and with the right checksums.

use super::marvin;

/// Bytes of a hive's header; the bins follow.
pub const HEADER: usize = 4096;
/// Bytes of a sector, in which logs count, and of a log's header.
pub const SECTOR: usize = 512;
/// Where the cells of [`sample`] begin that say something: behind those of a large value.
pub const STRUCTURES: usize = HEADER + BIN + LARGE_CELL;

/// Bytes of a bin's header.
const BIN: usize = 32;
/// No cell.
const NONE: u32 = u32::MAX;
/// The most bytes of a part of big data, and those of a cell with so many.
const PART: usize = 16_344;
const LARGE_CELL: usize = PART + 8;

/// Writes bytes into others, which must have room for them.
fn put(bytes: &mut [u8], at: usize, new: &[u8]) {
    bytes[at..at + new.len()].copy_from_slice(new);
}

fn number(bytes: &mut [u8], at: usize, number: u32) {
    put(bytes, at, &number.to_le_bytes());
}

/// UTF-16 with a NUL at its end.
fn wide(text: &str) -> Vec<u8> {
    text.encode_utf16().chain([0]).flat_map(u16::to_le_bytes).collect()
}

/// A bin that cells are added to.
struct Bin(Vec<u8>);

impl Bin {
    fn new() -> Bin {
        let mut bytes = b"hbin".to_vec();
        bytes.resize(BIN, 0);
        Bin(bytes)
    }

    /// Adds a cell in use ("Cell"); returns where it is.
    fn cell(&mut self, content: &[u8]) -> u32 {
        let at = self.0.len();
        let size = (4 + content.len()).next_multiple_of(8);
        // A cell in use has a negative size.
        self.0.extend((size as u32).wrapping_neg().to_le_bytes());
        self.0.extend(content);
        self.0.resize(at + size, 0);
        at as u32
    }

    /// Adds a cell of numbers.
    fn numbers(&mut self, numbers: &[u32]) -> u32 {
        let bytes: Vec<u8> = numbers.iter().copied().flat_map(u32::to_le_bytes).collect();
        self.cell(&bytes)
    }

    /// Adds a list of keys ("Index leaf" and those after it): of kind `lf` or `lh` with hashes, which are zeros here.
    fn list(&mut self, kind: &[u8; 2], keys: &[u32]) -> u32 {
        let mut list = kind.to_vec();
        list.extend((keys.len() as u16).to_le_bytes());
        for key in keys {
            list.extend(key.to_le_bytes());
            list.extend(vec![0; if matches!(kind, b"lf" | b"lh") { 4 } else { 0 }]);
        }
        self.cell(&list)
    }

    /// Adds a value whose data are at `place` ("Key value").
    fn value_at(&mut self, name: &str, kind: u32, size: u32, place: [u8; 4]) -> u32 {
        let mut value = b"vk".to_vec();
        value.extend((name.len() as u16).to_le_bytes());
        value.extend(size.to_le_bytes());
        value.extend(place);
        value.extend(kind.to_le_bytes());
        // The name has a byte for each character.
        value.extend([1, 0, 0, 0]);
        value.extend(name.as_bytes());
        self.cell(&value)
    }

    /// Adds a value. Data of up to four bytes are in it.
    fn value(&mut self, name: &str, kind: u32, data: &[u8]) -> u32 {
        let size = data.len() as u32;
        if data.len() > 4 {
            let place = self.cell(data).to_le_bytes();
            return self.value_at(name, kind, size, place);
        }
        let mut here = [0; 4];
        put(&mut here, 0, data);
        self.value_at(name, kind, 1 << 31 | size, here)
    }

    /// Adds a value of type `REG_SZ`.
    fn text(&mut self, name: &str, text: &str) -> u32 {
        self.value(name, 1, &wide(text))
    }

    /// Adds a key whose list of `count` keys or leaves is at `list` ("Key node").
    fn key_with(&mut self, name: &str, (count, list): (u32, u32), values: &[u32]) -> u32 {
        let values_at = if values.is_empty() { NONE } else { self.numbers(values) };
        let mut key = vec![0; 76];
        // The name has a byte for each character.
        put(&mut key, 0, b"nk\x20\0");
        for (at, value) in [(16, NONE), (20, count), (28, list), (32, NONE), (36, values.len() as u32)] {
            number(&mut key, at, value);
        }
        for (at, value) in [(40, values_at), (44, NONE), (48, NONE)] {
            number(&mut key, at, value);
        }
        put(&mut key, 72, &(name.len() as u16).to_le_bytes());
        key.extend(name.as_bytes());
        self.cell(&key)
    }

    /// Adds a key.
    fn key(&mut self, name: &str, below: &[u32], values: &[u32]) -> u32 {
        let list = if below.is_empty() { NONE } else { self.list(b"lh", below) };
        self.key_with(name, (below.len() as u32, list), values)
    }

    /// Adds the keys that lead to `at`, the outermost first; returns where that one is.
    fn above(&mut self, names: &[&str], at: u32) -> u32 {
        names.iter().rev().fold(at, |at, name| self.key(name, &[at], &[]))
    }

    /// The hive, with a header ("Base block").
    fn finish(mut self, root: u32) -> Vec<u8> {
        // What is left of the bin is a free cell.
        let at = self.0.len();
        let length = (at + 8).next_multiple_of(HEADER);
        self.0.resize(length, 0);
        number(&mut self.0, at, (length - at) as u32);
        number(&mut self.0, 8, length as u32);
        let mut hive = b"regf".to_vec();
        hive.resize(HEADER, 0);
        for (at, value) in [(4, 1), (8, 1), (20, 1), (24, 5), (32, 1), (36, root), (40, length as u32), (44, 1)] {
            number(&mut hive, at, value);
        }
        hive.extend(self.0);
        seal(&mut hive);
        hive
    }
}

/// A hive that has what a Windows keeps in SYSTEM and in SOFTWARE, with keys in lists of every kind, and a key `a` with values of every kind: one of them
/// has big data.
pub fn sample() -> Vec<u8> {
    let mut bin = Bin::new();
    let large = bin.cell(&[0x7F; PART]);
    let rest = bin.cell(&[0x7E; 56]);
    let parts = bin.numbers(&[large, rest]);
    let mut big = b"db\x02\0".to_vec();
    big.extend(parts.to_le_bytes());
    let big = bin.cell(&big).to_le_bytes();
    let values = [
        bin.text("text", "t\u{fc}r"),
        bin.value("expanded", 2, &wide("%a%")),
        bin.value("texts", 7, &[wide("a"), wide("b"), vec![0; 2]].concat()),
        bin.value("number", 4, &42_u32.to_le_bytes()),
        bin.value("turned", 5, &42_u32.to_be_bytes()),
        bin.value("long", 11, &42_u64.to_le_bytes()),
        bin.value("", 3, b"bytes"),
        bin.value_at("big", 3, (PART + 56) as u32, big),
    ];
    let a = bin.key("a", &[], &values);
    let current = bin.value("Current", 4, &1_u32.to_le_bytes());
    let select = bin.key("Select", &[], &[current]);
    let host = bin.text("Hostname", "pc");
    let parameters = bin.key("Parameters", &[], &[host]);
    let set = bin.above(&["ControlSet001", "Services", "Tcpip"], parameters);
    // A partition of an MBR by the disk's signature and where it starts, and one of a GPT by its GUID.
    let of_mbr = [0x0F2E_4A10_u32.to_le_bytes().to_vec(), (1_u64 << 20).to_le_bytes().to_vec()].concat();
    let of_gpt = [&b"DMIO:ID:"[..], &[0x11; 16]].concat();
    let drives = [bin.value("\\DosDevices\\C:", 3, &of_mbr), bin.value("\\DosDevices\\D:", 3, &of_gpt)];
    let mounted = bin.key("MountedDevices", &[], &drives);
    let version = [
        bin.text("ProductName", "Windows 10 Pro"),
        bin.text("CurrentBuildNumber", "22000"),
        bin.text("InstallationType", "Client"),
        bin.value("CurrentMajorVersionNumber", 4, &10_u32.to_le_bytes()),
        bin.value("CurrentMinorVersionNumber", 4, &[0; 4]),
    ];
    let version = bin.key("CurrentVersion", &[], &version);
    let version = bin.above(&["Windows NT"], version);
    let program = [bin.text("DisplayName", "a program"), bin.text("DisplayVersion", "1.2")];
    let program = bin.key("{A}", &[], &program);
    let programs = bin.above(&["Windows", "CurrentVersion", "Uninstall"], program);
    let microsoft = bin.key("Microsoft", &[programs, version], &[]);
    let leaves = [bin.list(b"lf", &[a, set]), bin.list(b"li", &[microsoft, mounted, select])];
    let root = bin.list(b"ri", &leaves);
    let root = bin.key_with("ROOT", (5, root), &[]);
    bin.finish(root)
}

/// Says that a hive was not written back completely.
pub fn soil(hive: &mut [u8]) {
    number(hive, 4, 2);
    seal(hive);
}

/// Makes the checksum of a header right, that of a hive or of a log.
pub fn seal(bytes: &mut [u8]) {
    let Some(head) = bytes.get_mut(..SECTOR) else { return };
    let words = head.as_chunks::<4>().0.iter().take(127);
    let sum = match words.fold(0, |sum, word| sum ^ u32::from_le_bytes(*word)) {
        0 => 1,
        u32::MAX => u32::MAX - 1,
        sum => sum,
    };
    number(head, 508, sum);
}

/// A log as the specification's "New format" says: a header of kind 6, then an entry for each change, with numbers from `first` on. A change is a page
/// and where it belongs in the bins.
pub fn log(hive: &[u8], first: u32, changes: &[(u32, Vec<u8>)]) -> Vec<u8> {
    let mut log = hive[..SECTOR].to_vec();
    for (at, value) in [(4, first), (8, first), (28, 6)] {
        number(&mut log, at, value);
    }
    let length = (hive.len() - HEADER) as u32;
    for (sequence, (at, page)) in (first..).zip(changes) {
        let start = log.len();
        let size = (48 + page.len()).next_multiple_of(SECTOR);
        log.extend(b"HvLE");
        for value in [size as u32, 0, sequence, length, 1, 0, 0, 0, 0, *at, page.len() as u32] {
            log.extend(value.to_le_bytes());
        }
        log.extend(page);
        log.resize(start + size, 0);
    }
    seal_log(&mut log);
    log
}

/// Makes the checksums of a log with entries right, as far as one entry follows the other.
pub fn seal_log(log: &mut [u8]) {
    seal(log);
    let mut at = SECTOR;
    while let Some(size) = entry_size(log, at) {
        let entry = &mut log[at..at + size];
        let sum = marvin::checksum(&entry[40..]);
        put(entry, 24, &sum.to_le_bytes());
        let sum = marvin::checksum(&entry[..32]);
        put(entry, 32, &sum.to_le_bytes());
        at += size;
    }
}

/// Bytes of the entry at `at`; `None` if no whole one is there.
fn entry_size(log: &[u8], at: usize) -> Option<usize> {
    let rest = log.get(at..)?;
    let size = u32::from_le_bytes(*rest.get(4..)?.first_chunk()?) as usize;
    let is_one = rest.starts_with(b"HvLE") && size >= SECTOR && size.is_multiple_of(SECTOR) && size <= rest.len();
    is_one.then_some(size)
}

/// A log as the "Old format" says: a header of kind 1, a bit for each sector of the bins, and the sectors whose bits are set. They are those of the hive,
/// with `start` as their first bytes.
pub fn old_log(hive: &[u8], bits: &[u8], start: &[u8]) -> Vec<u8> {
    let mut log = hive[..SECTOR].to_vec();
    for (at, value) in [(4, 1), (8, 1), (28, 1)] {
        number(&mut log, at, value);
    }
    seal(&mut log);
    let sectors = (hive.len() - HEADER) / SECTOR;
    let bytes = sectors.div_ceil(8);
    log.extend(b"DIRT");
    log.extend(bits.iter().take(bytes));
    log.resize(SECTOR + (4 + bytes).next_multiple_of(SECTOR), 0);
    let is_set = |sector: &usize| bits.get(sector / 8).is_some_and(|byte| byte >> (sector % 8) & 1 != 0);
    for sector in (0..sectors).filter(is_set) {
        let at = HEADER + sector * SECTOR;
        let mut bytes = hive[at..at + SECTOR].to_vec();
        let count = start.len().min(SECTOR);
        put(&mut bytes, 0, &start[..count]);
        log.extend(bytes);
    }
    log
}
