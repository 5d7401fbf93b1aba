//! Makes what is remembered of a run from what its command touched: the state of each input, unless somebody has changed it since,
//! and of each output.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::Metadata;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use inarch_kept::Bytes;
use inarch_vfs::{Identity, is_shown_as};
use rustix::io::Errno;

use super::NotRemembered;
use super::fact::{Fact, Seen, There, look, looked_at, names_in, xattrs_of};
use super::hashed::{Stamp, Time, hash_file, is_settled};
use super::memory::{Left, Memory};
use super::store::Store;
use crate::record::error_name;
use crate::touched::{Change, Input, Output, OwnUse, Use};
use crate::verify::is_full;
use crate::{Touched, TraceReport};

/// Remembers a run that began at a time.
pub struct Recorder<'r> {
    pub store: &'r Store,
    pub report: &'r TraceReport,
    /// What was remembered before: digests of it may still hold.
    pub earlier: Option<&'r Memory>,
    pub began: Time,
    /// Names that do not count in listings, besides those of outputs.
    pub is_left_out: &'r dyn Fn(&Path) -> bool,
}

type Facts = (BTreeMap<PathBuf, Fact>, BTreeMap<PathBuf, Left>);

impl Recorder<'_> {
    /// What the command saw and what it left. Content of outputs is kept in the store.
    ///
    /// # Errors
    /// Another program changed something that the command used, or something cannot be known.
    pub fn facts(&self) -> Result<Facts, NotRemembered> {
        let touched: &Touched = &self.report.touched;
        let changed: BTreeMap<&Path, Output<'_>> = touched.outputs().map(|output| (output.path, output)).collect();
        let (mut inputs, mut outputs) = (BTreeMap::new(), BTreeMap::new());
        for input in touched.inputs() {
            let output = changed.get(input.path);
            if input.is(Use::Moved) && input.identity.is_some_and(|identity| is(&identity, libc::S_IFDIR)) {
                return Err(unknown(input.path, "the command moved this directory"));
            }
            // What the command itself changed is remembered as it left it.
            if output.is_none() {
                let fact = self.input(&input, &|path| changed.contains_key(path) || (self.is_left_out)(path))?;
                inputs.insert(input.path.to_owned(), fact);
            }
        }
        let is_read: BTreeSet<&Path> = touched.inputs().filter(Input::is_content).map(|input| input.path).collect();
        for output in changed.values() {
            let left = self.output(output, is_read.contains(output.path))?;
            outputs.insert(output.path.to_owned(), left);
        }
        let is_left_out = |path: &Path| changed.contains_key(path) || (self.is_left_out)(path);
        for (path, used) in touched.in_own() {
            let failed = |error: io::Error| unknown(path, &error.to_string());
            match (used, look(path).map_err(failed)?) {
                // What is an output is remembered as such.
                (OwnUse::Absent, _) if is_left_out(path) => {}
                // Where its directory is gone, another run makes that anew.
                (OwnUse::Absent, Seen::Absent) if path.parent().is_some_and(|above| !above.is_dir()) => {}
                (OwnUse::Absent, Seen::Absent) => drop(inputs.insert(path.to_owned(), Fact::Absent)),
                (OwnUse::Listed, Seen::There(_)) => {
                    let Some(Left { fact: Fact::There(there), .. }) = outputs.get_mut(path) else { continue };
                    // Somebody else has made something there.
                    if there.is(libc::S_IFDIR) && !names_in(path, &is_left_out).map_err(failed)?.is_empty() {
                        return Err(NotRemembered::Changed(path.to_owned()));
                    }
                    there.names = there.is(libc::S_IFDIR).then(Vec::new);
                }
                (OwnUse::Listed, _) => {}
                (OwnUse::Absent, _) => return Err(NotRemembered::Changed(path.to_owned())),
            }
        }
        Ok((inputs, outputs))
    }

    fn input(&self, input: &Input<'_>, is_left_out: &dyn Fn(&Path) -> bool) -> Result<Fact, NotRemembered> {
        let path = input.path;
        let failed = |error: io::Error| unknown(path, &error.to_string());
        if let Some(error) = input.error.filter(|error| !depends_on_files(*error)) {
            return Err(unknown(path, &format!("an operation on it failed: {}", error_name(error))));
        }
        let now = match (look(path).map_err(failed)?, input.identity) {
            (Seen::Absent, None) => return Ok(Fact::Absent),
            (Seen::Refused, None) => return Ok(Fact::Refused),
            (Seen::There(now), Some(identity)) if is_same(&now, &identity) && !input.is(Use::Absent) => now,
            (Seen::There(now), None) if !input.is(Use::Absent) => now,
            _ => return Err(NotRemembered::Changed(path.to_owned())),
        };
        let mut there = There::new(path, &now).map_err(failed)?;
        if there.target.as_ref().is_some_and(|now| input.target.is_some_and(|seen| now.to_path() != seen)) {
            return Err(NotRemembered::Changed(path.to_owned()));
        }
        let is_directory = there.is(libc::S_IFDIR);
        let is_file = there.is(libc::S_IFREG);
        if !(is_directory || input.is(Use::Moved) || is_settled(&now, self.began)) {
            return Err(NotRemembered::Changed(path.to_owned()));
        }
        if input.is_content() && is_file {
            self.add_content(path, &now, &mut there).map_err(failed)?;
        } else if is_file {
            there.looked = Some(looked_at(&now));
        } else if [libc::S_IFIFO, libc::S_IFCHR, libc::S_IFBLK].into_iter().any(|kind| there.is(kind)) {
            // The kernel opens it without the view.
            return Err(unknown(path, "it is no file, and what the command may have read there is not known"));
        }
        let is_kept_by_names = matches!(input.error, Some(Errno::NOTEMPTY | Errno::EXIST));
        if is_directory && (input.is(Use::Listed) || is_kept_by_names) {
            there.names = Some(self.names(input, &now, is_left_out)?);
        }
        if input.is(Use::Xattrs) {
            there.xattrs = Some(xattrs_of(path).map_err(failed)?.0);
        }
        Ok(Fact::There(Box::new(there)))
    }

    /// The names in a directory, if the command saw these and no others.
    fn names(
        &self,
        input: &Input<'_>,
        now: &Metadata,
        is_left_out: &dyn Fn(&Path) -> bool,
    ) -> Result<Vec<(Bytes, char)>, NotRemembered> {
        let path = input.path;
        let names = names_in(path, is_left_out).map_err(|error| unknown(path, &error.to_string()))?;
        let mut seen = input.names().into_iter().flatten().filter(|name| !is_left_out(&path.join(name))).peekable();
        // It read the listing to its end, or nobody changed the directory since.
        let mut unseen: BTreeSet<&[u8]> = names.iter().map(|(name, _)| &**name).collect();
        let are_there = seen.all(|name| unseen.remove(name.as_bytes()));
        if !are_there || !(unseen.is_empty() || is_settled(now, self.began)) {
            return Err(NotRemembered::Changed(path.to_owned()));
        }
        Ok(names.iter().map(|(name, kind)| (Bytes::new(name), *kind)).collect())
    }

    /// Adds the digest of a file: the earlier one, if it must still hold.
    fn add_content(&self, path: &Path, now: &Metadata, there: &mut There) -> io::Result<()> {
        let stamp = Some(Stamp::of(now));
        let earlier = self.earlier.and_then(|memory| memory.inputs.get(path));
        if let Some(Fact::There(earlier)) = earlier
            && earlier.sha256.is_some()
            && earlier.stamp == stamp
        {
            (there.sha256, there.stamp) = (earlier.sha256.clone(), stamp);
            return Ok(());
        }
        let hashed = match hash_file(path, &mut io::sink()) {
            // A program that may be executed but not read.
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied && is_settled(now, self.began) => {
                there.stamp = stamp;
                return Ok(());
            }
            hashed => hashed?,
        };
        if Stamp::of(now) != Stamp::of(&hashed.metadata) {
            return Err(io::Error::other("it changes"));
        }
        there.stamp = hashed.is_settled.then_some(Stamp::of(&hashed.metadata));
        there.sha256 = Some(hashed.sha256);
        Ok(())
    }

    fn output(&self, output: &Output<'_>, is_read: bool) -> Result<Left, NotRemembered> {
        let path = output.path;
        let failed = |error: io::Error| unknown(path, &error.to_string());
        let is_gone = matches!(output.change, Change::Removed | Change::Temporary);
        let now = match look(path).map_err(failed)? {
            Seen::Absent if is_gone => return Ok(Left { fact: Fact::Absent, is_kept: false }),
            Seen::There(now) if !is_gone => now,
            _ => return Err(NotRemembered::Changed(path.to_owned())),
        };
        let mut there = There::new(path, &now).map_err(failed)?;
        let (xattrs, has_none) = xattrs_of(path).map_err(failed)?;
        there.xattrs = Some(xattrs);
        let is_new = matches!(output.change, Change::Made | Change::Written);
        // The kernel writes by itself, so that an ENOSPC is not seen.
        if is_new && there.is(libc::S_IFREG) && is_full(path) {
            return Err(unknown(path, "there is no room left, so what was written to it may be cut off"));
        }
        if there.is(libc::S_IFREG) && (is_new || is_read) {
            self.add_content(path, &now, &mut there).map_err(failed)?;
        }
        // What has another name, or attributes that nobody keeps, would not be the same.
        let is_kept = is_new
            && has_none
            && match there.mode & libc::S_IFMT {
                libc::S_IFDIR | libc::S_IFLNK => true,
                libc::S_IFREG => now.nlink() == 1,
                _ => false,
            };
        if is_kept
            && let Some(digest) = &there.sha256
            && !self.store.keep_file(path, digest)?
        {
            return Err(NotRemembered::Changed(path.to_owned()));
        }
        Ok(Left { fact: Fact::There(Box::new(there)), is_kept })
    }
}

