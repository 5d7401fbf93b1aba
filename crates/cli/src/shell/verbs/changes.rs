//! Verbs that change files: by an appliance, a virtual machine that is started for the first of them.

use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use anyhow::{Context, anyhow, bail};
use inarch_jobs::Events;
use inarch_jobs::appliance::{Appliance, ApplianceError, NewAttributes, NewFileOptions};
use inarch_jobs::shell::Links;

use super::{Call, Shell, Verb, aliased, verb};
use crate::disk::copy_in::{Watched, copy_with};
use crate::disk::machine::tell;

type Done = anyhow::Result<()>;

pub(super) static VERBS: &[Verb] = &[
    verb("write", "PATH CONTENT", "write a file that has this content", write),
    verb("upload", "FILE PATH", "write a file from one of this machine", upload),
    verb("copy-in", "FILE... DIR", "copy files and directories of this machine into a directory", copy_in),
    verb("touch", "PATH", "make an empty file, if none is there", touch),
    verb("mkdir", "PATH", "make a directory", mkdir),
    verb("mkdir-p", "PATH", "make a directory, and those above it", mkdir_p),
    verb("mkdir-mode", "PATH MODE", "make a directory with these permissions, in octal", mkdir_mode),
    verb("rm", "PATH", "remove a file", rm),
    verb("rm-f", "PATH", "remove a file, if it is there", rm_f),
    verb("rm-rf", "PATH", "remove a file, or a directory with all that is in it", rm_rf),
    verb("rmdir", "PATH", "remove an empty directory", rm),
    aliased("mv", &["rename"], "OLD NEW", "rename a file or directory", mv),
    verb("ln-s", "TARGET PATH", "make a symbolic link", ln_s),
    verb("chmod", "MODE PATH", "change permissions, in octal", chmod),
    verb("chown", "UID GID PATH", "change the owner and the group, by number", chown),
];

/// Whether a verb is one of these, between which the appliance stays.
pub fn is_change(verb: &Verb) -> bool {
    VERBS.iter().any(|known| known.name == verb.name)
}

/// One change of one path.
fn change<T>(
    shell: &mut Shell,
    path: &Path,
    links: Links,
    change: impl FnOnce(&mut Appliance, &Path) -> Result<T, ApplianceError>,
) -> anyhow::Result<T> {
    Ok(shell.session.change([path], links, Events::new(tell), |appliance, [path]| change(appliance, &path))?)
}

fn write(shell: &mut Shell, call: &mut Call<'_>) -> Done {
    use std::os::unix::ffi::OsStrExt;
    let mut content = call.word(1).as_bytes();
    change(shell, call.path(0), Links::Followed, |appliance, path| {
        appliance.write(path, &NewFileOptions::default(), &mut content).map(drop)
    })
}

fn upload(shell: &mut Shell, call: &mut Call<'_>) -> Done {
    let file = File::open(call.path(0)).with_context(|| crate::shell::verbs::text(call.word(0)))?;
    let goes_on = goes_on(shell);
    change(shell, call.path(1), Links::Followed, |appliance, path| {
        appliance.write(path, &NewFileOptions::default(), &mut Watched { file, goes_on: &goes_on }).map(drop)
    })
}

/// An error once the user has pressed Ctrl-C.
fn goes_on(shell: &Shell) -> impl Fn() -> io::Result<()> + use<> {
    let interrupted = Arc::clone(&shell.interrupted);
    move || if interrupted.load(Ordering::Relaxed) { Err(io::Error::other("interrupted")) } else { Ok(()) }
}

fn copy_in(shell: &mut Shell, call: &mut Call<'_>) -> Done {
    let words = call.words();
    let Some((to, from)) = words.split_last().filter(|(_, from)| !from.is_empty()) else {
        bail!("it is used as 'copy-in FILE... DIR'")
    };
    for from in from {
        let from = Path::new(from);
        from.symlink_metadata().with_context(|| inarch_jobs::shown(from))?;
        let goes_on = goes_on(shell);
        let copied =
            change(shell, Path::new(to), Links::Followed, |appliance, to| copy_with(appliance, &[from], to, &goes_on))?;
        if copied.failed {
            bail!("not all was copied");
        }
    }
    Ok(())
}

