//! Images, partition tables and file systems.

use anyhow::{anyhow, bail};
use inarch_jobs::make_disk::Wanted;
use inarch_jobs::shell::{AddedPart, Formatting, Session, TableKind};

use super::{Call, Shell, Verb, aliased, verb};
use crate::size;

pub const VERBS: &[Verb] = &[
    aliased("alloc", &["allocate"], "IMAGE SIZE", "make an image whose bytes take room, and add it", alloc),
    verb("sparse", "IMAGE SIZE", "make an image that takes no room, and add it", sparse),
    verb("disk-create", "IMAGE raw|qcow2 SIZE [preallocation:KIND]", "make an image", create),
    verb("part-disk", "DEVICE mbr|gpt", "write a table with one partition of the whole disk", part_disk),
    verb("part-init", "DEVICE mbr|gpt", "begin a table without partitions", part_init),
    verb(
        "part-add",
        "DEVICE primary FIRST LAST",
        "add a partition of these sectors to a table that part-init began",
        part_add,
    ),
    verb("sfdiskM", "DEVICE LINES", "write a table of partitions in megabytes; ',' is one of the whole disk", sfdisk),
    verb("mkfs", "TYPE DEVICE [blocksize:BYTES] [label:LABEL]", "make a file system", mkfs),
    verb("mkfs-b", "TYPE BLOCKSIZE DEVICE", "make a file system with blocks of that size", mkfs_b),
    verb("mkswap", "DEVICE [label:LABEL]", "make swap space", mkswap),
    verb("mkswap-L", "LABEL DEVICE", "the same with a label", mkswap_label),
];

type Done = anyhow::Result<()>;

fn bytes(call: &Call<'_>, place: usize) -> anyhow::Result<u64> {
    size::parse(call.text(place)?).map_err(anyhow::Error::msg)
}

fn alloc(shell: &mut Shell, call: &mut Call<'_>) -> Done {
    make(shell, call, true)
}

fn sparse(shell: &mut Shell, call: &mut Call<'_>) -> Done {
    make(shell, call, false)
}

fn make(shell: &mut Shell, call: &Call<'_>, allocated: bool) -> Done {
    if shell.defaults.read_only {
        bail!("the shell was started with --ro, so nothing could be made on the image");
    }
    shell.session.create_and_add(call.path(0), bytes(call, 1)?, allocated)?;
    Ok(())
}

fn create(_: &mut Shell, call: &mut Call<'_>) -> Done {
    let is_qcow2 = match call.text(1)? {
        "raw" => false,
        "qcow2" => true,
        other => bail!("{}: images are made as raw and qcow2", other.escape_debug()),
    };
    let allocated = match call.option("preallocation") {
        None | Some("off" | "sparse") => false,
        Some("full") if !is_qcow2 => true,
        Some(other) => bail!("preallocation:{}: it is off, or full for a raw image", other.escape_debug()),
    };
    Session::create(call.path(0), bytes(call, 2)?, is_qcow2, allocated)?;
    Ok(())
}

fn kind(call: &Call<'_>, place: usize) -> anyhow::Result<TableKind> {
    match call.text(place)? {
        "mbr" | "msdos" => Ok(TableKind::Mbr),
        "gpt" | "efi" => Ok(TableKind::Gpt),
        other => Err(anyhow!("{}: tables are made as mbr and gpt", other.escape_debug())),
    }
}

fn part_disk(shell: &mut Shell, call: &mut Call<'_>) -> Done {
    Ok(shell.session.partition(call.text(0)?, kind(call, 1)?)?)
}

fn part_init(shell: &mut Shell, call: &mut Call<'_>) -> Done {
    Ok(shell.session.begin_table(call.text(0)?, kind(call, 1)?)?)
}

fn part_add(shell: &mut Shell, call: &mut Call<'_>) -> Done {
    if !matches!(call.text(1)?, "p" | "primary") {
        bail!("{}: only primary partitions are added", call.text(1)?.escape_debug());
    }
    let part = AddedPart { first: call.number(2)?, last: call.number(3)? };
    Ok(shell.session.add_part(call.text(0)?, part)?)
}

/// `START,SIZE` lines, as sfdisk(8) reads them in megabytes. A start is only taken if it is where the partition comes to lie in any case.
fn sfdisk(shell: &mut Shell, call: &mut Call<'_>) -> Done {
    let mut parts = Vec::new();
    for line in call.text(1)?.split_whitespace() {
        let wrong = || anyhow!("{}: a partition is written as ',' or ',MEGABYTES'", line.escape_debug());
        let mut fields = line.split(',');
        let start = fields.next().unwrap_or_default();
        let length = fields.next().ok_or_else(wrong)?;
        if !matches!((start, parts.len()), ("", _) | ("0" | "1", 0)) || fields.any(|rest| !rest.is_empty()) {
            return Err(wrong());
        }
        let length = match length {
            "" => None,
            length => Some(length.parse::<u64>().ok().and_then(|mib| mib.checked_mul(1 << 20)).ok_or_else(wrong)?),
        };
        parts.push(Wanted { length, ..Wanted::default() });
    }
    if parts.is_empty() {
        bail!("no partition is named; ',' is one of the whole disk");
    }
    Ok(shell.session.write_table(call.text(0)?, TableKind::Mbr, parts)?)
}

fn format(shell: &mut Shell, kind: &str, device: &str, wish: &Formatting) -> Done {
    shell.session.format(kind, device, wish)?;
    Ok(())
}

fn mkfs(shell: &mut Shell, call: &mut Call<'_>) -> Done {
    let block_size = call.option("blocksize").map(size::parse).transpose().map_err(anyhow::Error::msg)?;
    let label = call.option("label").unwrap_or_default().to_owned();
    format(shell, call.text(0)?, call.text(1)?, &Formatting { label, block_size })
}

fn mkfs_b(shell: &mut Shell, call: &mut Call<'_>) -> Done {
    let wish = Formatting { block_size: Some(bytes(call, 1)?), ..Formatting::default() };
    format(shell, call.text(0)?, call.text(2)?, &wish)
}

fn mkswap(shell: &mut Shell, call: &mut Call<'_>) -> Done {
    let label = call.option("label").unwrap_or_default().to_owned();
    format(shell, "swap", call.text(0)?, &Formatting { label, block_size: None })
}

fn mkswap_label(shell: &mut Shell, call: &mut Call<'_>) -> Done {
    let label = call.text(0)?.to_owned();
    format(shell, "swap", call.text(1)?, &Formatting { label, block_size: None })
}