fn unknown(path: &Path, why: &str) -> NotRemembered {
    NotRemembered::Unknown { path: path.to_owned(), why: why.to_owned() }
}

fn is(identity: &Identity, kind: u32) -> bool {
    identity.mode & libc::S_IFMT == kind
}

/// Whether what is there is what the command first saw. Names come and go in a directory.
fn is_same(now: &Metadata, seen: &Identity) -> bool {
    let Identity { inode, mode, size, mtime } = *seen;
    let is_directory = is(seen, libc::S_IFDIR);
    let times = (mtime.seconds, i64::from(mtime.nanoseconds));
    now.mode() == mode && (is_directory || is_shown_as(now.ino(), inode) && looked_at(now) == (size, times))
}

/// Whether an error comes from what the files are, which is remembered. Any other may be gone the next time.
fn depends_on_files(error: Errno) -> bool {
    matches!(
        error,
        Errno::NOENT
            | Errno::NOTDIR
            | Errno::ACCESS
            | Errno::PERM
            | Errno::EXIST
            | Errno::NOTEMPTY
            | Errno::ISDIR
            | Errno::LOOP
            | Errno::NAMETOOLONG
            | Errno::ROFS
            | Errno::XDEV
            | Errno::INVAL
            | Errno::NODATA
            | Errno::OPNOTSUPP
            | Errno::NOSYS
            | Errno::RANGE
            | Errno::NOTTY
            | Errno::NXIO
            | Errno::MLINK
    )
}
