//! Verbs about devices: disks, partitions, arrays, volume groups, and what they hold.

use anyhow::{Context, anyhow, bail};
use inarch_jobs::shell::{Block, Kind, Part, Place, TableKind};
use inarch_jobs::{shell::Table, shown};

use super::drives::idle;
use super::print::{Fields, fields, lines, list};
use super::{Call, Shell, Verb, aliased, verb};

pub const VERBS: &[Verb] = &[
    verb("list-devices", "", "list the disks", devices),
    verb("list-partitions", "", "list the partitions of all disks", partitions),
    verb("list-filesystems", "", "list what holds a file system, and which", filesystems),
    verb("list-md-devices", "", "list the RAID arrays", arrays),
    verb("lvs", "", "list the logical volumes", lvs),
    verb("vgs", "", "list the volume groups", vgs),
    verb("pvs", "", "list the physical volumes", pvs),
    verb("lvuuid", "DEVICE", "print the identifier of a logical volume", lv_uuid),
    verb("lvm-scan", "ACTIVATE", "nothing: volumes are found at once", idle),
    verb("vgscan", "", "nothing, like lvm-scan", idle),
    verb("vg-activate-all", "ACTIVATE", "nothing: volumes are read where they lie", idle),
    verb("vg-activate", "ACTIVATE [GROUP...]", "nothing, like vg-activate-all", idle),
    verb("is-lv", "DEVICE", "whether it is a logical volume", is_lv),
    verb("is-whole-device", "DEVICE", "whether it is a disk", is_whole),
    verb("canonical-device-name", "DEVICE", "print the usual name of a device", canonical),
    verb("device-index", "DEVICE", "print the number of a disk, from 0", index),
    verb("device-name", "NUMBER", "print the name of the disk of that number", name_of),
    verb("blockdev-getsize64", "DEVICE", "print the bytes of a device", bytes),
    verb("blockdev-getsz", "DEVICE", "print a device's sectors of 512 bytes", sectors),
    verb("blockdev-getss", "DEVICE", "print the bytes of a sector", sector),
    verb("blockdev-getro", "DEVICE", "whether nothing may be written to it", is_read_only),
    verb("blockdev-flushbufs", "DEVICE", "nothing, like sync", idle),
    verb("blockdev-rereadpt", "DEVICE", "nothing: tables are read anew when they are changed", idle),
    verb("vfs-type", "DEVICE", "print which file system a device holds", kind),
    verb("vfs-label", "DEVICE", "print the label of a file system", label),
    aliased("vfs-uuid", &["get-uuid", "get-e2uuid"], "DEVICE", "print the UUID of a file system", uuid),
    verb("get-e2label", "DEVICE", "print the label of a file system", label),
    verb("blkid", "DEVICE", "print type, label and UUID of what a device holds", blkid),
    verb("findfs-label", "LABEL", "print the device whose file system has that label", by_label),
    verb("findfs-uuid", "UUID", "print the device whose file system has that UUID", by_uuid),
    verb("findfs-partlabel", "LABEL", "print the partition of that name", by_part_label),
    verb("findfs-partuuid", "UUID", "print the partition of that identifier", by_part_uuid),
    verb("part-list", "DEVICE", "list the partitions of a disk", part_list),
    verb("part-get-parttype", "DEVICE", "print the kind of a partition table: gpt or msdos", part_type),
    verb("part-get-name", "DEVICE NUMBER", "print the name of a partition of a GPT", part_name),
    verb("part-get-bootable", "DEVICE NUMBER", "whether a partition is marked to be booted", part_boots),
    verb("part-get-mbr-id", "DEVICE NUMBER", "print the type of a partition of an MBR", part_mbr_type),
    verb("part-get-gpt-type", "DEVICE NUMBER", "print the type of a partition of a GPT", part_gpt_type),
    verb("part-get-gpt-guid", "DEVICE NUMBER", "print the identifier of a partition of a GPT", part_gpt_id),
    verb("part-get-disk-guid", "DEVICE", "print the identifier of a GPT", disk_id),
    verb("part-to-dev", "PARTITION", "print the disk of a partition", part_to_disk),
    verb("part-to-partnum", "PARTITION", "print the number of a partition", part_to_number),
];

type Done = anyhow::Result<()>;

fn devices(shell: &mut Shell, call: &mut Call<'_>) -> Done {
    lines(call, shell.session.devices())
}

fn partitions(shell: &mut Shell, call: &mut Call<'_>) -> Done {
    lines(call, shell.session.partitions()?)
}

/// What is part of something larger holds no file system of its own.
fn is_part_of_more(format: &str) -> bool {
    format.ends_with("_member") || matches!(format, "crypto_LUKS" | "BitLocker" | "bcache")
}

