//! Chooses what an appliance is: a process, or a virtual machine.

use inarch_disk::TableKind;
use inarch_source::ImageFormat;
use inarch_vm::AccelChoice;
use inarch_vm::uml;

use super::inside::driver;
use super::volumes::Plan;
use super::wire::Attach;
use super::{ApplianceRequest, Isolation};
use crate::run::{Vmm, guest};

/// What the appliance's machine is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Choice {
    pub vmm: Vmm,
    /// Whether it may be the other one, if this one does not start.
    pub is_open: bool,
    /// Whether its volumes may be RAID 5 or 6, for which a kernel of User-Mode Linux has to prepare.
    pub raid: bool,
    /// Whether its kernel must use the second copy of a GPT, which it does only if it is told to: the first one is damaged.
    pub second_table: bool,
}

/// The choice for an image of this format, with these volumes.
pub(super) fn choose(request: &ApplianceRequest, format: ImageFormat, Plan { attach, disk }: &Plan) -> Choice {
    let raid = may_be_raid(attach);
    let is_gpt = disk.table.as_ref().is_some_and(|table| table.kind == TableKind::Gpt);
    let second_table = is_gpt && !disk.notes.is_empty();
    let (vmm, is_open) = match request.isolation {
        Isolation::Vm => (Vmm::Qemu, false),
        Isolation::Process => (Vmm::Uml, false),
        Isolation::Auto if can_be_a_process(request, format, attach) => (Vmm::Uml, true),
        Isolation::Auto => (Vmm::Qemu, false),
    };
    Choice { vmm, is_open, raid, second_table }
}

/// Whether a volume may lie on several devices with parity.
fn may_be_raid(attach: &Attach) -> bool {
    let is_simple = |format: &Option<String>| format.as_deref().is_some_and(|format| format != "btrfs");
    !attach.arrays.is_empty()
        || !attach.groups.is_empty()
        || !attach.volumes.iter().all(|volume| is_simple(&volume.format))
}

/// Whether User-Mode Linux is installed and can do what is asked.
fn can_be_a_process(request: &ApplianceRequest, format: ImageFormat, attach: &Attach) -> bool {
    let is_of_qemu = request.kernel.is_some() || request.accel != AccelChoice::Auto || format != ImageFormat::Raw;
    if is_of_qemu || !uml::is_installed() {
        return false;
    }
    let Some(modules) = uml::find(None).ok().and_then(|kernel| guest::modules(&kernel, None).ok()) else {
        return false;
    };
    let has_driver = |format: &Option<String>| format.as_deref().is_none_or(|format| modules.has(driver(format)));
    !request.access.is_mounted() || attach.volumes.iter().all(|volume| has_driver(&volume.format))
}

#[cfg(test)]
mod tests {
    use inarch_disk::{Disk, Table};

    use super::super::wire::{Array, AttachedVolume, Device};
    use super::*;

    fn volumes(formats: &[Option<&str>]) -> Attach {
        let volume = |format: &Option<&str>| AttachedVolume {
            device: Device::Above("/dev/a".to_owned()),
            format: format.map(str::to_owned),
            directory: "/".to_owned(),
            subvolume: None,
            name: String::new(),
        };
        Attach { volumes: formats.iter().map(volume).collect(), ..Attach::default() }
    }

    #[test]
    fn what_needs_no_parity_is_known() {
        assert!(!may_be_raid(&volumes(&[Some("ext4"), Some("xfs")])));
        assert!(may_be_raid(&volumes(&[Some("ext4"), Some("btrfs")])));
        assert!(may_be_raid(&volumes(&[None])));
        let array = Array { name: "/dev/md0".to_owned(), id: String::new() };
        assert!(may_be_raid(&Attach { arrays: vec![array], ..volumes(&[Some("ext4")]) }));
        assert!(may_be_raid(&Attach { groups: vec!["vg".to_owned()], ..volumes(&[Some("ext4")]) }));
    }

    #[test]
    fn what_is_asked_for_is_what_is_chosen() {
        let request = ApplianceRequest::new("image".into(), inarch_source::Which::Auto);
        let disk = Disk { size: 1 << 20, table: None, parts: Vec::new(), content: None, notes: Vec::new() };
        let mut plan = Plan { attach: volumes(&[Some("ext4")]), disk };
        let choice = |isolation, format| {
            let request = ApplianceRequest { isolation, ..request.clone() };
            choose(&request, format, &plan)
        };
        let qcow2 = ImageFormat::Container(inarch_source::Container::Qcow2);
        assert_eq!(choice(Isolation::Vm, ImageFormat::Raw).vmm, Vmm::Qemu);
        assert_eq!(choice(Isolation::Process, qcow2).vmm, Vmm::Uml);
        assert_eq!(
            choice(Isolation::Auto, qcow2),
            Choice { vmm: Vmm::Qemu, is_open: false, raid: false, second_table: false }
        );
        let kernel = ApplianceRequest { kernel: Some("/boot/vmlinuz".into()), ..request.clone() };
        assert_eq!(choose(&kernel, ImageFormat::Raw, &plan).vmm, Vmm::Qemu);
        plan.disk.notes = vec!["the second copy of the table is used".to_owned()];
        assert!(!choose(&request, ImageFormat::Raw, &plan).second_table);
        plan.disk.table = Some(Table { kind: TableKind::Gpt, id: String::new(), sector: 512 });
        assert!(choose(&request, ImageFormat::Raw, &plan).second_table);
    }
}
