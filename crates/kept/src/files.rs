//! The files of a kept run for one disk.
//!
//! | file | content |
//! |---|---|
//! | `N.base` | the host's tree as the run's last command found it |
//! | `N.G.overlay` | what command number G wrote to disk N |
//! | `N.G.layer` | the changes of all commands up to number G to the host's tree; the greatest G is valid |
//! | `N.G.bytes` | bytes of such a layer that are in no overlay |
//!
//! A layer refers to a file by its name and its [`Seal`], which the file gets when its command has ended. Another
//! file in its place, or an earlier state of it, is refused.
//!
//! An overlay above the greatest layer belongs to a command that was killed or has just ended; it is folded before
//! anything else ([`super::fold()`]). A layer is put in place by one rename, and only then what it no longer needs is
//! removed. So there is always either the old state or the new one.

use std::fs::{self, OpenOptions};
use std::io;
use std::ops::Range;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use inarch_block::{Backing, BackingFile, Seal};
use inarch_lifecycle::trust;
use inarch_tree::layer::{Layer, Place};
use inarch_tree::{InodeId, Tree};
use rustix::fs::{FallocateFlags, fallocate};
use rustix::io::Errno;

use super::durable::{replace, sync_directory};
use crate::KeptError;

/// Bytes between two used parts of a file that are not worth a call to give them back.
const SMALL_GAP: u64 = 256 << 10;

/// Bytes of the page in which an overlay has its header, and every file its seal.
pub(super) const FIRST_PAGE: u64 = 4096;

/// Why a file is not used.
const EXCHANGED: &str = "it is not the file that the run's changes point into, but another one or an older state of it; put that back, \
                         or inarch discard the run";

/// The files of one disk of a kept run.
#[derive(Clone, Debug)]
pub struct DiskFiles {
    folder: PathBuf,
    ordinal: u8,
}

/// What a file of a disk is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Overlay,
    Layer,
    Bytes,
}

impl Kind {
    fn extension(self) -> &'static str {
        match self {
            Kind::Overlay => "overlay",
            Kind::Layer => "layer",
            Kind::Bytes => "bytes",
        }
    }
}

impl DiskFiles {
    pub fn new(folder: &Path, ordinal: u8) -> DiskFiles {
        DiskFiles { folder: folder.to_owned(), ordinal }
    }

    fn name(&self, kind: Kind, generation: u64) -> String {
        format!("{}.{generation}.{}", self.ordinal, kind.extension())
    }

    /// The files of this disk that have a generation.
    fn list(&self) -> Result<Vec<(Kind, u64, PathBuf)>, KeptError> {
        let fail = |error| KeptError::path(&self.folder, "cannot list what is kept", error);
        let mut found = Vec::new();
        for entry in fs::read_dir(&self.folder).map_err(fail)? {
            let entry = entry.map_err(fail)?;
            let Ok(name) = entry.file_name().into_string() else { continue };
            let mut words = name.split('.');
            let (ordinal, generation, extension) = (words.next(), words.next(), words.next());
            let kind = [Kind::Overlay, Kind::Layer, Kind::Bytes].into_iter();
            let kind = kind.into_iter().find(|kind| Some(kind.extension()) == extension && words.next().is_none());
            let generation = generation.and_then(|text| text.parse().ok());
            if let (true, Some(kind), Some(generation)) = (ordinal == Some(&self.ordinal.to_string()), kind, generation)
            {
                let path = entry.path();
                let checked = fs::symlink_metadata(&path).and_then(|metadata| trust::check(&metadata));
                match checked {
                    // Another's sweep took it.
                    Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                    Err(error) => return Err(KeptError::path(&path, "cannot use what is kept", error)),
                    Ok(()) => found.push((kind, generation, path)),
                }
            }
        }
        Ok(found)
    }

    fn newest(&self, kind: Kind) -> Result<u64, KeptError> {
        Ok(self.list()?.into_iter().filter(|file| file.0 == kind).map(|file| file.1).max().unwrap_or(0))
    }

    /// The number of the overlay that is not folded yet.
    pub fn unfolded(&self) -> Result<Option<u64>, KeptError> {
        let (overlay, layer) = (self.newest(Kind::Overlay)?, self.newest(Kind::Layer)?);
        Ok((overlay > layer).then_some(overlay))
    }

    /// Whether anything is kept of the disk.
    pub fn is_kept(&self) -> Result<bool, KeptError> {
        Ok(self.newest(Kind::Overlay)? > 0 || self.newest(Kind::Layer)? > 0)
    }

    /// Where the next command's writes go.
    pub fn next_overlay(&self) -> Result<PathBuf, KeptError> {
        let newest = self.newest(Kind::Overlay)?.max(self.newest(Kind::Layer)?);
        Ok(self.overlay(newest + 1))
    }

