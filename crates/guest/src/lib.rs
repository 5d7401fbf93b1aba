//! `inarch disk ls`, `cat`, `find`, `stat`, `cp`, `df`, `inspect`, `checksum` and `diff`: looks at the files in an image, without a mount.
//!
//! The file system is opened and asked by threads that are confined to parsing. They send what they find through a channel of a few places to the
//! thread of the caller, who may print it or write it to a file. So memory is bounded by the largest directory, not by the tree.

mod ask;
mod checksum;
mod copy;
mod difference;
pub mod examine;
mod glob;
mod inspect;
mod list;
mod usage;
mod windows;
pub mod windows_registry;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::sync_channel;

use inarch_confine::Parse;
use inarch_lifecycle::PathError;
use inarch_lifecycle::{counted, shown};
use inarch_source::{OpenError, Opened, OpenedVolume, Source};
use inarch_tree::FileType;
use inarch_tree::scan::Reason;
use inarch_tree::select::Selection;
use inarch_volume::{Attributes, Last, Node, TreeVolume, Volume, VolumeError, resolve};

pub use ask::Named;
pub use checksum::{Algorithm, Checksum, Summed};
pub use copy::{CopyReport, Piece, zeros};
pub use difference::{DifferenceError, DifferenceRequest, Differences, diff};
pub use inarch_disk::guest::{Database, Mount, Package, Subvolume, System};
pub use inspect::{Inspection, inspect, systems};
pub use list::{Entry, Wanted};
pub use usage::{Usage, usage};
pub use windows::Drive;

/// How many findings wait for the caller.
const QUEUE: usize = 16;

/// Why the files of an image cannot be looked at.
#[derive(Debug, thiserror::Error)]
pub enum GuestError {
    /// The image cannot be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// There is no such file in it.
    #[error("{}: there is no such file or directory{}", place(image, path), if image.as_os_str().is_empty() { "" } else { " in it" })]
    Absent {
        /// The image.
        image: PathBuf,
        /// The path in it.
        path: PathBuf,
    },
    /// The file has another type than the request needs.
    #[error("{}: {what}", place(image, path))]
    Type {
        /// The image.
        image: PathBuf,
        /// The path in it.
        path: PathBuf,
        /// What it is, and what to do.
        what: &'static str,
    },
    /// A part of it is damaged or cannot be read.
    #[error("{}: {error}", place(image, path))]
    Volume {
        /// The image.
        image: PathBuf,
        /// The path in it.
        path: PathBuf,
        /// What is wrong.
        error: VolumeError,
    },
    /// The place of a copy is taken.
    #[error("{}: it exists already; nothing is written over", shown(target))]
    Exists {
        /// The place on the host.
        target: PathBuf,
    },
    /// What was found cannot be printed.
    #[error("cannot write what was found: {0}")]
    Output(io::Error),
    /// A file of the host cannot be made.
    #[error(transparent)]
    Path(#[from] PathError),
}

/// The most paths that are named because they could not be read.
const NAMED: usize = 20;

/// What a scan could not read of a source: a line for each of the first ones, and the paths.
fn unread(opened: &Opened) -> (Vec<String>, Vec<&[u8]>) {
    let reasons =
        [Reason::UnreadableFile, Reason::UnreadableDirectory, Reason::BadName, Reason::BadAttributes, Reason::Failed];
    let listed: Vec<_> = opened.report.left_out.iter().filter(|one| reasons.contains(&one.reason)).collect();
    let mut lines: Vec<String> = listed.iter().take(NAMED).map(|one| one.to_string()).collect();
    let count: u64 = reasons.iter().map(|reason| opened.report.count(*reason)).sum();
    let more = count.saturating_sub(lines.len() as u64);
    if more > 0 {
        lines.push(format!("{} cannot be read either", counted(more, "more path", "more paths")));
    }
    (lines, listed.iter().map(|one| &one.path[..]).collect())
}

/// Where something is: the image, if it has a name, and the path in it.
fn place(image: &Path, path: &Path) -> String {
    if image.as_os_str().is_empty() { shown(path) } else { format!("{}: {}", shown(image), shown(path)) }
}

/// An image whose files are looked at.
pub struct Guest {
    volume: Arc<dyn Volume>,
    image: PathBuf,
    /// The directory of this machine whose files these are, if it is no image.
    directory: Option<PathBuf>,
    warnings: Vec<String>,
    notes: Vec<String>,
}

impl Guest {
    /// Opens an image, a volume of one, or an archive. `salvage` reads what can be read of a damaged one.
    ///
    /// # Errors
    /// See [`OpenError`].
    pub fn open(source: &Source, salvage: bool) -> Result<Guest, OpenError> {
        let image = source.path().to_owned();
        if let Some(OpenedVolume { volume, notes, .. }) = inarch_source::open_volume(source, salvage)? {
            let of_volume = volume.notes();
            let (notes, warnings) = notes.into_iter().partition(|note| of_volume.contains(note));
            return Ok(Guest { volume, image, directory: None, warnings, notes });
        }
        let opened = inarch_source::open(source, &Selection { salvage, ..Selection::default() })?;
        let directory = if let Source::Directory(path) = source { Some(path.clone()) } else { None };
        let (unread, _) = unread(&opened);
        let notes = opened.notes.into_iter().chain(unread).collect();
        let volume = Arc::new(TreeVolume::new(opened.tree, opened.content));
        Ok(Guest { volume, image, directory, warnings: Vec::new(), notes })
    }

