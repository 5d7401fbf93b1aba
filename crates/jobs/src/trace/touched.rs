//! Adds accesses up, path by path: what a command needed of what was there before, and what it left.
//!
//! An access counts as a use of an *input* only while the path has what it had before the command: a file that the command
//! made and then read is none. What it changed is an *output*.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::io;
use std::ops::Bound;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use inarch_vfs::{Access, AccessKind, AccessSink, Identity};
use rustix::io::Errno;

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

/// What became of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Change {
    /// It was not there, and is now.
    Made,
    /// It was there with other content, or as another file.
    Written,
    /// Only its attributes are others.
    Attributes,
    /// It was there, and is not now.
    Removed,
    /// It was made, and is not there any more.
    Temporary,
}

impl Change {
    /// The word for it.
    pub fn name(self) -> &'static str {
        match self {
            Change::Made => "made",
            Change::Written => "written",
            Change::Attributes => "attributes",
            Change::Removed => "removed",
            Change::Temporary => "temporary",
        }
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
}

impl Input<'_> {
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

/// Something that the command changed.
#[derive(Clone, Copy, Debug)]
pub struct Output<'t> {
    /// Its absolute path.
    pub path: &'t Path,
    /// How.
    pub change: Change,
    /// Whether it is a directory, as far as that was seen.
    pub is_directory: bool,
}

/// What was at a path before the command.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Before {
    #[default]
    Unknown,
    Absent,
    There,
}

/// What is at a path now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Now {
    /// What was there before.
    #[default]
    Original,
    /// What the command put there.
    Made,
    /// Nothing any more.
    Gone,
}

/// What is known of one path.
#[derive(Clone, Debug, Default)]
struct Known {
    uses: u16,
    before: Before,
    now: Now,
    /// The content was written.
    written: bool,
    /// It was written when the whole content had not been replaced.
    kept_parts: bool,
    /// Attributes were set.
    attributes: bool,
    is_directory: bool,
    error: Option<Errno>,
    identity: Option<Identity>,
    target: Option<Box<[u8]>>,
}

impl Known {
    /// An access to what was there before.
    fn uses(&mut self, one: Use) {
        if self.now == Now::Original {
            self.uses |= one.bit();
            self.before = if one == Use::Absent { Before::Absent } else { Before::There };
        }
    }

    fn fails(&mut self, error: Errno) {
        if self.now == Now::Original {
            self.uses |= Use::Failed.bit();
            self.error.get_or_insert(error);
        }
    }

    /// Reads content: no input if the command wrote all of it.
    fn reads(&mut self, one: Use) {
        if !self.written || self.kept_parts {
            self.uses(one);
        }
    }

    fn writes(&mut self) {
        if self.now == Now::Original {
            self.before = Before::There;
            self.kept_parts |= !self.written;
            self.written = true;
        }
    }

    /// The whole content goes.
    fn empties(&mut self) {
        if self.now == Now::Original {
            self.before = Before::There;
            self.written = true;
            self.kept_parts = false;
        }
    }

    fn makes(&mut self) {
        if self.now == Now::Original && self.before == Before::Unknown {
            self.before = Before::Absent;
        }
        self.now = Now::Made;
    }

    fn goes(&mut self) {
        if self.now == Now::Original {
            self.before = Before::There;
        }
        self.now = Now::Gone;
    }

    fn change(&self) -> Option<Change> {
        match (self.now, self.before) {
            (Now::Made, Before::There) => Some(Change::Written),
            (Now::Made, _) => Some(Change::Made),
            (Now::Gone, Before::There) => Some(Change::Removed),
            (Now::Gone, _) => Some(Change::Temporary),
            (Now::Original, _) if self.written => Some(Change::Written),
            (Now::Original, _) if self.attributes => Some(Change::Attributes),
            (Now::Original, _) => None,
        }
    }
}

/// What a command touched.
#[derive(Clone, Debug, Default)]
pub struct Touched {
    /// By absolute path.
    paths: BTreeMap<Box<[u8]>, Known>,
}

fn shown_path(path: &[u8]) -> &Path {
    Path::new(OsStr::from_bytes(path))
}

/// The absolute path of one from the view's root.
fn absolute(path: &[u8]) -> Box<[u8]> {
    [b"/", path].concat().into()
}

