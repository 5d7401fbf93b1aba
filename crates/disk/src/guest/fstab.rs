//! fstab(5): what a guest mounts where.

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

impl Mount {
    /// The value of an option: of `subvol=@home` for `subvol`.
    pub fn option(&self, name: &str) -> Option<&str> {
        self.options
            .split(',')
            .find_map(|option| option.split_once('=').filter(|(key, _)| *key == name))
            .map(|(_, value)| value)
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
        assert_eq!((mounts[0].option("subvol"), mounts[0].option("errors")), (Some("@"), Some("remount-ro")));
        let of_disk: Vec<_> = mounts.iter().filter(|mount| mount.is_of_a_disk()).map(|m| &*m.device).collect();
        assert_eq!(of_disk, ["UUID=0f2e", "/dev/sda1"]);
        assert_eq!(mounts[6].device, "\u{fffd}\\9");
        assert!(parse(&b"a b\n".repeat(5000)).len() <= MOST_LINES);
    }
}
