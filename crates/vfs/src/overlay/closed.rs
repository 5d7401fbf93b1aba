//! Changes directories of the upper layer that their owner may not write to (mode 0555), if the server is an ordinary
//! user.
//!
//! The client's kernel checks permissions before it asks the overlay. The overlay then works with its own rights, as
//! the kernel's overlayfs does: changing a file needs no right to its directory, yet its copy gets a name there. A
//! server that is root can do that. Any other server makes the directory writable for the duration of one step:
//!
//! - First it notes the directory's permissions in a symbolic link in the work directory, so that the next server
//!   restores them if this one is killed.
//! - A request for the directory's attributes during a step is repeated afterwards ([`Overlay::outside_of_steps`]).

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use rustix::io::Errno;

use super::work::is_directory;
use super::{ME, Overlay, hold};
use crate::{FileSystem, NodeId, SetAttributes};

/// The prefix of a note's name; a number follows.
const NOTE: &[u8] = b"mode-";

/// The permissions that an owner needs to change a directory's entries, and to move the directory.
const OPEN: u32 = libc::S_IRWXU;

/// A directory that a step needs to change.
#[derive(Clone, Copy)]
pub(super) enum Directory<'a> {
    /// In the upper layer or the work directory.
    At(NodeId),
    /// At a name in a directory of the upper layer, before or after the step.
    Named(NodeId, (NodeId, &'a [u8])),
}

/// The steps so far.
#[derive(Debug, Default)]
pub(super) struct Steps {
    under_way: AtomicUsize,
    /// How often directories were made writable or restored.
    changes: AtomicU64,
}

/// A directory that was made writable, and its earlier permissions.
struct MadeWritable {
    node: NodeId,
    mode: u32,
    note: Option<Vec<u8>>,
}

impl Overlay {
    /// Does one step. If it fails for lack of permission, repeats it with these `directories` made writable. Call it
    /// with the lock for changes: one step at a time.
    pub(super) fn with_rights<T>(
        &self,
        directories: &[Directory<'_>],
        step: impl Fn() -> Result<T, Errno>,
    ) -> Result<T, Errno> {
        match step() {
            Err(Errno::ACCESS) => {}
            done => return done,
        }
        self.steps.under_way.fetch_add(1, Ordering::SeqCst);
        self.steps.changes.fetch_add(1, Ordering::SeqCst);
        let mut opened = Vec::new();
        let all = directories.iter().try_for_each(|directory| {
            opened.extend(self.open_up(*directory)?);
            Ok(())
        });
        let done = match all {
            Ok(()) if opened.is_empty() => Err(Errno::ACCESS),
            Ok(()) => step(),
            Err(errno) => Err(errno),
        };
        opened.into_iter().rev().for_each(|directory| self.close(directory));
        self.steps.changes.fetch_add(1, Ordering::SeqCst);
        self.steps.under_way.fetch_sub(1, Ordering::SeqCst);
        done
    }

    /// Makes a directory writable for the server, if it is not.
    fn open_up(&self, directory: Directory<'_>) -> Result<Option<MadeWritable>, Errno> {
        let (Directory::At(node) | Directory::Named(node, _)) = directory;
        let attributes = self.upper.attributes(&ME, node, None)?;
        let mode = attributes.mode & 0o7777;
        if !is_directory(&attributes) || mode & OPEN == OPEN {
            return Ok(None);
        }
        let path = match directory {
            Directory::At(node) => self.path_above(node),
            Directory::Named(_, (parent, name)) => self.path_above(parent).map(|path| join(path, name)),
        };
        // Nobody sees the work directory.
        let note = path.map(|path| note(&*self.upper, self.work(), &self.temporary(), mode, &path)).transpose()?;
        let opened = MadeWritable { node, mode, note };
        match set_mode(&*self.upper, node, mode | OPEN) {
            Ok(()) => Ok(Some(opened)),
            Err(errno) => {
                self.close(opened);
                Err(errno)
            }
        }
    }

    fn close(&self, MadeWritable { node, mode, note }: MadeWritable) {
        let set = || match set_mode(&*self.upper, node, mode) {
            // The step removed it.
            Err(Errno::NOENT | Errno::STALE) => Ok(()),
            set => set,
        };
        // If it cannot be restored now, the next server does it.
        if set().or_else(|_| set()).is_ok()
            && let Some(note) = note
        {
            let remove = || self.upper.unlink(&ME, self.work(), &note);
            let _ = remove().or_else(|_| remove());
        }
    }

    /// The path of a directory in the upper layer; `None` if it is not visible there.
    fn path_above(&self, upper: NodeId) -> Option<Vec<u8>> {
        if upper == hold(&self.place).upper {
            return Some(Vec::new());
        }
        let table = hold(&self.table);
        let mut node = table.of_upper(upper)?;
        let mut names = Vec::new();
        while node != NodeId::ROOT {
            let (parent, name) = table.place(node).ok()?;
            names.push(name);
            node = parent;
        }
        Some(names.iter().rev().fold(Vec::new(), |path, name| join(path, name)))
    }

    /// The current count, for [`Overlay::is_quiet_since`].
    pub(super) fn steps_so_far(&self) -> u64 {
        self.steps.changes.load(Ordering::SeqCst)
    }

    /// Whether no directory was writable since the count was `before`.
    pub(super) fn is_quiet_since(&self, before: u64) -> bool {
        self.steps.under_way.load(Ordering::SeqCst) == 0 && self.steps_so_far() == before
    }

    /// Calls `look` on a directory of the upper layer while no step has made it writable.
    pub(super) fn outside_of_steps<T>(&self, look: impl Fn() -> T) -> T {
        loop {
            let before = self.steps_so_far();
            let seen = look();
            if self.is_quiet_since(before) {
                return seen;
            }
            // A thread holds this lock while it does steps. Wait for it before looking again.
            drop(hold(&self.changing));
        }
    }
}

fn join(mut path: Vec<u8>, name: &[u8]) -> Vec<u8> {
    if !path.is_empty() {
        path.push(b'/');
    }
    path.extend(name);
    path
}

fn set_mode(layer: &dyn FileSystem, node: NodeId, mode: u32) -> Result<(), Errno> {
    let set = SetAttributes { mode: Some(mode), ..SetAttributes::default() };
    layer.set_attributes(&ME, node, None, &set).map(drop)
}

/// Notes the permissions of the directory at `path` of the upper layer in the work directory; returns the note's
/// name.
fn note(layer: &dyn FileSystem, work: NodeId, number: &[u8], mode: u32, path: &[u8]) -> Result<Vec<u8>, Errno> {
    let name = [NOTE, number].concat();
    let text = [format!("{mode:o} ").as_bytes(), path].concat();
    let made = layer.make_symlink(&ME, work, &name, &text)?;
    layer.forget(made.node, 1);
    Ok(name)
}

/// Does `step`, which puts a new directory at `path` of the upper layer. If the server may not move that directory,
/// it is made writable for the step.
pub(super) fn put_in_place(
    layer: &dyn FileSystem,
    work: NodeId,
    (made, mode): (NodeId, u32),
    path: &[u8],
    step: impl Fn() -> Result<(), Errno>,
) -> Result<(), Errno> {
    match step() {
        Err(Errno::ACCESS) => {}
        done => return done,
    }
    let note = note(layer, work, b"new", mode, path)?;
    set_mode(layer, made, mode | OPEN)?;
    step()?;
    set_mode(layer, made, mode)?;
    layer.unlink(&ME, work, &note)
}

/// Restores the permissions that a killed server noted in `work`. `upper` is the upper layer's root.
pub(super) fn set_noted(
    layer: &dyn FileSystem,
    (upper, work): (NodeId, NodeId),
    names: &[Box<[u8]>],
) -> Result<(), Errno> {
    for name in names.iter().filter(|name| name.starts_with(NOTE)) {
        let note = layer.lookup(&ME, work, name)?;
        let text = layer.read_link(&ME, note.node);
        layer.forget(note.node, 1);
        let text = text?;
        let Some((mode, path)) = parse(&text) else { continue };
        set_noted_mode(layer, upper, mode, path)?;
    }
    Ok(())
}

/// Parses a note.
fn parse(text: &[u8]) -> Option<(u32, &[u8])> {
    let blank = text.iter().position(|byte| *byte == b' ')?;
    let mode = u32::from_str_radix(str::from_utf8(&text[..blank]).ok()?, 8).ok()?;
    Some((mode, &text[blank + 1..]))
}

fn set_noted_mode(layer: &dyn FileSystem, upper: NodeId, mode: u32, path: &[u8]) -> Result<(), Errno> {
    let mut node = upper;
    let mut found = Ok(());
    let mut reached = Vec::new();
    for name in path.split(|byte| *byte == b'/').filter(|name| !name.is_empty()) {
        match layer.lookup(&ME, node, name) {
            Ok(entry) => {
                reached.push(entry.node);
                node = entry.node;
                if !is_directory(&entry.attributes) {
                    found = Err(Errno::NOTDIR);
                    break;
                }
            }
            Err(errno) => {
                found = Err(errno);
                break;
            }
        }
    }
    let set = found.and_then(|()| set_mode(layer, node, mode));
    reached.into_iter().for_each(|node| layer.forget(node, 1));
    match set {
        // The step did not happen, or removed it.
        Err(Errno::NOENT | Errno::NOTDIR) => Ok(()),
        set => set,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_note_says_what_it_said() {
        assert_eq!(parse(b"2555 a/b c"), Some((0o2555, &b"a/b c"[..])));
        assert_eq!(parse(b"500 "), Some((0o500, &b""[..])));
        for other in [&b""[..], b"555", b"x a", b"9 a"] {
            assert_eq!(parse(other), None);
        }
    }
}
