//! How fast this machine's time stamp counter runs, which is the guest's too where QEMU translates.
//!
//! A kernel measures it when it boots, against a timer that QEMU makes up. Where processors are shared, the timer's thread and the
//! guest's run when they can: now and then the kernel finds a fortieth of the rate, takes it for good, and its clock runs forty
//! times too fast. So it is told (`tsc_early_khz=`, arch/x86/kernel/tsc.c), and still refines what it was told.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// How long the counter is watched at first, and how long where it could not be read in time.
const SPANS: [Duration; 2] = [Duration::from_millis(2), Duration::from_millis(40)];

/// A reading that took longer than this part of the span says too little.
const PRECISION: u32 = 500;

/// Thousands of ticks a second, to the next thousand; `None` if it could not be measured to a part in two hundred, or there is no
/// such counter. Measured once, in some milliseconds.
pub(crate) fn kilohertz() -> Option<u32> {
    static MEASURED: OnceLock<Option<u32>> = OnceLock::new();
    *MEASURED.get_or_init(|| SPANS.into_iter().find_map(measure))
}

fn measure(span: Duration) -> Option<u32> {
    let first = Reading::quick(span)?;
    std::thread::sleep(span);
    let last = Reading::quick(span)?;
    rate(last.ticks.checked_sub(first.ticks)?, last.at.checked_duration_since(first.at)?)
}

/// Kilohertz, whole thousands of them.
fn rate(ticks: u64, time: Duration) -> Option<u32> {
    let kilohertz = u128::from(ticks) * 1_000_000 / time.as_nanos().max(1);
    let rounded = (kilohertz + 500) / 1000 * 1000;
    u32::try_from(rounded).ok().filter(|rate| *rate > 0)
}

/// What the counter said at a time.
struct Reading {
    ticks: u64,
    at: Instant,
}

impl Reading {
    /// A reading of which the time is known well enough for a span.
    fn quick(span: Duration) -> Option<Reading> {
        const ATTEMPTS: u32 = 20;
        (0..ATTEMPTS).find_map(|_| {
            let at = Instant::now();
            let ticks = ticks()?;
            (at.elapsed() < span / PRECISION).then_some(Reading { ticks, at })
        })
    }
}

#[cfg(target_arch = "x86_64")]
fn ticks() -> Option<u64> {
    // SAFETY: every x86-64 processor has the instruction. Where a program may not use it, it could not use a clock either.
    Some(unsafe { core::arch::x86_64::_rdtsc() })
}

#[cfg(not(target_arch = "x86_64"))]
fn ticks() -> Option<u64> {
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_rounded_to_thousands() {
        assert_eq!(rate(2_596_146_000, Duration::from_secs(1)), Some(2_596_000));
        assert_eq!(rate(2_596_500_000, Duration::from_secs(1)), Some(2_597_000));
        assert_eq!(rate(5_192_292, Duration::from_millis(2)), Some(2_596_000));
        assert_eq!((rate(0, Duration::from_secs(1)), rate(u64::MAX, Duration::from_nanos(1))), (None, None));
    }

    /// What two measurements of a machine say is the same, to the part that a kernel takes for possible.
    #[test]
    fn the_counter_is_measured_the_same_twice() {
        let (Some(one), Some(other)) = (measure(SPANS[1]), measure(SPANS[1])) else { return };
        assert!(one.abs_diff(other) < one / 100, "{one} and {other} kHz");
    }
}
