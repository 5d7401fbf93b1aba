//! Checks what this machine can do for Inarch, and what to do about the rest.

use std::path::{Path, PathBuf};

use inarch_fuse::RingSupport;
use inarch_vm::Arch;
use inarch_vm::accel::{self, AccelChoice, Decision, Subject};
use inarch_vm::agent::agent_of;
use inarch_vm::initramfs::{self, Features, InitramfsError};
use inarch_vm::kernel::Kernel;
use inarch_vm::qemu::Qemu;
use inarch_vm::uml::{self, UmlError};
use rustix::fs::{Access, MemfdFlags};
use serde::Serialize;

use crate::debian::{self, Cached, Debian};
use crate::run::{RunFault, guest};

/// The state of a feature.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(into = "&'static str")]
pub enum State {
    /// It works.
    Good,
    /// It works, by a slower way.
    Degraded,
    /// It is missing, and `run` does not need it.
    Absent,
    /// It is missing, and `run` needs it.
    Missing,
}

impl State {
    /// The state in one word, for people and programs.
    pub fn word(self) -> &'static str {
        match self {
            State::Good => "ok",
            State::Degraded => "slower",
            State::Absent => "absent",
            State::Missing => "missing",
        }
    }
}

impl From<State> for &'static str {
    fn from(state: State) -> &'static str {
        state.word()
    }
}

/// One feature that was checked.
#[derive(Clone, Debug, Serialize)]
pub struct Check {
    /// Its name, one word.
    pub name: &'static str,
    /// How well it works.
    pub state: State,
    /// What was found.
    pub finding: String,
    /// What to do about it, if anything.
    pub remedy: Option<String>,
}

/// Checks everything. Boots nothing: the first run finds out whether KVM works. `tell` gets what belongs to no check.
pub fn examine(tell: impl FnOnce(RunFault)) -> Vec<Check> {
    let kernel = guest::find_kernel(Arch::host(), None, tell);
    let qemu = Qemu::find(Arch::host());
    let mut checks = vec![
        check_kernel(kernel.as_ref().map_err(ToString::to_string)),
        check_modules(kernel.as_ref().ok()),
        check_qemu(qemu.as_ref().map_err(ToString::to_string)),
        check_acceleration(qemu.as_ref().ok(), kernel.as_ref().ok()),
        check_vhost_user(),
        check_overlay(Path::new("/var/tmp")),
        check_fuse(),
        check_io_uring(),
        check_uml(),
    ];
    checks.extend(Arch::ALL.into_iter().filter(|arch| *arch != Arch::host()).map(check_foreign));
    checks.extend(check_debian());
    checks
}

fn check(name: &'static str, state: State, finding: impl Into<String>) -> Check {
    Check { name, state, finding: finding.into(), remedy: None }
}

impl Check {
    fn remedy(mut self, remedy: impl Into<String>) -> Check {
        self.remedy = Some(remedy.into());
        self
    }
}

fn check_kernel(kernel: Result<&Kernel, String>) -> Check {
    match kernel {
        Ok(kernel) => {
            let finding = format!("{}, from {}", kernel.release, kernel.source.display());
            check("kernel", State::Good, finding)
        }
        Err(reason) => check("kernel", State::Missing, reason)
            .remedy("apt install linux-image-amd64, make it readable (chmod +r /boot/vmlinuz-*), or use --kernel FILE"),
    }
}

fn check_modules(kernel: Option<&Kernel>) -> Check {
    let Some(kernel) = kernel else {
        return check("modules", State::Missing, "unknown without a kernel");
    };
    let features =
        Features { file_systems: vec!["ext4".to_owned()], disks: true, network: true, ..Features::default() };
    let modules = guest::modules(kernel, None).map_err(InitramfsError::from);
    match modules.and_then(|modules| initramfs::build(kernel.arch, &modules, &features)) {
        Ok(bytes) => check(
            "modules",
            State::Good,
            format!("virtio and ext4 are there, an initramfs of {} KiB", bytes.len() >> 10),
        ),
        Err(error) => check("modules", State::Missing, error.to_string())
            .remedy("install the kernel's modules (apt install linux-image-amd64), or use --modules DIR"),
    }
}

fn check_qemu(qemu: Result<&Qemu, String>) -> Check {
    let found = qemu.and_then(|qemu| Ok((qemu, qemu.version().map_err(|error| error.to_string())?)));
    match found {
        Ok((qemu, version)) => {
            let finding = format!("{}.{}, {}", version.major, version.minor, qemu.path().display());
            match qemu.qboot() {
                Some(_) => check("qemu", State::Good, finding),
                None => check("qemu", State::Degraded, finding + ", without qboot.rom: machines start slower")
                    .remedy("apt install qemu-system-data"),
            }
        }
        Err(reason) => check("qemu", State::Missing, reason).remedy("apt install qemu-system-x86"),
    }
}

