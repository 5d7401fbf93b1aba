//! `cp`: copies a file or a directory out of an image, with its attributes.
//!
//! 1. A confined thread walks the image and sends [`Step`]s.
//! 2. The thread of the caller makes the files in a directory that only its user may enter, beside the place where they go; a guard removes it. It opens each directory
//!    relative to the one above and follows no link, since the image decides the names.
//! 3. What is complete gets its name by one rename. What fails before that leaves nothing.

use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::Path;

use inarch_block::Cursor;
use inarch_lifecycle::PathError;
use inarch_lifecycle::scratch::Scratch;
use inarch_tree::{FileType, Timestamp, open_beneath};
use inarch_volume::{Last, Node, Volume, VolumeError, join_data};
use rustix::fs::{self, AtFlags, Gid, Mode, OFlags, RenameFlags, Timespec, Timestamps, Uid, XattrFlags};
use rustix::io::Errno;
use vm_memory::VolatileSlice;

use super::list::{Entry, children, entry, named};
use super::{Guest, GuestError};

/// The most bytes that are sent at once.
pub(super) const PIECE: u64 = 1 << 20;
/// The most losses that are named; the rest are counted.
const NAMED: usize = 1000;

/// A part of a file's content.
#[derive(Debug)]
pub enum Piece {
    /// Bytes.
    Data(Vec<u8>),
    /// So many zeros that take no room.
    Hole(u64),
}

/// So many zeros, in pieces.
pub fn zeros(length: u64) -> impl Iterator<Item = &'static [u8]> {
    const ZEROS: &[u8] = &[0; 64 << 10];
    let starts = (0..length).step_by(ZEROS.len());
    starts.map(move |at| ZEROS.get(..usize::try_from(length - at).unwrap_or(usize::MAX)).unwrap_or(ZEROS))
}

/// Sends the content of a regular file from its start, until `send` returns false.
pub(super) fn pieces(
    volume: &dyn Volume,
    node: Node,
    size: u64,
    send: &mut dyn FnMut(Piece) -> bool,
) -> Result<(), VolumeError> {
    let mut ranges = Vec::new();
    match volume.extents(node, 0, size)? {
        Some(extents) => extents.iter().for_each(|extent| join_data(&mut ranges, extent.offset, extent.length)),
        None => {
            let mut at = 0;
            while let Some(range) = volume.data(node, at)? {
                join_data(&mut ranges, range.offset, range.length);
                at = range.offset.saturating_add(range.length);
            }
        }
    }
    let mut at = 0;
    for range in ranges {
        let end = range.offset.saturating_add(range.length).min(size);
        if range.offset > at {
            if !send(Piece::Hole(range.offset - at)) {
                return Ok(());
            }
            at = range.offset;
        }
        while at < end {
            let count = PIECE.min(end - at);
            let mut bytes = vec![0; count as usize];
            volume.read(node, at, count, &mut Cursor::new(&[VolatileSlice::from(&mut *bytes)]))?;
            if !send(Piece::Data(bytes)) {
                return Ok(());
            }
            at += count;
        }
    }
    if at < size {
        send(Piece::Hole(size - at));
    }
    Ok(())
}

/// What was copied.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CopyReport {
    /// Files of all kinds, directories included.
    pub files: u64,
    /// Bytes of content, holes aside.
    pub bytes: u64,
    /// What was not copied, or not as it is: a line each.
    pub lost: Vec<String>,
    /// Those beyond the first thousand.
    pub more: u64,
}

impl CopyReport {
    fn lose(&mut self, line: String) {
        if self.lost.len() < NAMED {
            self.lost.push(line);
        } else {
            self.more += 1;
        }
    }
}

/// A step of a copy.
enum Step {
    /// A directory begins. Its entry's path is its name.
    Enter(Entry),
    /// The directory that was begun last ends.
    Leave,
    /// A regular file begins.
    File(Entry),
    /// Its next piece.
    Piece(Piece),
    /// It ends.
    End,
    /// Another name of a file.
    Link {
        name: Vec<u8>,
        node: Node,
        /// The path of its first name below the private directory.
        first: Vec<u8>,
    },
    /// A symbolic link, a device, a FIFO or a socket.
    Other(Entry),
    /// Something cannot be read.
    Lost(String),
}

