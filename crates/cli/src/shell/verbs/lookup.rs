//! Verbs that tell what a file is: its attributes, type and links.

use std::os::unix::ffi::OsStrExt;

use anyhow::anyhow;
use inarch_jobs::guest::Entry;
use inarch_jobs::shown;
use inarch_tree::FileType;
use inarch_volume::{Attributes, Last};
use rustix::fs::makedev;

use super::print::{Fields, fields, list};
use super::{Call, Shell, Verb, verb};

pub const VERBS: &[Verb] = &[
    verb("stat", "PATH", "print a file's attributes", stat),
    verb("lstat", "PATH", "the same for a symbolic link itself", lstat),
    verb("statns", "PATH", "print a file's attributes, with nanoseconds", statns),
    verb("lstatns", "PATH", "the same for a symbolic link itself", lstatns),
    verb("exists", "PATH", "whether there is such a file", exists),
    verb("is-file", "PATH [followsymlinks:BOOL]", "whether it is a regular file", is_file),
    verb("is-dir", "PATH [followsymlinks:BOOL]", "whether it is a directory", is_dir),
    verb("is-symlink", "PATH", "whether it is a symbolic link", is_symlink),
    verb("is-chardev", "PATH [followsymlinks:BOOL]", "whether it is a character device", is_chardev),
    verb("is-blockdev", "PATH [followsymlinks:BOOL]", "whether it is a block device", is_blockdev),
    verb("is-fifo", "PATH [followsymlinks:BOOL]", "whether it is a FIFO", is_fifo),
    verb("is-socket", "PATH [followsymlinks:BOOL]", "whether it is a socket", is_socket),
    verb("readlink", "PATH", "print what a symbolic link leads to", readlink),
    verb("realpath", "PATH", "print a path without symbolic links", realpath),
    verb("filesize", "PATH", "print a file's bytes", filesize),
    verb("getxattrs", "PATH", "list a file's extended attributes", getxattrs),
    verb("lgetxattrs", "PATH", "the same for a symbolic link itself", lgetxattrs),
    verb("getxattr", "PATH NAME", "print the value of an extended attribute", getxattr),
    verb("lgetxattr", "PATH NAME", "the same for a symbolic link itself", lgetxattr),
];

type Done = anyhow::Result<()>;

fn attributes(shell: &Shell, call: &Call<'_>, last: Last) -> anyhow::Result<Attributes> {
    Ok(shell.session.guest()?.attributes(call.path(0), last)?.attributes)
}

fn print(shell: &Shell, call: &mut Call<'_>, last: Last) -> Done {
    let of = attributes(shell, call, last)?;
    let block = shell.session.mount_of(call.path(0)).map_or(4096, |mount| mount.numbers.block_size);
    let time = |time: inarch_tree::Timestamp| time.seconds.to_string();
    let all: Fields = vec![
        ("ino", of.inode.to_string()),
        ("mode", of.mode.to_string()),
        ("nlink", of.links.to_string()),
        ("uid", of.uid.to_string()),
        ("gid", of.gid.to_string()),
        ("rdev", makedev(of.device.0, of.device.1).to_string()),
        ("size", of.size.to_string()),
        ("blksize", block.to_string()),
        ("blocks", (of.allocated / 512).to_string()),
        ("atime", time(of.atime.unwrap_or(of.mtime))),
        ("mtime", time(of.mtime)),
        ("ctime", time(of.ctime)),
    ];
    fields(call, &all)
}

fn print_ns(shell: &Shell, call: &mut Call<'_>, last: Last) -> Done {
    let of = attributes(shell, call, last)?;
    let atime = of.atime.unwrap_or(of.mtime);
    let all: Fields = vec![
        ("st_ino", of.inode.to_string()),
        ("st_mode", of.mode.to_string()),
        ("st_nlink", of.links.to_string()),
        ("st_uid", of.uid.to_string()),
        ("st_gid", of.gid.to_string()),
        ("st_rdev", makedev(of.device.0, of.device.1).to_string()),
        ("st_size", of.size.to_string()),
        ("st_blocks", (of.allocated / 512).to_string()),
        ("st_atime_sec", atime.seconds.to_string()),
        ("st_atime_nsec", atime.nanoseconds.to_string()),
        ("st_mtime_sec", of.mtime.seconds.to_string()),
        ("st_mtime_nsec", of.mtime.nanoseconds.to_string()),
        ("st_ctime_sec", of.ctime.seconds.to_string()),
        ("st_ctime_nsec", of.ctime.nanoseconds.to_string()),
    ];
    fields(call, &all)
}

