//! `serve 9p`: shares a directory live over 9P2000.L.

use std::net::{SocketAddr, TcpListener};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::Arc;

use inarch_lifecycle::Events;
use inarch_lifecycle::confinement::Sandbox;
use inarch_lifecycle::descriptors;
use inarch_lifecycle::guard::Guard;
use inarch_ninep::{Listener, NinepOptions, NinepServer};
use inarch_server::Pending;
use inarch_vm::command::shell_word;
use inarch_vm::machine::{FORWARD_ADDRESS, guest_forward_arguments};

use super::service::{Duty, Service, ServiceEvent, ServiceReport, on_fault};
use super::{name_of_place, socket};
use crate::JobError;
use crate::share::{HiddenMountPoints, Share, confinement};

/// The port that mount(8) takes when none is named (`P9_PORT` of Linux's net/9p/trans_fd.c).
const USUAL_PORT: u16 = 564;

/// Where to listen.
#[derive(Clone, Debug)]
pub enum NinepAddress {
    /// On a path.
    Socket(PathBuf),
    /// On an address and port.
    Tcp(SocketAddr),
    /// On a port of vsock(7).
    Vsock(u32),
}

/// What to serve, and where.
#[derive(Clone, Debug)]
pub struct NinepRequest {
    /// What is shared.
    pub share: Share,
    /// Where to listen.
    pub address: NinepAddress,
    /// Most bytes of a message.
    pub msize: u32,
    /// End when the first client disconnects.
    pub once: bool,
    /// Whether the server confines itself.
    pub sandbox: Sandbox,
}

/// The arguments that QEMU needs for a guest to reach the server, on one line, quoted for a shell.
pub fn qemu_arguments(request: &NinepRequest) -> Result<String, JobError> {
    Ok(match &request.address {
        NinepAddress::Socket(path) => {
            let path = socket::absolute(path)?;
            guest_forward_arguments(&path, USUAL_PORT, &name_of_place(path.as_os_str().as_bytes()))
        }
        // The guest's own network leads to this machine.
        NinepAddress::Tcp(_) => "-nic user,model=virtio-net-pci".to_owned(),
        NinepAddress::Vsock(_) => "-device vhost-vsock-pci,guest-cid=3".to_owned(),
    })
}

/// Starts a server, which runs until it is stopped, or with `once` until the first client disconnects.
///
/// # Errors
/// The directory cannot be shared, or the address is not available.
pub fn start(request: NinepRequest, events: Events<ServiceEvent>) -> Result<Service, JobError> {
    Service::start(request.sandbox, events, move |duty| serve(&request, duty))
}

fn serve(request: &NinepRequest, duty: &Duty) -> Result<ServiceReport, JobError> {
    descriptors::raise_limit();
    let share = request.share.resolved()?;
    // Dropped when nobody writes any more.
    let cover = share.cover(false)?;
    // Reports an unusable directory before anybody can connect.
    drop(share.for_many(cover.as_ref())?);
    let (listener, address, mut guard) = listen(&request.address)?;
    let usage = usage(&NinepRequest { address, ..request.clone() })?;
    let hidden = HiddenMountPoints::of(&share.directory, share.submounts);
    let confined = request.sandbox.confine_to(confinement::place(&share), &confinement::alone(&share, cover.as_ref())?);
    let file_system = share.for_many(cover.as_ref())?;
    duty.is_ready((usage + &confined).into());
    hidden.into_iter().for_each(|points| duty.events.emit(ServiceEvent::Hidden(points)));
    let options = NinepOptions { msize: request.msize, copies_up: cover.is_some(), ..NinepOptions::default() };
    let server =
        NinepServer::new(Arc::new(Pending::ready(Arc::new(file_system))), options).on_event(on_fault(&duty.events));
    let stop = &duty.stop;
    let served = if request.once { server.serve_once(&listener, stop) } else { server.serve_listener(&listener, stop) };
    if let Some(guard) = &mut guard {
        guard.release();
    }
    served.map_err(JobError::Listening)?;
    Ok(ServiceReport::default())
}

/// Listens. Also returns the actual address, because the system may choose the port, and the guard of the socket.
fn listen(address: &NinepAddress) -> Result<(Listener, NinepAddress, Option<Guard>), JobError> {
    match address {
        NinepAddress::Socket(path) => {
            let listener = socket::listen(path)?;
            Ok((Listener::Unix(listener), address.clone(), Some(Guard::of_socket(path)?)))
        }
        NinepAddress::Tcp(wanted) => {
            let refuse = |error| JobError::Address { address: *wanted, error };
            let listener = TcpListener::bind(wanted).map_err(refuse)?;
            let address = listener.local_addr().map_err(refuse)?;
            Ok((Listener::Tcp(listener), NinepAddress::Tcp(address), None))
        }
        NinepAddress::Vsock(port) => {
            let listener = Listener::on_vsock(*port).map_err(|error| {
                use rustix::io::Errno;
                match Errno::from_io_error(&error) {
                    Some(Errno::AFNOSUPPORT) => JobError::NoVsock,
                    _ => JobError::Vsock { port: *port, error },
                }
            })?;
            Ok((listener, address.clone(), None))
        }
    }
}

/// How to mount what is shared.
fn usage(request: &NinepRequest) -> Result<String, JobError> {
    let read_only = if request.share.refuses_writes() { "ro," } else { "" };
    let options = format!("{read_only}{}", request.share.ninep_mount_options(request.msize));
    let writes = request.share.fate_of_writes().map(|fate| format!("tree:   {fate}\n")).unwrap_or_default();
    let how = match &request.address {
        NinepAddress::Socket(path) => {
            let path = socket::absolute(path)?;
            format!(
                "QEMU:   {}\n\
                 guest:  mount -t 9p -o trans=tcp,{options} {FORWARD_ADDRESS} /mnt\n\
                 Linux:  mount -t 9p -o trans=unix,{options} {} /mnt\n",
                qemu_arguments(request)?,
                shell_word(path.as_os_str()),
            )
        }
        NinepAddress::Tcp(address) => {
            let (who, guest) = match address.ip().is_loopback() {
                true => ("on this machine", "10.0.2.2".to_owned()),
                false => ("who can reach this address", address.ip().to_string()),
            };
            let can = if request.share.refuses_writes() { "reads" } else { "reads and writes" };
            format!(
                "QEMU:   {}\n\
                 guest:  mount -t 9p -o trans=tcp,port={},{options} {guest} /mnt\n\
                 beware: no encryption and no password: everybody {who} {can} the directory as any user\n",
                qemu_arguments(request)?,
                address.port(),
            )
        }
        NinepAddress::Vsock(port) => format!(
            "QEMU:   {}\n\
             guest:  mount -t 9p -o trans=fd,rfdno=3,wfdno=3,{options} none /mnt, with descriptor 3 connected to port {port} \
             of CID 2\n\
             beware: no password: every virtual machine of this host can reach the directory\n",
            qemu_arguments(request)?
        ),
    };
    Ok(how + &writes)
}
