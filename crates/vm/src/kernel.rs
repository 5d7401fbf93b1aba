//! Finds the guest's kernel: the file, its release, and the form of it that boots fastest.
//!
//! 1. [`discover`] lists the kernels of this machine and picks one, unless the user named a file.
//! 2. The file is read and recognised: a bzImage ([`bzimage`]) or an uncompressed vmlinux ([`elf`]).
//! 3. A bzImage's payload is unpacked once ([`payload`]) and cached ([`cache`]). A hypervisor enters a vmlinux with a
//!    PVH note directly, so the guest does not unpack itself at every boot.
//! 4. A kernel without a PVH note boots as its bzImage.
//! 5. A kernel of another architecture than x86-64 boots as its `Image` ([`image`]), which is unpacked too if it is compressed.

pub mod bzimage;
pub mod cache;
pub mod discover;
pub mod elf;
pub(crate) mod fields;
pub mod image;
pub mod payload;

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use bzimage::{BzImage, HeaderError};
use cache::Cache;
use discover::{Boot, DiscoverError};
use payload::PayloadError;

use crate::arch::Arch;

/// The largest kernel file that is read, in bytes; excludes kernels with debug information.
pub const MAX_FILE: u64 = 256 << 20;

/// A kernel that can boot a guest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kernel {
    /// Its architecture.
    pub arch: Arch,
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
    /// An `Image`, at the address that its header names.
    Image,
    /// A program of this machine, as [`uml`](crate::uml) has it.
    Program,
}

