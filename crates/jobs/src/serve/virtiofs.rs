//! `serve virtiofs`: shares a directory live over vhost-user-fs.

use inarch_lifecycle::Events;
use inarch_lifecycle::confinement::Sandbox;
use inarch_lifecycle::descriptors;
use inarch_vhost::fs::Tag;

use super::service::{Duty, Service, ServiceEvent, ServiceReport, on_fault};
use super::socket::{self, ListenAt};
use crate::JobError;
use crate::share::{Changes, HiddenMountPoints, Share, confinement, default_queues};

/// What to serve, and where.
#[derive(Clone, Debug)]
pub struct VirtiofsRequest {
    /// What is shared.
    pub share: Share,
    /// The socket to listen on.
    pub listen: ListenAt,
    /// The tag by which a guest mounts it.
    pub tag: String,
    /// Offer the tag to machines that have none of their own.
    pub offer_tag: bool,
    /// Request queues; as many as there are processors where not given.
    pub queues: Option<u16>,
    /// Descriptors of each queue, for QEMU: a power of 2 up to 1024.
    pub queue_size: u16,
    /// End when the first machine disconnects.
    pub once: bool,
    /// Whether the server confines itself.
    pub sandbox: Sandbox,
}

impl VirtiofsRequest {
    fn queues(&self) -> u16 {
        self.queues.unwrap_or_else(default_queues)
    }

    fn parsed_tag(&self) -> Result<Tag, JobError> {
        self.tag.parse().map_err(|error| JobError::Tag { tag: self.tag.clone(), error })
    }

    /// What a guest types to use it.
    fn mount_command(&self) -> String {
        let option = if self.share.refuses_writes() { "-o ro " } else { "" };
        format!("mount -t virtiofs {option}{} /mnt", self.tag)
    }
}

/// QEMU's arguments for the device, on one line, quoted for a shell; without those for shared memory.
pub fn qemu_arguments(request: &VirtiofsRequest) -> Result<String, JobError> {
    request.parsed_tag()?;
    let socket = socket::absolute(&request.listen.name())?;
    Ok(inarch_vm::machine::vhost_user_fs_arguments(&socket, &request.tag, request.queues(), request.queue_size))
}

/// Starts a server, which runs until it is stopped, or with `once` until the first machine disconnects.
///
/// # Errors
/// The directory cannot be shared, or the socket cannot be created.
pub fn start(request: VirtiofsRequest, events: Events<ServiceEvent>) -> Result<Service, JobError> {
    Service::start(request.sandbox, events, move |duty| serve(&request, duty))
}

fn serve(request: &VirtiofsRequest, duty: &Duty) -> Result<ServiceReport, JobError> {
    let tag = request.parsed_tag()?;
    descriptors::raise_limit();
    let share = request.share.resolved()?;
    // Dropped when nobody writes any more.
    let cover = share.cover(share.without_opening())?;
    let server = share.server(request.queues(), request.offer_tag.then_some(tag), cover.as_ref(), Ok)?;
    let server = server.on_event(on_fault(&duty.events));
    let (listener, mut guard) = request.listen.listen()?;
    let usage = usage(request)?;
    let hidden = HiddenMountPoints::of(&share.directory, share.submounts);
    let confined = request.sandbox.confine_to(confinement::place(&share), &confinement::alone(&share, cover.as_ref())?);
    duty.is_ready((usage + &confined).into());
    hidden.into_iter().for_each(|points| duty.events.emit(ServiceEvent::Hidden(points)));
    let stop = &duty.stop;
    let served = if request.once { server.serve_one(listener, stop) } else { server.serve_listener(listener, stop) };
    if let Some(guard) = &mut guard {
        guard.release();
    }
    served.map_err(|error| JobError::Socket { path: request.listen.name(), reason: error.to_string() })?;
    Ok(ServiceReport::default())
}

/// How to use what is shared.
fn usage(request: &VirtiofsRequest) -> Result<String, JobError> {
    let kept = match request.share.changes {
        Changes::Guest => "only the guest changes it: its kernel asks again after a day",
        Changes::Host => "the host may change it: the guest sees that after a second at most",
        Changes::None => "nobody changes it: the guest's kernel asks once",
    };
    let writes = request.share.fate_of_writes().map(|fate| format!("; {fate}")).unwrap_or_default();
    Ok(format!(
        "QEMU:   {}\n\
         memory: must be shared: {}\n\
         TCG:    without KVM the guest's kernel needs the parameter {} (Debian's has it by default)\n\
         guest:  {}\n\
         tree:   {kept}{writes}\n",
        qemu_arguments(request)?,
        inarch_vm::machine::shared_memory_arguments(4 << 30),
        inarch_vm::machine::CLEARED_PAGES,
        request.mount_command(),
    ))
}
