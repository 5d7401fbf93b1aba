//! The registry of formats: those that can be written, and the readers of file systems.

use std::fmt;
use std::io;
use std::path::Path;
use std::sync::Arc;

use inarch_block::Backing;
use inarch_confine::Parsing;
use inarch_volume::Volume;

use crate::probe::Likeness;
use crate::{
    Damage, Format, ReadError, TreeAndContent, btrfs, cpio, erofs, exfat, ext4, f2fs, fat, iso9660, ntfs, squashfs,
    tar, xfs,
};

/// Opens the file system on a backing.
pub(crate) type Opener = fn(Parsing, Arc<dyn Backing>, Damage) -> Result<Arc<dyn Volume>, ReadError>;

/// A reader of a file system: an entry of [`readers`].
pub struct Reader {
    /// The format's name on the command line.
    pub name: &'static str,
    /// A description of its images, with the article.
    pub title: &'static str,
    /// Whether content may be compressed.
    pub packs: bool,
    pub(crate) probe: fn(&dyn Backing) -> io::Result<Likeness>,
    pub(crate) open: Opener,
}

impl Reader {
    /// How likely the backing holds such a file system, judged by a few bytes.
    pub fn probe(&self, _: Parsing, image: &dyn Backing) -> io::Result<Likeness> {
        (self.probe)(image)
    }

    /// Opens a file system for reading on demand. Reads and checks only what concerns all of it.
    pub fn open(
        &self,
        parsing: Parsing,
        image: Arc<dyn Backing>,
        damage: Damage,
    ) -> Result<Arc<dyn Volume>, ReadError> {
        (self.open)(parsing, image, damage)
    }

    /// Opens a file system and reads everything that has a name.
    pub fn walk(&self, parsing: Parsing, image: Arc<dyn Backing>, damage: Damage) -> Result<TreeAndContent, ReadError> {
        TreeAndContent::walk(parsing, self.open(parsing, image, damage)?, damage)
    }
}

/// Readers are the same if they have the same name.
impl PartialEq for Reader {
    fn eq(&self, other: &Reader) -> bool {
        self.name == other.name
    }
}

impl Eq for Reader {}

impl fmt::Debug for Reader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

/// Every reader, in the order of messages.
static READERS: [Reader; 10] = [
    ext4::READER,
    erofs::READER,
    squashfs::READER,
    xfs::READER,
    btrfs::READER,
    f2fs::READER,
    fat::READER,
    exfat::READER,
    iso9660::READER,
    ntfs::READER,
];

/// Every reader of a file system.
pub fn readers() -> &'static [Reader] {
    &READERS
}

/// Every format, in the order of messages.
pub fn formats() -> &'static [&'static dyn Format] {
    &[&ext4::Ext4, &erofs::Erofs, &squashfs::Squashfs, &tar::Tar, &cpio::Cpio]
}

/// The format of that name.
pub fn format_by_name(name: &str) -> Option<&'static dyn Format> {
    formats().iter().copied().find(|format| format.name() == name)
}

/// The format that a path's last extension names.
pub fn format_by_extension(path: &Path) -> Option<&'static dyn Format> {
    let extension = path.extension()?.to_str()?.to_ascii_lowercase();
    let says = |format: &&dyn Format| format.name() == extension || format.extensions().contains(&extension.as_str());
    formats().iter().copied().find(says)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn every_reader_has_a_name_of_its_own() {
        let names: BTreeSet<_> = readers().iter().map(|reader| reader.name).collect();
        assert_eq!(names.len(), readers().len());
    }

    #[test]
    fn every_format_is_found_by_its_name_and_extensions() {
        for format in formats() {
            assert_eq!(format_by_name(format.name()).map(|found| found.name()), Some(format.name()));
            for extension in format.extensions().iter().chain([&format.name()]) {
                let path = Path::new("dir.d").join(format!("a.b.{}", extension.to_uppercase()));
                assert_eq!(format_by_extension(&path).map(|found| found.name()), Some(format.name()), "{extension}");
            }
        }
        assert!(format_by_name("zip").is_none());
        assert!(format_by_extension(Path::new("ext4")).is_none());
    }
}
