//! Boots a guest, under QEMU with KVM or without, and records for the next run whether KVM works.

use std::sync::Arc;
use std::sync::mpsc::Receiver;
use std::time::Duration;

use inarch_vm::accel::{self, Accel, Decision, Subject, Verdict};
use inarch_vm::process::GuestFailure;
use inarch_vm::protocol::SessionRequest;
use inarch_vm::qemu::Qemu;
use inarch_vm::session::Report;

use super::attempt::{Attempt, Guest};
use super::clock::Clock;
use super::failure::DiskFailure;
use super::holding::Holding;
use super::launch::Launch;
use super::live_disk::LiveDisk;
use super::observed::Observed;
use super::session::{self, Limits};
use super::{FirstStart, RunError, RunEvent};
use super::{Job, command, guest};
use crate::JobError;

/// How long a guest may be silent if it is unknown whether KVM works. If it works, a guest speaks within a second.
const KVM_PATIENCE: Duration = Duration::from_secs(8);

/// A guest under TCG that is silent for 1/this of its time is started once more. Rarely a guest hangs while its kernel boots, or what such
/// a kernel writes crashes QEMU. A test driver or build that started the run would take that for a failure. The command has not run at that
/// point.
const PART_OF_FIRST_START: u32 = 2;

impl Job<'_> {
    pub(super) fn decide(&self, guest: &Guest, qemu: &Qemu) -> Result<Decision, JobError> {
        Ok(accel::decide(self.request.accel, self.request.arch, &guest::verdicts(), subject(guest, qemu))?)
    }

    /// Boots with the requested accelerator, or with one that works.
    pub(super) fn boot(
        &self,
        guest: &Guest,
        disks: &[LiveDisk],
        failure: &Arc<DiskFailure>,
        launch: &Receiver<Launch>,
        clock: &Clock,
        observed: Option<&Observed>,
    ) -> Result<Report, JobError> {
        let (request, events) = (self.request, failure.events());
        let session = command::session(request, &self.trees, &request.streams, self.open_files);
        let session = SessionRequest { observe: observed.is_some(), ..session };
        // A tree that takes long to scan or unpack delays the start as long, so the start is limited only if the user
        // limits the command.
        let start = request.timeout.map(|timeout| timeout.max(request.boot_timeout));
        let limits = Limits { start, command: request.timeout };
        let attempt = |accel: Option<Accel>, patience, fall_back: Option<&str>| {
            let streams = request.streams.try_clone().map_err(JobError::Streams)?;
            let hold = |live| {
                clock.guest_spoke();
                // A machine that does not boot for another reason has another error to report.
                events.emit(match accel {
                    Some(accel) => RunEvent::Acceleration { accel, fall_back: fall_back.map(str::to_owned) },
                    None => RunEvent::Uml,
                });
                let _holding =
                    Holding::begin(disks.iter().filter_map(LiveDisk::held_part).collect(), &request.overlay_dir);
                let (launch, limits) = limits.wait_for(launch)?;
                let processes = |happened| {
                    if let Some(observed) = observed {
                        observed.happened(happened);
                    }
                };
                let session = launch.complete(session.clone());
                session::hold(live, &session, streams, limits, request.signals, events, &processes)
            };
            Ok::<_, JobError>(guest.attempt(accel, disks, failure, patience, clock, hold))
        };
        for port in &request.published {
            let refused = |error| RunError::Port { port: port.host, error };
            port.check().map_err(refused)?;
        }
        let Some(qemu) = guest.qemu() else { return attempt(None, request.boot_timeout, None)?.result };
        // If the verdict cannot be stored, the next run only tests again. The user's own arguments may also be the
        // cause.
        let is_usual = request.kernel_parameters.is_empty() && request.qemu_arguments.is_empty();
        let remember = |verdict| {
            if is_usual {
                drop(guest::verdicts().remember(subject(guest, qemu), verdict));
            }
        };
        let (mut suspect, mut fall_back) = (None, None);
        let accel = match self.decide(guest, qemu)? {
            Decision::Use(accel) => accel,
            Decision::FallBack(reason) => {
                fall_back = Some(reason);
                Accel::Tcg
            }
            Decision::TryKvm => {
                let tried = attempt(Some(Accel::Kvm), KVM_PATIENCE, None)?;
                if tried.greeted {
                    remember(Verdict::Works);
                    return tried.result;
                }
                let Some(reason) = kvm_failure(&tried.result) else {
                    return tried.result;
                };
                fall_back = Some(reason.clone());
                suspect = Some(reason);
                Accel::Tcg
            }
        };
        let start = |patience| attempt(Some(accel), patience, fall_back.as_deref());
        let tried = match accel {
            Accel::Tcg => {
                let tried = start(request.boot_timeout / PART_OF_FIRST_START)?;
                match passing_failure(&tried) {
                    Some(reason) => {
                        events.emit(RunEvent::StartedAgain(reason));
                        start(request.boot_timeout)?
                    }
                    None => tried,
                }
            }
            Accel::Kvm => start(request.boot_timeout)?,
        };
        // Only if the same machine boots without KVM is KVM the cause.
        if let (true, Some(reason)) = (tried.greeted, suspect) {
            remember(Verdict::Broken(reason));
        }
        if let (false, Accel::Kvm, Some(reason)) = (tried.greeted, accel, kvm_failure(&tried.result)) {
            remember(Verdict::Broken(reason));
        }
        // QEMU's version is checked only after a failure, because asking takes as long as starting QEMU.
        if let (false, Err(JobError::Guest(GuestFailure::Qemu { .. } | GuestFailure::PoweredOff { .. }))) =
            (tried.greeted, &tried.result)
        {
            qemu.version()?;
        }
        tried.result
    }
}

