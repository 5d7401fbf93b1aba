//! Sums up a command's accesses by path: its *inputs* and its *outputs*.
//!
//! An input is what was there before the command and was used by it, or what the command looked for in vain. A file that the command
//! made and then read is no input. An input keeps the path that it had before the command, even if it was read under a new one.
//! An output is a path that the command changed. When the command has ended, [`renamed`] looks into renamed directories for what moved
//! with them.

mod outputs;
mod places;
mod renamed;
#[cfg(test)]
mod tests;

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::thread::{self, JoinHandle};

use inarch_vfs::{Access, AccessKind, AccessSink, Identity, Listed, Recording};
use places::{Name, Places, Put, Room, beneath};
use rustix::io::Errno;

pub use outputs::{Change, Output};
pub(super) use renamed::listed;
pub use renamed::listed_beneath;

/// The most bytes of paths, and of what is known of them, in a tree whose user is not trusted. Ten million paths of ordinary length take
/// less.
pub const MOST_BYTES: usize = 2 << 30;
/// The bytes of a process's number, or of a name, in a set.
const SLOT: usize = size_of::<Name>();

/// What an input was used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Use {
    /// It was looked for, and not there.
    Absent,
    /// It was looked up: its attributes were read, or a path led through it.
    Found,
    /// Its content was read, or parts of it were kept when it was written.
    Read,
    /// It was executed.
    Executed,
    /// A directory's names were read.
    Listed,
    /// A symbolic link was followed, or its target read.
    Followed,
    /// Its extended attributes were read.
    Xattrs,
    /// It was renamed, or linked by another name.
    Moved,
    /// An operation on it failed.
    Failed,
}

impl Use {
    const ALL: [Use; 9] = [
        Use::Absent,
        Use::Found,
        Use::Read,
        Use::Executed,
        Use::Listed,
        Use::Followed,
        Use::Xattrs,
        Use::Moved,
        Use::Failed,
    ];

    /// The word for it.
    pub fn name(self) -> &'static str {
        match self {
            Use::Absent => "absent",
            Use::Found => "found",
            Use::Read => "read",
            Use::Executed => "executed",
            Use::Listed => "listed",
            Use::Followed => "followed",
            Use::Xattrs => "xattrs",
            Use::Moved => "moved",
            Use::Failed => "failed",
        }
    }

    fn bit(self) -> u16 {
        1 << self as u16
    }
}

/// Something that was there before the command, or was looked for.
#[derive(Clone, Copy, Debug)]
pub struct Input<'t> {
    /// Its absolute path.
    pub path: &'t Path,
    uses: u16,
    /// What it was when it was first seen.
    pub identity: Option<Identity>,
    /// Of a symbolic link that was followed.
    pub target: Option<&'t Path>,
    /// Why the first operation on it failed, if one did.
    pub error: Option<Errno>,
    names: Option<&'t BTreeSet<Name>>,
    pids: Option<&'t BTreeSet<u32>>,
}

impl<'t> Input<'t> {
    /// The processes that used it, if processes are recorded.
    pub fn processes(&self) -> impl Iterator<Item = u32> + use<'t> {
        self.pids.into_iter().flatten().copied()
    }

    /// Of a directory that was listed: the names that the command got, and which were there before it, sorted. If it read a
    /// part of a listing only, these are a part of the names. They may be a few more than it read, because the kernel fetches
    /// as many as fit into its buffer.
    pub fn names(&self) -> Option<impl Iterator<Item = &'t OsStr> + use<'t>> {
        let names = self.names.into_iter().flatten().map(|name| OsStr::from_bytes(name));
        self.is(Use::Listed).then_some(names)
    }

    /// What it was used for.
    pub fn uses(&self) -> impl Iterator<Item = Use> + use<> {
        let uses = self.uses;
        Use::ALL.into_iter().filter(move |one| uses & one.bit() != 0)
    }

    /// Whether it was used for this.
    pub fn is(&self, one: Use) -> bool {
        self.uses & one.bit() != 0
    }

    /// Whether it is a regular file whose content was used.
    pub fn is_content(&self) -> bool {
        let content = Use::Read.bit() | Use::Executed.bit() | Use::Moved.bit();
        let is_file = self.identity.is_none_or(|identity| identity.mode & libc::S_IFMT == libc::S_IFREG);
        self.uses & content != 0 && is_file
    }
}

/// Whether something was at a path before the command.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Before {
    #[default]
    Unknown,
    Absent,
    There,
}

