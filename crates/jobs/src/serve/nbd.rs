//! `serve nbd`: serves the device as an NBD export.

use std::net::TcpListener;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;

use inarch_lifecycle::Events;
use inarch_lifecycle::descriptors;
use inarch_lifecycle::guard::Guard;
use inarch_nbd::{Event, Listener, NbdOptions, NbdServer};
use inarch_vm::command::shell_word;
pub use inarch_vm::machine::NbdAddress;
use inarch_vm::machine::nbd_arguments;

use super::making::Making;
use super::service::{Duty, Service, ServiceEvent, ServiceReport, on_fault};
use super::{ServedTree, socket};
use crate::JobError;

/// What to serve, and where.
#[derive(Clone, Debug)]
pub struct NbdRequest {
    /// What is offered.
    pub tree: ServedTree,
    /// Where to listen.
    pub address: NbdAddress,
    /// The export's name; clients that name none get it as well.
    pub name: String,
    /// End when the first client disconnects.
    pub once: bool,
}

/// The arguments that QEMU needs to have the disk, on one line, quoted for a shell.
pub fn qemu_arguments(request: &NbdRequest) -> Result<String, JobError> {
    let address = match &request.address {
        NbdAddress::Socket(path) => NbdAddress::Socket(socket::absolute(path)?),
        tcp => tcp.clone(),
    };
    Ok(nbd_arguments(&address, &request.name, request.tree.read_only(), &serial(request)?))
}

fn serial(request: &NbdRequest) -> Result<String, JobError> {
    let mut place = match &request.address {
        NbdAddress::Socket(path) => socket::absolute(path)?.into_os_string().into_vec(),
        NbdAddress::Tcp(address) => address.to_string().into_bytes(),
    };
    place.push(0);
    place.extend(request.name.bytes());
    Ok(request.tree.serial(place))
}

/// Starts a server, which runs until it is stopped, or with `once` until the first client disconnects. At its end it
/// reports the files that changed meanwhile.
///
/// # Errors
/// The address is not available.
pub fn start(request: NbdRequest, events: Events<ServiceEvent>) -> Result<Service, JobError> {
    Service::start(request.tree.sandbox, events, move |duty| serve(&request, duty))
}

fn serve(request: &NbdRequest, duty: &Duty) -> Result<ServiceReport, JobError> {
    descriptors::make_room();
    let (listener, address, mut guard) = listen(&request.address)?;
    let usage = usage(&NbdRequest { address, ..request.clone() })?;
    let making = Making::start(&request.tree, duty);
    let confined = request.tree.confine(None)?;
    duty.is_ready(making.introduction(usage + &confined));
    let options = NbdOptions {
        name: request.name.clone(),
        description: format!("the tree {}", request.tree.source),
        ..NbdOptions::default()
    };
    let tell = on_fault(&duty.events);
    let server = NbdServer::new(making.pending(), options).on_event(move |event| match event {
        // The client has an error for it, and the device remembers the files that changed.
        Event::RequestFailed { .. } => {}
        event => tell(event),
    });
    let stop = &duty.stop;
    let served = if request.once { server.serve_once(&listener, stop) } else { server.serve_listener(&listener, stop) };
    if let Some(guard) = &mut guard {
        guard.release();
    }
    let report = making.finish(duty)?;
    served.map_err(JobError::Listening)?;
    Ok(report)
}

/// Listens. Also returns the actual address, because the system may choose the port, and the guard of the socket.
fn listen(address: &NbdAddress) -> Result<(Listener, NbdAddress, Option<Guard>), JobError> {
    match address {
        NbdAddress::Socket(path) => {
            let listener = socket::listen(path)?;
            Ok((Listener::Unix(listener), address.clone(), Some(Guard::of_socket(path)?)))
        }
        NbdAddress::Tcp(wanted) => {
            let refuse = |error| JobError::Address { address: *wanted, error };
            let listener = TcpListener::bind(wanted).map_err(refuse)?;
            let address = listener.local_addr().map_err(refuse)?;
            Ok((Listener::Tcp(listener), NbdAddress::Tcp(address), None))
        }
    }
}

/// How to use the export.
fn usage(request: &NbdRequest) -> Result<String, JobError> {
    let name = shell_word(request.name.as_ref());
    let name_option = if request.name.is_empty() { String::new() } else { format!(" -N {name}") };
    let (uri, client, warning) = match &request.address {
        NbdAddress::Socket(path) => {
            let path = socket::absolute(path)?;
            let uri = format!("nbd+unix:///{}?socket={}", escaped(request.name.as_bytes()), escaped_path(&path));
            (uri, format!("-unix {}", shell_word(path.as_os_str())), String::new())
        }
        NbdAddress::Tcp(address) => {
            let warning = match address.ip().is_loopback() {
                true => "on this machine",
                false => "who can reach this address",
            };
            let can = if request.tree.read_only() { "reads" } else { "reads and writes" };
            let warning = format!("beware: no TLS and no password: everybody {warning} {can} the disk\n");
            let uri = format!("nbd://{address}/{}", escaped(request.name.as_bytes()));
            (uri, format!("{} {}", address.ip(), address.port()), warning)
        }
    };
    Ok(format!(
        "QEMU:   {}\n\
         guest:  {}\n\
         tools:  nbdinfo {uri}\n\
         Linux:  nbd-client {client} /dev/nbd0{name_option}\n\
         {warning}",
        qemu_arguments(request)?,
        request.tree.mount_command(&serial(request)?),
        uri = shell_word(uri.as_ref()),
    ))
}

fn escaped_path(path: &Path) -> String {
    escaped(path.as_os_str().as_bytes())
}

/// Percent-encodes what has a meaning in a URI (RFC 3986, section 2.1).
fn escaped(bytes: &[u8]) -> String {
    let plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"-._~/".contains(byte);
    bytes.iter().map(|byte| if plain(byte) { char::from(*byte).to_string() } else { format!("%{byte:02X}") }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uri_holds_any_path() {
        assert_eq!(escaped_path(Path::new("/tmp/a b&c?/ü")), "/tmp/a%20b%26c%3F/%C3%BC");
    }
}