    /// Where the writes of command number `generation` are.
    pub fn overlay(&self, generation: u64) -> PathBuf {
        self.folder.join(self.name(Kind::Overlay, generation))
    }

    /// Seals that file, because its command has ended. Returns its name for a layer.
    pub fn seal_overlay(&self, generation: u64) -> Result<String, KeptError> {
        let path = self.overlay(generation);
        let sealed = trust::open(&path, OpenOptions::new().read(true).write(true)).and_then(|file| {
            let seal = Seal::new()?;
            seal.put(&file)?;
            Ok(sealed_name(&self.name(Kind::Overlay, generation), seal))
        });
        sealed.map_err(|error| KeptError::path(&path, "cannot seal what the run wrote", error))
    }

    /// The file for bytes of a layer that are in no overlay, and its name for a layer; the bytes begin at
    /// [`FIRST_PAGE`].
    pub fn spilled(&self, generation: u64, seal: Seal) -> (PathBuf, String) {
        let name = self.name(Kind::Bytes, generation);
        (self.folder.join(&name), sealed_name(&name, seal))
    }

    fn base(&self) -> PathBuf {
        self.folder.join(format!("{}.base", self.ordinal))
    }

    /// The size of the stored host tree; 0 if there is none.
    pub fn base_bytes(&self) -> u64 {
        fs::metadata(self.base()).map_or(0, |file| file.len())
    }

    /// An opaque text that changes with each command. What an apply takes out of the layer does not change it.
    pub fn stamp(&self) -> String {
        use std::os::unix::fs::MetadataExt;
        let stamp = |path: PathBuf| {
            let metadata = fs::metadata(path);
            metadata.map_or_else(
                |_| String::new(),
                |file| format!("{}-{}.{:09}", file.ino(), file.mtime(), file.mtime_nsec()),
            )
        };
        let layer = self.newest(Kind::Layer).unwrap_or(0);
        format!("{}/{layer}", stamp(self.base()))
    }

    /// Keeps the host's tree, in the place of whatever was kept.
    pub fn keep_base(&self, tree: &Tree) -> Result<(), KeptError> {
        let path = self.base();
        replace(&path, &tree.store()).map_err(|error| KeptError::path(&path, "cannot keep the tree of the run", error))
    }

    /// The host's tree as the last command found it.
    pub fn load_base(&self) -> Result<Tree, KeptError> {
        let path = self.base();
        let bytes = trust::read(&path)
            .map_err(|error| KeptError::path(&path, "cannot read the tree of the kept run", error))?;
        Tree::load(&bytes).map_err(|error| KeptError::Tree { path, error })
    }

    /// What the run has changed so far; `None` where that is nothing.
    pub fn load_layer(&self) -> Result<Option<Layer>, KeptError> {
        let generation = self.newest(Kind::Layer)?;
        if generation == 0 {
            return Ok(None);
        }
        let path = self.folder.join(self.name(Kind::Layer, generation));
        let bytes = trust::read(&path)
            .map_err(|error| KeptError::path(&path, "cannot read what the run has changed", error))?;
        Layer::load(&bytes).map(Some).map_err(|error| KeptError::Layer { path, error })
    }

    /// Makes `layer` the run's changes up to the newest overlay, then frees what it does not need. The files that it
    /// refers to must be durable.
    pub fn save_layer(&self, layer: &Layer) -> Result<(), KeptError> {
        let generation = self.newest(Kind::Overlay)?.max(self.newest(Kind::Layer)?);
        let path = self.folder.join(self.name(Kind::Layer, generation));
        replace(&path, &layer.store())
            .map_err(|error| KeptError::path(&path, "cannot keep what the run changed", error))?;
        self.sweep(layer, generation)
    }

    /// Removes the newest overlay, to which nothing was written.
    pub fn drop_unfolded(&self) -> Result<(), KeptError> {
        match self.unfolded()? {
            Some(generation) => remove(&self.overlay(generation)),
            None => Ok(()),
        }
    }

    /// Removes files that `layer` does not refer to, and frees unneeded parts of the others.
    fn sweep(&self, layer: &Layer, generation: u64) -> Result<(), KeptError> {
        for (kind, number, path) in self.list()? {
            let name = self.name(kind, number);
            match (kind, layer.files().iter().position(|file| unsealed(file).0 == name)) {
                (Kind::Layer, _) if number < generation => remove(&path)?,
                (Kind::Overlay | Kind::Bytes, None) if number <= generation => remove(&path)?,
                (Kind::Overlay, Some(at)) => {
                    punch(&path, &used(layer, at))
                        .map_err(|error| KeptError::path(&path, "cannot give space back", error))?;
                }
                _ => {}
            }
        }
        if layer.is_empty() {
            remove(&self.base())?;
        }
        sync_directory(&self.folder).map_err(|error| KeptError::path(&self.folder, "cannot be made durable", error))
    }

