//! Finds the guest's kernel: the file, its release, and the form of it that boots fastest.
//!
//! 1. [`discover`] lists the kernels of this machine and picks one, unless the user named a file.
//! 2. The file is read and recognised: a bzImage ([`bzimage`]) or an uncompressed vmlinux ([`elf`]).
//! 3. A bzImage's payload is unpacked once ([`payload`]) and cached ([`cache`]). A hypervisor enters a vmlinux with a
//!    PVH note directly, so the guest does not unpack itself at every boot.
//! 4. A kernel without a PVH note boots as its bzImage.

pub mod bzimage;
pub mod cache;
pub mod discover;
pub mod elf;
pub(crate) mod fields;
pub mod payload;

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use bzimage::{BzImage, HeaderError};
use cache::Cache;
use discover::{Boot, DiscoverError};
use payload::PayloadError;

/// The largest kernel file that is read, in bytes; excludes kernels with debug information.
pub const MAX_FILE: u64 = 256 << 20;

/// A kernel that can boot a guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kernel {
    /// The file that was found or named.
    pub source: PathBuf,
    /// Release as `uname -r` prints it, such as `6.1.0-56-amd64`.
    pub release: String,
    /// The file to boot: `source` itself or its unpacked copy in the cache.
    pub image: PathBuf,
    /// How the image is entered.
    pub entry: Entry,
    /// Directory of the kernel's modules, if it exists.
    pub modules: Option<PathBuf>,
}

/// How a hypervisor starts a kernel image.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entry {
    /// An ELF file entered by the PVH boot protocol.
    Pvh,
    /// A bzImage entered by the x86 boot protocol; it unpacks itself.
    BzImage,
    /// A program of this machine, as [`uml`](crate::uml) has it.
    Program,
}

