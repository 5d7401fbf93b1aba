//! Any bytes as the files by which a guest's system is recognised: os-release, fstab, crypttab, the databases of dpkg, apk and pacman, heads of programs of
//! Linux and Windows, and what the registry of Windows says. What is told of them is bounded.

#![no_main]

// What `inspect` reads of a Windows has no public name, and needs nothing of its crate but these files.
#[path = "../../crates/guest/src/windows_registry/place.rs"]
#[allow(dead_code, reason = "other commands use more of it")]
mod place;
#[path = "../../crates/guest/src/windows.rs"]
mod windows;

/// As the crate names what is in `place`.
mod windows_registry {
    pub(crate) use super::place::{Found, Place, hives};
}

use std::sync::{Arc, LazyLock};

use arbitrary::Arbitrary;
use inarch_confine::Parsing;
use inarch_disk::guest::{self, Mount, NotFound, Opener, Subvolume, Which};
use inarch_disk::{DiskVolume, Names, Signature};
use inarch_fuzz::files::{self, File};
use inarch_fuzz::hives::{SAMPLE, change};
use inarch_fuzz::image::{Memory, replace};
use inarch_volume::{Item, Last, Volume, resolve};
use libfuzzer_sys::fuzz_target;

#[derive(Arbitrary, Debug)]
enum Input<'a> {
    Linux {
        files: Vec<(u8, Vec<Word<'a>>)>,
        /// Links from one of the paths to another.
        links: Vec<(u8, u8)>,
        /// Names in pacman's directory.
        packages: Vec<&'a [u8]>,
    },
    /// The options of a mount.
    Options(&'a str),
    Windows {
        /// Bytes to be replaced in the head of a program, and how long that is.
        program: Vec<(u8, &'a [u8])>,
        length: Option<u8>,
        /// The same in the header and the cells of its hives.
        header: Vec<(u8, &'a [u8])>,
        cells: Vec<(u16, &'a [u8])>,
        log: Option<&'a [u8]>,
    },
}

/// A part of a text.
#[derive(Arbitrary, Debug)]
enum Word<'a> {
    Known(u8),
    Bytes(&'a [u8]),
    /// All before it, many times.
    Again(u8),
}

/// The files that are looked at.
const PATHS: [&str; 20] = [
    "etc/os-release",
    "usr/lib/os-release",
    "etc/fstab",
    "etc/crypttab",
    "var/lib/dpkg/status",
    "lib/apk/db/installed",
    "etc/hostname",
    "etc/HOSTNAME",
    "etc/debian_version",
    "etc/alpine-release",
    "etc/redhat-release",
    "etc/passwd",
    "var/lib/rpm",
    "usr/share/rpm",
    "bin/sh",
    "usr/bin/bash",
    "sbin/init",
    "home",
    "boot",
    "Windows/System32/config",
];

const WORDS: [&str; 64] = [
    "\n",
    "\n\n",
    " ",
    "\t",
    "=",
    ",",
    ":",
    "#",
    "\"",
    "'",
    "\\",
    "\\040",
    "\\134",
    "\\777",
    "/",
    "-",
    "ID",
    "PRETTY_NAME",
    "VERSION_ID",
    "VARIANT_ID",
    "debian",
    "UUID",
    "LABEL",
    "PARTUUID",
    "PARTLABEL",
    "root",
    "/dev/sda1",
    "/dev/sda2",
    "/dev/vg/home",
    "/dev/mapper/vg-home",
    "/dev/mapper/root",
    "/dev/disk/by-label/",
    "/home",
    "/boot",
    "/boot/efi",
    "none",
    "swap",
    "ext4",
    "btrfs",
    "defaults",
    "noauto",
    "bind",
    "subvol",
    "subvolid",
    "@home",
    "0x",
    "0",
    "256",
    "18446744073709551616",
    "luks,discard",
    "Package: ",
    "Status: ",
    "install ok installed",
    "Version: ",
    "Architecture: ",
    " installed",
    "P:",
    "V:",
    "A:",
    "\u{ff}",
    "\r",
    "\u{7f}ELF\u{2}\u{1}",
    "\0\0\0\0\0\0\0\0\0\0",
    "\u{3}\0\u{3e}\0",
];

/// The most bytes of a file: a little more than are read of a small text.
const MOST: usize = (64 << 10) + 100;

fn text(words: &[Word<'_>]) -> Vec<u8> {
    let mut text: Vec<u8> = Vec::new();
    for word in words {
        match word {
            Word::Known(number) => text.extend(WORDS[usize::from(*number) % WORDS.len()].as_bytes()),
            Word::Bytes(bytes) => text.extend_from_slice(bytes),
            Word::Again(times) => text = text.repeat(usize::from(*times).min(MOST / text.len().max(1)).max(1)),
        }
        text.truncate(MOST);
    }
    text
}

/// The volumes of a disk: the root, and another one that it may mount.
fn volumes() -> [DiskVolume; 2] {
    let volume = |part: u32, format: &'static str, label: &str, id: &str| DiskVolume {
        names: Names {
            part: Some(part),
            start: Some(u64::from(part) << 20),
            part_id: Some(id.to_owned()),
            content: Some(Signature { format, label: Some(label.to_owned()), uuid: Some("0".to_owned()) }),
            ..Names::default()
        },
        backing: Arc::new(Memory(Vec::new())),
        locked: None,
    };
    [volume(1, "btrfs", "root", "0f2e4a10-01"), volume(2, "ext4", "home", "11111111-1111-1111-1111-111111111111")]
}

/// Gives the file systems of [`volumes`].
struct Guest {
    root: Arc<dyn Volume>,
    other: Arc<dyn Volume>,
}

impl Guest {
    fn of(&self, volume: &DiskVolume) -> Arc<dyn Volume> {
        Arc::clone(if volume.names.part == Some(1) { &self.root } else { &self.other })
    }
}

impl Opener for Guest {
    type Error = NotFound;

    fn open(&mut self, volume: &DiskVolume, _: Option<u64>) -> Result<Option<Arc<dyn Volume>>, NotFound> {
        Ok(Some(self.of(volume)))
    }

    fn subvolumes(&mut self, _: &DiskVolume) -> Vec<String> {
        vec!["@home".to_owned()]
    }
}

/// Looks at a system as `inspect` and the commands for a whole guest do.
fn look(files: &Arc<dyn Volume>) {
    let volumes = volumes();
    assert_eq!(guest::root_of(files).is_some(), guest::is_root(&**files));
    let (mounts, mapped) = (guest::mounts(&**files), guest::mapped(&**files));
    assert!(mounts.len() <= 1000 && mapped.len() <= 1000);
    assert!(mounts.iter().all(Mount::is_of_a_disk));
    for mount in &mounts {
        let _ = (mount.subvolume(), mount.is_automatic(), guest::is_meant(&volumes[1], &mount.device, &mapped));
    }
    let system = guest::system(&**files);
    // A paragraph, or a directory's entry, has a few bytes at least.
    assert!(system.packages.is_none_or(|packages| packages.len() <= MOST));
    assert!(system.distribution.is_none_or(|name| !name.is_empty() && name.len() <= 3 * MOST));
    let other = files::volume([(b"a/file".to_vec(), File::Regular(b"content".to_vec()))]);
    let mut guest = Guest { root: Arc::clone(files), other };
    let mut open = |volume: &DiskVolume| Ok::<_, NotFound>(Some(guest.of(volume)));
    if let Ok(places) = guest::places(&volumes, &Which::Auto, &mut open) {
        assert!(places.mounted.len() + places.missing.len() <= 1001);
        assert!(places.mounted.iter().all(|place| place.volume < 2));
    }
    for which in [Which::Auto, Which::Named("1".to_owned()), Which::Named("@home".to_owned())] {
        let Ok(whole) = guest::select(Vec::from(self::volumes()), &which, b"", &mut guest) else { continue };
        assert!(whole.notes().len() <= 1001);
        let mut names = 0;
        let _ = whole.list(whole.root(), 0, &mut |item| {
            names += usize::from(matches!(item, Item::Entry(_)));
            true
        });
        assert!(names <= 30, "{names}");
        let _ = (resolve(&*whole, b"home/a/file", Last::Followed), resolve(&*whole, b"boot/../home", Last::Taken));
    }
}

/// A program of Windows, up to behind its head.
const PROGRAM: [u8; 160] = {
    let mut program = [0; 160];
    (program[0], program[1], program[60]) = (b'M', b'Z', 128);
    (program[128], program[129], program[132], program[133]) = (b'P', b'E', 0x64, 0x86);
    program
};

fn windows_of(program: Vec<u8>, hive: Vec<u8>, log: Option<Vec<u8>>) -> Arc<dyn Volume> {
    let path = |name: &str| format!("Windows/System32/{name}").into_bytes();
    let mut files = vec![
        (path("ntoskrnl.exe"), program.clone()),
        (path("CMD.EXE"), program),
        (path("config/SYSTEM"), hive.clone()),
        (path("config/SOFTWARE"), hive.clone()),
        (b"Users/u/ntuser.dat".to_vec(), hive),
    ];
    files.extend(log.map(|log| (path("config/SYSTEM.LOG1"), log)));
    files::volume(files.into_iter().map(|(path, bytes)| (path, File::Regular(bytes))))
}

fn look_at_windows(files: &Arc<dyn Volume>) -> windows::Windows {
    look(files);
    let found = windows::windows(Parsing::unconfined(), files, &volumes());
    assert!(found.drives.len() <= 26 && found.drives.is_sorted());
    assert!(found.system.packages.as_ref().is_none_or(|packages| packages.len() <= 20_000));
    found
}

/// What is told of a Windows before anything is changed. Readers that do not come so far would find nothing to complain about in what is changed.
static WHOLE: LazyLock<()> = LazyLock::new(|| {
    let found = look_at_windows(&windows_of(PROGRAM.to_vec(), SAMPLE.clone(), None));
    assert_eq!((found.system.arch, found.system.hostname.as_deref()), (Some("x86_64"), Some("pc")));
    assert_eq!(found.system.name.as_deref(), Some("Windows 11 Pro"));
    assert_eq!(found.system.packages.map(|packages| packages.len()), Some(1));
    let on = |name: &str| Some(name.to_owned());
    assert_eq!(found.drives, [('C', on("/dev/sda1")), ('D', on("/dev/sda2"))]);
});

fuzz_target!(|input: Input<'_>| {
    LazyLock::force(&WHOLE);
    match input {
        Input::Linux { files, links, packages } => {
            let path = |number: u8| PATHS[usize::from(number) % PATHS.len()];
            let files = files.iter().map(|(number, words)| (path(*number), File::Regular(text(words))));
            let links = links.iter().map(|(from, to)| (path(*from), File::Link(format!("/{}", path(*to)))));
            let usual = [("home", File::Directory), ("boot", File::Directory)];
            let files = files.take(20).chain(links.take(20)).chain(usual);
            let files = files.map(|(path, file)| (path.as_bytes().to_vec(), file));
            let package = |name: &&[u8]| ([&b"var/lib/pacman/local/"[..], *name].concat(), File::Directory);
            look(&files::volume(files.chain(packages.iter().take(100).map(package))));
        }
        Input::Options(options) => {
            if let Ok(Some(subvolume)) = Subvolume::of_options(options) {
                // Its text is such an option.
                let again = Subvolume::of_options(&subvolume.to_string());
                assert_eq!(again, Ok(Some(subvolume)));
            }
        }
        Input::Windows { program, length, header, cells, log } => {
            let mut bytes = PROGRAM.to_vec();
            for (at, new) in &program {
                replace(&mut bytes, usize::from(*at), &new[..new.len().min(16)]);
            }
            bytes.truncate(length.map_or(bytes.len(), usize::from));
            let mut hive = SAMPLE.clone();
            change(&mut hive, &header, &cells);
            look_at_windows(&windows_of(bytes, hive, log.map(<[u8]>::to_vec)));
        }
    }
});
