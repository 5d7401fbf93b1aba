//! Verbs about mounts.

use inarch_jobs::shell::Mounting;
use inarch_jobs::shown;
use inarch_volume::Statistics;

use super::print::{Fields, fields};
use super::{Call, Shell, Verb, aliased, verb};
use crate::columns::columns;
use crate::size;

pub const VERBS: &[Verb] = &[
    verb("mount", "DEVICE DIR", "mount a file system", mount),
    verb("mount-ro", "DEVICE DIR", "mount a file system in which nothing is changed", mount_read_only),
    verb(
        "mount-options",
        "OPTIONS DEVICE DIR",
        "mount with options; ro, subvol= and subvolid= have an effect",
        mount_options,
    ),
    verb(
        "mount-vfs",
        "OPTIONS TYPE DEVICE DIR",
        "the same; the type is that of the file system in any case",
        mount_vfs,
    ),
    aliased("umount", &["unmount"], "DEVICE-OR-DIR", "unmount a file system", unmount),
    aliased("umount-all", &["unmount-all"], "", "unmount all", unmount_all),
    verb("mounts", "", "list the devices that are mounted", mounts),
    verb("mountpoints", "", "list what is mounted where", mountpoints),
    verb("statvfs", "PATH", "print the numbers of the file system that a file is on", statvfs),
    verb("df", "", "show how full the mounted file systems are", df),
    verb("df-h", "", "the same for people", df_h),
];

type Done = anyhow::Result<()>;

fn mount(shell: &mut Shell, call: &mut Call<'_>) -> Done {
    Ok(shell.session.mount(call.text(0)?, call.path(1), "")?)
}

fn mount_read_only(shell: &mut Shell, call: &mut Call<'_>) -> Done {
    Ok(shell.session.mount(call.text(0)?, call.path(1), "ro")?)
}

fn mount_options(shell: &mut Shell, call: &mut Call<'_>) -> Done {
    Ok(shell.session.mount(call.text(1)?, call.path(2), call.text(0)?)?)
}

fn mount_vfs(shell: &mut Shell, call: &mut Call<'_>) -> Done {
    Ok(shell.session.mount(call.text(2)?, call.path(3), call.text(0)?)?)
}

fn unmount(shell: &mut Shell, call: &mut Call<'_>) -> Done {
    Ok(shell.session.unmount(call.text(0)?)?)
}

fn unmount_all(shell: &mut Shell, _: &mut Call<'_>) -> Done {
    shell.session.unmount_all();
    Ok(())
}

fn mounts(shell: &mut Shell, call: &mut Call<'_>) -> Done {
    shell.session.mounts().iter().try_for_each(|mount| call.line(shown(mount.device.as_ref())))
}

fn mountpoints(shell: &mut Shell, call: &mut Call<'_>) -> Done {
    let mounts = shell.session.mounts();
    mounts
        .iter()
        .try_for_each(|mount| call.line(format_args!("{}: {}", shown(mount.device.as_ref()), shown(&mount.at))))
}

fn statvfs(shell: &mut Shell, call: &mut Call<'_>) -> Done {
    let numbers = shell.session.mount_of(call.path(0))?.numbers;
    let Statistics { block_size, blocks, free_blocks, inodes, free_inodes, name_max, .. } = numbers;
    let all: Fields = vec![
        ("bsize", block_size.to_string()),
        ("frsize", block_size.to_string()),
        ("blocks", blocks.to_string()),
        ("bfree", free_blocks.to_string()),
        ("bavail", numbers.available_blocks().to_string()),
        ("files", inodes.to_string()),
        ("ffree", free_inodes.to_string()),
        ("favail", free_inodes.to_string()),
        ("namemax", name_max.to_string()),
    ];
    fields(call, &all)
}

fn df(shell: &mut Shell, call: &mut Call<'_>) -> Done {
    table(shell, call, "1K-blocks", |bytes| (bytes / 1024).to_string())
}

fn df_h(shell: &mut Shell, call: &mut Call<'_>) -> Done {
    table(shell, call, "Size", size::show)
}

fn table(shell: &Shell, call: &mut Call<'_>, size: &str, show: fn(u64) -> String) -> Done {
    let heads = ["Filesystem", size, "Used", "Available", "Use%", "Mounted on"].map(str::to_owned).to_vec();
    let row = |mount: &Mounting| {
        let numbers = &mount.numbers;
        let bytes = |blocks: u64| show(blocks.saturating_mul(numbers.block_size.into()));
        vec![
            shown(mount.device.as_ref()),
            bytes(numbers.blocks),
            bytes(numbers.used_blocks()),
            bytes(numbers.available_blocks()),
            format!("{}%", numbers.percent_used()),
            shown(&mount.at),
        ]
    };
    // As other verbs about files, an error if there are none.
    shell.session.guest()?;
    let rows: Vec<_> = [heads].into_iter().chain(shell.session.mounts().iter().map(row)).collect();
    Ok(write!(call.out, "{}", columns(&rows, &[1, 2, 3, 4]))?)
}
