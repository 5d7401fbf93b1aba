//! A host directory and a guest that changed it, without a machine: tests run the real planner and executor over them.

mod guest;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::io::Read;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use inarch_tree::compare::{Difference, changes, differences};
use inarch_tree::scan::{ScanOptions, scan};
use inarch_tree::{FileType, InodeId, Timestamp, Tree};
use rustix::fd::{BorrowedFd, OwnedFd};
use rustix::fs::{
    AtFlags, CWD, Mode, OFlags, Stat, Timespec, Timestamps, UTIME_OMIT, openat, readlinkat, statat, utimensat,
};

use super::calls::{Faults, HELD_MAX};
use super::decide::Verdict;
use super::done::{Done, done};
use super::execute::{Outcome, execute};
use super::host::{Host, file_type};
use super::progress::Progress;
use super::sides::{Parts, Sides};
use super::ties::Ties;
use super::worker::Task;
use super::{forced, left_alone, plan_tree, with_directories};
use crate::OwnersBack;
use guest::Node;

/// The time of every file: none is told from another by it.
pub const TIME: Timestamp = Timestamp { seconds: 1_000_000_000, nanoseconds: 5 };

/// A value of `security.capability`: version 2, CAP_NET_RAW, effective (`struct vfs_cap_data` of
/// include/uapi/linux/capability.h).
pub const CAPABILITIES: &[u8] = &[1, 0, 0, 2, 0, 32, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];

/// Names and nodes.
type Entries = BTreeMap<Vec<u8>, usize>;
/// A change that another program makes on the host.
type Meanwhile = Box<dyn Fn(&Path)>;

/// A file of the host.
pub struct HostFile {
    pub path: PathBuf,
    pub ino: u64,
    pub bytes: Vec<u8>,
}

/// What an apply remembers.
#[derive(Default)]
pub struct Memory(pub Progress);

/// What came of an attempt.
pub struct Attempt {
    pub outcome: Outcome,
    pub verdicts: Vec<(String, Verdict)>,
    /// What `-n` would have told just before, if that was asked for.
    pub dry: Vec<(String, Verdict)>,
    /// Where only force lets something be done.
    pub forced: Vec<String>,
    /// What earlier attempts left, and nobody knows.
    pub strange: Vec<String>,
    /// Calls to the host.
    pub calls: u64,
    pub died: bool,
}

impl Attempt {
    /// All that the user is told of what was not done.
    pub fn told(&self) -> String {
        let told = (&self.outcome.conflicts, &self.outcome.failures);
        let bytes = |list: &[(Vec<u8>, String)]| -> Vec<String> {
            list.iter().map(|(path, reason)| format!("{}: {reason}", String::from_utf8_lossy(path))).collect()
        };
        format!("{:?} {:?} {:?} {:?}", self.verdicts, bytes(told.0), bytes(told.1), self.strange)
    }

    pub fn is_whole(&self) -> bool {
        let is_left = |verdict: &Verdict| matches!(verdict, Verdict::Refused(_) | Verdict::Held(_));
        let left = self.verdicts.iter().any(|(_, verdict)| is_left(verdict));
        !left && self.outcome.conflicts.is_empty() && self.outcome.failures.is_empty()
    }

    #[track_caller]
    pub fn assert_whole(&self) {
        let refused: Vec<_> = self
            .verdicts
            .iter()
            .filter(|(_, verdict)| matches!(verdict, Verdict::Refused(_) | Verdict::Held(_)))
            .collect();
        assert!(refused.is_empty(), "{refused:?}");
        assert!(self.outcome.conflicts.is_empty(), "{:?}", self.outcome.conflicts);
        assert!(self.outcome.failures.is_empty(), "{:?}", self.outcome.failures);
    }

    pub fn verdict(&self, path: &str) -> &Verdict {
        &self.verdicts.iter().find(|(at, _)| at == path).unwrap().1
    }
}

