//! A driver of fuzz targets for a stable compiler: it stands in for `libfuzzer-sys`, and has its macro.
//!
//! It knows nothing of coverage. Inputs are random bytes of several distributions, or files of a directory with bytes replaced. A panic, an iteration
//! that takes too long and one that allocates too much are told with the number that makes the same input again. See `fuzz/run`.

use std::alloc::{GlobalAlloc, Layout, System};
use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use std::{env, fs, process, thread};

pub use arbitrary;

/// The most bytes that an iteration may hold at once.
const MOST_MEMORY: usize = 1 << 30;
/// The longest that one may take.
const LONGEST: Duration = Duration::from_secs(20);

/// Counts what is allocated.
struct Counting;

static HELD: AtomicUsize = AtomicUsize::new(0);
static ITERATION: AtomicU64 = AtomicU64::new(0);

// SAFETY: every request goes to the system's allocator as it came.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if HELD.fetch_add(layout.size(), Ordering::Relaxed) > MOST_MEMORY {
            HELD.store(0, Ordering::Relaxed);
            eprintln!("iteration {}: it allocates more than {MOST_MEMORY} bytes", ITERATION.load(Ordering::Relaxed));
            process::abort();
        }
        // SAFETY: as above.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, place: *mut u8, layout: Layout) {
        let _ = HELD.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |held| Some(held.saturating_sub(layout.size())));
        // SAFETY: as above.
        unsafe { System.dealloc(place, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// xorshift64*: Vigna, "An experimental exploration of Marsaglia's xorshift generators".
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    fn below(&mut self, end: usize) -> usize {
        if end == 0 { 0 } else { (self.next() >> 11) as usize % end }
    }
}

/// The input of an iteration.
fn input(number: u64, seeds: &[Vec<u8>]) -> Vec<u8> {
    let mut random = Random(number.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1);
    (0..8).for_each(|_| {
        random.next();
    });
    if !seeds.is_empty() && random.below(50) > 0 {
        let mut bytes = seeds[random.below(seeds.len())].clone();
        (0..=random.below(12)).for_each(|_| mutate(&mut bytes, &mut random));
        return bytes;
    }
    let most = [64, 1024, 16 << 10][random.below(3)];
    let length = random.below(most);
    let kind = random.below(4);
    let byte = |random: &mut Random| match kind {
        0 => random.next() as u8,
        1 if random.below(8) > 0 => 0,
        2 if random.below(8) > 0 => 0xFF,
        3 => random.below(12) as u8,
        _ => random.next() as u8,
    };
    (0..length).map(|_| byte(&mut random)).collect()
}

fn mutate(bytes: &mut Vec<u8>, random: &mut Random) {
    if bytes.is_empty() {
        return bytes.push(random.next() as u8);
    }
    // Headers are at the start, and what is zeros says little.
    let among = if random.below(2) == 0 { bytes.len().min(8192) } else { bytes.len() };
    let mut at = random.below(among);
    for _ in 0..64 {
        if bytes[at] == 0 {
            at = random.below(bytes.len());
        }
    }
    let number: u64 = match random.below(5) {
        0 => 0,
        1 => u64::MAX,
        2 => 1 << random.below(64),
        3 => random.below(1 << 16) as u64,
        _ => random.next(),
    };
    match random.below(8) {
        0 => bytes[at] ^= 1 << random.below(8),
        1 => bytes[at] = number as u8,
        kind @ 2..=5 => {
            let width = [2, 4, 8, 4][kind - 2];
            let number = if random.below(2) == 0 { number.to_le_bytes() } else { number.to_be_bytes() };
            let from = if random.below(2) == 0 { 0 } else { 8 - width };
            for (to, byte) in bytes.iter_mut().skip(at).zip(&number[from..from + width]) {
                *to = *byte;
            }
        }
        6 => {
            let (from, length) = (random.below(bytes.len()), 1 + random.below(512));
            let part = bytes[from..(from + length).min(bytes.len())].to_vec();
            for (to, byte) in bytes.iter_mut().skip(at).zip(part) {
                *to = byte;
            }
        }
        _ if random.below(8) == 0 => bytes.truncate(at),
        _ => bytes[at] = bytes[at].wrapping_add(1),
    }
}

fn argument(name: &str) -> Option<String> {
    let mut words = env::args().skip_while(|word| word != name);
    words.nth(1)
}

/// Runs a target: `--seconds N`, `--from NUMBER` of the first iteration, `--seeds DIRECTORY`; `--only NUMBER` for one iteration.
pub fn drive(target: impl Fn(&[u8])) -> i32 {
    let number = |name| argument(name).and_then(|text| text.parse::<u64>().ok());
    let seeds = argument("--seeds").and_then(|directory| fs::read_dir(directory).ok());
    let mut seeds: Vec<_> = seeds.into_iter().flatten().flatten().map(|entry| entry.path()).collect();
    seeds.sort();
    let seeds: Vec<_> = seeds.iter().filter_map(|path| fs::read(path).ok()).collect();
    if let Some(only) = number("--only") {
        target(&input(only, &seeds));
        return 0;
    }
    let places = Box::leak(Box::new(Mutex::new(BTreeSet::new())));
    let shared: &'static Mutex<BTreeSet<String>> = places;
    std::panic::set_hook(Box::new(move |about| {
        let place = about.location().map(ToString::to_string).unwrap_or_default();
        if shared.lock().is_ok_and(|mut places| places.insert(place)) {
            eprintln!("iteration {}: {about}", ITERATION.load(Ordering::Relaxed));
        }
    }));
    thread::spawn(|| {
        let (mut last, mut since) = (0, Instant::now());
        loop {
            thread::sleep(Duration::from_millis(500));
            let now = ITERATION.load(Ordering::Relaxed);
            if now != last {
                (last, since) = (now, Instant::now());
            } else if since.elapsed() > LONGEST {
                eprintln!("iteration {now}: it takes more than {} seconds", LONGEST.as_secs());
                process::abort();
            }
        }
    });
    let ends = Instant::now() + Duration::from_secs(number("--seconds").unwrap_or(60));
    let first = number("--from").unwrap_or(1);
    let mut iteration = first;
    while Instant::now() < ends {
        ITERATION.store(iteration, Ordering::Relaxed);
        let bytes = input(iteration, &seeds);
        let _ = catch_unwind(AssertUnwindSafe(|| target(&bytes)));
        iteration += 1;
    }
    let failures = shared.lock().map_or(1, |places| places.len());
    println!("{} iterations, panics at {failures} places", iteration - first);
    i32::from(failures > 0)
}

/// As libfuzzer-sys has it.
#[macro_export]
macro_rules! fuzz_target {
    (|$bytes:ident: &[u8]| $body:expr) => {
        #[unsafe(no_mangle)]
        extern "C" fn main() -> i32 {
            $crate::start();
            $crate::drive(|$bytes: &[u8]| { $body; })
        }
    };
    (|$input:ident: $kind:ty| $body:expr) => {
        #[unsafe(no_mangle)]
        extern "C" fn main() -> i32 {
            $crate::start();
            $crate::drive(|bytes: &[u8]| {
                let unstructured = $crate::arbitrary::Unstructured::new(bytes);
                if let Ok($input) = <$kind as $crate::arbitrary::Arbitrary>::arbitrary_take_rest(unstructured) {
                    let _ = $body;
                }
            })
        }
    };
}

/// What comes before a target.
pub fn start() {}
