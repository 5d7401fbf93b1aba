//! `inarch disk format`: makes a file system on a partition of an image.
//!
//! 1. The image is opened and locked. What it holds is not overwritten unless that was asked for.
//! 2. The tool makes the file system in a sparse file beside the image, of the partition's size: many tools know no offsets, and one that fails
//!    leaves the image as it is.
//! 3. Room is reserved in the image for its data, if it is a raw one.
//! 4. The partition is cleared, and its data are moved there, its first bytes last. A process that is killed meanwhile, or a machine that
//!    loses its power, leaves a partition that holds nothing.

use std::fs::File;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use inarch_block::{Backing, BackingFile};
use inarch_disk::Space;
use inarch_format::ImageOptions;
use inarch_lifecycle::Events;
use inarch_lifecycle::PathError;
use inarch_lifecycle::scratch::Scratch;
use inarch_source::{Source, parse};
use inarch_tree::select::Selection;

use super::MakeError;
use super::image::{Image, random_uuid, told};
use super::mkfs::{self, Ended, Limits};
use super::moved::each_extent;
use super::tools::{Maker, Wish};
use crate::image::{ImageReport, ImageRequest, make};

/// The bytes of a volume that come last: all signatures at a volume's start are in them.
const FRONT: u64 = 1 << 20;
/// The blocks of our ext4.
const BLOCK: u64 = 4096;

/// A tree that a file system is to hold.
#[derive(Clone, Debug)]
pub struct Tree {
    /// Where it comes from.
    pub source: Source,
    /// What of it.
    pub selection: Selection,
}

/// What to make.
#[derive(Clone, Debug)]
pub struct FormatRequest {
    /// The image.
    pub image: PathBuf,
    /// The partition's number; `None` for an image without partitions.
    pub partition: Option<u32>,
    /// The file system.
    pub maker: &'static Maker,
    /// The file system's label.
    pub label: String,
    /// More options for the tool.
    pub options: Vec<std::ffi::OsString>,
    /// What it shall hold; only ext4.
    pub tree: Option<Tree>,
    /// Overwrite what is there.
    pub force: bool,
}

/// A file system that was made.
#[derive(Clone, Debug)]
pub struct Formatted {
    /// Bytes of the partition.
    pub size: u64,
    /// Bytes that the new file system takes in the image.
    pub stored: u64,
    /// Its own sizes, if its first bytes say them.
    pub space: Option<Space>,
    /// What its tree became, if it got one.
    pub tree: Option<ImageReport>,
}

/// Makes a file system.
///
/// # Errors
/// See [`MakeError`]; each says what became of the image.
pub fn format(request: &FormatRequest) -> Result<Formatted, MakeError> {
    let maker = request.maker;
    if request.tree.is_some() && maker.format != "ext4" {
        let reason = "is made empty; a tree can be put into ext4 (--from), or copied in later".to_owned();
        return Err(MakeError::Unfit { format: maker.format, reason });
    }
    let wish = Wish { label: request.label.clone(), start: 0, options: request.options.clone() };
    // Before anything is looked at: what is missing is not there for any image.
    if request.tree.is_none() {
        maker.find()?;
        maker.words(&wish)?;
    }
    let image = Image::open(&request.image)?;
    let target = target(&image, request)?;
    let scratch = Scratch::within(image.path.parent().unwrap_or(std::path::Path::new(".")))?;
    let (file, report) = match &request.tree {
        None => {
            let (file, path) = scratch.sparse("volume", target.length)?;
            let wish = Wish { start: target.start, ..wish };
            match mkfs::run(maker, &wish, &scratch, &path, Limits::NONE)? {
                Ended::Well { .. } => {}
                Ended::Badly(reason) => return Err(MakeError::Tool { tool: maker.tool(), reason }),
                Ended::Stopped(why) => return Err(MakeError::Tool { tool: maker.tool(), reason: why.to_owned() }),
            }
            // A tool may have made the file anew.
            let made = File::open(&path).map_err(|error| PathError::new(&path, "cannot open it", error));
            drop(file);
            (made?, None)
        }
        Some(tree) => {
            let output = scratch.path().join("volume");
            let options = ImageOptions {
                label: request.label.clone(),
                uuid: Some(random_uuid()?),
                size: Some(target.length - target.length % BLOCK),
                ..ImageOptions::default()
            };
            let made = ImageRequest {
                selection: tree.selection.clone(),
                format: Some("ext4".to_owned()),
                options,
                ..ImageRequest::new(tree.source.clone(), output.clone())
            };
            let report = make(made, Events::ignored()).map_err(Box::new)?;
            let file = File::open(&output).map_err(|error| PathError::new(&output, "cannot open it", error))?;
            (file, Some(report))
        }
    };
    let space = space(&file, &scratch.path().join("volume"), maker)?;
    let stored = transfer(&file, &image, &target)?;
    Ok(Formatted { size: target.length, stored, space, tree: report })
}