pub struct World {
    dir: tempfile::TempDir,
    base: Arc<Tree>,
    bytes: HashMap<InodeId, Vec<u8>>,
    nodes: Vec<Node>,
    /// Owners and groups of nodes that are not this process's.
    owners: HashMap<usize, (u32, u32)>,
    /// Files that were there before anything was applied.
    old: HashSet<u64>,
    synced: HashSet<u64>,
    /// What is or was there: while it is open its inode number is not used again.
    held: Vec<OwnedFd>,
    /// Runs before each attempt is carried out, behind its plan.
    pub meanwhile: Option<Meanwhile>,
    /// Whether what changed on the host is replaced and removed too.
    pub force: bool,
    /// Whether each attempt is planned as `-n` does before.
    pub rehearses: bool,
    /// Paths of the guest's files whose blocks are those of others too.
    pub overlapping: Vec<&'static str>,
}

impl World {
    /// A directory that `make` fills, scanned, and a guest that has changed nothing yet.
    pub fn new(make: impl FnOnce(&Path)) -> World {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("tree");
        fs::create_dir(&root).unwrap();
        make(&root);
        for file in files(&root) {
            set_time(&file.path);
        }
        let base = scan(&root, &ScanOptions { threads: 1, ..ScanOptions::default() }).unwrap().tree;
        let mut world = World {
            base: Arc::new(base),
            bytes: HashMap::new(),
            nodes: Vec::new(),
            owners: HashMap::new(),
            old: files(&root).iter().map(|file| file.ino).collect(),
            synced: HashSet::new(),
            held: Vec::new(),
            meanwhile: None,
            force: false,
            rehearses: false,
            overlapping: Vec::new(),
            dir,
        };
        world.hold();
        world.outlast_tick();
        world.begin_guest();
        world
    }

    /// Keeps the inode numbers of all that is there, if it is not too much.
    fn hold(&mut self) {
        if self.base.inodes().count() > HELD_MAX {
            return;
        }
        let mut held = vec![reach(&self.root()).unwrap()];
        walk(&self.root(), &mut |directory, path, _| {
            let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            held.push(openat(directory, path.file_name().unwrap(), flags, Mode::empty()).unwrap());
        });
        self.held.append(&mut held);
    }

