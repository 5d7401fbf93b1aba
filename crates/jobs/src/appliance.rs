//! The appliance: a machine that mounts a guest's file systems, so that they can be changed.
//!
//! Inarch reads a guest's file systems itself, but does not write them: writing takes the kernel's drivers and the host's
//! tools (fsck, lvm, ntfs-3g). An appliance has both, and needs no image of its own. It is a run: its root is this
//! machine's tree, read-only, as `run --root host` makes it; the guest's image is one of its disks; its command is this
//! program.
//!
//! 1. [`Appliance::open`] looks at the image in a confined thread ([`volumes`]), chooses between a process and a virtual machine
//!    ([`choice`]), and starts it ([`machine`]).
//! 2. This program's own file, started in the guest ([`inside`]), loads the drivers, assembles arrays and volume groups,
//!    and mounts the volumes. The two speak through the command's standard streams ([`wire`]).
//! 3. Each method of [`Appliance`] is one question and its answer. One boot serves as many as are asked.
//! 4. [`Appliance::close`] unmounts, switches the machine off, and waits until it has let go of the image.
//!
//! If the machine ends otherwise, the image is as after a power cut of a real one.
//!
//! ```no_run
//! use std::path::Path;
//! use inarch_jobs::Events;
//! use inarch_jobs::appliance::{Appliance, ApplianceRequest, NewFileOptions};
//! use inarch_jobs::source::Which;
//!
//! let request = ApplianceRequest::new("guest.img".into(), Which::Auto);
//! let mut guest = Appliance::open(&request, Events::ignored())?;
//! guest.make_directory(Path::new("/etc/app"), true, None)?;
//! guest.write(Path::new("/etc/app/name"), &NewFileOptions::default(), &mut &b"guest\n"[..])?;
//! guest.remove(Path::new("/var/cache/app"), true)?;
//! guest.close()?;
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod answers;
mod choice;
mod error;
mod files;
mod inside;
mod machine;
mod relay;
mod request;
mod resize;
mod timeline;
mod volume;
mod volumes;
mod wire;

use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::Instant;

use inarch_lifecycle::Events;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::JobError;
use crate::run::{AttachedDisk, Vmm};
pub use answers::read_answers;
use choice::Choice;
pub use error::ApplianceError;
pub use files::{Checked, FileAttributes, NewAttributes, NewFileOptions, Written};
pub use inside::ARGUMENT;
pub(crate) use inside::main as become_program;
use machine::Running;
pub use request::{Access, ApplianceEvent, ApplianceReport, ApplianceRequest, Isolation, Target};
pub use resize::{NewSize, Resized, resize};
pub use timeline::{Step, Timeline};
pub use volume::{ApplianceVolume, look};
use wire::{Answer, Ask, Found, Hello, Kind, PIECE};

/// A running appliance. Dropping it unmounts the volumes if that can be done, and does not say whether it was; [`Appliance::close`]
/// does.
#[derive(Debug)]
pub struct Appliance {
    running: Running,
    timeline: Timeline,
    events: Events<ApplianceEvent>,
    disk: inarch_disk::Disk,
    image: PathBuf,
    read_only: bool,
}

impl Appliance {
    /// Starts an appliance for the volumes of an image, and mounts them. Returns when they can be used.
    ///
    /// # Errors
    /// The image is not available, it has no such volume, the machine does not start, or the volumes cannot be mounted: the message
    /// has the reason in the words of the tool or of the guest's kernel.
    pub fn open(request: &ApplianceRequest, events: Events<ApplianceEvent>) -> Result<Appliance, ApplianceError> {
        let mut timeline = Timeline::begin();
        let read_only = request.access.is_read_only();
        let mut image = request.image.clone();
        image.read_only = read_only;
        let (mut image, format) = image.settled()?;
        let plan = volumes::plan(&image, format, &request.with, request.wanted())?;
        image.sector = plan.disk.table.as_ref().and_then(|table| u32::try_from(table.sector).ok());
        timeline.host("look at the image");
        let path = image.path.clone();
        let mut choice = choice::choose(request, format, &plan);
        let (running, hello) = match greet(request, &image, choice, &events) {
            Err(ApplianceError::Machine(error)) if choice.is_open && !matches!(*error, JobError::Stopped) => {
                events.emit(ApplianceEvent::Note(format!(
                    "the appliance is a virtual machine, as no process can be one here: {error}"
                )));
                timeline.host("try User-Mode Linux");
                choice.vmm = Vmm::Qemu;
                greet(request, &image, choice, &events)?
            }
            greeted => greeted?,
        };
        let program = if choice.vmm == Vmm::Uml { "User-Mode Linux" } else { "QEMU" };
        timeline.boot(program, running.greeted(), hello.since_boot);
        let mut appliance = Appliance { running, timeline, events, disk: plan.disk, image: path, read_only };
        let attach = wire::Attach { read_only, mounted: request.access.is_mounted(), ..plan.attach };
        appliance.ask(&Ask::Attach(attach))?;
        Ok(appliance)
    }

