//! Decides whether a guest runs under KVM or TCG (QEMU's translator), and remembers whether KVM works.
//!
//! That `/dev/kvm` opens proves little: under some hypervisors a machine starts, runs its firmware, and Linux then
//! hangs for ever. KVM counts as working once a guest has spoken; that verdict is remembered until the host restarts.

pub mod probe;

use std::fmt;
use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::arch::Arch;

const DEVICE: &str = "/dev/kvm";
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// What runs the guest's instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Accel {
    /// The host's processor, through KVM.
    Kvm,
    /// QEMU's translator.
    Tcg,
}

/// The user's choice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum AccelChoice {
    /// KVM where it works, else TCG.
    #[default]
    Auto,
    /// KVM, or fail.
    Kvm,
    /// TCG.
    Tcg,
}

impl FromStr for AccelChoice {
    type Err = String;

    fn from_str(text: &str) -> Result<AccelChoice, String> {
        match text {
            "auto" => Ok(AccelChoice::Auto),
            "kvm" => Ok(AccelChoice::Kvm),
            "tcg" => Ok(AccelChoice::Tcg),
            _ => Err(format!("{text}: not one of auto, kvm, tcg")),
        }
    }
}

impl fmt::Display for Accel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Accel::Kvm => "kvm",
            Accel::Tcg => "tcg",
        })
    }
}

/// Why KVM cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("KVM cannot be used: {reason}; use --accel tcg (slower) or auto")]
pub struct NoKvm {
    /// What stands in the way.
    pub reason: String,
}

/// How to start a guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// With this accelerator.
    Use(Accel),
    /// With KVM, although it is not known yet whether a guest boots: set a deadline, report the result to
    /// [`Verdicts::remember`], and fall back to TCG on failure.
    TryKvm,
    /// TCG, because KVM does not work here.
    FallBack(String),
}

/// Whether guests boot under KVM.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// A guest spoke.
    Works,
    /// None spoke, for this reason.
    Broken(String),
}

/// The verdicts since the host's last start, in a file.
#[derive(Clone, Debug)]
pub struct Verdicts {
    /// None: nothing is remembered.
    file: Option<PathBuf>,
    boot: String,
}

/// What a verdict applies to: another QEMU or guest kernel may behave differently.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Subject<'a> {
    /// The QEMU binary.
    pub qemu: &'a Path,
    /// Release of the guest's kernel.
    pub kernel: &'a str,
}

#[derive(Serialize, Deserialize)]
struct Record {
    boot: String,
    qemu: PathBuf,
    kernel: String,
    verdict: Verdict,
}

impl Record {
    fn is_of(&self, boot: &str, subject: Subject<'_>) -> bool {
        self.boot == boot && self.qemu == subject.qemu && self.kernel == subject.kernel
    }
}

impl Verdicts {
    /// The verdicts in `file`, which need not exist.
    pub fn at(file: &Path) -> Verdicts {
        let boot = fs::read_to_string(BOOT_ID).unwrap_or_default().trim().to_owned();
        Verdicts { file: Some(file.to_owned()), boot }
    }

    /// No verdicts: none is remembered.
    pub fn none() -> Verdicts {
        Verdicts { file: None, boot: String::new() }
    }

    /// The verdict on `subject`, if there is one since the host started.
    pub fn recall(&self, subject: Subject<'_>) -> Option<Verdict> {
        self.records().into_iter().find(|record| record.is_of(&self.boot, subject)).map(|record| record.verdict)
    }

    /// Stores the verdict on `subject`. If two runs do so at once, one verdict may be lost; the next run then tries
    /// again.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn remember(&self, subject: Subject<'_>, verdict: Verdict) -> io::Result<()> {
        let Some(file) = &self.file else { return Ok(()) };
        let mut records = self.records();
        records.retain(|record| record.boot == self.boot && !record.is_of(&self.boot, subject));
        let (qemu, kernel) = (subject.qemu.to_owned(), subject.kernel.to_owned());
        records.push(Record { boot: self.boot.clone(), qemu, kernel, verdict });
        replace(file, &serde_json::to_vec(&records)?)
    }

    /// Whether the user must still be told, once since the host started, that guests run without KVM. If that cannot be
    /// stored, the user is told each time.
    pub fn tell_once(&self) -> bool {
        let Some(file) = self.file.as_ref().map(|file| file.with_extension("told")) else { return true };
        let is_told = !self.boot.is_empty() && fs::read_to_string(&file).is_ok_and(|boot| boot == self.boot);
        if !is_told {
            let _ = replace(&file, self.boot.as_bytes());
        }
        !is_told
    }

    fn records(&self) -> Vec<Record> {
        let text = self.file.as_ref().and_then(|file| fs::read(file).ok()).unwrap_or_default();
        serde_json::from_slice(&text).unwrap_or_default()
    }
}

fn replace(target: &Path, content: &[u8]) -> io::Result<()> {
    let directory = target.parent().unwrap_or(Path::new("."));
    // Whatever the umask is.
    DirBuilder::new().recursive(true).mode(0o755).create(directory)?;
    let mut file = tempfile::NamedTempFile::new_in(directory)?;
    file.write_all(content)?;
    file.persist(target)?;
    Ok(())
}