/// Why no kernel can be booted.
#[derive(Debug, thiserror::Error)]
pub enum KernelError {
    /// No kernel was found, or none is readable.
    #[error(transparent)]
    Discover(#[from] DiscoverError),
    /// This machine has no kernels of another architecture.
    #[error(
        "no kernel for {arch} was given; name one with --kernel FILE, or have Debian's fetched: --kernel debian:trixie"
    )]
    NoneFor {
        /// The guest's architecture.
        arch: Arch,
    },
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
    #[error("{path} is not a kernel for {arch} ({}), but {found}",
        if *.arch == Arch::X86_64 { "a bzImage or a vmlinux" } else { "an Image, which may be compressed with gzip" })]
    NotAKernel {
        /// The architecture of the guest.
        arch: Arch,
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
    /// The file is a kernel for another architecture.
    #[error("{path} is a kernel for {found}, not for {arch}; {}", if *.found == Arch::host() { "leave --arch out".to_owned() } else { format!("give --arch {}", .found) })]
    OtherArch {
        /// The architecture of the guest.
        arch: Arch,
        /// The file.
        path: PathBuf,
        /// The architecture of the kernel.
        found: Arch,
    },
    /// A compressed `Image` cannot be unpacked.
    #[error("{path}: the kernel's gzip data is damaged: {source}")]
    Image {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
    },
    /// There is nowhere to unpack a kernel that boots only unpacked.
    #[error(
        "{path}: the kernel is compressed, and there is no place to unpack it: {source}; set XDG_CACHE_HOME to a directory of your own, or unpack it (zcat)"
    )]
    NoPlace {
        /// The file.
        path: PathBuf,
        /// Why.
        source: io::Error,
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
        Kernel::open(&found.path, Arch::host(), cache)
    }

    /// Uses the kernel in the file `path`, for guests of `arch`: a bzImage or a vmlinux for x86-64, else an `Image`. Unpacks a
    /// compressed one into `cache` the first time; if the cache cannot be written, a bzImage boots as it is.
    ///
    /// # Errors
    /// The file cannot be read or is not a kernel of `arch`.
    pub fn open(path: &Path, arch: Arch, cache: &Cache) -> Result<Kernel, KernelError> {
        let path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
        let (file, key) = open_regular(&path)?;
        if arch != Arch::X86_64 {
            return Kernel::open_image(path, file, arch, &key, cache);
        }
        if let Some(hit) = cache.get(&key) {
            tracing::debug!(kernel = ?path, image = ?hit.image, "the kernel was unpacked before");
            return match image_arch(&hit.image) {
                Some(found) => Err(KernelError::OtherArch { arch, path, found }),
                None => Ok(Kernel::of(arch, path, hit.release, hit.image, Entry::Pvh)),
            };
        }
        let bytes = read_bounded(&path, file)?;
        tracing::debug!(kernel = ?path, bytes = bytes.len(), "the kernel is read");
        if let Some(found) = image::arch(&bytes) {
            return Err(KernelError::OtherArch { arch, path, found });
        }
        if elf::is_elf(&bytes) {
            return Kernel::open_elf(path, &bytes);
        }
        let header = match BzImage::parse(&bytes) {
            Ok(header) => header,
            Err(HeaderError::NoMagic) => {
                return Err(KernelError::NotAKernel { arch, found: describe(&bytes), path });
            }
            Err(source) => return Err(KernelError::Header { path, source }),
        };
        let release = header.release.ok_or_else(|| KernelError::NoRelease { path: path.clone() })?.to_owned();
        let as_it_is = |path: PathBuf| Kernel::of(arch, path.clone(), release.clone(), path, Entry::BzImage);
        let vmlinux = match payload::unpack(header.payload, payload::MAX_UNPACKED) {
            Ok(vmlinux) => vmlinux,
            Err(PayloadError::Unsupported(_)) => return Ok(as_it_is(path)),
            Err(source) => return Err(KernelError::Payload { path, source }),
        };
        if !elf::has_pvh_entry(&vmlinux) {
            return Ok(as_it_is(path));
        }
        match cache.insert(&key, &release, &vmlinux) {
            Ok(image) => Ok(Kernel::of(arch, path, release, image, Entry::Pvh)),
            Err(_) => Ok(as_it_is(path)),
        }
    }

    fn open_elf(path: PathBuf, bytes: &[u8]) -> Result<Kernel, KernelError> {
        if !elf::is_x86_64(bytes) {
            let (arch, found) = (Arch::X86_64, "an ELF file of another machine".to_owned());
            return Err(KernelError::NotAKernel { arch, found, path });
        }
        if !elf::has_pvh_entry(bytes) {
            return Err(KernelError::NoPvhEntry { path });
        }
        let release = elf::release(bytes).ok_or_else(|| KernelError::NoRelease { path: path.clone() })?;
        Ok(Kernel::of(Arch::X86_64, path.clone(), release, path, Entry::Pvh))
    }

    /// Uses an `Image`; unpacks a compressed one into `cache`.
    fn open_image(
        path: PathBuf,
        file: File,
        arch: Arch,
        key: &cache::Key,
        cache: &Cache,
    ) -> Result<Kernel, KernelError> {
        if let Some(hit) = cache.get(key) {
            return match image_arch(&hit.image) {
                Some(found) if found == arch => Ok(Kernel::of(arch, path, hit.release, hit.image, Entry::Image)),
                found => Err(KernelError::OtherArch { arch, path, found: found.unwrap_or(Arch::X86_64) }),
            };
        }
        let bytes = read_bounded(&path, file)?;
        let unpacked = match image::compressed(&bytes).map(image::unpack).transpose() {
            Ok(unpacked) => unpacked,
            Err(source) => return Err(KernelError::Image { path, source }),
        };
        let image = unpacked.as_deref().unwrap_or(&bytes);
        match image::arch(image) {
            Some(found) if found == arch => {}
            Some(found) => return Err(KernelError::OtherArch { arch, path, found }),
            None if BzImage::parse(&bytes).is_ok() || elf::has_pvh_entry(&bytes) => {
                return Err(KernelError::OtherArch { arch, path, found: Arch::X86_64 });
            }
            None => return Err(KernelError::NotAKernel { arch, found: describe(&bytes), path }),
        }
        let release = elf::release(image).ok_or_else(|| KernelError::NoRelease { path: path.clone() })?;
        let Some(unpacked) = unpacked else { return Ok(Kernel::of(arch, path.clone(), release, path, Entry::Image)) };
        match cache.insert(key, &release, &unpacked) {
            Ok(image) => Ok(Kernel::of(arch, path, release, image, Entry::Image)),
            Err(source) => Err(KernelError::NoPlace { path, source }),
        }
    }

    fn of(arch: Arch, source: PathBuf, release: String, image: PathBuf, entry: Entry) -> Kernel {
        let modules = discover::modules_beside(&source, &release);
        let modules = modules.or_else(|| discover::modules_of(Path::new("/"), &release));
        Kernel { arch, source, release, image, entry, modules }
    }
}

/// The architecture of the `Image` in the file `path`, if it is one.
fn image_arch(path: &Path) -> Option<Arch> {
    let mut start = Vec::new();
    File::open(path).ok()?.take(64).read_to_end(&mut start).ok()?;
    image::arch(&start)
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

/// Describes a file that is not a kernel, for an error message.
fn describe(bytes: &[u8]) -> String {
    let at = |offset: usize, magic: &[u8]| bytes.get(offset..).is_some_and(|rest| rest.starts_with(magic));
    let known: &[(usize, &[u8], &str)] = &[
        (0, b"\x7fELF", "an ELF file, which is not the form that boots"),
        (4, b"zimg", "an EFI program that unpacks itself"),
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