/// The part of the image that is formatted.
struct Target {
    place: String,
    start: u64,
    length: u64,
}

fn target(image: &Image, request: &FormatRequest) -> Result<Target, MakeError> {
    let disk = match &image.disk {
        Ok(disk) => disk,
        Err(error) => {
            let what = format!("{error}; partition it anew before it is formatted");
            return Err(MakeError::Partition { path: image.path.clone(), what });
        }
    };
    let wrong = |what: String| MakeError::Partition { path: image.path.clone(), what };
    let has_table = disk.table.is_some();
    let (target, content) = match request.partition {
        None if has_table && !request.force => {
            return Err(wrong("has partitions; name one (--partition 1), or --force takes the whole disk".to_owned()));
        }
        None => (Target { place: "the disk".to_owned(), start: 0, length: image.size }, disk.content.as_ref()),
        Some(_) if !has_table => return Err(wrong("has no partitions; inarch disk partition makes some".to_owned())),
        Some(number) => {
            let part = disk.parts.iter().find(|part| part.number == number);
            let Some(part) = part else {
                let numbers: Vec<String> = disk.parts.iter().map(|part| part.number.to_string()).collect();
                return Err(wrong(format!("has no partition {number}; it has {}", numbers.join(", "))));
            };
            // Types of extended partitions, which hold others.
            if matches!(part.type_id.as_str(), "05" | "0f" | "85") {
                return Err(wrong(format!("partition {number} is an extended one, which holds others")));
            }
            if part.start.checked_add(part.length).is_none_or(|end| end > image.size) {
                return Err(wrong(format!("partition {number} goes beyond the end of the image")));
            }
            let place = format!("partition {number}");
            (Target { place, start: part.start, length: part.length }, part.content.as_ref())
        }
    };
    if request.force {
        return Ok(target);
    }
    let end = target.start.saturating_add(target.length);
    let over = disk.parts.iter().find(|part| {
        let is_extended = matches!(part.type_id.as_str(), "05" | "0f" | "85");
        let overlaps = part.start < end && target.start < part.start.saturating_add(part.length);
        request.partition.is_some_and(|number| number != part.number) && overlaps && !is_extended
    });
    if let Some(part) = over {
        return Err(wrong(format!(
            "{} overlaps partition {}; --force formats it all the same",
            target.place, part.number
        )));
    }
    let fail = |error| PathError::new(&image.path, "cannot read it", error);
    let what = match content {
        Some(content) => told(content),
        None if image.has_bytes(target.start, target.length).map_err(fail)? => "data of an unknown kind".to_owned(),
        None => return Ok(target),
    };
    Err(MakeError::Holds { path: image.path.clone(), place: target.place, what })
}

/// The sizes that the new file system says it has.
pub(super) fn space(file: &File, path: &std::path::Path, maker: &Maker) -> Result<Option<Space>, MakeError> {
    let fail = |error: io::Error| PathError::new(path, "cannot read it", error);
    let file = file.try_clone().map_err(fail)?;
    let volume: Arc<dyn Backing> = Arc::new(BackingFile::new(file, path.to_owned()).map_err(fail)?);
    let space = parse(|parsing| inarch_disk::space(parsing, &*volume, maker.signature))?;
    space.map_err(|error| MakeError::Disk { path: path.to_owned(), error })
}

/// Moves what `made` holds to its place; returns how many bytes that were.
fn transfer(made: &File, image: &Image, target: &Target) -> Result<u64, MakeError> {
    let state = std::cell::Cell::new("is as it was");
    let fail = |error: io::Error| MakeError::Moving {
        path: image.path.clone(),
        place: target.place.clone(),
        error,
        state: state.get(),
    };
    let length = made.metadata().map_err(fail)?.len().min(target.length);
    let mut stored = 0_u64;
    let reserved = each_extent(made, (0, length), |extent| {
        stored = stored.saturating_add(extent.length);
        image.reserve(target.start.saturating_add(extent.start), extent.length)
    });
    reserved.map_err(fail)?;
    state.set("holds nothing usable now; format it again");
    // The front first: without it nothing that was there is found again. Its room is taken back at once.
    let front = FRONT.min(target.length);
    let behind = target.start.saturating_add(front);
    image.clear(target.start, front).map_err(fail)?;
    let reserved = each_extent(made, (0, front.min(length)), |extent| {
        image.reserve(target.start.saturating_add(extent.start), extent.length)
    });
    reserved.map_err(fail)?;
    image.sync().map_err(fail)?;
    image.take_in(made, (front, length.max(front)), behind).map_err(fail)?;
    let end = target.start.saturating_add(length.max(front));
    image.clear(end, target.length.saturating_sub(length.max(front))).map_err(fail)?;
    image.sync().map_err(fail)?;
    image.take_in(made, (0, front.min(length)), target.start).map_err(fail)?;
    image.sync().map_err(fail)?;
    Ok(stored)
}