impl Guest {
    /// Copies a file, or a directory with everything in it, to `to`: into it if it is a directory, else to that name, which must be free.
    /// Owners and device files are copied for root only.
    ///
    /// # Errors
    /// There is no such file, it is damaged, or something of that name exists. Nothing is left then.
    pub fn copy_out(&self, path: &Path, to: &Path) -> Result<CopyReport, GuestError> {
        let (node, _) = self.find_node(path, Last::Taken)?;
        let target = if to.is_dir() {
            let name = path.components().next_back().map(|name| name.as_os_str());
            match name.filter(|name| path.file_name() == Some(name)) {
                Some(name) => to.join(name),
                None => return Err(PathError::new(to, "is a directory; name the copy", Errno::ISDIR).into()),
            }
        } else {
            to.to_owned()
        };
        let fail = |action, error: Errno| PathError::new(&target, action, error);
        if target.symlink_metadata().is_ok() {
            return Err(GuestError::Exists { target: target.clone() });
        }
        let parent = target.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let cannot_write = |error| PathError::new(parent, "cannot write there", error);
        parent.metadata().map_err(cannot_write)?;
        let private = Scratch::within(parent)?;
        let top = fs::open(private.path(), OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty());
        let top = top.map_err(|error| fail("cannot be made", error))?;
        let mut writer = Writer::new(top);
        let copied = self.stream(
            path,
            |volume, send| {
                let mut walk = Walk::new(volume, send, path.as_os_str().as_bytes());
                walk.copy(node, b"it".to_vec()).map(drop)
            },
            |step| writer.step(step).map_err(|(what, error)| PathError::new(&target, what, error).into()),
        );
        copied?;
        let from = writer.directories.first().map(|(fd, _)| fd);
        if let Some(from) = from {
            let moved = fs::renameat_with(from, "it", fs::CWD, &target, RenameFlags::NOREPLACE);
            moved.map_err(|error| fail("cannot be given its name", error))?;
        }
        if let Some((made, entry)) = writer.top.take() {
            writer.dress(&made, &entry).map_err(|(what, error)| fail(what, error))?;
        }
        Ok(writer.report)
    }
}

/// The confined side.
struct Walk<'a> {
    volume: &'a dyn Volume,
    send: &'a mut dyn FnMut(Step) -> bool,
    /// The first names of files that may have several, and the places of their directories.
    links: HashMap<Node, (usize, Vec<u8>)>,
    /// Directories, each as the place here of the directory above it, and its name: those that are open, and those that `links` refers to. The first one is
    /// the private directory. A path for each file would take far more room in a deep tree.
    directories: Vec<(usize, Vec<u8>)>,
    /// So many of `directories` stay, because they lead to a file in `links`.
    needed: usize,
    /// The place of the directory at hand.
    directory: usize,
    entered: HashSet<Node>,
    /// The path below the private directory.
    path: Vec<u8>,
    /// The path that was asked for.
    asked: &'a [u8],
}

/// What is left of a directory, the last name first, the length of its path, and its place among those that are known.
type Level = (Vec<Result<(Vec<u8>, Node), String>>, usize, usize);

