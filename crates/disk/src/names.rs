//! [`Names`]: what guests and users call a volume.

use crate::Signature;

/// What a volume is called by.
#[derive(Clone, Debug, Default)]
pub struct Names {
    /// Which of several disks it is on, from 0.
    pub disk: usize,
    /// Its number in the disk's partition table; `None` for a whole disk and for what lies above.
    pub part: Option<u32>,
    /// The name of a volume that lies above: `/dev/GROUP/VOLUME`, `/dev/md/NAME`, `/dev/mapper/luks-UUID`.
    pub above: Option<String>,
    /// Where a partition starts on its disk, in bytes.
    pub start: Option<u64>,
    /// `PARTUUID`.
    pub part_id: Option<String>,
    /// `PARTLABEL`.
    pub part_name: Option<String>,
    /// What it holds, if that is known.
    pub content: Option<Signature>,
    /// Of an opened LUKS volume, what it lies in. It goes by the names of that, too.
    pub within: Option<Box<Names>>,
}

impl Names {
    /// The name that a guest with SCSI or SATA disks has for it: `/dev/sda1`, `/dev/vg/root`.
    pub fn device(&self) -> String {
        if let Some(name) = &self.above {
            return name.clone();
        }
        let part = self.part.map_or_else(String::new, |part| part.to_string());
        device_name(self.disk) + &part
    }

    /// Whether it is the partition that Windows names by the signature of a disk's master boot record and the byte at which it starts.
    pub fn is_at(&self, signature: u32, start: u64) -> bool {
        let disk = self.part_id.as_deref().and_then(|id| id.split_once('-')).map(|(disk, _)| disk);
        self.start == Some(start) && disk == Some(&format!("{signature:08x}"))
    }

    /// Whether `name` means the volume: a number, a device's name of any usual kind of disk, or `LABEL=`, `UUID=`, `PARTLABEL=`, `PARTUUID=` as
    /// in fstab(5), or the same as a link below /dev/disk.
    pub fn answer_to(&self, name: &str) -> bool {
        if self.within.as_ref().is_some_and(|within| within.answer_to(name)) {
            return true;
        }
        let content = self.content.as_ref();
        let label = content.and_then(|content| content.label.as_deref());
        let uuid = content.and_then(|content| content.uuid.as_deref());
        let (id, part_name) = (self.part_id.as_deref(), self.part_name.as_deref());
        let is = |of: Option<&str>, wanted: &str| of.is_some_and(|of| of == wanted.trim_matches('"'));
        let is_id =
            |of: Option<&str>, wanted: &str| of.is_some_and(|of| of.eq_ignore_ascii_case(wanted.trim_matches('"')));
        if let Some((tag, wanted)) = name.split_once('=') {
            return match tag {
                "LABEL" => is(label, wanted),
                "UUID" => is_id(uuid, wanted),
                "PARTLABEL" => is(part_name, wanted),
                "PARTUUID" => is_id(id, wanted),
                _ => false,
            };
        }
        if let Some((tag, wanted)) = name.strip_prefix("/dev/disk/by-").and_then(|link| link.split_once('/')) {
            let wanted = &*unescaped(wanted);
            return match tag {
                "label" => is(label, wanted),
                "uuid" => is_id(uuid, wanted),
                "partlabel" => is(part_name, wanted),
                "partuuid" => is_id(id, wanted),
                _ => false,
            };
        }
        if let Some(own) = &self.above {
            return is_name_above(own, name);
        }
        match (self.part, name.parse::<u32>()) {
            (Some(part), Ok(wanted)) => self.disk == 0 && part == wanted,
            _ => device_of(name).is_some_and(|(disk, part)| (self.disk, self.part) == (disk, part)),
        }
    }
}

/// Whether a name means the array or logical volume `own`: with or without `/dev/`, and as the device mapper writes it, with hyphens
/// doubled and one between group and volume.
fn is_name_above(own: &str, name: &str) -> bool {
    let (own, name) = (own.strip_prefix("/dev/").unwrap_or(own), name.strip_prefix("/dev/").unwrap_or(name));
    let Some((group, volume)) = own.split_once('/') else { return own == name };
    let mapped = || format!("mapper/{}-{}", group.replace('-', "--"), volume.replace('-', "--"));
    let is_number = group == "md" && volume.bytes().all(|byte| byte.is_ascii_digit());
    own == name || mapped() == name || (is_number && name == format!("md{volume}"))
}

/// The name that a guest with SCSI or SATA disks has for its disk of this number, from 0: `/dev/sda`.
pub fn device_name(disk: usize) -> String {
    format!("/dev/sd{}", letters(disk))
}

/// `a` for 0, `z` for 25, `aa` for 26: `sd_format_disk_name` of Linux's drivers/scsi/sd.c.
fn letters(disk: usize) -> String {
    let last = char::from(b'a' + u8::try_from(disk % 26).unwrap_or_default());
    match disk / 26 {
        0 => last.to_string(),
        more => letters(more - 1) + &last.to_string(),
    }
}