    /// The image's partition table and partitions, as they were when it was opened.
    pub fn disk(&self) -> &inarch_disk::Disk {
        &self.disk
    }

    /// What took how long so far.
    pub fn timeline(&self) -> &Timeline {
        &self.timeline
    }

    /// Ends the machine at once, as a power cut would, from any thread.
    pub fn stopper(&self) -> impl Fn() + Send + Sync + 'static {
        self.running.stopper()
    }

    /// Has everything written to the image, unmounts the volumes, switches the machine off, and waits until the image
    /// is released.
    ///
    /// # Errors
    /// A file system cannot be unmounted, or the machine failed. What was written may be lost then.
    pub fn close(mut self) -> Result<ApplianceReport, ApplianceError> {
        self.ask(&Ask::Detach)?;
        let Appliance { running, mut timeline, .. } = self;
        running.end()?;
        timeline.host("switch off");
        Ok(ApplianceReport { timeline })
    }

    /// Asks, and waits for the answer.
    fn ask(&mut self, ask: &Ask) -> Result<Found, ApplianceError> {
        self.running.tell(ask)?;
        self.answer(&mut |_| Ok(()))
    }

    /// Asks, sends `data` with it, and waits for the answer.
    fn ask_with(&mut self, ask: &Ask, data: &mut dyn Read) -> Result<Found, ApplianceError> {
        self.running.tell(ask)?;
        let mut buffer = vec![0; PIECE];
        loop {
            // An answer before the end is a failure: the rest would be sent in vain.
            if self.running.has_answer() {
                self.running.send(Kind::GiveUp, &[])?;
                return self.answer(&mut |_| Ok(()));
            }
            let length = match data.read(&mut buffer) {
                Ok(length) => length,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => {
                    self.running.send(Kind::GiveUp, &[])?;
                    // That the file was not written is known.
                    let _ = self.answer(&mut |_| Ok(()));
                    return Err(ApplianceError::Input(error));
                }
            };
            match buffer.get(..length) {
                Some([]) | None => break,
                Some(piece) => self.running.send(Kind::Data, piece)?,
            }
        }
        self.running.send(Kind::End, &[])?;
        self.answer(&mut |_| Ok(()))
    }

    /// Waits for the answer; `take` gets the data before it.
    fn answer(&mut self, take: &mut dyn FnMut(Vec<u8>) -> Result<(), ApplianceError>) -> Result<Found, ApplianceError> {
        let began = Instant::now();
        let mut taken = Ok(());
        loop {
            match self.running.receive()? {
                // The rest is read even where nobody takes it, so that the next answer is that of the next question.
                (Kind::Data, bytes) if taken.is_ok() => taken = take(bytes),
                (Kind::Data, _) => {}
                (Kind::Note, line) => self.events.emit(ApplianceEvent::Note(error::one_line(&line))),
                (Kind::Message, bytes) => {
                    return match wire::decode(&bytes).map_err(ApplianceError::Stream)? {
                        Answer::Done { steps, found } => {
                            self.timeline.guest(began, &steps);
                            taken.map(|()| found)
                        }
                        Answer::Failed { text, errno } => {
                            let mut text = error::one_line(text.as_bytes());
                            // All that the guest hears is that its disk failed.
                            if errno == Some(libc::EIO) && has_no_room(&self.image) {
                                text += "; this machine has no room left for the image";
                            }
                            Err(ApplianceError::Guest { text, errno })
                        }
                    };
                }
                (Kind::End | Kind::GiveUp, _) => return Err(ApplianceError::Protocol),
            }
        }
    }
}

/// Whether the file system of an image is full.
fn has_no_room(image: &Path) -> bool {
    const LEAST: u64 = 1 << 20;
    rustix::fs::statvfs(image).is_ok_and(|there| there.f_bavail.saturating_mul(there.f_frsize) < LEAST)
}

/// Starts the machine, and waits until the program in it speaks.
fn greet(
    request: &ApplianceRequest,
    image: &AttachedDisk,
    choice: Choice,
    events: &Events<ApplianceEvent>,
) -> Result<(Running, Hello), ApplianceError> {
    let mut running = machine::start(request, image.clone(), choice, events)?;
    let hello: Hello = match running.receive()? {
        (Kind::Message, bytes) => wire::decode(&bytes).map_err(ApplianceError::Stream)?,
        _ => return Err(ApplianceError::Protocol),
    };
    if hello.version != wire::VERSION {
        return Err(ApplianceError::Version);
    }
    Ok((running, hello))
}

/// Whether something can be read.
fn is_readable(stream: &impl std::os::fd::AsFd) -> bool {
    let mut place = [PollFd::new(stream, PollFlags::IN)];
    poll(&mut place, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })).is_ok_and(|ready| ready > 0)
}