fn stat(shell: &mut Shell, call: &mut Call<'_>) -> Done {
    print(shell, call, Last::Followed)
}

fn lstat(shell: &mut Shell, call: &mut Call<'_>) -> Done {
    print(shell, call, Last::Taken)
}

fn statns(shell: &mut Shell, call: &mut Call<'_>) -> Done {
    print_ns(shell, call, Last::Followed)
}

fn lstatns(shell: &mut Shell, call: &mut Call<'_>) -> Done {
    print_ns(shell, call, Last::Taken)
}

fn exists(shell: &mut Shell, call: &mut Call<'_>) -> Done {
    let found = shell.session.guest()?.look(call.path(0), Last::Followed)?;
    call.line(found.is_some())
}

/// Whether a file is of a type. A symbolic link is followed only if that is asked for, as in guestfish.
fn is(shell: &Shell, call: &mut Call<'_>, kind: FileType) -> Done {
    let last = if call.flag("followsymlinks")? { Last::Followed } else { Last::Taken };
    let found = shell.session.guest()?.look(call.path(0), last)?;
    call.line(found.is_some_and(|entry: Entry| entry.attributes.file_type() == Some(kind)))
}

fn is_file(shell: &mut Shell, call: &mut Call<'_>) -> Done {
    is(shell, call, FileType::Regular)
}

fn is_dir(shell: &mut Shell, call: &mut Call<'_>) -> Done {
    is(shell, call, FileType::Directory)
}

fn is_symlink(shell: &mut Shell, call: &mut Call<'_>) -> Done {
    is(shell, call, FileType::Symlink)
}

fn is_chardev(shell: &mut Shell, call: &mut Call<'_>) -> Done {
    is(shell, call, FileType::CharDevice)
}

fn is_blockdev(shell: &mut Shell, call: &mut Call<'_>) -> Done {
    is(shell, call, FileType::BlockDevice)
}

fn is_fifo(shell: &mut Shell, call: &mut Call<'_>) -> Done {
    is(shell, call, FileType::Fifo)
}

fn is_socket(shell: &mut Shell, call: &mut Call<'_>) -> Done {
    is(shell, call, FileType::Socket)
}

fn readlink(shell: &mut Shell, call: &mut Call<'_>) -> Done {
    let entry = shell.session.guest()?.attributes(call.path(0), Last::Taken)?;
    let target = entry.target.ok_or_else(|| anyhow!("{}: it is no symbolic link", shown(call.path(0))))?;
    call.name(&target)
}

fn realpath(shell: &mut Shell, call: &mut Call<'_>) -> Done {
    let path = shell.session.guest()?.canonical(call.path(0))?;
    call.name(path.as_os_str().as_bytes())
}

fn filesize(shell: &mut Shell, call: &mut Call<'_>) -> Done {
    let size = attributes(shell, call, Last::Followed)?.size;
    call.line(size)
}

fn xattrs(shell: &Shell, call: &mut Call<'_>, last: Last) -> Done {
    let entry = shell.session.guest()?.attributes(call.path(0), last)?;
    let text = |bytes: &[u8]| shown(std::ffi::OsStr::from_bytes(bytes).as_ref());
    let all = entry.xattrs.iter().map(|xattr| vec![("attrname", text(&xattr.name)), ("attrval", text(&xattr.value))]);
    list(call, &all.collect::<Vec<_>>())
}

fn getxattrs(shell: &mut Shell, call: &mut Call<'_>) -> Done {
    xattrs(shell, call, Last::Followed)
}

fn lgetxattrs(shell: &mut Shell, call: &mut Call<'_>) -> Done {
    xattrs(shell, call, Last::Taken)
}

fn xattr(shell: &Shell, call: &mut Call<'_>, last: Last) -> Done {
    let entry = shell.session.guest()?.attributes(call.path(0), last)?;
    let name = call.word(1).as_bytes();
    let found = entry.xattrs.iter().find(|xattr| *xattr.name == *name);
    let found = found.ok_or_else(|| anyhow!("{}: it has no such attribute", shown(call.path(0))))?;
    Ok(call.out.write_all(&found.value)?)
}

fn getxattr(shell: &mut Shell, call: &mut Call<'_>) -> Done {
    xattr(shell, call, Last::Followed)
}

fn lgetxattr(shell: &mut Shell, call: &mut Call<'_>) -> Done {
    xattr(shell, call, Last::Taken)
}