/// Why no kernel can be booted.
#[derive(Debug, thiserror::Error)]
pub enum KernelError {
    /// No kernel was found, or none is readable.
    #[error(transparent)]
    Discover(#[from] DiscoverError),
    /// The file cannot be read, for a reason other than permission.
    #[error("cannot read the kernel {path}: {source}")]
    Read {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// The file is larger than any kernel.
    #[error("{path} has {size} bytes, more than the {MAX_FILE} a kernel may have")]
    TooLarge {
        /// The file.
        path: PathBuf,
        /// Its size in bytes.
        size: u64,
    },
    /// The file is not a kernel.
    #[error("{path} is not an x86-64 kernel (a bzImage or a vmlinux), but {found}")]
    NotAKernel {
        /// The file.
        path: PathBuf,
        /// What it looks like.
        found: String,
    },
    /// A vmlinux without a PVH entry, which QEMU cannot start.
    #[error("{path} is an ELF file without a PVH entry; build it with CONFIG_PVH=y or give the bzImage")]
    NoPvhEntry {
        /// The file.
        path: PathBuf,
    },
    /// The bzImage's setup header is invalid.
    #[error("{path}: {source}")]
    Header {
        /// The file.
        path: PathBuf,
        /// The invalid field.
        source: HeaderError,
    },
    /// The bzImage's payload cannot be unpacked.
    #[error("{path}: {source}")]
    Payload {
        /// The file.
        path: PathBuf,
        /// Why.
        source: PayloadError,
    },
    /// The image does not name its release.
    #[error("{path} is a kernel, but does not say which release it is")]
    NoRelease {
        /// The file.
        path: PathBuf,
    },
}

impl Kernel {
    /// Finds the best kernel of this machine; see [`discover`] for the order. Unpacks it into `cache` the first time,
    /// which takes a second or two.
    ///
    /// # Errors
    /// There is no kernel, none is readable, or the best one is damaged.
    pub fn find(cache: &Cache) -> Result<Kernel, KernelError> {
        let found = Boot::of_this_machine().best()?;
        Kernel::open(&found.path, cache)
    }

    /// Uses the kernel in the file `path`, a bzImage or a vmlinux. Unpacks a bzImage into `cache` the first time; if
    /// the cache cannot be written, the bzImage boots as it is.
    ///
    /// # Errors
    /// The file cannot be read or is not a kernel.
    pub fn open(path: &Path, cache: &Cache) -> Result<Kernel, KernelError> {
        let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        let (file, key) = open_regular(&path)?;
        if let Some(hit) = cache.get(&key) {
            return Ok(Kernel::of(path, hit.release, hit.image, Entry::Pvh));
        }
        let bytes = read_bounded(&path, file)?;
        if elf::is_elf(&bytes) {
            return Kernel::open_elf(path, &bytes);
        }
        let header = match BzImage::parse(&bytes) {
            Ok(header) => header,
            Err(HeaderError::NoMagic) => {
                return Err(KernelError::NotAKernel { found: describe(&bytes), path });
            }
            Err(source) => return Err(KernelError::Header { path, source }),
        };
        let release = header.release.ok_or_else(|| KernelError::NoRelease { path: path.clone() })?.to_owned();
        let as_it_is = |path: PathBuf| Kernel::of(path.clone(), release.clone(), path, Entry::BzImage);
        let vmlinux = match payload::unpack(header.payload, payload::MAX_UNPACKED) {
            Ok(vmlinux) => vmlinux,
            Err(PayloadError::Unsupported(_)) => return Ok(as_it_is(path)),
            Err(source) => return Err(KernelError::Payload { path, source }),
        };
        if !elf::has_pvh_entry(&vmlinux) {
            return Ok(as_it_is(path));
        }
        match cache.insert(&key, &release, &vmlinux) {
            Ok(image) => Ok(Kernel::of(path, release, image, Entry::Pvh)),
            Err(_) => Ok(as_it_is(path)),
        }
    }

    fn open_elf(path: PathBuf, bytes: &[u8]) -> Result<Kernel, KernelError> {
        if !elf::is_x86_64(bytes) {
            return Err(KernelError::NotAKernel { found: "an ELF file of another machine".to_owned(), path });
        }
        if !elf::has_pvh_entry(bytes) {
            return Err(KernelError::NoPvhEntry { path });
        }
        let release = elf::release(bytes).ok_or_else(|| KernelError::NoRelease { path: path.clone() })?;
        Ok(Kernel::of(path.clone(), release, path, Entry::Pvh))
    }

    fn of(source: PathBuf, release: String, image: PathBuf, entry: Entry) -> Kernel {
        let modules = discover::modules_of(Path::new("/"), &release);
        Kernel { source, release, image, entry, modules }
    }
}

fn open_regular(path: &Path) -> Result<(File, cache::Key), KernelError> {
    let open = || -> io::Result<(File, std::fs::Metadata)> {
        // Checked before it is opened: opening a FIFO would wait for a writer.
        let metadata = std::fs::metadata(path)?;
        if !metadata.is_file() {
            return Err(io::Error::other("not a regular file"));
        }
        let file = File::open(path)?;
        let metadata = file.metadata()?;
        Ok((file, metadata))
    };
    match open() {
        Ok((_, metadata)) if metadata.len() > MAX_FILE => {
            Err(KernelError::TooLarge { path: path.to_owned(), size: metadata.len() })
        }
        Ok((file, metadata)) => Ok((file, cache::Key::of(&metadata))),
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            Err(DiscoverError::Unreadable { path: path.to_owned() }.into())
        }
        Err(source) => Err(KernelError::Read { path: path.to_owned(), source }),
    }
}

fn read_bounded(path: &Path, file: File) -> Result<Vec<u8>, KernelError> {
    let mut bytes = Vec::new();
    let read = file.take(MAX_FILE).read_to_end(&mut bytes);
    read.map_err(|source| KernelError::Read { path: path.to_owned(), source })?;
    Ok(bytes)
}

/// Describes a file that is not an x86-64 kernel, for an error message.
fn describe(bytes: &[u8]) -> String {
    /// Offset of the magic of an arm64 or riscv `Image` (Documentation/arm64/booting.rst, riscv/boot-image-header.rst).
    const IMAGE_MAGIC: usize = 0x38;
    let at = |offset: usize, magic: &[u8]| bytes.get(offset..).is_some_and(|rest| rest.starts_with(magic));
    let known: &[(usize, &[u8], &str)] = &[
        (IMAGE_MAGIC, b"ARM\x64", "a kernel for arm64"),
        (IMAGE_MAGIC, b"RSC\x05", "a kernel for riscv"),
        (0, b"070701", "a cpio archive (an initramfs?)"),
        (0, b"\x1f\x8b", "gzip data"),
        (0, b"\xfd7zXZ", "xz data"),
        (0, b"\x28\xb5\x2f\xfd", "zstd data"),
        (0, b"QFI\xfb", "a qcow2 image"),
        (0, b"#!", "a script"),
        (0, b"MZ", "an EFI program without a Linux setup header"),
    ];
    if bytes.is_empty() {
        return "an empty file".to_owned();
    }
    if let Some((_, _, name)) = known.iter().find(|(offset, magic, _)| at(*offset, magic)) {
        return (*name).to_owned();
    }
    let start: Vec<String> = bytes.iter().take(8).map(|byte| format!("{byte:02x}")).collect();
    format!("a file that begins with {}", start.join(" "))
}

#[cfg(test)]
mod tests;