    /// Opens the files, besides the host's, that a layer refers to.
    pub fn open_files(&self, layer: &Layer) -> Result<Vec<Arc<dyn Backing>>, KeptError> {
        let open = |name: &String| {
            let (name, seal) = unsealed(name);
            // A name of ours; one that a damaged layer made up leads nowhere else.
            let path = self.folder.join(Path::new(name).file_name().unwrap_or_default());
            let backing = trust::open(&path, OpenOptions::new().read(true)).and_then(|file| {
                // What earlier versions of this program kept has no seal.
                if seal.is_some() && Seal::of(&file)? != seal {
                    return Err(io::Error::other(EXCHANGED));
                }
                BackingFile::new(file, path.clone())
            });
            match backing {
                Ok(backing) => Ok(Arc::new(backing) as Arc<dyn Backing>),
                Err(error) => Err(KeptError::path(&path, "cannot read what the run wrote", error)),
            }
        };
        layer.files().iter().map(open).collect()
    }

    /// The disk space of all these files.
    pub fn bytes(&self) -> u64 {
        let files = self.list().unwrap_or_default();
        files.iter().filter_map(|(_, _, path)| fs::metadata(path).ok()).map(|metadata| metadata.blocks() * 512).sum()
    }
}

/// A file's name with its seal, as a layer knows it.
fn sealed_name(name: &str, seal: Seal) -> String {
    format!("{name}={seal}")
}

/// The name of a file that a layer knows, and its seal.
fn unsealed(known: &str) -> (&str, Option<Seal>) {
    let sealed = known.split_once('=').and_then(|(name, seal)| Some((name, Some(seal.parse().ok()?))));
    sealed.unwrap_or((known, None))
}

fn remove(path: &Path) -> Result<(), KeptError> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(KeptError::path(path, "cannot remove it", error)),
        _ => Ok(()),
    }
}

/// The ranges of file number `at` that a layer refers to, and its first page; ascending, with close ranges merged.
fn used(layer: &Layer, at: usize) -> Vec<Range<u64>> {
    let inodes = (0..layer.tree().inode_count()).map(InodeId);
    let extents = inodes.flat_map(|id| layer.extents().of(id).iter());
    let is_here = |backing| matches!(layer.place(backing), Some(Place::File(file, _)) if file == at);
    let parts = extents.filter(|extent| is_here(extent.backing)).map(|extent| extent.at..extent.at + extent.length);
    let mut parts: Vec<Range<u64>> = std::iter::once(0..FIRST_PAGE).chain(parts).collect();
    parts.sort_by_key(|part| part.start);
    let mut joined: Vec<Range<u64>> = Vec::new();
    for part in parts {
        match joined.last_mut().filter(|last| part.start <= last.end.saturating_add(SMALL_GAP)) {
            Some(last) => last.end = last.end.max(part.end),
            None => joined.push(part),
        }
    }
    joined
}

