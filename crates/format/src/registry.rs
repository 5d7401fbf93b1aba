//! The formats there are.

use std::path::Path;

use crate::{Format, cpio, erofs, ext4, squashfs, tar};

/// Every format, in the order in which they are named to the user.
pub fn formats() -> &'static [&'static dyn Format] {
    &[&ext4::Ext4, &erofs::Erofs, &squashfs::Squashfs, &tar::Tar, &cpio::Cpio]
}

/// The format of that name.
pub fn format_by_name(name: &str) -> Option<&'static dyn Format> {
    formats().iter().copied().find(|format| format.name() == name)
}

/// The format that a file's name says: its last extension is a format's name or one of its other extensions.
pub fn format_by_extension(path: &Path) -> Option<&'static dyn Format> {
    let extension = path.extension()?.to_str()?.to_ascii_lowercase();
    let says = |format: &&dyn Format| format.name() == extension || format.extensions().contains(&extension.as_str());
    formats().iter().copied().find(says)
}

#[cfg(test)]
mod tests {
    use super::*;

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