/// The disk (from 0) and the partition of a device's name, with or without `/dev/`: `sda1`, `vdb`, `hda`, `xvda2`, `nvme0n1p3`, `mmcblk0p1`.
pub fn device_of(name: &str) -> Option<(usize, Option<u32>)> {
    let name = name.strip_prefix("/dev/").unwrap_or(name);
    if let Some(numbers) = name.strip_prefix("nvme").or_else(|| name.strip_prefix("mmcblk")) {
        let (disk, part) = numbers.split_once('p').map_or((numbers, None), |(disk, part)| (disk, Some(part)));
        let disk = disk.strip_suffix("n1").unwrap_or(disk).parse().ok()?;
        return Some((disk, part.map(str::parse).transpose().ok()?));
    }
    let rest = ["sd", "vd", "hd", "xvd"].into_iter().find_map(|kind| name.strip_prefix(kind))?;
    let end = rest.find(|c: char| !c.is_ascii_lowercase()).unwrap_or(rest.len());
    let (letters, part) = rest.split_at_checked(end)?;
    if !(1..=2).contains(&letters.len()) {
        return None;
    }
    let disk = letters.bytes().fold(0, |disk, letter| disk * 26 + usize::from(letter - b'a') + 1) - 1;
    let part = if part.is_empty() { None } else { Some(part.parse().ok()?) };
    Some((disk, part))
}

/// A name below /dev/disk/by-label without the escapes that udev gives it: `\x20` for a space.
fn unescaped(name: &str) -> String {
    let mut bytes = Vec::with_capacity(name.len());
    let mut rest = name;
    while let Some(at) = rest.find("\\x") {
        let (before, escape) = rest.split_at_checked(at).unwrap_or((rest, ""));
        bytes.extend_from_slice(before.as_bytes());
        match escape.get(2..4).and_then(|digits| u8::from_str_radix(digits, 16).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = escape.get(4..).unwrap_or_default();
            }
            None => {
                bytes.extend_from_slice(b"\\x");
                rest = escape.get(2..).unwrap_or_default();
            }
        }
    }
    bytes.extend_from_slice(rest.as_bytes());
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_volume_has_the_names_that_guests_have_for_it() {
        let content = Signature {
            format: "ext4",
            label: Some("my root".to_owned()),
            uuid: Some("0f2e4a10-9d4b-4f36-8d3c-1f4a1b6f0c11".to_owned()),
        };
        let volume = Names {
            disk: 1,
            part: Some(12),
            above: None,
            content: Some(content),
            start: Some(1 << 20),
            part_id: Some("0F3A-1".to_owned()),
            part_name: Some("root".to_owned()),
            within: None,
        };
        assert_eq!(volume.device(), "/dev/sdb12");
        for name in [
            "/dev/sdb12",
            "vdb12",
            "/dev/xvdb12",
            "hdb12",
            "/dev/nvme1n1p12",
            "mmcblk1p12",
            "LABEL=my root",
            "LABEL=\"my root\"",
            "UUID=0F2E4A10-9d4b-4f36-8d3c-1f4a1b6f0c11",
            "PARTUUID=0f3a-1",
            "PARTLABEL=root",
            r"/dev/disk/by-label/my\x20root",
            "/dev/disk/by-partlabel/root",
        ] {
            assert!(volume.answer_to(name), "{name}");
        }
        for name in [
            "12",
            "/dev/sda12",
            "/dev/sdb1",
            "sdb",
            "LABEL=root",
            "UUID=",
            "",
            "/dev/",
            "/dev/sd12",
            "ID=1",
            "/dev/sdb12x",
            "nvmen1p",
        ] {
            assert!(!volume.answer_to(name), "{name}");
        }
        let first = Names { disk: 0, ..volume };
        assert!(first.answer_to("12") && first.answer_to("sda12"));
        let above = Names { part: None, above: Some("/dev/my-group/root".to_owned()), ..first };
        for name in ["/dev/my-group/root", "my-group/root", "/dev/mapper/my--group-root", "LABEL=my root"] {
            assert!(above.answer_to(name), "{name}");
        }
        assert!(
            !above.answer_to("sda")
                && !above.answer_to("/dev/mapper/my-group-root")
                && above.device() == "/dev/my-group/root"
        );
        let opened = Names { within: Some(Box::new(above)), ..Names::default() };
        assert!(opened.answer_to("my-group/root"), "what it lies in has no other content");
        assert!(is_name_above("/dev/md/0", "/dev/md0") && is_name_above("/dev/md127", "md127"));
    }

    #[test]
    fn disks_have_letters_as_in_linux() {
        for (disk, name) in [(0, "a"), (25, "z"), (26, "aa"), (27, "ab"), (701, "zz")] {
            assert_eq!(letters(disk), name);
            assert_eq!(device_of(&format!("sd{name}")), Some((disk, None)));
        }
        assert_eq!(unescaped(r"a\x2fb\xzz\x"), r"a/b\xzz\x");
    }
}
