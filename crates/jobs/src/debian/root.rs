//! A root of Debian's packages for a guest of any architecture, as one archive.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use inarch_lifecycle::Events;
use inarch_lifecycle::PathError;
use inarch_lifecycle::new_file::NewFile;
use inarch_lifecycle::trust::Missing;
use inarch_source::Source;
use inarch_vm::Arch;

use super::fetch::Apt;
use super::{Debian, DebianError, DebianEvent, once, place_with, stage};
use crate::JobError;
use crate::run::{Outcome, Root, RunRequest, Streams, start};

const BY_HAND: &str =
    "give a root with --root: a directory, an archive or an image (debootstrap and mmdebstrap make some)";

/// How often what the guest says is looked at.
const LOOK: Duration = Duration::from_millis(500);

/// The packages of every root: as debootstrap's variant `minbase`.
const ALWAYS: [&str; 4] = ["?essential", "?priority(required)", "apt", "debian-archive-keyring"];

/// Configures the packages, and writes all files to standard output as an archive.
const CONFIGURE: &str = include_str!("configure.sh");

fn name_of(debian: &Debian, arch: Arch) -> String {
    let words = std::iter::once(&debian.suite).chain(&debian.packages);
    let words: Vec<&str> = words.map(String::as_str).collect();
    format!("{}_{}.tar", words.join("+"), arch.debian())
}

/// How the guest starts that configures the packages; `None` for this machine's own kernel, and QEMU's own firmware.
#[derive(Clone, Debug, Default)]
pub struct Booting {
    /// The kernel's file.
    pub kernel: Option<PathBuf>,
    /// The directory of the kernel's modules.
    pub modules: Option<PathBuf>,
    /// The firmware.
    pub firmware: Option<PathBuf>,
}

/// The archive with `debian`, of `arch`; made if it is not in the cache. For that, `booting` gives the guest's kernel.
///
/// # Errors
/// It cannot be fetched or configured, and why.
pub fn make(
    debian: &Debian,
    arch: Arch,
    booting: Booting,
    events: &Events<DebianEvent>,
) -> Result<PathBuf, DebianError> {
    let name = name_of(debian, arch);
    if name.len() > 200 {
        let text = debian.to_string().trim_start_matches("debian:").to_owned();
        return Err(DebianError::Name { text, what: "these are too many packages; install some in the guest instead" });
    }
    once(&name, |path, scratch| {
        let what = format!("{debian} for {arch}");
        let apt = Apt::new(scratch.path(), arch, &debian.suite, what.clone(), BY_HAND)?;
        events.emit(DebianEvent::Fetching { what: what.clone(), mirror: apt.mirror.clone() });
        apt.update()?;
        let packages: Vec<&str> = ALWAYS.into_iter().chain(debian.packages.iter().map(String::as_str)).collect();
        let debs = apt.download_all(&packages)?;
        let archive = scratch.path().join("unpacked.tar");
        let sources = format!(
            "Types: deb\nURIs: {}\nSuites: {}\nComponents: main\nSigned-By: /usr/share/keyrings/debian-archive-keyring.gpg\n",
            apt.mirror, debian.suite
        );
        let more = [
            ("etc/apt/sources.list.d/debian.sources", 0o644, sources.into_bytes()),
            // No service of the guest that configures.
            ("usr/sbin/policy-rc.d", 0o755, b"#!/bin/sh\nexit 101\n".to_vec()),
        ];
        stage::write(&debs, &more, &archive)?;
        debs.iter().for_each(|deb| drop(fs::remove_file(deb)));
        let packages = debs.len();
        events.emit(DebianEvent::Configuring { packages, arch });
        let configured = |done| events.emit(DebianEvent::Configured { done, packages });
        configure(&what, arch, booting, &archive, scratch.path(), path, &configured)
    })
}

/// The archive with `debian`, if it is in the cache.
///
/// # Errors
/// It is not.
pub fn cached(debian: &Debian, arch: Arch) -> Result<PathBuf, DebianError> {
    let path = place_with(Missing::Leave)?.join(name_of(debian, arch));
    let missing = || DebianError::NotMade { what: format!("{debian} for {arch}") };
    if path.exists() { Ok(path) } else { Err(missing()) }
}

/// How many packages dpkg has configured or begun to configure.
fn count_configured(log: &[u8]) -> usize {
    log.split(|byte| *byte == b'\n').filter(|line| line.starts_with(b"Setting up ")).count()
}

/// Has a guest over the files of `archive` configure its packages; stores what it sends back at `path`. Now and then calls `configured`
/// with the count so far.
fn configure(
    what: &str,
    arch: Arch,
    booting: Booting,
    archive: &Path,
    scratch: &Path,
    path: &Path,
    configured: &(dyn Fn(usize) + Sync),
) -> Result<(), DebianError> {
    let new = NewFile::create(path, || {})?;
    let log = scratch.join("log");
    let fail = |error: io::Error| PathError::new(&log, "cannot write it", error);
    let said = File::create_new(&log).map_err(fail)?;
    let output = new.file.try_clone().map_err(fail)?;
    let streams = Streams { input: None, output: output.into(), error: said.into() };
    let source = Source::parse(archive.as_os_str()).map_err(|error| DebianError::Run(Box::new(error.into())))?;
    let command = ["/bin/sh", "-c", CONFIGURE].map(Into::into).to_vec();
    let request = RunRequest {
        root: Root::Source(source),
        own_environment: false,
        hold: false,
        arch,
        kernel: booting.kernel,
        modules: booting.modules,
        firmware: booting.firmware,
        overlay_dir: scratch.to_owned(),
        ..RunRequest::new(command, streams)
    };
    let run = start(request, Events::ignored()).map_err(Box::new).map_err(DebianError::Run)?;
    let report = thread::scope(|scope| {
        let (ended, end) = mpsc::channel::<()>();
        let log = &log;
        scope.spawn(move || {
            while end.recv_timeout(LOOK) == Err(mpsc::RecvTimeoutError::Timeout) {
                configured(count_configured(&fs::read(log).unwrap_or_default()));
            }
        });
        let report = run.wait();
        drop(ended);
        report
    });
    let last_words = || {
        let text = fs::read(&log).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let last: Vec<&str> = text.lines().rev().take(3).collect();
        last.into_iter().rev().collect::<Vec<_>>().join("; ")
    };
    match report.result {
        Ok(Outcome::Exited(0)) => {}
        Ok(_) => return Err(DebianError::Configure { what: what.to_owned(), reason: last_words() }),
        Err(JobError::Command { message, .. }) => {
            return Err(DebianError::Configure { what: what.to_owned(), reason: message });
        }
        Err(error) => return Err(DebianError::Run(Box::new(error))),
    }
    new.file.sync_all().map_err(|error| PathError::new(path, "cannot write it to the disk", error))?;
    Ok(new.commit()?)
}
