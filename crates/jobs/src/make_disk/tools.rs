//! The host's tools that make file systems: their names, packages and options.

use std::ffi::{OsStr, OsString};
use std::path::PathBuf;

use super::MakeError;

/// A file system, and what makes it.
#[derive(Debug)]
pub struct Maker {
    /// Its name.
    pub format: &'static str,
    /// The name by which its signature is known.
    pub signature: &'static str,
    /// The programs that can make it; the first one found does.
    pub programs: &'static [&'static str],
    /// Debian's package of the first; none if Debian 12 has none.
    pub package: Option<&'static str>,
    /// Options that keep it from asking and from talking.
    options: &'static [&'static str],
    /// The option for a label, and the most bytes of one.
    label: Option<(&'static str, usize)>,
    /// The option for the first sector's number on the disk, in sectors of 512 bytes.
    hidden: Option<&'static str>,
}

/// Every file system that can be made, in the order in which they are compared.
pub static MAKERS: [Maker; 17] = [
    maker("ext2", "ext2", &["mke2fs"], Some("e2fsprogs"), &["-q", "-F", "-t", "ext2"], Some(("-L", 16))),
    maker("ext3", "ext3", &["mke2fs"], Some("e2fsprogs"), &["-q", "-F", "-t", "ext3"], Some(("-L", 16))),
    maker("ext4", "ext4", &["mke2fs"], Some("e2fsprogs"), &["-q", "-F", "-t", "ext4"], Some(("-L", 16))),
    maker("xfs", "xfs", &["mkfs.xfs"], Some("xfsprogs"), &["-q", "-f"], Some(("-L", 12))),
    maker("jfs", "jfs", &["mkfs.jfs"], Some("jfsutils"), &["-q"], Some(("-L", 16))),
    maker("reiserfs", "reiserfs", &["mkreiserfs"], Some("reiserfsprogs"), &["-q", "-f", "-f"], Some(("-l", 16))),
    maker("nilfs2", "nilfs2", &["mkfs.nilfs2"], Some("nilfs-tools"), &["-q", "-f"], Some(("-L", 80))),
    Maker {
        hidden: Some("-p"),
        ..maker(
            "ntfs",
            "ntfs",
            &["mkntfs"],
            Some("ntfs-3g"),
            &["-F", "-Q", "-q", "-s", "512", "-H", "255", "-S", "63"],
            Some(("-L", 128)),
        )
    },
    Maker { hidden: Some("-h"), ..maker("msdos", "vfat", &["mkfs.fat"], Some("dosfstools"), &[], Some(("-n", 11))) },
    Maker { hidden: Some("-h"), ..maker("vfat", "vfat", &["mkfs.fat"], Some("dosfstools"), &[], Some(("-n", 11))) },
    maker("exfat", "exfat", &["mkfs.exfat"], Some("exfatprogs"), &[], Some(("-L", 44))),
    maker("btrfs", "btrfs", &["mkfs.btrfs"], Some("btrfs-progs"), &["-q", "-f"], Some(("-L", 255))),
    maker("f2fs", "f2fs", &["mkfs.f2fs"], Some("f2fs-tools"), &["-q", "-f"], Some(("-l", 512))),
    maker("hfs", "hfs", &["hformat"], Some("hfsutils"), &["-f"], Some(("-l", 27))),
    maker("hfsplus", "hfsplus", &["mkfs.hfsplus", "newfs_hfs"], None, &[], Some(("-v", 255))),
    maker("gfs2", "gfs2", &["mkfs.gfs2"], Some("gfs2-utils"), &["-q", "-O", "-p", "lock_nolock"], None),
    maker("swap", "swap", &["mkswap"], Some("util-linux"), &["-q"], Some(("-L", 15))),
];

/// What the comparison had in former years and nobody can make any more.
pub const GONE: [(&str, &str); 1] = [(
    "gfs",
    "Linux never had its driver, Red Hat's clusters use gfs2 since 2010, and no distribution has its tools any more",
)];

const fn maker(
    format: &'static str,
    signature: &'static str,
    programs: &'static [&'static str],
    package: Option<&'static str>,
    options: &'static [&'static str],
    label: Option<(&'static str, usize)>,
) -> Maker {
    Maker { format, signature, programs, package, options, label, hidden: None }
}

/// What a file system is to be like.
#[derive(Clone, Debug, Default)]
pub struct Wish {
    /// Its label.
    pub label: String,
    /// Where its volume starts on the disk, in bytes.
    pub start: u64,
    /// More options for the tool.
    pub options: Vec<OsString>,
}

impl Maker {
    /// The one of this name.
    pub fn named(name: &str) -> Option<&'static Maker> {
        MAKERS.iter().find(|maker| maker.format == name)
    }

    /// The first program.
    pub fn tool(&self) -> &'static str {
        self.programs.first().copied().unwrap_or(self.format)
    }

    /// Where its program is. A user's PATH lacks the directories of the administrator's programs.
    ///
    /// # Errors
    /// [`MakeError::Missing`].
    pub fn find(&self) -> Result<PathBuf, MakeError> {
        let path = std::env::var_os("PATH").unwrap_or_default();
        let places =
            || std::env::split_paths(&path).chain(["/usr/sbin".into(), "/sbin".into(), "/usr/local/sbin".into()]);
        let found =
            self.programs.iter().find_map(|name| places().map(|dir| dir.join(name)).find(|path| path.is_file()));
        found.ok_or_else(|| {
            let remedy = match self.package {
                Some(package) => format!("apt-get install {package}"),
                None => "Debian 12 has no package of it".to_owned(),
            };
            MakeError::Missing { tool: self.tool(), format: self.format, remedy }
        })
    }

    /// The tool's options.
    ///
    /// # Errors
    /// [`MakeError::Unfit`].
    pub fn words(&self, wish: &Wish) -> Result<Vec<OsString>, MakeError> {
        let mut words: Vec<OsString> = self.options.iter().map(Into::into).collect();
        match self.label {
            _ if wish.label.is_empty() => {}
            Some((option, most)) if wish.label.len() <= most && !wish.label.starts_with('-') => {
                words.extend([option.into(), OsStr::new(&wish.label).to_owned()]);
            }
            Some((_, most)) => {
                let reason = format!("has labels of {most} bytes at most, that do not start with '-'");
                return Err(MakeError::Unfit { format: self.format, reason });
            }
            None => return Err(MakeError::Unfit { format: self.format, reason: "has no labels".to_owned() }),
        }
        if let Some(option) = self.hidden {
            // A boot loader's number of 32 bits, that none can use of a disk beyond.
            let sectors = u32::try_from(wish.start / 512).unwrap_or(0);
            words.extend([option.into(), sectors.to_string().into()]);
        }
        words.extend(wish.options.iter().cloned());
        Ok(words)
    }
}
