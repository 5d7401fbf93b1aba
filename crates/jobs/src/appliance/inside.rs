//! The appliance's program, in the guest: does what the host asks ([`super::wire`]) with the volumes that it mounts.
//!
//! It is root in a machine that has nothing but the host's tree, read-only, and the image. The host does not trust what
//! the program says. The program trusts what the host asks.

mod attributes;
mod check;
mod devices;
mod failure;
mod files;
mod listing;
mod made;
mod mounts;
mod new_file;
mod resize;
mod serve;
mod tools;

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::AsFd;
use std::time::Instant;

pub(super) use devices::driver;

use super::wire::{self, Answer, Ask, Attach, Found, Hello, Kind};
use failure::Failure;
use mounts::Mounted;

/// The word that makes this program's file the appliance's program.
pub const ARGUMENT: &str = "__in-appliance";

/// The connection to the host: this process's standard streams, unbuffered.
struct Host {
    from: File,
    to: File,
}

impl Host {
    fn note(&mut self, line: &str) {
        let line: String = line.chars().take(1000).collect();
        // If the host is gone, the next answer finds that.
        let _ = wire::send(&mut self.to, Kind::Note, line.as_bytes());
    }
}

/// The program: returns its exit status.
pub fn main() -> u8 {
    match answer_all() {
        Ok(()) => 0,
        Err(error) => {
            let _ = writeln!(io::stderr(), "{error}");
            1
        }
    }
}

fn answer_all() -> io::Result<()> {
    let from = File::from(rustix::stdio::stdin().try_clone_to_owned()?);
    let to = File::from(io::stdout().as_fd().try_clone_to_owned()?);
    let mut host = Host { from, to };
    let kernel = rustix::system::uname().release().to_string_lossy().into_owned();
    let since_boot = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    let since_boot =
        (since_boot.tv_sec as u64).saturating_mul(1_000_000).saturating_add(since_boot.tv_nsec as u64 / 1000);
    wire::tell(&mut host.to, &Hello { version: wire::VERSION, kernel, since_boot })?;
    let mut work = Work::default();
    while let Some((kind, bytes)) = wire::receive(&mut host.from)? {
        let Kind::Message = kind else {
            // The rest of data whose file has failed already.
            continue;
        };
        let ask = wire::decode(&bytes)?;
        work.steps.clear();
        let (began, what) = (Instant::now(), what(&ask));
        let done = work.execute(ask, &mut host);
        if work.steps.is_empty() {
            work.steps.push((what.to_owned(), began.elapsed().as_micros() as u64));
        }
        let answer = match done {
            Ok(found) => Answer::Done { steps: std::mem::take(&mut work.steps), found },
            Err(Failure { text, errno }) => Answer::Failed { text: text.chars().take(2000).collect(), errno },
        };
        wire::tell(&mut host.to, &answer)?;
    }
    // The host is gone, or has no more to ask.
    drop(work.execute(Ask::Detach, &mut host));
    Ok(())
}

/// What is done, for the time line.
fn what(ask: &Ask) -> &'static str {
    match ask {
        Ask::Attach(_) => "find the volumes",
        Ask::BeginCopy => "begin a copy",
        Ask::Write { .. } => "write",
        Ask::Read { .. } => "read",
        Ask::List { .. } => "list",
        Ask::Remove { .. } => "remove",
        Ask::MakeDirectory { .. } => "make a directory",
        Ask::Rename { .. } => "rename",
        Ask::Link { .. } | Ask::Symlink { .. } => "make a link",
        Ask::Node { .. } => "make a special file",
        Ask::Change { .. } => "change attributes",
        Ask::Sync => "write everything to the disks",
        Ask::Check { .. } => "check",
        Ask::Resize(_) => "resize",
        Ask::Serve { .. } => "serve",
        Ask::Detach => "let go",
    }
}

/// What is attached.
#[derive(Default)]
struct Work {
    attached: Option<(Attach, Mounted)>,
    /// What took how many microseconds since the question.
    steps: Vec<(String, u64)>,
}

