//! Inspects a Windows system: the registry has its version, host name, programs and drive letters, and the head of a program its
//! architecture.
//!
//! The keys are those that virt-inspector looks at (libguestfs's manual, "INSPECTING WINDOWS GUESTS").

use std::sync::Arc;

use inarch_block::Cursor;
use inarch_confine::Parsing;
use inarch_disk::guest::{Database, Package, System};
use inarch_disk::{DiskVolume, guid as guid_text};
use inarch_hive::{Hive, Key, Shown};
use inarch_volume::{Node, Volume};
use vm_memory::VolatileSlice;

use crate::windows_registry::{Found, Place, hives};

/// The most programs of the registry that are listed.
const MOST_PROGRAMS: usize = 10_000;
/// The first build of Windows 11, whose registry still says Windows 10.
const WINDOWS_11: u64 = 22_000;

/// A drive letter, and the name of the volume that it is on, if that is one of the disk.
pub type Drive = (char, Option<String>);

/// What the registry tells.
pub struct Windows {
    /// The system.
    pub system: System,
    /// Its drives, by letter.
    pub drives: Vec<Drive>,
}

/// Looks at the Windows on a file system. What cannot be read is left out.
pub fn windows(parsing: Parsing, files: &Arc<dyn Volume>, volumes: &[DiskVolume]) -> Windows {
    let root = Place::Volume(Arc::clone(files), files.root());
    let found = hives(&root).unwrap_or_default();
    let open = |name: &str| {
        let Found { file, logs, .. } = found.iter().find(|found| !found.is_user && found.name == name)?;
        Hive::open(parsing, Arc::clone(file), logs).ok()
    };
    let (software, of_machine) = (open("SOFTWARE"), open("SYSTEM"));
    let mut system = System { kind: Some("windows"), distribution: Some("windows".to_owned()), ..System::default() };
    system.arch = ["cmd.exe", "ntoskrnl.exe"].iter().find_map(|program| machine(&root, program));
    if let Some(hive) = &software {
        version(hive, &mut system);
        system.packaging = Some(Database::Windows);
        system.packages = Some(programs(hive));
    }
    if let Some(hive) = &of_machine {
        system.hostname = hostname(hive);
    }
    let drives = of_machine.map(|hive| drives(&hive, volumes)).unwrap_or_default();
    Windows { system, drives }
}

/// The value `name` of a key, if it can be read.
fn value(hive: &Hive, key: &Key, name: &str) -> Option<Shown> {
    let values = hive.values(key).ok()?;
    let value = values.iter().find(|value| value.name.is(name))?;
    Some(Shown::new(value.kind, hive.data(value).ok()?))
}

fn text(hive: &Hive, key: &Key, name: &str) -> Option<String> {
    match value(hive, key, name)? {
        Shown::Text(text) if !text.is_empty() => Some(text),
        _ => None,
    }
}

fn number(hive: &Hive, key: &Key, name: &str) -> Option<u64> {
    match value(hive, key, name)? {
        Shown::Number(number) => Some(number),
        _ => None,
    }
}

fn key(hive: &Hive, path: &[&str]) -> Option<Key> {
    hive.find(path.iter().copied()).ok().flatten()
}

fn version(software: &Hive, system: &mut System) {
    let Some(current) = key(software, &["Microsoft", "Windows NT", "CurrentVersion"]) else { return };
    let text = |name| text(software, &current, name);
    system.build = text("CurrentBuildNumber");
    system.variant = text("InstallationType");
    let numbers =
        ["CurrentMajorVersionNumber", "CurrentMinorVersionNumber"].map(|name| number(software, &current, name));
    system.version = match numbers {
        [Some(major), Some(minor)] => Some(format!("{major}.{minor}")),
        _ => text("CurrentVersion"),
    };
    let is_11 =
        system.build.as_deref().and_then(|build| build.parse().ok()).is_some_and(|build: u64| build >= WINDOWS_11);
    system.name = text("ProductName").map(|name| match name.strip_prefix("Windows 10") {
        Some(edition) if is_11 => format!("Windows 11{edition}"),
        _ => name,
    });
}