fn filesystems(shell: &mut Shell, call: &mut Call<'_>) -> Done {
    for Block { name, content, .. } in shell.session.blocks()? {
        let format = content.map_or("unknown", |content| content.format);
        if !is_part_of_more(format) {
            call.line(format_args!("{}: {format}", shown(name.as_ref())))?;
        }
    }
    Ok(())
}

fn arrays(shell: &mut Shell, call: &mut Call<'_>) -> Done {
    lines(call, shell.session.above(Kind::Array)?.into_iter().map(|(name, _)| shown(name.as_ref())))
}

fn lvs(shell: &mut Shell, call: &mut Call<'_>) -> Done {
    lines(call, shell.session.above(Kind::Logical)?.into_iter().map(|(name, _)| shown(name.as_ref())))
}

fn vgs(shell: &mut Shell, call: &mut Call<'_>) -> Done {
    lines(call, shell.session.groups()?.into_iter().map(|name| shown(name.as_ref())))
}

fn pvs(shell: &mut Shell, call: &mut Call<'_>) -> Done {
    let blocks = shell.session.blocks()?.into_iter();
    let is_physical = |block: &Block| block.content.as_ref().is_some_and(|content| content.format == "LVM2_member");
    lines(call, blocks.filter(is_physical).map(|block| shown(block.name.as_ref())))
}

fn lv_uuid(shell: &mut Shell, call: &mut Call<'_>) -> Done {
    let name = shell.session.block(call.text(0)?)?.name;
    let found = shell.session.above(Kind::Logical)?.into_iter().find(|(known, _)| *known == name);
    let id = found.and_then(|(_, volume)| volume.id);
    // Only letters and hyphens, as the reader checks.
    call.line(id.ok_or_else(|| anyhow!("{name}: it is no logical volume"))?)
}

fn is_lv(shell: &mut Shell, call: &mut Call<'_>) -> Done {
    let name = shell.session.block(call.text(0)?)?.name;
    let is_one = shell.session.above(Kind::Logical)?.iter().any(|(known, _)| *known == name);
    call.line(is_one)
}

fn is_whole(shell: &mut Shell, call: &mut Call<'_>) -> Done {
    let block = shell.session.block(call.text(0)?)?;
    call.line(matches!(block.place, Place::Disk(_)))
}

fn canonical(shell: &mut Shell, call: &mut Call<'_>) -> Done {
    let block = shell.session.block(call.text(0)?)?;
    call.line(shown(block.name.as_ref()))
}

fn index(shell: &mut Shell, call: &mut Call<'_>) -> Done {
    call.line(shell.session.disk_number(call.text(0)?)?)
}

fn name_of(shell: &mut Shell, call: &mut Call<'_>) -> Done {
    let devices = shell.session.devices();
    let name = devices.get(call.number::<usize>(0)?);
    call.line(name.ok_or_else(|| anyhow!("{}: there is no such disk", call.text(0).unwrap_or_default()))?)
}

fn bytes(shell: &mut Shell, call: &mut Call<'_>) -> Done {
    call.line(shell.session.block(call.text(0)?)?.size())
}

fn sectors(shell: &mut Shell, call: &mut Call<'_>) -> Done {
    call.line(shell.session.block(call.text(0)?)?.size() / 512)
}

fn sector(shell: &mut Shell, call: &mut Call<'_>) -> Done {
    call.line(shell.session.sector(call.text(0)?)?)
}

fn is_read_only(shell: &mut Shell, call: &mut Call<'_>) -> Done {
    let block = shell.session.block(call.text(0)?)?;
    let read_only: Vec<bool> = shell.session.images().map(|(_, options)| options.read_only).collect();
    let is_so = match block.place {
        Place::Disk(disk) | Place::Part(disk, _) => read_only.get(disk).copied().unwrap_or(true),
        Place::Above => true,
    };
    call.line(is_so)
}

fn kind(shell: &mut Shell, call: &mut Call<'_>) -> Done {
    let block = shell.session.block(call.text(0)?)?;
    call.line(block.content.map_or("", |content| content.format))
}

fn label(shell: &mut Shell, call: &mut Call<'_>) -> Done {
    let block = shell.session.block(call.text(0)?)?;
    let label = block.content.and_then(|content| content.label).unwrap_or_default();
    call.line(shown(label.as_ref()))
}

fn uuid(shell: &mut Shell, call: &mut Call<'_>) -> Done {
    let block = shell.session.block(call.text(0)?)?;
    let uuid = block.content.and_then(|content| content.uuid).unwrap_or_default();
    call.line(shown(uuid.as_ref()))
}

