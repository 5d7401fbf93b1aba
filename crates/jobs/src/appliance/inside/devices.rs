//! Finds the devices of volumes, after it has loaded what they need. There is no udev.

use std::fs;
use std::path::{Path, PathBuf};

use super::failure::Failure;
use super::tools::Tool;
use crate::appliance::wire::{Array, Device};

const MODPROBE: Tool = Tool { program: "modprobe", package: "kmod" };
const LVM: Tool = Tool { program: "lvm", package: "lvm2" };
const MDADM: Tool = Tool { program: "mdadm", package: "mdadm" };
const BLKID: Tool = Tool { program: "blkid", package: "util-linux" };

/// Switches off whatever in the host's settings needs udev, a daemon or a writable /etc.
const LVM_SETTINGS: &str = "activation{udev_sync=0 udev_rules=0 monitoring=0} devices{use_devicesfile=0 obtain_device_list_from_udev=0 \
                            external_device_info_source=\"none\"} backup{backup=0 archive=0} global{event_activation=0 use_lvmpolld=0}";

/// The path of a volume's device.
pub(super) fn device(device: &Device) -> Result<PathBuf, Failure> {
    match device {
        Device::Above(path) => {
            let path = PathBuf::from(path);
            match path.exists() {
                true => Ok(path),
                false => Err(Failure::new(format!("{} is not there after its group was activated", path.display()))),
            }
        }
        Device::Array(name) => match is_active(name) {
            true => Ok(PathBuf::from(name)),
            false => {
                Err(Failure::new(format!("{name}: not all members of the array are on this image, so it is only read")))
            }
        },
        Device::Disk { serial, part } => {
            let name = match part {
                None => format!("virtio-{serial}"),
                Some(part) => format!("virtio-{serial}-part{part}"),
            };
            let link = Path::new("/dev/disk/by-id").join(&name);
            let fail = |error| Failure::of(format!("the guest's kernel does not know the partition ({name})"), error);
            fs::canonicalize(link).map_err(fail)
        }
    }
}

/// The format of what is on a device.
pub(super) fn format(device: &Path, known: Option<&str>) -> Result<String, Failure> {
    if let Some(format) = known {
        return Ok(format.to_owned());
    }
    let found =
        BLKID.run([Path::new("-o"), Path::new("value"), Path::new("-s"), Path::new("TYPE"), device], &mut |_| {})?;
    found
        .lines
        .first()
        .cloned()
        .ok_or_else(|| Failure::new(format!("{}: nothing that is known is on it", device.display())))
}

/// The driver of a format, by its module's name; none for what a program mounts.
pub(in crate::appliance) fn driver(format: &str) -> &str {
    match format {
        "ext2" | "ext3" => "ext4",
        "ntfs" => "fuse",
        "iso9660" => "isofs",
        other => other,
    }
}

/// Loads the driver of a format. Returns whether there was something to load.
pub(super) fn load_driver(format: &str) -> Result<bool, Failure> {
    let driver = driver(format);
    let known = fs::read_to_string("/proc/filesystems").unwrap_or_default();
    let is_known = |name: &str| known.lines().any(|line| line.split_whitespace().last() == Some(name));
    if is_known(format) || is_known(driver) {
        return Ok(false);
    }
    let loaded = MODPROBE.run([driver], &mut |_| {})?;
    if loaded.status != 0 {
        let kernel = rustix::system::uname().release().to_string_lossy().into_owned();
        let words = loaded.lines.last().cloned().unwrap_or_default();
        return Err(Failure::new(format!(
            "{format}: the guest's kernel {kernel} has no driver for it ({words}); --kernel takes another kernel"
        )));
    }
    Ok(true)
}

/// Where mdadm reads which arrays there are: not from the host's settings.
const ARRAYS: &str = "/run/inarch-arrays";

/// Assembles the arrays of MD that are complete: what is missing may be on an image that was not named.
pub(super) fn assemble_arrays(arrays: &[Array], read_only: bool) -> Result<(), Failure> {
    MDADM.find()?;
    load_module("md_mod");
    let lines = arrays.iter().map(|Array { name, id }| format!("ARRAY {name} UUID={}\n", id.replace('-', ":")));
    // The guest is another machine than this one, whose arrays would get other names.
    let text = format!("DEVICE partitions\nHOMEHOST <ignore>\n{}", lines.collect::<String>());
    fs::write(ARRAYS, text).map_err(|error| Failure::of(ARRAYS, error))?;
    let read_only = read_only.then_some("--readonly");
    let words = ["--assemble", "--scan", "--no-degraded", "--config", ARRAYS].into_iter().chain(read_only);
    let ended = MDADM.run(words, &mut |_| {})?;
    // That some are not complete is no failure: they may not be needed.
    let is_incomplete = ended.lines.iter().any(|line| line.contains("not started"));
    let is_done = is_incomplete || arrays.iter().all(|array| is_active(&array.name));
    if is_done { Ok(()) } else { Err(MDADM.failed(&ended)) }
}

/// Whether an array runs: one that is not complete has a device all the same.
fn is_active(name: &str) -> bool {
    let device = fs::canonicalize(name).unwrap_or_default();
    let Some(number) = device.file_name().and_then(|number| number.to_str()) else { return false };
    let state = fs::read_to_string(format!("/sys/block/{number}/md/array_state"));
    state.is_ok_and(|state| !matches!(state.trim(), "clear" | "inactive"))
}

pub(super) fn stop_arrays() -> Result<(), Failure> {
    MDADM.must(["--stop", "--scan", "--config", ARRAYS]).map(drop)
}

/// Activates all volumes of some groups.
pub(super) fn activate_groups(groups: &[String]) -> Result<(), Failure> {
    LVM.find()?;
    load_module("dm_mod");
    lvm("y", groups)
}

pub(super) fn deactivate_groups(groups: &[String]) -> Result<(), Failure> {
    lvm("n", groups)
}

fn lvm(activate: &str, groups: &[String]) -> Result<(), Failure> {
    let words = ["vgchange", "-q", "--activate", activate, "--config", LVM_SETTINGS].map(str::to_owned);
    LVM.must(words.into_iter().chain(groups.iter().cloned())).map(drop)
}

/// Loads a module that the kernel may also have built in.
fn load_module(name: &str) {
    // What needs it says what is missing.
    let _ = MODPROBE.run([name], &mut |_| {});
}
