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

/// A subvolume of a Btrfs, as an option of mount(8) names it: see btrfs(5). Its text is that option.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Subvolume {
    /// By its path from the top subvolume.
    Path(String),
    /// By its number; 0 is the top one.
    Id(u64),
}

impl Subvolume {
    /// The subvolume that options, separated by commas, name. Of a path and a number the path counts.
    pub fn of_options(options: &str) -> Option<Subvolume> {
        let value = |name: &str| {
            let pairs = options.split(',').filter_map(|option| option.split_once('='));
            pairs.filter(|(key, _)| *key == name).map(|(_, value)| value).next_back()
        };
        let number = || value("subvolid").and_then(|number| number.parse().ok()).map(Subvolume::Id);
        value("subvol").map(|path| Subvolume::Path(path.to_owned())).or_else(number)
    }
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
    pub fn subvolume(&self) -> Option<Subvolume> {
        Subvolume::of_options(&self.options)
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
        assert_eq!(mounts[0].subvolume(), Some(Subvolume::Path("@".to_owned())));
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
            ("subvolid=x", None),
            ("subvol=/@home,subvolid=257", path("/@home")),
            ("subvol=a,subvol=b=c", path("b=c")),
        ] {
            assert_eq!(Subvolume::of_options(options), named, "{options}");
        }
        assert_eq!(Subvolume::Id(5).to_string(), "subvolid=5");
        assert_eq!(path("@").unwrap().to_string(), "subvol=@");
    }
}
