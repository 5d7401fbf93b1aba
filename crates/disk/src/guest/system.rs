//! What operating system a file system holds.

use inarch_block::Cursor;
use inarch_tree::FileType;
use inarch_volume::{Last, Volume, read_small, resolve};
use vm_memory::VolatileSlice;

use super::packages::{Database, Package, packages};

/// The most bytes of a small file of text.
const TEXT_BYTES: usize = 1 << 16;

/// Programs that nearly every system has; the first tells the architecture.
const PROGRAMS: [&[u8]; 6] =
    [b"bin/sh", b"usr/bin/bash", b"bin/ls", b"usr/bin/ls", b"sbin/init", b"usr/lib/systemd/systemd"];

/// An operating system.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct System {
    /// `linux` or `windows`; `None` if that is not known.
    pub kind: Option<&'static str>,
    /// The distribution's short name: `debian`.
    pub distribution: Option<String>,
    /// Its name for people: `Debian GNU/Linux 12 (bookworm)`.
    pub name: Option<String>,
    /// Its version: `12`.
    pub version: Option<String>,
    /// The edition or variant: `server`, `Client`.
    pub variant: Option<String>,
    /// The number of the build, of Windows.
    pub build: Option<String>,
    /// The machine's name, as uname(1) has it.
    pub arch: Option<&'static str>,
    /// The host's name.
    pub hostname: Option<String>,
    /// How its packages are kept.
    pub packaging: Option<Database>,
    /// Its packages by name; `None` if their database cannot be read.
    pub packages: Option<Vec<Package>>,
}

/// Looks at the files of an operating system's root. What cannot be read is left out.
pub fn system(files: &dyn Volume) -> System {
    let text = |path: &[u8]| {
        let bytes = read_small(files, path, TEXT_BYTES).ok().flatten()?;
        Some(String::from_utf8_lossy(&bytes).into_owned())
    };
    let release = text(b"etc/os-release").or_else(|| text(b"usr/lib/os-release")).unwrap_or_default();
    let field = |name: &str| {
        let value = release.lines().find_map(|line| line.trim().strip_prefix(name)?.strip_prefix('='));
        value.map(unquoted).filter(|value| !value.is_empty())
    };
    let line = |path: &[u8]| {
        let text = text(path)?;
        let line = text.lines().map(str::trim).find(|line| !line.is_empty() && !line.starts_with('#'))?;
        Some(line.to_owned())
    };
    let exists = |path: &[u8]| resolve(files, path, Last::Followed).is_ok_and(|found| found.is_some());
    let is_windows = exists(b"Windows/System32/config");
    let is_linux = !release.is_empty() || exists(b"etc/fstab") || exists(b"etc/passwd");
    let packages = packages(files);
    System {
        kind: match (is_windows, is_linux) {
            (true, _) => Some("windows"),
            (false, true) => Some("linux"),
            (false, false) => None,
        },
        distribution: field("ID").or_else(|| {
            let known: [(&[u8], &str); 3] =
                [(b"etc/debian_version", "debian"), (b"etc/alpine-release", "alpine"), (b"etc/redhat-release", "rhel")];
            known.iter().find(|(path, _)| exists(path)).map(|(_, name)| (*name).to_owned())
        }),
        name: field("PRETTY_NAME").or_else(|| line(b"etc/redhat-release")),
        version: field("VERSION_ID").or_else(|| line(b"etc/debian_version")).or_else(|| line(b"etc/alpine-release")),
        variant: field("VARIANT_ID"),
        build: None,
        arch: PROGRAMS.iter().find_map(|path| machine(files, path)),
        hostname: line(b"etc/hostname").or_else(|| line(b"etc/HOSTNAME")),
        packaging: packages.as_ref().map(|(database, _)| *database),
        packages: packages.and_then(|(_, packages)| packages),
    }
}

/// A value of os-release(5), without quotes and backslashes.
fn unquoted(value: &str) -> String {
    let value = value.trim();
    let inner = ['"', '\''].into_iter().find_map(|quote| value.strip_prefix(quote)?.strip_suffix(quote));
    let mut text = String::new();
    let mut letters = inner.unwrap_or(value).chars();
    while let Some(letter) = letters.next() {
        match letter {
            '\\' => text.extend(letters.next()),
            letter => text.push(letter),
        }
    }
    text
}

/// The machine that an ELF program runs on: `e_machine` of its header (elf(5)).
fn machine(files: &dyn Volume, path: &[u8]) -> Option<&'static str> {
    let node = resolve(files, path, Last::Followed).ok().flatten()?;
    let attributes = files.attributes(node).ok()?;
    if attributes.file_type() != Some(FileType::Regular) || attributes.size < 20 {
        return None;
    }
    let mut head = [0; 20];
    files.read(node, 0, 20, &mut Cursor::new(&[VolatileSlice::from(&mut head[..])])).ok()?;
    let [0x7f, b'E', b'L', b'F', class, data, .., low, high] = head else { return None };
    let number = if data == 2 { u16::from_be_bytes([low, high]) } else { u16::from_le_bytes([low, high]) };
    Some(match (number, class, data) {
        (3, _, _) => "i686",
        (8, _, 1) => "mipsel",
        (8, _, _) => "mips",
        (20, _, _) => "ppc",
        (21, _, 1) => "ppc64le",
        (21, _, _) => "ppc64",
        (22, _, _) => "s390x",
        (40, _, _) => "armv7l",
        (62, _, _) => "x86_64",
        (183, _, _) => "aarch64",
        (243, 2, _) => "riscv64",
        (243, _, _) => "riscv32",
        (258, _, _) => "loongarch64",
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_are_without_quotes() {
        for (value, text) in [
            ("debian", "debian"),
            ("\"Debian GNU/Linux 12 (bookworm)\"", "Debian GNU/Linux 12 (bookworm)"),
            ("'a \"b\"'", "a \"b\""),
            (r#""a \$b \"c\"""#, "a $b \"c\""),
            ("\"", "\""),
            ("", ""),
        ] {
            assert_eq!(unquoted(value), text);
        }
    }
}
