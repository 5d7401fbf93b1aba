//! The machine that a comparison was made on, as far as it matters to readers of the figures.

use std::fs;
use std::thread;
use std::time::Instant;

use rustix::param::clock_ticks_per_second;
use serde::Serialize;

/// The machine, and how busy it was.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Machine {
    /// The processor's name, as /proc/cpuinfo has it.
    pub processor: Option<String>,
    /// Processors that this process may use.
    pub processors: usize,
    /// Bytes of memory.
    pub memory: Option<u64>,
    /// The kernel's release.
    pub kernel: String,
    /// How the processor's clock is chosen (cpufreq's governor), where it can be.
    pub governor: Option<String>,
    /// How the guests' instructions ran: kvm, tcg, or uml (in a process). Nothing without guests.
    pub accel: Option<String>,
    /// The first processor's clock before the first run, in MHz, where the kernel tells it.
    pub clock: Option<f64>,
    /// The same after the last one.
    pub clock_after: Option<f64>,
    /// How many processors other programs used from the first run to the last, on average; the kernel's own threads count among them.
    pub others: Option<f64>,
    /// How many processors the hypervisor gave to others meanwhile (steal time), on average.
    pub stolen: Option<f64>,
    /// The load average over a minute before the first run.
    pub load_before: f64,
    /// The same after the last one, in which the guests count.
    pub load_after: f64,
    /// What makes the figures doubtful.
    pub warnings: Vec<String>,
    /// What had been used before the first run.
    #[serde(skip)]
    spent: Option<Spent>,
}

/// Processor time since the start, in seconds.
#[derive(Clone, Copy, Debug)]
struct Spent {
    at: Instant,
    /// Of all programs and the kernel.
    all: f64,
    /// Of this process, and of its children that have ended.
    own: f64,
    stolen: f64,
}

impl Spent {
    /// By proc_stat(5) and proc_pid_stat(5).
    fn now() -> Option<Spent> {
        let ticks = |field: Option<&str>| Some(field?.parse::<f64>().ok()? / clock_ticks_per_second() as f64);
        let text = fs::read_to_string("/proc/stat").ok()?;
        let mut fields = text.lines().next()?.strip_prefix("cpu ")?.split_ascii_whitespace();
        let mut next = || ticks(fields.next());
        let [user, nice, system, _idle, _waiting] = [next()?, next()?, next()?, next()?, next()?];
        let [interrupts, deferred, stolen] = [next()?, next()?, next()?];
        let text = fs::read_to_string("/proc/self/stat").ok()?;
        // The name, in parentheses, may contain anything.
        let fields = text.rsplit_once(')')?.1.split_ascii_whitespace().skip(11).take(4);
        let own = fields.map(|field| ticks(Some(field))).sum::<Option<f64>>()?;
        Some(Spent { at: Instant::now(), all: user + nice + system + interrupts + deferred, own, stolen })
    }
}

impl Machine {
    /// This machine now.
    pub(super) fn look() -> Machine {
        let processors = thread::available_parallelism().map_or(1, usize::from);
        let load_before = load();
        let mut warnings = Vec::new();
        if load_before > processors as f64 / 4.0 {
            warnings.push(format!("this machine was busy before the first run: its load average was {load_before:.2}"));
        }
        let governor = governor();
        if governor.as_deref().is_some_and(|governor| governor != "performance") {
            warnings.push(format!(
                "the processor's clock changes with its load (governor {}); 'performance' gives steadier figures",
                governor.as_deref().unwrap_or_default()
            ));
        }
        Machine {
            processor: field("/proc/cpuinfo", "model name"),
            processors,
            memory: field("/proc/meminfo", "MemTotal").and_then(|text| kibibytes(&text)),
            kernel: rustix::system::uname().release().to_string_lossy().into_owned(),
            governor,
            load_before,
            warnings,
            clock: clock(),
            spent: Spent::now(),
            ..Machine::default()
        }
    }

    /// The rest, after the last run.
    pub(super) fn look_again(&mut self, accel: Option<String>) {
        (self.load_after, self.clock_after, self.accel) = (load(), clock(), accel);
        if governor() != self.governor {
            self.warnings.push("the processor's governor was changed meanwhile".to_owned());
        }
        if let Some((before, after)) = self.clock.zip(self.clock_after)
            && (after / before - 1.0).abs() > 0.05
        {
            self.warnings
                .push(format!("the processor's clock was {before:.0} MHz at first, and {after:.0} MHz at the end"));
        }
        let Some((before, now)) = self.spent.zip(Spent::now()) else { return };
        let per_second = |used: f64| (used / (now.at - before.at).as_secs_f64().max(0.001)).max(0.0);
        let others = per_second((now.all - before.all) - (now.own - before.own));
        let stolen = per_second(now.stolen - before.stolen);
        (self.others, self.stolen) = (Some(others), Some(stolen));
        let much = self.processors as f64 / 8.0;
        for (used, who) in [(others, "other programs and the kernel used"), (stolen, "the hypervisor gave others")] {
            if used > much {
                self.warnings.push(format!("{who} {used:.1} of {} processors meanwhile", self.processors));
            }
        }
    }
}

/// What follows `name` and a colon in a file of /proc.
fn field(path: &str, name: &str) -> Option<String> {
    let text = fs::read_to_string(path).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.trim_start().strip_prefix(':'))?;
    Some(line.trim().to_owned())
}

/// The bytes of a number with the unit `kB`.
fn kibibytes(text: &str) -> Option<u64> {
    text.strip_suffix(" kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}

fn load() -> f64 {
    let text = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ').next().and_then(|load| load.parse().ok()).unwrap_or_default()
}

/// The first processor's clock now, in MHz.
fn clock() -> Option<f64> {
    field("/proc/cpuinfo", "cpu MHz")?.parse().ok()
}

fn governor() -> Option<String> {
    let text = fs::read_to_string("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor").ok()?;
    Some(text.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn what_others_use_is_told_apart() {
        let machine = |(all, own, stolen)| {
            let now = Spent::now().unwrap();
            let before = Spent { at: now.at - Duration::from_secs(10), all: now.all - all, own: now.own - own, stolen };
            let mut machine = Machine { processors: 4, spent: Some(before), ..Machine::default() };
            machine.look_again(None);
            machine
        };
        let busy = machine((30.0, 10.0, 0.0));
        assert!(busy.others.unwrap() > 1.5, "{busy:?}");
        assert!(busy.warnings.iter().any(|line| line.starts_with("other programs and the kernel used")), "{busy:?}");
        // What this process used itself is not that of others.
        assert!(machine((10.0, 10.0, 0.0)).others.unwrap() < busy.others.unwrap() - 1.0);
    }

    #[test]
    fn this_machine_has_a_kernel_and_memory() {
        let machine = Machine::look();
        assert!(machine.memory.unwrap() > 1 << 20 && machine.processors > 0 && !machine.kernel.is_empty());
        assert_eq!(
            (kibibytes("12 kB"), kibibytes("12 MB"), kibibytes("99999999999999999999 kB")),
            (Some(12288), None, None)
        );
    }
}
