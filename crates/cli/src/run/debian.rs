//! Builds or fetches what `debian:SUITE` names in the options of a run, and replaces the option by the path. Also fetches the kernel and the firmware
//! of a guest of another architecture.

use std::io::IsTerminal;
use std::path::PathBuf;

use inarch_jobs::debian::{self, Debian, DebianError, DebianEvent, firmware, kernel, root};
use inarch_jobs::run::Vmm;
use inarch_jobs::{Events, shown};
use inarch_vm::Arch;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::arguments::RunArguments;
use crate::output::complain;

/// Makes what `--root debian:SUITE` and `--kernel debian:SUITE` name, and the kernel of another architecture if none is named;
/// then the options name files. A RISC-V guest's firmware is made, too. With `--dry-run` nothing is made, and what is missing is an error.
pub fn prepare(arguments: &mut RunArguments) -> anyhow::Result<()> {
    let arch = arguments.machine.arch;
    let is_quiet = arguments.quiet;
    let bar = bar(is_quiet);
    let shown_bar = bar.clone();
    let events = Events::new(move |event| match event {
        DebianEvent::Configured { done, packages } => {
            shown_bar.set_length(packages as u64);
            shown_bar.set_position(done as u64);
        }
        event if !is_quiet => complain(event),
        _ => {}
    });
    let named =
        |text: Option<&str>| text.and_then(|text| text.strip_prefix("debian:")).map(str::parse::<Debian>).transpose();
    let wanted_root = named(arguments.root.to_str())?;
    let wanted_kernel = named(arguments.machine.kernel.as_deref().and_then(|path| path.to_str()))?;
    let is_foreign = arch != Arch::host() && arguments.root != "host" && arguments.machine.vmm == Vmm::Qemu;
    let usual = || {
        let suite = wanted_root.as_ref().map_or(debian::USUAL_SUITE, |root| &root.suite).to_owned();
        Debian { suite, packages: Vec::new() }
    };
    let wanted_kernel = wanted_kernel.or_else(|| (is_foreign && arguments.machine.kernel.is_none()).then(usual));
    if let Some(wanted) = wanted_kernel {
        let kernel: Result<PathBuf, DebianError> =
            if arguments.dry_run { kernel::cached(&wanted, arch) } else { kernel::fetch(&wanted, arch, &events) };
        arguments.machine.kernel = Some(kernel?);
    }
    if is_foreign {
        let found = if arguments.dry_run { Ok(firmware::cached(arch)) } else { firmware::fetch(arch, &events) };
        // The guest can do with QEMU's own.
        arguments.machine.firmware = found.unwrap_or_else(|error| {
            if !is_quiet {
                complain(format_args!(
                    "{error}. With the firmware of this QEMU, a guest of several processors may hang when it starts"
                ));
            }
            None
        });
    }
    if let Some(wanted) = wanted_root {
        let booting = root::Booting {
            kernel: arguments.machine.kernel.clone(),
            modules: arguments.machine.modules.clone(),
            firmware: arguments.machine.firmware.clone(),
        };
        let path =
            if arguments.dry_run { root::cached(&wanted, arch) } else { root::make(&wanted, arch, booting, &events) };
        bar.finish_and_clear();
        let path = path?;
        if arguments.verbose {
            complain(format_args!("the guest's root is {}", shown(&path)));
        }
        arguments.root = path.into();
    }
    Ok(())
}

/// How far the guest is that configures packages: on a terminal only.
fn bar(is_quiet: bool) -> ProgressBar {
    if is_quiet || !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
    match ProgressStyle::with_template("configuring {wide_bar} {pos} of {len} packages, {elapsed}") {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}