/// What is known of what was at a path before the command, wherever it is now.
#[derive(Clone, Debug, Default)]
struct Known {
    uses: u16,
    before: Before,
    /// The content was written.
    written: bool,
    /// It was written when the whole content had not been replaced.
    kept_parts: bool,
    /// Attributes were set.
    attributes: bool,
    is_directory: bool,
    error: Option<Errno>,
    identity: Option<Box<Identity>>,
    more: Option<Box<More>>,
}

/// What is known of few things. There can be millions of paths, most of them absent.
#[derive(Clone, Debug, Default)]
struct More {
    target: Option<Box<[u8]>>,
    names: Option<BTreeSet<Name>>,
    pids: BTreeSet<u32>,
}

impl Known {
    fn more(&mut self) -> &mut More {
        self.more.get_or_insert_default()
    }

    fn is_of(&mut self, process: Option<u32>, room: &mut Room) {
        if let Some(process) = process {
            add(&mut self.more().pids, process, room);
        }
    }

    fn uses(&mut self, one: Use) {
        self.uses |= one.bit();
        self.is_there();
    }

    fn is_there(&mut self) {
        if self.before == Before::Unknown {
            self.before = Before::There;
        }
    }

    fn is_absent(&mut self) {
        if self.before == Before::Unknown {
            self.uses |= Use::Absent.bit();
            self.before = Before::Absent;
        }
    }

    fn fails(&mut self, error: Errno) {
        self.uses |= Use::Failed.bit();
        self.error.get_or_insert(error);
    }

    /// Reads content: no input if the command wrote all of it.
    fn reads(&mut self, one: Use) {
        if !self.written || self.kept_parts {
            self.uses(one);
        }
    }

    fn writes(&mut self) {
        self.is_there();
        self.kept_parts |= !self.written;
        self.written = true;
    }

    /// The whole content goes.
    fn empties(&mut self) {
        self.is_there();
        self.written = true;
        self.kept_parts = false;
    }

    /// What became of it where it is.
    fn change(&self) -> Option<Change> {
        if self.written {
            return Some(Change::Written);
        }
        self.attributes.then_some(Change::Attributes)
    }
}

/// What is known of a path; `None` if there is no room for it.
fn known_at<'k>(known: &'k mut BTreeMap<Name, Known>, path: Name, room: &mut Room) -> Option<&'k mut Known> {
    match known.entry(path) {
        Entry::Occupied(known) => Some(known.into_mut()),
        Entry::Vacant(vacant) => {
            let bytes = vacant.key().len() + size_of::<(Name, Known)>();
            room.takes(bytes).then(|| vacant.insert(Known::default()))
        }
    }
}

/// Adds a process to a set.
fn add(pids: &mut BTreeSet<u32>, process: u32, room: &mut Room) {
    if !pids.contains(&process) && room.takes(SLOT) {
        pids.insert(process);
    }
}

/// What a path in a directory that the command made was used for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum OwnUse {
    /// It was looked for, and not there.
    Absent,
    /// It was listed.
    Listed,
}

/// A thread that adds accesses up, and returns their number, too.
pub type Gathering = JoinHandle<io::Result<(Touched, u64)>>;

/// What a command touched.
#[derive(Clone, Debug, Default)]
pub struct Touched {
    /// The absolute path of the root that accesses are relative to.
    root: Name,
    /// By the absolute path before the command.
    known: BTreeMap<Name, Known>,
    places: Places,
    /// What it looked for in vain, and the directories that it listed, in directories that it had made itself. No input, since nothing of it was there
    /// before; another run finds what is there then.
    in_own: BTreeMap<Name, OwnUse>,
    /// The processes that changed what is at a path now.
    changed_by: BTreeMap<Name, BTreeSet<u32>>,
    /// That of the access at hand.
    process: Option<u32>,
}

fn shown_path(path: &[u8]) -> &Path {
    Path::new(OsStr::from_bytes(if path.is_empty() { b"/" } else { path }))
}

impl Touched {
    /// Of a root directory that the command sees at `root`, an absolute path.
    pub fn beneath(root: &Path) -> Touched {
        let root = if root == Path::new("/") { Name::default() } else { root.as_os_str().as_bytes().into() };
        Touched { root, ..Touched::default() }
    }

    /// The same with a budget of `most` bytes. [`Touched::lacks`] says whether it was exceeded.
    pub fn within(mut self, most: usize) -> Touched {
        self.places.room = Room::of(most);
        self
    }