fn subject<'a>(guest: &'a Guest, qemu: &'a Qemu) -> Subject<'a> {
    Subject { qemu: qemu.path(), kernel: &guest.kernel.release }
}

/// How a guest under TCG failed before it spoke, if the next one will most likely not.
fn passing_failure(tried: &Attempt) -> Option<FirstStart> {
    match tried {
        Attempt { greeted: false, result: Err(JobError::Guest(GuestFailure::Silent { waited, .. })) } => {
            Some(FirstStart::Silent(*waited))
        }
        Attempt { greeted: false, result: Err(JobError::Guest(failure)) } => {
            failure.crash().map(|signal| FirstStart::Crashed { signal })
        }
        _ => None,
    }
}

/// Why a silent guest makes KVM a suspect; `None` if something else ended it.
fn kvm_failure(result: &Result<Report, JobError>) -> Option<String> {
    match result {
        Err(JobError::Guest(GuestFailure::Silent { .. })) => {
            Some("/dev/kvm opens, but no guest comes up under it".into())
        }
        // The text of a failed assertion is for QEMU's developers.
        Err(JobError::Guest(GuestFailure::Qemu { message, .. })) if message.contains("Assertion `") => Some(
            "QEMU fails under this KVM, which lacks something that QEMU needs (as inside some virtual machines)".into(),
        ),
        Err(JobError::Guest(GuestFailure::Qemu { message, .. })) => Some(format!("QEMU cannot use KVM ({message})")),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failed_assertion_of_qemu_is_told_in_other_words() {
        let failure = |message: &str| {
            let (status, message) = ("killed by signal 6".to_owned(), message.to_owned());
            kvm_failure(&Err(JobError::Guest(GuestFailure::Qemu { status, message, tail: Vec::new() }))).unwrap()
        };
        let told = failure("qemu: ../target/i386/kvm/kvm.c:3079: kvm_buf_set_msrs: Assertion `ret == 5' failed.");
        assert!(told.contains("KVM") && !told.contains("kvm.c") && !told.contains("Assertion"), "{told}");
        assert_eq!(failure("Permission denied"), "QEMU cannot use KVM (Permission denied)");
    }
}