fn check_acceleration(qemu: Option<&Qemu>, kernel: Option<&Kernel>) -> Check {
    let (Some(qemu), Some(kernel)) = (qemu, kernel) else {
        return check("kvm", State::Absent, "unknown without QEMU and a kernel");
    };
    let subject = Subject { qemu: qemu.path(), kernel: &kernel.release };
    match accel::decide(AccelChoice::Auto, Arch::host(), &guest::verdicts(), subject) {
        Ok(Decision::Use(_)) => {
            check("kvm", State::Good, "works: a guest has come up under it since this machine started")
        }
        Ok(Decision::TryKvm) => {
            check("kvm", State::Good, "/dev/kvm opens; the next run will see whether a guest comes up")
        }
        Ok(Decision::FallBack(reason)) => {
            let check = check("kvm", State::Degraded, format!("{reason}; guests run under TCG"));
            if reason.contains("permission") {
                check.remedy("usermod -aG kvm $USER, and log in again")
            } else {
                let uml = match uml::is_installed() {
                    true => "--vmm uml",
                    false => "--vmm uml (apt install user-mode-linux)",
                };
                check.remedy(format!(
                    "what computes is faster by {uml}, which is no wall against hostile guests; --accel kvm tries KVM all the same"
                ))
            }
        }
        Err(error) => check("kvm", State::Degraded, error.to_string()),
    }
}

/// The guest's memory must be shared with the vhost-user process.
fn check_vhost_user() -> Check {
    match rustix::fs::memfd_create("inarch-doctor", MemfdFlags::CLOEXEC) {
        Ok(_) => check("vhost-user", State::Good, "guest memory can be shared (memfd)"),
        Err(error) => check("vhost-user", State::Missing, format!("memfd_create: {error}"))
            .remedy("a kernel with CONFIG_MEMFD_CREATE and a seccomp profile that allows it"),
    }
}

fn check_overlay(dir: &Path) -> Check {
    let space = rustix::fs::statvfs(dir).map(|stat| stat.f_bavail.saturating_mul(stat.f_frsize) >> 20);
    let writable = rustix::fs::access(dir, Access::WRITE_OK);
    match (space, writable) {
        (Ok(mib), Ok(())) if mib >= 1024 => {
            check("overlay", State::Good, format!("{} GiB free in {} for guests' writes", mib >> 10, dir.display()))
        }
        (Ok(mib), Ok(())) => check("overlay", State::Degraded, format!("only {mib} MiB free in {}", dir.display()))
            .remedy("free some, or use --overlay-dir DIR"),
        (Err(error), _) | (_, Err(error)) => {
            check("overlay", State::Missing, format!("{}: {error}", dir.display())).remedy("use --overlay-dir DIR")
        }
    }
}

fn check_fuse() -> Check {
    let device = rustix::fs::access("/dev/fuse", Access::READ_OK | Access::WRITE_OK);
    let device = device.map_err(|error| format!("/dev/fuse: {error}"));
    check_mounting(device, rustix::process::geteuid().is_root(), in_path("fusermount3").is_some())
}

/// Mounting needs the device, and either root or a set-user-ID helper.
fn check_mounting(device: Result<(), String>, is_root: bool, has_helper: bool) -> Check {
    const NAME: &str = "fuse";
    const WITHOUT: &str = "run, plan and serve blk do not need it";
    match device {
        Err(reason) => check(NAME, State::Absent, format!("{reason}; {WITHOUT}")).remedy("as root: modprobe fuse"),
        Ok(()) if is_root => check(NAME, State::Good, "/dev/fuse opens, and root mounts"),
        Ok(()) if has_helper => check(NAME, State::Good, "/dev/fuse opens, and fusermount3 mounts for users"),
        Ok(()) => {
            let finding = format!("mount and serve file take root or fusermount3, which is not installed; {WITHOUT}");
            check(NAME, State::Absent, finding).remedy("apt install fuse3")
        }
    }
}

/// The file with this name in PATH.
pub fn in_path(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).map(|directory| directory.join(name)).find(|file| file.is_file())
}

/// FUSE over io_uring.
fn check_io_uring() -> Check {
    const NAME: &str = "io_uring";
    match RingSupport::detect() {
        RingSupport::On => check(NAME, State::Good, "mounts take the kernel's requests by io_uring"),
        RingSupport::Off => {
            check(NAME, State::Degraded, "FUSE over io_uring is switched off; mounts take requests from /dev/fuse")
                .remedy(format!(
                    "as root: {}; at every boot: fuse.enable_uring=1 for the kernel",
                    RingSupport::SWITCH_ON
                ))
        }
        RingSupport::Missing => {
            check(NAME, State::Absent, "no FUSE over io_uring, which Linux has from 6.14 on; mounts use /dev/fuse")
        }
    }
}

