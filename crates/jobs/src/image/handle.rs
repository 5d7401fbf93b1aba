//! A started image, in threads of its own; its starter waits for it or stops it.

use inarch_block::Progress;
use inarch_lifecycle::Events;
use inarch_lifecycle::running::{self, Running};
use inarch_server::StopHandle;
use inarch_source::Opened;

use super::{ImageEvent, ImageReport, ImageRequest, write};
use crate::JobError;

/// What the thread of an image is given.
pub(super) type Duty = running::Duty<(), ImageEvent>;

/// Reports progress, and checks whether to stop.
pub(super) struct DutyProgress<'a>(pub &'a Duty);

impl Progress for DutyProgress<'_> {
    fn advance(&self, bytes: u64, files: u64) {
        self.0.events.emit(ImageEvent::Advanced { bytes, files });
    }

    fn cancelled(&self) -> bool {
        self.0.stop.is_stopped()
    }
}

/// An image that is made.
#[derive(Debug)]
pub struct ImageHandle {
    running: Running<ImageReport, JobError>,
}

/// Starts to make an image.
///
/// # Errors
/// No thread could be started. All other errors are returned at the end.
pub fn start(request: ImageRequest, events: Events<ImageEvent>) -> Result<ImageHandle, JobError> {
    start_with(request, None, events)
}

fn start_with(
    request: ImageRequest,
    opened: Option<Opened>,
    events: Events<ImageEvent>,
) -> Result<ImageHandle, JobError> {
    let write = move |duty: &Duty| {
        duty.is_ready(());
        write(&request, opened, duty)
    };
    let ((), running) = Running::start("image", events, write)?;
    Ok(ImageHandle { running })
}

/// Makes an image.
///
/// # Errors
/// It could not be made, and nothing of it remains.
pub fn make(request: ImageRequest, events: Events<ImageEvent>) -> Result<ImageReport, JobError> {
    start(request, events)?.wait()
}

/// Makes an image of what is open. The request's source names it.
///
/// # Errors
/// As [`make`].
pub(crate) fn make_of(request: ImageRequest, opened: Opened) -> Result<ImageReport, JobError> {
    start_with(request, Some(opened), Events::ignored())?.wait()
}

impl ImageHandle {
    /// Ends the job; its result is [`ImageError::Stopped`](super::ImageError::Stopped), and nothing is left of the image.
    pub fn stop(&self) {
        self.stopper().stop();
    }

    /// Ends it from any thread.
    pub fn stopper(&self) -> StopHandle {
        self.running.stopper()
    }

    /// Waits for the image.
    ///
    /// # Errors
    /// It could not be made.
    pub fn wait(self) -> Result<ImageReport, JobError> {
        self.running.wait()
    }
}