/// Chooses the accelerator from the user's choice, the device, and the verdicts of earlier runs. Guests of another architecture
/// are translated.
///
/// # Errors
/// KVM was asked for, and its device cannot be opened, or it is not for `arch`.
pub fn decide(choice: AccelChoice, arch: Arch, verdicts: &Verdicts, subject: Subject<'_>) -> Result<Decision, NoKvm> {
    match (choice, arch == Arch::host()) {
        (_, true) => {}
        (AccelChoice::Auto | AccelChoice::Tcg, false) => return Ok(Decision::Use(Accel::Tcg)),
        (AccelChoice::Kvm, false) => {
            let reason = format!("this machine is {}, the guest's {arch}", Arch::host());
            return Err(NoKvm { reason });
        }
    }
    decide_for(choice, usable(Path::new(DEVICE)), || verdicts.recall(subject))
}

fn decide_for(
    choice: AccelChoice,
    device: Result<(), String>,
    recall: impl FnOnce() -> Option<Verdict>,
) -> Result<Decision, NoKvm> {
    match (choice, device) {
        (AccelChoice::Tcg, _) => Ok(Decision::Use(Accel::Tcg)),
        (AccelChoice::Kvm, Ok(())) => Ok(Decision::Use(Accel::Kvm)),
        (AccelChoice::Kvm, Err(reason)) => Err(NoKvm { reason }),
        (AccelChoice::Auto, Err(reason)) => Ok(Decision::FallBack(reason)),
        (AccelChoice::Auto, Ok(())) => Ok(match recall() {
            None => Decision::TryKvm,
            Some(Verdict::Works) => Decision::Use(Accel::Kvm),
            Some(Verdict::Broken(reason)) => Decision::FallBack(reason),
        }),
    }
}

/// Checks that this user may open the device `path`; returns the reason if not.
fn usable(path: &Path) -> Result<(), String> {
    match OpenOptions::new().read(true).write(true).open(path) {
        Ok(_) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Err(format!("there is no {}", path.display())),
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            Err(format!("no permission for {} (is this user in the group kvm?)", path.display()))
        }
        Err(error) => Err(format!("{}: {error}", path.display())),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn subject() -> Subject<'static> {
        Subject { qemu: Path::new("/usr/bin/qemu"), kernel: "6.1.0" }
    }

    #[test]
    fn verdict_is_kept_for_its_subject_only() {
        let directory = tempfile::tempdir().unwrap();
        let verdicts = Verdicts::at(&directory.path().join("deeper/kvm-verdict"));
        assert_eq!(verdicts.recall(subject()), None);
        verdicts.remember(subject(), Verdict::Broken("silent".into())).unwrap();
        let other = Subject { kernel: "6.12", ..subject() };
        verdicts.remember(other, Verdict::Works).unwrap();
        assert_eq!(verdicts.recall(subject()), Some(Verdict::Broken("silent".into())));
        assert_eq!(verdicts.recall(other), Some(Verdict::Works));
        verdicts.remember(subject(), Verdict::Works).unwrap();
        assert_eq!(verdicts.recall(subject()), Some(Verdict::Works));
    }

    #[test]
    fn nothing_outlives_the_boot() {
        let directory = tempfile::tempdir().unwrap();
        let before = Verdicts { file: Some(directory.path().join("deeper/verdicts")), boot: "before".into() };
        before.remember(subject(), Verdict::Works).unwrap();
        assert_eq!([before.tell_once(), before.tell_once()], [true, false]);
        assert_eq!(before.recall(subject()), Some(Verdict::Works));
        let after = Verdicts { boot: "after".into(), ..before };
        assert_eq!(after.recall(subject()), None);
        assert_eq!([after.tell_once(), after.tell_once()], [true, false]);
    }

    #[test]
    fn what_cannot_be_kept_is_told_each_time() {
        let verdicts = Verdicts { file: Some("/dev/null/verdicts".into()), boot: "now".into() };
        assert_eq!([verdicts.tell_once(), verdicts.tell_once()], [true, true]);
        Verdicts::none().remember(subject(), Verdict::Works).unwrap();
        assert_eq!((Verdicts::none().tell_once(), Verdicts::none().recall(subject())), (true, None));
    }

    #[test]
    fn damaged_file_is_no_verdict() {
        let file = tempfile::NamedTempFile::new().unwrap();
        fs::write(file.path(), b"[{]").unwrap();
        assert_eq!(Verdicts::at(file.path()).recall(subject()), None);
    }

    #[test]
    fn decisions() {
        let broken = || Some(Verdict::Broken("silent".into()));
        let no = || Err("no device".to_owned());
        assert_eq!(decide_for(AccelChoice::Auto, Ok(()), || None).unwrap(), Decision::TryKvm);
        assert_eq!(decide_for(AccelChoice::Auto, Ok(()), || Some(Verdict::Works)).unwrap(), Decision::Use(Accel::Kvm));
        assert_eq!(decide_for(AccelChoice::Auto, Ok(()), broken).unwrap(), Decision::FallBack("silent".into()));
        assert_eq!(decide_for(AccelChoice::Auto, no(), || None).unwrap(), Decision::FallBack("no device".into()));
        assert_eq!(decide_for(AccelChoice::Tcg, Ok(()), || None).unwrap(), Decision::Use(Accel::Tcg));
        // An explicit choice overrides the verdict.
        assert_eq!(decide_for(AccelChoice::Kvm, Ok(()), broken).unwrap(), Decision::Use(Accel::Kvm));
        assert!(decide_for(AccelChoice::Kvm, no(), || None).unwrap_err().to_string().contains("no device"));
    }
}