    /// Whether there was more than it may remember.
    pub fn lacks(&self) -> bool {
        self.places.room.lacks()
    }

    /// Adds up, in a thread of its own, what is recorded until the recording ends.
    ///
    /// # Errors
    /// There can be no more threads.
    pub fn gather(mut self, recording: &Recording) -> io::Result<Gathering> {
        let recording = recording.clone();
        thread::Builder::new().name("record".into()).spawn(move || {
            let accesses = recording.write_to(&mut self)?;
            Ok((self, accesses))
        })
    }

    /// The absolute path of one from the root; that of `/` is empty.
    fn absolute(&self, path: &[u8]) -> Name {
        if path.is_empty() { self.root.clone() } else { [&*self.root, b"/", path].concat().into() }
    }

    /// The content of a file was read that was there before. `path` is relative to the root.
    pub fn was_read(&mut self, path: &[u8], identity: Identity) {
        let known = self.known.entry(self.absolute(path)).or_default();
        known.uses(Use::Read);
        known.identity = Some(Box::new(identity));
    }

    /// Replaces what was touched at and beneath `point` by what was touched in `mounted`, a tree mounted there.
    pub fn covered_by(self, mounted: Touched, point: &Path) -> Touched {
        let mut both = self.without(|path| path.starts_with(point));
        both.known.extend(mounted.known);
        both.in_own.extend(mounted.in_own);
        both.changed_by.extend(mounted.changed_by);
        both.places.extend(mounted.places);
        both
    }

    /// What the command needed, by path.
    pub fn inputs(&self) -> impl Iterator<Item = Input<'_>> {
        self.known.iter().filter_map(|(path, known)| {
            let kept_parts = if known.kept_parts { Use::Read.bit() } else { 0 };
            let uses = known.uses | kept_parts;
            let (identity, error, more) = (known.identity.as_deref().copied(), known.error, known.more.as_deref());
            let target = more.and_then(|more| more.target.as_deref()).map(shown_path);
            let names = more.and_then(|more| more.names.as_ref());
            let pids = more.map(|more| &more.pids);
            (uses != 0).then(|| Input { path: shown_path(path), uses, identity, target, error, names, pids })
        })
    }

    /// What was looked for in vain, and listed, in directories that the command made.
    pub(crate) fn in_own(&self) -> impl Iterator<Item = (&Path, OwnUse)> {
        self.in_own.iter().map(|(path, used)| (shown_path(path), *used))
    }

    /// Notes a use of what is in a directory that the command made.
    fn uses_own(&mut self, path: &[u8], used: OwnUse) {
        if let Entry::Vacant(vacant) = self.in_own.entry(path.into())
            && self.places.room.takes(path.len() + SLOT)
        {
            vacant.insert(used);
        }
    }

    /// Without some paths.
    pub fn without(mut self, is_left_out: impl Fn(&Path) -> bool) -> Touched {
        self.known.retain(|path, _| !is_left_out(shown_path(path)));
        self.in_own.retain(|path, _| !is_left_out(shown_path(path)));
        self.places.retain(|path| !is_left_out(shown_path(path)));
        self
    }

    /// Puts processes in the place of their threads.
    pub fn belongs_to_processes(&mut self, of_threads: &HashMap<u32, u32>) {
        let known = self.known.values_mut().filter_map(|known| known.more.as_mut()).map(|more| &mut more.pids);
        for pids in known.chain(self.changed_by.values_mut()).filter(|_| !of_threads.is_empty()) {
            *pids = pids.iter().map(|number| *of_threads.get(number).unwrap_or(number)).collect();
        }
    }

    /// What was at `original` before the command, which the process of the access at hand uses.
    fn used(&mut self, original: Name) -> Option<&mut Known> {
        let room = &mut self.places.room;
        let known = known_at(&mut self.known, original, room)?;
        known.is_of(self.process, room);
        Some(known)
    }

    /// The record of what is at a path, or of its absence; `None` if the command made or removed it.
    fn original(&mut self, path: &[u8]) -> Option<&mut Known> {
        let original = self.places.original(path)?;
        self.used(original)
    }

    /// The process of the access at hand changes what is at a path.
    fn changes(&mut self, path: &[u8]) {
        let Some(process) = self.process else { return };
        let room = &mut self.places.room;
        match self.changed_by.entry(path.into()) {
            Entry::Occupied(mut pids) => add(pids.get_mut(), process, room),
            Entry::Vacant(vacant) => {
                if room.takes(path.len() + 2 * SLOT) {
                    vacant.insert(BTreeSet::from([process]));
                }
            }
        }
    }

    /// The processes that changed a path, or else that moved the directory nearest above it.
    fn changed_by(&self, path: &Path) -> Option<&BTreeSet<u32>> {
        if self.changed_by.is_empty() {
            return None;
        }
        let root = Name::default();
        let names = path.ancestors().map(|above| above.as_os_str().as_bytes());
        let mut names = names.map(|name| if name == b"/" { &*root } else { name });
        names.find_map(|name| self.changed_by.get(name))
    }

    /// The same, for a change: what moved with its directory becomes an output by itself.
    fn changed(&mut self, path: &[u8]) -> Option<&mut Known> {
        self.changes(path);
        let original = self.places.original(path)?;
        if *original != *path && self.places.shown(path).is_none() {
            self.places.pin(path, original.clone(), false);
        }
        self.used(original)
    }

    fn is_directory(&self, path: &[u8]) -> bool {
        match self.places.shown(path) {
            Some((_, is_directory)) => is_directory,
            None => {
                let original = self.places.original(path);
                original.and_then(|original| self.known.get(&original)).is_some_and(|known| known.is_directory)
            }
        }
    }

    fn makes(&mut self, path: &[u8], is_directory: bool) {
        if let Some(known) = self.original(path) {
            known.is_absent();
        }
        self.changes(path);
        self.places.make(path, is_directory);
    }

    fn removes(&mut self, path: &[u8]) {
        if let Some(known) = self.original(path) {
            known.is_there();
        }
        self.changes(path);
        let is_directory = self.is_directory(path);
        self.places.remove(path, is_directory);
    }

    /// Takes a thing from its path.
    fn takes(&mut self, path: &[u8]) -> places::Moving {
        if let Some(known) = self.original(path) {
            known.uses(Use::Moved);
        }
        self.changes(path);
        self.pin_changed(path);
        let is_directory = self.is_directory(path);
        self.places.take(path, is_directory)
    }

    /// Makes outputs of what was changed beneath a directory that is about to move.
    fn pin_changed(&mut self, path: &[u8]) {
        let Some(original) = self.places.original(path) else { return };
        let changed: Vec<(Name, bool)> = beneath(&self.known, &original)
            .filter(|(_, known)| known.change().is_some())
            .map(|(rest, known)| (rest, known.is_directory))
            .collect();
        for (rest, is_directory) in changed {
            let (place, before) = ([path, &rest].concat(), [&*original, &rest].concat());
            let is_there = self.places.original(&place).is_some_and(|original| *original == *before);
            if is_there && self.places.shown(&place).is_none() {
                self.places.pin(&place, before.into(), is_directory);
            }
        }
    }

    fn puts(&mut self, path: &[u8], moving: places::Moving) {
        if let Some(known) = self.original(path) {
            known.is_absent();
        }
        self.changes(path);
        self.places.put(path, moving);
    }
}