fn blkid(shell: &mut Shell, call: &mut Call<'_>) -> Done {
    let Some(content) = shell.session.block(call.text(0)?)?.content else { return Ok(()) };
    let text = |text: Option<String>| text.map(|text| shown(text.as_ref()));
    let all = [("TYPE", Some(content.format.to_owned())), ("LABEL", text(content.label)), ("UUID", text(content.uuid))];
    fields(call, &all.into_iter().filter_map(|(name, value)| Some((name, value?))).collect())
}

fn find(shell: &mut Shell, call: &mut Call<'_>, tag: &str) -> Done {
    let name = format!("{tag}={}", call.text(0)?);
    let block = shell.session.block(&name)?;
    call.line(shown(block.name.as_ref()))
}

fn by_label(shell: &mut Shell, call: &mut Call<'_>) -> Done {
    find(shell, call, "LABEL")
}

fn by_uuid(shell: &mut Shell, call: &mut Call<'_>) -> Done {
    find(shell, call, "UUID")
}

fn by_part_label(shell: &mut Shell, call: &mut Call<'_>) -> Done {
    find(shell, call, "PARTLABEL")
}

fn by_part_uuid(shell: &mut Shell, call: &mut Call<'_>) -> Done {
    find(shell, call, "PARTUUID")
}

fn part_list(shell: &mut Shell, call: &mut Call<'_>) -> Done {
    let (_, mut parts) = shell.session.table(call.text(0)?)?;
    parts.sort_by_key(|part| part.number);
    let of = |part: &Part| -> Fields {
        let end = part.start.saturating_add(part.length).saturating_sub(1);
        vec![
            ("part_num", part.number.to_string()),
            ("part_start", part.start.to_string()),
            ("part_end", end.to_string()),
            ("part_size", part.length.to_string()),
        ]
    };
    list(call, &parts.iter().map(of).collect::<Vec<_>>())
}

fn part_type(shell: &mut Shell, call: &mut Call<'_>) -> Done {
    let (table, _) = shell.session.table(call.text(0)?)?;
    call.line(match table.kind {
        TableKind::Gpt => "gpt",
        TableKind::Mbr => "msdos",
    })
}

/// A partition of a table, which must be of that kind if one is given.
fn part(shell: &mut Shell, call: &Call<'_>, kind: Option<TableKind>) -> anyhow::Result<(Table, Part)> {
    let device = call.text(0)?;
    let number: u32 = call.number(1)?;
    let (table, parts) = shell.session.table(device)?;
    if let Some(kind) = kind.filter(|kind| *kind != table.kind) {
        bail!("{device}: its table is no {}", kind.name().to_uppercase());
    }
    let part = parts.into_iter().find(|part| part.number == number);
    Ok((table, part.with_context(|| format!("{device}: it has no partition {number}"))?))
}

fn part_name(shell: &mut Shell, call: &mut Call<'_>) -> Done {
    let (_, part) = part(shell, call, Some(TableKind::Gpt))?;
    call.line(shown(part.name.unwrap_or_default().as_ref()))
}

fn part_boots(shell: &mut Shell, call: &mut Call<'_>) -> Done {
    let (_, part) = part(shell, call, None)?;
    call.line(part.boots)
}

fn part_mbr_type(shell: &mut Shell, call: &mut Call<'_>) -> Done {
    let (_, part) = part(shell, call, Some(TableKind::Mbr))?;
    call.line(format_args!("0x{}", part.type_id.trim_start_matches('0')))
}

fn part_gpt_type(shell: &mut Shell, call: &mut Call<'_>) -> Done {
    let (_, part) = part(shell, call, Some(TableKind::Gpt))?;
    call.line(part.type_id.to_uppercase())
}

fn part_gpt_id(shell: &mut Shell, call: &mut Call<'_>) -> Done {
    let (_, part) = part(shell, call, Some(TableKind::Gpt))?;
    call.line(part.id.unwrap_or_default().to_uppercase())
}

fn disk_id(shell: &mut Shell, call: &mut Call<'_>) -> Done {
    let device = call.text(0)?;
    match shell.session.table(device)?.0 {
        Table { kind: TableKind::Gpt, id, .. } => call.line(id.to_uppercase()),
        _ => Err(anyhow!("{device}: its table is no GPT")),
    }
}

fn of_part(shell: &mut Shell, call: &Call<'_>) -> anyhow::Result<(usize, u32)> {
    match shell.session.block(call.text(0)?)?.place {
        Place::Part(disk, number) => Ok((disk, number)),
        _ => Err(anyhow!("{}: it is no partition", call.text(0)?)),
    }
}

fn part_to_disk(shell: &mut Shell, call: &mut Call<'_>) -> Done {
    let (disk, _) = of_part(shell, call)?;
    let name = shell.session.devices().into_iter().nth(disk).unwrap_or_default();
    call.line(name)
}

fn part_to_number(shell: &mut Shell, call: &mut Call<'_>) -> Done {
    let (_, number) = of_part(shell, call)?;
    call.line(number)
}