/// What can be uninstalled, by name.
fn programs(software: &Hive) -> Vec<Package> {
    let mut programs = Vec::new();
    // Programs of 32 bits on a system of 64 have a place of their own.
    for (above, arch) in [(&["Microsoft"][..], None), (&["Wow6432Node", "Microsoft"], Some("i686"))] {
        let path = [above, &["Windows", "CurrentVersion", "Uninstall"]].concat();
        let keys = key(software, &path).and_then(|key| software.subkeys(&key).ok()).unwrap_or_default();
        for key in keys.iter().take(MOST_PROGRAMS) {
            let Some(name) = text(software, key, "DisplayName") else { continue };
            let version = text(software, key, "DisplayVersion").unwrap_or_default();
            programs.push(Package { name, version, arch: arch.map(str::to_owned) });
        }
    }
    programs.sort();
    programs
}

fn hostname(system: &Hive) -> Option<String> {
    let set = system.current_control_set().ok().flatten()?;
    let parameters = key(system, &[&set, "Services", "Tcpip", "Parameters"])?;
    text(system, &parameters, "Hostname").or_else(|| text(system, &parameters, "NV Hostname"))
}

/// The drive letters of `MountedDevices`: a partition of a GPT by its GUID, one of an MBR by the disk's signature and where it starts.
fn drives(system: &Hive, volumes: &[DiskVolume]) -> Vec<Drive> {
    let values =
        key(system, &["MountedDevices"]).and_then(|key| system.values_with_data(&key).ok()).unwrap_or_default();
    let drive = |(value, data): (inarch_hive::Value, Vec<u8>)| {
        let name = value.name.to_string();
        let letter = name.strip_prefix("\\DosDevices\\")?.strip_suffix(':')?;
        let letter = letter.parse::<char>().ok().filter(char::is_ascii_alphabetic)?;
        let volume = volumes.iter().find(|volume| is_volume(volume, &data)).map(DiskVolume::name);
        Some((letter.to_ascii_uppercase(), volume))
    };
    let mut drives: Vec<Drive> = values.into_iter().filter_map(drive).collect();
    drives.sort();
    drives.dedup_by_key(|(letter, _)| *letter);
    drives
}

fn is_volume(volume: &DiskVolume, data: &[u8]) -> bool {
    if let Some(guid) = data.strip_prefix(b"DMIO:ID:").and_then(|guid| <[u8; 16]>::try_from(guid).ok()) {
        return volume.answers_to(&format!("PARTUUID={}", guid_text(&guid)));
    }
    let Some((signature, start)) = data.split_first_chunk() else { return false };
    <[u8; 8]>::try_from(start)
        .is_ok_and(|start| volume.names.is_at(u32::from_le_bytes(*signature), u64::from_le_bytes(start)))
}

/// The machine that a program of `System32` is made for, by the head of its file (Microsoft's "PE Format": the signature's place at byte 60,
/// the machine after the signature).
fn machine(root: &Place, program: &str) -> Option<&'static str> {
    let Place::Volume(volume, node) = root.find(&["Windows", "System32", program])? else { return None };
    let at: [u8; 4] = bytes(&*volume, node, 60)?;
    let head: [u8; 6] = bytes(&*volume, node, u64::from(u32::from_le_bytes(at)))?;
    let [b'P', b'E', 0, 0, low, high] = head else { return None };
    Some(match u16::from_le_bytes([low, high]) {
        0x014c => "i686",
        0x8664 => "x86_64",
        0x01c0 | 0x01c4 => "armv7l",
        0xaa64 => "aarch64",
        0x0200 => "ia64",
        _ => return None,
    })
}

fn bytes<const N: usize>(volume: &dyn Volume, node: Node, at: u64) -> Option<[u8; N]> {
    let mut bytes = [0; N];
    let end = at.checked_add(N as u64)?;
    if end > volume.attributes(node).ok()?.size {
        return None;
    }
    volume.read(node, at, N as u64, &mut Cursor::new(&[VolatileSlice::from(&mut bytes[..])])).ok()?;
    Some(bytes)
}
