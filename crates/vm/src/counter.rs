//! Measures the rate of this machine's time stamp counter, which is also the guest's under TCG.
//!
//! A guest's kernel measures the rate at boot, against a timer that QEMU emulates. On busy processors the timer's
//! thread and the guest's run at different times. Now and then the kernel measures a fortieth of the rate, keeps it,
//! and its clock runs forty times too fast. So the host passes the rate on (`tsc_early_khz=`, arch/x86/kernel/tsc.c),
//! and the kernel only refines it.

use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// How long the counter is measured at first, and how long if it could not be read quickly enough.
const SPANS: [Duration; 2] = [Duration::from_millis(2), Duration::from_millis(40)];

/// A reading must not take longer than this fraction of the span.
const PRECISION: u32 = 500;

/// Kilohertz, rounded to the nearest thousand. `None` if the counter does not exist, or if the error may exceed 0.5%.
/// Measured once, in some milliseconds.
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

/// Kilohertz, in whole thousands.
fn rate(ticks: u64, time: Duration) -> Option<u32> {
    let kilohertz = u128::from(ticks) * 1_000_000 / time.as_nanos().max(1);
    let rounded = (kilohertz + 500) / 1000 * 1000;
    u32::try_from(rounded).ok().filter(|rate| *rate > 0)
}

/// The counter's value at a time.
struct Reading {
    ticks: u64,
    at: Instant,
}

impl Reading {
    /// A reading whose time is known precisely enough for the span.
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
    // SAFETY: every x86-64 processor has the instruction. A process that may not use it could not read a clock either.
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

    /// Two measurements differ by less than a kernel considers possible.
    #[test]
    fn the_counter_is_measured_the_same_twice() {
        let (Some(one), Some(other)) = (measure(SPANS[1]), measure(SPANS[1])) else { return };
        assert!(one.abs_diff(other) < one / 100, "{one} and {other} kHz");
    }
}
