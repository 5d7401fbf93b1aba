//! `inarch serve nbd`: serves a tree as a network block device.

use std::net::{Ipv4Addr, SocketAddr, ToSocketAddrs};
use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use inarch_jobs::serve::nbd::{self, NbdAddress, NbdRequest};

use super::{TreeArguments, disk_until_stopped};
use crate::output::answer;

/// Options of `inarch serve nbd`.
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  inarch serve nbd ~/src --socket /tmp/src.sock &
  qemu-system-x86_64 ... \\
    $(inarch serve nbd ~/src --socket /tmp/src.sock --print-qemu-args)
  nbdcopy 'nbd+unix:///?socket=/tmp/src.sock' src.raw

The server runs until SIGTERM or SIGINT. Several clients may connect; all see one disk.")]
#[command(group = clap::ArgGroup::new("address").required(true))]
pub struct NbdArguments {
    /// The socket to listen on
    #[arg(long, value_name = "PATH", group = "address")]
    pub socket: Option<PathBuf>,

    /// The TCP port to listen on, at 127.0.0.1 unless an address is given. There is no TLS
    #[arg(long, value_name = "[ADDR:]PORT", group = "address", value_parser = parse_tcp)]
    pub tcp: Option<SocketAddr>,

    /// Name of the export; clients that ask for no name get it too
    #[arg(long, value_name = "EXPORT", default_value = "", value_parser = parse_name)]
    pub name: String,

    /// Print the arguments for QEMU, and exit
    #[arg(long)]
    pub print_qemu_args: bool,

    /// End when a client has used the disk and none is connected
    #[arg(long)]
    pub once: bool,

    /// What to serve.
    #[command(flatten)]
    pub tree: TreeArguments,
}

/// Serves until it is stopped.
pub fn run(arguments: NbdArguments) -> anyhow::Result<ExitCode> {
    let measured = arguments.tree.measured.clone();
    let address = match (arguments.socket, arguments.tcp) {
        (Some(path), _) => NbdAddress::Socket(path),
        (None, Some(address)) => NbdAddress::Tcp(address),
        (None, None) => anyhow::bail!("say where to listen: --socket PATH or --tcp PORT"),
    };
    let request = NbdRequest { tree: arguments.tree.served()?, address, name: arguments.name, once: arguments.once };
    if arguments.print_qemu_args {
        answer(nbd::qemu_arguments(&request)? + "\n")?;
    } else {
        disk_until_stopped(measured, |events| nbd::start(request, events))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// Parses `PORT`, `:PORT` or `ADDR:PORT`; the address may be a host name.
pub(super) fn parse_tcp(text: &str) -> Result<SocketAddr, String> {
    if let Ok(port) = text.strip_prefix(':').unwrap_or(text).parse() {
        return Ok((Ipv4Addr::LOCALHOST, port).into());
    }
    let mut found = text.to_socket_addrs().map_err(|error| format!("'{text}' is not an address and port: {error}"))?;
    found.next().ok_or_else(|| format!("'{text}' has no address"))
}

fn parse_name(text: &str) -> Result<String, String> {
    /// The protocol's limit.
    const MOST_BYTES: usize = 4096;
    match text.len() {
        ..=MOST_BYTES => Ok(text.to_owned()),
        length => Err(format!("the name has {length} bytes; an export's has at most {MOST_BYTES}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_read_as_people_write_them() {
        for (text, address) in [
            ("10809", "127.0.0.1:10809"),
            (":10809", "127.0.0.1:10809"),
            ("0.0.0.0:1", "0.0.0.0:1"),
            ("[::1]:1", "[::1]:1"),
        ] {
            assert_eq!(parse_tcp(text), Ok(address.parse().unwrap()));
        }
        for wrong in ["", "x", "1.2.3.4", "99999", "1.2.3.4:99999"] {
            assert!(parse_tcp(wrong).is_err(), "{wrong}");
        }
    }
}
