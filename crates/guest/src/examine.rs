//! `inarch disk`: looks at disk images. Nothing is written to them.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use inarch_confine::Parsing;
use inarch_disk::Piece;
pub use inarch_disk::{Above, Disk, DiskError, Kind, Part, Signature, Table, TableKind, Volumes};
use inarch_format::btrfs;
pub use inarch_format::btrfs::ListedSubvolume;
use inarch_format::probe::{Found, container, probe};
use inarch_lifecycle::PathError;
use inarch_lifecycle::shown;
use inarch_source::{ContainerError, DiskFile, DiskImage, ImageFormat, Keys, OpenedDisk, parse};

/// Why a disk image cannot be looked at.
#[derive(Debug, thiserror::Error)]
pub enum ExamineError {
    /// The file cannot be opened, or is none that can be a disk.
    #[error(transparent)]
    Path(#[from] PathError),
    /// It cannot be read, or is damaged.
    #[error("{}: {error}", shown(path))]
    Disk {
        /// The image.
        path: PathBuf,
        /// What is wrong.
        error: DiskError,
    },
    /// It is in a container that cannot be opened, or names files that the user did not name.
    #[error("{}: {error}", shown(path))]
    Container {
        /// The image.
        path: PathBuf,
        /// What is wrong.
        error: ContainerError,
    },
    /// It is an image in a container of a known kind, which is not read here.
    #[error("{}: {found}", shown(path))]
    NotRead {
        /// The image.
        path: PathBuf,
        /// What it is, and what to do.
        found: String,
    },
    /// There is no volume of that name.
    #[error("{}: it has no volume '{name}'; it has {there}", shown(path))]
    NoVolume {
        /// The image.
        path: PathBuf,
        /// The name.
        name: String,
        /// The volumes that there are.
        there: String,
    },
    /// The volumes on the images cannot be read.
    #[error(transparent)]
    Volumes(DiskError),
    /// No thread could be confined to read it.
    #[error(transparent)]
    Thread(#[from] inarch_source::OpenError),
}

/// What to look at.
#[derive(Clone, Debug)]
pub struct ExamineRequest {
    /// The images.
    pub images: Vec<DiskFile>,
    /// The only volume that is wanted, by one of its names.
    pub named: Option<String>,
    /// What opens encrypted volumes.
    pub keys: Keys,
}

/// What is on some images.
pub struct Examined {
    /// The images, in the order of the paths.
    pub disks: Vec<ExaminedDisk>,
    /// The volumes on all of them together.
    pub volumes: Volumes,
    /// The subvolumes of each Btrfs that has some, by what it lies on.
    pub subvolumes: Vec<(String, Vec<ListedSubvolume>)>,
}

/// What is on one image.
#[derive(Clone, Debug)]
pub struct ExaminedDisk {
    /// How the disk lies in the image.
    pub format: ImageFormat,
    /// What is on it.
    pub disk: Disk,
}

/// Looks at the partition tables of disk images, at what each partition holds, and at the volumes that lie on them: one
/// may lie on several images. A thread that can do nothing else parses them.
///
/// # Errors
/// See [`ExamineError`].
pub fn examine(request: &ExamineRequest) -> Result<Examined, ExamineError> {
    let open = |file: &DiskFile| Ok((file.clone(), DiskImage::open(file)?));
    let images = request.images.iter().map(open).collect::<Result<Vec<_>, PathError>>()?;
    parse(|parsing| {
        let (mut disks, mut pieces) = (Vec::new(), Vec::new());
        let mut unused: Vec<PathBuf> = request.images.iter().flat_map(|file| file.with.clone()).collect();
        unused.sort();
        unused.dedup();
        for (number, (DiskFile { path, format, with }, image)) in images.into_iter().enumerate() {
            let opened = image.disk(parsing);
            let opened = opened.map_err(|error| ExamineError::Container { path: path.clone(), error })?;
            unused.retain(|path| opened.unused.contains(path) || !with.contains(path));
            let disk = examine_one(parsing, &path, &opened, format.is_none())?;
            pieces.extend(disk.pieces(&opened.disk, number, &shown(&path)));
            disks.push(ExaminedDisk { format: opened.format, disk });
        }
        let mut volumes = inarch_disk::above(parsing, &pieces, &request.keys).map_err(ExamineError::Volumes)?;
        let unused =
            unused.iter().map(|path| format!("no image asks for {}, which was given with --with", shown(path)));
        volumes.notes.extend(unused);
        if let Some(name) = &request.named {
            narrow(name, &mut disks, &mut pieces, &mut volumes).map_err(|there| ExamineError::NoVolume {
                path: request.images.first().map(|image| image.path.clone()).unwrap_or_default(),
                name: name.clone(),
                there,
            })?;
        }
        let subvolumes = subvolumes(parsing, &pieces, &volumes);
        Ok(Examined { disks, volumes, subvolumes })
    })?
}

/// Leaves what the volume is that is called `name`, and what lies on it. The error says what there is.
fn narrow(
    name: &str,
    disks: &mut [ExaminedDisk],
    pieces: &mut Vec<Piece>,
    volumes: &mut Volumes,
) -> Result<(), String> {
    let of_pieces = pieces.iter().map(|piece| piece.names.device());
    let there: Vec<_> = of_pieces.chain(volumes.list.iter().map(|volume| volume.name.clone())).collect();
    pieces.retain(|piece| piece.names.answer_to(name));
    let is_on = |volume: &Above| volume.on.iter().any(|on| pieces.iter().any(|piece| piece.name == *on));
    volumes.list.retain(|volume| volume.names().answer_to(name) || is_on(volume));
    if pieces.is_empty() && volumes.list.is_empty() {
        return Err(there.join(", "));
    }
    for (number, examined) in disks.iter_mut().enumerate() {
        let is_left = |part: &Part| {
            pieces.iter().any(|piece| (piece.names.disk, piece.names.part) == (number, Some(part.number)))
        };
        examined.disk.parts.retain(is_left);
    }
    Ok(())
}

fn subvolumes(parsing: Parsing, pieces: &[Piece], volumes: &Volumes) -> Vec<(String, Vec<ListedSubvolume>)> {
    let is_btrfs = |content: Option<&Signature>| content.is_some_and(|content| content.format == "btrfs");
    let of_pieces = pieces.iter().filter(|piece| is_btrfs(piece.names.content.as_ref()));
    let of_pieces = of_pieces.map(|piece| (&piece.name, &piece.backing));
    let above = volumes.list.iter().filter(|volume| is_btrfs(volume.content.as_ref()));
    let above = above.filter_map(|volume| Some((&volume.name, volume.bytes.as_ref().ok()?)));
    // What is damaged is found out when it is read.
    let listed = of_pieces
        .chain(above)
        .map(|(name, backing)| (name.clone(), btrfs::subvolumes(parsing, Arc::clone(backing)).unwrap_or_default()));
    listed.filter(|(_, subvolumes)| !subvolumes.is_empty()).collect()
}

/// Looks at the disk in an image that is open already; `path` is its name in errors. If `is_guessed`, the user did not say that it is raw; then
/// the start of another container is an error.
///
/// # Errors
/// The image is of a kind that is not read, or its partition table is damaged.
pub fn examine_one(parsing: Parsing, path: &Path, opened: &OpenedDisk, is_guessed: bool) -> Result<Disk, ExamineError> {
    let fail = |error| ExamineError::Disk { path: path.to_owned(), error };
    let is_guessed = is_guessed && opened.format == ImageFormat::Raw;
    // The table of a disk in a container of another kind may lie where a raw disk has one.
    if is_guessed && let Ok(Some(found)) = container(parsing, &*opened.disk) {
        return Err(ExamineError::NotRead { path: path.to_owned(), found });
    }
    let disk = inarch_disk::examine(parsing, &opened.disk).map_err(fail)?;
    if disk.table.is_none()
        && disk.content.is_none()
        && is_guessed
        && let Ok(Found::Other(found)) = probe(parsing, &*opened.disk)
    {
        return Err(ExamineError::NotRead { path: path.to_owned(), found });
    }
    Ok(disk)
}