impl Touched {
    /// What the command needed, by path.
    pub fn inputs(&self) -> impl Iterator<Item = Input<'_>> {
        self.paths.iter().filter_map(|(path, known)| {
            let kept_parts = if known.kept_parts { Use::Read.bit() } else { 0 };
            let uses = known.uses | kept_parts;
            let Known { identity, error, .. } = *known;
            let target = known.target.as_deref().map(shown_path);
            (uses != 0).then(|| Input { path: shown_path(path), uses, identity, target, error })
        })
    }

    /// What the command changed, by path.
    pub fn outputs(&self) -> impl Iterator<Item = Output<'_>> {
        self.paths.iter().filter_map(|(path, known)| {
            let change = known.change()?;
            Some(Output { path: shown_path(path), change, is_directory: known.is_directory })
        })
    }

    /// Without some paths.
    pub(super) fn without(mut self, is_left_out: impl Fn(&Path) -> bool) -> Touched {
        self.paths.retain(|path, _| !is_left_out(shown_path(path)));
        self
    }

    fn known(&mut self, path: &[u8]) -> &mut Known {
        self.paths.entry(absolute(path)).or_default()
    }

    /// What is at `from` gets the name `to`.
    fn renamed(&mut self, from: &[u8], to: &[u8]) {
        self.known(from).uses(Use::Moved);
        let moved = self.take_beneath(from);
        // What was at `to` was a file, or an empty directory.
        for (rest, known) in moved {
            let mut place = to.to_vec();
            place.extend_from_slice(&rest);
            let is_there = rest.is_empty() || known.now == Now::Made;
            let is_directory = known.is_directory;
            if is_there {
                let placed = self.known(&place);
                placed.makes();
                placed.is_directory = is_directory;
            }
            let mut left = from.to_vec();
            left.extend_from_slice(&rest);
            let mut known = known;
            if known.now != Now::Gone && (rest.is_empty() || known.now == Now::Made) {
                known.goes();
            }
            self.paths.insert(absolute(&left), known);
        }
    }

    /// The states of a path and all that is beneath it, by the rest of the path.
    fn take_beneath(&mut self, path: &[u8]) -> Vec<(Vec<u8>, Known)> {
        let start = absolute(path);
        let beneath = [&*start, b"/"].concat();
        let own = self.paths.remove(&start).map(|known| (Vec::new(), known));
        let range = (Bound::Included(&*beneath), Bound::Unbounded);
        let names: Vec<Box<[u8]>> = self
            .paths
            .range::<[u8], _>(range)
            .take_while(|(name, _)| name.starts_with(&beneath))
            .map(|(name, _)| name.clone())
            .collect();
        let children = names.into_iter().filter_map(|name| {
            let known = self.paths.remove(&name)?;
            Some((name[start.len()..].to_vec(), known))
        });
        own.into_iter().chain(children).collect()
    }
}

impl AccessSink for Touched {
    fn record(&mut self, access: &Access<'_>) -> io::Result<()> {
        // What has no name can neither be an input nor be left.
        if access.nameless && access.kind != AccessKind::Link {
            return Ok(());
        }
        if let Some(error) = access.error {
            self.failed(access, error);
            return Ok(());
        }
        match (access.kind, access.to) {
            (AccessKind::Rename, Some(to)) => {
                self.renamed(access.path, to);
                return Ok(());
            }
            (AccessKind::Exchange, Some(to)) => {
                for path in [access.path, to] {
                    self.known(path).uses(Use::Moved);
                    self.known(path).makes();
                }
                return Ok(());
            }
            (AccessKind::Link, Some(to)) => {
                if !access.nameless {
                    self.known(access.path).uses(Use::Moved);
                }
                self.known(to).makes();
                return Ok(());
            }
            (AccessKind::Copy, Some(to)) => self.known(to).writes(),
            _ => {}
        }
        let known = self.known(access.path);
        match access.kind {
            AccessKind::Absent => {
                if known.before == Before::Unknown {
                    known.uses(Use::Absent);
                }
            }
            AccessKind::LookUp | AccessKind::Found | AccessKind::Attributes | AccessKind::Statistics => {
                known.uses(Use::Found);
            }
            AccessKind::OpenRead | AccessKind::Read | AccessKind::Copy => known.reads(Use::Read),
            AccessKind::Execute => known.reads(Use::Executed),
            AccessKind::List => known.uses(Use::Listed),
            AccessKind::ReadLink => {
                known.uses(Use::Followed);
                if known.now == Now::Original {
                    known.target = access.detail.map(Into::into);
                }
            }
            AccessKind::GetXattr | AccessKind::ListXattrs => known.uses(Use::Xattrs),
            AccessKind::OpenWrite | AccessKind::Write | AccessKind::Allocate => known.writes(),
            AccessKind::Truncate if access.identity.is_none_or(|identity| identity.size == 0) => known.empties(),
            AccessKind::Truncate => known.writes(),
            AccessKind::SetAttributes | AccessKind::SetXattr | AccessKind::RemoveXattr => known.attributes = true,
            AccessKind::Create => known.makes(),
            AccessKind::Remove => known.goes(),
            AccessKind::CreateUnnamed | AccessKind::Link | AccessKind::Rename | AccessKind::Exchange => {}
        }
        if let Some(identity) = access.identity {
            known.is_directory = identity.mode & libc::S_IFMT == libc::S_IFDIR;
            if known.now == Now::Original && !known.written && !known.attributes {
                known.identity.get_or_insert(identity);
            }
        }
        Ok(())
    }

    fn caught_up(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Touched {
    fn failed(&mut self, access: &Access<'_>, error: Errno) {
        let is_xattr = matches!(access.kind, AccessKind::GetXattr | AccessKind::ListXattrs);
        let known = self.known(access.path);
        // That there is no such attribute is an answer; the kernel asks for some by itself.
        if is_xattr && matches!(error, Errno::NODATA | Errno::OPNOTSUPP) {
            return known.uses(Use::Xattrs);
        }
        known.fails(error);
        if let Some(to) = access.to {
            self.known(to).fails(error);
        }
    }
}