impl Work {
    fn execute(&mut self, ask: Ask, host: &mut Host) -> Result<Found, Failure> {
        let nothing = |()| Found::default();
        match ask {
            Ask::Attach(attach) => self.attach(attach).map(nothing),
            Ask::Detach => self.detach().map(nothing),
            Ask::BeginCopy => {
                self.mounted()?.made.forget();
                Ok(Found::default())
            }
            Ask::Write { path, attributes, only_new } => {
                let mut data = Incoming { from: &mut host.from, piece: Vec::new(), at: 0, end: None };
                let written = files::write(self.mounted()?, &path.0, (&attributes, only_new), &mut data);
                if let (Ok(_), None) = (&written, data.end) {
                    return Err(Failure::new("the host sent more than a file"));
                }
                written
            }
            Ask::Read { path, offset, count } => files::read(self.mounted()?, &path.0, (offset, count), &mut host.to),
            Ask::List { path, itself, followed } => {
                listing::list(self.mounted()?, &path.0, (itself, followed), &mut host.to).map(nothing)
            }
            Ask::Remove { path, recursive } => files::remove(self.mounted()?, &path.0, recursive).map(nothing),
            Ask::MakeDirectory { path, parents, mode, copied } => {
                files::make_directory(self.mounted()?, &path.0, parents, (mode, copied)).map(nothing)
            }
            Ask::Rename { from, to } => files::rename(self.mounted()?, &from.0, &to.0).map(nothing),
            Ask::Link { from, to, copied } => files::link(self.mounted()?, &from.0, &to.0, copied).map(nothing),
            Ask::Symlink { target, path, attributes, replaces } => {
                files::symlink(self.mounted()?, &target.0, &path.0, (&attributes, replaces)).map(nothing)
            }
            Ask::Node { path, kind, device, attributes } => {
                files::node(self.mounted()?, &path.0, (kind, device), &attributes).map(nothing)
            }
            Ask::Change { path, attributes } => files::change(self.mounted()?, &path.0, &attributes),
            Ask::Sync => self.mounted()?.sync().map(nothing),
            Ask::Check { repair } => {
                let attached = self.attached.as_ref().map_or(&[][..], |(attach, _)| &attach.volumes);
                check::check(self.volumes()?, attached, repair, host)
            }
            Ask::Resize(wanted) => {
                let volumes = self.volumes()?;
                let volume = self.attached.as_ref().and_then(|(attach, _)| attach.volumes.first());
                resize::resize(volumes, volume.ok_or_else(|| Failure::new("there is no volume"))?, &wanted, host)
            }
            Ask::Serve { read_only, owner } => {
                self.mounted()?;
                serve::serve(read_only, owner, host).map(nothing)
            }
        }
    }

    fn attach(&mut self, attach: Attach) -> Result<(), Failure> {
        let mut clock = Clock { last: Instant::now(), steps: &mut self.steps };
        if !attach.arrays.is_empty() {
            devices::assemble_arrays(&attach.arrays, attach.read_only)?;
            clock.step("assemble the arrays");
        }
        if !attach.groups.is_empty() {
            devices::activate_groups(&attach.groups)?;
            clock.step("activate the volume groups");
        }
        let mut mounted = Mounted::new(&attach.missing);
        if let Err(failure) = mount_all(&attach, &mut mounted, &mut clock) {
            // What is mounted already is left clean.
            let _ = mounted.unmount();
            return Err(failure);
        }
        self.attached = Some((attach, mounted));
        Ok(())
    }

    fn detach(&mut self) -> Result<(), Failure> {
        let Some((attach, mounted)) = self.attached.take() else { return Ok(()) };
        let mut clock = Clock { last: Instant::now(), steps: &mut self.steps };
        mounted.unmount()?;
        clock.step("unmount");
        if !attach.groups.is_empty() {
            devices::deactivate_groups(&attach.groups)?;
        }
        if !attach.arrays.is_empty() {
            devices::stop_arrays()?;
        }
        if !attach.arrays.is_empty() || !attach.groups.is_empty() {
            clock.step("let go of the volumes");
        }
        Ok(())
    }

    fn mounted(&self) -> Result<&Mounted, Failure> {
        match &self.attached {
            Some((attach, mounted)) if attach.mounted => Ok(mounted),
            _ => Err(Failure::new("nothing is mounted")),
        }
    }

    fn volumes(&self) -> Result<&Mounted, Failure> {
        match &self.attached {
            Some((attach, mounted)) if !attach.mounted => Ok(mounted),
            _ => Err(Failure::new("the volumes are mounted")),
        }
    }
}

/// Finds the volumes' devices, and mounts them if that is wanted.
fn mount_all(attach: &Attach, mounted: &mut Mounted, clock: &mut Clock<'_>) -> Result<(), Failure> {
    for volume in &attach.volumes {
        let device = devices::device(&volume.device)?;
        let format = devices::format(&device, volume.format.as_deref())?;
        if attach.mounted {
            if devices::load_driver(&format)? {
                clock.step(&format!("load the driver of {format}"));
            }
            mounted.mount(volume, &device, &format, attach.read_only)?;
            clock.step(&format!("mount {} on {}", volume.name, volume.directory));
        }
        mounted.devices.push((volume.name.clone(), device, format));
    }
    Ok(())
}

/// Measures steps.
struct Clock<'a> {
    last: Instant,
    steps: &'a mut Vec<(String, u64)>,
}

impl Clock<'_> {
    fn step(&mut self, what: &str) {
        let now = Instant::now();
        self.steps.push((what.to_owned(), now.duration_since(self.last).as_micros() as u64));
        self.last = now;
    }
}

/// The data of a file that the host sends.
struct Incoming<'a> {
    from: &'a mut File,
    piece: Vec<u8>,
    at: usize,
    /// Whether the data are complete; `None` before their end.
    end: Option<bool>,
}

impl Read for Incoming<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.at == self.piece.len() {
            match self.end {
                Some(true) => return Ok(0),
                Some(false) => return Err(io::Error::other("the host gave up")),
                None => {}
            }
            match wire::receive(self.from)? {
                Some((Kind::Data, piece)) => (self.piece, self.at) = (piece, 0),
                Some((Kind::End, _)) => self.end = Some(true),
                Some((Kind::GiveUp, _)) => self.end = Some(false),
                _ => return Err(io::Error::other("the host is gone")),
            }
        }
        let rest = self.piece.get(self.at..).unwrap_or_default();
        let length = rest.len().min(buffer.len());
        if let (Some(to), Some(from)) = (buffer.get_mut(..length), rest.get(..length)) {
            to.copy_from_slice(from);
        }
        self.at += length;
        Ok(length)
    }
}
