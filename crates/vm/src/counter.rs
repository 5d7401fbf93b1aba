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
    *MEASURED.get_or_init(|| SPANS.into_iter().find_map(|span| measure(span, &mut read, &std::thread::sleep)))
}

/// Measures the rate over a span, by `read`ing the counter and `wait`ing.
fn measure(span: Duration, read: &mut dyn FnMut() -> Option<Reading>, wait: &dyn Fn(Duration)) -> Option<u32> {
    let first = quick(span, read)?;
    wait(span);
    let last = quick(span, read)?;
    rate(last.ticks.checked_sub(first.ticks)?, last.at.checked_duration_since(first.at)?)
}

/// Kilohertz, in whole thousands.
fn rate(ticks: u64, time: Duration) -> Option<u32> {
    let kilohertz = u128::from(ticks) * 1_000_000 / time.as_nanos().max(1);
    let rounded = (kilohertz + 500) / 1000 * 1000;
    u32::try_from(rounded).ok().filter(|rate| *rate > 0)
}

/// What the counter said.
#[derive(Clone, Copy)]
struct Reading {
    ticks: u64,
    /// Just before.
    at: Instant,
    /// How long the reading took.
    took: Duration,
}

fn read() -> Option<Reading> {
    let at = Instant::now();
    let ticks = ticks()?;
    Some(Reading { ticks, at, took: at.elapsed() })
}

/// A reading that is fast enough for a span.
fn quick(span: Duration, read: &mut dyn FnMut() -> Option<Reading>) -> Option<Reading> {
    const ATTEMPTS: u32 = 20;
    (0..ATTEMPTS).find_map(|_| read().filter(|reading| reading.took < span / PRECISION))
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

    /// Measures on a machine that interrupts `interrupted` readings in a row, between counter and clock, and then lets one pass.
    fn measured(interrupted: usize, span: Duration, ticks: impl Fn(Duration) -> u64) -> Option<u32> {
        let begin = Instant::now();
        let now = std::cell::Cell::new(Duration::from_secs(5));
        let pass = |time: Duration| now.set(now.get() + time);
        let mut number = 0;
        let mut read = || {
            number += 1;
            let took = if number % (interrupted + 1) == 0 { span / 1000 } else { span / 4 };
            let at = now.get();
            // The worst case: the counter is read at the very end.
            pass(took);
            Some(Reading { ticks: ticks(now.get()), at: begin + at, took })
        };
        measure(span, &mut read, &pass)
    }

    #[test]
    fn the_counter_is_measured_the_same_on_a_busy_machine() {
        let ticks = |time: Duration| (time.as_nanos() * 2596 / 1000) as u64;
        for span in SPANS {
            for interrupted in [0, 1, 7, 19] {
                assert_eq!(measured(interrupted, span, ticks), Some(2_596_000), "{interrupted} in {span:?}");
            }
            assert_eq!(measured(20, span, ticks), None, "no reading is good");
        }
        // One that goes backwards, and one that stands.
        assert_eq!(measured(0, SPANS[0], |time| u64::MAX - time.as_nanos() as u64), None);
        assert_eq!(measured(0, SPANS[0], |_| 7), None);
        assert_eq!(measure(SPANS[0], &mut || None, &|_| ()), None, "a machine without a counter");
    }

    #[test]
    fn this_machines_counter_is_one_or_it_has_none() {
        assert_eq!(read().is_some(), cfg!(target_arch = "x86_64"));
    }
}