impl<'a> Walk<'a> {
    fn new(volume: &'a dyn Volume, send: &'a mut dyn FnMut(Step) -> bool, asked: &'a [u8]) -> Walk<'a> {
        let (links, entered) = (HashMap::new(), HashSet::new());
        let directories = vec![(0, Vec::new())];
        Walk { volume, send, links, directories, needed: 1, directory: 0, entered, path: Vec::new(), asked }
    }

    /// Bytes of names that are kept.
    #[cfg(test)]
    fn kept(&self) -> usize {
        self.links.values().chain(&self.directories).map(|(_, name)| name.len()).sum()
    }

    /// Copies a node, and what is below it, under `name`. False if nobody takes the steps.
    fn copy(&mut self, node: Node, name: Vec<u8>) -> Result<bool, VolumeError> {
        let mut open: Vec<Level> = vec![(vec![Ok((name, node))], 0, 0)];
        while let Some((rest, length, directory)) = open.last_mut() {
            self.path.truncate(*length);
            self.directory = *directory;
            let child = rest.pop();
            let goes_on = match child {
                None => {
                    open.pop();
                    // What follows the directory in the list lies in it.
                    self.directories.truncate(self.directory.max(self.needed));
                    open.is_empty() || (self.send)(Step::Leave)
                }
                Some(Err(lost)) => self.lose(&lost),
                Some(Ok((name, node))) => match self.one(node, name) {
                    Ok((goes_on, None)) => goes_on,
                    Ok((goes_on, Some(mut children))) => {
                        children.reverse();
                        open.push((children, self.path.len(), self.directories.len() - 1));
                        goes_on
                    }
                    // The node that was asked for cannot be read.
                    Err(error) if open.len() == 1 => return Err(error),
                    Err(error) => self.lose(&error.to_string()),
                },
            };
            if !goes_on {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Sends a line about the node at the path.
    fn lose(&mut self, what: &str) -> bool {
        let line = named(&self.in_image(), what);
        (self.send)(Step::Lost(line))
    }

    /// The path below the private directory of a name in one of the known directories.
    fn path_of(&self, (directory, name): &(usize, Vec<u8>)) -> Vec<u8> {
        let (mut names, mut at) = (vec![name.as_slice()], *directory);
        while let Some((above, name)) = self.directories.get(at).filter(|_| at > 0) {
            names.push(name);
            at = *above;
        }
        names.reverse();
        names.join(&b'/')
    }

    /// The path in the image.
    fn in_image(&self) -> Vec<u8> {
        let below = self.path.iter().position(|byte| *byte == b'/').and_then(|slash| self.path.get(slash..));
        [self.asked.strip_suffix(b"/").unwrap_or(self.asked), below.unwrap_or_default()].concat()
    }

    /// One node; gives the children of a directory.
    #[expect(clippy::type_complexity, reason = "a level of the walk")]
    fn one(
        &mut self,
        node: Node,
        name: Vec<u8>,
    ) -> Result<(bool, Option<Vec<Result<(Vec<u8>, Node), String>>>), VolumeError> {
        if !self.path.is_empty() {
            self.path.push(b'/');
        }
        self.path.extend_from_slice(&name);
        let mut entry = entry(self.volume, node, name)?;
        let in_image = self.in_image();
        let send = &mut *self.send;
        entry.xattrs = self.volume.xattrs(node, &mut |loss| {
            send(Step::Lost(named(&in_image, &loss.reason)));
        })?;
        match entry.attributes.file_type() {
            Some(FileType::Directory) if !self.entered.insert(node) => {
                Ok((send(Step::Lost(named(&in_image, "the directory has a second name"))), None))
            }
            Some(FileType::Directory) => {
                let children = children(self.volume, node)?;
                self.directories.push((self.directory, entry.path.clone()));
                Ok((send(Step::Enter(entry)), Some(children)))
            }
            Some(FileType::Regular) => {
                if entry.attributes.links > 1 {
                    if let Some(first) = self.links.get(&node) {
                        let first = self.path_of(first);
                        return Ok(((self.send)(Step::Link { name: entry.path, node, first }), None));
                    }
                    self.links.insert(node, (self.directory, entry.path.clone()));
                    self.needed = self.needed.max(self.directory + 1);
                }
                let size = entry.attributes.size;
                if !send(Step::File(entry)) {
                    return Ok((false, None));
                }
                let mut goes_on = true;
                pieces(self.volume, node, size, &mut |piece| {
                    goes_on = send(Step::Piece(piece));
                    goes_on
                })?;
                Ok((goes_on && send(Step::End), None))
            }
            _ => Ok((send(Step::Other(entry)), None)),
        }
    }
}

/// The side that makes files.
struct Writer {
    /// The directories that are open, each in the one before.
    directories: Vec<(OwnedFd, Option<Entry>)>,
    /// The uppermost directory, complete but for its attributes.
    top: Option<(OwnedFd, Entry)>,
    /// How deep the walk is in a directory that is left out.
    skipped: u64,
    file: Option<(File, Entry, u64)>,
    /// The host's inode numbers of files that may get another name.
    made: HashMap<Node, u64>,
    is_root: bool,
    report: CopyReport,
}

/// What failed, and why.
type StepError = (&'static str, Errno);

impl Writer {
    fn new(top: OwnedFd) -> Writer {
        let is_root = rustix::process::geteuid().is_root();
        Writer {
            directories: vec![(top, None)],
            top: None,
            skipped: 0,
            file: None,
            made: HashMap::new(),
            is_root,
            report: CopyReport::default(),
        }
    }

    fn step(&mut self, step: Step) -> Result<(), StepError> {
        match step {
            // What is in a directory that could not be made.
            Step::Enter(_) if self.skipped > 0 => {
                self.skipped += 1;
                Ok(())
            }
            Step::Leave if self.skipped > 0 => {
                self.skipped -= 1;
                Ok(())
            }
            Step::File(_) | Step::Link { .. } | Step::Other(_) if self.skipped > 0 => Ok(()),
            Step::Lost(line) => {
                self.drop_file()?;
                self.report.lose(line);
                Ok(())
            }
            Step::Piece(piece) => self.piece(piece),
            Step::End => self.end_file(),
            Step::Leave => self.leave(),
            Step::Enter(entry) => self.enter(entry),
            Step::File(entry) => self.begin_file(entry),
            Step::Link { name, node, first } => self.link(&name, node, &first),
            Step::Other(entry) => self.other(entry),
        }
    }

    /// Gives a file that was made another name. What stands at its first name may be something else, and a link on the way may lead out of
    /// the copy: an image may have a name twice.
    fn link(&mut self, name: &[u8], node: Node, first: &[u8]) -> Result<(), StepError> {
        self.end_file()?;
        let made = self.made.get(&node).copied();
        let (Some((top, _)), Some((above, _))) = (self.directories.first(), self.directories.last()) else {
            return Ok(());
        };
        let (directory, last) = match first.iter().rposition(|byte| *byte == b'/') {
            Some(slash) => (first.get(..slash).unwrap_or_default(), first.get(slash + 1..).unwrap_or_default()),
            None => (&b"."[..], first),
        };
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let linked = open_beneath(top.as_fd(), directory, flags).and_then(|directory| {
            let there = fs::statat(&directory, last, AtFlags::SYMLINK_NOFOLLOW)?;
            if made != Some(there.st_ino) {
                return Err(Errno::NOENT);
            }
            fs::linkat(&directory, last, above, name, AtFlags::empty())
        });
        match linked {
            Ok(()) => self.report.files += 1,
            Err(Errno::EXIST) => self.leave_out(name),
            // What leads to the first name is not what the image has there.
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => {
                self.lose(name, "left out: its file was not copied under its first name");
            }
            Err(error) => return Err(("a hard link cannot be made", error)),
        }
        Ok(())
    }

    fn above(&self) -> Result<&OwnedFd, StepError> {
        self.directories.last().map(|(fd, _)| fd).ok_or(("nothing is open", Errno::BADF))
    }

    fn enter(&mut self, entry: Entry) -> Result<(), StepError> {
        self.end_file()?;
        let above = self.above()?;
        let fail = |error| ("a directory cannot be made", error);
        match fs::mkdirat(above, &*entry.path, Mode::RWXU) {
            Err(Errno::EXIST) => {
                self.leave_out(&entry.path);
                self.skipped = 1;
                return Ok(());
            }
            made => made.map_err(fail)?,
        }
        let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let made = fs::openat(above, &*entry.path, flags, Mode::empty()).map_err(fail)?;
        self.report.files += 1;
        self.directories.push((made, Some(entry)));
        Ok(())
    }

    fn leave(&mut self) -> Result<(), StepError> {
        self.end_file()?;
        if let Some((made, Some(entry))) = self.directories.pop() {
            // The uppermost one is moved first, which takes the right to write to it.
            if self.directories.len() == 1 {
                self.top = Some((made, entry));
            } else {
                self.dress(&made, &entry)?;
            }
        }
        Ok(())
    }

    /// Reports what is missing of the file `name` in the directory at hand.
    fn lose(&mut self, name: &[u8], what: &str) {
        let above = self.directories.iter().filter_map(|(_, entry)| Some(&*entry.as_ref()?.path));
        let path = above.chain([name]).collect::<Vec<_>>().join(&b'/');
        self.report.lose(named(&path, what));
    }

    /// An image may have a name twice: the first file keeps it.
    fn leave_out(&mut self, name: &[u8]) {
        self.lose(name, "left out: the directory has another file of that name");
    }

    /// Removes a file that breaks off, since its other bytes are not known.
    fn drop_file(&mut self) -> Result<(), StepError> {
        let Some((_, entry, _)) = self.file.take() else { return Ok(()) };
        self.made.remove(&entry.node);
        self.report.files = self.report.files.saturating_sub(1);
        let removed = fs::unlinkat(self.above()?, &*entry.path, AtFlags::empty());
        removed.map_err(|error| ("a damaged file cannot be removed", error))
    }

    fn begin_file(&mut self, entry: Entry) -> Result<(), StepError> {
        self.end_file()?;
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let made = fs::openat(self.above()?, &*entry.path, flags, Mode::RUSR | Mode::WUSR);
        if made.as_ref().is_err_and(|error| *error == Errno::EXIST) {
            self.leave_out(&entry.path);
            return Ok(());
        }
        let fail = |error| ("a file cannot be made", error);
        let made = made.map_err(fail)?;
        if entry.attributes.links > 1 {
            self.made.insert(entry.node, fs::fstat(&made).map_err(fail)?.st_ino);
        }
        self.report.files += 1;
        self.file = Some((File::from(made), entry, 0));
        Ok(())
    }

    fn piece(&mut self, piece: Piece) -> Result<(), StepError> {
        let Some((file, _, at)) = &mut self.file else { return Ok(()) };
        match piece {
            Piece::Hole(length) => *at = at.saturating_add(length),
            Piece::Data(bytes) => {
                let written = file.write_all_at(&bytes, *at);
                written.map_err(|error| ("cannot be written", Errno::from_io_error(&error).unwrap_or(Errno::IO)))?;
                *at += bytes.len() as u64;
                self.report.bytes += bytes.len() as u64;
            }
        }
        Ok(())
    }

    fn end_file(&mut self) -> Result<(), StepError> {
        let Some((file, entry, _)) = self.file.take() else { return Ok(()) };
        fs::ftruncate(&file, entry.attributes.size).map_err(|error| ("a file cannot be given its size", error))?;
        self.dress(&file.into(), &entry)
    }

    /// Gives a file or a directory its attributes. What the host refuses of the extended ones is reported.
    fn dress(&mut self, made: &OwnedFd, entry: &Entry) -> Result<(), StepError> {
        let attributes = &entry.attributes;
        if self.is_root {
            let (uid, gid) = (Uid::from_raw(attributes.uid), Gid::from_raw(attributes.gid));
            fs::fchown(made, Some(uid), Some(gid)).map_err(|error| ("an owner cannot be set", error))?;
        }
        for xattr in &entry.xattrs {
            if fs::fsetxattr(made, &*xattr.name, &xattr.value, XattrFlags::empty()).is_err() {
                let name = String::from_utf8_lossy(&xattr.name).escape_debug().to_string();
                self.lose(&entry.path, &format!("the host does not keep its attribute {name}"));
            }
        }
        // After the owner and the attributes, since both take bits of the mode away.
        fs::fchmod(made, self.mode(attributes.mode)).map_err(|error| ("permissions cannot be set", error))?;
        fs::futimens(made, &times(attributes)).map_err(|error| ("times cannot be set", error))
    }

    /// Only copies made by root keep set-ID bits.
    fn mode(&self, mode: u32) -> Mode {
        let kept = if self.is_root { 0o7777 } else { 0o1777 };
        Mode::from_raw_mode(mode & kept)
    }

    fn other(&mut self, entry: Entry) -> Result<(), StepError> {
        self.end_file()?;
        let attributes = &entry.attributes;
        let above = self.above()?;
        let name = &*entry.path;
        match (&entry.target, attributes.file_type()) {
            (Some(target), _) => match fs::symlinkat(&**target, above, name) {
                Err(Errno::EXIST) => {
                    self.leave_out(&entry.path);
                    return Ok(());
                }
                made => made.map_err(|error| ("a symbolic link cannot be made", error))?,
            },
            (None, Some(file_type)) if self.is_root || file_type == FileType::Fifo => {
                let (major, minor) = attributes.device;
                let kind = fs::FileType::from_raw_mode(attributes.mode);
                match fs::mknodat(above, name, kind, Mode::RUSR, fs::makedev(major, minor)) {
                    Err(Errno::EXIST) => {
                        self.leave_out(&entry.path);
                        return Ok(());
                    }
                    made => made.map_err(|error| ("a special file cannot be made", error))?,
                }
                fs::chmodat(above, name, self.mode(attributes.mode), AtFlags::empty())
                    .map_err(|error| ("permissions cannot be set", error))?;
            }
            _ => {
                self.lose(name, "only root can make device files and sockets");
                return Ok(());
            }
        }
        if self.is_root {
            let (uid, gid) = (Uid::from_raw(attributes.uid), Gid::from_raw(attributes.gid));
            let owned = fs::chownat(above, name, Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW);
            owned.map_err(|error| ("an owner cannot be set", error))?;
        }
        let timed = fs::utimensat(above, name, &times(attributes), AtFlags::SYMLINK_NOFOLLOW);
        timed.map_err(|error| ("times cannot be set", error))?;
        self.report.files += 1;
        Ok(())
    }
}

fn times(attributes: &inarch_volume::Attributes) -> Timestamps {
    let time = |time: Timestamp| Timespec { tv_sec: time.seconds, tv_nsec: time.nanoseconds.into() };
    let mtime = time(attributes.mtime);
    Timestamps { last_access: attributes.atime.map_or(mtime, time), last_modification: mtime }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use inarch_block::BackedFiles;
    use inarch_tree::{Attributes, Builder, Extents, InodeId};
    use inarch_volume::TreeVolume;

    use super::*;

    /// A chain of `depth` directories with names of 200 bytes. The last one has `files` files, and the root has a hard link to each.
    fn deep(depth: usize, files: usize) -> TreeVolume {
        let attributes = |mode| Attributes { mode, ..Attributes::default() };
        let mut builder = Builder::new(&attributes(0o040_755)).unwrap();
        let (name, mut directory) = ("d".repeat(200), InodeId::ROOT);
        let mut pending = Vec::new();
        for level in 0..depth {
            builder.list(directory).unwrap();
            let below = builder.add(name.as_bytes(), &attributes(0o040_755)).unwrap();
            if level == 0 {
                pending = (0..files)
                    .map(|file| builder.add(format!("z{file:03}").as_bytes(), &attributes(0o100_644)).unwrap())
                    .collect();
            }
            directory = below;
        }
        builder.list(directory).unwrap();
        for (file, inode) in pending.iter().enumerate() {
            builder.link(format!("f{file:03}").as_bytes(), *inode).unwrap();
        }
        let tree = Arc::new(builder.finish().unwrap());
        let content = Arc::new(BackedFiles::new(Arc::clone(&tree), Extents::default(), Vec::new()));
        TreeVolume::new(tree, content)
    }

    #[test]
    fn what_is_kept_of_files_with_several_names_is_no_longer_than_their_names() {
        let (depth, files) = (30, 100);
        let volume = deep(depth, files);
        let mut links = Vec::new();
        let mut send = |step| {
            if let Step::Link { name, first, .. } = step {
                links.push((name, first));
            }
            true
        };
        let mut walk = Walk::new(&volume, &mut send, b"/");
        assert!(walk.copy(volume.root(), b"it".to_vec()).unwrap());
        let kept = walk.kept();
        assert!(kept <= (depth + 2) * 200 + files * 4, "{kept}");
        let above = ["it"].into_iter().map(str::to_owned).chain((0..depth).map(|_| "d".repeat(200)));
        let above = above.collect::<Vec<_>>().join("/");
        let expected =
            (0..files).map(|file| (format!("z{file:03}").into_bytes(), format!("{above}/f{file:03}").into_bytes()));
        assert!(links == expected.collect::<Vec<_>>());
    }
    #[test]
    fn a_first_name_may_be_longer_than_the_path_of_a_call() {
        let volume = deep(30, 2);
        let directory = tempfile::tempdir().unwrap();
        let mut writer = Writer::new(fs::open(directory.path(), OFlags::DIRECTORY, Mode::empty()).unwrap());
        let mut send = |step| {
            writer.step(step).unwrap();
            true
        };
        assert!(Walk::new(&volume, &mut send, b"/").copy(volume.root(), b"it".to_vec()).unwrap());
        assert_eq!(writer.report.lost, [""; 0]);
        for name in ["it/z000", "it/z001"] {
            assert_eq!(fs::stat(directory.path().join(name)).unwrap().st_nlink, 2);
        }
    }
}