impl AccessSink for Touched {
    fn record(&mut self, access: &Access<'_>) -> io::Result<()> {
        // Only a part of what follows would be known.
        if self.lacks() {
            return Ok(());
        }
        // What has no name can neither be an input nor be left.
        if access.nameless && access.kind != AccessKind::Link {
            return Ok(());
        }
        self.process = access.process;
        let path = self.absolute(access.path);
        let to = access.to.map(|to| self.absolute(to));
        match (access.error, to) {
            (Some(error), to) => self.failed(access, error, &path, to.as_deref()),
            (None, Some(to)) => self.with_two(access, &path, &to),
            (None, None) => self.with_one(access, &path),
        }
        Ok(())
    }

    fn list(&mut self, listed: &Listed<'_>) -> io::Result<()> {
        let path = self.absolute(listed.path);
        let original = self.places.original(&path).filter(|_| !listed.nameless && !self.lacks());
        let Some(original) = original else { return Ok(()) };
        // What the command itself did to the names is taken back.
        let changed: BTreeMap<Name, &Put> = self.places.names_in(&path).collect();
        let was_there = |name: &[u8]| {
            let before = self.known.get(&*[&*original, b"/", name].concat());
            before.is_some_and(|known| known.before == Before::There)
        };
        let seen = listed.names().filter(|name| !changed.contains_key(*name) || was_there(name)).map(Name::from);
        let removed = changed.iter().filter(|(name, put)| matches!(put, Put::Gone | Put::Hole) && was_there(name));
        let names: Vec<Name> = seen.chain(removed.map(|(name, _)| name.clone())).collect();
        let room = &mut self.places.room;
        let Some(known) = known_at(&mut self.known, original, room) else { return Ok(()) };
        let all = known.more().names.get_or_insert_default();
        for name in names {
            if !all.contains(&name) && room.takes(name.len() + SLOT) {
                all.insert(name);
            }
        }
        Ok(())
    }

