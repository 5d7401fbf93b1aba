//! The parameters of a guest's kernel.

use super::Machine;
use crate::accel::Accel;
use crate::arch::Arch;
use crate::counter;
use crate::kernel::Entry;

/// Makes the kernel print emergencies only.
pub(crate) const QUIET: &str = "quiet";

/// Kernel parameters for every machine. None changes what a program may do. The times are from a boot of 1.3 s under
/// TCG.
const PARAMETERS: [&str; 9] = [
    QUIET,
    // A panic ends the machine (QEMU has -no-reboot) instead of leaving it to hang.
    "panic=-1",
    // No self-tests of the kernel's cryptography; the second parameter runs in spite of the first (15 ms).
    "cryptomgr.notests",
    "initcall_blacklist=crypto_kdf108_init",
    // RDRAND fills the entropy pool at once; nothing waits for it.
    "random.trust_cpu=on",
    // The guest needs no protection from itself: no mitigations of processor bugs, no audit trail.
    "mitigations=off",
    "audit=0",
    // A grace period then costs an interrupt to each processor instead of some ticks: faster mounts and module loads.
    "rcupdate.rcu_expedited=1",
    // From 4 GiB on the kernel clears 64 MiB of bounce buffers for devices that cannot reach all memory (135 ms);
    // virtio devices can.
    "swiotlb=noforce",
];

/// Additional parameters for x86-64.
const X86_PARAMETERS: [&str; 5] = [
    // A failed boot is explained from this output; `quiet` does not suppress emergencies such as a panic.
    "console=ttyS0",
    // All devices are on the first PCI bus; do not probe the other 255.
    "pci=lastbus=0",
    // There is no keyboard or mouse; do not wait for their controller.
    "i8042.noaux",
    "i8042.nokbd",
    // One serial line, not four to probe.
    "8250.nr_uarts=1",
];

/// Additional parameters for RISC-V.
const RISCV_PARAMETERS: [&str; 2] = ["console=ttyS0", "8250.nr_uarts=1"];

/// Additional parameters for ARM. A kernel that does not move itself need not be relocated, and one whose pages need
/// not be read-only is mapped by large pages: together this saves a third of a boot under TCG.
const ARM_PARAMETERS: [&str; 3] = ["console=ttyAMA0", "nokaslr", "rodata=off"];

/// For a processor that is not translated: the kernel clears pages when a program gets them, and not also when it
/// allocates them itself.
const NOT_CLEARED: &str = "init_on_alloc=0";

/// A kernel parameter that a guest of translated processors (TCG) needs: the kernel clears each page when it allocates it.
///
/// The servers of disks and shares write into the guest's memory from other processes. QEMU does not see these writes, so it keeps the
/// translation of a program that the page held before (`tb_invalidate_phys_range` of `accel/tcg` runs for writes of its
/// own processors and devices only). The program that the page holds now would run with parts of the other: it crashes, or
/// computes something else. When a processor clears the page, QEMU drops the translation. *Measured*: 0.02 of a boot,
/// nothing of a build, 0.05 to 0.12 of a large file's first reading.
pub const CLEARED_PAGES: &str = "init_on_alloc=1";

/// Additional parameters for x86-64 under TCG.
const TCG_PARAMETERS: [&str; 4] = [
    // The counter is the host's: the kernel's watchdogs for it and for timer interrupts would only see delays.
    "tsc=reliable",
    "no_timer_check",
    // Splitting the kernel's mapping for read-only pages and walking it for a check takes 100 ms when translated.
    "rodata=off",
    // Lock prefixes cost nothing under TCG. Patching them out of a kernel that boots with one processor costs 0.05 to
    // 0.1 s, and so does patching them in again.
    "noreplace-smp",
];

/// Boots with one processor; the agent starts the others (`agent/processors.c`).
///
/// Some guests of two processors hung at boot under QEMU 7.2, about one of 150 on a busy machine. Both processors were
/// at the first instruction of a function that the kernel patches at that time, with interrupts off. A likely cause,
/// not proven: the kernel first writes a breakpoint and later the final bytes (`arch/x86/kernel/alternative.c`,
/// `text_poke_bp_batch`), and QEMU translates code before it write-protects the page. A processor that translates the
/// breakpoint while another one writes the final bytes keeps that translation, and takes a breakpoint for ever that is
/// no longer there. While one processor runs, no other one translates. The cost is within the noise (1.01 of a boot, by
/// 14 pairs).
///
/// The last word keeps the kernel from patching `native_send_call_func_ipi` when the last processor has started
/// (`arch/x86/kernel/apic/ipi.c`, `apic_smt_update`), at the same time as modules are loaded, which sends such
/// interrupts. With it, a debugger sees no patch (`text_poke_bp_batch`) while more than one processor runs, from the
/// boot to the command's end; with a network there is one, in `netdev_pick_tx`, before anything is sent. It costs one
/// interrupt for each processor, instead of one broadcast.
///
/// The agent loads the PCI transport's driver before it starts them. This driver maps the registers of all devices, and QEMU before
/// 8.2 loses writes to a processor's interrupt controller while another processor changes the map: the new map is in force at once, but
/// each processor finds a register by its place in the old one until its TLB is flushed (`system/physmem.c`, `tcg_commit`).
/// A lost acknowledgement keeps all later interrupts of timers and devices away, and the guest hangs: about one of 600 did, on
/// a busy machine. *Measured*: while one processor maps and unmaps a device in a loop, another one with a timer of 20
/// microseconds hangs after 90,000 changes.
///
/// The kernel does not know INARCH_START_PROCESSORS and passes it to the agent as an environment variable. A user's own
/// `maxcpus=` takes precedence; then the agent starts no processors.
///
/// Guests of other architectures do the same, without the last word: a 64-bit ARM kernel takes two thirds of the work to boot.
const ONE_AT_BOOT: [&str; 3] = ["maxcpus=1", "INARCH_START_PROCESSORS=1", "no_ipi_broadcast=1"];

/// The kernel's command line.
pub(super) fn parameters(machine: &Machine) -> String {
    let arch = machine.kernel.arch;
    let is_tcg = machine.accel == Accel::Tcg;
    let is_x86_tcg = is_tcg && arch == Arch::X86_64;
    let rate = is_x86_tcg.then(counter::kilohertz).flatten();
    let rate = rate.map(|rate| format!("tsc_early_khz={rate}"));
    let mut words = match arch {
        Arch::X86_64 => X86_PARAMETERS.to_vec(),
        Arch::Riscv64 => RISCV_PARAMETERS.to_vec(),
        Arch::Aarch64 => ARM_PARAMETERS.to_vec(),
    };
    words.extend(PARAMETERS);
    words.push(if is_tcg { CLEARED_PAGES } else { NOT_CLEARED });
    words.retain(|word| !(machine.verbose && *word == QUIET));
    if machine.kernel.entry == Entry::BzImage {
        // Avoids a relocation by the bzImage's own loader. A vmlinux is never relocated, and would pass the word to
        // init.
        words.push("nokaslr");
    }
    if is_x86_tcg {
        words.extend(TCG_PARAMETERS);
        words.extend(rate.as_deref());
    }
    let is_limited = machine.parameters.iter().any(|word| word.starts_with("maxcpus="));
    if is_tcg && machine.cpus > 1 && !is_limited {
        words.extend(&ONE_AT_BOOT[..if arch == Arch::X86_64 { ONE_AT_BOOT.len() } else { 2 }]);
    }
    words.extend(machine.parameters.iter().map(String::as_str));
    words.join(" ")
}