/// User-Mode Linux, which takes the place of QEMU for appliances, and where it is asked for.
fn check_uml() -> Check {
    const NAME: &str = "uml";
    let kernel = match uml::find(None) {
        Ok(kernel) => kernel,
        Err(UmlError::Missing) => {
            let finding = "User-Mode Linux is not installed; commands that change images start a virtual machine, which takes longer";
            return check(NAME, State::Absent, finding).remedy("apt install user-mode-linux");
        }
        Err(error) => return check(NAME, State::Absent, error.to_string()),
    };
    let finding = format!("{}, {}", kernel.release, kernel.source.display());
    match uml::probe(&kernel) {
        Err(error) => check(NAME, State::Absent, format!("{finding}, is not used: {error}"))
            .remedy("permit user namespaces (sysctl user.max_user_namespaces), or go on with QEMU"),
        Ok(()) if kernel.modules.is_none() => {
            check(NAME, State::Absent, format!("{finding}, lacks its modules, {}/{}", uml::MODULES, kernel.release))
                .remedy("apt install user-mode-linux")
        }
        Ok(()) => {
            check(NAME, State::Good, format!("{finding}; commands that change images start it, and run --vmm uml"))
        }
    }
}

/// Guests of another architecture.
fn check_foreign(arch: Arch) -> Check {
    let missing = |finding: String| {
        check(arch.name(), State::Absent, format!("no guests of this architecture (run --arch {arch}): {finding}"))
    };
    let qemu = match Qemu::find(arch) {
        Ok(qemu) => qemu,
        Err(_) => {
            let remedy = format!("apt install {}", arch.qemu_package());
            return missing(format!("there is no {}", arch.qemu())).remedy(remedy);
        }
    };
    let version = match qemu.version() {
        Ok(version) => format!("QEMU {}.{}{}", version.major, version.minor, debian::firmware::state(arch, version)),
        Err(error) => return missing(error.to_string()),
    };
    if agent_of(arch).is_none() {
        return missing("this inarch was built without an agent for it".to_owned())
            .remedy(format!("apt install {}, and build it again", arch.compiler_packages()));
    }
    let debian = Debian { suite: debian::USUAL_SUITE.to_owned(), packages: Vec::new() };
    match debian::kernel::cached(&debian, arch) {
        Ok(kernel) => {
            check(arch.name(), State::Good, format!("{version}; the kernel of {debian}, {}", kernel.display()))
        }
        Err(_) if in_path("apt-get").is_some() => {
            check(arch.name(), State::Good, format!("{version}; the first run fetches the kernel of {debian}"))
        }
        Err(_) => {
            check(arch.name(), State::Good, format!("{version}; a kernel is needed: --kernel FILE --modules DIR"))
        }
    }
}

/// What was made of Debian's packages, if anything was.
fn check_debian() -> Option<Check> {
    let (cached, directory) = (debian::list(), debian::directory()?);
    let named = |cached: &Cached| {
        format!("{} ({} MiB)", cached.path.file_name().unwrap_or_default().to_string_lossy(), cached.bytes >> 20)
    };
    let names: Vec<String> = cached.iter().map(named).collect();
    let finding = format!("{} has {}; rm -r removes what no run uses", directory.display(), names.join(", "));
    (!names.is_empty()).then(|| check("debian", State::Good, finding))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mounting_takes_the_device_and_a_right() {
        let state = |device, is_root, has_helper| check_mounting(device, is_root, has_helper).state;
        assert_eq!(state(Ok(()), true, false), State::Good);
        assert_eq!(state(Ok(()), false, true), State::Good);
        assert_eq!(state(Ok(()), false, false), State::Absent);
        assert_eq!(state(Err("no".to_owned()), true, true), State::Absent);
        assert!(check_mounting(Ok(()), false, false).remedy.unwrap().contains("fuse3"));
    }

    #[test]
    fn programs_read_the_words_that_people_do() {
        for state in [State::Good, State::Degraded, State::Absent, State::Missing] {
            assert_eq!(serde_json::to_value(state).unwrap(), state.word());
        }
    }

    #[test]
    fn the_page_explains_each_word_and_no_other() {
        let page = include_str!("../../../docs/doctor.md");
        let rows = page
            .lines()
            .skip_while(|line| !line.starts_with("| word |"))
            .skip(2)
            .take_while(|line| line.starts_with('|'));
        let words: Vec<_> = rows.map(|row| row.split('|').nth(1).unwrap().trim()).collect();
        assert_eq!(words, [State::Good, State::Degraded, State::Absent, State::Missing].map(State::word));
    }
}
