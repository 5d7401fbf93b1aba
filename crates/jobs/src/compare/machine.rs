//! The machine that a comparison was made on, as far as it matters to readers of the figures.

use std::fs;
use std::thread;

use inarch_vm::accel::Accel;
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
    /// How the guests' instructions ran: kvm, tcg; nothing under User-Mode Linux.
    pub accel: Option<String>,
    /// The load average over a minute before the first run.
    pub load_before: f64,
    /// The same after the last one, in which the guests count.
    pub load_after: f64,
    /// What makes the figures doubtful.
    pub warnings: Vec<String>,
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
            ..Machine::default()
        }
    }

    /// The rest, after the last run.
    pub(super) fn look_again(&mut self, accel: Option<Accel>) {
        self.load_after = load();
        self.accel = accel.map(|accel| accel.to_string());
        if governor() != self.governor {
            self.warnings.push("the processor's governor was changed meanwhile".to_owned());
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

fn governor() -> Option<String> {
    let text = fs::read_to_string("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor").ok()?;
    Some(text.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

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
