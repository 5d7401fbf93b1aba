//! crypttab(5): what a guest calls its encrypted volumes when they are open.

use super::fstab::{MOST_LINES, unescaped};

/// An encrypted volume that a guest opens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mapped {
    /// The device that it is then: `/dev/mapper/NAME`.
    pub name: String,
    /// What it lies in: a device, or a tag such as `UUID=`.
    pub device: String,
}

/// Reads the lines of a crypttab. A line with fewer than two fields is left out.
pub fn parse(text: &[u8]) -> Vec<Mapped> {
    let text = String::from_utf8_lossy(text);
    let lines = text.lines().map(str::trim).filter(|line| !line.starts_with('#')).take(MOST_LINES);
    let mapped = |line: &str| {
        let mut fields = line.split_whitespace().map(unescaped);
        Some(Mapped { name: format!("/dev/mapper/{}", fields.next()?), device: fields.next()? })
    };
    lines.filter_map(mapped).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_crypttab_is_read_as_systemd_reads_it() {
        let text = b"# name device key options\nroot\tUUID=0f2e none luks,discard\nlonely\n\n data /dev/sda2\n";
        let mapped = parse(text);
        let shown: Vec<_> = mapped.iter().map(|mapped| (&*mapped.name, &*mapped.device)).collect();
        assert_eq!(shown, [("/dev/mapper/root", "UUID=0f2e"), ("/dev/mapper/data", "/dev/sda2")]);
    }
}
