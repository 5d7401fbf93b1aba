//! Measures the phases of a run.

use std::cell::Cell;
use std::time::{Duration, Instant};

use inarch_vm::session::{Ended, Started};

use super::report::{Moments, Phases};

/// Notes the moments between a run's phases.
pub(super) struct Clock {
    began: Instant,
    machine: Cell<Option<Instant>>,
    spoke: Cell<Option<Instant>>,
    machine_cpu: Cell<Option<Duration>>,
    stopped: Option<Instant>,
}

impl Clock {
    /// Of a run that began then.
    pub fn from(began: Instant) -> Clock {
        Clock { began, machine: Cell::new(None), spoke: Cell::new(None), machine_cpu: Cell::new(None), stopped: None }
    }

    /// A machine is about to be started. The last one counts.
    pub fn machine_starts(&self) {
        self.machine.set(Some(Instant::now()));
    }

    /// The guest has spoken.
    pub fn guest_spoke(&self) {
        self.spoke.set(Some(Instant::now()));
    }

    /// The machine's process took this time of the processors until the session's end. The last machine counts.
    pub fn machine_took(&self, cpu: Option<Duration>) {
        self.machine_cpu.set(cpu);
    }

    /// What the machine's process took, in seconds.
    pub fn machine_cpu(&self) -> Option<f64> {
        self.machine_cpu.get().as_ref().map(Duration::as_secs_f64)
    }

    /// The machine has ended.
    pub fn stop(&mut self) {
        self.stopped = Some(Instant::now());
    }

    /// The phases until now.
    pub fn phases(&self) -> Phases {
        let stopped = self.stopped.unwrap_or_else(Instant::now);
        let spoke = self.spoke.get().unwrap_or(stopped);
        Phases {
            boot: (spoke - self.began).as_secs_f64(),
            command: (stopped - spoke).as_secs_f64(),
            total: self.began.elapsed().as_secs_f64(),
        }
    }

    /// When each part of a run began, if its command ended. The guest reports its own times, so they are cut to what this machine saw.
    pub fn moments(&self, started: &Started, ended: &Ended) -> Option<Moments> {
        let since = |moment: Instant| moment.saturating_duration_since(self.began);
        let (machine, stopped) = (since(self.machine.get()?), since(self.stopped?));
        let command = since(started.at).max(machine);
        let kernel = command.saturating_sub(started.command).max(machine);
        let agent = kernel.saturating_add(started.agent.min(started.command)).min(command);
        let end = since(ended.at).max(command);
        let [machine, kernel, agent, command, end] = [machine, kernel, agent, command, end].map(|at| at.as_secs_f64());
        Some(Moments { machine, kernel, agent, command, end, machine_ended: stopped.as_secs_f64().max(end) })
    }
}

#[cfg(test)]
mod tests {
    use inarch_vm::protocol::CpuTime;

    use super::*;

    #[test]
    fn what_a_guest_says_of_its_times_stays_within_the_run() {
        let began = Instant::now();
        let at = |seconds| began + Duration::from_secs(seconds);
        let mut clock = Clock::from(began);
        clock.machine.set(Some(at(1)));
        clock.stopped = Some(at(10));
        let ended = Ended { at: at(9), cpu: CpuTime::default() };
        let said = |agent, command| {
            let started =
                Started { agent: Duration::from_micros(agent), command: Duration::from_micros(command), at: at(5) };
            let Moments { kernel, agent, command, .. } = clock.moments(&started, &ended).unwrap();
            [kernel, agent, command]
        };
        assert_eq!(said(2_000_000, 3_000_000), [2.0, 4.0, 5.0]);
        assert_eq!(said(u64::MAX, u64::MAX), [1.0, 5.0, 5.0]);
        assert_eq!(said(9_000_000, 3_000_000), [2.0, 5.0, 5.0]);
    }
}
