//! [`AttachError`]: why a guest cannot get a disk.

use std::path::{Path, PathBuf};

use inarch_lifecycle::PathError;
use inarch_lifecycle::shown;
use inarch_source::{Container, ContainerError, OpenError};
use inarch_vm::command::shell_word;

/// Why a guest cannot get a disk.
#[derive(Debug, thiserror::Error)]
pub enum AttachError {
    /// The file cannot be opened.
    #[error(transparent)]
    Path(#[from] PathError),
    /// No thread could be confined to look at it.
    #[error(transparent)]
    Thread(#[from] OpenError),
    /// It is neither a regular file nor a block device.
    #[error("{}: it is {what}, and no disk image", shown(path))]
    NoFile {
        /// It.
        path: PathBuf,
        /// What it is.
        what: &'static str,
    },
    /// Another process uses it.
    #[error(
        "{}: another process uses it{}; wait until it is done, or end it{}",
        shown(path),
        if *to_read { " and may write to it" } else { "" },
        if *to_read { "" } else { " (only readers can share an image)" }
    )]
    InUse {
        /// It.
        path: PathBuf,
        /// Whether it was to be read only.
        to_read: bool,
    },
    /// Another file has its name.
    #[error("{}: the file was replaced while it was being opened; the new one is untouched; try again", shown(path))]
    Exchanged {
        /// Its path.
        path: PathBuf,
    },
    /// Its first bytes contradict what is known of it.
    #[error(
        "{}: it looks like a {kind} image, but its name does not say so, and a guest can make a raw disk look like one; say \
         which it is: --format raw or qcow2, format=raw or format=qcow2 of --disk{}",
        shown(path),
        conversion(path, *kind)
    )]
    Guess {
        /// It.
        path: PathBuf,
        /// What it looks like.
        kind: Container,
    },
    /// It is no qcow2 image.
    #[error("{}: {why}, but it is none; name the format raw if it is a raw disk", shown(path))]
    NoQcow2 {
        /// It.
        path: PathBuf,
        /// Why it was to be one.
        why: &'static str,
    },
    /// Only raw and qcow2 images are given to guests.
    #[error("{}: a guest gets raw and qcow2 images only, and this is a {kind} image{}", shown(path), conversion(path, *kind))]
    Container {
        /// It.
        path: PathBuf,
        /// What it is.
        kind: Container,
    },
    /// It names a file that the user did not name, or is damaged.
    #[error("{}: {error}", shown(path))]
    Image {
        /// The image.
        path: PathBuf,
        /// What is wrong.
        error: ContainerError,
    },
    /// Only QEMU opens containers.
    #[error(
        "{}: a guest of User-Mode Linux gets raw images only; leave out what asks for it, or 'qemu-img convert -f qcow2 -O raw {} \
         NEW.img' makes one of it",
        shown(path),
        shown(path)
    )]
    NotRaw {
        /// It.
        path: PathBuf,
    },
    /// A backing file's format is none that is used here.
    #[error(
        "{}: it does not say that its backing file is raw or qcow2; record it with 'qemu-img rebase -u -b BACKING -F raw|qcow2 IMAGE'",
        shown(path)
    )]
    BackingFormat {
        /// The image that has the backing file.
        path: PathBuf,
    },
}

fn conversion(path: &Path, kind: Container) -> String {
    match kind {
        Container::Qcow2 => String::new(),
        _ => format!(
            "; 'qemu-img convert -f {} -O qcow2 {} NEW.qcow2' makes one of it",
            kind.qemu_name(),
            shown(Path::new(&shell_word(path.as_os_str())))
        ),
    }
}
