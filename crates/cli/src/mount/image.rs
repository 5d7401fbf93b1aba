//! `mount --rw IMAGE`: starts the appliance that mounts the image for writing.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use inarch_jobs::Events;
use inarch_jobs::appliance::{Appliance, ApplianceEvent, ApplianceRequest, Isolation, Target};
use inarch_jobs::mount::Remote;
use inarch_jobs::run::AttachedDisk;
use inarch_jobs::source::{DiskPart, FileKind, ImageFormat, Source};

use crate::disk::machine::tell;
use crate::output::complain;
use crate::timings;

/// An image, and how to open it.
pub struct Image {
    target: Target,
    format: Option<ImageFormat>,
    with: Vec<PathBuf>,
}

/// The image that `text` names; `None` if it is a directory, whose own files are changed.
pub fn of(text: &OsStr, format: Option<ImageFormat>, with: &[PathBuf]) -> anyhow::Result<Option<Image>> {
    if Path::new(text).is_dir() {
        return Ok(None);
    }
    let is_archive = match Source::parse(text) {
        Ok(Source::File { kind: FileKind::Volume(_), .. } | Source::Disk { .. }) => false,
        Ok(_) => true,
        // The guest's kernel may know what is not read here.
        Err(_) => false,
    };
    if is_archive {
        anyhow::bail!(
            "--rw: archives are not changed; --ephemeral takes writes and forgets them, --overlay DIR keeps them in DIR"
        );
    }
    let target = Target::parse(text)?;
    if !target.path.as_os_str().is_empty() {
        anyhow::bail!("--rw: a volume is mounted whole for writing; name it without :/PATH");
    }
    Ok(Some(Image { target, format, with: with.to_vec() }))
}

/// Refuses options that were given, and that would have no effect.
pub fn refuse(options: &[(bool, &str)]) -> anyhow::Result<()> {
    match options.iter().find(|(is_given, _)| *is_given) {
        None => Ok(()),
        Some((_, "--key")) => {
            anyhow::bail!("--key: encrypted volumes are only read; without --rw they are mounted read-only")
        }
        Some((_, option)) => {
            anyhow::bail!("{option}: it has no effect on a disk image that is mounted with --rw; leave it out")
        }
    }
}

impl Image {
    /// As a source.
    pub fn source(&self) -> Source {
        let Target { image, which, .. } = &self.target;
        let part = DiskPart { which: which.clone(), with: self.with.clone(), ..DiskPart::default() };
        Source::Disk { path: image.clone(), part: Box::new(part) }
    }

    /// Starts the machine that changes it.
    pub fn server(self, wanted: Option<Option<PathBuf>>, isolation: Isolation) -> anyhow::Result<Remote> {
        let Image { target, format, with } = self;
        timings::check(&wanted)?;
        let image = AttachedDisk { path: target.image.clone(), read_only: false, format, sector: None, seen: None };
        let request = ApplianceRequest { image, with, isolation, ..ApplianceRequest::new(target.image, target.which) };
        let tell = move |event| match event {
            ApplianceEvent::Ended(report) => {
                if let Err(error) = timings::tell(&wanted, report.timeline.steps()) {
                    complain(error);
                }
            }
            event => tell(event),
        };
        let appliance = Appliance::open(&request, Events::new(tell))?;
        // Root sees the owners as they are; to others, all files are theirs.
        let (uid, gid) = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        Ok(appliance.into_server((uid != 0).then_some((uid, gid))))
    }
}