    fn caught_up(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Touched {
    fn with_two(&mut self, access: &Access<'_>, path: &[u8], to: &[u8]) {
        match access.kind {
            AccessKind::Rename => {
                let moving = self.takes(path);
                self.puts(to, moving);
            }
            AccessKind::Exchange => {
                let (one, other) = (self.takes(path), self.takes(to));
                self.puts(path, other);
                self.puts(to, one);
            }
            AccessKind::Link => {
                if let Some(known) = self.original(path).filter(|_| !access.nameless) {
                    known.uses(Use::Moved);
                }
                self.makes(to, false);
            }
            _ => {
                self.with_one(access, path);
                if let Some(known) = self.changed(to) {
                    known.writes();
                }
            }
        }
    }

    fn with_one(&mut self, access: &Access<'_>, path: &[u8]) {
        let is_directory = access.identity.map(|identity| identity.mode & libc::S_IFMT == libc::S_IFDIR);
        match access.kind {
            AccessKind::Create => return self.makes(path, is_directory == Some(true)),
            AccessKind::Remove => return self.removes(path),
            _ => {}
        }
        let known = if access.kind.changes() { self.changed(path) } else { self.original(path) };
        let Some(known) = known else {
            match access.kind {
                AccessKind::Absent => self.uses_own(path, OwnUse::Absent),
                AccessKind::List => self.uses_own(path, OwnUse::Listed),
                _ => {}
            }
            return;
        };
        match access.kind {
            AccessKind::Absent => return known.is_absent(),
            AccessKind::LookUp | AccessKind::Found | AccessKind::Attributes | AccessKind::Statistics => {
                known.uses(Use::Found);
            }
            AccessKind::OpenRead | AccessKind::Read | AccessKind::Copy => known.reads(Use::Read),
            AccessKind::Execute => known.reads(Use::Executed),
            AccessKind::List => known.uses(Use::Listed),
            AccessKind::ReadLink => known.uses(Use::Followed),
            AccessKind::GetXattr | AccessKind::ListXattrs => known.uses(Use::Xattrs),
            AccessKind::OpenWrite | AccessKind::Write | AccessKind::Allocate => known.writes(),
            AccessKind::Truncate if access.identity.is_none_or(|identity| identity.size == 0) => known.empties(),
            AccessKind::Truncate => known.writes(),
            AccessKind::SetAttributes | AccessKind::SetXattr | AccessKind::RemoveXattr => {
                known.is_there();
                known.attributes = true;
            }
            AccessKind::Create
            | AccessKind::Remove
            | AccessKind::CreateUnnamed
            | AccessKind::Link
            | AccessKind::Rename
            | AccessKind::Exchange => {}
        }
        if let Some(is_directory) = is_directory {
            known.is_directory = is_directory;
        }
        if !known.written && !known.attributes && known.identity.is_none() {
            known.identity = access.identity.map(Box::new);
        }
        if let (AccessKind::ReadLink, Some(target)) = (access.kind, access.detail) {
            self.leads(path, target);
        }
    }

    /// A symbolic link has this target.
    fn leads(&mut self, path: &[u8], target: &[u8]) {
        let original = self.places.original(path);
        let Some(known) = original.and_then(|original| self.known.get_mut(&original)) else { return };
        let (before, room) = (&mut known.more().target, &mut self.places.room);
        room.gives(before.as_ref().map_or(0, |before| before.len()));
        if room.takes(target.len()) {
            *before = Some(target.into());
        }
    }

    fn failed(&mut self, access: &Access<'_>, error: Errno, path: &[u8], to: Option<&[u8]>) {
        let is_xattr = matches!(access.kind, AccessKind::GetXattr | AccessKind::ListXattrs);
        // That there is no such attribute is an answer; the kernel asks for some by itself.
        if is_xattr && matches!(error, Errno::NODATA | Errno::OPNOTSUPP) {
            if let Some(known) = self.original(path) {
                known.uses(Use::Xattrs);
            }
            return;
        }
        for path in [Some(path), to].into_iter().flatten() {
            if let Some(known) = self.original(path) {
                known.fails(error);
            }
        }
    }
}
