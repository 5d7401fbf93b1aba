//! [`Timeline`]: what took how long in an appliance, by the host's clock.

use std::time::{Duration, Instant};

pub use crate::run::Step;

/// What took how long.
#[derive(Clone, Debug)]
pub struct Timeline {
    start: Instant,
    last: Instant,
    steps: Vec<Step>,
}

impl Timeline {
    pub(super) fn begin() -> Timeline {
        let start = Instant::now();
        Timeline { start, last: start, steps: Vec::new() }
    }

    /// The steps, in order.
    pub fn steps(&self) -> &[Step] {
        &self.steps
    }

    /// From the start to the end of the last step.
    pub fn total(&self) -> Duration {
        self.last.saturating_duration_since(self.start)
    }

    fn add(&mut self, what: &str, in_guest: bool, began: Instant, ended: Instant) {
        let (began, took) = (began.saturating_duration_since(self.start), ended.saturating_duration_since(began));
        self.steps.push(Step { what: what.to_owned(), in_guest, began, took });
    }

    /// The host did this since the last step.
    pub(super) fn host(&mut self, what: &str) {
        let now = Instant::now();
        self.add(what, false, self.last, now);
        self.last = now;
    }

    /// The machine started: its agent spoke at `greeted`, and this program began `since_boot` microseconds after the
    /// guest's kernel.
    pub(super) fn boot(&mut self, program: &str, greeted: Option<Instant>, since_boot: u64) {
        let now = Instant::now();
        let kernel = now.checked_sub(Duration::from_micros(since_boot)).unwrap_or(self.last).max(self.last);
        let greeted = greeted.unwrap_or(now).max(kernel);
        self.add(&format!("start {program}"), false, self.last, kernel);
        self.add("start the kernel", true, kernel, greeted);
        self.add("mount the root, start the program", true, greeted, now);
        self.last = now;
    }

    /// The guest did these in this order, each with its microseconds. The host waited from `began`.
    pub(super) fn guest(&mut self, began: Instant, steps: &[(String, u64)]) {
        let now = Instant::now();
        let mut at = began;
        for (what, micros) in steps.iter().take(100) {
            let end = at.checked_add(Duration::from_micros(*micros)).unwrap_or(now).min(now);
            let what: String = what.chars().filter(|c| !c.is_control()).take(100).collect();
            self.add(&what, true, at, end);
            at = end;
        }
        self.last = now;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guest_that_lies_about_time_stays_within_it() {
        let mut timeline = Timeline::begin();
        timeline.host("look");
        timeline.boot("QEMU", None, u64::MAX);
        timeline.guest(Instant::now(), &[("mount\n".to_owned(), u64::MAX), ("again".to_owned(), 1)]);
        let total = timeline.total();
        assert!(timeline.steps().iter().all(|step| step.began + step.took <= total + Duration::from_secs(1)));
        assert_eq!(timeline.steps()[4].what, "mount");
    }
}