fn touch(shell: &mut Shell, call: &mut Call<'_>) -> Done {
    change(shell, call.path(0), Links::Followed, |appliance, path| match appliance.attributes(path) {
        Ok(_) => Ok(()),
        Err(error) if error.is_absent() => appliance.write(path, &NewFileOptions::default(), &mut &b""[..]).map(drop),
        Err(error) => Err(error),
    })
}

fn make(shell: &mut Shell, path: &Path, parents: bool, mode: Option<u32>) -> Done {
    change(shell, path, Links::Taken, |appliance, path| appliance.make_directory(path, parents, mode))
}

fn mkdir(shell: &mut Shell, call: &mut Call<'_>) -> Done {
    make(shell, call.path(0), false, None)
}

fn mkdir_p(shell: &mut Shell, call: &mut Call<'_>) -> Done {
    make(shell, call.path(0), true, None)
}

fn mkdir_mode(shell: &mut Shell, call: &mut Call<'_>) -> Done {
    let mode = octal(call, 1)?;
    make(shell, call.path(0), false, Some(mode))
}

fn rm(shell: &mut Shell, call: &mut Call<'_>) -> Done {
    change(shell, call.path(0), Links::Taken, |appliance, path| appliance.remove(path, false))
}

fn rm_f(shell: &mut Shell, call: &mut Call<'_>) -> Done {
    unless_absent(shell, call, false)
}

fn rm_rf(shell: &mut Shell, call: &mut Call<'_>) -> Done {
    let path = call.path(0);
    let below = shell.session.mounts().into_iter().find(|mounted| mounted.at != path && mounted.at.starts_with(path));
    if let Some(mounted) = below {
        bail!(
            "{}: {} is mounted below it; umount that first",
            inarch_jobs::shown(path),
            inarch_jobs::shown(&mounted.at)
        );
    }
    unless_absent(shell, call, true)
}

fn unless_absent(shell: &mut Shell, call: &Call<'_>, recursive: bool) -> Done {
    change(shell, call.path(0), Links::Taken, |appliance, path| match appliance.remove(path, recursive) {
        Err(error) if error.is_absent() => Ok(()),
        removed => removed,
    })
}

fn mv(shell: &mut Shell, call: &mut Call<'_>) -> Done {
    let paths = [call.path(0), call.path(1)];
    let rename = |appliance: &mut Appliance, [from, to]: [PathBuf; 2]| appliance.rename(&from, &to);
    Ok(shell.session.change(paths, Links::Taken, Events::new(tell), rename)?)
}

fn ln_s(shell: &mut Shell, call: &mut Call<'_>) -> Done {
    let target = call.path(0);
    change(shell, call.path(1), Links::Taken, |appliance, path| appliance.symlink(target, path))
}

fn octal(call: &Call<'_>, place: usize) -> anyhow::Result<u32> {
    crate::disk::mode(call.text(place)?).map_err(|error| anyhow!(error))
}

fn chmod(shell: &mut Shell, call: &mut Call<'_>) -> Done {
    let mode = octal(call, 0)?;
    change(shell, call.path(1), Links::Followed, |appliance, path| {
        appliance.change(path, &NewAttributes { mode: Some(mode), ..NewAttributes::default() }).map(drop)
    })
}

fn chown(shell: &mut Shell, call: &mut Call<'_>) -> Done {
    let owner = (call.number(0)?, call.number(1)?);
    change(shell, call.path(2), Links::Followed, |appliance, path| {
        appliance.change(path, &NewAttributes { owner: Some(owner), ..NewAttributes::default() }).map(drop)
    })
}