    /// Waits until a change gives a file another time than the scan saw, however coarse the kernel's clock is.
    fn outlast_tick(&self) {
        let newest =
            self.base.inodes().map(|(_, inode)| inode.ctime()).max_by_key(|ctime| (ctime.seconds, ctime.nanoseconds));
        let newest = newest.map(|ctime| (ctime.seconds, i64::from(ctime.nanoseconds)));
        let probe = self.dir.path().join("clock");
        loop {
            fs::write(&probe, "").unwrap();
            let found = fs::metadata(&probe).unwrap();
            if Some((found.ctime(), found.ctime_nsec())) > newest {
                return;
            }
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
    }

    pub fn root(&self) -> PathBuf {
        self.dir.path().join("tree")
    }

    pub fn host(&self, path: &str) -> PathBuf {
        self.root().join(path)
    }

    /// What distinguishes the two trees.
    pub fn paths(&self) -> Vec<String> {
        let (guest, of) = self.guest();
        let found = differences(&self.base, &guest, &self.double(&of)).unwrap();
        found.into_iter().map(|difference| String::from_utf8(difference.path).unwrap()).collect()
    }

    /// What an apply of everything but `left` tells.
    pub fn told(&self, left: &[&str]) -> Vec<String> {
        let (guest, of) = self.guest();
        let double = self.double(&of);
        let found = differences(&self.base, &guest, &double).unwrap();
        let read = changes(&self.base, &guest, &found, &double);
        let name = |path: &[u8]| String::from_utf8(path.to_vec()).unwrap();
        let which = (0..found.len()).filter(|i| !left.contains(&&name(&found[*i].path)[..])).collect();
        let line = |done: Done| match done.from {
            Some(from) => format!("{} {from} -> {}", done.what, done.path),
            None => format!("{} {}", done.what, done.path),
        };
        done(&found, &read, &which, &name).into_iter().map(line).collect()
    }

    /// Applies what was `asked` for, everything if that is nothing.
    pub fn apply(&mut self, memory: &mut Memory, asked: &[&str], faults: Faults) -> Attempt {
        let (guest, of) = self.guest();
        let double = self.double(&of);
        let base = Arc::clone(&self.base);
        let found = differences(&base, &guest, &double).unwrap();
        let owners = OwnersBack::default();
        let sides = Sides::new(Parts {
            trees: (&base, &guest),
            content: &double,
            lineage: &double,
            owners: &owners,
            differences: &found,
            overlapping: self.overlapping.iter().filter_map(|path| guest.lookup(path.as_bytes())).collect(),
            conflicting: HashSet::new(),
            lost: HashSet::new(),
            source: self.root(),
            destination: "/guest".into(),
        });
        self.hold();
        let faults = Arc::new(Faults { root: self.root(), ..faults });
        let mut host = Host::open(&self.root(), faults.is_across).unwrap();
        host.calls.faults = Some(Arc::clone(&faults));
        if memory.0.token.is_empty() {
            memory.0.token = "t".to_owned();
        }
        let is_asked = |difference: &Difference| {
            let path = std::str::from_utf8(&difference.path).unwrap();
            asked.is_empty() || asked.iter().any(|top| path == *top || path.starts_with(&format!("{top}/")))
        };
        let chosen = with_directories(&sides, found.iter().map(is_asked).collect());
        let chosen = Ties::new(&sides).with_required(&chosen);
        let name = |i: usize| String::from_utf8(sides.path(i).to_vec()).unwrap();
        let named = |verdicts: &[Verdict]| -> Vec<(String, Verdict)> {
            verdicts.iter().enumerate().map(|(i, verdict)| (name(i), verdict.clone())).collect()
        };
        let rehearse = |force: bool| {
            let mut host = Host::open(&self.root(), false).unwrap();
            let able = Faults { root: self.root(), lacks: faults.lacks.clone(), ..Faults::default() };
            host.calls.faults = Some(Arc::new(able));
            host.pretend();
            plan_tree(&sides, &mut host, &memory.0, &chosen, force).2.verdicts
        };
        let (mut dry, mut by_force) = (Vec::new(), Vec::new());
        if self.rehearses {
            let (asked, shy) = (rehearse(self.force), rehearse(false));
            let is_forced = |i: &usize| matches!(shy[*i], Verdict::Refused(_)) && asked[*i].is_wanted();
            by_force = (0..asked.len()).filter(is_forced).map(name).collect();
            dry = named(&asked);
        }
        let (facts, leftovers, plan) = plan_tree(&sides, &mut host, &memory.0, &chosen, self.force);
        let verdicts = named(&plan.verdicts);
        let strange =
            leftovers.strange(&plan.verdicts).map(|(path, _)| String::from_utf8(path.clone()).unwrap()).collect();
        let (outcome, died) = (Outcome::default(), faults.is_dead());
        let mut attempt = Attempt { outcome, verdicts, dry, forced: by_force, strange, calls: 0, died };
        if attempt.died {
            self.held.append(&mut faults.held.lock().unwrap());
            return attempt;
        }
        memory.0.begun = true;
        memory.0.is_old = true;
        memory.0.left = left_alone(&sides, &plan.verdicts).map(|i| sides.path(i).to_vec()).collect();
        let paths = || (0..chosen.len()).filter(|i| chosen[*i]).map(|i| sides.path(i).to_vec()).collect();
        // As the record has it when an apply begins; a killed one notes no more of that.
        memory.0.touched = facts.touched.clone();
        memory.0.forced = forced(&sides, &facts, &plan.verdicts, &memory.0, self.force);
        memory.0.chosen = (!asked.is_empty()).then(paths);
        if let Some(meanwhile) = &self.meanwhile {
            meanwhile(&self.root());
        }
        let progress = memory.0.clone();
        let task = Task { sides: &sides, facts: &facts, plan: &plan, progress: &progress };
        attempt.outcome = execute(&task, &mut host, &leftovers, &mut |durable| {
            if faults.is_dead() {
                return Err(io::ErrorKind::Other.into());
            }
            memory.0.durable.extend(durable);
            Ok(())
        });
        attempt.died = faults.is_dead();
        let in_doubt = attempt.outcome.in_doubt;
        let goes_on = in_doubt || attempt.outcome.unfinished;
        attempt.calls = faults.count.load(std::sync::atomic::Ordering::Relaxed);
        // What was applied wholly may be ours, and torn, for as long as the run is kept.
        memory.0.begun = attempt.died || goes_on || (asked.is_empty() && attempt.is_whole());
        if !attempt.died {
            memory.0.restarted = in_doubt;
            memory.0.touched = attempt.outcome.touched.clone();
            memory.0.beside = attempt.outcome.beside.clone();
            if !goes_on {
                memory.0.forced.clear();
            }
        }
        self.synced.extend(faults.synced.lock().unwrap().iter());
        self.held.append(&mut faults.held.lock().unwrap());
        if !memory.0.begun {
            // What was applied in part is waited for at the end.
            self.synced.extend(files(&self.root()).iter().map(|file| file.ino));
        }
        attempt
    }

    /// The machine goes down.
    pub fn lose_power(&self, memory: &mut Memory, how: &[u8]) {
        memory.0.restarted = true;
        self.tear(how);
    }

    /// Files whose content was not waited for lose some, as `how` says one after another.
    pub fn tear(&self, how: &[u8]) {
        tear(&self.root(), &|ino| self.old.contains(&ino) || self.synced.contains(&ino), how);
    }

    /// What the host has, the same way.
    pub fn host_paths(&self) -> BTreeMap<String, Option<Vec<u8>>> {
        let mut found = BTreeMap::from([(String::new(), None)]);
        walk(&self.root(), &mut |directory, path, stat| {
            let name = path.file_name().unwrap();
            let content = match file_type(stat).unwrap() {
                FileType::Directory => None,
                FileType::Symlink => Some(readlinkat(directory, name, Vec::new()).unwrap().into_bytes()),
                _ => Some(read_at(directory.as_fd(), name)),
            };
            found.insert(format!("/{}", path.strip_prefix(self.root()).unwrap().display()), content);
        });
        found
    }

    /// Files of the host that are not as they were scanned: nothing may take them away.
    pub fn foreign_files(&self) -> Vec<HostFile> {
        let is_scanned = |file: &HostFile| {
            let path = file.path.strip_prefix(self.root()).unwrap().as_os_str().as_encoded_bytes().to_vec();
            let stat = rustix::fs::lstat(&file.path).unwrap();
            self.base.lookup(&path).is_some_and(|id| super::host::is_as_scanned(&stat, self.base.inode(id), true))
        };
        files(&self.root()).into_iter().filter(|file| !is_scanned(file)).collect()
    }

    pub fn host_files(&self) -> HashSet<Vec<u8>> {
        files(&self.root()).into_iter().map(|file| file.bytes).collect()
    }

    /// Notes that what is on the host now was there before.
    pub fn age(&mut self) {
        self.old = files(&self.root()).iter().map(|file| file.ino).collect();
        self.hold();
    }
}

/// Files of a tree but those that are `safe` lose some of their content, as `how` says one after another.
pub fn tear(root: &Path, safe: &dyn Fn(u64) -> bool, how: &[u8]) {
    let mut how = how.iter().cycle();
    for file in files(root).into_iter().filter(|file| !safe(file.ino)) {
        let before = fs::metadata(&file.path).unwrap();
        let length = file.bytes.len();
        let mut bytes = file.bytes;
        match how.next().unwrap() % 4 {
            0 => continue,
            1 => bytes.clear(),
            2 => bytes.truncate(length / 2),
            _ => bytes[length / 2..].fill(0),
        }
        fs::write(&file.path, bytes).unwrap();
        if how.next().unwrap().is_multiple_of(2) {
            let time = Timestamp { seconds: before.mtime(), nanoseconds: before.mtime_nsec() as u32 };
            set_times(&file.path, time);
        }
    }
}

/// Every regular file below a directory.
pub fn files(root: &Path) -> Vec<HostFile> {
    let mut found = Vec::new();
    walk(root, &mut |directory, path, stat| {
        if file_type(stat) == Some(FileType::Regular) {
            let bytes = read_at(directory.as_fd(), path.file_name().unwrap());
            found.push(HostFile { ino: stat.st_ino, bytes, path: path.to_owned() });
        }
    });
    found
}

/// Shows everything below a directory, and the directory that each is in: a path may be longer than the kernel takes.
fn walk(root: &Path, see: &mut dyn FnMut(&OwnedFd, &Path, &Stat)) {
    let mut stack = vec![(root.to_owned(), directory_at(CWD, root.as_os_str()))];
    while let Some((above, directory)) = stack.pop() {
        let entries = rustix::fs::Dir::read_from(&directory).unwrap().map(|entry| entry.unwrap());
        let mut names: Vec<Vec<u8>> = entries.map(|entry| entry.file_name().to_bytes().to_vec()).collect();
        names.retain(|name| name != b"." && name != b"..");
        names.sort();
        for name in names {
            let stat = statat(&directory, &name[..], AtFlags::SYMLINK_NOFOLLOW).unwrap();
            let path = above.join(OsStr::from_bytes(&name));
            see(&directory, &path, &stat);
            if file_type(&stat) == Some(FileType::Directory) {
                let opened = directory_at(directory.as_fd(), OsStr::from_bytes(&name));
                stack.push((path, opened));
            }
        }
    }
}

fn directory_at(above: BorrowedFd<'_>, path: &OsStr) -> OwnedFd {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    openat(above, path, flags, Mode::empty()).unwrap()
}

fn read_at(directory: BorrowedFd<'_>, name: &OsStr) -> Vec<u8> {
    let file = openat(directory, name, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).unwrap();
    let mut bytes = Vec::new();
    fs::File::from(file).read_to_end(&mut bytes).unwrap();
    bytes
}

/// The directory that an absolute path leads to, which may be longer than the kernel takes.
pub fn reach(path: &Path) -> io::Result<OwnedFd> {
    let mut pieces: Vec<PathBuf> = vec![PathBuf::new()];
    for name in path.components() {
        let last = pieces.last_mut().unwrap();
        if last.as_os_str().len() > 3000 {
            pieces.push(name.as_os_str().into());
        } else {
            last.push(name);
        }
    }
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let first = openat(CWD, &pieces[0], flags, Mode::empty())?;
    pieces[1..].iter().try_fold(first, |at, piece| Ok(openat(at, piece, flags, Mode::empty())?))
}

/// The content of a file, whose path may be longer than the kernel takes.
pub fn read(path: &Path) -> Vec<u8> {
    read_at(reach(path.parent().unwrap()).unwrap().as_fd(), path.file_name().unwrap())
}

fn stat_of(path: &Path) -> io::Result<Stat> {
    Ok(statat(reach(path.parent().unwrap())?, path.file_name().unwrap(), AtFlags::SYMLINK_NOFOLLOW)?)
}

/// Where a directory is.
pub fn path_of(directory: BorrowedFd<'_>) -> PathBuf {
    fs::read_link(format!("/proc/self/fd/{}", directory.as_raw_fd())).unwrap()
}

/// Whether a path leads into the directory that tests take for another file system.
pub fn is_across(path: &Path) -> bool {
    path.components().any(|name| name.as_os_str() == "across")
}

/// The path under which a directory that does not tell upper from lower case finds `path`.
pub fn found_as(directory: BorrowedFd<'_>, path: &[u8]) -> Vec<u8> {
    let mut found = path_of(directory);
    let start = found.as_os_str().len() + 1;
    for name in path.split(|byte| *byte == b'/') {
        let names = fs::read_dir(&found).into_iter().flatten().map(|entry| entry.unwrap().file_name());
        let alike: Vec<OsString> = names.filter(|other| other.as_bytes().eq_ignore_ascii_case(name)).collect();
        let is_there = name == b"." || alike.iter().any(|other| other.as_bytes() == name);
        let other = alike.into_iter().next().filter(|_| !is_there);
        found.push(other.unwrap_or_else(|| OsStr::from_bytes(name).to_owned()));
    }
    found.as_os_str().as_bytes()[start..].to_owned()
}

pub fn set_time(path: &Path) {
    set_times(path, TIME);
}

fn set_times(path: &Path, time: Timestamp) {
    let times = Timestamps {
        last_access: Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
        last_modification: Timespec { tv_sec: time.seconds, tv_nsec: time.nanoseconds.into() },
    };
    let above = reach(path.parent().unwrap()).unwrap();
    utimensat(above, path.file_name().unwrap(), &times, AtFlags::SYMLINK_NOFOLLOW).unwrap();
}

/// Makes files, links and directories of the host: `path`, and bytes, `-> target`, `= other name`, or nothing for a
/// directory.
pub fn fill(root: &Path, lines: &[(&str, &str)]) {
    for (path, what) in lines {
        let at = root.join(path);
        if let Some(target) = what.strip_prefix("-> ") {
            symlink(target, at).unwrap();
        } else if let Some(other) = what.strip_prefix("= ") {
            fs::hard_link(root.join(other), at).unwrap();
        } else if what.is_empty() {
            fs::create_dir_all(at).unwrap();
        } else {
            fs::write(at, what).unwrap();
        }
    }
}