    /// A file system that something else reads.
    pub fn over(volume: Arc<dyn Volume>, image: PathBuf) -> Guest {
        Guest { volume, image, directory: None, warnings: Vec::new(), notes: Vec::new() }
    }

    /// A volume that is open. Messages name paths alone.
    pub fn of(volume: Arc<dyn Volume>) -> Guest {
        let notes = volume.notes();
        Guest { volume, image: PathBuf::new(), directory: None, warnings: Vec::new(), notes }
    }

    /// Its files.
    pub fn volume(&self) -> Arc<dyn Volume> {
        Arc::clone(&self.volume)
    }

    /// Lines that matter whatever is read: another program uses the image.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// Lines about what is not there: parts of the guest that are not on its disk, or cannot be read.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    fn fail(&self, path: &Path) -> impl Fn(VolumeError) -> GuestError {
        let (image, path) = (self.image.clone(), path.to_owned());
        move |error| GuestError::Volume { image: image.clone(), path: path.clone(), error }
    }

    fn wrong_type(&self, path: &Path, what: &'static str) -> GuestError {
        GuestError::Type { image: self.image.clone(), path: path.to_owned(), what }
    }

    /// Confines a thread that reads its files. Those of a directory are opened when they are read.
    fn parse(&self) -> Result<Parse, GuestError> {
        let Some(path) = &self.directory else { return Ok(Parse::new()) };
        Parse::new().reading(path).map_err(|error| PathError::new(path, "cannot be read", error).into())
    }

    /// Has a confined thread do `ask`, which sends what it finds; hands that to `take` in this thread, in order. `ask` ends early if its sender
    /// returns false, which is when `take` failed.
    fn stream<T: Send>(
        &self,
        path: &Path,
        ask: impl FnOnce(&dyn Volume, &mut dyn FnMut(T) -> bool) -> Result<(), VolumeError> + Send,
        mut take: impl FnMut(T) -> Result<(), GuestError>,
    ) -> Result<(), GuestError> {
        let (sender, found) = sync_channel(QUEUE);
        let volume = &*self.volume;
        let mut taken = Ok(());
        let asked = self.parse()?.run(
            move |_| ask(volume, &mut |item| sender.send(item).is_ok()),
            || taken = found.into_iter().try_for_each(&mut take),
        );
        let asked = asked.map_err(OpenError::NoThread)?;
        taken?;
        asked.map_err(self.fail(path))
    }

    /// Finds a file by its path, in a confined thread.
    fn find_node(&self, path: &Path, last: Last) -> Result<(Node, Attributes), GuestError> {
        use std::os::unix::ffi::OsStrExt;
        let found = inarch_source::parse(|_| {
            let node = resolve(&*self.volume, path.as_os_str().as_bytes(), last)?;
            node.map(|node| Ok((node, self.volume.attributes(node)?))).transpose()
        })?;
        let absent = || GuestError::Absent { image: self.image.clone(), path: path.to_owned() };
        found.map_err(self.fail(path))?.ok_or_else(absent)
    }

    /// The bytes of a regular file, piece by piece.
    ///
    /// # Errors
    /// There is no such file, it is no regular one or damaged, or `take` failed.
    pub fn read(&self, path: &Path, mut take: impl FnMut(&[u8]) -> io::Result<()>) -> Result<(), GuestError> {
        self.read_while(path, |bytes| take(bytes).map(|()| true))
    }

    /// The same, until `take` returns false.
    ///
    /// # Errors
    /// As [`Guest::read`].
    pub fn read_while(&self, path: &Path, mut take: impl FnMut(&[u8]) -> io::Result<bool>) -> Result<(), GuestError> {
        self.read_pieces(path, |piece| match piece {
            Piece::Data(bytes) => take(&bytes),
            Piece::Hole(length) => {
                for zeros in zeros(length) {
                    if !take(zeros)? {
                        return Ok(false);
                    }
                }
                Ok(true)
            }
        })
    }

    /// The same, with its holes.
    ///
    /// # Errors
    /// As [`Guest::read`].
    pub fn read_pieces(&self, path: &Path, mut take: impl FnMut(Piece) -> io::Result<bool>) -> Result<(), GuestError> {
        let (node, attributes) = self.find_node(path, Last::Followed)?;
        match attributes.file_type() {
            Some(FileType::Regular) => {}
            Some(FileType::Directory) => return Err(self.wrong_type(path, "it is a directory; 'ls' lists it")),
            _ => return Err(self.wrong_type(path, "it is no regular file")),
        }
        let mut is_enough = false;
        let read = self.stream(
            path,
            |volume, send| copy::pieces(volume, node, attributes.size, send),
            |piece: Piece| {
                is_enough = !take(piece).map_err(GuestError::Output)?;
                // This ends the stream, and is no error.
                if is_enough { Err(GuestError::Output(io::ErrorKind::Interrupted.into())) } else { Ok(()) }
            },
        );
        if is_enough { Ok(()) } else { read }
    }
}
