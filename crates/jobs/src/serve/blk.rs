//! `serve blk`: serves the device as a vhost-user disk.

use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::thread;

use inarch_lifecycle::Events;
use inarch_lifecycle::descriptors;
use inarch_lifecycle::guard::Guard;
use inarch_vhost::Event;
use inarch_vhost::blk::BlkServer;

use super::making::Making;
use super::service::{Duty, Service, ServiceEvent, ServiceReport, on_fault};
use super::{ServedTree, socket};
use crate::JobError;
use crate::device::disk_options;

/// What to serve, and where.
#[derive(Clone, Debug)]
pub struct BlkRequest {
    /// What is offered.
    pub tree: ServedTree,
    /// The socket to listen on.
    pub socket: PathBuf,
    /// Request queues; as many as there are processors where not given.
    pub queues: Option<u16>,
    /// End when the first machine disconnects.
    pub once: bool,
}

impl BlkRequest {
    fn queues(&self) -> u16 {
        let processors = thread::available_parallelism().map_or(1, |n| n.get().min(8) as u16);
        self.queues.unwrap_or(processors)
    }

    fn serial(&self) -> Result<String, JobError> {
        Ok(self.tree.serial(socket::absolute(&self.socket)?.as_os_str().as_bytes()))
    }
}

/// QEMU's arguments for the disk, on one line, quoted for a shell; without those for shared memory.
pub fn qemu_arguments(request: &BlkRequest) -> Result<String, JobError> {
    let socket = socket::absolute(&request.socket)?;
    Ok(inarch_vm::machine::vhost_user_blk_arguments(&socket, request.queues(), &request.serial()?))
}

/// Starts a server, which runs until it is stopped, or with `once` until the first machine disconnects. At its end it
/// reports the files that changed meanwhile.
///
/// # Errors
/// The socket cannot be created.
pub fn start(request: BlkRequest, events: Events<ServiceEvent>) -> Result<Service, JobError> {
    Service::start(request.tree.sandbox, events, move |duty| serve(&request, duty))
}

fn serve(request: &BlkRequest, duty: &Duty) -> Result<ServiceReport, JobError> {
    descriptors::make_room();
    let usage = usage(request)?;
    let listener = socket::listen(&request.socket)?;
    let mut guard = Guard::of_socket(&request.socket)?;
    let making = Making::start(&request.tree, duty);
    let confined = request.tree.confine(None)?;
    duty.is_ready(making.introduction(usage + &confined));
    let options = disk_options(request.queues(), request.tree.read_only(), &request.serial()?);
    let tell = on_fault(&duty.events);
    let server = BlkServer::new(making.pending(), options).on_event(move |event| match event {
        // The guest has an error status for it, and the device remembers the files that changed.
        Event::RequestFailed { .. } => {}
        event => tell(event),
    });
    let stop = &duty.stop;
    let served = if request.once { server.serve_one(listener, stop) } else { server.serve_listener(listener, stop) };
    guard.release();
    let report = making.finish(duty)?;
    served.map_err(|error| JobError::Socket { path: request.socket.clone(), reason: error.to_string() })?;
    Ok(report)
}

/// How to use the disk.
fn usage(request: &BlkRequest) -> Result<String, JobError> {
    Ok(format!(
        "QEMU:   {}\n\
         memory: must be shared: {}\n\
         TCG:    without KVM the guest's kernel needs the parameter {} (Debian's has it by default)\n\
         guest:  {}\n",
        qemu_arguments(request)?,
        inarch_vm::machine::shared_memory_arguments(4 << 30),
        inarch_vm::machine::CLEARED_PAGES,
        request.tree.mount_command(&request.serial()?)
    ))
}