/// Frees the space of a file except the ranges `used`.
fn punch(path: &Path, used: &[Range<u64>]) -> io::Result<()> {
    let file = trust::open(path, OpenOptions::new().write(true))?;
    let mut start = 0;
    let end = file.metadata()?.len();
    for part in used.iter().cloned().chain(std::iter::once(end..end)) {
        if part.start > start {
            let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            match fallocate(&file, flags, start, part.start - start) {
                // A file system that cannot: the space stays in use.
                Err(Errno::OPNOTSUPP) => return Ok(()),
                result => result?,
            }
        }
        start = start.max(part.end);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::unix::fs::FileExt;

    use inarch_tree::compare::Difference;
    use inarch_tree::layer::{Bytes, Facts, Holder, Identity, Lender, Part};
    use inarch_tree::{Attributes, Builder};

    use super::*;

    /// A layer with a new file of one page, whose bytes are at 1 MiB of the file with this name.
    struct OneFile(&'static str);

    impl Facts for OneFile {
        fn origin(&self, _: InodeId) -> Option<Lender> {
            None
        }

        fn bytes(&mut self, _: InodeId) -> io::Result<Bytes> {
            let holder = Holder::File(self.0.to_owned());
            Ok(Bytes::Parts(vec![Part { offset: 0, length: 4096, at: 1 << 20, holder }]))
        }

        fn was(&self, _: &[u8]) -> Option<Option<Identity>> {
            None
        }
    }

    fn layer(holder: &'static str) -> Layer {
        let root = Attributes { mode: 0o040_755, ..Attributes::default() };
        let base = Builder::new(&root).unwrap().finish().unwrap();
        let mut builder = Builder::new(&root).unwrap();
        builder.list(InodeId::ROOT).unwrap();
        let file = Attributes { mode: 0o100_644, size: 4096, ..Attributes::default() };
        let new = builder.add(b"file", &file).unwrap();
        let newer = builder.finish().unwrap();
        let added = Difference { path: b"file".to_vec(), old: None, new: Some(new), aspects: Default::default() };
        Layer::new(&base, &newer, &[added], &mut OneFile(holder)).unwrap()
    }

    fn names(folder: &Path) -> Vec<String> {
        let names = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<String> = names.collect();
        names.sort();
        names
    }

    fn write_overlay(path: &Path) {
        fs::write(path, vec![7; 4 << 20]).unwrap();
    }

    #[test]
    fn what_no_layer_points_into_is_given_back() {
        let folder = tempfile::tempdir().unwrap();
        let files = DiskFiles::new(folder.path(), 0);
        // Files of another disk.
        write_overlay(&folder.path().join("10.1.overlay"));
        assert_eq!((files.unfolded().unwrap(), files.is_kept().unwrap()), (None, false));

        assert_eq!(files.next_overlay().unwrap(), files.overlay(1));
        write_overlay(&files.overlay(1));
        assert_eq!(files.unfolded().unwrap(), Some(1));
        files.save_layer(&layer("0.1.overlay")).unwrap();
        assert_eq!(files.unfolded().unwrap(), None);
        let mut page = [0; 4096];
        File::open(files.overlay(1)).unwrap().read_exact_at(&mut page, 1 << 20).unwrap();
        assert_eq!(page, [7; 4096], "what the layer points into is there");
        assert!(fs::metadata(files.overlay(1)).unwrap().blocks() * 512 <= 1 << 20, "the rest is not");

        // A command that was killed: the layer is the old one until its overlay is folded.
        write_overlay(&files.next_overlay().unwrap());
        assert_eq!(files.unfolded().unwrap(), Some(2));
        assert_eq!(files.load_layer().unwrap().unwrap().files(), ["0.1.overlay"]);
        files.save_layer(&layer("0.2.overlay")).unwrap();
        assert_eq!(names(folder.path()), ["0.2.layer", "0.2.overlay", "10.1.overlay"]);

        // One that wrote nothing leaves nothing.
        write_overlay(&files.next_overlay().unwrap());
        files.drop_unfolded().unwrap();
        assert_eq!(files.next_overlay().unwrap(), files.overlay(3));

        // When nothing is changed any more, only that is known.
        files.save_layer(&Layer::empty()).unwrap();
        assert_eq!(names(folder.path()), ["0.2.layer", "10.1.overlay"]);
        assert!(files.load_layer().unwrap().unwrap().is_empty());
    }

    #[test]
    fn a_file_in_the_place_of_another_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let files = DiskFiles::new(folder.path(), 0);
        write_overlay(&files.overlay(1));
        let older = folder.path().join("older");
        fs::copy(files.overlay(1), &older).unwrap();
        let name = files.seal_overlay(1).unwrap();
        files.save_layer(&layer(name.leak())).unwrap();
        let other = DiskFiles::new(folder.path(), 1);
        write_overlay(&other.overlay(1));
        other.seal_overlay(1).unwrap();
        let layer = files.load_layer().unwrap().unwrap();
        let saved = folder.path().join("saved");
        fs::copy(files.overlay(1), &saved).unwrap();
        for (instead, is_it) in [(&saved, true), (&older, false), (&other.overlay(1), false)] {
            fs::copy(instead, files.overlay(1)).unwrap();
            let opened = files.open_files(&layer).map(|files| files.len()).map_err(|error| error.to_string());
            match is_it {
                true => assert_eq!(opened, Ok(1)),
                false => {
                    let error = opened.unwrap_err();
                    assert!(error.contains("0.1.overlay") && error.contains(EXCHANGED), "{error}");
                }
            }
        }
    }

    #[test]
    fn what_a_killed_sweep_left_goes_with_the_next() {
        let folder = tempfile::tempdir().unwrap();
        let files = DiskFiles::new(folder.path(), 0);
        write_overlay(&files.overlay(1));
        fs::write(folder.path().join("0.2.layer"), layer("0.2.overlay").store()).unwrap();
        fs::write(folder.path().join("0.1.layer"), "an older one").unwrap();
        write_overlay(&files.overlay(2));
        assert_eq!(files.unfolded().unwrap(), None);
        assert_eq!(files.load_layer().unwrap().unwrap().counts(), (1, 0), "the newest counts");
        files.save_layer(&layer("0.2.overlay")).unwrap();
        assert_eq!(names(folder.path()), ["0.2.layer", "0.2.overlay"]);
    }
}
