//! Disks in files of another layout: QCOW2, VDI, VHD, VHDX and VMDK, for reading.
//!
//! All of them are a map from ranges of the guest's disk to ranges of a file, zeros, compressed clusters, or an image below
//! ([`mapped`]). So the disk that [`open`] returns lends ranges of these files without copying. Tables are read when they
//! are needed; they and decompressed clusters are cached, bounded in bytes ([`cache`]).
//!
//! An image may name other files: a backing file, a data file, extents. A name in an image is whatever its maker wanted it
//! to be, so nothing is opened by it. The caller gives the files ([`Below`]); usually the user named them ([`NamedFiles`]).

pub(crate) mod cache;
mod error;
mod files;
pub(crate) mod mapped;
mod opening;
mod qcow2;
mod tables;
#[cfg(test)]
mod tests;
mod unpack;
mod vdi;
mod vhd;
mod vhdx;
mod vmdk;

use std::fmt;
use std::io;
use std::sync::Arc;

use inarch_block::{Backing, read_backing};
use inarch_confine::Parsing;

pub use error::ContainerError;
pub use files::NamedFiles;
pub use opening::MAX_CHAIN;
use opening::Opening;
pub use qcow2::{QcowNames, qcow2_names};

/// The kinds of containers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Container {
    /// QEMU's, versions 2 and 3 (QEMU, docs/interop/qcow2.txt).
    Qcow2,
    /// VirtualBox's (VDICore.h).
    Vdi,
    /// Virtual PC's ("Virtual Hard Disk Image Format Specification", 1.0).
    Vhd,
    /// Hyper-V's ([MS-VHDX]).
    Vhdx,
    /// VMware's ("Virtual Disk Format 5.0").
    Vmdk,
}

impl Container {
    /// Every kind.
    pub const ALL: [Container; 5] =
        [Container::Qcow2, Container::Vdi, Container::Vhd, Container::Vhdx, Container::Vmdk];

    /// Its usual name, in small letters.
    pub fn name(self) -> &'static str {
        match self {
            Container::Qcow2 => "qcow2",
            Container::Vdi => "vdi",
            Container::Vhd => "vhd",
            Container::Vhdx => "vhdx",
            Container::Vmdk => "vmdk",
        }
    }

    /// The name that QEMU and its tools have for it (`qemu-img convert -f`).
    pub fn qemu_name(self) -> &'static str {
        match self {
            Container::Vhd => "vpc",
            other => other.name(),
        }
    }

    /// The kind of that name, ours or QEMU's.
    pub fn by_name(name: &str) -> Option<Container> {
        Container::ALL.into_iter().find(|kind| [kind.name(), kind.qemu_name()].contains(&name))
    }
}

impl fmt::Display for Container {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What an image wants another file for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// The disk that it is a difference to.
    Backing,
    /// The content of its clusters.
    Data,
    /// A part of the disk.
    Extent,
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Role::Backing => "backing file",
            Role::Data => "data file",
            Role::Extent => "extent",
        })
    }
}

/// A file that an image names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reference {
    /// What for.
    pub role: Role,
    /// Its name as the image has it: a path of some machine, or any other bytes.
    pub name: Vec<u8>,
}

/// Gives the file that an image names, or none if the user did not name it. Called in the confined thread, so what it gives
/// is open already. The file is given as it is; what it contains is found out by [`open`].
pub type Below<'a> = dyn FnMut(&Reference) -> Option<Arc<dyn Backing>> + 'a;

/// Bytes at the start that [`recognise`] looks at.
const HEAD: usize = 512;

/// The kind of container that a file is, by its first 512 bytes, or by the last of a VHD; none if it is no container.
///
/// Whoever could write a raw disk could have written such bytes. To read it as a container then shows other bytes of it, and
/// no other file.
///
/// # Errors
/// Those of reading it.
pub fn recognise(_: Parsing, file: &dyn Backing) -> io::Result<Option<Container>> {
    kind_of(file)
}

fn kind_of(file: &dyn Backing) -> io::Result<Option<Container>> {
    let mut head = vec![0; file.size().min(HEAD as u64) as usize];
    read_backing(file, 0, &mut head)?;
    let has = |at: usize, magic: &[u8]| head.get(at..).is_some_and(|rest| rest.starts_with(magic));
    Ok(match () {
        () if has(0, qcow2::MAGIC) => Some(Container::Qcow2),
        () if has(vdi::MAGIC_AT, vdi::MAGIC) => Some(Container::Vdi),
        () if has(0, vhdx::MAGIC) => Some(Container::Vhdx),
        () if vmdk::MAGICS.iter().any(|magic| has(0, magic)) => Some(Container::Vmdk),
        () if has(0, vhd::MAGIC) || vhd::has_footer(file)? => Some(Container::Vhd),
        () => None,
    })
}

/// Opens a container: the disk in it, as the guest sees it.
///
/// A file that it names is asked for with `below`. A backing file may have one itself, up to [`MAX_CHAIN`] images. The image
/// says what kind its backing file is; if it does not, [`recognise`] finds out. Internal snapshots are not shown.
///
/// The disk's `size` is what the image says; reads of damaged parts fail with [`io::ErrorKind::InvalidData`].
///
/// # Errors
/// See [`ContainerError`].
pub fn open(
    _: Parsing,
    kind: Container,
    file: Arc<dyn Backing>,
    below: &mut Below<'_>,
) -> Result<Arc<dyn Backing>, ContainerError> {
    Opening::new(below).open(kind, file)
}
