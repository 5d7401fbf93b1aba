//! Lists the packages that a guest has installed, from the databases of dpkg, apk and pacman; recognises rpm's. Windows' come from its registry
//! (`guest/src/windows.rs`).

use inarch_tree::FileType;
use inarch_volume::{Item, Last, Volume, read_small, resolve};

/// The most bytes of a database.
const DATABASE_BYTES: usize = 256 << 20;
/// The most packages.
const MOST: usize = 1 << 20;

/// An installed package.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Package {
    /// Its name.
    pub name: String,
    /// Its version.
    pub version: String,
    /// Its architecture, if the database has it.
    pub arch: Option<String>,
}

/// How the packages of a system are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Database {
    /// dpkg: Debian, Ubuntu.
    Deb,
    /// apk: Alpine.
    Apk,
    /// pacman: Arch.
    Pacman,
    /// The registry of Windows: what can be uninstalled.
    Windows,
    /// rpm: Fedora, SUSE. Its database is not read.
    Rpm,
}

impl Database {
    /// The name of its format.
    pub fn name(self) -> &'static str {
        match self {
            Database::Deb => "deb",
            Database::Apk => "apk",
            Database::Pacman => "pacman",
            Database::Windows => "windows",
            Database::Rpm => "rpm",
        }
    }
}

/// The database of a system, and its packages by name; `None` for the packages if the database cannot be read.
pub fn packages(files: &dyn Volume) -> Option<(Database, Option<Vec<Package>>)> {
    let read = |path: &[u8]| read_small(files, path, DATABASE_BYTES).ok().flatten();
    let exists = |path: &[u8]| resolve(files, path, Last::Followed).is_ok_and(|found| found.is_some());
    let sorted = |mut packages: Vec<Package>| {
        packages.sort();
        Some(packages)
    };
    if let Some(text) = read(b"var/lib/dpkg/status") {
        return Some((Database::Deb, sorted(deb(&text))));
    }
    if let Some(text) = read(b"lib/apk/db/installed") {
        return Some((Database::Apk, sorted(apk(&text))));
    }
    if exists(b"var/lib/pacman/local") {
        return Some((Database::Pacman, pacman(files).and_then(sorted)));
    }
    let of_rpm: [&[u8]; 3] = [b"var/lib/rpm", b"usr/lib/sysimage/rpm", b"usr/share/rpm"];
    of_rpm.iter().any(|path| exists(path)).then_some((Database::Rpm, None))
}

/// Paragraphs of fields, separated by empty lines (deb-control(5)). Only what is installed is a package.
fn deb(text: &[u8]) -> Vec<Package> {
    let mut packages = Vec::new();
    let text = String::from_utf8_lossy(text);
    for paragraph in text.split("\n\n").take(MOST) {
        let field = |name: &str| {
            paragraph.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": ")).map(str::to_owned)
        };
        let is_installed = field("Status").is_some_and(|status| status.ends_with(" installed"));
        if let (true, Some(name), Some(version)) = (is_installed, field("Package"), field("Version")) {
            packages.push(Package { name, version, arch: field("Architecture") });
        }
    }
    packages
}

/// Paragraphs of lines that begin with a letter and a colon (apk-tools' doc/apk-package.5).
fn apk(text: &[u8]) -> Vec<Package> {
    let text = String::from_utf8_lossy(text);
    let package = |paragraph: &str| {
        let field = |name: &str| paragraph.lines().find_map(|line| line.strip_prefix(name)).map(str::to_owned);
        Some(Package { name: field("P:")?, version: field("V:")?, arch: field("A:") })
    };
    text.split("\n\n").take(MOST).filter_map(package).collect()
}

/// A directory for each package: `NAME-VERSION-RELEASE`.
fn pacman(files: &dyn Volume) -> Option<Vec<Package>> {
    let directory = resolve(files, b"var/lib/pacman/local", Last::Followed).ok().flatten()?;
    let mut packages = Vec::new();
    let take = &mut |item: Item<'_>| {
        if let Item::Entry(entry) = item
            && entry.file_type != Some(FileType::Regular)
        {
            let name = String::from_utf8_lossy(entry.name);
            let mut parts = name.rsplitn(3, '-');
            if let (Some(release), Some(version), Some(name)) = (parts.next(), parts.next(), parts.next()) {
                packages.push(Package { name: name.to_owned(), version: format!("{version}-{release}"), arch: None });
            }
        }
        packages.len() < MOST
    };
    files.list(directory, 0, take).ok()?;
    Some(packages)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn package(name: &str, version: &str, arch: Option<&str>) -> Package {
        Package { name: name.to_owned(), version: version.to_owned(), arch: arch.map(str::to_owned) }
    }

    #[test]
    fn only_what_is_installed_is_a_package() {
        let text = b"\
Package: bash
Status: install ok installed
Architecture: amd64
Version: 5.2.15-2+b7
Description: shell
 Version: none

Package: gone
Status: deinstall ok config-files
Version: 1

Package: broken

\xff\xfe: x";
        assert_eq!(deb(text), [package("bash", "5.2.15-2+b7", Some("amd64"))]);
    }

    #[test]
    fn apk_is_read() {
        let text = b"C:Q1\nP:musl\nV:1.2.4-r2\nA:x86_64\nF:lib\nR:ld.so\n\nP:busybox\nV:1.36\n\nV:1\n";
        assert_eq!(apk(text), [package("musl", "1.2.4-r2", Some("x86_64")), package("busybox", "1.36", None)]);
    }
}
