//! QEMU's arguments for machines that others start, with a disk or a directory that is served here.

use std::ffi::{OsStr, OsString};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use super::{Endpoint, FORWARD_ADDRESS, chardev, vhost_user_blk, vhost_user_fs};
use crate::command::{option_value, shell_word};

/// The QEMU arguments for another machine that uses the disk at `socket`, on one line, quoted for a shell. `id`
/// distinguishes it from the machine's other devices: letters, digits and `-`. The machine also needs shared memory,
/// see [`shared_memory_arguments`].
pub fn vhost_user_blk_arguments(socket: &Path, queues: u16, id: &str) -> String {
    let socket = chardev(id, &Endpoint::Path(socket.to_owned()));
    let device = vhost_user_blk(id, queues);
    let words: [&OsStr; 4] = ["-chardev".as_ref(), &socket, "-device".as_ref(), device.as_ref()];
    words.map(shell_word).join(" ")
}

/// QEMU arguments for `bytes` bytes of memory that vhost-user back ends can map; once for each machine.
pub fn shared_memory_arguments(bytes: u64) -> String {
    format!("-object memory-backend-memfd,id=inarch-mem,size={bytes}B,share=on -machine memory-backend=inarch-mem")
}

/// Like [`vhost_user_blk_arguments`], for a directory that is shared at `socket` with this `tag`.
pub fn vhost_user_fs_arguments(socket: &Path, tag: &str, queues: u16, queue_size: u16) -> String {
    // A machine may have several shares. QEMU's ids consist of letters, digits and '-._' (`id_wellformed` of its
    // util/id.c).
    let in_id = |c: char| if c.is_ascii_alphanumeric() || "-._".contains(c) { c } else { '_' };
    let id = format!("fs-{}", tag.chars().map(in_id).collect::<String>());
    let socket = chardev(&id, &Endpoint::Path(socket.to_owned()));
    let device = vhost_user_fs(&id, tag, queues, queue_size);
    let words: [&OsStr; 4] = ["-chardev".as_ref(), &socket, "-device".as_ref(), &device];
    words.map(shell_word).join(" ")
}

/// The address of an NBD server.
#[derive(Clone, Debug)]
pub enum NbdAddress {
    /// A Unix socket.
    Socket(PathBuf),
    /// A TCP port.
    Tcp(SocketAddr),
}

/// Like [`vhost_user_blk_arguments`], for an NBD export. The disk gets this serial number, which also distinguishes its
/// QEMU objects: letters, digits and `-`, at most 20. Works with any memory.
pub fn nbd_arguments(address: &NbdAddress, export: &str, read_only: bool, serial: &str) -> String {
    let mut node = OsString::from(format!("driver=nbd,node-name={serial},"));
    match address {
        NbdAddress::Socket(path) => {
            node.push("server.type=unix,server.path=");
            node.push(option_value(path.as_os_str()));
        }
        NbdAddress::Tcp(address) => {
            node.push(format!("server.type=inet,server.host={},server.port={}", address.ip(), address.port()));
        }
    }
    if !export.is_empty() {
        node.push(",export=");
        node.push(option_value(export.as_ref()));
    }
    node.push(if read_only { ",read-only=on" } else { ",discard=unmap" });
    raw_disk_arguments(&node, serial)
}

/// QEMU arguments for a network on which [`FORWARD_ADDRESS`] and `port` lead to the socket at `path`. `id`
/// distinguishes its QEMU objects: letters, digits and `-`.
pub fn guest_forward_arguments(path: &Path, port: u16, id: &str) -> String {
    let socket = chardev(id, &Endpoint::Path(path.to_owned()));
    format!(
        "-chardev {} -netdev user,id=net-{id},guestfwd=tcp:{FORWARD_ADDRESS}:{port}-chardev:{id} \
         -device virtio-net-pci,netdev=net-{id}",
        shell_word(&socket)
    )
}

/// Like [`nbd_arguments`], for a raw image file.
pub fn raw_file_arguments(file: &Path, read_only: bool, serial: &str) -> String {
    let mut node = OsString::from(format!("driver=file,node-name={serial},filename="));
    node.push(option_value(file.as_os_str()));
    node.push(if read_only { ",read-only=on" } else { ",discard=unmap" });
    raw_disk_arguments(&node, serial)
}

fn raw_disk_arguments(node: &OsStr, serial: &str) -> String {
    let device = format!("virtio-blk-pci,drive={serial},serial={serial}");
    let words: [&OsStr; 4] = ["-blockdev".as_ref(), node, "-device".as_ref(), device.as_ref()];
    words.map(shell_word).join(" ")
}
