//! Verbs that add and count drives. `run` is among them, and has nothing to start.

use anyhow::bail;
use inarch_jobs::shell::{DriveOptions, MOST_DRIVES, Session};
use inarch_jobs::source::ImageFormat;

use super::{Call, Shell, Verb, aliased, verb};

pub const VERBS: &[Verb] = &[
    aliased("add-drive", &["add"], "IMAGE [readonly:BOOL] [format:FORMAT]", "add a disk image", add),
    aliased(
        "add-drive-ro",
        &["add-ro", "add-cdrom"],
        "IMAGE",
        "add a disk image to which nothing is written",
        add_read_only,
    ),
    aliased(
        "launch",
        &["run"],
        "",
        "nothing: there is no machine to be started, and any verb can be used at once",
        idle,
    ),
    verb("nr-devices", "", "print how many drives there are", count),
    verb("max-disks", "", "print how many there can be", most),
    verb("reopen", "", "forget all drives", reopen),
    verb("shutdown", "", "nothing, like run", idle),
    verb("sync", "", "have what was changed written to the images, as every verb does that reads", idle),
    aliased("set-autosync", &["autosync"], "BOOL", "nothing, like sync", idle),
    aliased("set-verbose", &["verbose"], "BOOL", "nothing: there is no machine whose messages could be shown", idle),
    aliased("set-memsize", &["memsize"], "MEGABYTES", "nothing: there is no machine that could have memory", idle),
    aliased("set-network", &["network"], "BOOL", "nothing: there is no machine that could have a network", idle),
];

fn add(shell: &mut Shell, call: &mut Call<'_>) -> anyhow::Result<()> {
    let mut options = shell.defaults.clone();
    options.read_only |= call.flag("readonly")?;
    if let Some(format) = call.option("format") {
        options.format = Some(format.parse::<ImageFormat>().map_err(anyhow::Error::msg)?);
    }
    shell.session.add(call.path(0), options)?;
    Ok(())
}

fn add_read_only(shell: &mut Shell, call: &mut Call<'_>) -> anyhow::Result<()> {
    let options = DriveOptions { read_only: true, ..shell.defaults.clone() };
    shell.session.add(call.path(0), options)?;
    Ok(())
}

fn count(shell: &mut Shell, call: &mut Call<'_>) -> anyhow::Result<()> {
    call.line(shell.session.devices().len())
}

fn most(_: &mut Shell, call: &mut Call<'_>) -> anyhow::Result<()> {
    call.line(MOST_DRIVES)
}

fn reopen(shell: &mut Shell, _: &mut Call<'_>) -> anyhow::Result<()> {
    shell.session = Session::new();
    Ok(())
}

/// For verbs of scripts that have nothing to do here. Their words are checked all the same.
pub fn idle(_: &mut Shell, call: &mut Call<'_>) -> anyhow::Result<()> {
    if call.words().iter().any(|word| word.is_empty()) {
        bail!("it is used as '{}'", call.verb);
    }
    Ok(())
}
