//! fstab(5): what a guest mounts where.

use std::fmt;

/// The most lines that are read.
pub(super) const MOST_LINES: usize = 1000;

/// A file system that a guest mounts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    /// What is mounted: a device, or a tag such as `UUID=`.
    pub device: String,
    /// Where, from the guest's root.
    pub directory: String,
    /// The file system's type.
    pub format: String,
    /// The options, separated by commas.
    pub options: String,
}

/// The options of a mount name a subvolume in a way that Linux does not take.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("subvolid={0:?} is not the number of a subvolume")]
pub struct BadSubvolume(String);

/// A subvolume of a Btrfs, as an option of mount(8) names it: see btrfs(5). Its text is that option.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Subvolume {
    /// By its path from the top subvolume.
    Path(String),
    /// By its number; 0 is the top one.
    Id(u64),
}

impl Subvolume {
    /// The subvolume that options, separated by commas, name; `None` is the default one. Of a path and a number the path counts.
    ///
    /// # Errors
    /// The number is none.
    pub fn of_options(options: &str) -> Result<Option<Subvolume>, BadSubvolume> {
        let value = |name: &str| {
            let pairs = options.split(',').filter_map(|option| option.split_once('='));
            pairs.filter(|(key, _)| *key == name).map(|(_, value)| value).next_back()
        };
        let values = || options.split(',').filter_map(|option| option.strip_prefix("subvolid="));
        if let Some(bad) = values().find(|text| number(text).is_none()) {
            return Err(BadSubvolume(bad.to_owned()));
        }
        let id = value("subvolid").and_then(number).map(Subvolume::Id);
        Ok(value("subvol").map(|path| Subvolume::Path(path.to_owned())).or(id))
    }
}

/// A number as Linux reads it: also in hexadecimal and octal, by its prefix (`kstrtoull` of lib/kstrtox.c, with the base 0).
fn number(text: &str) -> Option<u64> {
    let text = text.strip_prefix('+').unwrap_or(text);
    let (digits, base) = match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        Some(digits) => (digits, 16),
        None if text.starts_with('0') => (text, 8),
        None => (text, 10),
    };
    // Rust would take a sign of its own.
    u64::from_str_radix(digits, base).ok().filter(|_| !digits.starts_with('+'))
}

impl fmt::Display for Subvolume {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Subvolume::Path(path) => write!(f, "subvol={path}"),
            Subvolume::Id(number) => write!(f, "subvolid={number}"),
        }
    }
}

impl Mount {
    /// The subvolume that is mounted, if it is not the default one.
    ///
    /// # Errors
    /// The options do not say which.
    pub fn subvolume(&self) -> Result<Option<Subvolume>, BadSubvolume> {
        Subvolume::of_options(&self.options)
    }

    /// Whether the guest mounts it when it starts.
    pub fn is_automatic(&self) -> bool {
        self.options.split(',').all(|option| option != "noauto")
    }

    /// Whether it is a volume of a disk, neither swap space nor something that the kernel makes or a network has.
    pub fn is_of_a_disk(&self) -> bool {
        let is_bind = self.options.split(',').any(|option| matches!(option, "bind" | "rbind"));
        let is_device = self.device.starts_with("/dev/") || self.device.contains('=');
        self.directory.starts_with('/') && is_device && !is_bind && self.format != "swap"
    }
}

/// Reads the lines of an fstab. A line with fewer than two fields is left out.
pub fn parse(text: &[u8]) -> Vec<Mount> {
    let text = String::from_utf8_lossy(text);
    let lines = text.lines().map(str::trim).filter(|line| !line.starts_with('#')).take(MOST_LINES);
    let mount = |line: &str| {
        let mut fields = line.split_whitespace().map(unescaped);
        Some(Mount {
            device: fields.next()?,
            directory: fields.next()?,
            format: fields.next().unwrap_or_default(),
            options: fields.next().unwrap_or_default(),
        })
    };
    lines.filter_map(mount).collect()
}

/// A field without its octal escapes, such as `\040` for a space.
pub(super) fn unescaped(field: &str) -> String {
    let mut bytes = Vec::with_capacity(field.len());
    let mut rest = field.as_bytes();
    while let [first, after @ ..] = rest {
        let octal = after.get(..3).filter(|_| *first == b'\\').and_then(|digits| std::str::from_utf8(digits).ok());
        match octal.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = after.get(3..).unwrap_or_default();
            }
            None => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_fstab_is_read_as_mount_reads_it() {
        let text = b"\
# /etc/fstab
UUID=0f2e  /            ext4  errors=remount-ro,subvol=@ 0 1
/dev/sda1\t/boot\\040x  vfat
LABEL=swap none         swap  sw 0 0
   proc    /proc        proc  defaults
/srv       /mnt         none  bind
lonely
host:/x    /nfs         nfs   defaults
\xff\\9    /odd
";
        let mounts = parse(text);
        assert_eq!(mounts.len(), 7);
        assert_eq!((&*mounts[1].directory, &*mounts[1].format, &*mounts[1].options), ("/boot x", "vfat", ""));
        assert_eq!(mounts[0].subvolume().unwrap(), Some(Subvolume::Path("@".to_owned())));
        let of_disk: Vec<_> = mounts.iter().filter(|mount| mount.is_of_a_disk()).map(|m| &*m.device).collect();
        assert_eq!(of_disk, ["UUID=0f2e", "/dev/sda1"]);
        assert_eq!(mounts[6].device, "\u{fffd}\\9");
        assert!(parse(&b"a b\n".repeat(5000)).len() <= MOST_LINES);
    }

    #[test]
    fn a_subvolume_is_named_as_linux_takes_it() {
        let path = |path: &str| Some(Subvolume::Path(path.to_owned()));
        for (options, named) in [
            ("defaults", None),
            ("subvolid=257,ro", Some(Subvolume::Id(257))),
            ("subvolid=0x101", Some(Subvolume::Id(257))),
            ("subvolid=0402", Some(Subvolume::Id(258))),
            ("subvolid=+0", Some(Subvolume::Id(0))),
            ("subvol=/@home,subvolid=257", path("/@home")),
            ("subvol=a,subvol=b=c", path("b=c")),
        ] {
            assert_eq!(Subvolume::of_options(options).unwrap(), named, "{options}");
        }
        for number in ["", "x", "-5", "256x", "08", "0x", "0x+5", "++5", "18446744073709551616"] {
            for options in [format!("ro,subvolid={number}"), format!("subvolid={number},subvolid=256,subvol=@")] {
                let error = Subvolume::of_options(&options).unwrap_err();
                assert_eq!(error.to_string(), format!("subvolid={number:?} is not the number of a subvolume"));
            }
        }
        assert_eq!(Subvolume::Id(5).to_string(), "subvolid=5");
        assert_eq!(path("@").unwrap().to_string(), "subvol=@");
    }
}
